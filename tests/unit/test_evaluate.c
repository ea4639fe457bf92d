/* Iteration times of models made by hand, where they can be worked out on paper. */

#include "case.h"
#include "cost/program/evaluate.h"

/* Two ranks that compute t0 for 10 and t1 for 20 ns and then wait for both; the tensors take 30 and
 * 40 ns on the wires. */
struct job {
    struct model_tensor tensors[3];
    struct model_op ops[4];
    struct model_program program;
    struct model_rank ranks[2];
    uint32_t order[3];
    struct strategy_bucket buckets[3];
    struct dpro_model model;
};

static struct model_op computes(int64_t work_ns, uint32_t tensor)
{
    return (struct model_op){.name = "op",
                             .phase = DPRO_OP_BW,
                             .needs = MODEL_NONE,
                             .tensor = tensor,
                             .work_ns = work_ns};
}

static struct model_op waits_for(uint32_t needs)
{
    struct model_op op = computes(0, MODEL_NONE);
    op.needs = needs;
    return op;
}

static struct job *job_of_two(void)
{
    struct job *job = kept_memory(1, sizeof *job);
    job->tensors[0] = (struct model_tensor){"t0", 30, 0, 0, 0};
    job->tensors[1] = (struct model_tensor){"t1", 40, 1, 0, 0};
    job->ops[0] = computes(10, 0);
    job->ops[1] = computes(20, 1);
    job->ops[2] = waits_for(MODEL_ALL);
    job->program = (struct model_program){.ops = job->ops, .n_ops = 3};
    job->ranks[0] = (struct model_rank){.rank = 0, .work_scale = 1};
    job->ranks[1] = (struct model_rank){.rank = 1, .work_scale = 1};
    job->order[1] = 1;
    job->buckets[0] = (struct strategy_bucket){0, 1, 1, 0, 0};
    job->buckets[1] = (struct strategy_bucket){1, 1, 1, 0, 0};
    struct dpro_model *m = &job->model;
    m->tensors = job->tensors;
    m->n_tensors = 2;
    m->programs = &job->program;
    m->n_programs = 1;
    m->ranks = job->ranks;
    m->n_ranks = 2;
    m->net =
        (struct model_net){.collective.n_ranks = 2, .gate.n_streams = 1, .gate.in_order = true};
    m->net.link.byte_ns.value = 1;
    m->baseline =
        (struct dpro_strategy){.order = job->order, .buckets = job->buckets, .n_buckets = 2};
    return job;
}

static int64_t time_of(struct job *job)
{
    struct evaluator *evaluator = evaluator_create(&job->model);
    int64_t ns = evaluate_strategy(evaluator, &job->model.baseline);
    assert_int_equal(evaluate_strategy(evaluator, &job->model.baseline),
                     ns); /* nothing is left over */
    evaluator_destroy(evaluator);
    return ns;
}

static void in_one_bucket(struct job *job)
{
    job->buckets[0].n = 2;
    job->model.baseline.n_buckets = 1;
}

TEST(a_bucket_waits_for_the_wire)
{
    /* t0 is sent from 10 to 40, t1 from there to 80 */
    assert_int_equal(time_of(job_of_two()), 80);
}

TEST(two_streams_share_the_wire)
{
    struct job *job = job_of_two();
    job->model.net.gate.n_streams = 2;
    struct evaluator *evaluator = evaluator_create(&job->model);
    const struct evaluation *e = evaluate_detail(evaluator, &job->model.baseline);
    /* t0 has 10 left when t1 comes at 30: half as fast, until 50 */
    assert_int_equal(e->buckets[0].end_ns, 50);
    assert_int_equal(e->buckets[1].start_ns, 30);
    assert_int_equal(e->buckets[1].end_ns, 80);
    evaluator_destroy(evaluator);
}

TEST(communication_slows_computation_down)
{
    struct job *job = job_of_two();
    job->model.net.link.cpu_ns.value = 0.5;
    /* t1: half its rate while t0 is sent, 15 of 20 by 40, ready at 45 */
    assert_int_equal(time_of(job), 45 + 40);
}

TEST(computation_holds_communication_up)
{
    struct job *job = job_of_two();
    job->model.net.link.held_share.value = 0.5;
    /* t0, of 30: half its rate from 10 to 30, the rest by 50; t1 alone */
    assert_int_equal(time_of(job), 50 + 40);
}

TEST(buckets_are_launched_in_order_where_the_job_does_so)
{
    for (int in_order = 0; in_order < 2; in_order++) {
        struct job *job = job_of_two();
        job->order[0] = 1;
        job->order[1] = 0;
        job->model.net.gate.in_order = in_order;
        /* in order, t0 goes after t1, from 70 to 100 */
        assert_int_equal(time_of(job), in_order ? 100 : 80);
    }
}

TEST(a_bucket_of_high_priority_overtakes_partitions)
{
    for (int priority = 0; priority < 2; priority++) {
        struct job *job = job_of_two();
        job->buckets[0].partitions = 3;
        job->buckets[1].priority = priority;
        job->ops[1].work_ns = 5;
        struct evaluator *evaluator = evaluator_create(&job->model);
        const struct evaluation *e = evaluate_detail(evaluator, &job->model.baseline);
        /* t1 is there at 15, in the middle of t0's first part */
        assert_int_equal(e->buckets[1].start_ns, priority ? 20 : 40);
        assert_int_equal(e->buckets[1].end_ns, priority ? 60 : 80);
        assert_int_equal(e->iteration_ns, 80);
        evaluator_destroy(evaluator);
    }
}

TEST(compression_halves_the_bytes_and_casts_them)
{
    struct job *job = job_of_two();
    in_one_bucket(job);
    job->model.baseline.compression = DPRO_COMPRESSION_FP16;
    job->model.net.compute.cast_ns.value = 0.2;
    /* cast for 7 of computing time, sent for 35 + 1 (halves are padded), cast back for 7 */
    assert_in_range(time_of(job), 30 + 7 + 35 + 7, 30 + 7 + 36 + 7);
}

TEST(a_job_that_waits_for_nothing_it_sends_never_ends)
{
    struct job *job = job_of_two();
    job->ops[0].tensor = MODEL_NONE; /* nobody makes t0 */
    assert_true(time_of(job) == INT64_MAX);
}

/* ---- Horovod's cycles ---- */

/* Both tensors are ready at 10; a collective takes 5 beside its bytes. */
static struct job *job_with_cycles(int64_t cycle_ns)
{
    struct job *job = job_of_two();
    job->ops[1].work_ns = 0;
    job->model.net.gate.in_order = false;
    job->model.net.gate.negotiates = true;
    job->model.net.collective.overhead_ns.value = 5;
    job->model.baseline.cycle_ns = cycle_ns;
    return job;
}

TEST(what_is_ready_waits_for_the_next_cycle)
{
    /* cycles at 0 and 40; the first of the next iteration begins as this one ends */
    assert_int_equal(time_of(job_with_cycles(40)), 40 + 5 + 30 + 5 + 40);
    struct job *job = job_with_cycles(40);
    job->model.net.gate.negotiate_ns.value = 3;
    assert_int_equal(time_of(job), 40 + 3 + 5 + 30 + 5 + 40);
    /* one cycle an iteration, whatever it has to do */
    assert_int_equal(time_of(job_with_cycles(1000)), 1000);
}

TEST(what_is_ready_together_is_fused_up_to_the_threshold)
{
    static const struct {
        uint64_t fusion_bytes;
        uint32_t n_groups;
        int64_t ns;
    } cases[] = {{70, 1, 40 + 5 + 70}, {69, 2, 40 + 5 + 30 + 5 + 40}, {0, 2, 120}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct job *job = job_with_cycles(40);
        job->model.baseline.fuses = true;
        job->model.baseline.fusion_bytes = cases[i].fusion_bytes;
        struct evaluator *evaluator = evaluator_create(&job->model);
        assert_int_equal(evaluate_strategy(evaluator, &job->model.baseline), cases[i].ns);
        evaluated_groups(evaluator, &job->model.baseline);
        assert_int_equal(job->model.baseline.n_buckets, cases[i].n_groups);
        assert_int_equal(job->model.baseline.buckets[0].n, cases[i].n_groups == 1 ? 2 : 1);
        evaluator_destroy(evaluator);
    }
}

TEST(a_cycle_that_is_busy_delays_the_next)
{
    struct job *job = job_with_cycles(1);
    job->ops[1].work_ns = 20;
    /* t0 is sent from 10 to 45, t1 from there to 90 */
    assert_int_equal(time_of(job), 90);
}

/* ---- parameter servers ---- */

static struct job *served_job(uint32_t n_servers, const int32_t *hosts)
{
    struct job *job = job_of_two();
    struct model_net *net = &job->model.net;
    net->collective.algorithm = MODEL_SERVER;
    net->servers.n = n_servers;
    net->servers.hosts = hosts;
    net->gate.in_order = false;
    return job;
}

TEST(ranks_share_a_servers_link_each_way)
{
    /* t0 arrives at 70 and t1 behind it at 150; t1 is back 80 later */
    assert_int_equal(time_of(served_job(1, NULL)), 230);
}

TEST(a_second_server_has_a_link_of_its_own)
{
    /* t1, on its own way from 30 on, arrives at 110, and comes back beside t0 */
    assert_int_equal(time_of(served_job(2, NULL)), 190);
}

TEST(what_a_rank_and_a_server_of_its_host_say_takes_no_link)
{
    static const int32_t hosts[] = {0};
    /* rank 1 has the link for itself: t0 from 10 to 40, t1 behind it to 80, and back */
    assert_int_equal(time_of(served_job(1, hosts)), 120);
}

TEST(parts_of_a_tensor_go_to_all_servers)
{
    static const int32_t hosts[] = {0, 1};
    struct job *job = served_job(2, hosts);
    in_one_bucket(job);
    /* both keys to server 0: 30 + 70 + 70 on rank 1's link */
    assert_int_equal(time_of(job), 170);
    job = served_job(2, hosts);
    in_one_bucket(job);
    job->buckets[0].partitions = 2; /* half of it each way, at once */
    assert_int_equal(time_of(job), 30 + 35 + 35);
}

TEST(a_servers_thread_takes_one_push_after_the_other)
{
    static const int32_t hosts[] = {0};
    struct job *job = served_job(1, hosts);
    job->model.net.servers.push_ns.value = 25;
    job->model.net.servers.answer_ns.value = 3;
    /* rank 0 is ahead: of rank 1's, t0 is served from 40 to 65 and t1 when it is there, at 80 */
    assert_int_equal(time_of(job), 80 + 25 + 3 + 40);
}

TEST(a_messages_own_time_keeps_no_link_busy)
{
    static const int32_t hosts[] = {0};
    struct job *job = served_job(1, hosts);
    job->model.net.link.message_ns.value = 5;
    /* t1 goes behind t0 at 40 as it does without, and comes back at once */
    assert_int_equal(time_of(job), 80 + 5 + 40 + 5);
}

TEST(what_has_priority_goes_behind_what_is_under_way)
{
    struct job *job = served_job(1, NULL);
    job->ops[0].work_ns = 0;
    job->ops[1].work_ns = 1;
    job->buckets[1].priority = 1;
    /* t0 arrives at 60 all the same, t1 80 later, and comes back in as long */
    assert_int_equal(time_of(job), 60 + 80 + 80);
}

TEST(ranks_of_one_host_share_its_link_and_its_server)
{
    static const int32_t hosts[] = {0};
    static const uint32_t rank_hosts[] = {0, 0};
    struct job *job = served_job(1, hosts);
    job->model.net.link.rank_hosts = rank_hosts;
    assert_int_equal(time_of(job), 30); /* nothing but computation */
    job = served_job(1, NULL);
    job->model.net.link.rank_hosts = rank_hosts;
    /* both push over one link: t0 away at 10 + 60, t1 80 later, the answers as long */
    assert_int_equal(time_of(job), 70 + 80 + 80);
}

/* Two recorded ranks and 598 copies of them, two on a host, of which each is as fast as it likes;
 * or all as if recorded. */
static double time_of_many(uint32_t n_servers, bool recorded)
{
    enum { N = 600 };
    static struct model_rank ranks[N];
    static uint32_t rank_hosts[N];
    struct job *job = served_job(n_servers, NULL);
    job->model.net.servers.push_ns.value = 2;
    for (uint32_t r = 0; r < N; r++) {
        ranks[r] = job->ranks[r % 2];
        ranks[r].rank = (int)r;
        ranks[r].work_scale = 50 + (r * 7919 % 1009) / 20.0;
        ranks[r].copy = recorded ? 0 : r / 2;
        ranks[r].like = recorded ? 0 : r % 2;
        rank_hosts[r] = r / 2 * 2;
    }
    job->model.ranks = ranks;
    job->model.n_ranks = job->model.net.collective.n_ranks = N;
    job->model.net.link.rank_hosts = rank_hosts;
    return (double)time_of(job);
}

TEST(copies_that_are_about_as_fast_push_and_pull_as_one)
{
    for (uint32_t n_servers = 1; n_servers <= 2; n_servers++) {
        double ratio = time_of_many(n_servers, false) / time_of_many(n_servers, true);
        assert_true(ratio > 0.995 && ratio < 1.005);
    }
}

static struct job *session_job(void)
{
    static const int32_t hosts[] = {0};
    struct job *job = served_job(1, hosts);
    job->model.net.servers.placement = MODEL_ANYWHERE;
    job->model.net.gate.pulls_with_step = true;
    job->model.net.gate.step_ns.value = 7;
    job->ops[0].needs = 0;
    job->ops[1].needs = 1;
    job->ops[2] = computes(0, MODEL_NONE);
    return job;
}

TEST(a_session_pulls_when_all_of_the_step_before_is_done)
{
    /* t0 comes in 30, t1 40 later; t0 is ready at 40, t1 at 90 and away at 130 */
    assert_int_equal(time_of(session_job()), 7 + 130);
}
