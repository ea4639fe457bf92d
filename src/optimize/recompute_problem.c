/* Translates a model's memory into the knapsack of what to recompute, and back.
 *
 * The problem has a row for each place of an iteration above the budget, and for each place at
 * which a module is recomputed. What a module saves there is what recomputing it alone does. That
 * is exact unless modules share what they keep. Then rows get what the choice lacked, and it is
 * made again. */

#include "cost/memory/strategy_memory.h"
#include "cost/program/model_memory.h"
#include "cost/program/modules.h"
#include "optimize/memory_search.h"
#include "optimize/module_sets.h"
#include "optimize/recompute_choice.h"

enum { MOST_MEMORIES = 4, MOST_ROUNDS = 4 };

/* ---- modules ---- */

/* Whether a module lies within one that is marked, or one that is within it. */
static bool problem_touches(const struct dpro_model *m, const bool *marked, uint32_t module)
{
    for (uint32_t i = 0; i < m->n_modules; i++)
        if (marked[i] && (module_lies_in(m, module, i) || module_lies_in(m, i, module)))
            return true;
    return false;
}

/* What lies within the marked modules, in their place, where there is anything to win. */
static void go_inside(const struct dpro_model *m, bool *marked)
{
    SCRATCH bool *inner = mem_array(m->n_modules + (size_t)1, sizeof *inner);
    for (uint32_t i = 0; i < m->n_modules; i++) {
        bool has_inner = false;
        for (uint32_t k = 0; k < m->n_modules && marked[i]; k++)
            if (m->modules[k].parent == i && m->modules[k].kept_bytes > 0)
                has_inner = inner[k] = true;
        inner[i] |= marked[i] && !has_inner;
    }
    memcpy(marked, inner, m->n_modules * sizeof *marked);
}

/* By where it first runs. */
struct started {
    uint32_t first, module;
};
ORDER(by_start, struct started, ASCENDING(first) ?: ASCENDING(module));

static uint32_t first_place(const struct dpro_model *m, uint32_t module)
{
    EACH_OF (const struct model_memory, memory, m->memories, m->n_memories)
        for (uint32_t c = 0; c < memory->n_calls; c++)
            if (memory->calls[c].module == module)
                return memory->calls[c].first;
    return UINT32_MAX;
}

uint32_t recompute_candidates(const struct dpro_model *m, bool inner, uint32_t *modules)
{
    SCRATCH bool *marked = mem_array(m->n_modules + (size_t)1, sizeof *marked);
    SCRATCH struct started *started = mem_array(m->n_modules + (size_t)1, sizeof *started);
    uint32_t n = 0;
    memory_repeated(m, marked);
    for (uint32_t i = 0; i < m->n_modules; i++)
        if (m->modules[i].name[0] != '\0' && m->modules[i].kept_bytes > 0 &&
            !problem_touches(m, marked, i))
            marked[i] = true;
    if (inner)
        go_inside(m, marked);
    for (uint32_t i = 0; i < m->n_modules; i++)
        if (marked[i])
            started[n++] = (struct started){first_place(m, i), i};
    qsort(started, n, sizeof *started, by_start);
    for (uint32_t i = 0; i < n; i++)
        modules[i] = started[i].module;
    return n;
}

/* ---- the problem ---- */

struct posing {
    struct arena arena;
    const struct dpro_model *model;
    const uint32_t *modules;
    uint32_t n;
    uint64_t budget_bytes;
    struct dpro_strategy *strategy;
    uint32_t n_memories, ranks[MOST_MEMORIES];
    uint32_t *first; /* [memory] its first place, counted over all memories */
    uint32_t n_places;
    uint32_t *rows;  /* [n_rows] places that are rows */
    uint64_t *peaks; /* [n_places], scratch */
    int64_t *time_ns, *alive, *less;
    uint32_t n_rows;
};

/* What is alive at all places. */
static void problem_look(struct posing *p)
{
    for (uint32_t i = 0; i < p->n_memories; i++) {
        uint32_t n = p->first[i + 1] - p->first[i];
        uint32_t *places = mem_alloc((n + (size_t)1) * sizeof *places);
        for (uint32_t k = 0; k <= n; k++)
            places[k] = k;
        memory_peaks(p->model, p->strategy, p->ranks[i], places, n, p->peaks + p->first[i]);
        mem_free(places);
    }
}

static void problem_set(struct posing *p, const bool *chosen)
{
    memset(p->strategy->recomputed, 0, p->model->n_modules * sizeof *p->strategy->recomputed);
    for (uint32_t i = 0; i < p->n; i++)
        p->strategy->recomputed[p->modules[i]] = chosen && chosen[i];
}

/* The ranks that hold most stand for all. */
static void find_memories(struct posing *p)
{
    const struct dpro_model *m = p->model;
    for (uint32_t r = 0; r < m->n_ranks && p->n_memories < MOST_MEMORIES; r++) {
        bool seen = false;
        for (uint32_t i = 0; i < p->n_memories; i++)
            seen |= m->ranks[p->ranks[i]].memory == m->ranks[r].memory;
        if (!seen)
            p->ranks[p->n_memories++] = r;
    }
    p->first = arena_array(&p->arena, MOST_MEMORIES + 1, sizeof *p->first);
    for (uint32_t i = 0; i < p->n_memories; i++)
        p->first[i + 1] = p->first[i] + m->memories[m->ranks[p->ranks[i]].memory].n_moments + 1;
    p->n_places = p->first[p->n_memories];
}

/* Marks where candidates are computed again. */
static void mark_again(const struct posing *p, bool *is_row)
{
    for (uint32_t i = 0; i < p->n_memories; i++) {
        const struct model_memory *m = &p->model->memories[p->model->ranks[p->ranks[i]].memory];
        for (uint32_t c = 0; c < m->n_calls; c++)
            if (m->calls[c].again < m->n_moments)
                is_row[p->first[i] + m->calls[c].again] = true;
    }
}

static void problem_pose(struct posing *p)
{
    struct arena *a = &p->arena;
    find_memories(p);
    bool *chosen = arena_array(a, p->n + (size_t)1, sizeof *chosen);
    bool *is_row = arena_array(a, p->n_places + (size_t)1, sizeof *is_row);
    p->peaks = arena_array(a, p->n_places, sizeof *p->peaks);
    p->rows = arena_array(a, p->n_places, sizeof *p->rows);
    mark_again(p, is_row);
    problem_set(p, NULL);
    problem_look(p);
    for (uint32_t i = 0; i < p->n_places; i++)
        if (is_row[i] || p->peaks[i] > p->budget_bytes)
            p->rows[p->n_rows++] = i;
    p->time_ns = arena_array(a, p->n + (size_t)1, sizeof *p->time_ns);
    p->alive = arena_array(a, p->n_rows, sizeof *p->alive);
    p->less = arena_array(a, (size_t)p->n_rows * p->n + 1, sizeof *p->less);
    for (uint32_t i = 0; i < p->n_rows; i++)
        p->alive[i] = (int64_t)p->peaks[p->rows[i]];
    for (uint32_t k = 0; k < p->n; k++) {
        p->time_ns[k] = p->model->modules[p->modules[k]].recompute_ns;
        chosen[k] = true;
        problem_set(p, chosen);
        chosen[k] = false;
        problem_look(p);
        for (uint32_t i = 0; i < p->n_rows; i++)
            p->less[(size_t)i * p->n + k] = p->alive[i] - (int64_t)p->peaks[p->rows[i]];
    }
}

/* ---- what came of it ---- */

static uint64_t peak_of(void *arg)
{
    const struct posing *p = arg;
    return memory_peak_bytes(p->model, p->strategy);
}

/* Adds to rows what the choice lacked there; whether there was anything. */
static bool problem_learn(struct posing *p, const bool *chosen)
{
    bool any = false;
    problem_look(p);
    for (uint32_t i = 0; i < p->n_rows; i++) {
        int64_t said = p->alive[i], is = (int64_t)p->peaks[p->rows[i]];
        for (uint32_t k = 0; k < p->n; k++)
            said -= chosen[k] ? p->less[(size_t)i * p->n + k] : 0;
        if (is > said && is > (int64_t)p->budget_bytes) {
            p->alive[i] += is - said;
            any = true;
        }
    }
    return any;
}

ORDER_OF_INDICES(longest_first, int64_t, COMPARE(*y, *x));

bool recompute_fit(const struct dpro_model *model, const uint32_t *modules, uint32_t n,
                   uint64_t budget_bytes, struct dpro_strategy *strategy, bool *is_exact)
{
    struct posing p = {.model = model,
                       .modules = modules,
                       .n = n,
                       .budget_bytes = budget_bytes,
                       .strategy = strategy};
    problem_pose(&p);
    bool *chosen = arena_array(&p.arena, n + (size_t)1, sizeof *chosen);
    struct recompute_problem problem = {n, p.n_rows, p.time_ns, p.alive, p.less};
    struct recompute_result r;
    uint64_t peak = 0, first = 0;
    for (int round = 0; round < MOST_ROUNDS; round++) {
        r = recompute_choose(&problem, (int64_t)budget_bytes, chosen);
        problem_set(&p, chosen);
        peak = peak_of(&p);
        first = round == 0 ? peak : first;
        if (peak <= budget_bytes || !r.fits || !problem_learn(&p, chosen))
            break;
    }
    *is_exact = r.is_exact && r.fits && first <= budget_bytes;
    struct module_sets sets = {.in = strategy->recomputed,
                               .modules = modules,
                               .n = n,
                               .limit_bytes = budget_bytes,
                               .peak_bytes = peak_of,
                               .arg = &p};
    peak = sets_add(&sets, p.time_ns);
    *is_exact &= peak <= budget_bytes;
    SCRATCH uint32_t *by_time = sorted_indices(n, p.time_ns, longest_first);
    sets_drop_needless(&sets, by_time, MAX(peak, budget_bytes));
    arena_fini(&p.arena);
    return peak <= budget_bytes;
}
