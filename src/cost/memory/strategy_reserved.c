/* What is told of a strategy's memory, with what GPUs' allocators reserve: an iteration as the
 * requests that the allocator gets.
 *
 * A block's lifetimes say between which of the recorded moments it is taken and given back. At one
 * place, the recorded moment comes first, then what the strategy gives back there, then a
 * recomputation, then what else it takes. Micro-batches follow each other: what comes before the
 * forward pass is done once, and so is the update. Those in between all do the same. */

#include "cost/memory/memory_sweep.h"
#include "cost/memory/strategy_memory.h"
#include "cost/program/modules.h"
#include "replay/reserved_job.h"

enum step { RECORDED, GIVEN_EARLIER, RECOMPUTED, TAKEN_AGAIN };

struct reserved_event {
    uint64_t bytes; /* 0: given back */
    uint32_t place;
    uint32_t within; /* of a recomputation: place of the forward pass */
    uint32_t number; /* of the block */
    uint8_t step;
    uint32_t order; /* in which it was added */
};

typedef ARRAY(struct reserved_event) event_array;

ORDER(by_place, struct reserved_event,
      ASCENDING(place) ?: ASCENDING(step) ?: ASCENDING(within) ?: ASCENDING(order));

struct reserved_listing {
    const struct memory_sweep *sweep;
    const struct model_memory *m;
    const uint32_t *held; /* by block: its number there */
    event_array *events;
    uint32_t n_held, micro_batch, n_micro_batches;
    uint32_t forward, update; /* places */
};

/* bytes 0: given back. */
static void reserved_add(const struct reserved_listing *l, enum step step, uint32_t place,
                         uint32_t within, uint32_t number, uint64_t bytes)
{
    array_add(l->events, bytes, place, within, number, (uint8_t)step, (uint32_t)l->events->n);
}

/* Of a block made in a micro-batch: a number for each lifetime, another one in the next. */
static uint32_t number_of(const struct reserved_listing *l, uint32_t micro_batch, uint32_t block,
                          bool second)
{
    return l->n_held + 2 * (micro_batch % 2 * l->m->n_blocks + block) + second;
}

static uint64_t asked_of(const struct memory_sweep *sweep, const struct graph_block *block)
{
    return memory_size(sweep, block) - (block->size_bytes - graph_block_asked(block));
}

static bool is_last(const struct reserved_listing *l)
{
    return l->micro_batch + 1 == l->n_micro_batches;
}

static void add_life(const struct reserved_listing *l, uint32_t block, bool second, uint64_t bytes,
                     struct life life, struct life recorded)
{
    uint32_t number = number_of(l, l->micro_batch, block, second);
    enum step begins = life.from == recorded.from ? RECORDED : TAKEN_AGAIN;
    bool kept = life.to > l->m->n_moments;
    if (life.from >= life.to || (!is_last(l) && life.from > l->update) ||
        (l->micro_batch > 0 && life.from <= l->forward))
        return;
    reserved_add(l, begins, life.from, 0, number, bytes);
    if (kept && l->micro_batch > 0) /* in place of that of the micro-batch before */
        reserved_add(l, begins, life.from, 0, number_of(l, l->micro_batch - 1, block, second), 0);
    if (!kept)
        reserved_add(l, life.to == recorded.to ? RECORDED : GIVEN_EARLIER,
                     is_last(l) ? life.to : MIN(life.to, l->update + 1), 0, number, 0);
}

/* Of a block that is made again: its recomputation takes it, and gives back what is no longer
 * needed then. */
static void add_again(const struct reserved_listing *l, uint32_t block, uint64_t bytes,
                      const struct lifetimes *lives)
{
    const struct memory_call *call = &l->m->calls[lives->call];
    uint32_t number = number_of(l, l->micro_batch, block, true);
    bool lasts = lives->second.from < lives->second.to;
    bool made = lives->within.from < lives->within.to;
    if (made)
        reserved_add(l, RECOMPUTED, call->again, lives->within.from, number, bytes);
    else if (lasts)
        reserved_add(l, TAKEN_AGAIN, call->again, 0, number, bytes);
    if (lasts)
        reserved_add(l, GIVEN_EARLIER, lives->second.to, 0, number, 0);
    else if (made)
        reserved_add(l, RECOMPUTED, call->again, MIN(lives->within.to, call->stop), number, 0);
}

static void add_block(const struct reserved_listing *l, uint32_t block)
{
    const struct graph_block *b = &l->m->blocks[block];
    struct lifetimes lives = memory_lives(l->sweep, block);
    uint64_t bytes = MAX(asked_of(l->sweep, b), 1);
    struct life recorded = {b->taken == MEMORY_NONE ? 0 : b->taken + 1,
                            b->given == MEMORY_NONE ? l->m->n_moments + 1 : b->given + 1};
    if (b->taken == MEMORY_NONE) {
        if (b->given != MEMORY_NONE && l->micro_batch == 0)
            reserved_add(l, RECORDED, recorded.to, 0, l->held[block], 0);
        return;
    }
    if (lives.first.from > 0)
        add_life(l, block, false, bytes, lives.first, recorded);
    if (lives.call != MODEL_NONE)
        add_again(l, block, bytes, &lives);
    else
        add_life(l, block, true, bytes, lives.second, recorded);
}

static uint32_t update_of(const struct model_memory *m)
{
    uint32_t place = 0;
    while (place < m->n_moments && m->phases[place] != DPRO_OP_UPDATE)
        place++;
    return place;
}

static void list_held(const struct memory_sweep *sweep, struct reserved_job *job, uint32_t *held)
{
    const struct model_memory *m = sweep->m;
    for (uint32_t b = 0; b < m->n_blocks; b++)
        if (m->blocks[b].taken == MEMORY_NONE) {
            held[b] = job->n_held;
            job->held[job->n_held++] =
                (struct reserved_block){.bytes = asked_of(sweep, &m->blocks[b]),
                                        .is = (uint8_t)reserved_held_of(&m->blocks[b])};
        }
}

typedef ARRAY(struct reserved_request) request_array;

/* A micro-batch's events in order as requests; places become numbers of requests. */
static struct reserved_range add_requests(const struct reserved_listing *l, request_array *requests,
                                          struct reserved_job *job)
{
    struct reserved_range range = {(uint32_t)requests->n, (uint32_t)l->events->n};
    uint32_t forward = range.first, update = range.first;
    array_sort(l->events, by_place);
    EACH (const struct reserved_event, event, *l->events) {
        array_add(requests, event->bytes, event->number);
        forward += event->place <= l->forward;
        update += event->place <= l->update;
    }
    if (l->micro_batch == 0)
        job->forward = forward;
    job->update = update;
    return range;
}

/* What is most reserved of a rank's device. */
static struct reserved_peak peak_of(const struct dpro_model *model,
                                    const struct dpro_strategy *strategy,
                                    const struct model_memory *memory)
{
    struct reserved_job job = {.settings = memory->allocator,
                               .capacity_bytes = memory->capacity_bytes};
    uint32_t parts = MAX(strategy->micro_batches, 1), *held = NULL;
    struct reserved_range *ranges = mem_alloc(parts * sizeof *ranges);
    SCRATCH event_array events = {0};
    request_array requests = {0};
    for (uint32_t part = 0; part < parts; part++) {
        if (part > 2 && part + 1 < parts) {
            ranges[part] = ranges[part - 2];
            continue;
        }
        struct memory_sweep sweep = memory_sweep_begin(model, strategy, memory, part > 0);
        const struct model_memory *m = sweep.m;
        if (part == 0) {
            held = mem_array((size_t)m->n_blocks + 1, sizeof *held);
            job.held = mem_array((size_t)m->n_blocks + 1, sizeof *job.held);
            list_held(&sweep, &job, held);
            job.n_numbers = job.n_held + 4 * m->n_blocks;
        }
        struct reserved_listing l = {.sweep = &sweep,
                                     .m = m,
                                     .held = held,
                                     .events = &events,
                                     .n_held = job.n_held,
                                     .micro_batch = part,
                                     .n_micro_batches = parts,
                                     .forward = m->n_calls > 0 ? m->calls[0].first : 0,
                                     .update = update_of(m)};
        events.n = 0;
        for (uint32_t b = 0; b < m->n_blocks; b++)
            add_block(&l, b);
        ranges[part] = add_requests(&l, &requests, &job);
        arena_fini(&sweep.arena);
    }
    job.requests = requests.at;
    job.n_requests = (uint32_t)requests.n;
    job.ranges = ranges;
    job.n_ranges = parts;
    struct reserved_peak peak = reserved_job_peak(&job);
    FREE_ALL(&requests, &ranges, &job.held, &held);
    return peak;
}

double memory_reserved_factor(const struct dpro_model *model, const struct model_memory *m)
{
    static const struct dpro_strategy as_it_is;
    struct dpro_model recorded = *model;
    recorded.memory = (struct memory_setting){0};
    uint64_t simulated =
        m->measured_reserved_bytes > 0 ? peak_of(&recorded, &as_it_is, m).bytes : 0;
    return simulated > 0 ? (double)m->measured_reserved_bytes / (double)simulated : 1;
}

/* The most that is reserved on a rank, by what the recorded iteration reserved where that is known,
 * and the first request that does not fit. Compiled code asks
 * for memory in another order, which is not known. */
static void tell_reserved(const struct dpro_model *model, const struct dpro_strategy *strategy,
                          struct dpro_memory_peak *told)
{
    if (modules_count(strategy->computing, model->n_modules, DPRO_COMPILED) > 0)
        return;
    EACH_OF (const struct model_memory, m, model->memories, model->n_memories) {
        if (!m->gpu || m->allocator.other_backend || m->allocator.known == DPRO_ALLOCATOR_STRANGE)
            continue;
        struct reserved_peak peak = peak_of(model, strategy, m);
        double bytes = memory_reserved_factor(model, m) * (double)peak.bytes;
        told->reserved_bytes = MAX(told->reserved_bytes, (uint64_t)llround(bytes));
        told->refused_bytes = MAX(told->refused_bytes, peak.refused_bytes);
    }
}

struct dpro_memory_peak memory_peak_told(const struct dpro_model *model,
                                         const struct dpro_strategy *strategy)
{
    struct dpro_memory_peak told = memory_peak(model, strategy);
    tell_reserved(model, strategy, &told);
    if (told.reserved_bytes > 0)
        told.reserved_bytes = MAX(told.reserved_bytes, told.bytes);
    return told;
}
