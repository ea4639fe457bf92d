/* From traces to the global data-flow graph: iterations, ops, edges, collectives over ranks. */

#include "case.h"
#include "graph/names/names.h"
#include "graph/rank_build.h"
#include "stages_seen.h"
#include "trace_text.h"

#define US INT64_C(1000)

static struct dpro_op op_of(const struct dpro_graph *g, int rank, const char *name, int n)
{
    return dpro_graph_op(g, nth_op(g, rank, name, n));
}

/* ---- iterations ---- */

static uint32_t n_measured(const struct dpro_graph *g)
{
    uint32_t n;
    dpro_graph_measured_ns(g, &n);
    return n;
}

static int64_t measured_us(const struct dpro_graph *g, uint32_t i)
{
    uint32_t n;
    const int64_t *measured = dpro_graph_measured_ns(g, &n);
    assert_true(i < n);
    return measured[i] / US;
}

/* `n` iterations of `us` each. */
static void check_measured(const struct dpro_graph *g, uint32_t n, int64_t us)
{
    assert_int_equal(n_measured(g), n);
    for (uint32_t i = 0; i < n; i++)
        assert_int_equal(measured_us(g, i), us);
}

TEST(an_iteration_reaches_to_the_next_mark)
{
    struct trace_text *t = trace_text_begin(0, 1);
    for (int i = 0; i < 3; i++) {
        trace_text_step(t, 7 + i, 1000 * i, 900 + i); /* the profiler takes what is left */
        trace_text_spans(t, 1000 * i, "10+100 aten::mm");
    }
    struct dpro_graph *g = trace_text_graph();
    assert_int_equal(n_measured(g), 3);
    assert_int_equal(measured_us(g, 0), 1000);
    assert_int_equal(measured_us(g, 1), 1000);
    assert_int_equal(measured_us(g, 2), 902);
}

TEST(of_marks_that_lie_over_each_other_the_first_tell)
{
    struct trace_text *t = trace_text_begin(0, 1);
    trace_text_steps(t, 3, 1000,
                     "100+100 aten::mm; 300+100 aten::mm; 500+100 aten::mm; 700+100 aten::mm");
    for (int i = 0; i < 3; i++)
        trace_text_step(t, 20 + i, 1000 * i + 20, 1010); /* the framework's own */
    struct dpro_graph *g = trace_text_graph();
    check_measured(g, 3, 1000);
    assert_null(dpro_graph_warning(g, 0));
}

TEST(a_step_number_beyond_64_bits_is_no_trouble)
{
    struct trace_text *t = trace_text_begin(0, 1);
    for (int i = 0; i < 2; i++)
        trace_text_spans(t, 1000 * i,
                         "0+900 ! ProfilerStep#99999999999999999999999; 10+100 aten::mm");
    assert_int_equal(measured_us(trace_text_graph(), 0), 900);
}

/* Two ranks of four iterations of eight ops, five of which the third one of some ranks lacks. */
static struct dpro_graph *third_is_short(bool on_first, bool on_second)
{
    for (int rank = 0; rank < 2; rank++) {
        struct trace_text *t = trace_text_begin(rank, 2);
        for (int i = 0; i < 4; i++) {
            trace_text_step(t, i, 1000 * i, 1000);
            for (int k = 0; k < (i == 2 && (rank ? on_second : on_first) ? 3 : 8); k++)
                trace_text_spans(t, 1000 * i, "%d+%d aten::mm", 100 * k, 90 + i);
        }
    }
    return trace_text_graph();
}

TEST(an_iteration_cut_short_is_left_out)
{
    struct dpro_graph *g = third_is_short(false, true);
    assert_int_equal(n_measured(g), 3);
    assert_true(has_warning(g, "cut short"));
    assert_true(has_warning(g, "rank 1"));
}

TEST(an_iteration_that_all_ranks_lack_is_left_out_once)
{
    struct dpro_graph *g = third_is_short(true, true);
    assert_int_equal(dpro_graph_n_left_out(g), 1);
    assert_int_equal(dpro_graph_left_out(g, 0).number, 2);
}

TEST(marks_of_the_gpu_are_not_counted_twice)
{
    struct trace_text *t = trace_text_begin(0, 1);
    trace_text_steps(t, 2, 1000, "10+5 >7 20+100 gemm");
    for (int i = 0; i < 2; i++)
        trace_text_cpu(t, "gpu_user_annotation", i ? "ProfilerStep#1" : "ProfilerStep#0", 7,
                       1000 * i + 20, 100, "");
    assert_int_equal(n_measured(trace_text_graph()), 2);
}

TEST(without_marks_the_optimizer_cuts_iterations)
{
    struct trace_text *t = trace_text_begin(0, 1);
    for (int i = 0; i < 4; i++)
        trace_text_spans(t, 500 * i,
                         "0+20 ! Optimizer.zero_grad#SGD.zero_grad; 30+100 aten::mm;"
                         "400+50 ! Optimizer.step#SGD.step; 410+30 aten::add_");
    struct dpro_graph *g = trace_text_graph();
    assert_int_equal(n_measured(g), 4);
    assert_int_equal(measured_us(g, 1), 500);
    assert_true(has_warning(g, "optimizer"));
    assert_int_equal(op_of(g, 0, "aten::add_", 0).kind, DPRO_OP_UPDATE);
}

/* Five iterations without marks; the first idles for `late_us` within. */
static struct dpro_graph *unmarked(int late_us)
{
    struct trace_text *t = trace_text_begin(0, 1);
    for (int i = 0; i < 5; i++) {
        int late = i == 0 ? late_us : 0;
        trace_text_spans(t, 1000 * i, "0+90 aten::a; 100+90 aten::b; %d+90 aten::c; %d+90 aten::b",
                         200 + late, 300 + late);
    }
    return trace_text_graph();
}

TEST(without_any_mark_the_period_of_the_ops_cuts_iterations)
{
    struct dpro_graph *g = unmarked(0);
    check_measured(g, 4, 1000);
    assert_true(has_warning(g, "period"));
}

TEST(the_loops_head_is_where_it_is_usually_idle_not_where_it_was_once)
{
    check_measured(unmarked(350), 4, 1000);
}

TEST(ranks_learn_from_the_iterations_they_share)
{
    for (int rank = 0; rank < 2; rank++) {
        struct trace_text *t = trace_text_begin(rank, 2);
        for (int i = 0; i < 4; i++) { /* 5, 6, 7, 8 and 7, 8, 9, 10 */
            int number = 5 + 2 * rank + i;
            trace_text_step(t, number, 1000 * number, 900 + number);
            trace_text_spans(t, 1000 * number, "10+%d aten::mm", 100 * number);
        }
    }
    struct dpro_graph *g = trace_text_graph();
    assert_int_equal(n_measured(g), 2);
    assert_int_equal(op_of(g, 0, "aten::mm", 0).dur_ns, 750 * US);
    assert_int_equal(op_of(g, 1, "aten::mm", 0).dur_ns, 750 * US);
}

TEST(a_rank_without_iterations_among_others_is_named)
{
    trace_text_steps(trace_text_begin(0, 2), 3, 1000, "10+400 aten::mm");
    struct trace_text *t = trace_text_begin(1, 2);
    for (int i = 0; i < 3; i++)
        trace_text_spans(t, 1000 * i, "10+400 aten::mm");
    struct dpro_graph *g = trace_text_graph();
    assert_true(has_warning(g, "1 of 2 ranks (first: rank 1) have no iteration marks"));
    assert_true(has_warning(g, "1 of 2 ranks (first: rank 1) number their iterations otherwise"));
}

TEST(of_many_iterations_fifty_are_predicted)
{
    struct dpro_graph *g = trace_text_one(120, 100, "10+50 aten::mm");
    struct dpro_validation validation;
    struct dpro_error err;
    assert_int_equal(dpro_replay_validate(g, NULL, &validation, &err), 0);
    assert_int_equal(validation.n, 50);
    assert_true(validation.max_abs_error_pct < 0.01);
}

TEST(reading_building_and_validating_tell_how_far_they_are)
{
    for (int rank = 0; rank < 3; rank++)
        trace_text_steps(trace_text_begin(rank, 3), 4, 100, "10+50 aten::mm");
    struct stages_seen seen = {.n_wrong = 0};
    struct dpro_graph *g = trace_text_graph_with(&(struct dpro_job_options){
        .size = sizeof(struct dpro_job_options), .sink = stages_sink(&seen)});
    struct dpro_replay_options options = {.threads = 1, .sink = stages_sink(&seen)};
    struct dpro_validation validation;
    struct dpro_error err;
    assert_int_equal(dpro_replay_validate(g, &options, &validation, &err), 0);
    assert_int_equal(validation.n, 4);
    assert_string_equal(seen.names, "join the files;build the graph;validate;");
    assert_int_equal(seen.n_wrong, 0);
}

TEST(times_as_far_apart_as_they_can_be_give_a_graph)
{
    struct trace_text *t = trace_text_begin(0, 1);
    trace_text_cpu(t, "cpu_op", "aten::a", 1, -4611686018427386, 1, "");
    for (int i = 0; i < 8; i++)
        trace_text_cpu(t, "cpu_op", i % 2 ? "aten::b" : "aten::c", 1, 100 * i, 50, "");
    trace_text_cpu(t, "cpu_op", "aten::a", 1, 4611686018427380, 5, "");
    trace_text_step(t, INT_MAX, 0, 800);
    struct dpro_graph *g = trace_text_graph();
    assert_int_equal(op_of(g, 0, "aten::b", 0).dur_ns, 50 * US);
    t = trace_text_begin(0, 1);
    trace_text_cpu(t, "cpu_op", "aten::a", 1, -4611686018427386, 1, "");
    trace_text_cpu(t, "cpu_op", "aten::b", 1, 4611686018427380, 5, "");
    g = trace_text_graph();
    assert_int_equal(op_of(g, 0, "aten::b", 0).gap_ns, INT64_C(9223372036854765) * US);
}

/* ---- ops ---- */

TEST(a_parent_is_what_its_children_leave_of_it)
{
    struct dpro_graph *g =
        trace_text_one(1, 200, "10+100 aten::linear; 20+10 aten::t; 40+60 aten::addmm");
    assert_int_equal(op_of(g, 0, "aten::linear", 0).dur_ns, 10 * US); /* before aten::t */
    assert_int_equal(op_of(g, 0, "aten::linear", 1).dur_ns, 10 * US); /* between */
    assert_int_equal(op_of(g, 0, "aten::linear", 2).dur_ns, 10 * US); /* after aten::addmm */
    assert_int_equal(op_of(g, 0, "aten::t", 0).dur_ns, 10 * US);
    assert_int_equal(op_of(g, 0, "aten::addmm", 0).dur_ns, 60 * US);
}

TEST(python_time_between_ops_is_a_gap)
{
    struct trace_text *t = trace_text_begin(0, 1);
    for (int i = 0; i < 2; i++) {
        trace_text_step(t, i, 1000 * i, 1000);
        trace_text_spans(t, 1000 * i, "100+50 aten::a; %d+50 aten::b", 170 + 20 * i);
    }
    struct dpro_graph *g = trace_text_graph();
    assert_int_equal(op_of(g, 0, "aten::b", 0).gap_ns, 30 * US); /* mean of 20 and 40 */
    assert_int_equal(op_of(g, 0, "aten::a", 0).gap_ns, 100 * US);
}

/* ---- streams ---- */

TEST(a_kernel_follows_its_launch_and_its_stream)
{
    struct dpro_graph *g = /* gemm starts before the call returns */
        trace_text_one(1, 1000, "10+30 >7 25+500 gemm; 50+10 >7 526+100 relu");
    dpro_op_id launch = nth_op(g, 0, "cudaLaunchKernel", 0);
    dpro_op_id gemm = nth_op(g, 0, "gemm", 0), relu = nth_op(g, 0, "relu", 0);
    assert_true(edge_to(g, launch, gemm, 0));
    assert_true(edge_to(g, gemm, relu, 0));
    assert_int_equal(dpro_graph_op(g, launch).dur_ns, 15 * US); /* until the kernel starts */
    assert_int_equal(dpro_graph_op(g, gemm).gap_ns, 0);
    assert_int_equal(dpro_graph_op(g, relu).gap_ns, 1 * US);
}

/* A CPU that launches `n` kernels of 10 us an iteration, one a microsecond, until the queue of 1010
 * is full; from then on each call returns when the oldest kernel is done. */
static void write_full_queue(struct trace_text *t, int n, int iterations)
{
    int64_t *ends = kept_memory((size_t)(n * iterations), sizeof *ends), now = 0, gpu = 0;
    for (int k = 0; k < n * iterations; k++) {
        if (k % n == 0)
            trace_text_step(t, k / n, now, 1); /* reaches to the next mark */
        int64_t call = now++;
        if (k >= 1010 && ends[k - 1010] + 1 > now)
            now = ends[k - 1022] + 1;
        gpu = gpu > now + 1 ? gpu : now + 1;
        trace_text_kernel(t, "gemm", 1, call, now - call, 7, gpu, 10, "");
        gpu = ends[k] = gpu + 10;
    }
    trace_text_step(t, iterations, now, 1); /* cuts the last one */
    trace_text_cpu(t, "cpu_op", "aten::end", 1, now, 1, "");
}

static int64_t replayed_ns(const struct dpro_graph *g, const char *delay)
{
    struct dpro_replay_options options = {.delays = &delay, .n_delays = delay != NULL};
    return dpro_replay_view(replay_of(g, &options))->iterations_ns[4];
}

TEST(a_full_launch_queue_makes_the_cpu_as_slow_as_its_gpu)
{
    struct trace_text *t = trace_text_begin(0, 1);
    write_full_queue(t, 1200, 6);
    struct dpro_graph *g = trace_text_graph();
    /* waiting for room is no duration: the mean call is a microsecond of work */
    int64_t sum = 0;
    for (int i = 0; i < 1200; i++)
        sum += op_of(g, 0, "cudaLaunchKernel", i).dur_ns;
    assert_true(sum < 1200 * 2 * US);
    assert_in_range(replayed_ns(g, NULL), 11900 * US, 12100 * US);
    assert_in_range(replayed_ns(g, "GPU=2"), 23800 * US, 24200 * US);
    assert_in_range(replayed_ns(g, "GPU=0.5"), 5900 * US, 6200 * US);
}

TEST(backward_is_handed_to_its_thread_and_back)
{
    const char *bw = "autograd::engine::evaluate_function: MmBackward0";
    struct dpro_graph *g = trace_text_one(
        2, 1000, "10+200 #5 aten::mm; 230+400 @2 ^5 ~MmBackward0; 650+40 aten::clip");
    dpro_op_id forward = nth_op(g, 0, "aten::mm", 0), backward = nth_op(g, 0, bw, 0);
    dpro_op_id after = nth_op(g, 0, "aten::clip", 0);
    assert_true(edge_to(g, forward, backward, 0));
    assert_true(edge_to(g, backward, after, 0));
    assert_int_equal(dpro_graph_op(g, forward).kind, DPRO_OP_FW);
    assert_int_equal(dpro_graph_op(g, backward).kind, DPRO_OP_BW);
    assert_int_equal(dpro_graph_op(g, after).kind, DPRO_OP_BW);
    assert_int_equal(dpro_graph_op(g, backward).gap_ns, 20 * US);
    assert_int_equal(dpro_graph_op(g, after).gap_ns, 20 * US);
}

/* The main thread idles until threads 2 and 3 are through with an op each, of which the latter goes
 * on with another. In one step thread 2 is not through. */
TEST(a_thread_goes_on_after_the_last_op_that_was_over_in_all_iterations)
{
    for (int late = 0; late < 2; late++) {
        struct trace_text *t = trace_text_begin(0, 1);
        for (int i = 0; i < 4; i++) {
            trace_text_step(t, i, 1000 * i, 1000);
            trace_text_spans(t, 1000 * i,
                             "10+100 aten::a; 120+%d @2 aten::b; 120+480 @3 aten::c;"
                             "600+300 @3 aten::d; 640+100 aten::after",
                             late && i == 2 ? 700 : 500);
        }
        struct dpro_graph *g = trace_text_graph();
        assert_int_equal(has_edge(g, 0, "aten::b", 0, "aten::after", 0), !late);
        assert_int_equal(has_edge(g, 0, "aten::c", 0, "aten::after", 0), late);
    }
}

/* ---- phases ---- */

/* The phase of each op named, by its n-th of that name: "aten::mm FW; aten::mm 1 BW". */
static void check_kinds(const struct dpro_graph *g, const char *kinds)
{
    for (const char *at = kinds; *at; at += strspn(at, "; ")) {
        char name[60], kind[20];
        int n = 0, len = 0;
        if (sscanf(at, "%59s %d %19[A-Z]%n", name, &n, kind, &len) < 3)
            assert_int_equal(sscanf(at, "%59s %19[A-Z]%n", name, kind, &len), 2);
        if (strcmp(dpro_op_kind_name(op_of(g, 0, name, n).kind), kind) != 0)
            fail_msg("%s %d is %s", name, n, dpro_op_kind_name(op_of(g, 0, name, n).kind));
        at += len;
    }
}

#define ACCUMULATE "~torch::autograd::AccumulateGrad;"

TEST(passes_in_a_closure_of_the_optimizer_are_no_update)
{
    check_kinds(trace_text_one(3, 1000,
                               "10+900 ! Optimizer.step#SGD.step;"
                               "20+50 ! Optimizer.zero_grad#SGD.zero_grad; 30+20 aten::zero_;"
                               "100+50 aten::randn; 160+30 #5 aten::to; 200+200 #5 aten::linear;"
                               "210+150 #5 aten::mm; 450+200 ^5 ~MmBackward0; 455+190 aten::bmm;"
                               "700+50 aten::norm; 800+50 aten::sub_; 870+20 custom::momentum;"
                               "950+20 aten::item"),
                "aten::zero_ UPDATE; aten::randn FW; aten::to FW; aten::linear FW; aten::mm FW;"
                "aten::bmm BW; aten::norm UPDATE; aten::sub_ UPDATE; custom::momentum UPDATE;"
                "aten::item UPDATE");
}

TEST(kernels_of_a_closure_are_of_the_phase_of_what_launched_them)
{
    check_kinds(trace_text_one(3, 1000,
                               "10+900 ! Optimizer.step#SGD.step; 100+50 #5 aten::mm;"
                               "110+5 >7 200+100 gemm; 300+200 @2 ^5 ~MmBackward0;"
                               "310+5 @2 >7 400+100 gemm_nt; 600+50 aten::_foreach_add_;"
                               "610+5 >7 700+100 multi_tensor_apply"),
                "gemm FW; gemm_nt BW; multi_tensor_apply UPDATE");
}

/* Iterations that begin with the backward pass of what the one before computed. */
TEST(without_an_optimizer_nothing_is_an_update)
{
    check_kinds(trace_text_one(3, 1000,
                               "10+290 ^5 ~MmBackward0; 15+280 aten::bmm; 300+10 " ACCUMULATE
                               "310+10 " ACCUMULATE "350+10 #25 aten::add_;" /* a sum of losses */
                               "400+100 #25 aten::mm; 600+100 aten::item"),
                "aten::bmm BW; aten::add_ FW; aten::mm FW; aten::item FW");
}

TEST(ops_that_write_as_many_tensors_as_gradients_are_an_update)
{
    check_kinds(trace_text_one(3, 1000,
                               "10+100 #5 aten::mm; 200+90 ^5 ~MmBackward0; 205+80 aten::bmm;"
                               "300+10 " ACCUMULATE "310+10 " ACCUMULATE
                               "400+40 aten::mul; 450+40 aten::sub_;"
                               "500+40 aten::mul; 550+40 aten::sub_"),
                "aten::mm FW; aten::mul UPDATE; aten::sub_ 1 UPDATE");
}

TEST(in_inference_a_cache_is_no_optimizer)
{
    check_kinds(trace_text_one(
                    3, 1000, "10+400 aten::mm; 500+100 cache::kv_cache_update; 650+100 aten::add_"),
                "cache::kv_cache_update FW; aten::add_ FW");
}

/* The second micro-batch computes its forward pass again within the backward pass. */
TEST(micro_batches_have_passes_of_their_own)
{
    struct dpro_graph *g = trace_text_one(
        3, 1000,
        "10+40 aten::randn; 60+100 #5 aten::mm; 200+150 ^5 ~MmBackward0; 205+140 aten::bmm;"
        "360+10 " ACCUMULATE
        "410+40 aten::randn; 460+100 #7 aten::mm; 600+150 ^7 ~MmBackward0; 605+140 aten::bmm;"
        "760+10 " ACCUMULATE
        "620+20 #8 aten::relu; 780+20 ^8 ~MmBackward0; 785+10 aten::relu_backward;"
        "850+100 ! Optimizer.step#SGD.step; 860+80 aten::sub_");
    check_kinds(g, "aten::randn FW; aten::randn 1 FW; aten::mm FW; aten::mm 1 FW; aten::bmm BW;"
                   "aten::bmm 1 BW; aten::relu BW; aten::sub_ UPDATE");
    assert_int_equal(g->ranks[0].n_micro_batches, 2);
}

/* ---- over ranks ---- */

/* Two iterations; the rank computes for `busy` us, then enters a collective that ends at `end`. */
static void collective_rank(int rank, int world, int busy, int end, int64_t shift,
                            const char *kernel)
{
    struct trace_text *t = trace_text_begin(rank, world);
    for (int i = 0; i < 2; i++) {
        int64_t at = 1000 * i + shift;
        trace_text_step(t, i, at, 1000);
        trace_text_spans(t, at,
                         "1+2 >7 5+%d gemm; 4+2 >20 %d+%d %s"
                         "{'In msg nelems': 1000, 'dtype': 'Float'}",
                         busy - 5, busy, end - busy, kernel);
    }
}

#define ALL_REDUCE "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*)"
#define ALL_GATHER "ncclDevKernel_AllGather_RING_LL(ncclDevComm*)"

TEST(a_collective_is_waiting_then_transfer)
{
    collective_rank(0, 2, 100, 500, 0, ALL_REDUCE);
    collective_rank(1, 2, 450, 500, 0, ALL_REDUCE);
    struct dpro_graph *g = trace_text_graph();
    for (int rank = 0; rank < 2; rank++) {
        struct dpro_op transfer = op_of(g, rank, ALL_REDUCE, 0);
        assert_int_equal(transfer.kind, DPRO_OP_COLLECTIVE);
        assert_int_equal(transfer.dur_ns, 50 * US); /* not 400: the rest was waiting */
        assert_int_equal(transfer.gap_ns, 0);
        assert_int_equal(transfer.size_bytes, 4000);
        assert_true(transfer.transaction != 0);
    }
    dpro_op_id barrier = nth_op(g, 0, "all at all_reduce", 0);
    for (int rank = 0; rank < 2; rank++) {
        assert_true(edge_to(g, nth_op(g, rank, "arrival at all_reduce", 0), barrier, 0));
        assert_true(edge_to(g, barrier, nth_op(g, rank, ALL_REDUCE, 0), 0));
    }
}

TEST(a_clock_that_is_off_is_found_from_the_ends)
{
    collective_rank(0, 2, 100, 500, 0, ALL_REDUCE);
    collective_rank(1, 2, 450, 500, 7300, ALL_REDUCE);
    struct dpro_graph *g = trace_text_graph();
    assert_string_equal(dpro_graph_clock(g, 0).method, "reference");
    assert_int_equal(dpro_graph_clock(g, 0).segments[0].offset_ns, 0);
    assert_string_equal(dpro_graph_clock(g, 1).method, "collectives");
    assert_int_equal(dpro_graph_clock(g, 1).segments[0].offset_ns, -7300 * US);
    assert_int_equal(op_of(g, 0, ALL_REDUCE, 0).dur_ns, 50 * US);
}

TEST(collectives_that_disagree_are_not_joined)
{
    collective_rank(0, 2, 100, 500, 0, ALL_REDUCE);
    collective_rank(1, 2, 450, 500, 0, ALL_GATHER);
    struct dpro_graph *g = trace_text_graph();
    assert_int_equal(op_of(g, 0, ALL_REDUCE, 0).dur_ns, 400 * US); /* as measured */
    assert_true(has_warning(g, "no counterpart"));
}

TEST(what_one_rank_lost_does_not_unjoin_the_rest)
{
    for (int rank = 0; rank < 2; rank++) {
        struct trace_text *t = trace_text_begin(rank, 2);
        for (int i = 0; i < 2; i++) {
            trace_text_step(t, i, 1000 * i, 1000);
            for (int k = 0; k < 3; k++)
                if (rank == 0 || k != 1) /* rank 1's second one is missing */
                    trace_text_spans(t, 1000 * i + 200 * k,
                                     "0+5 >20 %d+%d %s{'In msg nelems': %d, 'dtype': 'Float'}",
                                     10 + 50 * rank, 100 - 50 * rank, ALL_REDUCE, 10 + k);
        }
    }
    struct dpro_graph *g = trace_text_graph();
    assert_int_equal(op_of(g, 0, ALL_REDUCE, 0).dur_ns, 50 * US);  /* waited for rank 1 */
    assert_int_equal(op_of(g, 0, ALL_REDUCE, 1).dur_ns, 100 * US); /* as measured */
    assert_int_equal(op_of(g, 0, ALL_REDUCE, 2).dur_ns, 50 * US);
    assert_true(has_warning(g, "no counterpart"));
}

TEST(missing_ranks_are_said_to_be_assumed)
{
    collective_rank(3, 8, 100, 500, 0, ALL_REDUCE);
    struct dpro_graph *g = trace_text_graph();
    assert_int_equal(op_of(g, 3, ALL_REDUCE, 0).dur_ns, 400 * US);
    assert_true(has_warning(g, "1 of 8 ranks"));
}

/* ---- gradients ---- */

#define IN  "torch::distributed::reducer::mul_out"
#define OUT "torch.distributed.ddp.reducer::copy_bucket_to_grad"

TEST(what_was_over_before_what_it_waits_for_is_held_up_in_one_gap_only)
{
    for (int rank = 0; rank < 2; rank++) {
        struct trace_text *t = trace_text_begin(rank, 2);
        for (int i = 0; i < 5; i++) {
            /* in one iteration rank 0 came when rank 1 was through, if one believes the profiles */
            int late = i == 2 && rank == 0 ? 300 : 0;
            int dur = i == 2 && rank == 1 ? 120 : 400 - late;
            trace_text_step(t, i, 2000 * i, 2000);
            trace_text_spans(
                t, 2000 * i,
                "%d+20 " IN "{'Input Dims': [[37]]}; 600+1300 " OUT "{'Input Dims': [[37]]};"
                "%d+10 c10d::allreduce_{'Input Dims': [[[37]], []], 'Input type': ['TensorList']};"
                "%d+%d @50 ! gloo:all_reduce{'Input Dims': [[37]], 'Input type': ['float']}",
                110 + late, 170 + late, 180 + late, dur);
        }
    }
    struct dpro_graph *g = trace_text_graph();
    const struct dpro_replay_view *r = dpro_replay_view(replay_of(g, NULL));
    assert_int_equal(r->n_iterations, 5);
    for (uint32_t i = 0; i < r->n_iterations; i++)
        assert_int_equal(r->iterations_ns[i], 2000 * US);
}

TEST(bucket_copies_give_each_gradient_its_bucket)
{
    struct dpro_graph *g = trace_text_one(
        2, 2000,
        "10+80 aten::mm; 100+200 " ACCUMULATE "110+20 " IN "{'Input Dims': [[10, 3]]};"
        "140+20 " IN "{'Input Dims': [[7]]};"
        "170+20 c10d::allreduce_{'Input Dims': [[[37]], []], 'Input type': ['TensorList']};"
        "200+20 " IN "{'Input Dims': [[5]]};"
        "240+20 c10d::allreduce_{'Input Dims': [[[5]], []], 'Input type': ['TensorList']};"
        "180+400 @50 ! gloo:all_reduce{'Input Dims': [[37]], 'Input type': ['float']};"
        "250+600 @51 ! gloo:all_reduce{'Input Dims': [[5]], 'Input type': ['float']};"
        "600+10 " OUT "{'Input Dims': [[10, 3]]}; 620+10 " OUT "{'Input Dims': [[7]]};"
        "870+10 " OUT "{'Input Dims': [[5]]}");
    assert_int_equal(g->n_tensors, 3);
    /* 37 = 10 * 3 + 7 in the first bucket, 5 in the second */
    assert_int_equal(g->tensors[0].size_bytes, 120);
    assert_int_equal(g->tensors[1].size_bytes, 28);
    assert_int_equal(g->tensors[2].size_bytes, 20);
    assert_int_equal(g->tensors[0].collective, g->tensors[1].collective);
    assert_int_not_equal(g->tensors[0].collective, g->tensors[2].collective);
    dpro_op_id first_in = nth_op(g, 0, "In gradient 0", 0);
    assert_int_equal(first_in, g->tensors[0].in);
    assert_true(edge_to(g, nth_op(g, 0, IN, 0), first_in, 0));
    assert_true(edge_to(g, first_in, nth_op(g, 0, "arrival at all_reduce", 0), 0));
    assert_true(edge_to(g, g->tensors[2].out, nth_op(g, 0, OUT, 2), 0));
    /* the wait for each bucket is explained: what is left is the thread's own time */
    assert_int_equal(op_of(g, 0, OUT, 0).gap_ns, 20 * US);
    assert_int_equal(op_of(g, 0, OUT, 2).gap_ns, 20 * US);
}

TEST(a_queued_collective_starts_when_either_thread_is_free)
{
    struct trace_text *t = trace_text_begin(0, 1);
    for (int i = 0; i < 4; i++) {
        trace_text_step(t, i, 2000 * i, 2000);
        for (int k = 0; k < 3; k++)
            trace_text_spans(t, 2000 * i, "%d+20 c10d::allreduce_{'Input Dims': [[[5]], []]}",
                             100 + 50 * k);
        /* which of the two is over first changes from one iteration to the next */
        trace_text_spans(t, 2000 * i,
                         "130+%d @50 ! gloo:all_reduce{'Input Dims': [[5]]};"
                         "180+%d @51 ! gloo:all_reduce{'Input Dims': [[5]]};"
                         "610+400 @%d ! gloo:all_reduce{'Input Dims': [[5]]}",
                         i % 2 ? 470 : 770, i % 2 ? 720 : 420, i % 2 ? 50 : 51);
    }
    struct dpro_graph *g = trace_text_graph();
    assert_int_equal(op_of(g, 0, "arrival at all_reduce", 2).gap_ns, 10 * US); /* not 410 */
    assert_int_equal(op_of(g, 0, "arrival at all_reduce", 0).gap_ns, 10 * US);
    dpro_op_id free = nth_op(g, 0, "a communication thread is free", 0);
    assert_true(edge_to(g, free, nth_op(g, 0, "arrival at all_reduce", 2), 0));
}

TEST(accumulated_gradients_stand_for_copies_where_there_are_none)
{
    const char *grad = "torch::autograd::AccumulateGrad";
    trace_text_steps(trace_text_begin(0, 2), 2, 2000,
                     "110+20 torch::autograd::AccumulateGrad;"
                     "140+20 torch::autograd::AccumulateGrad; 170+20 ! nccl:all_reduce;"
                     "172+5 >20 180+100 " ALL_REDUCE "; 200+20 torch::autograd::AccumulateGrad;"
                     "230+20 ! nccl:all_reduce; 232+5 >20 300+100 " ALL_REDUCE
                     "; 260+20 ~XBackward0");
    struct dpro_graph *g = trace_text_graph();
    assert_int_equal(g->n_tensors, 3);
    assert_int_equal(g->tensors[0].collective, g->tensors[1].collective);
    assert_int_not_equal(g->tensors[0].collective, g->tensors[2].collective);
    for (int i = 0; i < 3; i++)
        assert_true(edge_to(g, nth_op(g, 0, grad, i), g->tensors[i].in, 0));
}

/* ---- execution traces ---- */

/* Two ops on two threads, the second long after the first; `slow` stretches the first. */
static void window_of_two_ops(struct trace_text *t, int64_t at, int step, int slow, int record)
{
    trace_text_step(t, step, at, 1000 + slow);
    trace_text_spans(t, at, /* aten::neg would be guessed */
                     "10+%d aten::mul{'Record function id': %d};"
                     "%d+50 @3 aten::sum{'Record function id': %d}; %d+40 aten::neg;"
                     "%d+300 aten::relu",
                     100 + slow, record, 300 + slow, record + 1, 150 + slow, 200 + slow);
}

TEST(times_come_from_one_window_and_data_edges_from_the_other)
{
    struct trace_text *timing = trace_text_begin(0, 1);
    for (int i = 0; i < 3; i++)
        window_of_two_ops(timing, 1000 * i, i, 0, 0);
    struct trace_text *window = trace_text_window(0, 1, "rank0_with_et.json");
    window_of_two_ops(window, 90000, 7, 500, 11);
    struct trace_text *et = trace_text_execution("et_rank0.json");
    /* aten::mul writes storage 5, aten::sum reads it */
    trace_text_node(et, "{\"name\": \"aten::mul\", \"id\": 1, \"rf_id\": 11, \"parent\": 0, "
                        "\"inputs\": [[1, 4, 0, 10, 4, \"cpu\"]], "
                        "\"outputs\": [[2, 5, 0, 10, 4, \"cpu\"]]}");
    trace_text_node(et, ",{\"name\": \"aten::sum\", \"id\": 2, \"rf_id\": 12, \"parent\": 0, "
                        "\"inputs\": [[2, 5, 0, 10, 4, \"cpu\"]], "
                        "\"outputs\": [[3, 6, 0, 1, 4, \"cpu\"]]}");
    struct dpro_graph *g = trace_text_graph();
    check_measured(g, 3, 1000);
    dpro_op_id mul = nth_op(g, 0, "aten::mul", 0), sum = nth_op(g, 0, "aten::sum", 0);
    assert_int_equal(dpro_graph_op(g, mul).dur_ns, 100 * US);
    assert_true(edge_to(g, mul, sum, 0));
}

/* ---- alignment of iterations ---- */

enum { MOST_ALIGNED = 300 };

static uint32_t longest_common(const uint64_t *a, uint32_t n, const uint64_t *b, uint32_t m)
{
    static uint32_t table[MOST_ALIGNED + 1][MOST_ALIGNED + 1]; /* row and column 0 stay 0 */
    for (uint32_t i = 1; i <= n; i++)
        for (uint32_t k = 1; k <= m; k++) {
            uint32_t skip = table[i - 1][k] > table[i][k - 1] ? table[i - 1][k] : table[i][k - 1];
            table[i][k] = a[i - 1] == b[k - 1] ? table[i - 1][k - 1] + 1 : skip;
        }
    return table[n][m];
}

TEST(sequences_are_aligned_by_their_longest_common_part)
{
    srand(7);
    for (int round = 0; round < 5000; round++) {
        uint64_t a[MOST_ALIGNED], b[MOST_ALIGNED];
        uint32_t to[MOST_ALIGNED], most = round % 100 == 0 ? MOST_ALIGNED : 40, matched = 0;
        uint32_t n = (uint32_t)rand() % most, m = (uint32_t)rand() % most;
        int64_t last = -1;
        for (uint32_t i = 0; i < n; i++)
            a[i] = 1 + (uint64_t)rand() % 5;
        for (uint32_t i = 0; i < m; i++)
            b[i] = 1 + (uint64_t)rand() % 5;
        match_sequences(a, n, b, m, to);
        for (uint32_t i = 0; i < n; i++) {
            if (to[i] == NO_ID)
                continue;
            assert_true(to[i] < m && a[i] == b[to[i]] && (int64_t)to[i] > last);
            last = to[i];
            matched++;
        }
        assert_int_equal(matched, longest_common(a, n, b, m));
    }
}

TEST(sequences_too_different_for_that_still_go_forward)
{
    enum { N = 6000 };
    uint64_t *a = kept_memory(N, sizeof *a), *b = kept_memory(N, sizeof *b);
    uint32_t *to = kept_memory(N, sizeof *to), matched = 0;
    srand(3);
    for (int i = 0; i < N; i++) {
        a[i] = (uint64_t)rand() % 1000;
        b[i] = (uint64_t)rand() % 1000;
    }
    match_sequences(a, N, b, N, to);
    int64_t last = -1;
    for (int i = 0; i < N; i++) {
        if (to[i] == NO_ID)
            continue;
        assert_true(a[i] == b[to[i]] && (int64_t)to[i] > last);
        last = to[i];
        matched++;
    }
    assert_true(matched > 0);
}

TEST(names_tell_what_a_call_is)
{
    static const struct {
        const char *name;
        uint32_t class;
    } cases[] = {{"ProfilerStep#12", NAME_STEP},
                 {"cudaMemcpyAsync", NAME_COPY_CALL},
                 {"hipMemcpyWithStream", NAME_COPY_CALL},
                 {"hipDeviceSynchronize", NAME_DEVICE_SYNC},
                 {"cudaEventSynchronize", NAME_STREAM_SYNC},
                 {"cuStreamSynchronize", NAME_STREAM_SYNC},
                 {"musaStreamSynchronize", NAME_STREAM_SYNC},
                 {"aclrtSynchronizeStream", NAME_STREAM_SYNC},
                 {"cudaStreamWaitEvent", NAME_STREAM_WAIT},
                 {"gloo:all_reduce", NAME_COMM_RUN},
                 {"c10d::allreduce_", NAME_COMM_CALL},
                 {"nccl:all_reduce", NAME_COMM_PARAM},
                 {"record_param_comms", NAME_COMM_PARAM},
                 {"aten::mm", 0},
                 {"custom", 0}};
    /* names of kernels and of ranges around them: test_comm_names.c */
    const uint32_t others = NAME_COMM_KERNEL | NAME_COMM_SCOPE;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(name_classify(cases[i].name, strlen(cases[i].name)) & ~others,
                         cases[i].class);
    assert_int_equal(name_collective(ALL_REDUCE), DPRO_ALL_REDUCE);
    assert_int_equal(name_collective("ncclDevKernel_ReduceScatter_Sum_bf16"), DPRO_REDUCE_SCATTER);
    assert_int_equal(name_collective("nccl:all_to_all"), DPRO_ALL_TO_ALL);
    assert_int_equal(name_collective("c10d::_allgather_base_"), DPRO_ALL_GATHER);
    assert_int_equal(name_collective("aten::mm"), DPRO_NO_COLLECTIVE);
}
