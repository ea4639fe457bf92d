/* ingest/reference/chunk_log.c: the chunks that a patched NCCL wrote, as NCCL's profiler would have
 * told of them: the k-th time that a chunk of the same tensors travels is of their k-th collective.
 */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "ingest/load.h"
#include "ingest/pytorch/kineto_words.h"
#include "ingest/reference/reference.h"

static const char *text_of(const struct source *source, uint32_t id)
{
    return strtab_get(&source->part.names, id);
}

/* Whom a rank sends to, or gets from, on a channel: the next or the last one where no ring is
 * known. */
static int32_t ring_peer(const struct source *rings, uint32_t channel, int rank, int world,
                         bool sends)
{
    const struct reference_part *reference = rings ? rings->part.reference : NULL;
    for (size_t i = 0; reference && i < reference->hops.n; i++) {
        const struct ring_hop *hop = &reference->hops.at[i];
        if (hop->channel == channel && (sends ? hop->from : hop->to) == rank)
            return sends ? hop->to : hop->from;
    }
    return (rank + (sends ? 1 : world - 1)) % world;
}

static int by_time(const void *a, const void *b)
{
    const struct chunk *x = a, *y = b;
    if (x->start_ns != y->start_ns)
        return x->start_ns < y->start_ns ? -1 : 1;
    if (x->channel != y->channel)
        return x->channel < y->channel ? -1 : 1;
    return x->step < y->step ? -1 : x->step > y->step;
}

struct logger {
    struct nccl_log *log;
    struct map times;      /* tensors, channel, step and side -> how often so far */
    struct map operations; /* tensors and time -> operation + 1 */
    struct map proxy_ops;  /* operation, channel and side -> proxy op + 1 */
};

static int add_chunk(struct logger *l, const struct source *source, const struct chunk *chunk,
                     int32_t peer)
{
    struct nccl_log *log = l->log;
    uint64_t key = map_mix(map_mix(chunk->step * 2 + chunk->sends) + chunk->channel);
    uint64_t n = 0, operation, op;
    key = map_mix(key + chunk->tensors) | 1;
    map_get(&l->times, key, &n);
    if (map_set(&l->times, key, n + 1) < 0)
        return -1;
    key = map_mix(map_mix(chunk->tensors + UINT64_C(1)) + n) | 1;
    if (!map_get(&l->operations, key, &operation)) {
        const char *tensors = text_of(source, chunk->tensors);
        struct nccl_operation fresh = {.start_ns = chunk->start_ns,
                                       .stop_ns = chunk->end_ns,
                                       .peer = -1,
                                       .span = NO_ID,
                                       .func = strtab_add(&log->names, "AllReduce", 9)};
        fresh.algorithm = strtab_add(&log->names, "RING", 4);
        fresh.datatype = strtab_add(&log->names, tensors, strlen(tensors));
        operation = log->operations.n;
        if (fresh.func == STRTAB_FULL || fresh.algorithm == STRTAB_FULL ||
            array_push(&log->operations, fresh) < 0 || map_set(&l->operations, key, operation) < 0)
            return -1;
    }
    struct nccl_operation *of = &log->operations.at[operation];
    of->stop_ns = chunk->end_ns > of->stop_ns ? chunk->end_ns : of->stop_ns;
    key = map_mix(map_mix(operation * 2 + chunk->sends) + chunk->channel) | 1;
    if (!map_get(&l->proxy_ops, key, &op)) {
        struct nccl_proxy_op fresh = {.operation = (uint32_t)operation,
                                      .peer = peer,
                                      .channel = (int32_t)chunk->channel,
                                      .flags = chunk->sends ? NCCL_OP_SENDS : NCCL_OP_RECEIVES};
        op = log->proxy_ops.n;
        if (array_push(&log->proxy_ops, fresh) < 0 || map_set(&l->proxy_ops, key, op) < 0)
            return -1;
    }
    log->proxy_ops.at[op].n_steps++;
    struct nccl_step step = {.proxy_op = (uint32_t)op,
                             .step = (int32_t)chunk->step,
                             .start_ns = chunk->start_ns,
                             .stop_ns = chunk->end_ns};
    return array_push(&log->steps, step);
}

int chunk_log_build(const struct reference_files *files, int rank, int world)
{
    struct reference_part *reference = files->chunks->part.reference;
    struct nccl_log *log = calloc(1, sizeof *log);
    struct logger logger = {.log = log};
    struct nccl_comm comm = {.rank = rank, .n_ranks = world, .hash = 1};
    files->chunks->part.nccl = log;
    if (!log || strtab_add(&log->names, "", 0) == STRTAB_FULL || array_push(&log->comms, comm) < 0)
        return -1;
    log->of_rings = true;
    if (reference->chunks.n > 1)
        qsort(reference->chunks.at, reference->chunks.n, sizeof *reference->chunks.at, by_time);
    int status = 0;
    for (size_t i = 0; i < reference->chunks.n && status == 0; i++) {
        const struct chunk *chunk = &reference->chunks.at[i];
        status = add_chunk(
            &logger, files->chunks, chunk,
            ring_peer(files->rings, chunk->channel, rank, world > 0 ? world : 1, chunk->sends));
    }
    map_fini(&logger.times);
    map_fini(&logger.operations);
    map_fini(&logger.proxy_ops);
    return status;
}

/* ---- the collectives that they are of ---- */

/* The transfer on Horovod's thread in whose time a moment lies; NO_ID: none. They are in order. */
static uint32_t transfer_at(const struct dpro_trace *trace, const struct trace_rank *rank,
                            int64_t ns)
{
    const struct trace_track *track = &rank->tracks[rank->fused.track];
    uint32_t low = track->first, high = track->first + track->n;
    while (low < high) {
        uint32_t mid = low + (high - low) / 2;
        if (rank->spans[mid].start_ns <= ns)
            low = mid + 1;
        else
            high = mid;
    }
    if (low == track->first)
        return NO_ID;
    const struct trace_span *span = &rank->spans[low - 1];
    bool transfers = span->kind == SPAN_ANNOTATION && span->detail != NO_ID &&
                     strncmp(strtab_get(&trace->names, span->name), "NEGOTIATE_", 10) != 0;
    return transfers && ns <= span->start_ns + span->dur_ns ? low - 1 : NO_ID;
}

/* A ring's rank sends 2 (n - 1) / n of what is reduced, in as many parts as it has steps. */
static uint64_t step_bytes(const struct dpro_trace *trace, const struct trace_detail *detail,
                           int32_t n_ranks, uint32_t n_steps)
{
    uint64_t bytes = 0, item = kineto_dtype_bytes(strtab_get(&trace->names, detail->dtype));
    if (__builtin_mul_overflow(detail->numel, item ? item : 4, &bytes) || n_steps == 0)
        return 0;
    return (uint64_t)((double)bytes * 2 * (n_ranks - 1) / n_ranks / n_steps);
}

static int tie_log(struct dpro_trace *trace, const struct trace_rank *rank, struct nccl_log *log)
{
    uint32_t *n_sent = calloc(log->operations.n + 1, sizeof *n_sent);
    if (!n_sent)
        return -1;
    for (size_t o = 0; o < log->operations.n; o++) {
        struct nccl_operation *operation = &log->operations.at[o];
        int64_t middle = operation->start_ns + (operation->stop_ns - operation->start_ns) / 2;
        operation->span = transfer_at(trace, rank, middle);
        if (operation->span != NO_ID) /* ranks count alike there, whatever they recorded first */
            operation->sequence =
                (uint64_t)rank->details[rank->spans[operation->span].detail].comm_sequence;
    }
    for (size_t i = 0; i < log->steps.n; i++) {
        const struct nccl_proxy_op *op = &log->proxy_ops.at[log->steps.at[i].proxy_op];
        n_sent[op->operation] += (op->flags & NCCL_OP_SENDS) != 0;
    }
    for (size_t i = 0; i < log->steps.n; i++) {
        uint32_t o = log->proxy_ops.at[log->steps.at[i].proxy_op].operation;
        uint32_t span = log->operations.at[o].span;
        if (span != NO_ID)
            log->steps.at[i].size_bytes =
                step_bytes(trace, &rank->details[rank->spans[span].detail],
                           log->comms.at[0].n_ranks, n_sent[o]);
    }
    free(n_sent);
    return 0;
}

int chunk_logs_tie(struct dpro_trace *trace)
{
    for (uint32_t l = 0; l < trace->n_nccl_logs; l++)
        for (uint32_t r = 0; r < trace->n_ranks; r++) {
            struct nccl_log *log = trace->nccl_logs[l];
            const struct trace_rank *rank = &trace->ranks[r];
            if (log->of_rings && log->rank == rank->rank && rank->fused.track != NO_ID &&
                tie_log(trace, rank, log) < 0)
                return -1;
        }
    return 0;
}
