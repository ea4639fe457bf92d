/* A job makes what it is asked for, once, and answers the same in any order and beside others. */
#include <pthread.h>

#include <dpro/dpro.h>

#include "base/base.h"
#include "case.h"
#include "job_at.h"
#include "kept_log.h"

static char *replay_json(struct dpro_job *job, const struct dpro_job_replay_options *options)
{
    struct dpro_report report;
    struct dpro_error err;
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    assert_int_equal(dpro_job_replay(job, options, &report, &err), 0);
    assert_int_equal(dpro_report_json(&report, out, &err), 0);
    fclose(out);
    KEEP(text, free);
    return text;
}

TEST(opening_reads_nothing)
{
    struct dpro_job *job = job_at(recorded("missing"));
    const struct dpro_trace *trace = NULL;
    struct dpro_error err = {0};
    assert_int_equal(dpro_job_n_warnings(job), 0);
    assert_int_equal(dpro_job_trace(job, &trace, &err), DPRO_EIO);
    assert_null(trace);
    assert_non_null(strstr(err.text, "missing"));
    assert_int_equal(dpro_job_open(NULL, 0, NULL, &job, &err), DPRO_EUSAGE);
}

TEST(a_job_keeps_copies_of_its_paths_and_options)
{
    char path[512], words[] = "dp=2";
    struct dpro_job_options options = {.size = sizeof options, .dimensions = words};
    struct dpro_error err;
    const struct dpro_graph *graph;
    snprintf(path, sizeof path, "%s", recorded("torch-ddp-gloo-gpt-n2"));
    struct dpro_job *job = job_at_with(path, &options);
    memset(path, 'x', strlen(path));
    memset(words, 'x', strlen(words));
    assert_int_equal(dpro_job_graph(job, &graph, &err), 0);
}

TEST(what_is_asked_for_again_is_the_same)
{
    struct dpro_job *job = job_at(recorded("torch-ddp-gloo-gpt-n2"));
    const struct dpro_model *models[3];
    const struct dpro_graph *graph, *same;
    const struct dpro_trace *trace, *same_trace;
    struct dpro_rank_memory memory;
    struct dpro_error err;
    assert_int_equal(dpro_job_model(job, 0, &models[0], &err), 0);
    assert_int_equal(dpro_job_model(job, 1, &models[1], &err), 0);
    assert_int_equal(dpro_job_model(job, 0, &models[2], &err), 0);
    assert_ptr_equal(models[0], models[2]);
    assert_ptr_not_equal(models[0], models[1]);
    assert_int_equal(dpro_job_graph(job, &graph, &err), 0);
    assert_int_equal(dpro_job_memory(job, 0, &memory, &err), 0);
    assert_int_equal(dpro_job_graph(job, &same, &err), 0);
    assert_ptr_equal(graph, same);
    assert_int_equal(dpro_job_trace(job, &trace, &err), 0);
    assert_int_equal(dpro_job_trace(job, &same_trace, &err), 0);
    assert_ptr_equal(trace, same_trace);
}

TEST(memory_is_that_of_the_replay)
{
    struct dpro_job *job = job_at(recorded("torch-ddp-gloo-gpt-n2-memory"));
    struct dpro_rank_memory memory;
    struct dpro_report report;
    struct dpro_error err;
    for (uint32_t r = 0; r < 2; r++) {
        assert_int_equal(dpro_job_memory(job, r, &memory, &err), 0);
        assert_int_equal(dpro_job_replay(job, NULL, &report, &err), 0);
        assert_true(memory.peak_bytes > 0);
        assert_int_equal(memory.peak_bytes, dpro_replay_view(report.replay)->memory[r].peak_bytes);
    }
}

/* A recording that says what its profiler cost: the model takes that out of the graph, which what
 * is validated must have. */
TEST(a_replay_after_a_model_says_what_one_before_it_says)
{
    const char *name = "torch-ddp-gloo-lstm-n2-2gbit";
    struct dpro_job *first = job_at(recorded(name)), *after = job_at(recorded(name));
    const struct dpro_model *model;
    struct dpro_error err;
    char *wanted = replay_json(first, NULL);
    assert_null(strstr(wanted, "\"op_ns\":null"));
    assert_int_equal(dpro_job_model(after, 1, &model, &err), 0);
    assert_string_equal(replay_json(after, NULL), wanted);
    assert_string_equal(replay_json(first, NULL), wanted);
    struct dpro_job_replay_options unchecked = {.size = sizeof unchecked, .no_validate = 1};
    assert_non_null(strstr(replay_json(first, &unchecked), "\"method\":\"none\""));
    struct dpro_job_replay_options slow = {.size = sizeof slow, .bandwidth_bytes_per_s = 1e6};
    char *of_slow = replay_json(job_at(recorded(name)), &slow);
    assert_string_equal(replay_json(after, &slow), of_slow);
    assert_string_equal(replay_json(after, NULL), wanted);
}

TEST(warnings_are_those_of_all_that_was_made)
{
    struct dpro_job *job = job_at(recorded("torch-ddp-gloo-gpt-n2"));
    const struct dpro_graph *graph;
    const struct dpro_trace *trace;
    struct dpro_error err;
    assert_int_equal(dpro_job_graph(job, &graph, &err), 0);
    assert_int_equal(dpro_job_trace(job, &trace, &err), 0);
    size_t n = dpro_trace_n_warnings(trace);
    assert_int_equal(dpro_job_n_warnings(job), n + dpro_graph_n_warnings(graph));
    assert_true(dpro_graph_n_warnings(graph) > 0);
    assert_string_equal(dpro_job_warning(job, n), dpro_graph_warning(graph, 0));
    assert_null(dpro_job_warning(job, 1000));
}

TEST(options_of_another_version_are_taken_where_they_mean_something)
{
    struct later {
        struct dpro_job_options options;
        int more[2];
    } later = {.options = {.size = sizeof later}};
    struct dpro_job_options older = {.size = offsetof(struct dpro_job_options, probes),
                                     .probes = "not looked at"};
    struct dpro_job_options unset = {.threads = 1}, senseless = {.size = 4},
                            negative = {.threads = -1};
    const char *path = recorded("torch-ddp-gloo-gpt-n2");
    const struct dpro_model *model;
    struct dpro_job *job = NULL;
    struct dpro_error err;
    job_at_with(recorded("torch-ddp-gloo-gpt-n2"), &later.options);
    later.more[1] = 1;
    assert_int_equal(dpro_job_open(&path, 1, &later.options, &job, &err), DPRO_EUSAGE);
    assert_non_null(strstr(err.text, "options->size is"));
    assert_int_equal(
        dpro_job_model(job_at_with(recorded("torch-ddp-gloo-gpt-n2"), &older), 0, &model, &err), 0);
    assert_int_equal(dpro_job_open(&path, 1, &senseless, &job, &err), DPRO_EUSAGE);
    assert_non_null(strstr(err.text, "options->size is 4"));
    assert_int_equal(dpro_job_open(&path, 1, &negative, &job, &err), DPRO_EUSAGE);
    assert_non_null(strstr(err.text, "-1 threads"));
    job_at_with(path, &unset);
}

static int propose_nonsense(const struct dpro_pass *pass, const struct dpro_pass_view *view,
                            uint32_t index, struct dpro_candidate *candidate)
{
    (void)pass;
    candidate->edits[0] = (struct dpro_edit){.kind = DPRO_EDIT_MERGE, .at = view->n_buckets + 7};
    candidate->n_edits = 1;
    return index == 0;
}

TEST(what_a_search_warns_of_is_kept_and_handed_on)
{
    struct dpro_job_options with_log = {.size = sizeof with_log,
                                        .sink = {.log = keep_log, .level = DPRO_LOG_WARN}};
    struct dpro_job *job = job_at_with(recorded("torch-ddp-gloo-gpt-n2"), &with_log);
    static const struct dpro_pass pass = {
        .abi = DPRO_PASS_ABI, .name = "nonsense", .summary = "", .propose = propose_nonsense};
    const struct dpro_pass *passes[] = {&pass};
    struct dpro_optimize_options options = {
        .size = sizeof options, .passes = passes, .n_passes = 1};
    struct dpro_optimize_report report;
    struct dpro_error err;
    for (int i = 0; i < 2; i++) { /* the second time in place of the first's */
        logged[0] = '\0';
        assert_int_equal(dpro_job_optimize(job, &options, &report, &err), 0);
        assert_non_null(strstr(logged, "nonsense"));
        assert_non_null(report.warnings[0]);
        assert_non_null(strstr(report.warnings[0], "nonsense"));
        assert_null(report.warnings[1]);
        assert_string_equal(dpro_job_warning(job, dpro_job_n_warnings(job) - 1),
                            report.warnings[0]);
    }
}

struct asked {
    const char *path; /* made before the threads: recorded() has one place for all */
    char *json;
};

static void *ask(void *arg)
{
    struct dpro_job_options options = {.size = sizeof options, .threads = 1};
    struct asked *asked = arg;
    struct dpro_report report;
    struct dpro_job *job;
    size_t size;
    if (dpro_job_open(&asked->path, 1, &options, &job, NULL) < 0 ||
        dpro_job_replay(job, NULL, &report, NULL) < 0)
        return NULL;
    FILE *out = open_memstream(&asked->json, &size);
    dpro_report_json(&report, out, NULL);
    fclose(out);
    dpro_job_close(job);
    return NULL;
}

TEST(jobs_are_asked_beside_each_other)
{
    enum { N_JOBS = 4 };
    pthread_t threads[N_JOBS];
    struct asked asked[N_JOBS] = {{NULL, NULL}};
    for (int i = 0; i < N_JOBS; i++)
        asked[i].path = recorded("torch-ddp-gloo-gpt-n2-default");
    for (int i = 0; i < N_JOBS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, ask, &asked[i]), 0);
    for (int i = 0; i < N_JOBS; i++) {
        pthread_join(threads[i], NULL);
        assert_non_null(asked[i].json);
        KEEP(asked[i].json, free);
    }
    for (int i = 1; i < N_JOBS; i++)
        assert_string_equal(asked[i].json, asked[0].json);
}
