/* graph/local/framework_graph.c: what a framework's own graph tells: which op takes what another
 * one made, and which part of training each node is.
 *
 * An executor runs nodes when their inputs are there, so an edge of its graph is the reason why an
 * op starts. Nodes that left no span (constants, arguments, what was folded) are looked through.
 *
 * Nodes bear no phase. Those that differentiate are known by their names. What they lead to is
 * backward as long as it leads on to other gradients or to communication, update after that; what
 * feeds updates only is update too; the rest is forward. */
#include "graph/local/framework_graph.h"

#include <stdlib.h>
#include <string.h>

#include "base/map.h"
#include "base/memory.h"
#include "graph/local/local_edges.h"
#include "graph/names/collective_kinds.h"
#include "graph/names/span_names.h"

enum { LOOK_THROUGH = 4096 }; /* nodes without a span behind one input */

static const char *type_of(const struct rank_build *rank, uint32_t node)
{
    return strtab_get(rank->names, rank->trace->dfg_nodes[node].type);
}

static bool starts(const char *text, const char *prefix)
{
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

/* By node: the one at the other end of a transfer within the rank, where it is what receives;
 * NO_ID. */
static uint32_t *find_senders(const struct rank_build *rank)
{
    const struct trace_rank *trace = rank->trace;
    uint32_t *senders = mem_alloc((trace->n_dfg_nodes + (size_t)1) * sizeof *senders);
    struct map sends = {0}; /* key -> node */
    int status = senders ? 0 : -1;
    uint64_t node;
    for (uint32_t n = 0; n < trace->n_dfg_nodes && status == 0; n++)
        if (trace->dfg_nodes[n].key && strstr(type_of(rank, n), "Send"))
            status = map_set(&sends, trace->dfg_nodes[n].key, n);
    for (uint32_t n = 0; n < trace->n_dfg_nodes && status == 0; n++) {
        bool receives = trace->dfg_nodes[n].key && strstr(type_of(rank, n), "Recv");
        senders[n] = receives && map_get(&sends, trace->dfg_nodes[n].key, &node) && node != n
                         ? (uint32_t)node
                         : NO_ID;
    }
    map_fini(&sends);
    if (status < 0) {
        mem_free(senders);
        return NULL;
    }
    return senders;
}

/* ---- edges ---- */

struct looker {
    struct rank_build *rank;
    uint32_t *senders;
    uint32_t *first, *last; /* by node: its ops in the reference iteration; NO_ID: none */
    uint32_t *seen;         /* by node: for which consumer it was looked at last, + 1 */
    uint32_t *open;         /* nodes to look at */
    uint32_t n_open;
};

static void look_at(struct looker *l, uint32_t node, uint32_t consumer)
{
    if (l->seen[node] == consumer + 1)
        return;
    l->seen[node] = consumer + 1;
    l->open[l->n_open++] = node;
}

static void look_at_inputs(struct looker *l, uint32_t node, uint32_t consumer)
{
    const struct trace_rank *trace = l->rank->trace;
    const struct dfg_node *n = &trace->dfg_nodes[node];
    for (uint32_t i = 0; i < n->n_inputs; i++)
        look_at(l, trace->dfg_inputs[n->first_input + i].node, consumer);
    if (l->senders[node] != NO_ID)
        look_at(l, l->senders[node], consumer);
}

/* What takes a collective's result begins as soon as it is there; the thread that ran it may note
 * its end later. */
static int add_edge(struct rank_build *rank, uint32_t from, uint32_t to)
{
    uint32_t c = rank->ops.at[from].collective;
    bool transfers = c != NO_ID && rank->collectives.at[c].transfer == from;
    return transfers ? local_add_completion(rank, from, to, true)
                     : local_add_if_holds(rank, from, to, false);
}

static int add_edges_to(struct looker *l, uint32_t consumer)
{
    uint32_t n_seen = 0;
    l->n_open = 0;
    l->seen[consumer] = consumer + 1;
    look_at_inputs(l, consumer, consumer);
    while (l->n_open > 0) {
        uint32_t node = l->open[--l->n_open];
        if (l->last[node] != NO_ID) {
            if (add_edge(l->rank, l->last[node], l->first[consumer]) < 0)
                return -1;
        } else if (n_seen++ < LOOK_THROUGH) {
            look_at_inputs(l, node, consumer);
        }
    }
    return 0;
}

/* Of a node whose tensor travels in parts, each a collective by itself, every part waits for what
 * the first op waits for, and what follows the last one follows every part. */
static int add_parts(struct looker *l)
{
    struct rank_build *rank = l->rank;
    size_t n_edges = rank->edges.n;
    for (uint32_t c = 0; c < rank->collectives.n; c++) {
        const struct local_collective *part = &rank->collectives.at[c];
        uint32_t slice = rank->ops.at[part->arrival].slice;
        uint32_t node = slice == NO_ID ? NO_ID : slice_span(rank, slice)->node;
        if (node == NO_ID || (l->first[node] == part->arrival && l->last[node] == part->transfer))
            continue;
        for (size_t e = 0; e < n_edges; e++) {
            struct local_edge edge = rank->edges.at[e];
            if (edge.next)
                continue;
            if (edge.to == l->first[node] && part->arrival != edge.to &&
                local_add_if_holds(rank, edge.from, part->arrival, false) < 0)
                return -1;
            if (edge.from == l->last[node] && part->transfer != edge.from &&
                local_add_if_holds(rank, part->transfer, edge.to, false) < 0)
                return -1;
        }
    }
    return 0;
}

/* The ops that make what a node sends to another process. */
static int add_sends_of(struct looker *l, uint32_t node)
{
    struct rank_build *rank = l->rank;
    uint32_t n_seen = 0, again = rank->trace->n_dfg_nodes + node; /* it may be a consumer, too */
    l->n_open = 0;
    l->seen[node] = again + 1;
    look_at_inputs(l, node, again);
    while (l->n_open > 0) {
        uint32_t from = l->open[--l->n_open];
        if (l->last[from] != NO_ID) {
            struct local_transfer send = {rank->trace->dfg_nodes[node].key, l->last[from]};
            if (array_push(&rank->sends, send) < 0)
                return -1;
        } else if (n_seen++ < LOOK_THROUGH) {
            look_at_inputs(l, from, again);
        }
    }
    return 0;
}

static int add_transfers(struct looker *l)
{
    struct rank_build *rank = l->rank;
    const struct trace_rank *trace = rank->trace;
    for (uint32_t n = 0; n < trace->n_dfg_nodes; n++) {
        uint32_t key = trace->dfg_nodes[n].key;
        if (!key || !trace_key_leaves_task(strtab_get(rank->names, key)))
            continue;
        struct local_transfer receive = {key, l->first[n]};
        if (strstr(type_of(rank, n), "Send") ? add_sends_of(l, n) < 0
            : l->first[n] != NO_ID           ? array_push(&rank->receives, receive) < 0
                                             : false)
            return -1;
    }
    return 0;
}

int local_add_node_edges(struct rank_build *rank)
{
    const struct trace_rank *trace = rank->trace;
    uint32_t n = trace->n_dfg_nodes;
    struct looker l = {.rank = rank};
    int status = -1;
    if (n == 0)
        return 0;
    l.senders = find_senders(rank);
    l.first = mem_alloc(n * sizeof *l.first);
    l.last = mem_alloc(n * sizeof *l.last);
    l.seen = mem_array(n, sizeof *l.seen);
    l.open = mem_alloc(n * sizeof *l.open);
    if (l.senders && l.first && l.last && l.seen && l.open) {
        status = 0;
        memset(l.first, 0xFF, n * sizeof *l.first);
        memset(l.last, 0xFF, n * sizeof *l.last);
    }
    for (uint32_t o = 0; o < rank->ops.n && status == 0; o++) {
        const struct local_op *op = &rank->ops.at[o];
        uint32_t node = op->slice == NO_ID ? NO_ID : slice_span(rank, op->slice)->node;
        if (node == NO_ID || (op->flags & GRAPH_OP_GPU)) /* an executor goes on meanwhile */
            continue;
        if (l.first[node] == NO_ID)
            l.first[node] = o;
        l.last[node] = o;
    }
    for (uint32_t node = 0; node < n && status == 0; node++)
        if (l.first[node] != NO_ID)
            status = add_edges_to(&l, node);
    if (status == 0)
        status = add_parts(&l);
    if (status == 0)
        status = add_transfers(&l);
    mem_free(l.senders);
    mem_free(l.first);
    mem_free(l.last);
    mem_free(l.seen);
    mem_free(l.open);
    return status;
}

/* ---- tensors ---- */

static bool packs(const char *type)
{
    return starts(type, "Concat") || strcmp(type, "Pack") == 0;
}

/* Nodes that hand on what they take. */
static bool hands_on(const char *type)
{
    return strcmp(type, "Reshape") == 0 || strcmp(type, "Identity") == 0;
}

/* The last op that ran a node; NO_ID. */
static uint32_t op_of_node(const struct rank_build *rank, uint32_t node)
{
    for (uint32_t o = (uint32_t)rank->ops.n; o-- > 0;)
        if (rank->ops.at[o].slice != NO_ID && slice_span(rank, rank->ops.at[o].slice)->node == node)
            return o;
    return NO_ID;
}

static int add_tensor(const struct rank_build *rank, const struct dfg_input *input,
                      dfg_tensors *tensors)
{
    const struct trace_rank *trace = rank->trace;
    struct dfg_tensor tensor = {.from = NO_ID};
    for (uint32_t depth = 0; depth < 8; depth++) {
        const struct dfg_node *node = &trace->dfg_nodes[input->node];
        tensor.name = node->name;
        tensor.output = input->output;
        if (tensor.from == NO_ID)
            tensor.from = op_of_node(rank, input->node);
        if (tensor.size_bytes == 0 && input->output == 0)
            tensor.size_bytes = node->size_bytes;
        if (!hands_on(type_of(rank, input->node)) || node->n_inputs == 0)
            break;
        input = &trace->dfg_inputs[node->first_input];
    }
    return array_push(tensors, tensor);
}

/* Those of unknown size share what the known ones leave of the whole: of a fused op only the first
 * output's size is known, the others are a layer's biases. */
static void share_rest(dfg_tensors *tensors, uint64_t size_bytes)
{
    uint64_t known = 0, n_unknown = 0;
    for (size_t i = 0; i < tensors->n; i++) {
        known += tensors->at[i].size_bytes;
        n_unknown += tensors->at[i].size_bytes == 0;
    }
    for (size_t i = 0; i < tensors->n && known < size_bytes; i++)
        if (tensors->at[i].size_bytes == 0)
            tensors->at[i].size_bytes = (size_bytes - known) / n_unknown;
}

int dfg_find_tensors(const struct rank_build *rank, uint32_t op, dfg_tensors *tensors)
{
    const struct trace_rank *trace = rank->trace;
    uint32_t node =
        rank->ops.at[op].slice == NO_ID ? NO_ID : slice_span(rank, rank->ops.at[op].slice)->node;
    if (node == NO_ID || trace->dfg_nodes[node].n_inputs == 0)
        return 0;
    const struct dfg_input *taken = &trace->dfg_inputs[trace->dfg_nodes[node].first_input];
    const struct dfg_node *pack = &trace->dfg_nodes[taken->node];
    if (taken->control)
        return 0;
    uint64_t size_bytes = 0; /* what a reduction puts out is as large as what it takes */
    if (starts(type_of(rank, node), "CollectiveReduce"))
        size_bytes = trace->dfg_nodes[node].size_bytes;
    if (!packs(type_of(rank, taken->node))) {
        if (add_tensor(rank, taken, tensors) < 0)
            return -1;
        share_rest(tensors, size_bytes);
        return 0;
    }
    bool has_axis = starts(type_of(rank, taken->node), "Concat"); /* its last argument */
    uint32_t n = 0;
    while (n < pack->n_inputs && !trace->dfg_inputs[pack->first_input + n].control)
        n++;
    for (uint32_t i = 0; i + has_axis < n; i++)
        if (add_tensor(rank, &trace->dfg_inputs[pack->first_input + i], tensors) < 0)
            return -1;
    share_rest(tensors, pack->size_bytes ? pack->size_bytes : size_bytes);
    return 0;
}

/* ---- phases ---- */

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
    uint32_t *row, *uses; /* nodes that take what node n makes: uses[row[n] .. row[n + 1]) */
    uint8_t *flags;
    uint32_t *open;
    uint32_t n_open;
};

/* "tower0/gradients/...", "gradient_tape/...": a part of the name says so. */
static bool is_gradient(const char *name)
{
    for (const char *at = name; (at = strstr(at, "gradient")) != NULL; at++)
        if ((at == name || at[-1] == '/') &&
            (starts(at, "gradient_tape/") || starts(at, "gradients/") || starts(at, "gradients_")))
            return true;
    return false;
}

static bool communicates(const struct rank_build *rank, uint32_t node)
{
    const char *type = type_of(rank, node);
    const char *key = strtab_get(rank->names, rank->trace->dfg_nodes[node].key);
    return name_collective_type(type) || starts(type, "Horovod") ||
           starts(type, "BytepsPushPull") || (starts(type, "_Send") && trace_key_leaves_task(key));
}

static int index_uses(struct marker *m)
{
    const struct trace_rank *trace = m->rank->trace;
    uint32_t n = trace->n_dfg_nodes;
    m->row = mem_array(n + (size_t)2, sizeof *m->row);
    m->uses = mem_alloc((trace->n_dfg_inputs + (size_t)n + 1) * sizeof *m->uses);
    if (!m->row || !m->uses)
        return -1;
    for (int pass = 0; pass < 2; pass++) {
        for (uint32_t to = 0; to < n; to++) {
            const struct dfg_node *node = &trace->dfg_nodes[to];
            for (uint32_t i = 0; i <= node->n_inputs; i++) {
                uint32_t from = i < node->n_inputs ? trace->dfg_inputs[node->first_input + i].node
                                                   : m->senders[to];
                if (from == NO_ID)
                    continue;
                if (pass == 0)
                    m->row[from + 2]++;
                else
                    m->uses[m->row[from + 1]++] = to;
            }
        }
        for (uint32_t i = 2; pass == 0 && i < n + 2; i++)
            m->row[i] += m->row[i - 1];
    }
    return 0;
}

static void mark(struct marker *m, uint32_t node, uint8_t flag)
{
    if (m->flags[node] & flag)
        return;
    m->flags[node] |= flag;
    m->open[m->n_open++] = node;
}

/* Marks what can be reached from the nodes that are open. */
static void mark_after(struct marker *m, uint8_t flag)
{
    while (m->n_open > 0) {
        uint32_t node = m->open[--m->n_open];
        for (uint32_t i = m->row[node]; i < m->row[node + 1]; i++)
            mark(m, m->uses[i], flag);
    }
}

/* Marks what leads to the nodes that are open, but for nodes that have one of `except`. */
static void mark_before(struct marker *m, uint8_t flag, uint8_t except)
{
    const struct trace_rank *trace = m->rank->trace;
    while (m->n_open > 0) {
        uint32_t at = m->open[--m->n_open];
        const struct dfg_node *node = &trace->dfg_nodes[at];
        for (uint32_t i = 0; i <= node->n_inputs; i++) {
            uint32_t from =
                i < node->n_inputs ? trace->dfg_inputs[node->first_input + i].node : m->senders[at];
            if (from != NO_ID && !(m->flags[from] & except))
                mark(m, from, flag);
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
             starts(type_of(rank, i), "_backward_")))
            m->flags[i] |= NODE_GRADIENT;
        if (communicates(rank, i))
            m->flags[i] |= NODE_COMM;
    }
    for (uint32_t i = 0; i < n; i++)
        if (m->flags[i] & NODE_GRADIENT)
            mark(m, i, NODE_AFTER);
    mark_after(m, NODE_AFTER);
    for (uint32_t i = 0; i < n; i++)
        if ((m->flags[i] & NODE_GRADIENT) ||
            ((m->flags[i] & NODE_COMM) && (m->flags[i] & NODE_AFTER)))
            mark(m, i, NODE_BEFORE);
    mark_before(m, NODE_BEFORE, 0);
    for (uint32_t i = 0; i < n; i++)
        if ((m->flags[i] & NODE_AFTER) && !(m->flags[i] & NODE_BEFORE))
            mark(m, i, NODE_UPDATE);
    mark_before(m, NODE_UPDATE, NODE_BEFORE);
}

static uint8_t phase_of(const struct rank_build *rank, uint32_t node, uint8_t flags)
{
    if (flags & NODE_UPDATE)
        return DPRO_OP_UPDATE;
    if ((flags & NODE_GRADIENT) || ((flags & NODE_AFTER) && (flags & NODE_BEFORE)))
        return DPRO_OP_BW;
    return starts(type_of(rank, node), "Iterator") ? DPRO_OP_INPUT : DPRO_OP_FW;
}

int dfg_find_phases(const struct rank_build *rank, uint8_t **phases)
{
    uint32_t n = rank->trace->n_dfg_nodes;
    struct marker m = {.rank = rank, .senders = find_senders(rank)};
    m.flags = mem_array(n + (size_t)1, 1);
    m.open = mem_alloc((n + (size_t)1) * sizeof *m.open);
    int status = m.senders && m.flags && m.open ? index_uses(&m) : -1;
    if (status == 0) {
        mark_all(&m);
        for (uint32_t i = 0; i < n; i++)
            m.flags[i] = phase_of(rank, i, m.flags[i]);
        *phases = m.flags;
        m.flags = NULL;
    }
    mem_free(m.senders);
    mem_free(m.row);
    mem_free(m.uses);
    mem_free(m.flags);
    mem_free(m.open);
    return status;
}
