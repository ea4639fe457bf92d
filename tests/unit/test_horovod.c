/* Horovod: its thread on every rank, and the way of a tensor from op to op. */

#include "case.h"
#include "trace_text.h"

enum { BASE = 1800000000, ITERATION = 100000, N_ITERATIONS = 4 }; /* s since the epoch; us */

static int64_t at(int iteration, int64_t us)
{
    return (int64_t)BASE * 1000000 + iteration * ITERATION + us;
}

/* A rank hands over a at 20 ms and b at 25 ms (+ late), and updates at 80 ms. */
static void put_profile(int rank, int64_t late)
{
    struct trace_text *text = trace_text_begin(rank, 2);
    for (int i = 0; i < N_ITERATIONS; i++) {
        trace_text_step(text, i, at(i, 0), ITERATION);
        trace_text_cpu(text, "cpu_op", "forward", 1, at(i, 1000), 18000, "");
        trace_text_cpu(text, "cpu_op", "grad_a", 1, at(i, 20000), 100, "");
        trace_text_cpu(text, "cpu_op", "grad_b", 1, at(i, 25000 + late), 100, "");
        trace_text_cpu(text, "cpu_op", "update", 1, at(i, 80000), 10000, "");
    }
}

static void put_event(struct trace_text *text, const char *phase, const char *name, int pid,
                      int64_t ts, const char *more)
{
    char json[300];
    snprintf(json, sizeof json, "{'ph':'%s','name':'%s','ts':%lld,'pid':%d%s},\n", phase, name,
             (long long)ts, pid, more);
    trace_text_node(text, json);
}

static void put_run(struct trace_text *text, int pid, int64_t ready, int64_t start, int64_t end)
{
    put_event(text, "B", "NEGOTIATE_ALLREDUCE", pid, ready, "");
    put_event(text, "E", "", pid, start - 100, "");
    put_event(text, "B", "ALLREDUCE", pid, start, "");
    put_event(text, "B", "MEMCPY_IN_FUSION_BUFFER", pid, start, "");
    put_event(text, "E", "", pid, start + 1000, "");
    put_event(text, "B", "GLOO_ALLREDUCE", pid, start + 1000, "");
    put_event(text, "E", "", pid, end - 1000, "");
    put_event(text, "B", "MEMCPY_OUT_FUSION_BUFFER", pid, end - 1000, "");
    put_event(text, "E", "", pid, end, "");
    put_event(text, "E", "", pid, end, ",'args':{'dtype':'float32','shape':'[1000]'}");
}

/* Both tensors fused, from 30 to 70 ms; in the iteration `odd` one after the other, or (`inverse`)
 * in all others. */
static void put_timeline_with(int odd, bool inverse)
{
    struct trace_text *text = trace_text_timeline();
    char json[300];
    snprintf(json, sizeof json,
             "{'name':'process_name','ph':'M','pid':0,'args':{'start_time_since_epoch_in_micros':%"
             "lld}},\n",
             (long long)BASE * 1000000);
    trace_text_node(text, json);
    trace_text_node(text, "{'name':'process_name','ph':'M','pid':1,'args':{'name':'grad_a'}},{'"
                          "name':'process_name','ph':'M','pid':2,'args':{'name':'grad_b'}},\n");
    for (int i = 0; i < N_ITERATIONS; i++) {
        int64_t t = (int64_t)i * ITERATION;
        bool apart = (i == odd) != inverse;
        put_run(text, 1, t + 21000, t + 30000, t + (apart ? 48000 : 70000));
        put_run(text, 2, t + 28000, t + (apart ? 50000 : 30000), t + 70000);
    }
}

static void put_timeline(int apart)
{
    put_timeline_with(apart, false);
}

static int64_t duration(const struct dpro_graph *graph, dpro_op_id op)
{
    return dpro_graph_op(graph, op).dur_ns;
}

TEST(a_tensor_goes_from_its_op_through_horovods_thread_to_what_follows)
{
    put_profile(0, 0);
    put_profile(1, 3000);
    put_timeline(-1);
    struct dpro_graph *graph = trace_text_graph();
    for (int rank = 0; rank < 2; rank++) {
        dpro_op_id arrival = nth_op(graph, rank, "arrival at negotiate", 0);
        dpro_op_id copy_in = nth_op(graph, rank, "MEMCPY_IN_FUSION_BUFFER", 0);
        dpro_op_id transfer = nth_op(graph, rank, "GLOO_ALLREDUCE", 0);
        dpro_op_id copy_out = nth_op(graph, rank, "MEMCPY_OUT_FUSION_BUFFER", 0);
        assert_int_equal(dpro_graph_op(graph, arrival).kind, DPRO_OP_BARRIER);
        assert_int_equal(dpro_graph_op(graph, transfer).kind, DPRO_OP_COLLECTIVE);
        assert_int_equal(dpro_graph_op(graph, transfer).size_bytes, 8000);
        assert_int_equal(dpro_graph_op(graph, copy_in).kind, DPRO_OP_COPY);
        assert_int_equal(duration(graph, copy_in), 1000000);
        assert_int_equal(duration(graph, transfer), 38000000);
        assert_true(edge_to(graph, transfer, copy_out, 0));
        /* the last rank handed b over at 28.1 ms: from then until 30 ms they negotiated */
        assert_int_equal(duration(graph, nth_op(graph, rank, "NEGOTIATE_ALLREDUCE", 0)), 1900000);
        int n_in = 0;
        for (dpro_op_id op = 0; op < dpro_graph_n_ops(graph); op++) {
            struct dpro_op in = dpro_graph_op(graph, op);
            if (in.kind != DPRO_OP_IN || in.rank != rank)
                continue;
            n_in++;
            assert_int_equal(in.size_bytes, 4000);
            assert_true(edge_to(graph, op, arrival, 0));
            assert_true(edge_to(graph, nth_op(graph, rank, in.tensor, 0), op, 0));
        }
        assert_int_equal(n_in, 2);
        assert_true(edge_to(graph, copy_out, nth_op(graph, rank, "update", 0), 0));
    }
}

TEST(an_iteration_that_fused_otherwise_gives_its_shares)
{
    put_profile(0, 0);
    put_profile(1, 0);
    put_timeline(2);
    struct dpro_graph *graph = trace_text_graph();
    /* apart: 16 ms and 18 ms of transfer in all, fused: 38 ms */
    assert_int_equal(duration(graph, nth_op(graph, 1, "GLOO_ALLREDUCE", 0)),
                     (3 * 38 + 16 + 18) * 1000000 / 4);
    assert_int_equal(dpro_graph_n_collectives(graph), 2);
}

/* Rank 1 has no timeline: of its second iteration, which is over after 45 ms, rank 0's tells that
 * the thread was busy until 70 ms. */
TEST(what_seems_to_end_after_its_iteration_is_no_part_of_the_next)
{
    put_profile(0, 0);
    struct trace_text *text = trace_text_begin(1, 2);
    for (int i = 0; i < N_ITERATIONS; i++) {
        int64_t start = i == 2 ? at(1, 45000) : at(i, 0),
                end = i == 1 ? at(1, 45000) : at(i + 1, 0);
        int64_t update = i == 1 ? at(i, 40000) : at(i, 80000);
        trace_text_step(text, i, start, end - start);
        trace_text_cpu(text, "cpu_op", "forward", 1, at(i, 1000), 18000, "");
        trace_text_cpu(text, "cpu_op", "grad_a", 1, at(i, 20000), 100, "");
        trace_text_cpu(text, "cpu_op", "grad_b", 1, at(i, 25000), 100, "");
        trace_text_cpu(text, "cpu_op", "update", 1, update, 1000, "");
    }
    put_timeline_with(1, true);
    struct dpro_graph *graph = trace_text_graph();
    assert_int_equal(dpro_graph_n_collectives(graph), 4);
    int64_t usual = duration(graph, nth_op(graph, 0, "GLOO_ALLREDUCE", 1));
    assert_in_range(duration(graph, nth_op(graph, 1, "GLOO_ALLREDUCE", 1)), usual / 2, usual);
    for (dpro_op_id op = 0; op < dpro_graph_n_ops(graph); op++)
        assert_in_range(duration(graph, op), 0, 40000000);
}

TEST(a_timeline_of_another_run_is_left_out)
{
    struct trace_text *text = trace_text_begin(0, 1);
    for (int i = 0; i < 2; i++) {
        trace_text_step(text, i, at(i, 0) + 7200000000, ITERATION);
        trace_text_cpu(text, "cpu_op", "forward", 1, at(i, 1000) + 7200000000, 18000, "");
    }
    put_timeline(-1);
    struct dpro_graph *graph = trace_text_graph();
    assert_int_equal(dpro_graph_n_collectives(graph), 0);
}
