/* FSDP whose parameters are sharded over a part of its ranks and replicated over the others (HSDP),
 * of a job that shards them over all. */
#pragma once

#include "cost/model.h"
#include "graph/graph.h"

/* Ranks that share out the parameters, before and after. */
struct sharding {
    uint32_t dimension;     /* of the graph */
    uint32_t before, after; /* ranks; after 0: as recorded */
};

/* Whether it gathers or reduces shards of that dimension; whether it reduces them. */
bool shards_move(const struct dpro_model *model, const struct sharding *sharding,
                 const struct model_communication *communication);
bool shards_reduce(const struct dpro_model *model, const struct sharding *sharding,
                   const struct model_communication *communication);
/* `all_reduce`: by communication, of reduce-scatters the all-reduce that follows it. A rank that
 * waits for the first waits for that; on a GPU only behind the last. */
void shards_wait(struct dpro_model *model, const uint32_t *all_reduce, struct arena *arena);
