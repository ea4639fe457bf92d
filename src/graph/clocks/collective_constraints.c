/* graph/clocks/collective_constraints.c: no rank can leave a collective whose result needs all
 * contributions before the last one has entered it. */
#include "graph/clocks/collective_constraints.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

enum {
    /* Profilers round times, and convert them from another clock. */
    COLLECTIVE_ROUNDING_NS = 2000,
    /* From more members on, one of them stands for all others: every pair of them would do more
       work and tell little more. */
    MANY_MEMBERS = 16,
};

struct moment {
    uint32_t node;
    int64_t enter_ns, leave_ns; /* ABSENT: not measured */
};

struct gathering {
    const struct constraint_visitor *visitor;
    const struct joined *joined;
    struct moment *at;
    uint32_t n;
    uint64_t mark;
};

static int visit_pair(const struct gathering *g, const struct moment *from, const struct moment *to)
{
    int64_t enter;
    if (from->node == to->node ||
        __builtin_sub_overflow(from->enter_ns, (int64_t)COLLECTIVE_ROUNDING_NS, &enter))
        return 0;
    struct clock_constraint constraint = {
        CONSTRAINT_FROM_COLLECTIVES, from->node, to->node, enter, to->leave_ns, g->mark};
    return g->visitor->before(g->visitor->arg, &constraint);
}

static bool needs_all(const char *kind)
{
    static const char *const kinds[] = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all",
                                        "barrier"};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strcmp(kind, kinds[i]) == 0)
            return true;
    return false;
}

/* Members of these need not leave together. */
static bool ends_together(const char *kind)
{
    return needs_all(kind) || strcmp(kind, "send_recv") == 0;
}

static int visit_all(const struct gathering *g)
{
    uint32_t first = 0;
    int status = 0;
    for (uint32_t i = 1; i < g->n && g->n <= 4 * MANY_MEMBERS; i++)
        if (g->at[i].leave_ns - g->at[i].enter_ns < g->at[first].leave_ns - g->at[first].enter_ns)
            first = i; /* the one that waited least knows most */
    for (uint32_t i = 0; i < g->n; i++)
        for (uint32_t k = i + 1; k < g->n && status == 0; k++)
            if (g->n <= MANY_MEMBERS || i == first || k == first) {
                status = visit_pair(g, &g->at[i], &g->at[k]);
                if (status == 0)
                    status = visit_pair(g, &g->at[k], &g->at[i]);
            }
    return status;
}

static int visit_sample(const struct join *join, struct gathering *g)
{
    const char *kind = join->ranks[g->joined->rank].collectives.at[g->joined->collective].kind;
    int status = 0;
    if (needs_all(kind))
        status = visit_all(g);
    for (uint32_t i = 1; i < g->n && status == 0 && g->visitor->near && ends_together(kind); i++)
        status = g->visitor->near(g->visitor->arg, g->at[0].node, g->at[0].leave_ns, g->at[i].node,
                                  g->at[i].leave_ns);
    if (g->n != 2 || g->joined->n_members != 2 || status < 0)
        return status;
    const struct member *members = &join->members.at[g->joined->first_member];
    for (int m = 0; m < 2 && status == 0; m++) {
        const char *own = join->ranks[members[m].rank].collectives.at[members[m].collective].kind;
        const char *other =
            join->ranks[members[!m].rank].collectives.at[members[!m].collective].kind;
        if (strcmp(own, "send") == 0 && strcmp(other, "recv") == 0)
            status = visit_pair(g, &g->at[m], &g->at[!m]);
    }
    return status;
}

/* Whether its members are known to wait for each other. */
static bool ends_for_sure(const struct join *join, size_t j)
{
    const struct joined *joined = &join->joined.at[j];
    return join->ranks[joined->rank].collectives.at[joined->collective].end == COMM_ENDS_TOGETHER;
}

int constraints_visit_collectives(const struct join *join, const clock_nodes *nodes,
                                  const struct constraint_visitor *visitor)
{
    uint32_t n_samples = join->n_ranks ? join->ranks[0].n_samples : 0;
    struct moment *moments = mem_alloc((join->n_ranks + (size_t)1) * sizeof *moments);
    uint32_t *node_of = mem_alloc((join->n_ranks + (size_t)1) * sizeof *node_of);
    int status = moments && node_of ? 0 : -1;
    for (uint32_t r = 0; r < join->n_ranks && status == 0; r++)
        node_of[r] = clock_node_of(nodes, join->ranks[r].trace->rank);
    for (size_t j = 0; j < join->joined.n; j++)
        for (uint32_t s = 0; s < n_samples && status == 0; s++) {
            if (join_is_inferred(join, &join->joined.at[j]) || !ends_for_sure(join, j))
                break;
            struct gathering g = {visitor, &join->joined.at[j], moments, 0, (uint64_t)j << 32 | s};
            for (uint32_t m = 0; m < g.joined->n_members; m++) {
                const struct member *member = &join->members.at[g.joined->first_member + m];
                const struct rank_build *rank = &join->ranks[member->rank];
                const struct local_collective *c = &rank->collectives.at[member->collective];
                size_t row = (size_t)rank->sample_step[s] * rank->n_timed;
                struct moment moment = {node_of[member->rank], rank->start_ns[row + c->arrival],
                                        rank->end_ns[row + c->transfer]};
                if (moment.enter_ns != ABSENT && moment.leave_ns != ABSENT &&
                    trace_time_fits(moment.enter_ns) && trace_time_fits(moment.leave_ns))
                    moments[g.n++] = moment;
            }
            status = visit_sample(join, &g);
        }
    mem_free(moments);
    mem_free(node_of);
    return status;
}

void collective_constraint_describe(const struct join *join, uint64_t mark, char *out, size_t size)
{
    const struct joined *joined = &join->joined.at[mark >> 32];
    const struct rank_build *rank = &join->ranks[joined->rank];
    snprintf(out, size, "%s number %" PRIu64 " of iteration %" PRId64,
             rank->collectives.at[joined->collective].kind, (mark >> 32) + 1,
             rank->steps.at[rank->sample_step[(uint32_t)mark]].number);
}
