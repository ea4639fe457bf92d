/* MXNet's profile and the graph that it is of. */
#pragma once

#include "ingest/rank_job.h"

/* match_types.c: sets span.node, where spans bear the nodes' types only. */
void mxnet_match_types(struct rank_job *job);
