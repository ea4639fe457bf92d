/* What an iteration is where nothing marks it. */

#include <stdlib.h>
#include <string.h>

#include "case.h"
#include "trace_text.h"

#define US INT64_C(1000)

static const char adam[] = "Optimizer.step#Adam.step", sgd[] = "Optimizer.step#SGD.step";

/* A main thread that is written op after op, each of 10 us with 10 us of Python before it. */
struct script {
    struct trace_text *t;
    int64_t now, range; /* the range that is open */
    int sequence, ahead[16], n_ahead, n_back;
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
static struct dpro_graph *check_whole(const struct script *s, const char *found_by)
{
    uint32_t n;
    struct dpro_graph *g = check(1, found_by);
    assert_in_range(dpro_graph_measured_ns(g, &n)[0], (s->now - 20) * US, (s->now - 10) * US);
    return g;
}

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

/* ---- what a script has ---- */

static void layers(struct script *s, int n)
{
    for (int k = 0; k < n; k++) {
        op(s, "aten::layer_norm");
        op(s, "aten::linear");
        op(s, "aten::softmax");
        op(s, "aten::add");
    }
}

/* Words: pN a pass of N layers forward and back; fN forward; bN back through the oldest forward
 * pass of which that is missing; oN back through one that was not recorded; lN N layers without
 * autograd; adam, sgd, zero_grad the optimizers' calls; < begins a range, >NAME ends it (% in the
 * name: the number of the turn); +N us of nothing; all else is an op. */
static void play(struct script *s, const char *words, int turn)
{
    char text[300], *rest, *word;
    snprintf(text, sizeof text, "%s", words);
    for (word = strtok_r(text, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        int n = atoi(word + 1);
        if (*word == 'p' && n)
            pass(s, n);
        else if (*word == 'f' && n)
            s->ahead[s->n_ahead++ % 16] = forward(s, n);
        else if (*word == 'b' && n)
            backward(s, s->ahead[s->n_back++ % 16], n);
        else if (*word == 'o' && n)
            backward(s, -40 + (s->sequence += 50), n);
        else if (*word == 'l' && n)
            layers(s, n);
        else if (strcmp(word, "adam") == 0 || strcmp(word, "sgd") == 0)
            step(s, *word == 'a' ? adam : sgd);
        else if (strcmp(word, "zero_grad") == 0)
            trace_text_cpu(s->t, "user_annotation", "Optimizer.zero_grad#SGD.zero_grad", 1, s->now,
                           5, "");
        else if (*word == '<')
            s->range = s->now;
        else if (*word == '+')
            s->now += n;
        else if (*word == '>') {
            char name[40], *number;
            snprintf(name, sizeof name, "%s", word + 1);
            if ((number = strchr(name, '%')))
                *number = (char)('0' + turn);
            range(s, name, s->range);
        } else
            op(s, word);
    }
}

#define MODEL "aten::embedding l8 aten::argmax"

static const struct {
    const char *what, *first, *each;
    int times;
    const char *last;
    uint32_t n; /* 0: one, from the first op to the last */
    const char *found_by, *name, *says;
} cases[] = {
    {"micro-batches that are accumulated are one iteration", "", "p5 p5 p5 p5 adam", 3, "", 3,
     "optimizer", adam, NULL},
    {"a step that calls a closure holds its passes", "",
     "+10 < p5 aten::_fused_adam_ >Optimizer.step#Adam.step", 3, "", 3, "optimizer", adam, NULL},
    {"optimizers that take turns make one iteration", "", "p10 adam p5 sgd", 4, "", 4, "optimizer",
     NULL, NULL},
    {"also those of one name, as of a generator and its critic", "", "p10 adam p5 adam", 4, "", 4,
     "optimizer", adam, NULL},
    {"two unlike steps are one iteration as that is all there is", "", "p10 adam p5 adam", 1, "", 0,
     "optimizer", adam, NULL},
    {"no iteration ends within a pass: the second goes through the first one's graph", "",
     "f5 p6 adam b5 adam", 3, "", 3, "optimizer", adam, NULL},
    {"a piece of an iteration at the start is left out", "o5 adam", "p8 adam", 3, "", 3,
     "optimizer", adam, NULL},
    {"without a step zero_grad begins iterations", "", "zero_grad p5", 3, "", 3, "optimizer", NULL,
     NULL},
    {"passes without an optimizer are iterations", "", "p5", 3, "", 3, "passes", NULL,
     "no optimizer's step"},
    {"one pass is one iteration", "", "p8", 1, "", 0, "passes", NULL, NULL},
    {"micro-batches are no iterations where the last does more", "", "p5 p5 p5 p5 apex::fused_adam",
     3, "", 3, "passes", NULL, NULL},
    {"so it is of four alone", "", "p5 p5 p5 p5 apex::fused_adam", 1, "", 0, "nothing", NULL, NULL},
    {"passes that overlap are one: a pipeline's stage", "", "f5 f5 b5 f5 b5 f5 b5 b5", 3, "", 3,
     "passes", NULL, NULL},
    {"layers are no iterations", "", MODEL, 1, "", 0, "nothing", NULL, NULL},
    {"nor are layers alone", "", "l8", 1, "", 0, "nothing", NULL, "one iteration"},
    {"calls of a model are iterations", "", MODEL, 6, "", 5, "period", NULL, NULL},
    {"a range around all rules a period out", "+5 < +-5", MODEL, 6, ">prefill", 1, "nothing", NULL,
     NULL},
    {"ranges that repeat are iterations", "", "< " MODEL " >decode +20", 5, "", 5, "ranges",
     "decode", NULL},
    {"whatever number is in their names", "", "< p5 >batch_% +20", 5, "", 5, "ranges", "batch_0",
     NULL},
    {"ranges of layers are no iterations of training", "", "< f5 >layer", 4, "b20", 0, "passes",
     NULL, NULL},
};

TEST(an_iteration_is_what_repeats)
{
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct script s = begin();
        print_message("%s\n", cases[i].what);
        play(&s, cases[i].first, 0);
        for (int turn = 0; turn < cases[i].times; turn++)
            play(&s, cases[i].each, turn);
        play(&s, cases[i].last, 0);
        struct dpro_graph *g =
            cases[i].n ? check(cases[i].n, cases[i].found_by) : check_whole(&s, cases[i].found_by);
        if (cases[i].name)
            assert_string_equal(dpro_graph_steps(g).name, cases[i].name);
        if (cases[i].says)
            assert_true(has_warning(g, cases[i].says));
    }
}
