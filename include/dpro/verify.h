/* The measured gain of a plan, from the step times of turns with the plan and without. All turns
 * are steps of one run of the job, which is switched meanwhile, or each is a run. */
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
    char device[16];       /* that the job computes on: cpu, cuda; "": the plan does not say */
    uint32_t n_servers;    /* parameter servers that it is for; 0: the plan does not say */
    int64_t baseline_ns, iteration_ns;
    double uncertainty_pct;
    uint32_t n_compiled, n_bf16; /* modules that are compiled, and in 16 bits */
    uint32_t n_recomputed;       /* modules that are computed again */
    uint32_t micro_batches;      /* that a step's batch is to be cut into */
    int buckets_alone;           /* 1: it says nothing but which buckets there are */
};

/* Reads a plan (its folder, or plan.json). DPRO_EFORMAT when every job would refuse it; whether a
 * certain job takes it, only that job knows. */
DPRO_API int dpro_plan_read(const char *path, struct dpro_plan_summary *summary,
                            struct dpro_error *err);

struct dpro_verify;

/* Reads the files (dpro.verify-steps/1) that `n_runs` runs of the job wrote at `paths`, in order:
 * one run with all turns, or one a turn. `summary` is the plan's; `problem` is why runs are
 * missing, NULL: none are. Fails with DPRO_EEMPTY when not one block of turns was measured; the
 * message says why and what to do. On success *verify is the caller's. */
DPRO_API int dpro_verify_read(const char *const *paths, size_t n_runs,
                              const struct dpro_plan_summary *summary, const char *problem,
                              struct dpro_verify **verify, struct dpro_error *err);
/* Checks that a run that is one turn left its steps at `path`: DPRO_EEMPTY with the reason when it
 * did not. It is no error that a host with only parameter servers leaves none. */
DPRO_API int dpro_verify_check_run(const char *path, struct dpro_error *err);
DPRO_API void dpro_verify_destroy(struct dpro_verify *verify); /* NULL is fine */

/* 1: the times are of another rank than 0, and rank 0, on another node, has the result. */
DPRO_API int dpro_verify_is_elsewhere(const struct dpro_verify *verify);

/* 1: the plan is slower than the baseline by more than the interval. */
DPRO_API int dpro_verify_is_slower(const struct dpro_verify *verify);

/* Write the whole or fail with DPRO_EIO. The JSON is dpro.verify/1. */
DPRO_API int dpro_verify_text(const struct dpro_verify *verify, FILE *out, struct dpro_error *err);
DPRO_API int dpro_verify_json(const struct dpro_verify *verify, FILE *out, struct dpro_error *err);

#ifdef __cplusplus
}
#endif
#endif
