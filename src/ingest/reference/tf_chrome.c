/* ingest/reference/tf_chrome.c: TensorFlow's profile as Chrome trace JSON (trace.json.gz of
 * TensorFlow 2).
 *
 * What ran on a device stands on a thread of it called "TensorFlow Ops": one X event an op, whose
 * args.long_name is "node:Type" and whose args.group_id numbers the step. A step begins with the
 * first op of its group. Where no thread bears that name, every event with a long name is an op. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/map.h"
#include "ingest/part.h"

enum { MAX_TRACKS = 1 << 20, MAX_STEPS = 1 << 20, ROUNDING_NS = 1000 };

struct event {
    uint64_t pid, tid;
    int64_t ts_ns, dur_ns, group;
    uint32_t name, long_name, label;
    char ph;
    enum json_value ts, dur;
    bool has_group;
};

/* What was read of an op, until it is known which threads count. */
struct ran {
    int64_t start_ns, dur_ns, group;
    uint32_t name, track;
    bool has_group;
};

struct reader_state {
    struct json *js;
    struct trace_part *part;
    struct map tracks;        /* process and thread -> index + 1 */
    ARRAY(uint8_t) holds_ops; /* by track: it says so */
    ARRAY(struct ran) ran;
    bool no_memory;
};

static uint32_t intern(struct reader_state *r, const char *text, size_t len)
{
    return part_intern(r->part, text, len, &r->no_memory);
}

static uint32_t read_text(struct reader_state *r)
{
    return part_read_text(r->part, r->js, &r->no_memory);
}

/* "StatefulPartitionedCall/dense/MatMul:MatMul": the node's own name. */
static uint32_t read_node(struct reader_state *r)
{
    static const char call[] = "StatefulPartitionedCall/";
    const char *text, *colon;
    size_t len;
    if (json_peek(r->js) != '"')
        return json_skip(r->js), 0;
    if (!json_string(r->js, &text, &len))
        return 0;
    if (len > sizeof call && memcmp(text, call, sizeof call - 1) == 0) {
        text += sizeof call - 1;
        len -= sizeof call - 1;
    }
    colon = memrchr(text, ':', len);
    return intern(r, text, colon && colon > text ? (size_t)(colon - text) : len);
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
        else if (json_is(key, len, "long_name"))
            e->long_name = read_node(r);
        else if (json_is(key, len, "group_id"))
            e->has_group = json_read_decimal(r->js, 0, &e->group) == JSON_VALUE;
        else
            json_skip(r->js);
    }
}

static uint32_t track_of(struct reader_state *r, const struct event *e)
{
    uint64_t key = map_mix(map_mix(e->pid + 1) + e->tid) | 1, index;
    struct part_track fresh = {
        .track = {.pool = true, .pid = e->pid, .id = (int64_t)(e->tid & INT64_MAX)}};
    if (map_get(&r->tracks, key, &index))
        return (uint32_t)index;
    uint8_t unknown = 0;
    if (r->part->tracks.n >= MAX_TRACKS || array_push(&r->part->tracks, fresh) < 0 ||
        array_push(&r->holds_ops, unknown) < 0 ||
        map_set(&r->tracks, key, r->part->tracks.n - 1) < 0) {
        r->no_memory = true;
        return 0;
    }
    return (uint32_t)r->part->tracks.n - 1;
}

static void take_label(struct reader_state *r, const struct event *e)
{
    const char *what = strtab_get(&r->part->names, e->name);
    const char *label = strtab_get(&r->part->names, e->label);
    if (strcmp(what, "thread_name") != 0)
        return;
    uint32_t track = track_of(r, e);
    if (r->no_memory)
        return;
    r->part->tracks.at[track].track.name = e->label;
    r->holds_ops.at[track] = strstr(label, "TensorFlow Ops") != NULL;
}

static void take_op(struct reader_state *r, const struct event *e)
{
    struct part_losses *losses = &r->part->losses;
    if (e->ts == JSON_NO_VALUE) {
        losses->n_no_time++;
    } else if (e->dur == JSON_NO_VALUE) {
        losses->n_no_dur++;
    } else if (e->ts == JSON_SATURATED || e->dur == JSON_SATURATED || !trace_time_fits(e->ts_ns) ||
               !trace_time_fits(e->dur_ns) || !trace_time_fits(e->ts_ns + e->dur_ns)) {
        losses->n_overflow++;
    } else if (e->dur_ns < 0) {
        losses->n_negative++;
    } else {
        struct ran ran = {e->ts_ns,     e->dur_ns,      e->group,
                          e->long_name, track_of(r, e), e->has_group};
        r->no_memory |= r->no_memory || array_push(&r->ran, ran) < 0;
    }
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
            e.ts = json_read_decimal(js, 3, &e.ts_ns);
        } else if (json_is(key, len, "dur")) {
            e.dur = json_read_decimal(js, 3, &e.dur_ns);
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
    if (js->fail != JSON_OK || r->no_memory)
        return; /* an event that is not whole is none */
    r->part->n_events++;
    if (e.ph == 'M')
        take_label(r, &e);
    else if (e.ph == 'X' && e.long_name)
        take_op(r, &e);
}

static void add_span(struct reader_state *r, struct trace_span span)
{
    span.detail = span.parent = span.node = NO_ID;
    r->no_memory |= !part_place_span(r->part, &span);
}

static int by_track(const void *a, const void *b)
{
    const struct ran *x = a, *y = b;
    if (x->track != y->track)
        return x->track < y->track ? -1 : 1;
    if (x->start_ns != y->start_ns)
        return x->start_ns < y->start_ns ? -1 : 1;
    return x->dur_ns < y->dur_ns ? -1 : x->dur_ns > y->dur_ns;
}

/* Starts and durations are rounded each for itself: an op may seem to end after the next began. */
static void trim_overlaps(struct reader_state *r)
{
    if (r->ran.n > 1)
        qsort(r->ran.at, r->ran.n, sizeof *r->ran.at, by_track);
    for (size_t i = 0; i + 1 < r->ran.n; i++) {
        struct ran *ran = &r->ran.at[i], *next = ran + 1;
        int64_t over_ns = ran->start_ns + ran->dur_ns - next->start_ns;
        if (ran->track == next->track && over_ns > 0 && over_ns <= ROUNDING_NS &&
            over_ns < ran->dur_ns)
            ran->dur_ns -= over_ns;
    }
}

static int by_group(const void *a, const void *b)
{
    const struct ran *x = a, *y = b;
    if (x->has_group != y->has_group)
        return x->has_group ? -1 : 1;
    if (x->group != y->group)
        return x->group < y->group ? -1 : 1;
    return x->start_ns < y->start_ns ? -1 : x->start_ns > y->start_ns;
}

/* A step: from its group's first op to the last one's end. */
static void add_steps(struct reader_state *r)
{
    struct part_track fresh = {.track = {.id = -1, .name = intern(r, "steps", 5)}};
    size_t n = 0;
    if (r->ran.n == 0 || !r->ran.at[0].has_group || r->no_memory)
        return;
    if (array_push(&r->part->tracks, fresh) < 0) {
        r->no_memory = true;
        return;
    }
    for (size_t i = 0, next; i < r->ran.n && r->ran.at[i].has_group && !r->no_memory; i = next) {
        int64_t end = INT64_MIN;
        for (next = i; next < r->ran.n && r->ran.at[next].has_group &&
                       r->ran.at[next].group == r->ran.at[i].group;
             next++)
            if (r->ran.at[next].start_ns + r->ran.at[next].dur_ns > end)
                end = r->ran.at[next].start_ns + r->ran.at[next].dur_ns;
        if (r->ran.at[i].group < 0 || r->ran.at[i].group > INT32_MAX || n++ >= MAX_STEPS)
            continue;
        struct trace_span step = {.start_ns = r->ran.at[i].start_ns,
                                  .dur_ns = end - r->ran.at[i].start_ns,
                                  .name = fresh.track.name,
                                  .track = (uint32_t)r->part->tracks.n - 1,
                                  .sequence = (int32_t)r->ran.at[i].group,
                                  .kind = SPAN_STEP};
        add_span(r, step);
    }
}

static void finish(struct reader_state *r)
{
    bool named = false;
    size_t n = 0;
    for (size_t t = 0; t < r->holds_ops.n; t++)
        named |= r->holds_ops.at[t];
    for (size_t i = 0; i < r->ran.n; i++)
        if (!named || r->holds_ops.at[r->ran.at[i].track])
            r->ran.at[n++] = r->ran.at[i];
    r->ran.n = n;
    trim_overlaps(r);
    for (size_t i = 0; i < n && !r->no_memory; i++) {
        struct trace_span span = {.start_ns = r->ran.at[i].start_ns,
                                  .dur_ns = r->ran.at[i].dur_ns,
                                  .name = r->ran.at[i].name,
                                  .track = r->ran.at[i].track,
                                  .sequence = -1,
                                  .kind = SPAN_CPU_OP};
        add_span(r, span);
    }
    if (n > 1)
        qsort(r->ran.at, n, sizeof *r->ran.at, by_group);
    add_steps(r);
}

int tf_chrome_read(struct json *js, struct trace_part *part, struct dpro_error *err)
{
    struct reader_state r = {.js = js, .part = part};
    r.no_memory = strtab_add(&part->names, "", 0) == STRTAB_FULL;
    part_read_events(part, js, read_event, &r, &r.no_memory);
    if (!r.no_memory)
        finish(&r);
    map_fini(&r.tracks);
    array_fini(&r.holds_ops);
    array_fini(&r.ran);
    return r.no_memory ? dpro_error_nomem(err) : 0;
}
