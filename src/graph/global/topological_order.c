/* The edges of the global graph, and an order of its ops that keeps them.
 *
 * Hard edges follow time on each device and from calls to devices, and close no cycle. Soft edges
 * were read off the timeline. Where clocks contradict each other they may close a cycle; then they
 * are dropped. */
#include <string.h>

#include "base/sort.h"
#include "graph/global/assembly.h"

/* By their ends, then their starts; the hard one of two comes first. */
enum sort_key { BY_KIND, BY_START, BY_END, N_SORT_KEYS };

static void collect_edges(struct assembly *a)
{
    struct join *join = a->join;
    for (uint32_t r = 0; r < join->n_ranks; r++) {
        EACH (const struct local_edge, local, join->ranks[r].edges) {
            struct edge edge = {a->first_op[r] + local->from, a->first_op[r] + local->to,
                                local->next, local->soft};
            array_push(&a->edges, edge);
        }
        array_fini(&join->ranks[r].edges); /* taken over */
    }
    EACH (const struct cross_edge, edge, join->cross)
        assembly_add_edge(a, a->first_op[edge->from_rank] + edge->from,
                          a->first_op[edge->to_rank] + edge->to, true);
    array_fini(&join->cross);
    for (size_t j = 0; j < join->joined.n; j++) {
        const struct joined *joined = &join->joined.at[j];
        const struct member *members = joined_members(join, joined);
        for (uint32_t m = 0; m < joined->n_members && a->barriers[j] != DPRO_NO_OP; m++) {
            const struct local_collective *c = JOIN_PART(join, &members[m]);
            uint32_t first = a->first_op[members[m].rank];
            assembly_add_edge(a, first + c->arrival, a->barriers[j], true);
            assembly_add_edge(a, a->barriers[j], first + c->transfer, true);
        }
    }
    assembly_message_edges(a);
    assembly_server_edges(a);
}

static uint32_t sort_key(const struct edge *edge, enum sort_key key)
{
    return key == BY_END     ? edge->to
           : key == BY_START ? edge->from
                             : (uint32_t)edge->next * 2 + edge->soft;
}

/* Counts for each key, from the least one that matters to the one that matters most. */
static void sort_edges(struct assembly *a)
{
    size_t n = a->edges.n, n_keys = a->n_ops + (size_t)4;
    struct edge *from = a->edges.at, *to = mem_alloc(n * sizeof *to);
    uint32_t *place = mem_alloc((n_keys + 1) * sizeof *place);
    for (enum sort_key key = BY_KIND; key < N_SORT_KEYS; key++) {
        memset(place, 0, (n_keys + 1) * sizeof *place);
        for (size_t e = 0; e < n; e++)
            place[sort_key(&from[e], key) + 1]++;
        for (size_t k = 0; k < n_keys; k++)
            place[k + 1] += place[k];
        for (size_t e = 0; e < n; e++)
            to[place[sort_key(&from[e], key)]++] = from[e];
        struct edge *sorted = to;
        to = from;
        from = sorted;
    }
    mem_free(place);
    mem_free(to);
    a->edges.at = from;
    a->edges.n = 0;
    a->edges.cap = n;
    for (size_t e = 0; e < n; e++) {
        const struct edge *last = a->edges.n > 0 ? &from[a->edges.n - 1] : NULL;
        if (!last || last->from != from[e].from || last->to != from[e].to ||
            last->next != from[e].next)
            from[a->edges.n++] = from[e];
    }
}

struct sorter {
    uint32_t *pending; /* predecessors not yet ordered */
    uint32_t *row, *succ, *fill;
};

/* Kahn's algorithm, with a stack; returns how many ops were ordered. Those that were not lie on or
 * behind a cycle; their `pending` is not 0. */
static uint32_t order_ops(struct assembly *a, struct sorter *sorter)
{
    memset(sorter->pending, 0, a->n_ops * sizeof *sorter->pending);
    memset(sorter->row, 0, (a->n_ops + 1) * sizeof *sorter->row);
    for (size_t e = 0; e < a->edges.n; e++)
        if (!a->edges.at[e].next) {
            sorter->pending[a->edges.at[e].to]++;
            sorter->row[a->edges.at[e].from + 1]++;
        }
    for (uint32_t o = 0; o < a->n_ops; o++)
        sorter->row[o + 1] += sorter->row[o];
    memcpy(sorter->fill, sorter->row, a->n_ops * sizeof *sorter->fill);
    for (size_t e = 0; e < a->edges.n; e++)
        if (!a->edges.at[e].next)
            sorter->succ[sorter->fill[a->edges.at[e].from]++] = a->edges.at[e].to;
    /* what may come next stands from `top` on: last in, first out, so that neighbours are of a rank
     */
    uint32_t n = 0, top = a->n_ops;
    for (uint32_t o = a->n_ops; o-- > 0;)
        if (sorter->pending[o] == 0)
            a->order[--top] = o;
    while (top < a->n_ops) {
        uint32_t op = a->order[n++] = a->order[top++];
        for (uint32_t e = sorter->row[op + 1]; e-- > sorter->row[op];)
            if (--sorter->pending[sorter->succ[e]] == 0)
                a->order[--top] = sorter->succ[e];
    }
    return n;
}

/* Tarjan's algorithm without recursion, over what could not be ordered: ops of equal component lie
 * on cycles through each other. `fill` is where each op's next successor stands. */
static void find_components(const struct assembly *a, struct sorter *sorter, uint32_t *component)
{
    uint32_t *number = mem_array(a->n_ops, sizeof *number); /* 0: not seen */
    uint32_t *open = mem_alloc(a->n_ops * sizeof *open);
    uint32_t *path = mem_alloc(a->n_ops * sizeof *path);
    uint32_t n_seen = 0, n_open = 0, n_path = 0;
    for (uint32_t root = 0; root < a->n_ops; root++) {
        if (!sorter->pending[root] || number[root])
            continue;
        path[n_path++] = root;
        while (n_path > 0) {
            uint32_t op = path[n_path - 1];
            if (!number[op]) {
                number[op] = component[op] = ++n_seen;
                open[n_open++] = op;
                sorter->fill[op] = sorter->row[op];
            }
            if (sorter->fill[op] < sorter->row[op + 1]) {
                uint32_t next = sorter->succ[sorter->fill[op]++];
                if (!number[next])
                    path[n_path++] = next;
                else if (number[next] != UINT32_MAX)
                    component[op] = MIN(component[op], component[next]);
                continue;
            }
            n_path--;
            if (n_path > 0)
                component[path[n_path - 1]] = MIN(component[path[n_path - 1]], component[op]);
            if (component[op] != number[op])
                continue;
            for (uint32_t member = NO_ID; member != op;) { /* a component is complete */
                member = open[--n_open];
                component[member] = op;
                number[member] = UINT32_MAX;
            }
        }
    }
    mem_free(number);
    mem_free(open);
    mem_free(path);
}

/* A send may be over before its receiver comes, when the message fits the transport's buffers. */
static bool is_wait_of_send(const struct assembly *a, const struct edge *edge)
{
    uint32_t r = assembly_rank_of(a, edge->to), from = assembly_rank_of(a, edge->from);
    const struct rank_build *rank = &a->join->ranks[r];
    uint32_t local = edge->to - a->first_op[r];
    return local < rank->ops.n && rank->ops.at[local].kind == DPRO_OP_SEND &&
           edge->from - a->first_op[from] >= a->join->ranks[from].ops.n;
}

/* Drops what is soft and closes a cycle: if that is enough, only that sends wait for receivers. */
static void break_cycles(struct assembly *a, struct sorter *sorter)
{
    uint32_t *component = mem_alloc(a->n_ops * sizeof *component);
    bool sends = false;
    size_t n = 0;
    find_components(a, sorter, component);
    for (int pass = 0; pass < 2; pass++)
        EACH (const struct edge, edge, a->edges) {
            bool closes = !edge->next && edge->soft && sorter->pending[edge->from] &&
                          sorter->pending[edge->to] && component[edge->from] == component[edge->to];
            bool send = closes && is_wait_of_send(a, edge);
            if (pass == 0) {
                sends |= send;
            } else if (closes && (send || !sends)) {
                a->n_dropped += !send;
            } else {
                a->edges.at[n++] = *edge;
            }
        }
    a->edges.n = n;
    mem_free(component);
}

static void order_all(struct assembly *a)
{
    struct arena scratch = {0};
    struct sorter sorter = {.pending = arena_alloc(&scratch, a->n_ops * sizeof *sorter.pending),
                            .row =
                                arena_alloc(&scratch, (a->n_ops + (size_t)1) * sizeof *sorter.row),
                            .succ = arena_alloc(&scratch, a->edges.n * sizeof *sorter.succ),
                            .fill = arena_alloc(&scratch, a->n_ops * sizeof *sorter.fill)};
    a->order = arena_alloc(&a->scratch, a->n_ops * sizeof *a->order);
    /* hard edges follow time on each device and from calls to devices: they close no cycle */
    while (order_ops(a, &sorter) < a->n_ops)
        break_cycles(a, &sorter);
    arena_fini(&scratch);
}

/* An op that nothing holds back would start before its iteration did. */
static void tie_loose_ops(struct assembly *a)
{
    bool *waits = mem_array(a->n_ops, sizeof *waits);
    for (size_t e = 0; e < a->edges.n; e++)
        waits[a->edges.at[e].to] = true;
    for (uint32_t op = 0; op < a->n_ops; op++) {
        uint32_t r = assembly_rank_of(a, op);
        if (!waits[op] && a->join->ranks[r].boundary != NO_ID)
            array_add(&a->edges, a->first_op[r] + a->join->ranks[r].boundary, op, true, false);
    }
    mem_free(waits);
}

void assembly_order(struct assembly *a)
{
    collect_edges(a);
    sort_edges(a);
    order_all(a);
    tie_loose_ops(a);
    sort_edges(a);
}
