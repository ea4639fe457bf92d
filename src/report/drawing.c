/* Tells what a timeline shows, whatever its form. */
#include "report/drawing.h"

#include <dpro/dimensions.h>

#include "graph/graph.h"

struct drawing {
    const struct dpro_graph *graph;
    const struct dpro_replay_view *replay;
    const struct drawing_form *form;
    int64_t zero_ns, path_pid;
    ARRAY(struct drawing_arrow) arrows; /* by `replayed` and op */
};

/* Process and thread 0 mean the idle task to some viewers. Servers come after all ranks and the
 * critical path. */
static int64_t pid_of(const struct drawing *t, uint32_t process)
{
    const struct dpro_graph *g = t->graph;
    return process < g->n_ranks ? (int64_t)g->ranks[process].rank + 1
                                : t->path_pid + 1 + (process - g->n_ranks);
}

static int64_t tid_of(uint32_t device, bool replayed)
{
    return (int64_t)device * 2 + replayed + 1;
}

/* ---- slices ---- */

enum { MOST_NOTES = 8 };

static size_t list_notes(const struct dpro_graph *g, const struct dpro_op *op,
                         struct writer_field notes[MOST_NOTES])
{
    uint32_t dimension = dpro_graph_op_dimension(g, op->id);
    size_t n = 0;
    notes[n++] = INT("op", op->id);
    if (op->gap_ns != 0)
        notes[n++] = MS("gap_ms", op->gap_ns);
    if (op->size_bytes > 0)
        notes[n++] = INT("bytes", op->size_bytes);
    if (op->tensor && op->tensor[0])
        notes[n++] = TEXT("tensor", op->tensor);
    if (dimension != DPRO_NO_DIMENSION)
        notes[n++] = TEXT("dimension", dpro_graph_dimension(g, dimension).name);
    return n;
}

static void tell_slice(const struct drawing *t, const struct drawn_slice *s, int64_t tid,
                       bool replayed)
{
    const struct dpro_graph *g = t->graph;
    struct dpro_op op = dpro_graph_op(g, s->op);
    struct writer_field notes[MOST_NOTES];
    char waiting[64] = "";
    size_t n = t->arrows.n;
    const struct drawing_arrow *all = t->arrows.at;
    size_t first = LOWER_BOUND(i, (size_t)0, n,
                               all[i].replayed < replayed ||
                                   (all[i].replayed == replayed && all[i].op < s->op));
    size_t end = first;
    while (!s->waiting && end < n && all[end].replayed == replayed && all[end].op == s->op)
        end++;
    if (s->waiting)
        snprintf(waiting, sizeof waiting, "waiting for peers: %s",
                 dpro_collective_kind_name(g->collectives[s->collective].kind));
    struct drawing_slice slice = {.pid = pid_of(t, g->rank[s->op]),
                                  .tid = tid,
                                  .start_ns = s->start_ns - t->zero_ns,
                                  .dur_ns = s->dur_ns,
                                  .name = s->waiting ? waiting : op.name,
                                  .kind = s->waiting ? "WAIT" : dpro_op_kind_name(op.kind),
                                  .notes = notes,
                                  .n_notes = list_notes(g, &op, notes),
                                  .n_arrows = end - first,
                                  .arrows = all + first};
    t->form->slice(t->form->arg, &slice);
}

static void tell_devices(const struct drawing *t, const struct slices *slices)
{
    EACH_OF (const struct slice_track, track, slices->tracks, slices->n_tracks) {
        int64_t tid = tid_of(track->device, track->replayed);
        char name[256];
        if (track->n == 0)
            continue;
        snprintf(name, sizeof name, "%.200s \xC2\xB7 %s",
                 dpro_graph_device(t->graph, track->device).name,
                 track->replayed ? "replayed" : "measured");
        t->form->track(t->form->arg, pid_of(t, t->graph->rank[track->at[0].op]), tid, name);
        EACH_OF (const struct drawn_slice, s, track->at, track->n)
            tell_slice(t, s, tid, track->replayed);
    }
}

static void tell_critical_path(const struct drawing *t)
{
    const struct dpro_graph *g = t->graph;
    int64_t tid = tid_of(g->n_devices, false);
    t->form->process(t->form->arg, t->path_pid, "critical path", -1);
    t->form->track(t->form->arg, t->path_pid, tid, "critical path");
    EACH_OF (const struct dpro_critical_op, c, t->replay->critical, t->replay->n_critical) {
        struct dpro_op op = dpro_graph_op(g, c->op);
        struct writer_field notes[MOST_NOTES];
        char process[DPRO_PROCESS_NAME_MAX];
        if (c->dur_ns == 0)
            continue; /* boundaries and the like */
        struct drawing_slice slice = {.pid = t->path_pid,
                                      .tid = tid,
                                      .start_ns = c->start_ns - t->zero_ns,
                                      .dur_ns = c->dur_ns,
                                      .name = op.name,
                                      .kind = dpro_op_kind_name(op.kind),
                                      .notes = notes,
                                      .n_notes = list_notes(g, &op, notes)};
        dpro_process_name(process, op.rank);
        notes[slice.n_notes++] = op.rank >= 0 ? INT("rank", op.rank) : TEXT("process", process);
        if (op.device != DPRO_NO_DEVICE)
            notes[slice.n_notes++] = TEXT("device", dpro_graph_device(g, op.device).name);
        t->form->slice(t->form->arg, &slice);
    }
}

/* ---- arrows ---- */

ORDER(by_op, struct drawing_arrow, ASCENDING(replayed) ?: ASCENDING(op) ?: ASCENDING(id));

struct drawing_place {
    int64_t start_ns, end_ns;
};

static struct drawing_place place_of(const struct drawing *t, dpro_op_id op, bool replayed)
{
    const struct dpro_graph *g = t->graph;
    return replayed ? (struct drawing_place){t->replay->start_ns[op], t->replay->end_ns[op]}
                    : (struct drawing_place){g->seen_start_ns[op],
                                             time_add(g->seen_start_ns[op], g->seen_dur_ns[op])};
}

static void add_arrow(struct drawing *t, const char *what, dpro_op_id from, dpro_op_id to,
                      bool replayed)
{
    if (!slices_draw(t->graph, from, replayed) || !slices_draw(t->graph, to, replayed))
        return;
    struct drawing_place begin = place_of(t, from, replayed), end = place_of(t, to, replayed);
    int64_t at = MAX(begin.start_ns, end.start_ns);
    uint64_t id = 1 + t->arrows.n / 2;
    if (at > end.end_ns)
        return;
    array_add(&t->arrows, from, replayed, false, id, begin.start_ns - t->zero_ns, what);
    array_add(&t->arrows, to, replayed, true, id, at - t->zero_ns, what);
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

/* What a launch starts: of a collective, its transfer stands for where the rank arrives. */
static dpro_op_id drawn_of(const struct dpro_graph *g, dpro_op_id op)
{
    for (uint32_t e = g->row[op]; e < g->row[op + 1]; e++)
        if (!slices_draw(g, op, true) && g->device[g->succ[e]] == g->device[op])
            return g->succ[e];
    return op;
}

static void add_message(void *timeline, dpro_op_id send, dpro_op_id receive)
{
    for (int replayed = 0; replayed < 2; replayed++)
        add_arrow(timeline, "send", send, receive, replayed);
}

/* From launches to their kernels, from sends to what receives, from the last rank to arrive to the
 * others. */
static void collect_arrows(struct drawing *t)
{
    const struct dpro_graph *g = t->graph;
    for (dpro_op_id op = 0; op < g->n_ops; op++) {
        uint32_t n;
        const dpro_op_id *to = dpro_graph_successors(g, op, 0, &n);
        for (uint32_t e = 0; e < 2 * n; e++) {
            const char *what = arrow_name(g, op, to[e / 2]);
            if (what)
                add_arrow(t, what, op, drawn_of(g, to[e / 2]), e % 2);
        }
    }
    graph_each_message(g, add_message, t);
    for (uint32_t c = 0; c < 2 * g->n_collectives; c++) {
        const struct graph_collective *all = &g->collectives[c / 2];
        uint32_t last = slices_last_member(g, c % 2 ? t->replay : NULL, c / 2);
        for (uint32_t m = all->first_member; m < all->first_member + all->n_members; m++)
            if (m != last)
                add_arrow(t, "last arrival", g->members[last].transfer, g->members[m].transfer,
                          c % 2);
    }
    array_sort(&t->arrows, by_op);
}

/* ---- dimensions of parallelism ---- */

struct comm_slice {
    uint32_t rank, dimension, collective;
    dpro_op_id op;
    int64_t start_ns, end_ns;
};
typedef ARRAY(struct comm_slice) comm_slices;

ORDER(by_track, struct comm_slice,
      ASCENDING(rank) ?: ASCENDING(dimension) ?: ASCENDING(start_ns) ?: ASCENDING(op));

static void collect_dimensions(const struct drawing *t, bool replayed, comm_slices *slices)
{
    const struct dpro_graph *g = t->graph;
    EACH_OF (const struct graph_collective, all, g->collectives, g->n_collectives)
        for (uint32_t m = all->first_member; m < all->first_member + all->n_members; m++) {
            dpro_op_id op = g->members[m].transfer;
            if (all->dimension >= g->n_dimensions ||
                (!replayed && (!g->seen_start_ns || !g->seen_dur_ns || g->seen_dur_ns[op] < 0)))
                continue;
            struct drawing_place at = place_of(t, op, replayed);
            if (replayed && all->n_messages > 0 && all->barrier != DPRO_NO_OP)
                at.start_ns = t->replay->end_ns[all->barrier];
            if (at.end_ns > at.start_ns)
                array_add(slices, g->rank[op], all->dimension, (uint32_t)(all - g->collectives), op,
                          at.start_ns, at.end_ns);
        }
    array_sort(slices, by_track);
}

/* Slices of a track can't overlap in part: where two do, the later begins at the other's end. */
static void tell_dimensions(const struct drawing *t, bool replayed)
{
    const struct dpro_graph *g = t->graph;
    SCRATCH comm_slices slices = {0};
    int64_t until_ns = 0;
    collect_dimensions(t, replayed, &slices);
    EACH (const struct comm_slice, s, slices) {
        struct dpro_op op = dpro_graph_op(g, s->op);
        struct writer_field notes[MOST_NOTES];
        struct drawing_slice slice = {
            .pid = pid_of(t, s->rank),
            .tid = tid_of(g->n_devices + 1 + s->dimension, replayed),
            .name = dpro_collective_kind_name(g->collectives[s->collective].kind),
            .kind = dpro_op_kind_name(op.kind),
            .notes = notes,
            .n_notes = list_notes(g, &op, notes)};
        if (s == slices.at || s[-1].rank != s->rank || s[-1].dimension != s->dimension) {
            struct dpro_dimension d = dpro_graph_dimension(g, s->dimension);
            char name[48];
            snprintf(name, sizeof name, "%s %u \xC2\xB7 %s", d.name, d.size,
                     replayed ? "replayed" : "measured");
            t->form->track(t->form->arg, slice.pid, slice.tid, name);
            until_ns = INT64_MIN;
        }
        int64_t start_ns = MAX(s->start_ns, until_ns);
        if (s->end_ns <= start_ns)
            continue;
        until_ns = s->end_ns;
        slice.start_ns = start_ns - t->zero_ns;
        slice.dur_ns = s->end_ns - start_ns;
        t->form->slice(t->form->arg, &slice);
    }
}

/* ---- all of it ---- */

int64_t drawing_zero_ns(const struct slices *slices, const struct dpro_replay_view *replay)
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

void drawing_tell(const struct dpro_graph *g, const struct dpro_replay_view *replay,
                  const struct slices *slices, const struct drawing_form *form)
{
    struct drawing t = {.graph = g,
                        .replay = replay,
                        .form = form,
                        .zero_ns = drawing_zero_ns(slices, replay),
                        .path_pid = 2};
    for (uint32_t r = 0; r < g->n_ranks; r++)
        t.path_pid = MAX(t.path_pid, (int64_t)g->ranks[r].rank + 2);
    collect_arrows(&t);
    for (uint32_t r = 0; r < g->n_ranks + g->n_servers; r++) {
        char name[DPRO_PROCESS_NAME_MAX];
        dpro_process_name(name, g->ranks[r].rank);
        form->process(form->arg, pid_of(&t, r), name, pid_of(&t, r));
    }
    tell_critical_path(&t);
    tell_devices(&t, slices);
    for (int replayed = 0; replayed < 2; replayed++)
        tell_dimensions(&t, replayed);
    for (uint32_t r = 0; r < replay->n_ranks; r++)
        if (replay->memory[r].n_points > 0)
            form->held(form->arg, pid_of(&t, r), &replay->memory[r], t.zero_ns);
    array_fini(&t.arrows);
}
