/* A rank under construction, from one process to another. */
#include "graph/global/assembly.h"

#include "graph/memory/rank_memory.h"

/* ---- what travels ---- */

#define OF_RANK(first, last)  PACKED_TO(struct rank_build, first, last)
#define ARRAY_OF_RANK(member) PACKED_ARRAY(struct rank_build, member)

/* What is chosen from. */
static const struct packed of_steps[] = {
    ARRAY_OF_RANK(steps), OF_RANK(steps.source, steps.n_beyond), OF_RANK(pace, pace), PACKED_LAST};

/* What was chosen, beside which steps are timed. */
static const struct packed of_choice[] = {
    OF_RANK(steps.reference, steps.shown), OF_RANK(n_samples, n_samples),
    PACKED_ITEMS(struct rank_build, sample_step, n_samples), PACKED_LAST};

const struct packed shared_of_rank[] = {ARRAY_OF_RANK(ops),
                                        ARRAY_OF_RANK(edges),
                                        ARRAY_OF_RANK(devices),
                                        ARRAY_OF_RANK(tensors),
                                        ARRAY_OF_RANK(sends),
                                        ARRAY_OF_RANK(receives),
                                        ARRAY_OF_RANK(grown),
                                        ARRAY_OF_RANK(collectives),
                                        OF_RANK(pace, pace),
                                        OF_RANK(main_track, main_track),
                                        OF_RANK(boundary, updates),
                                        OF_RANK(work, work),
                                        OF_RANK(in_16_bits, lacks_gpu),
                                        OF_RANK(unmatched_ns, n_bucket_conflicts),
                                        PACKED_LAST};

static void pack_steps(struct pack *pack, struct rank_build *rank)
{
    pack_struct(pack, of_steps, rank);
}

static void pack_choice(struct pack *pack, struct rank_build *rank)
{
    EACH (struct step, step, rank->steps)
        PACK(pack, step->timed);
    pack_struct(pack, of_choice, rank);
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
    pack_struct(pack, shared_of_rank, rank);
    PACK_ITEMS(pack, rank->parts, rank->collectives.n * rank->n_samples);
    pack_times(pack, &rank->start_ns, rank->steps.n, rank->n_timed);
    pack_times(pack, &rank->end_ns, rank->steps.n, rank->n_timed);
    pack_times(pack, &rank->free_ns, rank->steps.n, rank->n_timed);
    pack_times(pack, &rank->seen_start_ns, 1, rank->n_timed);
    pack_times(pack, &rank->seen_end_ns, 1, rank->n_timed);
    PACK_ITEMS(pack, rank->unit_requests,
               rank->trace->recording ? rank->trace->recording->buckets.n : 0);
    PACK_ITEMS(pack, rank->memory, 1);
    if (rank->memory)
        pack_struct(pack, graph_memory_items, rank->memory);
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
    struct pack pack = {0};
    EACH_HEARD (processes, helper, &pack)
        pack_ranks(&pack, join, helper, pack_steps);
}

void shared_answer_steps(struct join *join, struct dpro_processes *processes)
{
    struct pack pack = {0};
    EACH_ANSWERED (processes, helper, &pack)
        pack_ranks(&pack, join, helper, pack_choice);
}

void shared_hear_ranks(struct join *join, struct dpro_processes *processes, struct arena *arena)
{
    struct pack pack = {.arena = arena};
    EACH_HEARD (processes, helper, &pack)
        pack_ranks(&pack, join, helper, pack_rank);
}

/* ---- another process, where all ranks are its own ---- */

bool shared_tell_steps(struct join *join, struct dpro_processes *processes)
{
    struct pack pack = {0};
    if (!processes_tell(processes, &pack))
        return false;
    pack_ranks(&pack, join, 0, pack_steps);
    if (!processes_told(processes, &pack))
        return false;
    pack_ranks(&pack, join, 0, pack_choice);
    processes_end(&pack);
    return true;
}

void shared_tell_ranks(struct join *join, struct dpro_processes *processes)
{
    struct pack pack = {0};
    if (!processes_tell(processes, &pack))
        return;
    pack_ranks(&pack, join, 0, pack_rank);
    if (processes_told(processes, &pack))
        processes_end(&pack);
}
