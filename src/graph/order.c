/* graph/order.c: the edges of the global graph, and an order of its ops that keeps them.
 *
 * Hard edges follow time on each device and from calls to devices and close no cycle. Soft ones
 * were read off the timeline; where clocks contradict each other they may close one, and then they
 * go. */
#include <stdlib.h>
#include <string.h>

#include "graph/assembly.h"

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
    for (uint32_t r = 0; r < join->n_ranks; r++)
        for (size_t e = 0; e < join->ranks[r].edges.n; e++) {
            const struct local_edge *edge = &join->ranks[r].edges.at[e];
            if (push_edge(a, a->first_op[r] + edge->from, a->first_op[r] + edge->to, edge->next,
                          edge->soft) < 0)
                return -1;
        }
    for (size_t j = 0; j < join->joined.n; j++) {
        const struct joined *joined = &join->joined.at[j];
        for (uint32_t m = 0; m < joined->n_members && a->meets[j] != DPRO_NO_OP; m++) {
            const struct member *member = &join->members.at[joined->first_member + m];
            const struct local_collective *c =
                &join->ranks[member->rank].collectives.at[member->collective];
            if (push_edge(a, a->first_op[member->rank] + c->arrival, a->meets[j], false, true) <
                    0 ||
                push_edge(a, a->meets[j], a->first_op[member->rank] + c->transfer, false, true) < 0)
                return -1;
        }
    }
    return 0;
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

/* Leaves `pending` at 0 but for ops on a cycle or between two: those that only follow one are taken
 * off from the back. Edges are sorted by their end, so that all into one op lie together. */
static void narrow_to_cycles(struct assembly *a, struct sorter *sorter)
{
    uint32_t *out = sorter->fill; /* successors left */
    uint32_t *first_in = sorter->row, *done = sorter->succ, n_done = 0;
    size_t e = 0;
    memset(out, 0, a->n_ops * sizeof *out);
    for (uint32_t o = 0; o < a->n_ops; o++) {
        first_in[o] = (uint32_t)e;
        while (e < a->edges.n && a->edges.at[e].to == o) {
            const struct edge *edge = &a->edges.at[e++];
            out[edge->from] += !edge->next && sorter->pending[edge->from] && sorter->pending[o];
        }
    }
    first_in[a->n_ops] = (uint32_t)e;
    for (uint32_t o = 0; o < a->n_ops; o++)
        if (sorter->pending[o] && out[o] == 0)
            done[n_done++] = o;
    for (uint32_t i = 0; i < n_done; i++) {
        sorter->pending[done[i]] = 0;
        for (e = first_in[done[i]]; e < first_in[done[i] + 1]; e++) {
            const struct edge *edge = &a->edges.at[e];
            if (!edge->next && sorter->pending[edge->from] && --out[edge->from] == 0)
                done[n_done++] = edge->from;
        }
    }
}

/* Drops what is soft among the ops that close a cycle. */
static uint32_t break_cycles(struct assembly *a, struct sorter *sorter)
{
    size_t n = 0;
    uint32_t dropped = 0;
    narrow_to_cycles(a, sorter);
    for (size_t e = 0; e < a->edges.n; e++) {
        const struct edge *edge = &a->edges.at[e];
        if (!edge->next && edge->soft && sorter->pending[edge->from] && sorter->pending[edge->to])
            dropped++;
        else
            a->edges.at[n++] = *edge;
    }
    a->edges.n = n;
    return dropped;
}

static int order_all(struct assembly *a, uint32_t *dropped)
{
    struct sorter sorter = {malloc((a->n_ops + 1) * sizeof(uint32_t)),
                            malloc((a->n_ops + 1) * sizeof(uint32_t)),
                            malloc((a->edges.n + a->n_ops + 1) * sizeof(uint32_t)),
                            malloc((a->n_ops + 1) * sizeof(uint32_t))};
    a->order = malloc((a->n_ops + 1) * sizeof *a->order);
    bool ready = sorter.pending && sorter.row && sorter.succ && sorter.fill && a->order;
    *dropped = 0;
    /* hard edges follow time on each device and from calls to devices: they close no cycle */
    while (ready && order_ops(a, &sorter) < a->n_ops)
        *dropped += break_cycles(a, &sorter);
    free(sorter.pending);
    free(sorter.row);
    free(sorter.succ);
    free(sorter.fill);
    return ready ? 0 : -1;
}

/* An op that nothing holds back would start before its iteration did. */
static int tie_loose_ops(struct assembly *a)
{
    uint8_t *has = calloc(a->n_ops + 1, 1);
    if (!has)
        return -1;
    for (size_t e = 0; e < a->edges.n; e++)
        has[a->edges.at[e].to] = 1;
    int status = 0;
    for (uint32_t op = 0; op < a->n_ops && status == 0; op++) {
        uint32_t r = assembly_rank_of(a, op);
        uint32_t boundary = a->first_op[r] + a->join->ranks[r].boundary;
        if (!has[op])
            status = push_edge(a, boundary, op, true, false);
    }
    free(has);
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
