/* Searches the modules to recompute that fit a budget in the least time.
 *
 * Of a few modules each set is asked for. Of many, those that free most for their time are added
 * until the set fits; then what is not needed is taken out, and one is exchanged for another as
 * long as that helps. */
#include "optimize/memory_search.h"

#include "cost/memory/strategy_memory.h"
#include "cost/program/model_memory.h"
#include "cost/program/modules.h"

enum { MOST_ROUNDS = 8, MOST_PAIRED = 48 };

static bool *sets_at(const struct module_sets *s, uint32_t i)
{
    return &s->in[s->modules[i]];
}

static bool sets_fits(const struct module_sets *s)
{
    return s->peak_bytes(s->arg) <= s->limit_bytes;
}

/* Takes out what a peak of most_bytes does not need, one after the other in this order; NULL: from
 * the last one to the first. */
static void sets_drop_needless(const struct module_sets *s, const uint32_t *order,
                               uint64_t most_bytes)
{
    for (uint32_t i = 0; i < s->n; i++) {
        bool *in = sets_at(s, order ? order[i] : s->n - 1 - i);
        if (!*in)
            continue;
        *in = false;
        *in = s->peak_bytes(s->arg) > most_bytes;
    }
}

static void sets_put(const struct module_sets *s, uint32_t set)
{
    for (uint32_t i = 0; i < s->n; i++)
        *sets_at(s, i) = set >> i & 1;
}

/* Leaves the last set that was better than all before it, or the one at hand where none is. */
static void try_each(const struct module_sets *s, int64_t best,
                     bool (*is_better)(const struct module_sets *s, int64_t *best))
{
    uint32_t chosen = 0;
    for (uint32_t i = 0; i < s->n; i++)
        chosen |= (uint32_t)*sets_at(s, i) << i;
    for (uint32_t set = 0; set < 1u << s->n; set++) {
        sets_put(s, set);
        if (is_better(s, &best))
            chosen = set;
    }
    sets_put(s, chosen);
}

static bool is_faster(const struct module_sets *s, int64_t *best)
{
    int64_t ns = s->time_ns(s->arg);
    if (ns >= *best || !sets_fits(s))
        return false;
    *best = ns;
    return true;
}

static bool is_lower(const struct module_sets *s, int64_t *best)
{
    int64_t bytes = (int64_t)s->peak_bytes(s->arg);
    if (bytes >= *best)
        return false;
    *best = bytes;
    return true;
}

/* Takes the exchange of a module for another one that wins most, as the whole job goes: ranks
 * differ, and what computes longer may hide more communication. */
static bool module_exchange(const struct module_sets *s, int64_t *best_ns)
{
    uint32_t out = UINT32_MAX, in = UINT32_MAX;
    for (uint32_t i = 0; i < s->n; i++)
        for (uint32_t k = 0; k < s->n && *sets_at(s, i); k++) {
            if (*sets_at(s, k))
                continue;
            *sets_at(s, i) = false;
            *sets_at(s, k) = true;
            if (is_faster(s, best_ns)) {
                out = i;
                in = k;
            }
            *sets_at(s, k) = false;
            *sets_at(s, i) = true;
        }
    if (out == UINT32_MAX)
        return false;
    *sets_at(s, out) = false;
    *sets_at(s, in) = true;
    return true;
}

ORDER_OF_INDICES(most_worth_first, double, COMPARE(*y, *x));
ORDER_OF_INDICES(longest_first, int64_t, COMPARE(*y, *x));

/* Without what a set that fits does not need, and exchanged as long as that helps. Returns its
 * time. */
static int64_t sets_descend(const struct module_sets *s, const uint32_t *longest)
{
    int64_t best_ns = INT64_MAX;
    for (int round = 0; round < MOST_ROUNDS; round++) {
        sets_drop_needless(s, longest, s->limit_bytes);
        best_ns = s->time_ns(s->arg);
        if (s->n > s->many || !module_exchange(s, &best_ns))
            break;
    }
    return best_ns;
}

bool sets_fit(const struct module_sets *s)
{
    SCRATCH double *worth = mem_array(s->n + (size_t)1, sizeof *worth);
    SCRATCH int64_t *time_ns = mem_array(s->n + (size_t)1, sizeof *time_ns);
    SCRATCH bool *found = mem_array(s->model->n_modules + (size_t)1, sizeof *found);
    for (uint32_t i = 0; i < s->n; i++) {
        const struct model_module *module = &s->model->modules[s->modules[i]];
        time_ns[i] = module->recompute_ns;
        worth[i] = (double)module->kept_bytes / (double)(time_ns[i] + 1);
    }
    SCRATCH uint32_t *most_worth = sorted_indices(s->n, worth, most_worth_first);
    SCRATCH uint32_t *longest = sorted_indices(s->n, time_ns, longest_first);
    uint32_t n_in = 0;
    uint64_t peak = s->peak_bytes(s->arg);
    for (; peak > s->limit_bytes && n_in < s->n; peak = s->peak_bytes(s->arg))
        *sets_at(s, most_worth[n_in++]) = true;
    if (peak > s->limit_bytes) {
        if (s->n <= s->many)
            sets_drop_needless(s, longest, peak);
        return false;
    }
    int64_t ns = sets_descend(s, longest);
    memcpy(found, s->in, s->model->n_modules * sizeof *found);
    if (s->n <= s->few) {
        try_each(s, ns, is_faster);
        return true;
    }
    for (uint32_t i = 0; i < s->n; i++)
        *sets_at(s, i) = true;
    if (s->n > s->many || !sets_fits(s) || sets_descend(s, longest) >= ns)
        memcpy(s->in, found, s->model->n_modules * sizeof *found);
    return true;
}

/* Whether the peak is lower where these two (or this one) are put in, or taken out where they are.
 */
static bool sets_turn(const struct module_sets *s, uint32_t i, uint32_t k, uint64_t *least)
{
    for (int turn = 0; turn < 2; turn++) {
        *sets_at(s, i) ^= true;
        if (k != i)
            *sets_at(s, k) ^= true;
        uint64_t peak = turn == 0 ? s->peak_bytes(s->arg) : UINT64_MAX;
        if (peak < *least) {
            *least = peak;
            return true;
        }
    }
    return false;
}

void sets_lowest(const struct module_sets *s)
{
    if (s->n <= s->few)
        try_each(s, INT64_MAX, is_lower);
    else
        for (uint32_t i = 0; i < s->n; i++) /* of those within each other the outermost count */
            *sets_at(s, i) = true;
    uint64_t least = s->peak_bytes(s->arg);
    bool better = s->n > s->few;
    for (int round = 0; better && round < MOST_ROUNDS; round++) {
        better = false;
        for (uint32_t i = 0; i < s->n; i++)
            for (uint32_t k = s->n <= MOST_PAIRED ? 0 : i; k <= i; k++)
                better |= sets_turn(s, i, k, &least);
    }
    /* what lies within others, or brings the peak down no further; inner ones first */
    sets_drop_needless(s, NULL, least);
}

/* ---- which modules may be in a set ---- */

/* Whether a module lies within one that is marked, or one that is within it. */
static bool sets_touch(const struct dpro_model *m, const bool *marked, uint32_t module)
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

uint32_t sets_candidates(const struct dpro_model *m, bool inner, uint32_t *modules)
{
    SCRATCH bool *marked = mem_array(m->n_modules + (size_t)1, sizeof *marked);
    SCRATCH struct started *started = mem_array(m->n_modules + (size_t)1, sizeof *started);
    uint32_t n = 0;
    memory_repeated(m, marked);
    for (uint32_t i = 0; i < m->n_modules; i++)
        if (m->modules[i].name[0] != '\0' && m->modules[i].kept_bytes > 0 &&
            !sets_touch(m, marked, i))
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
