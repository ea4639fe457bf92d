/* How long an iteration of the job takes without dpro, and how sure that is. */
#pragma once

#include "base/base.h"

#include <dpro/replay.h>

/* Relative standard errors. */
struct job_doubt {
    double noise;       /* of the steps or iterations that it was found from */
    double of_usual;    /* of it, by those that are not slow */
    double machine;     /* how much faster or slower the machine is at another time */
    double correlation; /* of a measured iteration with the one before */
    double without;     /* factor on a measured iteration: without what dpro cost it */
    int64_t median_ns;  /* of the measured iterations, without what the profiler cost */
    int64_t paused_ns;  /* of their mean, pauses of ranks by which they differ most */
    uint32_t n_paused;  /* iterations with pauses; 0: these are not what makes them differ */
};
/* replay_ns: of the graph as it is; profiler_ns: what of the profiler's cost was taken out of it.
 * Without measured iterations, the replay. */
struct dpro_job_time job_time_of(const struct dpro_graph *graph, int64_t replay_ns,
                                 int64_t profiler_ns, struct job_doubt *doubt);

/* What recording cost an iteration by what transport logs show of iterations outside of the
 * profile; *error_ns: its standard error, 0: not known. False: they don't tell. */
bool job_profiler_by_logs(const struct dpro_graph *graph, int64_t *cost_ns, int64_t *error_ns);

/* Of the mean, where slow ones recur among iterations or steps without the profiler; else -1. */
double job_recurring_noise(const struct dpro_graph *graph, bool unprofiled);
