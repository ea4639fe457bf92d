/* What an iteration is where nothing marks it. */

#include "case.h"
#include "trace_text.h"

#define US INT64_C(1000)

static const char adam[] = "Optimizer.step#Adam.step", sgd[] = "Optimizer.step#SGD.step";

/* A main thread that is written op after op, each of 10 us with 10 us of Python before it. */
struct script {
    struct trace_text *t;
    int64_t now;
    int sequence;
};

static struct script begin(void)
{
    return (struct script){.t = trace_text_begin(0, 1)};
}

static void op(struct script *s, const char *name)
{
    trace_text_cpu(s->t, "cpu_op", name, 1, s->now += 10, 10, "");
    s->now += 10;
}

/* Of `n` layers; returns the first one's sequence number. */
static int forward(struct script *s, int n)
{
    char args[60];
    op(s, "aten::randn");
    for (int k = 0; k < n; k++) {
        snprintf(args, sizeof args, "\"Sequence number\":%d,\"Fwd thread id\":0", s->sequence++);
        trace_text_cpu(s->t, "cpu_op", k == 0 ? "aten::embedding" : "aten::mm", 1, s->now, 20,
                       args);
        s->now += 20;
    }
    return s->sequence - n;
}

static void backward(struct script *s, int first, int n)
{
    char args[60];
    for (int k = n; k-- > 0;) {
        snprintf(args, sizeof args, "\"Sequence number\":%d,\"Fwd thread id\":1", first + k);
        trace_text_cpu(s->t, "cpu_op", "autograd::engine::evaluate_function: MmBackward0", 2,
                       s->now, 20, args);
        s->now += 20;
    }
}

static void pass(struct script *s, int n)
{
    backward(s, forward(s, n), n);
}

static void step(struct script *s, const char *name)
{
    trace_text_cpu(s->t, "user_annotation", name, 1, s->now, 30, "");
    op(s, "aten::_foreach_add_");
    s->now += 10;
}

static void range(struct script *s, const char *name, int64_t start)
{
    trace_text_cpu(s->t, "user_annotation", name, 1, start, s->now - start, "");
}

static struct dpro_graph *check(uint32_t n, const char *found_by)
{
    struct dpro_graph *g = trace_text_graph();
    struct dpro_steps steps = dpro_graph_steps(g);
    assert_string_equal(steps.found_by, found_by);
    assert_int_equal(steps.n, n);
    return g;
}

/* From the first op, 10 us after the start, to the last one's end; a range may go on for 10 us. */
static void check_whole(const struct script *s, const char *found_by)
{
    uint32_t n;
    struct dpro_graph *g = check(1, found_by);
    assert_in_range(dpro_graph_measured_ns(g, &n)[0], (s->now - 20) * US, (s->now - 10) * US);
}

/* ---- the optimizer ---- */

TEST(as_many_iterations_as_the_optimizers_steps)
{
    for (uint32_t n = 1; n <= 3; n++) {
        struct script s = begin();
        for (uint32_t i = 0; i < n; i++) {
            pass(&s, 5);
            step(&s, adam);
            op(&s, "aten::item"); /* what waits for the step is of its iteration */
        }
        if (n == 1) {
            check_whole(&s, "optimizer");
            continue;
        }
        uint32_t n_measured;
        struct dpro_graph *g = check(n, "optimizer");
        const int64_t *ns = dpro_graph_measured_ns(g, &n_measured);
        assert_int_equal(n_measured, n);
        assert_int_equal(ns[n - 1], ns[0] - 10 * US); /* nothing comes after it */
        assert_string_equal(dpro_graph_steps(g).name, adam);
        assert_true(has_warning(g, "optimizer's calls (Optimizer.step#Adam.step"));
    }
}

TEST(micro_batches_that_are_accumulated_are_one_iteration)
{
    struct script s = begin();
    for (int i = 0; i < 12; i++) {
        pass(&s, 5);
        if (i % 4 == 3)
            step(&s, adam);
    }
    check(3, "optimizer");
}

TEST(a_step_that_calls_a_closure_holds_its_passes)
{
    struct script s = begin();
    for (int i = 0; i < 3; i++) {
        int64_t start = s.now += 10;
        pass(&s, 5);
        op(&s, "aten::_fused_adam_");
        range(&s, adam, start);
    }
    check(3, "optimizer");
}

/* A generator and its critic, whose optimizers may have one name. */
TEST(optimizers_that_take_turns_make_one_iteration)
{
    for (int same = 0; same < 2; same++) {
        struct script s = begin();
        for (int i = 0; i < 4; i++) {
            pass(&s, 10);
            step(&s, adam);
            pass(&s, 5);
            step(&s, same ? adam : sgd);
        }
        check(4, "optimizer");
    }
}

TEST(two_unlike_steps_are_one_iteration_as_that_is_all_there_is)
{
    struct script s = begin();
    pass(&s, 10);
    step(&s, adam);
    pass(&s, 5);
    step(&s, adam);
    check_whole(&s, "optimizer");
}

/* The graph that the first backward pass leaves is gone through by the second. */
TEST(no_iteration_ends_within_a_pass)
{
    struct script s = begin();
    for (int i = 0; i < 3; i++) {
        int generated = forward(&s, 5);
        pass(&s, 6);
        step(&s, adam);
        backward(&s, generated, 5);
        step(&s, adam);
    }
    check(3, "optimizer");
}

TEST(a_piece_of_an_iteration_at_the_start_is_left_out)
{
    struct script s = begin();
    s.sequence = 50;
    backward(&s, 10, 5);
    step(&s, adam);
    for (int i = 0; i < 3; i++) {
        pass(&s, 8);
        step(&s, adam);
    }
    check(3, "optimizer");
}

TEST(without_a_step_zero_grad_begins_iterations)
{
    struct script s = begin();
    for (int i = 0; i < 3; i++) {
        trace_text_cpu(s.t, "user_annotation", "Optimizer.zero_grad#SGD.zero_grad", 1, s.now, 5,
                       "");
        pass(&s, 5);
    }
    check(3, "optimizer");
}

/* ---- passes ---- */

TEST(passes_without_an_optimizer_are_iterations)
{
    struct script s = begin();
    for (int i = 0; i < 3; i++)
        pass(&s, 5);
    struct dpro_graph *g = check(3, "passes");
    assert_true(has_warning(g, "no optimizer's step"));
}

TEST(one_pass_is_one_iteration)
{
    struct script s = begin();
    pass(&s, 8);
    check_whole(&s, "passes");
}

TEST(micro_batches_are_no_iterations_where_the_last_does_more)
{
    struct script s = begin();
    for (int i = 0; i < 4; i++)
        pass(&s, 5);
    op(&s, "apex::fused_adam");
    check_whole(&s, "nothing");
    s = begin();
    for (int i = 0; i < 12; i++) {
        pass(&s, 5);
        if (i % 4 == 3)
            op(&s, "apex::fused_adam");
    }
    check(3, "passes");
}

/* One forward, one backward: a pipeline's stage. */
TEST(passes_that_overlap_are_one)
{
    struct script s = begin();
    for (int i = 0; i < 3; i++) {
        int in_flight = forward(&s, 5);
        for (int k = 0; k < 3; k++) {
            int next = forward(&s, 5);
            backward(&s, in_flight, 5);
            in_flight = next;
        }
        backward(&s, in_flight, 5);
    }
    check(3, "passes");
}

/* ---- ranges, and the period ---- */

static void layers(struct script *s, int n)
{
    for (int k = 0; k < n; k++) {
        op(s, "aten::layer_norm");
        op(s, "aten::linear");
        op(s, "aten::softmax");
        op(s, "aten::add");
    }
}

static void infer(struct script *s)
{
    op(s, "aten::embedding");
    layers(s, 8);
    op(s, "aten::argmax");
}

TEST(layers_are_no_iterations)
{
    struct script s = begin();
    infer(&s);
    check_whole(&s, "nothing");
    s = begin();
    layers(&s, 8);
    check_whole(&s, "nothing");
}

TEST(calls_of_a_model_are_iterations)
{
    struct script s = begin();
    for (int i = 0; i < 6; i++)
        infer(&s);
    check(5, "period");
}

TEST(a_range_around_all_rules_a_period_out)
{
    struct script s = begin();
    for (int i = 0; i < 6; i++)
        infer(&s);
    range(&s, "prefill", 5);
    check(1, "nothing");
}

TEST(ranges_that_repeat_are_iterations)
{
    for (int numbered = 0; numbered < 2; numbered++) {
        struct script s = begin();
        for (int i = 0; i < 5; i++) {
            char name[20];
            int64_t start = s.now;
            if (numbered)
                pass(&s, 5);
            else
                infer(&s);
            snprintf(name, sizeof name, numbered ? "batch %d" : "decode", i);
            range(&s, name, start);
            s.now += 20;
        }
        struct dpro_graph *g = check(5, "ranges");
        assert_string_equal(dpro_graph_steps(g).name, numbered ? "batch 0" : "decode");
    }
}

TEST(ranges_of_layers_are_no_iterations_of_training)
{
    struct script s = begin();
    int first = s.sequence;
    for (int k = 0; k < 4; k++) {
        int64_t start = s.now;
        forward(&s, 5);
        range(&s, "layer", start);
    }
    backward(&s, first, 20);
    check_whole(&s, "passes");
}
