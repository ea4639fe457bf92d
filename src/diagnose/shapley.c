/* Shapley values: exact where the sets of causes are few enough, else by permutations drawn with a
 * fixed seed, each with its reverse. Each permutation's gains add up to the whole. */
#include "diagnose/shapley.h"

#include "base/parallel.h"

enum { MOST_EXACT = 10, MOST_PAIRS = 32, LEAST_PAIRS = 4 };
#define MOST_VISITS 400000000.0 /* of cells, before permutations are drawn instead */

/* ---- passes ---- */

void values_fini(struct values *v)
{
    FREE_ALL(&v->number, &v->sets, &v->ns);
}

void values_want(struct values *v, uint32_t causes)
{
    causes |= ~v->causes;
    if (map_insert(&v->number, map_key(causes), v->sets.n))
        array_push(&v->sets, causes);
}

struct values_work {
    struct values *values;
    size_t n_items;
};

static void make_some(void *arg, size_t item)
{
    const struct values_work *work = arg;
    struct values *v = work->values;
    const struct unrolled *s = v->unrolled;
    int64_t *cells = mem_alloc((s->n_cells + (size_t)1) * sizeof *cells);
    for (size_t i = v->n_made + item; i < v->sets.n; i += work->n_items)
        unrolled_pass(s, v->sets.at[i], cells, v->ns.at + i * s->n_iterations);
    mem_free(cells);
}

void values_make(struct values *v)
{
    size_t n = v->sets.n - v->n_made;
    struct values_work work = {v, MIN(n, (size_t)parallel_share(v->threads, 1))};
    array_reserve(&v->ns, n * v->unrolled->n_iterations);
    v->ns.n += n * v->unrolled->n_iterations;
    parallel_for(work.n_items, v->threads, make_some, &work);
    v->n_made = v->sets.n;
}

const double *values_of(const struct values *v, uint32_t causes)
{
    uint64_t number = 0;
    map_get(&v->number, map_key(causes | ~v->causes), &number);
    return v->ns.at + (size_t)number * v->unrolled->n_iterations;
}

double values_mean(const struct values *v, uint32_t causes)
{
    return stats_mean_std(values_of(v, causes), v->unrolled->n_iterations).mean;
}

/* ---- gains ---- */

struct gains {
    struct values *values;
    uint32_t n, cause[32]; /* those that take any time */
    double *ns;            /* [cause's number here * n_iterations + iteration] */
    double spread[32];     /* of permutations, squared standard error */
};

static uint32_t set_of(const struct gains *g, uint32_t members)
{
    uint32_t set = 0;
    for (uint32_t i = 0; i < g->n; i++)
        set |= (members >> i & 1) << g->cause[i];
    return set;
}

static void add_gain(struct gains *g, uint32_t i, uint32_t before, double weight)
{
    const double *with = values_of(g->values, before | 1U << g->cause[i]);
    const double *without = values_of(g->values, before);
    uint32_t n = g->values->unrolled->n_iterations;
    for (uint32_t k = 0; k < n; k++)
        g->ns[(size_t)i * n + k] += weight * (with[k] - without[k]);
}

static void find_exact(struct gains *g)
{
    uint32_t n_sets = 1U << g->n;
    double weight[MOST_EXACT + 1]; /* by the size of a set that a cause joins */
    for (uint32_t set = 0; set < n_sets; set++)
        values_want(g->values, set_of(g, set));
    values_make(g->values);
    weight[0] = 1.0 / g->n;
    for (uint32_t size = 1; size < g->n; size++)
        weight[size] = weight[size - 1] * size / (g->n - size);
    for (uint32_t set = 0; set < n_sets; set++)
        for (uint32_t i = 0; i < g->n; i++)
            if (!(set >> i & 1))
                add_gain(g, i, set_of(g, set), weight[__builtin_popcount(set)]);
}

static void draw_order(uint64_t seed, uint32_t n, uint32_t *order)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t k = (uint32_t)(map_mix(seed * 64 + i + 1) % (i + 1));
        order[i] = order[k];
        order[k] = i;
    }
}

/* Goes through a permutation forwards or back; with gains or, at first, to ask for the sets. */
static void walk_order(struct gains *g, const uint32_t *order, bool back, bool adds, double weight)
{
    uint32_t set = 0;
    values_want(g->values, set);
    for (uint32_t k = 0; k < g->n; k++) {
        uint32_t i = order[back ? g->n - 1 - k : k];
        if (adds)
            add_gain(g, i, set, weight);
        set |= 1U << g->cause[i];
        values_want(g->values, set);
    }
}

static void find_drawn(struct gains *g)
{
    double visits = 2.0 * g->n * g->values->unrolled->n_cells;
    uint32_t n_iterations = g->values->unrolled->n_iterations;
    uint32_t n_pairs = (uint32_t)MAX(LEAST_PAIRS, MIN(MOST_PAIRS, MOST_VISITS / visits));
    size_t size = (size_t)g->n * n_iterations;
    SCRATCH double *sum = mem_array(size, sizeof *sum);
    SCRATCH double *ns = mem_array((size_t)g->n * n_pairs, sizeof *ns); /* of a pair, mean */
    uint32_t order[32];
    for (int adds = 0; adds < 2; adds++) {
        for (uint32_t pair = 0; pair < n_pairs; pair++) {
            draw_order(pair, g->n, order);
            memset(g->ns, 0, size * sizeof *g->ns);
            for (int back = 0; back < 2; back++)
                walk_order(g, order, back, adds, 0.5);
            for (size_t i = 0; adds && i < size; i++) {
                sum[i] += g->ns[i] / n_pairs;
                ns[i / n_iterations * n_pairs + pair] += g->ns[i] / n_iterations;
            }
        }
        values_make(g->values);
    }
    memcpy(g->ns, sum, size * sizeof *sum);
    for (uint32_t i = 0; i < g->n; i++) {
        double std = stats_mean_std(ns + (size_t)i * n_pairs, n_pairs).std;
        g->spread[i] = std * std / n_pairs;
    }
}

/* What to do first: what wins most, then what does without that, ... */
static void find_order(struct gains *g, struct blame *blames)
{
    struct values *v = g->values;
    uint32_t left = v->causes;
    for (uint32_t place = 1; left != 0; place++) {
        uint32_t best = 0;
        for (uint32_t i = 0; i < g->n; i++)
            if (left >> g->cause[i] & 1)
                values_want(v, left & ~(1U << g->cause[i]));
        values_make(v);
        double most = -1, now = values_mean(v, left);
        for (uint32_t i = 0; i < g->n; i++) {
            if (!(left >> g->cause[i] & 1))
                continue;
            double gain = MAX(now - values_mean(v, left & ~(1U << g->cause[i])), 0);
            if (place == 1)
                blames[g->cause[i]].alone_ns = gain;
            if (gain > most) {
                most = gain;
                best = g->cause[i];
            }
        }
        blames[best].order = place;
        blames[best].in_order_ns = most;
        left &= ~(1U << best);
    }
}

bool shapley_find(struct values *v, struct blame *blames)
{
    struct gains g = {.values = v};
    uint32_t n_iterations = v->unrolled->n_iterations;
    memset(blames, 0, v->unrolled->n_causes * sizeof *blames);
    for (uint32_t c = 0; c < v->unrolled->n_causes; c++)
        if (v->causes >> c & 1)
            g.cause[g.n++] = c;
    SCRATCH double *ns = mem_array((size_t)g.n * n_iterations + 1, sizeof *ns);
    g.ns = ns;
    bool exact = g.n <= MOST_EXACT && (double)(1U << g.n) * v->unrolled->n_cells <= MOST_VISITS;
    values_want(v, 0);
    values_want(v, v->causes);
    values_make(v);
    if (g.n > 0)
        exact ? find_exact(&g) : find_drawn(&g);
    for (uint32_t i = 0; i < g.n; i++) {
        struct mean_std of = stats_mean_std(ns + (size_t)i * n_iterations, n_iterations);
        struct blame *blame = &blames[g.cause[i]];
        blame->ns = MAX(of.mean, 0);
        blame->error_ns =
            n_iterations > 1 ? sqrt(of.std * of.std / n_iterations + g.spread[i]) : NAN;
    }
    find_order(&g, blames);
    return !exact;
}
