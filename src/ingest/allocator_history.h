/* What a caching allocator of GPU memory was asked for, how it was set, and, where it was recorded,
 * what it answered. replay/caching_allocator.h answers the same anew. */
#pragma once

#include "base/base.h"

#include <dpro/memory.h>

enum allocator_act {
    ALLOCATOR_TAKE,
    ALLOCATOR_GIVE, /* the block may be taken again at once */
    /* Another stream uses it still (record_stream): the block is given back, but may be taken
     * again only from `completed` on, or when the allocator waits because memory is short. What is
     * recorded as "free_requested" and "free_completed" is these two, also where one follows the
     * other at once. */
    ALLOCATOR_GIVE_REQUESTED,
    ALLOCATOR_GIVE_COMPLETED,
    ALLOCATOR_EMPTY_CACHE, /* torch.cuda.empty_cache() */
    /* Answers that were recorded: what the allocator took from the device and gave back to it,
     * in the midst of the request that follows. `id` is the address. */
    ALLOCATOR_SEGMENT_TAKEN, /* cudaMalloc; "segment_alloc" */
    ALLOCATOR_SEGMENT_GIVEN, /* cudaFree; "segment_free" */
    ALLOCATOR_MAPPED,        /* of an expandable segment; "segment_map" */
    ALLOCATOR_UNMAPPED,      /* "segment_unmap" */
    ALLOCATOR_FAILED,        /* a request for `bytes` was refused; "oom" */
};

struct allocator_request {
    int64_t ns;
    uint64_t bytes;  /* as asked for, not rounded. Of a giving back it is looked at only where the
                        taking is not recorded */
    uint64_t id;     /* of the block: recorded ones by address, others by any number. It may come
                            again when the block was given back */
    uint32_t stream; /* of what is taken; numbered in the order of the streams' handles, 0: the
                        default one */
    uint8_t what;    /* enum allocator_act */
};

#define ALLOCATOR_UNLIMITED     UINT64_MAX
#define ALLOCATOR_N_ROUNDING    16 /* sizes below 2 MiB, below 4 MiB, ..., from 32 GiB */
#define ALLOCATOR_LARGE_SEGMENT ((uint64_t)20 << 20)

/* Settings, as PYTORCH_CUDA_ALLOC_CONF gives them. */
struct allocator_settings {
    uint64_t max_split_bytes; /* blocks of that size are not split; ALLOCATOR_UNLIMITED */
    uint64_t max_non_split_rounding_bytes;
    uint64_t large_segment_bytes;
    uint32_t roundup_power2_divisions[ALLOCATOR_N_ROUNDING]; /* 0, 1: sizes are not rounded so */
    double garbage_collection_threshold;                     /* 0: none is collected */
    double memory_fraction; /* of the device that the process may have; 0, 1: no limit */
    bool expandable_segments;
    bool by_address;    /* of free blocks of one size the one at the lowest address is taken; else
                           that of the segment which was taken first */
    bool other_backend; /* cudaMallocAsync, which the simulator does not know */
    uint8_t known;      /* enum dpro_allocator_settings; parsing does not set it */
};

/* Whether PyTorch of that version, such as "2.11.0+cu130", sets by_address. 2.13 is the first that
 * does not; "": not known, taken for a new one. */
bool allocator_is_by_address(const char *version);
/* Those of a job that sets nothing. */
struct allocator_settings allocator_settings_default(void);
/* Changes what `text` sets, as PYTORCH_CUDA_ALLOC_CONF, PYTORCH_ALLOC_CONF and a snapshot's
 * allocator_settings have it: "max_split_size_mb:128,roundup_power2_divisions:[256:1,>:8]". Returns
 * how many keys it does not know, which are passed over; DPRO_EFORMAT: what PyTorch refuses, too,
 * and *settings is as before. */
int allocator_settings_parse(struct allocator_settings *settings, const char *text,
                             struct dpro_error *err);

struct trace_build;
struct rank_job;
/* The settings that the file at `path` gives as `text`, which are known now. Where it makes no
 * sense, or sets what is not known here, a warning says so, and they are strange. */
struct allocator_settings allocator_settings_read(struct trace_build *build, struct rank_job *job,
                                                  const char *path, const char *text);

enum allocator_block_state { ALLOCATOR_FREE, ALLOCATOR_TAKEN, ALLOCATOR_WAITING };

/* Of a snapshot's segment. */
struct allocator_block {
    uint64_t address, size_bytes;
    uint8_t state; /* enum allocator_block_state: "inactive", "active_allocated",
                      "active_pending_free" */
};

struct allocator_segment {
    uint64_t address, size_bytes;
    uint32_t first_block, n_blocks; /* into the history's blocks, by address, without gaps */
    uint32_t stream;
    uint32_t order; /* in which segments were taken, 1 + "registration_counter"; 0: not known */
    bool small;     /* segment_type */
    bool expandable;
    bool private_pool; /* of a CUDA graph or torch.cuda.MemPool */
};

/* A snapshot (torch.cuda.memory._snapshot()) of one device. */
struct allocator_history {
    struct allocator_settings settings;
    struct allocator_request *requests; /* in the order of device_traces */
    struct allocator_segment *segments; /* when the snapshot was made, by address */
    struct allocator_block *blocks;
    uint32_t n_requests, n_segments, n_blocks;
    uint64_t capacity_bytes; /* of the device; 0: not known */
    int32_t device;
};
