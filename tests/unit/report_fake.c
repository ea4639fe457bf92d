/* Builds the graph's arrays by hand, so that the report is tested apart from the stages before. */
#include "report_fake.h"

#include <dpro/dimensions.h>

#include "ingest/trace.h"
#include "replay/replay.h"

struct edge {
    uint32_t from, to;
};

struct fake {
    struct dpro_report report;
    struct dpro_trace trace;
    struct dpro_graph graph;
    struct dpro_replay *replay;
    struct dpro_validation validation;
    struct dpro_daydream daydream;
    struct fake_options options;
    ARRAY(struct edge) edges;
    uint32_t cap_ops;
    uint64_t random;
};

/* A number in [0, 1); the same every run. */
static double next_random(struct fake *f)
{
    f->random = f->random * 6364136223846793005u + 1442695040888963407u;
    return (double)(f->random >> 11) / 9007199254740992.0;
}

static uint32_t add_op(struct fake *f, int rank, enum dpro_op_kind kind, uint32_t device,
                       const char *name, double us)
{
    struct dpro_graph *g = &f->graph;
    uint32_t op = g->n_ops++;
    if (op >= f->cap_ops)
        abort();
    if (f->options.hostile && op % 3 == 0)
        name = FAKE_HOSTILE;
    g->kind[op] = (uint8_t)kind;
    g->phase[op] = (uint8_t)(kind <= DPRO_OP_INPUT        ? kind
                             : kind == DPRO_OP_COLLECTIVE ? DPRO_OP_COLLECTIVE
                                                          : DPRO_OP_BARRIER);
    g->rank[op] = (uint16_t)rank;
    g->device[op] = device;
    g->name[op] = strtab_add(&g->names, name, strlen(name));
    g->dur_ns[op] = (int64_t)(us * 1000 * (0.9 + 0.2 * next_random(f)));
    g->gap_ns[op] = device == DPRO_NO_DEVICE ? 0 : (int64_t)(400 + 900 * next_random(f));
    if (device != DPRO_NO_DEVICE && g->devices[device].kind == DPRO_DEVICE_GPU_STREAM)
        g->flags[op] |= GRAPH_OP_GPU;
    g->ranks[rank].n_ops++;
    return op;
}

static void add_edge(struct fake *f, uint32_t from, uint32_t to)
{
    array_push(&f->edges, ((struct edge){from, to}));
}

/* A call on the CPU and the kernel that it starts. */
static uint32_t add_kernel(struct fake *f, int rank, enum dpro_op_kind kind, uint32_t cpu,
                           uint32_t stream, const char *name, double us, uint32_t *last_cpu)
{
    uint32_t launch = add_op(f, rank, DPRO_OP_LAUNCH, cpu, "cudaLaunchKernel", 6);
    uint32_t kernel = add_op(f, rank, kind, stream, name, us);
    if (*last_cpu != DPRO_NO_OP)
        add_edge(f, *last_cpu, launch);
    add_edge(f, launch, kernel);
    *last_cpu = launch;
    return kernel;
}

static const char *const forward_names[] = {
    "void cutlass::Kernel<cutlass_80_tensorop_f16_s16816gemm_relu_f16_256x128_32x3_nn_align8>"
    "(cutlass_80_tensorop_f16_s16816gemm_relu_f16_256x128_32x3_nn_align8::Params)",
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>",
    "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>",
};
static const char *const backward_names[] = {
    "sm80_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize128x128x32_stage4_warpsize2x2x1_tensor16x8x16",
    "void at::native::vectorized_elementwise_kernel<4, at::native::threshold_backward>",
    "void cub::DeviceReduceSingleTileKernel<cub::DeviceReducePolicy<float>>",
};

static void add_rank(struct fake *f, int r, uint32_t *arrivals, uint32_t *transfers,
                     uint32_t n_buckets)
{
    struct dpro_graph *g = &f->graph;
    int n_layers = f->options.n_layers;
    uint32_t cpu = (uint32_t)r * 4, autograd = cpu + 1, compute = cpu + 2, comm = cpu + 3;
    uint32_t last = DPRO_NO_OP, kernel = DPRO_NO_OP;
    double slow = r == f->options.n_ranks / 2 && f->options.n_ranks > 1 ? 1.25 : 1;
    if (!f->options.busy) {
        last = add_op(f, r, DPRO_OP_INPUT, cpu,
                      "enumerate(DataLoader)#_MultiProcessingDataLoaderIter", 900);
        add_kernel(f, r, DPRO_OP_INPUT, cpu, compute, "Memcpy HtoD (Pinned -> Device)", 500, &last);
    }
    for (int l = 0; l < n_layers; l++) {
        uint32_t op = add_op(f, r, DPRO_OP_FW, cpu, l % 3 == 0 ? "aten::addmm" : "aten::add", 8);
        if (last != DPRO_NO_OP)
            add_edge(f, last, op);
        last = op;
        kernel = add_kernel(f, r, DPRO_OP_FW, cpu, compute, forward_names[l % 3],
                            (l % 3 == 0 ? 90 : 22) * slow, &last);
    }
    uint32_t bucket = 0;
    for (int l = n_layers - 1; l >= 0; l--) {
        uint32_t op =
            add_op(f, r, DPRO_OP_BW, autograd, l % 3 == 0 ? "AddmmBackward0" : "ReluBackward0", 9);
        add_edge(f, last, op);
        last = op;
        kernel = add_kernel(f, r, DPRO_OP_BW, autograd, compute, backward_names[l % 3],
                            (l % 3 == 0 ? 170 : 30) * slow, &last);
        if (f->options.n_ranks > 1 && bucket < n_buckets &&
            l <= n_layers - (int)(bucket + 1) * n_layers / (int)n_buckets) {
            char name[64];
            uint32_t arrival = add_op(f, r, DPRO_OP_BARRIER, DPRO_NO_DEVICE, "arrive", 0);
            uint32_t transfer = add_op(f, r, DPRO_OP_COLLECTIVE, comm,
                                       "ncclKernel_AllReduce_RING_LL_Sum_float", 2000);
            snprintf(name, sizeof name, "bucket %u (layers %d-%d)", bucket, l,
                     l + n_layers / (int)n_buckets);
            g->tensor[transfer] = strtab_add(&g->names, name, strlen(name));
            g->size_bytes[transfer] = 26214400;
            g->transaction[transfer] = bucket + 1;
            g->dur_ns[arrival] = 0;
            g->flags[arrival] |= GRAPH_OP_ARRIVAL;
            add_edge(f, kernel, arrival);
            add_edge(f, arrival, transfer);
            arrivals[bucket] = arrival;
            transfers[bucket] = transfer;
            bucket++;
        }
    }
    uint32_t update =
        add_kernel(f, r, DPRO_OP_UPDATE, cpu, compute,
                   "void at::native::multi_tensor_apply_kernel<FusedAdam>", 700, &last);
    if (bucket > 0)
        add_edge(f, transfers[bucket - 1], update);
}

/* All ranks replicate the model. */
static void add_dimension(struct dpro_graph *g, const struct fake_options *opt)
{
    g->n_dimensions = 1;
    g->dimensions = arena_array(&g->arena, 1, sizeof *g->dimensions);
    *g->dimensions = (struct graph_dimension){
        .parallelism = DPRO_REPLICATES,
        .size = (uint32_t)opt->n_ranks,
        .n_groups = 1,
        .ranks = arena_array(&g->arena, (size_t)opt->n_ranks, sizeof(int)),
        .n_per_rank = g->n_collectives,
        .bytes_per_rank = 25000000,
        .evidence = opt->hostile ? FAKE_HOSTILE : "1 group of all ranks: all-reduces in backward"};
    for (int r = 0; r < opt->n_ranks; r++)
        g->dimensions->ranks[r] = g->ranks[r].rank;
}

static void add_collectives(struct fake *f, const uint32_t *arrivals, const uint32_t *transfers,
                            uint32_t n_buckets)
{
    struct dpro_graph *g = &f->graph;
    uint32_t n = (uint32_t)f->options.n_ranks;
    for (uint32_t b = 0; b < n_buckets && n > 1; b++) {
        /* the last rank's, to keep the order of ids */
        uint32_t barrier = add_op(f, (int)n - 1, DPRO_OP_BARRIER, DPRO_NO_DEVICE, "meet", 0);
        struct graph_collective *c = &g->collectives[g->n_collectives++];
        *c = (struct graph_collective){.kind = DPRO_ALL_REDUCE,
                                       .barrier = barrier,
                                       .first_member = g->n_members,
                                       .n_members = n,
                                       .n_expected = n};
        for (uint32_t r = 0; r < n; r++) {
            uint32_t at = r * n_buckets + b;
            g->members[g->n_members++] =
                (struct graph_member){.arrival = arrivals[at], .transfer = transfers[at]};
            add_edge(f, arrivals[at], barrier);
            add_edge(f, barrier, transfers[at]);
        }
    }
}

static void finish_edges(struct fake *f)
{
    struct dpro_graph *g = &f->graph;
    g->row = arena_array(&g->arena, g->n_ops + 2, sizeof *g->row);
    g->succ = arena_array(&g->arena, f->edges.n + 1, sizeof *g->succ);
    for (size_t e = 0; e < f->edges.n; e++)
        g->row[f->edges.at[e].from + 2]++;
    for (uint32_t op = 0; op < g->n_ops; op++)
        g->row[op + 2] += g->row[op + 1];
    for (size_t e = 0; e < f->edges.n; e++)
        g->succ[g->row[f->edges.at[e].from + 1]++] = f->edges.at[e].to;
}

static void replay(struct fake *f)
{
    struct dpro_error err = {.code = 0};
    dpro_replay_destroy(f->replay);
    if (dpro_replay_run(&f->graph, NULL, &f->replay, &err) < 0) {
        fprintf(stderr, "%s\n", err.text);
        abort();
    }
}

/* The measured iteration: the replayed one, stretched and shaken a little; collectives as the
 * profiler shows them, waiting included. */
static void measure(struct fake *f)
{
    struct dpro_graph *g = &f->graph;
    int64_t iteration_ns = dpro_replay_view(f->replay)->iteration_ns;
    for (uint32_t op = 0; op < g->n_ops; op++) {
        int64_t start_ns = dpro_replay_view(f->replay)->start_ns[op];
        g->seen_start_ns[op] = (int64_t)((double)start_ns * 1.02) - 5000;
        g->seen_dur_ns[op] = (int64_t)((double)g->dur_ns[op] * (0.98 + 0.04 * next_random(f)));
    }
    int64_t *stream_free = calloc(g->n_ranks + 1, sizeof *stream_free);
    for (uint32_t m = 0; m < g->n_members; m++) {
        uint32_t transfer = g->members[m].transfer;
        int64_t end = g->seen_start_ns[transfer] + g->seen_dur_ns[transfer];
        int64_t start = g->seen_start_ns[g->members[m].arrival];
        int64_t *free_at = &stream_free[g->rank[transfer]];
        start = (start > *free_at ? start : *free_at) + 3000;
        g->seen_start_ns[transfer] = start;
        g->seen_dur_ns[transfer] = end > start ? end - start : 0;
        *free_at = start + g->seen_dur_ns[transfer];
    }
    free(stream_free);
    uint32_t n = f->options.single ? 1 : 10;
    g->measured_ns = arena_array(&g->arena, n, sizeof *g->measured_ns);
    g->n_samples = n;
    for (uint32_t i = 0; i < n; i++)
        g->measured_ns[i] = (int64_t)((double)iteration_ns * (0.99 + 0.06 * next_random(f)));
}

/* As measured, all collectives began with the last of them, and the iteration was shorter. */
static void measure_at_once(struct fake *f)
{
    struct dpro_graph *g = &f->graph;
    int64_t start = 0;
    for (uint32_t m = 0; m < g->n_members; m++)
        if (g->seen_start_ns[g->members[m].transfer] > start)
            start = g->seen_start_ns[g->members[m].transfer];
    for (uint32_t m = 0; m < g->n_members; m++) {
        g->seen_start_ns[g->members[m].transfer] = start;
        g->seen_dur_ns[g->members[m].transfer] = g->dur_ns[g->members[m].transfer];
    }
    for (uint32_t i = 0; i < g->n_samples; i++)
        g->measured_ns[i] /= 2;
}

static void fill_trace(struct fake *f)
{
    struct dpro_trace *t = &f->trace;
    int n = f->options.n_ranks;
    t->n_ranks = (uint32_t)n;
    t->world_size = n;
    t->ranks = arena_array(&t->arena, (size_t)n + 1, sizeof *t->ranks);
    t->files = arena_array(&t->arena, (size_t)n + 2, sizeof *t->files);
    for (int r = 0; r < n; r++) {
        char path[64];
        snprintf(path, sizeof path, "/data/job-17/rank%d.json.gz", r);
        t->ranks[r].rank = r;
        t->files[r] =
            (struct dpro_file_info){.path = arena_copy_string(&t->arena, path, strlen(path)),
                                    .format = r % 8 == 7 ? "execution-trace" : "kineto",
                                    .chrome_trace = r % 8 != 7,
                                    .rank = r,
                                    .size_bytes = 123456};
    }
    t->files[n] = (struct dpro_file_info){.path = "notes.txt", .rank = -1};
    t->n_files = (uint32_t)n + 1;
    const char *warning = f->options.hostile ? FAKE_HOSTILE
                                             : "kineto: 3 of 91204 spans without a "
                                               "duration, skipped; was the profiler stopped in the "
                                               "middle of an iteration? The first and "
                                               "last iterations are left out";
    array_push(&t->warnings, arena_copy_string(&t->arena, warning, strlen(warning)));
    warning = "rank 3: 2 of 14 collectives have no partner on rank 5";
    array_push(&f->graph.warnings, arena_copy_string(&f->graph.arena, warning, strlen(warning)));
}

static void add_clock(struct dpro_graph *g, int r)
{
    struct clocks *clocks = &g->clocks;
    char host[16];
    int len = snprintf(host, sizeof host, "rank %d", r);
    int *ranks = arena_alloc(&clocks->arena, sizeof *ranks);
    struct dpro_clock_segment *segment = arena_array(&clocks->arena, 1, sizeof *segment);
    if (!clocks->at)
        clocks->at = arena_array(&clocks->arena, g->n_ranks, sizeof *clocks->at);
    *ranks = r;
    if (r > 0)
        *segment = (struct dpro_clock_segment){0, 1000000000, r * 12345 - 20000, 0.5, r * 900};
    clocks->at[clocks->n++] =
        (struct dpro_clock){.host = arena_copy_string(&clocks->arena, host, (size_t)len),
                            .ranks = ranks,
                            .n_ranks = 1,
                            .method = r == 0   ? "reference"
                                      : r == 3 ? "none"
                                               : "transport",
                            .segments = segment,
                            .n_segments = r != 3};
}

struct fake *fake_create(const struct fake_options *options)
{
    struct fake *f = calloc(1, sizeof *f);
    struct dpro_graph *g = &f->graph;
    static const char *const device_names[] = {"thread 4711 (main)", "thread 4802 (autograd)",
                                               "stream 7", "stream 20"};
    int n = options->n_ranks;
    uint32_t n_buckets = options->n_layers / 30 > 2 ? (uint32_t)options->n_layers / 30 : 2;
    f->options = *options;
    f->random = 1;
    f->cap_ops = (uint32_t)n * ((uint32_t)options->n_layers * 6 + n_buckets * 2 + 16) + n_buckets;
    g->n_ranks = (uint32_t)n;
    g->single_iteration = true;
    g->n_devices = (uint32_t)n * 4;
    strtab_add(&g->names, "", 0);
#define COLUMN(field) g->field = arena_array(&g->arena, f->cap_ops + 1, sizeof *g->field)
    COLUMN(dur_ns), COLUMN(gap_ns), COLUMN(device), COLUMN(kind), COLUMN(flags), COLUMN(phase);
    COLUMN(rank), COLUMN(name), COLUMN(tensor), COLUMN(size_bytes), COLUMN(transaction);
    COLUMN(seen_start_ns), COLUMN(seen_dur_ns);
#undef COLUMN
    g->devices = arena_array(&g->arena, g->n_devices + 1, sizeof *g->devices);
    g->ranks = arena_array(&g->arena, g->n_ranks + 1, sizeof *g->ranks);
    g->collectives = arena_array(&g->arena, n_buckets, sizeof *g->collectives);
    g->members = arena_array(&g->arena, (size_t)n_buckets * (size_t)n, sizeof *g->members);
    uint32_t *arrivals = calloc((size_t)n * n_buckets + 1, sizeof *arrivals);
    uint32_t *transfers = calloc((size_t)n * n_buckets + 1, sizeof *transfers);
    for (int r = 0; r < n; r++) {
        for (uint32_t d = 0; d < 4; d++) {
            const char *name = options->hostile && d == 0 ? FAKE_HOSTILE : device_names[d];
            g->devices[(uint32_t)r * 4 + d] = (struct graph_device){
                .kind = d < 2 ? DPRO_DEVICE_CPU_THREAD : DPRO_DEVICE_GPU_STREAM,
                .rank = r,
                .name = strtab_add(&g->names, name, strlen(name))};
        }
        g->ranks[r] = (struct graph_rank){.rank = r, .first_op = g->n_ops, .boundary = DPRO_NO_OP};
        add_clock(g, r);
        if (!options->empty)
            add_rank(f, r, arrivals + (size_t)r * n_buckets, transfers + (size_t)r * n_buckets,
                     n_buckets);
    }
    if (!options->empty)
        add_collectives(f, arrivals, transfers, n_buckets);
    if (!options->empty && n > 1)
        add_dimension(g, options);
    free(arrivals);
    free(transfers);
    finish_edges(f);
    if (options->memory)
        fake_memory(g, options);
    replay(f);
    for (uint32_t r = 0; g->memory && r < g->n_ranks; r++)
        g->memory[r].measured_peak_bytes =
            dpro_replay_view(f->replay)->memory[r].peak_bytes / 1000 * 997;
    if (options->memory)
        replay(f);
    if (!options->empty)
        measure(f);
    if (options->at_once)
        measure_at_once(f);
    fill_trace(f);
    f->validation = (struct dpro_validation){"leave-one-out", 10, 1.84, 3.91, 2.2, -0.63};
    if (options->single || options->empty)
        f->validation = (struct dpro_validation){.method = "none"};
    f->daydream =
        (struct dpro_daydream){dpro_replay_view(f->replay)->iteration_ns * 4 / 5, 1.25e10, 0};
    f->report = (struct dpro_report){.trace = &f->trace,
                                     .graph = g,
                                     .replay = f->replay,
                                     .validation = &f->validation,
                                     .daydream = n > 1 ? &f->daydream : NULL,
                                     .what_if = options->what_if};
    if (options->what_if)
        f->report.as_it_is_ns = dpro_replay_view(f->replay)->iteration_ns * 5 / 4;
    return f;
}

const struct dpro_report *fake_report(const struct fake *f)
{
    return &f->report;
}

void fake_destroy(struct fake *f)
{
    dpro_replay_destroy(f->replay);
    array_fini(&f->edges);
    array_fini(&f->graph.warnings);
    array_fini(&f->trace.warnings);
    clocks_fini(&f->graph.clocks);
    strtab_fini(&f->graph.names);
    strtab_fini(&f->trace.names);
    arena_fini(&f->graph.arena);
    arena_fini(&f->trace.arena);
    free(f);
}
