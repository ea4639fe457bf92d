/* A stage timeline as ranks. A worker runs passes on one thread, and sends, receives and
 * collectives on others, each in turn, as streams of a GPU would.
 *
 * Ops begin and end as the graph has them: with their waiting, also where that was cut off before
 * the file was written, and in the order in which they wait for each other. */
#include "ingest/rank_job.h"
#include "ingest/stages/stage_table.h"

const struct payload_kind stage_payload = {sizeof(struct stage_table), .fini = stage_table_fini};

/* Two ends of one moment differ by the rounding of floats, of seconds in 32 bits; order between
 * streams by what events are late. */
enum { TOGETHER_NS = 10000, LATE_NS = 10000000 };

/* Data-parallel ranks that wait for each other before an op, in something that was not recorded. */
struct stage_meeting {
    size_t op; /* of the table */
    int64_t start_ns, end_ns;
};

struct ranks_maker {
    struct stage_table *table;
    struct stage_plan plan;
    bool *fits;        /* by worker and step, as table.first */
    bool are_after;    /* communication begins when the last member has */
    int64_t *begun_ns; /* of each op: when its worker asked for it */
    int64_t *ended_ns; /* of each op: when those that wait for it could go on, at the latest */
    ARRAY(struct stage_meeting) meetings; /* by op */
    bool *is_out;                         /* by step */
    int64_t *shift_ns; /* by step: how long those before it lasted that are left out */
    bool ends_meet;    /* no worker begins a step before all have ended the one before */
};

/* The op of a data-parallel rank; NULL: the rank has none like it in that step. */
static const struct stage_op *op_at(const struct ranks_maker *m, uint32_t op, uint32_t step,
                                    uint32_t replica)
{
    const struct stage_table *table = m->table;
    uint32_t worker = table->worker_at[(size_t)replica * table->n_stages + m->plan.ops[op].stage];
    return worker != UINT32_MAX && m->fits[worker * table->steps.n + step]
               ? stage_plan_row(table, &m->plan, op, step, replica)
               : NULL;
}

static size_t index_of(const struct ranks_maker *m, const struct stage_op *op)
{
    return (size_t)(op - m->table->ops.at);
}

/* ---- when ops began and ended ---- */

/* The worker's last pass of the step that was over by then, or nearly; NULL: none was. */
static const struct stage_op *last_pass(const struct ranks_maker *m, const struct stage_op *op,
                                        int64_t by_ns, bool nearly)
{
    const struct stage_op *pass = stage_table_ops(m->table, op->worker, op->step), *last = NULL;
    size_t n = stage_table_count(m->table, op->worker, op->step);
    for (size_t i = 0; i < n && pass[i].type <= STAGE_BACKWARD; i++) {
        int64_t end_ns = m->ended_ns[index_of(m, &pass[i])];
        if (end_ns - (nearly ? MIN(pass[i].dur_ns / 10, LATE_NS) : 0) <= by_ns &&
            (!last || end_ns > m->ended_ns[index_of(m, last)]))
            last = &pass[i];
    }
    return last;
}

/* When all was over that the op waits for, or its step began. A pass's result is sent
 * at once; what comes in is asked for by the program that runs the passes, between two of them. */
static int64_t ready_ns(const struct ranks_maker *m, uint32_t op, uint32_t step, uint32_t replica)
{
    const struct stage_plan_op *at = &m->plan.ops[op];
    const struct stage_op *own = op_at(m, op, step, replica), *pass = NULL;
    int64_t ns = at->n_before == 0 ? m->table->bounds[step][0] : INT64_MIN;
    for (uint32_t k = at->first_before; k < at->first_before + at->n_before; k++) {
        const struct stage_op *before = op_at(m, m->plan.before[k], step, replica);
        ns = MAX(ns, before->start_ns + before->dur_ns);
    }
    if (stage_op_receives(at->type))
        pass = last_pass(m, own, own->start_ns, true);
    return pass ? MAX(ns, pass->start_ns + pass->dur_ns) : ns;
}

/* Whoever was ready last began last, when the file says; the others, as soon as they were ready. */
static void find_begins(struct ranks_maker *m, uint32_t group, uint32_t step,
                        uint32_t first_replica, uint32_t end_replica)
{
    const struct stage_plan *plan = &m->plan;
    int64_t last_ns = INT64_MIN;
    for (int pass = 0; pass < 2; pass++)
        for (uint32_t i = plan->first_member[group]; i < plan->first_member[group + 1]; i++)
            for (uint32_t r = first_replica; r < end_replica; r++) {
                const struct stage_op *op = op_at(m, plan->members[i], step, r);
                if (!op)
                    continue;
                int64_t ns = ready_ns(m, plan->members[i], step, r);
                int64_t *begun_ns = &m->begun_ns[index_of(m, op)];
                if (pass == 0)
                    last_ns = MAX(last_ns, ns);
                else if ((m->are_after && ns < last_ns && ns < *begun_ns) ||
                         (ns > *begun_ns && ns - *begun_ns < LATE_NS))
                    *begun_ns = MIN(ns, op->start_ns + op->dur_ns);
            }
}

/* What an op waits for was over when it began; messages that begin earlier were moved. */
static void end_before(struct ranks_maker *m, uint32_t op, uint32_t step, uint32_t replica)
{
    const struct stage_plan_op *at = &m->plan.ops[op];
    const struct stage_op *own = op_at(m, op, step, replica);
    bool computes = stage_op_kinds[at->type].comm == STAGE_COMPUTES;
    for (uint32_t k = at->first_before; own && k < at->first_before + at->n_before; k++) {
        const struct stage_op *before = op_at(m, m->plan.before[k], step, replica);
        int64_t *ended_ns = &m->ended_ns[index_of(m, before)];
        int64_t begun_ns = m->begun_ns[index_of(m, own)];
        if ((stage_op_kinds[before->type].comm != STAGE_COMPUTES || computes) &&
            *ended_ns > begun_ns && *ended_ns - begun_ns < LATE_NS)
            *ended_ns = MAX(begun_ns, m->begun_ns[index_of(m, before)]);
    }
}

/* Of the messages of the usual step: whether both ends always begin together, as waiting was cut
 * off before the file was written; returns whether one in ten is over before it is sent, as clocks
 * differ. */
static bool look_at_messages(struct ranks_maker *m)
{
    uint32_t n = 0, n_together = 0, n_before = 0, step = m->table->usual;
    for (uint32_t op = 0; op < m->plan.n; op++)
        for (uint32_t r = 0; r < m->table->n_replicas; r++) {
            uint32_t peer = m->plan.ops[op].peer;
            bool pair = stage_op_sends(m->plan.ops[op].type) && peer < m->plan.n;
            const struct stage_op *sent = pair ? op_at(m, op, step, r) : NULL;
            const struct stage_op *got = sent ? op_at(m, peer, step, r) : NULL;
            n += got != NULL;
            n_together += got && llabs(got->start_ns - sent->start_ns) < TOGETHER_NS;
            n_before += got && got->start_ns + got->dur_ns < sent->start_ns - LATE_NS;
        }
    m->are_after = n > 0 && n_together * 20 >= n * 19;
    return n_before * 10 > n;
}

static void find_times(struct ranks_maker *m)
{
    const struct stage_plan *plan = &m->plan;
    uint32_t n_replicas = m->table->n_replicas;
    for (uint32_t s = 0; s < m->table->steps.n; s++) {
        for (uint32_t g = 0; g < plan->n_groups; g++) {
            uint8_t type = plan->ops[plan->members[plan->first_member[g]]].type;
            uint32_t n = stage_op_of_replicas(type) ? n_replicas : 1;
            for (uint32_t r = 0; r < n_replicas && stage_op_kinds[type].comm != STAGE_COMPUTES;
                 r += n)
                find_begins(m, g, s, r, r + n);
        }
        for (uint32_t op = 0; op < plan->n; op++)
            for (uint32_t r = 0; r < n_replicas; r++)
                end_before(m, op, s, r);
    }
}

/* ---- meetings ---- */

ORDER(by_op, struct stage_meeting, ASCENDING(op));

/* Whether all data-parallel ranks begin an op of a stage when the last one is ready, and some have
 * waited long for that. Ranks that were ready late may begin later still. Their meetings are added
 * behind the others. */
static bool meet_before(struct ranks_maker *m, uint32_t op, uint32_t step, bool *waited)
{
    int64_t last_ready_ns = INT64_MIN, last_start_ns = INT64_MIN;
    size_t n = m->meetings.n;
    bool together = true, any = false;
    for (uint32_t r = 0; r < m->table->n_replicas; r++)
        if (op_at(m, op, step, r))
            last_ready_ns = MAX(last_ready_ns, ready_ns(m, op, step, r));
    for (uint32_t r = 0; r < m->table->n_replicas && together; r++) {
        const struct stage_op *row = op_at(m, op, step, r);
        if (!row || row->start_ns < last_ready_ns - LATE_NS) {
            together = false;
            break;
        }
        int64_t ready = ready_ns(m, op, step, r), waited_ns = row->start_ns - ready;
        array_add(&m->meetings, index_of(m, row), ready, row->start_ns);
        if (last_ready_ns - ready <= LATE_NS)
            continue;
        together = row->start_ns - last_ready_ns <= waited_ns / 10;
        any |= waited_ns > 0;
        last_start_ns = MAX(last_start_ns, row->start_ns);
    }
    for (size_t i = n; i < m->meetings.n; i++)
        m->meetings.at[i].end_ns =
            MAX(m->meetings.at[i].start_ns, MIN(m->meetings.at[i].end_ns, last_start_ns));
    *waited = !together || any;
    if (!together || !any)
        m->meetings.n = n;
    return together && any;
}

/* Jobs average losses, or look for overflows, over data-parallel ranks, and few monitors list that:
 * in nine of ten steps in which ranks wait before an op, they begin it together. */
static void find_meetings(struct ranks_maker *m)
{
    size_t n_steps = m->table->steps.n;
    for (uint32_t op = 0; op < m->plan.n && m->table->n_replicas > 1; op++) {
        uint8_t type = m->plan.ops[op].type;
        size_t n = m->meetings.n, n_waited = 0, n_together = 0;
        if (stage_op_kinds[type].comm != STAGE_COMPUTES || type <= STAGE_BACKWARD)
            continue;
        for (uint32_t s = 0; s < n_steps; s++) {
            bool waited;
            n_together += meet_before(m, op, s, &waited);
            n_waited += waited;
        }
        if (n_together * 2 <= n_steps || n_together * 10 < n_waited * 9)
            m->meetings.n = n;
    }
    array_sort(&m->meetings, by_op);
}

static const struct stage_meeting *meeting_before(const struct ranks_maker *m, size_t op)
{
    const struct stage_meeting *at = m->meetings.at;
    size_t i = LOWER_BOUND(k, (size_t)0, m->meetings.n, at[k].op < op);
    return i < m->meetings.n && at[i].op == op ? &at[i] : NULL;
}

/* A worker's last op of a step to end, or its first one to begin; NULL: it has none. */
static const struct stage_op *edge_of_step(const struct ranks_maker *m, uint32_t worker,
                                           uint32_t step, bool first)
{
    const struct stage_op *ops = stage_table_ops(m->table, worker, step), *edge = NULL;
    size_t n = stage_table_count(m->table, worker, step);
    for (size_t i = 0; i < n; i++)
        if (!edge || (first ? ops[i].start_ns < edge->start_ns
                            : ops[i].start_ns + ops[i].dur_ns > edge->start_ns + edge->dur_ns))
            edge = &ops[i];
    return edge;
}

/* Whether workers that end a step apart begin the next one together, when the last one has ended:
 * in nine of ten steps that they end apart. */
static bool find_ends(const struct ranks_maker *m)
{
    enum { ENDS, BEGINS };
    uint32_t n_apart = 0, n_met = 0;
    for (uint32_t s = 0; s + 1 < m->table->steps.n; s++) {
        int64_t first_ns[] = {INT64_MAX, INT64_MAX}, last_ns[] = {INT64_MIN, INT64_MIN};
        for (uint32_t w = 0; w < m->table->workers.n; w++)
            for (int at = ENDS; at <= BEGINS; at++) {
                const struct stage_op *op = edge_of_step(m, w, s + (uint32_t)at, at == BEGINS);
                int64_t ns = op ? op->start_ns + (at == ENDS ? op->dur_ns : 0) : 0;
                first_ns[at] = op ? MIN(first_ns[at], ns) : first_ns[at];
                last_ns[at] = op ? MAX(last_ns[at], ns) : last_ns[at];
            }
        double apart_ns = (double)last_ns[ENDS] - (double)first_ns[ENDS]; /* < 0: of nothing */
        if (apart_ns < LATE_NS / 10)
            continue;
        n_apart++;
        n_met += (double)first_ns[BEGINS] >= (double)last_ns[ENDS] - TOGETHER_NS &&
                 (double)last_ns[BEGINS] - (double)first_ns[BEGINS] <= apart_ns / 10;
    }
    return n_met > 0 && n_met * 10 >= n_apart * 9;
}

/* ---- steps that are left out ---- */

/* Those in which most workers do more or fewer ops than in the usual one, as with other numbers of
 * micro-batches, where they are the fewer: no iteration is like the mean of both. The others follow
 * each other. Returns whether there are any. */
static bool leave_steps_out(struct ranks_maker *m, struct arena *arena)
{
    const struct stage_table *table = m->table;
    size_t n = table->steps.n, n_out = 0;
    m->is_out = arena_array(arena, n, sizeof *m->is_out);
    m->shift_ns = arena_array(arena, n, sizeof *m->shift_ns);
    for (uint32_t s = 0; s < n; s++) {
        size_t n_others = 0;
        for (uint32_t w = 0; w < table->workers.n; w++)
            n_others += stage_table_count(table, w, s) != stage_table_count(table, w, table->usual);
        m->is_out[s] = n_others * 2 > table->workers.n;
        n_out += m->is_out[s];
    }
    memset(m->is_out, 0, n_out * 2 < n ? 0 : n * sizeof *m->is_out);
    for (size_t s = 1; s < n; s++)
        m->shift_ns[s] = m->shift_ns[s - 1] +
                         (m->is_out[s - 1] ? table->bounds[s][0] - table->bounds[s - 1][0] : 0);
    return n_out > 0 && n_out * 2 < n;
}

/* ---- spans, and what waits for what ---- */

enum { PASSES, SENDS_FORWARD, SHARDS = SENDS_FORWARD + 4, N_TRACKS };

static uint32_t track_of(const struct stage_op *op)
{
    return stage_op_is_message(op->type) ? SENDS_FORWARD + op->type - STAGE_FORWARD_SEND
           : stage_op_kinds[op->type].comm == STAGE_COMPUTES ? PASSES
                                                             : SHARDS;
}

/* One worker on its way to be a part. */
struct part_maker {
    struct ranks_maker *all;
    struct trace_part *part;
    uint32_t rank;
    uint32_t names[N_STAGE_OPS], groups[N_STAGE_COMMS]; /* string ids */
    bool alone[N_STAGE_COMMS];                          /* nobody else is in the group */
    size_t first;
    uint32_t n_ops;   /* of its ops, in the table */
    int64_t shift_ns; /* of the step */
};

static void add_groups(struct part_maker *m)
{
    static const struct {
        const char *name, *description;
    } kinds[N_STAGE_COMMS] = {[STAGE_FORWARDS] = {"pp forward", "pipeline parallel"},
                              {"pp backward", "pipeline parallel"},
                              {"dp", "data parallel"},
                              {"embeddings", "pipeline parallel, embeddings"},
                              {"all", ""}};
    const struct stage_table *table = m->all->table;
    const struct stage_worker *own = &table->workers.at[m->rank];
    for (int g = STAGE_FORWARDS; g < N_STAGE_COMMS; g++) {
        bool over_replicas = g == STAGE_OF_STAGE;
        uint32_t n = over_replicas ? table->n_replicas : table->n_stages;
        int32_t *ranks = arena_alloc(&m->part->arena, (n + (size_t)1) * sizeof *ranks);
        struct trace_group group = {.ranks = ranks,
                                    .description = part_name(m->part, "%s", kinds[g].description)};
        for (uint32_t i = 0; i < n && g != STAGE_OF_ALL; i++) {
            size_t at = over_replicas ? (size_t)i * table->n_stages + own->stage
                                      : (size_t)own->replica * table->n_stages + i;
            bool inner = g == STAGE_OF_REPLICA && i > 0 && i + 1 < n;
            if (table->worker_at[at] != UINT32_MAX && !inner)
                ranks[group.n_ranks++] = (int32_t)table->worker_at[at];
        }
        if (n > 1 || g == STAGE_OF_ALL)
            sort_u32((uint32_t *)ranks, group.n_ranks);
        m->alone[g] = g == STAGE_OF_ALL ? table->workers.n < 2 : group.n_ranks < 2;
        group.name = m->groups[g] = part_name(m->part, "%s %u", kinds[g].name,
                                              g == STAGE_OF_ALL ? 0
                                              : over_replicas   ? own->stage
                                                                : own->replica);
        array_push(&m->part->groups, group);
    }
}

/* The numbers of a worker's spans: of its n_ops in order, of the meetings before them, and of the
 * begins of steps. */
static uint32_t number_of(const struct part_maker *m, const struct stage_op *op)
{
    return (uint32_t)(index_of(m->all, op) - m->first);
}

static void add_span(struct part_maker *m, enum span_kind kind, uint32_t name, uint32_t track,
                     int64_t start_ns, int64_t end_ns, uint32_t number)
{
    struct trace_span span =
        span_at(kind, name, track, start_ns - m->shift_ns, end_ns - m->shift_ns);
    span.external = number + 1;
    if (kind == SPAN_COLLECTIVE)
        span.detail = (uint32_t)m->part->details.n - 1;
    part_place_span(m->part, &span);
}

static void add_detail(struct part_maker *m, enum stage_comm group, uint32_t collective,
                       uint32_t peer)
{
    array_add(&m->part->details, DETAIL_UNKNOWN, .process_group = m->groups[group],
              .collective = collective);
    m->part->details.at[m->part->details.n - 1].peer = (int32_t)peer;
}

/* The worker at the other end of a message; UINT32_MAX: nothing tells. */
static uint32_t peer_of(const struct part_maker *m, const struct stage_op *op, size_t place)
{
    const struct stage_table *table = m->all->table;
    const struct stage_plan *plan = &m->all->plan;
    const struct stage_worker *own = &table->workers.at[m->rank];
    size_t at = stage_plan_of_stage(plan, own->stage) + place;
    bool is_there = at < stage_plan_of_stage(plan, own->stage + 1);
    uint32_t peer = is_there && plan->ops[at].type == op->type ? plan->ops[at].peer : UINT32_MAX;
    return peer == UINT32_MAX
               ? UINT32_MAX
               : table->worker_at[own->replica * table->n_stages + plan->ops[peer].stage];
}

static void add_op(struct part_maker *m, const struct stage_op *op, size_t place)
{
    size_t at = index_of(m->all, op);
    int64_t start_ns = m->all->begun_ns[at], end_ns = m->all->ended_ns[at];
    enum stage_comm comm = stage_op_kinds[op->type].comm;
    bool message = stage_op_is_message(op->type), alone = m->alone[comm];
    uint32_t peer = message ? peer_of(m, op, place) : 0, track = track_of(op);
    enum span_kind kind = SPAN_CPU_OP;
    if (op->type <= STAGE_BACKWARD) {
        uint32_t stage = m->all->table->workers.at[m->rank].stage;
        uint32_t mark = part_name(m->part, "PP:%u%c%d", /* as PyTorch's schedules mark a pass */
                                  op->chunk * m->all->table->n_stages + stage,
                                  op->type == STAGE_FORWARD ? 'F' : 'B', op->micro_batch);
        add_span(m, SPAN_ANNOTATION, mark, track, start_ns, end_ns, UINT32_MAX);
    } else if (track != PASSES && peer != UINT32_MAX && !alone) {
        kind = SPAN_COLLECTIVE;
        add_detail(m, comm,
                   op->type == STAGE_CLIP ? part_name(m->part, "all_reduce") : m->names[op->type],
                   message ? peer : UINT32_MAX);
    }
    add_span(m, kind, m->names[op->type], track, start_ns, end_ns, number_of(m, op));
}

static void add_edge(struct part_maker *m, uint32_t from, uint32_t to)
{
    array_add(&m->all->table->edges, m->rank, from, to);
}

/* Communication follows the last pass that was over when it was asked for. */
static void add_pass_edge(struct part_maker *m, const struct stage_op *op, int64_t by_ns,
                          uint32_t to)
{
    const struct stage_op *pass = last_pass(m->all, op, by_ns, false);
    if (pass)
        add_edge(m, number_of(m, pass), to);
}

/* The edges to an op in a step that fits, and to the meeting of data-parallel ranks before it, in
 * something that the file does not list. */
static void add_waits(struct part_maker *m, const struct stage_op *op, size_t place)
{
    const struct stage_plan *plan = &m->all->plan;
    uint32_t first = stage_plan_of_stage(plan, m->all->table->workers.at[m->rank].stage);
    const struct stage_plan_op *at = &plan->ops[first + place];
    const struct stage_meeting *meeting = meeting_before(m->all, index_of(m->all, op));
    uint32_t own = number_of(m, op), to = meeting ? m->n_ops + own : own;
    if (at->n_before == 0)
        add_edge(m, 2 * m->n_ops + op->step, own);
    for (uint32_t k = at->first_before; k < at->first_before + at->n_before; k++)
        add_edge(m, own - (uint32_t)place + (plan->before[k] - first), to);
    if (meeting) {
        add_detail(m, STAGE_OF_STAGE, part_name(m->part, "barrier"), UINT32_MAX);
        add_span(m, SPAN_COLLECTIVE, part_name(m->part, "not recorded: ranks wait for each other"),
                 SHARDS, meeting->start_ns, meeting->end_ns, to);
        add_edge(m, to, own);
        add_pass_edge(m, op, meeting->start_ns, to); /* what lies between may be empty */
    }
    if (stage_op_receives(op->type))
        add_pass_edge(m, op, m->all->begun_ns[index_of(m->all, op)], own);
}

/* All workers wait for the last one before the next step. `number`: of the meeting; the next one is
 * of what follows it. */
static void add_end(struct part_maker *m, const struct stage_op *last, int64_t end_ns,
                    uint32_t number)
{
    int64_t own_ns = MIN(last->start_ns + last->dur_ns, end_ns - 2);
    add_detail(m, STAGE_OF_ALL, part_name(m->part, "barrier"), UINT32_MAX);
    add_span(m, SPAN_COLLECTIVE, part_name(m->part, "not recorded: ranks wait for each other"),
             SHARDS, own_ns, end_ns - 1, number);
    add_span(m, SPAN_CPU_OP, part_name(m->part, "end of the step"), PASSES, end_ns - 1, end_ns,
             number + 1);
    add_edge(m, number_of(m, last), number);
    add_edge(m, number, number + 1);
}

static void add_step(struct part_maker *m, uint32_t s)
{
    const struct stage_table *table = m->all->table;
    const struct stage_op *ops = stage_table_ops(table, m->rank, s);
    size_t n = stage_table_count(table, m->rank, s);
    const int64_t *bounds = table->bounds[s];
    m->shift_ns = m->all->shift_ns[s];
    struct trace_span step = span_at(SPAN_STEP, part_name(m->part, "step"), PASSES,
                                     bounds[0] - m->shift_ns, bounds[1] - m->shift_ns);
    step.sequence = (int32_t)table->steps.at[s];
    if (n == 0 || m->all->is_out[s])
        return;
    part_place_span(m->part, &step);
    add_span(m, SPAN_CPU_OP, part_name(m->part, "begin of the step"), PASSES, bounds[0],
             bounds[0] + 1 /* what takes no time is no op */, 2 * m->n_ops + s);
    for (size_t i = 0; i < n; i++) {
        add_op(m, &ops[i], i);
        if (m->all->fits[m->rank * table->steps.n + s])
            add_waits(m, &ops[i], i);
    }
    if (m->all->ends_meet)
        add_end(m, edge_of_step(m->all, m->rank, s, false), bounds[1],
                2 * m->n_ops + (uint32_t)table->steps.n + 2 * s);
}

static void make_part(struct ranks_maker *all, uint32_t rank, struct trace_part *part)
{
    static const char *const tracks[N_TRACKS] = {
        "passes",         "forward sends",     "forward receives",
        "backward sends", "backward receives", "data-parallel communication"};
    const size_t *first = &all->table->first[rank * all->table->steps.n];
    struct part_maker m = {.all = all, .part = part, .rank = rank, .first = first[0]};
    m.n_ops = (uint32_t)(first[all->table->steps.n] - first[0]);
    part_intern(part, "", 0);
    part_set_rank(part, rank, (int64_t)all->table->workers.n);
    part->process.host = part_name(part, "stage timeline"); /* one clock */
    for (uint32_t t = 0; t < N_TRACKS; t++)
        array_add(&part->tracks, .track = {.serial = t != PASSES,
                                           .pid = 1,
                                           .id = t + 1,
                                           .name = part_name(part, "%s", tracks[t])});
    for (int type = 0; type < N_STAGE_OPS; type++)
        m.names[type] = part_name(part, "%s", stage_op_kinds[type].name);
    add_groups(&m);
    for (uint32_t s = 0; s < all->table->steps.n; s++)
        add_step(&m, s);
}

void stage_ranks_make(struct trace_part *part, struct stage_table *table)
{
    SCRATCH_ARENA struct arena scratch = {0};
    struct ranks_maker all = {.table = table};
    struct trace_part *last = part;
    stage_plan_make(table, &all.plan, &scratch);
    all.fits = arena_array(&scratch, table->workers.n * table->steps.n, sizeof *all.fits);
    all.begun_ns = arena_alloc(&scratch, table->ops.n * sizeof *all.begun_ns);
    all.ended_ns = arena_alloc(&scratch, table->ops.n * sizeof *all.ended_ns);
    for (uint32_t w = 0; w < table->workers.n; w++)
        for (uint32_t s = 0; s < table->steps.n; s++)
            all.fits[w * table->steps.n + s] = stage_table_fits(table, &all.plan, w, s);
    EACH (const struct stage_op, op, table->ops) {
        all.begun_ns[index_of(&all, op)] = op->start_ns;
        all.ended_ns[index_of(&all, op)] = op->start_ns + op->dur_ns;
    }
    if (leave_steps_out(&all, &scratch))
        part->note = "steps in which workers do more or fewer ops than usual are left out";
    if (look_at_messages(&all))
        part->note = "messages end before they are sent, as its ranks' clocks differ: waiting, "
                     "transfers and gaps are off by as much; record with synchronized clocks";
    find_times(&all);
    find_meetings(&all);
    all.ends_meet = find_ends(&all);
    for (uint32_t rank = 0; rank < table->workers.n; rank++) {
        if (rank > 0)
            last = last->next = mem_array(1, sizeof *last);
        make_part(&all, rank, last);
    }
    array_fini(&all.meetings);
    *(struct stage_table *)part_make_payload(part, &stage_payload) = *table;
    *table = (struct stage_table){.n_stages = 0};
}

/* ---- joining ---- */

/* Gives a worker its edges, from edge `i` on; where those of the next one are. */
static size_t link_rank(const struct stage_table *table, struct trace_rank *rank, size_t i)
{
    const size_t *first = &table->first[(size_t)rank->rank * table->steps.n];
    size_t n_numbers = 2 * (first[table->steps.n] - first[0]) + 3 * table->steps.n;
    SCRATCH uint32_t *spans = mem_array(n_numbers + 1, sizeof *spans); /* by number, + 1 */
    for (uint32_t s = 0; s < rank->n_spans; s++)
        if (rank->spans[s].external <= n_numbers)
            spans[rank->spans[s].external] = s;
    while (i < table->edges.n && table->edges.at[i].worker < (uint32_t)rank->rank)
        i++;
    for (; i < table->edges.n && table->edges.at[i].worker == (uint32_t)rank->rank; i++)
        RANK_PUSH(rank, links,
                  (struct trace_link){spans[table->edges.at[i].from + 1],
                                      spans[table->edges.at[i].to + 1]});
    rank->links_tell_all = true;
    return i;
}

void stage_ranks_join(struct trace_build *build)
{
    EACH (struct source, source, build->list) {
        struct stage_table *table = source_payload(source, &stage_payload);
        size_t edge = 0;
        if (!table || build->trace->stages)
            continue;
        build->trace->stages = part_take_payload(&source->part, &stage_payload);
        EACH_OF (struct trace_rank, rank, build->trace->ranks, build->trace->n_ranks)
            if ((size_t)rank->rank < table->workers.n && rank->spans)
                edge = link_rank(table, rank, edge);
        array_fini(&table->edges);
    }
}

/* Workers are numbered within a file. */
void stage_ranks_choose(struct trace_build *build)
{
    const struct source *first = NULL, *told = NULL;
    EACH (struct source, source, build->list) {
        if (!source_usable(source) || source->reader->join != stage_ranks_join)
            continue;
        first = first ?: source;
        if (strcmp(source->path, first->path) == 0)
            continue;
        if (!told || strcmp(source->path, told->path) != 0)
            build_warn(build,
                       "%s: left out, as %s is a stage timeline, too; put all of a job's "
                       "rows into one file",
                       source->path, first->path);
        told = source;
        source->reader = NULL;
    }
}
