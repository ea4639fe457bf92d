/* What each cause takes away.
 *
 * A *piece* is time of an op that a cause takes away: of its duration or of the gap before it, one
 * value an iteration. A nanosecond belongs to one cause at most: a piece is cut to what the rows
 * before it left of its op's time. What no cause claims is the ideal. A time below 0 is what the op
 * gets while the cause is taken away: work that is evened out goes to others. A *cut* is an edge
 * that a cause takes away, so that nothing waits for it. */
#pragma once

#include "replay/chain.h"

#include "graph/dimensions/pipeline.h"

#include <dpro/diagnose.h>

/* What is diagnosed. Iterations are the replayed ones, in order; of a graph that knows the mean
 * only, some that are all alike. */
struct diagnosed {
    const struct dpro_graph *g;
    uint32_t n_iterations;
    const struct replay_copy *copies; /* by iteration: durations, gaps and ends as replayed */
    int64_t *left_ns[2];              /* [iteration * n_ops + op] of durations, and of gaps: what no
                                         cause has claimed yet */
    int64_t iteration_ns;             /* of the replay */
    int64_t profiler_ns;              /* as in the options */
    const uint8_t *works;             /* works_of(g) */
    const uint32_t *collective_of;    /* collectives_of(g) */
    struct pipeline pipeline;         /* its dimension DPRO_NO_DIMENSION: there is none */
    struct dpro_estimate link_cpu_ns; /* computing time lost for each byte on a rank's link */
    bool *varies; /* by rank: beside what it varies by, it computes no more slowly than its peers */
    bool ends_at_marks; /* an iteration ends where it is measured, however far behind the GPU is */
};

/* What is left of an op's duration (gap: of the gap before it) in an iteration. */
static inline int64_t left_of(const struct diagnosed *d, uint32_t iteration, uint32_t op, bool gap)
{
    return d->left_ns[gap][(size_t)iteration * d->g->n_ops + op];
}

struct piece {
    uint32_t op;
    uint32_t part;     /* index of the cause's part */
    bool gap;          /* of the gap before it, not of its duration */
    const int64_t *ns; /* [n_iterations]; NULL: all that is left */
};

struct cut {
    uint32_t from, to; /* from DPRO_NO_OP: the recorded start of a single iteration's rank */
    uint32_t part;
    bool next; /* an edge into the next iteration */
    bool gone; /* the graph lacks the edge: there is one only while the cause is taken away */
};

/* What a row's `find` fills; zeroed is nothing. */
struct cause_found {
    struct arena *arena; /* of all that is found */
    ARRAY(struct piece) pieces;
    ARRAY(struct cut) cuts;
    ARRAY(const char *) parts; /* names, in the arena */
    struct map part_numbers;   /* for found_part: 1 + index, by its key */
    const char *title;         /* in place of the row's; NULL: that */
    double doubt;              /* of what it takes: a standard error, relative */
    const char *needs; /* it can't be told from this recording: what to record; NULL: it can */
};

/* The index of the part with a key of the caller's, which is named at its first use. */
uint32_t found_part(struct cause_found *found, uint64_t key, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Names the ranks and, where they are half of them at most, the iterations that have that share of
 * the largest one's blame or more. */
void cause_where(struct dpro_cause *cause, const struct dpro_graph *graph, const double *of_rank,
                 const double *of_iteration, uint32_t n_iterations, double least,
                 struct arena *arena);

/* A row of the table of causes. Rows claim time in the table's order: what is told apart best comes
 * first, what takes the rest last. */
struct cause_row {
    const char *key, *title;
    uint8_t tier;   /* see shapley_find */
    bool needs_gpu; /* of a job that computes on GPUs: that their work was recorded */
    void (*find)(const struct diagnosed *d, struct cause_found *found); /* NULL: what follows */
    uint8_t work;      /* all of a sort is of it: enum work of causes.h; 0: none */
    const char *named; /* as are all ops that are called so (slow_kind_of); NULL: none */
};
void cause_find(const struct cause_row *row, const struct diagnosed *d, struct cause_found *found);
extern const struct cause_row cause_rows[]; /* causes.c */
extern const uint32_t n_cause_rows;
/* Fills next_step, text in the arena. */
void cause_advise(const struct diagnosed *d, struct arena *arena, struct dpro_cause *cause);
