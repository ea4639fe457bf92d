/* Whichever allocation fails, building and replaying a graph, aligning clocks and reading plans and
 * steps says so, leaks nothing (the address sanitizer looks) and changes no output. malloc and kin
 * are wrapped by the linker. */

#include <dpro/verify.h>

#include "align/align.h"
#include "case.h"
#include "graph_op.h"
#include "ingest/trace.h"
#include "nomem.h"
#include "replay/replay.h"
#include "temp_folder.h"

static void add_all(struct graph_builder *b)
{
    static const enum dpro_op_kind kinds[] = {DPRO_OP_FW, DPRO_OP_BW, DPRO_OP_COLLECTIVE,
                                              DPRO_OP_BARRIER};
    for (int rank = 0; rank < 2; rank++)
        graph_builder_add_device(b, DPRO_DEVICE_CPU_THREAD, rank, "thread");
    for (uint32_t op = 0; op < 80; op++) {
        struct dpro_op add = {.kind = kinds[op % 4],
                              .rank = (int)(op / 40),
                              .device = op % 4 < 2 ? op / 40 : DPRO_NO_DEVICE,
                              .name = "op",
                              .dur_ns = op + 1,
                              .gap_ns = op == 30,
                              .tensor = op == 50 ? "w" : NULL};
        add_op(b, &add, op % 40 == 39 ? GRAPH_OP_BOUNDARY : 0);
        if (op % 40)
            graph_builder_add_edge(b, op - 1, op, false);
        if (op % 40 == 39)
            graph_builder_add_edge(b, op, op - 39, true);
    }
    graph_builder_add_edge(b, 42, 3, false); /* not in the order of ids */
}

static int make(struct dpro_graph **graph, struct dpro_error *err)
{
    struct graph_builder *b = graph_builder_create();
    add_all(b);
    *graph = graph_builder_finish(b);
    return 0;
}

static int build(struct dpro_graph **graph, struct dpro_error *err)
{
    return WITHIN_SCOPE(dpro_error_nomem(err), make(graph, err));
}

static void add_samples(struct dpro_graph *g)
{
    g->n_samples = 3;
    g->sample_dur_ns = arena_array(&g->arena, 3 * g->n_ops, sizeof(int64_t));
    g->measured_ns = arena_array(&g->arena, 3, sizeof(int64_t));
    for (uint32_t i = 0; i < 3 * g->n_ops; i++)
        g->sample_dur_ns[i] = i % 17;
    for (uint32_t s = 0; s < 3; s++)
        g->measured_ns[s] = 700;
}

/* Each op takes a block that the next one gives back; the second rank is on a GPU. */
static void add_memory(struct dpro_graph *g)
{
    g->memory = arena_array(&g->arena, 2, sizeof *g->memory);
    for (uint32_t r = 0; r < 2; r++) {
        struct graph_memory *m = &g->memory[r];
        m->gpu = r == 1;
        m->blocks = arena_array(&g->arena, 40, sizeof *m->blocks);
        m->moments = arena_array(&g->arena, 80, sizeof *m->moments);
        m->calls = arena_array(&g->arena, 1, sizeof *m->calls);
        m->n_calls = 1;
        for (uint32_t op = r * 40; op < r * 40 + 40; op++) {
            struct graph_block *block = &m->blocks[m->n_blocks++];
            *block = (struct graph_block){.size_bytes = op << 20, .given = MEMORY_NONE};
            block->taken = op % 8 ? m->n_moments : MEMORY_NONE;
            block->call = op % 2 ? 0 : MEMORY_NONE;
            block->name = g->name[op];
            if (op % 8)
                m->moments[m->n_moments++] =
                    (struct graph_moment){.op = op, .block = m->n_blocks - 1};
            if (m->n_blocks > 1) {
                m->blocks[m->n_blocks - 2].given = m->n_moments;
                m->moments[m->n_moments++] =
                    (struct graph_moment){.op = op, .gives = true, .block = m->n_blocks - 2};
            }
        }
    }
}

static int replay(const struct dpro_graph *g, struct dpro_error *err)
{
    const char *delays[] = {"FW=2", "op@1=+0.001"};
    struct dpro_replay_options options = {
        .samples = 3, .skip_sample = 2, .delays = delays, .n_delays = 2};
    struct dpro_replay *r = NULL;
    int rc = dpro_replay_run(g, &options, &r, err);
    assert_true((rc == 0) == (r != NULL));
    dpro_replay_destroy(r);
    return rc;
}

TEST(building_survives_any_failed_allocation)
{
    int rc = DPRO_ENOMEM;
    for (long n = 0; rc != 0; n++) {
        struct dpro_graph *g = NULL;
        struct dpro_error err = {0};
        nomem_n_left = n;
        rc = build(&g, &err);
        nomem_n_left = -1;
        assert_true(rc == 0 || rc == DPRO_ENOMEM);
        assert_true((rc == 0) == (g != NULL));
        dpro_graph_destroy(g);
    }
}

TEST(replaying_survives_any_failed_allocation)
{
    struct dpro_graph *g = NULL;
    struct dpro_error err;
    assert_int_equal(build(&g, &err), 0);
    add_samples(g);
    add_memory(g);
    static struct graph_collective lone = {.barrier = DPRO_NO_OP}; /* else there is no Daydream */
    g->collectives = &lone;
    g->n_collectives = 1;
    for (int what = 0; what < 3; what++) {
        int rc = DPRO_ENOMEM;
        long n = 0;
        for (; rc != 0; n++) {
            struct dpro_validation v;
            struct dpro_daydream d;
            err = (struct dpro_error){0};
            nomem_n_left = n;
            rc = what == 0   ? replay(g, &err)
                 : what == 1 ? dpro_replay_validate(g, NULL, &v, &err)
                             : dpro_replay_daydream(g, 1e9, &d, &err);
            nomem_n_left = -1;
            assert_true(rc == 0 || (rc == DPRO_ENOMEM && err.code == DPRO_ENOMEM));
        }
        assert_true(n > 20); /* the wrapping works */
    }
    dpro_graph_destroy(g);
}

static int align(void)
{
    struct align *a = align_create(3);
    for (int i = 0; i < 200; i++) {
        uint32_t from = (uint32_t)i % 3, to = (from + 1 + (uint32_t)i / 3 % 2) % 3;
        uint32_t pair = align_pair(a, from, to);
        int64_t at = i * INT64_C(20000000), back = i == 100 ? INT64_C(-9000000) : 0;
        align_before(a, pair, from, at, at + 10000 + back, 0);
        if (i % 10 == 0)
            align_near(a, pair, from, at, at);
        align_keep(a, 2);
    }
    align_solve(a);
    align_destroy(a);
    return 0;
}

TEST(aligning_survives_any_failed_allocation)
{
    int rc = -1;
    long n = 0;
    for (; rc != 0; n++) {
        nomem_n_left = n;
        rc = WITHIN_SCOPE(-1, align());
        nomem_n_left = -1;
    }
    assert_true(n > 40);
}

static const struct dpro_plan_summary expected = {.stack = "ddp"};
static const char plan[] =
    "{'schema':'dpro.plan/1','job':{'framework':'pytorch','world_size':2,'models':["
    "{'name':'n','parameters':[{'name':'a','size_bytes':4}]}]},'communication':"
    "{'buckets':[{'parameters':['a'],'size_bytes':4}]}}";
static const char steps[] =
    "{'schema':'dpro.verify-steps/1','turns':["
    "{'block':0,'name':'own','span_ns':200,'step_ns':[100,90],'bucket_bytes':[4]},"
    "{'block':0,'name':'plan','span_ns':200,'step_ns':[100,90],'bucket_bytes':[4]},"
    "{'block':0,'name':'plan','span_ns':200,'step_ns':[100,90],'bucket_bytes':[4]},"
    "{'block':0,'name':'own','span_ns':200,'step_ns':[100,90],'bucket_bytes':[4]}]}";

TEST_IN_FOLDER(reading_plans_and_steps_survives_any_failed_allocation)
{
    struct dpro_plan_summary summary;
    struct dpro_verify *verify = NULL;
    write_text("plan.json", plan);
    write_text("steps.json", steps);
    const char *path = in_folder("steps.json");
    long n_before = nomem_n_blocks;
    for (int what = 0; what < 3; what++) {
        int rc = DPRO_ENOMEM;
        long n = 0;
        for (; rc != 0; n++) {
            struct dpro_error err = {0};
            nomem_n_left = n;
            rc = what == 0   ? dpro_plan_read(folder, &summary, &err)
                 : what == 1 ? dpro_verify_check_run(path, &err)
                             : dpro_verify_read(&path, 1, &expected, "why", &verify, &err);
            nomem_n_left = -1;
            assert_true(rc == 0 || (rc == DPRO_ENOMEM && err.code == DPRO_ENOMEM));
            assert_true(verify || nomem_n_blocks == n_before);
        }
        assert_true(n > 10);
    }
    dpro_verify_destroy(verify);
}

static const char profile[] =
    "{'schemaVersion':1,'distributedInfo':{'rank':0,'world_size':1},'traceEvents':["
    "{'ph':'X','cat':'cpu_op','name':'a','pid':5,'tid':6,'ts':1,'dur':9},"
    "{'ph':'X','cat':'cpu_op','name':'dpro.module:a','pid':5,'tid':6,'ts':1,'dur':9},{'ph':'i','"
    "name':'[memory]','pid':5,'tid':6,'ts':2,'args':{'Bytes':4,'Addr':8}}]}";
static const char held[] = "{'schema':'dpro.memory/"
                           "1','device':'cpu','modules':[['','N']],'blocks':[['parameter','w',64,"
                           "64],['parameter','w',64,64]]}";
/* {"segments": [{"address": 1, "total_size": 4, "blocks": [{"size": 4, "state": "inactive"}]}],
 * "device_traces": [[{"action": "alloc", "addr": 1, "size": 4, "time_us": 3, "pool_id": (0, 1)}]]}
 */
static const char snapshot[] =
    "\x80\4}(\x8c\10segments]}(\x8c\7addressK\1\x8c\12total_sizeK\4\x8c\6blocks]}(\x8c\4sizeK\4"
    "\x8c\5state\x8c\10inactiveuaua\x8c\15device_traces]]}(\x8c\6action\x8c\5alloc\x8c\4addrK\1"
    "\x8c\4sizeK\4\x8c\7time_usK\3\x8c\7pool_idK\0K\1\x86uaau.";

TEST_IN_FOLDER(loading_memory_survives_any_failed_allocation)
{
    const struct dpro_job_options options = {.threads = 1};
    write_text("rank0/kineto.json", profile);
    write_text("rank0/memory.json", held);
    write_bytes("rank0/snapshot.pickle", snapshot, sizeof snapshot - 1);
    const char *const paths[] = {in_folder("rank0/kineto.json"), in_folder("rank0/memory.json"),
                                 in_folder("rank0/snapshot.pickle")};
    long n_before = nomem_n_blocks, n = 0;
    for (int rc = DPRO_ENOMEM; rc != 0; n++) {
        struct dpro_trace *trace = NULL;
        struct dpro_error err = {0};
        nomem_n_left = n;
        rc = dpro_trace_load(paths, 3, &options, &trace, &err);
        nomem_n_left = -1;
        assert_true(rc == 0 || (rc == DPRO_ENOMEM && err.code == DPRO_ENOMEM));
        if (trace) {
            assert_int_equal(trace->ranks[0].n_allocations, 1);
            assert_int_equal(trace->ranks[0].allocations[0].device, 0); /* the snapshot's */
            assert_int_equal(trace->ranks[0].n_module_calls, 1);
            assert_int_equal(trace->ranks[0].held->n_blocks, 1);
            assert_non_null(trace->ranks[0].snapshot_settings);
        }
        dpro_trace_destroy(trace);
        assert_int_equal(nomem_n_blocks, n_before);
    }
    assert_true(n > 50);
}
