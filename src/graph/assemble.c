/* graph/assemble.c: the joined ranks as one graph.
 *
 * Ops get their numbers, edges are checked for cycles (what was only read off the timeline gives
 * way), and every op's duration and gap is taken from each measured iteration: the gap is the time
 * between being ready, by the very edges of this graph, and starting. So the replay of what was
 * measured gives back what was measured, and waiting that an edge explains is never in a gap or a
 * duration. */
#include "graph/assemble.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "base/map.h"

struct edge {
    uint32_t from, to;
    bool next, soft;
};

struct assembly {
    struct join *join;
    const struct dpro_trace *trace;
    uint32_t *first_op; /* a rank's first op; [n_ranks] is where the meets begin */
    uint32_t n_ops;
    uint32_t *meets;        /* op of each joined collective, or DPRO_NO_OP */
    uint32_t *first_device; /* of each rank */
    ARRAY(struct edge) edges;
    uint32_t *order; /* ops in topological order */
    uint32_t n_samples;
    int64_t *start_ns, *end_ns; /* [op], of one sample */
    struct dpro_graph *graph;
};

static uint32_t rank_of(const struct assembly *a, uint32_t op)
{
    uint32_t low = 0, high = a->join->n_ranks;
    while (low + 1 < high) {
        uint32_t mid = (low + high) / 2;
        if (a->first_op[mid] <= op)
            low = mid;
        else
            high = mid;
    }
    return low;
}

/* ---- numbering ---- */

/* A meet belongs to the first member's rank: each rank's ops are followed by the meets it keeps. */
static int number_ops(struct assembly *a)
{
    struct join *join = a->join;
    uint32_t *n_meets = calloc(join->n_ranks + 1, sizeof *n_meets);
    a->first_op = calloc(join->n_ranks + 1, sizeof *a->first_op);
    a->first_device = calloc(join->n_ranks + 1, sizeof *a->first_device);
    a->meets = malloc((join->joined.n + 1) * sizeof *a->meets);
    if (!n_meets || !a->first_op || !a->first_device || !a->meets) {
        free(n_meets);
        return -1;
    }
    for (size_t j = 0; j < join->joined.n; j++)
        n_meets[join->joined.at[j].rank] += join->joined.at[j].n_members > 1;
    uint64_t n_ops = 0, n_devices = 0;
    for (uint32_t r = 0; r < join->n_ranks; r++) {
        a->first_op[r] = (uint32_t)n_ops;
        a->first_device[r] = (uint32_t)n_devices;
        n_ops += join->ranks[r].ops.n + n_meets[r];
        n_devices += join->ranks[r].devices.n;
        if (n_ops >= UINT32_MAX / 2)
            break;
    }
    a->n_ops = (uint32_t)n_ops;
    a->first_op[join->n_ranks] = a->n_ops;
    memset(n_meets, 0, join->n_ranks * sizeof *n_meets);
    for (size_t j = 0; j < join->joined.n; j++) {
        const struct joined *joined = &join->joined.at[j];
        a->meets[j] = DPRO_NO_OP;
        if (joined->n_members > 1)
            a->meets[j] = a->first_op[joined->rank] + (uint32_t)join->ranks[joined->rank].ops.n +
                          n_meets[joined->rank]++;
    }
    free(n_meets);
    return n_ops >= UINT32_MAX / 2 ? -1 : 0;
}

/* ---- edges ---- */

static int compare_edges(const void *x, const void *y)
{
    const struct edge *a = x, *b = y;
    if (a->to != b->to)
        return a->to < b->to ? -1 : 1;
    if (a->from != b->from)
        return a->from < b->from ? -1 : 1;
    if (a->next != b->next)
        return a->next ? 1 : -1;
    return (int)a->soft - (int)b->soft; /* the hard one of two survives */
}

static int push_edge(struct assembly *a, uint32_t from, uint32_t to, bool next, bool soft)
{
    struct edge edge = {from, to, next, soft};
    return array_push(&a->edges, edge);
}

static int collect_edges(struct assembly *a)
{
    struct join *join = a->join;
    for (uint32_t r = 0; r < join->n_ranks; r++) {
        for (size_t e = 0; e < join->ranks[r].edges.n; e++) {
            const struct local_edge *edge = &join->ranks[r].edges.at[e];
            if (push_edge(a, a->first_op[r] + edge->from, a->first_op[r] + edge->to, edge->next,
                          edge->soft) < 0)
                return -1;
        }
        array_fini(&join->ranks[r].edges); /* taken over */
    }
    for (size_t j = 0; j < join->joined.n; j++) {
        const struct joined *joined = &join->joined.at[j];
        for (uint32_t m = 0; m < joined->n_members && a->meets[j] != DPRO_NO_OP; m++) {
            const struct member *member = &join->members.at[joined->first_member + m];
            const struct local_collective *c =
                &join->ranks[member->rank].collectives.at[member->collective];
            if (push_edge(a, a->first_op[member->rank] + c->arrival, a->meets[j], false, true) <
                    0 ||
                push_edge(a, a->meets[j], a->first_op[member->rank] + c->transfer, false, true) < 0)
                return -1;
        }
    }
    return 0;
}

static void sort_edges(struct assembly *a)
{
    size_t n = 0;
    if (a->edges.n == 0)
        return;
    qsort(a->edges.at, a->edges.n, sizeof *a->edges.at, compare_edges);
    for (size_t i = 0; i < a->edges.n; i++) {
        const struct edge *e = &a->edges.at[i];
        if (n > 0 && a->edges.at[n - 1].from == e->from && a->edges.at[n - 1].to == e->to &&
            a->edges.at[n - 1].next == e->next)
            continue;
        a->edges.at[n++] = *e;
    }
    a->edges.n = n;
}

struct sorter {
    uint32_t *pending; /* predecessors not yet ordered */
    uint32_t *row, *succ, *fill;
};

/* Kahn's algorithm; returns how many ops were ordered. Those that were not lie on or behind a
 * cycle; their `pending` is not 0. */
static uint32_t order_ops(struct assembly *a, struct sorter *sorter)
{
    memset(sorter->pending, 0, a->n_ops * sizeof *sorter->pending);
    memset(sorter->row, 0, (a->n_ops + 1) * sizeof *sorter->row);
    for (size_t e = 0; e < a->edges.n; e++)
        if (!a->edges.at[e].next) {
            sorter->pending[a->edges.at[e].to]++;
            sorter->row[a->edges.at[e].from + 1]++;
        }
    for (uint32_t o = 0; o < a->n_ops; o++)
        sorter->row[o + 1] += sorter->row[o];
    memcpy(sorter->fill, sorter->row, a->n_ops * sizeof *sorter->fill);
    for (size_t e = 0; e < a->edges.n; e++)
        if (!a->edges.at[e].next)
            sorter->succ[sorter->fill[a->edges.at[e].from]++] = a->edges.at[e].to;
    uint32_t n = 0;
    for (uint32_t o = 0; o < a->n_ops; o++)
        if (sorter->pending[o] == 0)
            a->order[n++] = o;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t e = sorter->row[a->order[i]]; e < sorter->row[a->order[i] + 1]; e++)
            if (--sorter->pending[sorter->succ[e]] == 0)
                a->order[n++] = sorter->succ[e];
    return n;
}

/* Tarjan's algorithm without recursion, over what could not be ordered: ops of equal component lie
 * on cycles through each other. `fill` is where each op's next successor stands. */
static int find_components(const struct assembly *a, struct sorter *sorter, uint32_t *component)
{
    uint32_t *number = calloc(a->n_ops + (size_t)1, sizeof *number); /* 0: not seen */
    uint32_t *open = malloc((a->n_ops + (size_t)1) * sizeof *open);
    uint32_t *path = malloc((a->n_ops + (size_t)1) * sizeof *path);
    uint32_t n_seen = 0, n_open = 0, n_path = 0;
    int status = number && open && path ? 0 : -1;
    for (uint32_t root = 0; root < a->n_ops && status == 0; root++) {
        if (!sorter->pending[root] || number[root])
            continue;
        path[n_path++] = root;
        while (n_path > 0) {
            uint32_t op = path[n_path - 1];
            if (!number[op]) {
                number[op] = component[op] = ++n_seen;
                open[n_open++] = op;
                sorter->fill[op] = sorter->row[op];
            }
            if (sorter->fill[op] < sorter->row[op + 1]) {
                uint32_t next = sorter->succ[sorter->fill[op]++];
                if (!number[next])
                    path[n_path++] = next;
                else if (number[next] != UINT32_MAX && component[next] < component[op])
                    component[op] = component[next];
                continue;
            }
            n_path--;
            if (n_path > 0 && component[op] < component[path[n_path - 1]])
                component[path[n_path - 1]] = component[op];
            if (component[op] != number[op])
                continue;
            for (uint32_t member = NO_ID; member != op;) { /* a component is complete */
                member = open[--n_open];
                component[member] = op;
                number[member] = UINT32_MAX;
            }
        }
    }
    free(number);
    free(open);
    free(path);
    return status;
}

/* A send may be over before its receiver comes, when the message fits the transport's buffers. */
static bool is_wait_of_send(const struct assembly *a, const struct edge *edge)
{
    uint32_t r = rank_of(a, edge->to), from = rank_of(a, edge->from);
    const struct rank_build *rank = &a->join->ranks[r];
    uint32_t local = edge->to - a->first_op[r];
    return local < rank->ops.n && rank->ops.at[local].kind == DPRO_OP_SEND &&
           edge->from - a->first_op[from] >= a->join->ranks[from].ops.n;
}

/* Drops what is soft and closes a cycle: if that is enough, only that sends wait for receivers. */
static int break_cycles(struct assembly *a, struct sorter *sorter, uint32_t *dropped)
{
    uint32_t *component = malloc((a->n_ops + (size_t)1) * sizeof *component);
    bool sends = false;
    size_t n = 0;
    if (!component || find_components(a, sorter, component) < 0) {
        free(component);
        return -1;
    }
    for (int pass = 0; pass < 2; pass++)
        for (size_t e = 0; e < a->edges.n; e++) {
            const struct edge *edge = &a->edges.at[e];
            bool closes = !edge->next && edge->soft && sorter->pending[edge->from] &&
                          sorter->pending[edge->to] && component[edge->from] == component[edge->to];
            bool send = closes && is_wait_of_send(a, edge);
            if (pass == 0) {
                sends |= send;
            } else if (closes && (send || !sends)) {
                *dropped += !send;
            } else {
                a->edges.at[n++] = *edge;
            }
        }
    a->edges.n = n;
    free(component);
    return 0;
}

static int order_all(struct assembly *a, uint32_t *dropped)
{
    struct sorter sorter = {malloc((a->n_ops + 1) * sizeof(uint32_t)),
                            malloc((a->n_ops + 1) * sizeof(uint32_t)),
                            malloc((a->edges.n + a->n_ops + 1) * sizeof(uint32_t)),
                            malloc((a->n_ops + 1) * sizeof(uint32_t))};
    a->order = malloc((a->n_ops + 1) * sizeof *a->order);
    bool ready = sorter.pending && sorter.row && sorter.succ && sorter.fill && a->order;
    *dropped = 0;
    /* hard edges follow time on each device and from calls to devices: they close no cycle */
    while (ready && order_ops(a, &sorter) < a->n_ops)
        ready = break_cycles(a, &sorter, dropped) == 0;
    free(sorter.pending);
    free(sorter.row);
    free(sorter.succ);
    free(sorter.fill);
    return ready ? 0 : -1;
}

/* ---- times ---- */

static size_t timed_at(const struct rank_build *rank, uint32_t step, uint32_t local)
{
    return (size_t)step * rank->n_timed + local;
}

static uint32_t step_of(const struct assembly *a, uint32_t r, uint32_t sample)
{
    return a->join->ranks[r].sample_step[sample];
}

/* When `op` of the iteration before ended, as seen from `sample`. */
static int64_t end_before(const struct assembly *a, uint32_t op, uint32_t sample)
{
    uint32_t r = rank_of(a, op), local = op - a->first_op[r];
    const struct rank_build *rank = &a->join->ranks[r];
    uint32_t step = step_of(a, r, sample);
    if (local == rank->boundary)
        return rank->steps.at[step].start_ns;
    if (local >= rank->n_timed || !rank->steps.at[step].follows)
        return ABSENT;
    return rank->end_ns[timed_at(rank, step - 1, local)];
}

struct readiness {
    int64_t ready_ns; /* ABSENT: no predecessor was measured */
    bool complete;    /* all of them were */
};

/* `e` is the op's first edge among those sorted by their end. */
static struct readiness ready_at(const struct assembly *a, size_t e, uint32_t op, uint32_t sample)
{
    struct readiness r = {ABSENT, true};
    for (; e < a->edges.n && a->edges.at[e].to == op; e++) {
        const struct edge *edge = &a->edges.at[e];
        int64_t end = edge->next ? end_before(a, edge->from, sample) : a->end_ns[edge->from];
        if (end == ABSENT)
            r.complete &= !edge->next;
        else if (end > r.ready_ns)
            r.ready_ns = end;
    }
    return r;
}

static int64_t clip(int64_t from, int64_t to)
{
    int64_t difference;
    if (from == ABSENT || to == ABSENT || __builtin_sub_overflow(to, from, &difference))
        return 0;
    return difference > 0 ? difference : 0;
}

/* One iteration's durations and gaps by the graph's edges. doubtful[op]: something before the
 * window may have held it up, which must not become a gap. */
static void time_sample(struct assembly *a, const size_t *first_edge, uint32_t sample,
                        uint8_t *doubtful)
{
    int64_t *dur = a->graph->sample_dur_ns + (size_t)sample * a->n_ops;
    int64_t *gap = a->graph->sample_gap_ns + (size_t)sample * a->n_ops;
    for (uint32_t i = 0; i < a->n_ops; i++) {
        uint32_t op = a->order[i], r = rank_of(a, op), local = op - a->first_op[r];
        const struct rank_build *rank = &a->join->ranks[r];
        uint32_t step = step_of(a, r, sample);
        struct readiness ready = ready_at(a, first_edge[op], op, sample);
        if (ready.ready_ns == ABSENT)
            ready.ready_ns = rank->steps.at[step].start_ns;
        int64_t start = ready.ready_ns, end = start;
        bool measured = local < rank->n_timed;
        if (measured && rank->start_ns[timed_at(rank, step, local)] != ABSENT) {
            start = rank->start_ns[timed_at(rank, step, local)];
            end = rank->end_ns[timed_at(rank, step, local)];
        }
        a->start_ns[op] = start;
        a->end_ns[op] = end;
        dur[op] = clip(start, end);
        gap[op] = clip(ready.ready_ns, start);
        doubtful[op] = !ready.complete;
    }
}

static int64_t mean_of(const int64_t *values, uint32_t n, size_t stride)
{
    __int128 sum = 0;
    for (uint32_t s = 0; s < n; s++)
        sum += values[s * stride];
    return n ? (int64_t)((sum + n / 2) / n) : 0;
}

/* In a window's first iteration what laps over from before is unseen: such a gap is at most the
 * usual one. */
static void settle_gaps(struct assembly *a, const uint8_t *doubtful)
{
    struct dpro_graph *g = a->graph;
    for (uint32_t op = 0; op < a->n_ops; op++) {
        __int128 sum = 0;
        uint32_t sure = 0;
        for (uint32_t s = 0; s < a->n_samples; s++)
            if (!doubtful[(size_t)s * a->n_ops + op]) {
                sum += g->sample_gap_ns[(size_t)s * a->n_ops + op];
                sure++;
            }
        for (uint32_t s = 0; s < a->n_samples && sure > 0; s++) {
            int64_t *gap = &g->sample_gap_ns[(size_t)s * a->n_ops + op];
            if (doubtful[(size_t)s * a->n_ops + op] && *gap > (int64_t)(sum / sure))
                *gap = (int64_t)(sum / sure);
        }
        g->dur_ns[op] = mean_of(g->sample_dur_ns + op, a->n_samples, a->n_ops);
        g->gap_ns[op] = mean_of(g->sample_gap_ns + op, a->n_samples, a->n_ops);
    }
}

/* ---- the graph ---- */

static const char *device_name(const struct assembly *a, const struct trace_rank *rank,
                               const struct graph_device *device, char *text, size_t size)
{
    const struct trace_track *track = &rank->tracks[device->name];
    const char *name = strtab_get(&a->trace->names, track->name);
    if (device->kind == DPRO_DEVICE_GPU_STREAM)
        snprintf(text, size, "GPU %" PRIu64 " stream %" PRId64, track->pid, track->id);
    else if (device->kind == DPRO_DEVICE_COMM_THREAD)
        snprintf(text, size, "communication thread %" PRId64, track->id);
    else
        snprintf(text, size, "%.80s%sthread %" PRId64, name, *name ? " " : "", track->id);
    return text;
}

static int add_devices(struct assembly *a, struct dpro_graph_builder *builder)
{
    char text[160];
    for (uint32_t r = 0; r < a->join->n_ranks; r++) {
        const struct rank_build *rank = &a->join->ranks[r];
        for (size_t d = 0; d < rank->devices.n; d++) {
            const struct graph_device *device = &rank->devices.at[d];
            if (dpro_graph_add_device(builder, device->kind, rank->trace->rank,
                                      device_name(a, rank->trace, device, text, sizeof text)) < 0)
                return -1;
        }
    }
    return 0;
}

static const struct local_tensor *tensor_of(const struct rank_build *rank, uint32_t op,
                                            size_t *index)
{
    if (rank->tensors.n == 0 || op < rank->tensors.at[0].in)
        return NULL;
    *index = (op - rank->tensors.at[0].in) / 2; /* made in pairs, in order */
    return *index < rank->tensors.n ? &rank->tensors.at[*index] : NULL;
}

static int add_op(struct assembly *a, struct dpro_graph_builder *builder, uint32_t r, uint32_t o)
{
    const struct rank_build *rank = &a->join->ranks[r];
    const struct local_op *op = &rank->ops.at[o];
    char tensor_name[64] = "", text[64];
    size_t index;
    const struct local_tensor *tensor = o >= rank->n_timed ? tensor_of(rank, o, &index) : NULL;
    struct dpro_op out = {.kind = op->kind,
                          .rank = rank->trace->rank,
                          .device = op->device == NO_ID ? DPRO_NO_DEVICE
                                                        : a->first_device[r] + op->device,
                          .name = strtab_get(&a->trace->names, op->name),
                          .size_bytes = op->size_bytes,
                          .tensor = tensor_name};
    if (o == rank->boundary)
        out.name = "iteration boundary";
    if (tensor) {
        snprintf(tensor_name, sizeof tensor_name, "gradient %zu", index);
        snprintf(text, sizeof text, "%s gradient %zu", op->kind == DPRO_OP_IN ? "In" : "Out",
                 index);
        out.name = text;
    } else if (op->collective != NO_ID) {
        snprintf(tensor_name, sizeof tensor_name, "%s %u",
                 rank->collectives.at[op->collective].kind, op->collective);
        if (op->flags & GRAPH_OP_ARRIVAL) {
            snprintf(text, sizeof text, "arrival at %s", rank->collectives.at[op->collective].kind);
            out.name = text;
        }
    }
    return dpro_graph_add_op(builder, &out) < 0 ? -1 : 0;
}

static int add_ops(struct assembly *a, struct dpro_graph_builder *builder)
{
    for (uint32_t r = 0; r < a->join->n_ranks; r++) {
        const struct rank_build *rank = &a->join->ranks[r];
        for (uint32_t o = 0; o < rank->ops.n; o++)
            if (add_op(a, builder, r, o) < 0)
                return -1;
        for (size_t j = 0; j < a->join->joined.n; j++) {
            const struct joined *joined = &a->join->joined.at[j];
            char text[64];
            if (joined->rank != r || a->meets[j] == DPRO_NO_OP)
                continue;
            snprintf(text, sizeof text, "all at %s", rank->collectives.at[joined->collective].kind);
            struct dpro_op meet = {.kind = DPRO_OP_BARRIER,
                                   .rank = rank->trace->rank,
                                   .device = DPRO_NO_DEVICE,
                                   .name = text,
                                   .tensor = ""};
            if (dpro_graph_add_op(builder, &meet) < 0)
                return -1;
        }
    }
    return 0;
}

/* An op that nothing holds back would start before its iteration did. */
static int tie_loose_ops(struct assembly *a)
{
    uint8_t *has = calloc(a->n_ops + 1, 1);
    if (!has)
        return -1;
    for (size_t e = 0; e < a->edges.n; e++)
        has[a->edges.at[e].to] = 1;
    int status = 0;
    for (uint32_t op = 0; op < a->n_ops && status == 0; op++) {
        uint32_t r = rank_of(a, op);
        uint32_t boundary = a->first_op[r] + a->join->ranks[r].boundary;
        if (!has[op])
            status = push_edge(a, boundary, op, true, false);
    }
    free(has);
    return status;
}

static int fill_samples(struct assembly *a)
{
    struct dpro_graph *g = a->graph;
    size_t n = (size_t)a->n_samples * a->n_ops;
    size_t *first_edge = malloc((a->n_ops + 1) * sizeof *first_edge);
    uint8_t *doubtful = malloc(n + 1);
    g->sample_dur_ns = arena_array(&g->arena, n, sizeof *g->sample_dur_ns);
    g->sample_gap_ns = arena_array(&g->arena, n, sizeof *g->sample_gap_ns);
    if (!g->gap_ns)
        g->gap_ns = arena_array(&g->arena, a->n_ops, sizeof *g->gap_ns);
    a->start_ns = malloc((a->n_ops + 1) * sizeof *a->start_ns);
    a->end_ns = malloc((a->n_ops + 1) * sizeof *a->end_ns);
    bool ready = first_edge && doubtful && g->sample_dur_ns && g->sample_gap_ns && g->gap_ns &&
                 a->start_ns && a->end_ns;
    if (ready) {
        size_t e = 0;
        for (uint32_t op = 0; op < a->n_ops; op++) {
            while (e < a->edges.n && a->edges.at[e].to < op)
                e++;
            first_edge[op] = e;
        }
        for (uint32_t s = 0; s < a->n_samples; s++)
            time_sample(a, first_edge, s, doubtful + (size_t)s * a->n_ops);
        settle_gaps(a, doubtful);
        g->n_samples = a->n_samples;
    }
    free(first_edge);
    free(doubtful);
    return ready ? 0 : -1;
}

/* What was seen in the shown iteration, on an axis that begins with it. */
static int fill_seen(struct assembly *a)
{
    struct dpro_graph *g = a->graph;
    struct join *join = a->join;
    int64_t zero = INT64_MAX;
    for (uint32_t s = 0; s < a->n_samples; s++)
        if (join->ranks[0].sample_step[s] == join->ranks[0].template_step)
            g->shown_sample = s;
    for (uint32_t r = 0; r < join->n_ranks; r++) {
        int64_t start = join->ranks[r].steps.at[join->ranks[r].template_step].start_ns;
        zero = start < zero ? start : zero;
    }
    if (!g->seen_start_ns)
        g->seen_start_ns = arena_array(&g->arena, a->n_ops, sizeof *g->seen_start_ns);
    if (!g->seen_dur_ns)
        g->seen_dur_ns = arena_array(&g->arena, a->n_ops, sizeof *g->seen_dur_ns);
    if (!g->seen_start_ns || !g->seen_dur_ns)
        return -1;
    for (uint32_t r = 0; r < join->n_ranks; r++) {
        const struct rank_build *rank = &join->ranks[r];
        const struct step *step = &rank->steps.at[rank->template_step];
        g->ranks[r].offset_ns = clip(zero, step->start_ns);
        for (uint32_t o = 0; o < rank->n_timed; o++) {
            uint32_t op = a->first_op[r] + o;
            int64_t start = join_shifted(rank->seen_start_ns[o], rank->offset_ns);
            int64_t end = join_shifted(rank->seen_end_ns[o], rank->offset_ns);
            if (rank->ops.at[o].flags & GRAPH_OP_ARRIVAL)
                end = start;
            if (__builtin_sub_overflow(start, zero, &g->seen_start_ns[op]))
                g->seen_start_ns[op] = 0;
            g->seen_dur_ns[op] = clip(start, end);
        }
    }
    return 0;
}

static int fill_measured(struct assembly *a)
{
    struct dpro_graph *g = a->graph;
    struct join *join = a->join;
    g->measured_ns = arena_array(&g->arena, a->n_samples, sizeof *g->measured_ns);
    g->sample_number = arena_array(&g->arena, a->n_samples, sizeof *g->sample_number);
    if (!g->measured_ns || !g->sample_number)
        return -1;
    g->single_iteration = a->n_samples == 1;
    for (uint32_t s = 0; s < a->n_samples; s++) {
        __int128 sum = 0;
        int64_t first = INT64_MAX, last = INT64_MIN;
        for (uint32_t r = 0; r < join->n_ranks; r++) {
            const struct rank_build *rank = &join->ranks[r];
            uint32_t step = step_of(a, r, s);
            sum += clip(rank->steps.at[step].start_ns, rank->steps.at[step].end_ns);
            for (uint32_t o = 0; o < rank->n_timed && g->single_iteration; o++) {
                size_t at = timed_at(rank, step, o);
                if (o == rank->boundary || rank->start_ns[at] == ABSENT)
                    continue;
                first = rank->start_ns[at] < first ? rank->start_ns[at] : first;
                last = rank->end_ns[at] > last ? rank->end_ns[at] : last;
            }
        }
        g->measured_ns[s] =
            g->single_iteration ? clip(first, last) : (int64_t)(sum / join->n_ranks);
        g->sample_number[s] = join->ranks[0].steps.at[step_of(a, 0, s)].number;
    }
    return 0;
}

static int fill_ops(struct assembly *a)
{
    struct dpro_graph *g = a->graph;
    for (uint32_t r = 0; r < a->join->n_ranks; r++) {
        const struct rank_build *rank = &a->join->ranks[r];
        for (uint32_t o = 0; o < rank->ops.n; o++) {
            g->flags[a->first_op[r] + o] = rank->ops.at[o].flags;
            g->phase[a->first_op[r] + o] = rank->ops.at[o].phase;
        }
        for (uint32_t op = a->first_op[r] + (uint32_t)rank->ops.n; op < a->first_op[r + 1]; op++)
            g->phase[op] = DPRO_OP_BARRIER;
        g->ranks[r].boundary = a->first_op[r] + rank->boundary;
        g->ranks[r].clock = a->join->clocks[r];
    }
    return 0;
}

static uint64_t kind_and_size(const struct graph_collective *c)
{
    return map_mix(map_mix(c->size_bytes) + c->name) | 1;
}

/* How much longer a transfer took than the shortest of any collective of its kind and size is
 * waiting, where ranks are missing. */
static int fill_missing_waits(struct dpro_graph *g)
{
    struct map shortest = {0};
    int status = 0;
    for (uint32_t j = 0; j < g->n_collectives && status == 0; j++) {
        const struct graph_collective *c = &g->collectives[j];
        uint64_t least = INT64_MAX;
        map_get(&shortest, kind_and_size(c), &least);
        for (uint32_t m = 0; m < c->n_members; m++)
            for (uint32_t s = 0; s < g->n_samples; s++) {
                uint32_t op = g->members[c->first_member + m].transfer;
                uint64_t dur = (uint64_t)g->sample_dur_ns[(size_t)s * g->n_ops + op];
                least = dur < least ? dur : least;
            }
        status = map_set(&shortest, kind_and_size(c), least);
    }
    for (uint32_t j = 0; j < g->n_collectives && status == 0; j++) {
        struct graph_collective *c = &g->collectives[j];
        uint64_t least = 0;
        if (c->n_expected > c->n_members && map_get(&shortest, kind_and_size(c), &least))
            c->missing_wait_ns =
                clip((int64_t)least, g->dur_ns[g->members[c->first_member].transfer]);
    }
    map_fini(&shortest);
    return status;
}

static int fill_collectives(struct assembly *a)
{
    struct dpro_graph *g = a->graph;
    struct join *join = a->join;
    g->n_collectives = (uint32_t)join->joined.n;
    g->n_members = (uint32_t)join->members.n;
    g->collectives = arena_array(&g->arena, g->n_collectives, sizeof *g->collectives);
    g->members = arena_array(&g->arena, g->n_members, sizeof *g->members);
    if (g->n_collectives > 0 && !g->transaction)
        g->transaction = arena_array(&g->arena, g->n_ops, sizeof *g->transaction);
    if (!g->collectives || !g->members || (g->n_collectives > 0 && !g->transaction))
        return -1;
    for (uint32_t j = 0; j < g->n_collectives; j++) {
        const struct joined *joined = &join->joined.at[j];
        const struct rank_build *rank = &join->ranks[joined->rank];
        const struct local_collective *c = &rank->collectives.at[joined->collective];
        const char *group = strtab_get(&a->trace->names, c->group);
        g->collectives[j] =
            (struct graph_collective){.name = strtab_add(&g->names, c->kind, strlen(c->kind)),
                                      .group = strtab_add(&g->names, group, strlen(group)),
                                      .size_bytes = c->size_bytes,
                                      .meet = a->meets[j],
                                      .first_member = joined->first_member,
                                      .n_members = joined->n_members,
                                      .n_expected = joined->n_expected};
        for (uint32_t m = joined->first_member; m < joined->first_member + joined->n_members; m++) {
            const struct member *member = &join->members.at[m];
            const struct local_collective *own =
                &join->ranks[member->rank].collectives.at[member->collective];
            g->members[m].arrival = a->first_op[member->rank] + own->arrival;
            g->members[m].transfer = a->first_op[member->rank] + own->transfer;
            g->transaction[g->members[m].arrival] = j + 1;
            g->transaction[g->members[m].transfer] = j + 1;
        }
    }
    return fill_missing_waits(g);
}

static int fill_tensors(struct assembly *a)
{
    struct dpro_graph *g = a->graph;
    struct join *join = a->join;
    size_t n = 0;
    for (uint32_t r = 0; r < join->n_ranks; r++)
        n += join->ranks[r].tensors.n;
    g->tensors = arena_array(&g->arena, n, sizeof *g->tensors);
    uint32_t *joined_of = malloc((join->members.n + 1) * sizeof *joined_of);
    size_t *first = calloc(join->n_ranks + (size_t)1, sizeof *first); /* of each rank's */
    if (!g->tensors || !joined_of || !first) {
        free(joined_of);
        free(first);
        return -1;
    }
    for (uint32_t r = 0; r < join->n_ranks; r++)
        first[r + 1] = first[r] + join->ranks[r].collectives.n;
    for (size_t j = 0; j < join->joined.n; j++)
        for (uint32_t m = 0; m < join->joined.at[j].n_members; m++) {
            const struct member *member = &join->members.at[join->joined.at[j].first_member + m];
            joined_of[first[member->rank] + member->collective] = (uint32_t)j;
        }
    for (uint32_t r = 0; r < join->n_ranks; r++) {
        const struct rank_build *rank = &join->ranks[r];
        for (size_t t = 0; t < rank->tensors.n; t++) {
            const struct local_tensor *tensor = &rank->tensors.at[t];
            char text[64];
            snprintf(text, sizeof text, "gradient %zu", t);
            g->tensors[g->n_tensors++] =
                (struct graph_tensor){.name = strtab_add(&g->names, text, strlen(text)),
                                      .size_bytes = tensor->size_bytes,
                                      .rank = r,
                                      .in = a->first_op[r] + tensor->in,
                                      .out = a->first_op[r] + tensor->out,
                                      .collective = joined_of[first[r] + tensor->collective]};
        }
    }
    free(joined_of);
    free(first);
    return 0;
}

static int warn(struct assembly *a, const struct dpro_graph_options *options, const char *text)
{
    char *copy = arena_copy_string(&a->graph->arena, text, strlen(text));
    log_line(&options->sink, DPRO_LOG_WARN, "%s", text);
    return copy ? array_push(&a->graph->warnings, copy) : -1;
}

static int fill_warnings(struct assembly *a, const struct dpro_graph_options *options,
                         uint32_t dropped)
{
    struct join *join = a->join;
    char text[400];
    int status = 0;
    uint32_t missing = 0, untied = 0;
    for (size_t j = 0; j < join->joined.n; j++)
        missing += join->joined.at[j].n_expected > join->joined.at[j].n_members;
    for (uint32_t r = 1; r < join->n_ranks; r++)
        untied += join->clocks[r].uncertainty_ns < 0;
    if (missing > 0) {
        snprintf(
            text, sizeof text,
            "%u of %d ranks are here: in %u of %zu collectives the missing ranks are assumed to "
            "arrive as late as they did in the trace; record every rank to see who waits for "
            "whom",
            join->n_ranks, join->world_size, missing, join->joined.n);
        status |= warn(a, options, text);
    }
    if (join->n_mismatched > 0) {
        snprintf(text, sizeof text,
                 "%u collectives disagree between ranks on kind or size (first: %s on rank %d) and "
                 "are replayed as measured, without waiting for each other; are all files of one "
                 "run?",
                 join->n_mismatched,
                 join->ranks[join->first_mismatch_rank].collectives.at[join->first_mismatch].kind,
                 join->ranks[join->first_mismatch_rank].trace->rank);
        status |= warn(a, options, text);
    }
    for (uint32_t r = 1; r < join->n_ranks && join->by_place; r++) {
        const struct rank_build *lead = &join->ranks[0], *rank = &join->ranks[r];
        int64_t first = lead->steps.at[lead->sample_step[0]].number;
        int64_t own = rank->steps.at[rank->sample_step[0]].number;
        if (own == first)
            continue;
        snprintf(text, sizeof text,
                 "ranks share no iteration number (rank %d has %" PRId64 " where rank %d has "
                 "%" PRId64 "): the first of each is taken for the same one, and so on; are all "
                 "files of one run?",
                 lead->trace->rank, first, rank->trace->rank, own);
        status |= warn(a, options, text);
        break;
    }
    for (uint32_t r = 0, with = 0; r < join->n_ranks; r++) {
        with += join->ranks[r].step_source != STEPS_NONE;
        if (r + 1 < join->n_ranks || with == 0 || with == join->n_ranks)
            continue;
        uint32_t without = 0;
        while (join->ranks[without].step_source != STEPS_NONE)
            without++;
        snprintf(text, sizeof text,
                 "%u of %u ranks (first: rank %d) have no iteration marks and no period: the whole "
                 "of their recording is taken for one iteration of the others; call "
                 "profiler.step() on every rank",
                 join->n_ranks - with, join->n_ranks, join->ranks[without].trace->rank);
        status |= warn(a, options, text);
    }
    if (untied > 0 && join->n_ranks > 1) {
        snprintf(
            text, sizeof text,
            "%u of %u ranks share no collective with the others: their clocks are taken as they "
            "are",
            untied, join->n_ranks);
        status |= warn(a, options, text);
    }
    if (a->n_samples == 1) {
        snprintf(
            text, sizeof text,
            "one iteration only: its makespan is predicted instead of a steady period, and the "
            "prediction can't be checked on another one; record 10 iterations "
            "(torch.profiler.schedule(active=10))");
        status |= warn(a, options, text);
    }
    if (join->ranks[0].step_source == STEPS_NONE) {
        snprintf(text, sizeof text,
                 "no iteration marks and no period found: the whole recording is replayed as one "
                 "iteration; call profiler.step() once an iteration");
        status |= warn(a, options, text);
    } else if (join->ranks[0].step_source != STEPS_MARKED) {
        snprintf(text, sizeof text, "no ProfilerStep marks: iterations were found by %s",
                 join->ranks[0].step_source == STEPS_OPTIMIZER ? "the optimizer's calls"
                                                               : "the period of the ops");
        status |= warn(a, options, text);
    }
    if (dropped > 0) {
        snprintf(text, sizeof text, "%u inferred dependencies contradict each other, left out",
                 dropped);
        status |= warn(a, options, text);
    }
    return status;
}

static int build_graph(struct assembly *a, struct dpro_error *err)
{
    struct dpro_graph_builder *builder = dpro_graph_builder_create(err);
    if (!builder)
        return DPRO_ENOMEM;
    int status = 0;
    if (add_devices(a, builder) < 0 || add_ops(a, builder) < 0)
        status = dpro_error_nomem(err);
    for (size_t e = 0; e < a->edges.n && status == 0; e++) {
        const struct edge *edge = &a->edges.at[e];
        if (dpro_graph_add_edge(builder, edge->from, edge->to, edge->next) < 0)
            status = dpro_error_nomem(err);
    }
    if (status == 0)
        status = dpro_graph_finish(builder, &a->graph, err);
    dpro_graph_builder_destroy(builder);
    return status;
}

int assemble_graph(struct join *join, const struct dpro_trace *trace,
                   const struct dpro_graph_options *options, struct dpro_graph **graph,
                   struct dpro_error *err)
{
    struct assembly a = {.join = join, .trace = trace, .n_samples = join->ranks[0].n_samples};
    uint32_t dropped = 0;
    int status = 0;
    if (number_ops(&a) < 0 || collect_edges(&a) < 0) {
        status = dpro_error_nomem(err);
    } else {
        sort_edges(&a);
        if (order_all(&a, &dropped) < 0 || tie_loose_ops(&a) < 0)
            status = dpro_error_nomem(err);
        sort_edges(&a);
    }
    if (status == 0)
        status = build_graph(&a, err);
    if (status == 0) {
        a.graph->clock_method = join->clock_method;
        if (fill_ops(&a) < 0 || fill_samples(&a) < 0 || fill_seen(&a) < 0 ||
            fill_measured(&a) < 0 || fill_collectives(&a) < 0 || fill_tensors(&a) < 0 ||
            fill_warnings(&a, options, dropped) < 0) {
            dpro_graph_destroy(a.graph);
            status = dpro_error_nomem(err);
        } else {
            *graph = a.graph;
        }
    }
    free(a.first_op);
    free(a.meets);
    free(a.first_device);
    free(a.order);
    free(a.start_ns);
    free(a.end_ns);
    array_fini(&a.edges);
    return status;
}
