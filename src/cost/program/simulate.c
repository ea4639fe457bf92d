/* The event loop of the coarse model.
 *
 * Until an executor waits for something unfinished, its actions depend only on its clock's rate. So
 * it runs ahead and notes when, by its clock, it issued each communication. Of issuers with one
 * clock only the last makes an event. */
#include "cost/program/simulate.h"

#include "cost/program/sim_clocks.h"

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

static void begin_cycle(struct simulation *s)
{
    struct sim_gate *gate = &s->gate;
    gate->is_armed = false;
    gate->n_ready = gate->n_begun = 0;
    while (has_waiting(&s->channels[0]))
        gate->ready[gate->n_ready++] = sim_take_first(s, &s->channels[0]);
    gate->next_ns = s->now_ns + gate->cycle_ns;
    touch_channel(s, 0);
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
        gate->cost(gate->arg, size_bytes, &cost_ns, &first->wire_ns);
        first->hold_ns = latency_ns + cost_ns + (gate->n_begun == 0 ? gate->negotiate_ns : 0);
        for (uint32_t i = gate->n_begun; i < gate->n_begun + gate->n_under_way; i++)
            s->communications.at[s->flows.at[gate->ready[i]].communication].start_ns = s->now_ns;
        channel->n_begun = 1;
        sim_begin_flow(s, gate->ready[gate->n_begun]);
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
        sim_begin_flow(s, sim_take_first(s, channel));
    }
}

/* ---- executors ---- */

static void simulate_issue(struct simulation *s, uint32_t number, uint32_t clock, double when)
{
    struct sim_communication *c = &s->communications.at[number];
    if (c->clock == SIM_NONE) {
        add_job(s, clock, when, ISSUED, number);
        return;
    }
    c->issued = c->n_issued == 0 || when > c->issued ? when : c->issued;
    if (++c->n_issued < c->n_issuers)
        return;
    c->n_issued = 0;
    add_job(s, c->clock, c->issued, ISSUED, number);
}

/* How often the communication of its action must have ended for it to pass. To issue it is to wait
 * for the iteration before: its memory is in use until then. */
static uint32_t simulate_needs(const struct sim_executor *e)
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
        uint32_t number = a->bucket * s->n_groups + e->group;
        struct sim_communication *c = &s->communications.at[number];
        if (c->n_ended < e->n_done + (a->kind == SIM_WAIT)) {
            wait_for(s, c, executor);
            break;
        }
        if (a->kind == SIM_ISSUE)
            simulate_issue(s, number, e->clock, reaches);
    }
    e->at = (uint32_t)(a - e->actions);
    e->reaches = reaches;
    if (a->kind == SIM_END)
        add_job(s, e->clock, reaches, DONE, executor);
    if (s->held_share > 0 && e->reaches > s->busy_until) {
        s->busy_until = e->reaches;
        sim_set_busy(s, s->busy_until > clock_now(s, FIRST_EXECUTORS_CLOCK));
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
        if (c->n_ended < simulate_needs(e)) {
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
        sim_queue_flow(s, flow);
}

static void arrive_at(struct simulation *s, uint32_t number);

static void simulate_release(struct simulation *s, const struct sim_join *join)
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
        simulate_release(s, join);
}

static void simulate_arrive(struct simulation *s, uint32_t number)
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
static void simulate_sent(struct simulation *s, uint32_t number)
{
    const struct sim_flow *flow = &s->flows.at[number];
    struct sim_channel *channel = &s->channels[flow->channel];
    touch_channel(s, flow->channel);
    if (channel->is_connection && has_waiting(channel)) {
        sim_flow_on(s, sim_take_first(s, channel));
    } else {
        channel->n_begun--;
        sim_leave(s, flow->channel);
    }
    if (s->gate.cycle_ns > 0)
        for (uint32_t i = s->gate.n_begun - s->gate.n_under_way; i < s->gate.n_begun; i++)
            end_part(s, s->flows.at[s->gate.ready[i]].communication);
    else if (flow->arrive_ns > 0)
        add_timer(s, flow->arrive_ns, ARRIVES, number);
    else
        simulate_arrive(s, number);
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
static bool simulate_repeats(const struct simulation *s, uint32_t n)
{
    const double SAME_NS = 1e-3;
    bool same = s->is_drained && s->n_groups == 1 && s->gate.cycle_ns <= 0;
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
        s->is_settled = simulate_repeats(s, n) || is_steady(s, n);
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

/* By all of its issuers, or by one of those that have clocks of their own. */
static void is_issued(struct simulation *s, uint32_t number)
{
    struct sim_communication *c = &s->communications.at[number];
    if (c->clock == SIM_NONE && ++c->n_here < c->n_issuers)
        return;
    c->n_here = 0;
    c->issued_ns = s->now_ns;
    if (!s->flows.at[c->first_flow].begins)
        c->start_ns = s->now_ns;
    for (uint32_t i = 0; i < c->n_flows; i++)
        sim_queue_flow(s, c->first_flow + i);
}

static void simulate_happen(struct simulation *s, const struct sim_job *job)
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
        sim_set_busy(s, s->busy_until > job->when);
        break;
    case SENT:
        simulate_sent(s, job->which);
        break;
    case BEGINS:
        sim_enter(s, job->which);
        break;
    case QUEUES:
        sim_queue_flow(s, job->which);
        break;
    case ARRIVES:
        simulate_arrive(s, job->which);
        break;
    case RELEASES:
        simulate_release(s, &s->joins.at[job->which]);
        break;
    }
}

/* All that a clock has for the next moment; then flows begin. */
static bool simulate_step(struct simulation *s)
{
    uint32_t clock = next_clock(s);
    double next_ns = s->next_ns[0][clock];
    struct sim_clock *c = &s->clocks[clock];
    if (next_ns == INFINITY)
        return false;
    s->now_ns = next_ns > s->now_ns ? next_ns : s->now_ns;
    const struct sim_job *next = next_job(c);
    double when = c->time = next->when;
    c->at_ns = s->now_ns;
    s->clock = clock;
    do {
        struct sim_job job = *next;
        take_job(c);
        simulate_happen(s, &job);
        next = next_job(c);
    } while (next && next->when <= when);
    s->clock = SIM_NONE;
    find_next(s, clock);
    for (uint32_t i = 0; i < s->n_touched; i++)
        begin_flows(s, s->touched[i]);
    s->n_touched = 0;
    sim_share(s);
    return true;
}

static void simulate_reset(struct simulation *s)
{
    s->now_ns = s->on_links_ns = s->busy_until = 0;
    s->n_touched = s->n_changed = s->n_on_links = s->n_iterations = 0;
    s->n_jobs = s->n_ended = 0;
    s->clock = SIM_NONE;
    s->is_busy = s->is_idle_due = s->is_settled = false;
    s->gate.next_ns = 0;
    s->gate.n_ready = s->gate.n_begun = 0;
    s->gate.is_armed = false;
    memset(s->n_finished, 0, sizeof s->n_finished);
    for (uint32_t c = 0; c < s->n_clocks; c++) {
        struct sim_clock *clock = &s->clocks[c];
        clock->time = clock->at_ns = 0;
        clock->rate = 1;
        clock->n_slowing[0] = clock->n_slowing[1] = 0;
        clock->jobs.n = 0;
        find_next(s, c);
    }
    EACH_OF (struct sim_channel, channel, s->channels, s->n_channels) {
        channel->n_begun = channel->n_flowing = 0;
        channel->first = SIM_NONE;
        channel->is_touched = channel->is_changed = false;
    }
    EACH_OF (struct sim_resource, r, s->resources, s->n_resources)
        r->n_flows = r->n_carried = 0;
    EACH_OF (struct sim_executor, e, s->executors, s->n_executors) {
        e->at = e->n_done = 0;
        e->reaches = e->actions[0].work_ns;
    }
    for (size_t i = 0; i < s->communications.n; i++) {
        s->communications.at[i].n_left = s->communications.at[i].n_parts;
        s->communications.at[i].first_waiting = SIM_NONE;
    }
}

void simulation_run(struct simulation *s)
{
    simulate_reset(s);
    if (s->first_join != SIM_NONE)
        add_timer(s, 0, RELEASES, s->first_join);
    for (uint32_t i = 0; i < s->n_executors; i++)
        run_ahead(s, i);
    while (s->n_iterations < SIM_MOST_ITERATIONS && !s->is_settled && simulate_step(s))
        ;
}

void simulation_init(struct simulation *s, struct arena *arena)
{
    size_t n = s->n_clocks;
    do {
        n = (n + FANOUT - 1) / FANOUT;
        double *ns = arena_alloc(arena, n * FANOUT * sizeof *ns);
        for (size_t i = 0; i < n * FANOUT; i++)
            ns[i] = INFINITY;
        s->next_ns[s->n_levels++] = ns;
    } while (n > 1);
    s->touched = arena_array(arena, s->n_channels, sizeof *s->touched);
    s->changed = arena_array(arena, s->n_channels, sizeof *s->changed);
    s->shared = arena_array(arena, s->n_resources, sizeof *s->shared);
    EACH_OF (const struct sim_channel, channel, s->channels, s->n_channels)
        for (uint32_t k = 0; k < channel->n_resources; k++)
            s->resources[channel->resources[k]].n_carried++;
    for (uint32_t i = 0; i < s->n_resources; i++)
        s->resources[i].carried =
            arena_array(arena, s->resources[i].n_carried, sizeof *s->resources[i].carried);
}

void simulation_fini(struct simulation *s)
{
    for (uint32_t c = 0; s->clocks && c < s->n_clocks; c++)
        array_fini(&s->clocks[c].jobs);
    FREE_ALL(&s->communications, &s->flows, &s->joins);
}
