/* Translates a model under a strategy into what the simulator runs.
 *
 * All-reduces are flows in one channel, which carries n_streams of them at once. Each has the
 * latency of its algorithm's messages, then shares the links of all ranks.
 *
 * With parameter servers each rank is an executor of its own, and one stands for several copies
 * that are about as fast: its flows are so many, each on a link of its own but for the server's. A
 * part of a bucket flows from the rank to its server, through the server's thread, and back to each
 * rank once all have sent it. In a session it flows back when the next step begins, which is when
 * all of this step is done.
 *
 * In groups each rank is an executor of its own, too, with its copies. A group's communications are
 * flows in its own channel, on the links of its ranks; the first channel is that of buckets. */

#include "cost/program/buckets.h"
#include "cost/program/evaluator.h"
#include "cost/program/server_placement.h"
#include "cost/program/strategy_work.h"

/* However much computing holds a transfer up, it goes on. */
#define MOST_HELD 0.9

/* ---- the model ---- */

static void cost_of_group(void *arg, uint64_t size_bytes, double *latency_ns, double *wire_ns)
{
    struct sync_cost cost = sync_get(arg, size_bytes);
    *latency_ns = (double)cost.latency_ns;
    *wire_ns = (double)cost.wire_ns;
}

/* Room for what strategies add. */
static void make_more(struct evaluator *e)
{
    const struct dpro_model *m = e->model;
    e->more_ns = arena_array(&e->arena, m->n_programs, sizeof *e->more_ns);
    for (uint32_t p = 0; p < m->n_programs; p++)
        e->more_ns[p] = arena_array(&e->arena, m->programs[p].n_ops, sizeof **e->more_ns);
}

/* ---- actions ---- */

static void add_action(struct sim_action **at, double *work_ns, enum sim_action_kind kind,
                       uint32_t bucket)
{
    *(*at)++ = (struct sim_action){*work_ns, (uint8_t)kind, bucket};
    *work_ns = 0;
}

/* The class's actions of an iteration, in the order in which it comes to them. */
static void set_actions(struct evaluator *e, const struct rank_class *class)
{
    const struct dpro_model *m = e->model;
    const struct dpro_strategy *s = e->strategy;
    struct sim_action *at = class->actions;
    struct bucket_cost *buckets = e->buckets;
    double work = 0;
    bool in_order = m->net.gate.in_order;
    uint32_t n_buckets = s->n_buckets, next = 0; /* in order: the bucket to be launched next */
    uint32_t lag = e->first_lag[class->program];
    const int64_t *more_ns = e->has_more ? e->more_ns[class->program] : NULL;
    const struct model_program *program = &m->programs[class->program];
    for (uint32_t b = 0; b < n_buckets; b++)
        buckets[b].n_missing = s->buckets[b].n;
    if (m->net.gate.pulls_with_step)
        add_action(&at, &work, SIM_WAIT, n_buckets); /* for the step to begin */
    for (uint32_t i = 0; i < program->n_ops; i++) {
        const struct model_op *op = &program->ops[i];
        if (op->needs == MODEL_ALL) {
            for (uint32_t b = 0; b < n_buckets; b++) {
                add_action(&at, &work, SIM_WAIT, b);
                work = buckets[b].copy_ns * class->scale;
            }
        } else if (op->needs != MODEL_NONE) {
            uint32_t number =
                op->lag_ns > 0 ? n_buckets + m->n_communications + lag++ : e->bucket_of[op->needs];
            add_action(&at, &work, op->needs_before ? SIM_WAIT_BEFORE : SIM_WAIT, number);
        }
        work += (double)(op->work_ns + (more_ns ? more_ns[i] : 0)) * class->scale;
        if (op->tensor == MODEL_NONE)
            continue;
        uint32_t b = e->bucket_of[op->tensor];
        if (op->tensor >= m->n_tensors) {
            add_action(&at, &work, SIM_ISSUE, b);
            continue;
        }
        bool whole = --buckets[b].n_missing == 0;
        if (whole && !in_order) {
            work += buckets[b].launch_ns * class->scale;
            add_action(&at, &work, SIM_ISSUE, b);
            work = buckets[b].handling_ns * class->scale;
        }
        while (in_order && next < n_buckets && buckets[next].n_missing == 0) {
            work += buckets[next].launch_ns * class->scale;
            add_action(&at, &work, SIM_ISSUE, next);
            work = buckets[next++].handling_ns * class->scale;
        }
    }
    add_action(&at, &work, SIM_END, 0);
}

/* ---- all-reduces ---- */

/* All ranks' links are one resource, as they carry the same at the same time. */
static void add_link(struct evaluator *e)
{
    static const uint32_t resource = 0, clock = FIRST_EXECUTORS_CLOCK;
    struct simulation *s = &e->sim;
    s->n_channels = 1;
    s->channels = arena_array(&e->arena, 1, sizeof *s->channels);
    s->n_resources = 1;
    s->resources = arena_array(&e->arena, 1, sizeof *s->resources);
    s->resources[0].slowness = 1;
    s->channels[0] = (struct sim_channel){.resources = &resource,
                                          .n_resources = 1,
                                          .n_links = 1,
                                          .n_at_once = e->model->net.gate.n_streams,
                                          .slows = &clock,
                                          .n_slows = 1};
}

/* In cycles the gate says what a group takes, and no bucket is in parts. */
static void set_collectives(struct evaluator *e)
{
    struct simulation *s = &e->sim;
    const struct dpro_strategy *strategy = e->strategy;
    uint32_t clock = e->scheme == MODEL_IN_GROUPS ? SIM_NONE : FIRST_EXECUTORS_CLOCK;
    for (uint32_t b = 0; b < strategy->n_buckets; b++) {
        const struct bucket_cost *bucket = &e->buckets[b];
        uint32_t n = strategy->cycle_ns > 0 ? 1 : strategy->buckets[b].partitions;
        uint64_t part = bucket->size_bytes / n, last = bucket->size_bytes - (n - 1) * part;
        struct sim_communication c = {.n_issuers = s->n_executors,
                                      .first_flow = (uint32_t)s->flows.n,
                                      .n_flows = n,
                                      .n_parts = n,
                                      .clock = clock,
                                      .size_bytes = bucket->size_bytes,
                                      .latency_ns = bucket->cast_ns};
        struct sim_flow flow = {.communication = b,
                                .join = SIM_NONE,
                                .then = SIM_NONE,
                                .priority = strategy->buckets[b].priority,
                                .begins = true};
        array_push(&s->communications, c);
        array_reserve(&s->flows, n);
        for (uint32_t p = 0; p < n; p++) {
            if (strategy->cycle_ns <= 0 && (p == 0 || p + 1 == n)) {
                struct sync_cost cost = sync_get(e->costs, p + 1 == n ? last : part);
                flow.hold_ns = (double)cost.latency_ns + bucket->cast_ns;
                flow.wire_ns = (double)cost.wire_ns + bucket->idle_ns;
            }
            s->flows.at[s->flows.n++] = flow;
            flow.begins = false;
        }
    }
}

/* ---- groups of ranks ---- */

/* Links out of ranks and in, and the same within hosts. */
enum { OUT, IN, OUT_WITHIN, IN_WITHIN, N_KINDS_OF_LINKS };

static uint32_t link_of(const struct evaluator *e, uint32_t rank, uint32_t kind)
{
    const struct model_link *link = &e->model->net.link;
    bool shared = kind < OUT_WITHIN && link->rank_hosts && !link->own_links;
    return kind * e->n_classes + e->class_of[shared ? link->rank_hosts[rank] : rank];
}

/* Once each, of those that a group uses. */
static void add_resource(struct sim_channel *channel, uint32_t *resources, uint32_t resource)
{
    for (uint32_t i = 0; i < channel->n_resources; i++)
        if (resources[i] == resource)
            return;
    resources[channel->n_resources++] = resource;
}

static void set_stream(struct evaluator *e, const struct model_group *group,
                       struct sim_channel *channel)
{
    uint32_t *resources = arena_alloc(&e->arena, 2 * (size_t)group->n_ranks * sizeof *resources);
    uint32_t *clocks = arena_alloc(&e->arena, group->n_ranks * sizeof *clocks);
    *channel = (struct sim_channel){.n_at_once = group->n_streams,
                                    .n_links = 1,
                                    .resources = resources,
                                    .slows = clocks,
                                    .n_slows = group->n_ranks,
                                    .slows_as = group->within};
    for (uint32_t i = 0; i < group->n_ranks; i++) {
        uint32_t rank = group->ranks[i], out = group->within ? OUT_WITHIN : OUT;
        clocks[i] = FIRST_EXECUTORS_CLOCK + e->class_of[rank];
        if (!group->sends || i == 0)
            add_resource(channel, resources, link_of(e, rank, out));
        if (!group->sends || i > 0)
            add_resource(channel, resources, link_of(e, rank, out + 1));
    }
}

static void add_streams(struct evaluator *e)
{
    struct simulation *s = &e->sim;
    const struct dpro_model *m = e->model;
    uint32_t *all = arena_alloc(&e->arena, m->n_ranks * sizeof *all);
    struct model_group everyone = {.ranks = all, .n_streams = m->net.gate.n_streams};
    for (uint32_t r = 0; r < m->n_ranks; r++)
        if (m->ranks[r].copy == 0)
            all[everyone.n_ranks++] = r;
    s->n_channels = 1 + m->n_groups + 1; /* the last one brings things later */
    s->n_resources = N_KINDS_OF_LINKS * e->n_classes;
    s->is_fair = true;
    s->channels = arena_array(&e->arena, s->n_channels, sizeof *s->channels);
    s->resources = arena_array(&e->arena, s->n_resources, sizeof *s->resources);
    for (uint32_t i = 0; i < s->n_resources; i++)
        s->resources[i].slowness = 1;
    for (uint32_t i = 0; i <= m->n_groups; i++)
        set_stream(e, i == 0 ? &everyone : &m->groups[i - 1], &s->channels[i]);
    s->channels[m->n_groups + 1].n_at_once = UINT32_MAX;
}

ORDER(by_communication, struct rank_lag, ASCENDING(communication) ?: ASCENDING(number));

/* How much longer a communication takes with the rate of links as it is now. A rank that has it
 * later than others has it later by as much: what it still waits for then are bytes, too. */
static double lag_stretch(const struct dpro_model *m, const struct model_communication *c)
{
    double byte_ns = link_times_of(&m->net.learnt, m->groups[c->group].within).byte_ns;
    struct model_cost was = model_recorded_cost(c, byte_ns, m->net.took_ratio);
    struct model_cost now = model_group_cost(m, c);
    double was_ns = was.latency_ns + was.wire_ns;
    return was_ns > 0 ? (was.latency_ns + now.wire_ns) / was_ns : 1;
}

/* What a rank has later than others it waits for in a communication of its own, which ends that
 * much after. They come behind all others, by program and op. */
static void list_lags(struct evaluator *e)
{
    const struct dpro_model *m = e->model;
    SCRATCH ARRAY(struct rank_lag) lags = {0};
    e->first_lag = arena_array(&e->arena, m->n_programs + (size_t)1, sizeof *e->first_lag);
    for (uint32_t p = 0; p < m->n_programs; p++) {
        e->first_lag[p] = (uint32_t)lags.n;
        EACH_OF (const struct model_op, op, m->programs[p].ops, m->programs[p].n_ops) {
            uint32_t k = op->needs - m->n_tensors;
            if (op->lag_ns > 0)
                array_add(&lags, k, (uint32_t)lags.n,
                          op->lag_ns * m->net.took_ratio * lag_stretch(m, &m->communications[k]));
        }
    }
    array_sort(&lags, by_communication);
    e->n_lags = (uint32_t)lags.n;
    e->lags = arena_copy(&e->arena, lags.at, lags.n, sizeof *e->lags);
}

/* `flow`: of the first communication of groups. */
static void set_lags(struct evaluator *e, uint32_t flow)
{
    struct simulation *s = &e->sim;
    uint32_t first = (uint32_t)s->communications.n;
    for (uint32_t i = 0; i < e->n_lags; i++)
        array_push(&s->communications, ((struct sim_communication){.n_parts = 1}));
    for (uint32_t i = 0; i < e->n_lags; i++) {
        const struct rank_lag *lag = &e->lags[i];
        struct sim_flow later = {.channel = s->n_channels - 1,
                                 .communication = first + lag->number,
                                 .join = SIM_NONE,
                                 .then = SIM_NONE,
                                 .after_ns = lag->ns};
        if (i == 0 || lag->communication != lag[-1].communication) {
            s->flows.at[flow + lag->communication].join = (uint32_t)s->joins.n;
            array_push(&s->joins,
                       ((struct sim_join){
                           .n_needed = 1, .first_flow = (uint32_t)s->flows.n, .then = SIM_NONE}));
        }
        s->joins.at[s->joins.n - 1].n_flows++;
        array_push(&s->flows, later);
    }
}

/* Buckets come first. */
static void set_communications(struct evaluator *e)
{
    struct simulation *s = &e->sim;
    const struct dpro_model *m = e->model;
    set_collectives(e);
    uint32_t first_flow = (uint32_t)s->flows.n;
    for (uint32_t i = 0; i < m->n_communications; i++) {
        const struct model_communication *from = &m->communications[i];
        struct model_cost cost = model_group_cost(m, from);
        struct sim_communication c = {.n_issuers = m->groups[from->group].n_ranks,
                                      .first_flow = (uint32_t)s->flows.n,
                                      .n_flows = from->follows == 0,
                                      .n_parts = 1,
                                      .clock = SIM_NONE};
        struct sim_flow flow = {.channel = 1 + from->group,
                                .communication = (uint32_t)s->communications.n,
                                .join = SIM_NONE,
                                .then = SIM_NONE,
                                .begins = true,
                                .hold_ns = cost.latency_ns,
                                .wire_ns = cost.wire_ns};
        array_push(&s->communications, c);
        array_push(&s->flows, flow);
        if (from->follows > 0)
            s->flows.at[first_flow + from->follows - 1].then = first_flow + i;
    }
    set_lags(e, first_flow);
}

/* ---- parameter servers ---- */

/* Of hosts of ranks, then of other servers. */
static uint32_t node_of(const struct evaluator *e, uint32_t node)
{
    uint32_t n_ranks = e->model->net.collective.n_ranks;
    return node < n_ranks ? e->class_of[node] : e->n_classes + node - n_ranks;
}

/* Pushes of each rank to each server, pulls, and servers' threads. What goes within a host takes no
 * link. */
static void add_connections(struct evaluator *e)
{
    struct simulation *s = &e->sim;
    const struct model_net *net = &e->model->net;
    uint32_t n = e->n_classes * e->n_servers, n_ranks = net->collective.n_ranks;
    uint32_t n_nodes = e->n_classes + sync_n_nodes(net) - n_ranks;
    s->n_channels = 2 * n + e->n_servers;
    s->channels = arena_array(&e->arena, s->n_channels, sizeof *s->channels);
    s->n_resources = 2 * n_nodes;
    s->resources = arena_array(&e->arena, s->n_resources, sizeof *s->resources);
    for (uint32_t i = 0; i < s->n_resources; i++) { /* links out, then in */
        uint32_t node = i % n_nodes;
        s->resources[i].slowness = node < e->n_classes
                                       ? 1.0 / e->classes[node].n
                                       : servers_slowness(net, node - e->n_classes + n_ranks);
    }
    for (uint32_t i = 0; i < s->n_channels; i++) {
        struct sim_channel *channel = &s->channels[i];
        uint32_t c = i % n / e->n_servers;
        *channel = (struct sim_channel){.n_at_once = 1, .is_connection = true, .n_links = 1};
        if (i >= 2 * n)
            continue;
        struct server_route route =
            servers_route(net, e->classes[c].rank, i % e->n_servers, i >= n);
        uint32_t *clock = arena_alloc(&e->arena, sizeof *clock);
        *clock = FIRST_EXECUTORS_CLOCK + c;
        channel->slows = clock;
        channel->n_slows = 1;
        channel->slows_as = route.from == route.to;
        channel->n_links = e->classes[c].n;
        if (route.from == route.to)
            continue;
        uint32_t *resources = arena_alloc(&e->arena, 2 * sizeof *resources);
        resources[0] = node_of(e, route.from);
        resources[1] = n_nodes + node_of(e, route.to);
        channel->resources = resources;
        channel->n_resources = 2;
    }
}

/* Where flows of parts stand: pushes by bucket, rank and part, what the servers do with them in the
 * same order, then what is pulled by part and rank. */
struct layout {
    uint32_t n_parts, n_pushes;
    uint32_t step; /* of a session: the join with which a step ends; SIM_NONE */
};

static void set_part(struct evaluator *e, const struct layout *l, uint32_t b, uint32_t part,
                     uint32_t first_part)
{
    struct simulation *s = &e->sim;
    const struct model_net *net = &e->model->net;
    const struct strategy_bucket *bucket = &e->strategy->buckets[b];
    uint32_t n = bucket->partitions, n_ranks = s->n_executors,
             n_connections = n_ranks * e->n_servers;
    double bytes = servers_part_bytes(e->buckets[b].size_bytes, part, n);
    uint32_t server = servers_of_part(e->model, e->strategy, b, part), number = first_part + part;
    bool session = l->step != SIM_NONE;
    for (uint32_t r = 0; r < n_ranks; r++) {
        uint32_t push = first_part * n_ranks + r * n + part;
        uint32_t pull = 2 * l->n_pushes + number * n_ranks + r;
        struct sim_flow flow = {.channel = r * e->n_servers + server,
                                .communication = SIM_NONE,
                                .join = SIM_NONE,
                                .then = l->n_pushes + push,
                                .priority = bucket->priority,
                                .arrive_ns = net->link.message_ns.value};
        bool within = s->channels[flow.channel].slows_as == 1;
        flow.wire_ns = bytes * (within ? net->link.within_ns.value : net->link.byte_ns.value);
        s->flows.at[push] = flow;
        flow.channel += n_connections;
        flow.communication = b * n_ranks + r;
        flow.join = l->step;
        flow.then = SIM_NONE;
        flow.arrive_ns += net->collective.overhead_ns.value;
        s->flows.at[pull] = flow;
        s->flows.at[l->n_pushes + push] = (struct sim_flow){
            .channel = 2 * n_connections + server,
            .communication = SIM_NONE,
            .join = number,
            .then = SIM_NONE,
            .priority = bucket->priority,
            .wire_ns = e->classes[r].n *
                       (net->servers.push_ns.value + bytes * net->collective.reduce_ns.value)};
    }
    s->joins.at[number] = (struct sim_join){.n_needed = n_ranks,
                                            .delay_ns = session ? 0 : net->servers.answer_ns.value,
                                            .first_flow = 2 * l->n_pushes + number * n_ranks,
                                            .n_flows = session ? 0 : n_ranks,
                                            .then = l->step};
}

static void set_served(struct evaluator *e)
{
    struct simulation *s = &e->sim;
    const struct dpro_strategy *strategy = e->strategy;
    const struct model_net *net = &e->model->net;
    uint32_t n_ranks = s->n_executors, n = strategy->n_buckets, part = 0;
    struct layout l = {0, 0, SIM_NONE};
    for (uint32_t b = 0; b < n; b++)
        l.n_parts += strategy->buckets[b].partitions;
    l.n_pushes = l.n_parts * n_ranks;
    l.step = net->gate.pulls_with_step ? l.n_parts : SIM_NONE;
    array_reserve(&s->flows, 3 * (size_t)l.n_pushes);
    array_reserve(&s->joins, l.n_parts + (size_t)1);
    array_reserve(&s->communications, ((size_t)n + 1) * n_ranks);
    s->flows.n = 3 * (size_t)l.n_pushes;
    s->joins.n = l.n_parts + (size_t)1;
    s->communications.n = ((size_t)n + 1) * n_ranks;
    for (uint32_t b = 0; b <= n; b++) {
        uint32_t n_parts = b < n ? strategy->buckets[b].partitions : 1;
        for (uint32_t r = 0; r < n_ranks; r++)
            s->communications.at[b * n_ranks + r] =
                (struct sim_communication){.n_issuers = 1,
                                           .first_flow = part * n_ranks + r * n_parts,
                                           .n_flows = n_parts,
                                           .n_parts = n_parts,
                                           .clock = 1 + r};
        for (uint32_t p = 0; p < n_parts && b < n; p++)
            set_part(e, &l, b, p, part);
        part += n_parts;
    }
    s->joins.at[l.n_parts] = (struct sim_join){.n_needed = n_ranks + l.n_parts + l.n_pushes,
                                               .delay_ns = net->gate.step_ns.value,
                                               .first_flow = 2 * l.n_pushes,
                                               .n_flows = l.n_pushes,
                                               .first_communication = n * n_ranks,
                                               .n_communications = n_ranks,
                                               .then = SIM_NONE};
    s->first_join = l.step;
}

/* ---- all of it ---- */

/* How communications are carried. */
static const struct {
    bool clocks; /* each executor has a clock */
    bool apart;  /* each issues and ends its own communications; else several have one */
    void (*make_executors)(struct evaluator *e); /* of the model: classes of ranks */
    void (*make_channels)(struct evaluator *e);  /* of the model, with their resources */
    void (*make_flows)(struct evaluator *e);     /* of the strategy */
} schemes[] = {
    [MODEL_ALL_REDUCE] = {false, false, classes_by_program, add_link, set_collectives},
    [MODEL_PUSH_PULL] = {true, true, classes_by_host, add_connections, set_served},
    [MODEL_IN_GROUPS] = {true, false, classes_by_program, add_streams, set_communications}};

void schedule_init(struct evaluator *e)
{
    const struct dpro_model *m = e->model;
    struct simulation *s = &e->sim;
    make_more(e);
    list_lags(e);
    e->n_servers = sync_n_servers(&m->net);
    e->scheme = model_scheme(m);
    e->classes = arena_array(&e->arena, m->n_ranks, sizeof *e->classes);
    e->class_of = arena_array(&e->arena, m->n_ranks, sizeof *e->class_of);
    schemes[e->scheme].make_executors(e);
    schemes[e->scheme].make_channels(e);
    bool clocks = schemes[e->scheme].clocks;
    s->n_executors = e->n_classes;
    s->n_groups = schemes[e->scheme].apart ? e->n_classes : 1;
    uint32_t first = FIRST_EXECUTORS_CLOCK + (clocks ? s->n_executors : 1);
    s->n_clocks = first + s->n_channels + 1;
    s->executors = arena_array(&e->arena, s->n_executors, sizeof *s->executors);
    s->clocks = arena_array(&e->arena, s->n_clocks, sizeof *s->clocks);
    s->gate.ready = arena_array(&e->arena, m->n_tensors, sizeof *s->gate.ready);
    for (uint32_t i = 0; i < s->n_executors; i++) {
        s->executors[i] = (struct sim_executor){.actions = e->classes[i].actions,
                                                .clock = FIRST_EXECUTORS_CLOCK + (clocks ? i : 0),
                                                .group = s->n_groups > 1 ? i : 0};
    }
    for (uint32_t i = 0; i < s->n_channels; i++)
        s->channels[i].clock = first + i;
    s->rates[0] = evaluator_rate(&m->net.link, m->net.link.byte_ns.value);
    s->rates[1] = evaluator_rate(&m->net.link, m->net.link.within_ns.value);
    s->held_share = fmin(m->net.link.held_share.value, MOST_HELD);
    s->first_join = SIM_NONE;
    s->gate.negotiate_ns = m->net.gate.negotiate_ns.value;
    s->gate.cost = cost_of_group;
    s->gate.arg = e->costs;
    simulation_init(s, &e->arena);
}

void schedule_strategy(struct evaluator *e)
{
    struct simulation *s = &e->sim;
    s->communications.n = s->flows.n = s->joins.n = 0;
    s->gate.cycle_ns = e->n_servers ? 0 : (double)e->strategy->cycle_ns;
    s->gate.fuses = e->strategy->fuses;
    s->gate.fusion_bytes = e->strategy->fusion_bytes;
    buckets_cost(e->model, e->strategy, e->buckets, e->bucket_of);
    e->has_more = strategy_changes_work(e->model, e->strategy);
    for (uint32_t p = 0; p < e->model->n_programs && e->has_more; p++)
        strategy_more_work(e->model, e->strategy, p, e->more_ns[p]);
    for (uint32_t i = 0; i < e->model->n_communications; i++)
        e->bucket_of[e->model->n_tensors + i] = e->strategy->n_buckets + i;
    for (uint32_t c = 0; c < e->n_classes; c++)
        set_actions(e, &e->classes[c]);
    schemes[e->scheme].make_flows(e);
}
