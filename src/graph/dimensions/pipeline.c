/* Finds micro-batches and the schedule in the messages between stages. A message belongs to the
 * pass that its sender has just ended: activations follow a forward pass, their gradients a
 * backward pass. Each micro-batch crosses each border between neighbouring stages once there and
 * once back. From the last rank to the first only those go forward that have more stages to pass,
 * where each rank has several. */
#include "graph/dimensions/pipeline.h"

const char *dpro_schedule_name(enum dpro_schedule schedule)
{
    static const char *const names[DPRO_N_SCHEDULES] = {"", "gpipe", "1f1b", "interleaved",
                                                        "zero-bubble"};
    return (unsigned)schedule < DPRO_N_SCHEDULES ? names[schedule] : NULL;
}

struct pass_op {
    int64_t end_ns, mean_ns; /* in the shown iteration; what it takes in all */
    bool backward;
};

ORDER(by_end, struct pass_op, ASCENDING(end_ns) ?: ASCENDING(mean_ns) ?: ASCENDING(backward));

struct rank_passes {
    ARRAY(struct pass_op) ops; /* by end */
    uint32_t n_sent;           /* messages */
    int64_t least_ns[2]; /* a twentieth of what a forward, a backward pass takes in the mean, if
                           each message that the rank sends follows one */
};

struct pipeline_finder {
    const struct dpro_graph *g;
    struct pipeline *p;
    struct rank_passes *passes; /* [n_ranks] */
};

/* ---- stages ---- */

static void find_stages(struct pipeline_finder *f, struct arena *arena)
{
    const struct dpro_graph *g = f->g;
    struct pipeline *p = f->p;
    uint32_t n = 0;
    for (uint32_t d = 0; d < g->n_dimensions; d++)
        if (g->dimensions[d].parallelism == DPRO_STAGES) {
            p->dimension = d;
            n++;
        }
    if (n != 1) {
        p->dimension = DPRO_NO_DIMENSION;
        return;
    }
    const struct graph_dimension *d = &g->dimensions[p->dimension];
    p->n_stages = d->size;
    p->stage_of = arena_array(arena, g->n_ranks + (size_t)1, sizeof *p->stage_of);
    p->group_of = arena_array(arena, g->n_ranks + (size_t)1, sizeof *p->group_of);
    for (uint32_t r = 0; r < g->n_ranks; r++) {
        p->stage_of[r] = p->group_of[r] = UINT32_MAX;
        for (uint32_t i = 0; i < d->n_groups * d->size; i++)
            if (d->ranks[i] == g->ranks[r].rank) {
                p->stage_of[r] = i % d->size;
                p->group_of[r] = i / d->size;
            }
    }
}

/* ---- messages ---- */

/* Of two members, the one that sends. */
static uint32_t sender_of(const struct dpro_graph *g, const struct graph_collective *c)
{
    bool turned = c->kind == DPRO_RECV;
    return g->members[c->first_member + turned].arrival;
}

static uint32_t receiver_of(const struct dpro_graph *g, const struct graph_collective *c)
{
    bool turned = c->kind == DPRO_RECV;
    return g->members[c->first_member + !turned].arrival;
}

static bool is_message(const struct pipeline_finder *f, uint32_t j)
{
    const struct graph_collective *c = &f->g->collectives[j];
    return c->dimension == f->p->dimension && c->n_members == 2 &&
           collective_is_one(c->kind, DPRO_SEND, DPRO_RECV);
}

static void list_passes(struct pipeline_finder *f, uint32_t rank)
{
    struct rank_passes *passes = &f->passes[rank];
    const struct dpro_graph *g = f->g;
    uint32_t first = g->ranks[rank].first_op, n = g->ranks[rank].n_ops;
    bool gpu = false;
    for (uint32_t op = first; op < first + n; op++)
        gpu |= (g->flags[op] & GRAPH_OP_GPU) && g->phase[op] == DPRO_OP_BW;
    for (uint32_t op = first; op < first + n - g->ranks[rank].n_message_ops; op++) {
        bool of_pass = g->kind[op] == DPRO_OP_FW || g->kind[op] == DPRO_OP_BW;
        bool seen = g->seen_dur_ns[op] > 0; /* else it is not in the iteration that is shown */
        if (of_pass && seen && gpu == ((g->flags[op] & GRAPH_OP_GPU) != 0))
            array_add(&passes->ops, .end_ns = g->seen_start_ns[op] + g->seen_dur_ns[op],
                      .mean_ns = g->dur_ns[op], .backward = g->kind[op] == DPRO_OP_BW);
    }
    array_sort(&passes->ops, by_end);
    EACH (const struct pass_op, op, passes->ops)
        passes->least_ns[op->backward] += op->mean_ns;
    for (int i = 0; i < 2; i++)
        passes->least_ns[i] = MAX(passes->least_ns[i] / MAX(20 * passes->n_sent, 1), 1);
}

/* Of forward and backward ops, those before it of which there is first as much as a quarter of a
 * pass: some that autograd calls aside are named like the other pass's. */
static bool follows_backward(const struct pipeline_finder *f, uint32_t op)
{
    const struct rank_passes *passes = &f->passes[f->g->rank[op]];
    int64_t ns[2] = {0, 0};
    size_t i = LOWER_BOUND(k, (size_t)0, passes->ops.n,
                           passes->ops.at[k].end_ns <= f->g->seen_start_ns[op]);
    while (i > 0 && ns[0] < passes->least_ns[0] && ns[1] < passes->least_ns[1]) {
        const struct pass_op *before = &passes->ops.at[--i];
        ns[before->backward] += before->mean_ns;
    }
    return ns[1] >= passes->least_ns[1];
}

/* A timeline of stages says which pass a message waits for, however late it begins behind others.
 */
static void read_passes(struct pipeline_finder *f)
{
    const struct dpro_graph *g = f->g;
    SCRATCH uint32_t *sent = mem_array(g->n_ops + (size_t)1, sizeof *sent);
    for (uint32_t j = 0; j < g->n_collectives; j++)
        if (is_message(f, j))
            sent[sender_of(g, &g->collectives[j])] = j + 1;
    for (uint32_t op = 0; op < g->n_ops; op++)
        for (uint32_t e = g->row[op]; e < g->row[op + 1]; e++)
            if (sent[g->succ[e]] > 0 && (g->kind[op] == DPRO_OP_FW || g->kind[op] == DPRO_OP_BW))
                f->p->backward[sent[g->succ[e]] - 1] = g->kind[op] == DPRO_OP_BW;
}

static void find_passes(struct pipeline_finder *f)
{
    const struct dpro_graph *g = f->g;
    for (uint32_t j = 0; j < g->n_collectives; j++) {
        const struct graph_collective *c = &g->collectives[j];
        uint32_t op = is_message(f, j) ? sender_of(g, c) : g->members[c->first_member].arrival;
        f->p->backward[j] = c->n_members > 0 && follows_backward(f, op);
    }
}

static const char *find_messages_of(struct pipeline_finder *f)
{
    const struct dpro_graph *g = f->g;
    struct pipeline *p = f->p;
    for (uint32_t j = 0; j < g->n_collectives; j++) {
        const struct graph_collective *c = &g->collectives[j];
        if (c->dimension != p->dimension)
            continue;
        if (c->kind == DPRO_SEND_RECV)
            return "ranks send and receive in one kernel";
        if (!collective_is_one(c->kind, DPRO_SEND, DPRO_RECV))
            continue;
        if (c->n_members != 2)
            return "sends or receives have no counterpart in the trace";
        p->messages[j] = p->backward[j] ? MESSAGE_BACKWARD : MESSAGE_FORWARD;
    }
    return NULL;
}

/* ---- micro-batches ---- */

/* Messages from each stage to the next one in a direction, over all pipelines; those to the first
 * stage behind the last one at the end. */
struct crossings {
    uint32_t *there, *back; /* [n_stages * n_groups] by the stage before the border */
    bool odd;               /* any goes over no border */
};

static struct crossings count_crossings(const struct pipeline_finder *f, struct arena *arena)
{
    const struct dpro_graph *g = f->g;
    const struct pipeline *p = f->p;
    uint32_t n = p->n_stages;
    size_t room = (size_t)n * g->dimensions[p->dimension].n_groups + 1;
    struct crossings c = {arena_array(arena, room, sizeof *c.there),
                          arena_array(arena, room, sizeof *c.back), false};
    for (uint32_t j = 0; j < g->n_collectives; j++) {
        if (p->messages[j] == NO_STAGE_MESSAGE)
            continue;
        uint32_t from = g->rank[sender_of(g, &g->collectives[j])];
        uint32_t to = g->rank[receiver_of(g, &g->collectives[j])];
        bool backward = p->messages[j] == MESSAGE_BACKWARD;
        uint32_t before = backward ? to : from, behind = backward ? from : to;
        bool known = p->stage_of[from] != UINT32_MAX && p->stage_of[to] != UINT32_MAX &&
                     p->group_of[from] == p->group_of[to];
        if (!known || p->stage_of[behind] != (p->stage_of[before] + 1) % n) {
            c.odd = true;
            continue;
        }
        (backward ? c.back : c.there)[p->group_of[before] * n + p->stage_of[before]]++;
    }
    return c;
}

static const char *count_micro_batches(struct pipeline_finder *f, struct arena *arena)
{
    struct pipeline *p = f->p;
    struct crossings c = count_crossings(f, arena);
    uint32_t n = p->n_stages, n_all = n * f->g->dimensions[p->dimension].n_groups;
    if (c.odd)
        return "messages pass between ranks that are no neighbouring stages";
    for (uint32_t i = 0; i < n_all; i++)
        if (c.there[i] != c.back[i] || c.there[i] != c.there[i % n < n - 1 ? 0 : n - 1])
            return "not all stages send as many messages forward as backward, or as the others do";
    if (c.there[0] == 0)
        return "no messages between its stages are in the trace";
    uint32_t around = c.there[n - 1]; /* with one stage a rank, none */
    if (c.there[0] <= around || c.there[0] % (c.there[0] - around) != 0)
        return "more messages go from the last rank to the first than between other stages";
    p->n_micro_batches = c.there[0] - around;
    p->n_chunks = c.there[0] / p->n_micro_batches;
    return NULL;
}

/* ---- marks ---- */

/* The stages of a rank are as many ranks apart as there are in the pipeline. */
static const char *read_marks(struct pipeline_finder *f, bool *splits)
{
    const struct dpro_graph *g = f->g;
    struct pipeline *p = f->p;
    p->marked = g->pass != NULL;
    for (uint32_t op = 0; g->pass && op < g->n_ops; op++) {
        uint32_t stage = p->stage_of[g->rank[op]];
        if (g->pass[op] == 0 || stage == UINT32_MAX)
            continue;
        uint32_t marked = MARKED_STAGE(g->pass[op]);
        if (marked % p->n_stages != stage)
            return "the numbers of a rank's stages are not as far apart as there are ranks";
        if (marked / p->n_stages >= p->n_chunks)
            return "more stages are marked than exchange messages";
        *splits |= MARKED_KIND(g->pass[op]) >= PASS_OF_INPUTS;
    }
    return NULL;
}

/* ---- the schedule ---- */

/* The beginning of a rank's first backward pass; else INT64_MAX. */
static int64_t first_backward_ns(const struct rank_passes *passes)
{
    int64_t first_ns = INT64_MAX, backward_ns = 0;
    for (size_t i = 0; i < passes->ops.n && backward_ns < passes->least_ns[1]; i++)
        if (passes->ops.at[i].backward) {
            first_ns = passes->ops.at[i].end_ns;
            backward_ns += passes->ops.at[i].mean_ns;
        }
    return first_ns;
}

/* Forward messages of each rank, to the next stage or of the last one from that before it, up to
 * the beginning of its first backward pass. */
static uint32_t *count_ahead(const struct pipeline_finder *f)
{
    const struct dpro_graph *g = f->g;
    uint32_t *n = mem_array(g->n_ranks, sizeof *n);
    SCRATCH int64_t *first_ns = mem_alloc(g->n_ranks * sizeof *first_ns);
    for (uint32_t r = 0; r < g->n_ranks; r++)
        first_ns[r] = first_backward_ns(&f->passes[r]);
    for (uint32_t j = 0; j < g->n_collectives; j++)
        for (int last = 0; last < 2 && f->p->messages[j] == MESSAGE_FORWARD; last++) {
            const struct graph_collective *c = &g->collectives[j];
            uint32_t op = last ? receiver_of(g, c) : sender_of(g, c), r = g->rank[op];
            if (r < g->n_ranks && (f->p->stage_of[r] == f->p->n_stages - 1) == (last == 1))
                n[r] += g->seen_start_ns[op] < first_ns[r];
        }
    return n;
}

static enum dpro_schedule schedule_of(const struct pipeline_finder *f)
{
    const struct pipeline *p = f->p;
    bool all = true, few = true;
    if (p->n_chunks > 1)
        return DPRO_SCHEDULE_INTERLEAVED;
    SCRATCH uint32_t *n = count_ahead(f);
    for (uint32_t r = 0; r < f->g->n_ranks; r++) {
        if (p->stage_of[r] == UINT32_MAX)
            continue;
        all &= n[r] == p->n_micro_batches;
        few &= n[r] == MIN(p->n_micro_batches, p->n_stages - p->stage_of[r]);
    }
    return few ? DPRO_SCHEDULE_1F1B : all ? DPRO_SCHEDULE_GPIPE : DPRO_SCHEDULE_UNKNOWN;
}

void pipeline_find(const struct dpro_graph *graph, struct arena *arena, struct pipeline *pipeline)
{
    struct pipeline_finder f = {.g = graph, .p = pipeline};
    *pipeline = (struct pipeline){.dimension = DPRO_NO_DIMENSION, .n_chunks = 1};
    find_stages(&f, arena);
    if (pipeline->dimension == DPRO_NO_DIMENSION)
        return;
    pipeline->messages = arena_array(arena, graph->n_collectives + (size_t)1, 1);
    pipeline->backward = arena_array(arena, graph->n_collectives + (size_t)1, 1);
    if (!graph->seen_start_ns || !graph->seen_dur_ns) {
        pipeline->unknown = "the trace does not say when ops ran";
        return;
    }
    f.passes = mem_array((size_t)graph->n_ranks + graph->n_servers + 1, sizeof *f.passes);
    for (uint32_t j = 0; j < graph->n_collectives; j++)
        if (is_message(&f, j))
            f.passes[graph->rank[sender_of(graph, &graph->collectives[j])]].n_sent++;
    for (uint32_t r = 0; r < graph->n_ranks; r++)
        list_passes(&f, r);
    find_passes(&f);
    if (graph->of_stages)
        read_passes(&f);
    pipeline->unknown = find_messages_of(&f);
    if (!pipeline->unknown)
        pipeline->unknown = count_micro_batches(&f, arena);
    bool splits = false;
    if (!pipeline->unknown)
        pipeline->unknown = read_marks(&f, &splits);
    if (!pipeline->unknown)
        pipeline->schedule = splits ? DPRO_SCHEDULE_ZERO_BUBBLE : schedule_of(&f);
    for (uint32_t r = 0; r < graph->n_ranks; r++)
        array_fini(&f.passes[r].ops);
    mem_free(f.passes);
}
