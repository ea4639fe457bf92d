/* Which part of training each node of a framework's graph is.
 *
 * Nodes carry no phase. Those that differentiate are known by their names. What follows them is
 * backward as long as it leads to other gradients or to communication, and update after that. What
 * feeds only updates is update too. The rest is forward. */

#include "graph/ops/framework_graph.h"

enum node_flag {
    NODE_GRADIENT = 1, /* differentiates */
    NODE_COMM = 2,     /* communicates with other processes */
    NODE_AFTER = 4,    /* comes after a gradient */
    NODE_BEFORE = 8,   /* is needed by a gradient or by communication of gradients */
    NODE_UPDATE = 16,
};

struct marker {
    const struct rank_build *rank;
    uint32_t *senders;
    struct dfg_uses uses;
    uint8_t *flags;
    uint32_t *open;
    uint32_t n_open;
};

/* "tower0/gradients/...", "gradient_tape/...": a part of the name says so. */
static bool is_gradient(const char *name)
{
    for (const char *at = name; (at = strstr(at, "gradient")) != NULL; at++)
        if ((at == name || at[-1] == '/') &&
            (text_begins(at, "gradient_tape/") || text_begins(at, "gradients/") ||
             text_begins(at, "gradients_")))
            return true;
    return false;
}

static bool phases_communicates(const struct rank_build *rank, uint32_t node)
{
    const char *type = dfg_type(rank, node);
    const char *key = strtab_get(rank->names, rank->trace->dfg_nodes[node].key);
    return name_collective_type(type) || text_begins(type, "Horovod") ||
           text_begins(type, "BytepsPushPull") ||
           (text_begins(type, "_Send") && trace_key_leaves_task(key));
}

static void phases_mark(struct marker *m, uint32_t node, uint8_t flag)
{
    if (m->flags[node] & flag)
        return;
    m->flags[node] |= flag;
    m->open[m->n_open++] = node;
}

/* Marks what can be reached from the nodes that are open. */
static void mark_after(struct marker *m)
{
    while (m->n_open > 0) {
        uint32_t node = m->open[--m->n_open];
        for (uint32_t i = m->uses.row[node]; i < m->uses.row[node + 1]; i++)
            phases_mark(m, m->uses.nodes[i], NODE_AFTER);
    }
}

/* Marks what leads to the nodes that are open, but for nodes that have one of `except`. */
static void mark_before(struct marker *m, uint8_t flag, uint8_t except)
{
    while (m->n_open > 0) {
        uint32_t node = m->open[--m->n_open];
        for (uint32_t i = 0; i <= m->rank->trace->dfg_nodes[node].n_inputs; i++) {
            uint32_t from = dfg_source(m->rank, m->senders, node, i);
            if (from != NO_ID && !(m->flags[from] & except))
                phases_mark(m, from, flag);
        }
    }
}

static void mark_all(struct marker *m)
{
    const struct rank_build *rank = m->rank;
    const struct trace_rank *trace = rank->trace;
    uint32_t n = trace->n_dfg_nodes;
    for (uint32_t i = 0; i < n; i++) {
        if (trace->dfg_nodes[i].n_inputs > 0 && /* constants are shared, whatever their name */
            (is_gradient(strtab_get(rank->names, trace->dfg_nodes[i].name)) ||
             dfg_type_starts(rank, i, "_backward_")))
            m->flags[i] |= NODE_GRADIENT;
        if (phases_communicates(rank, i))
            m->flags[i] |= NODE_COMM;
    }
    for (uint32_t i = 0; i < n; i++)
        if (m->flags[i] & NODE_GRADIENT)
            phases_mark(m, i, NODE_AFTER);
    mark_after(m);
    for (uint32_t i = 0; i < n; i++)
        if ((m->flags[i] & NODE_GRADIENT) ||
            ((m->flags[i] & NODE_COMM) && (m->flags[i] & NODE_AFTER)))
            phases_mark(m, i, NODE_BEFORE);
    mark_before(m, NODE_BEFORE, 0);
    for (uint32_t i = 0; i < n; i++)
        if ((m->flags[i] & NODE_AFTER) && !(m->flags[i] & NODE_BEFORE))
            phases_mark(m, i, NODE_UPDATE);
    mark_before(m, NODE_UPDATE, NODE_BEFORE);
}

static uint8_t phase_of(const struct rank_build *rank, uint32_t node, uint8_t flags)
{
    if (flags & NODE_UPDATE)
        return DPRO_OP_UPDATE;
    if ((flags & NODE_GRADIENT) || ((flags & NODE_AFTER) && (flags & NODE_BEFORE)))
        return DPRO_OP_BW;
    return dfg_type_starts(rank, node, "Iterator") ? DPRO_OP_INPUT : DPRO_OP_FW;
}

uint8_t *dfg_find_phases(const struct rank_build *rank, struct arena *arena)
{
    uint32_t n = rank->trace->n_dfg_nodes;
    SCRATCH_ARENA struct arena scratch = {0};
    struct marker m = {.rank = rank,
                       .senders = dfg_find_senders(rank, &scratch),
                       .flags = arena_array(arena, n, 1),
                       .open = arena_alloc(&scratch, n * sizeof *m.open)};
    m.uses = dfg_find_uses(rank, m.senders, &scratch);
    mark_all(&m);
    for (uint32_t i = 0; i < n; i++)
        m.flags[i] = phase_of(rank, i, m.flags[i]);
    return m.flags;
}
