/* graph/join.h: from ranks built alone to one job: clocks, and who takes part in which collective.
 */
#ifndef GRAPH_JOIN_H
#define GRAPH_JOIN_H

#include "graph/build.h"

/* One communication of the job. Members are in order of rank. */
struct joined {
    uint32_t first_member, n_members; /* into join.members */
    uint32_t n_expected;
    uint32_t rank; /* index of the first member's rank, and its collective there */
    uint32_t collective;
};

struct member {
    uint32_t rank, collective; /* indexes */
};

struct join {
    struct rank_build *ranks;
    uint32_t n_ranks;
    int world_size;
    ARRAY(struct joined) joined;
    ARRAY(struct member) members;
    struct dpro_clock *clocks; /* a rank */
    const char *clock_method;
    bool by_place;                /* ranks number their iterations differently */
    uint32_t n_mismatched;        /* collectives that other ranks did not confirm */
    uint32_t first_mismatch_rank; /* indexes, to name one */
    uint32_t first_mismatch;
};

/* Finds the members of every collective: by group and sequence where all its members recorded it,
 * else by order within the group; a group whose members disagree on kinds or sizes is not joined.
 */
int join_match(struct join *join, struct dpro_error *err);

/* One constant offset a rank from the ends of the collectives it shares with ranks already tied. */
int join_clocks(struct join *join, struct dpro_error *err);

/* Moves all times onto the common axis and cuts every transfer to what follows the last arrival. */
void join_cut_waiting(struct join *join);

/* A rank's time on the common axis; left as it is where that would not fit. */
int64_t join_shifted(int64_t time, int64_t offset);

void join_fini(struct join *join);

#endif
