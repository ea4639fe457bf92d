/* Jobs of several dimensions of parallelism, written as PyTorch's profiler writes them: what is
 * found, with which groups; and groups that fit no grid. */

#include <dpro/dimensions.h>

#include "case.h"
#include "graph/dimensions/rank_grid.h"
#include "graph/dimensions/traffic.h"
#include "trace_text.h"

enum { STEP = 10000, N_STEPS = 3, FORWARD = 1, BACKWARD, AFTER };

/* A collective, or a send and its receive. Its groups are boxes of `size` ranks, `stride` apart, or
 * as `list` says. */
struct comm {
    const char *collective;
    int when;
    unsigned numel;
    int stride, size;
    const char *description;
    const char *const *list; /* by rank; NULL entries: the rank takes no part */
    int pass;                /* send to the next of the group (1), or to the one before (-1) */
};

static void add_kernel(struct trace_text *t, const char *collective, int thread, int64_t at,
                       const char *args)
{
    static const char *const kernels[][2] = {
        {"allreduce", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"},
        {"_allgather_base", "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"},
        {"_reduce_scatter_base",
         "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"},
        {"all_to_allv", "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"},
        {"send", "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"},
        {"recv", "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"}};
    for (size_t k = 0; k < sizeof kernels / sizeof *kernels; k++)
        if (strcmp(collective, kernels[k][0]) == 0)
            trace_text_kernel(t, kernels[k][1], thread, at, 4, 20, at + 5, 10, args);
}

static void add_comm(struct trace_text *t, int rank, const struct comm *c, int thread, int64_t at)
{
    char ranks[200] = "", args[600], peer[40] = "";
    int place = c->size > 0 ? rank / c->stride % c->size : 0, first = rank - place * c->stride;
    for (int i = 0; i < c->size; i++)
        snprintf(ranks + strlen(ranks), sizeof ranks - strlen(ranks), "%s%d", i ? ", " : "[",
                 first + i * c->stride);
    snprintf(ranks + strlen(ranks), sizeof ranks - strlen(ranks), "]");
    if (c->list) {
        if (!c->list[rank])
            return;
        snprintf(ranks, sizeof ranks, "%s", c->list[rank]);
    }
    for (int end = 0; end < (c->pass ? 2 : 1); end++) {
        bool around = strcmp(c->collective, "ring") == 0;
        int to = place + (end ? -c->pass : c->pass);
        to = around ? (to + c->size) % c->size : to;
        const char *what = !c->pass ? c->collective : end ? "recv" : "send";
        if (c->pass && (to < 0 || to >= c->size))
            continue;
        if (c->pass)
            snprintf(peer, sizeof peer, ",\"%s Rank\":%d", end ? "Src" : "Dst",
                     first + to * c->stride);
        snprintf(args, sizeof args,
                 "\"Collective name\":\"%s\",\"In msg nelems\":%u,\"Out msg nelems\":%u,"
                 "\"Group size\":%d,\"dtype\":\"Float\",\"Process Group Name\":\"%s %s\","
                 "\"Process Group Description\":\"%s\",\"Process Group Ranks\":\"%s\"%s",
                 what, c->numel, c->numel, c->list ? 0 : c->size,
                 c->description ? c->description : "", ranks, c->description ? c->description : "",
                 ranks, peer);
        if (text_is_one(c->collective, "grouped", "ring"))
            trace_text_cpu(t, "cpu_op", "record_param_comms", thread, at + 2 * end, 1, args);
        else
            add_kernel(t, what, thread, at + 40 * end, args);
    }
    if (text_is_one(c->collective, "grouped", "ring"))
        add_kernel(t, "send", thread, at + 10, "");
}

static void add_rank(int rank, int world, const struct comm *comms, size_t n)
{
    struct trace_text *t = trace_text_begin(rank, world);
    for (int s = 0; s < N_STEPS; s++) {
        int64_t at = (int64_t)STEP * s;
        trace_text_step(t, s, at, STEP);
        trace_text_kernel(t, "gemm", 1, at + 10, 4, 7, at + 20, 100, "");
        for (size_t c = 0; c < n; c++)
            if (comms[c].when == FORWARD)
                add_comm(t, rank, &comms[c], 1, at + 200 + 100 * (int64_t)c);
        trace_text_cpu(t, "cpu_op", "autograd::engine::evaluate_function: MmBackward0", 2,
                       at + 3000, 3000, "\"Fwd thread id\":1,\"Sequence number\":5");
        trace_text_kernel(t, "gemm_backward", 2, at + 3010, 4, 7, at + 3020, 100, "");
        for (size_t c = 0; c < n; c++)
            if (comms[c].when == BACKWARD)
                add_comm(t, rank, &comms[c], 2, at + 3200 + 100 * (int64_t)c);
        trace_text_cpu(t, "user_annotation", "Optimizer.step#SGD.step", 1, at + 7000, 2000, "");
        for (size_t c = 0; c < n; c++)
            if (comms[c].when == AFTER)
                add_comm(t, rank, &comms[c], 1, at + 7100 + 100 * (int64_t)c);
        trace_text_kernel(t, "update", 1, at + 8800, 4, 7, at + 8900, 100, "");
    }
}

static struct dpro_graph *job_of(int first, int last, int world, const struct comm *comms, size_t n)
{
    for (int rank = first; rank <= last; rank++)
        add_rank(rank, world, comms, n);
    return trace_text_graph();
}
#define JOB(world, comms) job_of(0, (world)-1, world, comms, sizeof(comms) / sizeof *(comms))

/* "dp 2 [0 2][1 3]; tp 2 [0 1][2 3]", and an asterisk behind what lies over others. */
static const char *describe(const struct dpro_graph *g)
{
    static char text[2000];
    text[0] = '\0';
#define ADD(...) snprintf(text + strlen(text), sizeof text - strlen(text), __VA_ARGS__)
    for (uint32_t i = 0; i < dpro_graph_n_dimensions(g); i++) {
        struct dpro_dimension d = dpro_graph_dimension(g, i);
        ADD("%s%s%s %u ", i ? "; " : "", d.name, d.lies_over ? "*" : "", d.size);
        for (uint32_t k = 0; k < d.n_groups; k++)
            for (uint32_t r = 0; r < d.size; r++)
                ADD("%s%d%s", r ? " " : "[", dpro_graph_dimension_group(g, i, k)[r],
                    r + 1 == d.size ? "]" : "");
    }
#undef ADD
    return text;
}

static void check(struct dpro_graph *g, const char *expected)
{
    assert_string_equal(describe(g), expected);
    assert_string_equal(dpro_graph_dimensions_note(g), "");
}

static int has_evidence(const struct dpro_graph *g, uint32_t dimension, const char *words)
{
    return strstr(dpro_graph_dimension(g, dimension).evidence, words) != NULL;
}

/* ---- tests ---- */

TEST(grouped_sends_and_receives_are_known_by_their_calls)
{
    static const struct comm comms[] = {
        {"grouped", FORWARD, 2048, 1, 2, "pp", NULL, 1},
        {"grouped", BACKWARD, 2048, 1, 2, "pp", NULL, -1},
    };
    struct dpro_graph *g = JOB(4, comms);
    assert_int_equal(dpro_graph_n_collectives(g), 4); /* two pairs, there and back */
    for (uint32_t c = 0; c < 4; c++)
        assert_int_equal(dpro_graph_collective(g, c).n_ranks, 2);
    assert_string_equal(describe(g), "pp 2 [0 1][2 3]");
    assert_true(has_evidence(g, 0, "a rank's 2 sends and receives in forward and backward"));
    static const struct comm chain[] = {
        {"grouped", FORWARD, 2048, 1, 4, NULL, NULL, 1}, /* those within send and receive at once */
    };
    g = JOB(4, chain);
    assert_string_equal(describe(g), "pp 4 [0 1 2 3]");
    for (uint32_t c = 0; c < dpro_graph_n_collectives(g); c++) /* nobody waits for all others */
        assert_true(dpro_graph_collective(g, c).n_ranks <= 2);
}

static const struct comm megatron[] = {
    {"allreduce", FORWARD, 4096, 1, 2, "TENSOR_MODEL_PARALLEL_GROUP", NULL, 0},
    {"allreduce", FORWARD, 4096, 1, 2, "TENSOR_MODEL_PARALLEL_GROUP", NULL, 0},
    {"send", FORWARD, 2048, 4, 2, "PIPELINE_MODEL_PARALLEL_GROUP", NULL, 1},
    {"allreduce", BACKWARD, 4096, 1, 2, "TENSOR_MODEL_PARALLEL_GROUP", NULL, 0},
    {"allreduce", BACKWARD, 4096, 1, 2, "TENSOR_MODEL_PARALLEL_GROUP", NULL, 0},
    {"send", BACKWARD, 2048, 4, 2, "PIPELINE_MODEL_PARALLEL_GROUP", NULL, -1},
    {"allreduce", BACKWARD, 100000, 2, 2, "DATA_PARALLEL_GROUP_WITH_CP", NULL, 0},
    {"allreduce", AFTER, 1, 1, 8, "default_pg", NULL, 0}, /* the norm of all gradients */
};

TEST(three_dimensions_are_told_apart)
{
    struct dpro_graph *g = JOB(8, megatron);
    assert_string_equal(describe(g), "dp 2 [0 2][1 3][4 6][5 7]; tp 2 [0 1][2 3][4 5][6 7]; "
                                     "pp 2 [0 4][1 5][2 6][3 7]");
    assert_string_equal(dpro_graph_dimensions_note(g), "");
    assert_true(has_evidence(g, 1,
                             "4 groups of 2 neighbouring ranks: a rank's 4 all-reduces in "
                             "forward and backward"));
    assert_true(has_evidence(g, 1, "named TENSOR_MODEL_PARALLEL_GROUP"));
    assert_true(has_evidence(g, 2, "ranks, 4 apart: a rank's 2 sends and receives in forward and"));
    uint32_t n_in[4] = {0};
    for (uint32_t c = 0; c < dpro_graph_n_collectives(g); c++) {
        uint32_t d = dpro_graph_collective_dimension(g, c);
        n_in[d == DPRO_NO_DIMENSION ? 3 : d]++;
    }
    assert_int_equal(n_in[0], 4); /* a group each */
    assert_int_equal(n_in[1], 4 * 4);
    assert_int_equal(n_in[2], 2 * 4);
    assert_int_equal(n_in[3], 1); /* of all ranks: in no single dimension */
    for (dpro_op_id op = 0; op < dpro_graph_n_ops(g); op++)
        if (strstr(dpro_graph_op(g, op).name, "gemm"))
            assert_int_equal(dpro_graph_op_dimension(g, op), DPRO_NO_DIMENSION);
}

TEST(without_names_the_same_is_found)
{
    struct comm comms[sizeof megatron / sizeof *megatron];
    memcpy(comms, megatron, sizeof comms);
    for (size_t c = 0; c < sizeof comms / sizeof *comms; c++)
        comms[c].description = NULL;
    check(JOB(8, comms), "dp 2 [0 2][1 3][4 6][5 7]; tp 2 [0 1][2 3][4 5][6 7]; "
                         "pp 2 [0 4][1 5][2 6][3 7]");
}

TEST(one_recorded_rank_tells_the_sizes)
{
    struct dpro_graph *g = job_of(5, 5, 8, megatron, sizeof megatron / sizeof *megatron);
    check(g, "dp 2 [0 2][1 3][4 6][5 7]; tp 2 [0 1][2 3][4 5][6 7]; pp 2 [0 4][1 5][2 6][3 7]");
}

/* Lists of groups by rank: a to e. */
static const char *const group_lists[][4] = {
    {"[0, 1]", "[0, 1]", "[2, 3]", "[2, 3]"},
    {"[0, 1]", "[0, 1]", NULL, NULL},
    {NULL, "[1, 2]", "[1, 2]", NULL},
    {"[0, 3]", "[1, 2]", "[1, 2]", "[0, 3]"},
    {"[0, 99999999999]", "[0, 1, ..., 7]", "[1, 0", "ranks"},
};

/* What is communicated, as a job that all ranks have: its collective, in which pass, of how many
 * elements, in groups how far apart and how large, of what name (-: none), by which list of groups,
 * and to the next (+) or the one before. */
static const struct {
    const char *what;
    int world;
    const char *comms, *groups, *note; /* NULL: whatever they are */
} cases[] = {
    {"a rank that sends to itself is in no dimension", 4, "ring F 2048 1x1 pp a +", "", NULL},
    {"what goes around a ring is a sequence", 8,
     "ring F 2048 1x4 - +; ring B 2048 1x4 - +; allreduce B 100000 1x8 -",
     "dp 2 [0 4][1 5][2 6][3 7]; cp 4 [0 1 2 3][4 5 6 7]", ""},
    {"shards are gathered in both passes and scattered in one, beside a metric", 4,
     "_allgather_base F 1000 1x4 default_pg; _allgather_base B 1000 1x4 default_pg; "
     "_reduce_scatter_base B 4000 1x4 default_pg; allreduce F 1 1x4 default_pg",
     "fsdp 4 [0 1 2 3]", ""},
    {"so they are in replicas", 8,
     "_allgather_base F 1000 1x4 mesh_dp_shard; "
     "_reduce_scatter_base B 4000 1x4 mesh_dp_shard; allreduce B 1000 4x2 mesh_dp_replicate",
     "dp 2 [0 4][1 5][2 6][3 7]; fsdp 4 [0 1 2 3][4 5 6 7]", ""},
    {"sequence parallel layers scatter in forward passes, too, and reduce norms' gradients", 4,
     "_allgather_base F 1000 1x2 -; _reduce_scatter_base F 2000 1x2 -; "
     "_allgather_base B 1000 1x2 -; _reduce_scatter_base B 2000 1x2 -; "
     "allreduce B 64 1x2 -; _allgather_base F 5000 2x2 -; "
     "_reduce_scatter_base B 10000 2x2 -",
     "fsdp 2 [0 2][1 3]; tp 2 [0 1][2 3]", ""},
    {"experts, whose gradients are reduced apart, lie over replicas", 4,
     "all_to_allv F 3000 1x2 -; all_to_allv B 3000 1x2 -; allreduce B 100000 1x4 -; "
     "allreduce B 50000 2x2 -",
     "dp 4 [0 1 2 3]; ep* 2 [0 1][2 3]", ""},
    {"statistics of batches do not make replicas tensor parallel", 2,
     "allreduce F 64 1x2 -; allreduce B 64 1x2 -; allreduce B 100000 1x2 -", "dp 2 [0 1]", ""},
    {"gradients summed over parts of a sequence leave the replicas", 8,
     "_allgather_base F 500 1x2 CONTEXT_PARALLEL_GROUP; "
     "_reduce_scatter_base B 1000 1x2 CONTEXT_PARALLEL_GROUP; "
     "allreduce B 100000 1x8 DATA_PARALLEL_GROUP_WITH_CP",
     "dp 4 [0 2 4 6][1 3 5 7]; cp 2 [0 1][2 3][4 5][6 7]", ""},
    {"a name does not outweigh what is carried", 2, "allreduce B 1000 1x2 mesh_tp", "dp 2 [0 1]",
     ""},
    {"overlapping groups form no grid", 4, "allreduce B 1000 0x0 - b; allreduce B 1000 0x0 - c",
     NULL, "form no grid"},
    {"groups that are not evenly spaced are those of the trace", 4, "allreduce B 1000 0x0 - d",
     "dp 2 [0 3][1 2]", "form no grid of 4 ranks"},
    {"hostile lists of ranks are no groups", 4, "allreduce B 1000 0x0 x e", "",
     "does not say which ranks take part"},
    {"what is left of the ranks is said", 6, "allreduce F 4096 1x2 -; allreduce B 4096 1x2 -",
     "tp 2 [0 1][2 3][4 5]", "2 of 6 ranks"},
};

static size_t read_comms(const char *text, struct comm *comms, char (*words)[2][40])
{
    size_t n = 0;
    for (int len; *text; text += len + (int)strspn(text + len, "; "), n++) {
        char when, more[4] = "";
        struct comm *c = &comms[n];
        len = (int)strcspn(text, ";");
        char one[120];
        snprintf(one, sizeof one, "%.*s", len, text);
        assert_true(sscanf(one, "%39s %c %u %dx%d %39s %3[a-e+ -]", words[n][0], &when, &c->numel,
                           &c->stride, &c->size, words[n][1], more) >= 6);
        c->collective = words[n][0];
        c->when = when == 'F' ? FORWARD : BACKWARD;
        c->description = *words[n][1] == '-' ? NULL : words[n][1];
        c->pass = strchr(more, '+') ? 1 : strchr(more, '-') ? -1 : 0;
        c->list = *more >= 'a' ? group_lists[*more - 'a'] : NULL;
    }
    return n;
}

TEST(dimensions_are_told_by_what_is_communicated_when_and_in_which_groups)
{
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        print_message("%s\n", cases[i].what);
        struct comm comms[8] = {0};
        char words[8][2][40];
        size_t n = read_comms(cases[i].comms, comms, words);
        struct dpro_graph *g = job_of(0, cases[i].world - 1, cases[i].world, comms, n);
        const char *note = dpro_graph_dimensions_note(g);
        if (cases[i].groups)
            assert_string_equal(describe(g), cases[i].groups);
        if (cases[i].note)
            assert_true(*cases[i].note ? strstr(note, cases[i].note) != NULL : !*note);
        if (strcmp(cases[i].groups ? cases[i].groups : "", "dp 2 [0 1]") == 0)
            assert_int_equal(has_evidence(g, 0, "though named mesh_tp"),
                             comms[0].description != NULL);
    }
}

TEST(names_say_one_thing_or_nothing)
{
    static const struct {
        const char *name;
        int says;
    } names[] = {{"mesh_tp", DPRO_TENSORS},
                 {"TENSOR_MODEL_PARALLEL_GROUP", DPRO_TENSORS},
                 {"DATA_PARALLEL_GROUP", DPRO_REPLICATES},
                 {"mesh_dp_shard", DPRO_SHARDS},
                 {"mesh_dp_replicate", DPRO_REPLICATES},
                 {"EXPERT_MODEL_PARALLEL_GROUP", DPRO_EXPERTS},
                 {"PIPELINE_MODEL_PARALLEL_GROUP", DPRO_STAGES},
                 {"EXPERT_DATA_PARALLEL_GROUP", NO_PARALLELISM},
                 {"DATA_PARALLEL_GROUP_WITH_CP", NO_PARALLELISM},
                 {"MODEL_PARALLEL_GROUP", NO_PARALLELISM},
                 {"default_pg", NO_PARALLELISM},
                 {"undefined", NO_PARALLELISM},
                 {"https", NO_PARALLELISM},
                 {"", NO_PARALLELISM}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        assert_int_equal(traffic_named(names[i].name), names[i].says);
}

TEST(boxes_of_ranks)
{
    struct grid_box box = grid_box_of((const int32_t[]){8, 9, 12, 13}, 4);
    assert_int_equal(box.n, 2);
    assert_int_equal(grid_box_size(&box), 4);
    assert_int_equal(grid_first_of(&box, 13), 8);
    assert_int_equal(grid_rank_of(&box, 8, 3), 13);
    assert_int_equal(grid_box_of((const int32_t[]){0, 1, 2, 3}, 4).n, 1);
    assert_int_equal(grid_box_of((const int32_t[]){0, 1, 3}, 3).n, 0);
    assert_int_equal(grid_box_of((const int32_t[]){1, 2}, 2).n, 0); /* across an edge */
    assert_int_equal(grid_box_of((const int32_t[]){0, 3, 5, 8}, 4).n, 0);
    assert_int_equal(grid_box_of((const int32_t[]){0, 1, 2, 4, 5, 6}, 6).n, 0);
    assert_int_equal(grid_box_of((const int32_t[]){0, INT32_MAX}, 2).n, 0);
    struct grid_box inner = grid_box_of((const int32_t[]){0, 2}, 2);
    struct grid_box outer = grid_box_of((const int32_t[]){0, 1, 2, 3, 4, 5, 6, 7}, 8);
    assert_true(grid_box_within(&inner, &outer));
    struct grid_box rest = grid_box_without(&outer, &inner);
    assert_int_equal(grid_box_size(&rest), 4);
    assert_true(grid_fits((const struct grid_box[]){inner, rest}, 2, 16));
    assert_false(grid_fits((const struct grid_box[]){inner, rest}, 2, 12));
    assert_false(grid_fits((const struct grid_box[]){inner, outer}, 2, 8));
}
