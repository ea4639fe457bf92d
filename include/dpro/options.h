/* What a job is read, built and learnt with. */
#ifndef DPRO_OPTIONS_H
#define DPRO_OPTIONS_H

#include <stddef.h>
#include <stdint.h>

#include <dpro/log.h>

#ifdef __cplusplus
extern "C" {
#endif

struct dpro_processes; /* processes.h */

struct dpro_job_options {
    size_t size; /* of the struct (error.h) */
    int threads; /* that read, build, predict and search; 0: one a core. Results are the same */

    /* Reading: */
    const char *rank_regex; /* POSIX extended; its first group is the rank, taken from the file name
                               and preferred to the file's own metadata. NULL: metadata, else
                               rank<N>, rank_<N>, worker<N>, ..._<N>.json */
    int without_profile;    /* 1: transport logs alone suffice; then there is nothing to replay */
    struct dpro_processes *processes; /* read the files together with this one; NULL: none */
    int from_host;                    /* 1: of the files they see, those that name their host */

    /* The graph: */
    int64_t first_step,
        last_step;    /* iterations to use, both included, in the job's own numbers; 0, 0: all */
    int no_align;     /* 1: clocks are used as recorded */
    int raw_receives; /* 1: a RECV lasts as its calls did, not from its SEND's start on (paper,
                         section 3.2, observation 1); for comparison */
    const char *dimensions; /* "dp=2,tp=4", the outermost first: taken in place of those that the
                               process groups show (dimensions.h); NULL: those */
    const char *step_mark;  /* an extended regular expression: ranges whose names it matches, or is
                               part of, are the iterations; NULL: what else tells */
    const int64_t *shown;   /* the iteration to show, in the job's own numbers; NULL: the one whose
                               time is nearest to the mean */
    int clocks_only;        /* 1: only the graph's clocks are wanted: no ops, no profile needed */

    /* The models and replays of a job (job.h): */
    const char *probes; /* the probes.json of another run; NULL: the trace's own */
    int keep_profiler;  /* 1: what recording cost the job stays in its graph */

    struct dpro_sink sink;
};

#ifdef __cplusplus
}
#endif
#endif
