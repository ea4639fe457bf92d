/* Every form of the report says the same, adds up, and survives any name. */
#include <errno.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/utf8.h"
#include "case.h"
#include "graph_op.h"
#include "report/facts.h"
#include "report/table.h"
#include "report/words.h"
#include "report_fake.h"
#include "temp_folder.h"

/* Fails when a test left anything else than a report behind. */
static int remove_report(void **state)
{
    static const char *const names[] = {"timeline.json.gz", "report.html", "replay.json"};
    for (size_t i = 0; i < 3; i++)
        unlink(in_folder(names[i]));
    return remove_empty_folder(state);
}

static void write_and_check(const struct fake_options *options, const char *flags)
{
    struct dpro_error err = {0};
    char command[512];
    struct fake *fake = fake_create(options);
    assert_int_equal(dpro_report_folder(fake_report(fake), folder, &err), 0);
    fake_destroy(fake);
    snprintf(command, sizeof command,
             "ASAN_OPTIONS=verify_asan_link_order=0 python3 "
             "'%s/tests/unit/check_report.py' %s %s",
             getenv("DPRO_SOURCE") ? getenv("DPRO_SOURCE") : ".", folder, flags);
    assert_int_equal(system(command), 0);
}

static char *text_report(const struct fake_options *options)
{
    char *text = NULL;
    size_t len;
    struct dpro_error err = {0};
    struct fake *fake = fake_create(options);
    FILE *out = open_memstream(&text, &len);
    assert_int_equal(dpro_report_text(fake_report(fake), out, &err), 0);
    fclose(out);
    fake_destroy(fake);
    KEEP(text, free);
    return text;
}

/* Printable UTF-8, at most 100 columns a line, no trailing blanks. */
static void check_lines(char *text)
{
    for (char *line = text, *end; *line; line = end + 1) {
        end = strchr(line, '\n');
        assert_non_null(end);
        *end = '\0';
        size_t len = strlen(line);
        for (size_t i = 0, step; i < len; i += step) {
            step = utf8_char(line + i, len - i);
            assert_int_not_equal(step, 0);
            assert_true((unsigned char)line[i] >= 0x20 && line[i] != 0x7F);
            assert_false((unsigned char)line[i] == 0xC2 && (unsigned char)line[i + 1] < 0xA0);
        }
        if (columns_of(line) > 100)
            fail_msg("%d columns: %s", columns_of(line), line);
        assert_true(len == 0 || line[len - 1] != ' ');
        *end = '\n';
    }
}

TEST(files_agree_and_add_up)
{
    write_and_check(&(struct fake_options){.n_ranks = 1, .n_layers = 20}, "");
    write_and_check(&(struct fake_options){.n_ranks = 4, .n_layers = 60}, "");
    write_and_check(&(struct fake_options){.n_ranks = 2, .n_layers = 20, .single = true}, "");
}

TEST(a_what_if_has_no_error)
{
    struct fake_options options = {.n_ranks = 2, .n_layers = 30, .what_if = true};
    write_and_check(&options, "what-if");
    char *text = text_report(&options);
    check_lines(text);
    assert_non_null(strstr(text, "What if"));
    assert_non_null(strstr(text, "faster"));
    assert_null(strstr(text, "do not act"));
}

TEST(what_ranks_hold_is_said_in_every_form)
{
    write_and_check(&(struct fake_options){.n_ranks = 2, .n_layers = 30, .memory = true}, "memory");
    write_and_check(
        &(struct fake_options){.n_ranks = 8, .n_layers = 12, .memory = true, .what_if = true},
        "memory what-if");
    write_and_check(
        &(struct fake_options){.n_ranks = 3, .n_layers = 30, .memory = true, .hostile = true},
        "memory hostile");
    write_and_check(&(struct fake_options){.n_ranks = 17, .n_layers = 200, .memory = true},
                    "memory");
}

TEST(alike_ranks_are_one_line_and_many_are_two)
{
    static const struct {
        int n_ranks;
        const char *says[3], *leaves_out;
    } cases[] = {
        {2, {"all 2 ranks alike: 667.9 MB", "in backward of layers.9.norm"}, "0: "},
        {3, {"rank 0: 667.9 MB", "rank 1: 667.9 MB", "rank 2: 951.1 MB"}, "alike"},
        {8, {"rank 2, the highest of all: 951.1 MB", "1 of the 8 ranks", "6 ranks: from"}, "k 4: "},
    };
    for (size_t i = 0; i < 3; i++) {
        struct fake_options options = {.n_ranks = cases[i].n_ranks, .n_layers = 30, .memory = true};
        char *text = text_report(&options);
        check_lines(text);
        char *memory = strstr(text, "Memory: "), *end = strstr(text, "\nClocks");
        assert_non_null(memory);
        for (char *c = memory; c < end; c++)
            *c = *c == '\n' ? ' ' : *c;
        if (end)
            *end = '\0';
        for (size_t k = 0; k < 3 && cases[i].says[k]; k++)
            if (!strstr(memory, cases[i].says[k]))
                fail_msg("'%s' is not in: %s", cases[i].says[k], memory);
        assert_null(strstr(memory, cases[i].leaves_out));
        assert_non_null(strstr(memory, "(+0.3 %)"));
        assert_non_null(strstr(memory, "with the allocator's default settings"));
        assert_null(strstr(memory, "not fit"));
    }
}

TEST(what_does_not_fit_the_device_is_one_line)
{
    struct fake_options options = {.n_ranks = 3, .n_layers = 30, .memory = true, .tight = true};
    write_and_check(&options, "memory tight");
    char *text = text_report(&options);
    check_lines(text);
    assert_non_null(strstr(text, "would not fit the device: rank 0 finds no room for a block of "));
    assert_null(strstr(text, "default settings"));
}

TEST(hostile_names_are_harmless_everywhere)
{
    struct fake_options options = {.n_ranks = 3, .n_layers = 30, .hostile = true};
    write_and_check(&options, "hostile");
    char *text = text_report(&options);
    check_lines(text);
    assert_non_null(strstr(text, "</script><script>alert(1)")); /* a terminal does not mind */
}

TEST(a_report_of_nothing_is_still_a_report)
{
    struct fake_options options = {.n_ranks = 2, .n_layers = 1, .empty = true};
    write_and_check(&options, "empty");
    char *text = text_report(&options);
    check_lines(text);
    assert_non_null(strstr(text, "nothing was measured"));
}

TEST(the_text_starts_with_the_verdict)
{
    char *text = text_report(&(struct fake_options){.n_ranks = 8, .n_layers = 60});
    check_lines(text);
    static const char *const titles[] = {"Iteration ", "Critical path ", "Communication ", "Idle ",
                                         "Next step "};
    const char *line = text;
    for (size_t i = 0; i < 5; i++) { /* each a line; the first, third and last may be wrapped */
        assert_memory_equal(line, titles[i], strlen(titles[i]));
        do {
            line = strchr(line, '\n') + 1;
        } while (i % 2 == 0 && *line == ' ');
    }
    assert_non_null(strstr(text, "straggler,"));
    assert_non_null(strstr(text, "Next step"));
    assert_true(strstr(text, "Next step") < strstr(text, "Where the predicted iteration goes"));
    assert_true(strstr(text, "\nWarnings\n") > strstr(text, "Daydream"));
    assert_non_null(strstr(text, "Clocks"));
}

TEST(times_on_a_gpu_are_called_so)
{
    char *text = text_report(&(struct fake_options){.n_ranks = 1, .n_layers = 60, .busy = true});
    check_lines(text);
    assert_non_null(strstr(text, "'dpro diagnose' says what each cause of lost time costs"));
    assert_non_null(strstr(text, "forward, backward and update are times on the GPU"));
}

TEST(a_check_that_was_not_made_says_why)
{
    char *text = text_report(&(struct fake_options){.n_ranks = 2, .n_layers = 30, .single = true});
    assert_non_null(strstr(text, "self-validation: none, too few iterations"));
}

TEST(a_replay_that_contradicts_the_measurement_says_so)
{
    struct fake_options options = {.n_ranks = 2, .n_layers = 120, .at_once = true};
    write_and_check(&options, "");
    char *text = text_report(&options);
    const char *doubt = strstr(text, "do not act on this yet: it is +");
    assert_null(strstr(text, "see the warnings"));
    assert_non_null(strstr(text, "the replay contradicts the measurement: it is "));
    assert_non_null(doubt ? doubt : strstr(text, "do not act on this yet"));
}

TEST(where_the_spread_is_unknown_nothing_is_contradicted)
{
    char *text = text_report(&(struct fake_options){.n_ranks = 2, .n_layers = 60, .single = true});
    assert_null(strstr(text, "contradicts"));
}

TEST(many_ranks_are_summed_up)
{
    char *text = text_report(&(struct fake_options){.n_ranks = 40, .n_layers = 24});
    check_lines(text);
    assert_non_null(strstr(text, "(40 ranks: least, median and most waiting)"));
    assert_non_null(strstr(text, "least 20"));
}

TEST(a_full_disk_fails_with_the_reason)
{
    struct dpro_error err = {0};
    struct fake *fake = fake_create(&(struct fake_options){.n_ranks = 2, .n_layers = 10});
    for (int json = 0; json < 2; json++) {
        FILE *full = fopen("/dev/full", "w");
        assert_non_null(full);
        int rc = json ? dpro_report_json(fake_report(fake), full, &err)
                      : dpro_report_text(fake_report(fake), full, &err);
        assert_int_equal(rc, DPRO_EIO);
        assert_string_equal(err.text, "/dev/full: can't be written: No space left on device");
        fclose(full);
    }
    fake_destroy(fake);
}

TEST(a_broken_write_leaves_nothing_behind)
{
    char path[128];
    struct dpro_error err = {0};
    struct rlimit old, small = {20000, RLIM_INFINITY};
    struct fake *fake = fake_create(&(struct fake_options){.n_ranks = 2, .n_layers = 60});
    getrlimit(RLIMIT_FSIZE, &old);
    small.rlim_max = old.rlim_max;
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    snprintf(path, sizeof path, "%s/a/b", folder);
    int rc = dpro_report_folder(fake_report(fake), path, &err);
    setrlimit(RLIMIT_FSIZE, &old);
    signal(SIGXFSZ, handler);
    fake_destroy(fake);
    assert_int_equal(rc, DPRO_EIO);
    assert_non_null(strstr(err.text, "/a/b/"));
    assert_non_null(strstr(err.text, strerror(EFBIG)));
    snprintf(path, sizeof path, "%s/a", folder);
    assert_int_equal(access(path, F_OK), -1); /* the folders made for it are gone as well */
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
    struct fake *fake = fake_create(&(struct fake_options){.n_ranks = 2, .n_layers = 60});
    struct dpro_report report = *fake_report(fake);
    report.sink = (struct dpro_sink){.progress = note_written, .arg = &bytes};
    assert_int_equal(dpro_report_folder(&report, folder, &err), 0);
    fake_destroy(fake);
    assert_int_equal(stat(in_folder("report.html"), &page), 0);
    assert_true(bytes > (uint64_t)page.st_size);
}

TEST(folders_are_made_and_errors_named)
{
    char path[128], command[300];
    struct dpro_error err = {0};
    struct fake *fake = fake_create(&(struct fake_options){.n_ranks = 1, .n_layers = 3});
    snprintf(path, sizeof path, "%s/x/y/", folder);
    assert_int_equal(dpro_report_folder(fake_report(fake), path, &err), 0);
    assert_int_equal(dpro_report_folder(fake_report(fake), path, &err), 0); /* and replaced */
    snprintf(path, sizeof path, "%s/x/y/replay.json/z", folder);
    assert_int_equal(dpro_report_folder(fake_report(fake), path, &err), DPRO_EIO);
    assert_non_null(
        strstr(err.text, "/x/y/replay.json: the folder can't be made: Not a directory"));
    assert_int_equal(dpro_report_folder(fake_report(fake), "", &err), DPRO_EUSAGE);
    fake_destroy(fake);
    snprintf(command, sizeof command,
             "cd %s && rm x/y/timeline.json.gz x/y/report.html "
             "x/y/replay.json && rmdir x/y x",
             folder);
    assert_int_equal(system(command), 0);
}

/* Measured spans on one device, in any order, as a track shows them: "start+dur ...". */
static void check_track(const int64_t (*spans)[2], size_t n, const char *expected)
{
    struct fake *fake = fake_create(&(struct fake_options){.n_ranks = 1, .n_layers = 10});
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
    slices_init(&slices, graph, dpro_replay_view(fake_report(fake)->replay));
    for (uint32_t i = 0; i < slices.tracks[0].n; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%d+%d", i ? " " : "",
                 (int)slices.tracks[0].at[i].start_ns, (int)slices.tracks[0].at[i].dur_ns);
    assert_string_equal(text, expected);
    slices_fini(&slices);
    dpro_graph_destroy(graph);
    fake_destroy(fake);
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
