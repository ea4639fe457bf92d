/* Edges by a framework's own graph: which op takes what another one made.
 *
 * An executor runs a node when its inputs are there, so an edge of its graph is the reason why an
 * op starts. Nodes that left no span (constants, arguments, folded ones) are looked through. */

#include "graph/local/local_edges.h"

enum { LOOK_THROUGH = 4096 }; /* nodes without a span behind one input */

struct looker {
    struct rank_build *rank;
    uint32_t *senders;
    uint32_t *first, *last; /* by node: its ops in the reference iteration; NO_ID: none */
    uint32_t *seen;         /* by node: for which consumer it was looked at last, + 1 */
    uint32_t *open;         /* nodes to look at */
    uint32_t n_open;
    ARRAY(uint32_t) makers; /* ops that make what the consumer takes */
};

static void look_at_inputs(struct looker *l, uint32_t node, uint32_t consumer)
{
    for (uint32_t i = 0; i <= l->rank->trace->dfg_nodes[node].n_inputs; i++) {
        uint32_t from = dfg_source(l->rank, l->senders, node, i);
        if (from == NO_ID || l->seen[from] == consumer + 1)
            continue;
        l->seen[from] = consumer + 1;
        l->open[l->n_open++] = from;
    }
}

/* `consumer`: a number for the search, of its own. */
static void find_makers(struct looker *l, uint32_t node, uint32_t consumer)
{
    uint32_t n_seen = 0;
    l->n_open = 0;
    l->makers.n = 0;
    l->seen[node] = consumer + 1;
    look_at_inputs(l, node, consumer);
    while (l->n_open > 0) {
        uint32_t from = l->open[--l->n_open];
        if (l->last[from] != NO_ID)
            array_push(&l->makers, l->last[from]);
        else if (n_seen++ < LOOK_THROUGH)
            look_at_inputs(l, from, consumer);
    }
}

/* What takes a collective's result begins as soon as it is there; the thread that ran it may note
 * its end later. */
static void add_edge(struct rank_build *rank, uint32_t from, uint32_t to)
{
    uint32_t c = rank->ops.at[from].collective;
    if (c != NO_ID && rank->collectives.at[c].transfer == from)
        local_add_completion(rank, from, to, true);
    else
        local_add_if_holds(rank, from, to, false);
}

/* Of a node whose tensor travels in parts, each a collective by itself, every part waits for what
 * the first op waits for, and what follows the last one follows every part. */
static void add_parts(struct looker *l)
{
    struct rank_build *rank = l->rank;
    size_t n_edges = rank->edges.n;
    EACH (const struct local_collective, part, rank->collectives) {
        uint32_t node = dfg_node_of(rank, part->arrival);
        if (node == NO_ID || (l->first[node] == part->arrival && l->last[node] == part->transfer))
            continue;
        for (size_t e = 0; e < n_edges; e++) {
            struct local_edge edge = rank->edges.at[e];
            if (edge.next)
                continue;
            if (edge.to == l->first[node] && part->arrival != edge.to)
                local_add_if_holds(rank, edge.from, part->arrival, false);
            if (edge.from == l->last[node] && part->transfer != edge.from)
                local_add_if_holds(rank, part->transfer, edge.to, false);
        }
    }
}

/* The ops that make what a node sends to another process, and those that take what comes. */
static void add_transfers(struct looker *l)
{
    struct rank_build *rank = l->rank;
    const struct trace_rank *trace = rank->trace;
    for (uint32_t n = 0; n < trace->n_dfg_nodes; n++) {
        uint32_t key = trace->dfg_nodes[n].key;
        if (!key || !trace_key_leaves_task(strtab_get(rank->names, key)))
            continue;
        if (strstr(dfg_type(rank, n), "Send")) {
            find_makers(l, n, trace->n_dfg_nodes + n); /* it may be a consumer, too */
            for (size_t i = 0; i < l->makers.n; i++)
                array_add(&rank->sends, key, l->makers.at[i]);
        } else if (l->first[n] != NO_ID) {
            array_add(&rank->receives, key, l->first[n]);
        }
    }
}

void rule_nodes(struct rank_build *rank)
{
    uint32_t n = rank->trace->n_dfg_nodes;
    SCRATCH_ARENA struct arena scratch = {0};
    struct looker l = {.rank = rank,
                       .senders = dfg_find_senders(rank, &scratch),
                       .first = arena_alloc(&scratch, n * sizeof *l.first),
                       .last = arena_alloc(&scratch, n * sizeof *l.last),
                       .seen = arena_array(&scratch, n, sizeof *l.seen),
                       .open = arena_alloc(&scratch, n * sizeof *l.open)};
    memset(l.first, 0xFF, n * sizeof *l.first);
    memset(l.last, 0xFF, n * sizeof *l.last);
    for (uint32_t o = 0; o < rank->ops.n; o++) {
        uint32_t node = dfg_node_of(rank, o);
        if (node == NO_ID || (rank->ops.at[o].flags & GRAPH_OP_GPU)) /* an executor goes on */
            continue;
        if (l.first[node] == NO_ID)
            l.first[node] = o;
        l.last[node] = o;
    }
    for (uint32_t node = 0; node < n; node++) {
        if (l.first[node] == NO_ID)
            continue;
        find_makers(&l, node, node);
        for (size_t i = 0; i < l.makers.n; i++)
            add_edge(rank, l.makers.at[i], l.first[node]);
    }
    add_parts(&l);
    add_transfers(&l);
    array_fini(&l.makers);
}
