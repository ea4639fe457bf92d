/* Making graphs by hand and reading them back. */

#include "case.h"
#include "graph_op.h"
#include "graph_text.h"

TEST(what_was_added_is_read_back)
{
    struct graph_builder *b = graph_builder_create();
    assert_int_equal(graph_builder_add_device(b, DPRO_DEVICE_GPU_STREAM, 3, "stream 7"), 0);
    assert_int_equal(graph_builder_add_device(b, DPRO_DEVICE_CPU_THREAD, 3, NULL), 1);
    struct dpro_op conv = {.kind = DPRO_OP_FW, .rank = 3, .device = 0, .name = "conv", .dur_ns = 5};
    struct dpro_op reduce = {.kind = DPRO_OP_COLLECTIVE,
                             .rank = 3,
                             .device = DPRO_NO_DEVICE,
                             .name = "all_reduce",
                             .dur_ns = 70,
                             .gap_ns = 2,
                             .seen_start_ns = -9,
                             .seen_dur_ns = 90,
                             .size_bytes = 1 << 20,
                             .transaction = 42,
                             .tensor = "w"};
    assert_int_equal(add_op(b, &conv, 0), 0);
    assert_int_equal(add_op(b, &reduce, 0), 1);
    conv.rank = 5;
    conv.device = 1;
    assert_int_equal(add_op(b, &conv, 0), 2);
    graph_builder_add_edge(b, 0, 1, 0);
    graph_builder_add_edge(b, 0, 2, 0);
    graph_builder_add_edge(b, 1, 0, 1);
    struct dpro_graph *g = graph_builder_finish(b);
    assert_int_equal(dpro_graph_n_ops(g), 3);
    assert_int_equal(dpro_graph_n_edges(g), 3);
    assert_int_equal(dpro_graph_n_devices(g), 2);
    assert_int_equal(dpro_graph_n_ranks(g), 2);
    struct dpro_op op = dpro_graph_op(g, 1);
    assert_int_equal(op.kind, DPRO_OP_COLLECTIVE);
    assert_int_equal(op.rank, 3);
    assert_int_equal(op.device, DPRO_NO_DEVICE);
    assert_string_equal(op.name, "all_reduce");
    assert_string_equal(op.tensor, "w");
    assert_int_equal(op.dur_ns, 70);
    assert_int_equal(op.gap_ns, 2);
    assert_int_equal(op.seen_start_ns, -9);
    assert_int_equal(op.seen_dur_ns, 90);
    assert_int_equal(op.size_bytes, 1 << 20);
    assert_int_equal(op.transaction, 42);
    op = dpro_graph_op(g, 0);
    assert_int_equal(op.gap_ns, 0);
    assert_int_equal(op.size_bytes, 0);
    assert_string_equal(op.tensor, "");
    assert_int_equal(g->flags[0], GRAPH_OP_GPU);
    assert_int_equal(g->phase[1], DPRO_OP_COLLECTIVE);
    assert_int_equal(dpro_graph_op(g, 2).rank, 5);
    assert_string_equal(dpro_graph_device(g, 0).name, "stream 7");
    assert_string_equal(dpro_graph_device(g, 1).name, "");
    uint32_t n;
    const dpro_op_id *succ = dpro_graph_successors(g, 0, 0, &n);
    assert_int_equal(n, 2);
    assert_int_equal(succ[0], 1);
    assert_int_equal(succ[1], 2);
    succ = dpro_graph_successors(g, 1, 1, &n);
    assert_int_equal(n, 1);
    assert_int_equal(succ[0], 0);
    assert_null(dpro_graph_successors(g, 2, 0, &n));
    assert_int_equal(n, 0);
    assert_int_equal(dpro_graph_op(g, 3).id, DPRO_NO_OP);
    assert_null(dpro_graph_measured_ns(g, &n));
    assert_int_equal(n, 0);
    dpro_graph_destroy(g);
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
