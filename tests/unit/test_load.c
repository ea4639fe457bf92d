/* Loading: files to ranks, good and bad input, real traces against facts counted by another
 * program. */
#include <dirent.h>
#include <isa-l/igzip_lib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "case.h"
#include "ingest/trace.h"
#include "job_at.h"
#include "kept_log.h"
#include "stages_seen.h"
#include "temp_folder.h"

static unsigned char *pack(const char *text, size_t *size)
{
    text = json_text(text);
    *size = strlen(text) + 1000;
    unsigned char *packed = malloc(*size);
    struct isal_zstream z;
    isal_deflate_init(&z);
    z.gzip_flag = IGZIP_GZIP;
    z.end_of_stream = 1;
    z.next_in = (uint8_t *)(uintptr_t)text;
    z.avail_in = (uint32_t)strlen(text);
    z.next_out = packed;
    z.avail_out = (uint32_t)*size;
    assert_int_equal(isal_deflate(&z), COMP_OK);
    *size = z.total_out;
    return packed;
}

static struct dpro_error err;

static int load_with(const char *path, const char *second, struct dpro_job_options options,
                     struct dpro_trace **trace)
{
    const char *paths[] = {path, second};
    const struct dpro_trace *loaded = NULL;
    struct dpro_job *job;
    logged[0] = '\0';
    options.size = sizeof options;
    options.sink = (struct dpro_sink){.log = keep_log, .level = DPRO_LOG_DEBUG};
    assert_int_equal(dpro_job_open(paths, second ? 2 : 1, &options, &job, &err), 0);
    KEEP(job, dpro_job_close);
    int rc = dpro_job_trace(job, &loaded, &err);
    *trace = (struct dpro_trace *)(uintptr_t)loaded;
    return rc;
}

static struct dpro_trace *load_one(const char *path)
{
    return trace_at(path, .sink = {.log = keep_log, .level = DPRO_LOG_DEBUG});
}

/* The load fails with this code, and the message has all these words. */
static void expect_error(const char *path, const char *second, int code, const char *word1,
                         const char *word2)
{
    struct dpro_trace *trace;
    assert_int_equal(load_with(path, second, (struct dpro_job_options){0}, &trace), code);
    assert_int_equal(err.code, code);
    if (!strstr(err.text, word1) || !strstr(err.text, word2))
        fail_msg("%s", err.text);
}

#define SPAN(name, ts, dur) SPAN_OF("cpu_op", "10", "11", name, ts, dur, "")
#define SPAN_OF(cat, pid, tid, name, ts, dur, args)                                                \
    "{'ph':'X','cat':'" cat "','name':'" name "','pid':" pid ",'tid':" tid ",'ts':" ts             \
    ",'dur':" dur ",'args':{" args "}}"
#define LINK(phase, id, tid, ts)                                                                   \
    "{'ph':'" phase "','id':" id ",'pid':1,'tid':" tid ",'ts':" ts ",'cat':'fwdbwd'}"
#define TRACE(info, spans) "{'schemaVersion':1," info "'traceEvents':[" spans "]}"
#define INFO(rank, world)                                                                          \
    "'distributedInfo':{'backend':'gloo','rank':" rank ",'world_size':" world "},"

static const char *name_of(const struct dpro_trace *trace, uint32_t id)
{
    return strtab_get(&trace->names, id);
}

TEST_IN_FOLDER(spans_are_sorted_and_nested)
{
    write_text(
        "t.json",
        TRACE("",
              SPAN("child2", "5", "2") "," SPAN("child1", "1", "3") "," SPAN(
                  "parent", "1",
                  "10") "," SPAN("grandchild", "2",
                                 "1") "," SPAN("late", "20",
                                               "1") "," SPAN_OF("kernel", "0", "7", "k", "3", "1",
                                                                "") "," SPAN("zero", "20", "0")));
    struct dpro_trace *trace = load_one(in_folder("t.json"));
    assert_int_equal(trace->n_ranks, 1);
    const struct trace_rank *rank = &trace->ranks[0];
    static const struct {
        const char *name;
        uint32_t parent;
    } want[] = {{"parent", NO_ID}, {"child1", 0}, {"grandchild", 1}, {"child2", 0},
                {"late", NO_ID},   {"zero", 4},   {"k", NO_ID}};
    assert_int_equal(rank->n_spans, 7);
    for (size_t i = 0; i < 7; i++) {
        assert_string_equal(name_of(trace, rank->spans[i].name), want[i].name);
        assert_true(rank->spans[i].parent == want[i].parent);
    }
    assert_int_equal(rank->n_tracks, 2);
    assert_int_equal(rank->tracks[0].n, 6);
    assert_true(rank->tracks[1].gpu);
    assert_int_equal(rank->tracks[1].first, 6);
    assert_int_equal(rank->pid, 10);
    assert_int_equal(dpro_trace_n_spans(trace), 7);
}

TEST_IN_FOLDER(links_join_the_ops_that_start_there)
{
    /* clang-format off */
    write_text("t.json", TRACE("'baseTimeNanoseconds':1000,",
        SPAN_OF("cpu_op", "1", "1", "fw", "1", "5", "'Sequence number':4") ","
        SPAN_OF("cpu_op", "1", "1", "fw_inner", "1", "4", "'Sequence number':4") ","
        SPAN_OF("cpu_op", "1", "1", "fw_view", "1", "2", "") ","
        SPAN_OF("cpu_op", "1", "2", "evaluate", "10", "9", "") ","
        SPAN_OF("cpu_op", "1", "2", "bw", "12", "5", "'Sequence number':4") ","
        LINK("f", "1", "2", "12") "," LINK("s", "1", "1", "1") ","
        LINK("s", "2", "1", "4") "," LINK("f", "2", "2", "18")));
    /* clang-format on */
    struct dpro_trace *trace = load_one(in_folder("t.json"));
    const struct trace_rank *rank = &trace->ranks[0];
    assert_int_equal(rank->n_links, 2);
    assert_string_equal(name_of(trace, rank->spans[rank->links[0].from].name), "fw_inner");
    assert_string_equal(name_of(trace, rank->spans[rank->links[0].to].name), "bw");
    assert_string_equal(name_of(trace, rank->spans[rank->links[1].from].name), "fw_inner");
    assert_string_equal(name_of(trace, rank->spans[rank->links[1].to].name), "evaluate");
    assert_int_equal(rank->spans[0].start_ns, 2000);
    assert_int_equal(rank->windows[0].start_ns, 2000);
}

TEST_IN_FOLDER(launch_flows_stand_in_for_correlation)
{
    write_text("t.json", TRACE("", SPAN_OF("cuda_runtime", "1", "1", "cudaLaunchKernel", "1", "2",
                                           "") "," SPAN_OF("kernel", "0", "7", "k", "5", "2",
                                                           "") ","
                                                               "{'ph':'s','id':31,'pid':1,'tid':1,"
                                                               "'ts':1,'cat':'async_cpu_to_gpu'},"
                                                               "{'ph':'f','id':31,'pid':0,'tid':7,"
                                                               "'ts':5,'cat':'async_cpu_to_gpu'}"));
    struct dpro_trace *trace = load_one(in_folder("t.json"));
    assert_int_equal(trace->ranks[0].spans[0].correlation, 31);
    assert_int_equal(trace->ranks[0].spans[1].correlation, 31);
}

TEST_IN_FOLDER(ranks_come_from_metadata_then_from_names)
{
    write_text("a.json", TRACE(INFO("2", "8"), SPAN("a", "1", "1")));
    write_text("worker5_x.json", TRACE("", SPAN("a", "1", "1")));
    write_text("rank-0.json", TRACE("", SPAN("a", "1", "1")));
    write_text("trace_3.pt.trace.json", TRACE("", SPAN("a", "1", "1")));
    assert_int_equal(mkdir(in_folder("rank7"), 0755), 0);
    write_text("rank7/trace.json", TRACE("", SPAN("a", "1", "1")));
    write_text("rank7/.hidden_9.json", TRACE("", SPAN("a", "1", "1")));
    write_text("metadata.json", "{'name': 1}");
    write_text("net.csv", "1,2,3\n");
    struct dpro_trace *trace = load_one(folder);
    assert_int_equal(dpro_trace_n_ranks(trace), 5);
    static const int want[] = {0, 2, 3, 5, 7};
    for (size_t i = 0; i < 5; i++)
        assert_int_equal(dpro_trace_rank(trace, i), want[i]);
    assert_int_equal(dpro_trace_world_size(trace), 8);
    assert_int_equal(dpro_trace_n_files(trace), 7);
    assert_int_equal(dpro_trace_n_warnings(trace), 0);
    assert_int_equal(
        load_with(folder, NULL, (struct dpro_job_options){.rank_regex = "e([0-9]+)"}, &trace),
        DPRO_EFORMAT);
    assert_non_null(strstr(err.text, "--rank-regex"));
    assert_int_equal(load_with(in_folder("worker5_x.json"), NULL,
                               (struct dpro_job_options){.rank_regex = "worker([0-9]+)"}, &trace),
                     0);
    assert_int_equal(dpro_trace_rank(trace, 0), 5);
    assert_int_equal(load_with(folder, NULL, (struct dpro_job_options){.rank_regex = "("}, &trace),
                     DPRO_EUSAGE);
    assert_int_equal(load_with(folder, NULL, (struct dpro_job_options){.rank_regex = "a"}, &trace),
                     DPRO_EUSAGE);
}

TEST_IN_FOLDER(globs_and_lists_are_read)
{
    write_text("rank0.json", TRACE("", SPAN("a", "1", "1")));
    write_text("rank1.json", TRACE("", SPAN("a", "1", "1")));
    write_text("notes.txt", "x");
    struct dpro_trace *trace = load_one(in_folder("*"));
    assert_int_equal(dpro_trace_n_ranks(trace), 2);
    assert_int_equal(load_with(in_folder("rank1.json"), in_folder("rank0.json"),
                               (struct dpro_job_options){0}, &trace),
                     0);
    assert_int_equal(dpro_trace_n_ranks(trace), 2);
    assert_int_equal(dpro_trace_rank(trace, 0), 0);
    expect_error(in_folder("none*.json"), NULL, DPRO_EIO, "none*", "no file matches");
}

TEST_IN_FOLDER(unknown_ranks_name_the_file_and_the_option)
{
    write_text("a.json", TRACE("", SPAN("a", "1", "1")));
    struct dpro_trace *trace = load_one(folder); /* a single file is rank 0 */
    assert_int_equal(dpro_trace_rank(trace, 0), 0);
    write_text("b.json", TRACE("", SPAN("a", "1", "1")));
    expect_error(folder, NULL, DPRO_EFORMAT, "a.json", "--rank-regex");
}

/* As PyTorch's handler names them: two hosts' processes may have equal ids, and a window each. */
TEST_IN_FOLDER(a_process_id_in_a_name_is_no_rank)
{
    static const char *const files[][3] = {{"a_999.17700.pt.trace.json", "999", "1"},
                                           {"a_1000.17701.pt.trace.json", "1000", "1"},
                                           {"a_1000.17702.pt.trace.json", "1000", "100"},
                                           {"b_999.17700.pt.trace.json", "999", "1"}};
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        char text[512];
        snprintf(text, sizeof text, TRACE("", SPAN_OF("cpu_op", "%s", "11", "a", "%s", "1", "")),
                 files[i][1], files[i][2]);
        write_text(files[i][0], text);
    }
    struct dpro_trace *trace = load_one(folder);
    assert_int_equal(dpro_trace_n_ranks(trace), 3);
    assert_int_equal(dpro_trace_world_size(trace), 3);
    static const uint64_t pids[] = {999, 1000, 999};
    for (size_t r = 0; r < 3; r++) {
        assert_int_equal(dpro_trace_rank(trace, r), r);
        assert_int_equal(trace->ranks[r].pid, pids[r]);
        assert_int_equal(trace->ranks[r].n_windows, r == 1 ? 2 : 1);
    }
    assert_int_equal(dpro_trace_n_warnings(trace), 1);
    assert_non_null(strstr(dpro_trace_warning(trace, 0), "process ids"));
}

/* As PyTorch's documents name them, by the step at which a window ended. */
TEST_IN_FOLDER(numbers_of_a_process_s_windows_are_no_ranks)
{
    static const char *const files[][3] = {{"trace_7.json", "999", "1"},
                                           {"trace_14.json", "999", "100"},
                                           {"trace_21.json", "999", "200"},
                                           {"trace_8.json", "1000", "1"}, /* another process */
                                           {"trace_9.json", "999", "1"}}; /* of another host */
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        char text[512];
        snprintf(text, sizeof text, TRACE("", SPAN_OF("cpu_op", "%s", "11", "a", "%s", "1", "")),
                 files[i][1], files[i][2]);
        write_text(files[i][0], text);
        struct dpro_trace *trace = load_one(folder);
        static const size_t n_ranks[] = {1, 1, 1, 2, 5};
        assert_int_equal(dpro_trace_n_ranks(trace), n_ranks[i]);
        if (i == 0)
            assert_int_equal(dpro_trace_rank(trace, 0), 0); /* it is alone, too */
        if (i == 2)
            assert_int_equal(trace->ranks[0].n_windows, 3);
        assert_int_equal(dpro_trace_n_warnings(trace), i == 3);
    }
}

TEST_IN_FOLDER(windows_of_a_rank_follow_each_other)
{
    write_text("rank0_b.json", TRACE("", SPAN("early", "1", "5") "," SPAN_OF("Trace", "0", "0", "t",
                                                                             "0", "900", "")));
    write_text("rank0_a.json", TRACE("", SPAN("late", "100", "5")));
    struct dpro_trace *trace = load_one(folder);
    const struct trace_rank *rank = &trace->ranks[0];
    assert_int_equal(rank->n_windows, 2);
    assert_int_equal(rank->windows[0].end_ns, 6000);
    assert_string_equal(trace->files[rank->windows[0].file].path, in_folder("rank0_b.json"));
    assert_int_equal(rank->spans[0].window, 0);
    assert_int_equal(rank->spans[1].window, 1);
    assert_int_equal(rank->n_tracks, 1);
    write_text("rank0_c.json", TRACE("", SPAN("overlap", "104", "5")));
    expect_error(folder, NULL, DPRO_EFORMAT, "rank0_a.json", "rank0_c.json");
}

TEST_IN_FOLDER(one_file_named_twice_is_taken_once)
{
    write_text("rank0.json", TRACE("", SPAN("a", "1", "0")));
    struct dpro_trace *trace;
    assert_int_equal(
        load_with(folder, in_folder("rank0.json"), (struct dpro_job_options){0}, &trace), 0);
    assert_int_equal(dpro_trace_n_warnings(trace), 1);
    assert_non_null(strstr(dpro_trace_warning(trace, 0), "the same file as"));
}

TEST_IN_FOLDER(two_jobs_are_refused)
{
    write_text("rank0.json", TRACE(INFO("0", "2"), SPAN("a", "1600000000000000", "1")));
    write_text("rank1.json", TRACE(INFO("1", "4"), SPAN("a", "1600000000000000", "1")));
    expect_error(folder, NULL, DPRO_EFORMAT, "rank0.json", "rank1.json");
    write_text("rank1.json", TRACE("'distributedInfo':{'backend':'nccl','rank':1},",
                                   SPAN("a", "1600000000000000", "1")));
    expect_error(folder, NULL, DPRO_EFORMAT, "rank0.json", "backend");
    write_text("rank1.json", TRACE(INFO("1", "2"), SPAN("a", "1700000000000000", "1")));
    expect_error(folder, NULL, DPRO_EFORMAT, "rank0.json", "rank1.json");
    write_text("rank1.json", TRACE(INFO("1", "2"), SPAN("a", "1600000001000000", "1")));
    load_one(folder);
}

TEST_IN_FOLDER(two_processes_of_one_rank_are_two_runs)
{
    write_text("rank0_a.json", TRACE("", SPAN_OF("cpu_op", "10", "1", "a", "1", "1", "")));
    write_text("rank0_b.json", TRACE("", SPAN_OF("cpu_op", "77", "1", "a", "50", "1", "")));
    expect_error(folder, NULL, DPRO_EFORMAT, "rank0_a.json", "rank0_b.json");
}

TEST_IN_FOLDER(bad_paths_are_named)
{
    expect_error(in_folder("missing.json"), NULL, DPRO_EIO, "missing.json", "cannot open");
    expect_error(folder, NULL, DPRO_EEMPTY, folder, "no trace file");
    assert_int_equal(symlink("nowhere", in_folder("dangling.json")), 0);
    expect_error(in_folder("dangling.json"), NULL, DPRO_EIO, "dangling.json", "cannot open");
    expect_error(folder, NULL, DPRO_EEMPTY, folder, "no trace file");
    assert_non_null(strstr(logged, "dangling.json"));
    assert_int_equal(mkfifo(in_folder("fifo"), 0600), 0);
    expect_error(in_folder("fifo"), NULL, DPRO_EIO, "fifo", "not a regular file");
    expect_error("/dev/null", NULL, DPRO_EIO, "/dev/null", "not a regular file");
    write_text("empty.json", "");
    expect_error(in_folder("empty.json"), NULL, DPRO_EEMPTY, "empty.json", "empty");
    write_text("notes.json", "{'a': [1, 2]}");
    expect_error(in_folder("notes.json"), NULL, DPRO_EFORMAT, "notes.json", "not a trace");
    write_text("nothing.json", TRACE("", SPAN_OF("Trace", "0", "0", "t", "0", "9", "")));
    expect_error(in_folder("nothing.json"), NULL, DPRO_EEMPTY, "nothing.json",
                 "no framework's spans");
    write_text("et_0.json", "{'schema':'1.0.1','pid':3,'nodes':[{'name':'a','id':1,'rf_id':2}]}");
    expect_error(in_folder("et_0.json"), NULL, DPRO_EEMPTY, "et_0.json", "no times");
}

/* Every length of a gzip'd trace: never a crash, never a span that is not in the whole. */
TEST_IN_FOLDER(a_cut_gzip_gives_what_is_whole)
{
    char text[20000];
    size_t n = (size_t)sprintf(text, "{'schemaVersion':1,'traceEvents':[");
    for (int i = 0; i < 100; i++)
        n += (size_t)sprintf(
            text + n, "%s{'ph':'X','cat':'cpu_op','name':'op%d','pid':1,'tid':1,'ts':%d,'dur':%d}",
            i ? "," : "", i * i * 7919 % 1000, i * 10, i % 9);
    strcpy(text + n, "]}");
    size_t size;
    unsigned char *packed = pack(text, &size);
    uint64_t last = 0;
    for (size_t cut = 19; cut < size; cut += 13) {
        struct dpro_trace *trace;
        write_bytes("t.json.gz", packed, cut);
        if (load_with(folder, NULL, (struct dpro_job_options){0}, &trace) < 0) {
            assert_int_equal(err.code, DPRO_EEMPTY);
            continue;
        }
        assert_int_equal(dpro_trace_file(trace, 0).truncated, 1);
        assert_non_null(strstr(dpro_trace_warning(trace, 0), "gzip file is cut short"));
        assert_true(dpro_trace_n_spans(trace) >= last);
        last = dpro_trace_n_spans(trace);
    }
    assert_true(last > 50);
    free(packed);
}

TEST_IN_FOLDER(gzip_members_are_joined)
{
    size_t a_size, b_size;
    unsigned char *a = pack(
        "{'schemaVersion':1,'traceEvents':[" SPAN("a", "1", "1") ",{'ph':'X','cat':'cpu", &a_size);
    unsigned char *b = pack("_op','name':'b','pid':10,'tid':11,'ts':5,'dur':1}]}", &b_size);
    unsigned char *both = calloc(1, a_size + b_size + 512);
    memcpy(both, a, a_size);
    memcpy(both + a_size, b, b_size);
    write_bytes("t.bin", both, a_size + b_size + 512); /* padded with zeros, as tapes do */
    struct dpro_trace *trace = load_one(in_folder("t.bin"));
    assert_int_equal(dpro_trace_n_spans(trace), 2);
    assert_int_equal(dpro_trace_n_warnings(trace), 0);
    both[a_size - 5] ^= 0x55; /* the checksum of the first member */
    write_bytes("t.bin", both, a_size + b_size);
    assert_int_equal(load_with(folder, NULL, (struct dpro_job_options){0}, &trace), 0);
    assert_int_equal(dpro_trace_file(trace, 0).truncated, 1);
    free(a);
    free(b);
    free(both);
}

TEST_IN_FOLDER(losses_are_counted_in_one_line)
{
    write_text("t.json", TRACE("", SPAN("a", "1", "1") "," SPAN("a", "2", "-1") "," SPAN(
                                       "a", "3", "NaN") "," SPAN("a", "NaN",
                                                                 "1") "," SPAN("a", "1e40", "1")));
    struct dpro_trace *trace = load_one(in_folder("t.json"));
    assert_int_equal(dpro_trace_n_warnings(trace), 1);
    const char *want =
        "t.json: 4 of 5 spans lack a begin, an end or a time that makes sense, skipped";
    if (!strstr(dpro_trace_warning(trace, 0), want))
        fail_msg("%s", dpro_trace_warning(trace, 0));
}

TEST_IN_FOLDER(spans_written_twice_count_once)
{
    /* clang-format off */
    write_text("t.json", TRACE("",
        SPAN_OF("cpu_op", "1", "1", "a", "1", "1", "'External id':3") ","
        SPAN_OF("cpu_op", "1", "1", "a", "1", "1", "'External id':4") ","
        SPAN_OF("cpu_op", "1", "1", "a", "1", "1", "'External id':3") ","
        SPAN_OF("cpu_op", "1", "1", "b", "1", "1", "") ","
        SPAN_OF("cpu_op", "1", "1", "b", "1", "1", "")));
    /* clang-format on */
    struct dpro_trace *trace = load_one(in_folder("t.json"));
    assert_int_equal(dpro_trace_n_spans(trace), 4);
    assert_non_null(strstr(dpro_trace_warning(trace, 0), "1 spans written twice"));
}

TEST_IN_FOLDER(times_beyond_64_bits_lose_their_base)
{
    write_text("t.json", TRACE("'baseTimeNanoseconds':9223372036854775807,",
                               SPAN("a", "4000000000000000", "1")));
    struct dpro_trace *trace = load_one(in_folder("t.json"));
    assert_int_equal(dpro_trace_n_warnings(trace), 1);
    assert_true(trace->ranks[0].spans[0].start_ns == 4000000000000000000);
}

TEST_IN_FOLDER(execution_traces_are_joined_by_record_function)
{
    write_text("kineto_rank1.json",
               TRACE("", SPAN_OF("cpu_op", "44", "44", "aten::mm", "1", "2",
                                 "'Record function id':5") "," SPAN_OF("cpu_op", "44", "44",
                                                                       "aten::add", "5", "2",
                                                                       "'Record function id':6")));
    write_text("later_rank1.json", TRACE("", SPAN_OF("cpu_op", "44", "44", "aten::mm", "100", "2",
                                                     "'Record function id':0")));
    write_text("et.json",
               "{'schema':'1.1.1','pid':44,'nodes':[{'name':'thread','id':1,'rf_id':0},"
               "{'name':'aten::add','id':3,'rf_id':6,'inputs':[[1,2,0,4,4,'cpu']]},"
               "{'name':'aten::mm','id':2,'rf_id':5},{'name':'other','id':2,'rf_id':5}]}");
    struct dpro_trace *trace = load_one(folder);
    const struct trace_rank *rank = &trace->ranks[0];
    assert_int_equal(rank->n_et_nodes, 4);
    assert_true(rank->et_nodes[0].span == NO_ID);
    assert_int_equal(rank->et_nodes[1].span, 1);
    assert_int_equal(rank->et_nodes[2].span, 0);
    assert_true(rank->et_nodes[3].span == NO_ID);
    assert_int_equal(rank->n_et_tensors, 1);
    assert_true(rank->windows[0].has_execution_trace);
    assert_false(rank->windows[1].has_execution_trace);
}

TEST_IN_FOLDER(older_execution_traces_are_joined_by_order)
{
    write_text(
        "rank0.json",
        TRACE("",
              SPAN_OF("user_annotation", "44", "9", "ProfilerStep#1", "0", "50", "") "," SPAN_OF(
                  "cpu_op", "44", "9", "a", "1", "5",
                  "") "," SPAN_OF("cpu_op", "44", "9", "b", "2", "2",
                                  "") "," SPAN_OF("cpu_op", "44", "9", "a", "10", "2",
                                                  "") "," SPAN_OF("cpu_op", "44", "8", "a", "10",
                                                                  "2", "")));
    write_text("eg_0.json",
               "{'schema':'1.0.1','pid':44,'nodes':[{'name':'b','id':3,'rf_id':6,'tid':1},"
               "{'name':'a','id':2,'rf_id':5,'tid':1},{'name':'a','id':4,'rf_id':7,'tid':1}]}");
    struct dpro_trace *trace = load_one(folder);
    const struct trace_rank *rank = &trace->ranks[0];
    assert_int_equal(rank->n_et_nodes, 3);
    for (size_t i = 0; i < 3; i++) {
        assert_true(rank->et_nodes[i].span < rank->n_spans);
        const struct trace_span *span = &rank->spans[rank->et_nodes[i].span];
        assert_int_equal(rank->tracks[span->track].id, 9);
        assert_int_equal(span->start_ns, i == 0 ? 2000 : i == 1 ? 1000 : 10000);
    }
    assert_true(rank->windows[0].has_execution_trace);
}

TEST_IN_FOLDER(any_number_of_threads_gives_the_same)
{
    for (int r = 0; r < 7; r++) {
        char name[64], text[1024];
        snprintf(name, sizeof name, "rank%d.json", r);
        snprintf(text, sizeof text,
                 TRACE(INFO("%d", "7"), SPAN("op%d", "5", "%d") "," SPAN(
                                            "shared", "1", "2") "," SPAN("z%d", "1", "1")),
                 r, r * 31 % 7, r + 1, 6 - r);
        write_text(name, text);
    }
    struct dpro_trace *one, *many;
    assert_int_equal(load_with(folder, NULL, (struct dpro_job_options){.threads = 1}, &one), 0);
    for (int threads = 2; threads < 9; threads++) {
        assert_int_equal(
            load_with(folder, NULL, (struct dpro_job_options){.threads = threads}, &many), 0);
        assert_int_equal(many->n_ranks, one->n_ranks);
        assert_int_equal(many->names.n, one->names.n);
        for (uint32_t r = 0; r < one->n_ranks; r++) {
            assert_int_equal(many->ranks[r].n_spans, one->ranks[r].n_spans);
            assert_memory_equal(many->ranks[r].spans, one->ranks[r].spans,
                                one->ranks[r].n_spans * sizeof *one->ranks[r].spans);
        }
    }
}

/* Facts about real traces, counted by Python's json with decimal arithmetic: spans by kind (CPU op,
 * annotation, runtime, kernel, memcpy, memset, GPU annotation, sync, Python), and
 * the rank, the world size, summed duration, first start, last end, tracks, fwdbwd flows, and sums
 * of correlations, sequence numbers and bytes copied. */
enum { N_KINDS = 9, N_FACTS = 10 };
static const struct fact {
    const char *path;
    uint32_t n_spans[N_KINDS];
    int64_t numbers[N_FACTS];
} facts[] = {
    {"dlrm-8rank-v100-kineto+et/worker0_step_12.1694128201545.pt.trace.json.gz",
     {1633, 40, 525, 245, 16, 0, 0, 0, 0},
     {0, 8, 78935000, 1694128201426674000, 1694128201441178000, 6, 0, 33376346, 170832, 77984}},
    {"ddp-a100-rank0of2/nccl_data.json.gz",
     {14346, 42, 8740, 2700, 960, 114, 30, 0, 0},
     {0, 2, 3687177487, 1716423322416788066, 1716423323101161005, 5, 543, 529795300, 2650133,
      716464101}},
    {"ddp-a100-rank3of8/control.json.gz",
     {40506, 288, 24692, 8568, 228, 654, 0, 0, 0},
     {3, 8, 2665823000, 1661203462598738000, 1661203463064013000, 7, 0, 62237699757, 5214774298,
      2321676764}},
    {"kineto-tb-resnet50-nw0/worker0.1623143089861.pt.trace.json.gz",
     {23646, 0, 11923, 8772, 12, 312, 0, 0, 0},
     {0, 0, 3858522000, 1623142623460072000, 1623142624525730000, 3, 0, 1452632631, 9359537,
      482082960}},
    {"gloo-cpu-rank34of300/rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz",
     {7379, 100, 0, 0, 0, 0, 0, 0, 0},
     {34, 300, 5417913173, 1721065959529876817, 1721065960815050509, 3, 55, 0, 5795299, 0}},
    {"resnet-v100-1gpu-ns/rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz",
     {23910, 70, 15329, 4350, 1600, 145, 15, 0, 0},
     {0, 1, 2858337598, 1712195495502094565, 1712195495997096942, 4, 905, 3718698167, 71308526,
      799910160}},
    {"resnet-2080ti-1gpu/resnet_kineto.json.gz",
     {39416, 90, 25928, 9628, 123, 362, 0, 0, 0},
     {0, 0, 34780124000, 1689179597340751000, 1689179613512803000, 5, 0, 2418750004, 10226627,
      2550988324}},
    {"torch-ddp-gloo-gpt-n2-1gbit-cap25/kineto_rank0.json.gz",
     {14814, 30, 0, 0, 0, 0, 0, 0, 0},
     {0, 2, 13608445038, 1795252832228090651, 1795252836282297862, 3, 708, 0, 6717492, 0}},
    {"torch-ddp-gloo-resnet18-n4-1gbit-cap5/kineto_et_rank2.json.gz",
     {5270, 24, 0, 0, 0, 0, 0, 0, 0},
     {2, 4, 10746554234, 1795254333085485958, 1795254335224264361, 3, 140, 0, 1196676, 0}},
    {"pytorch-et/linear_kineto.json.gz",
     {36998, 80, 14515, 8716, 0, 1640, 0, 0, 0},
     {0, 0, 5524994000, 1689180447559714000, 1689180449563415000, 3, 0, 1219924000, 14096681,
      634880}},
    {"tiny-hta/cuda_event_sync_multi_stream_trace.json.gz",
     {6, 0, 39, 3, 0, 3, 0, 5, 0},
     {0, 0, 3399000, 1712867402348256000, 1712867402368186000, 5, 0, 29379, -50, 1536}},
    {"sampled-2of128/sampled_rank-1.json.gz",
     {2302, 65, 1154, 1104, 40, 10, 0, 0, 0},
     {1, 128, 4654568000, 1682725898079484000, 1682725899318077000, 7, 0, 16212241422, 1265671186,
      3362442928}},
};

static void check_fact(const struct fact *fact, const char *path)
{
    struct dpro_trace *trace = load_one(path);
    const struct trace_rank *rank = &trace->ranks[0];
    uint32_t n_spans[N_KINDS] = {0};
    int64_t dur_ns = 0, sequences = 0;
    uint64_t correlations = 0, bytes = 0;
    for (uint32_t i = 0; i < rank->n_spans; i++) {
        const struct trace_span *span = &rank->spans[i];
        assert_true(span->kind < N_KINDS);
        n_spans[span->kind]++;
        dur_ns += span->dur_ns;
        correlations += span->correlation;
        sequences += span->sequence;
        if (span->kind == SPAN_MEMCPY || span->kind == SPAN_MEMSET)
            bytes += rank->details[span->detail].bytes;
        if (span->parent != NO_ID) {
            const struct trace_span *parent = &rank->spans[span->parent];
            assert_true(span->parent < i && parent->track == span->track);
            assert_true(parent->start_ns <= span->start_ns);
            assert_true(span->start_ns + span->dur_ns <= parent->start_ns + parent->dur_ns + 1000);
        }
    }
    for (int k = 0; k < N_KINDS; k++)
        if (n_spans[k] != fact->n_spans[k])
            fail_msg("%s: kind %d: %u spans, expected %u", fact->path, k, n_spans[k],
                     fact->n_spans[k]);
    const int64_t numbers[N_FACTS] = {rank->rank,
                                      rank->world_size,
                                      dur_ns,
                                      rank->windows[0].start_ns,
                                      rank->windows[0].end_ns,
                                      rank->n_tracks,
                                      rank->n_links,
                                      (int64_t)correlations,
                                      sequences,
                                      (int64_t)bytes};
    for (int k = 0; k < N_FACTS; k++)
        if (numbers[k] != (fact->numbers[k]))
            fail_msg("%s: number %d: %lld", fact->path, k, (long long)numbers[k]);
    for (uint32_t i = 0; i < rank->n_links; i++) {
        const struct trace_span *from = &rank->spans[rank->links[i].from],
                                *to = &rank->spans[rank->links[i].to];
        assert_true(from->sequence == to->sequence && from->sequence >= 0);
        assert_true(from->start_ns < to->start_ns);
    }
    assert_int_equal(dpro_trace_n_warnings(trace), 0);
}

TEST(real_traces_agree_with_another_program)
{
    size_t n_checked = 0;
    for (size_t i = 0; i < sizeof facts / sizeof facts[0]; i++) {
        char path[512];
        if (!capture_path(path, facts[i].path))
            continue;
        check_fact(&facts[i], path);
        n_checked++;
    }
    if (n_checked == 0)
        skip();
}

TEST(real_folders_give_all_ranks)
{
    static const struct {
        const char *path;
        size_t n_ranks;
        uint32_t n_windows;
        double et_found; /* share of the execution trace's nodes that have a span */
    } cases[] = {{"dlrm-8rank-v100-kineto+et", 8, 1, 0.99},
                 {"torch-ddp-gloo-gpt-n2-1gbit-cap25", 2, 2, 0.99},
                 {"torch-ddp-gloo-resnet18-n4-1gbit-cap5", 4, 2, 0.99},
                 {"kineto-tb-resnet50-nw0", 1, 2, 0},
                 {"sampled-2of128", 2, 1, 0}};
    size_t n_checked = 0;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char path[512];
        if (!capture_path(path, cases[i].path))
            continue;
        n_checked++;
        struct dpro_trace *trace = load_one(path);
        assert_int_equal(dpro_trace_n_ranks(trace), cases[i].n_ranks);
        assert_int_equal(dpro_trace_n_warnings(trace), 0);
        for (uint32_t r = 0; r < trace->n_ranks; r++) {
            const struct trace_rank *rank = &trace->ranks[r];
            uint32_t n_found = 0, n_with_et = 0;
            assert_int_equal(rank->n_windows, cases[i].n_windows);
            for (uint32_t n = 0; n < rank->n_et_nodes; n++)
                n_found += rank->et_nodes[n].span != NO_ID;
            for (uint32_t w = 0; w < rank->n_windows; w++)
                n_with_et += rank->windows[w].has_execution_trace;
            assert_true(n_found >= cases[i].et_found * rank->n_et_nodes);
            assert_int_equal(n_with_et, cases[i].et_found > 0);
        }
    }
    if (n_checked == 0)
        skip();
}
