/* How PyTorch's caching allocator of GPU memory is set. */
#pragma once

#include "base/base.h"

#include <dpro/memory.h>

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
