/* Chooses modules to recompute for places of any kind, fast: the module that saves most for its
 * time is added until all places are satisfied; then modules are removed and exchanged as long as
 * that takes less time. */

#include "optimize/recompute_choice.h"

enum { MOST_WORK = 100000000 }; /* steps of the innermost loops */

struct optimize_recompute_exchange_exchange {
    const struct recompute_rows *rows;
    uint32_t n;
    bool *chosen;
    int64_t *left; /* [row] what it still needs */
    int64_t work;  /* steps that may still be done */
};

static void exchange_put(struct optimize_recompute_exchange_exchange *x, uint32_t module, bool in)
{
    x->chosen[module] = in;
    for (uint32_t i = 0; i < x->rows->n; i++)
        x->left[i] += in ? -x->rows->less[i][module] : x->rows->less[i][module];
    x->work -= x->rows->n;
}

static bool all_content(struct optimize_recompute_exchange_exchange *x)
{
    x->work -= x->rows->n;
    for (uint32_t i = 0; i < x->rows->n; i++)
        if (x->left[i] > 0)
            return false;
    return true;
}

/* How much less places lack with the module. */
static double service_of(struct optimize_recompute_exchange_exchange *x, uint32_t module)
{
    double bytes = 0;
    x->work -= x->rows->n;
    for (uint32_t i = 0; i < x->rows->n; i++) {
        int64_t before = MAX(x->left[i], 0);
        bytes += (double)(before - MAX(x->left[i] - x->rows->less[i][module], 0));
    }
    return bytes;
}

static bool add_until_content(struct optimize_recompute_exchange_exchange *x)
{
    while (!all_content(x)) {
        double most = 0;
        uint32_t best = UINT32_MAX;
        for (uint32_t m = 0; m < x->n; m++) {
            if (x->chosen[m])
                continue;
            double worth = service_of(x, m) / (double)(x->rows->time_ns[m] + 1);
            if (worth > most) {
                most = worth;
                best = m;
            }
        }
        if (best == UINT32_MAX)
            return false;
        exchange_put(x, best, true);
    }
    return true;
}

struct priced {
    int64_t ns;
    uint32_t module;
};
ORDER(dearest_first, struct priced, DESCENDING(ns) ?: ASCENDING(module));

/* Takes out what is not needed, the longest first. */
static void drop_needless(struct optimize_recompute_exchange_exchange *x,
                          const struct priced *by_time)
{
    for (uint32_t i = 0; i < x->n && x->work > 0; i++) {
        uint32_t m = by_time[i].module;
        if (!x->chosen[m])
            continue;
        exchange_put(x, m, false);
        if (!all_content(x))
            exchange_put(x, m, true);
    }
}

/* Puts the fastest other module, or the fastest pair, in the place of one. */
static bool exchange_replace(struct optimize_recompute_exchange_exchange *x, uint32_t out,
                             const struct priced *by_time)
{
    exchange_put(x, out, false);
    for (uint32_t i = x->n; i-- > 0 && x->work > 0;) {
        uint32_t a = by_time[i].module;
        int64_t ns = by_time[i].ns;
        if (ns >= x->rows->time_ns[out])
            break;
        if (x->chosen[a] || a == out)
            continue;
        exchange_put(x, a, true);
        if (all_content(x))
            return true;
        for (uint32_t j = x->n; j-- > i + 1 && x->work > 0;) {
            uint32_t b = by_time[j].module;
            if (ns + by_time[j].ns >= x->rows->time_ns[out])
                break;
            if (x->chosen[b] || b == out)
                continue;
            exchange_put(x, b, true);
            if (all_content(x))
                return true;
            exchange_put(x, b, false);
        }
        exchange_put(x, a, false);
    }
    exchange_put(x, out, true);
    return false;
}

/* Puts one module in the place of two. */
static bool exchange_unite(struct optimize_recompute_exchange_exchange *x, uint32_t a, uint32_t b)
{
    int64_t ns = x->rows->time_ns[a] + x->rows->time_ns[b], best_ns = ns;
    uint32_t best = UINT32_MAX;
    exchange_put(x, a, false);
    exchange_put(x, b, false);
    for (uint32_t m = 0; m < x->n && x->work > 0; m++) {
        if (x->chosen[m] || m == a || m == b || x->rows->time_ns[m] >= best_ns)
            continue;
        exchange_put(x, m, true);
        if (all_content(x)) {
            best = m;
            best_ns = x->rows->time_ns[m];
        }
        exchange_put(x, m, false);
    }
    if (best != UINT32_MAX) {
        exchange_put(x, best, true);
        return true;
    }
    exchange_put(x, a, true);
    exchange_put(x, b, true);
    return false;
}

static void recompute_exchange_exchange(struct optimize_recompute_exchange_exchange *x,
                                        const struct priced *by_time)
{
    for (bool better = true; better && x->work > 0;) {
        better = false;
        drop_needless(x, by_time);
        for (uint32_t i = 0; i < x->n && x->work > 0; i++)
            if (x->chosen[by_time[i].module])
                better |= exchange_replace(x, by_time[i].module, by_time);
        for (uint32_t a = 0; a < x->n; a++)
            for (uint32_t b = 0; b < a && x->work > 0; b++)
                if (x->chosen[a] && x->chosen[b])
                    better |= exchange_unite(x, a, b);
    }
    drop_needless(x, by_time);
}

bool recompute_exchange(const struct recompute_rows *rows, bool *chosen)
{
    struct optimize_recompute_exchange_exchange x = {rows, rows->n_modules, chosen, NULL,
                                                     MOST_WORK};
    SCRATCH struct priced *by_time = mem_array(x.n + (size_t)1, sizeof *by_time);
    x.left = mem_array(rows->n + (size_t)1, sizeof *x.left);
    memset(chosen, 0, x.n * sizeof *chosen);
    for (uint32_t m = 0; m < x.n; m++)
        by_time[m] = (struct priced){rows->time_ns[m], m};
    qsort(by_time, x.n, sizeof *by_time, dearest_first);
    for (uint32_t i = 0; i < rows->n; i++)
        x.left[i] = rows->need[i];
    bool suffices = add_until_content(&x);
    if (suffices)
        recompute_exchange_exchange(&x, by_time);
    mem_free(x.left);
    return suffices;
}
