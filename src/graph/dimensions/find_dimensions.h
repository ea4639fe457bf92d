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
