/* ingest/byteps/timeline.c: the timelines that dPRO's first implementation derived from BytePS's
 * logs: comm_timeline.json, whose processes are "worker_0 -> server_1" and whose events
 * "<tensor>[~PARTk].PUSH" or ".PULL"; and server_timeline.json, whose processes are "server_1",
 * their threads tids and their events "<tensor>[~PARTk].SUM" and kin. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/map.h"
#include "ingest/byteps/byteps.h"
#include "ingest/part.h"

enum { MAX_NUMBER = 1 << 18 };

struct process {
    int32_t from, to; /* nodes; to 0: a server's own work */
};

struct event {
    uint64_t pid, tid;
    int64_t ts_ns;
    uint32_t name, label;
    char ph;
    bool has_ts;
};

struct reader_state {
    struct json *js;
    struct trace_part *part;
    struct map processes; /* pid -> index + 1 */
    ARRAY(struct process) at;
    bool no_memory;
};

static uint32_t read_text(struct reader_state *r)
{
    return part_read_text(r->part, r->js, &r->no_memory);
}

/* "worker_3": its node; 0: none. */
static int32_t node_of(const char *text, const char **end)
{
    static const char *const roles[] = {"server_", "worker_"};
    for (int r = 0; r < 2; r++) {
        char *stop;
        if (strncmp(text, roles[r], 7) != 0)
            continue;
        long number = strtol(text + 7, &stop, 10);
        *end = stop;
        if (stop == text + 7 || number < 0 || number > MAX_NUMBER)
            return 0;
        return r ? byteps_worker_node((int32_t)number) : byteps_server_node((int32_t)number);
    }
    return 0;
}

static bool process_of(const char *label, struct process *process)
{
    const char *end;
    *process = (struct process){.from = node_of(label, &end)};
    if (!process->from)
        return false;
    if (*end == '\0')
        return !byteps_is_worker(process->from);
    if (strncmp(end, " -> ", 4) != 0)
        return false;
    process->to = node_of(end + 4, &end);
    return process->to && *end == '\0' &&
           byteps_is_worker(process->from) != byteps_is_worker(process->to);
}

bool byteps_is_process(const char *label)
{
    struct process process;
    return process_of(label, &process);
}

static void read_args(struct reader_state *r, struct event *e)
{
    const char *key;
    size_t len;
    if (!json_open(r->js, '{'))
        return;
    while (json_object_next(r->js, &key, &len)) {
        if (json_is(key, len, "name"))
            e->label = read_text(r);
        else
            json_skip(r->js);
    }
}

static void name_process(struct reader_state *r, const struct event *e)
{
    struct process process;
    if (!process_of(strtab_get(&r->part->names, e->label), &process))
        return;
    r->no_memory |= array_push(&r->at, process) < 0 ||
                    map_set(&r->processes, map_mix(e->pid + 1) | 1, r->at.n) < 0;
}

/* "dense~PART1.PUSH": the tensor's part. */
static uint32_t tensor_of(struct reader_state *r, const char *name, const char *dot)
{
    return part_intern(r->part, name, (size_t)(dot - name), &r->no_memory);
}

static void take_moment(struct reader_state *r, const struct event *e, const struct process *p,
                        const char *name, const char *dot)
{
    struct byteps_moment moment = {
        .time_ns = e->ts_ns, .from = p->from, .to = p->to, .logged_by = p->from};
    bool push = strcmp(dot, ".PUSH") == 0;
    if (!push && strcmp(dot, ".PULL") != 0)
        return;
    moment.name = tensor_of(r, name, dot);
    moment.flags = (uint8_t)((push ? BYTEPS_PUSH : 0) | (e->ph == 'B' ? BYTEPS_STARTS : 0) |
                             (byteps_is_worker(p->from) ? BYTEPS_REQUEST : 0));
    r->no_memory = r->no_memory || array_push(&r->part->byteps->moments, moment) < 0;
}

static void take_work(struct reader_state *r, const struct event *e, const struct process *p,
                      const char *name, const char *dot)
{
    static const char *const ops[N_BYTEPS_OPS] = {".COPY_FIRST", ".SUM", ".COPY_MERGED"};
    struct byteps_work work = {.time_ns = e->ts_ns,
                               .thread = (uint32_t)(e->tid % MAX_NUMBER),
                               .server = (p->from - 8) / 2,
                               .starts = e->ph == 'B'};
    while (work.op < N_BYTEPS_OPS && strcmp(dot, ops[work.op]) != 0)
        work.op++;
    if (work.op == N_BYTEPS_OPS)
        return;
    work.name = tensor_of(r, name, dot);
    r->no_memory = r->no_memory || array_push(&r->part->byteps->work, work) < 0;
}

static void take_event(struct reader_state *r, const struct event *e)
{
    uint64_t process;
    r->part->n_events++;
    if (e->ph == 'M' && e->label) {
        name_process(r, e);
        return;
    }
    if ((e->ph != 'B' && e->ph != 'E') ||
        !map_get(&r->processes, map_mix(e->pid + 1) | 1, &process))
        return;
    if (!e->has_ts) {
        r->part->losses.n_no_time++;
        return;
    }
    const struct process *p = &r->at.at[process - 1];
    const char *name = strtab_get(&r->part->names, e->name), *dot = strrchr(name, '.');
    if (dot && p->to)
        take_moment(r, e, p, name, dot);
    else if (dot)
        take_work(r, e, p, name, dot);
}

static void read_event(void *reader)
{
    struct reader_state *r = reader;
    struct json *js = r->js;
    struct event e = {.ph = '?'};
    const char *key, *text;
    size_t len;
    js->p++;
    while (json_object_next(js, &key, &len)) {
        if (json_is(key, len, "ph")) {
            if (json_scalar(js, &text, &len))
                e.ph = len == 1 ? text[0] : '?';
        } else if (json_is(key, len, "ts")) {
            e.has_ts = json_read_decimal(js, 3, &e.ts_ns) == JSON_VALUE && trace_time_fits(e.ts_ns);
        } else if (json_is(key, len, "pid")) {
            json_read_unsigned(js, &e.pid);
        } else if (json_is(key, len, "tid")) {
            json_read_unsigned(js, &e.tid);
        } else if (json_is(key, len, "name")) {
            e.name = read_text(r);
        } else if (json_is(key, len, "args")) {
            read_args(r, &e);
        } else {
            json_skip(js);
        }
    }
    if (js->fail == JSON_OK && !r->no_memory)
        take_event(r, &e);
}

int byteps_timeline_read(struct json *js, struct trace_part *part, struct dpro_error *err)
{
    struct reader_state r = {.js = js, .part = part};
    r.no_memory = !byteps_part_of(part) || strtab_add(&part->names, "", 0) == STRTAB_FULL;
    part_read_events(part, js, read_event, &r, &r.no_memory);
    map_fini(&r.processes);
    array_fini(&r.at);
    return r.no_memory ? dpro_error_nomem(err) : 0;
}
