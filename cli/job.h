/* From the paths that a command is given to its job. */
#pragma once

#include <dpro/job.h>

#include "cmd.h"

/* Opens the job and reads its traces. Returns 0, or the exit code after having said what is wrong;
 * *job is to be closed in any case. */
int job_open(const char *const *paths, size_t n_paths, const struct cmd_values *values,
             struct dpro_job **job);
/* Whether `path`, where is to be written, is none of the files that the job was read from: 0, or
 * the exit code after having said so. */
int job_check_output(struct dpro_job *job, const char *path);
