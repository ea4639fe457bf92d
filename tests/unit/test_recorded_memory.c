/* What files say about memory: allocations and modules in Kineto's profiles, memory.json, and both
 * joined to their rank. */

#include <dpro/memory.h>

#include "case.h"
#include "ingest/pytorch/kineto.h"
#include "ingest/pytorch/snapshot.h"
#include "ingest/readers.h"
#include "job_at.h"
#include "kept_log.h"
#include "part_text.h"
#include "temp_folder.h"

static const struct kineto_part *kineto_of(const struct trace_part *part)
{
    return part_payload(part, &kineto_payload);
}

static const struct held_part *held_of(const struct trace_part *part)
{
    return part_payload(part, &held_payload);
}

/* ---- loading ---- */

static struct dpro_trace *load(void)
{
    logged[0] = '\0';
    return trace_at(folder, .sink = {.log = keep_log, .level = DPRO_LOG_WARN});
}

#define OP                                                                                         \
    "{'ph':'X','cat':'cpu_op','name':'aten::mm','pid':5,'tid':6,'ts':100,"                         \
    "'dur':50,'args':{'Record function id':9}}"
#define INSTANT(ts, args)                                                                          \
    ",{'ph':'i','cat':'cpu_instant_event','s':'t','name':'[memory]','pid':5,"                      \
    "'tid':6,'ts':" ts ",'args':{" args "}}"
#define MARK(cat, name, ts, dur)                                                                   \
    ",{'ph':'X','cat':'" cat "','name':'dpro.module:" name "','pid':5,'tid':6,"                    \
    "'ts':" ts ",'dur':" dur ",'args':{'Record function id':3}}"
#define PROFILE(events)                                                                            \
    "{'schemaVersion':1,'distributedInfo':{'rank':0,'world_size':1},"                              \
    "'baseTimeNanoseconds':1000,'traceEvents':[" OP events "]}"

TEST(an_allocation_is_read_whatever_the_order_of_keys)
{
    static const char text[] =
        "[" OP ",{'args':{'Addr':18446744073709551615,'Bytes':-64,'Device Type':1,'Total "
        "Allocated':128,'Device Id':3,'Total Reserved':2097152,'Ev "
        "Idx':7},'tid':6,'ts':3.25,'name':'[memory]','ph':'i','pid':5}]";
    for (size_t chunk = 0; chunk < 90; chunk++) {
        struct trace_part part = part_of_text(&kineto_reader, text, chunk);
        assert_int_equal(part.n_spans, 1);
        assert_int_equal(part.allocations.n, 1);
        const struct trace_allocation *at = &part.allocations.at[0];
        assert_true(at->address == UINT64_MAX);
        assert_int_equal(at->bytes, -64);
        assert_int_equal(at->ns, 3250);
        assert_int_equal(at->device, 3);
        assert_int_equal(at->allocated_bytes, 128);
        assert_int_equal(at->reserved_bytes, 2097152);
    }
}

TEST(profilers_of_2021_tell_no_address)
{
    struct trace_part part = part_of_text(
        &kineto_reader,
        "[" OP ",{'ph': 'i', 's': 't', 'name': '[memory]','pid': 25738, 'tid': 25738,'ts': "
        "1623142623460121,'args': {'Device Type': 0, 'Device Id': -1, 'Bytes': 4}}]",
        0);
    assert_int_equal(part.allocations.n, 1);
    const struct trace_allocation *at = &part.allocations.at[0];
    assert_int_equal(at->address, 0);
    assert_int_equal(at->bytes, 4);
    assert_int_equal(at->device, -1);
    assert_int_equal(at->allocated_bytes, -1);
}

TEST(what_an_instant_lacks_is_not_that_of_the_one_before)
{
    struct trace_part part = part_of_text(
        &kineto_reader,
        "[" OP INSTANT("1", "'Bytes':4,'Addr':8") ",{'ph':'i','name':'[memory]','ts':2}]", 0);
    assert_int_equal(part.allocations.n, 1);
    assert_int_equal(part.losses.n_allocations, 1);
}

TEST(marks_of_modules_are_no_spans)
{
    struct trace_part part = part_of_text(
        &kineto_reader,
        "[" OP MARK("user_annotation", "blocks.0", "90", "30") MARK("cpu_op", "", "80", "90")
            MARK("gpu_user_annotation", "blocks.0", "95", "30") "]",
        0);
    assert_int_equal(part.n_spans, 1);
    assert_int_equal(part.start_ns, 100000);
    const struct kineto_part *of = kineto_of(&part);
    assert_int_equal(of->module_calls.n, 2);
    assert_string_equal(strtab_get(&part.names, of->module_calls.at[0].module), "blocks.0");
    assert_int_equal(of->module_calls.at[0].start_ns, 90000);
    assert_int_equal(of->module_calls.at[0].end_ns, 120000);
    assert_int_equal(of->module_calls.at[1].module, 0);
}

TEST(nodes_in_a_mark_lie_in_what_is_around_it)
{
    struct trace_part part =
        part_of_text(&et_reader,
                     "{'schema':'1.0.1','nodes':["
                     "{'name':'aten::mm','id':9,'parent':4,'fw_tid':2,'tid':1},"
                     "{'name':'dpro.module:a','id':4,'parent':3},"
                     "{'name':'dpro.module:','id':3,'parent':2},{'name':'step','id':2},"
                     "{'name':'dpro.module:x','id':21,'parent':20},"
                     "{'name':'dpro.module:y','id':20,'parent':21},"
                     "{'name':'aten::add','id':22,'parent':21}]}",
                     0);
    const struct execution_trace *et = part_payload(&part, &et_payload);
    assert_int_equal(et->nodes.n, 3);
    assert_int_equal(et->nodes.at[0].id, 9);
    assert_int_equal(et->nodes.at[0].parent, 2);
    assert_int_equal(et->nodes.at[0].thread, 1);
    assert_int_equal(et->nodes.at[1].id, 2);
}

TEST_IN_FOLDER(allocations_come_by_time_with_their_threads)
{
    write_text("kineto.json", PROFILE(INSTANT("120", "'Bytes':-16,'Addr':1,'Device Type':0")
                                          INSTANT("105.5", "'Bytes':16,'Addr':1,'Device Type':0")
                                              INSTANT("120", "'Bytes':32,'Addr':1,'Device Type':0")
                                                  MARK("user_annotation", "a", "110", "5")
                                                      MARK("user_annotation", "", "110", "9")));
    struct dpro_trace *trace = load();
    const struct trace_rank *rank = &trace->ranks[0];
    assert_int_equal(rank->n_allocations, 3);
    assert_int_equal(rank->allocations[0].ns, 106500);
    assert_int_equal(rank->allocations[0].track, 0);
    assert_int_equal(rank->allocations[1].bytes, -16); /* at one time in the file's order */
    assert_int_equal(rank->allocations[2].bytes, 32);
    assert_int_equal(rank->n_module_calls, 2);
    assert_int_equal(rank->module_calls[0].end_ns, 120000); /* the outer one first */
    assert_int_equal(rank->module_calls[0].start_ns, 111000);
    assert_string_equal(strtab_get(&trace->names, rank->module_calls[1].module), "a");
    assert_string_equal(logged, "");
}

TEST_IN_FOLDER(absurd_allocations_are_left_out_in_one_line)
{
    write_text("kineto.json",
               PROFILE(INSTANT("1", "'Bytes':16,'Addr':1") INSTANT("2", "'Addr':2")
                           INSTANT("3", "'Bytes':'many'") INSTANT("null", "'Bytes':8")
                               INSTANT("4", "'Bytes':9223372036854775807")
                                   INSTANT("5", "'Bytes':-9223372036854775808")
                                       INSTANT("1e300", "'Bytes':8")));
    struct dpro_trace *trace = load();
    assert_int_equal(trace->ranks[0].n_allocations, 1);
    assert_non_null(strstr(logged, "6 of 7 memory events have no time or size that makes sense"));
    assert_ptr_equal(strchr(logged, '\n'), strrchr(logged, '\n'));
}

TEST_IN_FOLDER(an_event_written_twice_counts_once)
{
    write_text("kineto.json", PROFILE(INSTANT("7", "'Bytes':16,'Addr':1") INSTANT(
                                  "7", "'Bytes':16,'Addr':2") INSTANT("7", "'Bytes':16,'Addr':1")
                                          INSTANT("7", "'Bytes':16") INSTANT("7", "'Bytes':16")));
    struct dpro_trace *trace = load();
    assert_int_equal(trace->ranks[0].n_allocations, 4); /* without addresses nobody knows */
}

/* ---- memory.json ---- */

static const char held[] =
    "{'schema':'dpro.memory/"
    "1','device':'cuda:1','when_ns':1790857026000000123,'capacity_bytes':85899345920,'modules':[[''"
    ",'GPT'],['a.0','Linear']],'blocks':[['parameter','a.0.weight',4096,64],['optimizer_state','x',"
    "8192,128],['bucket','',0,256]]}";

TEST(held_memory_is_read)
{
    for (size_t chunk = 0; chunk < 80; chunk++) {
        struct trace_part part = part_of_text(&held_reader, held, chunk);
        const struct held_part *of = held_of(&part);
        assert_string_equal(strtab_get(&part.names, of->device), "cuda:1");
        assert_true(of->capacity_bytes == 85899345920);
        assert_int_equal(of->modules.n, 2);
        assert_string_equal(strtab_get(&part.names, of->modules.at[1].name), "a.0");
        assert_string_equal(strtab_get(&part.names, of->modules.at[1].class), "Linear");
        assert_int_equal(of->blocks.n, 3);
        assert_int_equal(of->blocks.at[0].category, DPRO_MEMORY_PARAMETER);
        assert_int_equal(of->blocks.at[0].address, 4096);
        assert_int_equal(of->blocks.at[1].category, DPRO_MEMORY_STATE);
        assert_int_equal(of->blocks.at[1].size_bytes, 128);
        assert_int_equal(of->blocks.at[2].address, 0);
    }
}

TEST(held_memory_cut_anywhere_keeps_whole_blocks)
{
    for (size_t cut = 1; cut < sizeof held - 1; cut++) {
        char text[sizeof held];
        memcpy(text, held, cut);
        text[cut] = '\0';
        struct trace_part part = part_of_text(&held_reader, text, 0);
        assert_int_not_equal(last_fail, JSON_OK);
        for (size_t i = 0; i < held_of(&part)->blocks.n; i++)
            assert_int_equal(held_of(&part)->blocks.at[i].size_bytes, 64u << i);
    }
}

TEST_IN_FOLDER(held_memory_joins_its_rank)
{
    write_text("host0/rank0/kineto.json", PROFILE(""));
    write_text("host0/rank0/memory.json", held);
    struct dpro_trace *trace = load();
    const struct held_memory *of = trace->ranks[0].held;
    assert_non_null(of);
    assert_int_equal(of->device, 1);
    assert_int_equal(of->n_blocks, 3);
    assert_string_equal(strtab_get(&trace->names, of->blocks[0].name), "a.0.weight");
    assert_string_equal(strtab_get(&trace->names, of->modules[0].class), "GPT");
    assert_string_equal(logged, "");
}

TEST_IN_FOLDER(held_blocks_that_make_no_sense_are_left_out_in_one_line)
{
    write_text("host0/rank0/kineto.json", PROFILE(""));
    write_text("host0/rank0/memory.json",
               "{'schema':'dpro.memory/"
               "1','device':'cpu','when_ns':'soon','capacity_bytes':-1,'modules':[7,['a']],'blocks'"
               ":[['parameter','w',4096,64],['parameter','w2',4096,64],['unheard','u',0,8],['other'"
               ",'',0,18446744073709551615],['other'],['other','',0,-5],{}]}");
    struct dpro_trace *trace = load();
    const struct held_memory *of = trace->ranks[0].held;
    assert_int_equal(of->n_blocks, 2);
    assert_int_equal(of->blocks[1].category, DPRO_MEMORY_OTHER);
    assert_int_equal(of->n_modules, 1);
    assert_int_equal(of->device, -1);
    assert_true(of->capacity_bytes == 0);
    assert_non_null(strstr(logged, "6 blocks or modules are listed twice or make no sense"));
    assert_ptr_equal(strchr(logged, '\n'), strrchr(logged, '\n'));
}

static const char of_allocator[] =
    "{'schema':'dpro.memory/"
    "1','device':'cuda:1','blocks':[],'segments':[[8388608,2097152,77,'small',false,false,[[512,'"
    "active_allocated'],[2096640,'inactive']]],[4194304,4194304,0,'large',true,true,[[4194304,'"
    "active_pending_free']]]%s]}";

TEST_IN_FOLDER(the_allocators_segments_are_read)
{
    char text[1024];
    write_text("host0/rank0/kineto.json", PROFILE(""));
    snprintf(text, sizeof text, of_allocator, "");
    write_text("host0/rank0/memory.json", text);
    struct dpro_trace *trace = load();
    const struct held_memory *of = trace->ranks[0].held;
    assert_int_equal(of->n_allocated, 1); /* another one waits, a third is free */
    assert_int_equal(of->allocated[0].address, 8388608);
    assert_int_equal(of->allocated[0].size_bytes, 512);
    assert_string_equal(logged, "");
}

TEST_IN_FOLDER(with_a_segment_that_makes_no_sense_none_is_used)
{
    static const char *const odd[] = {",7",
                                      ",[]",
                                      ",[1,2]",
                                      ",[0,512,0,'small',false,false,[[512,'inactive']]]",
                                      ",[16777216,512,0,'small',false,false,[[1024,'inactive']]]",
                                      ",[16777216,512,0,'small',false,false,[[-1,'inactive']]]"};
    char text[1024];
    write_text("host0/rank0/kineto.json", PROFILE(""));
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        snprintf(text, sizeof text, of_allocator, odd[i]);
        write_text("host0/rank0/memory.json", text);
        struct dpro_trace *trace = load();
        assert_int_equal(trace->ranks[0].held->n_allocated, 0);
        assert_non_null(strstr(logged, "make no sense"));
    }
}

/* What memory.json says of the allocator's settings, and whether the log says that they make no
 * sense, in one line. */
TEST_IN_FOLDER(the_allocators_settings_are_read_or_not_known)
{
    enum { KNOWN = DPRO_ALLOCATOR_KNOWN, NO = DPRO_ALLOCATOR_STRANGE };
    static const struct {
        const char *members;
        int known;
        bool expandable, other_backend;
        uint64_t max_split;
    } cases[] = {
        {"", DPRO_ALLOCATOR_ASSUMED, false, false, ALLOCATOR_UNLIMITED},
        {"'allocator':null,", DPRO_ALLOCATOR_ASSUMED, false, false, ALLOCATOR_UNLIMITED},
        {"'allocator':'',", KNOWN, false, false, ALLOCATOR_UNLIMITED},
        {"'allocator':'expandable_segments:True,max_split_size_mb:64',", KNOWN, true, false,
         64 << 20},
        {"'allocator':'backend:cudaMallocAsync',", KNOWN, false, true, ALLOCATOR_UNLIMITED},
        {"'allocator':'','backend':'pluggable',", KNOWN, false, true, ALLOCATOR_UNLIMITED},
        {"'backend':'native',", DPRO_ALLOCATOR_ASSUMED, false, false, ALLOCATOR_UNLIMITED},
        {"'allocator':'max_split_size_mb:',", NO, false, false, 0},
        {"'allocator':'max_split_size_mb:-1',", NO, false, false, 0},
        {"'allocator':'expandable_segments:Perhaps',", NO, false, false, 0},
        {"'allocator':'of_tomorrow:True',", NO, false, false, 0},
        {"'allocator':'expandable_segments:True\\u0000',", NO, false, false, 0},
        {"'allocator':['expandable_segments:True'],", NO, false, false, 0},
        {"'allocator':17,", NO, false, false, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[200];
        snprintf(text, sizeof text, "{'schema':'dpro.memory/1','device':'cuda:0',%s'blocks':[]}",
                 cases[i].members);
        write_text("host0/rank0/kineto.json", PROFILE(""));
        write_text("host0/rank0/memory.json", text);
        struct allocator_settings s = load()->ranks[0].held->allocator;
        print_message("%s\n", cases[i].members);
        assert_int_equal(s.known, cases[i].known);
        assert_int_equal(strstr(logged, "what the allocator reserves") != NULL, s.known == NO);
        assert_ptr_equal(strchr(logged, '\n'), strrchr(logged, '\n'));
        if (s.known == NO)
            continue;
        assert_string_equal(logged, "");
        assert_int_equal(s.expandable_segments, cases[i].expandable);
        assert_int_equal(s.other_backend, cases[i].other_backend);
        assert_int_equal(s.max_split_bytes, cases[i].max_split);
    }
}
