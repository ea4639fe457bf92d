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
    struct arena scratch;               /* what follows */
    const struct stage_op **rows;       /* by op of the plan: what it was read off */
    uint32_t (*first)[N_STAGE_OPS + 1]; /* by stage: the first op of each type */
    bool *crosses;                      /* by op: messages that pass a border */
    ARRAY(struct stage_wait) waits;
};

/* ---- what it is read off ---- */

static uint32_t count_ops(const struct plan_maker *m, uint32_t stage, enum stage_op_type type)
{
    return m->first[stage][type + 1] - m->first[stage][type];
}

static int64_t end_ns(const struct plan_maker *m, uint32_t op)
{
    return m->rows[op]->start_ns + m->rows[op]->dur_ns;
}

static void list_ops(struct plan_maker *m, struct arena *arena)
{
    const struct stage_table *table = m->table;
    struct stage_plan *plan = m->plan;
    size_t room = 0;
    for (uint32_t s = 0; s < table->n_stages; s++)
        if (table->worker_at[s] != UINT32_MAX)
            room += stage_table_count(table, table->worker_at[s], 0);
    plan->ops = arena_array(arena, room + 1, sizeof *plan->ops);
    plan->first_of_stage = arena_array(arena, table->n_stages + (size_t)1, sizeof(uint32_t));
    m->rows = arena_array(&m->scratch, room + 1, sizeof *m->rows);
    m->first = arena_array(&m->scratch, table->n_stages, sizeof *m->first);
    m->crosses = arena_array(&m->scratch, room + 1, sizeof *m->crosses);
    for (uint32_t s = 0; s < table->n_stages; s++) {
        uint32_t worker = table->worker_at[s];
        size_t n = worker == UINT32_MAX ? 0 : stage_table_count(table, worker, 0);
        plan->first_of_stage[s] = plan->n;
        for (size_t i = 0; i < n; i++) {
            const struct stage_op *row = stage_table_ops(table, worker, 0) + i;
            m->rows[plan->n] = row;
            m->first[s][row->type + 1]++;
            plan->ops[plan->n++] = (struct stage_plan_op){
                .stage = s, .sequence = row->sequence, .type = row->type, .peer = UINT32_MAX};
        }
        m->first[s][0] = plan->first_of_stage[s];
        for (int type = 0; type < N_STAGE_OPS; type++)
            m->first[s][type + 1] += m->first[s][type];
    }
    plan->first_of_stage[table->n_stages] = plan->n;
}

static int by_start(const void *a, const void *b, void *rows)
{
    const struct stage_op *x = ((const struct stage_op **)rows)[*(const uint32_t *)a];
    const struct stage_op *y = ((const struct stage_op **)rows)[*(const uint32_t *)b];
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
    for (uint32_t op = m->first[stage][type]; op < m->first[stage][type + 2]; op++)
        array_push(&list, op);
    array_sort_by(&list, by_start, m->rows);
    for (size_t i = 1; i < list.n; i++)
        add_wait(m, list.at[i], list.at[i - 1]);
    return list;
}

/* Whether what follows, or precedes, a pass is another stage's: the model begins and ends with
 * chunks that only one side is beside of. */
static bool crosses_border(const struct plan_maker *m, uint32_t pass, bool later)
{
    const struct stage_table *table = m->table;
    uint32_t chunk = m->rows[pass]->chunk * table->n_stages + m->plan->ops[pass].stage;
    return later ? chunk + 1 < table->n_chunks * table->n_stages : chunk > 0;
}

/* The sends, or the receives, of one direction: the k-th is of the k-th pass, also where it leaves
 * the model; or of the k-th pass that passes a border, where only those are there. */
static void add_messages(struct plan_maker *m, uint32_t stage, enum stage_op_type messages)
{
    enum stage_op_type passes = messages < STAGE_BACKWARD_SEND ? STAGE_FORWARD : STAGE_BACKWARD;
    bool sends = stage_op_sends(messages);
    uint32_t first_pass = m->first[stage][passes], n_passes = count_ops(m, stage, passes),
             n_cross = 0;
    bool later = sends == (passes == STAGE_FORWARD);
    SCRATCH index_array own = {0};
    int64_t last_start_ns = INT64_MIN, first_end_ns = INT64_MAX;
    for (uint32_t pass = first_pass; pass < first_pass + n_passes; pass++) {
        n_cross += crosses_border(m, pass, later);
        last_start_ns = MAX(last_start_ns, m->rows[pass]->start_ns);
        first_end_ns = MIN(first_end_ns, end_ns(m, pass));
    }
    for (uint32_t op = m->first[stage][messages]; op < m->first[stage][messages + 1]; op++) {
        if (op > m->first[stage][messages])
            add_wait(m, op, op - 1);
        if (sends ? end_ns(m, op) >= first_end_ns - ROUNDING_NS /* else it belongs to no pass */
                  : m->rows[op]->start_ns <= last_start_ns + ROUNDING_NS)
            array_push(&own, op);
    }
    bool all = own.n != n_cross; /* those, too, that leave it */
    uint32_t pass =
        first_pass + (all && !sends && own.n + 1 == n_passes); /* the first takes none */
    for (size_t i = 0; i < own.n && pass < first_pass + n_passes; pass++) {
        bool passes_border = crosses_border(m, pass, later);
        if (!all && !passes_border)
            continue;
        uint32_t op = own.at[i++];
        if (sends) {
            add_wait(m, op, pass);
        } else {
            add_wait(m, pass, op);
            if (pass > first_pass)
                add_wait(m, op, pass - 1);
        }
        m->crosses[op] = passes_border;
    }
}

/* The first messages backward are asked for two passes before the first backward pass. */
static void hold_first_backward(struct plan_maker *m, uint32_t stage, const index_array *passes)
{
    size_t first = 0;
    while (first < passes->n && m->plan->ops[passes->at[first]].type != STAGE_BACKWARD)
        first++;
    if (first < 2 || first == passes->n)
        return;
    for (enum stage_op_type type = STAGE_BACKWARD_SEND; type <= STAGE_BACKWARD_RECV; type++)
        if (count_ops(m, stage, type) > 0)
            add_wait(m, m->first[stage][type], passes->at[first - 2]);
}

/* Of a chunk's forward or backward passes. */
static uint64_t chunk_key(uint32_t chunk, enum stage_op_type type)
{
    return chunk * UINT64_C(2) + type + 1;
}

/* A chunk's first forward pass waits for the last gather of its parameters; the first scatter of
 * its gradients for its last backward pass, where that is done meanwhile. */
static void add_chunks(struct plan_maker *m, uint32_t stage, const index_array *passes,
                       bool meanwhile)
{
    const uint32_t *first = m->first[stage];
    SCRATCH struct map outer = {0}, seen = {0};
    uint64_t pass;
    for (size_t i = 0; i < passes->n; i++) {
        enum stage_op_type type = m->rows[passes->at[i]]->type;
        uint64_t key = chunk_key(m->rows[passes->at[i]]->chunk, type);
        pass = map_first(&outer, key, passes->at[i]);
        if (type == STAGE_BACKWARD && end_ns(m, passes->at[i]) > end_ns(m, (uint32_t)pass))
            map_set(&outer, key, passes->at[i]);
    }
    for (uint32_t op = first[STAGE_PARAMS_GATHER + 1]; op-- > first[STAGE_PARAMS_GATHER];) {
        uint64_t key = chunk_key(m->rows[op]->chunk, STAGE_FORWARD);
        if (map_insert(&seen, key, 1) && map_get(&outer, key, &pass))
            add_wait(m, (uint32_t)pass, op);
    }
    for (uint32_t op = first[STAGE_GRADS_SCATTER]; meanwhile && op < first[STAGE_GRADS_SCATTER + 1];
         op++) {
        uint64_t key = chunk_key(m->rows[op]->chunk, STAGE_BACKWARD);
        if (map_insert(&seen, key, 1) && map_get(&outer, key, &pass))
            add_wait(m, op, (uint32_t)pass);
    }
}

/* What follows the passes, one after the other. */
static void add_end(struct plan_maker *m, uint32_t stage, const index_array *passes, bool meanwhile)
{
    static const enum stage_op_type types[] = {STAGE_GC,
                                               STAGE_LAYERNORM_GRADS,
                                               STAGE_EMBEDDING_GRADS,
                                               STAGE_SEPARATE_GRADS,
                                               STAGE_GRADS_SCATTER,
                                               STAGE_CLIP,
                                               STAGE_OPTIMIZER};
    const uint32_t *first = m->first[stage];
    uint32_t last = UINT32_MAX;
    for (size_t i = 0; i < passes->n; i++)
        if (last == UINT32_MAX || end_ns(m, passes->at[i]) > end_ns(m, last))
            last = passes->at[i];
    bool scattered = meanwhile && count_ops(m, stage, STAGE_GRADS_SCATTER) > 0;
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        if (types[t] == STAGE_GRADS_SCATTER && meanwhile)
            continue;
        for (uint32_t op = first[types[t]]; op < first[types[t] + 1]; op++) {
            if (last != UINT32_MAX)
                add_wait(m, op, last);
            if (scattered && types[t] != STAGE_GC) {
                add_wait(m, op, first[STAGE_GRADS_SCATTER + 1] - 1);
                scattered = false;
            }
            last = op;
        }
    }
}

static void add_stage(struct plan_maker *m, uint32_t stage, bool meanwhile)
{
    SCRATCH index_array passes = add_turns(m, stage, STAGE_FORWARD);
    SCRATCH index_array shards = add_turns(m, stage, STAGE_PARAMS_GATHER);
    for (enum stage_op_type type = STAGE_FORWARD_SEND; type <= STAGE_BACKWARD_RECV; type++)
        add_messages(m, stage, type);
    hold_first_backward(m, stage, &passes);
    add_chunks(m, stage, &passes, meanwhile);
    add_end(m, stage, &passes, meanwhile);
}

/* The k-th message that leaves a stage is the k-th that its neighbour takes. */
static void pair_messages(struct plan_maker *m, uint32_t stage, enum stage_op_type sends,
                          uint32_t taker, enum stage_op_type receives)
{
    uint32_t from = m->first[stage][sends], to = m->first[taker][receives];
    while (from < m->first[stage][sends + 1] && to < m->first[taker][receives + 1]) {
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

static void number_groups(struct stage_plan *plan)
{
    SCRATCH struct map shared = {0}; /* of collectives over stages: the k-th of a type */
    for (uint32_t op = 0; op < plan->n; op++) {
        struct stage_plan_op *at = &plan->ops[op];
        enum stage_comm comm = stage_op_kinds[at->type].comm;
        uint64_t group = plan->n_groups;
        if (comm == STAGE_OF_REPLICA || comm == STAGE_OF_ALL)
            group = map_first(&shared, map_key((uint64_t)at->type << 32 | at->sequence), group);
        else if (at->peer < op)
            group = plan->ops[at->peer].group;
        at->group = (uint32_t)group;
        plan->n_groups += group == plan->n_groups;
    }
}

/* Lists numbers of [n] by a key below `n_keys`: those of key k from first[k] on. */
static uint32_t *list_by_key(struct arena *arena, const uint32_t *keys, uint32_t stride, size_t n,
                             uint32_t n_keys, uint32_t **first)
{
    uint32_t *list = arena_array(arena, n + 1, sizeof *list);
    uint32_t *begin = arena_array(arena, n_keys + (size_t)2, sizeof *begin);
    for (size_t i = 0; i < n; i++)
        begin[keys[i * stride] + 2]++;
    for (uint32_t k = 0; k < n_keys; k++)
        begin[k + 1] += begin[k];
    for (size_t i = 0; i < n; i++)
        list[begin[keys[i * stride] + 1]++] = (uint32_t)i;
    *first = begin;
    return list;
}

static void order_groups(struct plan_maker *m, struct arena *arena)
{
    struct stage_plan *plan = m->plan;
    uint32_t *pending = arena_array(&m->scratch, plan->n_groups + (size_t)1, sizeof *pending);
    uint32_t *order = arena_array(arena, plan->n_groups + (size_t)1, sizeof *order), n = 0;
    const uint32_t *keys = m->waits.n > 0 ? &m->waits.at->before : NULL; /* nothing waits */
    uint32_t *first, *after = list_by_key(&m->scratch, keys, 2, m->waits.n, plan->n, &first);
    EACH (const struct stage_wait, wait, m->waits)
        pending[plan->ops[wait->op].group]++;
    for (uint32_t g = 0; g < plan->n_groups; g++)
        if (pending[g] == 0)
            order[n++] = g;
    for (uint32_t done = 0; done < n; done++)
        for (uint32_t i = plan->first_member[order[done]]; i < plan->first_member[order[done] + 1];
             i++)
            for (uint32_t k = first[plan->members[i]]; k < first[plan->members[i] + 1]; k++) {
                uint32_t group = plan->ops[m->waits.at[after[k]].op].group;
                if (--pending[group] == 0)
                    order[n++] = group;
            }
    plan->order = n == plan->n_groups ? order : NULL;
}

ORDER(by_op, struct stage_wait, ASCENDING(op) ?: ASCENDING(before));

void stage_plan_make(const struct stage_table *table, struct stage_plan *plan, struct arena *arena)
{
    struct plan_maker m = {.table = table, .plan = plan};
    bool meanwhile = false;
    *plan = (struct stage_plan){.n = 0};
    EACH (const struct stage_op, op, table->ops)
        meanwhile |= op->type == STAGE_SEPARATE_GRADS;
    list_ops(&m, arena);
    for (uint32_t s = 0; s < table->n_stages; s++)
        add_stage(&m, s, meanwhile);
    for (uint32_t s = 0; s < table->n_stages; s++) {
        uint32_t next = (s + 1) % table->n_stages;
        pair_messages(&m, s, STAGE_FORWARD_SEND, next, STAGE_FORWARD_RECV);
        pair_messages(&m, next, STAGE_BACKWARD_SEND, s, STAGE_BACKWARD_RECV);
    }
    number_groups(plan);
    array_sort(&m.waits, by_op);
    plan->before = arena_array(arena, m.waits.n + 1, sizeof *plan->before);
    for (size_t i = 0; i < m.waits.n; i++) {
        struct stage_plan_op *op = &plan->ops[m.waits.at[i].op];
        op->first_before = op->n_before++ == 0 ? (uint32_t)i : op->first_before;
        plan->before[i] = m.waits.at[i].before;
    }
    plan->members = list_by_key(arena, &plan->ops->group, sizeof *plan->ops / 4, plan->n,
                                plan->n_groups, &plan->first_member);
    order_groups(&m, arena);
    array_fini(&m.waits);
    arena_fini(&m.scratch);
}

bool stage_table_fits(const struct stage_table *table, const struct stage_plan *plan,
                      uint32_t worker, uint32_t step)
{
    const struct stage_op *ops = stage_table_ops(table, worker, step);
    size_t n = stage_table_count(table, worker, step);
    uint32_t stage = table->workers.at[worker].stage;
    const struct stage_plan_op *first = plan->ops + plan->first_of_stage[stage];
    if (n != plan->first_of_stage[stage + 1] - plan->first_of_stage[stage])
        return false;
    for (size_t i = 0; i < n; i++)
        if (ops[i].type != first[i].type || ops[i].sequence != first[i].sequence)
            return false;
    return true;
}
