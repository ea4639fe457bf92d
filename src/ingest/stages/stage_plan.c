/* Which op of a pipeline waits for which.
 *
 * Passes run one after the other; a message is sent when its pass is over, and asked for when the
 * pass before the one that takes it is. Parameters are gathered before their chunk's first forward
 * pass; gradients are scattered after its last backward pass where that is done meanwhile, else
 * after all passes. What ends a step is a chain. */
#include "ingest/stages/stage_table.h"

enum { ROUNDING_NS = 50000 }; /* of clocks */

typedef ARRAY(uint32_t) index_array;

struct stage_wait {
    uint32_t op, before;
};

struct plan_maker {
    const struct stage_table *table;
    struct stage_plan *plan;
    bool *crosses;   /* by op: messages that pass a border */
    uint32_t *taken; /* by pass: 1 + the message that it takes in; 0: none */
    ARRAY(struct stage_wait) waits;
};

/* ---- what it is read off ---- */

/* The ops of a stage and a type are those from first_of(m, stage, type) on to that of the next. */
static uint32_t first_of(const struct plan_maker *m, uint32_t stage, uint32_t type)
{
    return m->plan->first[stage * N_STAGE_OPS + type];
}

static int64_t end_ns(const struct plan_maker *m, uint32_t op)
{
    return m->plan->ops[op].row->start_ns + m->plan->ops[op].row->dur_ns;
}

static void list_ops(struct plan_maker *m, struct arena *arena)
{
    const struct stage_table *table = m->table;
    struct stage_plan *plan = m->plan;
    size_t room = 0, key = 0, n_keys = (size_t)table->n_stages * N_STAGE_OPS;
    for (uint32_t s = 0; s < table->n_stages; s++)
        if (table->worker_at[s] != UINT32_MAX)
            room += stage_table_count(table, table->worker_at[s], table->usual);
    plan->ops = arena_array(arena, room + 1, sizeof *plan->ops);
    plan->first = arena_array(arena, n_keys + 1, sizeof *plan->first);
    m->crosses = arena_array(arena, room + 1, sizeof *m->crosses);
    m->taken = arena_array(arena, room + 1, sizeof *m->taken);
    for (uint32_t s = 0; s < table->n_stages; s++) {
        uint32_t worker = table->worker_at[s];
        size_t n = worker == UINT32_MAX ? 0 : stage_table_count(table, worker, table->usual);
        for (size_t i = 0; i < n; i++) {
            const struct stage_op *row = stage_table_ops(table, worker, table->usual) + i;
            while (key <= (size_t)s * N_STAGE_OPS + row->type)
                plan->first[key++] = plan->n;
            plan->ops[plan->n++] = (struct stage_plan_op){row, s, row->type, .peer = UINT32_MAX};
        }
    }
    while (key <= n_keys)
        plan->first[key++] = plan->n;
}

static int by_start(const void *a, const void *b, void *ops)
{
    const struct stage_op *x = ((const struct stage_plan_op *)ops)[*(const uint32_t *)a].row;
    const struct stage_op *y = ((const struct stage_plan_op *)ops)[*(const uint32_t *)b].row;
    return ASCENDING(start_ns) ?: ASCENDING(sequence) ?: strcmp(stage_op_kinds[x->type].name,
                                                                stage_op_kinds[y->type].name);
}

/* ---- waits ---- */

static void add_wait(struct plan_maker *m, uint32_t op, uint32_t before)
{
    array_add(&m->waits, op, before);
}

/* A stage's ops of a type and the next one run in turn, in the order in which they began. */
static index_array add_turns(struct plan_maker *m, uint32_t stage, enum stage_op_type type)
{
    index_array list = {0};
    for (uint32_t op = first_of(m, stage, type); op < first_of(m, stage, type + 2); op++)
        array_push(&list, op);
    array_sort_by(&list, by_start, m->plan->ops);
    for (size_t i = 1; i < list.n; i++)
        add_wait(m, list.at[i], list.at[i - 1]);
    return list;
}

/* Whether what follows, or precedes, a pass is another stage's: the model begins and ends with
 * chunks that only one side is beside of. */
static bool crosses_border(const struct plan_maker *m, uint32_t pass, bool later)
{
    const struct stage_table *table = m->table;
    const struct stage_plan_op *op = &m->plan->ops[pass];
    uint32_t chunk = op->row->chunk * table->n_stages + op->stage;
    return later ? chunk + 1 < table->n_chunks * table->n_stages : chunk > 0;
}

/* The sends, or the receives, of one direction: the k-th is of the k-th pass, also where it leaves
 * the model; or of the k-th pass that passes a border, where only those are there. */
static void add_messages(struct plan_maker *m, uint32_t stage, enum stage_op_type messages)
{
    enum stage_op_type passes = messages < STAGE_BACKWARD_SEND ? STAGE_FORWARD : STAGE_BACKWARD;
    uint32_t first_pass = first_of(m, stage, passes), end_pass = first_of(m, stage, passes + 1);
    uint32_t first = first_of(m, stage, messages), n_cross = 0;
    bool sends = stage_op_sends(messages), later = sends == (passes == STAGE_FORWARD);
    int64_t last_start_ns = INT64_MIN, first_end_ns = INT64_MAX;
    SCRATCH index_array own = {0};
    for (uint32_t pass = first_pass; pass < end_pass; pass++) {
        n_cross += crosses_border(m, pass, later);
        last_start_ns = MAX(last_start_ns, m->plan->ops[pass].row->start_ns);
        first_end_ns = MIN(first_end_ns, end_ns(m, pass));
    }
    for (uint32_t op = first; op < first_of(m, stage, messages + 1); op++) {
        if (op > first)
            add_wait(m, op, op - 1);
        if (sends ? end_ns(m, op) >= first_end_ns - ROUNDING_NS /* else it belongs to no pass */
                  : m->plan->ops[op].row->start_ns <= last_start_ns + ROUNDING_NS)
            array_push(&own, op);
    }
    bool all = own.n != n_cross; /* those, too, that leave it */
    bool skips = all && !sends && own.n + 1 == end_pass - first_pass; /* the first takes none */
    for (uint32_t i = 0, pass = first_pass + skips; i < own.n && pass < end_pass; pass++) {
        bool passes_border = crosses_border(m, pass, later);
        if (!all && !passes_border)
            continue;
        uint32_t op = own.at[i++];
        add_wait(m, sends ? op : pass, sends ? pass : op);
        m->taken[pass] = sends ? m->taken[pass] : op + 1;
        if (!sends && pass > first_pass)
            add_wait(m, op, pass - 1);
        m->crosses[op] = passes_border;
    }
}

/* The first messages backward are asked for two passes before the first backward pass. */
static void hold_first_backward(struct plan_maker *m, uint32_t stage, const index_array *passes)
{
    size_t first = 0;
    while (first < passes->n && m->plan->ops[passes->at[first]].type != STAGE_BACKWARD)
        first++;
    for (uint32_t type = STAGE_BACKWARD_SEND; type <= STAGE_BACKWARD_RECV; type++)
        if (first >= 2 && first < passes->n &&
            first_of(m, stage, type) < first_of(m, stage, type + 1))
            add_wait(m, first_of(m, stage, type), passes->at[first - 2]);
}

/* A chunk's first forward pass waits for the last gather of its parameters; the first scatter of
 * its gradients for its last backward pass. */
static void add_chunks(struct plan_maker *m, uint32_t stage, const index_array *passes,
                       bool gathers)
{
    uint32_t type = gathers ? STAGE_PARAMS_GATHER : STAGE_GRADS_SCATTER;
    uint32_t first = first_of(m, stage, type), end = first_of(m, stage, type + 1);
    SCRATCH bool *seen = mem_array(m->table->n_chunks + (size_t)1, sizeof *seen);
    for (uint32_t k = 0; k < end - first; k++) {
        uint32_t op = gathers ? end - 1 - k : first + k, pass = UINT32_MAX;
        uint16_t chunk = m->plan->ops[op].row->chunk;
        if (seen[chunk])
            continue;
        seen[chunk] = true;
        EACH (const uint32_t, at, *passes) {
            const struct stage_plan_op *other = &m->plan->ops[*at];
            if (other->row->chunk == chunk && (other->type == STAGE_FORWARD) == gathers &&
                (pass == UINT32_MAX || (!gathers && end_ns(m, *at) > end_ns(m, pass))))
                pass = *at;
        }
        if (pass != UINT32_MAX)
            add_wait(m, gathers ? pass : op, gathers ? op : pass);
    }
}

/* What follows the passes, one after the other; and garbage is collected between any two. */
static void add_end(struct plan_maker *m, uint32_t stage, index_array *passes)
{
    static const enum stage_op_type types[] = {STAGE_LAYERNORM_GRADS,
                                               STAGE_EMBEDDING_GRADS,
                                               STAGE_SEPARATE_GRADS,
                                               STAGE_GRADS_SCATTER,
                                               STAGE_CLIP,
                                               STAGE_OPTIMIZER};
    uint32_t last = UINT32_MAX, scattered = first_of(m, stage, STAGE_GRADS_SCATTER + 1);
    bool meanwhile = m->table->scatters_meanwhile;
    bool follows = meanwhile && scattered > first_of(m, stage, STAGE_GRADS_SCATTER);
    size_t n_passes = passes->n;
    EACH (const uint32_t, pass, *passes)
        if (last == UINT32_MAX || end_ns(m, *pass) > end_ns(m, last))
            last = *pass;
    for (size_t t = 0; t < sizeof types / sizeof *types; t++)
        for (uint32_t op = first_of(m, stage, types[t]);
             op < first_of(m, stage, types[t] + 1) && stage_op_is_in_turn(m->table, types[t]);
             last = op++) {
            if (last != UINT32_MAX)
                add_wait(m, op, last);
            if (follows) {
                add_wait(m, op, scattered - 1);
                follows = false;
            }
            array_push(passes, op);
        }
    for (uint32_t gc = first_of(m, stage, STAGE_GC); gc < first_of(m, stage, STAGE_GC + 1); gc++) {
        size_t place = stage_gc_place(m->plan->ops[gc].row->micro_batch, n_passes, passes->n);
        if (place > 0)
            add_wait(m, gc, passes->at[place - 1]);
        if (place >= passes->n)
            continue;
        add_wait(m, passes->at[place], gc);
        if (m->taken[passes->at[place]] > 0) /* it is asked for after that */
            add_wait(m, m->taken[passes->at[place]] - 1, gc);
    }
}

static void add_stage(struct plan_maker *m, uint32_t stage)
{
    SCRATCH index_array passes = add_turns(m, stage, STAGE_FORWARD);
    SCRATCH index_array shards = add_turns(m, stage, STAGE_PARAMS_GATHER);
    for (uint32_t type = STAGE_FORWARD_SEND; type <= STAGE_BACKWARD_RECV; type++)
        add_messages(m, stage, type);
    hold_first_backward(m, stage, &passes);
    add_chunks(m, stage, &passes, true);
    if (m->table->scatters_meanwhile)
        add_chunks(m, stage, &passes, false);
    add_end(m, stage, &passes);
}

/* The k-th message that leaves a stage is the k-th that its neighbour takes. */
static void pair_messages(struct plan_maker *m, uint32_t stage, uint32_t sends, uint32_t taker)
{
    uint32_t from = first_of(m, stage, sends), to = first_of(m, taker, sends + 1);
    while (from < first_of(m, stage, sends + 1) && to < first_of(m, taker, sends + 2)) {
        bool sent = m->crosses[from], taken = m->crosses[to];
        if (sent && taken) {
            m->plan->ops[from].peer = to;
            m->plan->ops[to].peer = from;
        }
        from += taken || !sent;
        to += sent || !taken;
    }
}

/* ---- groups, and their order ---- */

ORDER_OF_INDICES(by_group, struct stage_plan_op, ASCENDING(group));

static void make_groups(struct stage_plan *plan, struct arena *arena)
{
    SCRATCH struct map shared = {0}; /* of collectives over stages: the k-th of a type */
    for (uint32_t op = 0; op < plan->n; op++) {
        struct stage_plan_op *at = &plan->ops[op];
        enum stage_comm comm = stage_op_kinds[at->type].comm;
        uint64_t group = plan->n_groups;
        if (comm == STAGE_OF_REPLICA || comm == STAGE_OF_ALL)
            group =
                map_first(&shared, map_key((uint64_t)at->type << 32 | at->row->sequence), group);
        else if (at->peer < op)
            group = plan->ops[at->peer].group;
        at->group = (uint32_t)group;
        plan->n_groups += group == plan->n_groups;
    }
    SCRATCH uint32_t *members = sorted_indices(plan->n, plan->ops, by_group);
    plan->members = arena_copy(arena, members, plan->n, sizeof *members);
    plan->first_member = arena_array(arena, plan->n_groups + (size_t)1, sizeof(uint32_t));
    for (uint32_t i = 0; i < plan->n; i++)
        plan->first_member[plan->ops[members[i]].group + 1] = i + 1;
}

/* Puts a group into the order behind those that its members wait for. False: in a circle, or in a
 * chain that no schedule makes and no stack bears. */
static bool place_group(struct stage_plan *plan, uint32_t group, uint8_t *state, uint32_t depth)
{
    enum { ASKED = 1, PLACED, DEEPEST = 20000 };
    if (state[group] || depth > DEEPEST)
        return state[group] == PLACED;
    state[group] = ASKED;
    for (uint32_t i = plan->first_member[group]; i < plan->first_member[group + 1]; i++) {
        const struct stage_plan_op *op = &plan->ops[plan->members[i]];
        for (uint32_t k = op->first_before; k < op->first_before + op->n_before; k++)
            if (!place_group(plan, plan->ops[plan->before[k]].group, state, depth + 1))
                return false;
    }
    state[group] = PLACED;
    plan->order[plan->n_placed++] = group;
    return true;
}

ORDER(by_op, struct stage_wait, ASCENDING(op) ?: ASCENDING(before));

void stage_plan_make(const struct stage_table *table, struct stage_plan *plan, struct arena *arena)
{
    struct plan_maker m = {.table = table, .plan = plan};
    bool in_order = true;
    *plan = (struct stage_plan){.n = 0};
    list_ops(&m, arena);
    for (uint32_t s = 0; s < table->n_stages; s++)
        add_stage(&m, s);
    for (uint32_t s = 0; s < table->n_stages; s++) {
        pair_messages(&m, s, STAGE_FORWARD_SEND, (s + 1) % table->n_stages);
        pair_messages(&m, (s + 1) % table->n_stages, STAGE_BACKWARD_SEND, s);
    }
    make_groups(plan, arena);
    array_sort(&m.waits, by_op);
    plan->before = arena_array(arena, m.waits.n + 1, sizeof *plan->before);
    for (size_t i = 0; i < m.waits.n; i++) {
        struct stage_plan_op *op = &plan->ops[m.waits.at[i].op];
        op->first_before = op->n_before++ == 0 ? (uint32_t)i : op->first_before;
        plan->before[i] = m.waits.at[i].before;
    }
    array_fini(&m.waits);
    plan->order = arena_array(arena, plan->n_groups + (size_t)1, sizeof *plan->order);
    SCRATCH uint8_t *state = mem_array(plan->n_groups + (size_t)1, sizeof *state);
    for (uint32_t g = 0; g < plan->n_groups && in_order; g++)
        in_order = place_group(plan, g, state, 0);
    plan->order = in_order ? plan->order : NULL;
}

bool stage_table_fits(const struct stage_table *table, const struct stage_plan *plan,
                      uint32_t worker, uint32_t step)
{
    const struct stage_op *ops = stage_table_ops(table, worker, step);
    size_t n = stage_table_count(table, worker, step);
    uint32_t first = stage_plan_of_stage(plan, table->workers.at[worker].stage);
    bool fits = n == stage_plan_of_stage(plan, table->workers.at[worker].stage + 1) - first;
    for (size_t i = 0; i < n && fits; i++)
        fits = ops[i].type == plan->ops[first + i].type;
    return fits;
}
