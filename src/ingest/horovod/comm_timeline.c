/* Reads the events of communication layers' timelines.
 *
 * The array is often open: the writer adds to it until its process ends. */
#include "ingest/horovod/comm_timeline.h"

#include <string.h>

#include "ingest/reader.h"

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

/* ---- an event ---- */

static void read_time(struct json *js, struct timeline_time *time)
{
    time->known = json_read_decimal(js, 3, &time->ns) == JSON_VALUE && trace_time_fits(time->ns);
}

/* A number, or a name. */
static void read_id(struct json *js, struct trace_part *part, struct timeline_id *id)
{
    id->known = true;
    if (json_peek(js) == '"')
        id->number = id->name = part_read_text(part, js);
    else if (json_read_unsigned(js, &id->number) != JSON_VALUE)
        id->number = 0;
}

static void read_args(struct json *js, struct trace_part *part, struct timeline_event *e)
{
    JSON_KEYS (js, json_open(js, '{'), key, len) {
        if (json_is(key, len, "name"))
            e->args_name = part_read_text(part, js);
        else if (json_is(key, len, "dtype"))
            e->dtype = part_read_text(part, js);
        else if (json_is(key, len, "shape"))
            e->shape = part_read_text(part, js);
        else if (json_is(key, len, "start_time_since_epoch_in_micros"))
            read_time(js, &e->epoch);
        else
            json_skip(js);
    }
}

static void read_event(struct json *js, struct trace_part *part, struct timeline_event *e)
{
    const char *text;
    JSON_KEYS (js, true, key, len) {
        if (json_is(key, len, "ph"))
            e->ph = json_scalar(js, &text, &len) && len == 1 ? *text : 0;
        else if (json_is(key, len, "name"))
            e->name = part_read_text(part, js);
        else if (json_is(key, len, "ts"))
            read_time(js, &e->start);
        else if (json_is(key, len, "dur"))
            read_time(js, &e->dur);
        else if (json_is(key, len, "pid"))
            read_id(js, part, &e->pid);
        else if (json_is(key, len, "tid"))
            read_id(js, part, &e->tid);
        else if (json_is(key, len, "args"))
            read_args(js, part, e);
        else
            json_skip(js);
    }
}

/* ---- the file ---- */

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

static void read_events(struct timeline_reading *r, struct json *js)
{
    js->p++;
    while (next_element(js)) {
        struct timeline_event event = {.ph = 0};
        if (!json_open(js, '{')) {
            r->part->losses.n_broken++;
            continue;
        }
        read_event(js, r->part, &event);
        if (js->fail == JSON_OK)
            timeline_take_event(r, &event);
    }
}

int timeline_read(struct json *js, struct trace_part *part, struct dpro_error *err UNUSED)
{
    struct timeline_reading r = {.part = part,
                                 .timeline = part_make_payload(part, &timeline_payload)};
    json_skip_mark(js);
    bool bare = json_peek(js) == '[';
    if (bare)
        read_events(&r, js);
    JSON_KEYS (js, !bare && json_open_document(js), key, len)
        if (json_is(key, len, "traceEvents") && json_peek(js) == '[')
            read_events(&r, js);
        else
            json_skip(js);
    timeline_finish(&r);
    return 0;
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
        if (text_begins(name, names[i]))
            return true;
    return (label && strstr(label, "HorovodAllreduce")) ||
           head_field(head, "args.start_time_since_epoch_in_micros");
}
