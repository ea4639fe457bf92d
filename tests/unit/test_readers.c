/* The table of readers: a format is added by one file (toy_reader.c) and one row (here). */
#include <dpro/dpro.h>
#include <unistd.h>

#include "case.h"
#include "ingest/load.h"
#include "ingest/readers.h"
#include "toy_reader.h"

#define ROW_OF(name) &name,
static const struct reader *const rows[] = {READERS(ROW_OF) & toy_reader};
static const struct reader_table with_toy = {rows, sizeof rows / sizeof *rows};

static const char *const ranks[] = {
    "toy trace\nrank 0 of 2\nstep 0 100\nop forward 10 60\nstep 100 100\nop forward 110 60\n"
    "step 200 100\nop forward 210 60\nsay out of patience\n",
    "toy trace\nrank 1 of 2\nstep 0 100\nop forward 10 80\nstep 100 100\nop forward 110 80\n"
    "step 200 100\nop forward 210 80\nwhatever\n"};

static char folder[64];
static char paths[2][96];

static int write_files(void **state)
{
    strcpy(folder, "/tmp/dpro-readers-XXXXXX");
    if (!mkdtemp(folder))
        return -1;
    for (int r = 0; r < 2; r++) {
        snprintf(paths[r], sizeof paths[r], "%s/%c.toy", folder, 'a' + r);
        FILE *file = fopen(paths[r], "w");
        if (!file || fputs(ranks[r], file) < 0 || fclose(file) != 0)
            return -1;
    }
    return 0;
}

static int remove_files(void **state)
{
    for (int r = 0; r < 2; r++)
        unlink(paths[r]);
    return rmdir(folder);
}

TEST(a_format_of_one_file_and_one_row_is_loaded_and_replayed)
{
    const char *path = folder;
    struct dpro_trace *trace;
    struct dpro_graph *graph;
    struct dpro_replay *replay;
    struct dpro_error err;
    n_toys_freed = 0;
    assert_int_equal(trace_load(&with_toy, &path, 1, NULL, &trace, &err), 0);
    assert_int_equal(n_toys_freed, 2);
    assert_int_equal(dpro_trace_n_ranks(trace), 2);
    assert_int_equal(dpro_trace_world_size(trace), 2);
    assert_string_equal(dpro_trace_framework(trace), "toyflow");
    for (size_t f = 0; f < 2; f++) {
        struct dpro_file_info file = dpro_trace_file(trace, f);
        assert_string_equal(file.format, "toy");
        assert_int_equal(file.rank, f);
        assert_int_equal(file.n_events, 3);
    }
    assert_int_equal(dpro_trace_n_warnings(trace), 2);
    assert_string_equal(dpro_trace_warning(trace, 0), "rank 0 said: out of patience");
    assert_non_null(strstr(dpro_trace_warning(trace, 1), "1 records or lines make no sense"));
    assert_int_equal(dpro_graph_build(trace, NULL, &graph, &err), 0);
    assert_int_equal(dpro_replay_run(graph, NULL, &replay, &err), 0);
    assert_int_equal(dpro_replay_view(replay)->iteration_ns, 100000);
    dpro_replay_destroy(replay);
    dpro_graph_destroy(graph);
    dpro_trace_destroy(trace);
}

TEST(without_its_row_nobody_knows_it)
{
    const char *path = paths[0];
    struct dpro_trace *trace;
    struct dpro_error err;
    assert_int_equal(trace_load(&readers, &path, 1, NULL, &trace, &err), DPRO_EFORMAT);
    assert_non_null(strstr(err.text, "not a trace that dpro knows"));
}

TEST(what_it_lacks_is_said_in_its_words)
{
    const char *path = paths[1];
    struct dpro_trace *trace;
    struct dpro_error err;
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs("toy trace\nrank 1 of 2\n", file) >= 0);
    fclose(file);
    assert_int_equal(trace_load(&with_toy, &path, 1, NULL, &trace, &err), DPRO_EEMPTY);
    assert_non_null(strstr(err.text, "a toy trace without a step"));
}

int main(void)
{
    return run_cases(write_files, remove_files);
}
