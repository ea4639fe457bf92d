/* Why one job is slower than another: pairs of jobs whose difference is known. */

#include "case.h"
#include "graph/graph.h"
#include "graph_text.h"

#include <dpro/diagnose.h>

static const struct dpro_against_view *against(const struct dpro_graph *a,
                                               const struct dpro_graph *b)
{
    struct dpro_error err;
    struct dpro_against *found = NULL;
    struct dpro_diagnose_options options = {.size = sizeof options, .threads = 1};
    assert_int_equal(dpro_against_run(a, b, &options, &found, &err), 0);
    KEEP(found, dpro_against_destroy);
    const struct dpro_against_view *v = dpro_against_view(found);
    int64_t sum = v->not_matched_ns;
    for (uint32_t c = 0; c < v->n_causes; c++)
        sum += v->causes[c].blame_ns;
    assert_int_equal(sum, v->b_ns - v->a_ns);
    return v;
}

static int64_t blame_of(const struct dpro_against_view *v, const char *cause)
{
    for (uint32_t c = 0; c < v->n_causes; c++)
        if (strcmp(v->causes[c].cause, cause) == 0)
            return v->causes[c].blame_ns;
    return 0;
}

/* Both ways round: what makes B slower than A makes A faster than B. */
static void assert_blame(const char *a, const char *b, const char *cause, int64_t ns)
{
    const struct dpro_graph *graphs[] = {graph_of(a), graph_of(b)};
    for (int back = 0; back < 2; back++) {
        const struct dpro_against_view *v = against(graphs[back], graphs[!back]);
        const char *named = !back ? cause : strcmp(cause, "new_ops") == 0 ? "gone_ops" : cause;
        assert_int_equal(v->b_ns - v->a_ns, back ? -ns : ns);
        assert_int_equal(blame_of(v, named), back ? -ns : ns);
        assert_int_equal(v->not_matched_ns, 0);
    }
}

#define JOB(load, fw, bw, more)                                                                    \
    "load:" load "@d0!INPUT -> fw:" fw "@d0 -> " more "bw:" bw "@d0!BW -> e* => load;"

TEST(a_job_is_no_slower_than_itself)
{
    for (uint64_t seed = 0; seed < 30; seed++) {
        const struct dpro_graph *g = random_graph(seed);
        const struct dpro_against_view *v = against(g, g);
        assert_int_equal(v->b_ns, v->a_ns);
        assert_int_equal(v->n_causes, 0);
    }
}

TEST(what_became_longer_is_blamed)
{
    assert_blame(JOB("10", "100", "200", ""), JOB("10", "120", "200", ""), "forward", 20);
    assert_blame(JOB("10", "100", "200", ""), JOB("10", "100", "240", ""), "backward", 40);
    assert_blame(JOB("10", "100", "200", ""), JOB("35", "100", "200", ""), "input", 25);
    assert_blame(JOB("10", "100", "200", ""), JOB("10", "100+7", "200", ""), "gaps", 7);
}

TEST(an_op_more_is_a_cause_of_its_own)
{
    assert_blame(JOB("10", "100", "200", ""), JOB("10", "100", "200", "loss:30@d0 -> "), "new_ops",
                 30);
}

TEST(an_op_that_waits_for_the_gpu_is_blamed_for_that_wait)
{
    /* the kernel is hidden behind bw until something waits for it */
    const char *kernel = "fw -> k:150@g0 -> e;";
    char a[300], b[300];
    snprintf(a, sizeof a, "%s%s", JOB("10", "100", "200", ""), kernel);
    snprintf(b, sizeof b, "%s%sk -> item;", JOB("10", "100", "200", "item:5@d0 -> "), kernel);
    assert_blame(a, b, "new_ops", 155);
}

TEST(another_size_of_buckets_is_communication)
{
    const char *one =
        JOB("10", "100", "200", "") "fw -> x:90@g0!COLLECTIVE -> y:80@g0!COLLECTIVE -> e;";
    const char *two = JOB("10", "100", "200", "") "bw -> z:60@g0!COLLECTIVE -> e;";
    assert_blame(one, two, "communication", 60);
}

TEST(the_slow_rank_is_named)
{
    const char *text = "f0:100@d0 -> t:10@g0!COLLECTIVE -> e0* => f0;"
                       "f1:%d@d1#1 -> u:10@g1#1!COLLECTIVE -> e1*#1 => f1; f0 -> u; f1 -> t;";
    char a[300], b[300];
    snprintf(a, sizeof a, text, 100);
    snprintf(b, sizeof b, text, 130);
    const struct dpro_against_view *v = against(graph_of(a), graph_of(b));
    assert_int_equal(blame_of(v, "forward"), 30);
    assert_int_equal(v->causes[0].n_ranks, 1);
    assert_int_equal(v->causes[0].ranks[0], 1);
    assert_string_equal(v->causes[0].parts[0].what, "f1");
    assert_int_equal(v->causes[0].parts[0].blame_ns, 30);
}

TEST(only_some_iterations_are_slow)
{
    const char *a = "x:100/100/100/100@d0 -> e* => x", *b = "x:100/100/100/180@d0 -> e* => x";
    const struct dpro_against_view *v = against(graph_of(a), graph_of(b));
    assert_int_equal(blame_of(v, "forward"), 20);
    /* of different numbers of iterations: their means count */
    v = against(graph_of("x:90/110@d0 -> e* => x"), graph_of(b));
    assert_int_equal(blame_of(v, "forward"), 20);
}

TEST(whatever_takes_other_times_is_matched)
{
    for (uint64_t seed = 0; seed < 60; seed++) {
        const struct dpro_graph *a = random_graph(seed);
        struct dpro_graph b = *a;
        size_t n = (size_t)a->n_ops * MAX(a->n_samples, 1U);
        b.dur_ns = kept_memory(a->n_ops + (size_t)1, sizeof *b.dur_ns);
        for (uint32_t op = 0; op < a->n_ops; op++)
            b.dur_ns[op] = a->dur_ns[op] + pick(50);
        b.sample_dur_ns = a->sample_dur_ns ? kept_memory(n + 1, sizeof *b.sample_dur_ns) : NULL;
        for (size_t i = 0; a->sample_dur_ns && i < n; i++)
            b.sample_dur_ns[i] = a->sample_dur_ns[i] + pick(50);
        against(a, &b); /* that all adds up is asserted there */
        against(&b, a);
    }
}
