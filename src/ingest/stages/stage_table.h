/* Timelines of pipeline stages: one row an op of a worker, as monitors of large jobs keep them.
 *
 * A worker is one stage of one data-parallel rank; its tensor-parallel group counts as one. Ops are
 * passes of micro-batches, what stages send each other, and what all data-parallel ranks
 * communicate; nothing tells of kernels. All workers count time by one clock. */
#pragma once

#include "base/base.h"

struct trace_build;
struct trace_part;
struct payload_kind;

/* How an op ends, and whom its group is of. */
enum stage_comm {
    STAGE_COMPUTES, /* when it has taken its time */
    STAGE_FORWARDS, /* a send or a receive of a forward pass: its time after both ends have begun */
    STAGE_BACKWARDS,
    STAGE_OF_STAGE,   /* its time after this stage of all data-parallel ranks has begun */
    STAGE_OF_REPLICA, /* ... after the members of its data-parallel rank have */
    STAGE_OF_ALL,     /* ... after all workers have */
    N_STAGE_COMMS
};

/* name, how it ends, whether a usual time is a median (of what communicates) rather than a mean */
#define STAGE_OPS(OP)                                                                              \
    OP(FORWARD, "forward-compute", COMPUTES, false)                                                \
    OP(BACKWARD, "backward-compute", COMPUTES, false)                                              \
    OP(FORWARD_SEND, "forward-send", FORWARDS, true)                                               \
    OP(FORWARD_RECV, "forward-recv", FORWARDS, true)                                               \
    OP(BACKWARD_SEND, "backward-send", BACKWARDS, true)                                            \
    OP(BACKWARD_RECV, "backward-recv", BACKWARDS, true)                                            \
    OP(PARAMS_GATHER, "params-all-gather", OF_STAGE, true)                                         \
    OP(GRADS_SCATTER, "grads-reduce-scatter", OF_STAGE, true)                                      \
    OP(SEPARATE_GRADS, "separate-grads-all-reduce", OF_STAGE, true)                                \
    OP(LAYERNORM_GRADS, "layernorm-grads-all-reduce", COMPUTES, true)                              \
    OP(EMBEDDING_GRADS, "embedding-grads-all-reduce", OF_REPLICA, true)                            \
    OP(CLIP, "optimizer-clip-main-grad", OF_ALL, true)                                             \
    OP(OPTIMIZER, "optimizer", COMPUTES, false)                                                    \
    OP(GC, "gc", COMPUTES, false)
#define STAGE_OP_NUMBER(id, ...) STAGE_##id,
enum stage_op_type { STAGE_OPS(STAGE_OP_NUMBER) N_STAGE_OPS };

struct stage_op_kind {
    const char *name;
    enum stage_comm comm;
    bool median;
};
extern const struct stage_op_kind stage_op_kinds[N_STAGE_OPS];
static inline bool stage_op_receives(uint8_t type)
{
    return type == STAGE_FORWARD_RECV || type == STAGE_BACKWARD_RECV;
}
static inline bool stage_op_sends(uint8_t type)
{
    return type == STAGE_FORWARD_SEND || type == STAGE_BACKWARD_SEND;
}
static inline bool stage_op_is_message(uint8_t type)
{
    return type >= STAGE_FORWARD_SEND && type <= STAGE_BACKWARD_RECV;
}
/* Whether its members are of all data-parallel ranks. */
static inline bool stage_op_of_replicas(uint8_t type)
{
    enum stage_comm comm = stage_op_kinds[type].comm;
    return comm == STAGE_OF_STAGE || comm == STAGE_OF_ALL;
}
/* Whether a text is a word of lower case, whatever its case and what stands between. */
bool stage_word_is(const char *text, size_t len, const char *word);
/* N_STAGE_OPS: no op has that name. */
enum stage_op_type stage_op_find(const char *name, size_t len);

struct stage_op {
    int64_t start_ns, dur_ns;
    uint32_t worker, step; /* indices */
    uint32_t sequence;     /* counts ops of its type of a worker in a step, in order of start */
    int32_t micro_batch;   /* -1: not said; of a collection of garbage: its place: so many passes
                              precede it; from AFTER_PASSES on all, and so many ops more */
    uint16_t chunk;        /* of the stage's model chunks (virtual stages) */
    uint8_t type;          /* enum stage_op_type */
};

struct stage_worker {
    int64_t number; /* as the file counts it; -1: it does not */
    uint32_t replica, stage;
};

/* What waits for what in a worker, by the numbers of its spans. */
struct stage_edge {
    uint32_t worker, from, to;
};

struct stage_table {
    ARRAY(struct stage_op) ops;         /* by worker, step, type, sequence */
    ARRAY(struct stage_worker) workers; /* ascending by number; the index is dpro's rank */
    ARRAY(int64_t) steps;               /* numbers, ascending */
    size_t n_twice;                     /* rows that were there twice */
    uint32_t n_replicas, n_stages, n_chunks;
    bool scatters_meanwhile; /* gradients, while passes go on */
    uint32_t usual;          /* step, index: most do the same as it */
    int64_t (*bounds)[2];    /* of each step, over all workers, but before the next one */
    size_t *first; /* ops of a step of a worker: [worker * steps + step], one more at the end */
    uint32_t *worker_at;            /* [replica * n_stages + stage]; UINT32_MAX: there is none */
    ARRAY(struct stage_edge) edges; /* between spans, by worker */
};
void stage_table_fini(void *stages);
/* How many ops of a worker in turn precede a collection of garbage, by its place. */
enum { AFTER_PASSES = 1 << 24 };
static inline size_t stage_gc_place(int32_t place, size_t n_passes, size_t n_turns)
{
    bool after = place >= AFTER_PASSES;
    return MIN(after ? n_passes + (size_t)(place - AFTER_PASSES) : (size_t)place,
               after ? n_turns : n_passes);
}
/* Whether it is one of those that a worker does in turn: a program that waits for each before the
 * next. Garbage is collected between any two of them. */
static inline bool stage_op_is_in_turn(const struct stage_table *table, uint8_t type)
{
    return type <= STAGE_BACKWARD || (type > STAGE_GRADS_SCATTER && type < STAGE_GC) ||
           (type == STAGE_GRADS_SCATTER && !table->scatters_meanwhile);
}

/* Puts all in order. Before, workers and steps may stand in any order, and a sequence is what the
 * file says; UINT32_MAX: nothing. There is an op. */
void stage_table_order(struct stage_table *table);

/* The ops of a worker in a step, by their indices, and how many there are. */
static inline const struct stage_op *stage_table_ops(const struct stage_table *table,
                                                     uint32_t worker, uint32_t step)
{
    return table->ops.at + table->first[worker * table->steps.n + step];
}
static inline size_t stage_table_count(const struct stage_table *table, uint32_t worker,
                                       uint32_t step)
{
    const size_t *first = &table->first[worker * table->steps.n + step];
    return first[1] - first[0];
}

/* Which op waits for which, of one data-parallel rank in one step: the same in all. */
struct stage_plan_op {
    const struct stage_op *row; /* that it was read off */
    uint32_t stage;
    uint8_t type;
    uint32_t peer;                   /* of a message: its other end; UINT32_MAX: it has none */
    uint32_t group;                  /* whose members end together */
    uint32_t first_before, n_before; /* ops that it waits for, of stage_plan.before */
};

struct stage_plan {
    struct stage_plan_op *ops; /* by stage, type, sequence */
    uint32_t n, n_groups, n_placed;
    uint32_t
        *first; /* ops of a type of a stage: [stage * N_STAGE_OPS + type], one more at the end */
    uint32_t *before;
    uint32_t *members, *first_member; /* of group g: members[first_member[g] ..] */
    uint32_t *order; /* groups, each after those that its members wait for; NULL: there is none */
};
/* By the definitions of "Understanding Stragglers in Large Model Training Using What-if Analysis"
 * (OSDI'25) and its published code: pipelines with one pass forward and one back in turn, with
 * model chunks or without. Read off the usual step of the first data-parallel rank. */
void stage_plan_make(const struct stage_table *table, struct stage_plan *plan, struct arena *arena);

static inline uint32_t stage_plan_of_stage(const struct stage_plan *plan, uint32_t stage)
{
    return plan->first[stage * N_STAGE_OPS];
}

/* What an op of the plan was in a step that fits it, of a data-parallel rank that has its stage. */
static inline const struct stage_op *stage_plan_row(const struct stage_table *table,
                                                    const struct stage_plan *plan, uint32_t op,
                                                    uint32_t step, uint32_t replica)
{
    uint32_t stage = plan->ops[op].stage;
    uint32_t worker = table->worker_at[(size_t)replica * table->n_stages + stage];
    return stage_table_ops(table, worker, step) + (op - stage_plan_of_stage(plan, stage));
}

/* Whether a worker did in a step what the plan says. */
bool stage_table_fits(const struct stage_table *table, const struct stage_plan *plan,
                      uint32_t worker, uint32_t step);

/* ---- stage_ranks.c: a timeline as ranks: each worker is one, with its ops as spans ---- */

extern const struct payload_kind stage_payload; /* struct stage_table */

/* Makes the file's part and those behind it, one a worker, of a table in order, which the first
 * takes: *table is empty then. */
void stage_ranks_make(struct trace_part *part, struct stage_table *table);
/* Hook: of several files the first. */
void stage_ranks_choose(struct trace_build *build);
/* Hook: what waits for what, and the table, to the trace. */
void stage_ranks_join(struct trace_build *build);
