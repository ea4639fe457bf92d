/* The Coarsened View (paper, section 4.3). Of a rank's iteration two things remain: sync points,
 * where a gradient gets ready, the rank comes to another communication or waits for one, and
 * segments, the work between two sync points. Work within a segment depends on no communication, so
 * it stays the same under every strategy.
 *
 * Of a rank with a GPU whose groups communicate, the stream that computes longest is what waits.
 * What other streams do with what arrived, such as copying it, counts as communication. */

#include "base/intervals.h"
#include "cost/program/cost.h"

/* An edge to an op that may wait for communication. */
struct coarsen_entry {
    uint32_t to, from;
    bool next, communicates; /* from the iteration before; from a bucket's transfer */
};

ORDER(by_target, struct coarsen_entry, ASCENDING(to) ?: ASCENDING(from));

struct coarsening {
    const struct measured_replay *replay;
    const struct dpro_graph *g;
    struct coarse *coarse;
    uint8_t *waits;                      /* by op: it may wait for communication */
    uint8_t *arrives;                    /* by op: a rank's arrival at a group's communication */
    uint32_t *main_of;                   /* by rank: its GPU's stream that computes longest */
    ARRAY(struct coarsen_entry) entries; /* by `to` */
    bool answers_at_once;                /* servers send a value back when all have pushed */
};

/* ---- who waits ---- */

static bool coarsen_computes(const struct dpro_graph *g, uint32_t op)
{
    return graph_is_on(g, op, DPRO_DEVICE_CPU_THREAD) || graph_is_on(g, op, DPRO_DEVICE_GPU_STREAM);
}

/* Whether the op holds up what its rank computes. */
static bool holds_up(const struct coarsening *c, uint32_t op)
{
    uint32_t main = c->main_of[c->g->rank[op]];
    return coarsen_computes(c->g, op) && (main == DPRO_NO_DEVICE || c->g->device[op] == main);
}

static void mark_consumers(struct coarsening *c, uint32_t op)
{
    const struct dpro_graph *g = c->g;
    for (int next = 0; next < 2; next++) {
        uint32_t n;
        const dpro_op_id *succ = dpro_graph_successors(g, op, next, &n);
        for (uint32_t i = 0; i < n; i++)
            if (holds_up(c, succ[i]) && !c->coarse->transfer_of[succ[i]] &&
                !(g->flags[succ[i]] & GRAPH_OP_ARRIVAL && g->device[succ[i]] == g->device[op]))
                c->waits[succ[i]] = 1;
    }
}

/* ---- GPUs of jobs whose groups communicate ---- */

static void find_main_streams(struct coarsening *c)
{
    const struct dpro_graph *g = c->g;
    uint32_t n = g->n_ranks + g->n_servers;
    c->main_of = arena_alloc(&c->coarse->arena, n * sizeof(uint32_t));
    for (uint32_t r = 0; r < n; r++)
        c->main_of[r] = r < g->n_ranks && c->coarse->n_issues > 0
                            ? rank_main_stream(g, &g->ranks[r])
                            : DPRO_NO_DEVICE;
}

/* What another stream does with what has arrived. */
static void carry_on(struct coarsening *c)
{
    const struct dpro_graph *g = c->g;
    for (uint32_t op = 0; op < g->n_ops && c->coarse->n_issues > 0; op++) {
        bool is_transfer = g->kind[op] == DPRO_OP_COLLECTIVE && c->coarse->transfer_of[op];
        for (uint32_t e = g->row[op]; e < g->row[op + 1] && is_transfer; e++) {
            uint32_t to = g->succ[e];
            if (coarsen_computes(g, to) && !holds_up(c, to) && !c->coarse->transfer_of[to] &&
                !(g->flags[to] & GRAPH_OP_ARRIVAL))
                c->coarse->transfer_of[to] = c->coarse->transfer_of[op];
        }
    }
}

/* ---- all that waits ---- */

static void mark_arrivals(struct coarsening *c)
{
    c->arrives = arena_array(&c->coarse->arena, c->g->n_ops, 1);
    for (uint32_t i = 0; i < c->coarse->n_issues; i++)
        c->waits[c->coarse->issues[i].arrival] = c->arrives[c->coarse->issues[i].arrival] = 1;
}

/* Whether an edge to an arrival says only that a thread or a stream has carried something else. */
static bool is_queueing(const struct coarsening *c, uint32_t from, uint32_t to)
{
    const struct dpro_graph *g = c->g;
    bool of_thread = g->device[from] == DPRO_NO_DEVICE && g->kind[from] == DPRO_OP_BARRIER;
    bool of_stream = c->coarse->transfer_of[from] && g->device[from] == g->device[to];
    return c->arrives[to] && (of_thread || of_stream);
}

/* Horovod's thread copies and tells between transfers of its own: no rank's work, but what lies
 * between a bucket and the next. */
static bool is_of_horovod(const struct dpro_graph *g, uint32_t op)
{
    return g->cycles.cycle_ns > 0 && graph_is_on(g, op, DPRO_DEVICE_COMM_THREAD);
}

/* What follows the transfers of buckets on computing devices, and all edges to it. */
static void find_waiting(struct coarsening *c)
{
    const struct dpro_graph *g = c->g;
    c->waits = arena_array(&c->coarse->arena, g->n_ops, 1);
    find_main_streams(c);
    carry_on(c);
    mark_arrivals(c);
    for (uint32_t op = 0; op < g->n_ops; op++)
        if (c->coarse->transfer_of[op])
            mark_consumers(c, op);
    for (uint32_t op = 0; op < g->n_ops; op++)
        for (int next = 0; next < 2; next++) {
            uint32_t n;
            const dpro_op_id *succ = dpro_graph_successors(g, op, next, &n);
            for (uint32_t i = 0; i < n; i++) {
                struct coarsen_entry entry = {succ[i], op, next == 1,
                                              c->coarse->transfer_of[op] != 0};
                if ((!entry.communicates && is_of_horovod(g, op)) || is_queueing(c, op, succ[i]))
                    continue;
                if (c->waits[succ[i]])
                    array_push(&c->entries, entry);
            }
        }
    array_sort(&c->entries, by_target);
}

/* When the op could have run had nothing been communicated, and from when on it could. */
static void coarsen_waiting(const struct coarsening *c, const struct measured_replay *r,
                            uint32_t copy, uint32_t op, int64_t *came_ns, int64_t *went_on_ns)
{
    int64_t local = 0, others = 0;
    uint32_t before = r->copies[copy].device_prev[op];
    int64_t start = measured_start_ns(r, copy, op);
    if (before != DPRO_NO_OP && !c->arrives[op] && !c->coarse->transfer_of[before]) {
        local = r->copies[copy].end_ns[before];
        if (local > start || before == op)
            local = copy > 0 ? r->copies[copy - 1].end_ns[before] : 0;
    }
    size_t i = LOWER_BOUND(k, (size_t)0, c->entries.n, c->entries.at[k].to < op);
    for (; i < c->entries.n && c->entries.at[i].to == op; i++) {
        const struct coarsen_entry *e = &c->entries.at[i];
        if (e->next && copy == 0)
            continue;
        int64_t *latest = e->communicates ? &others : &local;
        *latest = MAX(*latest, r->copies[copy - e->next].end_ns[e->from]);
    }
    *came_ns = local;
    *went_on_ns = MAX(others, local);
}

/* ---- sync points ---- */

struct stream_place {
    uint32_t device, issue;
    int64_t start_ns;
};

ORDER(by_time, struct sync_point, ASCENDING(when_ns) ?: ASCENDING(op) ?: DESCENDING(needs));

/* Of a group's communication, mean time at which the rank goes on with the op. */
static int64_t mean_went_on(const struct coarsening *c, uint32_t op)
{
    const struct measured_replay *r = c->replay;
    int64_t sum = 0, came, on;
    for (uint32_t copy = r->first; copy < r->first + r->n; copy++) {
        coarsen_waiting(c, r, copy, op, &came, &on);
        sum += on / r->n;
    }
    return sum;
}

/* The tensor of a bucket that gets ready last: whoever waits for the bucket waits for that one in
 * other buckets, too. */
static void find_last(const struct coarse *coarse, const struct dpro_model *model,
                      uint32_t *last_of)
{
    memcpy(last_of, coarse->first_of, coarse->n_buckets * sizeof *last_of);
    for (uint32_t t = 0; t < model->n_tensors; t++)
        last_of[coarse->bucket_of[t]] = t;
}

/* A bucket is waited for by the first op of its iteration that follows it; the others only follow
 * that one. What waits in the next iteration alone leads up to the first gradient there, but if it
 * is a group's. */
static void add_needs(const struct coarsening *c, uint32_t r, const struct dpro_model *model,
                      struct coarse_rank *rank)
{
    struct coarse *coarse = c->coarse;
    const struct graph_rank *ops = &c->g->ranks[r];
    struct sync_point *first = arena_array(&coarse->arena, coarse->n_buckets, sizeof *first);
    SCRATCH uint32_t *last_of = mem_alloc((coarse->n_buckets + (size_t)1) * sizeof *last_of);
    find_last(coarse, model, last_of);
    EACH (const struct coarsen_entry, e, c->entries) {
        if (e->to - ops->first_op >= ops->n_ops || !e->communicates)
            continue;
        uint32_t b = coarse->transfer_of[e->from] - 1;
        bool of_group =
            coarse->first_of[b] != MODEL_NONE && coarse->first_of[b] >= model->n_tensors;
        if (coarse->first_of[b] == MODEL_NONE || (e->next && !of_group))
            continue;
        struct sync_point point = {e->to, last_of[b], true, e->next,
                                   of_group ? mean_went_on(c, e->to)
                                            : measured_mean_ns(c->replay, e->to, true)};
        if (!first[b].needs || point.before < first[b].before ||
            (point.before == first[b].before && by_time(&point, &first[b]) < 0))
            first[b] = point;
    }
    for (uint32_t b = 0; b < coarse->n_buckets; b++)
        if (first[b].needs)
            rank->sync_points[rank->n_points++] = first[b];
}

/* Of an iteration that communicates nothing: its end. */
static void add_end(const struct coarsening *c, const struct graph_rank *ops,
                    struct coarse_rank *rank)
{
    struct sync_point end = {.tensor = MODEL_NONE, .when_ns = INT64_MIN};
    for (uint32_t op = ops->first_op; op < ops->first_op + ops->n_ops; op++) {
        int64_t when = measured_mean_ns(c->replay, op, false);
        if (when > end.when_ns)
            end = (struct sync_point){op, MODEL_NONE, false, false, when};
    }
    if (ops->n_ops > 0)
        rank->sync_points[rank->n_points++] = end;
}

ORDER(by_stream, struct stream_place, ASCENDING(device) ?: ASCENDING(start_ns));

/* A GPU stream carries its communications in the order in which they were launched, so that a rank
 * comes to none of them before it has come to those before it. */
static void order_on_streams(const struct coarsening *c, const struct coarse_issue *issues,
                             struct sync_point *points, uint32_t n)
{
    const struct dpro_graph *g = c->g;
    struct stream_place *places = arena_array(&c->coarse->arena, n, sizeof *places);
    uint32_t n_places = 0;
    for (uint32_t i = 0; i < n; i++)
        if (graph_is_on(g, issues[i].transfer, DPRO_DEVICE_GPU_STREAM))
            places[n_places++] =
                (struct stream_place){g->device[issues[i].transfer], i,
                                      measured_mean_ns(c->replay, issues[i].transfer, true)};
    qsort(places, n_places, sizeof *places, by_stream);
    for (uint32_t i = 1; i < n_places; i++)
        if (places[i].device == places[i - 1].device)
            points[places[i].issue].when_ns =
                MAX(points[places[i].issue].when_ns, points[places[i - 1].issue].when_ns + 1);
}

static void find_points(const struct coarsening *c, uint32_t r, const struct dpro_model *model)
{
    const struct dpro_graph *g = c->g;
    struct coarse_rank *rank = &c->coarse->ranks[r];
    uint32_t n_ready = 0, n_needs = 0, n_early = 0;
    struct coarse_issue *issues = rank->n_issues > 0 ? c->coarse->issues + rank->first_issue : NULL;
    rank->sync_points = arena_array(
        &c->coarse->arena, model->n_tensors + (size_t)rank->n_issues + c->coarse->n_buckets + 1,
        sizeof(*rank->sync_points));
    for (uint32_t t = 0; t < model->n_tensors; t++) {
        uint32_t op = c->coarse->ready[(size_t)r * model->n_tensors + t];
        if (op != DPRO_NO_OP)
            rank->sync_points[n_ready++] =
                (struct sync_point){op, t, false, false, measured_mean_ns(c->replay, op, false)};
    }
    if (n_ready != model->n_tensors)
        fail_with(DPRO_EFORMAT,
                  "rank %d communicates %u gradients and rank %d %u: one of their profiles is cut "
                  "off ('dpro replay' names it), or of another job; give whole ones of one job",
                  g->ranks[r].rank, n_ready, g->ranks[0].rank, model->n_tensors);
    for (uint32_t i = 0; i < rank->n_issues; i++)
        rank->sync_points[n_ready + i] =
            (struct sync_point){issues[i].arrival, model->n_tensors + issues[i].communication,
                                false, false, mean_went_on(c, issues[i].arrival)};
    order_on_streams(c, issues, rank->sync_points + n_ready, rank->n_issues);
    rank->n_points = n_ready + rank->n_issues;
    if (rank->n_points == 0) {
        add_end(c, &g->ranks[r], rank);
        return;
    }
    /* the first gradient needs all parameters, when each is needed before shows in no order */
    if (!c->answers_at_once)
        add_needs(c, r, model, rank);
    qsort(rank->sync_points, rank->n_points, sizeof *rank->sync_points, by_time);
    for (uint32_t a = 0; a < rank->n_points; a++) {
        n_needs += rank->sync_points[a].needs;
        n_early += rank->sync_points[a].needs && a < n_ready;
    }
    rank->drains = c->answers_at_once || (n_needs > 0 && n_early == 0 && rank->n_issues == 0);
}

/* ---- what is on a rank's wires ---- */

/* When something of a bucket was being sent or received; whole transfers where no messages are
 * known. Ascending, disjoint. */
static void wire_times(const struct coarsening *c, uint32_t r, interval_array *times)
{
    const struct dpro_graph *g = c->g;
    const struct measured_replay *re = c->replay;
    const struct graph_rank *rank = &g->ranks[r];
    for (uint32_t op = rank->first_op; op < rank->first_op + rank->n_ops; op++) {
        uint32_t bucket = c->coarse->transfer_of[op];
        bool message = (g->kind[op] == DPRO_OP_SEND || g->kind[op] == DPRO_OP_RECV ||
                        g->kind[op] == DPRO_OP_PUSH || g->kind[op] == DPRO_OP_PULL) &&
                       g->size_bytes && g->size_bytes[op] > 0;
        bool whole = bucket && g->kind[op] == DPRO_OP_COLLECTIVE &&
                     g->collectives[bucket - 1].n_messages == 0;
        if (!message && !whole)
            continue;
        for (uint32_t copy = 0; copy < re->n_copies; copy++) {
            struct interval time = {measured_start_ns(re, copy, op), re->copies[copy].end_ns[op]};
            if (time.end_ns > time.start_ns)
                array_push(times, time);
        }
    }
    intervals_join(times);
}

/* ---- segments ---- */

/* By op: the computation after which a gradient is ready; DPRO_NO_OP. */
static uint32_t *find_makers(const struct coarsening *c, const struct graph_rank *ops)
{
    const struct dpro_graph *g = c->g;
    uint32_t *makers = arena_alloc(&c->coarse->arena, ops->n_ops * sizeof *makers);
    for (uint32_t i = 0; i < ops->n_ops; i++)
        makers[i] = DPRO_NO_OP;
    for (uint32_t op = ops->first_op; op < ops->first_op + ops->n_ops; op++)
        for (uint32_t e = g->row[op]; e < g->row[op + 1] && coarsen_computes(g, op); e++) {
            uint32_t to = g->succ[e];
            bool arrives = g->kind[to] == DPRO_OP_IN || (g->flags[to] & GRAPH_OP_ARRIVAL);
            if (arrives && to >= ops->first_op && to < ops->first_op + ops->n_ops)
                makers[to - ops->first_op] = op;
        }
    return makers;
}

/* What is computed before each sync point, as a number that repeated blocks have in common: the
 * names of the ops on its thread, and the size of the tensor. */
static void find_families(const struct coarsening *c, uint32_t r, const struct dpro_model *model)
{
    const struct dpro_graph *g = c->g;
    const struct graph_rank *ops = &g->ranks[r];
    struct coarse_rank *rank = &c->coarse->ranks[r];
    const uint32_t *makers = find_makers(c, ops);
    uint32_t last = DPRO_NO_OP;
    rank->family = arena_array(&c->coarse->arena, rank->n_points, sizeof *rank->family);
    for (uint32_t a = 0; a < rank->n_points; a++) {
        const struct sync_point *point = &rank->sync_points[a];
        if (point->needs || point->tensor == MODEL_NONE)
            continue;
        uint32_t op = makers[point->op - ops->first_op];
        if (op != DPRO_NO_OP && last != DPRO_NO_OP && last < op &&
            g->device[last] == g->device[op]) {
            bool is_tensor = point->tensor < model->n_tensors;
            uint64_t hash = map_mix(
                is_tensor ? model->tensors[point->tensor].size_bytes
                          : model->communications[point->tensor - model->n_tensors].size_bytes);
            for (uint32_t o = last + 1; o <= op; o++)
                if (g->device[o] == g->device[op] && g->kind[o] != DPRO_OP_LAUNCH)
                    hash = map_mix(hash ^ g->name[o]);
            rank->family[a] = hash | 1;
        }
        last = op;
    }
}

static int64_t latest_end(const struct coarsening *c, uint32_t copy, uint32_t r, bool transfers)
{
    const struct graph_rank *rank = &c->g->ranks[r];
    const int64_t *end_ns = c->replay->copies[copy].end_ns;
    int64_t last = 0;
    for (uint32_t op = rank->first_op; op < rank->first_op + rank->n_ops; op++)
        if ((transfers ? c->coarse->transfer_of[op] != 0 : c->waits[op]) && end_ns[op] > last)
            last = end_ns[op];
    return last;
}

/* The segments of one iteration, from when the rank went on after the one before; returns when it
 * goes on after this one. */
static int64_t measure_iteration(const struct coarsening *c, uint32_t copy, uint32_t r,
                                 const interval_array *times, int64_t went_on)
{
    const struct measured_replay *re = c->replay;
    struct coarse_rank *rank = &c->coarse->ranks[r];
    bool counts = copy >= re->first;
    int64_t first_wait = 0, waited = 0;
    for (uint32_t a = 0; a < rank->n_points; a++) {
        const struct sync_point *point = &rank->sync_points[a];
        int64_t came = re->copies[copy].end_ns[point->op], on = came;
        if (point->needs || c->arrives[point->op])
            coarsen_waiting(c, re, copy, point->op, &came, &on);
        if (!point->needs && c->arrives[point->op])
            on = came;
        if (counts)
            rank->segments[(copy - re->first) * (size_t)rank->n_points + a] =
                (struct segment){.elapsed_ns = came > went_on ? came - went_on : 0,
                                 .overlapped_ns = intervals_within(times, went_on, came)};
        if (point->needs) {
            first_wait = first_wait == 0 ? came : first_wait;
            waited += on - came;
        }
        went_on = on > went_on ? on : went_on;
    }
    /* with servers nobody copies, with Horovod its thread */
    if (counts && rank->drains && !c->answers_at_once && c->g->cycles.cycle_ns == 0) {
        int64_t copied = latest_end(c, copy, r, false);
        if (copied - first_wait > waited)
            rank->copy_back_ns += (copied - first_wait - waited) / re->n;
    }
    return went_on;
}

static void coarsen_measure(const struct coarsening *c, uint32_t r)
{
    const struct measured_replay *re = c->replay;
    struct coarse_rank *rank = &c->coarse->ranks[r];
    SCRATCH interval_array times = {0};
    int64_t went_on = 0;
    rank->copy_back_ns = 0;
    rank->communicates_ns = 0;
    rank->segments =
        arena_array(&c->coarse->arena, re->n * (size_t)rank->n_points, sizeof *rank->segments);
    wire_times(c, r, &times);
    for (size_t i = 0; i < times.n; i++)
        rank->communicates_ns += (double)(times.at[i].end_ns - times.at[i].start_ns) / re->n_copies;
    for (uint32_t copy = re->first - 1; copy < re->first + re->n; copy++) {
        if (c->g->pulls_with_step) /* all ranks begin at once */
            went_on = re->copies[copy - 1].end_ns[c->g->ranks[r].boundary];
        went_on = measure_iteration(c, copy, r, &times, went_on);
        if (c->answers_at_once) {
            int64_t last = latest_end(c, copy, r, true);
            went_on = last > went_on ? last : went_on;
        }
    }
}

static void measure_issues(const struct coarsening *c)
{
    const struct measured_replay *re = c->replay;
    EACH_OF (struct coarse_issue, issue, c->coarse->issues, c->coarse->n_issues) {
        int64_t came;
        issue->ready_ns = arena_array(&c->coarse->arena, re->n, sizeof *issue->ready_ns);
        for (uint32_t s = 0; s < re->n; s++)
            coarsen_waiting(c, re, re->first + s, issue->arrival, &came, &issue->ready_ns[s]);
        /* a stream that carries others up to then has not come to it */
        bool streams = graph_is_on(c->g, issue->transfer, DPRO_DEVICE_GPU_STREAM);
        for (uint32_t s = 0; s < re->n && streams; s++)
            issue->ready_ns[s] = re->copies[re->first + s].end_ns[issue->arrival];
    }
}

/* Which of the communications are each rank's. */
static void share_issues(struct coarse *coarse, uint32_t n_ranks)
{
    uint32_t at = 0;
    for (uint32_t r = 0; r < n_ranks; r++) {
        coarse->ranks[r].first_issue = at;
        while (at < coarse->n_issues && coarse->issues[at].rank == r)
            at++;
        coarse->ranks[r].n_issues = at - coarse->ranks[r].first_issue;
    }
}

void model_coarsen(const struct measured_replay *replay, struct dpro_model *model,
                   struct coarse *coarse)
{
    const struct dpro_graph *g = replay->graph;
    struct coarsening c = {.replay = replay,
                           .g = g,
                           .coarse = coarse,
                           .answers_at_once = g->n_exchanges > 0 && !g->pulls_with_step};
    *coarse = (struct coarse){.arena = {0}};
    coarse->ranks = arena_array(&coarse->arena, g->n_ranks, sizeof *coarse->ranks);
    find_gradients(replay, model, coarse);
    if (model->all_communication && has_communications(g))
        find_communications(g, model, coarse);
    share_issues(coarse, g->n_ranks);
    find_waiting(&c);
    for (uint32_t r = 0; r < g->n_ranks; r++) {
        find_points(&c, r, model);
        find_families(&c, r, model);
        coarsen_measure(&c, r);
    }
    measure_issues(&c);
    array_fini(&c.entries);
}
