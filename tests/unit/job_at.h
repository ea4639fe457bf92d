/* The job of a path, as the command opens it. */
#pragma once

#include <dpro/job.h>

/* Kept (case.h). NULL for the options: all are 0. */
struct dpro_job *job_at(const char *path, const struct dpro_job_options *options);
/* The path of a recording of tests/data; valid until the next call. */
const char *recorded(const char *name);
