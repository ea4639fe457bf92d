/* plan.json (doc/formats/plan.md), or a plain list of buckets: reading it, checking it as far as
 * can be told without the job, and writing it. */
#pragma once

#include <dpro/model.h>

#include "base/writer.h"

enum {
    PLAN_MOST_PARTITIONS = 1024,
    PLAN_MOST_SERVERS = 4096,
    PLAN_MOST_MICRO_BATCHES = 1024,
    PLAN_MOST_PREFETCH = 1024
};
#define PLAN_NO_SIZE UINT64_MAX

/* Names are ids in `strings`. */
struct plan_file_parameter {
    uint32_t name; /* 0: none */
    uint32_t model;
    uint64_t size_bytes; /* PLAN_NO_SIZE: not told */
};

struct plan_file_bucket {
    size_t first, n; /* of `names` */
    uint64_t size_bytes;
    uint32_t model;
    uint32_t partitions;
    int32_t priority;
    int32_t server; /* the job's number of it; -1: not told */
};

/* Of FSDP. */
struct plan_file_unit {
    uint32_t name; /* of its module; "": the model itself */
    bool reshards; /* frees its parameters after the forward pass */
};

typedef ARRAY(uint32_t) name_array;

struct plan_file {
    char *path; /* of the file itself */
    bool has_schema;
    bool is_list; /* of buckets, each a list of names: nothing else is known then */
    struct strtab strings;
    ARRAY(uint32_t) models;                       /* names */
    ARRAY(struct plan_file_parameter) parameters; /* of all models of the job */
    ARRAY(struct plan_file_bucket) buckets;
    ARRAY(uint32_t) names;
    uint32_t framework, stack, device; /* 0: not there, as all else that is 0 */
    int32_t world_size;
    int64_t baseline_ns, iteration_ns; /* expected */
    double uncertainty_pct;
    enum dpro_compression compression;
    uint32_t n_servers; /* parameter servers; 0: not told */
    int64_t cycle_ns;   /* Horovod's; 0: not told */
    bool fuses;         /* the job is given no groups, and Horovod fuses up to fusion_bytes */
    uint64_t fusion_bytes;
    name_array compiled, in_bf16;       /* of modules; "": the whole model */
    bool changes_numerics;              /* what `compiled` and `in_bf16` have to be allowed by */
    name_array recomputed;              /* of modules; "": the whole model */
    uint32_t micro_batches;             /* 0: not told */
    ARRAY(struct plan_file_unit) units; /* in the order of their forward passes */
    uint32_t prefetch; /* units that each of these gathers ahead; 0: as the job does */
    uint64_t budget_bytes, baseline_peak_bytes, peak_bytes; /* of a rank; 0: not told */

    /* of a plan to be written */
    ARRAY(uint32_t) members;   /* as `names`: indices of parameters */
    bool is_own;               /* it changes nothing */
    int64_t profiled_cycle_ns; /* Horovod's, in the profiled job */
};

/* Reads the file, or plan.json in the folder `path`. What is in it need not fit together. A list of
 * texts is one of modules to recompute. */
void plan_file_read(const char *path, struct plan_file *plan);
/* One that is the next value of a document. */
struct json_reader;
void plan_file_read_within(struct json_reader *reader, struct plan_file *plan);
void plan_file_fini(struct plan_file *plan);

static inline const char *plan_name(const struct plan_file *plan, uint32_t name)
{
    return strtab_get(&plan->strings, name);
}
/* Whether it says anything of memory, or of how modules are computed, that a job is to do. */
static inline bool plan_has_memory(const struct plan_file *plan)
{
    return plan->recomputed.n > 0 || plan->micro_batches > 1;
}
static inline bool plan_has_computing(const struct plan_file *plan)
{
    return plan->compiled.n > 0 || plan->in_bf16.n > 0;
}
/* Whether it says anything but which buckets there are. */
static inline bool plan_has_modules(const struct plan_file *plan)
{
    return plan_has_memory(plan) || plan_has_computing(plan) || plan->units.n > 0;
}

/* The stack that the plan is for, DDP where it names none; -1: no known one. */
int plan_file_stack(const struct plan_file *plan);

void plan_file_write(struct writer *writer, const void *plan);

/* The files that jobs of the plan's stack read beside plan.json; returns how many. */
enum { PLAN_MOST_FILES = 5 };
size_t plan_stack_files(const struct plan_file *plan, struct set_file files[PLAN_MOST_FILES]);
