/* Which op of one job is which of another. */

#include "case.h"
#include "diagnose/between_jobs.h"
#include "graph_text.h"

static struct job_match match_of(const struct dpro_graph *a, const struct dpro_graph *b)
{
    struct arena *arena = kept_memory(1, sizeof *arena);
    KEEP(arena, arena_fini);
    return match_jobs(a, b, arena);
}

static void assert_is(const struct job_match *m, const char *a, const char *b)
{
    uint32_t op_a = op_named(m->jobs[0], a), op_b = op_named(m->jobs[1], b);
    assert_int_equal(m->other[0][op_a], op_b);
    assert_int_equal(m->other[1][op_b], op_a);
}

TEST(ops_are_matched_by_rank_device_and_name)
{
    const struct dpro_graph *a = graph_of("load:5@d0 -> fw:10@d0 -> bw:20@d0 -> e* => load;"
                                          "k:7@g0; fw -> k; up:3@d1#1 -> f*#1 => up");
    const struct dpro_graph *b = graph_of("up:1@d1#1 -> f*#1 => up; x:3@d5 -> y:2@d5; k:9@g7;"
                                          "load:5@d6 -> more:4@d6 -> bw:2@d6 -> e* => load");
    struct job_match m = match_of(a, b);
    assert_is(&m, "load", "load");
    assert_is(&m, "bw", "bw");
    assert_is(&m, "e", "e");
    assert_is(&m, "k", "k");
    assert_is(&m, "up", "up");
    assert_int_equal(m.other[0][op_named(a, "fw")], DPRO_NO_OP);
    assert_int_equal(m.other[1][op_named(b, "more")], DPRO_NO_OP);
    assert_int_equal(m.other[1][op_named(b, "x")], DPRO_NO_OP);
    assert_int_equal(m.n_matched, 6);
    assert_int_equal(m.devices[b->device[op_named(b, "bw")]], a->device[op_named(a, "bw")]);
    assert_int_equal(m.devices[b->device[op_named(b, "x")]], DPRO_NO_DEVICE);
}

TEST(a_job_is_matched_with_itself_op_by_op)
{
    for (uint64_t seed = 0; seed < 50; seed++) {
        const struct dpro_graph *g = random_graph(seed);
        struct job_match m = match_of(g, g);
        for (uint32_t op = 0; op < g->n_ops; op++)
            assert_int_equal(m.other[0][op], op);
    }
}

TEST(a_rank_that_only_one_job_has_is_matched_with_none)
{
    const struct dpro_graph *a = graph_of("x:5@d0; x1:6@d1#1");
    const struct dpro_graph *b = graph_of("x:5@d0");
    struct job_match m = match_of(a, b);
    assert_is(&m, "x", "x");
    assert_int_equal(m.other[0][op_named(a, "x1")], DPRO_NO_OP);
}

TEST(communication_of_another_size_is_other_work)
{
    struct dpro_graph *a = graph_of("a:1@g0!COLLECTIVE"), *b = graph_of("a:1@g0!COLLECTIVE");
    a->size_bytes = kept_memory(1, sizeof(uint64_t));
    b->size_bytes = kept_memory(1, sizeof(uint64_t));
    a->size_bytes[0] = 100;
    b->size_bytes[0] = 100;
    assert_int_equal(match_of(a, b).n_matched, 1);
    b->size_bytes[0] = 50;
    assert_int_equal(match_of(a, b).n_matched, 0);
}
