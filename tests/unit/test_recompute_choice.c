/* The choice of modules to recompute against brute force, of chains that a literal simulator runs
 * step by step, and of places of any kind. */

#include "case.h"
#include "optimize/recompute_choice.h"

enum { MOST_BLOCKS = 256 };

static uint64_t random_state;

static int64_t draw(int64_t least, int64_t most)
{
    random_state += 0x9e3779b97f4a7c15u;
    return least + (int64_t)(map_mix(random_state) % (uint64_t)(most - least + 1));
}

/* ---- a chain, step by step ---- */

struct block {
    int64_t input, kept, forward_scratch, backward_scratch, gradients, ns;
};
struct chain {
    struct block blocks[MOST_BLOCKS];
    uint32_t n;
    int64_t resident, head; /* always there; kept by what follows the last block */
};

/* Of each block's forward and backward pass, and of the end: 2 n + 1 places. */
static void simulate(const struct chain *c, const bool *again, int64_t *peaks)
{
    int64_t now = c->resident;
    for (uint32_t i = 0; i < c->n; i++) {
        const struct block *b = &c->blocks[i];
        now += b->input;
        now += b->kept + b->forward_scratch;
        peaks[i] = now;
        now -= b->forward_scratch;
        if (again[i])
            now -= b->kept;
    }
    now += c->head;
    peaks[2 * c->n] = now;
    now -= c->head;
    for (uint32_t i = c->n; i-- > 0;) {
        const struct block *b = &c->blocks[i];
        int64_t peak = now;
        if (again[i]) {
            now += b->kept + b->forward_scratch;
            peak = MAX(peak, now);
            now -= b->forward_scratch;
        }
        now += b->backward_scratch;
        peak = MAX(peak, now);
        now += b->gradients;
        peak = MAX(peak, now);
        now -= b->backward_scratch + b->kept + b->input;
        peaks[c->n + i] = peak;
    }
}

static int64_t peak_of(const struct chain *c, const bool *again)
{
    int64_t peaks[2 * MOST_BLOCKS + 1], peak = 0;
    simulate(c, again, peaks);
    for (uint32_t p = 0; p < 2 * c->n + 1; p++)
        peak = MAX(peak, peaks[p]);
    return peak;
}

struct posed { /* a problem with memory of its own */
    struct recompute_problem problem;
    int64_t *ns, *alive, *less;
};

static struct posed posed_of(uint32_t n_modules, uint32_t n_places)
{
    struct posed p = {.ns = kept_memory(n_modules, sizeof *p.ns),
                      .alive = kept_memory(n_places, sizeof *p.alive),
                      .less = kept_memory((size_t)n_places * n_modules, sizeof *p.less)};
    p.problem = (struct recompute_problem){n_modules, n_places, p.ns, p.alive, p.less};
    return p;
}

/* As the search does it: what each block changes by itself. */
static struct posed pose_chain(const struct chain *c)
{
    struct posed p = posed_of(c->n, 2 * c->n + 1);
    int64_t peaks[2 * MOST_BLOCKS + 1];
    bool again[MOST_BLOCKS] = {false};
    simulate(c, again, p.alive);
    for (uint32_t i = 0; i < c->n; i++) {
        p.ns[i] = c->blocks[i].ns;
        again[i] = true;
        simulate(c, again, peaks);
        again[i] = false;
        for (uint32_t place = 0; place < p.problem.n_places; place++)
            p.less[(size_t)place * c->n + i] = p.alive[place] - peaks[place];
    }
    return p;
}

static void random_chain(struct chain *c, uint32_t n, int64_t spread)
{
    *c = (struct chain){.n = n, .resident = draw(0, 100), .head = draw(0, 30)};
    uint32_t period = (uint32_t)draw(1, n); /* blocks repeat */
    for (uint32_t i = 0; i < n; i++) {
        if (i >= period && spread < 100) {
            c->blocks[i] = c->blocks[i - period];
            continue;
        }
        c->blocks[i] = (struct block){.input = draw(0, 5),
                                      .kept = draw(0, spread),
                                      .forward_scratch = draw(0, spread / 2),
                                      .backward_scratch = draw(0, spread / 2),
                                      .gradients = draw(0, spread / 3),
                                      .ns = draw(0, 2 * spread)};
    }
}

/* The least time of a choice that fits; INT64_MAX: none does. */
static int64_t brute_force(const struct recompute_problem *p, const struct chain *c, int64_t budget)
{
    int64_t least = INT64_MAX;
    for (uint32_t set = 0; set < 1u << p->n_modules; set++) {
        bool chosen[MOST_BLOCKS];
        for (uint32_t m = 0; m < p->n_modules; m++)
            chosen[m] = set >> m & 1;
        int64_t peak = c ? peak_of(c, chosen) : recompute_peak(p, chosen);
        if (peak <= budget)
            least = MIN(least, recompute_time(p, chosen));
    }
    return least;
}

static void check(const struct recompute_problem *p, const struct chain *c, bool is_chain)
{
    bool none[MOST_BLOCKS] = {false}, chosen[MOST_BLOCKS];
    int64_t now = recompute_peak(p, none);
    int64_t budget = now - draw(0, 1 + now / 2);
    int64_t least = brute_force(p, c, budget);
    struct recompute_result r = recompute_choose(p, budget, chosen);
    assert_int_equal(r.fits, least < INT64_MAX);
    assert_true(r.is_exact);
    if (is_chain && budget < now)
        assert_true(r.is_chain);
    assert_int_equal(r.time_ns, recompute_time(p, chosen));
    assert_int_equal(r.peak_bytes, c ? peak_of(c, chosen) : recompute_peak(p, chosen));
    if (r.fits) {
        assert_true(r.peak_bytes <= budget);
        assert_int_equal(r.time_ns, least);
    }
}

TEST(no_choice_for_a_chain_is_better_by_brute_force)
{
    for (uint32_t turn = 0; turn < 3000; turn++) {
        struct chain c;
        random_state = turn;
        random_chain(&c, (uint32_t)draw(1, turn % 100 == 0 ? 12 : 9), turn % 3 ? 40 : 100000);
        struct posed p = pose_chain(&c);
        check(&p.problem, &c, true);
    }
}

/* Branches, modules within each other's time, recomputations that add to other places. */
TEST(no_choice_for_any_places_is_better_by_brute_force)
{
    for (uint32_t turn = 0; turn < 2000; turn++) {
        random_state = 1000000 + turn;
        uint32_t n = (uint32_t)draw(1, turn % 100 == 0 ? 12 : 8), places = (uint32_t)draw(1, 12);
        struct posed p = posed_of(n, places);
        for (uint32_t m = 0; m < n; m++)
            p.ns[m] = draw(0, 50);
        for (uint32_t i = 0; i < places; i++) {
            p.alive[i] = draw(50, 200);
            for (uint32_t m = 0; m < n; m++)
                p.less[(size_t)i * n + m] = draw(0, 3) ? draw(0, 20) : -draw(0, 6);
        }
        check(&p.problem, NULL, false);
    }
}

TEST(nothing_is_recomputed_where_all_fits)
{
    struct chain c;
    bool chosen[MOST_BLOCKS];
    random_state = 5;
    random_chain(&c, 8, 40);
    struct posed p = pose_chain(&c);
    struct recompute_result r = recompute_choose(&p.problem, INT64_MAX / 2, chosen);
    assert_true(r.fits && r.is_exact && r.time_ns == 0);
    struct posed empty = posed_of(0, 0);
    r = recompute_choose(&empty.problem, 0, chosen);
    assert_true(r.fits && r.peak_bytes == 0);
}

/* Blocks that all differ, in units so small that no two sums are equal; those that repeat. */
TEST(the_choice_of_96_blocks_is_exact)
{
    for (uint32_t turn = 0; turn < 12; turn++) {
        struct chain c;
        bool chosen[MOST_BLOCKS], all[MOST_BLOCKS], none[MOST_BLOCKS] = {false};
        memset(all, 1, sizeof all);
        random_state = 77 + turn;
        random_chain(&c, 96, turn % 3 == 0 ? 90 : 1000000000);
        for (uint32_t i = 1; i < c.n && turn % 3 == 2; i++) { /* measured times differ a little */
            c.blocks[i] = c.blocks[0];
            c.blocks[i].ns += draw(0, c.blocks[0].ns / 20);
        }
        struct posed p = pose_chain(&c);
        int64_t low = recompute_peak(&p.problem, all), high = recompute_peak(&p.problem, none);
        for (int share = 1; share < 8; share++) {
            struct recompute_result r =
                recompute_choose(&p.problem, low + (high - low) * share / 8, chosen);
            assert_true(low >= high || (r.fits && r.is_chain && r.is_exact));
        }
    }
}
