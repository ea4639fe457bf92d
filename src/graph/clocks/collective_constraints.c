/* Constraints between clocks from collectives: no rank leaves a collective whose result needs all
 * contributions before the last rank has entered it. */
#include "graph/clocks/clocks.h"

enum {
    /* Profilers round times, and convert them from another clock. */
    COLLECTIVE_ROUNDING_NS = 2000,
    /* From more members on, one of them stands for all others: every pair of them would do more
       work and tell little more. */
    MANY_MEMBERS = 16,
};

struct constraints_moment {
    uint32_t node;
    int64_t enter_ns, leave_ns; /* ABSENT: not measured */
};

struct constraints_gathering {
    const struct constraint_visitor *visitor;
    const struct joined *joined;
    struct constraints_moment *at;
    uint32_t n;
};

static void visit_pair(const struct constraints_gathering *g, const struct constraints_moment *from,
                       const struct constraints_moment *to)
{
    int64_t enter;
    if (from->node == to->node ||
        __builtin_sub_overflow(from->enter_ns, (int64_t)COLLECTIVE_ROUNDING_NS, &enter))
        return;
    struct clock_constraint constraint = {CONSTRAINT_FROM_COLLECTIVES, from->node, to->node, enter,
                                          to->leave_ns};
    g->visitor->before(g->visitor->arg, &constraint);
}

static bool needs_all(uint8_t kind)
{
    return collective_is_one(kind, DPRO_ALL_REDUCE, DPRO_ALL_GATHER, DPRO_REDUCE_SCATTER,
                             DPRO_ALL_TO_ALL, DPRO_BARRIER);
}

/* Members of these need not leave together. */
static bool ends_together(uint8_t kind)
{
    return needs_all(kind) || kind == DPRO_SEND_RECV;
}

static void visit_all(const struct constraints_gathering *g)
{
    uint32_t first = 0;
    for (uint32_t i = 1; i < g->n && g->n <= 4 * MANY_MEMBERS; i++)
        if (g->at[i].leave_ns - g->at[i].enter_ns < g->at[first].leave_ns - g->at[first].enter_ns)
            first = i; /* the one that waited least knows most */
    for (uint32_t i = 0; i < g->n; i++)
        for (uint32_t k = g->n <= MANY_MEMBERS ? i + 1 : first; k < g->n; k++) {
            visit_pair(g, &g->at[i], &g->at[k]);
            visit_pair(g, &g->at[k], &g->at[i]);
            if (g->n > MANY_MEMBERS)
                break;
        }
}

static void visit_sample(const struct join *join, struct constraints_gathering *g)
{
    uint8_t kind = JOIN_PART(join, g->joined)->kind;
    if (needs_all(kind))
        visit_all(g);
    for (uint32_t i = 1; i < g->n && g->visitor->near && ends_together(kind); i++)
        g->visitor->near(g->visitor->arg, g->at[0].node, g->at[0].leave_ns, g->at[i].node,
                         g->at[i].leave_ns);
    if (g->n != 2 || g->joined->n_members != 2)
        return;
    const struct member *members = joined_members(join, g->joined);
    for (int m = 0; m < 2; m++)
        if (JOIN_PART(join, &members[m])->kind == DPRO_SEND &&
            JOIN_PART(join, &members[!m])->kind == DPRO_RECV)
            visit_pair(g, &g->at[m], &g->at[!m]);
}

/* When the members of a collective entered and left it in a sample. */
static void find_moments(const struct join *join, const uint32_t *node_of, uint32_t sample,
                         struct constraints_gathering *g)
{
    const struct member *members = joined_members(join, g->joined);
    g->n = 0;
    for (uint32_t m = 0; m < g->joined->n_members; m++) {
        struct constraints_moment moment = {node_of[members[m].rank],
                                            member_arrived_ns(join, &members[m], sample),
                                            member_left_ns(join, &members[m], sample)};
        uint32_t call = JOIN_PART(join, &members[m])->launch_op;
        if (call != NO_ID && member_is_posted(join, &members[m])) /* in the midst of the call */
            moment.enter_ns = *build_start(&join->ranks[members[m].rank], sample, call);
        if (moment.enter_ns != ABSENT && moment.leave_ns != ABSENT &&
            trace_time_fits(moment.enter_ns) && trace_time_fits(moment.leave_ns))
            g->at[g->n++] = moment;
    }
}

void constraints_visit_collectives(const struct join *join, const clock_nodes *nodes,
                                   const struct constraint_visitor *visitor)
{
    uint32_t n_samples = join->n_ranks ? join->ranks[0].n_samples : 0;
    SCRATCH struct constraints_moment *moments = mem_alloc(join->n_ranks * sizeof *moments);
    SCRATCH uint32_t *node_of = mem_alloc(join->n_ranks * sizeof *node_of);
    for (uint32_t r = 0; r < join->n_ranks; r++)
        node_of[r] = clock_node_of(nodes, join->ranks[r].trace->rank);
    for (size_t j = 0; j < join->joined.n; j++) {
        struct constraints_gathering g = {
            .visitor = visitor, .joined = &join->joined.at[j], .at = moments};
        if (JOIN_PART(join, g.joined)->end != COMM_ENDS_TOGETHER ||
            join_is_inferred(join, g.joined))
            continue; /* its members may not wait for each other */
        for (uint32_t s = 0; s < n_samples; s++) {
            find_moments(join, node_of, s, &g);
            visit_sample(join, &g);
        }
    }
}
