/* Reports of graphs that no trace gives, and what they are made of; reports of traces are in
 * tests/cli/test_report.py. */
#include <sys/stat.h>
#include <unistd.h>

#include "case.h"
#include "graph_op.h"
#include "graph_text.h"
#include "ingest/trace.h"
#include "replay/replay.h"
#include "report/facts.h"
#include "report/table.h"
#include "report/words.h"
#include "temp_folder.h"

/* Fails when a test left anything else than a report behind. */
static int remove_report(void **state)
{
    static const char *const names[] = {"timeline.json.gz", "report.html", "replay.json"};
    for (size_t i = 0; i < 3; i++)
        unlink(in_folder(names[i]));
    return remove_empty_folder(state);
}

/* Kept; ops as they are replayed, and iterations that take so many times what the replayed one
 * does. */
static struct dpro_report *report_of(const char *text, uint32_t n_samples, double measured)
{
    struct dpro_graph *g = graph_of(text);
    struct dpro_report *report = kept_memory(1, sizeof *report);
    struct dpro_trace *trace = kept_memory(1, sizeof *trace);
    struct dpro_validation *validation = kept_memory(1, sizeof *validation);
    struct dpro_replay *replay = NULL;
    struct dpro_error err = {0};
    assert_int_equal(dpro_replay_run(g, NULL, &replay, &err), 0);
    KEEP(replay, dpro_replay_destroy);
    trace->world_size = (int)(trace->n_ranks = g->n_ranks);
    trace->ranks = kept_memory(g->n_ranks + 1, sizeof *trace->ranks);
    for (uint32_t r = 0; r < g->n_ranks; r++)
        trace->ranks[r].rank = g->ranks[r].rank;
    validation->method = "none";
    *report = (struct dpro_report){
        .trace = trace, .graph = g, .replay = replay, .validation = validation};
    const struct dpro_replay_view *view = dpro_replay_view(replay);
    g->seen_start_ns = arena_array(&g->arena, g->n_ops + 1, sizeof *g->seen_start_ns);
    g->seen_dur_ns = arena_array(&g->arena, g->n_ops + 1, sizeof *g->seen_dur_ns);
    for (uint32_t op = 0; op < g->n_ops; op++) {
        g->seen_start_ns[op] = view->start_ns[op];
        g->seen_dur_ns[op] = g->dur_ns[op];
    }
    g->n_samples = n_samples;
    g->measured_ns = n_samples > 0 ? arena_array(&g->arena, 10, sizeof *g->measured_ns) : NULL;
    for (uint32_t i = 0; i < g->n_samples; i++)
        g->measured_ns[i] = (int64_t)((double)view->iteration_ns * measured) + i % 3;
    return report;
}

typedef int report_writer(const struct dpro_report *report, FILE *out, struct dpro_error *err);

static const char *written(const struct dpro_report *report, report_writer *write)
{
    char *text = NULL;
    size_t len;
    struct dpro_error err = {0};
    FILE *out = open_memstream(&text, &len);
    assert_int_equal(write(report, out, &err), 0);
    fclose(out);
    KEEP(text, free);
    return text;
}

#define ONE_RANK "a:9000000@d0 -> b:4000000@d0!BW"

TEST(a_report_of_nothing_is_still_a_report)
{
    struct dpro_error err = {0};
    struct dpro_report *report = report_of("", 0, 1);
    assert_int_equal(dpro_report_folder(report, folder, &err), 0);
    assert_non_null(strstr(written(report, dpro_report_text), "nothing was measured"));
    assert_non_null(strstr(written(report, dpro_report_json), "\"error_pct\":null"));
}

TEST(a_replay_that_contradicts_the_measurement_says_so)
{
    const char *text = written(report_of(ONE_RANK, 10, 0.5), dpro_report_text);
    assert_non_null(strstr(text, "do not act on this yet"));
    assert_null(strstr(text, "see the warnings"));
    assert_non_null(strstr(text, "the replay contradicts the measurement: it is "));
}

TEST(where_the_spread_is_unknown_nothing_is_contradicted)
{
    assert_null(strstr(written(report_of(ONE_RANK, 1, 0.5), dpro_report_text), "contradicts"));
}

static void note_written(void *bytes, const char *stage, const char *unit, uint64_t done,
                         uint64_t total)
{
    assert_string_equal(stage, "write");
    assert_string_equal(unit, "bytes");
    assert_int_equal(total, 0);
    assert_true(done > *(uint64_t *)bytes);
    *(uint64_t *)bytes = done;
}

TEST(writing_a_folder_tells_how_far_it_is)
{
    uint64_t bytes = 0;
    struct dpro_error err = {0};
    struct stat page;
    struct dpro_report *report = report_of(ONE_RANK, 10, 1);
    report->sink = (struct dpro_sink){.progress = note_written, .arg = &bytes};
    assert_int_equal(dpro_report_folder(report, folder, &err), 0);
    assert_int_equal(stat(in_folder("report.html"), &page), 0);
    assert_true(bytes > (uint64_t)page.st_size);
}

/* Measured spans on one device, in any order, as a track shows them: "start+dur ...". */
static void check_track(const int64_t (*spans)[2], size_t n, const char *expected)
{
    struct graph_builder *builder = graph_builder_create();
    struct dpro_graph *graph = NULL;
    struct slices slices;
    char text[256] = "";
    assert_int_equal(graph_builder_add_device(builder, DPRO_DEVICE_CPU_THREAD, 0, "thread"), 0);
    for (size_t i = 0; i < n; i++) {
        struct dpro_op op = {.kind = DPRO_OP_FW,
                             .name = "op",
                             .dur_ns = 1,
                             .seen_start_ns = spans[i][0],
                             .seen_dur_ns = spans[i][1],
                             .tensor = ""};
        assert_int_equal(add_op(builder, &op, 0), i);
    }
    graph = graph_builder_finish(builder);
    slices_init(&slices, graph, dpro_replay_view(report_of(ONE_RANK, 10, 1)->replay));
    for (uint32_t i = 0; i < slices.tracks[0].n; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%d+%d", i ? " " : "",
                 (int)slices.tracks[0].at[i].start_ns, (int)slices.tracks[0].at[i].dur_ns);
    assert_string_equal(text, expected);
    slices_fini(&slices);
    dpro_graph_destroy(graph);
}

TEST(slices_nest_or_are_apart)
{
    check_track((const int64_t[][2]){{30, 5}, {10, 10}}, 2, "10+10 30+5");
    check_track((const int64_t[][2]){{10, 20}, {12, 5}, {20, 10}}, 3, "10+20 12+5 20+10");
    check_track((const int64_t[][2]){{10, 12}, {20, 10}}, 2, "10+10 20+10"); /* cut, not moved */
    check_track((const int64_t[][2]){{10, 20}, {12, 10}, {20, 30}}, 3, "10+10 12+8 20+30");
    check_track((const int64_t[][2]){{0, 0}, {10, 5}}, 2, "10+5"); /* never seen */
}

TEST(long_names_lose_their_middle)
{
    static const struct {
        const char *text, *expected;
    } cases[] = {
        {"short", "short"},
        {"abcdefghijklmnop", "abcd...lmnop"},
        {"\xE6\xBC\xA2\xE5\xAD\x97\xE6\xBC\xA2\xE5\xAD\x97\xE6\xBC\xA2\xE5\xAD\x97\xE6\xBC\xA2",
         "\xE6\xBC\xA2\xE5\xAD\x97...\xE5\xAD\x97\xE6\xBC\xA2"},
        {"a\nb", "a\\x0ab"},
        {"", ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char out[64];
        columns_shorten(out, sizeof out, cases[i].text, 12);
        assert_string_equal(out, cases[i].expected);
    }
}

TEST(times_have_the_digits_a_reader_needs)
{
    static const struct {
        int64_t ns;
        const char *expected;
    } cases[] = {{0, "0.00 ms"},        {1, "0.000 ms"},         {420000, "0.420 ms"},
                 {1234567, "1.23 ms"},  {118349000, "118.3 ms"}, {12400000000, "12.40 s"},
                 {-1500000, "-1.50 ms"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_string_equal(TIME(cases[i].ns), cases[i].expected);
    }
}

int main(void)
{
    return run_cases(make_folder, remove_report);
}
