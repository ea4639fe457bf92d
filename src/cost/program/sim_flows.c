/* Starts, queues and ends the flows of a simulation, which share resources. */
#include "cost/program/simulate.h"

#include "cost/program/sim_clocks.h"

/* The channel begins or ends to be one of those whose flows share its resources. */
static void flows_carry(struct simulation *s, uint32_t number, bool begins)
{
    const struct sim_channel *channel = &s->channels[number];
    for (uint32_t k = 0; k < channel->n_resources; k++) {
        struct sim_resource *r = &s->resources[channel->resources[k]];
        uint32_t at = r->n_carried;
        while (!begins && r->carried[--at] != number)
            ;
        if (begins)
            r->carried[r->n_carried++] = number;
        else
            r->carried[at] = r->carried[--r->n_carried];
    }
}

static double kept_rate(const struct simulation *s)
{
    return s->is_busy ? 1 - s->held_share : 1;
}

/* ---- equal shares ---- */

/* Each flow over a resource has an equal share of it; of a flow's resources the slowest counts. */
static void share_equally(struct simulation *s, const struct sim_resource *r)
{
    for (uint32_t i = 0; i < r->n_carried; i++) {
        const struct sim_channel *channel = &s->channels[r->carried[i]];
        double slowness = 0;
        for (uint32_t k = 0; k < channel->n_resources; k++) {
            const struct sim_resource *other = &s->resources[channel->resources[k]];
            slowness = fmax(slowness, other->n_flows * other->slowness);
        }
        set_rate(s, channel->clock, slowness == 1 ? kept_rate(s) : kept_rate(s) / slowness);
    }
}

/* ---- fair shares ---- */

/* Takes what the flows of a channel are given from its resources. */
static void take_shares(struct simulation *s, struct sim_channel *channel, double share,
                        double kept)
{
    uint32_t n = channel->n_flowing * channel->n_links;
    channel->is_open = false;
    set_rate(s, channel->clock, kept * share);
    for (uint32_t k = 0; k < channel->n_resources; k++) {
        struct sim_resource *r = &s->resources[channel->resources[k]];
        r->n_open -= n;
        r->left = fmax(0, r->left - share * n);
    }
}

/* Opens the channel, once, and lists its resources. */
static void open_channel(struct simulation *s, struct sim_channel *channel)
{
    for (uint32_t k = 0; k < channel->n_resources && !channel->is_open; k++) {
        struct sim_resource *r = &s->resources[channel->resources[k]];
        if (r->is_listed || r->n_flows == 0)
            continue;
        r->is_listed = true;
        r->left = 1 / r->slowness;
        r->n_open = r->n_flows;
        s->shared[s->n_shared++] = channel->resources[k];
    }
    channel->is_open = channel->n_flowing > 0;
}

/* The resource that has least left for flows decides about its flows, then the
 * next one. Of those that share resources with the channel, or with others that do: what flows
 * elsewhere is not touched. */
static void fill_resources(struct simulation *s, struct sim_channel *from, double kept)
{
    s->n_shared = 0;
    open_channel(s, from);
    for (uint32_t i = 0; i < s->n_shared; i++) {
        const struct sim_resource *r = &s->resources[s->shared[i]];
        for (uint32_t k = 0; k < r->n_carried; k++)
            open_channel(s, &s->channels[r->carried[k]]);
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

/* When a flow of the channel has begun or ended. */
static void share_resources(struct simulation *s, struct sim_channel *channel)
{
    if (s->is_fair)
        fill_resources(s, channel, kept_rate(s));
    for (uint32_t k = 0; k < channel->n_resources && !s->is_fair; k++)
        share_equally(s, &s->resources[channel->resources[k]]);
}

void sim_share(struct simulation *s)
{
    for (uint32_t i = 0; i < s->n_changed; i++) {
        s->channels[s->changed[i]].is_changed = false;
        share_resources(s, &s->channels[s->changed[i]]);
    }
    s->n_changed = 0;
}

/* As many flows more or fewer as one of the channel stands for. */
static void change_flows(struct simulation *s, uint32_t number, bool more)
{
    struct sim_channel *channel = &s->channels[number];
    for (uint32_t k = 0; k < channel->n_resources; k++)
        s->resources[channel->resources[k]].n_flows += more ? channel->n_links : -channel->n_links;
    if (!channel->is_changed)
        s->changed[s->n_changed++] = number;
    channel->is_changed = true;
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
    if (s->is_busy == is_busy)
        return;
    s->is_busy = is_busy;
    for (uint32_t i = 0; i < s->n_channels; i++)
        if (s->channels[i].n_flowing > 0)
            share_resources(s, &s->channels[i]);
}

/* ---- queues of channels ---- */

uint32_t sim_take_first(struct simulation *s, struct sim_channel *channel)
{
    uint32_t first = channel->first;
    channel->first = s->flows.at[first].next;
    return first;
}

/* Behind all that go before it; most come last. */
void sim_queue_flow(struct simulation *s, uint32_t number)
{
    struct sim_flow *flows = s->flows.at, *flow = &flows[number];
    struct sim_channel *channel = &s->channels[flow->channel];
    uint32_t *at = &channel->first;
    if (*at != SIM_NONE && flows[channel->last].priority >= flow->priority)
        at = &flows[channel->last].next;
    while (*at != SIM_NONE && flows[*at].priority >= flow->priority)
        at = &flows[*at].next;
    flow->next = *at;
    *at = number;
    channel->last = flow->next == SIM_NONE ? number : channel->last;
    touch_channel(s, flow->channel);
}

/* ---- on the resources ---- */

void sim_flow_on(struct simulation *s, uint32_t number)
{
    const struct sim_flow *flow = &s->flows.at[number];
    uint32_t clock = s->channels[flow->channel].clock;
    add_job(s, clock, clock_now(s, clock) + flow->wire_ns, SENT, number);
}

void sim_enter(struct simulation *s, uint32_t number)
{
    struct sim_channel *channel = &s->channels[s->flows.at[number].channel];
    if (channel->n_flowing++ == 0)
        flows_carry(s, s->flows.at[number].channel, true);
    if (!channel->is_connection)
        slow_down(s, channel, true);
    change_flows(s, s->flows.at[number].channel, true);
    sim_flow_on(s, number);
}

void sim_leave(struct simulation *s, uint32_t number)
{
    struct sim_channel *channel = &s->channels[number];
    if (--channel->n_flowing == 0)
        flows_carry(s, number, false);
    slow_down(s, channel, false);
    change_flows(s, number, false);
}

void sim_begin_flow(struct simulation *s, uint32_t number)
{
    const struct sim_flow *flow = &s->flows.at[number];
    const struct sim_channel *channel = &s->channels[flow->channel];
    if (flow->begins)
        s->communications.at[flow->communication].start_ns = s->now_ns;
    if (!channel->is_connection) {
        add_timer(s, flow->hold_ns, BEGINS, number);
        return;
    }
    slow_down(s, channel, true);
    sim_enter(s, number);
}
