/* How long each block of a rank's memory lives when some of its modules are recomputed.
 *
 * The rule is that of torch.utils.checkpoint (non-reentrant). A recomputed call's forward pass
 * keeps nothing that it makes; what goes into the call lives until the end of its backward pass.
 * Before that backward pass, the forward pass runs again, up to where the last block that the
 * backward pass asks for is made. */
#pragma once

#include "cost/program/model_memory.h"

struct recomputed_calls {
    uint32_t *root; /* by call: the outermost recomputed call that it lies in; MODEL_NONE */
    bool any;
};
struct recomputed_calls recomputed_calls_of(const struct model_memory *memory,
                                            const bool *recomputed, struct arena *arena);

/* The places [from, to) at which a block exists. */
struct life {
    uint32_t from, to;
};
struct lifetimes {
    struct life first;
    struct life second; /* after a recomputation has made it again; from == to: none */
    struct life within; /* while its call is recomputed, in places of the forward pass up to `stop`;
                           from == to: never */
    uint32_t call;      /* the recomputed call that makes it in its forward pass; MODEL_NONE */
};
struct lifetimes lifetimes_of(const struct model_memory *memory,
                              const struct recomputed_calls *calls, uint32_t block);
