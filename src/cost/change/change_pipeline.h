/* Other micro-batches and schedules of a pipeline. */
#pragma once

#include "cost/change/change.h"
#include "cost/change/op_work.h"
#include "graph/graph.h"

/* Whether `changes` asks for them. */
bool asks_for_pipeline(const struct dpro_changes *changes);

/* What a pipeline's stages did and are to do; zeroed: nothing was asked for. */
struct pipeline_change {
    struct dpro_pipeline_run runs[2]; /* before and after */
    const struct graph_rank *ranks;   /* those recorded */
    const uint32_t *stage_of;         /* [n_ranks] of them */
    uint32_t n_stages, n_ranks;
    uint32_t n_chunks[2]; /* parts of the model that a rank has, before and after */
    double averaged; /* how much longer the recorded run takes, relative, if all micro-batches take
                        what they do in the mean; the new one is taken to err alike */
    struct dpro_model as_written, held_up; /* the new run; with calls a standard error longer */
    double join_error_ns; /* of the new run: standard error of what backward passes at once take */
};

/* Writes the programs and communications of `model`, which was learnt of `graph`, anew: a stage
 * computes the same mini-batch in other parts or in another order. *modules, what ranks
 * compute and hold, gets a micro-batch of the new size. Fails with DPRO_EUSAGE where the job has no
 * pipeline, or the trace does not tell how it goes. */
void change_pipeline(const struct dpro_graph *graph, const struct dpro_changes *changes,
                     struct rank_share share, struct dpro_model *model, struct dpro_model *modules,
                     struct notes *notes, struct pipeline_change *change);

/* Of the new run: standard error of what calls, and backward passes at once, take. */
double pipeline_calls_error(const struct pipeline_change *change);
/* The peaks of memory before and after, if they are known. */
void pipeline_peaks(const struct dpro_model *modules, const struct pipeline_change *change,
                    struct dpro_memory_peak peaks[2]);
/* Of an iteration, the part in which a stage computes nothing, mean over its ranks. */
double pipeline_bubble(const struct dpro_model *model, const struct pipeline_change *change,
                       uint32_t stage, int64_t iteration_ns);
