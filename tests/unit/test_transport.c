/* Logs written record by record: which connections are one, which bytes were seen at both ends,
 * what gloo's messages are tied to; cut, doubled and hostile logs; the CSV form; real captures. */
#include <sys/stat.h>
#include <unistd.h>

#include "case.h"
#include "ingest/trace.h"
#include "job_at.h"
#include "kept_log.h"
#include "temp_folder.h"
#include "trace_text.h"
#include "tracer/record.h"

/* ---- writing logs ---- */

static void close_file(FILE *file)
{
    fclose(file);
}

/* What is written is there at once. */
static FILE *open_file(int rank, const char *name)
{
    char path[160];
    snprintf(path, sizeof path, "%s/rank%d", folder, rank);
    mkdir(path, 0777);
    snprintf(path, sizeof path, "%s/rank%d/%s", folder, rank, name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    setvbuf(file, NULL, _IONBF, 0);
    KEEP(file, close_file);
    return file;
}

struct log {
    FILE *file;
};

static void put(struct log *log, const void *record, size_t size)
{
    assert_int_equal(fwrite(record, 1, size, log->file), size);
}

static struct record head(uint8_t type, size_t size, uint32_t thread)
{
    return (struct record){type, 1, (uint16_t)size, thread};
}

static struct log begin_as(int rank, const char *name, enum log_kind kind, const char *boot_id,
                           uint64_t net_ns, uint32_t segment)
{
    struct log log = {open_file(rank, name)};
    struct log_header header = {.magic = LOG_MAGIC,
                                .version = LOG_VERSION,
                                .header_bytes = sizeof header,
                                .kind = kind,
                                .pid = 100 + (uint32_t)rank,
                                .rank = rank,
                                .segment = segment,
                                .net_ns = net_ns};
    strcpy(header.boot_id, boot_id);
    strcpy(header.host, "node");
    put(&log, &header, sizeof header);
    return log;
}

static struct log begin(int rank)
{
    return begin_as(rank, "net.log", LOG_TRANSPORT, "boot", 7, 0);
}

/* 127.0.0.1 or 10.0.0.1 at both ends: ports tell them apart. */
static void connection_to(struct log *log, uint32_t number, uint8_t net, uint16_t local,
                          uint16_t remote)
{
    struct record_connection c = {.head = head(RECORD_CONNECTION, sizeof c, 0),
                                  .connection = number,
                                  .family = FAMILY_IPV4,
                                  .flags = CONNECTION_WHOLE,
                                  .local_port = local,
                                  .remote_port = remote};
    c.local[0] = c.remote[0] = net;
    c.local[3] = c.remote[3] = 1;
    put(log, &c, sizeof c);
}

static void call(struct log *log, uint32_t number, uint8_t direction, uint64_t offset,
                 uint32_t bytes, int64_t start, int64_t stop, uint32_t thread)
{
    struct record_call c = {.head = head(RECORD_CALL, sizeof c, thread),
                            .connection = number,
                            .direction = direction,
                            .call = direction ? CALL_RECV : CALL_WRITEV,
                            .start_ns = start,
                            .end_ns = stop,
                            .offset = offset,
                            .requested = bytes,
                            .returned = bytes};
    put(log, &c, sizeof c);
}

static void gloo_in(struct log *log, uint32_t number, uint8_t direction, uint8_t opcode,
                    uint64_t position, uint64_t length, uint64_t slot)
{
    struct record_gloo g = {.head = head(RECORD_GLOO, sizeof g, 0),
                            .connection = number,
                            .direction = direction,
                            .opcode = opcode,
                            .position = position,
                            .slot = slot,
                            .length = length};
    put(log, &g, sizeof g);
}

/* Of an all-reduce. */
static void gloo(struct log *log, uint32_t number, uint8_t direction, uint8_t opcode,
                 uint64_t position, uint64_t length, uint64_t tag)
{
    gloo_in(log, number, direction, opcode, position, length, UINT64_C(4) << 56 | tag << 24);
}

static struct trace_text *begin_profile(int rank)
{
    char name[40];
    snprintf(name, sizeof name, "rank%d/kineto.json", rank);
    write_text(name, "");
    return trace_text_file(in_folder(name), rank, 2);
}

/* ---- asking ---- */

static struct dpro_error err;

static const struct dpro_trace *load_as(const char *path, int without_profile)
{
    const struct dpro_trace *trace = NULL;
    dpro_job_trace(job_at(path, .without_profile = without_profile), &trace, &err);
    return trace;
}

static struct dpro_trace *load(void)
{
    return trace_at(folder, .without_profile = 1);
}

static struct dpro_transport_info facts(void)
{
    struct dpro_trace *trace = load();
    struct dpro_transport_info info = dpro_trace_transport(trace);
    return info;
}

static bool warned(const struct dpro_trace *trace, const char *words)
{
    for (size_t i = 0; i < dpro_trace_n_warnings(trace); i++)
        if (strstr(dpro_trace_warning(trace, i), words))
            return true;
    return false;
}

/* ---- connections and bytes ---- */

TEST_IN_FOLDER(ends_of_a_connection_are_joined_and_bytes_paired)
{
    struct log a = begin(0), b = begin(1);
    call(&a, 3, DIRECTION_SEND, 0, 1000, 10, 20, 5); /* before its connection's record */
    connection_to(&a, 3, 10, 4000, 5000);
    connection_to(&b, 8, 10, 5000, 4000);
    call(&b, 8, DIRECTION_RECEIVE, 0, 400, 15, 25, 6);
    call(&b, 8, DIRECTION_RECEIVE, 400, 600, 25, 35, 6);
    struct dpro_transport_info info = facts();
    assert_int_equal(info.n_processes, 2);
    assert_int_equal(info.n_connections, 1);
    assert_int_equal(info.n_one_sided, 0);
    assert_int_equal(info.n_calls, 3);
    assert_int_equal(info.sent_bytes, 1000);
    assert_int_equal(info.received_bytes, 1000);
    assert_int_equal(info.paired_bytes, 1000);
    assert_int_equal(info.unpaired_bytes, 0);
}

static void loopback_pair(const char *boot_a, uint64_t ns_a, const char *boot_b, uint64_t ns_b)
{
    struct log a = begin_as(0, "net.log", LOG_TRANSPORT, boot_a, ns_a, 0);
    struct log b = begin_as(1, "net.log", LOG_TRANSPORT, boot_b, ns_b, 0);
    connection_to(&a, 1, 127, 4000, 5000);
    connection_to(&b, 1, 127, 5000, 4000);
    call(&a, 1, DIRECTION_SEND, 0, 10, 10, 20, 5);
    call(&b, 1, DIRECTION_RECEIVE, 0, 10, 15, 25, 6);
}

TEST_IN_FOLDER(loopback_is_joined_within_one_network_namespace_only)
{
    loopback_pair("boot", 7, "boot", 7);
    assert_int_equal(facts().n_connections, 1);
    loopback_pair("boot", 7, "boot", 8);
    assert_int_equal(facts().n_connections, 0);
    loopback_pair("boot", 7, "another", 7); /* first namespaces have the same number everywhere */
    struct dpro_transport_info info = facts();
    assert_int_equal(info.n_connections, 0);
    assert_int_equal(info.n_one_sided, 2);
    assert_int_equal(info.unpaired_bytes, 0);
}

TEST_IN_FOLDER(a_pair_of_addresses_used_again_is_another_connection)
{
    struct log a = begin(0), b = begin(1);
    for (uint32_t k = 0; k < 2; k++) {
        connection_to(&a, 1 + k, 10, 4000, 5000);
        connection_to(&b, 8 - k, 10, 5000, 4000);
        call(&a, 1 + k, DIRECTION_SEND, 0, 10 + k, 100 * k, 100 * k + 5, 5);
        call(&b, 8 - k, DIRECTION_RECEIVE, 0, 10 + k, 100 * k + 6, 100 * k + 7, 6);
    }
    struct dpro_transport_info info = facts();
    assert_int_equal(info.n_connections, 2);
    assert_int_equal(info.paired_bytes, 21);
}

TEST_IN_FOLDER(a_hole_that_the_other_end_filled_is_a_gap_and_a_pause_is_none)
{
    struct log a = begin(0), b = begin(1);
    connection_to(&a, 1, 10, 4000, 5000);
    connection_to(&b, 1, 10, 5000, 4000);
    /* a: 0-100, 100-200, 200-300, pause, 1000-1100; b: lost 100-200, has 300-350 and 1000-1100 */
    call(&a, 1, DIRECTION_SEND, 0, 100, 10, 20, 5);
    call(&a, 1, DIRECTION_SEND, 100, 100, 20, 30, 5);
    call(&a, 1, DIRECTION_SEND, 200, 100, 30, 40, 5);
    call(&a, 1, DIRECTION_SEND, 1000, 100, 90, 95, 5);
    call(&b, 1, DIRECTION_RECEIVE, 0, 100, 12, 22, 6);
    call(&b, 1, DIRECTION_RECEIVE, 200, 150, 32, 42, 6);
    call(&b, 1, DIRECTION_RECEIVE, 1000, 100, 92, 97, 6);
    struct dpro_transport_info info = facts();
    assert_int_equal(info.unpaired_bytes, 100);
    assert_int_equal(info.paired_bytes, 300);
}

TEST_IN_FOLDER(streams_not_seen_from_their_start_are_not_paired)
{
    struct log a = begin(0), b = begin(1);
    struct record_connection c = {.head = head(RECORD_CONNECTION, sizeof c, 0),
                                  .connection = 1,
                                  .family = FAMILY_IPV4,
                                  .origin = ORIGIN_FOUND,
                                  .local = {10, 0, 0, 1},
                                  .remote = {10, 0, 0, 1},
                                  .local_port = 4000,
                                  .remote_port = 5000};
    put(&a, &c, sizeof c);
    connection_to(&b, 1, 10, 5000, 4000);
    call(&a, 1, DIRECTION_SEND, 0, 100, 10, 20, 5);
    call(&b, 1, DIRECTION_RECEIVE, 700, 100, 12, 22, 6);
    struct dpro_transport_info info = facts();
    assert_int_equal(info.n_connections, 0);
    assert_int_equal(info.n_one_sided, 2);
}

TEST_IN_FOLDER(segments_are_one_log_and_doubled_records_one_record)
{
    struct log old = begin_as(0, "net.log.old", LOG_TRANSPORT, "boot", 7, 0);
    struct log new = begin_as(0, "net.log", LOG_TRANSPORT, "boot", 7, 1), b = begin(1);
    struct record_loss loss = {
        .head = head(RECORD_LOSS, sizeof loss, 0), .cause = LOSS_RING_FULL, .n_records = 3};
    connection_to(&old, 1, 10, 4000, 5000);
    call(&old, 1, DIRECTION_SEND, 0, 100, 10, 20, 5);
    put(&old, &loss, sizeof loss);
    call(&new, 1, DIRECTION_SEND, 100, 100, 20, 30, 5);
    call(&new, 1, DIRECTION_SEND, 100, 100, 20, 30, 5);
    loss.n_records = 4; /* since the log's start */
    put(&new, &loss, sizeof loss);
    connection_to(&b, 1, 10, 5000, 4000);
    call(&b, 1, DIRECTION_RECEIVE, 0, 200, 12, 22, 6);
    struct dpro_trace *trace = load();
    struct dpro_transport_info info = dpro_trace_transport(trace);
    assert_int_equal(info.n_processes, 2);
    assert_int_equal(info.n_calls, 3);
    assert_int_equal(info.paired_bytes, 200);
    assert_int_equal(info.n_lost, 4);
    assert_true(warned(trace, "lost 4 records"));
}

/* ---- logs that are not as they should be ---- */

TEST_IN_FOLDER(a_log_cut_anywhere_gives_what_is_before_the_cut)
{
    enum { N_CALLS = 5 };
    long ends[N_CALLS + 1]; /* of the connection, then of each call */
    struct log a = begin(0);
    connection_to(&a, 1, 10, 4000, 5000);
    ends[0] = ftell(a.file);
    for (int i = 0; i < N_CALLS; i++) {
        call(&a, 1, DIRECTION_SEND, 100 * (uint64_t)i, 100, 10 * i, 10 * i + 5, 5);
        ends[i + 1] = ftell(a.file);
    }
    const char *path = in_folder("rank0/net.log");
    for (long cut = ends[N_CALLS]; cut >= (long)sizeof(struct log_header); cut--) {
        unsigned n_whole = 0;
        bool between = cut == (long)sizeof(struct log_header);
        for (int i = 0; i <= N_CALLS; i++) {
            n_whole += i > 0 && ends[i] <= cut;
            between |= ends[i] == cut;
        }
        assert_int_equal(truncate(path, cut), 0);
        const struct dpro_trace *trace = load_as(path, 1);
        assert_non_null(trace);
        assert_int_equal(dpro_trace_transport(trace).n_calls, n_whole);
        assert_int_equal(warned(trace, "ends in the middle of a record"), !between);
    }
}

TEST_IN_FOLDER(unknown_records_are_passed_over_and_broken_ones_counted)
{
    struct log a = begin(0);
    struct record unknown[4] = {head(99, sizeof unknown, 1)};
    connection_to(&a, 1, 10, 4000, 5000);
    put(&a, unknown, sizeof unknown);
    call(&a, 1, DIRECTION_SEND, 0, 100, 50, 40, 5);          /* ends before it starts */
    call(&a, 1, 7, 0, 100, 10, 20, 5);                       /* no direction */
    call(&a, 1, DIRECTION_SEND, UINT64_MAX, 100, 10, 20, 5); /* beyond any stream */
    call(&a, 1, DIRECTION_SEND, 0, 100, INT64_MIN, 20, 5);   /* before time */
    gloo(&a, 1, DIRECTION_SEND, 1, 0, UINT64_MAX - 3, 9);    /* longer than can be */
    call(&a, 1, DIRECTION_SEND, 0, UINT32_MAX, 10, 20, 5);   /* large and fine */
    struct record_call longer[2] = {{.head = head(RECORD_CALL, sizeof longer, 5),
                                     .connection = 1,
                                     .offset = UINT32_MAX,
                                     .start_ns = 30,
                                     .end_ns = 40,
                                     .returned = 1}};
    put(&a, longer, sizeof longer); /* a later version with more in it */
    struct record none = head(RECORD_CALL, 0, 5);
    put(&a, &none, sizeof none); /* nothing tells where the next one is */
    call(&a, 1, DIRECTION_SEND, 0, 100, 10, 20, 5);
    struct dpro_trace *trace = load();
    struct dpro_transport_info info = dpro_trace_transport(trace);
    assert_int_equal(info.n_calls, 2);
    assert_int_equal(info.sent_bytes, (uint64_t)UINT32_MAX + 1);
    assert_true(warned(trace, "5 records or lines make no sense"));
    assert_true(warned(trace, "ends in the middle of a record"));
}

TEST_IN_FOLDER(a_log_of_another_version_is_refused_with_its_number)
{
    struct log log = {open_file(0, "net.log")};
    struct log_header header = {
        .magic = LOG_MAGIC, .version = 9, .header_bytes = sizeof header, .kind = LOG_TRANSPORT};
    put(&log, &header, sizeof header);
    const char *path = in_folder("rank0/net.log");
    assert_null(load_as(path, 1));
    assert_int_equal(err.code, DPRO_EFORMAT);
    assert_non_null(strstr(err.text, "version 9"));
}

TEST_IN_FOLDER(a_log_alone_says_that_the_profile_is_missing)
{
    loopback_pair("boot", 7, "boot", 7);
    assert_null(load_as(folder, 0));
    assert_int_equal(err.code, DPRO_EEMPTY);
    assert_non_null(strstr(err.text, "add the profile"));
}

/* ---- gloo ---- */

enum { CHUNK = 400 };

/* One rank's profile: two all-reduces of 200 floats on two threads at once, and its recording with
 * the buckets they are. */
static void write_profile(int rank)
{
    struct trace_text *text = begin_profile(rank);
    trace_text_spans(
        text, 0,
        "0+1 aten::mm;"
        "1000+900 @5 ! gloo:all_reduce{'Input Dims': [[200]], 'Input type': ['float']};"
        "1010+900 @6 ! gloo:all_reduce{'Input Dims': [[100]], 'Input type': ['float']}");
    trace_text_close(text);
    char name[40], facts[600];
    snprintf(name, sizeof name, "rank%d/rank.json", rank);
    snprintf(facts, sizeof facts,
             "{'schema':'dpro.rank/1','rank':%d,'world_size':2,'complete':true,'models':["
             "{'name':'M','parallel':'ddp','buckets':[{'parameters':[1,2]},{'parameters':[0]}],"
             "'parameters':[{'name':'a','shape':[100],'size_bytes':400},"
             "{'name':'b','shape':[10,10],'size_bytes':400},"
             "{'name':'c','shape':[100],'size_bytes':400}]}]}",
             rank);
    write_text(name, facts);
}

/* A ring of two: each collective sends its size once, in chunks, notices before them. Where the
 * first one has filled the socket, gloo's own thread sends the notice of the second. */
static bool socket_is_full;

static void write_messages(struct log *log, uint32_t number, bool with_preambles)
{
    uint64_t offset[2] = {0, 0};
    for (uint64_t k = 0; k < 2; k++) {
        int64_t start = 1000000 + 10000 * (int64_t)k + 5000;
        for (int chunk = 0; chunk < (k ? 1 : 2); chunk++)
            for (uint8_t direction = 0; direction < 2; direction++) {
                uint64_t *at = &offset[direction];
                if (with_preambles || direction == DIRECTION_SEND) {
                    gloo(log, number, direction, 3, *at, CHUNK, 40 + k);
                    gloo(log, number, direction, 1, *at + 48, CHUNK, 40 + k);
                }
                start += 100;
                call(log, number, direction, *at, 48, start, start + 10,
                     socket_is_full && k == 1 ? 9 : 5 + (uint32_t)k);
                /* the preamble in two reads */
                call(log, number, direction, *at + 48, 20, start + 10, start + 20,
                     direction ? 9 : 5 + (uint32_t)k);
                call(log, number, direction, *at + 68, 28 + CHUNK, start + 20, start + 50, 9);
                *at += 96 + CHUNK;
            }
    }
}

static void write_job(bool with_preambles)
{
    for (int rank = 0; rank < 2; rank++) {
        struct log log = begin(rank);
        connection_to(&log, 1, 10, rank ? 5000 : 4000, rank ? 4000 : 5000);
        write_messages(&log, 1, with_preambles);
        write_profile(rank);
    }
}

static void check_job(const struct dpro_trace *trace)
{
    struct dpro_transport_info info = dpro_trace_transport(trace);
    assert_int_equal(info.n_messages, 12);
    assert_int_equal(info.n_collectives, 4);
    assert_int_equal(info.n_tied, 4);
    assert_int_equal(info.n_checked, 4);
    assert_int_equal(info.n_exact, 4);
    assert_int_equal(info.n_in_buckets, 4);
    for (uint32_t rank = 0; rank < 2; rank++) {
        const struct net_transport *t = &trace->transports[rank];
        const struct recording *recording = trace->ranks[t->rank_index].recording;
        assert_int_equal(t->rank, rank);
        assert_int_equal(t->collectives.n, 2);
        for (uint32_t i = 0; i < 2; i++) {
            const struct net_collective *c = &t->collectives.at[i];
            const struct recorded_bucket *bucket = &recording->buckets.at[i];
            uint32_t parameter = recording->members.at[bucket->first];
            assert_int_equal(c->tag, 40 + i);
            assert_int_equal(c->sent_bytes, i ? CHUNK : 2 * CHUNK);
            assert_int_equal(c->received_bytes, i ? CHUNK : 2 * CHUNK);
            assert_int_equal(c->size_bytes, i ? 400 : 800);
            assert_int_equal(c->bucket, i);
            assert_int_equal(bucket->n, i ? 1 : 2);
            assert_string_equal(strtab_get(&trace->names, recording->parameters.at[parameter].name),
                                i ? "a" : "b");
        }
    }
}

TEST_IN_FOLDER(messages_are_tied_to_their_collective_bucket_and_parameters)
{
    write_job(true);
    struct dpro_trace *trace = load();
    check_job(trace);
    assert_int_equal(dpro_trace_n_warnings(trace), 0);
    const struct net_transport *t = &trace->transports[0];
    assert_int_equal(t->messages.at[1].start_ns, 1005110); /* of the call with its first byte */
    assert_int_equal(t->messages.at[1].end_ns, 1005150);   /* and with its last */
}

TEST_IN_FOLDER(what_gloos_own_thread_sends_first_belongs_to_the_run_that_goes_on)
{
    socket_is_full = true;
    write_job(true);
    socket_is_full = false;
    struct dpro_trace *trace = load();
    check_job(trace);
}

TEST_IN_FOLDER(preambles_seen_at_the_other_end_only_are_enough)
{
    write_job(false);
    struct dpro_trace *trace = load();
    check_job(trace);
}

TEST_IN_FOLDER(equal_numbers_of_two_process_groups_are_two_collectives)
{
    for (int rank = 0; rank < 2; rank++) {
        struct log log = begin(rank);
        for (uint32_t group = 1; group <= 2; group++) {
            uint16_t base = (uint16_t)(4000 + 10 * group);
            connection_to(&log, group, 10, (uint16_t)(base + rank), (uint16_t)(base + 1 - rank));
            for (uint8_t direction = 0; direction < 2; direction++) {
                gloo(&log, group, direction, 1, 0, 100 * group, 7);
                call(&log, group, direction, 0, 48 + 100 * group, 10, 20, 5);
            }
        }
    }
    struct dpro_trace *trace = load();
    const struct net_transport *t = trace->transports;
    assert_int_equal(t[0].collectives.n, 2);
    assert_int_equal(t[1].collectives.n, 2);
    assert_int_equal(t[0].collectives.at[0].joint, t[1].collectives.at[0].joint);
    assert_int_not_equal(t[0].collectives.at[0].joint, t[0].collectives.at[1].joint);
    assert_int_equal(t[0].collectives.at[0].sent_bytes + t[0].collectives.at[1].sent_bytes, 300);
}

/* Rank 0 sends rank 1 two tensors of 100 floats. Its profile, and the receiver's: each posts both
 * transfers, and waits for them late. */
static void write_pair_profile(int rank)
{
    const char *kind = rank ? "recv" : "send";
    struct trace_text *text = begin_profile(rank);
    trace_text_spans(text, 0, "0+1 aten::mm");
    for (int k = 0; k < 2; k++)
        trace_text_spans(text, 1000 + 100 * k,
                         "0+50 dpro.call:%d:%d:0; 1+48 c10d::%s;"
                         "40+5000 ! gloo:%s{'Input Dims': [[100]], 'Input type': ['float']}",
                         k, 1 - rank, kind, kind);
    trace_text_close(text);
}

/* Both announce each, the sender sends. All has the program's tag, 9. */
static void write_pair_log(int rank)
{
    struct log log = begin(rank);
    connection_to(&log, 1, 10, rank ? 5000 : 4000, rank ? 4000 : 5000);
    for (uint64_t k = 0; k < 2; k++) {
        int64_t start = 1020000 + 100000 * (int64_t)k;
        uint8_t data = rank ? DIRECTION_RECEIVE : DIRECTION_SEND, ready = !data;
        gloo_in(&log, 1, ready, 3, 48 * k, CHUNK, 9);
        call(&log, 1, ready, 48 * k, 48, start, start + 10, 5);
        gloo_in(&log, 1, data, 2, (96 + CHUNK) * k, CHUNK, 9);
        call(&log, 1, data, (96 + CHUNK) * k, 48, start - 5000, start - 4990, 5);
        gloo_in(&log, 1, data, 1, (96 + CHUNK) * k + 48, CHUNK, 9);
        call(&log, 1, data, (96 + CHUNK) * k + 48, 48 + CHUNK, start + 10 + 1000 * rank,
             start + 20 + 1000 * rank, 5);
    }
}

TEST_IN_FOLDER(sends_of_one_tag_are_told_apart_alike_at_both_ends)
{
    for (int rank = 0; rank < 2; rank++) {
        write_pair_profile(rank);
        write_pair_log(rank);
    }
    struct dpro_trace *trace = load();
    assert_int_equal(dpro_trace_transport(trace).n_tied, 4);
    for (size_t k = 0; k < 2; k++) {
        const struct net_collective *sent = &trace->transports[0].collectives.at[k];
        const struct net_collective *received = &trace->transports[1].collectives.at[k];
        assert_int_equal(sent->joint, received->joint);
        assert_int_equal(sent->sent_bytes, CHUNK);
        assert_int_equal(received->received_bytes, CHUNK);
        /* each is drawn from the end of its call to where it was waited for; it begins when it was
         * announced, and ends as its data */
        const struct trace_span *send = &trace->ranks[0].spans[sent->span];
        const struct trace_span *receive = &trace->ranks[1].spans[received->span];
        assert_int_equal(send->start_ns, 1015000 + 100000 * (int64_t)k);
        assert_int_equal(send->start_ns + send->dur_ns, 1020020 + 100000 * (int64_t)k);
        assert_int_equal(receive->start_ns, 1020000 + 100000 * (int64_t)k);
        assert_int_equal(receive->start_ns + receive->dur_ns, 1021020 + 100000 * (int64_t)k);
    }
    assert_int_not_equal(trace->transports[0].collectives.at[0].joint,
                         trace->transports[0].collectives.at[1].joint);
}

/* ---- whose a log is ---- */

TEST_IN_FOLDER(a_servers_role_is_read_from_its_name)
{
    static const struct {
        const char *name, *process; /* NULL: of nobody known */
    } cases[] = {
        {"net_server0.csv.gz", "server 0"},
        {"net_ps0.csv", "ps 0"},
        {"Server-12", "server 12"},
        {"net_scheduler.csv", "scheduler"},
        {"net-scheduler0.log", "scheduler"},
        {"net_server.csv", NULL},
        {"net_observer0.csv", NULL},
        {"tf-ps-v1.csv", NULL},
        {"ps2workers.csv", NULL},
        {"net_schedulers.csv", NULL},
        {"server1048575.csv", "server 1048575"}, /* as many as there may be ranks */
        {"server1048576.csv", NULL},
        {"", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[NET_PROCESS_TEXT];
        int process = net_process_in(cases[i].name, strlen(cases[i].name));
        if (!cases[i].process) {
            assert_int_equal(process, -1);
            continue;
        }
        assert_true(process < -1);
        net_process_format(text, process);
        assert_string_equal(text, cases[i].process);
    }
}

/* ---- CSV ---- */

static bool same_facts(struct dpro_transport_info a, struct dpro_transport_info b)
{
    return memcmp(&a, &b, sizeof a) == 0;
}

TEST_IN_FOLDER(csv_holds_the_same_facts)
{
    write_job(true);
    struct dpro_trace *trace = load();
    struct dpro_transport_info before = dpro_trace_transport(trace);
    const char *path = in_folder("csv/deep");
    assert_int_equal(dpro_trace_export_net_csv(trace, path, &err), 0);
    /* in place of the logs, beside the profiles */
    for (int rank = 0; rank < 2; rank++) {
        char from[240], to[240];
        snprintf(from, sizeof from, "%s/csv/deep/net_rank%d.csv.gz", folder, rank);
        snprintf(to, sizeof to, "%s/rank%d/net_rank%d.csv.gz", folder, rank, rank);
        assert_int_equal(rename(from, to), 0);
        snprintf(from, sizeof from, "%s/rank%d/net.log", folder, rank);
        assert_int_equal(remove(from), 0);
    }
    trace = load();
    check_job(trace);
    assert_true(same_facts(before, dpro_trace_transport(trace)));
}

TEST_IN_FOLDER(csv_of_loopback_stays_apart_by_its_zone)
{
    for (uint64_t ns = 7; ns <= 8; ns++) {
        loopback_pair("boot", 7, "boot", ns);
        const struct dpro_trace *trace = load();
        const char *path = in_folder("csv");
        assert_int_equal(dpro_trace_export_net_csv(trace, path, &err), 0);
        trace = load_as(path, 1);
        assert_non_null(trace);
        assert_int_equal(dpro_trace_transport(trace).n_connections, ns == 7);
        assert_int_equal(dpro_trace_transport(trace).sent_bytes, 10);
    }
}

static struct dpro_trace *load_csv(const char *text)
{
    write_text("rank0/net_rank0.csv", text);
    return load();
}

TEST_IN_FOLDER(csv_columns_may_come_in_any_order)
{
    struct dpro_trace *trace =
        load_csv("t_start_ns,t_end_ns,color,returned,offset,dir,remote,local\n"
                 "10,20,red,100,0,tx,10.0.0.2:5,10.0.0.1:6\r\n"
                 "30,40,,50,0,rx,10.0.0.2:5,10.0.0.1:6\n"
                 "\n"
                 "50,60,blue,7,100,tx,[fe80::2]:5,[fe80::1]:6\n");
    struct dpro_transport_info info = dpro_trace_transport(trace);
    assert_int_equal(info.n_calls, 3);
    assert_int_equal(info.sent_bytes, 107);
    assert_int_equal(info.received_bytes, 50);
    assert_int_equal(trace->transports[0].connections.n, 2);
    assert_int_equal(dpro_trace_n_warnings(trace), 0);
}

TEST_IN_FOLDER(csv_lines_that_make_no_sense_are_counted)
{
    struct dpro_trace *trace = load_csv(
        "t_start_ns,t_end_ns,rank,tid,conn,local,remote,dir,call,offset,requested,returned\n"
        "10,20,0,1,4,10.0.0.1:6,10.0.0.2:5,tx,writev,0,100,100\n"
        "10,20,0,1,4,10.0.0.1:6,10.0.0.2:5,sideways,writev,0,100,100\n"
        "10,20,0,1,4,10.0.0.1.9:6,10.0.0.2:5,tx,writev,0,100,100\n"
        "10,20,0,1,4,10.0.0.1:99999,10.0.0.2:5,tx,writev,0,100,100\n"
        "20,10,0,1,4,10.0.0.1:6,10.0.0.2:5,tx,writev,0,100,100\n"
        "10,20,0,1,4,10.0.0.1:6,10.0.0.2:5,tx,writev,99999999999999999999,100,100\n"
        "-10,20,0,1,4,10.0.0.1:6,10.0.0.2:5,tx,writev,0,100,100\n"
        "10,20,0\n"
        "30,40,0,1,4,10.0.0.1:6,10.0.0.2:5,tx,writev,100,100,1");
    assert_int_equal(dpro_trace_transport(trace).n_calls, 1);
    assert_true(warned(trace, "7 records or lines make no sense"));
    assert_true(warned(trace, "ends in the middle")); /* digits may be missing in the last line */
}

TEST_IN_FOLDER(csv_of_other_captures_is_read_too)
{
    struct dpro_trace *trace = load_csv(
        "# op,local>peer,stream_offset,bytes,t0_ns,t1_ns(CLOCK_REALTIME),tid  |  zmq\n"
        "sendmsg,10.77.0.2:34662>10.77.0.1:13649,0,82,1795250409295986621,1795250409296031505,23\n"
        "recvmsg,10.77.0.2:34662>10.77.0.1:13649,0,55,1795250409306690277,1795250409306696388,23\n"
        "zmq_msg_send,0x7f,0,55,1795250409306690277,1795250409306696388,23,00ff\n");
    struct dpro_transport_info info = dpro_trace_transport(trace);
    assert_int_equal(info.sent_bytes, 82);
    assert_int_equal(info.received_bytes, 55);
    assert_int_equal(info.n_zmtp_frames, 1);
    assert_int_equal(dpro_trace_n_warnings(trace), 0);
}

TEST_IN_FOLDER(addresses_are_written_as_they_are_read)
{
    static const char *const good[] = {"10.0.0.1:80",          "[fe80::1]:80", "[::1]%1f2e:1",
                                       "127.0.0.1%1f2e:65535", "unix%7:1234",  "unix:0"};
    static const char *const bad[] = {"",        ":",       "10.0.0.1",    "10.0.0.1:",
                                      "1:2:3:4", "[::1:80", "10.0.0.1%:8", "10.0.0.1:-1",
                                      "[]:1",    "unix:x",  "%1:2",        "10.0.0.1%xyz:8"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        struct net_address address;
        char text[NET_ADDRESS_TEXT];
        assert_true(net_address_parse(good[i], strlen(good[i]), &address));
        net_address_format(text, &address);
        assert_string_equal(text, good[i]);
    }
    struct net_address address;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(net_address_parse(bad[i], strlen(bad[i]), &address));
}

/* ---- NCCL ---- */

static void nccl_string(struct log *log, uint32_t number, const char *text)
{
    struct record_string s = {.head = head(RECORD_STRING, sizeof s, 0), .string = number};
    strcpy(s.text, text);
    put(log, &s, sizeof s);
}

static void nccl_event(struct log *log, struct record_nccl_event e, size_t size)
{
    e.head = head(RECORD_NCCL_EVENT, offsetof(struct record_nccl_event, coll) + size, 5);
    put(log, &e, e.head.size_bytes);
}

TEST_IN_FOLDER(records_that_an_nccl_log_lost_are_told)
{
    write_profile(0);
    struct log log = begin_as(0, "nccl.log", LOG_NCCL, "boot", 7, 0);
    struct record_loss loss = {
        .head = head(RECORD_LOSS, sizeof loss, 0), .cause = LOSS_RING_FULL, .n_records = 6};
    put(&log, &loss, sizeof loss);
    struct dpro_trace *trace = load();
    assert_true(warned(trace, "the NCCL log of rank 0 lost 6 records"));
}

TEST_IN_FOLDER(nccl_steps_belong_to_the_op_of_their_collective)
{
    write_profile(0);
    write_text("rank0/kineto.json",
               "{'schemaVersion':1,'traceEvents':[{'ph':'X','cat':'user_annotation','name':"
               "'nccl:all_reduce','pid':1,'tid':5,'ts':1000,'dur':50}]}");
    struct log log = begin_as(0, "nccl.log", LOG_NCCL, "boot", 7, 0);
    struct record_nccl_comm comm = {
        .head = head(RECORD_NCCL_COMM, sizeof comm, 0), .comm = 1, .hash = 0xabc};
    put(&log, &comm, sizeof comm);
    nccl_string(&log, 1, "AllReduce");
    /* a step may be written before the op that it is of */
    nccl_event(&log,
               (struct record_nccl_event){.event = 12,
                                          .parent = 11,
                                          .start_ns = 1010000,
                                          .stop_ns = 1020000,
                                          .type = NCCL_PROXY_STEP,
                                          .proxy_step = {.step = 3, .size_bytes = 4096}},
               sizeof((struct record_nccl_event *)0)->proxy_step);
    nccl_event(&log,
               (struct record_nccl_event){.event = 11,
                                          .parent = 10,
                                          .start_ns = 1005000,
                                          .stop_ns = 1030000,
                                          .type = NCCL_PROXY_OP,
                                          .flags = NCCL_SEND,
                                          .proxy_op = {.peer = 3, .channel = 1, .n_steps = 4}},
               sizeof((struct record_nccl_event *)0)->proxy_op);
    nccl_event(&log,
               (struct record_nccl_event){.event = 10,
                                          .start_ns = 1002000,
                                          .stop_ns = 1003000,
                                          .comm = 1,
                                          .type = NCCL_COLL,
                                          .coll = {.sequence = 6,
                                                   .size_bytes = 1 << 20,
                                                   .func = 1,
                                                   .algorithm = 77 /* never told */}},
               sizeof((struct record_nccl_event *)0)->coll);
    nccl_event(&log, (struct record_nccl_event){.event = 13, .type = NCCL_GROUP}, 0);
    nccl_event(&log, (struct record_nccl_event){.event = 14, .type = NCCL_COLL}, 8); /* too short */
    struct dpro_trace *trace = load();
    assert_int_equal(trace->n_nccl_logs, 1);
    const struct nccl_log *nccl = trace->nccl_logs[0];
    assert_int_equal(nccl->rank, 0);
    assert_int_equal(nccl->operations.n, 1);
    const struct nccl_operation *op = &nccl->operations.at[0];
    assert_string_equal(strtab_get(&nccl->names, op->func), "AllReduce");
    assert_string_equal(strtab_get(&nccl->names, op->algorithm), "");
    assert_int_equal(op->sequence, 6);
    assert_int_equal(op->comm, 0);
    assert_int_equal(op->span, 0);
    assert_int_equal(nccl->steps.at[0].operation, 0);
    assert_int_equal(nccl->steps.at[0].peer, 3);
    assert_int_equal(nccl->steps.at[0].size_bytes, 4096);
    assert_int_equal(nccl->n_others, 1);
    assert_true(warned(trace, "1 records or lines make no sense"));
}
