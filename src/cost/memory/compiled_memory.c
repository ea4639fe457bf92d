/* What compiled modules keep for the backward pass.
 *
 * A probe measures how many bytes a compiled module keeps, not which tensors. So all that the
 * module makes for its own backward pass is scaled by the ratio to the uncompiled module in the
 * same precision. Blocks that others use keep their size. */
#include "cost/memory/memory_sweep.h"
#include "cost/program/modules.h"

/* What a compiled module keeps, against the same in that precision as it is; 0: not known. */
static double kept_ratio(const struct dpro_model *model, uint32_t module, uint8_t way)
{
    const struct computing_cost *costs = model->modules[module].costs;
    double as_it_is = costs[way & DPRO_BF16].kept;
    return (way & DPRO_COMPILED) && as_it_is > 0 ? costs[way].kept / as_it_is : 0;
}

/* By call: the outermost computed in another way that it lies in, if that is a compiled one of
 * which is known what it keeps; MODEL_NONE. */
static bool find_roots(const struct dpro_model *model, const struct model_memory *m,
                       const struct dpro_strategy *strategy, uint32_t *roots)
{
    bool any = false;
    CALLS_OUTERMOST(roots, m->calls, m->n_calls, c, strategy->computing[m->calls[c].module] != 0);
    for (uint32_t c = 0; c < m->n_calls; c++) {
        uint32_t module = roots[c] == MODEL_NONE ? 0 : m->calls[roots[c]].module;
        if (roots[c] != MODEL_NONE && kept_ratio(model, module, strategy->computing[module]) == 0)
            roots[c] = MODEL_NONE;
        any |= roots[c] != MODEL_NONE;
    }
    return any;
}

static bool is_kept(const struct model_memory *m, const uint32_t *roots,
                    const struct graph_block *b, uint32_t root)
{
    const struct memory_call *call = &m->calls[root];
    if (b->category != DPRO_MEMORY_ACTIVATION || b->taken == MEMORY_NONE ||
        b->taken < call->first || b->taken >= call->last || b->given == MEMORY_NONE ||
        b->given < call->backward_first)
        return false;
    for (uint32_t i = b->first_use; i < b->first_use + b->n_uses; i++) {
        uint32_t by = m->uses[i].call; /* casts of what no op made autocast holds as well */
        if (by == MEMORY_NONE ? b->made_by != MEMORY_NONE : roots[by] != root)
            return false;
    }
    return true;
}

struct model_memory memory_compiled(const struct dpro_model *model, const struct model_memory *m,
                                    const struct dpro_strategy *strategy, struct arena *arena)
{
    struct model_memory to = *m;
    uint32_t *roots = arena_alloc(arena, (m->n_calls + (size_t)1) * sizeof *roots);
    if (!strategy->computing || !find_roots(model, m, strategy, roots))
        return to;
    struct graph_block *blocks = arena_alloc(arena, (m->n_blocks + (size_t)1) * sizeof *blocks);
    for (uint32_t i = 0; i < m->n_blocks; i++) {
        uint32_t root = m->blocks[i].call == MEMORY_NONE ? MODEL_NONE : roots[m->blocks[i].call];
        blocks[i] = m->blocks[i];
        if (root == MODEL_NONE || !is_kept(m, roots, &blocks[i], root))
            continue;
        uint32_t module = m->calls[root].module;
        double kept = kept_ratio(model, module, strategy->computing[module]);
        blocks[i].size_bytes = (uint64_t)((double)blocks[i].size_bytes * MIN(kept, 1024));
    }
    to.blocks = blocks;
    return to;
}
