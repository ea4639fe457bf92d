/* cost/simulate.c: the event loop of the coarse model.
 *
 * What an executor does until it waits for what has not ended depends on nothing else but the rate
 * of its clock: it runs ahead, and notes by its clock when it has issued what. So only the last
 * issuer of a communication makes an event. */
#include "cost/simulate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum job_kind {
    CYCLE,   /* begins */
    ISSUED,  /* a communication, by all */
    DONE,    /* an executor, with an iteration */
    IDLE,    /* executors, unless they went on meanwhile */
    SENT,    /* a flow's bytes */
    BEGINS,  /* a flow's bytes */
    LEAVES,  /* a flow, a link's queue */
    QUEUES,  /* a flow, for its channel */
    ARRIVES, /* a flow */
    RELEASES /* a join */
};

enum { GATE_CLOCK, FIRST_EXECUTORS_CLOCK };
enum { FANOUT = 4 };

/* ---- clocks ---- */

static uint32_t real_time(const struct simulation *s)
{
    return s->n_clocks - 1;
}

static double clock_now(const struct simulation *s, uint32_t clock)
{
    const struct sim_clock *c = &s->clocks[clock];
    return c->time + (s->now_ns - c->at_ns) * c->rate;
}

static bool is_before(const struct sim_job *a, const struct sim_job *b)
{
    return a->when < b->when || (a->when == b->when && a->number < b->number);
}

static const struct sim_job *next_job(const struct sim_clock *c)
{
    const struct sim_job *listed = c->first < c->list.n ? &c->list.at[c->first] : NULL;
    const struct sim_job *other = c->heap.n > 0 ? c->heap.at : NULL;
    return !other || (listed && is_before(listed, other)) ? listed : other;
}

/* The first of the earliest of four times. No branch: none of them is likely. */
static uint32_t earliest(const double *ns)
{
    uint32_t low = ns[1] < ns[0], high = 2 + (ns[3] < ns[2]);
    return low + (high - low) * (ns[high] < ns[low]);
}

/* The clock that has the next job: down the tree of times. */
static uint32_t next_clock(const struct simulation *s)
{
    uint32_t level = s->n_levels - 1, clock = earliest(s->next_ns[level]);
    while (level-- > 0)
        clock = clock * FANOUT + earliest(s->next_ns[level] + (size_t)clock * FANOUT);
    return clock;
}

/* The clock whose jobs happen is left for when they have. */
static void find_next(struct simulation *s, uint32_t clock)
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
        s->next_ns[level][i] = below[earliest(below)];
    }
}

static void set_rate(struct simulation *s, uint32_t clock, double rate)
{
    struct sim_clock *c = &s->clocks[clock];
    if (c->rate == rate)
        return;
    c->time = clock_now(s, clock);
    c->at_ns = s->now_ns;
    c->rate = rate;
    find_next(s, clock);
}

static void add_to_heap(struct simulation *s, struct sim_clock *c, struct sim_job job)
{
    if (array_push(&c->heap, job) < 0) {
        s->failed = true;
        return;
    }
    struct sim_job *jobs = c->heap.at;
    size_t i = c->heap.n - 1;
    for (; i > 0 && is_before(&job, &jobs[(i - 1) / 2]); i = (i - 1) / 2)
        jobs[i] = jobs[(i - 1) / 2];
    jobs[i] = job;
}

static void add_job(struct simulation *s, uint32_t clock, double when, enum job_kind what,
                    uint32_t which)
{
    struct sim_clock *c = &s->clocks[clock];
    struct sim_job job = {when, s->n_jobs++, what, which};
    bool empty = c->first == c->list.n;
    if (empty)
        c->first = c->list.n = 0;
    if (!empty && when < c->list.at[c->list.n - 1].when)
        add_to_heap(s, c, job);
    else if (array_push(&c->list, job) < 0)
        s->failed = true;
    if (empty || c->heap.n > 0)
        find_next(s, clock);
}

static void add_timer(struct simulation *s, double ns, enum job_kind what, uint32_t which)
{
    add_job(s, real_time(s), s->now_ns + ns, what, which);
}

static void take_from_heap(struct sim_clock *c)
{
    struct sim_job *jobs = c->heap.at, last = jobs[--c->heap.n];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < c->heap.n; i = child) {
        child += child + 1 < c->heap.n && is_before(&jobs[child + 1], &jobs[child]);
        if (!is_before(&jobs[child], &last))
            break;
        jobs[i] = jobs[child];
    }
    jobs[i] = last;
}

/* ---- rates ---- */

static void share_resources(struct simulation *s)
{
    double kept = s->is_busy ? 1 - s->held_share : 1;
    for (uint32_t i = 0; i < s->n_flowing; i++) {
        const struct sim_channel *channel = &s->channels[s->flowing[i]];
        double slowness = 0;
        for (int k = 0; k < 2 && channel->resources[k] != SIM_NONE; k++) {
            const struct sim_resource *r = &s->resources[channel->resources[k]];
            double here = r->n_flows * r->slowness;
            slowness = here > slowness ? here : slowness;
        }
        if (slowness > 0)
            set_rate(s, channel->clock, slowness == 1 ? kept : kept / slowness);
    }
}

/* A flow of the channel begins or ends to slow down executors. */
static void slow_down(struct simulation *s, const struct sim_channel *channel, bool begins)
{
    if (channel->slows == SIM_NONE)
        return;
    struct sim_clock *c = &s->clocks[channel->slows];
    c->n_slowing[channel->slows_as] += begins ? 1 : UINT32_MAX;
    set_rate(s, channel->slows, c->n_slowing[0] ? s->rates[0] : c->n_slowing[1] ? s->rates[1] : 1);
    if (channel->slows_as != 0)
        return;
    if (begins && s->n_on_links++ == 0)
        s->on_links_since_ns = s->now_ns;
    if (!begins && --s->n_on_links == 0)
        s->on_links_ns += s->now_ns - s->on_links_since_ns;
}

/* Flows lose a part of their rate while executors work. */
static void set_busy(struct simulation *s, bool is_busy)
{
    if (is_busy && !s->is_idle_due)
        add_job(s, FIRST_EXECUTORS_CLOCK, s->busy_until, IDLE, 0);
    s->is_idle_due |= is_busy;
    if (s->is_busy != is_busy) {
        s->is_busy = is_busy;
        share_resources(s);
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

static bool has_waiting(const struct sim_channel *channel)
{
    return channel->first != SIM_NONE || channel->heap != SIM_NONE;
}

static uint32_t take_first(struct simulation *s, struct sim_channel *channel)
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

static void touch(struct simulation *s, uint32_t channel)
{
    if (!s->channels[channel].is_touched)
        s->touched[s->n_touched++] = channel;
    s->channels[channel].is_touched = true;
}

static void queue_flow(struct simulation *s, uint32_t number)
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

static void flow_on(struct simulation *s, uint32_t number)
{
    struct sim_flow *flow = &s->flows.at[number];
    uint32_t clock = s->channels[flow->channel].clock;
    flow->state = SIM_FLOWS;
    add_job(s, clock, clock_now(s, clock) + flow->wire_ns, SENT, number);
}

static void enter(struct simulation *s, uint32_t number)
{
    struct sim_channel *channel = &s->channels[s->flows.at[number].channel];
    if (channel->n_flowing++ == 0) {
        channel->place = s->n_flowing;
        s->flowing[s->n_flowing++] = s->flows.at[number].channel;
    }
    for (int k = 0; k < 2 && channel->resources[k] != SIM_NONE; k++)
        s->resources[channel->resources[k]].n_flows++;
    if (!channel->is_connection)
        slow_down(s, channel, true);
    share_resources(s);
    flow_on(s, number);
}

static bool is_free(const struct simulation *s, const struct sim_channel *channel)
{
    bool is_free = true;
    for (int k = 0; k < 2 && channel->resources[k] != SIM_NONE; k++)
        is_free &= s->resources[channel->resources[k]].n_flows == 0;
    return is_free;
}

static void leave_queue(struct simulation *s, uint32_t place)
{
    uint32_t number = s->queued[place];
    s->n_queued--;
    memmove(&s->queued[place], &s->queued[place + 1], (s->n_queued - place) * sizeof *s->queued);
    enter(s, number);
}

static void leave(struct simulation *s, struct sim_channel *channel)
{
    for (int k = 0; k < 2 && channel->resources[k] != SIM_NONE; k++)
        s->resources[channel->resources[k]].n_flows--;
    if (--channel->n_flowing == 0) {
        uint32_t last = s->flowing[--s->n_flowing];
        s->flowing[channel->place] = last;
        s->channels[last].place = channel->place;
    }
    slow_down(s, channel, false);
    for (uint32_t i = 0; i < s->n_queued;)
        if (is_free(s, &s->channels[s->flows.at[s->queued[i]].channel]))
            leave_queue(s, i);
        else
            i++;
    share_resources(s);
}

static void begin_flow(struct simulation *s, uint32_t number)
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
        enter(s, number);
        return;
    }
    flow->state = SIM_QUEUES;
    flow->queues_until = s->now_ns + channel->queue_ns;
    s->queued[s->n_queued++] = number;
    add_job(s, real_time(s), flow->queues_until, LEAVES, number);
}

/* ---- the gate ---- */

/* Of those that wait in the channel, how many travel with the first: as long as they fit. (Of one
 * data type, as gradients are taken to be, Horovod does not look past what does not fit.) */
static uint32_t count_group(const struct simulation *s, uint64_t *size_bytes, double *latency_ns)
{
    const struct sim_gate *gate = &s->gate;
    uint32_t n = 0;
    *size_bytes = 0;
    *latency_ns = 0;
    for (uint32_t i = gate->n_begun; i < gate->n_ready; i++) {
        const struct sim_communication *c =
            &s->communications.at[s->flows.at[gate->ready[i]].communication];
        if (n > 0 && (!gate->fuses || c->size_bytes > gate->fusion_bytes ||
                      *size_bytes > gate->fusion_bytes - c->size_bytes))
            break;
        *size_bytes += c->size_bytes;
        *latency_ns += c->latency_ns;
        n++;
    }
    return n;
}

/* A cycle takes all that waits. */
static void begin_cycle(struct simulation *s)
{
    struct sim_gate *gate = &s->gate;
    gate->is_armed = false;
    gate->n_ready = gate->n_begun = 0;
    while (has_waiting(&s->channels[0]))
        gate->ready[gate->n_ready++] = take_first(s, &s->channels[0]);
    gate->next_ns = s->now_ns + gate->cycle_ns;
    touch(s, 0);
}

/* The next group of the cycle, when the one before is through; with the last the cycle ends, and
 * another one begins when something waits. */
static void begin_group(struct simulation *s)
{
    struct sim_gate *gate = &s->gate;
    struct sim_channel *channel = &s->channels[0];
    if (channel->n_begun > 0)
        return;
    if (gate->n_begun < gate->n_ready) {
        struct sim_flow *first = &s->flows.at[gate->ready[gate->n_begun]];
        uint64_t size_bytes;
        double latency_ns, cost_ns = 0;
        gate->n_under_way = count_group(s, &size_bytes, &latency_ns);
        if (gate->cost(gate->arg, size_bytes, &cost_ns, &first->wire_ns) < 0)
            s->failed = true;
        first->hold_ns = latency_ns + cost_ns + (gate->n_begun == 0 ? gate->negotiate_ns : 0);
        for (uint32_t i = gate->n_begun; i < gate->n_begun + gate->n_under_way; i++)
            s->communications.at[s->flows.at[gate->ready[i]].communication].start_ns = s->now_ns;
        channel->n_begun = 1;
        begin_flow(s, gate->ready[gate->n_begun]);
        gate->n_begun += gate->n_under_way;
        return;
    }
    if (gate->n_ready > 0 && gate->next_ns < s->now_ns)
        gate->next_ns = s->now_ns;
    gate->n_ready = gate->n_begun = 0;
    if (!has_waiting(channel) || gate->is_armed)
        return;
    if (gate->next_ns < s->now_ns)
        gate->next_ns += ceil((s->now_ns - gate->next_ns) / gate->cycle_ns) * gate->cycle_ns;
    gate->is_armed = true;
    add_job(s, GATE_CLOCK, gate->next_ns, CYCLE, 0);
}

static void begin_flows(struct simulation *s, uint32_t number)
{
    struct sim_channel *channel = &s->channels[number];
    channel->is_touched = false;
    if (s->gate.cycle_ns > 0) {
        begin_group(s);
        return;
    }
    while (channel->n_begun < channel->n_at_once && has_waiting(channel)) {
        channel->n_begun++;
        begin_flow(s, take_first(s, channel));
    }
}

/* ---- executors ---- */

static void issue(struct simulation *s, uint32_t number, double when)
{
    struct sim_communication *c = &s->communications.at[number];
    c->issued = c->n_issued == 0 || when > c->issued ? when : c->issued;
    if (++c->n_issued < c->n_issuers)
        return;
    c->n_issued = 0;
    add_job(s, c->clock, c->issued, ISSUED, number);
}

/* How often the communication of its action must have ended for it to pass. To issue it is to wait
 * for the iteration before: its memory is in use until then. */
static uint32_t needs(const struct sim_executor *e)
{
    return e->n_done + (e->actions[e->at].kind == SIM_WAIT);
}

static void wait_for(struct simulation *s, struct sim_communication *c, uint32_t executor)
{
    s->executors[executor].next = SIM_NONE;
    if (c->first_waiting == SIM_NONE)
        c->first_waiting = executor;
    else
        s->executors[c->last_waiting].next = executor;
    c->last_waiting = executor;
}

/* On until it waits for what has not ended, or the iteration ends. */
static void run_ahead(struct simulation *s, uint32_t executor)
{
    struct sim_executor *e = &s->executors[executor];
    const struct sim_action *a = &e->actions[e->at];
    double reaches = e->reaches;
    for (; a->kind != SIM_END; reaches += (++a)->work_ns) {
        uint32_t number = a->bucket * s->stride + e->offset;
        struct sim_communication *c = &s->communications.at[number];
        if (c->n_ended < e->n_done + (a->kind == SIM_WAIT)) {
            wait_for(s, c, executor);
            break;
        }
        if (a->kind == SIM_ISSUE)
            issue(s, number, reaches);
    }
    e->at = (uint32_t)(a - e->actions);
    e->reaches = reaches;
    if (a->kind == SIM_END)
        add_job(s, e->clock, reaches, DONE, executor);
    if (s->held_share > 0 && e->reaches > s->busy_until) {
        s->busy_until = e->reaches;
        set_busy(s, s->busy_until > clock_now(s, FIRST_EXECUTORS_CLOCK));
    }
}

static void end_communication(struct simulation *s, uint32_t number)
{
    struct sim_communication *c = &s->communications.at[number];
    uint32_t executor = c->first_waiting;
    c->end_ns = s->now_ns;
    c->n_ended++;
    s->n_ended++;
    c->n_left = c->n_parts;
    c->first_waiting = SIM_NONE;
    while (executor != SIM_NONE) {
        struct sim_executor *e = &s->executors[executor];
        uint32_t next = e->next;
        if (c->n_ended < needs(e)) {
            wait_for(s, c, executor);
        } else {
            double now = clock_now(s, e->clock);
            e->reaches = now > e->reaches ? now : e->reaches;
            run_ahead(s, executor);
        }
        executor = next;
    }
}

static void end_part(struct simulation *s, uint32_t number)
{
    if (--s->communications.at[number].n_left == 0)
        end_communication(s, number);
}

/* ---- flows that arrive ---- */

static void release_flow(struct simulation *s, uint32_t flow)
{
    if (s->flows.at[flow].after_ns > 0)
        add_timer(s, s->flows.at[flow].after_ns, QUEUES, flow);
    else
        queue_flow(s, flow);
}

static void arrive_at(struct simulation *s, uint32_t number);

static void release(struct simulation *s, const struct sim_join *join)
{
    for (uint32_t i = 0; i < join->n_flows; i++)
        release_flow(s, join->first_flow + i);
    for (uint32_t i = 0; i < join->n_communications; i++)
        end_communication(s, join->first_communication + i);
    if (join->then != SIM_NONE)
        arrive_at(s, join->then);
}

static void arrive_at(struct simulation *s, uint32_t number)
{
    struct sim_join *join = &s->joins.at[number];
    if (++join->n_here < join->n_needed)
        return;
    join->n_here = 0;
    if (join->delay_ns > 0)
        add_timer(s, join->delay_ns, RELEASES, number);
    else
        release(s, join);
}

static void arrive(struct simulation *s, uint32_t number)
{
    const struct sim_flow *flow = &s->flows.at[number];
    if (flow->communication != SIM_NONE)
        end_part(s, flow->communication);
    if (flow->join != SIM_NONE)
        arrive_at(s, flow->join);
    if (flow->then != SIM_NONE)
        release_flow(s, flow->then);
}

/* A flow's bytes are through. */
static void sent(struct simulation *s, uint32_t number)
{
    const struct sim_flow *flow = &s->flows.at[number];
    struct sim_channel *channel = &s->channels[flow->channel];
    touch(s, flow->channel);
    if (channel->is_connection && has_waiting(channel)) {
        flow_on(s, take_first(s, channel));
    } else {
        channel->n_begun--;
        leave(s, channel);
    }
    if (s->gate.cycle_ns > 0)
        for (uint32_t i = s->gate.n_begun - s->gate.n_under_way; i < s->gate.n_begun; i++)
            end_part(s, s->flows.at[s->gate.ready[i]].communication);
    else if (flow->arrive_ns > 0)
        add_timer(s, flow->arrive_ns, ARRIVES, number);
    else
        arrive(s, number);
}

/* ---- iterations ---- */

/* The last of n iterations, and the one before, took as long on all executors. */
static bool is_steady(const struct simulation *s, uint32_t n)
{
    if (n < 3)
        return false;
    double first = s->executors[0].done_ns[n - 1] - s->executors[0].done_ns[n - 2];
    for (uint32_t i = 0; i < s->n_executors; i++) {
        const double *done = s->executors[i].done_ns;
        if (fabs(done[n - 1] - done[n - 2] - first) > 0.5 ||
            fabs(done[n - 2] - done[n - 3] - first) > 0.5)
            return false;
    }
    return true;
}

/* Whether the next iteration is as this one: it begins like it. Nothing of this one was under way
 * when the first executor was done with it, and all were done with it as they were with the one
 * before (or began together), one as much after another. */
static bool repeats(const struct simulation *s, uint32_t n)
{
    const double SAME_NS = 1e-3;
    bool same = s->is_drained && s->stride == 1 && s->gate.cycle_ns <= 0;
    const double *first = s->executors[0].done_ns;
    for (uint32_t i = 1; i < s->n_executors && same; i++) {
        const double *done = s->executors[i].done_ns;
        double before = n > 1 ? done[n - 2] - first[n - 2] : 0;
        same = fabs(done[n - 1] - first[n - 1] - before) < SAME_NS;
    }
    return same;
}

static void is_done(struct simulation *s, uint32_t executor)
{
    struct sim_executor *e = &s->executors[executor];
    e->done_ns[e->n_done] = s->now_ns;
    if (s->n_finished[e->n_done] == 0)
        s->is_drained = s->n_ended == s->communications.n * (e->n_done + (size_t)1);
    if (++s->n_finished[e->n_done++] == s->n_executors) {
        uint32_t n = ++s->n_iterations;
        s->is_settled = repeats(s, n) || is_steady(s, n);
    }
    if (s->first_join != SIM_NONE)
        arrive_at(s, s->first_join);
    if (s->is_settled || e->n_done > SIM_MOST_ITERATIONS)
        return;
    e->at = 0;
    e->reaches += e->actions[0].work_ns;
    run_ahead(s, executor);
}

/* ---- the loop ---- */

static void is_issued(struct simulation *s, uint32_t number)
{
    struct sim_communication *c = &s->communications.at[number];
    c->issued_ns = s->now_ns;
    if (!s->flows.at[c->first_flow].begins)
        c->start_ns = s->now_ns;
    for (uint32_t i = 0; i < c->n_flows; i++)
        queue_flow(s, c->first_flow + i);
}

static void happen(struct simulation *s, const struct sim_job *job)
{
    switch ((enum job_kind)job->what) {
    case CYCLE:
        begin_cycle(s);
        break;
    case ISSUED:
        is_issued(s, job->which);
        break;
    case DONE:
        is_done(s, job->which);
        break;
    case IDLE:
        s->is_idle_due = false;
        set_busy(s, s->busy_until > job->when);
        break;
    case SENT:
        sent(s, job->which);
        break;
    case BEGINS:
        enter(s, job->which);
        break;
    case LEAVES:
        for (uint32_t i = 0; i < s->n_queued; i++)
            if (s->queued[i] == job->which && s->flows.at[job->which].queues_until <= job->when) {
                leave_queue(s, i);
                break;
            }
        break;
    case QUEUES:
        queue_flow(s, job->which);
        break;
    case ARRIVES:
        arrive(s, job->which);
        break;
    case RELEASES:
        release(s, &s->joins.at[job->which]);
        break;
    }
}

/* All that a clock has for the next moment; then flows begin. */
static bool step(struct simulation *s)
{
    uint32_t clock = next_clock(s);
    double next_ns = s->next_ns[0][clock];
    struct sim_clock *c = &s->clocks[clock];
    if (next_ns == INFINITY || s->failed)
        return false;
    s->now_ns = next_ns > s->now_ns ? next_ns : s->now_ns;
    const struct sim_job *next = next_job(c);
    double when = c->time = next->when;
    c->at_ns = s->now_ns;
    s->clock = clock;
    do {
        struct sim_job job = *next;
        if (next == c->heap.at)
            take_from_heap(c);
        else
            c->first++;
        happen(s, &job);
        next = next_job(c);
    } while (next && next->when <= when);
    s->clock = SIM_NONE;
    find_next(s, clock);
    for (uint32_t i = 0; i < s->n_touched; i++)
        begin_flows(s, s->touched[i]);
    s->n_touched = 0;
    return true;
}

static void reset(struct simulation *s)
{
    s->now_ns = s->on_links_ns = s->busy_until = 0;
    s->n_flowing = s->n_queued = s->n_touched = s->n_on_links = s->n_iterations = 0;
    s->n_jobs = s->n_turns = s->n_ended = 0;
    s->clock = SIM_NONE;
    s->is_busy = s->is_idle_due = s->is_settled = s->failed = false;
    s->gate.next_ns = 0;
    s->gate.n_ready = s->gate.n_begun = 0;
    s->gate.is_armed = false;
    memset(s->n_finished, 0, sizeof s->n_finished);
    for (uint32_t c = 0; c < s->n_clocks; c++) {
        struct sim_clock *clock = &s->clocks[c];
        clock->time = clock->at_ns = 0;
        clock->rate = 1;
        clock->n_slowing[0] = clock->n_slowing[1] = 0;
        clock->first = clock->list.n = clock->heap.n = 0;
        find_next(s, c);
    }
    for (uint32_t i = 0; i < s->n_channels; i++) {
        struct sim_channel *channel = &s->channels[i];
        channel->n_begun = channel->n_flowing = 0;
        channel->first = channel->heap = SIM_NONE;
        channel->is_touched = false;
        for (int k = 0; k < 2 && channel->resources[k] != SIM_NONE; k++)
            s->resources[channel->resources[k]].n_flows = 0;
    }
    for (uint32_t i = 0; i < s->n_executors; i++) {
        struct sim_executor *e = &s->executors[i];
        e->at = e->n_done = 0;
        e->reaches = e->actions[0].work_ns;
    }
    for (size_t i = 0; i < s->communications.n; i++) {
        struct sim_communication *c = &s->communications.at[i];
        c->n_issued = c->n_ended = 0;
        c->n_left = c->n_parts;
        c->first_waiting = SIM_NONE;
        c->issued_ns = c->start_ns = c->end_ns = 0;
    }
    for (size_t i = 0; i < s->joins.n; i++)
        s->joins.at[i].n_here = 0;
}

void simulation_run(struct simulation *s)
{
    reset(s);
    if (s->first_join != SIM_NONE)
        add_timer(s, 0, RELEASES, s->first_join);
    for (uint32_t i = 0; i < s->n_executors; i++)
        run_ahead(s, i);
    while (s->n_iterations < SIM_MOST_ITERATIONS && !s->is_settled && step(s))
        ;
}

int simulation_init(struct simulation *s, struct arena *arena)
{
    size_t n = s->n_clocks;
    do {
        n = (n + FANOUT - 1) / FANOUT;
        double *ns = arena_alloc(arena, n * FANOUT * sizeof *ns);
        if (!ns)
            return -1;
        for (size_t i = 0; i < n * FANOUT; i++)
            ns[i] = INFINITY;
        s->next_ns[s->n_levels++] = ns;
    } while (n > 1);
    s->flowing = arena_array(arena, s->n_channels, sizeof *s->flowing);
    s->queued = arena_array(arena, s->n_channels, sizeof *s->queued);
    s->touched = arena_array(arena, s->n_channels, sizeof *s->touched);
    return s->flowing && s->queued && s->touched ? 0 : -1;
}

void simulation_fini(struct simulation *s)
{
    for (uint32_t c = 0; s->clocks && c < s->n_clocks; c++) {
        array_fini(&s->clocks[c].list);
        array_fini(&s->clocks[c].heap);
    }
    array_fini(&s->communications);
    array_fini(&s->flows);
    array_fini(&s->joins);
}
