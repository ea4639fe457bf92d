/* How micro-batches pass through a pipeline's stages. */
#pragma once

#include <dpro/dimensions.h>

#include "graph/graph.h"

/* Of a collective: what one stage sends to another. */
enum stage_message { NO_STAGE_MESSAGE, MESSAGE_FORWARD, MESSAGE_BACKWARD };

struct pipeline {
    uint32_t dimension;       /* DPRO_NO_DIMENSION: there is none */
    uint32_t n_stages;        /* ranks of a group */
    uint32_t n_chunks;        /* parts of the model that a rank has: 1, or more if interleaved */
    uint32_t n_micro_batches; /* 0: not known */
    bool marked;              /* the job marks which of these its ops are of */
    enum dpro_schedule schedule;
    const char *unknown; /* why micro-batches are not known; static; NULL: they are */
    uint8_t *messages;   /* [n_collectives] enum stage_message */
    bool *backward;      /* [n_collectives] it follows a backward pass, or is in one */
    uint32_t *stage_of;  /* [n_ranks] UINT32_MAX: none */
    uint32_t *group_of;  /* [n_ranks] which of the pipelines */
};

/* All that it points to is in `arena`. */
void pipeline_find(const struct dpro_graph *graph, struct arena *arena, struct pipeline *pipeline);
