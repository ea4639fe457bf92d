/* The job of a path, as the command opens it. What tests are given is kept (case.h) and theirs to
 * look at and to change. */
#pragma once

#include <dpro/job.h>

/* `...`: fields of struct dpro_job_options. */
#define job_at(path, ...)                                                                          \
    job_at_with(                                                                                   \
        path, &(struct dpro_job_options){.size = sizeof(struct dpro_job_options), ##__VA_ARGS__})
struct dpro_job *job_at_with(const char *path, const struct dpro_job_options *options);
/* These fail the test where they can't be made. */
#define trace_at(path, ...) job_trace(job_at(path, ##__VA_ARGS__))
#define graph_at(path, ...) job_graph(job_at(path, ##__VA_ARGS__))
struct dpro_trace *job_trace(struct dpro_job *job);
struct dpro_graph *job_graph(struct dpro_job *job);
/* The path of a recording of tests/data; valid until the next call. */
const char *recorded(const char *name);
