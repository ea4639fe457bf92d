/* Each sentence of the verdict is said where the numbers beside it make it true, and nowhere
 * else. */

#include "case.h"
#include "graph/graph.h"
#include "ingest/trace.h"
#include "report/facts.h"

#define ONE_MS INT64_C(1000000)

enum { ITERATION, PATH, COMMUNICATION, IDLE, NEXT };

struct job {
    struct dpro_trace trace;
    struct dpro_report report;
    struct dpro_graph graph;
    struct dpro_replay_view replay;
    struct rank_fact ranks[4];
    struct name_fact names[2];
    int64_t measured[2];
    uint32_t late[4];
    struct report_facts facts;
};

/* Four ranks that compute for 96 of 100 ms. */
static void fill(struct job *job)
{
    *job = (struct job){.report = {.trace = &job->trace}, .replay = {.critical_ns = 100 * ONE_MS}};
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
        .g = &job->graph,
        .replay = &job->replay,
        .world_size = 4,
        .validation = {.method = "leave-one-out", .n = 2, .mean_abs_error_pct = 1},
        .communicates = true,
        .n_measured = 2,
        .measured = job->measured,
        .measured_ns = 100 * ONE_MS,
        .predicted_ns = 100 * ONE_MS,
        .comparable = true,
        .n_ranks = 4,
        .ranks = job->ranks,
        .any_computes = true,
        .kinds = {DPRO_OP_BW},
        .n_kinds = 1,
        .names = job->names,
        .n_names = 2};
    job->facts.kind_ns[DPRO_OP_BW] = 100 * ONE_MS;
}

static void check(struct job *job, int line, const char *said, const char *not_said)
{
    verdict_write(&job->facts);
    const char *text = job->facts.verdict[line].text;
    if (!strstr(text, said))
        fail_msg("\"%s\" lacks \"%s\"", text, said);
    if (not_said && strstr(text, not_said))
        fail_msg("\"%s\" has \"%s\"", text, not_said);
}

static void add_straggler(struct job *job, uint32_t rank, int64_t later_ns, uint32_t n_late)
{
    job->ranks[rank].straggles = true;
    job->ranks[rank].later_ns = later_ns;
    job->ranks[rank].n_late = n_late;
    job->replay.n_iterations = 2;
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

static void add_call(struct job *job, const char *name, int64_t ns)
{
    uint32_t at = job->facts.kind_ns[DPRO_OP_LAUNCH] > 0;
    job->names[at] = (struct name_fact){.name = name, .kind = DPRO_OP_LAUNCH, .dur_ns = ns};
    job->facts.kind_ns[DPRO_OP_LAUNCH] += ns;
    job->facts.kinds[0] = DPRO_OP_LAUNCH;
}

TEST(calls_on_the_path_are_told_by_what_they_are_for)
{
    static const char *const cases[][2] = {
        {"cudaLaunchKernel", "99 % launching GPU work (cudaLaunchKernel)"},
        {"cudaStreamSynchronize", "99 % waiting for the GPU (cudaStreamSynchronize)"},
        {"hipFree", "99 % allocating and freeing memory (hipFree)"},
        {"cudaMemcpyAsync", "99 % memory copy calls (cudaMemcpyAsync)"},
        {"hipModuleLoadData", "99 % loading GPU code (hipModuleLoadData)"},
    };
    struct job job;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        idle_gpu(&job);
        job.facts.path_cpu_ns = 99 * ONE_MS;
        add_call(&job, cases[i][0], 99 * ONE_MS);
        check(&job, PATH, cases[i][1], "while the GPU is busy");
        check(&job, IDLE, "99 % CPU work, 0 % gaps", NULL);
    }
}

TEST(gaps_are_no_work_of_the_cpu)
{
    struct job job;
    idle_gpu(&job);
    job.facts.kind_ns[PATH_GAP] = 97 * ONE_MS;
    job.facts.path_cpu_ns = 3 * ONE_MS;
    check(&job, IDLE, "critical path: 3 % CPU work, 97 % gaps", NULL);
}

TEST(calls_of_several_kinds_are_not_called_one)
{
    struct job job;
    fill(&job);
    job.facts.has_gpu = true;
    add_call(&job, "cudaDeviceSynchronize", 50 * ONE_MS);
    add_call(&job, "cudaLaunchKernel", 40 * ONE_MS);
    check(&job, PATH, "90 % CPU launch and sync calls, while the GPU is busy", "(cuda");
}

TEST(what_lost_time_costs_is_asked_of_the_diagnosis)
{
    struct job job;
    fill(&job);
    check(&job, NEXT,
          "'dpro diagnose' says what each cause of lost time costs, and what to do "
          "about it; what computes longest is aten::mm (30.00 ms)",
          "ring");
    fill(&job);
    job.facts.n_names = 1; /* it receives */
    check(&job, NEXT, "what to do about it", "longest");
    fill(&job);
    job.facts.kind_ns[DPRO_OP_BW] = 40 * ONE_MS; /* the rest of the path communicates */
    job.facts.kind_ns[DPRO_OP_RECV] = 60 * ONE_MS;
    check(&job, NEXT, "what to do about it", "longest");
}

TEST(a_job_of_one_rank_is_told_nothing_of_ranks)
{
    struct job job;
    fill(&job);
    job.facts.world_size = job.facts.n_ranks = 1;
    job.facts.idle_ns = job.ranks[0].time.idle_ns = 60 * ONE_MS;
    check(&job, NEXT, "'dpro diagnose' says", "rank");
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
}

TEST(stragglers_are_told_with_how_late_they_are)
{
    struct job job;
    fill(&job);
    job.ranks[0].time.wait_for_peers_ns = 15 * ONE_MS;
    add_straggler(&job, 2, 15 * ONE_MS, 2);
    check(&job, COMMUNICATION, "; straggler: rank 2, late by 15.00 ms on average", "cost");
    job.facts.verdict[COMMUNICATION].text[0] = '\0';
    job.ranks[2].n_late = 1;
    check(&job, COMMUNICATION, "rank 2, late in 1 of 2 iterations, by 15.00 ms on average", NULL);
    job.facts.verdict[COMMUNICATION].text[0] = '\0';
    add_straggler(&job, 0, 10 * ONE_MS, 2);
    check(&job, COMMUNICATION, "; stragglers: ranks 2 and 0, late by 10.00 ms or more on average",
          NULL);
}

TEST(a_what_if_that_changes_nothing_is_neither_faster_nor_slower)
{
    struct job job;
    fill(&job);
    job.report.what_if = true;
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
