/* The Kineto reader: a small trace a dialect point, the same spans wherever the buffer ends. */

#include "case.h"
#include "ingest/pytorch/kineto.h"
#include "ingest/readers.h"
#include "part_text.h"

static const struct kineto_part *flows_of(const struct trace_part *part)
{
    return part_payload(part, &kineto_payload);
}

static struct trace_part read_chunked(const char *text, size_t chunk)
{
    return part_of_text(&kineto_reader, text, chunk);
}

static struct trace_part read_text(const char *text)
{
    return read_chunked(text, 0);
}

static const struct trace_span *span_of(const struct trace_part *part, size_t i)
{
    for (const struct span_block *block = part->first_block; block; block = block->next) {
        if (i < block->n)
            return &block->at[i];
        i -= block->n;
    }
    fail_msg("no span %zu", i);
    return NULL;
}

static const char *name_of(const struct trace_part *part, uint32_t id)
{
    return strtab_get(&part->names, id);
}

static const struct trace_track *track_of(const struct trace_part *part, size_t i)
{
    return &part->tracks.at[span_of(part, i)->track].track;
}

static const struct trace_detail *detail_of(const struct trace_part *part, size_t i)
{
    assert_true(span_of(part, i)->detail < part->details.n);
    return &part->details.at[span_of(part, i)->detail];
}

TEST(categories_of_all_years_are_known)
{
    static const struct {
        const char *category;
        int kind; /* -1: not kept */
        bool gpu;
    } cases[] = {
        {"Operator", SPAN_CPU_OP, false},
        {"cpu_op", SPAN_CPU_OP, false},
        {"Runtime", SPAN_RUNTIME, false},
        {"cuda_runtime", SPAN_RUNTIME, false},
        {"hip_runtime", SPAN_RUNTIME, false},
        {"cuda_driver", SPAN_RUNTIME, false},
        {"privateuse1_runtime", SPAN_RUNTIME, false},
        {"Kernel", SPAN_KERNEL, true},
        {"kernel", SPAN_KERNEL, true},
        {"Memcpy", SPAN_MEMCPY, true},
        {"gpu_memcpy", SPAN_MEMCPY, true},
        {"Memset", SPAN_MEMSET, true},
        {"gpu_memset", SPAN_MEMSET, true},
        {"user_annotation", SPAN_ANNOTATION, false},
        {"gpu_user_annotation", SPAN_GPU_ANNOTATION, true},
        {"cuda_sync", SPAN_SYNC, true},
        {"python_function", SPAN_PYTHON, false},
        {"overhead", -1, false},
        {"Trace", -1, false},
        {"cpu_instant_event", -1, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[512];
        snprintf(
            text, sizeof text,
            "{'traceEvents':[{'ph':'X','cat':'%s','name':'a','pid':3,'tid':7,'ts':1,'dur':2}]}",
            cases[i].category);
        struct trace_part part = read_text(text);
        assert_int_equal(part.n_spans, cases[i].kind >= 0);
        if (part.n_spans) {
            assert_int_equal(span_of(&part, 0)->kind, cases[i].kind);
            assert_int_equal(track_of(&part, 0)->gpu, cases[i].gpu);
            assert_int_equal(track_of(&part, 0)->pid, 3);
            assert_int_equal(track_of(&part, 0)->id, 7);
        }
    }
}

#define TIMED(cat, name, tid, ts, dur)                                                             \
    "{'ph':'X','cat':'" cat "','name':'" name "','pid':3,'tid':" tid ",'ts':" ts ",'dur':" dur "}"

TEST(the_recorders_marks_say_what_a_group_is_asked_for)
{
    static const struct {
        const char *name, *group;
        bool waits;
        uint32_t call;
        int32_t peer;
    } cases[] = {
        {"dpro.call:17::mesh:tp", "mesh:tp", false, 18, -1},
        {"dpro.call:0:3:0", "0", false, 1, 3},
        {"dpro.call:", "", false, 0, -1},
        {"dpro.call:x:y:z", "z", false, 0, -1},
        {"dpro.call:99999999999:1:g", "g", false, 0, 1},
        {"dpro.wait:17", "", true, 18, -1},
        {"dpro.wait:", "", true, 0, -1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[256];
        snprintf(text, sizeof text,
                 "{'traceEvents':[{'ph':'X','cat':'cpu_op','name':'%s','pid':3,'tid':7,'ts':1,'dur'"
                 ":2}]}",
                 cases[i].name);
        struct trace_part part = read_text(text);
        assert_int_equal(part.n_spans, 1);
        const struct trace_span *span = span_of(&part, 0);
        const struct trace_detail *detail = detail_of(&part, 0);
        assert_string_equal(name_of(&part, span->name), cases[i].waits ? "dpro.wait" : "dpro.call");
        /* a call is looked through: what it does lies in it */
        assert_int_equal(span->kind, cases[i].waits ? SPAN_CPU_OP : SPAN_ANNOTATION);
        assert_int_equal(detail->call, cases[i].call);
        assert_int_equal(detail->peer, cases[i].peer);
        assert_string_equal(name_of(&part, detail->process_group), cases[i].group);
    }
}

TEST(sends_and_receives_are_on_a_track_of_their_own)
{
    struct trace_part part =
        read_text("{'traceEvents':[" TIMED("cpu_op", "c10d::send", "7", "1", "2") "," TIMED(
            "user_annotation", "gloo:send", "7", "2",
            "9") "," TIMED("cpu_op", "aten::mm", "7", "4", "2") "," TIMED("user_annotation",
                                                                          "gloo:all_reduce", "8",
                                                                          "4", "2") "]}");
    assert_int_equal(part.n_spans, 4);
    assert_int_equal(part.tracks.n, 3);
    assert_int_equal(span_of(&part, 2)->track, span_of(&part, 0)->track);
    assert_true(span_of(&part, 1)->track != span_of(&part, 0)->track);
    assert_true(track_of(&part, 1)->posted);
    assert_false(track_of(&part, 0)->posted || track_of(&part, 3)->posted);
}

TEST(spans_carry_their_arguments)
{
    struct trace_part part =
        read_text("{'schemaVersion':1,'traceEvents':[\n"
                  "{'ph':'X','cat':'cpu_op','name':'aten::mm','pid':10,'tid':11,'ts':"
                  "4458676522690.655,'dur':156.777,'args':{'External id':2049,'Record function "
                  "id':1909,'Sequence number':1080,'Fwd thread id':1,'Ev Idx':0,'Input "
                  "Dims':[[2,3]],'Call stack':'a;b\\\"'}},\n"
                  "{'args':{'correlation':57541,'External "
                  "id':12353,'grid':[1,2,3]},'dur':41,'ts':5,'tid':7,'pid':0,'name':'k','cat':'"
                  "kernel','ph':'X'}],'baseTimeNanoseconds':1711964646000000000}");
    assert_int_equal(last_fail, JSON_OK);
    assert_int_equal(part.n_spans, 2);
    const struct trace_span *span = span_of(&part, 0);
    assert_true(span->start_ns == 4458676522690655);
    assert_int_equal(span->dur_ns, 156777);
    assert_string_equal(name_of(&part, span->name), "aten::mm");
    assert_int_equal(span->external, 2049);
    assert_int_equal(span->record_fn, 1909);
    assert_int_equal(span->sequence, 1080);
    assert_int_equal(span->fwd_thread, 1);
    assert_true(span->detail == NO_ID);
    span = span_of(&part, 1);
    assert_int_equal(span->start_ns, 5000);
    assert_int_equal(span->correlation, 57541);
    assert_int_equal(span->sequence, -1);
    assert_true(part.base_ns == 1711964646000000000);
    assert_true(flows_of(&part)->has_correlation && part.has_record_fn);
    assert_int_equal(part.process.pid, 10);
}

TEST(thread_ids_may_be_text)
{
    struct trace_part part = read_text(
        "[{'ph':'X','cat':'Kernel','name':'k','pid':'0','tid':'stream "
        "7','ts':1,'dur':1,'args':{'external id':5,'correlation':9}},"
        "{'ph':'X','cat':'Operator','name':'a','pid':25738,'tid':'25738','ts':1,'dur':1},"
        "{'ph':'X','cat':'cuda_sync','name':'Event Sync','pid':0,'tid':-1,'ts':1,'dur':1},"
        "{'ph':'X','cat':'cpu_op','name':'b','pid':1,'tid':'main','ts':1,'dur':1},"
        "{'ph':'M','name':'thread_name','pid':0,'tid':7,'args':{'name':'stream 7 '}}]");
    assert_int_equal(part.n_spans, 4);
    assert_int_equal(track_of(&part, 0)->pid, 0);
    assert_int_equal(track_of(&part, 0)->id, 7);
    assert_int_equal(span_of(&part, 0)->external, 5);
    assert_int_equal(track_of(&part, 1)->id, 25738);
    assert_int_equal(track_of(&part, 2)->id, -1);
    assert_true(track_of(&part, 3)->id < -1000000);
    assert_int_equal(part.labels.n, 1);
    assert_string_equal(name_of(&part, part.labels.at[0].name), "stream 7 ");
}

TEST(ids_that_begin_alike_differ)
{
    static const int64_t tids[] = {12, 123, 12, 1, 1234, 123};
    char text[1024] = "[";
    size_t n = 1;
    for (size_t i = 0; i < 6; i++)
        n += (size_t)sprintf(
            text + n, "{'ph':'X','cat':'cpu_op','name':'a','ts':%zu,'dur':1,'pid':%d,'tid':%d},", i,
            i < 3 ? 4 : 45, (int)tids[i]);
    sprintf(text + n - 1, "]");
    struct trace_part part = read_text(text);
    assert_int_equal(part.n_spans, 6);
    for (size_t i = 0; i < 6; i++) {
        assert_int_equal(track_of(&part, i)->pid, i < 3 ? 4 : 45);
        assert_int_equal(track_of(&part, i)->id, tids[i]);
    }
}

TEST(communication_metadata_is_kept)
{
    struct trace_part part = read_text(
        "[{'ph':'X','cat':'kernel','name':'ncclDevKernel_AllReduce','pid':0,'tid':20,'ts':1,'dur':"
        "1,'args':{'Process Group Name':'0','Out msg nelems':10,'Process Group Ranks':'[0, "
        "1]','Group size':2,'In msg nelems':1000,'dtype':'Float','Process Group "
        "Description':'default_pg','Collective name':'allreduce','Seq':17,'Src Rank':1}},"
        "{'ph':'X','cat':'user_annotation','name':'gloo:all_reduce','pid':1,'tid':2,'ts':1,'dur':1,"
        "'args':{'Input type':['float'],'Input Dims':[[7370240]]}},"
        "{'ph':'X','cat':'cpu_op','name':'c10d::allreduce_','pid':1,'tid':2,'ts':1,'dur':1,'args':{"
        "'Input Dims':[[[2,3],[4]],[],[9]],'Input type':['TensorList','','float']}},"
        "{'ph':'X','cat':'cpu_op','name':'aten::mm','pid':1,'tid':2,'ts':1,'dur':1,'args':{'Input "
        "Dims':[[2,3]]}},"
        "{'ph':'X','cat':'cpu_op','name':'torch::distributed::reducer::mul_out','pid':1,'tid':2,'"
        "ts':1,'dur':1,'args':{'Input Dims':[[64,3,7,7],[],[64,3,7,7]]}},"
        "{'ph':'X','cat':'gpu_memcpy','name':'Memcpy','pid':0,'tid':7,'ts':1,'dur':1,'args':{'"
        "bytes':4096}}]");
    assert_int_equal(part.n_spans, 6);
    const struct trace_detail *detail = detail_of(&part, 0);
    assert_int_equal(detail->numel, 1000);
    assert_int_equal(detail->group_size, 2);
    assert_int_equal(detail->comm_sequence, 17);
    assert_int_equal(detail->peer, 1);
    assert_string_equal(name_of(&part, detail->dtype), "Float");
    assert_string_equal(name_of(&part, detail->collective), "allreduce");
    assert_string_equal(name_of(&part, detail->process_group), "0");
    assert_string_equal(name_of(&part, detail->group_ranks), "[0, 1]");
    detail = detail_of(&part, 1);
    assert_int_equal(detail->numel, 7370240);
    assert_string_equal(name_of(&part, detail->dtype), "float");
    assert_int_equal(detail->peer, -1);
    assert_int_equal(detail->comm_sequence, -1);
    assert_int_equal(detail_of(&part, 2)->numel, 10);
    assert_true(span_of(&part, 3)->detail == NO_ID);
    assert_int_equal(detail_of(&part, 4)->numel, 64 * 3 * 7 * 7);
    assert_int_equal(detail_of(&part, 5)->bytes, 4096);
}

/* A loss that is averaged over the ranks has no dimensions, and one element. */
TEST(a_tensor_without_dimensions_has_one_element)
{
    static const struct {
        const char *args;
        uint64_t numel;
    } cases[] = {
        {"'Input type':['float'],'Input Dims':[[]]", 1},
        {"'Input Dims':[[]],'Input type':['float']", 1},
        {"'Input type':['float'],'Input Dims':[[0]]", 0},
        {"'Input type':['','float'],'Input Dims':[[],[7]]", 7},
        {"'Input type':['Scalar'],'Input Dims':[[]]", 0},
        {"'Input type':['TensorList',''],'Input Dims':[[[]],[]]", 1},
        {"'Input type':['TensorList',''],'Input Dims':[[[],[3]],[]]", 4},
        {"'Input type':['TensorList','float'],'Input Dims':[[],[5]]", 5},
        {"'Input type':['float'],'Input Dims':[]", 0},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char text[512];
        snprintf(text, sizeof(text),
                 "[{'ph':'X','cat':'user_annotation','name':'gloo:all_reduce','pid':1,'tid':2,'ts':"
                 "1,'dur':1,'args':{%s,'Group size':2}}]",
                 cases[i].args);
        struct trace_part part = read_text(text);
        assert_int_equal(detail_of(&part, 0)->numel, cases[i].numel);
    }
}

TEST(syncs_tell_what_they_wait_for)
{
    struct trace_part part =
        read_text("[{'ph':'X','cat':'cuda_sync','name':'Stream Wait "
                  "Event','pid':0,'tid':24,'ts':1,'dur':1,'args':"
                  "{'cuda_sync_kind':'Stream Wait "
                  "Event','wait_on_stream':20,'wait_on_cuda_event_record_corr_id':31,"
                  "'stream':24,'correlation':33}},"
                  "{'ph':'X','cat':'cuda_sync','name':'Event "
                  "Sync','pid':0,'tid':-1,'ts':1,'dur':1,'args':"
                  "{'cuda_sync_kind':'Event "
                  "Sync','wait_on_stream':-1,'wait_on_cuda_event_record_corr_id':-1}},"
                  "{'ph':'X','cat':'cuda_sync','name':'Stream "
                  "Sync','pid':0,'tid':7,'ts':1,'dur':1},"
                  "{'ph':'X','cat':'cuda_sync','name':'Context "
                  "Sync','pid':0,'tid':-1,'ts':1,'dur':1}]");
    assert_int_equal(detail_of(&part, 0)->sync, SYNC_STREAM_WAIT_EVENT);
    assert_int_equal(detail_of(&part, 0)->wait_stream, 20);
    assert_int_equal(detail_of(&part, 0)->wait_correlation, 31);
    assert_int_equal(detail_of(&part, 1)->sync, SYNC_EVENT);
    assert_int_equal(detail_of(&part, 1)->wait_stream, -1);
    assert_int_equal(detail_of(&part, 1)->wait_correlation, 0);
    assert_int_equal(detail_of(&part, 2)->sync, SYNC_STREAM);
    assert_int_equal(detail_of(&part, 3)->sync, SYNC_DEVICE);
}

TEST(amd_traces_are_read)
{
    struct trace_part part =
        read_text("{'traceEvents':[{'ph':'X','cat':'cuda_runtime','name':'hipLaunchKernel','pid':5,"
                  "'tid':5,'ts':1,'dur':1,'args':{'correlation':3,'kernel':'x','grid':[1,1,1]}},"
                  "{'ph':'X','cat':'kernel','name':'Cijk_Ailk_Bljk_SB_MT64x64','pid':2,'tid':1,'ts'"
                  ":3,'dur':1,'args':{'device':2,'stream':1,'correlation':3,'queue':1}}]}");
    assert_int_equal(part.n_spans, 2);
    assert_int_equal(span_of(&part, 1)->correlation, 3);
    assert_int_equal(track_of(&part, 1)->pid, 2);
}

TEST(begin_and_end_events_make_spans)
{
    struct trace_part part =
        read_text("[{'ph':'B','cat':'cpu_op','name':'outer','pid':1,'tid':1,'ts':1},"
                  "{'ph':'B','cat':'cpu_op','name':'c10d::send','pid':1,'tid':1,'ts':2,"
                  "'args':{'Seq':4}},"
                  "{'ph':'B','cat':'cpu_op','name':'other','pid':1,'tid':2,'ts':2},"
                  "{'ph':'E','pid':1,'tid':1,'ts':3},{'ph':'E','pid':1,'tid':1,'ts':9},"
                  "{'ph':'E','pid':1,'tid':1,'ts':9}]");
    assert_int_equal(part.n_spans, 2);
    assert_string_equal(name_of(&part, span_of(&part, 0)->name), "c10d::send");
    assert_int_equal(span_of(&part, 0)->dur_ns, 1000);
    assert_int_equal(detail_of(&part, 0)->comm_sequence, 4);
    assert_int_equal(span_of(&part, 1)->dur_ns, 8000);
    assert_true(span_of(&part, 1)->detail == NO_ID);
    assert_int_equal(part.losses.n_unpaired, 2); /* an end too many, "other" without one */
}

TEST(bad_times_are_skipped_and_counted)
{
#define SPAN(ts, dur)                                                                              \
    "{'ph':'X','cat':'cpu_op','name':'a','pid':1,'tid':1,'ts':" ts ",'dur':" dur "},"
    struct trace_part part = read_text(
        "[" SPAN("1", "0") SPAN("1", "-1") SPAN("NaN", "1") SPAN("1", "NaN") SPAN("1", "null")
            SPAN("1e30", "1") SPAN("9223372036854775", "1") SPAN("1", "Infinity")
                SPAN("5000000000000000", "1") SPAN("-5000000000000000", "1")
                    SPAN("'5'", "2.5") "7,"
                                       "{'ph':'X','cat':'cpu_op','name':'a','pid':1,"
                                       "'tid':1,'ts':1}]");
    assert_int_equal(part.n_spans, 2); /* the zero duration and the quoted time */
    assert_int_equal(span_of(&part, 1)->start_ns, 5000);
    assert_int_equal(part.losses.n_broken, 11);
}

TEST(flows_are_kept_where_they_are_needed)
{
    const char *format =
        "[{'ph':'s','id':1,'pid':1,'tid':1,'ts':1,'cat':'fwdbwd','name':'fwdbwd'},"
        "{'ph':'f','id':1,'pid':1,'tid':2,'ts':5,'cat':'fwdbwd','name':'fwdbwd','bp':'e'},"
        "{'ph':'s','id':9,'pid':1,'tid':1,'ts':2,'cat':'ac2g','name':'ac2g'},"
        "{'ph':'X','cat':'kernel','name':'k','pid':0,'tid':7,'ts':3,'dur':1%s}"
        "]";
    char text[1024];
    snprintf(text, sizeof text, format, "");
    struct trace_part part = read_text(text);
    assert_int_equal(flows_of(&part)->links.n, 2);
    assert_true(flows_of(&part)->links.at[0].start && !flows_of(&part)->links.at[1].start);
    assert_int_equal(flows_of(&part)->launches.n, 1);
    snprintf(text, sizeof text, format, ",'args':{'correlation':9}");
    part = read_text(text);
    assert_int_equal(flows_of(&part)->links.n, 2);
    assert_int_equal(flows_of(&part)->launches.n, 0);
}

TEST(no_job_has_as_many_ranks_as_a_hostile_file_says)
{
    struct trace_part part = read_text(
        "{'distributedInfo':{'rank':2147483647,'world_size':2147483647},'traceEvents':[]}");
    assert_int_equal(part.process.world_size, 0);
}

TEST(the_job_is_described)
{
    struct trace_part part = read_text("{'host_name':'h1','distributedInfo':{'backend':'nccl','"
                                       "rank':3,'world_size':8,'pg_config':["
                                       "{'pg_name':'0','pg_desc':'default_pg','pg_size':2,'ranks':["
                                       "0,3]},{'pg_name':1,'ranks':[]}]},"
                                       "'traceEvents':[]}");
    assert_true(part.process.has_rank);
    assert_int_equal(part.process.rank, 3);
    assert_int_equal(part.process.world_size, 8);
    assert_string_equal(name_of(&part, part.process.backend), "nccl");
    assert_string_equal(name_of(&part, part.process.host), "h1");
    assert_int_equal(part.groups.n, 2);
    assert_string_equal(name_of(&part, part.groups.at[0].description), "default_pg");
    assert_int_equal(part.groups.at[0].n_ranks, 2);
    assert_int_equal(part.groups.at[0].ranks[1], 3);
    assert_string_equal(name_of(&part, part.groups.at[1].name), "1");
}

#define EVENT "{'ph':'X','cat':'cpu_op','name':'a','pid':1,'tid':1,'ts':1,'dur':1}"

TEST(documents_may_end_early)
{
    static const struct {
        const char *text;
        uint64_t n_spans;
        enum json_fail fail;
    } cases[] = {
        {"[" EVENT "," EVENT "]", 2, JSON_OK},
        {"[" EVENT "," EVENT ",\n", 2, JSON_OK}, /* left open, as some writers do */
        {"[" EVENT "," EVENT, 2, JSON_OK},
        {"{'traceEvents':[" EVENT ",]}", 1, JSON_OK},
        {"{'traceEvents':[" EVENT ",", 1, JSON_ENDED},
        {"{'traceEvents':[" EVENT ",{'ph':'X','cat':'cpu_op','ts':1,'dur':1", 1, JSON_ENDED},
        {"{'traceEvents':[" EVENT ",{'ph':'X','na", 1, JSON_ENDED},
        {"{'traceEvents':[" EVENT "} " EVENT "]}", 1, JSON_BAD},
        {"", 0, JSON_ENDED},
        {"\xEF\xBB\xBF[" EVENT "]", 1, JSON_OK},
        {"<html>", 0, JSON_BAD},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct trace_part part = read_text(cases[i].text);
        if (part.n_spans != cases[i].n_spans || last_fail != cases[i].fail)
            fail_msg("case %zu: %d spans, fail %d", i, (int)part.n_spans, (int)last_fail);
    }
}

/* Layouts of three writers, read with the buffer ending anywhere: same spans, names, details. */
TEST(chunks_of_any_size_give_the_same)
{
    struct {
        char at[32768];
        size_t n;
    } text = {.n = 0};
    const char *layouts[] = {
        "  {\n    'ph': 'X', 'cat': 'kernel', 'name': 'void k%d<float, 4>(int)', 'pid': 0, 'tid': "
        "7,\n"
        "    'ts': 44586769%05d.183, 'dur': 41.407,\n    'args': {\n      'External id': 12353,    "
        "  'queued': 0,"
        " 'grid': [512, 1, 1],      'est. achieved occupancy %%': 75,      'correlation': %d\n    "
        "}\n  },\n",
        "{'ph': 'X', 'cat': 'cpu_op', 'name': 'nccl:all_reduce \\u00e9%d', 'pid': 10, 'tid': 10, "
        "'ts': %d, 'dur': 4, 'args': {'Input Dims': [[3, %d]], 'Input type': ['float'], 'Concrete "
        "Inputs': ['', '[\\\"]']}}, ",
        "{'name':'a%d','ph':'X','ts':%d,'dur':1,'pid':10,'tid':10,'cat':'user_annotation','args':{'"
        "External id':%d}},"};
    text.n += (size_t)sprintf(text.at, "{'schemaVersion': 1,\n  'traceEvents': [\n");
    for (int i = 0; i < 60; i++)
        text.n += (size_t)sprintf(text.at + text.n, layouts[i % 3], i / 7, 10000 + i, i + 1);
    sprintf(text.at + text.n, EVENT "],'baseTimeNanoseconds':12}");
    struct trace_part want = read_text(text.at);
    assert_int_equal(want.n_spans, 61);
    for (size_t chunk = 1; chunk < 200; chunk += chunk < 64 ? 1 : 17) {
        struct trace_part got = read_chunked(text.at, chunk);
        assert_int_equal(got.n_spans, want.n_spans);
        for (size_t i = 0; i < want.n_spans; i++)
            assert_memory_equal(span_of(&got, i), span_of(&want, i), sizeof(struct trace_span));
        assert_int_equal(got.details.n, want.details.n);
        for (size_t i = 0; i < want.details.n; i++)
            assert_memory_equal(&got.details.at[i], &want.details.at[i],
                                sizeof(struct trace_detail));
        assert_int_equal(got.names.n, want.names.n);
        for (uint32_t i = 0; i < want.names.n; i++)
            assert_string_equal(name_of(&got, i), name_of(&want, i));
        assert_true(got.base_ns == 12);
    }
}

static void shapes_of(struct op_shapes *shapes, const char *text)
{
    struct input memory;
    struct json js;
    struct dpro_error err;
    input_open_memory(&memory, text, strlen(text), "shapes");
    json_init(&js, &memory, 0, &err);
    assert_true(op_shapes_read(shapes, &js));
    json_fini(&js);
    input_close(&memory);
}

static double flops_of(const char *name, const char *dims, const char *values)
{
    struct op_shapes inputs, others;
    struct arithmetic work = {0};
    shapes_of(&inputs, dims);
    shapes_of(&others, values);
    op_arithmetic(name, strlen(name), &inputs, &others, 4, &work);
    return work.flops;
}

TEST(arithmetic_of_ops_is_that_of_torch_flop_counter)
{
    /* as torch.utils.flop_counter.FlopCounterMode says of the same calls */
    static const struct {
        const char *name, *dims, *values;
        double flops;
    } cases[] = {
        {"aten::mm", "[[2, 3], [3, 5]]", "['', '']", 60},
        {"aten::addmm", "[[5], [2, 3], [3, 5], [], []]", "[]", 60},
        {"aten::bmm", "[[7, 2, 3], [7, 3, 5]]", "[]", 420},
        {"aten::baddbmm", "[[7, 2, 5], [7, 2, 3], [7, 3, 5]]", "[]", 420},
        {"aten::convolution", "[[8, 3, 32, 32], [64, 3, 7, 7], [], [], [], [], [], [], []]",
         "['', '', '', '[2, 2]', '[3, 3]', '[1, 1]', 'False', '[0, 0]', '1']", 38535168},
        {"aten::convolution", "[[8, 64, 16, 16], [64, 32, 2, 2], [], [], [], [], [], [], []]",
         "['', '', '', '[2, 2]', '[0, 0]', '[1, 1]', 'True', '[0, 0]', '1']", 33554432},
        {"aten::convolution_backward",
         "[[8, 64, 16, 16], [8, 3, 32, 32], [64, 3, 7, 7], [], [], [], [], [], [], [], []]",
         "['', '', '', '[0]', '[2, 2]', '[3, 3]', '[1, 1]', 'False', '[0, 0]', '1', '[True, True, "
         "False]']",
         2 * 38535168},
        {"aten::_scaled_dot_product_flash_attention",
         "[[2, 4, 16, 8], [2, 4, 16, 8], [2, 4, 16, 8], [], []]", "[]", 65536},
        {"aten::_scaled_dot_product_flash_attention_backward",
         "[[2, 4, 16, 8], [2, 4, 16, 8], [2, 4, 16, 8], [2, 4, 16, 8], [], []]", "[]", 163840},
        /* which does not count these: 10 rows by both weights, in the backward pass twice */
        {"aten::mkldnn_rnn_layer", "[[5, 2, 3], [16, 3], [16, 4], [16], [16]]", "[]", 2240},
        {"aten::mkldnn_rnn_layer_backward", "[[5, 2, 3], [16, 3], [16, 4], [16], [16]]", "[]",
         4480},
        {"aten::mm", "[[2, 3], []]", "[]", 0},
        {"aten::convolution", "[[8, 3, 32, 32], [64, 3, 7, 7]]", "[]", -1}, /* not known */
        {"aten::add", "[[2, 3], [2, 3]]", "[]", 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_float_equal(flops_of(cases[i].name, cases[i].dims, cases[i].values), cases[i].flops,
                           0.5);
}
