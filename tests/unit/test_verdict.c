/* Each sentence of the verdict is said where the numbers beside it make it true, and nowhere
 * else. */

#include "case.h"
#include "ingest/trace.h"
#include "report/verdict.h"

#define ONE_MS INT64_C(1000000)

enum { ITERATION, PATH, COMMUNICATION, IDLE, NEXT };

struct job {
    struct dpro_trace trace;
    struct dpro_report report;
    struct rank_fact ranks[4];
    struct name_fact names[2];
    int64_t measured[2];
    uint32_t late[4];
    struct report_facts facts;
};

/* Four ranks that compute for 96 of 100 ms and can be optimized. */
static void fill(struct job *job)
{
    *job = (struct job){.report = {.trace = &job->trace}};
    for (int r = 0; r < 4; r++)
        job->ranks[r] = (struct rank_fact){.computes = true,
                                           .time = {.rank = r,
                                                    .iteration_ns = 100 * ONE_MS,
                                                    .forward_ns = 32 * ONE_MS,
                                                    .backward_ns = 64 * ONE_MS,
                                                    .communication_ns = 30 * ONE_MS,
                                                    .waited_most_for = -1}};
    job->names[0] = (struct name_fact){.name = "ring", .kind = DPRO_OP_RECV, .dur_ns = 40 * ONE_MS};
    job->names[1] =
        (struct name_fact){.name = "aten::mm", .kind = DPRO_OP_BW, .dur_ns = 30 * ONE_MS};
    job->measured[0] = 99 * ONE_MS;
    job->measured[1] = 101 * ONE_MS;
    job->facts = (struct report_facts){
        .report = &job->report,
        .world_size = 4,
        .validation = {.method = "leave-one-out", .n = 2, .mean_abs_error_pct = 1},
        .communicates = true,
        .n_measured = 2,
        .measured = job->measured,
        .least_ns = 99 * ONE_MS,
        .longest_ns = 101 * ONE_MS,
        .measured_ns = 100 * ONE_MS,
        .predicted_ns = 100 * ONE_MS,
        .comparable = true,
        .n_ranks = 4,
        .ranks = job->ranks,
        .any_computes = true,
        .path_ns = 100 * ONE_MS,
        .kinds = {DPRO_OP_BW},
        .n_kinds = 1,
        .names = job->names,
        .n_names = 2,
        .can_optimize = true};
    job->facts.kind_ns[DPRO_OP_BW] = 100 * ONE_MS;
}

static void check(struct job *job, int line, const char *said, const char *not_said)
{
    verdict_write(&job->facts);
    verdict_next_step(&job->facts, &job->facts.verdict[N_VERDICT - 1]);
    const char *text = job->facts.verdict[line].text;
    if (!strstr(text, said))
        fail_msg("\"%s\" lacks \"%s\"", text, said);
    if (not_said && strstr(text, not_said))
        fail_msg("\"%s\" has \"%s\"", text, not_said);
}

static void add_straggler(struct job *job, uint32_t rank, int64_t waited_ns)
{
    job->ranks[rank].straggles = true;
    job->facts.straggler_ns += waited_ns;
    job->facts.late = job->late;
    job->facts.late[job->facts.n_stragglers++] = rank;
    job->facts.n_late++;
}

static void idle_gpu(struct job *job)
{
    fill(job);
    job->facts.has_gpu = true;
    job->facts.idle_ns = 60 * ONE_MS;
    job->ranks[0].time.idle_ns = 60 * ONE_MS;
}

static void add_call(struct job *job, enum call_class class, const char *name, int64_t ns)
{
    job->facts.call_ns[class] = ns;
    job->facts.call_name[class] = name;
    job->facts.path_cpu_ns += ns;
    job->facts.kind_ns[DPRO_OP_LAUNCH] += ns;
    job->facts.kinds[0] = DPRO_OP_LAUNCH;
}

TEST(advice_for_an_idle_gpu_is_for_what_the_path_is_made_of)
{
    static const struct {
        enum call_class class;
        const char *name, *path, *next;
    } cases[] = {
        {CALL_LAUNCH, "cudaLaunchKernel", "99 % launching GPU work (cudaLaunchKernel)",
         "launch less"},
        {CALL_SYNC, "cudaStreamSynchronize", "99 % waiting for the GPU (cudaStreamSynchronize)",
         "wait for the GPU less often: 99.00 ms of the critical path are cudaStreamSynchronize"},
        {CALL_MEMORY, "hipFree", "99 % allocating and freeing memory (hipFree)",
         "keep memory instead of allocating and freeing it in each iteration: 99.00 ms of the "
         "critical path are hipFree"},
        {CALL_COPY, "cudaMemcpyAsync", "99 % memory copy calls (cudaMemcpyAsync)",
         "from pinned memory: 99.00 ms of the critical path are cudaMemcpyAsync"},
        {CALL_LOAD, "hipModuleLoadData", "99 % loading GPU code (hipModuleLoadData)",
         "record later: 99.00 ms of the critical path are hipModuleLoadData"},
    };
    struct job job;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bool launches = cases[i].class == CALL_LAUNCH;
        idle_gpu(&job);
        add_call(&job, cases[i].class, cases[i].name, 99 * ONE_MS);
        check(&job, PATH, cases[i].path, "while the GPU is busy");
        check(&job, NEXT, cases[i].next, launches ? NULL : "launch less");
        check(&job, NEXT, "; up to 60.00 ms to win", NULL);
        check(&job, IDLE, "99 % CPU work, 0 % gaps", launches ? NULL : "launch-bound");
    }
}

TEST(communication_beside_launches_is_not_what_holds_them_up)
{
    struct job job;
    idle_gpu(&job);
    job.facts.exposed_ns = 70 * ONE_MS;
    add_call(&job, CALL_LAUNCH, "cudaLaunchKernel", 99 * ONE_MS);
    check(&job, NEXT, "launch less", "hide or shrink");
    job.facts.verdict[NEXT].text[0] = '\0';
    job.facts.kind_ns[DPRO_OP_COLLECTIVE] = 65 * ONE_MS;
    check(&job, NEXT, "hide or shrink communication: 65.00 ms", NULL);
}

TEST(a_rank_that_launches_slowly_is_named_before_communication)
{
    struct job job;
    idle_gpu(&job);
    add_call(&job, CALL_LAUNCH, "cudaLaunchKernel", 99 * ONE_MS);
    job.facts.exposed_ns = 90 * ONE_MS;
    job.facts.later_ns = 20 * ONE_MS;
    job.facts.meanwhile_ns = 60 * ONE_MS;
    add_straggler(&job, 2, 20 * ONE_MS);
    job.ranks[0].time.idle_ns = 0;
    job.ranks[2].time.idle_ns = 80 * ONE_MS;
    check(&job, NEXT, "find out why rank 2 spends ", "hide or shrink");
    check(&job, NEXT, " more idling for want of launches than the others do", NULL);
}

TEST(gaps_are_no_work_of_the_cpu)
{
    struct job job;
    idle_gpu(&job);
    job.facts.kind_ns[PATH_GAP] = 97 * ONE_MS;
    job.facts.path_cpu_ns = 3 * ONE_MS;
    check(&job, IDLE, "critical path: 3 % CPU work, 97 % gaps", "launch-bound");
    check(&job, NEXT, "in the gaps of the critical path, 97.00 ms in which no op was recorded",
          "launch less");
}

TEST(calls_of_several_kinds_are_not_called_one)
{
    struct job job;
    fill(&job);
    job.facts.has_gpu = true;
    add_call(&job, CALL_SYNC, "cudaDeviceSynchronize", 50 * ONE_MS);
    add_call(&job, CALL_LAUNCH, "cudaLaunchKernel", 40 * ONE_MS);
    check(&job, PATH, "90 % CPU launch and sync calls, while the GPU is busy", "(cuda");
}

TEST(work_of_the_cpu_is_launch_bound_where_the_gpu_idles)
{
    struct job job;
    idle_gpu(&job);
    job.facts.path_cpu_ns = 80 * ONE_MS;
    check(&job, IDLE, "80 % CPU work, 0 % gaps, launch-bound", NULL);
    job.facts.path_cpu_input_ns = 70 * ONE_MS; /* data loading launches nothing */
    job.facts.verdict[IDLE].text[0] = job.facts.verdict[NEXT].text[0] = '\0';
    check(&job, IDLE, "80 % CPU work", "launch-bound");
}

TEST(a_path_that_tells_nothing_gives_no_special_advice)
{
    struct job job;
    idle_gpu(&job);
    check(&job, NEXT, "look in the timeline for what the GPUs wait for while they idle", NULL);
    fill(&job);
    job.facts.idle_ns = 60 * ONE_MS;
    check(&job, NEXT,
          "look in the timeline for what the ranks wait for while they idle: up to 60.00 ms",
          "GPU");
}

TEST(the_next_step_follows_from_what_takes_most)
{
    struct job job;
    fill(&job); /* computes for 96 % */
    job.facts.exposed_ns = 10 * ONE_MS;
    check(&job, NEXT,
          "computation dominates: make it cheaper, first aten::mm (30.00 ms); then hide", NULL);
    fill(&job);
    job.facts.exposed_ns = 30 * ONE_MS;
    check(&job, NEXT, "hide or shrink communication: 30.00 ms of it are exposed", "dominates");
    fill(&job);
    job.facts.wait_ns = 10 * ONE_MS;
    check(&job, NEXT, "; then even out the ranks: they wait 10.00 ms for each other", NULL);
}

TEST(a_job_of_one_rank_is_told_nothing_of_ranks)
{
    struct job job;
    fill(&job);
    job.facts.world_size = job.facts.n_ranks = 1;
    job.facts.idle_ns = job.ranks[0].time.idle_ns = 60 * ONE_MS;
    check(&job, NEXT, "what the job waits for while it idles: up to 60.00 ms", "rank");
    check(&job, IDLE, "60.00 ms (60 %)", "rank");
}

TEST(hidden_is_what_computation_hides)
{
    struct job job;
    fill(&job);
    check(&job, COMMUNICATION, "at most 30.00 ms (30 %), hidden behind computation on every rank",
          NULL);
    fill(&job); /* little, and all of it exposed */
    for (int r = 0; r < 4; r++)
        job.ranks[r].time.communication_ns = job.ranks[r].time.exposed_communication_ns =
            ONE_MS / 2;
    check(&job, COMMUNICATION,
          "little to win: at most 0.500 ms (0.5 %), of which 0.500 ms are exposed", "hidden");
    fill(&job);
    job.ranks[0].time.exposed_communication_ns = 5 * ONE_MS;
    check(&job, COMMUNICATION, "worst rank 0 with 5.00 ms exposed (5 %)", "hidden");
}

TEST(without_computation_nobody_knows_what_idles)
{
    struct job job;
    fill(&job);
    job.facts.any_computes = false;
    for (int r = 0; r < 4; r++) {
        struct dpro_rank_time *t = &job.ranks[r].time;
        job.ranks[r].computes = false;
        t->forward_ns = t->backward_ns = 0;
        t->exposed_communication_ns = 30 * ONE_MS;
        t->idle_ns = 70 * ONE_MS;
    }
    job.facts.exposed_ns = 30 * ONE_MS;
    check(&job, COMMUNICATION,
          "worst rank 0 with 30.00 ms (30 %); no computation was recorded, so the hidden part is "
          "unknown",
          "exposed");
    check(&job, IDLE, "unknown: no computation was recorded", "70");
    check(&job, NEXT, "record computation too", "hide or shrink");
    job.facts.verdict[NEXT].text[0] = '\0';
    add_straggler(&job, 3, 15 * ONE_MS);
    job.facts.wait_ns = 20 * ONE_MS;
    check(&job, NEXT,
          "they wait 20.00 ms for each other, mostly for rank 3; record computation too", NULL);
}

TEST(optimize_is_advised_where_it_works)
{
    struct job job;
    fill(&job);
    job.facts.exposed_ns = 30 * ONE_MS;
    check(&job, NEXT,
          "30.00 ms of it are exposed; 'dpro optimize' predicts the gain from other buckets", NULL);
    job.facts.verdict[NEXT].text[0] = '\0';
    job.facts.can_optimize = false;
    strcpy(job.facts.no_optimize.text, "parameters are sharded");
    check(&job, NEXT, "'dpro optimize' does not work with this trace: parameters are sharded",
          "buckets");
    fill(&job);
    job.facts.kind_ns[DPRO_OP_PULL] = 60 * ONE_MS;
    job.facts.idle_ns = 20 * ONE_MS;
    check(&job, NEXT,
          "60.00 ms of the critical path are between workers and servers; 'dpro "
          "optimize' predicts the gain from other ways to send it",
          "buckets");
}

TEST(a_straggler_is_blamed_for_what_it_does_longer)
{
    struct job job;
    fill(&job);
    job.facts.wait_ns = 15 * ONE_MS;
    add_straggler(&job, 2, 15 * ONE_MS);
    check(&job, NEXT, "even out the ranks: they wait 15.00 ms for each other, mostly for rank 2",
          NULL);
    job.facts.verdict[NEXT].text[0] = '\0';
    job.facts.later_ns = 20 * ONE_MS;
    job.ranks[2].time.backward_ns += 20 * ONE_MS;
    check(&job, NEXT,
          "find out why rank 2 spends 20.00 ms more in backward than the others do on "
          "average; 'dpro diagnose' says what it costs",
          "at a cost");
    check(&job, COMMUNICATION, "", "at a cost");
    job.facts.verdict[NEXT].text[0] = '\0';
    add_straggler(&job, 0, 0);
    job.ranks[0].time.backward_ns += 10 * ONE_MS;
    check(&job, NEXT,
          "find out why ranks 2 and 0 spend 15.00 ms more in backward than the others do on "
          "average",
          NULL);
    job.facts.verdict[NEXT].text[0] = '\0';
    job.facts.later_ns = 0;
    job.facts.n_stragglers = 0;
    job.facts.n_late = 0;
    check(&job, NEXT, "even out the ranks: they wait 15.00 ms for each other", "mostly");
    job.facts.verdict[NEXT].text[0] = '\0';
    job.facts.world_size = 8;
    check(&job, NEXT, "record all 8 ranks, to see which of them is waited for: 15.00 ms", NULL);
}

TEST(late_ranks_come_first_where_they_are_later_than_the_dearest_op_can_save)
{
    struct job job;
    fill(&job); /* a quarter of 30 ms is much to save of aten::mm */
    job.facts.wait_ns = 6 * ONE_MS;
    job.facts.later_ns = 8 * ONE_MS;
    add_straggler(&job, 2, 6 * ONE_MS);
    job.ranks[2].time.backward_ns += 8 * ONE_MS;
    check(&job, NEXT, "find out why rank 2 spends 8.00 ms more in backward", "dominates");
    job.facts.verdict[NEXT].text[0] = '\0';
    job.facts.later_ns = 7 * ONE_MS;
    check(&job, NEXT, "first aten::mm (30.00 ms); then find out why rank 2", NULL);
    fill(&job);
    job.facts.exposed_ns = 30 * ONE_MS;
    job.facts.wait_ns = 4 * ONE_MS;
    job.facts.later_ns = 6 * ONE_MS;
    job.facts.meanwhile_ns = 8 * ONE_MS; /* for want of computation meanwhile */
    check(&job, NEXT, "hide or shrink communication: 22.00 ms of it are exposed", "late");
}

TEST(computation_is_what_is_to_be_cheaper)
{
    struct job job;
    fill(&job); /* receiving is on the path for longer */
    check(&job, NEXT, "computation dominates: make it cheaper, first aten::mm (30.00 ms)", "ring");
    job.facts.n_names = 1;
    job.facts.verdict[NEXT].text[0] = '\0';
    check(&job, NEXT, "nothing stands out", NULL);
    fill(&job);
    job.facts.input_ns = 20 * ONE_MS;
    check(&job, NEXT, "load and copy input ahead of time: up to 20.00 ms to win", NULL);
}

TEST(iterations_that_differ_are_said_with_their_limits)
{
    struct job job;
    fill(&job);
    job.facts.validation.mean_abs_error_pct = 16;
    check(&job, NEXT, "; first see with --steps why iterations differ (99.00 ms to 101.0 ms)",
          NULL);
    fill(&job);
    check(&job, NEXT, "computation dominates", "--steps");
}

TEST(a_what_if_that_changes_nothing_is_neither_faster_nor_slower)
{
    struct job job;
    fill(&job);
    job.facts.what_if = true;
    job.facts.job.ns = job.facts.changed_ns = 100 * ONE_MS;
    check(&job, ITERATION, "100.0 ms with the change, as without it", "faster");
    job.facts.verdict[ITERATION].text[0] = '\0';
    job.facts.changed_ns = 90 * ONE_MS;
    check(&job, ITERATION, "10.00 ms (10 %) faster", "slower");
}

TEST(calls_are_told_apart_by_name)
{
    static const struct {
        const char *name;
        enum call_class class;
    } cases[] = {
        {"cudaLaunchKernel", CALL_LAUNCH},    {"hipExtModuleLaunchKernel", CALL_LAUNCH},
        {"cuLaunchKernelEx", CALL_LAUNCH},    {"cudaGraphLaunch", CALL_LAUNCH},
        {"cudaMemsetAsync", CALL_LAUNCH},     {"custom::Free", CALL_LAUNCH}, /* of no runtime */
        {"cudaStreamSynchronize", CALL_SYNC}, {"hipDeviceSynchronize", CALL_SYNC},
        {"cudaEventQuery", CALL_SYNC},        {"hipFree", CALL_MEMORY},
        {"hipFreeAsync", CALL_MEMORY},        {"cudaMalloc", CALL_MEMORY},
        {"cudaHostAlloc", CALL_MEMORY},       {"cuMemCreate", CALL_MEMORY},
        {"cudaMemcpyAsync", CALL_COPY},       {"hipMemcpyWithStream", CALL_COPY},
        {"cuMemcpyHtoD_v2", CALL_COPY},       {"MemcpyH2D", CALL_COPY},
        {"cuModuleLoadDataEx", CALL_LOAD},    {"hipModuleLoad", CALL_LOAD},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (call_classify(cases[i].name) != cases[i].class)
            fail_msg("%s: class %d", cases[i].name, (int)call_classify(cases[i].name));
}
