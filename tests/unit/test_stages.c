/* Timelines of pipeline stages, and the measures of stragglers. */
#include "case.h"
#include "diagnose/straggler_measures.h"
#include "ingest/readers.h"
#include "ingest/stages/stage_table.h"
#include "job_at.h"
#include "kept_log.h"
#include "part_text.h"
#include "temp_folder.h"

static struct arena arena;

static struct straggler_measures measures_of(const char *path)
{
    struct straggler_measures measures;
    struct dpro_trace *trace = trace_at(path);
    assert_non_null(trace->stages);
    straggler_measures_find(trace->stages, &measures, &arena);
    return measures;
}

static double of_type(const struct straggler_measures *m, const char *name)
{
    const struct slowdowns *types = &m->of[SLOW_TYPES];
    for (uint32_t i = 0; i < types->n; i++)
        if (strcmp(types->names[i], name) == 0)
            return types->s[i];
    fail_msg("no %s", name);
    return 0;
}

static void assert_near(double is, double should_be)
{
    if (fabs(is - should_be) > 1e-4)
        fail_msg("%.9g is not %.9g", is, should_be);
}

#define HEAD "optype,step,dp_rank,stage,rank,start_ms,duration_ms\n"

/* Two data-parallel ranks, the second's forward pass twice as long: 10 and 20, then 20, 5, 1 ms. */
static const char two_ranks[] =
    HEAD "forward-compute,1,0,0,0,0,10\nbackward-compute,1,0,0,0,10,20\n"
         "grads-reduce-scatter,1,0,0,0,30,15\noptimizer,1,0,0,0,45,1\n"
         "forward-compute,1,1,0,1,0,20\nbackward-compute,1,1,0,1,20,20\n"
         "grads-reduce-scatter,1,1,0,1,40,5\noptimizer,1,1,0,1,45,1\n";

TEST_IN_FOLDER(a_slow_data_parallel_rank_is_all_that_is_lost)
{
    write_text("two.csv", two_ranks);
    struct straggler_measures m = measures_of(in_folder("two.csv"));
    assert_null(m.unknown);
    assert_int_equal(m.n_replicas, 2);
    assert_int_equal(m.n_stages, 1);
    assert_near(m.t_s, 0.046);
    assert_near(m.recorded_s, 0.046);
    assert_near(m.ideal_s, 0.041);
    assert_near(m.s, 46.0 / 41);
    assert_near(of_type(&m, "forward-compute"), 46.0 / 41);
    assert_near(of_type(&m, "backward-compute"), 1);
    assert_near(of_type(&m, "grads-reduce-scatter"), 1);
    assert_near(m.of[SLOW_REPLICAS].s[0], 1);
    assert_near(m.of[SLOW_REPLICAS].s[1], 46.0 / 41);
    assert_near(m.of[SLOW_STAGES].s[0], 46.0 / 41);
    assert_near(m.of_worker[0], 1);
    assert_near(m.of_worker[1], 46.0 / 41);
    assert_true(m.has_shares);
    assert_near(m.m_w, 1);
    assert_near(m.m_s, 1);
}

TEST_IN_FOLDER(a_job_of_equals_is_not_shared_out)
{
    write_text("one.csv", HEAD "forward-compute,1,0,0,0,0,10\noptimizer,1,0,0,0,45,1\n");
    struct straggler_measures m = measures_of(in_folder("one.csv"));
    assert_null(m.unknown);
    assert_near(m.s, 1);
    assert_near(m.t_s, 0.011);
    assert_near(m.recorded_s, 0.046);
    assert_false(m.has_shares);
}

TEST_IN_FOLDER(a_step_in_which_a_worker_did_other_ops_is_left_out)
{
    char text[2048];
    snprintf(text, sizeof text, "%s%s", two_ranks,
             "forward-compute,2,0,0,0,0,10\nforward-compute,2,1,0,1,0,10\n");
    write_text("two.csv", text);
    struct straggler_measures m = measures_of(in_folder("two.csv"));
    assert_int_equal(m.n_steps, 1);
    assert_int_equal(m.n_left_out, 1);
    assert_int_equal(m.step[0], 1);
    assert_near(m.step_s[0], 46.0 / 41);
}

TEST_IN_FOLDER(a_missing_worker_is_told_of)
{
    write_text("two.csv", HEAD "gc,1,0,0,0,0,10\ngc,1,1,1,1,0,10\n");
    assert_non_null(measures_of(in_folder("two.csv")).unknown);
}

/* ---- the plan ---- */

static struct stage_plan plan;

/* Whether the k-th op of a type waits for another one of its stage. */
static bool waits(uint32_t stage, enum stage_op_type type, uint32_t k, enum stage_op_type before,
                  uint32_t before_k)
{
    for (uint32_t o = stage_plan_of_stage(&plan, stage); o < stage_plan_of_stage(&plan, stage + 1);
         o++) {
        const struct stage_plan_op *op = &plan.ops[o];
        for (uint32_t i = 0; i < op->n_before && op->type == type && op->row->sequence == k; i++) {
            const struct stage_plan_op *at = &plan.ops[plan.before[op->first_before + i]];
            if (at->type == before && at->row->sequence == before_k)
                return true;
        }
    }
    return false;
}

TEST(messages_belong_to_passes_and_scatters_follow_all_of_them)
{
    struct trace_part part =
        part_of_text(&stage_csv_reader,
                     HEAD "forward-compute,1,0,0,0,0,10\nforward-send,1,0,0,0,10,1\n"
                          "forward-compute,1,0,0,0,11,10\nforward-send,1,0,0,0,21,1\n"
                          "backward-compute,1,0,0,0,60,10\nbackward-recv,1,0,0,0,30,30\n"
                          "backward-compute,1,0,0,0,90,10\nbackward-recv,1,0,0,0,70,20\n"
                          "grads-reduce-scatter,1,0,0,0,100,5\noptimizer,1,0,0,0,105,1\n"
                          "forward-recv,1,0,1,1,0,11\nforward-compute,1,0,1,1,11,10\n"
                          "forward-recv,1,0,1,1,40,1\nforward-compute,1,0,1,1,60,10\n"
                          "backward-compute,1,0,1,1,40,19\nbackward-send,1,0,1,1,59,1\n"
                          "backward-compute,1,0,1,1,70,19\nbackward-send,1,0,1,1,89,1\n",
                     0);
    const struct stage_table *table = part_payload(&part, &stage_payload);
    assert_non_null(table);
    stage_plan_make(table, &plan, &arena);
    assert_non_null(plan.order);
    assert_true(waits(0, STAGE_FORWARD_SEND, 1, STAGE_FORWARD, 1));
    assert_true(waits(0, STAGE_BACKWARD, 1, STAGE_BACKWARD_RECV, 1));
    assert_true(waits(1, STAGE_FORWARD, 1, STAGE_FORWARD_RECV, 1));
    assert_true(waits(1, STAGE_FORWARD_RECV, 1, STAGE_FORWARD, 0));
    assert_true(waits(0, STAGE_GRADS_SCATTER, 0, STAGE_BACKWARD, 1));
    assert_true(waits(0, STAGE_OPTIMIZER, 0, STAGE_GRADS_SCATTER, 0));
    for (uint32_t op = 0; op < plan.n; op++) {
        bool message = stage_op_is_message(plan.ops[op].type);
        assert_int_equal(plan.ops[op].peer != UINT32_MAX, message);
        if (message)
            assert_int_equal(plan.ops[plan.ops[op].peer].group, plan.ops[op].group);
    }
}

/* ---- production traces with the published results ---- */

/* T, T*, S, M_W and M_S as published. */
struct published {
    double t_s, ideal_s, s, m_w, m_s;
};

static struct straggler_measures assert_published(const char *name, const struct published *should)
{
    char path[512];
    if (!capture_path(path, name))
        skip();
    struct straggler_measures m = measures_of(path);
    assert_null(m.unknown);
    assert_int_equal(m.n_left_out, 0);
    assert_near(m.t_s, should->t_s);
    assert_near(m.ideal_s, should->ideal_s);
    assert_near(m.s, should->s);
    assert_near(m.m_w, should->m_w);
    assert_near(m.m_s, should->m_s);
    return m;
}

TEST(measures_of_a_slow_last_stage_are_those_published)
{
    struct straggler_measures m = assert_published(
        "stragglers/timeline-ST.json.gz",
        &(struct published){2.172696813, 1.843295824, 1.178702184, 0.031404269, 1.219356379});
    assert_near(m.of[SLOW_STAGES].s[3], 1.232255954);
    assert_near(m.of[SLOW_STAGES].s[0], 0.998045064);
    assert_near(m.of[SLOW_REPLICAS].s[0], 1.173082820);
    assert_near(m.of[SLOW_REPLICAS].s[1], 1.177870424);
    assert_near(m.of_worker[3], 1.173082820);
    assert_near(of_type(&m, "forward-compute"), 1.087498966);
    assert_near(of_type(&m, "embedding-grads-all-reduce"), 1.009550402);
    assert_near(of_type(&m, "backward-pp-comm"), 0.999992994);
    assert_int_equal(m.step[0], 23);
    assert_near(m.step_s[0], 1.269284197);
}

TEST(measures_of_a_slow_worker_are_those_published)
{
    struct straggler_measures m = assert_published(
        "stragglers/timeline-AR.json.gz",
        &(struct published){46.336372597, 23.484700210, 1.973045097, 1.001701278, -0.001211964});
    assert_int_equal(m.n_steps, 44);
    assert_near(m.of[SLOW_REPLICAS].s[0], 1.973044410);
    assert_near(m.of[SLOW_REPLICAS].s[3], 1.011142949);
    assert_near(m.of[SLOW_STAGES].s[0], 1.979188638);
    assert_near(m.of[SLOW_STAGES].s[2], 0.995604113);
    assert_near(m.of_worker[0], 1.973044410);
}

int main(void)
{
    int failed = run_cases(NULL, NULL);
    arena_fini(&arena);
    return failed;
}
