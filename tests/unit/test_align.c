/* Clocks on one axis, from made-up messages between clocks whose truth is known. */

#include "align/align.h"
#include "case.h"

#define US INT64_C(1000)
#define MS INT64_C(1000000)
#define S  INT64_C(1000000000)

/* ---- made-up clocks and messages ---- */

struct truth {
    int64_t offset_ns; /* shown less true, at true time 0 */
    double ppm;
    int64_t step_at_ns, step_ns; /* from then on the clock shows so much more */
    int64_t bend_at_ns;
    double bend_ppm; /* from then on it runs so much faster */
};

static int64_t shown(const struct truth *truth, int64_t true_ns)
{
    return true_ns + truth->offset_ns + (int64_t)floor((double)true_ns * truth->ppm * 1e-6) +
           (truth->bend_ppm != 0 && true_ns > truth->bend_at_ns
                ? (int64_t)floor((double)(true_ns - truth->bend_at_ns) * truth->bend_ppm * 1e-6)
                : 0) +
           (truth->step_ns && true_ns >= truth->step_at_ns ? truth->step_ns : 0);
}

enum { MAX_CLOCKS = 1024 };

struct world {
    struct truth truth[MAX_CLOCKS];
    uint32_t n;
    struct align *align;
    int64_t length_ns;
    uint64_t seed;
    uint64_t n_facts;
    struct said {
        uint32_t from, to;
        int64_t from_ns, to_ns;
    } * facts;
};

static double draw(struct world *w) /* [0, 1) */
{
    w->seed = w->seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
    uint64_t x = w->seed >> 11;
    return (double)((x ^ x >> 23) & 0xfffffffffffff) / 0x1p52;
}

static void destroy(struct world *w)
{
    align_destroy(w->align);
    free(w->facts);
    free(w);
}

static struct world *world_of(uint32_t n, int64_t length_ns, uint64_t seed)
{
    struct world *w = calloc(1, sizeof *w);
    assert_non_null(w);
    *w = (struct world){.n = n, .length_ns = length_ns, .seed = seed * 7919 + 1};
    w->align = align_create(n);
    assert_non_null(w->align);
    for (int i = 0; i < 8; i++)
        draw(w);
    KEEP(w, destroy);
    return w;
}

static void drift_apart(struct world *w, double seconds, double ppm)
{
    for (uint32_t c = 1; c < w->n; c++)
        w->truth[c] = (struct truth){
            (int64_t)((draw(w) - 0.5) * 2e9 * seconds), (draw(w) - 0.5) * 2 * ppm, 0, 0, 0, 0};
}

static void say(struct world *w, uint32_t from, uint32_t to, int64_t sent_ns, int64_t received_ns)
{
    uint32_t pair = align_pair(w->align, from, to);
    int64_t a = shown(&w->truth[from], sent_ns), b = shown(&w->truth[to], received_ns);
    if ((w->n_facts & (w->n_facts - 1)) == 0) {
        w->facts = realloc(w->facts, (2 * w->n_facts + 1) * sizeof *w->facts);
        assert_non_null(w->facts);
    }
    w->facts[w->n_facts++] = (struct said){from, to, a, b};
    align_before(w->align, pair, from, a, b, w->n_facts);
}

/* `n` messages at any time, each at least `least_ns` under way, and one in four much longer. */
static void talk(struct world *w, uint32_t from, uint32_t to, int n, int64_t least_ns)
{
    for (int i = 0; i < n; i++) {
        int64_t at = (int64_t)(draw(w) * (double)w->length_ns);
        double queued = draw(w) < 0.25 ? draw(w) * 5e6 : draw(w) * 30e3;
        say(w, from, to, at, at + least_ns + (int64_t)queued);
    }
}

static void talk_both(struct world *w, uint32_t a, uint32_t b, int n, int64_t least_ns)
{
    talk(w, a, b, n, least_ns);
    talk(w, b, a, n, least_ns);
}

static void solve(struct world *w)
{
    for (uint32_t c = 0; c < w->n; c++)
        align_cover(w->align, c, shown(&w->truth[c], 0), shown(&w->truth[c], w->length_ns));
    align_solve(w->align);
}

static const struct dpro_clock_segment *segment_at(const struct world *w, uint32_t c,
                                                   int64_t local_ns)
{
    const struct dpro_clock_segment *at = align_result(w->align, c)->segments;
    uint32_t n = align_result(w->align, c)->n_segments, i = 0;
    if (n == 0)
        return NULL;
    while (i + 1 < n && at[i + 1].start_ns <= local_ns)
        i++;
    return &at[i];
}

static int64_t aligned(const struct world *w, uint32_t c, int64_t local_ns)
{
    const struct dpro_clock_segment *s = segment_at(w, c, local_ns);
    assert_non_null(s);
    return local_ns + s->offset_ns +
           (int64_t)floor(s->drift_ppm * 1e-6 * (double)(local_ns - s->start_ns) + 0.5);
}

/* How far off clock c is at a true time; the reference's own time is the axis. */
static int64_t error_at(const struct world *w, uint32_t c, int64_t true_ns)
{
    return llabs(aligned(w, c, shown(&w->truth[c], true_ns)) - shown(&w->truth[0], true_ns));
}

static int64_t worst_error(const struct world *w, uint32_t c)
{
    int64_t worst = 0;
    for (int k = 0; k <= 8; k++) {
        int64_t error = error_at(w, c, w->length_ns / 8 * k);
        worst = error > worst ? error : worst;
    }
    return worst;
}

static int64_t uncertainty_at(const struct world *w, uint32_t c, int64_t true_ns)
{
    return segment_at(w, c, shown(&w->truth[c], true_ns))->uncertainty_ns;
}

static void assert_truth_is_within_uncertainty(const struct world *w)
{
    for (uint32_t c = 0; c < w->n; c++)
        for (int k = 0; k <= 8; k++) {
            int64_t at = w->length_ns / 8 * k;
            if (error_at(w, c, at) > uncertainty_at(w, c, at) + 2)
                fail_msg("clock %u is %lld ns off, said to be within %lld", c,
                         (long long)error_at(w, c, at), (long long)uncertainty_at(w, c, at));
        }
}

static void assert_all_facts_hold(const struct world *w)
{
    for (uint64_t i = 0; i < w->n_facts; i++) {
        const struct said *said = &w->facts[i];
        assert_true(aligned(w, said->from, said->from_ns) <= aligned(w, said->to, said->to_ns) + 5);
    }
}

static uint32_t n_segments(const struct world *w, uint32_t c)
{
    return align_result(w->align, c)->n_segments;
}

static uint32_t n_conflicts(const struct world *w)
{
    const struct align_conflict *at;
    return align_conflicts(w->align, &at);
}

/* ---- two clocks ---- */

TEST(two_clocks_meet_in_the_middle_of_what_is_possible)
{
    struct world *w = world_of(2, S / 2, 1);
    w->truth[1].offset_ns = 7 * MS;
    say(w, 0, 1, 100 * MS, 100 * MS + 30 * US);
    say(w, 1, 0, 100 * MS, 100 * MS + 10 * US);
    solve(w);
    const struct dpro_clock_segment *s = segment_at(w, 1, 0);
    assert_int_equal(n_segments(w, 1), 1);
    assert_true(llabs(s->offset_ns - (-7 * MS - 10 * US)) <= 2);
    assert_true(s->drift_ppm == 0);
    assert_true(s->uncertainty_ns >= 20 * US); /* and what drift may add */
    assert_true(s->uncertainty_ns <= 20 * US + S / 2 / 1000);
}

TEST(clocks_years_apart_are_no_different)
{
    struct world *w = world_of(3, 4 * S, 4);
    w->truth[0].offset_ns = INT64_C(1790000000) * S;
    w->truth[1] = (struct truth){INT64_C(3) * 365 * 86400 * S, -60, 0, 0, 0, 0};
    w->truth[2] = (struct truth){INT64_C(-40) * 365 * 86400 * S, 60, 0, 0, 0, 0};
    talk_both(w, 0, 1, 2000, 15 * US);
    talk_both(w, 1, 2, 2000, 15 * US);
    solve(w);
    assert_true(worst_error(w, 1) < 10 * US);
    assert_true(worst_error(w, 2) < 20 * US);
    assert_truth_is_within_uncertainty(w);
}

TEST(a_long_recording_stays_exact)
{
    struct world *w = world_of(2, 4000 * S, 5); /* 100 ppm are 0.4 s by its end */
    w->truth[1] = (struct truth){S, 100, 0, 0, 0, 0};
    talk_both(w, 0, 1, 50000, 15 * US);
    solve(w);
    assert_int_equal(n_segments(w, 1), 1);
    assert_true(worst_error(w, 1) < 8 * US);
    assert_truth_is_within_uncertainty(w);
}

TEST(a_step_cuts_the_clock_in_two)
{
    for (int sign = -1; sign <= 1; sign += 2) {
        struct world *w = world_of(2, 6 * S, 6);
        w->truth[1] = (struct truth){5 * MS, 20, 3 * S, sign * 20 * MS, 0, 0};
        talk_both(w, 0, 1, 6000, 15 * US);
        solve(w);
        assert_int_equal(n_segments(w, 1), 2);
        assert_true(error_at(w, 1, S) < 20 * US);
        assert_true(error_at(w, 1, 2 * S) < 20 * US);
        assert_true(error_at(w, 1, 4 * S) < 20 * US);
        assert_true(error_at(w, 1, 5 * S) < 20 * US);
    }
}

TEST(a_clock_that_changes_its_speed_is_followed)
{
    for (uint64_t seed = 0; seed < 60; seed++) {
        struct world *w = world_of(2, 12 * S, seed);
        int64_t bend = (int64_t)(draw(w) * 12e9);
        w->truth[1] = (struct truth){5 * MS, 20, 0, 0, bend, (draw(w) - 0.5) * 200};
        talk_both(w, 0, 1, 4000, 15 * US);
        solve(w);
        for (int64_t at = 0; at < 12 * S; at += 100 * MS) {
            assert_true(error_at(w, 1, at) < 30 * US);
            assert_true(error_at(w, 1, at) * 4 <= uncertainty_at(w, 1, at) * 5);
        }
    }
}

TEST(one_way_traffic_ties_nothing)
{
    struct world *w = world_of(3, 2 * S, 7);
    drift_apart(w, 1, 50);
    talk(w, 0, 1, 500, 20 * US);
    talk(w, 2, 0, 500, 20 * US);
    solve(w);
    assert_int_equal(n_segments(w, 1), 0);
    assert_int_equal(n_segments(w, 2), 0);
}

TEST(a_circle_of_one_way_traffic_ties_all)
{
    struct world *w = world_of(4, 5 * S, 8);
    drift_apart(w, 1, 50);
    for (uint32_t c = 0; c < 4; c++)
        talk(w, c, (c + 1) % 4, 4000, 20 * US);
    solve(w);
    assert_truth_is_within_uncertainty(w);
    for (uint32_t c = 1; c < 4; c++)
        assert_true(worst_error(w, c) < 60 * US);
}

TEST(a_clock_that_nobody_talks_to_is_not_guessed)
{
    struct world *w = world_of(4, 2 * S, 9);
    drift_apart(w, 1, 50);
    talk_both(w, 0, 1, 500, 20 * US);
    talk_both(w, 2, 3, 500, 20 * US);
    bool tied[4];
    align_ties(w->align, tied);
    assert_true(tied[0] && tied[1] && !tied[2] && !tied[3]);
    solve(w);
    assert_int_equal(n_segments(w, 1), 1);
    assert_int_equal(n_segments(w, 2), 0);
    assert_int_equal(n_segments(w, 3), 0);
}

/* ---- contradictions ---- */

TEST(a_contradiction_is_named_and_put_aside)
{
    struct world *w = world_of(2, 6 * S, 10);
    w->truth[1] = (struct truth){5 * MS, 30, 0, 0, 0, 0};
    talk_both(w, 0, 1, 3000, 15 * US);
    say(w, 0, 1, 3 * S, 3 * S - 4 * MS); /* received 4 ms before it was sent */
    uint64_t mark = w->n_facts;
    solve(w);
    const struct align_conflict *conflicts;
    assert_int_equal(align_conflicts(w->align, &conflicts), 1);
    assert_true(conflicts->marks[0] == mark || conflicts->marks[1] == mark);
    assert_int_equal(conflicts->from + conflicts->to, 1);
    assert_true(conflicts->by_ns > 3 * MS);
    assert_int_equal(n_segments(w, 1), 1);
    assert_true(worst_error(w, 1) < 8 * US);
    assert_truth_is_within_uncertainty(w);
}

TEST(a_contradiction_over_three_clocks_is_named)
{
    struct world *w = world_of(3, S / 2, 11);
    say(w, 0, 1, 100 * MS, 100 * MS + 10 * US);
    say(w, 1, 2, 100 * MS, 100 * MS + 10 * US);
    say(w, 2, 0, 100 * MS, 100 * MS - 30 * MS);
    solve(w);
    assert_true(n_conflicts(w) >= 1);
}

/* Each second neighbour says a message to come back before it was sent, past all that the others
 * know; all talk with the reference. */
TEST(contradictions_of_many_clocks_are_found_together)
{
    struct world *w = world_of(MAX_CLOCKS - 1, 2 * S, 21);
    drift_apart(w, 1, 50);
    for (uint32_t c = 1; c < w->n; c++)
        talk_both(w, 0, c, 200, 15 * US);
    for (uint32_t c = 1; c + 1 < w->n; c += 2)
        say(w, c, c + 1, S, S - 4 * MS);
    solve(w);
    assert_int_equal(n_conflicts(w), w->n / 2);
    for (uint32_t c = 1; c < w->n; c++)
        assert_true(worst_error(w, c) < 20 * US);
}

TEST(clocks_that_fit_nothing_come_to_an_end)
{
    struct world *w = world_of(3, 20 * S, 12);
    for (int i = 0; i < 3000; i++) { /* any time at all */
        uint32_t from = (uint32_t)(draw(w) * 3), to = (from + 1 + (uint32_t)(draw(w) * 2)) % 3;
        say(w, from, to, (int64_t)(draw(w) * 20e9), (int64_t)(draw(w) * 20e9));
    }
    solve(w);
    assert_true(n_conflicts(w) >= 1);
}

TEST(a_clock_that_is_set_all_the_time_has_so_many_lines)
{
    struct world *w = world_of(2, 600 * S, 20);
    for (int64_t i = 0; i < 2000; i++) { /* another 20 ms each 300 ms */
        uint32_t pair = align_pair(w->align, 0, 1);
        int64_t at = i * 300 * MS, off = (i * 7 % 11) * 20 * MS;
        align_before(w->align, pair, 0, at, at + off + 20 * US, 0);
        align_before(w->align, pair, 1, at + off, at + 20 * US, 0);
    }
    solve(w);
    assert_true(n_segments(w, 1) > 500 && n_segments(w, 1) <= 1000);
}

TEST(hostile_times_are_survived)
{
    static const int64_t times[] = {INT64_MIN,     INT64_MIN / 2, -1,           0, 1, S, INT64_MAX,
                                    INT64_MAX / 2, INT64_MAX / 4, INT64_MIN / 4};
    enum { N = sizeof times / sizeof *times };
    for (uint64_t seed = 0; seed < 60; seed++) {
        struct world *w = world_of(3, S, seed);
        for (int i = 0; i < 40; i++) {
            uint32_t from = (uint32_t)(draw(w) * 3), to = (from + 1 + (uint32_t)(draw(w) * 2)) % 3;
            uint32_t pair = align_pair(w->align, from, to);
            align_before(w->align, pair, from, times[(int)(draw(w) * N)], times[(int)(draw(w) * N)],
                         0);
            if (draw(w) < 0.2)
                align_cover(w->align, from, times[(int)(draw(w) * N)], times[(int)(draw(w) * N)]);
            if (draw(w) < 0.2) {
                align_keep(w->align, from);
                align_near(w->align, pair, from, times[(int)(draw(w) * N)],
                           times[(int)(draw(w) * N)]);
            }
        }
        align_solve(w->align);
    }
}

/* ---- choices ---- */

TEST(moments_that_were_near_each_other_decide_within_the_facts)
{
    struct world *w = world_of(3, 900 * MS, 13);
    w->truth[1].offset_ns = 5 * MS;
    w->truth[2].offset_ns = -3 * MS;
    for (uint32_t c = 1; c < 3; c++) {
        talk(w, 0, c, 20, 10 * US);
        talk(w, c, 0, 20, 3 * MS); /* the middle is far off */
        align_keep(w->align, c);
        for (int i = 0; i < 9; i++) {
            int64_t at = 100 * MS * i;
            align_near(w->align, align_pair(w->align, 0, c), 0, at,
                       shown(&w->truth[c], at + (i % 3 - 1) * 2 * US));
        }
    }
    solve(w);
    assert_true(worst_error(w, 1) <= 5 * US);
    assert_true(worst_error(w, 2) <= 5 * US);
    assert_truth_is_within_uncertainty(w);
}

/* No drift that the other facts leave open: moments show one, or none. */
TEST(moments_that_were_near_each_other_tell_of_a_drift)
{
    for (int ppm = 0; ppm <= 100; ppm += 50) {
        struct world *w = world_of(3, 3 * S, 15);
        for (uint32_t c = 1; c < 3; c++) {
            w->truth[c] = (struct truth){.offset_ns = 5 * MS, .ppm = c == 1 ? ppm : -ppm};
            talk_both(w, 0, c, 40, 3 * MS);
            align_keep(w->align, c);
            for (int i = 0; i < 60; i++) {
                int64_t at = 50 * MS * i;
                align_near(w->align, align_pair(w->align, 0, c), 0, at,
                           shown(&w->truth[c], at + (i % 5 - 2) * 4 * US));
            }
        }
        solve(w);
        assert_true(worst_error(w, 1) <= 15 * US);
        assert_true(worst_error(w, 2) <= 15 * US);
        assert_truth_is_within_uncertainty(w);
    }
}

TEST(a_clock_that_keeps_its_time_moves_no_further_than_it_must)
{
    for (int off = 0; off < 2; off++) {
        struct world *w = world_of(2, 100 * MS, 14);
        w->truth[1].offset_ns = off ? 50 * MS : 0;
        say(w, 0, 1, 10 * MS, 11 * MS);
        say(w, 1, 0, 10 * MS, 40 * MS);
        align_keep(w->align, 1);
        solve(w);
        int64_t moved = segment_at(w, 1, 0)->offset_ns;
        assert_true(llabs(moved - (off ? -20 * MS : 0)) < 100 * US);
    }
}

/* ---- any clocks ---- */

static void link_all(struct world *w, int shape, int n, int64_t least_ns)
{
    for (uint32_t c = 1; c < w->n; c++) {
        uint32_t other = shape == 0 ? c - 1 : shape == 1 ? (c - 1) / 2 : shape == 2 ? 0 : c % 3;
        if (other != c)
            talk_both(w, other, c, n, least_ns);
    }
    if (shape == 0 && w->n > 2)
        talk_both(w, w->n - 1, 0, n, least_ns);
    for (uint32_t c = 0; shape == 3 && c < w->n; c++)
        if (c % 3 != (c + 1) % w->n)
            talk_both(w, c, (c + 1) % w->n, n, least_ns);
}

TEST(the_truth_is_within_the_uncertainty)
{
    for (uint64_t seed = 0; seed < 400; seed++) {
        uint32_t n = 2 + (uint32_t)(seed % 7);
        struct world *w = world_of(n, S / 4 + (int64_t)(seed % 5) * 2 * S, seed);
        drift_apart(w, seed % 3 ? 0.01 : 10, 90);
        link_all(w, (int)(seed / 7 % 4), 5 + (int)(seed % 11) * 40, (int64_t)(seed % 4) * 20 * US);
        solve(w);
        assert_int_equal(n_conflicts(w), 0);
        for (uint32_t c = 1; c < n; c++)
            assert_int_equal(n_segments(w, c), 1);
        assert_all_facts_hold(w);
        assert_truth_is_within_uncertainty(w);
    }
}

TEST(many_clocks_are_aligned_within_the_noise)
{
    for (int shape = 1; shape < 3; shape++) {
        struct world *w = world_of(MAX_CLOCKS, 5 * S, 15 + (uint64_t)shape);
        drift_apart(w, 1, 90);
        link_all(w, shape, 300, 20 * US);
        solve(w);
        assert_all_facts_hold(w);
        assert_truth_is_within_uncertainty(w);
        for (uint32_t c = 1; c < w->n; c++)
            assert_true(worst_error(w, c) < (shape == 1 ? 60 : 15) * US);
    }
}

TEST(bounds_hold_the_truth)
{
    struct world *w = world_of(3, 5 * S, 18);
    drift_apart(w, 1, 90);
    talk_both(w, 0, 1, 3000, 20 * US);
    talk_both(w, 1, 2, 3000, 20 * US);
    solve(w);
    for (uint32_t c = 1; c < 3; c++) {
        uint32_t n = align_result(w->align, c)->n_bounds, tight = 0;
        const struct dpro_clock_bound *bounds = align_result(w->align, c)->bounds;
        assert_true(n > 100 && n <= ALIGN_MAX_BOUNDS);
        for (uint32_t i = 0; i < n; i++) {
            assert_true(i == 0 || bounds[i].local_ns > bounds[i - 1].local_ns);
            double ppm = w->truth[c].ppm * 1e-6;
            double true_ns =
                ((double)bounds[i].local_ns - (double)w->truth[c].offset_ns) / (1 + ppm);
            double must = true_ns - (double)bounds[i].local_ns;
            assert_true((double)bounds[i].lower_ns - 3e3 <= must);
            assert_true(must <= (double)bounds[i].upper_ns + 3e3);
            tight += bounds[i].upper_ns - bounds[i].lower_ns < 200 * US;
        }
        assert_true(tight > n / 2);
    }
}
