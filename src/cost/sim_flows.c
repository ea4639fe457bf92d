/* cost/sim_flows.c: see sim_flows.h. */
#include "cost/sim_flows.h"

#include <string.h>

#include "cost/sim_clocks.h"

/* ---- rates ---- */

/* The slowest of its resources that flows share equally; 0: it has none. */
static double slowness_of(const struct simulation *s, const struct sim_channel *channel)
{
    double slowness = 0;
    for (uint32_t k = 0; k < channel->n_resources; k++) {
        const struct sim_resource *r = &s->resources[channel->resources[k]];
        double here = r->n_flows * r->slowness;
        slowness = here > slowness ? here : slowness;
    }
    return slowness;
}

/* Takes what the flows of a channel are given from its resources. */
static void take_shares(struct simulation *s, struct sim_channel *channel, double share,
                        double kept)
{
    channel->is_open = false;
    set_rate(s, channel->clock, kept * share);
    for (uint32_t k = 0; k < channel->n_resources; k++) {
        struct sim_resource *r = &s->resources[channel->resources[k]];
        r->n_open -= channel->n_flowing * channel->n_links;
        r->left = fmax(0, r->left - share * channel->n_flowing * channel->n_links);
    }
}

/* Lists the channel's resources, and opens what flows over them. */
static void open_around(struct simulation *s, const struct sim_channel *channel)
{
    for (uint32_t k = 0; k < channel->n_resources; k++) {
        struct sim_resource *r = &s->resources[channel->resources[k]];
        if (r->is_listed || r->n_flows == 0)
            continue;
        r->is_listed = true;
        r->left = 1 / r->slowness;
        r->n_open = r->n_flows;
        s->shared[s->n_shared++] = channel->resources[k];
        for (uint32_t i = 0; i < r->n_carried; i++)
            s->channels[r->carried[i]].is_open = true;
    }
}

/* The resource that has least left for each flow decides about its flows, then the next one. Of
 * those that share resources with the channel, or with others that do: what flows elsewhere is not
 * touched. */
static void fill_resources(struct simulation *s, const struct sim_channel *from, double kept)
{
    s->n_shared = 0;
    open_around(s, from);
    for (uint32_t i = 0; i < s->n_shared; i++) {
        const struct sim_resource *r = &s->resources[s->shared[i]];
        for (uint32_t k = 0; k < r->n_carried; k++)
            open_around(s, &s->channels[r->carried[k]]);
    }
    while (s->n_shared > 0) {
        double least = INFINITY;
        const struct sim_resource *tightest = NULL;
        uint32_t n_open = 0;
        for (uint32_t i = 0; i < s->n_shared; i++) {
            struct sim_resource *r = &s->resources[s->shared[i]];
            r->is_listed = r->n_open > 0;
            if (!r->is_listed)
                continue;
            s->shared[n_open++] = s->shared[i];
            if (r->left / r->n_open < least) {
                least = r->left / r->n_open;
                tightest = r;
            }
        }
        s->n_shared = n_open;
        for (uint32_t i = 0; tightest && i < tightest->n_carried; i++)
            if (s->channels[tightest->carried[i]].is_open)
                take_shares(s, &s->channels[tightest->carried[i]], least, kept);
    }
}

/* Of one that has begun or ended to flow; NULL: of all. */
static void share_resources(struct simulation *s, const struct sim_channel *from)
{
    double kept = s->is_busy ? 1 - s->held_share : 1;
    if (s->is_fair && from) {
        fill_resources(s, from, kept);
        return;
    }
    for (uint32_t i = 0; i < s->n_flowing; i++) {
        const struct sim_channel *channel = &s->channels[s->flowing[i]];
        if (s->is_fair) {
            fill_resources(s, channel, kept);
            continue;
        }
        double slowness = slowness_of(s, channel);
        if (slowness > 0)
            set_rate(s, channel->clock, slowness == 1 ? kept : kept / slowness);
    }
}

/* The channel begins or ends to be one of those whose flows share its resources. */
static void carry(struct simulation *s, uint32_t number, bool begins)
{
    const struct sim_channel *channel = &s->channels[number];
    for (uint32_t k = 0; s->is_fair && k < channel->n_resources; k++) {
        struct sim_resource *r = &s->resources[channel->resources[k]];
        if (begins) {
            r->carried[r->n_carried++] = number;
            continue;
        }
        uint32_t i = 0;
        while (r->carried[i] != number)
            i++;
        r->carried[i] = r->carried[--r->n_carried];
    }
}

/* A flow of the channel begins or ends to slow down executors. */
static void slow_down(struct simulation *s, const struct sim_channel *channel, bool begins)
{
    for (uint32_t i = 0; i < channel->n_slows; i++) {
        struct sim_clock *c = &s->clocks[channel->slows[i]];
        c->n_slowing[channel->slows_as] += begins ? 1 : UINT32_MAX;
        set_rate(s, channel->slows[i],
                 c->n_slowing[0]   ? s->rates[0]
                 : c->n_slowing[1] ? s->rates[1]
                                   : 1);
    }
    if (channel->n_slows == 0 || channel->slows_as != 0)
        return;
    if (begins && s->n_on_links++ == 0)
        s->on_links_since_ns = s->now_ns;
    if (!begins && --s->n_on_links == 0)
        s->on_links_ns += s->now_ns - s->on_links_since_ns;
}

void sim_set_busy(struct simulation *s, bool is_busy)
{
    if (is_busy && !s->is_idle_due)
        add_job(s, FIRST_EXECUTORS_CLOCK, s->busy_until, IDLE, 0);
    s->is_idle_due |= is_busy;
    if (s->is_busy != is_busy) {
        s->is_busy = is_busy;
        share_resources(s, NULL);
    }
}

/* ---- queues of channels ---- */

static bool goes_before(const struct sim_flow *a, const struct sim_flow *b)
{
    return a->priority > b->priority || (a->priority == b->priority && a->turn < b->turn);
}

/* Merges two skew heaps. */
static uint32_t merge(struct sim_flow *flows, uint32_t a, uint32_t b)
{
    uint32_t root = SIM_NONE, *at = &root;
    while (a != SIM_NONE && b != SIM_NONE) {
        if (goes_before(&flows[b], &flows[a])) {
            uint32_t other = a;
            a = b;
            b = other;
        }
        uint32_t right = flows[a].right;
        *at = a;
        flows[a].right = flows[a].left;
        at = &flows[a].left;
        a = right;
    }
    *at = a != SIM_NONE ? a : b;
    return root;
}

uint32_t sim_take_first(struct simulation *s, struct sim_channel *channel)
{
    struct sim_flow *flows = s->flows.at;
    uint32_t first = channel->first, other = channel->heap;
    if (other == SIM_NONE || (first != SIM_NONE && goes_before(&flows[first], &flows[other]))) {
        channel->first = flows[first].left;
        return first;
    }
    channel->heap = merge(flows, flows[other].left, flows[other].right);
    return other;
}

void sim_queue_flow(struct simulation *s, uint32_t number)
{
    struct sim_flow *flow = &s->flows.at[number];
    struct sim_channel *channel = &s->channels[flow->channel];
    flow->turn = s->n_turns++;
    flow->left = flow->right = SIM_NONE;
    if (channel->first == SIM_NONE)
        channel->first = channel->last = number;
    else if (s->flows.at[channel->last].priority >= flow->priority)
        channel->last = s->flows.at[channel->last].left = number;
    else
        channel->heap = merge(s->flows.at, channel->heap, number);
    touch(s, flow->channel);
}

/* ---- on the resources ---- */

void sim_flow_on(struct simulation *s, uint32_t number)
{
    struct sim_flow *flow = &s->flows.at[number];
    uint32_t clock = s->channels[flow->channel].clock;
    add_job(s, clock, clock_now(s, clock) + flow->wire_ns, SENT, number);
}

void sim_enter(struct simulation *s, uint32_t number)
{
    struct sim_channel *channel = &s->channels[s->flows.at[number].channel];
    if (channel->n_flowing++ == 0) {
        channel->place = s->n_flowing;
        s->flowing[s->n_flowing++] = s->flows.at[number].channel;
        carry(s, s->flows.at[number].channel, true);
    }
    for (uint32_t k = 0; k < channel->n_resources; k++)
        s->resources[channel->resources[k]].n_flows += channel->n_links;
    if (!channel->is_connection)
        slow_down(s, channel, true);
    share_resources(s, channel);
    sim_flow_on(s, number);
}

static bool is_free(const struct simulation *s, const struct sim_channel *channel)
{
    bool is_free = true;
    for (uint32_t k = 0; k < channel->n_resources; k++)
        is_free &= s->resources[channel->resources[k]].n_flows == 0;
    return is_free;
}

void sim_leave_queue(struct simulation *s, uint32_t place)
{
    uint32_t number = s->queued[place];
    s->n_queued--;
    memmove(&s->queued[place], &s->queued[place + 1], (s->n_queued - place) * sizeof *s->queued);
    sim_enter(s, number);
}

void sim_leave(struct simulation *s, struct sim_channel *channel)
{
    for (uint32_t k = 0; k < channel->n_resources; k++)
        s->resources[channel->resources[k]].n_flows -= channel->n_links;
    if (--channel->n_flowing == 0) {
        uint32_t last = s->flowing[--s->n_flowing];
        carry(s, s->flowing[channel->place], false);
        s->flowing[channel->place] = last;
        s->channels[last].place = channel->place;
    }
    slow_down(s, channel, false);
    for (uint32_t i = 0; i < s->n_queued;)
        if (is_free(s, &s->channels[s->flows.at[s->queued[i]].channel]))
            sim_leave_queue(s, i);
        else
            i++;
    share_resources(s, channel);
}

void sim_begin_flow(struct simulation *s, uint32_t number)
{
    struct sim_flow *flow = &s->flows.at[number];
    const struct sim_channel *channel = &s->channels[flow->channel];
    if (flow->begins)
        s->communications.at[flow->communication].start_ns = s->now_ns;
    if (!channel->is_connection) {
        add_timer(s, flow->hold_ns, BEGINS, number);
        return;
    }
    slow_down(s, channel, true);
    if (channel->queue_ns <= 0 || is_free(s, channel)) {
        sim_enter(s, number);
        return;
    }
    flow->queues_until = s->now_ns + channel->queue_ns;
    s->queued[s->n_queued++] = number;
    add_job(s, real_time(s), flow->queues_until, LEAVES, number);
}
