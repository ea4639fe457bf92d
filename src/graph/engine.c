/* graph/engine.c: programs that only ask for work and then wait for it, as MXNet's do.
 *
 * An engine runs the work on threads of its own. A call that waits for it is no work: of its time
 * remains what follows the last op that it waited for, in every iteration. And what a worker
 * exchanges with its servers begins when a gradient is there: after the op before it that always
 * came before, on each thread. */
#include <stdlib.h>

#include "graph/build.h"
#include "graph/local.h"
#include "graph/names.h"

enum { LOOK_BACK = 64 };

static size_t at(const struct rank_build *rank, uint32_t step, uint32_t op)
{
    return (size_t)step * rank->n_timed + op;
}

/* The first of a lane's items in the template that starts after `ns`. */
static uint32_t first_after(const struct rank_build *rank, const struct lane *lane, int64_t ns)
{
    uint32_t low = lane->first[rank->template_step], high = lane->first[rank->template_step + 1];
    while (low < high) {
        uint32_t mid = (low + high) / 2;
        if (rank->items.at[mid].start_ns <= ns)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

/* ---- calls that wait ---- */

static void wait_until(struct rank_build *rank, uint32_t wait, uint32_t awaited)
{
    for (uint32_t s = 0; s < rank->steps.n; s++) {
        int64_t over = rank->end_ns[at(rank, s, awaited)], end = rank->end_ns[at(rank, s, wait)];
        int64_t *start = &rank->start_ns[at(rank, s, wait)];
        if (over != ABSENT && *start != ABSENT && over > *start)
            *start = over < end ? over : end;
    }
}

/* The lane's ops that were over when the call returned, and began no earlier than `since`: of a
 * thread the last one; of exchanges, which have no order, each. */
static int add_awaited(struct rank_build *rank, const uint32_t *op_of_item, const struct lane *lane,
                       uint32_t wait, int64_t start, int64_t end)
{
    bool ordered = lane->kind == DPRO_DEVICE_CPU_THREAD;
    uint32_t first = lane->first[rank->template_step], n_looked = 0;
    for (uint32_t i = first_after(rank, lane, end); i-- > first;) {
        if (op_of_item[i] == NO_ID || rank->items.at[i].end_ns <= start)
            continue;
        if (ordered && n_looked++ == LOOK_BACK)
            return 0;
        uint32_t op = local_end_op(rank, op_of_item[i]);
        if (!local_holds(rank, op, wait, false, true))
            continue;
        if (local_add_edge(rank, op, wait, false, true) < 0)
            return -1;
        if (ordered)
            return 0;
    }
    return 0;
}

static int add_waits(struct rank_build *rank, const uint32_t *op_of_item)
{
    for (uint32_t o = 0; o < rank->ops.n; o++) {
        const struct local_op *op = &rank->ops.at[o];
        if (op->item == NO_ID || !(rank->classes[op->name] & NAME_HOST_WAIT) || op->lane == NO_ID)
            continue;
        int64_t start = rank->start_ns[at(rank, rank->template_step, o)];
        int64_t end = rank->end_ns[at(rank, rank->template_step, o)];
        size_t first = rank->edges.n;
        for (uint32_t l = 0; l < rank->n_lanes; l++)
            if (l != op->lane && rank->lanes[l].kind != DPRO_DEVICE_GPU_STREAM &&
                add_awaited(rank, op_of_item, &rank->lanes[l], o, start, end) < 0)
                return -1;
        for (size_t e = first; e < rank->edges.n; e++)
            wait_until(rank, o, rank->edges.at[e].from);
    }
    return 0;
}

/* ---- exchanges ---- */

static int add_before(struct rank_build *rank, const uint32_t *op_of_item, const struct lane *lane,
                      uint32_t arrival)
{
    int64_t start = rank->start_ns[at(rank, rank->template_step, arrival)];
    uint32_t first = lane->first[rank->template_step], n_looked = 0;
    for (uint32_t i = first_after(rank, lane, start); i-- > first && n_looked < LOOK_BACK;) {
        size_t n_before = rank->edges.n;
        if (op_of_item[i] == NO_ID || rank->items.at[i].end_ns > start + LOCAL_ROUNDING_NS)
            continue;
        n_looked++;
        if (local_add_if_holds(rank, local_end_op(rank, op_of_item[i]), arrival, false) < 0)
            return -1;
        if (rank->edges.n > n_before)
            return 0;
    }
    return 0;
}

static int add_exchanges(struct rank_build *rank, const uint32_t *op_of_item)
{
    for (size_t c = 0; c < rank->collectives.n; c++) {
        uint32_t arrival = rank->collectives.at[c].arrival;
        if (!(rank->classes[rank->ops.at[arrival].name] & NAME_EXCHANGE))
            continue;
        for (uint32_t l = 0; l < rank->n_lanes; l++)
            if (rank->lanes[l].kind == DPRO_DEVICE_CPU_THREAD &&
                add_before(rank, op_of_item, &rank->lanes[l], arrival) < 0)
                return -1;
    }
    return 0;
}

int local_add_engine_edges(struct rank_build *rank, const uint32_t *op_of_item)
{
    return add_waits(rank, op_of_item) < 0 || add_exchanges(rank, op_of_item) < 0 ? -1 : 0;
}
