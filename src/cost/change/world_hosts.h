/* A world of other ranks, and on which hosts of a told topology they are. */
#pragma once

#include "cost/change/replicas.h"
#include "cost/program/cost.h"
#include "cost/program/topology.h"

struct world {
    const struct dpro_graph *g;
    const struct replicas *r;
    struct dpro_model *m;
    struct arena *arena;
    const struct topology *told; /* NULL: hosts are as the trace shows */
    const char *collectives;     /* how they pass over hosts; NULL: as recorded */
    const struct model_rank *before;
    const uint64_t *number; /* by rank before: its number in the grid of `g`'s dimensions */
    uint32_t n_before;      /* ranks that are simulated, copies included */
    uint32_t size;          /* all ranks there will be */
    uint32_t stride;        /* from a rank's number to that of its like in the next replica */
    uint32_t *seen, turn;   /* by host: the turn in which it was counted last */
    uint32_t *place;        /* by rank: the number of its replica */
    uint32_t *row;          /* by rank: which of its replica's ranks it is */
    uint32_t *new_of;       /* by rank: its number among those that are simulated; MODEL_NONE */
    bool assumes_host;      /* that the recorded ranks are on one */
    bool spreads;           /* what was on one host is on several */
    bool routes;            /* all-to-alls get more members */
    bool passes;            /* some collective passes over hosts as was asked for */
};

/* How many members a group will have, and where: every step-th of each `of` neighbours. */
struct members {
    uint32_t n; /* 0: not known */
    uint32_t step, of;
};

/* What the topology says has to fit the trace; where that does not tell hosts, the recorded ranks
 * are on one. */
void world_take_hosts(struct world *w);
/* What of gradients in buckets passes between hosts is known of rings only, and of these not where
 * ranks have other links, too. */
void world_check_buckets(struct world *w);
/* On how many hosts the members of each of the groups in that rank's row will be; 0: of some groups
 * on more than of others. */
uint32_t world_hosts_in_row(struct world *w, uint64_t rank, const struct members *m);
/* On how many hosts a group will be; 0: not known. */
uint32_t world_count_hosts(struct world *w, const struct model_group *group,
                           const struct members *m);
/* A ring over all members leaves each host once, by the links of all its members there, and is no
 * faster than a rank's link within the host. */
struct traffic world_ring_traffic(const struct world *w, uint8_t kind, struct traffic t, double n,
                                  double n_hosts);
/* NCCL's: chains within hosts, double binary trees over them. */
struct traffic world_tree_traffic(const struct world *w, double n, double n_hosts);
/* Rings within hosts, and over hosts of the members with the same place on each, one after the
 * other. False: that kind of communication doesn't pass so. */
bool world_hierarchical_traffic(const struct world *w, uint8_t kind, double n, double n_hosts,
                                struct traffic *t);
/* Which replica each rank is in, and which of its ranks it is. */
void world_find_places(struct world *w);
/* Of each of a replica's ranks the recorded ones, then their copies, one replica after the other.
 * Where not all of them were recorded, those that were stand for the others, too. Returns their
 * numbers in the changed grid. */
const uint64_t *world_copy_ranks(struct world *w);
