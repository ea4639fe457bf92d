/* What the finders of causes share: what an op's time is spent on, and its time by rank. */
#pragma once

#include "diagnose/pieces.h"

/* What an op's duration, or the gap before it, is spent on. */
enum work {
    WORK_NONE, /* virtual ops, and what only waits */
    WORK_COMPUTE,
    WORK_LAUNCH, /* CPU work of a rank that computes on a GPU, and a GPU's delay after a launch */
    WORK_GAP,    /* a CPU thread has no op, though nothing that it waits for goes on */
    WORK_INPUT,
    WORK_SYNC, /* calls that wait for the GPU, beside the waiting */
    WORK_MEMORY,
    WORK_COPY,
    WORK_TRANSFER,
    N_WORKS
};

/* By [gap * n_ops + op], in the arena. */
uint8_t *works_of(const struct dpro_graph *g, struct arena *arena);

/* By op, 1 + the collective that it is part of, as transfer or message; 0: none. In the arena. */
uint32_t *collectives_of(const struct dpro_graph *g, struct arena *arena);

static inline bool of_works(enum work work, uint32_t works)
{
    return works >> work & 1;
}

/* Whether an op is a transfer, as recorded. */
static inline bool is_timed(const struct diagnosed *d, uint32_t op)
{
    return d->works[op] == WORK_TRANSFER && d->g->dur_ns[op] > 0 &&
           d->g->kind[op] != DPRO_OP_LAUNCH && d->g->kind[op] != DPRO_OP_REDUCE;
}

static inline uint64_t size_of(const struct diagnosed *d, uint32_t op)
{
    return d->g->size_bytes ? d->g->size_bytes[op] : 0;
}

/* Whether GPUs work, and nothing was recorded of what their CPUs do meanwhile. */
bool lacks_cpu(const struct dpro_graph *g);

/* Whether what is called so begins what TensorFlow's executor runs: _SOURCE. */
bool names_executor(const struct dpro_graph *g, uint32_t name);

/* All times with one key, such as those of one kind of op on a rank. */
struct time_group {
    uint64_t key;
    uint32_t rank;         /* index; or whose they are */
    ARRAY(uint32_t) times; /* gap * n_ops + op */
    int64_t *ns;           /* [n_iterations] their sum */
    int64_t mean_ns;       /* of these */
};
typedef ARRAY(struct time_group) time_groups;

/* Adds a time to a rank's group with this key; groups_sum() when all are there: what is left of
 * them, or all of durations. */
void groups_add(time_groups *groups, struct map *numbers, uint64_t key, uint32_t rank,
                uint32_t time);
void groups_sum(time_groups *groups, const struct diagnosed *d, bool all, struct arena *arena);
void groups_fini(time_groups *groups);

/* Times by rank of one kind of op. */
struct peers {
    time_groups groups; /* in runs of one key */
    struct map numbers;
    bool by_stage; /* ranks of one stage are peers; all are where no stage has two ranks */
};

/* Groups of the times of these sorts. Kinds of op that a rank has more or fewer of than another one
 * are other kinds. */
void peers_make(struct peers *p, const struct diagnosed *d, uint32_t works, bool all,
                struct arena *arena);
void peers_fini(struct peers *p);

/* The median, of an even count the lower one; reorders. */
int64_t lower_median(int64_t *ns, size_t n);

/* Whether the gap before an op is a twentieth of the iteration in the median. */
bool gap_is_long(const struct diagnosed *d, uint32_t op);

/* A piece of that share of a time, the same in all iterations, or by iteration; below 0: it gets as
 * much. */
void piece_share(struct cause_found *found, const struct diagnosed *d, uint32_t time, uint32_t part,
                 const double *shares, bool one_for_all);
/* All that is left. */
void piece_all(struct cause_found *found, uint32_t op, bool gap, uint32_t part);

/* "rank 3"; where all ranks of its host are among `are`, "host of ranks 2, 3". NULL: all are one by
 * one. */
uint32_t part_of_rank(struct cause_found *found, const struct diagnosed *d, uint32_t rank,
                      const bool *are);

/* commands.c: gives a cause the command of the what-if that wins most of those that are about it,
 * and its gain; without a model that of a replay, which says what changed computing wins. */
void command_find(struct dpro_cause *cause, const struct diagnosed *d,
                  const struct dpro_diagnose_options *options, struct arena *arena);

/* causes_peers.c: ranks of the same work, beside one another */
void find_slow_ranks(const struct diagnosed *d, struct cause_found *found);
/* By what ranks take longer than their peers for these sorts of work. In the arena. */
struct slow_ranks {
    uint32_t *since; /* by rank, the iteration from which on it is slow; their number: never */
    bool *odd; /* [rank * n_iterations + iteration] in which one that is late in most is not; or, if
                  that may be chance, in which it is */
};
struct slow_ranks slow_ranks_find(const struct diagnosed *d, uint32_t works, struct arena *arena);
/* causes_uneven.c: work that ranks or stages have more of than others */
void find_uneven_work(const struct diagnosed *d, struct cause_found *found);
void find_uneven_stages(const struct diagnosed *d, struct cause_found *found);
void find_bubbles(const struct diagnosed *d, struct cause_found *found);
/* Where work moves between ranks: times of those that have less of it by chance as if they had as
 * much as the mean, which find_uneven_work() leaves as they are. */
void lengthen_passes(struct peers *p, const struct diagnosed *d, struct arena *arena);
/* By op, a number of the micro-batch's pass that it is of; 0: of none. In the arena. */
uint32_t *passes_by_op(const struct diagnosed *d, struct arena *arena);
/* Whether the work of passes forward and back moves between ranks and iterations. */
bool work_moves(const struct diagnosed *d);
/* By the shapes of its ops; 0: none was recorded. */
double flops_of_rank(const struct dpro_graph *g, uint32_t rank);
/* What a rank of each stage computes, of all that or of what is left; returns the mean of stages.
 */
double stages_compute(const struct diagnosed *d, bool all, struct arena *arena, double **of_stage);
/* causes_iterations.c: iterations beside one another */
/* All ops that are named so (but kernels, and those that run what was compiled), and gaps in ranges
 * that are; and what some iterations have more of that than most, as what is in some only is no op
 * of the graph. */
void find_named(const struct diagnosed *d, struct cause_found *found, const char *what);
void find_slow_iterations(const struct diagnosed *d, struct cause_found *found);
void find_noise(const struct diagnosed *d, struct cause_found *found);
void find_start_apart(const struct diagnosed *d, struct cause_found *found);
/* causes_cpu.c: what CPUs do beside computing, and what ranks compute twice */
/* All time of one sort of work; parts by the names of the ops. */
void find_work(const struct diagnosed *d, struct cause_found *found, enum work sort);
void find_syncs(const struct diagnosed *d, struct cause_found *found);
void find_recomputing(const struct diagnosed *d, struct cause_found *found);
/* By op: whether it, or what launched it, computes a forward pass again. In the arena. */
bool *recomputed_ops(const struct dpro_graph *graph, struct arena *arena);
void find_gaps(const struct diagnosed *d, struct cause_found *found);
void find_launches(const struct diagnosed *d, struct cause_found *found);
/* causes_links.c */
void find_slow_links(const struct diagnosed *d, struct cause_found *found);
/* causes_communication.c */
void find_bucket_order(const struct diagnosed *d, struct cause_found *found);
void find_small_messages(const struct diagnosed *d, struct cause_found *found);
void find_contention(const struct diagnosed *d, struct cause_found *found);
void find_communication(const struct diagnosed *d, struct cause_found *found);
