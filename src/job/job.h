/* A job and what was made of it so far. */
#pragma once

#include "base/base.h"
#include <time.h>

#include <dpro/job.h>

#include "diagnose/measures.h"

struct dpro_job {
    struct arena arena; /* of the paths and the options' texts */
    const char *const *paths;
    size_t n_paths;
    struct dpro_job_options options;
    int64_t shown;
    int threads; /* for what follows the graph */
    struct timespec since;

    struct dpro_trace *trace;
    struct dpro_graph *graph;
    struct dpro_error unbuilt;  /* why there is none; building has taken the trace apart */
    struct dpro_probes *probes; /* of another run */
    struct dpro_model *models[2];
    struct turns *turns[2]; /* by model: what plans took in this job; NULL: none was measured */
    struct {
        bool is_out;       /* of the graph */
        int64_t with_ns;   /* an iteration as recorded */
        int64_t op_ns, ns; /* what was taken out of an op, and what that made of an iteration */
    } profiler;

    struct dpro_replay *replayed; /* as it runs */
    struct dpro_tables *tables;   /* of that; NULL: not asked for yet */

    /* The last answers: */
    struct dpro_replay *replay;
    bool has_validation;
    struct dpro_validation validation;
    struct dpro_daydream daydream;
    double daydream_rate;        /* asked for; -1: it was not yet */
    struct dpro_changes changes; /* the last, of the what-if */
    struct dpro_whatif *whatif;
    struct dpro_optimum *optimum;
    struct dpro_diagnosis *diagnosis;
    struct dpro_measures measures;
    struct dpro_against *against;
    ARRAY(char *) lines; /* said by the search, NULL behind them */
};

void job_begin_stage(struct dpro_job *job); /* stages count from now */
/* What recording cost is taken out of the graph, which is there. */
int job_take_out_profiler(struct dpro_job *job, struct dpro_error *err);
/* Replays it as it runs, once; the graph is there. */
int job_replay(struct dpro_job *job, struct dpro_error *err);
void job_forget_lines(struct dpro_job *job);
