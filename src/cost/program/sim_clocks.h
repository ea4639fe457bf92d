/* The simulator's clocks, each with the jobs that end by it, and a tree of their next ends. Inline,
 * as the simulator does little else. */
#pragma once

#include "cost/program/simulate.h"

enum job_kind {
    CYCLE,   /* begins */
    ISSUED,  /* a communication, by all */
    DONE,    /* an executor, with an iteration */
    IDLE,    /* executors, unless they went on meanwhile */
    SENT,    /* a flow's bytes */
    BEGINS,  /* a flow's bytes */
    QUEUES,  /* a flow, for its channel */
    ARRIVES, /* a flow */
    RELEASES /* a join */
};

enum { FANOUT = 4 };

static inline uint32_t real_time(const struct simulation *s)
{
    return s->n_clocks - 1;
}

static inline double clock_now(const struct simulation *s, uint32_t clock)
{
    const struct sim_clock *c = &s->clocks[clock];
    return c->time + (s->now_ns - c->at_ns) * c->rate;
}

static inline bool is_before(const struct sim_job *a, const struct sim_job *b)
{
    return a->when < b->when || (a->when == b->when && a->number < b->number);
}

static inline const struct sim_job *next_job(const struct sim_clock *c)
{
    return c->jobs.n > 0 ? c->jobs.at : NULL;
}

/* The first of the earliest of four times. No branch: none of them is likely. */
static inline uint32_t earliest_clock(const double *ns)
{
    uint32_t low = ns[1] < ns[0], high = 2 + (ns[3] < ns[2]);
    return low + (high - low) * (ns[high] < ns[low]);
}

/* The clock that has the next job: down the tree of times. */
static inline uint32_t next_clock(const struct simulation *s)
{
    uint32_t level = s->n_levels - 1, clock = earliest_clock(s->next_ns[level]);
    while (level-- > 0)
        clock = clock * FANOUT + earliest_clock(s->next_ns[level] + (size_t)clock * FANOUT);
    return clock;
}

/* The clock whose jobs are being processed is updated after that. */
static inline void find_next(struct simulation *s, uint32_t clock)
{
    const struct sim_clock *c = &s->clocks[clock];
    const struct sim_job *next = next_job(c);
    double ns = INFINITY;
    if (clock == s->clock)
        return;
    if (next)
        ns = c->at_ns + (c->rate == 1 ? next->when - c->time : (next->when - c->time) / c->rate);
    s->next_ns[0][clock] = ns;
    for (uint32_t level = 1, i = clock / FANOUT; level < s->n_levels; level++, i /= FANOUT) {
        const double *below = s->next_ns[level - 1] + (size_t)i * FANOUT;
        double earliest_ns = below[earliest_clock(below)];
        if (s->next_ns[level][i] == earliest_ns)
            break; /* and so all above stays */
        s->next_ns[level][i] = earliest_ns;
    }
}

static inline void set_rate(struct simulation *s, uint32_t clock, double rate)
{
    struct sim_clock *c = &s->clocks[clock];
    if (c->rate == rate)
        return;
    c->time = clock_now(s, clock);
    c->at_ns = s->now_ns;
    c->rate = rate;
    find_next(s, clock);
}

static inline void add_job(struct simulation *s, uint32_t clock, double when, enum job_kind what,
                           uint32_t which)
{
    struct sim_clock *c = &s->clocks[clock];
    struct sim_job job = {when, s->n_jobs++, what, which};
    array_push(&c->jobs, job);
    struct sim_job *jobs = c->jobs.at;
    size_t i = c->jobs.n - 1;
    for (; i > 0 && is_before(&job, &jobs[(i - 1) / 2]); i = (i - 1) / 2)
        jobs[i] = jobs[(i - 1) / 2];
    jobs[i] = job;
    if (i == 0)
        find_next(s, clock);
}

static inline void add_timer(struct simulation *s, double ns, enum job_kind what, uint32_t which)
{
    add_job(s, real_time(s), s->now_ns + ns, what, which);
}

static inline void take_job(struct sim_clock *c)
{
    struct sim_job *jobs = c->jobs.at, last = jobs[--c->jobs.n];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < c->jobs.n; i = child) {
        child += child + 1 < c->jobs.n && is_before(&jobs[child + 1], &jobs[child]);
        if (!is_before(&jobs[child], &last))
            break;
        jobs[i] = jobs[child];
    }
    jobs[i] = last;
}
