/* Opens the job of a path, for tests. */
#include "job_at.h"

#include "base/base.h"
#include "case.h"

struct dpro_job *job_at_with(const char *path, const struct dpro_job_options *options)
{
    struct dpro_job *job;
    struct dpro_error err;
    if (dpro_job_open(&path, 1, options, &job, &err) < 0)
        fail_msg("%s", err.text);
    KEEP(job, dpro_job_close);
    return job;
}

struct dpro_trace *job_trace(struct dpro_job *job)
{
    const struct dpro_trace *trace;
    struct dpro_error err;
    if (dpro_job_trace(job, &trace, &err) < 0)
        fail_msg("%s", err.text);
    return (struct dpro_trace *)(uintptr_t)trace;
}

struct dpro_graph *job_graph(struct dpro_job *job)
{
    const struct dpro_graph *graph;
    struct dpro_error err;
    if (dpro_job_graph(job, &graph, &err) < 0)
        fail_msg("%s", err.text);
    return (struct dpro_graph *)(uintptr_t)graph;
}

const char *recorded(const char *name)
{
    static char path[512];
    snprintf(path, sizeof path, "%s/tests/data/%s", getenv("DPRO_SOURCE"), name);
    return path;
}
