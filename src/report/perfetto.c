/* The measured and the replayed iteration in Perfetto's own format (perfetto.dev,
 * trace_packet.proto, track_event.proto): the tracks of the timeline in JSON, in which nothing is
 * rounded and no arrow is lost; counters of what ranks hold, and the critical path. */
#include "graph/graph.h"
#include "report/slices.h"

#include "base/protobuf.h"
#include "base/writer.h"

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
enum { SLICE_BEGIN = 1, SLICE_END, INSTANT, COUNTER };
enum { NOTE_NAME = 10, NOTE_INT = 4, NOTE_TEXT = 6 };

/* An arrow between two ops' slices, as measured or as replayed. */
struct arrow {
    dpro_op_id op; /* one of its ends */
    bool is_end;
    uint64_t id;
};

struct perfetto {
    struct writer *w;
    const struct dpro_graph *graph;
    const struct dpro_replay_view *replay;
    ARRAY(struct arrow) arrows; /* by op */
    struct pb_out packet, body, part;
    int64_t zero_ns; /* that times count from, as they have no sign */
};

/* ---- packets ---- */

static void put_packet(struct perfetto *p, uint32_t kind)
{
    struct pb_out *out = &p->packet;
    pb_put_uint(out, PACKET_SEQUENCE, 1);
    pb_put_message(out, kind, &p->body);
    pb_put_message(&p->part, TRACE_PACKET, out);
    writer_put(p->w, p->part.at, p->part.n);
    p->part.n = 0;
}

/* Tracks are numbered: 1 + rank, then those of devices, measured and replayed. */
static uint64_t process_track(uint32_t rank_index)
{
    return 1 + rank_index;
}

static uint64_t slice_track(const struct perfetto *p, dpro_device_id device, bool replayed)
{
    uint64_t n_processes = p->graph->n_ranks + (uint64_t)p->graph->n_servers + 1;
    return 1 + n_processes + 2 * (uint64_t)device + replayed;
}

static uint64_t counter_track(const struct perfetto *p, uint32_t rank, int category)
{
    return slice_track(p, p->graph->n_devices, 0) + (uint64_t)rank * DPRO_N_MEMORY_CATEGORIES +
           (uint64_t)category;
}

static void put_process(struct perfetto *p, uint64_t track, const char *name)
{
    pb_put_uint(&p->part, PROCESS_PID, track);
    pb_put_text(&p->part, PROCESS_NAME, name);
    pb_put_uint(&p->body, TRACK_UUID, track);
    pb_put_message(&p->body, TRACK_PROCESS, &p->part);
    pb_put_uint(&p->body, TRACK_ORDERING, ORDER_BY_PLACE);
    put_packet(p, PACKET_TRACK);
}

static void put_track(struct perfetto *p, uint64_t track, uint64_t parent, uint64_t place,
                      const char *name)
{
    pb_put_uint(&p->body, TRACK_UUID, track);
    pb_put_uint(&p->body, TRACK_PARENT, parent);
    pb_put_uint(&p->body, TRACK_PLACE, place);
    pb_put_text(&p->body, TRACK_NAME, name);
}

static void begin_event(struct perfetto *p, int64_t at_ns, uint64_t track, int type)
{
    pb_put_uint(&p->packet, PACKET_TIMESTAMP, (uint64_t)(at_ns - p->zero_ns));
    pb_put_uint(&p->body, EVENT_TYPE, (uint64_t)type);
    pb_put_uint(&p->body, EVENT_TRACK, track);
}

static void put_note(struct perfetto *p, const char *name, int64_t number, const char *text)
{
    if (text ? !*text : !number)
        return;
    pb_put_text(&p->part, NOTE_NAME, name);
    if (text)
        pb_put_text(&p->part, NOTE_TEXT, text);
    else
        pb_put_uint(&p->part, NOTE_INT, (uint64_t)number);
    pb_put_message(&p->body, EVENT_ANNOTATION, &p->part);
}

static void begin_slice(struct perfetto *p, int64_t at_ns, uint64_t track, const char *name,
                        const struct dpro_op *op, bool waiting)
{
    uint32_t dimension = dpro_graph_op_dimension(p->graph, op->id);
    begin_event(p, at_ns, track, SLICE_BEGIN);
    pb_put_text(&p->body, EVENT_CATEGORY, waiting ? "WAIT" : dpro_op_kind_name(op->kind));
    pb_put_text(&p->body, EVENT_NAME, name);
    put_note(p, "op", op->id, NULL);
    put_note(p, "gap_ns", op->gap_ns, NULL);
    put_note(p, "bytes", (int64_t)op->size_bytes, NULL);
    put_note(p, "tensor", 0, op->tensor);
    if (dimension != DPRO_NO_DIMENSION)
        put_note(p, "dimension", 0, dpro_graph_dimension(p->graph, dimension).name);
}

static void end_slice(struct perfetto *p, int64_t at_ns, uint64_t track)
{
    put_packet(p, PACKET_EVENT);
    begin_event(p, at_ns, track, SLICE_END);
    put_packet(p, PACKET_EVENT);
}

/* ---- arrows ---- */

ORDER(by_op, struct arrow, ASCENDING(op) ?: ASCENDING(id));

static void add_arrow(void *perfetto, dpro_op_id from, dpro_op_id to)
{
    struct perfetto *p = perfetto;
    const struct dpro_graph *g = p->graph;
    uint64_t id = 1 + p->arrows.n;
    if (g->device[from] >= g->n_devices || g->device[to] >= g->n_devices)
        return;
    array_add(&p->arrows, from, false, id);
    array_add(&p->arrows, to, true, id);
}

/* From launches to their kernels, from sends to what receives, from the last rank to arrive to the
 * others. */
static void collect_arrows(struct perfetto *p)
{
    const struct dpro_graph *g = p->graph;
    for (dpro_op_id op = 0; op < g->n_ops; op++) {
        uint32_t n;
        const dpro_op_id *to = dpro_graph_successors(g, op, 0, &n);
        for (uint32_t e = 0; e < n; e++)
            if ((g->kind[op] == DPRO_OP_LAUNCH && (g->flags[to[e]] & GRAPH_OP_GPU)) ||
                (g->kind[op] == DPRO_OP_SEND && g->kind[to[e]] == DPRO_OP_RECV) ||
                (g->kind[op] == DPRO_OP_PUSH && g->kind[to[e]] == DPRO_OP_PULL))
                add_arrow(p, op, to[e]);
    }
    graph_each_message(g, add_arrow, p);
    for (uint32_t c = 0; c < g->n_collectives; c++) {
        const struct graph_collective *all = &g->collectives[c];
        uint32_t last = slices_last_member(g, p->replay, c);
        for (uint32_t m = all->first_member; m < all->first_member + all->n_members; m++)
            if (m != last)
                add_arrow(p, g->members[last].transfer, g->members[m].transfer);
    }
    array_sort(&p->arrows, by_op);
}

static void put_arrows_of(struct perfetto *p, dpro_op_id op, bool replayed)
{
    size_t low = 0, high = p->arrows.n;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (p->arrows.at[middle].op < op)
            low = middle + 1;
        else
            high = middle;
    }
    for (; low < p->arrows.n && p->arrows.at[low].op == op; low++)
        pb_put_fixed64(&p->body, p->arrows.at[low].is_end ? EVENT_LAST_OF_FLOW : EVENT_FLOW,
                       2 * p->arrows.at[low].id + replayed);
}

/* ---- tracks ---- */

static void put_slice(struct perfetto *p, const struct drawn_slice *s, uint64_t track,
                      bool replayed)
{
    struct dpro_op op = dpro_graph_op(p->graph, s->op);
    char text[64];
    snprintf(text, sizeof text, "waiting for peers: %s",
             s->waiting ? dpro_collective_kind_name(p->graph->collectives[s->collective].kind)
                        : "");
    begin_slice(p, s->start_ns, track, s->waiting ? text : op.name, &op, s->waiting);
    if (!s->waiting)
        put_arrows_of(p, s->op, replayed);
    end_slice(p, s->start_ns + s->dur_ns, track);
}

static void put_processes(struct perfetto *p)
{
    const struct dpro_graph *g = p->graph;
    for (uint32_t r = 0; r < g->n_ranks + g->n_servers; r++) {
        char name[DPRO_PROCESS_NAME_MAX];
        dpro_process_name(name, g->ranks[r].rank);
        put_process(p, process_track(r), name);
    }
}

static void put_tracks(struct perfetto *p, const struct slices *slices)
{
    for (uint32_t t = 0; t < slices->n_tracks; t++) {
        const struct slice_track *of = &slices->tracks[t];
        uint64_t track = slice_track(p, of->device, of->replayed);
        char name[256];
        if (of->n == 0)
            continue;
        snprintf(name, sizeof name, "%.200s \xC2\xB7 %s",
                 dpro_graph_device(p->graph, of->device).name,
                 of->replayed ? "replayed" : "measured");
        put_track(p, track, process_track(p->graph->rank[of->at[0].op]), t, name);
        put_packet(p, PACKET_TRACK);
        EACH_OF (const struct drawn_slice, s, of->at, of->n)
            put_slice(p, s, track, of->replayed);
    }
}

static void put_critical_path(struct perfetto *p)
{
    uint64_t track = process_track(p->graph->n_ranks + p->graph->n_servers);
    put_process(p, track, "critical path");
    EACH_OF (const struct dpro_critical_op, c, p->replay->critical, p->replay->n_critical) {
        struct dpro_op op = dpro_graph_op(p->graph, c->op);
        if (c->dur_ns == 0)
            continue;
        begin_slice(p, c->start_ns, track, op.name, &op, false);
        put_note(p, "rank", op.rank, NULL);
        end_slice(p, c->start_ns + c->dur_ns, track);
    }
}

static void put_memory(struct perfetto *p, uint32_t rank)
{
    const struct dpro_rank_memory *memory = &p->replay->memory[rank];
    for (int c = 0; c < DPRO_N_MEMORY_CATEGORIES; c++) {
        uint64_t track = counter_track(p, rank, c), most = 0;
        EACH_OF (const struct dpro_memory_point, point, memory->points, memory->n_points)
            most = MAX(most, point->by_category[c]);
        if (most == 0)
            continue;
        put_track(p, track, process_track(rank), track, dpro_memory_category_name(c));
        pb_put_uint(&p->part, COUNTER_UNIT, UNIT_BYTES);
        pb_put_message(&p->body, TRACK_COUNTER, &p->part);
        put_packet(p, PACKET_TRACK);
        EACH_OF (const struct dpro_memory_point, point, memory->points, memory->n_points) {
            begin_event(p, point->at_ns, track, COUNTER);
            pb_put_uint(&p->body, EVENT_COUNTER, point->by_category[c]);
            put_packet(p, PACKET_EVENT);
        }
    }
}

static int64_t first_time(const struct slices *slices, const struct dpro_replay_view *replay)
{
    int64_t first = 0;
    for (uint32_t t = 0; t < slices->n_tracks; t++)
        first = slices->tracks[t].n ? MIN(first, slices->tracks[t].at[0].start_ns) : first;
    for (uint32_t i = 0; i < replay->n_critical; i++)
        first = MIN(first, replay->critical[i].start_ns);
    for (uint32_t r = 0; r < replay->n_ranks; r++)
        first = replay->memory[r].n_points ? MIN(first, replay->memory[r].points[0].at_ns) : first;
    return first;
}

static void write_perfetto(struct writer *w, const void *arg)
{
    const struct dpro_report *report = arg;
    struct perfetto p = {
        .w = w, .graph = report->graph, .replay = dpro_replay_view(report->replay)};
    struct slices slices;
    slices_init(&slices, p.graph, p.replay);
    p.zero_ns = first_time(&slices, p.replay);
    collect_arrows(&p);
    put_processes(&p);
    put_tracks(&p, &slices);
    put_critical_path(&p);
    for (uint32_t r = 0; r < p.replay->n_ranks; r++)
        put_memory(&p, r);
    slices_fini(&slices);
    FREE_ALL(&p.arrows, &p.packet, &p.body, &p.part);
}

int dpro_report_perfetto(const struct dpro_report *report, const char *path, struct dpro_error *err)
{
    return writer_write_path(path, text_ends(path, ".gz"), write_perfetto, report, err);
}
