/* The memory of a rank under construction: that of the last iteration of the window in which
 * allocations were recorded. The iterations before it show what is there when it begins. */
#pragma once

#include "graph/memory/rank_memory.h"
#include "graph/rank_build.h"

#define BEFORE_WINDOW INT64_MIN
#define AFTER_STEP    INT64_MAX

enum { MEMORY_UNIT = 512 }; /* bytes that a GPU's allocator counts in */

/* Times of a block are those of its taking and of its giving back. */
struct block_build {
    int64_t taken_ns, given_ns; /* BEFORE_WINDOW, AFTER_STEP */
    uint64_t address;           /* 0: not recorded */
    uint64_t size_bytes;
    uint64_t previous; /* without an address: 1 + the block of the same size before it; 0: none */
    uint32_t span;     /* innermost one in which it was taken; NO_ID: none, or taken before */
    uint32_t held;     /* of what memory.json lists; NO_ID */
    uint32_t storage;  /* its number, see storages.c; NO_ID: none was found */
    uint32_t is;       /* its index in the result; NO_ID: gone before the iteration */
    uint64_t numel;    /* of its tensor; 0: not known */
    bool in_forward;   /* it is older than the iteration and used by its forward pass */
    bool updates;      /* an optimizer takes it in */
    bool accumulated;  /* it was handed to a parameter as its gradient */
    bool unseen;       /* that it was given back is not recorded, but told by what came after */
    bool merged;       /* one of several blocks of before of which only the sum is known */
    struct graph_block to;
};

struct moment_build {
    int64_t ns;
    uint32_t track, block;
    bool gives;
};

/* The call whose forward or backward pass a span is part of. */
struct span_call {
    uint32_t call; /* MEMORY_NONE: code of no module */
    bool backward;
};

/* A storage of the execution trace while it is in the same block. */
struct binding {
    int64_t taken_ns, given_ns;
    uint32_t storage, block;
};

struct memory_build {
    const struct rank_build *rank;
    const struct trace_rank *trace;
    const struct held_memory *held; /* NULL: there is none, or of another device */
    struct graph_memory *to;
    struct arena scratch;
    uint32_t window, step;
    int64_t start_ns, end_ns; /* of the iteration */
    uint64_t growth_bytes;    /* as in struct graph_memory */
    int64_t growth_since;     /* likewise */
    uint64_t kept_bytes;      /* likewise */
    int32_t device;
    ARRAY(struct block_build) blocks;   /* by the time at which they were first seen */
    ARRAY(struct moment_build) moments; /* of the iteration */
    ARRAY(struct graph_call) calls;
    struct span_call *span_calls; /* by span; NULL: there are no calls */
    uint32_t *node_of_span;       /* of the execution trace; NULL: there is none */
    ARRAY(uint32_t)
    ordered; /* spans up to the iteration's end that are nodes, or functions of the
                backward pass: by start, outer ones first; none: likewise */
    struct map storage_numbers;
    ARRAY(struct binding) bindings; /* by storage, then by time */
};

/* memory_blocks.c: what was taken and given back in the window, and what was there before. */
void memory_join_allocations(struct memory_build *b);
void memory_add_older(struct memory_build *b);
uint32_t memory_push_block(struct memory_build *b, int64_t taken_ns, uint64_t address,
                           uint64_t size_bytes);
/* The block of that name and size is there from before the iteration until after it. */
struct block_build *memory_add_before(struct memory_build *b, uint8_t category, uint32_t name,
                                      uint64_t size_bytes);

/* The sum of what is there at its highest, as recorded. */
void memory_measure(struct memory_build *b);

/* module_calls.c: calls of modules, with what each did. */
void memory_find_calls(struct memory_build *b);
/* Whether a span is a function of the backward pass that lies in no other. */
bool memory_is_function(const struct memory_build *b, uint32_t span);
/* The span that says what an op is part of: of device work the call that launched it; NO_ID. */
uint32_t memory_span_of_op(const struct memory_build *b, uint32_t op);

/* storages.c: which storage of the execution trace is in which block. */
void memory_find_nodes(struct memory_build *b);
void memory_bind_storages(struct memory_build *b);
void memory_bind(struct memory_build *b, uint32_t block, uint64_t storage);
void memory_order_bindings(struct memory_build *b); /* after those */
/* Whether a node has a tensor of that storage to take in. */
bool memory_takes_in(const struct memory_build *b, const struct et_node *node, uint64_t storage);
/* The block that a storage is in at a time; NO_ID: none that is known. */
uint32_t memory_block_of(const struct memory_build *b, uint64_t storage, int64_t ns);
/* Whether a storage has been in a block, by then. */
bool memory_is_bound_before(const struct memory_build *b, uint64_t storage, int64_t ns);
/* The bytes of its storage up to a tensor's end; 0: it has none. */
uint64_t memory_extent_of(const struct et_tensor *tensor);

/* The GPU that a tensor is on; -1: on none. */
int32_t memory_device_of(const struct memory_build *b, const struct et_tensor *tensor);

/* storage_lives.c: blocks, moments and storages without a record of allocations. */
void memory_find_lives(struct memory_build *b);

/* convolution_copies.c: what they take within themselves. */
void memory_add_convolution_copies(struct memory_build *b);

/* older_storages.c: those that are older than the iteration. */
void memory_bind_older(struct memory_build *b);

/* block_categories.c */
void memory_categorize(struct memory_build *b);

/* unit_blocks.c: what FSDP takes for the parameters that it gathers. */
void memory_find_units(struct memory_build *b);

/* batch_scaling.c */
void memory_find_scaling(struct memory_build *b);
/* What the iteration before left is as what this one leaves. */
void memory_copy_to_older(struct memory_build *b);

/* split_ops.c: what tensor-parallel ranks have a part of; after what scales. */
void memory_find_splits(struct memory_build *b);

/* block_uses.c */
void memory_find_uses(struct memory_build *b);

/* typed_ops.c: ops with the tensors whose data types another precision changes. */
void memory_find_typed_ops(struct memory_build *b);

/* autocast_rules.c: of an op's name, on a GPU or not; enum type_rule. */
uint8_t autocast_rule(const char *name, bool gpu);

void memory_place_moments(struct memory_build *b);

/* The innermost span of a track at a time; NO_ID: none. */
uint32_t memory_span_at(const struct trace_rank *trace, uint32_t track, int64_t ns);

/* Whether a span is of the iteration. */
static inline bool memory_is_in_step(const struct memory_build *b, uint32_t span)
{
    const struct trace_span *it = &b->trace->spans[span];
    return it->window == b->window && it->start_ns >= b->start_ns && it->start_ns < b->end_ns;
}

/* What a device's allocator gives out for so many bytes: a GPU's counts in units. */
static inline uint64_t memory_rounded(const struct memory_build *b, uint64_t bytes)
{
    return b->device < 0 ? bytes : (bytes + MEMORY_UNIT - 1) / MEMORY_UNIT * MEMORY_UNIT;
}

/* for (const struct et_tensor *x: those that a node takes in, or puts out) */
#define EACH_INPUT(x, b, node)                                                                     \
    EACH_OF (const struct et_tensor, x, &(b)->trace->et_tensors[(node)->first_input],              \
             (node)->n_inputs)
#define EACH_OUTPUT(x, b, node)                                                                    \
    EACH_OF (const struct et_tensor, x, &(b)->trace->et_tensors[(node)->first_output],             \
             (node)->n_outputs)

/* The number of moments before a time. */
static inline uint32_t memory_place_of(const struct memory_build *b, int64_t ns)
{
    return (uint32_t)LOWER_BOUND(i, 0, b->moments.n, b->moments.at[i].ns < ns);
}
