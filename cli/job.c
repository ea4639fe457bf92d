/* Opens the job of a command that works on one. */
#include "job.h"

#include "progress.h"
#include "together.h"

int job_open(const char *const *paths, size_t n_paths, const struct cmd_values *values,
             struct dpro_job **job)
{
    struct dpro_job_options options = values->job;
    const struct dpro_trace *trace;
    struct dpro_error err = {.code = 0};
    *job = NULL;
    options.size = sizeof options;
    options.processes = together();
    options.sink = progress_start(values->verbosity, values->quiet);
    if (dpro_job_open(paths, n_paths, &options, job, &err) < 0)
        return cmd_fail(&err);
    if (dpro_processes_number(together()) > 0)
        together_help(*job);
    if (dpro_job_trace(*job, &trace, &err) < 0) {
        int code = cmd_fail(&err);
        /* a path that can't be read is bad input, not a failing system */
        return code == CMD_SYSTEM && err.code == DPRO_EIO ? CMD_INPUT : code;
    }
    const char *idle = dpro_processes_idle(together());
    if (idle != NULL && !values->quiet)
        cmd_say("%s, so the other processes of mpirun have nothing to do", idle);
    return 0;
}
