/* Which node of the executor's graph each op of MXNet's profile is.
 *
 * The profile has types, not names. In an iteration the k-th op of a type is the k-th node of that
 * type in the executor's order; and what a node takes has run when the node runs, so that nodes
 * which a bulk hid are passed over. When all nodes of a type have run, the next iteration has
 * begun. A bulk that lists its types, "[Convolution,BatchNorm]", is the last of its nodes. */

#include "ingest/rank_job.h"

struct types {
    struct map lists;       /* type -> index + 1 of its list */
    uint32_t *next;         /* node -> the next of its type */
    ARRAY(uint32_t) firsts; /* by list: its first node */
    ARRAY(uint32_t) at;     /* by list: the node that is up next, NO_ID: all have run */
};

struct types_matcher {
    struct rank_job *job;
    struct types types;
    bool *ran;
    uint32_t *open;
    uint32_t n_ran, n_ops;
    struct arena arena;
};

static void add_types(struct types_matcher *m)
{
    const struct trace_rank *rank = m->job->rank;
    SCRATCH struct map last = {0}; /* type -> its last node so far */
    for (uint32_t n = 0; n < rank->n_dfg_nodes; n++) {
        uint32_t type = rank->dfg_nodes[n].type;
        uint64_t before;
        m->types.next[n] = NO_ID;
        m->n_ops += rank->dfg_nodes[n].n_inputs > 0;
        if (map_get(&last, (uint64_t)type + 1, &before)) {
            m->types.next[before] = n;
        } else {
            array_push(&m->types.firsts, n);
            map_set(&m->types.lists, (uint64_t)type + 1, m->types.firsts.n);
        }
        map_set(&last, (uint64_t)type + 1, n);
    }
    array_reserve(&m->types.at, m->types.firsts.n);
}

static void begin_iteration(struct types_matcher *m)
{
    for (size_t i = 0; i < m->types.firsts.n; i++)
        m->types.at.at[i] = m->types.firsts.at[i];
    memset(m->ran, 0, m->job->rank->n_dfg_nodes);
    m->n_ran = 0;
}

/* The node has run, and so has all that it needed. */
static void types_run(struct types_matcher *m, uint32_t node)
{
    const struct trace_rank *rank = m->job->rank;
    uint32_t n_open = 0;
    m->ran[node] = true;
    m->open[n_open++] = node;
    while (n_open > 0) {
        const struct dfg_node *at = &rank->dfg_nodes[m->open[--n_open]];
        m->n_ran += at->n_inputs > 0;
        for (uint32_t i = 0; i < at->n_inputs; i++) {
            uint32_t input = rank->dfg_inputs[at->first_input + i].node;
            if (m->ran[input])
                continue;
            m->ran[input] = true;
            m->open[n_open++] = input;
        }
    }
}

static uint32_t next_of(struct types_matcher *m, uint64_t list)
{
    uint32_t *at = &m->types.at.at[list];
    while (*at != NO_ID && m->ran[*at])
        *at = m->types.next[*at];
    return *at;
}

/* The node that an op of a type is; NO_ID: none is left, or the graph has no such type (*known). */
static uint32_t types_take(struct types_matcher *m, uint32_t type, bool *known)
{
    uint64_t list;
    *known = map_get(&m->types.lists, (uint64_t)type + 1, &list);
    if (!*known)
        return NO_ID;
    uint32_t node = next_of(m, --list);
    if (node == NO_ID && m->n_ran * 2 >= m->n_ops) {
        begin_iteration(m);
        node = next_of(m, list);
    }
    if (node != NO_ID)
        types_run(m, node);
    return node;
}

/* "[Convolution,BatchNorm,...]", with brackets or without: each of the types that stand there
 * whole. */
static uint32_t take_bulk(struct types_matcher *m, const struct strtab *names, uint32_t name,
                          bool *known)
{
    const char *at = strtab_get(names, name), *comma;
    at += *at == '[';
    uint32_t last = NO_ID;
    bool any = false;
    for (; (comma = strpbrk(at, ",]")) != NULL; at = comma + 1) {
        uint32_t type = strtab_find(names, at, (size_t)(comma - at));
        uint32_t node = type == STRTAB_NONE ? NO_ID : types_take(m, type, &any);
        last = node == NO_ID ? last : node;
        *known |= any;
    }
    return last;
}

ORDER_OF_INDICES(by_start, struct trace_span, ASCENDING(start_ns));

void mxnet_match_types(struct rank_job *job)
{
    const struct strtab *names = job->names;
    struct trace_rank *rank = job->rank;
    struct types_matcher m = {.job = job};
    uint32_t *order = mem_array(rank->n_spans, sizeof *order), n = 0;
    m.types.next = arena_array(&m.arena, rank->n_dfg_nodes, sizeof *m.types.next);
    m.ran = arena_array(&m.arena, rank->n_dfg_nodes, sizeof *m.ran);
    m.open = arena_array(&m.arena, rank->n_dfg_nodes, sizeof *m.open);
    add_types(&m);
    for (uint32_t s = 0; s < rank->n_spans; s++)
        if (rank->spans[s].kind == SPAN_CPU_OP)
            order[n++] = s;
    qsort_r(order, n, sizeof *order, by_start, rank->spans);
    begin_iteration(&m);
    for (uint32_t i = 0; i < n; i++) {
        struct trace_span *span = &rank->spans[order[i]];
        bool known = false, bulk = strchr(strtab_get(names, span->name), ',');
        uint32_t node =
            bulk ? take_bulk(&m, names, span->name, &known) : types_take(&m, span->name, &known);
        span->node = node;
        job->n_bulks += bulk;
        job->n_node_spans += known;
        if (known && node == NO_ID && !job->n_unmatched++)
            job->first_unmatched = span->name;
    }
    job->bulk_advice = "MXNET_EXEC_BULK_EXEC_TRAIN=0 shows the nodes apart";
    mem_free(order);
    arena_fini(&m.arena);
    FREE_ALL(&m.types.lists, &m.types.firsts, &m.types.at);
}
