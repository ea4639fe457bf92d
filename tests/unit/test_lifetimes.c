/* Peaks of a job's memory under strategies, against a literal run of the same network: what is
 * taken and given back when modules are wrapped in torch.utils.checkpoint. */

#include "case.h"
#include "cost/memory/lifetimes.h"
#include "cost/memory/strategy_memory.h"
#include "cost/program/model_memory.h"

enum { MOST_OPS = 64, MOST_CALLS = 32, MOST_VALUES = MOST_OPS + 2, MOST_EVENTS = 4096 };

/* ---- a network ---- */

/* Reads one or two values, makes one, and may save any of them for its backward pass. */
struct op {
    uint32_t in[2], n_in; /* values */
    uint32_t call;
    uint64_t size, workspace;
    bool saves[2], saves_out;
};

struct call {
    uint32_t parent, first, last; /* ops */
};

struct network {
    struct op ops[MOST_OPS];
    uint32_t n_ops;
    struct call calls[MOST_CALLS]; /* outer ones first */
    uint32_t n_calls;
    uint64_t random;
};

/* Value 0 is the batch; value 1 + o is what op o makes. */
static uint64_t value_size(const struct network *n, uint32_t value)
{
    return value == 0 ? 64 : n->ops[value - 1].size;
}

static uint32_t draw(struct network *n, uint32_t below)
{
    n->random = map_mix(n->random + 0x9e3779b97f4a7c15u);
    return (uint32_t)(n->random % below);
}

static void add_op(struct network *n, uint32_t call, const uint32_t *scope, uint32_t n_scope)
{
    struct op *op = &n->ops[n->n_ops++];
    *op = (struct op){.call = call, .n_in = 1, .size = 1 + draw(n, 100)};
    op->in[0] = scope[n_scope - 1];
    if (n_scope > 1 && draw(n, 2)) {
        op->n_in = 2;
        op->in[1] = scope[draw(n, n_scope - 1)];
    }
    op->workspace = draw(n, 3) == 0 ? 1 + draw(n, 80) : 0;
    for (uint32_t i = 0; i < op->n_in; i++)
        op->saves[i] = draw(n, 2);
    op->saves_out = draw(n, 4) == 0;
}

/* Blocks read what blocks before them made; their parts what the block was given or made. */
static struct network make_network(uint64_t seed)
{
    struct network n = {.random = seed, .n_calls = 1};
    uint32_t outer[MOST_VALUES] = {0}, n_outer = 1, n_blocks = 1 + draw(&n, 4);
    n.calls[0] = (struct call){MEMORY_NONE, 0, 0};
    for (uint32_t b = 0; b < n_blocks; b++) {
        if (draw(&n, 3) == 0) {
            add_op(&n, 0, outer, n_outer);
            outer[n_outer++] = n.n_ops;
        }
        uint32_t block = n.n_calls++, scope[MOST_VALUES], n_scope = 0, n_parts = 1 + draw(&n, 3);
        if (n_outer > 1 && draw(&n, 3) == 0)
            scope[n_scope++] = outer[draw(&n, n_outer - 1)];
        scope[n_scope++] = outer[n_outer - 1];
        n.calls[block] = (struct call){0, n.n_ops, 0};
        for (uint32_t p = 0; p < n_parts; p++) {
            uint32_t part = draw(&n, 3) ? n.n_calls++ : block, n_ops = 1 + draw(&n, 3);
            if (part != block)
                n.calls[part] = (struct call){block, n.n_ops, n.n_ops + n_ops};
            for (uint32_t o = 0; o < n_ops; o++) {
                add_op(&n, part, scope, n_scope);
                scope[n_scope++] = n.n_ops;
            }
        }
        n.calls[block].last = n.n_ops;
        outer[n_outer++] = n.n_ops;
    }
    n.calls[0].last = n.n_ops;
    return n;
}

/* ---- running it ---- */

/* A block, while and once it was there. */
struct held {
    uint64_t size;
    uint32_t n_refs, taken, given, call, value; /* value: MEMORY_NONE: none */
    bool of_backward;
};

struct run {
    const struct network *n;
    uint32_t root[MOST_CALLS]; /* the call that is recomputed; MEMORY_NONE */
    struct held blocks[MOST_EVENTS];
    uint32_t n_blocks, n_events, events[MOST_EVENTS];
    bool gives[MOST_EVENTS];
    uint64_t now, peak;
    uint32_t value[MOST_VALUES], grad[MOST_VALUES]; /* blocks; MEMORY_NONE */
    uint32_t saved[MOST_OPS][3];                    /* two inputs, the output */
    bool is_recomputed[MOST_CALLS], is_released[MOST_CALLS];
    uint32_t forward[MOST_OPS][2], backward[MOST_OPS][2]; /* places */
};

static uint32_t take(struct run *r, uint64_t size, uint32_t call, uint32_t value, bool backward)
{
    uint32_t b = r->n_blocks++;
    assert_true(b < MOST_EVENTS && r->n_events < MOST_EVENTS);
    r->blocks[b] = (struct held){size, 1, r->n_events, MEMORY_NONE, call, value, backward};
    r->gives[r->n_events] = false;
    r->events[r->n_events++] = b;
    r->now += size;
    r->peak = r->now > r->peak ? r->now : r->peak;
    return b;
}

static void drop(struct run *r, uint32_t *block)
{
    uint32_t b = *block;
    *block = MEMORY_NONE;
    if (b == MEMORY_NONE || --r->blocks[b].n_refs > 0)
        return;
    assert_true(r->n_events < MOST_EVENTS);
    r->blocks[b].given = r->n_events;
    r->gives[r->n_events] = true;
    r->events[r->n_events++] = b;
    r->now -= r->blocks[b].size;
}

static uint32_t hold(struct run *r, uint32_t block)
{
    r->blocks[block].n_refs++;
    return block;
}

/* The last op that reads a value, of those before `end`. */
static uint32_t last_reader(const struct network *n, uint32_t value, uint32_t end)
{
    for (uint32_t o = end; o-- > 0;)
        for (uint32_t i = 0; i < n->ops[o].n_in; i++)
            if (n->ops[o].in[i] == value)
                return o;
    return MEMORY_NONE;
}

static void run_op(struct run *r, uint32_t o, uint32_t *values)
{
    const struct op *op = &r->n->ops[o];
    uint32_t workspace = MEMORY_NONE;
    if (op->workspace > 0)
        workspace = take(r, op->workspace, op->call, MEMORY_NONE, false);
    values[o + 1] = take(r, op->size, op->call, o + 1, false);
    drop(r, &workspace);
}

static void save_inputs(struct run *r, uint32_t o, const uint32_t *values)
{
    const struct op *op = &r->n->ops[o];
    for (uint32_t i = 0; i < op->n_in; i++)
        if (op->saves[i])
            r->saved[o][i] = hold(r, values[op->in[i]]);
}

/* Values that nothing up to `end` reads any more; the network's result stays. */
static void drop_read(struct run *r, uint32_t o, uint32_t *values, uint32_t first, uint32_t end)
{
    const struct op *op = &r->n->ops[o];
    for (uint32_t i = 0; i < op->n_in; i++)
        if (op->in[i] > first && last_reader(r->n, op->in[i], end) == o)
            drop(r, &values[op->in[i]]);
    if (last_reader(r->n, o + 1, end) == MEMORY_NONE && o + 1 < r->n->n_ops)
        drop(r, &values[o + 1]);
}

static void forward(struct run *r)
{
    const struct network *n = r->n;
    for (uint32_t o = 0; o < n->n_ops; o++) {
        const struct op *op = &n->ops[o];
        uint32_t root = r->root[op->call];
        r->forward[o][0] = r->n_events;
        if (root == MEMORY_NONE)
            save_inputs(r, o, r->value);
        /* what goes into a recomputed call is held by it: each reader's reference */
        for (uint32_t i = 0; i < op->n_in && root != MEMORY_NONE; i++)
            if (op->in[i] <= n->calls[root].first)
                r->saved[o][i] = hold(r, r->value[op->in[i]]);
        run_op(r, o, r->value);
        r->forward[o][1] = r->n_events;
        if (root == MEMORY_NONE && op->saves_out)
            r->saved[o][2] = hold(r, r->value[o + 1]);
        drop_read(r, o, r->value, 0, n->n_ops);
    }
}

/* Whether its backward pass asks for anything. */
static bool asks(const struct op *op)
{
    return op->saves[0] || (op->n_in > 1 && op->saves[1]) || op->saves_out;
}

/* The last op of a call that saves anything. */
static uint32_t last_saver(const struct network *n, uint32_t call)
{
    for (uint32_t o = n->calls[call].last; o-- > n->calls[call].first;)
        if (asks(&n->ops[o]))
            return o;
    return MEMORY_NONE;
}

static void recompute(struct run *r, uint32_t call)
{
    const struct network *n = r->n;
    uint32_t values[MOST_VALUES], end = n->calls[call].last, last = last_saver(n, call);
    memset(values, 0xff, sizeof values);
    for (uint32_t o = n->calls[call].first; o <= last; o++) {
        const struct op *op = &n->ops[o];
        for (uint32_t i = 0; i < op->n_in; i++) {
            if (op->in[i] <= n->calls[call].first)
                continue; /* held all along */
            r->saved[o][i] = op->saves[i] ? hold(r, values[op->in[i]]) : MEMORY_NONE;
        }
        if (o == last && !op->saves_out)
            break;
        run_op(r, o, values);
        if (op->saves_out)
            r->saved[o][2] = hold(r, values[o + 1]);
        drop_read(r, o, values, n->calls[call].first, end);
    }
    for (uint32_t v = 0; v < MOST_VALUES; v++)
        drop(r, &values[v]);
    r->is_recomputed[call] = true;
}

/* The first op of a call that saves anything, which is the last to ask for it. */
static bool is_last_to_ask(const struct network *n, uint32_t call, uint32_t op)
{
    for (uint32_t o = n->calls[call].first; o < op; o++)
        if (asks(&n->ops[o]))
            return false;
    return true;
}

static void backward(struct run *r)
{
    const struct network *n = r->n;
    r->grad[n->n_ops] = take(r, value_size(n, n->n_ops), MEMORY_NONE, MEMORY_NONE, true);
    drop(r, &r->value[n->n_ops]);
    for (uint32_t o = n->n_ops; o-- > 0;) {
        const struct op *op = &n->ops[o];
        uint32_t root = r->root[op->call];
        if (r->grad[o + 1] == MEMORY_NONE)
            r->grad[o + 1] = take(r, op->size, op->call, MEMORY_NONE, true); /* zeros */
        r->backward[o][0] = r->n_events;
        if (root != MEMORY_NONE && asks(op) && !r->is_recomputed[root])
            recompute(r, root);
        for (uint32_t i = 0; i < op->n_in; i++) {
            uint32_t grad = take(r, value_size(n, op->in[i]), op->call, MEMORY_NONE, true);
            if (r->grad[op->in[i]] == MEMORY_NONE)
                r->grad[op->in[i]] = grad;
            else
                drop(r, &grad);
        }
        r->backward[o][1] = r->n_events;
        for (uint32_t i = 0; i < 3; i++) {
            bool input = i < op->n_in && root != MEMORY_NONE && op->in[i] <= n->calls[root].first;
            if (!input)
                drop(r, &r->saved[o][i]);
        }
        /* a recomputed call lets go of what went into it */
        if (root != MEMORY_NONE && asks(op) && is_last_to_ask(n, root, o))
            for (uint32_t k = n->calls[root].first; k < n->calls[root].last; k++)
                for (uint32_t i = 0; i < n->ops[k].n_in; i++)
                    if (n->ops[k].in[i] <= n->calls[root].first)
                        drop(r, &r->saved[k][i]);
        drop(r, &r->grad[o + 1]);
    }
}

/* `recomputed` by call; NULL: none. */
static struct run *run(const struct network *n, const bool *recomputed)
{
    struct run *r = calloc(1, sizeof *r);
    assert_non_null(r);
    r->n = n;
    memset(r->value, 0xff, sizeof r->value);
    memset(r->grad, 0xff, sizeof r->grad);
    memset(r->saved, 0xff, sizeof r->saved);
    for (uint32_t c = 0; c < n->n_calls; c++) {
        uint32_t parent = n->calls[c].parent;
        r->root[c] = parent == MEMORY_NONE ? MEMORY_NONE : r->root[parent];
        if (r->root[c] == MEMORY_NONE && recomputed && recomputed[c] &&
            last_saver(n, c) != MEMORY_NONE)
            r->root[c] = c;
    }
    r->value[0] = take(r, value_size(n, 0), MEMORY_NONE, 0, false);
    forward(r);
    backward(r);
    return r;
}

/* ---- what the graph would know of it ---- */

struct uses {
    struct graph_use list[MOST_EVENTS];
    uint32_t blocks[MOST_EVENTS], n;
};

static void use(struct uses *uses, uint32_t block, uint32_t call, const uint32_t places[2],
                bool backward)
{
    for (uint32_t i = 0; i < uses->n; i++) {
        struct graph_use *u = &uses->list[i];
        if (uses->blocks[i] == block && u->call == call && u->backward == backward) {
            u->first = places[0] < u->first ? places[0] : u->first;
            u->last = places[1] > u->last ? places[1] : u->last;
            return;
        }
    }
    assert_true(uses->n < MOST_EVENTS);
    uses->blocks[uses->n] = block;
    uses->list[uses->n++] = (struct graph_use){call, places[0], places[1], backward};
}

struct known {
    struct dpro_graph graph;
    struct graph_memory memory;
    struct graph_rank rank;
    struct model_program program;
    struct model_rank model_rank;
    struct dpro_model model;
    struct graph_block blocks[MOST_EVENTS];
    struct graph_moment moments[MOST_EVENTS];
    struct graph_use uses[MOST_EVENTS];
    struct graph_call calls[MOST_CALLS + MOST_OPS];
    uint32_t number[MOST_CALLS + MOST_OPS]; /* of each call, and op, in calls */
    bool recomputed[MOST_CALLS + MOST_OPS];
};

/* Calls and ops in the order in which they begin; `ops`: each op is a call of its own. */
static void know_calls(struct known *k, const struct run *r, bool ops)
{
    const struct network *n = r->n;
    uint32_t c = 0;
    for (uint32_t o = 0; o < n->n_ops; o++) {
        for (; c < n->n_calls && n->calls[c].first <= o; c++) {
            const struct call *call = &n->calls[c];
            uint32_t last = call->last - 1;
            k->number[c] = k->memory.n_calls;
            k->calls[k->memory.n_calls++] = (struct graph_call){
                .parent = call->parent == MEMORY_NONE ? MEMORY_NONE : k->number[call->parent],
                .forward_first = r->forward[call->first][0],
                .forward_last = r->forward[last][1],
                .backward_first = r->backward[last][0],
                .backward_last = r->backward[call->first][1],
                .first_backward_op = DPRO_NO_OP};
        }
        k->number[MOST_CALLS + o] = k->number[n->ops[o].call];
        if (!ops)
            continue;
        k->number[MOST_CALLS + o] = k->memory.n_calls;
        k->calls[k->memory.n_calls++] = (struct graph_call){.parent = k->number[n->ops[o].call],
                                                            .forward_first = r->forward[o][0],
                                                            .forward_last = r->forward[o][1],
                                                            .backward_first = r->backward[o][0],
                                                            .backward_last = r->backward[o][1],
                                                            .first_backward_op = DPRO_NO_OP};
    }
    for (uint32_t i = 0; i < k->memory.n_calls; i++) {
        char name[16];
        int length = snprintf(name, sizeof name, "m%u", i);
        k->calls[i].module = strtab_add(&k->graph.names, name, (size_t)length);
    }
}

static void know_uses(struct known *k, const struct run *r)
{
    const struct network *n = r->n;
    struct uses *uses = calloc(1, sizeof *uses);
    uint32_t of_value[MOST_VALUES];
    assert_non_null(uses);
    for (uint32_t b = 0; b < r->n_blocks; b++)
        if (r->blocks[b].value != MEMORY_NONE)
            of_value[r->blocks[b].value] = b;
    for (uint32_t o = 0; o < n->n_ops; o++) {
        const struct op *op = &n->ops[o];
        uint32_t call = k->number[MOST_CALLS + o];
        for (uint32_t i = 0; i < op->n_in; i++)
            use(uses, of_value[op->in[i]], call, r->forward[o], false);
        use(uses, of_value[o + 1], call,
            (uint32_t[]){r->blocks[of_value[o + 1]].taken + 1, r->forward[o][1]}, false);
        for (uint32_t i = 0; i < op->n_in; i++)
            if (op->saves[i])
                use(uses, of_value[op->in[i]], call, r->backward[o], true);
        if (op->saves_out)
            use(uses, of_value[o + 1], call, r->backward[o], true);
        for (uint32_t b = 0; b < r->n_blocks; b++)
            if (r->blocks[b].of_backward && r->blocks[b].taken < r->backward[o][1] &&
                r->blocks[b].given >= r->backward[o][1])
                use(uses, b, call, r->backward[o], true); /* gradients that come and go */
    }
    for (uint32_t b = 0; b < r->n_blocks; b++) {
        k->blocks[b].first_use = k->memory.n_uses;
        for (uint32_t i = 0; i < uses->n; i++)
            if (uses->blocks[i] == b)
                k->uses[k->memory.n_uses++] = uses->list[i];
        k->blocks[b].n_uses = k->memory.n_uses - k->blocks[b].first_use;
    }
    free(uses);
}

/* The op in whose pass a block was taken, as a call. */
static uint32_t maker_of(const struct known *k, const struct run *r, uint32_t block)
{
    const struct held *b = &r->blocks[block];
    for (uint32_t o = 0; o < r->n->n_ops; o++) {
        const uint32_t *places = b->of_backward ? r->backward[o] : r->forward[o];
        if (places[0] <= b->taken && b->taken < places[1])
            return k->number[MOST_CALLS + o];
    }
    return MEMORY_NONE;
}

static struct known *know(const struct run *r, bool ops)
{
    struct known *k = calloc(1, sizeof *k);
    assert_non_null(k);
    strtab_add(&k->graph.names, "", 0);
    know_calls(k, r, ops);
    for (uint32_t b = 0; b < r->n_blocks; b++) {
        const struct held *from = &r->blocks[b];
        k->blocks[b] = (struct graph_block){.size_bytes = from->size,
                                            .taken = from->taken,
                                            .given = from->given,
                                            .category = DPRO_MEMORY_TEMPORARY,
                                            .call = maker_of(k, r, b)};
    }
    for (uint32_t i = 0; i < r->n_events; i++)
        k->moments[i] =
            (struct graph_moment){.op = DPRO_NO_OP, .gives = r->gives[i], .block = r->events[i]};
    know_uses(k, r);
    k->memory.blocks = k->blocks;
    k->memory.moments = k->moments;
    k->memory.uses = k->uses;
    k->memory.calls = k->calls;
    k->memory.n_blocks = r->n_blocks;
    k->memory.n_moments = r->n_events;
    k->memory.gpu = true; /* what keeps its random state elsewhere */
    k->graph.memory = &k->memory;
    k->graph.ranks = &k->rank;
    k->graph.n_ranks = 1;
    k->model.programs = &k->program;
    k->model.n_programs = k->model.n_ranks = 1;
    k->model.ranks = &k->model_rank;
    struct measured_replay replay = {.graph = &k->graph};
    model_memory_learn(&replay, &k->model);
    return k;
}

static void forget(struct known *k)
{
    strtab_fini(&k->graph.names);
    arena_fini(&k->model.arena);
    free(k);
}

/* What a recomputed call made, its own backward pass does not ask for, and others have to the end
 * of the backward pass. */
TEST(what_only_others_use_is_not_made_anew)
{
    enum { MADE = 2, CALL_END = 4, AGAIN = 10, GIVEN = 20 };
    uint32_t root[] = {0};
    struct memory_call call = {
        .parent = MODEL_NONE, .last = CALL_END, .again = AGAIN, .stop = CALL_END};
    struct graph_block block = {.category = DPRO_MEMORY_ACTIVATION, .taken = MADE, .given = GIVEN};
    block.n_uses = 1;
    for (int backward = 0; backward <= 1; backward++) {
        struct graph_use use = {MEMORY_NONE, 5, 6, backward != 0};
        struct model_memory m = {.blocks = &block, .calls = &call, .uses = &use};
        m.n_blocks = m.n_calls = m.n_uses = 1;
        struct recomputed_calls calls = {.root = root, .any = true};
        struct lifetimes lives = lifetimes_of(&m, &calls, 0);
        assert_int_equal(lives.call, 0);
        assert_int_equal(lives.first.to, GIVEN + 1);
        assert_int_equal(lives.second.from, 0);
    }
}

/* ---- tests ---- */

TEST(nothing_changed_is_what_was_recorded)
{
    for (uint64_t seed = 0; seed < 300; seed++) {
        struct network n = make_network(seed);
        struct run *r = run(&n, NULL);
        struct known *k = know(r, seed % 2);
        assert_true(memory_is_known(&k->model));
        assert_int_equal(memory_peak_bytes(&k->model, &k->model.baseline), r->peak);
        struct dpro_memory_peak peak = memory_peak(&k->model, &k->model.baseline);
        assert_int_equal(peak.bytes, r->peak);
        assert_int_equal(peak.by_category[DPRO_MEMORY_TEMPORARY], r->peak);
        forget(k);
        free(r);
    }
}

/* Which calls a number chooses, of the blocks or of all. */
static void choose(struct network *n, bool *calls)
{
    for (uint32_t c = 1; c < n->n_calls; c++)
        calls[c] = draw(n, n->calls[c].parent == 0 ? 2 : 4) == 0;
}

TEST(recomputed_calls_hold_what_they_do_in_a_literal_run)
{
    for (uint64_t seed = 0; seed < 3000; seed++) {
        struct network n = make_network(seed);
        bool calls[MOST_CALLS] = {false};
        struct run *as_is = run(&n, NULL);
        struct known *k = know(as_is, true);
        struct dpro_strategy strategy = {.recomputed = k->recomputed};
        choose(&n, calls);
        for (uint32_t c = 0; c < n.n_calls; c++)
            k->recomputed[k->number[c]] = calls[c];
        struct run *r = run(&n, calls);
        struct dpro_memory_peak peak = memory_peak(&k->model, &strategy);
        uint64_t sum = 0;
        for (int c = 0; c < DPRO_N_MEMORY_CATEGORIES; c++)
            sum += peak.by_category[c];
        if (peak.bytes != r->peak)
            print_message("seed %u: %u, not %u\n", (unsigned)seed, (unsigned)peak.bytes,
                          (unsigned)r->peak);
        assert_int_equal(peak.bytes, r->peak);
        assert_int_equal(sum, peak.bytes);
        forget(k);
        free(r);
        free(as_is);
    }
}
