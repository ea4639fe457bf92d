/* Finds what ranks exchange with parameter servers.
 *
 * A key-value store (MXNet, BytePS) has a collective for each key. In a TensorFlow session the
 * servers' graphs show it: a server sends each variable's value when it has read it; gradients come
 * back, are added up and update the variable. A pull and a push belong together if they lead to the
 * same op, the variable. */
#include "graph/graph.h"

enum { MOST_BACK = 64 }; /* ops between a variable and its pull */

struct exchanges {
    ARRAY(struct graph_exchange) all;
    ARRAY(struct graph_exchange_end) ends;
};

static bool is_servers(const struct dpro_graph *g, uint32_t op)
{
    return g->rank[op] >= g->n_ranks;
}

static bool has_bytes(const struct dpro_graph *g, uint32_t op)
{
    return g->size_bytes && g->size_bytes[op] > 0;
}

bool exchange_arrives(const struct dpro_graph *g, uint32_t op)
{
    return g->kind[op] == (is_servers(g, op) ? DPRO_OP_PUSH : DPRO_OP_PULL) && has_bytes(g, op) &&
           g->device[op] != DPRO_NO_DEVICE && g->devices[g->device[op]].kind == DPRO_DEVICE_LINK_RX;
}

/* ---- key-value stores ---- */

static void add_key(const struct dpro_graph *g, const struct graph_tensor *tensor,
                    struct exchanges *exchanges)
{
    const struct graph_collective *c = &g->collectives[tensor->collective];
    const struct graph_member *members = g->members + c->first_member;
    struct graph_exchange exchange = {.name = tensor->name,
                                      .carried = g->tensor ? g->tensor[members->transfer] : 0,
                                      .size_bytes = tensor->size_bytes,
                                      .key = c->key,
                                      .collective = tensor->collective,
                                      .n_parts = 1,
                                      .first_end = (uint32_t)exchanges->ends.n,
                                      .n_ends = c->n_members};
    for (uint32_t m = 0; m < c->n_members; m++)
        array_add(&exchanges->ends, g->rank[members[m].transfer], members[m].arrival,
                  members[m].transfer, DPRO_NO_OP);
    array_push(&exchanges->all, exchange);
}

/* Of a store each part of a tensor is pulled by itself. The first server's push comes first. */
static void find_servers(const struct dpro_graph *g, struct exchanges *exchanges)
{
    struct found {
        uint32_t server, n_parts;
    } *found = mem_array(g->names.n, sizeof *found);
    for (uint32_t op = g->n_ops; op-- > 0 && g->tensor;) {
        if (!exchange_arrives(g, op))
            continue;
        if (is_servers(g, op))
            found[g->tensor[op]].server = g->rank[op] - g->n_ranks;
        else
            found[g->tensor[op]].n_parts += g->rank[op] == 0;
    }
    EACH (struct graph_exchange, exchange, exchanges->all) {
        exchange->server = found[exchange->carried].server;
        exchange->n_parts = MAX(found[exchange->carried].n_parts, 1);
    }
    mem_free(found);
}

static void find_keys(const struct dpro_graph *g, struct exchanges *exchanges)
{
    EACH_OF (const struct graph_tensor, tensor, g->tensors, g->n_tensors) {
        if (tensor->rank != 0 || tensor->collective == UINT32_MAX || tensor->in == DPRO_NO_OP)
            continue;
        const struct graph_collective *c = &g->collectives[tensor->collective];
        if (c->n_members == g->n_ranks && c->kind == DPRO_PUSH_PULL)
            add_key(g, tensor, exchanges);
    }
    if (exchanges->all.n > 0)
        find_servers(g, exchanges);
}

/* ---- sessions ---- */

/* A pushed or pulled tensor of a variable, which is an op of its server. */
struct transfer {
    uint32_t variable, rank, op;
    uint32_t sender; /* the op that it is sent after */
    bool pushed;
};

ORDER(by_variable, struct transfer, ASCENDING(variable) ?: ASCENDING(rank) ?: ASCENDING(op));

struct session {
    const struct dpro_graph *g;
    uint32_t *first_pred, *preds; /* of each op, same iteration */
    uint8_t *variables;           /* by op, whether it is one */
    ARRAY(struct transfer) transfers;
};

static void list_preds(struct session *s)
{
    const struct dpro_graph *g = s->g;
    s->first_pred = mem_array((size_t)g->n_ops + 2, sizeof *s->first_pred);
    s->preds = mem_alloc((size_t)g->row[g->n_ops] * sizeof *s->preds);
    s->variables = mem_array(g->n_ops, 1);
    for (uint32_t e = 0; e < g->row[g->n_ops]; e++)
        s->first_pred[g->succ[e] + 2]++;
    for (uint32_t op = 0; op < g->n_ops; op++)
        s->first_pred[op + 2] += s->first_pred[op + 1];
    for (uint32_t op = 0; op < g->n_ops; op++)
        for (uint32_t e = g->row[op]; e < g->row[op + 1]; e++)
            s->preds[s->first_pred[g->succ[e] + 1]++] = op;
}

/* The next op of its own process that an op needs, but for the step's start; *p, at first
 * first_pred[op], keeps the place. */
static uint32_t next_input(const struct session *s, uint32_t op, uint32_t *p)
{
    const struct dpro_graph *g = s->g;
    while (*p < s->first_pred[op + 1]) {
        uint32_t from = s->preds[(*p)++];
        if (g->rank[from] == g->rank[op] && g->kind[from] != DPRO_OP_LAUNCH &&
            g->kind[from] != DPRO_OP_PUSH && g->kind[from] != DPRO_OP_PULL &&
            g->device[from] != DPRO_NO_DEVICE)
            return from;
    }
    return DPRO_NO_OP;
}

/* The op that a server's read begins with. */
static uint32_t root_of(const struct session *s, uint32_t op)
{
    for (uint32_t i = 0; i < MOST_BACK; i++) {
        uint32_t p = s->first_pred[op], input = next_input(s, op, &p);
        if (input == DPRO_NO_OP)
            break;
        op = input;
    }
    return op;
}

static uint32_t sender_of(const struct session *s, uint32_t op)
{
    for (uint32_t p = s->first_pred[op]; p < s->first_pred[op + 1]; p++)
        if (is_servers(s->g, s->preds[p]) != is_servers(s->g, op))
            return s->preds[p];
    return DPRO_NO_OP;
}

/* The variable that comes of what was pushed: the nearest op with one for an input. */
static uint32_t updated_by(const struct session *s, uint32_t push)
{
    const struct dpro_graph *g = s->g;
    uint32_t queue[MOST_BACK], n = 0;
    queue[n++] = push;
    for (uint32_t at = 0; at < n; at++) {
        uint32_t op = queue[at], input, p = s->first_pred[op];
        while (at > 0 && (input = next_input(s, op, &p)) != DPRO_NO_OP)
            if (s->variables[input])
                return input;
        for (uint32_t e = g->row[op]; e < g->row[op + 1] && n < MOST_BACK; e++)
            if (g->rank[g->succ[e]] == g->rank[push] && g->kind[g->succ[e]] != DPRO_OP_PUSH)
                queue[n++] = g->succ[e];
    }
    return DPRO_NO_OP;
}

/* A value, or that it has been read, which comes with values and after them. */
static void add_pull(struct session *s, uint32_t op)
{
    uint32_t sender = sender_of(s, op);
    if (sender == DPRO_NO_OP)
        return;
    struct transfer pull = {root_of(s, sender), s->g->rank[op], op, sender, false};
    if (has_bytes(s->g, op))
        s->variables[pull.variable] = 1;
    if (s->variables[pull.variable])
        array_push(&s->transfers, pull);
}

static void add_push(struct session *s, uint32_t op)
{
    uint32_t sender = has_bytes(s->g, op) ? sender_of(s, op) : DPRO_NO_OP;
    if (sender == DPRO_NO_OP)
        return;
    struct transfer push = {updated_by(s, op), s->g->rank[sender], op, sender, true};
    if (push.variable != DPRO_NO_OP)
        array_push(&s->transfers, push);
}

static void list_transfers(struct session *s)
{
    const struct dpro_graph *g = s->g;
    for (int of_values = 1; of_values >= 0; of_values--)
        for (uint32_t op = 0; op < g->n_ops; op++)
            if (g->kind[op] == DPRO_OP_PULL && !is_servers(g, op) && has_bytes(g, op) == of_values)
                add_pull(s, op);
    for (uint32_t op = 0; op < g->n_ops; op++)
        if (g->kind[op] == DPRO_OP_PUSH && is_servers(g, op))
            add_push(s, op);
    array_sort(&s->transfers, by_variable);
}

static void add_variable(const struct session *s, const struct transfer *transfers, size_t n,
                         struct exchanges *exchanges)
{
    const struct dpro_graph *g = s->g;
    uint32_t variable = transfers->variable, n_here = 0;
    struct graph_exchange exchange = {.name = g->name[variable],
                                      .collective = UINT32_MAX,
                                      .server = g->rank[variable] - g->n_ranks,
                                      .n_parts = 1,
                                      .first_end = (uint32_t)exchanges->ends.n,
                                      .n_ends = (uint32_t)n};
    for (size_t i = 0, end; i < n; i = end) {
        uint64_t bytes = 0;
        bool pushed = false, pulled = false;
        for (end = i; end < n && transfers[end].rank == transfers[i].rank; end++) {
            pushed |= transfers[end].pushed;
            pulled |= !transfers[end].pushed;
            if (!transfers[end].pushed && g->size_bytes)
                bytes += g->size_bytes[transfers[end].op];
        }
        n_here += pushed && pulled;
        exchange.size_bytes = MAX(exchange.size_bytes, bytes);
    }
    if (n_here < g->n_ranks)
        return;
    EACH_OF (const struct transfer, t, transfers, n)
        array_add(&exchanges->ends, t->rank, t->pushed ? t->sender : DPRO_NO_OP,
                  t->pushed ? DPRO_NO_OP : t->op, t->pushed ? DPRO_NO_OP : t->sender);
    array_push(&exchanges->all, exchange);
}

static void find_variables(const struct dpro_graph *g, struct exchanges *exchanges)
{
    struct session s = {.g = g};
    list_preds(&s);
    list_transfers(&s);
    const struct transfer *all = s.transfers.at;
    for (size_t i = 0, end; i < s.transfers.n; i = end) {
        end = RUN_END(k, i, s.transfers.n, all[k].variable == all[i].variable);
        add_variable(&s, all + i, end - i, exchanges);
    }
    FREE_ALL(&s.first_pred, &s.preds, &s.variables, &s.transfers);
}

/* ---- both ---- */

void exchanges_find(struct dpro_graph *g)
{
    struct exchanges found = {0};
    g->pulls_with_step = g->n_collectives == 0 && g->n_servers > 0;
    if (g->pulls_with_step)
        find_variables(g, &found);
    else
        find_keys(g, &found);
    g->n_exchanges = (uint32_t)found.all.n;
    g->exchanges = arena_copy(&g->arena, found.all.at, found.all.n, sizeof *g->exchanges);
    g->exchange_ends = arena_copy(&g->arena, found.ends.at, found.ends.n, sizeof *g->exchange_ends);
    FREE_ALL(&found.all, &found.ends);
}
