/* Shapley values: exact where the sets of causes are few enough, else by permutations drawn with a
 * fixed seed, each with its reverse. Each permutation's gains add up to the whole. */
#include "diagnose/shapley.h"

#include "base/parallel.h"

enum { MOST_EXACT = 10, MOST_PAIRS = 32, LEAST_PAIRS = 4 };
#define MOST_ROOM   15000000    /* cells of all threads' passes, but one's */
#define ROUNDING    1e-3        /* nanoseconds that come of adding up */
#define MOST_VISITS 400000000.0 /* of cells, before permutations are drawn instead */

/* ---- passes ---- */

void values_fini(struct values *v)
{
    for (uint32_t i = 0; i < v->n_rooms; i++)
        mem_free(v->rooms[i]);
    FREE_ALL(&v->number, &v->sets, &v->ns);
}

/* Equal sets get equal keys. */
static uint64_t set_key(const struct values *v, struct cause_set *set)
{
    uint32_t players = set->partly == NOT_PARTLY ? 0 : set->players;
    set->causes |= ~v->causes;
    return map_key(((uint64_t)set->causes << 32 | players) + map_mix(set->partly));
}

void values_want(struct values *v, struct cause_set set)
{
    if (map_insert(&v->number, set_key(v, &set), v->sets.n))
        array_push(&v->sets, set);
}

static void make_some(void *arg, size_t item)
{
    struct values *v = arg;
    const struct unrolled *s = v->unrolled;
    for (size_t i = v->n_made + item * N_AT_ONCE; i < v->sets.n; i += v->n_rooms * N_AT_ONCE)
        unrolled_passes(s, v->sets.at + i, MIN(v->sets.n - i, N_AT_ONCE), v->rooms[item],
                        v->ns.at + i * s->n_iterations);
}

void values_make(struct values *v)
{
    const struct unrolled *s = v->unrolled;
    size_t n = v->sets.n - v->n_made, most = MAX(1, MOST_ROOM / (s->n_cells + (size_t)1));
    while (v->n_rooms < MIN(MOST_ROOMS, most) && (int)v->n_rooms < parallel_share(v->threads, 1))
        v->rooms[v->n_rooms++] = mem_alloc((s->n_cells + (size_t)1) * sizeof **v->rooms);
    array_reserve(&v->ns, n * s->n_iterations);
    v->ns.n += n * s->n_iterations;
    parallel_for(MIN((n + N_AT_ONCE - 1) / N_AT_ONCE, v->n_rooms), v->threads, make_some, v);
    v->n_made = v->sets.n;
}

const double *values_of(const struct values *v, struct cause_set set)
{
    uint64_t number = 0;
    map_get(&v->number, set_key(v, &set), &number);
    return v->ns.at + (size_t)number * v->unrolled->n_iterations;
}

double values_mean(const struct values *v, struct cause_set set)
{
    return stats_mean_std(values_of(v, set), v->unrolled->n_iterations).mean;
}

/* ---- gains ---- */

/* Whose gains are shared: causes of a tier that take any time, or groups of one cause's parts. */
struct gains {
    struct values *values;
    uint32_t n, cause[32];
    struct cause_set base; /* of causes those that stay; `partly`: whose parts these are */
    double *ns;            /* [player * n_iterations + iteration] */
    double spread[32];     /* of permutations, squared standard error */
};

static struct cause_set set_of(const struct gains *g, uint32_t players)
{
    struct cause_set set = g->base;
    for (uint32_t i = 0; i < g->n && set.partly == NOT_PARTLY; i++)
        set.causes |= (players >> i & 1) << g->cause[i];
    set.players = set.partly == NOT_PARTLY ? 0 : players;
    return set;
}

static void add_gain(struct gains *g, uint32_t i, uint32_t before, double weight)
{
    const double *with = values_of(g->values, set_of(g, before | 1U << i));
    const double *without = values_of(g->values, set_of(g, before));
    uint32_t n = g->values->unrolled->n_iterations;
    for (uint32_t k = 0; k < n; k++)
        g->ns[(size_t)i * n + k] += weight * (with[k] - without[k]);
}

static void find_exact(struct gains *g)
{
    uint32_t n_sets = 1U << g->n;
    double weight[MOST_EXACT + 1]; /* by the size of a set that a player joins */
    for (uint32_t set = 0; set < n_sets; set++)
        values_want(g->values, set_of(g, set));
    values_make(g->values);
    weight[0] = 1.0 / g->n;
    for (uint32_t size = 1; size < g->n; size++)
        weight[size] = weight[size - 1] * size / (g->n - size);
    for (uint32_t set = 0; set < n_sets; set++)
        for (uint32_t i = 0; i < g->n; i++)
            if (!(set >> i & 1))
                add_gain(g, i, set, weight[__builtin_popcount(set)]);
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
static void walk_order(struct gains *g, const uint32_t *order, bool back, bool adds)
{
    uint32_t set = 0;
    values_want(g->values, set_of(g, set));
    for (uint32_t k = 0; k < g->n; k++) {
        uint32_t i = order[back ? g->n - 1 - k : k];
        if (adds)
            add_gain(g, i, set, 0.5);
        set |= 1U << i;
        values_want(g->values, set_of(g, set));
    }
}

static void find_drawn(struct gains *g, uint32_t n_pairs)
{
    uint32_t n_iterations = g->values->unrolled->n_iterations;
    size_t size = (size_t)g->n * n_iterations;
    SCRATCH double *sum = mem_array(size, sizeof *sum);
    SCRATCH double *ns = mem_array((size_t)g->n * n_pairs, sizeof *ns); /* of a pair, mean */
    uint32_t order[32];
    for (int adds = 0; adds < 2; adds++) {
        for (uint32_t pair = 0; pair < n_pairs; pair++) {
            draw_order(pair, g->n, order);
            memset(g->ns, 0, size * sizeof *g->ns);
            for (int back = 0; back < 2; back++)
                walk_order(g, order, back, adds);
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

/* What taking one of these causes away wins of the usual iteration: the lower median. */
static double usual_gain(const struct values *v, uint32_t causes, uint32_t cause)
{
    uint32_t n = v->unrolled->n_iterations;
    const double *with = values_of(v, WHOLE(causes));
    const double *without = values_of(v, WHOLE(causes & ~(1U << cause)));
    SCRATCH double *gains = mem_array(n + (size_t)1, sizeof *gains);
    for (uint32_t i = 0; i < n; i++)
        gains[i] = with[i] - without[i];
    return select_double(gains, n, (n - 1) / 2);
}

/* The causes of a tier; `later` are those of later ones. */
static uint32_t tier_of(const struct values *v, uint8_t tier, uint32_t *later)
{
    uint32_t members = 0;
    *later = 0;
    for (uint32_t c = 0; c < v->unrolled->n_causes; c++) {
        uint8_t its = v->tiers ? v->tiers[c] : 0;
        members |= its == tier ? v->causes & 1U << c : 0;
        *later |= its > tier ? v->causes & 1U << c : 0;
    }
    return members;
}

/* A cause's gain once those of earlier tiers are mended, and those of its own that win more. */
struct ranked_cause {
    uint32_t cause;
    uint8_t tier;
    double gain;
};

/* Tier by tier; of a tier what wins most, then what does without that, ... Returns how many. */
static uint32_t find_steps(struct values *v, struct ranked_cause *steps, struct blame *blames)
{
    uint32_t left = v->causes, of_tier, later, n = 0;
    for (uint8_t tier = 0; left != 0; tier++)
        for (of_tier = tier_of(v, tier, &later); of_tier != 0; n++) {
            uint32_t asked = n == 0 ? left : of_tier;
            steps[n] = (struct ranked_cause){.tier = tier, .gain = -1};
            for (uint32_t c = 0; c < v->unrolled->n_causes; c++)
                if (asked >> c & 1)
                    values_want(v, WHOLE(left & ~(1U << c)));
            values_make(v);
            for (uint32_t c = 0; c < v->unrolled->n_causes; c++) {
                if (!(asked >> c & 1))
                    continue;
                double gain =
                    values_mean(v, WHOLE(left)) - values_mean(v, WHOLE(left & ~(1U << c)));
                gain = MAX(gain, 0);
                if (n == 0) {
                    blames[c].alone_ns = gain;
                    blames[c].usual_ns = usual_gain(v, left, c);
                }
                if ((of_tier >> c & 1) && gain > steps[n].gain) {
                    steps[n].gain = gain;
                    steps[n].cause = c;
                }
            }
            left &= ~(1U << steps[n].cause);
            of_tier &= ~(1U << steps[n].cause);
        }
    return n;
}

/* What to do first: the largest gain. That of a later tier counts as it is once faults are mended:
 * what wins by hiding a fault is not to be done in place of mending it. */
static void find_order(struct values *v, struct blame *blames)
{
    struct ranked_cause steps[32];
    uint32_t n = find_steps(v, steps, blames), left = v->causes, chosen[32];
    for (uint32_t place = 0; place < n; place++) {
        uint32_t best = UINT32_MAX, seen = 0;
        for (uint32_t i = 0; i < n; i++) {
            if (!(left >> steps[i].cause & 1) || seen >> steps[i].tier & 1)
                continue;
            seen |= 1U << steps[i].tier;
            if (best == UINT32_MAX || steps[i].gain > steps[best].gain)
                best = i;
        }
        chosen[place] = steps[best].cause;
        left &= ~(1U << chosen[place]);
        values_want(v, WHOLE(left));
    }
    values_make(v);
    left = v->causes;
    for (uint32_t place = 0; place < n; place++) {
        struct blame *blame = &blames[chosen[place]];
        double before = values_mean(v, WHOLE(left));
        left &= ~(1U << chosen[place]);
        blame->order = place + 1;
        blame->in_order_ns = before - values_mean(v, WHOLE(left));
    }
}

/* Whether less than half of the iterations have a part of it worth naming. */
static bool is_seldom(const double *gains, uint32_t n)
{
    uint32_t n_named = 0;
    double most = 0;
    for (uint32_t k = 0; k < n; k++)
        most = MAX(most, gains[k]);
    for (uint32_t k = 0; k < n; k++)
        n_named += gains[k] >= LEAST_NAMED * most;
    return 2 * n_named < n;
}

/* Returns whether the blames are exact. */
static bool blame_tier(struct gains *g, uint32_t members, struct blame *blames)
{
    const struct unrolled *u = g->values->unrolled;
    uint32_t n = u->n_iterations;
    g->n = 0;
    for (uint32_t c = 0; c < u->n_causes; c++)
        if (members >> c & 1)
            g->cause[g->n++] = c;
    SCRATCH double *ns = mem_array((size_t)g->n * n + 1, sizeof *ns);
    g->ns = ns;
    memset(g->spread, 0, sizeof g->spread);
    double visits = 2.0 * g->n * u->n_cells;
    bool exact = g->n <= MOST_EXACT && (double)(1U << g->n) * u->n_cells <= MOST_VISITS;
    if (g->n > 0 && exact)
        find_exact(g);
    else if (g->n > 0)
        find_drawn(g, (uint32_t)MAX(LEAST_PAIRS, MIN(MOST_PAIRS, MOST_VISITS / visits)));
    for (uint32_t i = 0; i < g->n; i++) {
        struct mean_std of = stats_mean_std(ns + (size_t)i * n, n);
        struct blame *blame = &blames[g->cause[i]];
        blame->ns = fabs(of.mean) > ROUNDING ? of.mean : 0;
        blame->seldom = is_seldom(ns + (size_t)i * n, n);
        /* leaving each iteration out once (Quenouille and Tukey's jackknife): of a mean, this is
         * the spread over the root of their number */
        blame->error_ns = n < 2 ? NAN : hypot(of.std / sqrt(n), sqrt(g->spread[i]));
    }
    return exact;
}

bool shapley_find(struct values *v, struct blame *blames)
{
    struct gains g = {.values = v, .base = WHOLE(v->causes)};
    bool exact = true;
    memset(blames, 0, v->unrolled->n_causes * sizeof *blames);
    values_want(v, WHOLE(0));
    values_want(v, WHOLE(v->causes));
    values_make(v);
    for (uint8_t tier = 0; g.base.causes != 0; tier++) {
        uint32_t members = tier_of(v, tier, &g.base.causes);
        exact &= blame_tier(&g, members, blames);
    }
    find_order(v, blames);
    return !exact;
}

/* ---- parts of a cause ---- */

enum { MOST_PLAYERS = 12, MOST_EXACT_PLAYERS = 6, PLAYER_PAIRS = 4, MOST_OTHERS = 8 };

/* The largest parts each are a player, the others together the last. */
static uint32_t set_players(const double *of_part, uint32_t n_parts, uint8_t *player)
{
    uint32_t n = MIN(n_parts, MOST_PLAYERS);
    memset(player, (int)n - 1, n_parts);
    for (uint8_t i = 0; i + 1U < n; i++) {
        uint32_t most = UINT32_MAX;
        for (uint32_t p = 0; p < n_parts; p++)
            if (player[p] == n - 1 && (most == UINT32_MAX || of_part[p] > of_part[most]))
                most = p;
        player[most] = i;
    }
    return n;
}

/* What the cause's group may join: those before it in drawn orders, and in their reverses; of at
 * most so many. Returns how many. */
static uint32_t draw_others(const struct values *v, uint32_t own, uint32_t most, uint32_t *others)
{
    uint32_t order[32], cause[32], later, n = 0, n_others = 0;
    uint32_t tier = tier_of(v, v->tiers ? v->tiers[own] : 0, &later);
    for (uint32_t c = 0; c < 32; c++)
        if (tier >> c & 1)
            cause[n++] = c;
    for (uint32_t pair = 0; n_others + 2 <= most; pair++) {
        uint32_t before = later, after = later, k = 0;
        draw_order(pair + 1, n, order);
        for (; cause[order[k]] != own; k++)
            before |= 1U << cause[order[k]];
        while (++k < n)
            after |= 1U << cause[order[k]];
        others[n_others++] = before;
        others[n_others++] = after;
    }
    return n_others;
}

void owen_find(struct values *v, uint32_t cause, uint32_t n_parts, double most_visits,
               double *of_part)
{
    uint32_t others[MOST_OTHERS], n = v->unrolled->n_iterations, n_last = 0;
    double gains[MOST_PLAYERS] = {0}, last = 0, passes = most_visits / v->unrolled->n_cells;
    if (n_parts < 2)
        return;
    uint8_t *player = mem_alloc(n_parts);
    v->unrolled->players[cause] = player;
    struct gains g = {.values = v, .n = set_players(of_part, n_parts, player)};
    bool exact = g.n <= MOST_EXACT_PLAYERS && 2.0 * (1U << g.n) <= passes;
    uint32_t n_pairs = (uint32_t)MAX(1, MIN(PLAYER_PAIRS, passes / 4 / g.n));
    double of_others = exact ? 1U << g.n : 2.0 * n_pairs * g.n;
    uint32_t n_others =
        draw_others(v, cause, (uint32_t)MIN(MOST_OTHERS, passes / of_others), others);
    if (n_others == 0)
        return;
    SCRATCH double *ns = mem_array((size_t)g.n * n + 1, sizeof *ns);
    g.ns = ns;
    for (uint32_t k = 0; k < n_others; k++) {
        g.base = (struct cause_set){others[k], cause, 0};
        memset(ns, 0, g.n * n * sizeof *ns);
        exact ? find_exact(&g) : find_drawn(&g, n_pairs);
        for (uint32_t i = 0; i < g.n; i++)
            gains[i] += stats_mean_std(ns + (size_t)i * n, n).mean / n_others;
    }
    for (uint32_t p = 0; p < n_parts; p++)
        if (player[p] + 1U == g.n) {
            last += of_part[p];
            n_last++;
        }
    for (uint32_t p = 0; p < n_parts; p++) {
        double gain = MAX(gains[player[p]], 0);
        bool alone = player[p] + 1U < g.n;
        of_part[p] = alone ? gain : last > 0 ? gain * of_part[p] / last : gain / n_last;
    }
}
