/* TensorFlow's files: the wire format, profiles, graphs; whole, cut and hostile. */

#include "adapters/tensorflow/tf_parts.h"
#include "base/protobuf.h"
#include "case.h"
#include "ingest/readers.h"
#include "part_text.h"

/* ---- writing ---- */

struct message {
    unsigned char at[1 << 14];
    size_t n;
};

static void put(struct message *m, const void *data, size_t n)
{
    assert_true(m->n + n <= sizeof m->at);
    memcpy(m->at + m->n, data, n);
    m->n += n;
}

static void put_varint(struct message *m, uint64_t v)
{
    do {
        unsigned char byte = (unsigned char)((v & 0x7f) | (v > 0x7f ? 0x80 : 0));
        put(m, &byte, 1);
        v >>= 7;
    } while (v);
}

static void number(struct message *m, unsigned field, uint64_t v)
{
    put_varint(m, field << 3 | PB_VARINT);
    put_varint(m, v);
}

static void bytes(struct message *m, unsigned field, const void *data, size_t n)
{
    put_varint(m, field << 3 | PB_BYTES);
    put_varint(m, n);
    put(m, data, n);
}

static void nested(struct message *m, unsigned field, const struct message *inner)
{
    bytes(m, field, inner->at, inner->n);
}

/* Fields up to the end, or to the brace that ends a message; returns where they end. */
static const char *put_fields(struct message *m, const char *at)
{
    for (at += strspn(at, " "); *at && *at != '}'; at += strspn(at, " ")) {
        char *kind;
        unsigned field = (unsigned)strtoul(at, &kind, 10);
        at = kind + 1;
        if (*kind == ':') {
            char *end;
            number(m, field, strtoull(at, &end, 10));
            at = end;
        } else if (*kind == '\'') {
            bytes(m, field, at, strcspn(at, "'"));
            at += strcspn(at, "'") + 1;
        } else {
            struct message inner = {.n = 0};
            assert_int_equal(*kind, '{');
            at = put_fields(&inner, at) + 1;
            nested(m, field, &inner);
        }
    }
    return at;
}

/* Adds fields, by a format as printf's: numbers 1:5, texts 2'name', messages 3{1:5 2'name'}. */
static void add_fields(struct message *m, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void add_fields(struct message *m, const char *format, ...)
{
    char text[4000];
    va_list args;
    va_start(args, format);
    assert_in_range(vsnprintf(text, sizeof text, format, args), 0, sizeof text - 1);
    va_end(args);
    assert_int_equal(*put_fields(m, text), '\0');
}

/* An entry of event_metadata (4) or stat_metadata (5). */
#define NAME(field, id, name) #field "{1:" #id " 2{1:" #id " 2'" name "'}}"
#define EVENT(meta, at_ns, dur_ns, stats)                                                          \
    " 4{1:" #meta " 2:" #at_ns "000 3:" #dur_ns "000 " stats "}"
#define STAT(id, value) "4{1:" #id " 4:" #value "}"

#define NAMES                                                                                      \
    NAME(4, 1, "dense/MatMul:MatMul")                                                              \
    NAME(4, 2, "ExecutorState::Process")                                                           \
    NAME(4, 3, "CollectiveReduceV2:CollectiveReduceV2")                                            \
    NAME(4, 4, "train")                                                                            \
    NAME(4, 5, "FunctionRun")                                                                      \
    NAME(5, 1, "step_num") NAME(5, 2, "group_key") NAME(5, 3, "instance_key")
#define LINES                                                                                      \
    "3{1:77 2'tf_Compute/77' 3:1000" EVENT(1, 10, 5, "") EVENT(2, 9, 20, "")                       \
        EVENT(3, 30, 50, STAT(3, 205)) "} 3{1:5 2'python' 3:1000" EVENT(4, 0, 100, STAT(1, 3))     \
            EVENT(4, 100, 100, "") EVENT(5, 2, 6, "") "}"

/* A profile; the names stand behind the lines as TensorFlow writes them, or before. */
static struct message profile(bool names_first)
{
    struct message space = {.n = 0};
    add_fields(&space,
               "1{1:1 2'/host:CPU'%s%s} 1{2'Task Environment' 6{1:9 3:1700000000000000000}" NAME(
                   5, 9, "profile_start_time") "}",
               names_first ? NAMES : LINES, names_first ? LINES : NAMES);
    return space;
}

/* ---- reading ---- */

typedef int read_function(struct bytes *bytes, struct trace_part *part, struct dpro_error *err);

static struct trace_part read_with(read_function *reader, const struct message *m, size_t chunk)
{
    struct input in;
    struct bytes window;
    struct dpro_error err;
    struct trace_part part = {0};
    input_open_memory(&in, m->at, m->n, "memory");
    bytes_init(&window, &in, chunk, PART_RECORD_MAX, &err);
    assert_int_equal(reader(&window, &part, &err), 0);
    bytes_fini(&window);
    input_close(&in);
    keep_part(&part);
    return part;
}

static const struct trace_span *span_named(const struct trace_part *part, const char *name)
{
    for (const struct span_block *block = part->first_block; block; block = block->next)
        for (uint32_t i = 0; i < block->n; i++)
            if (strcmp(strtab_get(&part->names, block->at[i].name), name) == 0)
                return &block->at[i];
    return NULL;
}

static void check_profile(const struct message *m, size_t chunk)
{
    struct trace_part part = read_with(xplane_reader.read_bytes, m, chunk);
    assert_null(part.damage.broken);
    assert_int_equal(part.n_spans, 4);
    assert_int_equal(part.n_events, 6);
    assert_int_equal(part.base_ns, 1700000000000000000);
    const struct trace_span *op = span_named(&part, "dense/MatMul");
    assert_non_null(op);
    assert_int_equal(op->start_ns, 1010);
    assert_int_equal(op->dur_ns, 5);
    assert_int_equal(op->kind, SPAN_CPU_OP);
    assert_true(part.tracks.at[op->track].track.pool);
    const struct trace_span *reduce = span_named(&part, "CollectiveReduceV2");
    assert_int_equal(reduce->kind, SPAN_COLLECTIVE);
    assert_int_equal(part.details.at[reduce->detail].comm_sequence, 205);
    const struct trace_span *step = span_named(&part, "train");
    assert_int_equal(step->kind, SPAN_STEP);
    assert_int_equal(step->sequence, 3);
    assert_false(part.tracks.at[step->track].track.pool);
}

TEST(a_profile_is_read_whether_names_stand_before_or_behind)
{
    for (size_t chunk = 0; chunk < 40; chunk += 13)
        for (int first = 0; first < 2; first++) {
            struct message m = profile(first);
            check_profile(&m, chunk);
        }
}

/* Calls bear the names of the kernels that they launch, or of the driver's functions, and stand
 * among what the runtime does. */
TEST(calls_of_the_gpu_s_driver_are_known_by_their_correlation)
{
    struct message space = {.n = 0};
    add_fields(&space,
               "1{2'/host:CPU' 3{1:7 2'tf_gpu_private_0/7'" EVENT(1, 10, 2, STAT(5, 41))
                   EVENT(3, 13, 2, "") EVENT(4, 14, 1, STAT(5, 42))
                       EVENT(2, 15, 30, STAT(5, 43)) "}" NAME(4, 1, "void ns::kernel<float>(int)")
                           NAME(4, 2, "cuStreamSynchronize") NAME(4, 3, "ExecutorState::Process")
                               NAME(4, 4, "MemcpyH2D") NAME(5, 5, "correlation_id") "}");
    add_fields(&space,
               "1{2'/device:GPU:3' 3{1:12 2'Stream #12(Compute)'" EVENT(
                   1, 20, 9,
                   STAT(5, 41)) "} 3{1:99 2'TensorFlow Ops'" EVENT(1, 20, 9,
                                                                   "") "}" NAME(4, 1, "ns::kernel")
                   NAME(5, 5, "correlation_id") "}");
    struct trace_part part = read_with(xplane_reader.read_bytes, &space, 0);
    assert_null(part.damage.broken);
    assert_int_equal(part.n_spans, 4);
    const struct trace_span *call = span_named(&part, "void ns::kernel<float>(int)");
    const struct trace_span *kernel = span_named(&part, "ns::kernel");
    assert_int_equal(call->kind, SPAN_RUNTIME);
    assert_int_equal(call->correlation, 41);
    assert_int_equal(span_named(&part, "MemcpyH2D")->kind, SPAN_RUNTIME);
    assert_int_equal(span_named(&part, "cuStreamSynchronize")->correlation, 43);
    assert_int_equal(kernel->kind, SPAN_KERNEL);
    assert_int_equal(kernel->correlation, 41);
    assert_true(part.tracks.at[kernel->track].track.gpu);
    assert_int_equal(part.tracks.at[kernel->track].track.pid, 3);
    assert_int_equal(part.tracks.at[kernel->track].track.id, 12);
}

/* A kernel of a session that waited, named by a text that events share. */
#define WAITS(meta, at_ns) "4{1:" #meta " 2:" #at_ns "000 4{1:9 7:10} 4{1:8 4:41}}"

/* What a process of a session ran, and for which run; of a function's profile nothing is kept. */
TEST(a_session_s_runs_are_kept_where_there_are_any)
{
    for (int in_session = 0; in_session < 2; in_session++) {
        struct message space = {.n = 0};
        add_fields(&space,
                   "1{2'/host:CPU' 3{1:7 2'tf_Compute/7'" EVENT(1, 10, 1, STAT(7, 41))
                       EVENT(3, 12, 9, STAT(7, 41)) EVENT(6, 13, 2, "") WAITS(4, 16) WAITS(5, 30)
                           EVENT(2, 40, 1, STAT(7, 41)) "} 4{1:1 2{1:1 2'%s'}}" NAME(
                               4, 2, "RunGraphDone") NAME(4, 3, "ExecutorState::Process")
                               NAME(4, 4, "ExecutorState::ProcessAsync::Start")
                                   NAME(4, 5, "ExecutorState::ProcessAsync::Done")
                                       NAME(4, 6, "read:ReadVariableOp") NAME(5, 7, "id")
                                           NAME(5, 8, "step_id") NAME(5, 9, "name")
                                               NAME(5, 10, "x_S3") "}",
                   in_session ? "RunGraph" : "FunctionRun");
        struct trace_part part = read_with(xplane_reader.read_bytes, &space, 0);
        assert_null(part.damage.broken);
        assert_int_equal(part.n_spans, in_session ? 1 : 2);
        assert_int_equal(session_profile_of(&part) != NULL, in_session);
        if (in_session) {
            static const int64_t times[] = {10, 12, 16, 30, 40};
            static const enum session_moment_kind kinds[] = {MOMENT_RUN, MOMENT_WORK, MOMENT_WAIT,
                                                             MOMENT_WAIT_DONE, MOMENT_RUN_DONE};
            assert_int_equal(session_profile_of(&part)->moments.n, 5);
            for (size_t i = 0; i < 5; i++) {
                const struct session_moment *moment = &session_profile_of(&part)->moments.at[i];
                assert_int_equal(moment->run, 41);
                assert_int_equal(moment->ns, times[i]);
                assert_int_equal(moment->kind, kinds[i]);
                assert_string_equal(strtab_get(&part.names, moment->name),
                                    i == 2 || i == 3 ? "x_S3" : "");
            }
        }
    }
}

TEST(what_a_step_took_is_seen_by_all_its_processes)
{
    int64_t whole_ns[2] = {100, 150};
    session_extend(whole_ns, 140, 300);
    session_extend(whole_ns, 90, 110);
    assert_int_equal(whole_ns[0], 90);
    assert_int_equal(whole_ns[1], 300);
    session_extend(whole_ns, 5000, 5100); /* by a clock of its own */
    session_extend(whole_ns, -900, -800);
    assert_int_equal(whole_ns[0], 90);
    assert_int_equal(whole_ns[1], 300);
}

TEST(a_cut_profile_gives_what_is_whole)
{
    struct message whole = profile(true);
    for (size_t n = 1; n < whole.n; n++) {
        struct message cut = whole;
        cut.n = n;
        struct trace_part part = read_with(xplane_reader.read_bytes, &cut, 0);
        assert_true(part.n_spans <= 4);
    }
    whole.n -= 3;
    struct trace_part part = read_with(xplane_reader.read_bytes, &whole, 0);
    assert_non_null(part.damage.broken);
    assert_int_equal(part.n_spans, 4);
}

TEST(hostile_lengths_and_depths_stop_the_reader)
{
    static const struct {
        unsigned char at[16];
        size_t n;
        const char *why;
    } cases[] = {
        {{0x0a, 0x04, 0x12, 0x7f, 'a', 'b'}, 6, "a length that reaches beyond its message"},
        {{0x0a, 0x02, 0x08, 0x80, 0x01}, 5, "a number that reaches beyond its message"},
        {{0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01},
         11,
         "a length that reaches beyond its message"},
        {{0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f}, 6, "the file ends in the middle of a message"},
        {{0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01},
         12,
         "a number of more than 10 bytes"},
        {{0x0b, 0x0c}, 2, "a wire type that no such message has"},
        {{0x02, 0x00}, 2, "a field number that no message has"},
        {{0x0d, 0x01}, 2, "the file ends in the middle of a message"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct message m = {.n = cases[i].n};
        memcpy(m.at, cases[i].at, m.n);
        struct trace_part part = read_with(xplane_reader.read_bytes, &m, 0);
        assert_non_null(part.damage.broken);
        assert_string_equal(part.damage.broken, cases[i].why);
        assert_int_equal(part.n_spans, 0);
    }
}

TEST(messages_are_entered_64_deep_and_no_deeper)
{
    struct input in;
    struct bytes window;
    struct dpro_error err;
    struct pb pb;
    struct pb_field field;
    struct message m = {.n = 0};
    for (int i = 0; i < 100; i++) {
        struct message around = {.n = 0};
        nested(&around, 1, &m);
        m = around;
    }
    input_open_memory(&in, m.at, m.n, "deep");
    bytes_init(&window, &in, 0, 64, &err);
    pb_init(&pb, &window);
    uint64_t outer;
    int depth = 0;
    while (pb_next(&pb, &field) && pb_enter(&pb, &field, &outer))
        depth++;
    assert_int_equal(depth, PB_DEPTH_MAX);
    assert_string_equal(pb.fail, "nested deeper than 64");
    bytes_fini(&window);
    input_close(&in);
}

/* ---- graphs ---- */

#define DEVICE                   "/job:worker/replica:0/task:0/device:CPU:0"
#define PS                       "/job:ps/replica:0/task:0/device:CPU:0"
#define NODE(name, type, inputs) "1{1'" name "' 2'" type "' " inputs " 4'" DEVICE "'}"

static struct message graph_of(int n_more)
{
    struct message graph = {.n = 0};
    add_fields(&graph, NODE("b", "MatMul", "3'a:1' 3'^c' 3'elsewhere'") NODE("a", "Split", "")
                           NODE("c", "NoOp", ""));
    for (int i = 0; i < n_more; i++)
        add_fields(&graph, NODE("n%d", "Const", ""), i);
    return graph;
}

static const struct dfg_node *node_named(const struct trace_part *part, const char *name)
{
    for (size_t i = 0; i < part->dfg_nodes.n; i++)
        if (strcmp(strtab_get(&part->names, part->dfg_nodes.at[i].name), name) == 0)
            return &part->dfg_nodes.at[i];
    return NULL;
}

static void check_inputs(const struct trace_part *part)
{
    const struct dfg_node *b = node_named(part, "b");
    assert_non_null(b);
    assert_int_equal(b->n_inputs, 2); /* "elsewhere" is no node */
    const struct dfg_input *inputs = &part->dfg_inputs.at[b->first_input];
    assert_ptr_equal(&part->dfg_nodes.at[inputs[0].node], node_named(part, "a"));
    assert_false(inputs[0].control);
    assert_ptr_equal(&part->dfg_nodes.at[inputs[1].node], node_named(part, "c"));
    assert_true(inputs[1].control);
}

TEST(a_graph_names_inputs_before_their_nodes)
{
    struct message graph = graph_of(0);
    for (size_t chunk = 0; chunk < 30; chunk += 7) {
        struct trace_part part = read_with(graphdef_reader.read_bytes, &graph, chunk);
        assert_int_equal(part.dfg_nodes.n, 3);
        check_inputs(&part);
    }
}

TEST(of_two_functions_the_larger_one_s_graph_is_kept)
{
    for (int larger = 0; larger < 2; larger++) {
        struct message m = {.n = 0}, first = graph_of(larger ? 0 : 5),
                       second = graph_of(5 * larger);
        nested(&m, 3, &first);
        nested(&m, 3, &second);
        struct trace_part part = read_with(runmeta_reader.read_bytes, &m, 0);
        assert_null(part.damage.broken);
        assert_int_equal(part.dfg_nodes.n, 8);
        check_inputs(&part);
    }
}

/* ---- sessions ---- */

#define STATS(name, micros, took, more) "2{1'" name "' 2:" #micros " 5:" #took " " more "}"
#define END_NODE(name, type, place)                                                                \
    "1{1'" name "' 2'" type "' 4'" place "' 5{1'tensor_name' 2{2'edge_1_v'}}"                      \
    "5{1'send_device' 2{2'" PS "'}} 5{1'recv_device' 2{2'" DEVICE "'}}}"

static const struct trace_part *part_of_rank(const struct trace_part *part, int rank)
{
    while (part && part->process.rank != rank)
        part = part->next;
    return part;
}

TEST(a_session_s_step_is_one_part_a_task)
{
    struct message m = {.n = 0};
    add_fields(
        &m,
        "1{ 1{1'" DEVICE
        "'" STATS("RecvTensor", 10, 5, "8'[4B] [1.0Mb/s] edge_1_v from " PS " to " DEVICE "'")
            STATS("RecvBuf", 31, 5,
                  "8'[1.0MB] [1Mb/s] 1:104:0:0:0:1:1 from a to b'") "}"
                                                                    "1{1'" DEVICE
                                                                    "'" STATS("_SOURCE", 1, 1, "")
                                                                        STATS("a", 20, 5, "") STATS(
                                                                            "b", 22, 5,
                                                                            "") /* beside a: two
                                                                                   threads */
        STATS("g", 30, 9, "8'g = CollectiveReduce(a)' 7{3{4{1:4096}}}") "}"
                                                                        "1{1'" PS "'" STATS(
                                                                            "v", 5, 2, "") "}}");
    add_fields(&m, "3{" END_NODE("v_S1", "_Recv", DEVICE) NODE("a", "Mul", "3'v_S1'") NODE(
                       "g", "CollectiveReduce",
                       "5{1'group_key' 2{3:1}} 5{1'instance_key' 2{3:104}}") "}"
                                                                             "3{" END_NODE("v_S0",
                                                                                           "_Send",
                                                                                           PS) "}");

    struct trace_part part = read_with(runmeta_reader.read_bytes, &m, 0);
    const struct trace_part *own = part_of_rank(&part, 0);
    const struct trace_part *other = part_of_rank(&part, net_process_in("ps0", 3));
    assert_non_null(own);
    assert_non_null(other);
    assert_true(own->session.is_step && other->session.is_step);
    assert_int_equal(own->n_spans, 5);
    assert_int_equal(span_named(own, "g")->kind, SPAN_COLLECTIVE);
    assert_int_equal(own->details.at[span_named(own, "g")->detail].comm_sequence, 104);
    assert_int_equal(node_named(own, "g")->size_bytes, 4096); /* its graph has no shapes */
    assert_int_equal(node_named(own, "a")->size_bytes, 0);
    assert_int_equal(other->n_spans, 1);
    const struct trace_span *span = span_named(own, "v_S1");
    assert_non_null(span); /* under the name of the node that receives */
    assert_int_equal(span->kind, SPAN_TRANSFER);
    assert_int_equal(span->dur_ns, 5000);
    assert_int_not_equal(span_named(own, "a")->track, span_named(own, "b")->track);
    assert_int_equal(own->dfg_nodes.n, 3);
    assert_string_equal(strtab_get(&own->names, node_named(own, "v_S1")->key),
                        strtab_get(&other->names, node_named(other, "v_S0")->key));
}

TEST(what_a_node_of_a_session_took_is_told_apart_by_its_size)
{
    struct message m = {.n = 0};
    /* records of memory: {alloc_micros 1, alloc_bytes 2} */
    add_fields(&m,
               "1{1{1'" DEVICE "' 2{1'a' 2:20 5:5 6{1'cpu' 6{1:21 2:64} 6{1:22 2:64} 6{1:23 2:128}"
               "6{1:24 2:-64} 6{1:30 2:-128}"
               "6{1:31 2:-7}"                     /* was never taken */
               "6{1:32 2:-9223372036854775808}"   /* makes no sense */
               "6{1:18446744073709551615 2:512}}" /* neither does its time */
               "6{1'GPU_3_bfc' 6{1:25 2:256}}}}}");
    struct trace_part part = read_with(runmeta_reader.read_bytes, &m, 0);
    assert_int_equal(part.allocations.n, 7);
    assert_int_equal(part.losses.n_allocations, 2);
    const struct trace_allocation *at = part.allocations.at;
    assert_int_equal(at[0].ns, 21000);
    assert_int_equal(at[0].device, -1);
    assert_true(at[0].address != at[1].address && at[1].address != at[2].address);
    assert_int_equal(at[3].bytes, -64);
    assert_true(at[3].address == at[0].address);
    assert_true(at[4].address == at[2].address);
    assert_true(at[5].address != at[1].address && at[5].bytes == -7);
    assert_int_equal(at[6].device, 3);
    assert_true(at[0].track == NO_ID);
}

static enum protobuf_file recognised(const void *bytes, size_t n)
{
    struct head head = {.piece = HEAD_BYTES, .bytes = bytes, .n_bytes = n};
    return protobuf_recognise(&head);
}

TEST(files_are_told_apart_by_their_first_bytes)
{
    struct message space = profile(false), graph = graph_of(2), runmeta = {.n = 0};
    nested(&runmeta, 3, &graph);
    assert_int_equal(recognised(space.at, space.n), PROTOBUF_XPLANE);
    assert_int_equal(recognised(space.at, 20), PROTOBUF_XPLANE);
    assert_int_equal(recognised(graph.at, graph.n), PROTOBUF_GRAPH_DEF);
    assert_int_equal(recognised(runmeta.at, runmeta.n), PROTOBUF_RUN_METADATA);
    static const char *const others[] = {"\n{\"traceEvents\":[]}", "\n\n[]", "\n", "",
                                         "name,value\n"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        assert_int_equal(recognised(others[i], strlen(others[i])), PROTOBUF_OTHER);
}
