/* A history of the memory of GPUs as torch.cuda.memory._snapshot() gives it, put together from the
 * members of its dicts, in whatever form they are written. */
#pragma once

#include "base/pickle.h"
#include "ingest/rank_job.h"

/* Keys and values that mean something; in a part's strings each has the number of its row. */
#define SNAPSHOT_WORDS(ROW)                                                                        \
    ROW(WORD_ACTION, "action")                                                                     \
    ROW(WORD_ADDR, "addr")                                                                         \
    ROW(WORD_SIZE, "size")                                                                         \
    ROW(WORD_TIME_US, "time_us")                                                                   \
    ROW(WORD_DEVICE, "device")                                                                     \
    ROW(WORD_ADDRESS, "address")                                                                   \
    ROW(WORD_TOTAL_SIZE, "total_size")                                                             \
    ROW(WORD_STATE, "state")                                                                       \
    ROW(WORD_DEVICE_TRACES, "device_traces")                                                       \
    ROW(WORD_CONF, "PYTORCH_CUDA_ALLOC_CONF")                                                      \
    ROW(WORD_CONF_2025, "PYTORCH_ALLOC_CONF")                                                      \
    ROW(WORD_MAX_SPLIT_SIZE, "max_split_size")                                                     \
    ROW(WORD_COLLECTION, "garbage_collection_threshold")                                           \
    ROW(WORD_EXPANDABLE_SEGMENTS, "expandable_segments")                                           \
    ROW(WORD_INACTIVE, "inactive")                                                                 \
    ROW(WORD_ACTIVE_ALLOCATED, "active_allocated")                                                 \
    ROW(WORD_ALLOC, "alloc")                                                                       \
    ROW(WORD_FREE_REQUESTED, "free_requested")                                                     \
    ROW(WORD_FREE_COMPLETED, "free_completed")                                                     \
    ROW(WORD_SEGMENT_ALLOC, "segment_alloc")                                                       \
    ROW(WORD_SEGMENT_FREE, "segment_free")                                                         \
    ROW(WORD_SEGMENT_MAP, "segment_map")                                                           \
    ROW(WORD_SEGMENT_UNMAP, "segment_unmap")                                                       \
    ROW(WORD_OOM, "oom")                                                                           \
    ROW(WORD_SEGMENTS, "segments")                                                                 \
    ROW(WORD_BLOCKS, "blocks")                                                                     \
    ROW(WORD_SETTINGS, "allocator_settings")

#define SNAPSHOT_WORD_OF(word, text) word,
enum snapshot_word { WORD_NONE, SNAPSHOT_WORDS(SNAPSHOT_WORD_OF) N_SNAPSHOT_WORDS };
enum { N_SNAPSHOT_KEYS = WORD_INACTIVE }; /* the words before are keys */

/* What changes how much is allocated or reserved. Another stream may use a block that is given
 * back; when it no longer does is of no matter here. */
enum snapshot_act {
    SNAPSHOT_TAKE,          /* "alloc" */
    SNAPSHOT_GIVE,          /* "free_requested" */
    SNAPSHOT_SEGMENT_TAKEN, /* "segment_alloc", "segment_map" */
    SNAPSHOT_SEGMENT_GIVEN, /* "segment_free", "segment_unmap" */
};

struct snapshot_entry {
    int64_t ns; /* 0: not said */
    uint64_t address, bytes;
    uint32_t list;   /* of a device; NO_ID: not yet known */
    uint32_t object; /* that it was */
    int32_t device;  /* from joining on */
    uint8_t what;    /* enum snapshot_act */
};

struct snapshot_segment {
    int64_t device;
    uint64_t bytes, taken_bytes; /* taken_bytes: of its blocks that are taken */
};

struct snapshot_list {
    uint32_t in, list; /* objects */
};

struct snapshot_part {
    ARRAY(struct snapshot_entry) entries;
    ARRAY(struct snapshot_segment) segments;
    struct snapshot_segment blocks;    /* of the segment that follows, together */
    ARRAY(struct snapshot_list) lists; /* that lie in others, which device_traces may be */
    uint32_t device_traces;            /* object; NO_ID: it did not come */
    uint32_t conf;                     /* string id: of the settings' text; 0: none */
    bool has_settings;
    int64_t max_split_bytes; /* -1: no limit; below: not said */
    double collection;       /* garbage_collection_threshold; below 0: not said */
    int8_t expandable;       /* 0, 1; -1: not said */
    uint64_t n_broken;       /* entries, segments and blocks that make no sense */
    bool whole;
};
extern const struct payload_kind snapshot_payload;

/* A dict being read. */
struct snapshot_dict {
    uint32_t object;
    uint64_t has; /* bit k: key k */
    struct pickle_value values[N_SNAPSHOT_KEYS];
};

/* Adds the words to the part's strings, before any other. */
struct snapshot_part *snapshot_begin(struct trace_part *part);
/* A dict all of whose members are known; what it is for shows by its keys. */
void snapshot_add(struct snapshot_part *to, const struct snapshot_dict *dict);
/* The list that an entry lies in, the last one of those that `object` may be. */
void snapshot_place(struct snapshot_part *to, uint32_t object, uint32_t list);

/* snapshot_join.c: the settings of a rank's allocator from its snapshot. */
void snapshot_describe(struct trace_build *build, struct rank_job *job);
/* Allocations from it, where the profile has none of a GPU. */
void snapshot_join(struct rank_job *job);

/* memory.json, what a rank held when its execution trace began. */
struct held_part {
    ARRAY(struct held_block) blocks;
    ARRAY(struct held_module) modules;
    ARRAY(struct held_allocated) allocated; /* blocks of the device's allocator */
    uint64_t capacity_bytes;
    uint32_t device, allocator, backend; /* string ids */
    bool says_allocator, is_text;        /* the allocator's settings: there; and whole, as text */
    bool of_last_step;
    uint64_t n_broken; /* blocks and modules that make no sense, left out */
};
extern const struct payload_kind held_payload;
