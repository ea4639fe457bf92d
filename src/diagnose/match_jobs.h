/* Which op of one job is which of another: by rank, module, name and order, never by time. */
#pragma once

#include "graph/graph.h"

struct job_match {
    const struct dpro_graph *jobs[2];
    uint32_t *other[2]; /* by op of each job: the other's op; DPRO_NO_OP: it has none */
    uint32_t *devices;  /* by the second job's device: the first's; DPRO_NO_DEVICE: none */
    uint32_t n_matched;
};

/* Ranks by their numbers, each rank's devices by what runs on them. All is in the arena. */
struct job_match match_jobs(const struct dpro_graph *a, const struct dpro_graph *b,
                            struct arena *arena);

/* Whether a device runs one op after the other: a thread, a stream. */
bool device_in_turn(const struct dpro_graph *graph, uint32_t device);
