/* The edges of the global graph, and an order of its ops that keeps them.
 *
 * Hard edges follow time on each device and from calls to devices, and close no cycle. Soft edges
 * were read off the timeline. Where clocks contradict each other they may close a cycle; then they
 * are dropped. */

#include "graph/global/assembly.h"

static void collect_edges(struct assembly *a)
{
    struct join *join = a->join;
    for (uint32_t r = 0; r < join->n_ranks; r++) {
        EACH (const struct local_edge, local, join->ranks[r].edges)
            array_add(&a->edges, a->first_op[r] + local->from, a->first_op[r] + local->to,
                      local->next, local->soft);
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
}

/* The hard one of two comes first. */
ORDER(by_start, struct local_edge, ASCENDING(from) ?: ASCENDING(next) ?: ASCENDING(soft));

/* By their ends, then their starts; of equal ones the first is kept. */
static void sort_edges(struct assembly *a)
{
    size_t n = a->edges.n, n_kept = 0;
    struct local_edge *sorted = mem_alloc(n * sizeof *sorted);
    SCRATCH uint32_t *end = mem_array(a->n_ops + (size_t)1, sizeof *end); /* of each op's */
    uint32_t begin = 0;
    EACH (const struct local_edge, edge, a->edges)
        end[edge->to + 1]++;
    for (uint32_t op = 0; op < a->n_ops; op++)
        end[op + 1] += end[op];
    EACH (const struct local_edge, edge, a->edges)
        sorted[end[edge->to]++] = *edge;
    for (uint32_t op = 0; op < a->n_ops; begin = end[op++]) {
        if (end[op] - begin > 1)
            qsort(sorted + begin, end[op] - begin, sizeof *sorted, by_start);
        for (uint32_t e = begin; e < end[op]; e++)
            if (e == begin || sorted[e].from != sorted[n_kept - 1].from ||
                sorted[e].next != sorted[n_kept - 1].next)
                sorted[n_kept++] = sorted[e];
    }
    mem_free(a->edges.at);
    a->edges.at = sorted;
    a->edges.n = n_kept;
    a->edges.cap = n;
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
    SCRATCH uint32_t *number = mem_array(a->n_ops, sizeof *number); /* 0: not seen */
    SCRATCH uint32_t *open = mem_alloc(a->n_ops * sizeof *open);
    SCRATCH uint32_t *path = mem_alloc(a->n_ops * sizeof *path);
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
}

/* A send may be over before its receiver comes, when the message fits the transport's buffers. */
static bool is_wait_of_send(const struct assembly *a, const struct local_edge *edge)
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
    SCRATCH uint32_t *component = mem_alloc(a->n_ops * sizeof *component);
    bool sends = false;
    size_t n = 0;
    find_components(a, sorter, component);
    for (int pass = 0; pass < 2; pass++)
        EACH (const struct local_edge, edge, a->edges) {
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
}

static void order_all(struct assembly *a)
{
    SCRATCH_ARENA struct arena scratch = {0};
    struct sorter sorter = {.pending = arena_alloc(&scratch, a->n_ops * sizeof *sorter.pending),
                            .row =
                                arena_alloc(&scratch, (a->n_ops + (size_t)1) * sizeof *sorter.row),
                            .succ = arena_alloc(&scratch, a->edges.n * sizeof *sorter.succ),
                            .fill = arena_alloc(&scratch, a->n_ops * sizeof *sorter.fill)};
    a->order = arena_alloc(&a->scratch, a->n_ops * sizeof *a->order);
    /* hard edges follow time on each device and from calls to devices: they close no cycle */
    while (order_ops(a, &sorter) < a->n_ops)
        break_cycles(a, &sorter);
}

/* An op that nothing holds back would start before its iteration did. Edges stay in order. */
static void tie_loose_ops(struct assembly *a)
{
    size_t n_loose = a->n_ops;
    for (size_t e = 0; e < a->edges.n; e++)
        n_loose -= e == 0 || a->edges.at[e].to != a->edges.at[e - 1].to;
    array_reserve(&a->edges, n_loose);
    struct local_edge *from = a->edges.at + a->edges.n, *to = from + n_loose, *end = to;
    for (uint32_t r = assembly_n_processes(a); r-- > 0;)
        for (uint32_t op = a->first_op[r + 1], boundary = a->join->ranks[r].boundary;
             op-- > a->first_op[r];) {
            if (from > a->edges.at && from[-1].to == op)
                while (from > a->edges.at && from[-1].to == op)
                    *--to = *--from;
            else if (boundary != NO_ID)
                *--to = (struct local_edge){a->first_op[r] + boundary, op, true, false};
        }
    a->edges.n = (size_t)(end - to);
    memmove(a->edges.at, to, a->edges.n * sizeof *to);
}

void assembly_order(struct assembly *a)
{
    collect_edges(a);
    sort_edges(a);
    order_all(a);
    tie_loose_ops(a);
}
