/* What-ifs of a model made by hand, where they can be worked out on paper. */
#include <unistd.h>

#include <dpro/whatif.h>

#include "case.h"
#include "cost/program/buckets.h"
#include "cost/program/evaluate.h"
#include "cost/program/model_memory.h"
#include "stages_seen.h"

enum { MIB = 1048576, N = 4 };

/* Two ranks that compute four gradients in 10 ms each and then wait for them; 100 MB/s. */
struct job {
    struct model_tensor tensors[N];
    struct model_op ops[N + 1];
    struct model_program program;
    struct model_rank ranks[2];
    double samples[2];
    uint32_t order[N];
    struct strategy_bucket buckets[N];
    struct dpro_model model;
};

static struct job *new_job(void)
{
    static const char *const names[N] = {"d", "c", "b", "a"};
    struct job *job = kept_memory(1, sizeof *job);
    for (uint32_t t = 0; t < N; t++) {
        job->tensors[t] = (struct model_tensor){names[t], MIB, t, 0, 0};
        job->ops[t] = (struct model_op){.name = "op",
                                        .phase = DPRO_OP_BW,
                                        .needs = MODEL_NONE,
                                        .tensor = t,
                                        .work_ns = 10000000};
        job->order[t] = t;
    }
    job->ops[N] = (struct model_op){
        .name = "wait", .phase = DPRO_OP_UPDATE, .needs = MODEL_ALL, .tensor = MODEL_NONE};
    job->program = (struct model_program){.ops = job->ops, .n_ops = N + 1};
    job->samples[0] = 0.9;
    job->samples[1] = 1.1;
    for (int r = 0; r < 2; r++)
        job->ranks[r] =
            (struct model_rank){.rank = r, .work_scale = 1, .sample_scale = job->samples};
    job->buckets[0] = (struct strategy_bucket){0, N, 1, 0, 0};
    struct dpro_model *m = &job->model;
    m->tensors = job->tensors;
    m->n_tensors = N;
    m->programs = &job->program;
    m->n_programs = 1;
    m->ranks = job->ranks;
    m->n_ranks = 2;
    m->n_samples = 2;
    m->net =
        (struct model_net){.collective.n_ranks = 2, .gate.n_streams = 1, .gate.in_order = true};
    m->capabilities = model_capabilities(DPRO_STACK_DDP);
    m->net.link.byte_ns.value = 10;
    m->baseline =
        (struct dpro_strategy){.order = job->order, .buckets = job->buckets, .n_buckets = 1};
    return job;
}

static struct dpro_whatif *ask(const struct job *job, const struct dpro_changes *changes)
{
    struct dpro_whatif *whatif;
    struct dpro_error err = {.code = 0};
    if (dpro_whatif_run(NULL, &job->model, changes, &whatif, &err) < 0)
        fail_msg("%s", err.text);
    KEEP(whatif, dpro_whatif_destroy);
    return whatif;
}

static int64_t time_with(const struct job *job, const struct dpro_changes *changes)
{
    return dpro_whatif_answer(ask(job, changes))->predicted.iteration_ns;
}

/* A ring of two sends each byte once, each way: 4 MiB at 10 ns a byte behind 40 ms of work. */
#define OWN_NS (40000000 + INT64_C(10) * N * MIB)

TEST(a_prediction_tells_how_far_it_is)
{
    struct job *job = new_job();
    struct stages_seen seen = {.n_wrong = 0};
    ask(job, &(struct dpro_changes){.sink = stages_sink(&seen)});
    assert_string_equal(seen.names, "predict the job as it is;predict the changed job;"
                                    "find how sure that is;");
    assert_int_equal(seen.n_wrong, 0);
}

TEST(smaller_buckets_overlap_with_the_computation)
{
    struct job *job = new_job();
    /* each waits for the one before it: 10.5 ms a MiB against 10 ms of work */
    assert_int_equal(time_with(job, &(struct dpro_changes){.bucket_cap_bytes = MIB}),
                     10000000 + INT64_C(10) * N * MIB);
}

TEST(links_and_ranks_change_as_asked)
{
    struct job *job = new_job();
    assert_int_equal(time_with(job, &(struct dpro_changes){.bandwidth_ratio = 0.5}),
                     40000000 + INT64_C(20) * N * MIB);
    /* a rate is a link's: 1448 of 1514 bytes are payload */
    int64_t rate = time_with(job, &(struct dpro_changes){.bandwidth_bytes_per_s = 1e8});
    assert_true(llabs((long long)(rate - 40000000 - (int64_t)(10.0 * N * MIB * 1514 / 1448))) < 10);
    struct dpro_compute_change all = {2, -1, -1, DPRO_PROCESSOR_DEFAULT},
                               one = {0.5, 1, 1, DPRO_PROCESSOR_DEFAULT};
    assert_int_equal(time_with(job, &(struct dpro_changes){.compute = &all, .n_compute = 1}),
                     OWN_NS - 20000000);
    assert_int_equal(time_with(job, &(struct dpro_changes){.compute = &one, .n_compute = 1}),
                     OWN_NS + 40000000);
    enum dpro_compression half = DPRO_COMPRESSION_FP16;
    assert_int_equal(time_with(job, &(struct dpro_changes){.compression = &half}),
                     40000000 + INT64_C(5) * N * MIB);
}

TEST(zero_shares_out_the_update_and_gathers_the_parameters_after_it)
{
    struct job *job = new_job();
    struct graph_block blocks[] = {{.category = DPRO_MEMORY_STATE, .size_bytes = 8 * MIB},
                                   {.category = DPRO_MEMORY_PARAMETER, .size_bytes = 4 * MIB}};
    uint8_t phase = DPRO_OP_BW;
    struct graph_moment moment = {0};
    struct model_memory memory = {.blocks = blocks, .moments = &moment, .phases = &phase};
    blocks[0].taken = blocks[0].given = blocks[1].taken = blocks[1].given = MEMORY_NONE;
    memory.n_blocks = 2;
    memory.n_moments = 1;
    job->model.memories = &memory;
    job->model.n_memories = 1;
    job->ops[N].work_ns = 8000000;                  /* the update */
    const int64_t gather_ns = INT64_C(5) * N * MIB; /* each rank sends its half */
    const struct dpro_changes zero = {.zero = 1};
    struct dpro_whatif *whatif = ask(job, &zero);
    assert_int_equal(dpro_whatif_answer(whatif)->baseline.iteration_ns, OWN_NS + 8000000);
    assert_int_equal(dpro_whatif_answer(whatif)->predicted.iteration_ns,
                     OWN_NS + 4000000 + gather_ns);
    assert_int_equal(dpro_whatif_answer(whatif)->memory[0].bytes, 12 * MIB);
    assert_int_equal(dpro_whatif_answer(whatif)->memory[1].bytes, 8 * MIB);
    /* four ranks: a quarter each; a ring of n sends (n - 1) / n of the parameters */
    struct dpro_changes more = {.zero = 1, .world_size = 4};
    assert_int_equal(dpro_whatif_answer(ask(job, &more))->memory[1].bytes, 6 * MIB);
    /* faster ranks update faster, and gather as long; all wait for the slowest */
    struct dpro_compute_change one = {2, 1, 1, DPRO_PROCESSOR_DEFAULT}, all = {2, -1, -1, 0};
    struct dpro_changes faster = {.zero = 1, .compute = &all, .n_compute = 1};
    assert_int_equal(time_with(job, &faster), OWN_NS - 20000000 + 2000000 + gather_ns);
    faster.compute = &one;
    assert_int_equal(time_with(job, &faster), OWN_NS + 4000000 + gather_ns);
    /* in micro-batches it is once a step */
    struct dpro_changes cut = {.zero = 1, .micro_batches = 4}, whole = {.micro_batches = 4};
    assert_int_equal(time_with(job, &cut) - time_with(job, &whole), gather_ns - 4000000);
    struct dpro_error err = {.code = 0};
    struct dpro_whatif *none;
    assert_int_equal(
        dpro_whatif_run(NULL, &job->model, &(struct dpro_changes){.zero = 2}, &none, &err),
        DPRO_EUSAGE);
}

TEST(more_ranks_send_more_and_wait_for_a_slower_slowest)
{
    struct job *job = new_job();
    double other[2] = {1.1, 0.9};
    job->ranks[1].sample_scale = other;
    struct dpro_whatif *whatif = ask(job, &(struct dpro_changes){.world_size = 8});
    /* a ring of n sends 2 (n - 1) / n of the bytes */
    int64_t ring = 40000000 + INT64_C(10) * N * MIB * 14 / 8;
    assert_in_range(dpro_whatif_answer(whatif)->predicted.iteration_ns, ring + 500000,
                    ring + 4000000);
    assert_int_equal(dpro_model_n_ranks(dpro_whatif_answer(whatif)->model), 8);
    assert_int_equal(dpro_whatif_n_warnings(whatif), 2);
    assert_non_null(strstr(dpro_whatif_warning(whatif, 1), "a rank's computation varies by 14"));
}

TEST(the_percentiles_are_of_whole_iterations)
{
    struct job *job = new_job();
    double other[2] = {1.1, 0.9}; /* in each iteration one rank is slow, and never both are fast */
    job->ranks[1].sample_scale = other;
    struct dpro_whatif *whatif = ask(job, &(struct dpro_changes){0});
    struct dpro_prediction p = dpro_whatif_answer(whatif)->baseline;
    assert_int_equal(p.p50_ns, OWN_NS + 4000000);
    assert_int_equal(p.p95_ns, OWN_NS + 4000000);
    other[0] =
        0.9; /* or both are, half of the time; by themselves one would be, three times in four */
    other[1] = 1.1;
    whatif = ask(job, &(struct dpro_changes){0});
    p = dpro_whatif_answer(whatif)->baseline;
    assert_true(p.p50_ns <= OWN_NS + 4000000);
    assert_int_equal(p.p95_ns, OWN_NS + 4000000);
    /* what both do together, more ranks do, too */
    p = dpro_whatif_answer(ask(job, &(struct dpro_changes){.world_size = 512}))->predicted;
    struct dpro_whatif *more = ask(job, &(struct dpro_changes){.world_size = 1024});
    struct dpro_prediction of_more = dpro_whatif_answer(more)->predicted;
    assert_int_equal(of_more.p95_ns - p.p95_ns, of_more.p50_ns - p.p50_ns);
}

static double part_of(const struct dpro_whatif *whatif, enum dpro_uncertainty_source source)
{
    return dpro_whatif_answer(whatif)->uncertainty[source].after;
}

TEST(the_interval_is_made_of_its_parts)
{
    struct job *job = new_job();
    job->model.measured_ns = OWN_NS;
    job->model.misfit = 0.02;
    job->model.job_noise = 0.03;
    job->model.machine_std = 0.04;
    job->model.net.link.byte_ns.std = 0.5;
    struct dpro_whatif *same = ask(job, &(struct dpro_changes){0});
    struct dpro_whatif *near = ask(job, &(struct dpro_changes){.bucket_cap_bytes = 3 * MIB});
    struct dpro_whatif *far =
        ask(job, &(struct dpro_changes){.bucket_cap_bytes = MIB, .micro_batches = 2});
    double squares = 0;
    for (int i = 0; i < DPRO_N_UNCERTAINTY_PARTS; i++) {
        double part = part_of(far, (enum dpro_uncertainty_source)i);
        assert_true(part > 0 || i == DPRO_UNCERTAIN_COMPUTING);
        squares += part * part;
    }
    double whole = dpro_whatif_answer(far)->predicted.uncertainty_pct / 196;
    assert_true(fabs(squares - whole * whole) < 1e-9);
    assert_true(fabs(part_of(far, DPRO_UNCERTAIN_MACHINE) - 0.04) < 1e-9);
    double ratio = dpro_whatif_answer(far)->speedup.value; /* what does not change is not off */
    assert_true(fabs(part_of(far, DPRO_UNCERTAIN_MODEL) - 0.02 * fabs(1 - 1 / ratio)) < 1e-4);
    assert_true(part_of(same, DPRO_UNCERTAIN_MODEL) == 0);
    /* the more changes, the less is known of it */
    assert_true(part_of(same, DPRO_UNCERTAIN_CHANGE) == 0);
    assert_true(part_of(near, DPRO_UNCERTAIN_CHANGE) > 0);
    assert_true(part_of(far, DPRO_UNCERTAIN_CHANGE) > part_of(near, DPRO_UNCERTAIN_CHANGE));
}

/* What as many collectives take is in the model, or hidden behind the same as in the recording. */
TEST(longer_messages_of_as_many_collectives_are_no_doubt_of_their_own)
{
    struct job *job = new_job();
    job->model.measured_ns = OWN_NS;
    struct dpro_whatif *longer = ask(job, &(struct dpro_changes){.latency_add_ns = 10000000});
    double ratio = dpro_whatif_answer(longer)->speedup.value;
    assert_true(ratio < 0.9);
    assert_float_equal(part_of(longer, DPRO_UNCERTAIN_CHANGE), 0.15 * (1 - ratio), 1e-9);
}

/* Of four launches that of the first shows, as the others are beside a transfer: they may show. */
TEST(launches_that_are_hidden_are_a_doubt_of_more_collectives)
{
    const int64_t LAUNCH_NS = 100000;
    struct job *job = new_job();
    job->model.measured_ns = OWN_NS;
    const struct dpro_changes apart = {.bucket_cap_bytes = MIB};
    job->model.net.compute.launch_ns.value = (double)LAUNCH_NS;
    struct dpro_whatif *more = ask(job, &apart);
    double before_ns = (double)dpro_whatif_answer(more)->baseline.iteration_ns;
    double after_ns = (double)dpro_whatif_answer(more)->predicted.iteration_ns;
    assert_float_equal(after_ns, 10000000 + LAUNCH_NS + 10.0 * N * MIB, 1);
    double hidden = 3 * LAUNCH_NS / sqrt(3) / after_ns; /* anything from none to all of it */
    assert_float_equal(part_of(more, DPRO_UNCERTAIN_CHANGE),
                       hypot(0.15 * (1 - after_ns / before_ns), hidden), 1e-9);
}

/* What is recorded is not in doubt: were communication dearer, there would be less work. */
TEST(what_interference_costs_is_unsure_where_it_was_not_recorded)
{
    struct job *job = new_job();
    for (uint32_t t = 0; t < N;
         t++) { /* each in a bucket of its own, all but the last beside work */
        job->buckets[t] = (struct strategy_bucket){t, 1, 1, 0, 0};
        job->ops[t].beside_ns = t == 0 ? 0 : 10 * MIB;
    }
    job->model.baseline.n_buckets = N;
    job->model.net.link.cpu_ns = (struct dpro_estimate){2, 1};
    struct dpro_whatif *whatif = ask(job, &(struct dpro_changes){.bucket_cap_bytes = N * MIB});
    struct dpro_uncertainty_part learnt =
        dpro_whatif_answer(whatif)->uncertainty[DPRO_UNCERTAIN_LEARNT];
    assert_true(learnt.before < 0.01);
    assert_true(learnt.after > 4 * learnt.before);
}

TEST(what_is_not_sure_of_the_link_shows)
{
    struct job *job = new_job();
    job->model.net.link.byte_ns.std = 1;
    struct dpro_whatif *whatif = ask(job, &(struct dpro_changes){.bandwidth_ratio = 0.5});
    double wire = 10.0 * N * MIB, before = dpro_whatif_answer(whatif)->baseline.uncertainty_pct;
    double after = dpro_whatif_answer(whatif)->predicted.uncertainty_pct;
    assert_true(before == 0); /* it was measured, whatever the link */
    assert_true(after > 0 && after < 197 * wire / 10 / OWN_NS);
    assert_true(dpro_whatif_answer(whatif)->speedup.std > 0);
}

TEST(changes_without_sense_are_refused)
{
    struct job *job = new_job();
    struct dpro_compute_change none = {0, -1, -1, DPRO_PROCESSOR_DEFAULT},
                               absent = {2, 7, 7, DPRO_PROCESSOR_DEFAULT},
                               turned = {2, 1, 0, DPRO_PROCESSOR_DEFAULT},
                               slower = {-2, -1, -1, DPRO_PROCESSOR_DEFAULT};
    const struct {
        struct dpro_changes changes;
        const char *says;
    } cases[] = {
        {{.bandwidth_ratio = -1}, "bandwidth above 0"},
        {{.bandwidth_bytes_per_s = -1}, "bandwidth above 0"},
        {{.bandwidth_bytes_per_s = 1, .bandwidth_ratio = 1}, "not both"},
        {{.latency_ratio = -1}, "latency"},
        {{.world_size = 1}, "1 rank can"},
        {{.compute = &none, .n_compute = 1}, "makes no sense"},
        {{.compute = &absent, .n_compute = 1}, "no rank 7"},
        {{.compute = &turned, .n_compute = 1}, "ranks 1 to 0"},
        {{.compute = &slower, .n_compute = 1}, "-2 times"},
        {{.batch_ratio = -1}, "1/1024"},
        {{.world_size = (uint32_t)-4}, "4294967292 ranks"},
        {{.bucket_cap_bytes = 1, .buckets_path = "x"}, "not both"},
        {{.first_bucket_bytes = 1}, "first bucket"},
        {{.partition_bytes = 1}, "take larger ones"},
        {{.n_delays = 1}, "graph"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct dpro_whatif *whatif;
        struct dpro_error err = {.code = 0};
        assert_int_equal(dpro_whatif_run(NULL, &job->model, &cases[i].changes, &whatif, &err),
                         DPRO_EUSAGE);
        if (!strstr(err.text, cases[i].says))
            fail_msg("'%s' does not say '%s'", err.text, cases[i].says);
    }
}

/* ---- lists of buckets ---- */

static int read_list(const struct job *job, const char *text, struct dpro_strategy *strategy,
                     struct arena *arena, struct dpro_error *err)
{
    char path[] = "/tmp/dpro-test-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    close(fd);
    *err = (struct dpro_error){.code = 0};
    *strategy = buckets_make(&job->model, arena);
    int rc = OUTCOME(err, buckets_read(&job->model, path, strategy));
    unlink(path);
    return rc;
}

TEST(a_list_of_buckets_is_taken_as_it_is)
{
    static const char *const texts[] = {
        "[[\"d\",\"b\"],[\"a\",\"c\"]]",
        "{\"communication\":{\"buckets\":[{\"priority\":3,\"parameters\":[\"d\",\"b\"]},"
        "{\"parameters\":[\"a\",\"c\"],\"partitions\":2}],\"compression\":\"bf16\"},"
        "\"schema\":\"dpro.plan/1\",\"new\":[{}]}",
    };
    struct job *job = new_job();
    for (int plan = 0; plan < 2; plan++) {
        struct arena arena = {0};
        struct dpro_strategy s;
        struct dpro_error err;
        if (read_list(job, texts[plan], &s, &arena, &err) < 0)
            fail_msg("%s", err.text);
        assert_int_equal(s.n_buckets, 2);
        static const uint32_t order[] = {0, 2, 3, 1};
        assert_memory_equal(s.order, order, sizeof order);
        assert_int_equal(s.buckets[1].first, 2);
        assert_int_equal(s.buckets[1].n, 2);
        assert_int_equal(s.buckets[1].partitions, plan ? 2 : 1);
        assert_int_equal(s.buckets[0].priority, plan ? 3 : 0);
        assert_int_equal(s.compression, plan ? DPRO_COMPRESSION_BF16 : DPRO_COMPRESSION_NONE);
        arena_fini(&arena);
    }
}

TEST(a_list_that_does_not_fit_is_refused_by_name)
{
    static const char *const cases[][2] = {
        {"[[\"a\",\"b\",\"c\",\"d\",\"e\"]]", "'e' is no gradient"},
        {"[[\"a\",\"b\"],[\"c\",\"a\",\"d\"]]", "bucket 1: 'a' is in another"},
        {"[[\"a\",\"b\"],[\"c\"]]", "'d' among them"},
        {"[[\"a\",\"b\",\"c\",\"d\"],[]]", "'[1]' is empty"},
        {"[[\"a\"],[\"b\"],[\"c\"],[\"d\"],[\"d\"]]", "more buckets"},
        {"[[1]]", "in quotes"},
        {"[3]", "'[0]' has to be a list"},
        {"[[\"a\"", "ends too early"},
        {"", "ends too early"},
        {"nonsense", "not a list of buckets"},
        {"{\"schema\":\"dpro.plan/9\"}", "dpro.plan/1"},
        {"{\"schema\":\"dpro.plan/1\"}", "no buckets"},
        {"{\"schema\":\"dpro.plan/30\"}", "another version"},
        {"{\"schema\":\"dpro.plan/3\",\"memory\":[]}", "'memory' has to be an object"},
        {"{\"schema\":\"dpro.plan/3\",\"memory\":{\"recompute\":[1]}}", "in quotes"},
        {"{\"schema\":\"dpro.plan/3\",\"memory\":{\"recompute\":{}}}",
         "'memory.recompute' has to be a list"},
        {"{\"schema\":\"dpro.plan/4\",\"computation\":{\"compile\":3}}",
         "'computation.compile' has to be a list"},
        {"{\"schema\":\"dpro.plan/4\",\"computation\":{\"bf16\":[null]}}", "in quotes"},
        {"{\"schema\":\"dpro.plan/3\",\"memory\":{\"micro_batches\":0}}", "micro_batches"},
        {"{\"communication\":{\"compression\":\"int8\"}}", "compression"},
        {"{\"communication\":{\"buckets\":[{\"partitions\":0,\"parameters\":[\"a\"]}]}}",
         "partitions"},
    };
    struct job *job = new_job();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct arena arena = {0};
        struct dpro_strategy s;
        struct dpro_error err;
        assert_int_equal(read_list(job, cases[i][0], &s, &arena, &err), DPRO_EFORMAT);
        if (!strstr(err.text, cases[i][1]))
            fail_msg("%s: '%s' does not say '%s'", cases[i][0], err.text, cases[i][1]);
        arena_fini(&arena);
    }
}

TEST(a_bucket_ends_when_it_reaches_its_cap)
{
    static const struct {
        uint64_t first, cap;
        uint32_t sizes[N]; /* tensors a bucket */
    } cases[] = {
        {MIB, MIB, {1, 1, 1, 1}}, {MIB + 1, MIB + 1, {2, 2}}, {MIB, 3 * MIB, {1, 3}},
        {1, 2 * MIB, {1, 2, 1}},  {9 * MIB, 9 * MIB, {4}},    {3 * MIB, 1, {3, 1}},
    };
    struct job *job = new_job();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct arena arena = {0};
        struct dpro_strategy s;
        s = buckets_make(&job->model, &arena);
        buckets_by_cap(&job->model, cases[i].first, cases[i].cap, &s);
        uint32_t at = 0;
        for (uint32_t b = 0; b < s.n_buckets; at += s.buckets[b++].n) {
            assert_int_equal(s.buckets[b].first, at);
            assert_int_equal(s.buckets[b].n, cases[i].sizes[b]);
        }
        assert_int_equal(at, N);
        arena_fini(&arena);
    }
}

/* Of a step with two models, the second one's backward pass follows the first one's update. */
TEST(a_bucket_ends_before_what_follows_its_communication)
{
    struct job *job = new_job();
    job->ops[2].needs = 1;
    job->buckets[0].n = 2;
    job->buckets[1] = (struct strategy_bucket){2, 2, 1, 1, 0};
    job->model.baseline.n_buckets = 2;
    struct arena arena = {0};
    struct dpro_strategy s = buckets_make(&job->model, &arena);
    buckets_by_cap(&job->model, 9 * MIB, 9 * MIB, &s);
    assert_int_equal(s.n_buckets, 2);
    assert_int_equal(s.buckets[0].n, 2);
    buckets_by_cap(&job->model, 1, 9 * MIB, &s); /* each model has a first bucket */
    assert_int_equal(s.n_buckets, 4);
    arena_fini(&arena);
    int64_t ns = time_with(job, &(struct dpro_changes){.bucket_cap_bytes = 9 * MIB});
    assert_int_equal(ns, time_with(job, &(struct dpro_changes){.latency_ratio = 1}));
}

TEST(partitions_are_of_at_most_that_size)
{
    struct job *job = new_job();
    struct arena arena = {0};
    struct dpro_strategy s;
    s = buckets_copy(&job->model, &job->model.baseline, &arena);
    buckets_partition(&job->model, 4 * MIB, &s);
    assert_int_equal(s.buckets[0].partitions, 1);
    buckets_partition(&job->model, 4 * MIB - 1, &s);
    assert_int_equal(s.buckets[0].partitions, 2);
    buckets_partition(&job->model, MIB, &s);
    assert_int_equal(s.buckets[0].partitions, 4);
    arena_fini(&arena);
}

static double launch_ns_of(const struct dpro_model *m, uint32_t bucket)
{
    struct bucket_cost costs[4];
    uint32_t bucket_of[8];
    buckets_cost(m, &m->baseline, costs, bucket_of);
    return costs[bucket].launch_ns;
}

/* DDP divides a bucket while it copies; behind a hook that is a pass of its own. */
TEST(what_needs_ddps_hook_costs_computation)
{
    struct job *job = new_job();
    struct dpro_model *m = &job->model;
    m->net.compute.launch_ns.value = 1000;
    m->net.compute.hook_ns.value = 50000;
    m->net.link.byte_ns.value = 0; /* so that what is computed is all there is */
    m->net.compute.copy_ns.value = 0.5;
    int64_t hooked_ns, other_ns;
    job->buckets[0].n = 2;
    job->buckets[1] = (struct strategy_bucket){2, 2, 1, 0, 0};
    m->baseline.n_buckets = 2;
    assert_true(launch_ns_of(m, 1) == 1000);
    m->baseline.compression = DPRO_COMPRESSION_FP16; /* a hook that only casts */
    m->net.compute.cast_ns.value = 0;
    assert_true(launch_ns_of(m, 1) == 1000 + 50000);
    m->baseline.compression = DPRO_COMPRESSION_NONE;
    job->buckets[0].partitions = 2; /* one that cuts */
    assert_true(launch_ns_of(m, 1) == 1000 + 4 * 50000 + MIB);
    hooked_ns = evaluate_once(m);
    m->capabilities = model_capabilities(DPRO_STACK_HOROVOD);
    assert_true(launch_ns_of(m, 1) == 1000);
    other_ns = evaluate_once(m);
    assert_int_equal(hooked_ns - other_ns, 2 * (4 * 50000 + MIB));
}
