/* cost/plan.h: plan.json (doc/formats/plan.md), or a plain list of buckets, as it was written. */
#ifndef COST_PLAN_H
#define COST_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include <dpro/model.h>

#include "base/array.h"
#include "base/strtab.h"

enum { PLAN_MOST_PARTITIONS = 1024 };
#define PLAN_NO_SIZE UINT64_MAX

/* Names are ids in `strings`. */
struct plan_file_parameter {
    uint32_t name; /* 0: none */
    uint32_t model;
    uint64_t size_bytes; /* PLAN_NO_SIZE: not told */
};

struct plan_file_bucket {
    size_t first, n; /* of `names` */
    uint64_t model, size_bytes;
    uint32_t partitions;
    int32_t priority;
    int32_t server; /* the job's number of it; -1: not told */
};

struct plan_file {
    char *path;   /* of the file itself */
    bool is_list; /* of buckets, each a list of names: nothing else is known then */
    struct strtab strings;
    ARRAY(struct plan_file_parameter) parameters; /* of all models of the job */
    ARRAY(struct plan_file_bucket) buckets;
    ARRAY(uint32_t) names;
    uint32_t n_models, n_fused_ops;
    uint32_t framework, stack; /* 0: not there, as all else that is 0 */
    int64_t world_size;
    int64_t baseline_ns, iteration_ns; /* expected */
    double uncertainty_pct;
    enum dpro_compression compression;
    uint32_t n_servers; /* parameter servers; 0: not told */
    int64_t cycle_ns;   /* Horovod's; 0: not told */
    bool fuses;         /* the job is given no groups, and Horovod fuses up to fusion_bytes */
    uint64_t fusion_bytes;
};

/* The file, or plan.json in the folder `path`. What is in it need not fit together. */
int plan_file_read(const char *path, struct plan_file *plan, struct dpro_error *err);
void plan_file_fini(struct plan_file *plan);

#endif
