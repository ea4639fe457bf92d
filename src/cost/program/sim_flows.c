/* Starts, queues and ends the flows of a simulation, which share resources. */
#include "cost/program/simulate.h"

#include "cost/program/sim_clocks.h"

/* ---- what resources carry ---- */

static uint32_t *place_in(const struct simulation *s, uint32_t channel,
                          const struct sim_resource *r)
{
    const struct sim_channel *c = &s->channels[channel];
    uint32_t k = 0;
    while (&s->resources[c->resources[k]] != r)
        k++;
    return &c->places[k];
}

static void swap_places(struct simulation *s, struct sim_resource *r, uint32_t a, uint32_t b)
{
    uint32_t channel = r->carried[a];
    r->carried[a] = r->carried[b];
    r->carried[b] = channel;
    *place_in(s, r->carried[a], r) = a;
    *place_in(s, r->carried[b], r) = b;
}

static void end_governing(struct simulation *s, uint32_t number)
{
    struct sim_channel *channel = &s->channels[number];
    struct sim_resource *r = &s->resources[channel->governor];
    swap_places(s, r, *place_in(s, number, r), --r->n_governed);
    channel->governor = SIM_NONE;
}

/* The channel begins or ends to be one of those whose flows share its resources. */
static void flows_carry(struct simulation *s, uint32_t number, bool begins)
{
    struct sim_channel *channel = &s->channels[number];
    if (channel->governor != SIM_NONE)
        end_governing(s, number);
    for (uint32_t k = 0; k < channel->n_resources; k++) {
        struct sim_resource *r = &s->resources[channel->resources[k]];
        if (begins) {
            channel->places[k] = r->n_carried;
            r->carried[r->n_carried++] = number;
        } else {
            swap_places(s, r, channel->places[k], --r->n_carried);
        }
    }
}

/* ---- equal shares ---- */

/* The rest of its bytes. */
static void flows_send(struct simulation *s, uint32_t number, double left)
{
    struct sim_flow *flow = &s->flows.at[number];
    struct sim_channel *channel = &s->channels[flow->channel];
    channel->flow = number;
    flow->job = s->n_jobs;
    flow->sent = clock_now(s, channel->clock) + left;
    add_job(s, channel->clock, flow->sent, SENT, number);
}

static double slowness_of(const struct sim_resource *r)
{
    return r->n_flows * r->slowness;
}

/* Of the channel's resources but r, the slowest; SIM_NONE: it has no other. */
static uint32_t slowest_beside(const struct simulation *s, const struct sim_channel *channel,
                               const struct sim_resource *r)
{
    uint32_t slowest = SIM_NONE;
    for (uint32_t k = 0; k < channel->n_resources; k++) {
        uint32_t other = channel->resources[k];
        if (&s->resources[other] != r &&
            (slowest == SIM_NONE ||
             slowness_of(&s->resources[other]) > slowness_of(&s->resources[slowest])))
            slowest = other;
    }
    return slowest;
}

/* Its flow, if one is under way, goes on by the clock of that resource. With several resources a
 * channel carries one flow at once. */
static void flows_govern(struct simulation *s, uint32_t number, uint32_t resource)
{
    struct sim_channel *channel = &s->channels[number];
    struct sim_resource *r = &s->resources[resource];
    bool under_way = channel->flow != SIM_NONE;
    double left = under_way ? s->flows.at[channel->flow].sent - clock_now(s, channel->clock) : 0;
    if (channel->governor != SIM_NONE)
        end_governing(s, number);
    swap_places(s, r, *place_in(s, number, r), r->n_governed++);
    uint32_t beside = slowest_beside(s, channel, r);
    if (beside != SIM_NONE)
        r->most_beside = fmax(r->most_beside, slowness_of(&s->resources[beside]));
    channel->governor = resource;
    channel->clock = r->clock;
    if (under_way)
        flows_send(s, channel->flow, left);
}

static void set_share(struct simulation *s, const struct sim_resource *r)
{
    double slowness = slowness_of(r), kept = s->is_busy ? 1 - s->held_share : 1;
    if (slowness > 0)
        set_rate(s, r->clock, slowness == 1 ? kept : kept / slowness);
}

/* More or fewer flows share a resource: which channels does it govern? */
static void share_equally(struct simulation *s, uint32_t number, bool more)
{
    struct sim_resource *r = &s->resources[number];
    double slowness = slowness_of(r);
    set_share(s, r);
    for (uint32_t i = r->n_governed; i < r->n_carried && more; i++) {
        struct sim_channel *channel = &s->channels[r->carried[i]];
        struct sim_resource *by =
            channel->governor == SIM_NONE ? NULL : &s->resources[channel->governor];
        if (!by || slowness > slowness_of(by))
            flows_govern(s, r->carried[i], number);
        else
            by->most_beside = fmax(by->most_beside, slowness);
    }
    if (more || slowness >= r->most_beside)
        return;
    r->most_beside = 0;
    for (uint32_t i = r->n_governed; i-- > 0;) {
        uint32_t beside = slowest_beside(s, &s->channels[r->carried[i]], r);
        double other = beside != SIM_NONE ? slowness_of(&s->resources[beside]) : 0;
        if (other > slowness)
            flows_govern(s, r->carried[i], beside);
        else
            r->most_beside = fmax(r->most_beside, other);
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

/* The resource that has least left for flows decides about its flows, then the
 * next one. Of those that share resources with the channel, or with others that do: what flows
 * elsewhere is not touched. */
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

/* As many flows more or fewer as one of the channel stands for. */
static void change_flows(struct simulation *s, const struct sim_channel *channel, bool more)
{
    for (uint32_t k = 0; k < channel->n_resources; k++) {
        s->resources[channel->resources[k]].n_flows += more ? channel->n_links : -channel->n_links;
        if (!s->is_fair)
            share_equally(s, channel->resources[k], more);
    }
}

/* Of one that has begun or ended to flow. */
static void share_fairly(struct simulation *s, const struct sim_channel *from)
{
    if (s->is_fair)
        fill_resources(s, from, s->is_busy ? 1 - s->held_share : 1);
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
    for (uint32_t i = 0; i < s->n_flowing; i++)
        share_fairly(s, &s->channels[s->flowing[i]]);
    for (uint32_t i = 0; i < s->n_resources && !s->is_fair; i++)
        set_share(s, &s->resources[i]);
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
    flows_send(s, number, s->flows.at[number].wire_ns);
}

void sim_enter(struct simulation *s, uint32_t number)
{
    struct sim_channel *channel = &s->channels[s->flows.at[number].channel];
    if (channel->n_flowing++ == 0) {
        channel->place = s->n_flowing;
        s->flowing[s->n_flowing++] = s->flows.at[number].channel;
        flows_carry(s, s->flows.at[number].channel, true);
    }
    change_flows(s, channel, true);
    if (!channel->is_connection)
        slow_down(s, channel, true);
    share_fairly(s, channel);
    sim_flow_on(s, number);
}

void sim_leave(struct simulation *s, struct sim_channel *channel)
{
    channel->flow = SIM_NONE;
    if (--channel->n_flowing == 0) {
        uint32_t last = s->flowing[--s->n_flowing];
        flows_carry(s, s->flowing[channel->place], false);
        s->flowing[channel->place] = last;
        s->channels[last].place = channel->place;
    }
    change_flows(s, channel, false);
    slow_down(s, channel, false);
    share_fairly(s, channel);
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
