/* verify.h: what a plan was worth in a running job: the step times that the job's ranks left, with
 * its own buckets and with the plan's by turns, and what follows from them. */
#ifndef DPRO_VERIFY_H
#define DPRO_VERIFY_H

#include <stdint.h>
#include <stdio.h>

#include <dpro/error.h>

#ifdef __cplusplus
extern "C" {
#endif

struct dpro_plan_summary { /* times 0: the plan does not say */
    char framework[16];    /* pytorch, tensorflow or mxnet */
    char stack[20];        /* as dpro_stack_name() has it */
    int world_size;
    uint32_t n_buckets, n_fused_ops;
    int64_t baseline_ns, iteration_ns;
    double uncertainty_pct;
};

/* Reads a plan (its folder, or plan.json) as far as can be told without the job: DPRO_EFORMAT when
 * a job would refuse it whatever the job is. */
DPRO_API int dpro_plan_read(const char *path, struct dpro_plan_summary *summary,
                            struct dpro_error *err);

struct dpro_verify;

/* Reads what the job wrote (dpro.verify-steps/1) at `path`; `summary` is the plan's. Fails with
 * DPRO_EEMPTY when not one block of turns was measured; the message says why and what to do. On
 * success *verify is the caller's. */
DPRO_API int dpro_verify_read(const char *path, const struct dpro_plan_summary *summary,
                              struct dpro_verify **verify, struct dpro_error *err);
DPRO_API void dpro_verify_destroy(struct dpro_verify *verify); /* NULL is fine */

/* 1: the times are of another rank than 0, which tells that rank 0, on another node, has the
 * result: nothing is told from these. */
DPRO_API int dpro_verify_is_elsewhere(const struct dpro_verify *verify);

/* 1: the plan is slower than the job's own buckets by more than the interval. */
DPRO_API int dpro_verify_is_slower(const struct dpro_verify *verify);

/* Write the whole or fail with DPRO_EIO. The JSON is dpro.verify/1. */
DPRO_API int dpro_verify_text(const struct dpro_verify *verify, FILE *out, struct dpro_error *err);
DPRO_API int dpro_verify_json(const struct dpro_verify *verify, FILE *out, struct dpro_error *err);

#ifdef __cplusplus
}
#endif
#endif
