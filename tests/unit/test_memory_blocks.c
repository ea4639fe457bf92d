/* What a rank's device holds in an iteration: blocks from allocations, their moments in ops, what
 * was there before, categories, calls of modules, uses, and what scales with the batch. */

#include "case.h"
#include "graph/graph.h"
#include "temp_folder.h"
#include "trace_text.h"

#define US INT64_C(1000)

static const struct graph_memory *memory_of(const struct dpro_graph *g)
{
    assert_non_null(g->memory);
    return &g->memory[0];
}

/* Memory that thread 1 takes and gives back on the CPU, each "AT ADDRESS BYTES", of which all say
 * how much is allocated then (AT ADDRESS BYTES TOTAL) or none. */
static void allocations(struct trace_text *t, const char *text)
{
    for (int n; *text; text += n + (int)strspn(text + n, "; ")) {
        long long at, address, bytes, total = -1;
        n = 0;
        assert_in_range(
            sscanf(text, "%lld %lld %lld%n %lld%n", &at, &address, &bytes, &n, &total, &n), 3, 4);
        trace_text_memory(t, 1, -1, at, (uint64_t)address, bytes, total);
    }
}

static const char *name_of(const struct dpro_graph *g, uint32_t id)
{
    return strtab_get(&g->names, id);
}

static const struct graph_block *block_of(const struct graph_memory *m, uint64_t size, int n)
{
    for (uint32_t i = 0; i < m->n_blocks; i++)
        if (m->blocks[i].size_bytes == size && n-- == 0)
            return &m->blocks[i];
    fail_msg("no such block of %llu bytes", (unsigned long long)size);
    return NULL;
}

/* Its blocks in order: "BYTES taken-given", by the number of the moment, none: before, behind it.
 */
static void check_blocks(const struct graph_memory *m, const char *wanted)
{
    char found[400] = "";
    for (uint32_t i = 0; i < m->n_blocks; i++) {
        const struct graph_block *b = &m->blocks[i];
        char taken[12] = "", given[12] = "";
        if (b->taken != MEMORY_NONE)
            snprintf(taken, sizeof taken, "%u", b->taken);
        if (b->given != MEMORY_NONE)
            snprintf(given, sizeof given, "%u", b->given);
        snprintf(found + strlen(found), sizeof found - strlen(found), "%s%llu %s-%s", i ? "; " : "",
                 (unsigned long long)b->size_bytes, taken, given);
    }
    assert_string_equal(found, wanted);
}

/* The same with all that is known of each, one a line: what it is for, its name, the call that took
 * it, the bytes of an item, "scales" with the batch, and its uses: the call, "b" in the backward
 * pass, and the moment before which it is. */
static void check_known(const struct dpro_graph *g, const char *wanted)
{
    const struct graph_memory *m = memory_of(g);
    char *found = kept_memory(4000, 1), *at = found;
    for (uint32_t i = 0; i < m->n_blocks; i++) {
        const struct graph_block *b = &m->blocks[i];
        const struct graph_use *uses = m->uses + b->first_use;
        at += sprintf(
            at, "%llu %d-%d %s '%s' call %d item %u%s:", (unsigned long long)b->size_bytes,
            (int)b->taken, (int)b->given, dpro_memory_category_name(b->category),
            name_of(g, b->name), (int)b->call, (unsigned)b->item_bytes, b->scales ? " scales" : "");
        for (uint32_t k = 0; k < b->n_uses; k++)
            at += sprintf(at, " %d%s@%d", (int)uses[k].call, uses[k].backward ? "b" : "",
                          (int)uses[k].first);
        at += sprintf(at, "\n");
    }
    assert_string_equal(found, wanted);
}

static uint64_t peak_of(const struct graph_memory *m)
{
    uint64_t now = 0, peak;
    for (uint32_t i = 0; i < m->n_blocks; i++)
        now += m->blocks[i].taken == MEMORY_NONE ? m->blocks[i].size_bytes : 0;
    peak = now;
    for (uint32_t i = 0; i < m->n_moments; i++) {
        uint64_t size = m->blocks[m->moments[i].block].size_bytes;
        now = m->moments[i].gives ? now - size : now + size;
        peak = now > peak ? now : peak;
    }
    return peak;
}

/* Two steps of 1000 us from 0, an op of 100 us every 200 us. */
static struct trace_text *two_steps(int rank, int world_size)
{
    struct trace_text *t = trace_text_begin(rank, world_size);
    trace_text_steps(
        t, 2, 1000,
        "50+100 aten::a; 250+100 aten::b; 450+100 aten::c; 650+100 aten::d;850+100 aten::e");
    return t;
}

TEST(takings_and_givings_are_joined_by_address)
{
    struct trace_text *t = two_steps(0, 1);
    allocations(t, "1075 64 100; 1275 128 30; 1475 64 -100");
    struct dpro_graph *g = trace_text_graph();
    const struct graph_memory *m = memory_of(g);
    assert_int_equal(m->source, DPRO_MEMORY_ALLOCATIONS);
    assert_int_equal(m->n_moments, 3);
    check_blocks(m, "100 0-2; 30 1-");
    assert_string_equal(name_of(g, block_of(m, 100, 0)->name), "aten::a");
    assert_string_equal(name_of(g, g->name[m->moments[2].op]), "aten::c");
    assert_in_range(m->moments[0].share, 16300, 16450); /* a quarter */
    assert_int_equal(m->measured_peak_bytes, 0);        /* nothing says what was there before */
    assert_int_equal(peak_of(m), 130);
}

TEST(between_ops_a_moment_is_at_the_end_of_the_one_before)
{
    struct trace_text *t = two_steps(0, 1);
    allocations(t, "1010 64 100; 1200 128 100");     /* the first before the first op */
    trace_text_memory(t, 9, -1, 1290, 192, 100, -1); /* on a thread without ops */
    struct dpro_graph *g = trace_text_graph();
    const struct graph_memory *m = memory_of(g);
    assert_int_equal(m->moments[0].op, DPRO_NO_OP);
    assert_string_equal(name_of(g, g->name[m->moments[1].op]), "aten::a");
    assert_int_equal(m->moments[1].share, UINT16_MAX);
    assert_string_equal(name_of(g, g->name[m->moments[2].op]), "aten::b");
    assert_in_range(m->moments[2].share, 26000, 26300);
}

TEST(moments_are_in_functions_of_autograd)
{
    struct trace_text *t = trace_text_begin(0, 1);
    trace_text_steps(
        t, 2, 1000,
        "100+300 ~MmBackward0; 110+250 MmBackward0; 150+50 aten::mm; 250+50 aten::mm;500+300 "
        "~MmBackward0; 510+250 MmBackward0; 550+50 aten::mm; 650+50 aten::mm;900+50 aten::add");
    allocations(t, "1160 64 100; 1210 128 100; 1260 192 100; 1560 256 100; 1920 320 100");
    const struct graph_memory *m = memory_of(trace_text_graph());
    assert_int_equal(m->n_moments, 5);
    assert_int_not_equal(m->moments[0].function, 0);
    assert_int_equal(m->moments[1].function, m->moments[0].function);
    assert_int_equal(m->moments[2].function, m->moments[0].function);
    assert_int_not_equal(m->moments[3].function, m->moments[0].function);
    assert_int_not_equal(m->moments[3].function, 0);
    assert_int_equal(m->moments[4].function, 0);
}

TEST(what_the_step_before_left_is_there_before)
{
    struct trace_text *t = two_steps(0, 1);
    /* 100 bytes stay into the second step, 50 don't; 7 are older than the recording */
    allocations(t, "75 64 100; 80 128 50; 90 128 -50; 1275 64 -100; 1280 256 -7");
    struct dpro_graph *g = trace_text_graph();
    const struct graph_memory *m = memory_of(g);
    check_blocks(m, "100 -0; 7 -1");
    assert_int_equal(peak_of(m), 107);
}

TEST(a_block_taken_twice_was_given_back_between)
{
    struct trace_text *t = two_steps(0, 1);
    allocations(t, "1075 64 100; 1275 64 40");
    struct dpro_graph *g = trace_text_graph();
    const struct graph_memory *m = memory_of(g);
    check_blocks(m, "100 0-1; 40 2-");
    assert_int_equal(peak_of(m), 100);
}

TEST(without_addresses_the_latest_of_a_size_is_given_back)
{
    struct trace_text *t = two_steps(0, 1);
    allocations(t, "1075 0 100; 1080 0 100; 1275 0 -100; 1280 0 -100; 1290 0 -100");
    struct dpro_graph *g = trace_text_graph();
    const struct graph_memory *m = memory_of(g);
    check_blocks(m, "100 0-3; 100 1-2; 100 -4");
    assert_int_equal(peak_of(m), 300);
}

TEST(a_gpu_tells_what_it_held_before)
{
    struct trace_text *t = two_steps(0, 1);
    trace_text_memory(t, 1, -1, 1070, 64, 9999, -1); /* the CPU's is another matter */
    trace_text_memory(t, 1, 0, 1075, 64, 512, 10512);
    trace_text_memory(t, 1, 0, 1275, 128, 1024, 11536);
    trace_text_memory(t, 1, 0, 1475, 64, -512, 11024);
    struct dpro_graph *g = trace_text_graph();
    const struct graph_memory *m = memory_of(g);
    assert_true(m->gpu);
    assert_int_equal(m->n_blocks, 3);
    assert_int_equal(block_of(m, 10000, 0)->taken, MEMORY_NONE);
    assert_int_equal(block_of(m, 10000, 0)->category, DPRO_MEMORY_OTHER);
    assert_int_equal(m->measured_peak_bytes, 11536);
    assert_int_equal(peak_of(m), 11536);
}

/* ---- settings of a GPU's allocator ---- */

static struct allocator_settings settings_with(const char *memory, const char *snapshot)
{
    struct trace_text *t = two_steps(0, 1);
    if (memory)
        write_text("memory_rank0.json", memory);
    if (snapshot)
        write_text("snapshot_rank0.json", snapshot);
    trace_text_memory(t, 1, 0, 1075, 64, 512, 10512);
    struct dpro_graph *g = trace_text_graph();
    struct allocator_settings settings = memory_of(g)->allocator;
    assert_true(memory_of(g)->gpu);
    return settings;
}

#define SNAPSHOT(settings)                                                                         \
    "{'segments':[],'device_traces':[[{'action':'alloc','addr':4096,'size':500,"                   \
    "'stream':0,'time_us':3}]]" settings "}"
#define MEMORY(allocator)                                                                          \
    "{'schema':'dpro.memory/1','device':'cuda:0','allocator':'" allocator "','blocks':[]}"

TEST(a_gpus_settings_are_the_snapshots_else_those_of_memory_json)
{
    struct allocator_settings s = settings_with(NULL, SNAPSHOT(""));
    assert_int_equal(s.known, DPRO_ALLOCATOR_ASSUMED);
    s = settings_with(MEMORY("max_split_size_mb:64"), SNAPSHOT(""));
    assert_int_equal(s.known, DPRO_ALLOCATOR_KNOWN);
    assert_int_equal(s.max_split_bytes, 64 << 20);
    s = settings_with(
        MEMORY("max_split_size_mb:64"),
        SNAPSHOT(
            ",'allocator_settings':{'PYTORCH_CUDA_ALLOC_CONF':'','expandable_segments':true}"));
    assert_int_equal(s.known, DPRO_ALLOCATOR_KNOWN);
    assert_true(s.expandable_segments);
    assert_true(s.max_split_bytes == ALLOCATOR_UNLIMITED);
}

/* ---- what the recorder says was held ---- */

#define HELD(blocks, more)                                                                         \
    "{'schema':'dpro.memory/1','rank':0,'device':'cpu','when_ns':1,"                               \
    "'capacity_bytes':5000,'modules':[['','Net'],['fc','Linear']],'blocks':[" blocks "]" more "}"

TEST(what_memory_json_lists_is_counted_once)
{
    struct trace_text *t = two_steps(0, 1);
    write_text("memory_rank0.json",
               HELD("['parameter','fc.weight',1000,400],['gradient','fc.weight',2000,400],['"
                    "gradient','fc.bias',3000,8],['bucket','bucket 0',0,408]",
                    ""));
    trace_text_memory(t, 1, -1, 75, 9000, 400, -1);  /* the gradient, made anew */
    trace_text_memory(t, 1, -1, 1075, 3004, 20, -1); /* where the bias' gradient was */
    struct dpro_graph *g = trace_text_graph();
    const struct graph_memory *m = memory_of(g);
    assert_int_equal(m->n_blocks, 4);
    assert_int_equal(m->capacity_bytes, 5000);
    assert_string_equal(name_of(g, block_of(m, 400, 1)->name), "fc.weight");
    assert_int_equal(block_of(m, 400, 1)->category, DPRO_MEMORY_PARAMETER);
    assert_int_equal(block_of(m, 408, 0)->category, DPRO_MEMORY_BUCKET);
    assert_int_equal(peak_of(m), 400 + 400 + 408 + 20);
    assert_int_equal(m->measured_peak_bytes, peak_of(m));
}

/* The profiler counts what it lists nothing of: the blocks' sum is not what was measured. */
TEST(the_measured_peak_is_what_the_profiler_counted)
{
    struct trace_text *t = two_steps(0, 1);
    write_text("memory_rank0.json", HELD("['parameter','fc.weight',1000,400]", ""));
    trace_text_memory(t, 1, -1, 75, 9000, 50, 50);
    trace_text_memory(t, 1, -1, 1075, 64, 100, 150);
    trace_text_memory(t, 1, -1, 1275, 256, 30, 380); /* 200 in between are missing */
    struct dpro_graph *g = trace_text_graph();
    const struct graph_memory *m = memory_of(g);
    assert_int_equal(peak_of(m), 400 + 50 + 100 + 30);
    assert_int_equal(m->measured_peak_bytes, 400 + 50 + 100 + 200 + 30);
}

TEST(what_is_there_when_the_second_step_begins_is_told)
{
    struct trace_text *t = two_steps(0, 1);
    write_text("memory_rank0.json", HELD("['gradient','fc.weight',2000,400]", ",'freed':[]"));
    trace_text_memory(t, 1, -1, 75, 9000, 400, -1); /* stays: as large, by chance */
    struct dpro_graph *g = trace_text_graph();
    assert_int_equal(memory_of(g)->n_blocks, 2);
    assert_int_equal(peak_of(memory_of(g)), 800);
}

/* ---- modules, autograd, tensors ---- */

#define NODE(name, id, inputs, outputs)                                                            \
    "{'name': '" name "', 'id': " id ", 'rf_id': " id ", 'parent': 0, 'inputs': [" inputs          \
    "], 'outputs': [" outputs "]}"

static void op(struct trace_text *t, const char *name, int id, int64_t start, int64_t dur,
               const char *more)
{
    char args[200];
    snprintf(args, sizeof args, "'Record function id': %d%s%s", id, *more ? ", " : "", more);
    trace_text_cpu(t, "cpu_op", name, 1, start, dur, args);
}

/* The batch, fc's output, a workspace, what relu makes; the gradient. */
static void record_allocations(struct trace_text *t)
{
    allocations(
        t,
        "2025 64 80; 2120 192 48; 2125 256 33; 2130 256 -33; 2245 320 48;2430 192 -48;" /* fc's
                                                                                           output:
                                                                                           relu's
                                                                                           backward
                                                                                           had it */
        "2520 384 60; 2605 64 -80");
}

/* A batch of 4 samples of 5; Net calls fc, which makes 4 x 3 of it with a weight of 3 x 5, and what
 * it made is lost in its own backward pass, which makes the weight's gradient. */
static struct dpro_graph *training_job_with(bool allocates, bool library)
{
    struct trace_text *timing = trace_text_begin(0, 1);
    struct trace_text *t = trace_text_window(0, 1, "later.json");
    for (int s = 0; s < 3; s++) {
        int64_t at = 1000 * s;
        struct trace_text *to = s < 2 ? timing : t;
        int first = 10 * (2 - s); /* number of record functions before it */
        trace_text_step(to, s, at, 1000);
        int number = s < 2 ? 7 : 47; /* autograd counts on */
        trace_text_spans(
            to, at,
            "20+30 aten::randn{'Record function id': %d};110+100 #%d aten::mm{'Record function "
            "id': %d};240+20 #%d aten::relu{'Record function id': %d};400+50 ^%d "
            "~ReluBackward0{'Record function id': %d};500+100 ^%d ~MmBackward0{'Record function "
            "id': %d};510+80 aten::mm{'Record function id': %d};620+20 "
            "torch::autograd::AccumulateGrad{'Record function id': %d}",
            first + 1, number, first + 2, number + 1, first + 3, number + 1, first + 4, number,
            first + 5, first + 6, first + 7);
    }
    trace_text_spans(t, 2000, "100+200 ! dpro.module:; 105+120 ! dpro.module:fc");
    if (allocates)
        record_allocations(t);
    if (library) { /* fc's output is empty first, then made large; scratch that 4 does not divide */
        op(t, "aten::resize_", 8, 2118, 4, "");
        allocations(t, "2150 256 163; 2160 256 -163");
    }
    write_text("memory_rank0.json", HELD("['parameter','fc.weight',1000,60]", ",'freed':[]"));
    write_text("rank.json",
               "{'schema':'dpro.rank/1','rank':0,'world_size':1,'batch_size':4,'complete':true}");
    struct trace_text *et = trace_text_execution("et_rank0.json");
    trace_text_node(et, NODE("aten::randn", "1", "", "[1, 10, 0, 20, 4, 'cpu']"));
    trace_text_node(et,
                    "," NODE("aten::mm", "2", "[1, 10, 0, 20, 4, 'cpu'], [2, 11, 0, 15, 4, 'cpu']",
                             "[3, 12, 0, 12, 4, 'cpu']"));
    trace_text_node(
        et, "," NODE("aten::relu", "3", "[3, 12, 0, 12, 4, 'cpu']", "[4, 13, 0, 12, 4, 'cpu']"));
    trace_text_node(et, "," NODE("autograd::engine::evaluate_function: ReluBackward0", "4",
                                 "[3, 12, 0, 12, 4, 'cpu']", ""));
    trace_text_node(et,
                    "," NODE("aten::mm", "6", "[4, 13, 0, 12, 4, 'cpu'], [1, 10, 0, 20, 4, 'cpu']",
                             "[5, 12, 0, 15, 4, 'cpu']")); /* the storage's number again */
    trace_text_node(
        et, "," NODE("torch::autograd::AccumulateGrad", "7", "[5, 12, 0, 15, 4, 'cpu']", ""));
    if (library)
        trace_text_node(et, "," NODE("aten::resize_", "8", "[3, 12, 0, 0, 4, 'cpu']",
                                     "[3, 12, 0, 12, 4, 'cpu']"));
    return trace_text_graph();
}

/* Tensors of ops whose times are not there: what was there before is no peak. */
TEST(an_execution_trace_without_its_profile_tells_nothing)
{
    two_steps(0, 1);
    write_text("memory_rank0.json", HELD("['parameter','fc.weight',1000,60]", ",'freed':[]"));
    struct trace_text *et = trace_text_execution("et_rank0.json");
    trace_text_node(et, NODE("aten::elsewhere", "77", "", "[1, 10, 0, 20, 4, 'cpu']"));
    struct dpro_graph *g = trace_text_graph();
    assert_null(g->memory);
}

static struct dpro_graph *training_job(void)
{
    return training_job_with(true, false);
}

TEST(calls_have_their_forward_and_backward_passes)
{
    struct dpro_graph *g = training_job();
    char found[400], *at = found;
    for (uint32_t i = 0; i < memory_of(g)->n_calls; i++) {
        const struct graph_call *c = &memory_of(g)->calls[i];
        at += sprintf(at, "'%s' %s in %d: moments %u-%u, %u-%u; us %lld, %lld; %s, %s\n",
                      name_of(g, c->module), name_of(g, c->class), (int)c->parent, c->forward_first,
                      c->forward_last, c->backward_first, c->backward_last,
                      (long long)(c->forward_ns / US), (long long)(c->backward_ns / US),
                      name_of(g, g->name[c->first_forward_op]),
                      name_of(g, g->name[c->first_backward_op]));
    }
    assert_string_equal(found, "'' Net in -1: moments 1-5, 5-7; us 120, 150; aten::mm, "
                               "autograd::engine::evaluate_function: ReluBackward0\n"
                               "'fc' Linear in 0: moments 1-4, 6-7; us 100, 100; aten::mm, "
                               "autograd::engine::evaluate_function: MmBackward0\n");
}

TEST(blocks_have_what_they_are_for_and_what_uses_them)
{
    struct dpro_graph *g = training_job();
    assert_int_equal(memory_of(g)->batch_size, 4);
    check_known(g, "80 0-7 input 'aten::randn' call -1 item 4 scales: -1@0 1@1 1b@6\n"
                   "48 1-5 activation 'aten::mm' call 1 item 4 scales: 1@1 0@4 0b@5\n"
                   "33 2-3 workspace 'aten::mm' call 1 item 0:\n"
                   "48 4--1 activation 'aten::relu' call 0 item 4 scales: 0@4 1b@6\n"
                   "60 6--1 gradient 'aten::mm' call 1 item 4: 1b@6 -1b@8\n"
                   "60 -1--1 parameter 'fc.weight' call -1 item 4: 1@1\n");
}

/* Three ops that use storages nobody has listed: a weight, its gradient's bucket, its state. */
TEST(without_a_list_tensors_tell_what_was_there_before)
{
    struct trace_text *t = trace_text_begin(0, 1);
    for (int s = 0; s < 2; s++) {
        trace_text_step(t, s, 1000 * s, 1000);
        op(t, "aten::mm", 10 * s + 1, 1000 * s + 100, 100, "'Sequence number': 7");
        op(t, "autograd::engine::evaluate_function: MmBackward0", 10 * s + 2, 1000 * s + 300, 100,
           "'Sequence number': 7, 'Fwd thread id': 1");
        op(t, "aten::mul_", 10 * s + 3, 1000 * s + 500, 100, "");
    }
    trace_text_memory(t, 1, -1, 1150, 64, 1, -1);
    struct trace_text *et = trace_text_execution("et_rank0.json");
    for (int s = 0; s < 2; s++) {
        char text[1000];
        snprintf(text, sizeof text,
                 "%s{'name': 'aten::mm', 'id': %d1, 'rf_id': %d1, 'parent': 0, 'inputs': [[1, 10, "
                 "0, 20, 4, 'cpu']], 'outputs': []},"
                 "{'name': 'autograd::engine::evaluate_function: MmBackward0', 'id': %d2, 'rf_id': "
                 "%d2, 'parent': 0, 'inputs': [[2, 11, 0, 5, 4, 'cpu'], "
                 "[3, 11, 5, 25, 4, 'cpu']], 'outputs': []},"
                 "{'name': 'aten::mul_', 'id': %d3, 'rf_id': %d3, 'parent': 0, "
                 "'inputs': [[1, 10, 0, 20, 4, 'cpu'], [4, 12, 0, 10, 8, 'cpu']], 'outputs': [[1, "
                 "10, 0, 20, 4, 'cpu']]}",
                 s ? "," : "", s, s, s, s, s, s);
        trace_text_node(et, text);
    }
    struct dpro_graph *g = trace_text_graph();
    const struct graph_memory *m = memory_of(g);
    assert_int_equal(m->n_blocks, 4);
    assert_int_equal(block_of(m, 80, 0)->category, DPRO_MEMORY_PARAMETER);
    assert_int_equal(block_of(m, 120, 0)->category, DPRO_MEMORY_BUCKET);
    assert_int_equal(block_of(m, 80, 1)->category, DPRO_MEMORY_STATE);
    assert_int_equal(m->measured_peak_bytes, 281);
}

TEST(without_allocations_storages_live_from_their_first_use_to_the_last)
{
    struct dpro_graph *g = training_job_with(false, false);
    const struct graph_memory *m = memory_of(g);
    assert_int_equal(m->source, DPRO_MEMORY_EXECUTION_TRACE);
    assert_int_equal(m->measured_peak_bytes, 0);
    assert_int_equal(m->n_moments, 8);
    /* what relu keeps goes when its function is over, and its storage's number is the gradient's */
    check_known(g, "80 0-5 input 'aten::randn' call -1 item 4 scales: -1@0 1@1 1b@4\n"
                   "48 1-3 activation 'aten::mm' call 1 item 4 scales: 1@1 0@2 0b@3\n"
                   "48 2-6 activation 'aten::relu' call 0 item 4 scales: 0@2 1b@4\n"
                   "60 4-7 gradient 'aten::mm' call 1 item 4: 1b@4 -1b@7\n"
                   "60 -1--1 parameter 'fc.weight' call -1 item 4: 1@1\n");
    assert_int_equal(peak_of(m), 60 + 80 + 48 + 60);
}

/* A convolution of 4 samples of 5 by a weight of 15, whose results are made by `maker`. */
static struct dpro_graph *convolution_job(const char *maker)
{
    struct trace_text *timing = trace_text_begin(0, 1);
    struct trace_text *t = trace_text_window(0, 1, "later.json");
    for (int s = 0; s < 3; s++) {
        int64_t at = 1000 * s;
        struct trace_text *to = s < 2 ? timing : t;
        int first = 20 * (2 - s);
        trace_text_step(to, s, at, 1000);
        op(to, "aten::randn", first + 1, at + 20, 30, "");
        op(to, "aten::mkldnn_convolution", first + 2, at + 100, 100, "'Sequence number': 7");
        op(to, maker, first + 3, at + 180, 2, "");
        op(to, "aten::ones_like", first + 4, at + 260, 20, "");
        op(to, "autograd::engine::evaluate_function: ConvolutionBackward0", first + 5, at + 300,
           210, "'Sequence number': 7, 'Fwd thread id': 1");
        op(to, "aten::convolution_backward", first + 6, at + 305, 200, "");
        op(to, maker, first + 7, at + 400, 2, "");
        op(to, "aten::as_strided_", first + 8, at + 420, 2, "");
        op(to, maker, first + 9, at + 495, 2, "");
        op(to, "torch::autograd::AccumulateGrad", first + 10, at + 520, 20, "");
    }
    write_text("memory_rank0.json", HELD("['parameter','weight',1000,60]", ",'freed':[]"));
    write_text("rank.json",
               "{'schema':'dpro.rank/1','rank':0,'world_size':1,'batch_size':4,'complete':true}");
#define INPUT           "[1, 10, 0, 20, 4, 'cpu']"
#define WEIGHT          "[2, 11, 0, 15, 4, 'cpu']"
#define OUTPUT          "[3, 12, 0, 12, 4, 'cpu']"
#define OUTPUT_GRADIENT "[4, 13, 0, 12, 4, 'cpu']"
#define INPUT_GRADIENT  "[5, 14, 0, 20, 4, 'cpu']"
#define WEIGHT_GRADIENT "[6, 15, 0, 15, 4, 'cpu']"
    struct trace_text *et = trace_text_execution("et_rank0.json");
    trace_text_node(et, NODE("aten::randn", "1", "", INPUT));
    trace_text_node(et, "," NODE("aten::mkldnn_convolution", "2", INPUT ", " WEIGHT, OUTPUT));
    trace_text_node(et, "," NODE("aten::ones_like", "4", OUTPUT, OUTPUT_GRADIENT));
    trace_text_node(et, "," NODE("aten::convolution_backward", "6",
                                 OUTPUT_GRADIENT ", " INPUT ", " WEIGHT,
                                 INPUT_GRADIENT ", " WEIGHT_GRADIENT));
    trace_text_node(et, "," NODE("aten::as_strided_", "8", INPUT_GRADIENT, INPUT_GRADIENT));
    trace_text_node(et, "," NODE("torch::autograd::AccumulateGrad", "10",
                                 INPUT_GRADIENT ", " WEIGHT_GRADIENT, ""));
    static const char *const made[] = {"3", OUTPUT, "7", INPUT_GRADIENT, "9", WEIGHT_GRADIENT};
    for (int i = 0; i < 6; i += 2) {
        char text[300];
        snprintf(
            text, sizeof text,
            ",{'name': '%s', 'id': %s, 'rf_id': %s, 'parent': 0, 'inputs': [], 'outputs': [%s]}",
            maker, made[i], made[i], made[i + 1]);
        trace_text_node(et, text);
    }
    return trace_text_graph();
}

TEST(a_convolution_on_a_cpu_makes_copies_of_what_it_takes_and_puts_out)
{
    struct dpro_graph *g = convolution_job("aten::empty");
    const struct graph_memory *m = memory_of(g);
    uint32_t n = 0;
    for (uint32_t i = 0; i < m->n_blocks; i++) {
        if (m->blocks[i].category != DPRO_MEMORY_WORKSPACE)
            continue;
        assert_int_equal(m->blocks[i].scales, m->blocks[i].size_bytes != 60);
        n++;
    }
    assert_int_equal(n, 9);
    /* weight, input, gradients of output and input; the copies for the weight's gradient */
    assert_int_equal(peak_of(m), 60 + 80 + 48 + 80 + (48 + 80 + 60));
}

TEST(a_convolution_of_tensors_with_channels_last_makes_none)
{
    struct dpro_graph *g = convolution_job("aten::resize_");
    const struct graph_memory *m = memory_of(g);
    for (uint32_t i = 0; i < m->n_blocks; i++)
        assert_int_not_equal(m->blocks[i].category, DPRO_MEMORY_WORKSPACE);
}

TEST(what_a_library_asks_for_scales_with_the_batch)
{
    check_known(training_job_with(true, true),
                "80 0-9 input 'aten::randn' call -1 item 4 scales: -1@0 1@1 1b@8\n"
                "48 1-7 activation 'aten::mm' call 1 item 4 scales: 1@1 0@6 0b@7\n"
                "33 2-3 workspace 'aten::mm' call 1 item 0:\n"
                "163 4-5 workspace 'aten::mm' call 1 item 0 scales:\n"
                "48 6--1 activation 'aten::relu' call 0 item 4 scales: 0@6 1b@8\n"
                "60 8--1 gradient 'aten::mm' call 1 item 4: 1b@8 -1b@10\n"
                "60 -1--1 parameter 'fc.weight' call -1 item 4: 1@1\n");
}

/* FSDP's: a collective makes each rank's part of a gradient, which the optimizer takes in. */
TEST(what_a_collective_makes_for_the_optimizer_is_a_gradient)
{
    struct trace_text *t = trace_text_begin(0, 1);
    for (int s = 0; s < 2; s++) {
        trace_text_step(t, s, 1000 * s, 1000);
        op(t, "autograd::engine::evaluate_function: MmBackward0", 10 * s + 1, 1000 * s + 100, 300,
           "'Sequence number': 7, 'Fwd thread id': 1");
        op(t, "c10d::_reduce_scatter_base_", 10 * s + 2, 1000 * s + 150, 100, "");
        trace_text_cpu(t, "user_annotation", "Optimizer.step#SGD.step", 1, 1000 * s + 500, 200, "");
        op(t, "aten::add_", 10 * s + 3, 1000 * s + 550, 100, "");
    }
    allocations(t, "1160 64 40; 1170 128 24; 1240 128 -24"); /* 24: the collective's own */
    struct trace_text *et = trace_text_execution("et_rank0.json");
    for (int s = 0; s < 2; s++) {
        char text[700];
        snprintf(
            text, sizeof text,
            "%s{'name': 'c10d::_reduce_scatter_base_', 'id': %d2, 'rf_id': %d2, 'parent': 0, "
            "'inputs': [[1, 10, 0, 20, 4, 'cpu']], 'outputs': [[2, 11, 0, 10, 4, 'cpu']]},"
            "{'name': 'aten::add_', 'id': %d3, 'rf_id': %d3, 'parent': 0, 'inputs': [[3, 12, 0, "
            "10, 4, 'cpu'], [2, 11, 0, 10, 4, 'cpu']], 'outputs': [[3, 12, 0, 10, 4, 'cpu']]}",
            s ? "," : "", s, s, s, s);
        trace_text_node(et, text);
    }
    struct dpro_graph *g = trace_text_graph();
    const struct graph_memory *m = memory_of(g);
    assert_int_equal(block_of(m, 40, 0)->taken, 0);
    assert_int_equal(block_of(m, 40, 0)->category, DPRO_MEMORY_GRADIENT);
    assert_int_equal(block_of(m, 24, 0)->category, DPRO_MEMORY_COMMUNICATION);
}

/* Its thread may do that, of which the profiler sees nothing. */
TEST(what_a_collective_takes_for_itself_goes_with_it)
{
    struct trace_text *t = trace_text_begin(0, 1);
    for (int s = 0; s < 2; s++) {
        trace_text_step(t, s, 1000 * s, 1000);
        op(t, "c10d::_reduce_scatter_base_", 10 * s + 1, 1000 * s + 100, 100, "");
        op(t, "aten::add_", 10 * s + 2, 1000 * s + 550, 100, "");
    }
    /* 50 bytes of the iteration before; 8 in the place of 40 */
    allocations(t, "110 512 50; 1110 64 40; 1600 64 8");
    struct dpro_graph *g = trace_text_graph();
    const struct graph_memory *m = memory_of(g);
    check_blocks(m, "40 0-1; 8 2-");
}

TEST(ranks_with_and_without_allocations)
{
    struct trace_text *t = two_steps(0, 2);
    trace_text_memory(t, 1, -1, 1075, 64, 100, -1);
    two_steps(1, 2);
    struct dpro_graph *g = trace_text_graph();
    assert_int_equal(g->memory[0].source, DPRO_MEMORY_ALLOCATIONS);
    assert_int_equal(g->memory[1].source, DPRO_MEMORY_UNKNOWN);
    assert_int_equal(g->memory[1].n_blocks, 0);

    two_steps(0, 1);
    g = trace_text_graph();
    assert_null(g->memory);
}
