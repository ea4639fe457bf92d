/* Making graphs by hand and reading them back. */

#include "case.h"
#include "graph_op.h"
#include "graph_text.h"

static void check_op(const struct dpro_graph *g, dpro_op_id id, const char *wanted)
{
    struct dpro_op op = dpro_graph_op(g, id);
    char found[200];
    snprintf(found, sizeof found, "%s %d %d '%s' '%s' %lld+%lld seen %lld+%lld %llu #%llu",
             dpro_op_kind_name(op.kind), op.rank, (int)op.device, op.name, op.tensor,
             (long long)op.gap_ns, (long long)op.dur_ns, (long long)op.seen_start_ns,
             (long long)op.seen_dur_ns, (unsigned long long)op.size_bytes,
             (unsigned long long)op.transaction);
    assert_string_equal(found, wanted);
}

TEST(what_was_added_is_read_back)
{
    struct graph_builder *b = graph_builder_create();
    assert_int_equal(graph_builder_add_device(b, DPRO_DEVICE_GPU_STREAM, 3, "stream 7"), 0);
    assert_int_equal(graph_builder_add_device(b, DPRO_DEVICE_CPU_THREAD, 3, NULL), 1);
    struct dpro_op ops[] = {{0, DPRO_OP_FW, 3, 0, .name = "conv", .dur_ns = 5},
                            {1, DPRO_OP_COLLECTIVE, 3, DPRO_NO_DEVICE, .name = "all_reduce",
                             .tensor = "w", .dur_ns = 70, .gap_ns = 2, .seen_start_ns = -9,
                             .seen_dur_ns = 90, .size_bytes = 1 << 20, .transaction = 42},
                            {2, DPRO_OP_FW, 5, 1, .name = "conv", .dur_ns = 5}};
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(add_op(b, &ops[i], 0), i);
    graph_builder_add_edge(b, 0, 1, 0);
    graph_builder_add_edge(b, 0, 2, 0);
    graph_builder_add_edge(b, 1, 0, 1);
    struct dpro_graph *g = graph_builder_finish(b);
    KEEP(g, dpro_graph_destroy);
    assert_int_equal(dpro_graph_n_ops(g), 3);
    assert_int_equal(dpro_graph_n_edges(g), 3);
    assert_int_equal(dpro_graph_n_devices(g), 2);
    assert_int_equal(dpro_graph_n_ranks(g), 2);
    check_op(g, 0, "FW 3 0 'conv' '' 0+5 seen 0+0 0 #0");
    check_op(g, 1, "COLLECTIVE 3 -1 'all_reduce' 'w' 2+70 seen -9+90 1048576 #42");
    check_op(g, 2, "FW 5 1 'conv' '' 0+5 seen 0+0 0 #0");
    assert_int_equal(dpro_graph_op(g, 3).id, DPRO_NO_OP);
    assert_int_equal(g->flags[0], GRAPH_OP_GPU);
    assert_int_equal(g->phase[1], DPRO_OP_COLLECTIVE);
    assert_string_equal(dpro_graph_device(g, 0).name, "stream 7");
    assert_string_equal(dpro_graph_device(g, 1).name, "");
    uint32_t n;
    const dpro_op_id *succ = dpro_graph_successors(g, 0, 0, &n);
    assert_true(n == 2 && succ[0] == 1 && succ[1] == 2);
    succ = dpro_graph_successors(g, 1, 1, &n);
    assert_true(n == 1 && succ[0] == 0);
    assert_true(!dpro_graph_successors(g, 2, 0, &n) && n == 0);
    assert_true(!dpro_graph_measured_ns(g, &n) && n == 0);
}

TEST(fields_that_no_op_uses_take_no_memory)
{
    struct dpro_graph *g = graph_of("a:10@d0 -> b:5@d0");
    assert_null(g->tensor);
    assert_null(g->size_bytes);
    assert_null(g->transaction);
    assert_null(g->seen_start_ns);
    assert_true(g->single_iteration);
    g = graph_of("a:10@d0 -> b:5@d0+1 => a");
    assert_int_equal(g->gap_ns[0], 0);
    assert_int_equal(g->gap_ns[1], 1);
    assert_false(g->single_iteration);
}

TEST(a_cycle_through_the_next_iteration_is_fine)
{
    struct dpro_graph *g = graph_of("a:1 -> b:1 => a => a");
    assert_int_equal(dpro_graph_n_edges(g), 3);
}

TEST(an_op_that_waits_for_nothing_waits_for_the_boundary)
{
    uint32_t n;
    struct dpro_graph *g = graph_of("a:1 -> e* => a; stray:1; other:1#1");
    assert_int_equal(dpro_graph_n_edges(g), 3);
    const dpro_op_id *succ = dpro_graph_successors(g, op_named(g, "e"), 1, &n);
    assert_int_equal(n, 2);
    assert_int_equal(succ[1], op_named(g, "stray"));
    g = graph_of("a:1 -> e*; stray:1");
    assert_int_equal(dpro_graph_n_edges(g), 1);
    assert_true(g->single_iteration);
}

TEST(negative_and_huge_times_are_clamped)
{
    struct graph_builder *b = graph_builder_create();
    struct dpro_op op = {.device = DPRO_NO_DEVICE, .dur_ns = -5, .gap_ns = -1};
    add_op(b, &op, 0);
    op.dur_ns = INT64_MAX;
    add_op(b, &op, 0);
    struct dpro_graph *g = graph_builder_finish(b);
    assert_int_equal(dpro_graph_op(g, 0).dur_ns, 0);
    assert_int_equal(dpro_graph_op(g, 0).gap_ns, 0);
    assert_true(dpro_graph_op(g, 1).dur_ns == GRAPH_TIME_MAX);
    dpro_graph_destroy(g);
}

TEST(an_empty_graph_is_a_graph)
{
    struct dpro_graph *g = graph_of("");
    assert_int_equal(dpro_graph_n_ops(g), 0);
    assert_int_equal(dpro_graph_n_edges(g), 0);
    dpro_graph_destroy(NULL);
}
