/* Chooses modules of a chain to recompute, by dynamic programming.
 *
 * The state after some modules is (saved bytes, time). Of two states, one that saves no more and
 * takes no less time is dropped, so repeated blocks leave few. A place is a condition on what the
 * modules before it have saved, and on whether its own module is chosen. States that can't beat the
 * known best time are dropped: what is still needed costs at least its share of the modules that
 * save it most cheaply.
 *
 * Where places are not quite those of a chain, the difference is taken to never help. Then the
 * result suffices, but need not be the best. */

#include "optimize/recompute_choice.h"

enum { MOST_STATES = 1 << 15 };
#define LEAST_NEED (-(INT64_C(1) << 62))

struct recompute_chain_chain {
    struct arena arena;
    const struct recompute_rows *rows;
    uint32_t n;
    int64_t *saved; /* [module] where it is recomputed, at all places behind it */
    /* [n + 1] what the modules before the i-th have to save, where that one is not recomputed and
     * where it is */
    int64_t *need_kept, *need_again;
    bool is_strict, is_thinned;
};

/* What comes of a row: `before` of the modules have run. */
static void add_row(struct recompute_chain_chain *c, const int64_t *less, int64_t need)
{
    uint32_t before = c->n;
    while (before > 0 && less[before - 1] <= c->saved[before - 1] / 2)
        before--;
    if (before > 0 && less[before - 1] != c->saved[before - 1])
        before--; /* it is within that module: any value will do */
    while (before < c->n && c->saved[before] == 0 && less[before] == 0)
        before++; /* these have run, or not */
    for (uint32_t m = 0; m < c->n; m++) {
        int64_t lacks = m < before ? c->saved[m] - less[m] : m == before ? 0 : -less[m];
        c->is_strict &= lacks == 0;
        need += MAX(lacks, 0);
    }
    c->need_kept[before] = MAX(c->need_kept[before], need);
    c->need_again[before] = MAX(c->need_again[before], need - (before < c->n ? less[before] : 0));
}

/* Whether a useful part of the rows is of a chain in the order of the modules. */
static void chain_init(struct recompute_chain_chain *c, const struct recompute_rows *rows)
{
    uint32_t n = rows->n_modules;
    size_t room = n + (size_t)1;
    *c = (struct recompute_chain_chain){.rows = rows, .n = n, .is_strict = true};
    c->saved = arena_array(&c->arena, room, sizeof *c->saved);
    c->need_kept = arena_array(&c->arena, room, sizeof *c->need_kept);
    c->need_again = arena_array(&c->arena, room, sizeof *c->need_again);
    for (uint32_t m = 0; m <= n; m++)
        c->need_kept[m] = c->need_again[m] = LEAST_NEED;
    for (uint32_t i = 0; i < rows->n; i++)
        for (uint32_t m = 0; m < n; m++)
            c->saved[m] = MAX(c->saved[m], rows->less[i][m]);
    for (uint32_t i = 0; i < rows->n; i++)
        add_row(c, rows->less[i], rows->need[i]);
}

/* ---- what is still to be spent, at least ---- */

struct chain_offer {
    double price; /* ns a byte */
    int64_t bytes;
    uint32_t module;
};
ORDER(cheapest_first, struct chain_offer, ASCENDING(price) ?: ASCENDING(module));

/* The modules from `next` on that can serve the neediest place behind them. */
struct outlook {
    struct chain_offer *offers;
    uint32_t n;
    int64_t need, at_most; /* what it needs; the most that they save, and what would be of use */
};

static void look_ahead(const struct recompute_chain_chain *c, uint32_t next, struct outlook *o)
{
    uint32_t end = next;
    o->n = 0;
    o->need = LEAST_NEED;
    o->at_most = 0;
    int64_t useful = LEAST_NEED;
    for (uint32_t m = next; m <= c->n; m++) {
        int64_t need = m < c->n ? MIN(c->need_kept[m], c->need_again[m]) : c->need_kept[m];
        useful = MAX(useful, m < c->n ? MAX(c->need_kept[m], c->need_again[m]) : need);
        if (need > o->need) {
            o->need = need;
            end = m;
        }
    }
    for (uint32_t m = next; m < end; m++)
        if (c->saved[m] > 0)
            o->offers[o->n++] = (struct chain_offer){
                (double)c->rows->time_ns[m] / (double)c->saved[m], c->saved[m], m};
    if (o->n > 1)
        qsort(o->offers, o->n, sizeof *o->offers, cheapest_first);
    o->at_most = useful;
}

/* ---- states ---- */

struct chain_state {
    int64_t saved, time_ns;
    uint32_t from; /* state before, times 2; 1 more: the module is recomputed */
};
struct states {
    struct chain_state *at; /* by saved and by time, ascending */
    uint32_t n;
};

/* Appends a state that follows the others by what it saves; drops those that it makes needless. */
static void chain_push(struct states *to, struct chain_state state)
{
    while (to->n > 0 && to->at[to->n - 1].time_ns >= state.time_ns)
        to->n--;
    if (to->n == 0 || to->at[to->n - 1].saved < state.saved)
        to->at[to->n++] = state;
}

/* What follows from `from` when module m is kept, and when it is recomputed. */
static void chain_advance(const struct recompute_chain_chain *c, uint32_t m,
                          const struct states *from, struct states *to)
{
    uint32_t kept = 0, again = c->saved[m] > 0 ? 0 : from->n;
    int64_t saves = c->saved[m], ns = c->rows->time_ns[m];
    to->n = 0;
    while (kept < from->n && from->at[kept].saved < c->need_kept[m])
        kept++;
    while (again < from->n && from->at[again].saved < c->need_again[m])
        again++;
    while (kept < from->n || again < from->n) {
        const struct chain_state *k = &from->at[kept], *a = &from->at[again];
        bool takes_kept = again == from->n || (kept < from->n && k->saved <= a->saved + saves);
        if (takes_kept)
            chain_push(to, (struct chain_state){k->saved, k->time_ns, 2 * kept++});
        else
            chain_push(to,
                       (struct chain_state){a->saved + saves, a->time_ns + ns, 2 * again++ + 1});
    }
}

/* More than all places behind need is as good as that: of these states the first is the best. */
static void drop_plenty(struct states *states, int64_t useful)
{
    while (states->n > 1 && states->at[states->n - 2].saved >= useful)
        states->n--;
}

/* Drops those that lead to nothing below `known_ns`. From the last state on, which needs least. */
static void drop_hopeless(struct states *states, const struct outlook *o, int64_t known_ns)
{
    uint32_t kept = states->n, offer = 0;
    int64_t had = 0;
    double spent = 0;
    for (uint32_t i = states->n; i-- > 0;) {
        int64_t lacks = o->need - states->at[i].saved;
        while (offer < o->n && had + o->offers[offer].bytes <= lacks) {
            spent += o->offers[offer].price * (double)o->offers[offer].bytes;
            had += o->offers[offer++].bytes;
        }
        if (lacks > had && offer == o->n)
            break; /* nor can any that saved less */
        double least = lacks <= 0 ? 0 : spent;
        if (lacks > had)
            least += o->offers[offer].price * (double)(lacks - had);
        if ((double)states->at[i].time_ns + least * (1 - 1e-9) < (double)known_ns)
            states->at[--kept] = states->at[i];
    }
    memmove(states->at, states->at + kept, (states->n - kept) * sizeof *states->at);
    states->n -= kept;
}

/* Too many: an even choice of them goes on, and the one that saves most. */
static void chain_thin(struct recompute_chain_chain *c, struct states *states)
{
    if (states->n <= MOST_STATES)
        return;
    uint32_t n = 0;
    for (uint64_t i = 1; i <= MOST_STATES; i++)
        states->at[n++] = states->at[i * states->n / MOST_STATES - 1];
    states->n = n;
    c->is_thinned = true;
}

/* ---- all of it ---- */

static bool recompute_run(struct recompute_chain_chain *c, int64_t known_ns, bool *chosen)
{
    struct outlook outlook = {.offers =
                                  arena_array(&c->arena, c->n + (size_t)1, sizeof *outlook.offers)};
    struct states now = {mem_alloc(2 * MOST_STATES * sizeof *now.at), 1}, next = now;
    uint32_t **from = arena_array(&c->arena, c->n + (size_t)1, sizeof *from);
    next.at = mem_alloc(2 * MOST_STATES * sizeof *next.at);
    now.at[0] = (struct chain_state){0};
    for (uint32_t m = 0; m < c->n && now.n > 0; m++) {
        chain_advance(c, m, &now, &next);
        look_ahead(c, m + 1, &outlook);
        drop_plenty(&next, outlook.at_most);
        drop_hopeless(&next, &outlook, known_ns);
        chain_thin(c, &next);
        from[m] = arena_alloc(&c->arena, (next.n + (size_t)1) * sizeof **from);
        for (uint32_t i = 0; i < next.n; i++)
            from[m][i] = next.at[i].from;
        struct states swap = now;
        now = next;
        next = swap;
    }
    uint32_t last = 0;
    while (last < now.n && now.at[last].saved < c->need_kept[c->n])
        last++;
    bool found = last < now.n && now.at[last].time_ns < known_ns;
    for (uint32_t m = c->n; found && m-- > 0;) {
        chosen[m] = from[m][last] % 2;
        last = from[m][last] / 2;
    }
    mem_free(now.at);
    mem_free(next.at);
    return found;
}

bool recompute_chain(const struct recompute_rows *rows, int64_t known_ns, bool *chosen,
                     bool *suffices, bool *is_exact)
{
    struct recompute_chain_chain c;
    chain_init(&c, rows);
    bool is_strict = c.is_strict;
    *suffices = recompute_run(&c, known_ns, chosen);
    *is_exact = is_strict && !c.is_thinned;
    arena_fini(&c.arena);
    return is_strict;
}
