/* The results of the replayed iterations: iteration times, where each rank's time goes, the shown
 * iteration and its critical path. */

#include "base/options.h"
#include "graph/dimensions/pipeline.h"
#include "replay/chain.h"

#define NO_RANK    UINT32_MAX
#define MOST_TIMES 20000 /* of ranks in single iterations */
#define MOST_RANKS 1024  /* of which it is kept who waits for whom */

struct dpro_replay {
    struct arena arena;
    struct dpro_replay_view view;
    int64_t *sorted_ns; /* what percentiles are taken of */
    uint32_t n_sorted;
    struct dpro_rank_late *ranks_late; /* view.ranks_late */
    uint32_t *late; /* by iteration: the index of the rank that is late in it; NO_RANK: none */
};

static uint32_t last_of(const struct replay_copy *copy, uint32_t first, uint32_t n)
{
    uint32_t last = first;
    for (uint32_t op = first; op < first + n; op++)
        if (copy->end_ns[op] > copy->end_ns[last])
            last = op;
    return last;
}

static uint32_t last_op(const struct chain *c, uint32_t copy)
{
    uint32_t rank;
    if (c->g->single_iteration)
        return c->last_op;
    chain_latest_boundary(c, copy, &rank);
    const struct graph_rank *r = &c->g->ranks[rank];
    if (r->on_device)
        return r->last_work;
    return r->boundary != DPRO_NO_OP ? r->boundary
                                     : last_of(&c->copies[copy], r->first_op, r->n_ops);
}

static void fill_iterations(const struct chain *c, struct dpro_replay *r)
{
    uint32_t n_drawn = c->n_copies - c->n_kept;
    int64_t *iterations_ns = arena_array(&r->arena, c->n_main, sizeof *iterations_ns);
    r->n_sorted = n_drawn ? n_drawn : c->n_main;
    r->sorted_ns = arena_array(&r->arena, r->n_sorted, sizeof *r->sorted_ns);
    chain_periods(c, iterations_ns);
    for (uint32_t i = 0; i < r->n_sorted; i++)
        r->sorted_ns[i] = n_drawn ? chain_period(c, c->n_kept + i) : iterations_ns[i];
    sort_i64(r->sorted_ns, r->n_sorted);
    r->view.n_iterations = c->n_main;
    r->view.iterations_ns = iterations_ns;
    r->view.iteration_ns = chain_predicted_ns(c, iterations_ns);
}

/* In a pipeline a rank comes late as another stage does: only what it computes longer than the
 * other ranks of its stage is its own, and these wait for the longest. */
static void find_late_in_stage(const struct pipeline *pipeline, uint32_t stage, uint32_t n_ranks,
                               const struct dpro_rank_time *times, int64_t *of_stage,
                               struct dpro_lateness *late)
{
    uint32_t n = 0, last = 0;
    for (uint32_t k = 0; k < n_ranks; k++) {
        if (pipeline->stage_of[k] != stage)
            continue;
        late[k].late_ns = times[k].forward_ns + times[k].backward_ns + times[k].update_ns;
        last = n == 0 || late[k].late_ns > late[last].late_ns ? k : last;
        of_stage[n++] = late[k].late_ns;
    }
    int64_t middle = n > 0 ? select_i64(of_stage, n, (n - 1) / 2) : 0;
    for (uint32_t k = 0; k < n_ranks; k++)
        late[k].late_ns -= pipeline->stage_of[k] == stage ? middle : 0;
    if (n > 0)
        late[last].waited_ns = late[last].late_ns / n * (n - 1);
}

static void find_late_in_stages(const struct dpro_graph *g, const struct dpro_replay_view *v,
                                struct dpro_lateness *lateness)
{
    struct arena scratch = {0};
    struct pipeline pipeline;
    pipeline_find(g, &scratch, &pipeline);
    int64_t *of_stage = arena_array(&scratch, v->n_ranks + (size_t)1, sizeof *of_stage);
    bool any = pipeline.dimension != DPRO_NO_DIMENSION && pipeline.n_stages > 1;
    for (uint32_t i = 0; any && i < v->n_iterations; i++) {
        size_t at = (size_t)i * v->n_ranks;
        memset(lateness + at, 0, v->n_ranks * sizeof *lateness);
        for (uint32_t stage = 0; stage < pipeline.n_stages; stage++)
            find_late_in_stage(&pipeline, stage, v->n_ranks,
                               v->ranks_in ? v->ranks_in + at : v->ranks, of_stage, lateness + at);
    }
    arena_fini(&scratch);
}

static void fill_ranks(struct chain *c, struct dpro_replay *r)
{
    uint32_t n = c->g->n_ranks;
    int64_t *from = arena_array(&c->arena, (size_t)n + 1, sizeof *from);
    int64_t *to = arena_array(&c->arena, (size_t)n + 1, sizeof *to);
    struct dpro_rank_time *ranks = arena_array(&r->arena, (size_t)n + 1, sizeof *ranks);
    struct dpro_rank_time *ranks_in = NULL;
    for (uint32_t i = 0; i < n; i++) {
        bool single = c->g->single_iteration;
        from[i] = single ? c->first_ns : c->boundary_ns[(size_t)(c->n_warm_up - 1) * n + i];
        to[i] =
            single ? c->last_ns : c->boundary_ns[(size_t)(c->n_warm_up + c->n_main - 1) * n + i];
    }
    struct breakdown_span span = {c->copies,
                                  c->n_kept,
                                  from,
                                  to,
                                  c->n_main,
                                  c->n_warm_up,
                                  c->g->single_iteration ? NULL : c->boundary_ns};
    if ((size_t)c->n_main * n <= MOST_TIMES)
        ranks_in = arena_array(&r->arena, (size_t)c->n_main * n + 1, sizeof *ranks_in);
    struct dpro_lateness *lateness =
        arena_array(&r->arena, (size_t)c->n_main * n + 1, sizeof *lateness);
    struct dpro_dimension_time *dimensions =
        arena_array(&r->arena, ((size_t)n + 1) * (c->g->n_dimensions + 1), sizeof *dimensions);
    int64_t *waited_for_ns = NULL;
    if (n <= MOST_RANKS)
        waited_for_ns = arena_array(&r->arena, (size_t)n * n + 1, sizeof *waited_for_ns);
    breakdown_fill(c->g, &span, c->options->threads, ranks, dimensions, lateness, ranks_in,
                   waited_for_ns);
    r->view.ranks = ranks;
    r->view.waited_for_ns = waited_for_ns;
    r->view.ranks_in = ranks_in;
    find_late_in_stages(c->g, &r->view, lateness);
    r->view.lateness = lateness;
    r->view.dimensions = dimensions;
    r->view.n_dimensions = c->g->n_dimensions;
}

/* The rank that is waited for most in an iteration is late, unless that is next to nothing. */
static void find_late(struct dpro_replay *r)
{
    enum { LEAST_PCT = 1 };
    const struct dpro_replay_view *v = &r->view;
    r->late = arena_array(&r->arena, (size_t)v->n_iterations + 1, sizeof *r->late);
    r->ranks_late = arena_array(&r->arena, (size_t)v->n_ranks + 1, sizeof *r->ranks_late);
    r->view.ranks_late = r->ranks_late;
    for (uint32_t i = 0; i < v->n_iterations; i++) {
        const struct dpro_lateness *of = v->lateness + (size_t)i * v->n_ranks;
        uint32_t most = 0;
        for (uint32_t k = 1; k < v->n_ranks; k++)
            most = of[k].waited_ns > of[most].waited_ns ? k : most;
        bool counts = v->n_ranks > 0 && of[most].waited_ns / LEAST_PCT >= v->iteration_ns / 100;
        r->late[i] = counts && of[most].waited_ns > 0 ? most : NO_RANK;
        r->ranks_late[most].n += r->late[i] == most;
        for (uint32_t k = 0; k < v->n_ranks; k++)
            r->ranks_late[k].later_ns += of[k].late_ns;
    }
    for (uint32_t k = 0; k < v->n_ranks; k++)
        r->ranks_late[k].later_ns /= MAX((int64_t)v->n_iterations, 1);
}

/* A straggler comes late in most iterations, usually by 5 % of what one takes else or more, and by
 * more than chance explains, against the usual one of the other ranks. It is late in an iteration
 * if it is by half as much as the rank that is so most. Several may be, and take turns at being the
 * last, but not most of the ranks. */
static void find_stragglers(struct dpro_replay *r)
{
    enum { LEAST_PCT = 5, FEWEST = 3 }; /* of fewer, chance can't be told */
    const struct dpro_replay_view *v = &r->view;
    uint32_t n = v->n_iterations;
    SCRATCH double *later = mem_array(n + (size_t)1, sizeof *later);
    SCRATCH int64_t *late = mem_array(n + (size_t)1, sizeof *late);
    SCRATCH int64_t *others = mem_array(v->n_ranks + (size_t)1, sizeof *others);
    for (uint32_t i = 0; i < n; i++)
        late[i] = v->iterations_ns[i];
    int64_t usual_ns = stats_median_i64(late, n);
    for (uint32_t k = 0; k < v->n_ranks && v->n_ranks > 1 && n >= FEWEST; k++) {
        uint32_t n_late = 0;
        for (uint32_t i = 0; i < n; i++) {
            const struct dpro_lateness *of = v->lateness + (size_t)i * v->n_ranks;
            int64_t most = 0;
            uint32_t n_others = 0;
            for (uint32_t other = 0; other < v->n_ranks; other++) {
                most = MAX(most, of[other].late_ns);
                if (other != k)
                    others[n_others++] = of[other].late_ns;
            }
            n_late += r->late[i] != NO_RANK && of[k].late_ns > 0 && of[k].late_ns >= most / 2;
            late[i] = of[k].late_ns;
            later[i] = (double)(late[i] - stats_median_i64(others, n_others));
        }
        int64_t late_ns = stats_median_i64(late, n);
        bool straggles = n_late * 2 > n && late_ns >= (usual_ns - late_ns) / 100 * LEAST_PCT &&
                         stats_above_0(later, n);
        r->ranks_late[k].straggles = straggles;
        if (straggles)
            r->ranks_late[k].n = n_late;
    }
}

static void fill_shown(const struct chain *c, struct dpro_replay *r)
{
    uint32_t shown = chain_shown_copy(c), unused, n = c->g->n_ops;
    size_t room = ((size_t)n + 1) * sizeof(int64_t);
    const struct replay_copy *copy = &c->copies[shown];
    int64_t start =
        c->g->single_iteration ? c->first_ns : chain_latest_boundary(c, shown - 1, &unused);
    int64_t *start_ns = arena_alloc(&r->arena, room), *end_ns = arena_alloc(&r->arena, room);
    for (uint32_t op = 0; op < n; op++) {
        end_ns[op] = copy->end_ns[op] - start;
        start_ns[op] = end_ns[op] - copy->dur_ns[op];
    }
    r->view.start_ns = start_ns;
    r->view.end_ns = end_ns;
    if (n == 0)
        return;
    struct critical_span span = {c->copies, c->n_kept, shown, last_op(c, shown), start};
    if (copy->end_ns[span.op] <= start)
        return;
    r->view.critical_ns = copy->end_ns[span.op] - start;
    r->view.critical = critical_find(c->g, &span, &r->arena, &r->view.n_critical);
}

static struct dpro_replay *run_replay(const struct dpro_graph *graph,
                                      const struct dpro_replay_options *options)
{
    struct chain chain;
    struct dpro_replay_options mine;
    OPTIONS_MUST_TAKE(&mine, options);
    chain_init(&chain, graph, &mine, NULL);
    chain_run(&chain);
    struct dpro_replay *result = mem_array(1, sizeof *result);
    result->view.n_ops = graph->n_ops;
    result->view.n_ranks = graph->n_ranks;
    fill_iterations(&chain, result);
    fill_ranks(&chain, result);
    fill_shown(&chain, result);
    find_late(result);
    find_stragglers(result);
    result->view.memory =
        replay_memory(graph, result->view.start_ns, result->view.end_ns, &result->arena);
    chain_fini(&chain);
    return result;
}

int dpro_replay_run(const struct dpro_graph *graph, const struct dpro_replay_options *options,
                    struct dpro_replay **replay, struct dpro_error *err)
{
    return OUTCOME(err, *replay = run_replay(graph, options));
}

void dpro_replay_destroy(struct dpro_replay *replay)
{
    if (replay)
        arena_fini(&replay->arena);
    mem_free(replay);
}

const struct dpro_replay_view *dpro_replay_view(const struct dpro_replay *replay)
{
    return &replay->view;
}

int64_t dpro_replay_percentile_ns(const struct dpro_replay *replay, double fraction)
{
    return stats_quantile_i64(replay->sorted_ns, replay->n_sorted, fraction);
}
