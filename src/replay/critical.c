/* The critical path of one replayed iteration. From the last op it goes back over the predecessor
 * that each op waited for, in the graph or on the device: the one whose end is the moment from
 * which the op's gap counts. So durations and gaps join without holes and add up to the iteration's
 * length. */

#include "replay/replay.h"

struct node {
    uint32_t copy, op;
};

struct pull pull_make(uint32_t n, const uint32_t *row, const uint32_t *succ, struct arena *arena)
{
    struct pull pull = {arena_array(arena, (size_t)n + 1, sizeof *pull.row),
                        arena_alloc(arena, ((size_t)row[n] + 1) * sizeof *pull.pred)};
    for (uint32_t e = 0; e < row[n]; e++)
        pull.row[succ[e]]++;
    for (uint32_t op = 1; op <= n; op++)
        pull.row[op] += pull.row[op - 1];
    for (uint32_t op = n; op-- > 0;)
        for (uint32_t e = row[op + 1]; e-- > row[op];)
            pull.pred[--pull.row[succ[e]]] = op;
    return pull;
}

static bool ends_at(const struct critical_span *span, uint32_t copy, uint32_t op, int64_t when)
{
    return copy < span->n_copies && span->copies[copy].end_ns &&
           span->copies[copy].end_ns[op] == when;
}

static bool find_in(const struct critical_span *span, const struct pull *pull, uint32_t op,
                    uint32_t copy, int64_t when, struct node *found)
{
    for (uint32_t e = pull->row[op]; e < pull->row[op + 1]; e++)
        if (ends_at(span, copy, pull->pred[e], when)) {
            *found = (struct node){copy, pull->pred[e]};
            return true;
        }
    return false;
}

/* What ended at `when` and so let `node` go: a dependency if there is one, else its device. */
static bool find_binding(const struct critical_span *span, const struct pull *same,
                         const struct pull *next, struct node node, int64_t when,
                         struct node *found)
{
    if (find_in(span, same, node.op, node.copy, when, found) ||
        (node.copy > 0 && find_in(span, next, node.op, node.copy - 1, when, found)))
        return true;
    const uint32_t *device_prev = span->copies[node.copy].device_prev;
    uint32_t prev = device_prev ? device_prev[node.op] : DPRO_NO_OP;
    if (prev == DPRO_NO_OP)
        return false;
    /* which copy's it was is not stored: nearly always this one or the one before, seldom a later
     * one */
    for (uint32_t i = 0; i < span->n_copies; i++) {
        uint32_t copy = i <= node.copy ? node.copy - i : i;
        if (ends_at(span, copy, prev, when)) {
            *found = (struct node){copy, prev};
            return true;
        }
    }
    return false;
}

struct dpro_critical_op *critical_find(const struct dpro_graph *graph,
                                       const struct critical_span *span, struct arena *arena,
                                       uint32_t *n)
{
    SCRATCH_ARENA struct arena work = {0};
    struct pull same = pull_make(graph->n_ops, graph->row, graph->succ, &work);
    struct pull next = pull_make(graph->n_ops, graph->next_row, graph->next_succ, &work);
    SCRATCH ARRAY(struct dpro_critical_op) ops = {0};
    struct node node = {span->copy, span->op};
    /* The bound is for ops without duration that end at the same moment in several copies, where
     * the copy of a device predecessor can be mistaken. */
    uint64_t most = (uint64_t)graph->n_ops * span->n_copies;
    for (uint64_t i = 0; i < most; i++) {
        const struct replay_copy *copy = &span->copies[node.copy];
        int64_t end = copy->end_ns[node.op], start = end - copy->dur_ns[node.op];
        int64_t ready = start - (copy->gap_ns ? copy->gap_ns[node.op] : 0);
        struct node before;
        bool more = i + 1 < most && ready > span->start_ns &&
                    find_binding(span, &same, &next, node, ready, &before);
        if (!more && i + 1 < most && start > span->start_ns && start > ready &&
            find_binding(span, &same, &next, node, start, &before)) {
            more = true; /* its gap passed while it waited for a thread of its pool */
            ready = start;
        }
        if (start < span->start_ns)
            start = span->start_ns;
        if (!more)
            ready = span->start_ns; /* the rest is a wait that no op explains */
        struct dpro_critical_op op = {node.op, start - span->start_ns, end - start, start - ready};
        array_push(&ops, op);
        if (!more)
            break;
        node = before;
    }
    struct dpro_critical_op *path = arena_array(arena, ops.n, sizeof *path);
    for (size_t i = 0; i < ops.n; i++)
        path[i] = ops.at[ops.n - 1 - i];
    *n = (uint32_t)ops.n;
    return path;
}
