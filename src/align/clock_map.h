/* A job's clocks, and how each is moved onto the common axis. */
#pragma once

#include "base/base.h"

#include <dpro/graph.h>

/* From a clock's own time to the common axis; no segments: as it is. */
struct clock_map {
    const struct dpro_clock_segment *segments;
    uint32_t n;
};
/* Never decreases with the local time. */
int64_t clock_aligned(const struct clock_map *map, int64_t local_ns);

struct clock_bounds {
    struct dpro_clock_bound *at;
    uint32_t n;
};

struct clocks { /* zeroed: none */
    struct arena arena;
    struct dpro_clock *at; /* the reference first, then by lowest rank, then those of no rank */
    uint32_t n;
    struct clock_bounds *bounds; /* a clock */
    struct dpro_alignment alignment;
    struct clock_map *of_rank;    /* by index of the rank, or server, in the join */
    ARRAY(const char *) warnings; /* text in the arena */
};
void clocks_fini(struct clocks *clocks);
