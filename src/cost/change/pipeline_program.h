/* The programs of a pipeline's ranks, measured by stage and written anew for another run. */
#pragma once

#include "cost/change/change_pipeline.h"
#include "cost/program/pipeline_order.h"
#include "graph/dimensions/pipeline.h"

enum { THERE, BACK, N_WAYS };

/* What is communicated once in each pass, or once in a step: a message over one border between
 * stages in one direction, or what a group communicates beside these. */
struct stage_share {
    struct model_communication mean;
    uint32_t n; /* recorded */
    bool once;
    uint32_t first; /* number of the first of the new ones */
};

enum { BEHIND = 2 }; /* all that a step computes, sends and receives */

/* When a rank hands over gradients that it reduces once a step, or waits for them. */
struct gradient_moment {
    double at;       /* part of the step's last backward pass that is done by then; or BEHIND */
    uint32_t number; /* of a share; behind these, of the model's tensors */
    bool waits;
};

/* Of a rank. */
struct stage {
    double *pass_ns[N_PASS_KINDS];         /* by chunk: of one micro-batch */
    double once_ns, call_ns;               /* of a step; of a communication's call */
    double call_error_ns;                  /* of that, with what follows it */
    double lag_ns[N_WAYS];                 /* of messages that it receives */
    ARRAY(uint32_t) in_passes[N_WAYS];     /* shares, in order */
    ARRAY(uint32_t) first;                 /* those of the begin of a step */
    ARRAY(struct gradient_moment) moments; /* in order */
};

struct pipeline_writer {
    const struct dpro_graph *g;
    struct dpro_model *m;
    struct arena *arena;
    struct pipeline p;
    struct rank_share share;    /* of what ranks share out */
    uint32_t n_chunks;          /* of a rank, in the run that is written */
    bool splits;                /* its backward passes, likewise */
    struct stage *stages;       /* [n_ranks] */
    struct stage_share *shares; /* messages: [(group * n_stages + stage before the border) * N_WAYS
                                   + way]; behind them the others */
    uint32_t n_shares, n_crossings;
    uint32_t *share_of; /* [n_communications] */
    bool *is_first;     /* [n_communications] in the first pass, or once a step */
};

static inline struct pipeline_shape pipeline_shape_of(const struct pipeline_writer *w,
                                                      struct dpro_pipeline_run run)
{
    bool several =
        run.schedule == DPRO_SCHEDULE_ZERO_BUBBLE || run.schedule == DPRO_SCHEDULE_INTERLEAVED;
    return (struct pipeline_shape){w->p.n_stages, several ? MAX(w->p.n_chunks, 2) : 1,
                                   run.n_micro_batches, run.schedule};
}

/* Measures stages and shares, with micro-batches that are `ratio` times as large. `modules`: what
 * ranks compute; NULL: what they did. */
void pipeline_measure(struct pipeline_writer *writer, double ratio,
                      const struct dpro_model *modules);
void pipeline_stage_scale(const struct pipeline_writer *writer, struct stage *stage, double ratio);
/* Programs and communications of a run; the model's own stay as they are. */
struct dpro_model pipeline_write(struct pipeline_writer *writer, struct dpro_pipeline_run run);
void pipeline_writer_fini(struct pipeline_writer *writer);
