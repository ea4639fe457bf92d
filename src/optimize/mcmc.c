/* A random walk over the passes' candidates, as in the paper's first implementation. An edit is
 * drawn by how much recent edits of its bucket have won. It is kept if it helps, else with a
 * probability that falls with its cost and with the number of steps. */
#include <math.h>

#include "base/sort.h"
#include "optimize/search.h"

enum { STEPS_A_ROUND = 100, MEMORY = 5 };
#define BETA 10.0 /* a millisecond */

/* What the last edits of a bucket, known by its first tensor, or of an op have won. */
struct heat {
    double won_ms[MEMORY];
    uint32_t step[MEMORY];
    uint32_t n;
};

static double weight_of(const struct heat *heat, uint32_t step)
{
    uint32_t n = heat->n < MEMORY ? heat->n : MEMORY;
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += (exp(fmin(heat->won_ms[i], 50)) - 1) / (step + 1 - heat->step[i]);
    double weight = n ? 1 + sum / n : 1;
    return weight > 0.01 ? weight : 0.01;
}

/* Of a candidate: that of its first edit. */
static struct heat *heat_of(const struct space *space, struct heat *heats,
                            const struct dpro_strategy *strategy, const struct candidate *c)
{
    const struct dpro_edit *edit = &space->candidates.edits.at[c->first];
    if (edit_is_of_modules(edit))
        return &heats[space->model->n_tensors]; /* as the first op's */
    if (edit_is_of_ops(edit))
        return &heats[space->model->n_tensors + edit->at];
    return &heats[strategy->order[strategy->buckets[edit->at].first]];
}

static const struct candidate *draw(struct space *space, const struct dpro_strategy *strategy,
                                    struct heat *heats, uint32_t step)
{
    const struct candidate *all = space->candidates.list.at;
    size_t n = space->candidates.list.n;
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += weight_of(heat_of(space, heats, strategy, &all[i]), step);
    double left = search_uniform(space->search) * sum;
    for (size_t i = 0; i < n; i++) {
        left -= weight_of(heat_of(space, heats, strategy, &all[i]), step);
        if (left < 0)
            return &all[i];
    }
    return n ? &all[n - 1] : NULL;
}

/* One step from a strategy that takes *ns; there is room for the next one. */
static bool walk(struct space *space, struct dpro_strategy *strategy, struct dpro_strategy *next,
                 struct heat *heats, uint32_t step, int64_t *ns)
{
    space_collect(space, strategy);
    const struct candidate *c = draw(space, strategy, heats, step);
    if (!c)
        return false;
    const struct dpro_edit *edits = space->candidates.edits.at + c->first;
    struct heat *heat = heat_of(space, heats, strategy, c);
    if (edits_apply(space->model, strategy, edits, c->n, next))
        return true;
    int64_t next_ns = space_evaluate(space, next);
    double won_ms = (double)(*ns - next_ns) * 1e-6;
    heat->won_ms[heat->n % MEMORY] = won_ms;
    heat->step[heat->n++ % MEMORY] = step;
    double keeps = exp(fmin(BETA * log(step + 1.0) * won_ms, 0));
    if (won_ms > 0 || search_uniform(space->search) < keeps) {
        *ns = next_ns;
        space_copy(space, next, strategy);
    }
    return true;
}

void search_mcmc(struct space *space)
{
    struct dpro_strategy strategy = space_copy_of(space, &space->best);
    struct dpro_strategy next = space_strategy(space);
    struct convergence convergence = {0};
    size_t n_heats = space->model->n_tensors + (size_t)1, n_ops = 0;
    for (uint32_t p = 0; p < space->model->n_programs; p++)
        n_ops = MAX(n_ops, space->model->programs[p].n_ops);
    struct heat *heats = arena_array(&space->arena, n_heats + n_ops, sizeof *heats);
    int64_t ns = space->best_ns;
    bool goes_on = ns != INT64_MAX;
    for (uint32_t step = 0; goes_on && !search_stops(space->search); step++) {
        goes_on = walk(space, &strategy, &next, heats, step, &ns);
        if (step % STEPS_A_ROUND != STEPS_A_ROUND - 1)
            continue;
        space->search->n_rounds++;
        if (has_converged(&convergence, space->best_ns))
            break;
    }
}
