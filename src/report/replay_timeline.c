/* The measured and the replayed iteration for the Perfetto UI, as Chrome trace events: a process a
 * rank, two tracks a device, counters of what the rank holds, the critical path as a process of its
 * own, and arrows where one op makes another start. */

#include "graph/graph.h"
#include "report/facts.h"

struct replay_timeline {
    struct writer *w;
    const struct dpro_graph *graph;
    const struct dpro_replay_view *replay;
    uint64_t n_flows;
    int64_t zero_ns; /* what the file counts from; below the graph's zero when something starts
                        earlier, since viewers drop negative times */
};

/* Process and thread 0 mean the idle task to some viewers. */
static int64_t pid_of_rank(int rank)
{
    /* servers come after all ranks */
    return rank >= 0 ? (int64_t)rank + 1 : (int64_t)rank - INT_MIN + INT_MAX + 10;
}

static int64_t tid_of_track(dpro_device_id device, bool replayed)
{
    return (int64_t)device * 2 + replayed + 1;
}

static void begin_event(struct writer *w, const char *phase, int64_t pid, int64_t tid)
{
    writer_item(w);
    writer_fields(w, TEXT("ph", phase), INT("pid", pid), INT("tid", tid));
}

/* An event of the metadata `what`_`which`, whose argument is `field`. */
static void write_meta_event(struct writer *w, const char *what, const char *which, int64_t pid,
                             int64_t tid, struct writer_field field)
{
    char event[48];
    snprintf(event, sizeof event, "%s_%s", what, which);
    begin_event(w, "M", pid, tid);
    writer_fields(w, TEXT("name", event));
    writer_object_at(w, "args", field);
    writer_close(w, '}');
}

static void write_meta(struct writer *w, const char *what, int64_t pid, int64_t tid,
                       const char *name, int64_t sort_index)
{
    write_meta_event(w, what, "name", pid, tid, TEXT("name", name));
    write_meta_event(w, what, "sort_index", pid, tid, INT("sort_index", sort_index));
}

/* A slice up to its arguments, which are left open. */
static void begin_slice(const struct replay_timeline *t, int64_t pid, int64_t tid, const char *name,
                        const char *kind, int64_t start_ns, int64_t dur_ns,
                        const struct dpro_op *op)
{
    struct writer *w = t->w;
    begin_event(w, "X", pid, tid);
    writer_fields(w, TEXT("name", name), TEXT("cat", kind), US("ts", start_ns - t->zero_ns),
                  US("dur", dur_ns));
    writer_begin(w, "args", '{');
    writer_fields(w, TEXT("kind", kind));
    if (op->gap_ns != 0)
        writer_fields(w, MS("gap_ms", op->gap_ns));
    if (op->size_bytes > 0)
        writer_fields(w, INT("bytes", op->size_bytes));
    if (op->tensor && op->tensor[0])
        writer_fields(w, TEXT("tensor", op->tensor));
    uint32_t dimension = dpro_graph_op_dimension(t->graph, op->id);
    if (dimension != DPRO_NO_DIMENSION)
        writer_fields(w, TEXT("dimension", dpro_graph_dimension(t->graph, dimension).name));
}

static void end_slice(const struct replay_timeline *t)
{
    writer_close(t->w, '}');
    writer_close(t->w, '}');
}

static void write_slice(struct replay_timeline *t, const struct drawn_slice *s, int64_t tid)
{
    struct dpro_op op = dpro_graph_op(t->graph, s->op);
    const char *name = op.name, *kind = s->waiting ? "WAIT" : dpro_op_kind_name(op.kind);
    char text[1024];
    if (s->waiting) {
        name = dpro_collective_kind_name(t->graph->collectives[s->collective].kind);
        snprintf(text, sizeof text, "waiting for peers: %s", name);
        name = text;
    }
    begin_slice(t, pid_of_rank(op.rank), tid, name, kind, s->start_ns, s->dur_ns, &op);
    end_slice(t);
}

struct timeline_endpoint {
    dpro_op_id op;
    int64_t start_ns, end_ns; /* of its slice, the waiting left out */
    bool known;
};

static void write_arrow(struct replay_timeline *t, const char *what, struct timeline_endpoint from,
                        struct timeline_endpoint to, bool replayed)
{
    const struct dpro_graph *g = t->graph;
    uint32_t from_device = g->device[from.op], to_device = g->device[to.op];
    int64_t at = to.start_ns > from.start_ns ? to.start_ns : from.start_ns;
    if (!from.known || !to.known || from_device >= g->n_devices || to_device >= g->n_devices ||
        at > to.end_ns)
        return;
    uint64_t id = ++t->n_flows;
    for (int end = 0; end < 2; end++) {
        const struct timeline_endpoint *e = end ? &to : &from;
        uint32_t device = end ? to_device : from_device;
        begin_event(t->w, end ? "f" : "s", pid_of_rank(g->devices[device].rank),
                    tid_of_track(device, replayed));
        writer_fields(t->w, TEXT("name", what), TEXT("cat", "flow"), INT("id", id),
                      US("ts", (end ? at : e->start_ns) - t->zero_ns));
        if (end) /* in the slice around it, not in the next one */
            writer_fields(t->w, TEXT("bp", "e"));
        writer_close(t->w, '}');
    }
}

static struct timeline_endpoint timeline_place(const struct replay_timeline *t, dpro_op_id op,
                                               bool replayed)
{
    const struct dpro_graph *g = t->graph;
    if (replayed)
        return (struct timeline_endpoint){op, t->replay->start_ns[op], t->replay->end_ns[op], true};
    if (!g->seen_start_ns || !g->seen_dur_ns || g->seen_dur_ns[op] < 0)
        return (struct timeline_endpoint){.op = op};
    return (struct timeline_endpoint){op, g->seen_start_ns[op],
                                      g->seen_start_ns[op] + g->seen_dur_ns[op], true};
}

/* Between two ops, as measured and as replayed. */
static void write_arrows(struct replay_timeline *t, const char *what, dpro_op_id from,
                         dpro_op_id to)
{
    for (int replayed = 0; replayed < 2; replayed++)
        write_arrow(t, what, timeline_place(t, from, replayed), timeline_place(t, to, replayed),
                    replayed);
}

static const char *arrow_name(const struct dpro_graph *g, dpro_op_id from, dpro_op_id to)
{
    if (g->kind[from] == DPRO_OP_LAUNCH && (g->flags[to] & GRAPH_OP_GPU))
        return "launch";
    if ((g->kind[from] == DPRO_OP_SEND && g->kind[to] == DPRO_OP_RECV) ||
        (g->kind[from] == DPRO_OP_PUSH && g->kind[to] == DPRO_OP_PULL))
        return "send";
    return NULL;
}

static void write_edge_arrows(struct replay_timeline *t)
{
    for (dpro_op_id op = 0; op < t->graph->n_ops; op++) {
        uint32_t n;
        const dpro_op_id *succ = dpro_graph_successors(t->graph, op, 0, &n);
        for (uint32_t e = 0; e < n; e++) {
            const char *name = arrow_name(t->graph, op, succ[e]);
            if (name)
                write_arrows(t, name, op, succ[e]);
        }
    }
}

static void write_message_arrow(void *timeline, dpro_op_id send, dpro_op_id receive)
{
    write_arrows(timeline, "send", send, receive);
}

/* From the member that arrived last to the others, at the moment that all start transferring. */
static void write_collective_arrows(struct replay_timeline *t)
{
    const struct dpro_graph *g = t->graph;
    for (uint32_t c = 0; c < g->n_collectives; c++)
        for (int replayed = 0; replayed < 2; replayed++) {
            const struct graph_collective *all = &g->collectives[c];
            uint32_t last = slices_last_member(g, replayed ? t->replay : NULL, c);
            for (uint32_t m = all->first_member; m < all->first_member + all->n_members; m++)
                if (m != last)
                    write_arrow(t, "last arrival",
                                timeline_place(t, g->members[last].transfer, replayed),
                                timeline_place(t, g->members[m].transfer, replayed), replayed);
        }
}

static void write_critical_path(struct replay_timeline *t, const struct report_facts *f,
                                int64_t pid)
{
    struct writer *w = t->w;
    int64_t tid = (int64_t)t->graph->n_devices * 2 + 1;
    write_meta(w, "process", pid, 0, "critical path", -1);
    write_meta(w, "thread", pid, tid, "critical path", 0);
    EACH_OF (const struct dpro_critical_op, c, f->path, f->n_path) {
        struct dpro_op op = dpro_graph_op(t->graph, c->op);
        char process[DPRO_PROCESS_NAME_MAX];
        if (c->dur_ns == 0)
            continue; /* boundaries and the like */
        begin_slice(t, pid, tid, op.name, dpro_op_kind_name(op.kind), c->start_ns, c->dur_ns, &op);
        dpro_process_name(process, op.rank);
        writer_fields(w, op.rank >= 0 ? INT("rank", op.rank) : TEXT("process", process));
        if (op.device != DPRO_NO_DEVICE)
            writer_fields(w, TEXT("device", dpro_graph_device(t->graph, op.device).name));
        end_slice(t);
    }
}

/* ---- dimensions of parallelism: on each rank one more track a dimension ---- */

struct comm_slice {
    uint32_t rank, dimension, collective;
    dpro_op_id op;
    int64_t start_ns, end_ns;
};
typedef ARRAY(struct comm_slice) comm_slices;

ORDER(by_track, struct comm_slice,
      ASCENDING(rank) ?: ASCENDING(dimension) ?: ASCENDING(start_ns) ?: ASCENDING(op));

static int64_t tid_of_dimension(const struct replay_timeline *t, uint32_t dimension, bool replayed)
{
    return ((int64_t)t->graph->n_devices + 1 + dimension) * 2 + replayed + 1;
}

static void collect_dimensions(const struct replay_timeline *t, bool replayed, comm_slices *slices)
{
    const struct dpro_graph *g = t->graph;
    for (uint32_t c = 0; c < g->n_collectives; c++) {
        const struct graph_collective *all = &g->collectives[c];
        for (uint32_t m = all->first_member; m < all->first_member + all->n_members; m++) {
            dpro_op_id op = g->members[m].transfer;
            struct timeline_endpoint at = timeline_place(t, op, replayed);
            if (replayed && all->n_messages > 0 && all->barrier != DPRO_NO_OP)
                at.start_ns = t->replay->end_ns[all->barrier];
            if (at.known && at.end_ns > at.start_ns && all->dimension < g->n_dimensions)
                array_add(slices, g->rank[op], all->dimension, c, op, at.start_ns, at.end_ns);
        }
    }
    array_sort(slices, by_track);
}

/* Slices of a track can't overlap in part: where two do, the later begins at the other's end. */
static void write_dimensions(struct replay_timeline *t, bool replayed)
{
    const struct dpro_graph *g = t->graph;
    SCRATCH comm_slices slices = {0};
    const struct comm_slice *before = NULL;
    int64_t until_ns = 0;
    if (g->n_dimensions > 0)
        collect_dimensions(t, replayed, &slices);
    EACH (const struct comm_slice, s, slices) {
        struct dpro_op op = dpro_graph_op(g, s->op);
        struct dpro_dimension d = dpro_graph_dimension(g, s->dimension);
        int64_t tid = tid_of_dimension(t, s->dimension, replayed), start_ns = s->start_ns;
        if (!before || before->rank != s->rank || before->dimension != s->dimension) {
            char name[48];
            snprintf(name, sizeof name, "%s %u \xC2\xB7 %s", d.name, d.size,
                     replayed ? "replayed" : "measured");
            write_meta(t->w, "thread", pid_of_rank(op.rank), tid, name, tid);
            until_ns = INT64_MIN;
        }
        before = s;
        start_ns = MAX(start_ns, until_ns);
        if (s->end_ns <= start_ns)
            continue;
        until_ns = s->end_ns;
        begin_slice(t, pid_of_rank(op.rank), tid,
                    dpro_collective_kind_name(g->collectives[s->collective].kind),
                    dpro_op_kind_name(op.kind), start_ns, s->end_ns - start_ns, &op);
        end_slice(t);
    }
}

/* A counter for all that a rank holds, and one for each category. */
static void write_memory(struct replay_timeline *t, const struct report_facts *f)
{
    EACH_OF (const struct memory_fact, fact, f->memory.ranks, f->memory.n_ranks) {
        const struct dpro_memory_point *points = fact->memory.points;
        uint32_t n = fact->memory.n_points;
        bool used[DPRO_N_MEMORY_CATEGORIES] = {false};
        for (uint32_t k = 0; k < n; k++)
            for (int c = 0; c < DPRO_N_MEMORY_CATEGORIES; c++)
                used[c] |= points[k].by_category[c] > 0;
        for (uint32_t k = 0; k < n; k++) {
            uint64_t total = 0;
            for (int c = 0; c < DPRO_N_MEMORY_CATEGORIES; c++)
                total += points[k].by_category[c];
            writer_item(t->w);
            writer_fields(t->w, TEXT("ph", "C"), INT("pid", pid_of_rank(fact->memory.rank)),
                          TEXT("name", "memory"), US("ts", points[k].at_ns - t->zero_ns));
            writer_begin(t->w, "args", '{');
            writer_fields(t->w, INT("total", total));
            for (int c = 0; c < DPRO_N_MEMORY_CATEGORIES; c++)
                if (used[c])
                    writer_fields(t->w,
                                  INT(dpro_memory_category_name(c), points[k].by_category[c]));
            writer_close(t->w, '}');
            writer_close(t->w, '}');
        }
    }
}

static int64_t first_start(const struct report_facts *f, const struct slices *slices)
{
    int64_t first = 0;
    for (uint32_t i = 0; i < f->n_path; i++)
        first = MIN(first, f->path[i].start_ns);
    for (uint32_t t = 0; t < slices->n_tracks; t++)
        if (slices->tracks[t].n > 0)
            first = MIN(first, slices->tracks[t].at[0].start_ns);
    for (uint32_t i = 0; i < f->memory.n_ranks; i++) {
        const struct dpro_rank_memory *memory = &f->memory.ranks[i].memory;
        first = memory->n_points > 0 ? MIN(first, memory->points[0].at_ns) : first;
    }
    return first;
}

void timeline_write(struct writer *w, const void *drawn)
{
    const struct report_facts *f = &((const struct drawn_facts *)drawn)->facts;
    const struct slices *slices = &((const struct drawn_facts *)drawn)->slices;
    const struct dpro_graph *g = f->report->graph;
    struct replay_timeline t = {.w = w, .graph = g, .replay = f->replay};
    t.zero_ns = first_start(f, slices);
    int max_rank = 0;
    writer_open(w, '{');
    writer_fields(w, TEXT("displayTimeUnit", "ms"));
    writer_key(w, "otherData");
    writer_object(w, TEXT("dpro", dpro_version()), TEXT("verdict", f->verdict[0].text),
                  US("iteration_start_us", -t.zero_ns));
    writer_begin(w, "traceEvents", '[');
    for (uint32_t r = 0; r < f->n_ranks; r++) {
        int rank = f->ranks[r].time.rank;
        char name[32];
        snprintf(name, sizeof name, "rank %d", rank);
        write_meta(w, "process", pid_of_rank(rank), 0, name, rank);
        max_rank = rank > max_rank ? rank : max_rank;
    }
    for (uint32_t s = 0; s < g->n_servers; s++) {
        int rank = g->ranks[g->n_ranks + s].rank;
        char name[DPRO_PROCESS_NAME_MAX];
        dpro_process_name(name, rank);
        write_meta(w, "process", pid_of_rank(rank), 0, name, pid_of_rank(rank));
    }
    write_critical_path(&t, f, pid_of_rank(max_rank) + 1);
    for (uint32_t n = 0; n < slices->n_tracks; n++) {
        const struct slice_track *track = &slices->tracks[n];
        struct dpro_device device = dpro_graph_device(g, track->device);
        char name[256];
        int64_t tid = tid_of_track(track->device, track->replayed);
        if (track->n == 0)
            continue;
        snprintf(name, sizeof name, "%.200s \xC2\xB7 %s", device.name,
                 track->replayed ? "replayed" : "measured");
        write_meta(w, "thread", pid_of_rank(device.rank), tid, name, tid);
        for (uint32_t i = 0; i < track->n; i++)
            write_slice(&t, &track->at[i], tid);
    }
    for (int replayed = 0; replayed < 2; replayed++)
        write_dimensions(&t, replayed);
    write_edge_arrows(&t);
    graph_each_message(t.graph, write_message_arrow, &t);
    write_collective_arrows(&t);
    write_memory(&t, f);
    writer_close(w, ']');
    writer_close(w, '}');
    writer_text(w, "\n");
}
