/* The timeline in Perfetto's own format (perfetto.dev, trace_packet.proto, track_event.proto), in
 * which nothing is rounded. */
#include "report/drawing.h"

#include "base/protobuf.h"

#include <dpro/report.h>

enum { TRACE_PACKET = 1 };
enum { PACKET_TIMESTAMP = 8, PACKET_SEQUENCE = 10, PACKET_EVENT = 11, PACKET_TRACK = 60 };
enum {
    TRACK_UUID = 1,
    TRACK_NAME = 2,
    TRACK_PROCESS = 3,
    TRACK_PARENT = 5,
    TRACK_COUNTER = 8,
    TRACK_ORDERING = 11,
    TRACK_PLACE = 12
};
enum { PROCESS_PID = 1, PROCESS_NAME = 6 };
enum { COUNTER_UNIT = 3, UNIT_BYTES = 3 };
enum { ORDER_BY_PLACE = 3 };
enum {
    EVENT_ANNOTATION = 4,
    EVENT_TYPE = 9,
    EVENT_TRACK = 11,
    EVENT_CATEGORY = 22,
    EVENT_NAME = 23,
    EVENT_COUNTER = 30,
    EVENT_FLOW = 47,
    EVENT_LAST_OF_FLOW = 48
};
enum { SLICE_BEGIN = 1, SLICE_END, COUNTER = 4 };
enum { NOTE_NAME = 10, NOTE_INT = 4, NOTE_DOUBLE = 5, NOTE_TEXT = 6 };

struct perfetto {
    struct writer *w;
    struct pb_out packet, body, part;
};

static void put_packet(struct perfetto *p, uint32_t kind)
{
    struct pb_out *out = &p->packet;
    pb_put_uint(out, PACKET_SEQUENCE, 1);
    pb_put_message(out, kind, &p->body);
    pb_put_message(&p->part, TRACE_PACKET, out);
    writer_put(p->w, p->part.at, p->part.n);
    p->part.n = 0;
}

/* Of a process: track 0. Counters are tracks of their own, after all others. */
static uint64_t uuid_of(int64_t pid, int64_t tid)
{
    return (uint64_t)pid << 31 | (uint64_t)tid;
}
enum { FIRST_COUNTER = 1 << 30 };

static void put_process(void *perfetto, int64_t pid, const char *name, int64_t place)
{
    struct perfetto *p = perfetto;
    (void)place;
    pb_put_uint(&p->part, PROCESS_PID, (uint64_t)pid);
    pb_put_text(&p->part, PROCESS_NAME, name);
    pb_put_uint(&p->body, TRACK_UUID, uuid_of(pid, 0));
    pb_put_message(&p->body, TRACK_PROCESS, &p->part);
    pb_put_uint(&p->body, TRACK_ORDERING, ORDER_BY_PLACE);
    put_packet(p, PACKET_TRACK);
}

/* Up to its packet. */
static void begin_track(struct perfetto *p, int64_t pid, int64_t tid, const char *name)
{
    pb_put_uint(&p->body, TRACK_UUID, uuid_of(pid, tid));
    pb_put_uint(&p->body, TRACK_PARENT, uuid_of(pid, 0));
    pb_put_uint(&p->body, TRACK_PLACE, (uint64_t)tid);
    pb_put_text(&p->body, TRACK_NAME, name);
}

static void put_track(void *perfetto, int64_t pid, int64_t tid, const char *name)
{
    begin_track(perfetto, pid, tid, name);
    put_packet(perfetto, PACKET_TRACK);
}

static void begin_event(struct perfetto *p, int64_t at_ns, uint64_t track, int type)
{
    pb_put_uint(&p->packet, PACKET_TIMESTAMP, (uint64_t)at_ns);
    pb_put_uint(&p->body, EVENT_TYPE, (uint64_t)type);
    pb_put_uint(&p->body, EVENT_TRACK, track);
}

static void put_slice(void *perfetto, const struct drawing_slice *s)
{
    struct perfetto *p = perfetto;
    uint64_t track = uuid_of(s->pid, s->tid);
    begin_event(p, s->start_ns, track, SLICE_BEGIN);
    pb_put_text(&p->body, EVENT_CATEGORY, s->kind);
    pb_put_text(&p->body, EVENT_NAME, s->name);
    EACH_OF (const struct writer_field, note, s->notes, s->n_notes) {
        pb_put_text(&p->part, NOTE_NAME, note->key);
        if (note->kind == WRITER_TEXT)
            pb_put_text(&p->part, NOTE_TEXT, note->text);
        else if (note->kind == WRITER_MS)
            pb_put_double(&p->part, NOTE_DOUBLE, (double)note->number / 1e6);
        else
            pb_put_uint(&p->part, NOTE_INT, (uint64_t)note->number);
        pb_put_message(&p->body, EVENT_ANNOTATION, &p->part);
    }
    EACH_OF (const struct drawing_arrow, arrow, s->arrows, s->n_arrows)
        pb_put_fixed64(&p->body, arrow->is_end ? EVENT_LAST_OF_FLOW : EVENT_FLOW, arrow->id);
    put_packet(p, PACKET_EVENT);
    begin_event(p, s->start_ns + s->dur_ns, track, SLICE_END);
    put_packet(p, PACKET_EVENT);
}

static void put_held(void *perfetto, int64_t pid, const struct dpro_rank_memory *memory,
                     int64_t zero_ns)
{
    struct perfetto *p = perfetto;
    for (int c = 0; c < DPRO_N_MEMORY_CATEGORIES; c++) {
        uint64_t most = 0;
        EACH_OF (const struct dpro_memory_point, point, memory->points, memory->n_points)
            most = MAX(most, point->by_category[c]);
        if (most == 0)
            continue;
        begin_track(p, pid, FIRST_COUNTER + c, dpro_memory_category_name(c));
        pb_put_uint(&p->part, COUNTER_UNIT, UNIT_BYTES);
        pb_put_message(&p->body, TRACK_COUNTER, &p->part);
        put_packet(p, PACKET_TRACK);
        EACH_OF (const struct dpro_memory_point, point, memory->points, memory->n_points) {
            begin_event(p, point->at_ns - zero_ns, uuid_of(pid, FIRST_COUNTER + c), COUNTER);
            pb_put_uint(&p->body, EVENT_COUNTER, point->by_category[c]);
            put_packet(p, PACKET_EVENT);
        }
    }
}

static void write_perfetto(struct writer *w, const void *arg)
{
    const struct dpro_report *report = arg;
    const struct dpro_replay_view *replay = dpro_replay_view(report->replay);
    struct perfetto p = {.w = w};
    struct drawing_form form = {&p, put_process, put_track, put_slice, put_held};
    struct slices slices;
    slices_init(&slices, report->graph, replay);
    drawing_tell(report->graph, replay, &slices, &form);
    slices_fini(&slices);
    FREE_ALL(&p.packet, &p.body, &p.part);
}

int dpro_report_perfetto(const struct dpro_report *report, const char *path, struct dpro_error *err)
{
    return writer_write_path(path, text_ends(path, ".gz"), write_perfetto, report, err);
}
