/* graph/global/topological_order.c: the edges of the global graph, and an order of its ops that
 * keeps them.
 *
 * Hard edges follow time on each device and from calls to devices and close no cycle. Soft ones
 * were read off the timeline; where clocks contradict each other they may close one, and then they
 * go. */
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "graph/global/assembly.h"

static int compare_edges(const void *x, const void *y)
{
    const struct edge *a = x, *b = y;
    if (a->to != b->to)
        return a->to < b->to ? -1 : 1;
    if (a->from != b->from)
        return a->from < b->from ? -1 : 1;
    if (a->next != b->next)
        return a->next ? 1 : -1;
    return (int)a->soft - (int)b->soft; /* the hard one of two survives */
}

static int push_edge(struct assembly *a, uint32_t from, uint32_t to, bool next, bool soft)
{
    struct edge edge = {from, to, next, soft};
    return array_push(&a->edges, edge);
}

static int collect_edges(struct assembly *a)
{
    struct join *join = a->join;
    for (uint32_t r = 0; r < join->n_ranks; r++) {
        for (size_t e = 0; e < join->ranks[r].edges.n; e++) {
            const struct local_edge *edge = &join->ranks[r].edges.at[e];
            if (push_edge(a, a->first_op[r] + edge->from, a->first_op[r] + edge->to, edge->next,
                          edge->soft) < 0)
                return -1;
        }
        array_fini(&join->ranks[r].edges); /* taken over */
    }
    for (size_t e = 0; e < join->cross.n; e++) {
        const struct cross_edge *edge = &join->cross.at[e];
        if (push_edge(a, a->first_op[edge->from_rank] + edge->from,
                      a->first_op[edge->to_rank] + edge->to, false, true) < 0)
            return -1;
    }
    array_fini(&join->cross);
    for (size_t j = 0; j < join->joined.n; j++) {
        const struct joined *joined = &join->joined.at[j];
        for (uint32_t m = 0; m < joined->n_members && a->barriers[j] != DPRO_NO_OP; m++) {
            const struct member *member = &join->members.at[joined->first_member + m];
            const struct local_collective *c =
                &join->ranks[member->rank].collectives.at[member->collective];
            if (push_edge(a, a->first_op[member->rank] + c->arrival, a->barriers[j], false, true) <
                    0 ||
                push_edge(a, a->barriers[j], a->first_op[member->rank] + c->transfer, false, true) <
                    0)
                return -1;
        }
    }
    return assembly_message_edges(a) < 0 || assembly_server_edges(a) < 0 ? -1 : 0;
}

static void sort_edges(struct assembly *a)
{
    size_t n = 0;
    if (a->edges.n == 0)
        return;
    qsort(a->edges.at, a->edges.n, sizeof *a->edges.at, compare_edges);
    for (size_t i = 0; i < a->edges.n; i++) {
        const struct edge *e = &a->edges.at[i];
        if (n > 0 && a->edges.at[n - 1].from == e->from && a->edges.at[n - 1].to == e->to &&
            a->edges.at[n - 1].next == e->next)
            continue;
        a->edges.at[n++] = *e;
    }
    a->edges.n = n;
}

struct sorter {
    uint32_t *pending; /* predecessors not yet ordered */
    uint32_t *row, *succ, *fill;
};

/* Kahn's algorithm; returns how many ops were ordered. Those that were not lie on or behind a
 * cycle; their `pending` is not 0. */
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
    uint32_t n = 0;
    for (uint32_t o = 0; o < a->n_ops; o++)
        if (sorter->pending[o] == 0)
            a->order[n++] = o;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t e = sorter->row[a->order[i]]; e < sorter->row[a->order[i] + 1]; e++)
            if (--sorter->pending[sorter->succ[e]] == 0)
                a->order[n++] = sorter->succ[e];
    return n;
}

/* Tarjan's algorithm without recursion, over what could not be ordered: ops of equal component lie
 * on cycles through each other. `fill` is where each op's next successor stands. */
static int find_components(const struct assembly *a, struct sorter *sorter, uint32_t *component)
{
    uint32_t *number = mem_array(a->n_ops + (size_t)1, sizeof *number); /* 0: not seen */
    uint32_t *open = mem_alloc((a->n_ops + (size_t)1) * sizeof *open);
    uint32_t *path = mem_alloc((a->n_ops + (size_t)1) * sizeof *path);
    uint32_t n_seen = 0, n_open = 0, n_path = 0;
    int status = number && open && path ? 0 : -1;
    for (uint32_t root = 0; root < a->n_ops && status == 0; root++) {
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
                else if (number[next] != UINT32_MAX && component[next] < component[op])
                    component[op] = component[next];
                continue;
            }
            n_path--;
            if (n_path > 0 && component[op] < component[path[n_path - 1]])
                component[path[n_path - 1]] = component[op];
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
    return status;
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
static int break_cycles(struct assembly *a, struct sorter *sorter, uint32_t *dropped)
{
    uint32_t *component = mem_alloc((a->n_ops + (size_t)1) * sizeof *component);
    bool sends = false;
    size_t n = 0;
    if (!component || find_components(a, sorter, component) < 0) {
        mem_free(component);
        return -1;
    }
    for (int pass = 0; pass < 2; pass++)
        for (size_t e = 0; e < a->edges.n; e++) {
            const struct edge *edge = &a->edges.at[e];
            bool closes = !edge->next && edge->soft && sorter->pending[edge->from] &&
                          sorter->pending[edge->to] && component[edge->from] == component[edge->to];
            bool send = closes && is_wait_of_send(a, edge);
            if (pass == 0) {
                sends |= send;
            } else if (closes && (send || !sends)) {
                *dropped += !send;
            } else {
                a->edges.at[n++] = *edge;
            }
        }
    a->edges.n = n;
    mem_free(component);
    return 0;
}

static int order_all(struct assembly *a, uint32_t *dropped)
{
    struct sorter sorter = {mem_alloc((a->n_ops + 1) * sizeof(uint32_t)),
                            mem_alloc((a->n_ops + 1) * sizeof(uint32_t)),
                            mem_alloc((a->edges.n + a->n_ops + 1) * sizeof(uint32_t)),
                            mem_alloc((a->n_ops + 1) * sizeof(uint32_t))};
    a->order = mem_alloc((a->n_ops + 1) * sizeof *a->order);
    bool ready = sorter.pending && sorter.row && sorter.succ && sorter.fill && a->order;
    *dropped = 0;
    /* hard edges follow time on each device and from calls to devices: they close no cycle */
    while (ready && order_ops(a, &sorter) < a->n_ops)
        ready = break_cycles(a, &sorter, dropped) == 0;
    mem_free(sorter.pending);
    mem_free(sorter.row);
    mem_free(sorter.succ);
    mem_free(sorter.fill);
    return ready ? 0 : -1;
}

/* An op that nothing holds back would start before its iteration did. */
static int tie_loose_ops(struct assembly *a)
{
    uint8_t *has = mem_array(a->n_ops + 1, 1);
    if (!has)
        return -1;
    for (size_t e = 0; e < a->edges.n; e++)
        has[a->edges.at[e].to] = 1;
    int status = 0;
    for (uint32_t op = 0; op < a->n_ops && status == 0; op++) {
        uint32_t r = assembly_rank_of(a, op);
        uint32_t boundary = a->first_op[r] + a->join->ranks[r].boundary;
        if (!has[op] && a->join->ranks[r].boundary != NO_ID)
            status = push_edge(a, boundary, op, true, false);
    }
    mem_free(has);
    return status;
}

int assembly_order(struct assembly *a, uint32_t *dropped)
{
    if (collect_edges(a) < 0)
        return -1;
    sort_edges(a);
    if (order_all(a, dropped) < 0 || tie_loose_ops(a) < 0)
        return -1;
    sort_edges(a);
    return 0;
}
