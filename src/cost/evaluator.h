/* cost/evaluator.h: the parts of an evaluation: evaluate.c runs collectives, serve.c parameter
 * servers. */
#ifndef COST_EVALUATOR_H
#define COST_EVALUATOR_H

#include "cost/evaluate.h"
#include "cost/sync.h"

enum { MOST_ITERATIONS = 12 };

enum action_kind { LAUNCH, WAIT, WAIT_BEFORE, END };

struct action {
    double work_ns; /* before it */
    uint8_t kind;
    uint32_t bucket;
};

/* Ranks that do the same at the same time. */
struct class
{
    uint32_t program;
    double scale;
    struct action *actions;
    uint32_t n_actions;
    /* while it runs */
    uint32_t at;
    uint32_t iteration;
    bool blocked;
    double left_ns; /* of the work before action `at` */
    double done_ns[MOST_ITERATIONS + 1];
};

struct transfer {
    uint32_t bucket; /* the first of those that travel together */
    bool on_wire;
    double latency_ns, wire_ns; /* left */
};

struct bucket_state {
    uint64_t size_bytes; /* on the wires */
    double copy_ns, launch_ns, latency_ns;
    uint32_t n_launched;                  /* classes, of the iteration under way */
    uint32_t n_waiting;                   /* partitions not begun */
    uint32_t n_left;                      /* partitions not ended */
    uint32_t n_ended;                     /* iterations */
    double asked_ns;                      /* when the last class launched it */
    uint64_t turn;                        /* in the order in which they were launched */
    uint32_t next;                        /* that travels with it; MODEL_NONE: it is the last */
    double launched_ns, start_ns, end_ns; /* of the last iteration */
};

struct evaluator {
    const struct dpro_model *model;
    struct model_program *merged; /* programs, ops between which nothing is communicated as one */
    struct model_op *merged_ops;  /* of all of them */
    struct class *classes;
    uint32_t n_classes;
    uint32_t *class_of; /* by rank */
    struct sync *costs;
    struct bucket_state *buckets; /* room for n_tensors */
    uint32_t *bucket_of;          /* by tensor */
    uint32_t *n_missing;          /* by bucket, while actions are made */
    uint32_t *queue;              /* buckets with partitions waiting, a heap: the next one first */
    uint32_t n_queue;
    struct transfer *active;
    uint32_t n_active, n_on_wire;
    uint64_t turn;
    bool failed; /* out of memory */
    double now_ns, wire_ns, rate, wire_rate;
    /* Horovod's cycles */
    struct dpro_strategy apart; /* a bucket for each tensor, of strategies that fuse */
    uint32_t *ready;            /* what a cycle takes, room for n_tensors */
    uint32_t *groups;           /* first buckets of what this cycle transfers, room for n_tensors */
    uint32_t n_groups, n_begun; /* the cycle ends with the last of them */
    double next_cycle_ns;
    const struct dpro_strategy *strategy;
    struct evaluation result;
    struct serving *serving; /* by parameter servers; NULL: by collectives */
};

/* The part of its rate that computation keeps while a byte takes so long on its rank's wires and
 * costs so much computing. */
double evaluator_rate(double cpu_ns, double byte_ns);

/* serve.c */
struct serving *serving_create(const struct dpro_model *model); /* NULL: out of memory */
void serving_destroy(struct serving *serving);                  /* NULL is fine */
/* Runs iterations of the strategy at hand, whose actions are made; the last one's length, ns. */
int64_t serving_run(struct evaluator *e);
/* Fills in the last iteration of what was run. */
void serving_detail(const struct evaluator *e, struct evaluation *result);

#endif
