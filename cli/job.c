/* job.c: reads a job's traces and builds its graph, for the commands that work on one. */
#include "job.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cmd.h"

bool job_read_steps(const char *text, void *field)
{
    struct job_steps *steps = field;
    const char *colon = strchr(text, ':');
    char *end;
    steps->first = 0;
    steps->last = INT64_MAX;
    if (text[strspn(text, "0123456789:")] != '\0' || text[0] == '\0' || strcmp(text, ":") == 0)
        return false;
    errno = 0;
    if (text[0] != ':')
        steps->first = strtoll(text, &end, 10);
    if (colon == NULL)
        steps->last = steps->first;
    else if (colon[1] != '\0') {
        steps->last = strtoll(colon + 1, &end, 10);
        if (*end != '\0')
            return false;
    }
    if (errno != 0 || steps->first > steps->last)
        return false;
    if (steps->last == 0)
        steps->first = -1; /* 0, 0 would mean all */
    return true;
}

bool job_read_delay(const char *text, void *field)
{
    const char *equals = strrchr(text, '=');
    double value;
    return equals != NULL && equals != text && text[0] != '@' && opt_number(equals + 1, &value) &&
           opt_read_list(text, field);
}

int job_load(const char *const *paths, size_t n_paths, const struct job_options *options,
             struct job *job)
{
    struct dpro_trace_options trace_options = {
        .rank_regex = options->rank_regex, .threads = options->threads, .sink = options->sink};
    struct dpro_graph_options graph_options = {.first_step = options->steps.first,
                                               .last_step = options->steps.last,
                                               .no_align = options->no_align,
                                               .raw_receives = options->raw_receives,
                                               .sink = options->sink};
    struct dpro_error err = {.code = 0};
    *job = (struct job){NULL, NULL};
    if (dpro_trace_load(paths, n_paths, &trace_options, &job->trace, &err) < 0) {
        int code = cmd_fail(&err);
        /* a path that can't be read is bad input, not a failing system */
        return code == CMD_SYSTEM && err.code == DPRO_EIO ? CMD_INPUT : code;
    }
    if (dpro_graph_build(job->trace, &graph_options, &job->graph, &err) < 0) {
        job_fini(job);
        return cmd_fail(&err);
    }
    return 0;
}

void job_fini(struct job *job)
{
    dpro_graph_destroy(job->graph);
    dpro_trace_destroy(job->trace);
    *job = (struct job){NULL, NULL};
}

int job_model(struct job *job, const struct job_options *options, struct dpro_model **model)
{
    struct dpro_model_options model_options = {.sink = options->sink};
    struct dpro_error err = {.code = 0};
    dpro_graph_take_out_profiler(job->graph);
    return dpro_model_build(job->graph, &model_options, model, &err) < 0 ? cmd_fail(&err) : 0;
}
