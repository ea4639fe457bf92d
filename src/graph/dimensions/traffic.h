/* What the members of a process group send each other in an iteration, and what that says of the
 * group. */
#pragma once

#include <dpro/dimensions.h>

#include "graph/collectives/match_collectives.h"

enum carried {
    CARRIED_REDUCED, /* all-reduce, reduce */
    CARRIED_GATHERED,
    CARRIED_SCATTERED, /* reduce-scatter */
    CARRIED_EXCHANGED, /* all-to-all */
    CARRIED_PASSED,    /* send, receive */
    CARRIED_PUSHED,    /* to a parameter server, and pulled */
    CARRIED_BROADCAST,
    CARRIED_OTHER,
    N_CARRIED
};
enum carried_in { CARRIED_IN_FORWARD, CARRIED_IN_BACKWARD, CARRIED_ELSEWHERE, N_CARRIED_IN };

enum { NO_PARALLELISM = -1 };

/* The traffic of a set of ranks: collectives, or what is passed from one to the next. */
struct group_traffic {
    uint32_t set;
    bool passes;      /* sends and receives */
    uint32_t n_ranks; /* of the trace, that take part */
    uint64_t n[N_CARRIED][N_CARRIED_IN], bytes[N_CARRIED][N_CARRIED_IN]; /* of all of these ranks */
    /* Reductions in forward passes, and in backward passes of tensors as large; others. */
    uint64_t layer_bytes, gradient_bytes;
    const char *name; /* what the group is called by those who made it; NULL: nothing that tells */
    int named;        /* enum dpro_parallelism that the name stands for */
    int does;    /* enum dpro_parallelism, by what is carried, and by the name where that leaves
                    it open */
    bool routes; /* its all-to-alls are a dimension of their own: DPRO_EXPERTS */
};

struct traffics {
    const struct join *join;
    ARRAY(struct group_traffic) all;
    struct map places;       /* by set and `passes` */
    struct map forward;      /* set and bytes of a reduction in a forward pass */
    uint32_t *parents;       /* by rank of the job: sets of those that send to each other */
    bool *is_back_and_forth; /* by rank of the job, of a set's first: some pass back what they got,
                                or not all pass on */
    uint32_t *set_of;        /* by rank of the job: their set */
    uint32_t all_ranks;      /* the set of all; NO_ID: one rank */
    uint32_t n_unknown;      /* collectives of an iteration of which the group is not known */
};

void traffics_find(struct traffics *traffics, struct join *join);
void traffics_fini(struct traffics *traffics);
/* The index of a collective's traffic; NO_ID: none. */
uint32_t traffics_of(const struct traffics *traffics, const struct rank_build *rank,
                     const struct local_collective *c);
/* What a collective carries, as it was asked for. */
enum carried traffic_carried(const struct rank_build *rank, const struct local_collective *c);
/* What a name of a group says, enum dpro_parallelism; NO_PARALLELISM: nothing, or several. */
int traffic_named(const char *name);
