/* Models of recorded jobs: what is work, what is waiting, what communication slows down. */

#include "case.h"
#include "cost/program/cost.h"
#include "cost/program/evaluate.h"
#include "graph/graph.h"
#include "stages_seen.h"
#include "trace_text.h"

#define US INT64_C(1000)

enum { N_STEPS = 4, STEP_US = 12000, NUMEL = 250000 };

static const char GRAD[] = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad";
static const char IN[] = "torch::distributed::reducer::mul_out";
static const char OUT[] = "torch.distributed.ddp.reducer::copy_bucket_to_grad";

/* A backward block on the main thread: `us` of computing, then a gradient of NUMEL floats. */
static int64_t block(struct trace_text *t, int64_t at, int64_t us)
{
    trace_text_cpu(t, "cpu_op", "autograd::engine::evaluate_function: AddmmBackward0", 1, at,
                   us - 20, "");
    trace_text_cpu(t, "cpu_op", GRAD, 1, at + us - 20, 15, "");
    trace_text_cpu(t, "cpu_op", IN, 1, at + us - 18, 10, "\"Input Dims\": [[250000]]");
    return at + us;
}

/* Starts a bucket's collective of n gradients, 20 us on the main thread. */
static int64_t launch(struct trace_text *t, int64_t at, int n)
{
    char dims[96];
    snprintf(dims, sizeof dims, "\"Input Dims\": [[[%d]], []], \"Input type\": [\"TensorList\"]",
             n * NUMEL);
    trace_text_cpu(t, "cpu_op", "c10d::allreduce_", 1, at, 20, dims);
    return at + 20;
}

static void transfer(struct trace_text *t, int thread, int64_t at, int64_t us, int n)
{
    char dims[96];
    snprintf(dims, sizeof dims, "\"Input Dims\": [[%d]], \"Input type\": [\"float\"]", n * NUMEL);
    trace_text_cpu(t, "user_annotation", "gloo:all_reduce", thread, at, us, dims);
}

static bool broadcasts; /* in the forward pass, as DDP does with what BatchNorm keeps */

/* Two blocks of 1 ms, then, beside the first bucket's transfer, two of the same that take 2 ms; the
 * second bucket is waited for. */
static void rank(int rank)
{
    struct trace_text *t = trace_text_begin(rank, 2);
    for (int i = 0; i < N_STEPS; i++) {
        int64_t at = (int64_t)STEP_US * i;
        trace_text_step(t, i, at, STEP_US);
        trace_text_cpu(t, "cpu_op", "aten::addmm", 1, at + 10, 990, "");
        if (broadcasts) {
            trace_text_cpu(t, "cpu_op", "c10d::broadcast_", 1, at + 100, 20,
                           "\"Input Dims\": [[[100]], []], \"Input type\": [\"TensorList\"]");
            trace_text_cpu(t, "user_annotation", "gloo:broadcast", 50, at + 120, 300,
                           "\"Input Dims\": [[100]], \"Input type\": [\"float\"]");
        }
        int64_t now = block(t, block(t, at + 1000, 1000), 1000);
        now = launch(t, now, 2);
        transfer(t, 50, now, 4300, 2);
        now = block(t, block(t, now, 2000), 2000);
        now = launch(t, now, 2);
        transfer(t, 51, at + 7320, 4300, 2);
        for (int k = 0; k < 4; k++)
            trace_text_cpu(t, "cpu_op", OUT, 1, (k < 2 ? at + 7330 : at + 11630) + 20 * k, 10,
                           "\"Input Dims\": [[250000]]");
    }
}

static struct dpro_model *model_of_two_with(const struct dpro_model_options *options,
                                            struct dpro_graph **graph)
{
    struct dpro_model *model;
    struct dpro_error err;
    rank(0);
    rank(1);
    *graph = trace_text_graph();
    if (dpro_model_build(*graph, options, &model, &err) < 0)
        fail_msg("%s", err.text);
    return model;
}

static struct dpro_model *model_of_two(struct dpro_graph **graph)
{
    return model_of_two_with(NULL, graph);
}

TEST(the_main_stream_of_a_gpu_is_the_one_that_computes_longest)
{
    uint32_t device[] = {0, 1, 2, 2};
    int64_t dur_ns[] = {10, 30, 20, 90};
    uint8_t kind[] = {DPRO_OP_FW, DPRO_OP_BW, DPRO_OP_FW, DPRO_OP_COLLECTIVE};
    uint8_t flags[] = {GRAPH_OP_GPU, GRAPH_OP_GPU, GRAPH_OP_GPU, GRAPH_OP_GPU};
    struct graph_device devices[3] = {{.kind = DPRO_DEVICE_GPU_STREAM},
                                      {.kind = DPRO_DEVICE_GPU_STREAM},
                                      {.kind = DPRO_DEVICE_GPU_STREAM}};
    struct graph_rank rank = {.n_ops = 4};
    struct dpro_graph g = {.n_ops = 4, .n_devices = 3, .device = device, .dur_ns = dur_ns};
    g.kind = kind;
    g.flags = flags;
    g.devices = devices;
    assert_int_equal(rank_main_stream(&g, &rank), 1);
    dur_ns[2] = 31;
    assert_int_equal(rank_main_stream(&g, &rank), 2);
    dur_ns[0] = 32;
    assert_int_equal(rank_main_stream(&g, &rank), 0);
}

TEST(learning_tells_how_far_it_is)
{
    struct dpro_graph *g;
    struct stages_seen seen = {.n_wrong = 0};
    struct dpro_model_options options = {.sink = stages_sink(&seen)};
    dpro_model_destroy(model_of_two_with(&options, &g));
    assert_string_equal(seen.names, "replay the iterations;");
    assert_int_equal(seen.n_wrong, 0);
}

/* So that other buckets are waited for, too. */
TEST(beside_other_communication_a_backward_pass_waits_for_all_buckets)
{
    struct dpro_graph *g;
    broadcasts = true;
    struct dpro_model *m =
        model_of_two_with(&(struct dpro_model_options){.all_communication = 1}, &g);
    broadcasts = false;
    const struct model_program *p = &m->programs[0];
    assert_int_equal(m->n_communications, 1);
    assert_int_equal(p->ops[p->n_ops - 1].needs, MODEL_ALL);
    for (uint32_t o = 0, n = 0; o < p->n_ops && n < 1; o++)
        if (p->ops[o].needs < m->n_tensors) /* the first bucket's tensor that is ready last */
            assert_int_equal(p->ops[o].needs, 2 * ++n - 1);
    dpro_model_destroy(m);
}

TEST(a_model_has_the_jobs_own_buckets_and_takes_as_long_with_them)
{
    struct dpro_graph *g;
    struct dpro_model *m = model_of_two(&g);
    assert_int_equal(m->n_tensors, 4);
    assert_int_equal(m->baseline.n_buckets, 2);
    for (uint32_t b = 0; b < 2; b++)
        assert_true(m->baseline.buckets[b].n == 2 && m->baseline.buckets[b].partitions == 1);
    for (uint32_t t = 0; t < 4; t++)
        assert_int_equal(m->baseline.order[t], t);
    assert_int_equal(m->tensors[0].size_bytes, 4 * NUMEL);
    /* beside communication the same blocks took twice as long: half of their rate was lost */
    double lost = m->net.link.cpu_ns.value / m->net.link.byte_ns.value;
    assert_true(lost > 0.4 && lost < 0.6);
    const struct model_op *ops = m->programs[0].ops;
    for (uint32_t o = 0; o < m->programs[0].n_ops; o++)
        if (ops[o].tensor == 1 || ops[o].tensor == 3)
            assert_in_range(ops[o].work_ns, 900 * US, 1200 * US);
    struct evaluator *evaluator = evaluator_create(m);
    int64_t own = evaluate_strategy(evaluator, &m->baseline);
    assert_true(fabs(m->misfit) < 0.03);
    assert_in_range(own, m->median_ns * 97 / 100, m->median_ns * 103 / 100);
    /* in one bucket nothing would be slowed down, and nothing would overlap: 5 ms of work, then
     * both transfers */
    struct strategy_bucket whole = {0, 4, 1, 0, 0};
    struct dpro_strategy one = {.order = m->baseline.order, .buckets = &whole, .n_buckets = 1};
    assert_in_range(evaluate_strategy(evaluator, &one), 13400 * US, 14400 * US);
    evaluator_destroy(evaluator);
    dpro_model_destroy(m);
}

TEST(one_rank_has_no_model)
{
    struct dpro_model *model;
    struct dpro_error err;
    rank(0);
    struct dpro_graph *g = trace_text_graph();
    assert_int_equal(dpro_model_build(g, NULL, &model, &err), DPRO_EEMPTY);
    assert_non_null(strstr(err.text, "the trace has 1 of 2 ranks"));
    g->world_size = 8;
    assert_int_equal(dpro_model_check(g, &err), DPRO_EEMPTY);
    assert_non_null(strstr(err.text, "the trace has 1 of 8 ranks"));
    g->world_size = 1;
    g->n_collectives = 0;
    assert_int_equal(dpro_model_check(g, &err), DPRO_EEMPTY);
    assert_non_null(
        strstr(err.text, "the trace has one rank, which sends its gradients to nobody"));
    assert_null(strstr(err.text, "all ranks"));
    g->framework = "jax";
    assert_int_equal(dpro_model_check(g, &err), DPRO_EEMPTY);
    assert_non_null(strstr(err.text, "XLA chooses what is reduced together"));
}

TEST(ranks_of_different_jobs_have_no_model)
{
    struct dpro_model *model;
    struct dpro_error err;
    rank(0);
    struct trace_text *t = trace_text_begin(1, 2);
    for (int i = 0; i < N_STEPS; i++) {
        trace_text_step(t, i, (int64_t)STEP_US * i, STEP_US);
        trace_text_cpu(t, "cpu_op", "aten::addmm", 1, (int64_t)STEP_US * i + 10, 990, "");
    }
    struct dpro_graph *g = trace_text_graph();
    assert_int_equal(dpro_model_build(g, NULL, &model, &err), DPRO_EEMPTY);
}
