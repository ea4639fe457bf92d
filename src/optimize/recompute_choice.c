/* Chooses the modules to recompute, from problem to result. */
#include "optimize/recompute_choice.h"

int64_t recompute_time(const struct recompute_problem *p, const bool *chosen)
{
    int64_t ns = 0;
    for (uint32_t m = 0; m < p->n_modules; m++)
        ns += chosen[m] ? p->time_ns[m] : 0;
    return ns;
}

/* What the modules that were chosen take away at a place. */
static int64_t taken_away(const int64_t *less, uint32_t n_modules, const bool *chosen)
{
    int64_t bytes = 0;
    for (uint32_t m = 0; m < n_modules; m++)
        bytes += chosen[m] ? less[m] : 0;
    return bytes;
}

static const int64_t *less_at(const struct recompute_problem *p, uint32_t place)
{
    return p->less + (size_t)place * p->n_modules;
}

int64_t recompute_peak(const struct recompute_problem *p, const bool *chosen)
{
    int64_t peak = 0;
    for (uint32_t i = 0; i < p->n_places; i++)
        peak = MAX(peak, p->alive[i] - taken_away(less_at(p, i), p->n_modules, chosen));
    return peak;
}

/* Whether the choice saves enough in all rows. */
static bool suffices_in(const struct recompute_rows *rows, const bool *chosen)
{
    for (uint32_t i = 0; i < rows->n; i++)
        if (taken_away(rows->less[i], rows->n_modules, chosen) < rows->need[i])
            return false;
    return true;
}

static uint64_t hash_of(const int64_t *less, uint32_t n)
{
    uint64_t hash = n;
    for (uint32_t m = 0; m < n; m++)
        hash = map_mix(hash ^ (uint64_t)less[m]) + m;
    return hash | 1;
}

/* Whether any choice makes the place need more than is taken away. */
static bool choice_matters(const struct recompute_problem *p, uint32_t place, int64_t need)
{
    const int64_t *less = less_at(p, place);
    for (uint32_t m = 0; m < p->n_modules; m++)
        need += less[m] < 0 ? -less[m] : 0;
    return need > 0;
}

/* Of places that are alike the neediest stands for all. */
static void rows_init(const struct recompute_problem *p, int64_t budget,
                      struct recompute_rows *rows)
{
    SCRATCH struct map seen = {0};
    *rows = (struct recompute_rows){.n_modules = p->n_modules, .time_ns = p->time_ns};
    rows->less = arena_array(&rows->arena, p->n_places, sizeof *rows->less);
    rows->need = arena_array(&rows->arena, p->n_places, sizeof *rows->need);
    for (uint32_t i = 0; i < p->n_places; i++) {
        const int64_t *less = less_at(p, i);
        int64_t need = p->alive[i] - budget;
        uint64_t hash = hash_of(less, p->n_modules), at;
        if (!choice_matters(p, i, need))
            continue;
        if (map_get(&seen, hash, &at) &&
            memcmp(rows->less[at], less, p->n_modules * sizeof *less) == 0) {
            rows->need[at] = MAX(rows->need[at], need);
            continue;
        }
        map_set(&seen, hash, rows->n);
        rows->less[rows->n] = less;
        rows->need[rows->n++] = need;
    }
}

/* False where nothing was found that fits. */
static bool choice_solve(const struct recompute_problem *p, int64_t budget, bool *chosen,
                         struct recompute_result *result)
{
    struct recompute_rows rows;
    uint32_t n = p->n_modules;
    SCRATCH bool *chain = mem_array(n + (size_t)1, sizeof *chain);
    bool chain_suffices, is_exact = false;
    rows_init(p, budget, &rows);
    memset(chosen, 0, n * sizeof *chosen);
    bool suffices = suffices_in(&rows, chosen);
    if (suffices) {
        is_exact = true;
    } else {
        suffices = recompute_exchange(&rows, chosen);
        int64_t known_ns = suffices ? recompute_time(p, chosen) : INT64_MAX;
        result->is_chain = recompute_chain(&rows, known_ns, chain, &chain_suffices, &is_exact);
        if (chain_suffices)
            memcpy(chosen, chain, n * sizeof *chosen);
        suffices |= chain_suffices;
        if (!is_exact)
            is_exact = recompute_branch(&rows, chosen, &suffices);
    }
    result->is_exact = is_exact;
    arena_fini(&rows.arena);
    return suffices;
}

struct recompute_result recompute_choose(const struct recompute_problem *p, int64_t budget,
                                         bool *chosen)
{
    struct recompute_result result = {0};
    result.fits = choice_solve(p, budget, chosen, &result);
    result.time_ns = recompute_time(p, chosen);
    result.peak_bytes = recompute_peak(p, chosen);
    return result;
}
