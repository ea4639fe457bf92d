/* Flows that wait for their channel, queue for a link, and share resources. */
#pragma once

#include "cost/program/simulate.h"

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
void sim_leave(struct simulation *s, struct sim_channel *channel);
/* The flow at this place in the links' queues shares its link from now on. */
void sim_leave_queue(struct simulation *s, uint32_t place);

/* Flows lose a part of their rate while executors work. */
void sim_set_busy(struct simulation *s, bool is_busy);
