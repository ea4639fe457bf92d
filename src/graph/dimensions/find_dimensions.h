/* The dimensions of parallelism of the job. */
#pragma once

#include "graph/dimensions/rank_grid.h"
#include "graph/dimensions/traffic.h"

struct found_dimension {
    int does;            /* enum dpro_parallelism */
    struct grid_box box; /* none: its groups are those of the sets only */
    uint32_t size, was;  /* its index, before they are sorted */
    bool lies_over;
    uint64_t n_per_rank, bytes_per_rank;
    ARRAY(int32_t) groups; /* `size` ranks each */
    char evidence[400];
};

struct dimensions {
    ARRAY(struct found_dimension) all; /* by parallelism */
    char note[400];
};

/* Finds them, or (where it is not NULL) lays them out as `asked`, "dp=2,tp=4", and sets that of
 * each rank's collectives. Needs collectives that are matched. Fails with DPRO_EUSAGE where the job
 * contradicts what was asked. */
void dimensions_find(struct dimensions *dimensions, struct join *join, const char *asked);
void dimensions_fini(struct dimensions *dimensions);

/* Groups that do the same and have the same shape. */
struct family {
    int does;
    struct grid_box box;
    uint32_t size;        /* of a group */
    uint32_t n_ranks;     /* of the trace, in all groups */
    uint64_t n, bytes;    /* of all of them */
    uint32_t dimension;   /* index; NO_ID: none */
    ARRAY(uint32_t) uses; /* traffics */
};

struct finder {
    struct join *join;
    struct traffics traffics;
    ARRAY(struct family) families;
    struct dimensions *found;
    bool is_grid;
};

static inline const struct group_traffic *finder_use(const struct finder *f,
                                                     const struct family *family, size_t use)
{
    return &f->traffics.all.at[family->uses.at[use]];
}

/* Whether a rank keeps parameters, or a shard of them, and shares their gradients. */
static inline bool keeps_parameters(int does)
{
    return does == DPRO_REPLICATES || does == DPRO_SHARDS;
}

/* ---- asked_dimensions.c ---- */

/* Makes the dimensions "dp=2,tp=4", the outermost first, and gives each family
 * its dimension. Fails with DPRO_EUSAGE where the trace contradicts them. */
void dimensions_lay_out(struct finder *finder, const char *asked);
/* Whether each group of a family lies in one of a dimension with this box. */
bool finder_lies_in(const struct finder *finder, const struct family *family,
                    const struct grid_box *box);
