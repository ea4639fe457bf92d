/* What of a job replicates its model, shards it or splits its tensors, and how many of these a
 * what-if asks for. */
#pragma once

#include "cost/change/change.h"
#include "cost/change/op_work.h"
#include "graph/graph.h"

/* The replicas of a job, and how many a what-if asks for. */
struct replicas {
    uint32_t before, after;
    uint32_t rest;                  /* ranks of a replica */
    uint32_t world;                 /* all ranks before */
    uint32_t dimension;             /* of the graph; UINT32_MAX: all ranks are replicas */
    bool shards;                    /* they share out the parameters */
    bool splits;                    /* no replicas: ranks that split tensors */
    bool reduces;                   /* there was one, and nothing was reduced between replicas */
    uint32_t group;                 /* so many share them out, others replicate these; 0: all do */
    const struct dpro_graph *graph; /* the recorded one, with the dimensions that this needs */
};

/* How ranks change, one dimension after the other: those that split tensors, then replicas. */
struct rank_changes {
    struct replicas of[2];
    uint32_t n; /* the last one may leave everything as it is */
};

/* A rank's shares with the change, relative to those recorded. */
struct rank_share replicas_share(const struct rank_changes *ranks);
/* The bytes of a rank's parameters, against what they were. */
double parameters_share(const struct graph_block *blocks, uint32_t n, struct rank_share share);

/* Fails with DPRO_EUSAGE where replicas are not known, or ranks don't make whole ones. `graph` may
 * be NULL for jobs that communicate gradients only. `model` is that of the recorded job. */
void replicas_find(const struct dpro_graph *graph, const struct dpro_changes *changes,
                   const struct dpro_model *model, struct arena *arena, struct rank_changes *ranks);
/* The number of a rank, where its dimension has other ranks, which are `stride` apart; `place`:
 * that in the dimension, UINT32_MAX: its own. */
uint64_t replicas_number(const struct replicas *replicas, uint32_t stride, uint64_t rank,
                         uint32_t place);
/* How far the members of a dimension's groups are apart in such a world; of one, it is the
 * outermost; 0: that differs. */
uint32_t replicas_stride(const struct graph_dimension *dimension, uint32_t world);
/* Ranks that share out the parameters, where any do. */
uint32_t replicas_shards(const struct replicas *replicas);

/* ---- shards.c: FSDP whose shards are those of a part of its ranks (HSDP) ---- */

/* Whether that gathers or reduces parts that groups share out; whether it reduces them. */
bool shards_move(const struct dpro_model *model, const struct replicas *replicas,
                 const struct model_communication *communication);
bool shards_reduce(const struct dpro_model *model, const struct replicas *replicas,
                   const struct model_communication *communication);
/* `all_reduce`: by communication, of reduce-scatters the all-reduce that follows it. A rank that
 * waits for the first waits for that; on a GPU only behind the last. */
void shards_wait(struct dpro_model *model, const uint32_t *all_reduce, struct arena *arena);

/* ---- change_world.c: other numbers of replicas and of ranks that split tensors ---- */

/* `told`: how ranks are spread over hosts; NULL: as the trace shows. `collectives`: how they pass
 * over told hosts; NULL: as recorded. */
void change_world(const struct rank_changes *ranks, const struct topology *told,
                  const char *collectives, struct dpro_model *model, struct notes *notes);
