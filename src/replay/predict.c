/* Iteration times only. Predictions that each leave out one measured iteration share the sums of
 * its ops' durations and the order in which the ops run. Where the order does not hold, the
 * event-driven engine makes the prediction. */

#include "base/options.h"
#include "replay/chain.h"

struct predictor {
    struct arena arena;
    const struct dpro_graph *g;
    struct chain_sums sums;
    struct fixed *order; /* NULL: there is none */
};

/* Whether each of the others in turn stands in for a left-out iteration, not their mean: unless
 * they are many, or the graph is large. */
static bool others_stand_in(const struct chain *c)
{
    enum { MOST_SAMPLES = 16, MOST_OPS = 8000000 };
    return c->options->skip_sample && c->n_samples <= MOST_SAMPLES &&
           (uint64_t)c->n_copies * c->n_samples * c->g->n_ops <= MOST_OPS;
}

/* States of a replay in the known order: before the left-out iteration, and after it; where several
 * stand in for it, with these side by side. */
struct ordered {
    struct fixed *before, *after;
    struct chain lanes[FIXED_LANES];
};

static bool begin_ordered(struct chain *c, const struct predictor *p, unsigned n_lanes,
                          struct ordered *o)
{
    uint32_t last = c->n_warm_up + c->n_main - 1;
    if (!p || !p->order)
        return false;
    o->before = o->after = fixed_share(p->order, 1);
    if (n_lanes > 1)
        o->after = fixed_share(p->order, n_lanes);
    fixed_release(o->before, c->release_ns);
    if (chain_run_exact(c, 1, o->before, 0, last))
        return false;
    for (unsigned l = 0; l < n_lanes; l++)
        chain_split(c, &o->lanes[l], &c->arena);
    return true;
}

static void end_ordered(struct ordered *o)
{
    if (o->after != o->before)
        fixed_destroy(o->after);
    if (o->before)
        fixed_destroy(o->before);
}

/* Returns the lanes that can't be replayed in order. */
static unsigned run_ordered(struct ordered *o, unsigned n_lanes)
{
    const struct chain *c = o->lanes;
    if (o->after != o->before)
        fixed_follow(o->after, o->before);
    return chain_run_exact(o->lanes, n_lanes, o->after, c->n_warm_up + c->n_main - 1, c->n_copies);
}

static int64_t predicted_ns(const struct chain *c, int64_t *iterations_ns)
{
    chain_periods(c, iterations_ns);
    return chain_predicted_ns(c, iterations_ns);
}

static int predict(const struct dpro_graph *graph, const struct dpro_replay_options *options,
                   const struct predictor *p, int64_t *iteration_ns, struct dpro_error *err)
{
    struct chain chain;
    struct ordered ordered = {.before = NULL};
    struct event *before = NULL;
    __int128 sum = 0;
    int rc = chain_init(&chain, graph, options, p ? &p->sums : NULL, err);
    if (rc < 0)
        return rc;
    int64_t *iterations_ns = arena_array(&chain.arena, chain.n_main, sizeof *iterations_ns);
    chain.only_time = true;
    bool stand_in = others_stand_in(&chain);
    uint32_t n = stand_in ? chain.n_samples : 1, n_lanes = stand_in ? FIXED_LANES : 1;
    bool by_order = begin_ordered(&chain, p, n_lanes, &ordered);
    for (uint32_t i = 0; i < n; i += n_lanes) {
        for (uint32_t l = 0; by_order && stand_in && l < n_lanes; l++)
            ordered.lanes[l].stand_in = chain.samples[MIN(i + l, n - 1)];
        unsigned failed = by_order ? run_ordered(&ordered, n_lanes) : UINT_MAX;
        for (uint32_t l = 0; l < n_lanes && i + l < n; l++) {
            if (failed >> l & 1) {
                chain.stand_in = stand_in ? chain.samples[i + l] : chain.stand_in;
                stand_in ? chain_run_on(&chain, &before) : chain_run(&chain);
            }
            sum += predicted_ns(failed >> l & 1 ? &chain : &ordered.lanes[l], iterations_ns);
        }
    }
    *iteration_ns = (int64_t)(sum / n);
    end_ordered(&ordered);
    if (before)
        event_destroy(before);
    chain_fini(&chain);
    return 0;
}

int dpro_replay_predict(const struct dpro_graph *graph, const struct dpro_replay_options *options,
                        int64_t *iteration_ns, struct dpro_error *err)
{
    struct dpro_replay_options mine;
    int rc = OPTIONS_TAKE(&mine, options, err);
    return rc < 0 ? rc
                  : WITHIN_SCOPE(dpro_error_nomem(err),
                                 predict(graph, &mine, NULL, iteration_ns, err));
}

/* The order that the event-driven engine gives to the mean iteration. */
static void find_order(struct predictor *p)
{
    const struct dpro_graph *g = p->g;
    if (g->n_ops == 0 || !chain_may_have_order(g))
        return;
    uint32_t *order = arena_alloc(&p->arena, ((size_t)g->n_ops + 1) * sizeof *order);
    if (!fixed_find_order(g, order))
        return;
    p->order = fixed_create(g, order);
    fixed_index(p->order);
}

int predictor_create(const struct dpro_graph *graph, struct predictor **predictor,
                     struct dpro_error *err)
{
    int rc = chain_check_times(graph, err);
    if (rc < 0)
        return rc;
    struct predictor *p = mem_array(1, sizeof *p);
    p->g = graph;
    chain_sums_make(&p->sums, graph, &p->arena);
    find_order(p);
    *predictor = p;
    return 0;
}

void predictor_destroy(struct predictor *p)
{
    if (p->order)
        fixed_destroy(p->order);
    arena_fini(&p->arena);
    mem_free(p);
}

int predictor_without(const struct predictor *p, uint32_t sample, int64_t *iteration_ns,
                      struct dpro_error *err)
{
    /* the job as it was: no delays; quietly, as there are many */
    struct dpro_replay_options leave_out = {.skip_sample = sample + 1};
    return predict(p->g, &leave_out, p, iteration_ns, err);
}
