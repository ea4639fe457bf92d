/* Modules computed in other ways: what that makes of a program's work. */

#include "case.h"
#include "cost/program/cost.h"
#include "cost/program/model.h"
#include "cost/program/strategy_work.h"
#include "ingest/probes.h"

/* A network of two blocks: the first op has the update, the forward pass and the backward pass up
 * to the first gradient; the last one waits for all gradients. Work: update 100, each block 200
 * forward and 400 backward, in two ops of 200 each, each with a gradient. */
enum { WHOLE, FIRST, SECOND, N_MODULES };
enum { N_OPS = 5, N_CALLS = 3 };

struct network {
    struct dpro_model model;
    struct model_module modules[N_MODULES];
    struct model_op ops[N_OPS];
    struct model_call calls[N_CALLS];
    struct model_program program;
    struct model_rank rank;
    struct dpro_strategy strategy;
    uint8_t computing[N_MODULES];
    bool recomputed[N_MODULES];
};

static const struct computing_cost AS_IT_IS = {
    .is_known = true, .forward = {1, 0}, .backward = {1, 0}, .kept = 1};

static struct network *new_network(void)
{
    static struct network n;
    memset(&n, 0, sizeof n);
    for (uint32_t m = 0; m < N_MODULES; m++) {
        static const char *const names[] = {"", "blocks.0", "blocks.1"};
        n.modules[m] =
            (struct model_module){.name = names[m], .class = "", .parent = m ? WHOLE : MODEL_NONE};
        n.modules[m].costs[DPRO_AS_IT_IS] = AS_IT_IS;
        n.modules[m].costs[DPRO_COMPILED] = (struct computing_cost){
            .is_known = true, .forward = {0.5, 0.1}, .backward = {0.75, 0.1}};
        n.modules[m].costs[DPRO_BF16] =
            (struct computing_cost){.is_assumed = true, .forward = {0.25, 0}, .backward = {0.5, 0}};
    }
    for (uint32_t i = 0; i < N_OPS; i++)
        n.ops[i] = (struct model_op){.needs = i + 1 == N_OPS ? MODEL_ALL : MODEL_NONE,
                                     .tensor = i + 1 == N_OPS ? MODEL_NONE : i,
                                     .work_ns = i + 1 == N_OPS ? 0 : 200,
                                     .backward = i == 0 ? 200.0 / 700 : 1};
    n.ops[0].work_ns = 700;
    n.ops[0].once_ns = 100;
    n.calls[0] = (struct model_call){.module = WHOLE,
                                     .parent = MODEL_NONE,
                                     .backward_last = 3,
                                     .forward_ns = 400,
                                     .backward_ns = 800};
    for (uint32_t c = 1; c < N_CALLS; c++)
        n.calls[c] = (struct model_call){.module = c,
                                         .parent = 0,
                                         .op = c == FIRST ? 2 : 0,
                                         .backward_last = c == FIRST ? 3 : 1,
                                         .forward_ns = 200,
                                         .backward_ns = 400,
                                         .recompute_ns = 200};
    n.program = (struct model_program){n.ops, N_OPS, n.calls, N_CALLS};
    n.rank = (struct model_rank){.work_scale = 1};
    n.model = (struct dpro_model){.programs = &n.program,
                                  .n_programs = 1,
                                  .ranks = &n.rank,
                                  .n_ranks = 1,
                                  .n_tensors = N_OPS - 1,
                                  .modules = n.modules,
                                  .n_modules = N_MODULES};
    n.strategy = (struct dpro_strategy){.computing = n.computing, .recomputed = n.recomputed};
    return &n;
}

/* Ways of modules, which of them are computed again, in how many parts; what ops take more. */
TEST(gradients_get_ready_as_modules_are_computed)
{
    enum { AS = DPRO_AS_IT_IS, C = DPRO_COMPILED, B = DPRO_BF16 };
    /* all but 100 of the update is computed in halves; the first half comes before all else */
    enum { HALF = (600 + 600) / 2 - (150 + 200) / 2 };
    static const struct {
        const char *what;
        uint8_t ways[N_MODULES];
        bool again[N_MODULES];
        uint32_t n_parts;
        int64_t more[N_OPS];
    } cases[] = {
        /* half as long forward, and of two ops of 200 backward one of 300 */
        {"compiled: at its end", {AS, C, AS}, {0}, 0, {-100, 0, 100, -200}},
        {"so of the other", {AS, AS, C}, {0}, 0, {200 - 200, -200}},
        {"in 16 bits: one by one", {AS, B, AS}, {0}, 0, {-150, 0, -100, -100}},
        {"the outermost counts", {B, C, AS}, {0}, 0, {-300 - 100, -100, -100, -100}},
        {"nothing overlaps", {C, AS, AS}, {0}, 0, {-200 - 200 + 600, -200, -200, -200}},
        {"unknown: as much, at its end", {AS, C | B, AS}, {0}, 0, {0, 0, 200, -200}},
        {"computed again so", {AS, B, AS}, {0, true}, 0, {-150, 0, -100 + 50, -100}},
        {"a half of it so", {AS, AS, B}, {true}, 0, {-150 - 100 + 250, -100}},
        {"in parts", {AS, B, AS}, {0}, 2, {-300 - 75 + HALF, -100, -100 - 50, -100 - 50}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct network *n = new_network();
        int64_t more[N_OPS] = {0}, sum = 0;
        memcpy(n->computing, cases[i].ways, sizeof cases[i].ways);
        memcpy(n->recomputed, cases[i].again, sizeof cases[i].again);
        n->strategy.micro_batches = cases[i].n_parts;
        n->calls[0].recompute_ns = 400;
        if (strategy_changes_work(&n->model, &n->strategy))
            strategy_more_work(&n->model, &n->strategy, 0, more);
        for (uint32_t k = 0; k < N_OPS; k++) {
            sum += more[k];
            if (more[k] != cases[i].more[k])
                fail_msg("%s: op %u takes %lld more", cases[i].what, k, (long long)more[k]);
        }
        assert_int_equal(strategy_total_work(&n->model, &n->strategy, 0), 1300 + sum);
    }
}

TEST(other_batches_take_what_probes_measured_of_them)
{
    static struct batch_point points[] = {
        {0.25, {0.1, 0}, {0.2, 0}}, {0.5, {0.4, 0}, {0.45, 0}}, {1, {1, 0}, {1, 0}}};
    struct network *n = new_network();
    n->model.batch_points = points;
    n->model.n_batch_points = 3;
    n->strategy.micro_batches = 2;
    /* 400 forward, 800 backward, and the update once */
    assert_int_equal(strategy_total_work(&n->model, &n->strategy, 0), 100 + 2 * (160 + 360));
    n->strategy.micro_batches = 4;
    assert_int_equal(strategy_total_work(&n->model, &n->strategy, 0), 100 + 4 * (40 + 160));
    n->computing[WHOLE] = DPRO_BF16;
    assert_int_equal(strategy_total_work(&n->model, &n->strategy, 0), 100 + 4 * (10 + 80));
    double quarter = batch_at(&n->model, 0.25).forward.value;
    assert_true(quarter > 0.0999 && quarter < 0.1001);
    double middle = batch_at(&n->model, 0.75).forward.value;
    assert_true(middle > 0.4 && middle < 0.75); /* nearer to the line through 0.5 and 1 */
    /* beyond what was measured it goes on as it did, with more doubt */
    struct batch_point twice = batch_at(&n->model, 2);
    assert_true(twice.forward.value > 2.49 && twice.forward.value < 2.51);
    assert_true(twice.forward.std > 0.1);
    /* half the batch, in two parts */
    n->computing[WHOLE] = DPRO_AS_IT_IS;
    n->strategy.micro_batches = 2;
    struct arena arena = {0};
    n->model.memory.batch_ratio = 0.5;
    model_scale_batch(&n->model, 0.5, &arena);
    assert_int_equal(strategy_total_work(&n->model, &n->strategy, 0), 100 + 2 * (40 + 160));
    arena_fini(&arena);
}

TEST(what_a_way_changes_is_told_with_its_error)
{
    struct network *n = new_network();
    struct computing_change change = computing_change_of(&n->model, FIRST, DPRO_COMPILED);
    assert_true(change.before_ns == 600);
    assert_true(change.after_ns == 400);
    assert_true(change.std_ns > 59.99 && change.std_ns < 60.01);
}

static void assert_in_step(double launch, double device, double launches, double wanted)
{
    struct probe_bounds bounds = {.launch = launch, .device = device};
    struct dpro_estimate found =
        probe_in_step((struct dpro_estimate){0.8, 0.04}, &bounds, launches);
    assert_true(fabs(found.value - wanted) < 1e-9);
    assert_true(fabs(found.std - 0.05 * wanted) < 1e-9); /* as sure as alone */
}

TEST(of_launches_and_kernels_the_larger_counts)
{
    assert_in_step(0.5, 0.9, 4, 0.5);    /* the GPU waits: fewer launches */
    assert_in_step(1.2, 0.5, 4, 1.2);    /* 16 bits cast more, whatever kernels win */
    assert_in_step(0.1, 0.9, 4, 0.225);  /* now kernels take longer: 0.9 of a quarter */
    assert_in_step(1.2, 0.5, 0.2, 0.5);  /* the CPU runs ahead */
    assert_in_step(1.2, 0.5, 0.6, 0.72); /* no more: launches take longer now */
    assert_in_step(0, 0, 4, 0.8);        /* not known */
    assert_in_step(1.2, 0.5, 0, 0.8);
}

TEST(page_faults_stay_where_probes_have_none)
{
    struct network *n = new_network();
    static struct dpro_probes probes;
    assert_true(page_fault_share(&n->model) == 0); /* no probes */
    probes.fault_ns = 1300.0 / 40;
    n->model.probes = &probes;
    n->model.page_faults = 10; /* a quarter of 1300 */
    assert_true(fabs(page_fault_share(&n->model) - 0.25) < 1e-9);
    n->model.page_faults = -1;
    assert_true(page_fault_share(&n->model) == 0);
    struct dpro_estimate half = with_page_faults((struct dpro_estimate){0.5, 0.04}, 0.25, 1);
    assert_true(fabs(half.value - 0.625) < 1e-9);
    assert_true(fabs(half.std - hypot(0.03, 0.25 / sqrt(3))) < 1e-9);
}
