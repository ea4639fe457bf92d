/* A rank under construction, from one process to another. */
#include "graph/global/share_ranks.h"

#include "base/sort.h"
#include "graph/memory/rank_memory.h"
#include "ingest/share_files.h"

/* ---- what travels ---- */

/* What is chosen from. */
static void pack_steps(struct pack *pack, struct rank_build *rank)
{
    PACK_ARRAY(pack, rank->steps);
    PACK(pack, rank->steps.source);
    PACK(pack, rank->steps.mark);
    PACK(pack, rank->steps.end_with_exchange);
    PACK(pack, rank->steps.has_exchange);
    PACK(pack, rank->steps.n_beyond);
    PACK(pack, rank->pace);
}

/* What was chosen. */
static void pack_choice(struct pack *pack, struct rank_build *rank)
{
    EACH (struct step, step, rank->steps)
        PACK(pack, step->timed);
    PACK(pack, rank->steps.reference);
    PACK(pack, rank->steps.shown);
    PACK(pack, rank->n_samples);
    PACK_ITEMS(pack, rank->sample_step, rank->n_samples);
}

static void pack_memory(struct pack *pack, struct rank_memory **memory, uint32_t n_timed)
{
    PACK_ITEMS(pack, *memory, 1);
    if (!*memory)
        return;
    struct graph_memory *is = &(*memory)->is;
    PACK_ITEMS(pack, is->blocks, is->n_blocks);
    PACK_ITEMS(pack, is->moments, is->n_moments);
    PACK_ITEMS(pack, is->uses, is->n_uses);
    PACK_ITEMS(pack, is->calls, is->n_calls);
    PACK_ITEMS(pack, is->typed_ops, is->n_typed_ops);
    PACK_ITEMS(pack, is->operands, is->n_operands);
    PACK_ITEMS(pack, is->units, is->n_units);
    PACK_ITEMS(pack, (*memory)->op_call, n_timed);
    PACK_ITEMS(pack, (*memory)->op_split, is->n_op_splits);
    shared_pack_history(pack, &is->start);
}

/* Times of one iteration: in half of the bytes where they are within four seconds. */
static void pack_step(struct pack *pack, int64_t *ns, uint32_t n)
{
    enum { SOME = 1024 };
    uint32_t since[SOME];
    int64_t first = INT64_MAX, last = INT64_MIN;
    for (uint32_t i = 0; i < n && !pack->reading; i++) {
        first = ns[i] == ABSENT ? first : MIN(first, ns[i]);
        last = MAX(last, ns[i]);
    }
    bool is_short = first > last || (uint64_t)last - (uint64_t)first < UINT32_MAX;
    PACK(pack, first);
    PACK(pack, is_short);
    if (!is_short)
        pack_bytes(pack, ns, n * sizeof *ns);
    for (uint32_t i = 0, m; i < n && is_short; i += m) {
        m = MIN(n - i, SOME);
        for (uint32_t k = 0; k < m && !pack->reading; k++)
            since[k] = ns[i + k] == ABSENT ? UINT32_MAX : (uint32_t)(ns[i + k] - first);
        pack_bytes(pack, since, m * sizeof *since);
        for (uint32_t k = 0; k < m && pack->reading; k++)
            ns[i + k] = since[k] == UINT32_MAX ? ABSENT : first + since[k];
    }
}

static void pack_times(struct pack *pack, int64_t **ns, size_t n_steps, uint32_t n)
{
    bool is_there = *ns != NULL;
    PACK(pack, is_there);
    if (pack->reading)
        *ns = is_there ? mem_alloc(n_steps * n * sizeof **ns + 1) : NULL;
    for (size_t s = 0; s < n_steps && is_there; s++)
        pack_step(pack, *ns + s * n, n);
}

static void pack_rank(struct pack *pack, struct rank_build *rank)
{
    PACK(pack, rank->pace);
    PACK_ARRAY(pack, rank->ops);
    PACK_ARRAY(pack, rank->edges);
    PACK_ARRAY(pack, rank->devices);
    PACK_ARRAY(pack, rank->tensors);
    PACK_ARRAY(pack, rank->sends);
    PACK_ARRAY(pack, rank->receives);
    PACK_ARRAY(pack, rank->collectives);
    EACH (struct local_collective, c, rank->collectives)
        pack_text(pack, &c->kind);
    PACK_ITEMS(pack, rank->parts, rank->collectives.n * rank->n_samples);
    PACK(pack, rank->main_track);
    PACK(pack, rank->boundary);
    PACK(pack, rank->n_timed);
    PACK(pack, rank->n_slots);
    PACK(pack, rank->updates);
    PACK(pack, rank->autocast);
    PACK(pack, rank->lacks_gpu);
    PACK(pack, rank->n_called);
    PACK_ARRAY(pack, rank->grown);
    PACK(pack, rank->unmatched_ns);
    PACK(pack, rank->n_bucket_conflicts);
    pack_times(pack, &rank->start_ns, rank->steps.n, rank->n_timed);
    pack_times(pack, &rank->end_ns, rank->steps.n, rank->n_timed);
    pack_times(pack, &rank->free_ns, rank->steps.n, rank->n_timed);
    pack_times(pack, &rank->seen_start_ns, 1, rank->n_timed);
    pack_times(pack, &rank->seen_end_ns, 1, rank->n_timed);
    PACK_ITEMS(pack, rank->unit_requests,
               rank->trace->recording ? rank->trace->recording->buckets.n : 0);
    pack_memory(pack, &rank->memory, rank->n_timed);
}

static void pack_ranks(struct pack *pack, struct join *join, int process,
                       void (*pack_one)(struct pack *pack, struct rank_build *rank))
{
    EACH_OF (struct rank_build, rank, join->ranks, join->n_ranks)
        if (rank->trace->process == process)
            pack_one(pack, rank);
}

/* ---- the first process ---- */

void shared_hear_steps(struct join *join, struct dpro_processes *processes)
{
    for (int helper = 1; helper < processes_count(processes); helper++) {
        struct pack pack = {0};
        processes_hear(processes, helper, &pack);
        pack_ranks(&pack, join, helper, pack_steps);
        array_fini(&pack.bytes);
    }
}

void shared_answer_steps(struct join *join, struct dpro_processes *processes)
{
    for (int helper = 1; helper < processes_count(processes); helper++) {
        struct pack pack = {0};
        pack_ranks(&pack, join, helper, pack_choice);
        processes_answer(processes, helper, &pack);
    }
}

void shared_hear_ranks(struct join *join, struct dpro_processes *processes, struct arena *arena)
{
    for (int helper = 1; helper < processes_count(processes); helper++) {
        struct pack pack = {.arena = arena};
        processes_hear(processes, helper, &pack);
        processes_answer(processes, helper, &pack);
        processes_begin_stream(processes, helper, &pack);
        pack_ranks(&pack, join, helper, pack_rank);
        processes_end_stream(&pack);
    }
}

/* ---- another process, where all ranks are its own ---- */

bool shared_tell_steps(struct join *join, struct dpro_processes *processes)
{
    struct pack pack = {0};
    pack_ranks(&pack, join, 0, pack_steps);
    bool goes_on = processes_tell(processes, &pack);
    if (goes_on)
        pack_ranks(&pack, join, 0, pack_choice);
    array_fini(&pack.bytes);
    return goes_on;
}

void shared_tell_ranks(struct join *join, struct dpro_processes *processes)
{
    struct pack pack = {0};
    if (!processes_tell(processes, &pack))
        return;
    processes_begin_stream(processes, 0, &pack);
    pack_ranks(&pack, join, 0, pack_rank);
    processes_end_stream(&pack);
}
