/* What a GPU's caching allocator reserves in the iterations of a job, from what an iteration takes
 * and gives back in order. */
#pragma once

#include "graph/memory/graph_memory.h"
#include "replay/caching_allocator.h"

/* A block that is there when an iteration begins. */
enum reserved_held {
    RESERVED_LASTING,   /* since before the first iteration, parameters first */
    RESERVED_WORKSPACE, /* since the first forward pass */
    RESERVED_STATE,     /* since the first update: of the optimizer */
    RESERVED_BUCKET,    /* since the second forward pass, until which DDP has one bucket for all */
    RESERVED_LEFT,      /* of the iteration before */
};

struct reserved_block {
    uint64_t bytes;
    uint8_t is; /* enum reserved_held */
};

struct reserved_request {
    uint64_t bytes;  /* 0: it is given back */
    uint32_t number; /* of the block: as in `held`, or from n_held on */
};

/* Requests that follow each other. */
struct reserved_range {
    uint32_t first, n;
};

struct reserved_job {
    struct allocator_settings settings;
    uint64_t capacity_bytes; /* 0: not known */
    struct reserved_block *held;
    const struct reserved_request *requests;
    const struct reserved_range *ranges; /* what an iteration asks for: ranges of the requests, the
                                            first and the last once; NULL: all of them */
    uint32_t n_held, n_requests, n_ranges, n_numbers;
    uint32_t forward, update; /* the first request of the forward pass, in the first range, and of
                                 the update, in the last */
};

struct reserved_peak {
    uint64_t bytes;
    uint64_t refused_bytes; /* size of the first request that does not fit; 0: none */
    uint32_t refused;       /* which request it was; UINT32_MAX: none of the iteration's */
};

struct reserved_peak reserved_job_peak(const struct reserved_job *job);

/* What a block is that is there before the iteration. */
enum reserved_held reserved_held_of(const struct graph_block *block);
