/* What a plan was worth, as worked out from the times of turns with and without it. */
#pragma once

#include "base/base.h"

#include <dpro/verify.h>

enum { VERIFY_MOST_CONFIGURATIONS = 64, VERIFY_MOST_TEXTS = 64, VERIFY_LEAST_BLOCKS = 3 };

struct turn {
    const char *name;
    int64_t block, span_ns, page_faults, peak_bytes; /* 0: not measured */
    size_t first, n;                                 /* into steps */
    size_t first_bucket, n_buckets;                  /* into bucket_bytes */
};

struct text_list { /* the first of them */
    const char *at[VERIFY_MOST_TEXTS];
    size_t n;
};

struct gain {               /* percent of an iteration saved */
    double mean, low, high; /* low, high: NAN with too few blocks */
};

struct configuration {
    const char *name;
    double iteration_ms;
    size_t n_buckets, first_bucket; /* of its last turn */
    int64_t peak_bytes;             /* the highest of its turns; 0: not measured */
    struct gain gain;               /* over the baseline, the first; for that itself it is 0 */
};

enum verify_verdict {
    VERIFY_SAME, /* buckets: both did the same */
    VERIFY_NO_INTERVAL,
    VERIFY_NOISE,
    VERIFY_SLOWER,
    VERIFY_FASTER,
    VERIFY_AS_EXPECTED,
    VERIFY_LESS,
    VERIFY_MORE,
};

struct dpro_verify {
    struct strtab strings;
    ARRAY(struct turn) turns;
    ARRAY(int64_t) steps;
    ARRAY(int64_t) bucket_bytes;
    struct text_list models, warnings;
    struct configuration configurations[VERIFY_MOST_CONFIGURATIONS]; /* baseline, plan, others */
    size_t n_configurations;
    size_t n_blocks; /* whole ones */
    double *times;   /* ms, of half h and configuration c at [h * n_configurations + c] */
    int best;        /* of the others; -1: there are none */
    struct gain over_best;
    struct dpro_plan_summary plan;
    const char *plan_path, *problem, *framework_version;
    size_t n_runs; /* read so far */
    bool one_run;  /* its turns are the job's steps, not runs of it */
    int64_t rank;  /* of the first run */
    int64_t world_size, n_steps, settle, blocks_wanted, warmup, last_step;
    bool complete, asynchronous;
};

/* The turn of a configuration in half `h` of blocks; in the second half of a block they come in
 * reverse order. */
static inline const struct turn *verify_turn(const struct dpro_verify *v, size_t h, size_t c)
{
    size_t n = v->n_configurations;
    return &v->turns.at[h * n + (h % 2 == 0 ? c : n - 1 - c)];
}

/* verify_stats.c: works out the rest of all that was read; DPRO_EFORMAT where the turns are not in
 * mirrored order. */
void verify_work_out(struct dpro_verify *verify);
enum verify_verdict verify_verdict(const struct dpro_verify *verify);
/* What the plan promised, and half of its 95 % interval, in percent; NAN: it promised nothing. */
double verify_expected_gain(const struct dpro_verify *verify);
double verify_expected_uncertainty(const struct dpro_verify *verify);
