/* Opens the job of a command that works on one. */
#include "job.h"

#include <sys/stat.h>

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

int job_check_output(struct dpro_job *job, const char *path)
{
    const struct dpro_trace *trace;
    struct dpro_error err;
    struct stat to, from;
    if (stat(path, &to) < 0 || dpro_job_trace(job, &trace, &err) < 0)
        return 0;
    for (size_t f = 0; f < dpro_trace_n_files(trace); f++) {
        struct dpro_file_info file = dpro_trace_file(trace, f);
        if (stat(file.path, &from) == 0 && to.st_dev == from.st_dev && to.st_ino == from.st_ino) {
            cmd_say("%s is a part of the job's own trace; name another place", path);
            return CMD_USAGE;
        }
    }
    return 0;
}
