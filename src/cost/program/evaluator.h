/* The inside of an evaluator, shared by evaluate.c, which asks, and schedule.c and rank_classes.c,
 * which translate a strategy for the simulator. */
#pragma once

#include "cost/program/buckets.h"
#include "cost/program/evaluate.h"
#include "cost/program/simulate.h"
#include "cost/program/sync.h"

/* Ranks that do the same at the same time. */
struct rank_class {
    uint32_t program, next; /* the class before it of the program, or of the host */
    uint32_t rank, n;       /* the first; with servers: how many */
    double scale;
    struct sim_action *actions;
};

/* A rank has what a communication of a group brings so much later. */
struct rank_lag {
    uint32_t communication, number;
    double ns;
};

struct evaluator {
    struct arena arena;
    const struct dpro_model *model;
    const struct dpro_strategy *strategy; /* under evaluation */
    enum model_scheme scheme;
    uint32_t n_servers;
    struct rank_class *classes;
    uint32_t n_classes;
    uint32_t *class_of; /* by rank */
    struct sync *costs;
    struct bucket_cost *buckets;
    uint32_t *bucket_of;         /* by tensor; behind them the communications of groups */
    int64_t **more_ns;           /* by program and op: work that the strategy adds */
    bool has_more;               /* it adds any */
    struct rank_lag *lags;       /* by communication */
    uint32_t *first_lag, n_lags; /* by program: the number of its first */
    struct dpro_strategy single; /* a bucket for each tensor, for those that fuse */
    struct simulation sim;
    struct evaluation result;
};

/* The share of its rate that computation keeps during communication, if a byte takes byte_ns on the
 * link and costs cpu_ns of computing: at least what communication loses to it, as both at once take
 * no longer than one after the other. */
static inline double evaluator_rate(const struct model_link *link, double byte_ns)
{
    const double least = 0.1;
    double lost = byte_ns > 0 ? link->cpu_ns.value / byte_ns : 0;
    return fmax(1 - lost, fmax(least, link->held_share.value));
}

/* The time in which the busiest link would carry all bytes of an iteration of e->strategy. */
double evaluator_carried_ns(const struct evaluator *e);

/* rank_classes.c: sets e->classes and e->class_of. */

/* A rank and its copies, of which the slowest is waited for; without groups, also ranks that run
 * the same at the same speed. */
void classes_by_program(struct evaluator *e);
/* As they meet at the servers, each copy counts. Up to so many classes they are simulated one by
 * one. */
void classes_by_host(struct evaluator *e);

/* schedule.c: the executors, channels and resources of the model. */
void schedule_init(struct evaluator *e);
/* The actions, communications and flows of e->strategy. */
void schedule_strategy(struct evaluator *e);
