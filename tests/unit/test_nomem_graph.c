/* Whichever allocation fails while profiles and transport logs are read, logs are exported, and a
 * graph is built, it is said so and nothing leaks (the address sanitizer looks). malloc and kin are
 * wrapped by the linker. */
#include <glob.h>

#include <dpro/dpro.h>

#include "case.h"
#include "message_job.h"
#include "nomem.h"
#include "temp_folder.h"

static struct dpro_trace *load(void)
{
    struct dpro_trace *trace = NULL;
    const char *path = folder;
    long n = 0;
    int rc = DPRO_ENOMEM;
    for (; rc != 0; n++) {
        struct dpro_error err = {0};
        nomem_n_left = n;
        rc = dpro_trace_load(&path, 1, NULL, &trace, &err);
        nomem_n_left = -1;
        assert_true(rc == 0 || (rc == DPRO_ENOMEM && err.code == rc && trace == NULL));
    }
    assert_true(n > 100);
    return trace;
}

static void export_logs(const struct dpro_trace *trace)
{
    long n_before = nomem_n_blocks;
    int rc = DPRO_ENOMEM;
    for (long n = 0; rc != 0; n++) {
        struct dpro_error err = {0};
        nomem_n_left = n;
        rc = dpro_trace_export_net_csv(trace, in_folder("csv"), &err);
        nomem_n_left = -1;
        assert_true(rc == 0 || (rc == DPRO_ENOMEM && err.code == rc));
        assert_int_equal(nomem_n_blocks, n_before);
        glob_t half_written;
        assert_int_equal(glob(in_folder("csv/*.tmp*"), 0, NULL, &half_written), GLOB_NOMATCH);
    }
}

enum { CSV, SQLITE, GRAPHML, CHAKRA, N_FORMS };

static int export_one(const struct dpro_graph *graph, const struct dpro_replay *replay, int form,
                      struct dpro_error *err)
{
    struct dpro_graphml all = {.graph = graph};
    struct dpro_tables *tables = NULL;
    if (form == GRAPHML)
        return dpro_graphml_write(&all, in_folder("job.graphml"), err);
    if (form == CHAKRA)
        return dpro_chakra_write(graph, replay, in_folder("chakra"), NULL, err);
    int rc = dpro_tables_create(graph, replay, &tables, err);
    if (rc == 0)
        rc = form == CSV ? dpro_tables_csv(tables, in_folder("tables"), NULL, err)
                         : dpro_tables_sqlite(tables, in_folder("job.db"), err);
    dpro_tables_destroy(tables);
    return rc;
}

static void export_all(const struct dpro_graph *graph)
{
    struct dpro_replay *replay;
    assert_int_equal(dpro_replay_run(graph, NULL, &replay, NULL), 0);
    for (int form = 0; form < N_FORMS; form++) {
        long n_before = nomem_n_blocks;
        int rc = DPRO_ENOMEM;
        for (long n = 0; rc != 0; n++) {
            struct dpro_error err = {0};
            nomem_n_left = n;
            rc = export_one(graph, replay, form, &err);
            nomem_n_left = -1;
            assert_true(rc == 0 || (rc == DPRO_ENOMEM && err.code == rc));
            assert_int_equal(nomem_n_blocks, n_before);
            glob_t half_written;
            assert_int_equal(glob(in_folder("job.db.dpro-*"), 0, NULL, &half_written),
                             GLOB_NOMATCH);
        }
    }
    dpro_replay_destroy(replay);
}

static void diagnose(const struct dpro_graph *graph)
{
    long n_before = nomem_n_blocks, n = 0;
    for (int rc = DPRO_ENOMEM; rc != 0; n++) {
        struct dpro_error err = {0};
        struct dpro_diagnose_options options = {.size = sizeof options, .threads = 1};
        struct dpro_diagnosis *diagnosis = NULL;
        nomem_n_left = n;
        rc = dpro_diagnose_run(graph, &options, &diagnosis, &err);
        nomem_n_left = -1;
        assert_true(rc == 0 || (rc == DPRO_ENOMEM && err.code == rc && diagnosis == NULL));
        dpro_diagnosis_destroy(diagnosis);
        assert_int_equal(nomem_n_blocks, n_before);
    }
    assert_true(n > 50);
}

static void check_all(const struct job *job, unsigned n_messages)
{
    assert_int_equal(make_folder(NULL), 0);
    write_job(job, folder);
    struct dpro_trace *trace = load();
    if (!job->by_nccl)
        export_logs(trace);
    assert_int_equal(remove_folder(NULL), 0);
    struct dpro_graph *graph = NULL;
    int rc = DPRO_ENOMEM;
    long n = 0;
    for (; rc != 0; n++) {
        struct dpro_error err = {0};
        nomem_n_left = n;
        rc = dpro_graph_build(trace, NULL, &graph, &err);
        nomem_n_left = -1;
        assert_true(rc == 0 || (rc == DPRO_ENOMEM && err.code == rc && graph == NULL));
    }
    assert_true(n > 500);
    assert_int_equal(dpro_graph_collective(graph, 0).n_messages, n_messages);
    assert_int_equal(make_folder(NULL), 0);
    export_all(graph);
    diagnose(graph);
    assert_int_equal(remove_folder(NULL), 0);
    dpro_graph_destroy(graph);
    dpro_trace_destroy(trace);
}

TEST(a_graph_of_messages_survives_any_failed_allocation)
{
    struct job job = ring(2, 2, 50, 5, 100);
    for (int r = 0; r < 2; r++) { /* with a ready message behind data */
        send_one(&job, r, 1 - r, 111, 161, 0);
        last_sent(&job)->opcode = RECV_READY;
        send_one(&job, r, 1 - r, 112, 162, 0);
        last_sent(&job)->opcode = RECV_READY;
    }
    check_all(&job, 4);
    job = ring(3, 4, 50, 5, 100000);
    job.without_log[1] = true;
    check_all(&job, 12);
}

TEST(a_graph_of_nccls_steps_survives_any_failed_allocation)
{
    struct job job = ring(3, 4, 50, 5, 100000);
    job.by_nccl = true;
    job.host[0] = job.host[1] = "a";
    job.host[2] = "b";
    check_all(&job, 12);
}

TEST(a_job_survives_any_failed_allocation)
{
    struct job written = ring(2, 2, 50, 5, 100);
    struct dpro_job_options options = {.size = sizeof options, .threads = 1};
    const struct dpro_graph *graph;
    struct dpro_report report;
    struct dpro_job *job = NULL;
    struct dpro_error err = {0};
    int rc = DPRO_ENOMEM;
    long n = 0;
    assert_int_equal(make_folder(NULL), 0);
    write_job(&written, folder);
    const char *path = folder;
    for (; rc != 0; n++) {
        nomem_n_left = n;
        rc = dpro_job_open(&path, 1, &options, &job, &err);
        nomem_n_left = -1;
        assert_true(rc == 0 || (rc == DPRO_ENOMEM && job == NULL));
    }
    assert_true(n > 1);
    for (n = 0, rc = DPRO_ENOMEM; rc != 0; n++) {
        nomem_n_left = n;
        rc = dpro_job_replay(job, NULL, &report, &err);
        nomem_n_left = -1;
        assert_true(rc == 0 || (rc == DPRO_ENOMEM && err.code == rc));
        if (dpro_job_graph(job, &graph, &err) < 0) { /* all else it does again */
            dpro_job_close(job);
            assert_int_equal(dpro_job_open(&path, 1, &options, &job, &err), 0);
        }
    }
    assert_true(n > 100);
    dpro_job_close(job);
    assert_int_equal(remove_folder(NULL), 0);
}

/* With its baseline, as text and as JSON. */
static void diagnose_job(const char *path)
{
    struct dpro_job_options options = {.size = sizeof options, .threads = 1};
    struct dpro_saved_diagnosis *baseline = NULL;
    struct dpro_diagnose_report report;
    const struct dpro_graph *graph;
    struct dpro_job *job = NULL;
    struct dpro_error err = {0};
    FILE *nowhere = fopen("/dev/null", "w");
    const char *saved = in_folder("good.json");
    long n_before = nomem_n_blocks, n = 0;
    assert_int_equal(dpro_job_open(&path, 1, &options, &job, &err), 0);
    for (int rc = DPRO_ENOMEM; rc != 0; n++) {
        nomem_n_left = n;
        rc = dpro_job_diagnose(job, NULL, &report, &err);
        nomem_n_left = -1;
        assert_true(rc == 0 || (rc == DPRO_ENOMEM && err.code == rc));
        if (dpro_job_graph(job, &graph, &err) < 0) { /* all else it does again */
            dpro_job_close(job);
            assert_int_equal(dpro_job_open(&path, 1, &options, &job, &err), 0);
        }
    }
    assert_true(n > 100);
    for (int step = 0; step < 4; step++) {
        int rc = DPRO_ENOMEM;
        for (n = 0; rc != 0; n++) {
            nomem_n_left = n;
            rc = step == 0   ? dpro_diagnose_save(&report, saved, &err)
                 : step == 1 ? dpro_saved_diagnosis_read(saved, &baseline, &err)
                 : step == 2 ? dpro_diagnose_text(&report, nowhere, &err)
                             : dpro_diagnose_json(&report, nowhere, &err);
            nomem_n_left = -1;
            assert_true(rc == 0 || (rc == DPRO_ENOMEM && err.code == rc));
        }
        assert_true(n > 2);
        report.baseline = baseline;
    }
    dpro_saved_diagnosis_destroy(baseline);
    dpro_job_close(job);
    assert_true(nomem_n_blocks <= n_before); /* what libc allocated is not counted, but freed */
    fclose(nowhere);
}

TEST(a_diagnosis_of_a_job_survives_any_failed_allocation)
{
    struct job written = ring(2, 2, 50, 5, 100);
    assert_int_equal(make_folder(NULL), 0);
    write_job(&written, folder);
    diagnose_job(folder);
    assert_int_equal(remove_folder(NULL), 0);
}

/* Of a timeline of 2 stages: 3 steps of many micro-batches, so that no arena has one block only. */
TEST(a_diagnosis_of_stages_survives_any_failed_allocation)
{
    enum { N_BATCHES = 100 };
    assert_int_equal(make_folder(NULL), 0);
    FILE *file = fopen(in_folder("stages.csv"), "w");
    fprintf(file, "optype,step,start_ts,duration,stage,dp_rank,mb_id\n");
    for (int i = 0; i < 3 * 2 * N_BATCHES; i++) {
        int step = i / (2 * N_BATCHES), stage = i / N_BATCHES % 2, batch = i % N_BATCHES;
        for (int backward = 0; backward < 2; backward++)
            fprintf(file, "%s-compute,%d,%d.%d,0.5,%d,0,%d\n", backward ? "backward" : "forward",
                    step, 1000 * step + 2 * batch + backward, stage, stage, batch);
    }
    fclose(file);
    diagnose_job(in_folder("stages.csv"));
    assert_int_equal(remove_folder(NULL), 0);
}
