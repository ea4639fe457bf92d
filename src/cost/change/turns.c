/* Corrects what the model says of a plan by what turns measured. */
#include "cost/change/turns.h"

#include "cost/change/families.h"

#define OF_KINDS 0.5 /* of a plan's error, what plans of the same kinds share */

void turns_destroy(struct turns *turns)
{
    if (!turns)
        return;
    arena_fini(&turns->arena);
    FREE_ALL(&turns->of, &turns);
}

static double turns_alike(const struct dpro_model *m, const struct dpro_strategy *x,
                          const struct dpro_strategy *y)
{
    unsigned of_x = families_of(m, &m->baseline, x), of_y = families_of(m, &m->baseline, y);
    double share = (double)__builtin_popcount(of_x & of_y) / __builtin_popcount(of_x | of_y);
    return families_of(m, x, y) == 0 ? 1 : OF_KINDS * share;
}

struct correction turns_correct(const struct dpro_model *m, const struct dpro_strategy *strategy,
                                double doubt)
{
    struct correction c = {.ratio = 1, .left = 1};
    uint32_t n = m->turns ? (uint32_t)m->turns->of.n : 0;
    double rows[TURNS_MOST][TURNS_MOST + 2]; /* of all measured ones; of this one; their errors */
    double log = 0, known = 0;
    if (families_of(m, &m->baseline, strategy) == 0)
        return c;
    for (uint32_t i = 0; i < n; i++) {
        const struct measured_turn *turn = &m->turns->of.at[i];
        for (uint32_t k = 0; k < n; k++)
            rows[i][k] = turns_alike(m, &turn->strategy, &m->turns->of.at[k].strategy);
        rows[i][i] += turn->noise * turn->noise + 1e-9;
        rows[i][n] = turns_alike(m, &turn->strategy, strategy);
        rows[i][n + 1] = turn->error;
        c.is_known |= rows[i][n] == 1;
    }
    for (uint32_t i = 0; i < n; i++) { /* by elimination */
        log += rows[i][n] * rows[i][n + 1] / rows[i][i];
        known += rows[i][n] * rows[i][n] / rows[i][i];
        for (uint32_t k = i + 1; k < n; k++)
            for (uint32_t j = n + 2; j-- > i;)
                rows[k][j] -= rows[k][i] / rows[i][i] * rows[i][j];
    }
    c.ratio = exp(doubt * log);
    c.left = sqrt(fmax(0, 1 - known));
    return c;
}
