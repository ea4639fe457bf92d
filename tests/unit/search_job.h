/* Jobs for tests of the search, and what it and a replay make of them. */
#pragma once

#include "generated_job.h"
#include "optimize/search.h"

/* These are kept (case.h). */
struct dpro_model *paper_job(const char *name, uint32_t n_ranks); /* generate_job's */
struct dpro_model *random_job_of(const struct generate_options *options);
#define random_job(...) random_job_of(&(struct generate_options){__VA_ARGS__})
struct dpro_optimum *optimum_of(const struct dpro_model *model,
                                const struct dpro_optimize_options *options);
/* How many random jobs a test tries: all n in `make test-long` (DPRO_LONG), else a third. */
uint32_t most_seeds(uint32_t n);
/* An iteration by an evaluation, and by a replay of the job's whole graph, in ns. */
int64_t value_of(const struct dpro_model *model, const struct dpro_strategy *s);
int64_t replayed(const struct dpro_model *model, const struct dpro_strategy *strategy);
