/* A rank's snapshot as histories of its devices' allocators. */
#pragma once

#include "ingest/pytorch/snapshot.h"
#include "ingest/rank_job.h"

void snapshot_describe(struct trace_build *build, struct rank_job *job);
/* Allocations from it, where the profile has none of a GPU. */
void snapshot_join(struct rank_job *job);
/* The history of the history's device, streams numbered. */
void snapshot_fill(struct arena *arena, const struct snapshot_part *of,
                   struct allocator_history *history);
