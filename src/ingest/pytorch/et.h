/* What PyTorch's execution trace (ET) holds. */
#pragma once

#include "ingest/rank_job.h"

struct execution_trace {
    ARRAY(struct et_node) nodes;
    ARRAY(struct et_tensor) tensors;
};

extern const struct payload_kind et_payload;

/* join_et.c: which one is the rank's; and its nodes in the rank, with the spans that they are. */
void et_describe(struct trace_build *build, struct rank_job *job);
void et_join(struct rank_job *job);
