/* Snapshots of GPU memory: pickles of every protocol, and what is made of entries and segments. */

#include "base/pickle.h"
#include "case.h"
#include "ingest/readers.h"
#include "job_at.h"
#include "kept_log.h"
#include "temp_folder.h"

/* ---- what a pickle says, as text ---- */

static char told[1024];

static void tell(const char *format, ...)
{
    va_list args;
    size_t n = strlen(told);
    va_start(args, format);
    vsnprintf(told + n, sizeof told - n, format, args);
    va_end(args);
}

static void tell_value(const struct strtab *strings, struct pickle_value value)
{
    switch ((enum pickle_kind)value.kind) {
    case PICKLE_NONE:
        tell("None");
        break;
    case PICKLE_BOOL:
        tell(value.integer ? "True" : "False");
        break;
    case PICKLE_INT:
        tell("%lld", (long long)value.integer);
        break;
    case PICKLE_FLOAT:
        tell("%g", value.real);
        break;
    case PICKLE_TEXT:
        tell("'%s'", strtab_get(strings, value.id));
        break;
    case PICKLE_DICT:
        tell("d%u", value.id);
        break;
    case PICKLE_LIST:
        tell("l%u", value.id);
        break;
    case PICKLE_TUPLE:
        tell("t%u", value.id);
        break;
    case PICKLE_MARK:
        fail();
    }
}

static void tell_member(void *arg, uint32_t dict, struct pickle_value key,
                        struct pickle_value value)
{
    tell("d%u[", dict);
    tell_value(arg, key);
    tell("]=");
    tell_value(arg, value);
    tell(" ");
}

static void tell_item(void *arg, struct pickle_value list, struct pickle_value item)
{
    tell_value(arg, list);
    tell("+=");
    tell_value(arg, item);
    tell(" ");
}

static const char *failed;

/* What is told of a pickle, and at last what the whole is. */
static const char *told_of(const char *pickle, size_t size, size_t chunk)
{
    struct input in;
    struct bytes bytes;
    struct dpro_error err;
    struct strtab strings = {0};
    struct pickle_value whole;
    told[0] = '\0';
    input_open_memory(&in, pickle, size, "pickle");
    bytes_init(&bytes, &in, chunk, PART_RECORD_MAX, &err);
    struct pickle_reader reader = {.bytes = &bytes,
                                   .strings = &strings,
                                   .arg = &strings,
                                   .set = tell_member,
                                   .append = tell_item};
    if (pickle_read(&reader, &whole))
        tell_value(&strings, whole);
    failed = reader.fail;
    bytes_fini(&bytes);
    strtab_fini(&strings);
    input_close(&in);
    return told;
}

#define TOLD(pickle) told_of(pickle, sizeof pickle - 1, 0)

TEST(plain_data_of_all_protocols_is_read)
{
    static const struct {
        const char *pickle;
        size_t size;
        const char *told;
    } cases[] = {
#define CASE(pickle, told) {pickle, sizeof pickle - 1, told}
        /* pickle.dumps({"a": [1, -2, 300, 70000, 2**40, -2**40], "b": (None, True)}, 2) */
        CASE("\x80\2}q\0(X\1\0\0\0aq\1]q\2(K\1J\xfe\xff\xff\xffM,\1Jp\x11\1\0\x8a\6\0\0\0\0\0\1"
             "\x8a\6\0\0\0\0\0\xff"
             "eX\1\0\0\0bq\3N\x88\x86q\4u.",
             "l1+=1 l1+=-2 l1+=300 l1+=70000 l1+=1099511627776 l1+=-1099511627776 t2+=None "
             "t2+=True d0['a']=l1 d0['b']=t2 d0"),
        /* one member, one item: without a mark; the same text again */
        CASE("\x80\4\x95\x18\0\0\0\0\0\0\0}\x94\x8c\1a\x94]\x94h\1as.", "l1+='a' d0['a']=l1 d0"),
        CASE("\x80\4G?\xe0\0\0\0\0\0\0.", "0.5"),
        CASE("\x80\5(K\1K\2K\3K\4t.", "t0+=1 t0+=2 t0+=3 t0+=4 t0"),
        CASE("\x80\5\x8f(K\1\x90.", "l0+=1 l0"),
        CASE("\x80\3C\3abc.", "None"),
        CASE("\x80\2\x8a\x0a\1\1\1\1\1\1\1\1\1\1.", "None"), /* beyond 64 bits */
        CASE("\x80\2\x8a\x00.", "0"),
        CASE("\x80\2\x8a\1\xff.", "-1"),
        CASE("\x80\2(U\1aK\1d.", "d0['a']=1 d0"),
        CASE("\x80\2(K\1K\2l0).", "l0+=1 l0+=2 t1"),
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t chunk = 0; chunk < 20; chunk++) {
            assert_string_equal(told_of(cases[i].pickle, cases[i].size, chunk), cases[i].told);
            assert_null(failed);
        }
}

TEST(what_would_run_code_is_refused)
{
    TOLD("\x80\2cos\nsystem\nU\4trueR.");
    assert_string_equal(failed, "asks Python to make objects; only plain data is read");
    TOLD("\x80\4\x8c\2os\x8c\6system\x93.");
    assert_string_equal(failed, "asks Python to make objects; only plain data is read");
    TOLD("\x80\2Qpersistent.");
    assert_string_equal(failed, "asks Python to make objects; only plain data is read");
    TOLD("\x80\6N.");
    assert_non_null(strstr(failed, "protocol"));
}

TEST(broken_pickles_are_said_to_be)
{
    static const char *const broken[] = {
        "\x80\2.",
        "\x80\2K\1u.",
        "\x80\2(u.",
        "\x80\2}(K\1u.",
        "\x80\2](K\1u.",
        "\x80\2}K\1s.",
        "\x80\2K\1K\2a.",
        "\x80\2h\7.",
        "\x80\2Nq\7.",
        "\x80\2t.",
        "\x80\2(K\1\x86.",
        "\x80\2\x94.",
        "\x80\2"
        "0.",
        "\x80\2(.",
        "\x80\2(e.",
        "\x80\2\xff.",
        "\x80\2K\1(K\2e.",
    };
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        told_of(broken[i], strlen(broken[i] + 2) + 2, 0);
        if (!failed || strcmp(failed, "no pickle from here on") != 0)
            fail_msg("case %zu: %s", i, failed ? failed : "read");
    }
}

TEST(long_texts_are_cut_and_passed_over)
{
    enum { LEN = 300000 };
    char *pickle = malloc(LEN + 16);
    memcpy(pickle, "\x80\2X\xe0\x93\4\0", 7);
    memset(pickle + 7, 'x', LEN);
    memcpy(pickle + 7 + LEN, "0K\5.", 4);
    assert_string_equal(told_of(pickle, LEN + 11, 0), "5");
    assert_null(failed);
    free(pickle);
}

/* ---- snapshots ---- */

/* What a snapshot of two devices pickles to, with the members of a segment and of entries. */
struct writer {
    char at[8192];
    size_t n;
};

static void put(struct writer *w, const void *bytes, size_t n)
{
    assert_true(w->n + n <= sizeof w->at);
    memcpy(w->at + w->n, bytes, n);
    w->n += n;
}

static void put_text(struct writer *w, const char *text)
{
    char head[2] = {'\x8c', (char)strlen(text)};
    put(w, head, 2);
    put(w, text, strlen(text));
}

static void put_int(struct writer *w, const char *key, int64_t value)
{
    put_text(w, key);
    put(w, "\x8a\x8", 2);
    put(w, &value, 8);
}

static void put_word(struct writer *w, const char *key, const char *value)
{
    put_text(w, key);
    put_text(w, value);
}

static void put_entry(struct writer *w, const char *action, int64_t addr, int64_t size,
                      int64_t stream, int64_t time_us)
{
    put(w, "}(", 2);
    put_word(w, "action", action);
    put_int(w, "addr", addr);
    put_int(w, "size", size);
    put_int(w, "stream", stream);
    put_int(w, "time_us", time_us);
    put(w, "u", 1);
}

static void put_block(struct writer *w, int64_t size, const char *state)
{
    put(w, "}(", 2);
    put_int(w, "size", size);
    put_word(w, "state", state);
    put(w, "u", 1);
}

/* A segment of two blocks, the second one free. */
static void put_segment(struct writer *w, int64_t device, int64_t address, int64_t size,
                        int64_t taken, int64_t stream)
{
    put(w, "}(", 2);
    put_int(w, "device", device);
    put_int(w, "address", address);
    put_int(w, "total_size", size);
    put_int(w, "stream", stream);
    put_word(w, "segment_type", size > 2 << 20 ? "large" : "small");
    put_text(w, "blocks");
    put(w, "](", 2);
    put_block(w, taken, "active_allocated");
    put_block(w, size - taken, "inactive");
    put(w, "eu", 2);
}

#define PROFILE                                                                                    \
    "{\"schemaVersion\":1,\"distributedInfo\":{\"rank\":0,\"world_size\":1},\"traceEvents\":["     \
    "{\"ph\":\"X\",\"cat\":\"cpu_op\",\"name\":\"aten::mm\",\"pid\":5,\"tid\":6,"                  \
    "\"ts\":1790857026000000,\"dur\":50}%s]}"

/* The rank whose folder holds a profile with more events, and the pickle. */
static struct dpro_trace *load(const struct writer *w, const char *events)
{
    char profile[1024];
    snprintf(profile, sizeof profile, PROFILE, events);
    write_text("host0/rank0/kineto.json", profile);
    if (w)
        write_bytes("host0/rank0/snapshot.pickle", w->at, w->n);
    logged[0] = '\0';
    return trace_at(folder, .sink = {.log = keep_log, .level = DPRO_LOG_WARN});
}

enum { STREAM = 0x5555000 };

static void put_snapshot(struct writer *w)
{
    put(w, "\x80\4}(", 4);
    put_text(w, "segments");
    put(w, "](", 2);
    put_segment(w, 1, 0x7f0000400000, 4 << 20, 3 << 20, STREAM);
    put_segment(w, 1, 0x7f0000000000, 2 << 20, 512, 0);
    put(w, "e", 1);
    put_text(w, "device_traces");
    put(w, "](](", 4); /* of device 0 nothing */
    put(w, "e](", 3);
    put_entry(w, "segment_alloc", 0x7f0000000000, 2 << 20, 0, 1790857026000001);
    put_entry(w, "alloc", 0x7f0000000000, 100, 0, 1790857026000001);
    put_entry(w, "alloc", 0x7f0000400000, 3 << 20, STREAM, 1790857026000010);
    put_entry(w, "free_requested", 0x7f0000000000, 100, 0, 1790857026000020);
    put_entry(w, "free_completed", 0x7f0000000000, 100, 0, 1790857026000020);
    put_entry(w, "snapshot", 0, 0, 0, 1790857026000030);
    put(w, "ee", 2);
    put_text(w, "allocator_settings");
    put(w, "}(", 2);
    put_word(w, "PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64");
    put_int(w, "max_split_size", 64 << 20);
    put(w, "uu.", 3);
}

TEST_IN_FOLDER(a_snapshot_tells_the_settings_of_the_allocator)
{
    struct writer w = {.n = 0};
    put_snapshot(&w);
    struct dpro_trace *trace = load(&w, "");
    const struct allocator_settings *settings = trace->ranks[0].snapshot_settings;
    assert_string_equal(logged, "");
    assert_int_equal(settings->max_split_bytes, 64 << 20);
    assert_int_equal(settings->known, DPRO_ALLOCATOR_KNOWN);
}

TEST_IN_FOLDER(allocations_are_the_snapshots_where_the_profile_has_none_of_gpus)
{
    static const char of_cpu[] = ",{\"ph\":\"i\",\"name\":\"[memory]\",\"pid\":5,\"tid\":6,\"ts\":"
                                 "1790857026000002,\"args\":{\"Bytes\":4,\"Device Type\":0}}";
    static const char of_gpu[] = ",{\"ph\":\"i\",\"name\":\"[memory]\",\"pid\":5,\"tid\":6,\"ts\":"
                                 "1790857026000002,\"args\":{\"Bytes\":4,\"Device Type\":1,"
                                 "\"Device Id\":1}}";
    struct writer w = {.n = 0};
    put_snapshot(&w);
    struct dpro_trace *trace = load(&w, of_cpu);
    const struct trace_rank *rank = &trace->ranks[0];
    assert_int_equal(rank->n_allocations, 3);
    assert_int_equal(rank->allocations[0].bytes, 100);
    assert_int_equal(rank->allocations[0].device, 1);
    assert_int_equal(rank->allocations[0].window, 0);
    assert_int_equal(rank->allocations[2].bytes, -100);
    /* in the end 512 bytes and 3 MiB are taken, as the segments say */
    assert_int_equal(rank->allocations[2].allocated_bytes, 512 + (3 << 20));
    assert_int_equal(rank->allocations[1].allocated_bytes, 1024 + (3 << 20));
    assert_int_equal(rank->allocations[0].allocated_bytes, 1024);
    assert_int_equal(rank->allocations[0].reserved_bytes, 6 << 20);
    trace = load(&w, of_gpu);
    assert_int_equal(trace->ranks[0].n_allocations, 1);
    assert_non_null(trace->ranks[0].snapshot_settings);
}

TEST_IN_FOLDER(a_snapshot_cut_anywhere_gives_what_came_before_in_one_line)
{
    struct writer w = {.n = 0};
    uint32_t n_before = 0;
    put_snapshot(&w);
    for (size_t whole = w.n, n = 40; n < whole; n += 7) {
        w.n = n;
        struct dpro_trace *trace = load(&w, "");
        const struct trace_rank *rank = &trace->ranks[0];
        uint32_t n_now = rank->n_allocations;
        assert_true(n_now >= n_before);
        for (uint32_t i = 0; i < n_now; i++) {
            assert_int_equal(rank->allocations[i].device, 1);
            assert_int_equal(rank->allocations[i].reserved_bytes, -1); /* no segment is used */
        }
        assert_non_null(strstr(logged, "the file ends in the middle"));
        assert_ptr_equal(strchr(logged, '\n'), strrchr(logged, '\n'));
        n_before = n_now;
    }
    assert_int_equal(n_before, 3);
}

TEST_IN_FOLDER(absurd_entries_and_segments_are_left_out_in_one_line)
{
    struct writer w = {.n = 0};
    put(&w, "\x80\4}(", 4);
    put_text(&w, "segments");
    put(&w, "](", 2);
    put_segment(&w, 0, 0x1000, 4096, 8192, 0);       /* its blocks don't fill it */
    put_segment(&w, 0, 0x10000, INT64_MAX, 4096, 0); /* larger than any device */
    put_segment(&w, 0, 0x20000, 4096, 512, 0);
    put(&w, "e", 1);
    put_text(&w, "device_traces");
    put(&w, "](](", 4);
    put_entry(&w, "alloc", 0x20000, -5, 0, 10);
    put_entry(&w, "alloc", 0x20000, INT64_MAX, 0, 11);
    put_entry(&w, "alloc", 0x20000, 500, 0, INT64_MAX);  /* at no time */
    put_entry(&w, "free_requested", 0x90000, 500, 0, 5); /* was never taken */
    put_entry(&w, "user_defined", 0, 0, 0, 6);
    put(&w, "eeu.", 4);
    struct dpro_trace *trace = load(&w, "");
    const struct trace_rank *rank = &trace->ranks[0];
    assert_int_equal(rank->snapshot_settings->known, DPRO_ALLOCATOR_ASSUMED); /* nothing is said */
    assert_int_equal(rank->n_allocations, 1);
    assert_int_equal(rank->allocations[0].bytes, -500);
    assert_int_equal(rank->allocations[0].reserved_bytes, 4096); /* of one segment */
    if (!strstr(logged, "6 entries, segments or blocks make no sense"))
        fail_msg("%s", logged);
    assert_ptr_equal(strchr(logged, '\n'), strrchr(logged, '\n'));
}

TEST_IN_FOLDER(json_tells_the_same)
{
    static const char json[] =
        "{\"segments\":[{\"device\":0,\"address\":4096,\"total_size\":2048,\"stream\":0,"
        "\"segment_type\":\"small\",\"segment_pool_id\":[0,1],\"is_expandable\":true,\"blocks\":["
        "{\"address\":4096,\"size\":512,\"state\":\"active_pending_free\",\"frames\":[{\"line\":1}]"
        "},{\"address\":4608,\"size\":1536,\"state\":\"inactive\"}]}],"
        "\"device_traces\":[[{\"action\":\"alloc\",\"addr\":4096,\"size\":500,\"stream\":7,"
        "\"time_us\":1790857026000003,\"pool_id\":[0,1]},{\"action\":\"oom\",\"device_free\":3,"
        "\"size\":77,\"stream\":7}],[]],\"allocator_settings\":{\"PYTORCH_CUDA_ALLOC_CONF\":\"\","
        "\"garbage_collection_threshold\":0.75,\"expandable_segments\":true}}";
    write_text("host0/rank0/memory_history.json", json);
    struct dpro_trace *trace = load(NULL, "");
    const struct trace_rank *rank = &trace->ranks[0];
    assert_string_equal(logged, "");
    assert_true(rank->snapshot_settings->expandable_segments);
    assert_true(rank->snapshot_settings->garbage_collection_threshold == 0.75);
    assert_int_equal(rank->n_allocations, 1);
    assert_int_equal(rank->allocations[0].bytes, 500);
    assert_int_equal(rank->allocations[0].reserved_bytes, 2048);
    assert_int_equal(rank->allocations[0].allocated_bytes, 0); /* its block waits in the end */
}
