/* ingest/horovod/comm_timeline.c: reads the timelines of communication layers.
 *
 * Horovod gives each tensor a process of its own, named by a process_name event, in which B and E
 * events nest (an E has no name). BytePS writes one X event for each stage. The array is often
 * open: the writer adds to it until its process ends. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/sort.h"
#include "ingest/horovod/timeline_building.h"
#include "ingest/reader.h"

enum { MAX_NAME = 4096 };

struct reader_state {
    struct json *js;
    struct timeline_building b;
};

static void fini(void *payload)
{
    struct timeline *timeline = payload;
    array_fini(&timeline->tensors);
    array_fini(&timeline->runs);
    array_fini(&timeline->cycles);
    array_fini(&timeline->ready);
}

static bool is_empty(const void *payload)
{
    return ((const struct timeline *)payload)->runs.n == 0;
}

const struct payload_kind timeline_payload = {sizeof(struct timeline), fini, is_empty};

void timeline_destroy(struct timeline *timeline)
{
    if (timeline)
        fini(timeline);
    free(timeline);
}

static uint32_t read_text(struct reader_state *r)
{
    const char *text;
    size_t len;
    if (json_peek(r->js) != '"')
        return json_skip(r->js), 0;
    if (!json_string(r->js, &text, &len))
        return 0;
    return part_intern(r->b.part, text, MIN(len, (size_t)MAX_NAME), &r->b.no_memory);
}

/* A number, or a name, which is hashed. */
static uint64_t read_id(struct reader_state *r, uint32_t *name)
{
    uint64_t id = 0;
    if (json_peek(r->js) != '"')
        return json_read_unsigned(r->js, &id) == JSON_VALUE ? id : 0;
    *name = read_text(r);
    return *name;
}

static void read_args(struct reader_state *r, struct timeline_event *e)
{
    struct json *js = r->js;
    const char *key;
    size_t len;
    if (!json_open(js, '{'))
        return;
    while (json_object_next(js, &key, &len)) {
        if (json_is(key, len, "name"))
            e->args_name = read_text(r);
        else if (json_is(key, len, "dtype"))
            e->dtype = read_text(r);
        else if (json_is(key, len, "shape"))
            e->shape = read_text(r);
        else if (json_is(key, len, "start_time_since_epoch_in_micros"))
            e->has_anchor = json_read_decimal(js, 0, &e->anchor_us) == JSON_VALUE;
        else
            json_skip(js);
    }
}

static bool read_event(struct reader_state *r, struct timeline_event *e)
{
    struct json *js = r->js;
    const char *key, *text;
    size_t len;
    *e = (struct timeline_event){.ph = 0};
    js->p++;
    while (json_object_next(js, &key, &len)) {
        if (json_is(key, len, "ph")) {
            if (json_scalar(js, &text, &len) && len == 1)
                e->ph = *text;
        } else if (json_is(key, len, "name")) {
            e->name = read_text(r);
        } else if (json_is(key, len, "ts")) {
            e->has_ts =
                json_read_decimal(js, 3, &e->ts_ns) == JSON_VALUE && trace_time_fits(e->ts_ns);
        } else if (json_is(key, len, "dur")) {
            e->has_dur =
                json_read_decimal(js, 3, &e->dur_ns) == JSON_VALUE && trace_time_fits(e->dur_ns);
        } else if (json_is(key, len, "pid")) {
            e->pid = read_id(r, &e->pid_name);
            e->has_pid = true;
        } else if (json_is(key, len, "tid")) {
            e->tid = read_id(r, &e->tid_name);
        } else if (json_is(key, len, "args")) {
            read_args(r, e);
        } else {
            json_skip(js);
        }
    }
    return js->fail == JSON_OK && !r->b.no_memory;
}

/* The array is the writer's to close, which it does only when it is told to stop: that it ends
 * between two elements is no damage. */
static bool next_element(struct json *js)
{
    int c = json_peek(js);
    while (c == ',') {
        js->p++;
        c = json_peek(js);
    }
    return c >= 0 && json_array_next(js);
}

static void read_events(struct reader_state *r)
{
    struct json *js = r->js;
    struct timeline_event event;
    js->p++;
    while (!r->b.no_memory && next_element(js)) {
        if (json_peek(js) != '{') {
            r->b.part->losses.n_broken++;
            json_skip(js);
        } else if (read_event(r, &event)) {
            timeline_take_event(&r->b, &event);
        }
    }
}

int timeline_read(struct json *js, struct trace_part *part, struct dpro_error *err)
{
    struct reader_state r = {.js = js, .b = {.part = part}};
    const char *key;
    size_t len;
    r.b.timeline = part_make_payload(part, &timeline_payload);
    if (!r.b.timeline || strtab_add(&part->names, "", 0) == STRTAB_FULL)
        return dpro_error_nomem(err);
    json_skip_mark(js);
    int c = json_peek(js);
    if (c == '[') {
        read_events(&r);
    } else if (c == '{') {
        js->p++;
        while (!r.b.no_memory && json_object_next(js, &key, &len)) {
            if (json_is(key, len, "traceEvents") && json_peek(js) == '[')
                read_events(&r);
            else
                json_skip(js);
        }
    } else {
        json_stop(js, c < 0 ? JSON_ENDED : JSON_BAD);
    }
    if (!r.b.no_memory)
        timeline_finish(&r.b);
    map_fini(&r.b.tensors);
    array_fini(&r.b.writing);
    array_fini(&r.b.whole_stages);
    return r.b.no_memory ? dpro_error_nomem(err) : 0;
}

/* Names that only a communication layer's timeline has. */
bool timeline_recognise(const struct head *head)
{
    static const char *const names[] = {"NEGOTIATE_", "CYCLE_START", "MEMCPY_IN_FUSION_BUFFER",
                                        "Comm.byteps"};
    if (head->piece != HEAD_EVENT)
        return false;
    const char *name = head_field(head, "name"), *label = head_field(head, "args.name");
    for (size_t i = 0; name && i < sizeof names / sizeof *names; i++)
        if (strncmp(name, names[i], strlen(names[i])) == 0)
            return true;
    return (label && strstr(label, "HorovodAllreduce")) ||
           head_field(head, "args.start_time_since_epoch_in_micros");
}
