/* Reads the events of communication layers' timelines.
 *
 * The array is often open: the writer adds to it until its process ends. */
#include "adapters/horovod/comm_timeline.h"

#include "base/json_members.h"
#include "ingest/reader.h"

static void timeline_fini(void *payload)
{
    struct timeline *timeline = payload;
    FREE_ALL(&timeline->tensors, &timeline->runs, &timeline->cycles, &timeline->ready);
}

static bool is_empty(const void *payload)
{
    return ((const struct timeline *)payload)->runs.n == 0;
}

const struct payload_kind timeline_payload = {sizeof(struct timeline), timeline_fini, is_empty};

/* ---- an event ---- */

static void read_time(struct json_reader *r, void *out, size_t offset)
{
    struct timeline_time *time = (struct timeline_time *)((char *)out + offset);
    time->known = json_read_decimal(r->js, 3, &time->ns) == JSON_VALUE && trace_time_fits(time->ns);
}

/* A number, or a name. */
static void read_id(struct json_reader *r, void *out, size_t offset)
{
    struct timeline_id *id = (struct timeline_id *)((char *)out + offset);
    id->known = true;
    if (json_peek(r->js) == '"')
        id->number = id->name = json_read_text(r);
    else if (json_read_unsigned(r->js, &id->number) != JSON_VALUE)
        id->number = 0;
}

static void read_ph(struct json_reader *r, void *out, size_t offset UNUSED)
{
    const char *text;
    size_t len;
    ((struct timeline_event *)out)->ph = json_scalar(r->js, &text, &len) && len == 1 ? *text : 0;
}

#define EVENT_BY(key, function, member)                                                            \
    MEMBER_BY(key, function, offsetof(struct timeline_event, member))
static const struct json_member args_members[] = {
    MEMBER(struct timeline_event, "name", TEXT, args_name),
    MEMBER(struct timeline_event, "dtype", TEXT, dtype),
    MEMBER(struct timeline_event, "shape", TEXT, shape),
    EVENT_BY("start_time_since_epoch_in_micros", read_time, epoch),
    {NULL}};
static const struct json_member event_members[] = {
    EVENT_BY("ph", read_ph, ph),      MEMBER(struct timeline_event, "name", TEXT, name),
    EVENT_BY("ts", read_time, start), EVENT_BY("dur", read_time, dur),
    EVENT_BY("pid", read_id, pid),    EVENT_BY("tid", read_id, tid),
    MEMBER_IN("args", args_members),  {NULL}};

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
    struct json_reader reader = {.js = js, .strings = &r->part->names};
    js->p++;
    while (next_element(js)) {
        struct timeline_event event = {.ph = 0};
        if (!json_read_object(&reader, event_members, &event))
            r->part->losses.n_broken++;
        else if (js->fail == JSON_OK)
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
    if (head->piece != HEAD_EVENT)
        return false;
    const char *name = head_field(head, "name"), *label = head_field(head, "args.name");
    return (name &&
            (text_begins(name, "NEGOTIATE_") || text_begins(name, "CYCLE_START") ||
             text_begins(name, "MEMCPY_IN_FUSION_BUFFER") || text_begins(name, "Comm.byteps"))) ||
           (label && strstr(label, "HorovodAllreduce")) ||
           head_field(head, "args.start_time_since_epoch_in_micros");
}
