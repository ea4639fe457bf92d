/* Learns what communication costs: chooses which fits a job needs, and finds the time of
 * collectives and their launches beside their messages. */
#include "cost/learn/fit.h"

/* What DDP's communication hook costs computation beside the launch of a collective, for each
 * bucket: Python is entered from the backward pass, the bucket divided by an op of its own, and a
 * future handed back. With gloo on CPUs a whole bucket took the thread 200 us, 50 of which are the
 * launch, and a callback follows on gloo's thread. Of GPUs, whose CPU mostly runs ahead, nothing is
 * known. */
static const struct dpro_estimate HOOK_NS = {150e3, 75e3};

/* What casting a byte of a bucket to 16 bits and back costs on a CPU: 0.2 ns where the memory for
 * the cast bucket is at hand, 1.7 where the kernel has to give it (one machine, 1 to 20 MB); and
 * gloo adds up 16-bit numbers slower than others, by 0 to 0.4 ns. */
static const struct dpro_estimate CPU_CAST_NS = {0.6, 0.5};

/* On a GPU the casts there and back read and write three bytes for each of the bucket, at the
 * memory's rate: where nobody says which device it is, one of those that are in data sheets. */
#define GPU_CAST_BYTES  3
#define GPU_BYTES_PER_S 1e12
#define GPU_CAST_SHARE  0.5 /* standard error */

/* How much a learnt number may be off where few or alike ones were seen. */
#define FEW_SHARE 0.3

/* What gloo's threads and the kernel take of a rank's core for an all-reduce, beside its bytes:
 * 0.43 ms for 1 or 64 KB between two processes with a core each, 0.84 between four (medians of CPU
 * times that scattered by half). Where a rank has cores to spare it may be none. */
#define GLOO_CPU_NS      230e3
#define GLOO_STEP_CPU_NS 100e3
#define GLOO_CPU_SHARE   0.5 /* standard error */

/* ---- what the job is ---- */

static bool on_cpu(const struct dpro_graph *g)
{
    for (uint32_t d = 0; d < g->n_devices; d++)
        if (g->devices[d].kind == DPRO_DEVICE_GPU_STREAM)
            return false;
    return true;
}

static bool job_negotiates(const struct dpro_graph *g)
{
    bool any = false;
    for (uint32_t j = 0; j < g->n_collectives; j++)
        any |= g->collectives[j].kind == DPRO_NEGOTIATE;
    return any;
}

static void choose_algorithm(const struct fitting *f)
{
    static const struct {
        const char *pattern;
        enum model_algorithm algorithm;
    } known[] = {{"ring", MODEL_RING},
                 {"halving-doubling", MODEL_HALVING_DOUBLING},
                 {"tree", MODEL_TREE},
                 {"direct", MODEL_DIRECT},
                 {"parameter server", MODEL_SERVER}};
    const char *pattern = "parameter server";
    if (f->g->n_collectives > 0)
        pattern = f->g->collectives[f->coarse->bucket_of[0]].pattern;
    f->net->collective.algorithm = MODEL_RING;
    for (size_t i = 0; pattern && i < sizeof known / sizeof *known; i++)
        if (strcmp(pattern, known[i].pattern) == 0)
            f->net->collective.algorithm = known[i].algorithm;
}

/* Whether the first rank had a bucket ready long before the one that its thread had taken was
 * through. */
static bool fit_queues(const struct fitting *f)
{
    const struct coarse *coarse = f->coarse;
    const int64_t *end_ns = f->r->copies[f->r->first].end_ns;
    uint32_t *last = arena_array(&f->coarse->arena, coarse->n_buckets, sizeof *last);
    uint32_t transfer = DPRO_NO_OP;
    bool any = false;
    for (uint32_t t = 0; t < f->model->n_tensors; t++)
        last[coarse->bucket_of[t]] = t;
    for (uint32_t t = 0; t < f->model->n_tensors && !any && f->g->n_collectives > 0; t++) {
        if (last[coarse->bucket_of[t]] != t)
            continue;
        any = transfer != DPRO_NO_OP &&
              end_ns[coarse->ready[t]] < end_ns[transfer] - f->g->dur_ns[transfer] / 2;
        uint32_t first = f->g->collectives[coarse->bucket_of[t]].first_member;
        transfer = f->g->members[first].transfer;
    }
    return any;
}

/* Threads that run a rank's collectives: gloo has two, of which a job shows one if it never needs
 * both. A GPU stream is one, so is Horovod; in TensorFlow a token goes from one to the next. */
static uint32_t count_streams(const struct fitting *f)
{
    enum { GLOO_THREADS = 2 };
    const struct dpro_graph *g = f->g;
    uint32_t n = 0;
    if (f->net->gate.negotiates || f->is_tensorflow_ring)
        return 1;
    for (uint32_t d = 0; d < g->n_devices; d++)
        n +=
            g->devices[d].kind == DPRO_DEVICE_COMM_THREAD && g->devices[d].rank == g->ranks[0].rank;
    return n == 0 ? 1 : n == 1 && !fit_queues(f) ? GLOO_THREADS : n;
}

/* ---- collectives beside their messages ---- */

/* What a pack of TensorFlow's ring takes beside its bytes, where packs of one size don't tell:
 * calls of gRPC that wait for a core. By turns it was 4 ms a pack in a job cut in 35, 3 of 9, none
 * of 7. */
static const struct dpro_estimate PACK_NS = {2e6, 2e6};

/* What TensorFlow's ring takes beside its messages is copying and adding up, by the byte, as far as
 * sizes don't tell. */
static void fit_packs(const struct fitting *f)
{
    struct model_collective *collective = &f->net->collective;
    struct dpro_estimate slope = {0};
    SCRATCH fit_points points = {0};
    double bytes = 0, took_ns = 0;
    EACH_OF (const struct fit_transfer, t, f->transfers, f->n_transfers) {
        if (t->collective->n_messages == 0)
            continue;
        array_push(&points, ((struct fit_point){t->size_bytes, t->took_ns, 1, 0}));
        bytes += t->size_bytes;
        took_ns += t->took_ns;
    }
    if (bytes > 0 && !fit_line(&points, &slope, &collective->overhead_ns)) {
        double each = fmin(PACK_NS.value, took_ns / 2 / (double)points.n);
        collective->overhead_ns = (struct dpro_estimate){each, PACK_NS.std};
        slope.value = (took_ns - each * (double)points.n) / bytes;
    }
    if (collective->n_ranks > 1) { /* a rank adds up (n - 1) / n of a bucket */
        double share = (collective->n_ranks - 1.0) / collective->n_ranks;
        collective->reduce_ns = (struct dpro_estimate){slope.value / share, slope.std / share};
    }
}

/* What a collective takes beside its messages: until its thread runs, and after the last. */
static void fit_overhead(const struct fitting *f)
{
    struct sums sums = {0};
    for (size_t i = 0; i < f->n_transfers; i++)
        if (f->transfers[i].collective->n_messages > 0)
            sums_add(&sums, f->transfers[i].took_ns + f->transfers[i].gaps_ns);
    f->net->collective.overhead_ns = sums_mean(&sums);
}

/* ---- computing time ---- */

/* Calls that ask for a bucket's collective. The median, as the thread that calls loses its core in
 * some of them to those that it wakes. What gloo's threads take of the core besides is computing
 * time, too. */
static void fit_launches(const struct fitting *f)
{
    const struct dpro_graph *g = f->g;
    uint8_t *arrives = arena_array(&f->coarse->arena, g->n_ops, 1);
    SCRATCH ARRAY(double) calls = {0};
    for (uint32_t t = 0; t < f->model->n_tensors && g->n_collectives > 0; t++) {
        const struct graph_collective *c = fit_bucket(f, t);
        for (uint32_t m = 0; c && m < c->n_members; m++)
            arrives[g->members[c->first_member + m].arrival] = 1;
    }
    for (uint32_t op = 0; op < g->n_ops; op++) {
        bool asks = false;
        for (uint32_t e = g->row[op]; e < g->row[op + 1]; e++)
            asks |= arrives[g->succ[e]];
        if (asks && g->kind[op] == DPRO_OP_LAUNCH && g->device[op] != DPRO_NO_DEVICE)
            array_push(&calls, (double)g->dur_ns[op]);
    }
    sort_double(calls.at, calls.n);
    double median = stats_quantile_nearest(calls.at, calls.n, 0.5);
    double spread = (stats_quantile_nearest(calls.at, calls.n, 0.84) -
                     stats_quantile_nearest(calls.at, calls.n, 0.16)) /
                    2;
    if (calls.n > 0)
        f->net->compute.launch_ns = (struct dpro_estimate){
            median, fmax(FEW_SHARE * median, 1.25 * spread / sqrt((double)calls.n))};
    double handled_ns = GLOO_CPU_NS + 2 * (f->net->collective.n_ranks - 1.0) * GLOO_STEP_CPU_NS;
    double within_ns = median - stats_quantile_nearest(calls.at, calls.n, 0.16);
    if (f->is_gloo && handled_ns > within_ns)
        f->net->compute.handling_ns =
            (struct dpro_estimate){handled_ns - within_ns, GLOO_CPU_SHARE * handled_ns};
}

/* Bytes a second of the slowest GPU's memory. */
static double memory_rate(const struct dpro_graph *g)
{
    double least = 0;
    for (uint32_t r = 0; g->work && r < g->n_ranks; r++) {
        const struct device_peak *device = device_find(g->work[r].device);
        if (device && (least == 0 || device->bytes_per_s < least))
            least = device->bytes_per_s;
    }
    return least > 0 ? least : GPU_BYTES_PER_S;
}

static void fit_copies(const struct fitting *f)
{
    struct model_compute *compute = &f->net->compute;
    uint64_t bytes = 0;
    double copied = 0;
    for (uint32_t t = 0; t < f->model->n_tensors; t++)
        bytes += f->model->tensors[t].size_bytes;
    for (uint32_t i = 0; i < f->g->n_ranks; i++)
        copied += (double)f->coarse->ranks[i].copy_back_ns / f->g->n_ranks;
    compute->copy_ns = fit_within(bytes ? copied / (double)bytes : 0, 0.2);
    compute->cast_ns = fit_within(2 * compute->copy_ns.value, 0.5);
    if (!f->on_cpu)
        compute->cast_ns = fit_within(GPU_CAST_BYTES * 1e9 / memory_rate(f->g), GPU_CAST_SHARE);
    else if (compute->cast_ns.value < CPU_CAST_NS.value)
        compute->cast_ns = CPU_CAST_NS;
    if (f->on_cpu)
        compute->hook_ns = HOOK_NS;
}

/* ---- all of it ---- */

static void list_transfers(struct fitting *f)
{
    const struct dpro_graph *g = f->g;
    f->transfers = arena_array(&f->coarse->arena, g->n_members, sizeof *f->transfers);
    for (uint32_t t = 0; t < f->model->n_tensors; t++) {
        const struct graph_collective *c = fit_bucket(f, t);
        double lost_ns = 0; /* to others, mean */
        for (uint32_t s = 0; f->lost_ns && s < f->r->n; s++)
            lost_ns += f->lost_ns[(size_t)s * f->model->n_tensors + t] / f->r->n;
        for (uint32_t m = 0; c && m < c->n_members; m++) {
            const struct graph_member *member = &g->members[c->first_member + m];
            struct fit_transfer *transfer = &f->transfers[f->n_transfers++];
            *transfer = (struct fit_transfer){.collective = c,
                                              .size_bytes = (double)c->size_bytes,
                                              .took_ns = (double)g->dur_ns[member->transfer]};
            if (c->n_messages > 0)
                transfer->exchange_ns = fmax(0, (double)member->exchange_ns - lost_ns);
            else
                transfer->took_ns = fmax(0, transfer->took_ns - lost_ns);
            transfer->gaps_ns =
                (double)g->gap_ns[member->transfer] + (double)g->gap_ns[member->arrival];
        }
    }
}

/* Ranks that reduce among themselves. */
static void fit_all_reduces(struct fitting *f)
{
    struct model_net *net = f->net;
    list_transfers(f);
    if (fit_has_messages(f)) {
        fit_bytes(f);
        fit_messages(f);
    } else {
        fit_collectives(f);
    }
    /* a session's collectives, which no token puts in order */
    bool at_once = f->is_tensorflow_ring && fit_at_once(f);
    bool in_turn = (net->gate.negotiates || f->is_tensorflow_ring) && !at_once;
    bool reductions = in_turn && fit_reductions(f);
    fit_interference(f);
    if (at_once)
        net->link.held_share =
            (struct dpro_estimate){0, FIT_GRPC_HELD_SHARE.std}; /* is in what was seen */
    else if (f->is_tensorflow_ring && !reductions)
        fit_packs(f);
    else if (!reductions)
        fit_overhead(f);
}

void fit_net(const struct measured_replay *r, struct coarse *coarse, struct dpro_model *model)
{
    const struct dpro_graph *g = r->graph;
    struct model_net *net = &model->net;
    struct fitting f = {
        .r = r, .g = g, .coarse = coarse, .model = model, .net = net, .on_cpu = on_cpu(g)};
    net->gate.negotiates = job_negotiates(g);
    net->gate.in_order = !net->gate.negotiates; /* what is ready goes */
    f.is_tensorflow_ring = g->framework && strcmp(g->framework, "tensorflow") == 0 &&
                           g->n_servers == 0 && !net->gate.negotiates;
    net->collective.n_ranks = g->n_ranks;
    if (model->no_gradients) {
        net->gate.n_streams = 1;
        net->collective.ranks_per_host = 1;
        net->collective.algorithm = MODEL_RING;
        if (model->n_communications > 0) {
            fit_shares(&f);
            fit_groups(&f);
        }
        return;
    }
    if (g->n_collectives > 0) /* with those not recorded */
        net->collective.n_ranks = g->collectives[coarse->bucket_of[0]].n_expected;
    net->collective.ranks_per_host = 1;
    net->gate.n_streams = count_streams(&f);
    choose_algorithm(&f);
    f.is_gloo = f.on_cpu && net->collective.n_ranks > 1 && !f.is_tensorflow_ring &&
                !net->gate.negotiates && net->collective.algorithm != MODEL_SERVER;
    if (model->n_communications > 0)
        fit_shares(&f);
    if (net->collective.algorithm == MODEL_SERVER) {
        fit_servers(&f);
        fit_interference(&f);
    } else {
        fit_all_reduces(&f);
    }
    fit_launches(&f);
    fit_copies(&f);
    if (model->n_communications > 0)
        fit_groups(&f);
}
