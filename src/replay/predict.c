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

/* States of a replay in the known order: before the left-out iteration, and after it, of each that
 * stands in for it anew. */
struct ordered {
    struct fixed *before, *after;
};

static bool begin_ordered(struct chain *c, const struct predictor *p, bool stand_in,
                          struct ordered *o)
{
    if (!p || !p->order)
        return false;
    o->before = o->after = fixed_share(p->order);
    if (stand_in)
        o->after = fixed_share(p->order);
    fixed_release(o->before, c->release_ns);
    return chain_run_exact(c, o->before, 0, c->n_warm_up + c->n_main - 1);
}

/* False: it can't be replayed in order. */
static bool run_ordered(struct chain *c, struct ordered *o)
{
    if (o->after != o->before)
        fixed_follow(o->after, o->before);
    return chain_run_exact(c, o->after, c->n_warm_up + c->n_main - 1, c->n_copies);
}

static void end_ordered(struct ordered *o)
{
    if (o->after != o->before)
        fixed_destroy(o->after);
    if (o->before)
        fixed_destroy(o->before);
}

static int predict_predict(const struct dpro_graph *graph,
                           const struct dpro_replay_options *options, const struct predictor *p,
                           int64_t *iteration_ns, struct dpro_error *err)
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
    uint32_t n = stand_in ? chain.n_samples : 1;
    bool by_order = begin_ordered(&chain, p, stand_in, &ordered);
    for (uint32_t i = 0; i < n; i++) {
        if (stand_in)
            chain.stand_in = chain.samples[i];
        if (!by_order || !run_ordered(&chain, &ordered))
            stand_in ? chain_run_on(&chain, &before) : chain_run(&chain);
        chain_periods(&chain, iterations_ns);
        sum += chain_predicted_ns(&chain, iterations_ns);
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
                                 predict_predict(graph, &mine, NULL, iteration_ns, err));
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
    return predict_predict(p->g, &leave_out, p, iteration_ns, err);
}
