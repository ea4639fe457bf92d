/* Joins ranks that were built alone: who takes part in which collective. */
#pragma once

#include "graph/steps/choose_steps.h"

/* Sets of ranks, each kept once and known by its number. */
struct member_set {
    uint32_t first, n; /* into the ranks */
};

struct member_sets {
    ARRAY(struct member_set) sets;
    ARRAY(int32_t) ranks; /* of a set: ascending, each once */
    struct map numbers;   /* the sets by their ranks */
};

/* The number of the set of these ranks, which it sorts; NO_ID: fewer than two, or negative. */
uint32_t member_sets_add(struct member_sets *sets, int32_t *ranks, uint32_t n);
void member_sets_fini(struct member_sets *sets);

static inline uint32_t member_sets_size(const struct member_sets *sets, uint32_t set)
{
    return sets->sets.at[set].n;
}
static inline const int32_t *member_sets_ranks(const struct member_sets *sets, uint32_t set)
{
    return sets->ranks.at + sets->sets.at[set].first;
}
bool member_sets_holds(const struct member_sets *sets, uint32_t set, int32_t rank);

/* comm_pattern.c: which algorithm a collective ran, read from who sent to whom. */
/* One message from a rank of the collective (from 0) to another. */
struct pattern_message {
    uint32_t from, to, channel;
};

struct pattern {
    const char *name;    /* "ring", "halving-doubling", "tree", "direct", "mixed", or
                             what was known; static */
    uint32_t n_chunks;   /* of a ring: messages in which a step is cut on each connection (NCCL:
                            channel); else messages over the busiest connection */
    uint32_t n_channels; /* NCCL's; else 1 */
};

/* known: the algorithm, if NCCL reports it; NULL: it is read from the messages, some of which may
 * be unseen within a node. ring_steps: how often each rank of a ring passes on a chunk: 2 (n - 1)
 * times in an all-reduce of n ranks, else n - 1. Sorts the messages. */
struct pattern pattern_find(struct pattern_message *messages, size_t n, uint32_t n_ranks,
                            const char *known, uint32_t ring_steps);

/* One communication of the job. Members are in order of rank. */
struct joined {
    uint32_t first_member, n_members; /* into join.members */
    uint32_t n_expected;
    uint32_t rank; /* index of the first member's rank, and its collective there */
    uint32_t collective;
    uint32_t first_message, n_messages; /* into join.messages; none: taken as one op a rank */
    uint32_t n_data;                    /* those that carry data */
    uint32_t n_unlogged;                /* members */
    bool has_servers;     /* messages go to and come from servers: "members" n_members and above */
    bool has_node_groups; /* some of them have several members, or a member without a log */
    struct pattern pattern; /* of its messages */
};

struct member {
    uint32_t rank, collective; /* indexes */
    int64_t exchange_ns;       /* mean time from the last arrival to its last message's end */
    uint32_t node_group; /* the number of a member of its node group: ranks of a node, or ranks
                            without a log, which pass on data unseen */
    bool unlogged;       /* it has no log: only the others' ends of its messages are known */
};

struct cross_edge {
    uint32_t from_rank, from, to_rank, to; /* index of a rank, its op */
};

/* A rank of which no whole iteration is left. */
struct cut_rank {
    int rank;
    const char *path; /* of the file that is cut off */
};

struct join {
    struct rank_build *ranks; /* those of servers come behind */
    uint32_t *classes;        /* theirs */
    uint32_t n_ranks, n_servers;
    ARRAY(int) blind;           /* left out, as the GPUs of `ranks` were recorded */
    ARRAY(struct cut_rank) cut; /* left out */
    int world_size;
    bool of_stages;          /* a timeline of stages */
    struct member_sets sets; /* process groups by their ranks */
    ARRAY(struct joined) joined;
    ARRAY(struct member) members;
    ARRAY(struct cross_edge) cross; /* between ranks, beside those of collectives and messages */
    struct clocks clocks;
    struct step_choice choice;
    uint32_t n_mismatched;        /* collectives that other ranks did not confirm */
    uint32_t first_mismatch_rank; /* indexes, to name one */
    uint32_t first_mismatch;
};

/* The index into join.ranks of a collective's member, a rank or a server. */
static inline uint32_t joined_rank(const struct join *join, const struct joined *joined,
                                   uint32_t member)
{
    return member < joined->n_members ? join->members.at[joined->first_member + member].rank
                                      : join->n_ranks + (member - joined->n_members);
}

static inline struct member *joined_members(const struct join *join, const struct joined *joined)
{
    return &join->members.at[joined->first_member];
}

/* A rank's part in a collective, of a struct joined (its first member's) or a struct member. */
#define JOIN_PART(join, of)                                                                        \
    ((const struct local_collective *)&(join)->ranks[(of)->rank].collectives.at[(of)->collective])

/* A member's times in a sample: when it reached its collective, and when its transfer, after all
 * arrivals, began and ended; ABSENT: not measured. */
static inline int64_t member_arrived_ns(const struct join *join, const struct member *member,
                                        uint32_t sample)
{
    return *build_start(&join->ranks[member->rank], sample, JOIN_PART(join, member)->arrival);
}
static inline int64_t *member_transfer_start(const struct join *join, const struct member *member,
                                             uint32_t sample)
{
    return build_start(&join->ranks[member->rank], sample, JOIN_PART(join, member)->transfer);
}
static inline int64_t member_left_ns(const struct join *join, const struct member *member,
                                     uint32_t sample)
{
    return *build_end(&join->ranks[member->rank], sample, JOIN_PART(join, member)->transfer);
}

/* Whether its thread went on beside it, so that it seems to begin when it has been posted, and to
 * last until it has been waited for. */
bool member_is_posted(const struct join *join, const struct member *member);

/* process_groups.c: sets in which phase of training each of a rank's collectives was asked for, and
 * what the calls were that one kernel carries together. Before the rank's slices are forgotten. */
void build_learn_calls(struct rank_build *rank);
/* Sets the members of all ranks' collectives as far as they are known, and the peers of sends and
 * receives. Before collectives are matched. */
void join_find_groups(struct join *join, const struct dpro_trace *trace);

/* Finds the members of every collective: by group and sequence number if all members recorded it,
 * else by order within the group. In a group whose members disagree on kinds or sizes, by order
 * within each kind and size. */
void join_match(struct join *join);

/* Whether a collective's times on the other ranks are inferred from rank 0, as Horovod writes only
 * rank 0's timeline. Such times say nothing about clocks. */
bool join_is_inferred(const struct join *join, const struct joined *joined);

/* Splits collectives that were matched without certainty and whose times contradict it. Needs times
 * on the common axis. */
void join_check_unsure(struct join *join);

/* Cuts every transfer to what follows the last arrival. Needs times on the common axis. */
void join_cut_waiting(struct join *join);

void join_fini(struct join *join);
