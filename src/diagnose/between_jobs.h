/* What makes one job slower than another: the slower one's graph, with what only the faster one has
 * added to it, and by causes the times and edges that are not the faster one's. */
#pragma once

#include "diagnose/pieces.h"

/* ---- match_jobs.c: which op of one job is which of another: by rank, module, name and order,
 * never by time ---- */

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

/* ---- between_jobs.c ---- */

/* Why times differ. */
enum between_cause {
    BETWEEN_FORWARD,
    BETWEEN_BACKWARD,
    BETWEEN_UPDATE,
    BETWEEN_INPUT,
    BETWEEN_COMMUNICATION, /* with ops that only one of them has: buckets that are cut otherwise */
    BETWEEN_LAUNCH,
    BETWEEN_GAPS,
    BETWEEN_MORE,       /* ops that only the slower one has */
    BETWEEN_LESS,       /* ops that only the faster one has */
    BETWEEN_RECOMPUTED, /* such of either that compute a forward pass again */
    BETWEEN_WAITS,
    N_BETWEEN,
};

struct between_jobs {
    const struct dpro_graph *faster, *slower;
    struct dpro_graph graph;   /* the slower one; its ops are followed by those that only the faster
                                  one has, in which no time passes. Not to be destroyed */
    const uint32_t *faster_op; /* [graph.n_ops] the faster one's op; DPRO_NO_OP: it has none */
    uint32_t *place;           /* by op of the faster one: that of `graph` */
    const bool *recomputed[2]; /* by op of the faster one, of the slower one */
    struct cause_found found[N_BETWEEN]; /* of edges so far */
};

/* Of the faster and the slower job. Borrows from them; all else is in the arena, but for what
 * between_fini() frees. */
void between_make(struct between_jobs *between, const struct job_match *match, struct arena *arena);
void between_fini(struct between_jobs *between);
/* By how much ops and gaps of the slower job are longer; d: of its graph, replayed as the faster
 * one was. */
void between_find_times(struct between_jobs *between, const struct diagnosed *d,
                        const struct chain *faster);
