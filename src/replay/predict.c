/* Iteration times only. */

#include "base/options.h"
#include "replay/chain.h"

/* Whether each of the others in turn stands in for a left-out iteration, not their mean: unless
 * they are many, or the graph is large. */
static bool others_stand_in(const struct chain *c)
{
    enum { MOST_SAMPLES = 16, MOST_OPS = 2000000 };
    return c->options->skip_sample && c->n_samples <= MOST_SAMPLES &&
           (uint64_t)c->n_copies * c->n_samples * c->g->n_ops <= MOST_OPS;
}

int replay_predict(const struct dpro_graph *graph, const struct dpro_replay_options *options,
                   const struct chain_sums *sums, int64_t *iteration_ns, struct dpro_error *err)
{
    struct chain chain;
    __int128 sum = 0;
    int rc = chain_init(&chain, graph, options, sums, err);
    if (rc < 0)
        return rc;
    int64_t *iterations_ns = arena_array(&chain.arena, chain.n_main, sizeof *iterations_ns);
    chain.only_time = true;
    bool stand_in = others_stand_in(&chain);
    uint32_t n = stand_in ? chain.n_samples : 1;
    for (uint32_t i = 0; i < n; i++) {
        if (stand_in)
            chain.stand_in = chain.samples[i];
        chain_run(&chain);
        chain_periods(&chain, iterations_ns);
        sum += chain_predicted_ns(&chain, iterations_ns);
    }
    *iteration_ns = (int64_t)(sum / n);
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
                                 replay_predict(graph, &mine, NULL, iteration_ns, err));
}
