/* memory.json, what a rank held when its execution trace began. */
#pragma once

#include "ingest/part.h"
#include "ingest/pytorch/snapshot.h"

struct held_part {
    ARRAY(struct held_block) blocks;
    ARRAY(struct held_module) modules;
    struct snapshot_part allocated; /* segments and blocks of the device's allocator */
    uint64_t capacity_bytes;
    uint32_t device, allocator, backend; /* string ids */
    bool says_allocator, is_text;        /* the allocator's settings: there; and whole, as text */
    bool of_last_step;
    uint64_t n_broken; /* blocks and modules that make no sense, left out */
};
extern const struct payload_kind held_payload;
