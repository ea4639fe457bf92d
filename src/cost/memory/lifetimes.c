/* Finds how long blocks live when modules are recomputed. */
#include "cost/memory/lifetimes.h"
#include "cost/program/modules.h"

struct recomputed_calls recomputed_calls_of(const struct model_memory *m, const bool *recomputed,
                                            struct arena *arena)
{
    struct recomputed_calls calls = {arena_alloc(arena, m->n_calls * sizeof *calls.root), false};
    CALLS_OUTERMOST(calls.root, m->calls, m->n_calls, c,
                    recomputed && recomputed[m->calls[c].module] &&
                        m->calls[c].again != MODEL_NONE);
    for (uint32_t c = 0; c < m->n_calls; c++)
        calls.any |= calls.root[c] != MODEL_NONE;
    return calls;
}

/* What uses of a block ask for, apart by who uses it: the call that is recomputed and made it, and
 * all others. */
struct demands {
    uint32_t forward, backward; /* 1 + the last place of a use within the call; 0: none */
    uint32_t others;            /* the same of all others' forward uses */
    uint32_t others_backward;   /* and backward uses */
    uint32_t held;              /* up to here it is held as what goes into a recomputed call */
};

static struct demands demands_of(const struct model_memory *m, const struct recomputed_calls *calls,
                                 const struct graph_block *b, uint32_t maker)
{
    struct demands d = {0};
    for (uint32_t i = b->first_use; i < b->first_use + b->n_uses; i++) {
        const struct graph_use *u = &m->uses[i];
        uint32_t root = u->call != MEMORY_NONE ? calls->root[u->call] : MODEL_NONE;
        uint32_t end = u->last + 1;
        bool within = maker != MODEL_NONE && root == maker;
        if (!within && root != MODEL_NONE && !u->backward)
            d.held = MAX(d.held, m->calls[root].released + 1);
        else if (!within && root == MODEL_NONE && u->backward)
            d.others_backward = MAX(d.others_backward, end);
        if (within && u->backward)
            d.backward = MAX(d.backward, end);
        else if (within)
            d.forward = MAX(d.forward, end);
        else if (!u->backward)
            d.others = MAX(d.others, end);
    }
    return d;
}

static bool is_permanent(const struct graph_block *b)
{
    return b->category == DPRO_MEMORY_PARAMETER || b->category == DPRO_MEMORY_STATE ||
           b->category == DPRO_MEMORY_GRADIENT || b->category == DPRO_MEMORY_BUCKET ||
           b->gather != 0; /* FSDP gathers and frees, whatever is recomputed */
}

/* The call that makes it in its forward pass and is recomputed. */
static uint32_t maker_of(const struct model_memory *m, const struct recomputed_calls *calls,
                         const struct graph_block *b)
{
    if (b->call == MEMORY_NONE || b->taken == MEMORY_NONE || is_permanent(b))
        return MODEL_NONE;
    uint32_t root = calls->root[b->call];
    bool forward =
        root != MODEL_NONE && b->taken >= m->calls[root].first && b->taken < m->calls[root].last;
    return forward ? root : MODEL_NONE;
}

/* Of a block that a recomputed call makes and that is still there when that is computed again: what
 * is asked for within the call is made anew, what others ask for has to stay. */
static void live_over(const struct model_memory *m, const struct graph_block *b,
                      const struct demands *d, struct lifetimes *l)
{
    const struct memory_call *call = &m->calls[l->call];
    uint32_t given = l->first.to, back = call->again + 1, last = MAX(d->forward, d->others);
    bool anew = d->backward > 0 || (d->others_backward == 0 && d->others == 0);
    if (!anew || d->others_backward >= MAX(d->backward, 1))
        last = given;
    else if (b->n_uses == 0)
        last = call->last;
    else
        last = MAX(MAX(last, d->others_backward), l->first.from + 1);
    l->first.to = MAX(last, l->first.from);
    if (!anew)
        return;
    l->second.from = back;
    l->second.to = MAX(d->others_backward > d->backward ? d->backward : given, back);
}

static void lifetimes_recompute(const struct model_memory *m, const struct graph_block *b,
                                const struct demands *d, struct lifetimes *l)
{
    const struct memory_call *call = &m->calls[l->call];
    uint32_t gone = l->first.to;
    if (gone > call->last + 1) /* others have it */
        gone = MAX(d->forward, l->first.from + 1);
    if (l->first.to > call->again) {
        live_over(m, b, d, l);
        gone = l->second.from > 0 ? UINT32_MAX : gone;
    }
    if (b->taken < call->stop)
        l->within = (struct life){l->first.from, gone};
}

struct lifetimes lifetimes_of(const struct model_memory *m, const struct recomputed_calls *calls,
                              uint32_t block)
{
    const struct graph_block *b = &m->blocks[block];
    struct lifetimes l = {.call = MODEL_NONE};
    l.first.from = b->taken == MEMORY_NONE ? 0 : b->taken + 1;
    l.first.to = b->given == MEMORY_NONE ? m->n_moments + 1 : b->given + 1;
    if (!calls->any || is_permanent(b))
        return l;
    l.call = maker_of(m, calls, b);
    if (l.call == MODEL_NONE && b->n_uses == 0)
        return l;
    struct demands d = demands_of(m, calls, b, l.call);
    if (l.call != MODEL_NONE && b->given != MEMORY_NONE)
        lifetimes_recompute(m, b, &d, &l);
    l.first.to = MAX(l.first.to, d.held);
    return l;
}
