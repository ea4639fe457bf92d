/* The peak of memory with other micro-batches or another schedule, by how many micro-batches'
 * activations a rank keeps at the most. */

#include "cost/change/change_pipeline.h"
#include "cost/memory/memory_sweep.h"
#include "cost/memory/strategy_memory.h"
#include "cost/program/model_memory.h"
#include "cost/program/pipeline_order.h"

static double most_in_flight(const struct pipeline_change *change, uint32_t rank, int after)
{
    const struct dpro_pipeline_run *run = &change->runs[after];
    uint32_t stage = change->stage_of[rank], n_chunks = change->n_chunks[after];
    struct pipeline_shape shape = {change->n_stages, n_chunks, run->n_micro_batches, run->schedule};
    return (double)pipeline_in_flight(shape, stage) / n_chunks;
}

/* A rank's memory with other micro-batches. */
struct flight {
    struct memory_sweep sweep; /* what is held has what is in flight */
    int64_t *kept; /* by place: activations that grow with the micro-batch, of one in flight */
    int64_t *more; /* by place: what is held beside what the sweep of a micro-batch says */
    int64_t most;  /* of kept */
    double ratio;  /* of micro-batches in flight at the most */
};

static int64_t kept_at(const struct flight *f, uint32_t place)
{
    double most = (double)f->most * f->ratio, kept = (double)f->kept[place];
    return llround(f->ratio >= 1 ? kept * f->ratio : fmin(kept, most));
}

/* What the mini-batch has more than the sweep says is whole: inputs, outputs that are kept until
 * the step is over, and what is made of all of these behind the passes. */
static void memory_fly(const struct dpro_model *modules, const struct model_memory *m,
                       struct arena *arena, struct flight *f)
{
    f->sweep = memory_sweep_begin(modules, &modules->baseline, m, false);
    f->kept = arena_array(arena, m->n_moments + (size_t)3, sizeof *f->kept);
    f->more = arena_array(arena, m->n_moments + (size_t)3, sizeof *f->more);
    uint32_t last = m->n_moments;
    while (last > 0 && m->phases[last - 1] != DPRO_OP_BW)
        last--;
    for (uint32_t b = 0; b < m->n_blocks; b++) {
        const struct graph_block *block = &m->blocks[b];
        struct lifetimes lives = memory_lives(&f->sweep, b);
        struct life life = lives.first;
        uint64_t size = memory_size(&f->sweep, block);
        bool of_passes = block->category == DPRO_MEMORY_ACTIVATION && block->scales;
        if (of_passes && lives.call != MODEL_NONE && life.to <= m->calls[lives.call].last + 1)
            continue; /* it is made again: no micro-batch in flight has it */
        if (of_passes && life.to <= last)
            memory_add(f->kept, life, (int64_t)size);
        else if (of_passes || block->category == DPRO_MEMORY_INPUT || life.from >= last)
            memory_add(f->more, life, (int64_t)block->size_bytes - (int64_t)size);
    }
    for (uint32_t p = 1; p <= m->n_moments; p++) {
        f->kept[p] += f->kept[p - 1];
        f->more[p] += f->more[p - 1];
        f->most = MAX(f->most, f->kept[p]);
    }
    for (uint32_t p = 0; p <= m->n_moments; p++) {
        f->more[p] += kept_at(f, p) - f->kept[p];
        f->sweep.held[p] += f->more[p];
    }
}

/* How many micro-batches there are in flight is that of the schedule; each has as much. */
#define FLIGHT_ERROR 0.1
/* Which of a micro-batch's activations its gradients of weights still need is not known. */
#define SPLIT_ERROR 1.0

/* With fewer in flight, a place that had not all of them has as many as before, or fewer, too. */
static double unsure_at(const struct flight *f, uint32_t place)
{
    return (double)kept_at(f, place) - (double)f->kept[place] * f->ratio;
}

void pipeline_peaks(const struct dpro_model *modules, const struct pipeline_change *change,
                    struct dpro_memory_peak peaks[2])
{
    static const struct dpro_strategy as_it_is;
    struct dpro_model own = *modules;
    SCRATCH_ARENA struct arena arena = {0};
    if (!memory_is_known(modules))
        return;
    own.memory = (struct memory_setting){0};
    peaks[0] = memory_peak_told(&own, &as_it_is);
    peaks[1] = (struct dpro_memory_peak){.bytes = 0};
    double unsure = 0;
    EACH_OF (const struct model_memory, m, modules->memories, modules->n_memories) {
        struct flight f = {.ratio = most_in_flight(change, m->rank, 1) /
                                    most_in_flight(change, m->rank, 0)};
        memory_fly(modules, m, &arena, &f);
        struct memory_top top = memory_sweep_top(&f.sweep);
        if (top.bytes > (int64_t)peaks[1].bytes) {
            memory_describe(modules, &f.sweep, &top, &peaks[1]);
            peaks[1].by_category[DPRO_MEMORY_ACTIVATION] += (uint64_t)f.more[top.place];
            unsure = unsure_at(&f, top.place) / 2;
        }
        arena_fini(&f.sweep.arena);
    }
    double moved = (double)peaks[1].bytes - (double)peaks[0].bytes;
    bool splits = change->runs[0].schedule == DPRO_SCHEDULE_ZERO_BUBBLE ||
                  change->runs[1].schedule == DPRO_SCHEDULE_ZERO_BUBBLE;
    unsure = hypot(unsure, (splits ? SPLIT_ERROR : FLIGHT_ERROR) * moved);
    peaks[1].std_bytes = hypot(peaks[0].std_bytes, unsure);
}
