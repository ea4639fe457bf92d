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

static void text(struct message *m, unsigned field, const char *s)
{
    bytes(m, field, s, strlen(s));
}

static void nested(struct message *m, unsigned field, const struct message *inner)
{
    bytes(m, field, inner->at, inner->n);
}

/* An entry of event_metadata (4) or stat_metadata (5). */
static void name_entry(struct message *plane, unsigned field, uint64_t id, const char *name)
{
    struct message value = {.n = 0}, entry = {.n = 0};
    number(&value, 1, id);
    text(&value, 2, name);
    number(&entry, 1, id);
    nested(&entry, 2, &value);
    nested(plane, field, &entry);
}

static void event(struct message *line, uint64_t meta, uint64_t offset_ns, uint64_t dur_ns,
                  uint64_t stat, uint64_t value)
{
    struct message e = {.n = 0}, s = {.n = 0};
    number(&e, 1, meta);
    number(&e, 2, offset_ns * 1000);
    number(&e, 3, dur_ns * 1000);
    if (stat) {
        number(&s, 1, stat);
        number(&s, 4, value);
        nested(&e, 4, &s);
    }
    nested(line, 4, &e);
}

enum { MATMUL = 1, PLUMBING, REDUCE, TRAIN, RUN, STEP_NUM = 1, GROUP_KEY, INSTANCE_KEY };

static void names(struct message *plane)
{
    name_entry(plane, 4, MATMUL, "dense/MatMul:MatMul");
    name_entry(plane, 4, PLUMBING, "ExecutorState::Process");
    name_entry(plane, 4, REDUCE, "CollectiveReduceV2:CollectiveReduceV2");
    name_entry(plane, 4, TRAIN, "train");
    name_entry(plane, 4, RUN, "FunctionRun");
    name_entry(plane, 5, STEP_NUM, "step_num");
    name_entry(plane, 5, GROUP_KEY, "group_key");
    name_entry(plane, 5, INSTANCE_KEY, "instance_key");
}

static void lines(struct message *plane)
{
    struct message pool = {.n = 0}, python = {.n = 0};
    number(&pool, 1, 77);
    text(&pool, 2, "tf_Compute/77");
    number(&pool, 3, 1000);
    event(&pool, MATMUL, 10, 5, 0, 0);
    event(&pool, PLUMBING, 9, 20, 0, 0);
    event(&pool, REDUCE, 30, 50, INSTANCE_KEY, 205);
    number(&python, 1, 5);
    text(&python, 2, "python");
    number(&python, 3, 1000);
    event(&python, TRAIN, 0, 100, STEP_NUM, 3);
    event(&python, TRAIN, 100, 100, 0, 0);
    event(&python, RUN, 2, 6, 0, 0);
    nested(plane, 3, &pool);
    nested(plane, 3, &python);
}

/* A profile; the names stand behind the lines as TensorFlow writes them, or before. */
static struct message profile(bool names_first)
{
    struct message plane = {.n = 0}, task = {.n = 0}, stat = {.n = 0}, space = {.n = 0};
    number(&plane, 1, 1);
    text(&plane, 2, "/host:CPU");
    if (names_first)
        names(&plane);
    lines(&plane);
    if (!names_first)
        names(&plane);
    text(&task, 2, "Task Environment");
    number(&stat, 1, 9);
    number(&stat, 3, 1700000000000000000u);
    nested(&task, 6, &stat);
    name_entry(&task, 5, 9, "profile_start_time");
    nested(&space, 1, &plane);
    nested(&space, 1, &task);
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
    enum { KERNEL = 1, SYNC, OTHER, COPY, CORRELATION };
    struct message host = {.n = 0}, gpu = {.n = 0}, line = {.n = 0}, stream = {.n = 0},
                   ops = {.n = 0}, space = {.n = 0};
    text(&host, 2, "/host:CPU");
    number(&line, 1, 7);
    text(&line, 2, "tf_gpu_private_0/7");
    event(&line, KERNEL, 10, 2, CORRELATION, 41);
    event(&line, OTHER, 13, 2, 0, 0);
    event(&line, COPY, 14, 1, CORRELATION, 42);
    event(&line, SYNC, 15, 30, CORRELATION, 43);
    nested(&host, 3, &line);
    name_entry(&host, 4, KERNEL, "void ns::kernel<float>(int)");
    name_entry(&host, 4, SYNC, "cuStreamSynchronize");
    name_entry(&host, 4, OTHER, "ExecutorState::Process");
    name_entry(&host, 4, COPY, "MemcpyH2D");
    name_entry(&host, 5, CORRELATION, "correlation_id");
    text(&gpu, 2, "/device:GPU:3");
    number(&stream, 1, 12);
    text(&stream, 2, "Stream #12(Compute)");
    event(&stream, KERNEL, 20, 9, CORRELATION, 41);
    number(&ops, 1, 99);
    text(&ops, 2, "TensorFlow Ops");
    event(&ops, KERNEL, 20, 9, 0, 0);
    nested(&gpu, 3, &stream);
    nested(&gpu, 3, &ops);
    name_entry(&gpu, 4, KERNEL, "ns::kernel");
    name_entry(&gpu, 5, CORRELATION, "correlation_id");
    nested(&space, 1, &host);
    nested(&space, 1, &gpu);

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
static void wait_event(struct message *line, uint64_t meta, uint64_t offset_ns, uint64_t name_stat,
                       uint64_t name, uint64_t run_stat, uint64_t run)
{
    struct message e = {.n = 0}, s = {.n = 0}, id = {.n = 0};
    number(&e, 1, meta);
    number(&e, 2, offset_ns * 1000);
    number(&s, 1, name_stat);
    number(&s, 7, name);
    nested(&e, 4, &s);
    number(&id, 1, run_stat);
    number(&id, 4, run);
    nested(&e, 4, &id);
    nested(line, 4, &e);
}

/* What a process of a session ran, and for which run; of a function's profile nothing is kept. */
TEST(a_session_s_runs_are_kept_where_there_are_any)
{
    enum { RUN_BEGIN = 1, RUN_DONE, WORK, WAIT, WAIT_DONE, READ, ID, STEP_ID, NAME, RECEIVER };
    for (int in_session = 0; in_session < 2; in_session++) {
        struct message host = {.n = 0}, line = {.n = 0}, space = {.n = 0};
        text(&host, 2, "/host:CPU");
        number(&line, 1, 7);
        text(&line, 2, "tf_Compute/7");
        event(&line, RUN_BEGIN, 10, 1, ID, 41);
        event(&line, WORK, 12, 9, ID, 41);
        event(&line, READ, 13, 2, 0, 0);
        wait_event(&line, WAIT, 16, NAME, RECEIVER, STEP_ID, 41);
        wait_event(&line, WAIT_DONE, 30, NAME, RECEIVER, STEP_ID, 41);
        event(&line, RUN_DONE, 40, 1, ID, 41);
        nested(&host, 3, &line);
        name_entry(&host, 4, RUN_BEGIN, in_session ? "RunGraph" : "FunctionRun");
        name_entry(&host, 4, RUN_DONE, "RunGraphDone");
        name_entry(&host, 4, WORK, "ExecutorState::Process");
        name_entry(&host, 4, WAIT, "ExecutorState::ProcessAsync::Start");
        name_entry(&host, 4, WAIT_DONE, "ExecutorState::ProcessAsync::Done");
        name_entry(&host, 4, READ, "read:ReadVariableOp");
        name_entry(&host, 5, ID, "id");
        name_entry(&host, 5, STEP_ID, "step_id");
        name_entry(&host, 5, NAME, "name");
        name_entry(&host, 5, RECEIVER, "x_S3");
        nested(&space, 1, &host);

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

static void node(struct message *graph, const char *name, const char *type, const char *device,
                 const char *const *inputs)
{
    struct message m = {.n = 0};
    text(&m, 1, name);
    text(&m, 2, type);
    for (; inputs && *inputs; inputs++)
        text(&m, 3, *inputs);
    text(&m, 4, device);
    nested(graph, 1, &m);
}

static const char device[] = "/job:worker/replica:0/task:0/device:CPU:0";

static struct message graph_of(int n_more)
{
    struct message graph = {.n = 0};
    node(&graph, "b", "MatMul", device, (const char *const[]){"a:1", "^c", "elsewhere", NULL});
    node(&graph, "a", "Split", device, NULL);
    node(&graph, "c", "NoOp", device, NULL);
    for (int i = 0; i < n_more; i++) {
        char name[16];
        snprintf(name, sizeof name, "n%d", i);
        node(&graph, name, "Const", device, NULL);
    }
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

static void stats_of(struct message *device_stats, const char *name, uint64_t micros, uint64_t took,
                     const char *label, uint64_t output_bytes)
{
    struct message m = {.n = 0}, output = {.n = 0}, tensor = {.n = 0}, allocation = {.n = 0};
    if (output_bytes) {
        number(&allocation, 1, output_bytes);
        nested(&tensor, 4, &allocation);
        nested(&output, 3, &tensor);
        nested(&m, 7, &output);
    }
    text(&m, 1, name);
    number(&m, 2, micros);
    number(&m, 5, took);
    if (label)
        text(&m, 8, label);
    nested(device_stats, 2, &m);
}

static void stats(struct message *device_stats, const char *name, uint64_t micros, uint64_t took,
                  const char *label)
{
    stats_of(device_stats, name, micros, took, label, 0);
}

static void attr(struct message *m, const char *key, const char *value)
{
    struct message entry = {.n = 0}, inner = {.n = 0};
    text(&inner, 2, value);
    text(&entry, 1, key);
    nested(&entry, 2, &inner);
    nested(m, 5, &entry);
}

static void end_node(struct message *graph, const char *name, const char *type, const char *place)
{
    struct message m = {.n = 0};
    text(&m, 1, name);
    text(&m, 2, type);
    text(&m, 4, place);
    attr(&m, "tensor_name", "edge_1_v");
    attr(&m, "send_device", "/job:ps/replica:0/task:0/device:CPU:0");
    attr(&m, "recv_device", device);
    nested(graph, 1, &m);
}

static void collective_node(struct message *graph, const char *name, uint64_t group,
                            uint64_t instance)
{
    struct message m = {.n = 0};
    text(&m, 1, name);
    text(&m, 2, "CollectiveReduce");
    text(&m, 4, device);
    for (int i = 0; i < 2; i++) {
        struct message entry = {.n = 0}, inner = {.n = 0};
        number(&inner, 3, i ? instance : group);
        text(&entry, 1, i ? "instance_key" : "group_key");
        nested(&entry, 2, &inner);
        nested(&m, 5, &entry);
    }
    nested(graph, 1, &m);
}

static const struct trace_part *part_of_rank(const struct trace_part *part, int rank)
{
    while (part && part->process.rank != rank)
        part = part->next;
    return part;
}

TEST(a_session_s_step_is_one_part_a_task)
{
    static const char ps[] = "/job:ps/replica:0/task:0/device:CPU:0";
    struct message m = {.n = 0}, step = {.n = 0}, worker = {.n = 0}, received = {.n = 0},
                   server = {.n = 0}, graph = {.n = 0}, ps_graph = {.n = 0};
    text(&received, 1, device);
    stats(&received, "RecvTensor", 10, 5,
          "[4B] [1.0Mb/s] edge_1_v from /job:ps/replica:0/task:0/device:CPU:0 to "
          "/job:worker/replica:0/task:0/device:CPU:0");
    text(&worker, 1, device);
    stats(&worker, "_SOURCE", 1, 1, NULL);
    stats(&worker, "a", 20, 5, NULL);
    stats(&worker, "b", 22, 5, NULL); /* beside a: two threads */
    text(&server, 1, ps);
    stats_of(&worker, "g", 30, 9, "g = CollectiveReduce(a)", 4096);
    stats(&received, "RecvBuf", 31, 5, "[1.0MB] [1Mb/s] 1:104:0:0:0:1:1 from a to b");
    stats(&server, "v", 5, 2, NULL);
    nested(&step, 1, &received);
    nested(&step, 1, &worker);
    nested(&step, 1, &server);
    nested(&m, 1, &step);
    end_node(&graph, "v_S1", "_Recv", device);
    node(&graph, "a", "Mul", device, (const char *const[]){"v_S1", NULL});
    collective_node(&graph, "g", 1, 104);
    end_node(&ps_graph, "v_S0", "_Send", ps);
    nested(&m, 3, &graph);
    nested(&m, 3, &ps_graph);

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

/* One record of memory: {alloc_micros 1, alloc_bytes 2}. */
static void record(struct message *memory, uint64_t micros, int64_t n_bytes)
{
    struct message m = {.n = 0};
    number(&m, 1, micros);
    number(&m, 2, (uint64_t)n_bytes);
    nested(memory, 6, &m);
}

TEST(what_a_node_of_a_session_took_is_told_apart_by_its_size)
{
    struct message m = {.n = 0}, step = {.n = 0}, worker = {.n = 0}, op = {.n = 0},
                   memory = {.n = 0}, on_gpu = {.n = 0};
    text(&memory, 1, "cpu");
    record(&memory, 21, 64);
    record(&memory, 22, 64);
    record(&memory, 23, 128);
    record(&memory, 24, -64);
    record(&memory, 30, -128);
    record(&memory, 31, -7);          /* was never taken */
    record(&memory, 32, INT64_MIN);   /* makes no sense */
    record(&memory, UINT64_MAX, 512); /* neither does its time */
    text(&on_gpu, 1, "GPU_3_bfc");
    record(&on_gpu, 25, 256);
    text(&op, 1, "a");
    number(&op, 2, 20);
    number(&op, 5, 5);
    nested(&op, 6, &memory);
    nested(&op, 6, &on_gpu);
    text(&worker, 1, device);
    nested(&worker, 2, &op);
    nested(&step, 1, &worker);
    nested(&m, 1, &step);
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
