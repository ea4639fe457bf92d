/* Shapley values: exact where the sets of causes are few enough, else by permutations drawn with a
 * fixed seed, each with its reverse. Each permutation's gains add up to the whole. */
#include "diagnose/shapley.h"

#include "base/parallel.h"

enum { MOST_EXACT = 10, MOST_PAIRS = 32, LEAST_PAIRS = 4 };
#define MOST_ROOM   50000000    /* cells of all passes that run at once, but two */
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
    for (size_t i = v->n_made + item; i < v->sets.n; i += v->n_rooms)
        unrolled_pass(s, v->sets.at[i], v->rooms[item], v->ns.at + i * s->n_iterations);
}

void values_make(struct values *v)
{
    const struct unrolled *s = v->unrolled;
    size_t n = v->sets.n - v->n_made, most = MAX(2, MOST_ROOM / (s->n_cells + (size_t)1));
    while (v->n_rooms < MIN(MOST_ROOMS, most) && (int)v->n_rooms < parallel_share(v->threads, 1))
        v->rooms[v->n_rooms++] = mem_alloc((s->n_cells + (size_t)1) * sizeof **v->rooms);
    array_reserve(&v->ns, n * s->n_iterations);
    v->ns.n += n * s->n_iterations;
    parallel_for(MIN(n, v->n_rooms), v->threads, make_some, v);
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

struct gains {
    struct values *values;
    uint32_t n, cause[32]; /* those of a tier that take any time */
    uint32_t later;        /* those of later tiers, which stay */
    double *ns;            /* [cause's number here * n_iterations + iteration] */
    double spread[32];     /* of permutations, squared standard error */
};

static uint32_t set_of(const struct gains *g, uint32_t members)
{
    uint32_t set = g->later;
    for (uint32_t i = 0; i < g->n; i++)
        set |= (members >> i & 1) << g->cause[i];
    return set;
}

static void add_gain(struct gains *g, uint32_t i, uint32_t before, double weight)
{
    const double *with = values_of(g->values, WHOLE(before | 1U << g->cause[i]));
    const double *without = values_of(g->values, WHOLE(before));
    uint32_t n = g->values->unrolled->n_iterations;
    for (uint32_t k = 0; k < n; k++)
        g->ns[(size_t)i * n + k] += weight * (with[k] - without[k]);
}

static void find_exact(struct gains *g)
{
    uint32_t n_sets = 1U << g->n;
    double weight[MOST_EXACT + 1]; /* by the size of a set that a cause joins */
    for (uint32_t set = 0; set < n_sets; set++)
        values_want(g->values, WHOLE(set_of(g, set)));
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
    uint32_t set = g->later;
    values_want(g->values, WHOLE(set));
    for (uint32_t k = 0; k < g->n; k++) {
        uint32_t i = order[back ? g->n - 1 - k : k];
        if (adds)
            add_gain(g, i, set, weight);
        set |= 1U << g->cause[i];
        values_want(g->values, WHOLE(set));
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

/* What to do first: what wins most of a tier, then what does without that, ..., then the next tier:
 * what wins by hiding a fault is not to be done in place of mending it. */
static void find_order(struct values *v, struct blame *blames)
{
    uint32_t left = v->causes, of_tier, later, place = 0;
    for (uint8_t tier = 0; left != 0; tier++)
        for (of_tier = tier_of(v, tier, &later); of_tier != 0;) {
            uint32_t asked = place == 0 ? left : of_tier, best = UINT32_MAX;
            double most = -1;
            for (uint32_t c = 0; c < v->unrolled->n_causes; c++)
                if (asked >> c & 1)
                    values_want(v, WHOLE(left & ~(1U << c)));
            values_make(v);
            for (uint32_t c = 0; c < v->unrolled->n_causes; c++) {
                if (!(asked >> c & 1))
                    continue;
                double gain =
                    values_mean(v, WHOLE(left)) - values_mean(v, WHOLE(left & ~(1U << c)));
                if (place == 0) {
                    blames[c].alone_ns = MAX(gain, 0);
                    blames[c].usual_ns = usual_gain(v, left, c);
                }
                if ((of_tier >> c & 1) && MAX(gain, 0) > most) {
                    most = MAX(gain, 0);
                    best = c;
                }
            }
            blames[best].order = ++place;
            blames[best].in_order_ns = most;
            left &= ~(1U << best);
            of_tier &= ~(1U << best);
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
    bool exact = g->n <= MOST_EXACT && (double)(1U << g->n) * u->n_cells <= MOST_VISITS;
    if (g->n > 0)
        exact ? find_exact(g) : find_drawn(g);
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
    struct gains g = {.values = v, .later = v->causes};
    bool exact = true;
    memset(blames, 0, v->unrolled->n_causes * sizeof *blames);
    values_want(v, WHOLE(0));
    values_want(v, WHOLE(v->causes));
    values_make(v);
    for (uint8_t tier = 0; g.later != 0; tier++) {
        uint32_t members = tier_of(v, tier, &g.later);
        exact &= blame_tier(&g, members, blames);
    }
    find_order(v, blames);
    return !exact;
}

/* ---- parts of a cause ---- */

enum { MOST_PLAYERS = 12, MOST_EXACT_PLAYERS = 6, PLAYER_PAIRS = 4, MOST_OTHERS = 8 };

struct owen {
    struct values *values;
    uint32_t cause, n; /* players */
    uint32_t n_pairs;  /* of permutations of them, with each set of others; 0: all sets */
    uint32_t n_others, others[MOST_OTHERS]; /* sets of other causes that it joins */
    double gain[MOST_PLAYERS];
};

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

/* What the cause's group may join: those before it in drawn orders, and in their reverses. */
static void draw_others(struct owen *o, uint32_t n_sets)
{
    uint32_t order[32], cause[32], later, n = 0;
    uint32_t tier = tier_of(o->values, o->values->tiers ? o->values->tiers[o->cause] : 0, &later);
    for (uint32_t c = 0; c < 32; c++)
        if (tier >> c & 1)
            cause[n++] = c;
    for (uint32_t pair = 0; o->n_others + 2 <= n_sets; pair++) {
        uint32_t before = later, after = later, k = 0;
        draw_order(pair + 1, n, order);
        for (; cause[order[k]] != o->cause; k++)
            before |= 1U << cause[order[k]];
        while (++k < n)
            after |= 1U << cause[order[k]];
        o->others[o->n_others++] = before;
        o->others[o->n_others++] = after;
    }
}

/* Asks for a set of players with a set of other causes, or adds what `player` wins there. */
static void join_players(struct owen *o, uint32_t others, uint32_t player, uint32_t players,
                         bool adds, double weight)
{
    struct cause_set without = {others, o->cause, players}, with = without;
    with.players |= 1U << player;
    if (adds) {
        o->gain[player] +=
            weight * (values_mean(o->values, with) - values_mean(o->values, without));
        return;
    }
    values_want(o->values, without);
    values_want(o->values, with);
}

static void find_players(struct owen *o, uint32_t others, bool adds)
{
    uint32_t order[32];
    double weight[MOST_PLAYERS + 1] = {1.0 / o->n / o->n_others};
    for (uint32_t size = 1; size < o->n; size++)
        weight[size] = weight[size - 1] * size / (o->n - size);
    for (uint32_t set = 0; o->n_pairs == 0 && set < 1U << o->n; set++)
        for (uint32_t i = 0; i < o->n; i++)
            if (!(set >> i & 1))
                join_players(o, others, i, set, adds, weight[__builtin_popcount(set)]);
    for (uint32_t pair = 0; pair < o->n_pairs; pair++) {
        draw_order(pair + 1, o->n, order);
        for (int back = 0; back < 2; back++)
            for (uint32_t k = 0, set = 0; k < o->n; k++) {
                uint32_t i = order[back ? o->n - 1 - k : k];
                join_players(o, others, i, set, adds, 0.5 / o->n_pairs / o->n_others);
                set |= 1U << i;
            }
    }
}

/* As many sets of players and of others as so many passes allow; of the latter two, or none. */
static void plan_players(struct owen *o, double passes)
{
    bool exact = o->n <= MOST_EXACT_PLAYERS && 2.0 * (1U << o->n) <= passes;
    double of_pair = 2.0 * o->n;
    o->n_pairs = exact ? 0 : (uint32_t)MAX(1, MIN(PLAYER_PAIRS, passes / 2 / of_pair));
    draw_others(o,
                (uint32_t)MIN(MOST_OTHERS, passes / (exact ? 1U << o->n : o->n_pairs * of_pair)));
}

void owen_find(struct values *v, uint32_t cause, uint32_t n_parts, double most_visits,
               double *of_part)
{
    struct owen o = {.values = v, .cause = cause};
    double last = 0;
    uint32_t n_last = 0;
    if (n_parts < 2)
        return;
    uint8_t *player = mem_alloc(n_parts);
    v->unrolled->players[cause] = player;
    o.n = set_players(of_part, n_parts, player);
    plan_players(&o, most_visits / v->unrolled->n_cells);
    if (o.n_others == 0)
        return;
    for (int adds = 0; adds < 2; adds++) {
        for (uint32_t k = 0; k < o.n_others; k++)
            find_players(&o, o.others[k], adds);
        values_make(v);
    }
    for (uint32_t p = 0; p < n_parts; p++)
        if (player[p] + 1U == o.n) {
            last += of_part[p];
            n_last++;
        }
    for (uint32_t p = 0; p < n_parts; p++) {
        double gain = MAX(o.gain[player[p]], 0);
        bool alone = player[p] + 1U < o.n;
        of_part[p] = alone ? gain : last > 0 ? gain * of_part[p] / last : gain / n_last;
    }
}
