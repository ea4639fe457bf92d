/* One rank's iteration under a strategy, or one micro-batch of it: sizes and lifetimes of its
 * blocks, and what is held from place to place. */
#pragma once

#include "cost/memory/lifetimes.h"

/* Where a peak is. */
struct memory_top {
    int64_t bytes;
    uint32_t place;
    uint32_t call;   /* being recomputed there; MODEL_NONE */
    uint32_t within; /* place of its forward pass */
};

struct memory_sweep {
    struct arena arena;
    const struct model_memory *m; /* with the strategy's ways to compute */
    const struct memory_setting *setting;
    const struct dpro_strategy *strategy;
    struct recomputed_calls calls;
    double shares[2]; /* of the recorded size, of blocks that grow with the batch; of inputs */
    bool later;       /* a micro-batch behind the first: gradients are there, and are added to */
    int64_t *held;    /* [n_moments + 2] bytes, by place */
    int64_t *within;  /* what recomputations hold more, by places of the forward pass: changes */
    struct memory_top *again; /* by place: the most that a recomputation there holds; NULL: none are
                                 there */
};

/* Its arena is the caller's to free. */
struct memory_sweep memory_sweep_begin(const struct dpro_model *model,
                                       const struct dpro_strategy *strategy,
                                       const struct model_memory *memory, bool later);
/* What a recomputation at a place holds at the most. */
static inline int64_t memory_again(const struct memory_sweep *sweep, uint32_t place)
{
    return sweep->again && sweep->again[place].bytes > 0 ? sweep->again[place].bytes : 0;
}
/* FW, BW, UPDATE; BARRIER: not known. */
static inline enum dpro_op_kind memory_phase(const struct memory_sweep *sweep, uint32_t place)
{
    return place > 0 && sweep->m->n_moments > 0 ? (enum dpro_op_kind)sweep->m->phases[place - 1]
                                                : DPRO_OP_BARRIER;
}
static inline void memory_add(int64_t *changes, struct life life, int64_t bytes)
{
    if (life.from >= life.to)
        return;
    changes[life.from] += bytes;
    changes[life.to] -= bytes;
}
/* Where most is held, and by what. */
struct memory_top memory_sweep_top(const struct memory_sweep *sweep);
void memory_describe(const struct dpro_model *model, const struct memory_sweep *sweep,
                     const struct memory_top *top, struct dpro_memory_peak *peak);
uint64_t memory_size(const struct memory_sweep *sweep, const struct graph_block *block);
struct lifetimes memory_lives(const struct memory_sweep *sweep, uint32_t block);

/* ---- ways to compute ---- */

/* The same memory, in 16 bits already where it is to be, with blocks of other sizes; or itself. In
 * the arena. */
struct model_memory memory_compiled(const struct dpro_model *model, const struct model_memory *m,
                                    const struct dpro_strategy *strategy, struct arena *arena);

/* Whether any call is computed in 16 bits. */
bool memory_has_16_bits(const struct model_memory *m, const struct dpro_strategy *strategy);
/* With the same moments and calls: blocks have their other sizes and lives, behind them come those
 * that casts make; or the memory itself. In the arena. */
struct model_memory memory_in_16_bits(const struct dpro_model *model, const struct model_memory *m,
                                      const struct dpro_strategy *strategy, struct arena *arena);
