/* Of a few modules each set is asked for. Of many, single ones are added, taken out and exchanged
 * as long as that helps. */
#include "optimize/module_sets.h"

enum { MOST_ADDED = 64, MOST_EXCHANGED = 128, MOST_ROUNDS = 8 };

static bool *sets_at(const struct module_sets *s, uint32_t i)
{
    return &s->in[s->modules[i]];
}

static bool sets_fits(const struct module_sets *s)
{
    return s->peak_bytes(s->arg) <= s->limit_bytes;
}

uint64_t sets_add(const struct module_sets *s, const int64_t *time_ns)
{
    uint64_t peak = s->peak_bytes(s->arg);
    for (int step = 0; step < MOST_ADDED && peak > s->limit_bytes; step++) {
        double most = 0;
        uint32_t best = UINT32_MAX;
        for (uint32_t i = 0; i < s->n; i++) {
            if (*sets_at(s, i))
                continue;
            *sets_at(s, i) = true;
            double worth =
                ((double)peak - (double)s->peak_bytes(s->arg)) / (double)(time_ns[i] + 1);
            *sets_at(s, i) = false;
            if (worth > most) {
                most = worth;
                best = i;
            }
        }
        if (best == UINT32_MAX)
            break;
        *sets_at(s, best) = true;
        peak = s->peak_bytes(s->arg);
    }
    return peak;
}

void sets_drop_needless(const struct module_sets *s, const uint32_t *order, uint64_t most_bytes)
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

void sets_exchange(const struct module_sets *s)
{
    int64_t best_ns = s->time_ns(s->arg);
    if (s->n <= s->few) {
        try_each(s, best_ns, is_faster);
        return;
    }
    for (int round = 0; s->n <= MOST_EXCHANGED && round < MOST_ROUNDS; round++)
        if (!module_exchange(s, &best_ns))
            break;
}

void sets_lowest(const struct module_sets *s)
{
    try_each(s, INT64_MAX, is_lower);
}
