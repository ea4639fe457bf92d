/* The simulator of the coarse model. It knows neither models nor strategies;
 * cost/program/schedule.c translates both into the things below.
 *
 * - An *executor* runs its actions one after the other, again in each iteration: it works, issues a
 *   communication, or waits for one.
 * - A *group* is the executors that communicate with each other: all ranks in an all-reduce, each
 *   rank by itself with parameter servers.
 * - A *communication* that all executors of its group have issued passes the *gate* and becomes
 *   *flows*. One of some executors only says how many it waits for.
 * - A flow queues for a *channel*, which carries some at once, first by priority, then in turn. In
 *   the channel it has its latency, then its bytes share the channel's *resources*. Then it may go
 *   on as another flow, count for the end of its communication, or arrive at a *join*, which
 *   releases other flows when enough have arrived.
 * - What goes on at a rate is a job of a *clock*. A clock's own time passes at that rate, so the
 *   clock time at which a job ends never changes when the rate does. Bytes go on by
 *   their channel's clock. One loop takes the next job of all clocks. */
#pragma once

#include "base/base.h"

#define SIM_NONE UINT32_MAX

enum { SIM_MOST_ITERATIONS = 12 };
enum { GATE_CLOCK, FIRST_EXECUTORS_CLOCK };

enum sim_action_kind { SIM_ISSUE, SIM_WAIT, SIM_WAIT_BEFORE, SIM_END };

struct sim_action {
    double work_ns;  /* before it */
    uint8_t kind;    /* WAIT_BEFORE: for the communication of the iteration before */
    uint32_t bucket; /* its communication is number bucket * n_groups + group */
};

struct sim_executor {
    const struct sim_action *actions; /* the last one is SIM_END */
    uint32_t clock, group;
    /* while it runs */
    uint32_t at, n_done; /* action, iterations */
    uint32_t next;       /* the next one that waits for the same communication */
    double reaches;      /* action `at`, by its clock */
    double done_ns[SIM_MOST_ITERATIONS + 1];
};

struct sim_communication {
    uint32_t n_issuers;           /* executors */
    uint32_t first_flow, n_flows; /* flows that begin when it is issued */
    uint32_t n_parts;             /* arrivals that it needs to end */
    uint32_t clock;               /* of its issuers; SIM_NONE: each has its own */
    uint64_t size_bytes;
    double latency_ns; /* added to its flows' latency if it is a collective by itself */
    /* while it runs */
    uint32_t n_issued, n_left, n_ended;   /* issuers and parts of this iteration; iterations */
    uint32_t n_here;                      /* issuers, each by its own clock */
    uint32_t first_waiting, last_waiting; /* executors */
    double issued;                        /* by the last issuer so far, by its clock */
    double issued_ns, start_ns, end_ns;   /* of the last iteration */
};

struct sim_flow {
    uint32_t channel;
    uint32_t communication, join, then; /* a part of this ends, this is arrived at, this flow begins
                                           when it has arrived; SIM_NONE: none */
    int32_t priority;
    bool begins;      /* its communication begins when it does, not when it is issued */
    double after_ns;  /* time from its release until it queues for the channel */
    double hold_ns;   /* time that it holds the channel before its bytes */
    double wire_ns;   /* time of its bytes, alone on the channel's resources */
    double arrive_ns; /* time after its bytes until it arrives, holding nothing */
    /* while it runs */
    uint32_t next; /* in the channel's queue */
};

struct sim_join {
    uint32_t n_needed;
    double delay_ns; /* then it releases: */
    uint32_t first_flow, n_flows;
    uint32_t first_communication, n_communications; /* which end */
    uint32_t then;                                  /* a join that is arrived at */
    uint32_t n_here;                                /* while it runs */
};

/* A link, or links that are alike and carry the same at the same time, or another thing that what
 * is under way shares equally. */
struct sim_resource {
    double slowness;              /* a flow alone takes so many times as long as on a rank's link */
    uint32_t n_flows;             /* that share it */
    uint32_t *carried, n_carried; /* channels whose flows share it */
    double left;                  /* while rates are found: of its rate, */
    uint32_t n_open;              /* and flows that have none yet */
    bool is_listed;
};

struct sim_channel {
    uint32_t clock;            /* of its flows */
    const uint32_t *resources; /* none: it carries at its full rate */
    uint32_t n_resources, n_at_once;
    uint32_t n_links;      /* a flow stands for so many, each in a channel of its own */
    const uint32_t *slows; /* the clocks of executors that it slows down */
    uint32_t n_slows;
    uint8_t slows_as;   /* 0: over a link; 1: within a host */
    bool is_connection; /* a flow that follows another at once needs no new place on a link */
    /* while it runs */
    uint32_t n_begun, n_flowing;
    uint32_t first, last; /* flows that wait, by priority, then as they came */
    bool is_open;         /* while rates are found: it has none yet */
    bool is_touched;      /* flows may begin */
    bool is_changed;      /* its flows have become more or fewer */
};

struct sim_job {
    double when; /* by the clock */
    uint64_t number;
    uint32_t what, which;
};

struct sim_clock {
    double time, at_ns; /* the time that it shows at at_ns */
    double rate;
    uint32_t n_slowing[2];      /* flows that slow its executors down */
    ARRAY(struct sim_job) jobs; /* a heap */
};

/* When what was issued may begin. */
struct sim_gate {
    double cycle_ns; /* 0: at once; else in cycles, one group after the other */
    bool fuses; /* fuses what is ready in groups of up to fusion_bytes; else each communication is a
                   group */
    uint64_t fusion_bytes;
    double negotiate_ns; /* of a cycle's first group */
    /* latency and wire time of a group */
    void (*cost)(void *arg, uint64_t size_bytes, double *latency_ns, double *wire_ns);
    void *arg;
    /* while it runs */
    double next_ns;
    uint32_t *ready;                        /* flows of this cycle, room for all communications */
    uint32_t n_ready, n_begun, n_under_way; /* the last n_under_way of those begun travel */
    bool is_armed;
};

/* The first clock is the gate's, then come those of executors; the last one shows real time. Jobs
 * of one moment are taken by clock, then as they were added. */
struct simulation {
    struct sim_executor *executors;
    uint32_t n_executors;
    uint32_t n_groups; /* groups of executors, each of which communicates a bucket by itself */
    ARRAY(struct sim_communication) communications;
    ARRAY(struct sim_flow) flows;
    ARRAY(struct sim_join) joins;
    struct sim_channel *channels;
    uint32_t n_channels;
    struct sim_resource *resources;
    uint32_t n_resources;
    struct sim_clock *clocks;
    uint32_t n_clocks;
    struct sim_gate gate;
    bool is_fair;        /* what a flow can't use of a resource, as another one holds it up, the
                            others get (max-min fairness); else each flow has an equal share */
    double rates[2];     /* of executors while a channel slows them down, by slows_as */
    double held_share;   /* of their rate, that flows lose while executors of clock 1 work */
    uint32_t first_join; /* released at the beginning; SIM_NONE: none */
    /* while it runs */
    double *next_ns[16]; /* jobs of clocks; then the earliest of every few, and so on */
    uint32_t n_levels;
    uint32_t clock;                               /* the clock whose jobs are processed */
    uint32_t *shared, n_shared;                   /* while rates are found: resources */
    uint32_t *touched, n_touched;                 /* channels in which flows may begin */
    uint32_t *changed, n_changed;                 /* channels whose flows are to share anew */
    uint64_t n_jobs, n_ended;                     /* ended: communications */
    uint32_t n_finished[SIM_MOST_ITERATIONS + 1]; /* executors, by iteration */
    uint32_t n_iterations;                        /* that all have finished */
    bool is_drained;   /* none was under way when the first executor ended its last iteration */
    bool is_settled;   /* the iterations to come take as long as the last one */
    double busy_until; /* by clock 1 */
    bool is_busy, is_idle_due;
    uint32_t n_on_links;
    double on_links_since_ns, on_links_ns;
    double now_ns;
};

/* Room for what simulation_run needs beside what is there. */
void simulation_init(struct simulation *s, struct arena *arena);
void simulation_fini(struct simulation *s);
/* Until iterations are all alike, or SIM_MOST_ITERATIONS have passed, or nothing happens. */
void simulation_run(struct simulation *s);

/* ---- sim_flows.c: flows that wait for their channel, and share resources ---- */

static inline bool has_waiting(const struct sim_channel *channel)
{
    return channel->first != SIM_NONE;
}

/* Flows may begin in the channel, once all that happens now has happened. */
static inline void touch_channel(struct simulation *s, uint32_t channel)
{
    if (!s->channels[channel].is_touched)
        s->touched[s->n_touched++] = channel;
    s->channels[channel].is_touched = true;
}

/* A flow waits for its channel; the first of those that wait leaves the queue; it begins. */
void sim_queue_flow(struct simulation *s, uint32_t flow);
uint32_t sim_take_first(struct simulation *s, struct sim_channel *channel);
void sim_begin_flow(struct simulation *s, uint32_t flow);

/* A flow's bytes come onto its channel's resources; follow others there; leave them. */
void sim_enter(struct simulation *s, uint32_t flow);
void sim_flow_on(struct simulation *s, uint32_t flow);
void sim_leave(struct simulation *s, uint32_t channel);
/* Shares resources anew, once all that happens now has happened. */
void sim_share(struct simulation *s);

/* Flows lose a part of their rate while executors work. */
void sim_set_busy(struct simulation *s, bool is_busy);
