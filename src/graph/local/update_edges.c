/* graph/local/update_edges.c: a worker that updates its parameters itself, with gradients that
 * servers added up.
 *
 * MXNet's optimizer takes gradients in order of their keys, as many at once as it updates together
 * (MXNET_OPTIMIZER_AGGREGATION_SIZE), and the engine runs first what has all its gradients first.
 * So which of an iteration's updates is which, as they bear one name, shows in when the gradients
 * came. */
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/sort.h"
#include "graph/local/local_edges.h"
#include "graph/names/span_names.h"
#include "graph/rank_build.h"

/* The exchanges whose gradients one update takes. */
struct taken {
    size_t first, n; /* in order of keys */
    int64_t ready_ns;
};

struct updates {
    uint32_t *ops;       /* in order of start */
    uint32_t *exchanges; /* collectives, in order of keys */
    size_t n_exchanges, together;
    struct taken
        *taken; /* [n_updates] in the order in which they were ready in the reference iteration */
};

static bool is_update(const struct rank_build *rank, uint32_t o)
{
    const struct local_op *op = &rank->ops.at[o];
    return op->slice != NO_ID && op->track != NO_ID &&
           rank->tracks.at[op->track].kind == DPRO_DEVICE_CPU_THREAD &&
           (rank->classes[op->name] & NAME_UPDATE_NODE) &&
           slice_span(rank, op->slice)->kind == SPAN_CPU_OP;
}

bool local_is_in_turn(const struct rank_build *rank, uint32_t op)
{
    return rank->updates.in_turn && is_update(rank, op);
}

ORDER_OF_INDICES(by_key, struct local_collective, ASCENDING(key));

ORDER(by_ready, struct taken, ASCENDING(ready_ns) ?: ASCENDING(first));

/* In the order in which they were ready in a step. Returns whether that is known. */
static bool list_taken(const struct rank_build *rank, const struct updates *u, uint32_t step,
                       struct taken *taken)
{
    size_t n = 0;
    for (size_t e = 0; e < u->n_exchanges; e++) {
        const struct local_collective *c = &rank->collectives.at[u->exchanges[e]];
        int64_t ready = local_pred_end(rank, step, c->transfer, u->ops[0] < c->arrival);
        if (ready == ABSENT)
            return false;
        if (e % u->together == 0)
            taken[n++] = (struct taken){e, 0, INT64_MIN};
        taken[n - 1].n++;
        if (ready > taken[n - 1].ready_ns)
            taken[n - 1].ready_ns = ready;
    }
    qsort(taken, n, sizeof *taken, by_ready);
    return true;
}

static void fini(struct updates *u)
{
    mem_free(u->ops);
    mem_free(u->exchanges);
    mem_free(u->taken);
}

static int init(const struct rank_build *rank, struct updates *u)
{
    *u = (struct updates){.ops = mem_alloc((rank->ops.n + 1) * sizeof *u->ops),
                          .exchanges = mem_alloc((rank->collectives.n + 1) * sizeof *u->exchanges),
                          .taken = mem_alloc((rank->ops.n + 1) * sizeof *u->taken)};
    if (!u->ops || !u->exchanges || !u->taken) {
        fini(u);
        return -1;
    }
    size_t n = 0;
    for (uint32_t o = 0; o < rank->n_timed; o++)
        if (is_update(rank, o))
            u->ops[n++] = o;
    for (size_t c = 0; c < rank->collectives.n; c++)
        if (build_is_exchange(rank, rank->collectives.at[c].arrival))
            u->exchanges[u->n_exchanges++] = (uint32_t)c;
    qsort_r(u->exchanges, u->n_exchanges, sizeof *u->exchanges, by_key, rank->collectives.at);
    u->together = n > 0 ? (u->n_exchanges + n - 1) / n : 0;
    return 0;
}

/* Whether each update has its gradients: as many for each, but for the last. */
static bool are_shared_out(const struct rank_build *rank, struct updates *u, size_t n)
{
    for (size_t i = 1; i < n; i++)
        if (rank->ops.at[u->ops[i]].name != rank->ops.at[u->ops[0]].name)
            return false;
    return u->together > 0 && (u->n_exchanges + u->together - 1) / u->together == n &&
           list_taken(rank, u, rank->steps.reference, u->taken);
}

/* What ran in a step as the update of the same gradients as in the reference iteration. */
static void sort_step(struct rank_build *rank, const struct updates *u, uint32_t step,
                      struct taken *taken, uint32_t *matches)
{
    size_t first = (size_t)step * rank->n_timed;
    for (size_t i = 0; i < rank->updates.n; i++)
        if ((matches[i] = rank->match[first + u->ops[i]]) == NO_ID)
            return;
    if (!list_taken(rank, u, step, taken))
        return;
    for (size_t i = 0; i < rank->updates.n; i++) {
        size_t turn = 0, at = first + u->ops[i];
        while (taken[turn].first != u->taken[i].first)
            turn++;
        rank->match[at] = matches[turn];
        rank->start_ns[at] = rank->slices.at[matches[turn]].start_ns;
        rank->end_ns[at] = rank->slices.at[matches[turn]].end_ns;
    }
}

/* When its thread had done what came before each, whatever that was. */
static int find_free(struct rank_build *rank, const struct updates *u)
{
    size_t n_times = (size_t)rank->n_timed * rank->steps.n;
    rank->free_ns = mem_alloc((n_times + 1) * sizeof *rank->free_ns);
    if (!rank->free_ns)
        return -1;
    for (size_t i = 0; i < n_times; i++)
        rank->free_ns[i] = ABSENT;
    for (uint32_t s = 0; s < rank->steps.n; s++)
        for (size_t i = 0; i < rank->updates.n; i++) {
            size_t at = (size_t)s * rank->n_timed + u->ops[i];
            uint32_t slice = rank->match[at], track = rank->ops.at[u->ops[i]].track;
            if (slice != NO_ID && slice > rank->tracks.at[track].first[0])
                rank->free_ns[at] = rank->slices.at[slice - 1].end_ns;
        }
    return 0;
}

int local_sort_updates(struct rank_build *rank)
{
    struct updates u;
    if (init(rank, &u) < 0)
        return -1;
    size_t n = 0;
    for (uint32_t o = 0; o < rank->n_timed; o++)
        n += is_update(rank, o);
    rank->updates.n = u.n_exchanges > 0 ? (uint32_t)n : 0;
    rank->updates.in_turn = rank->updates.n > 0 && are_shared_out(rank, &u, n);
    struct taken *taken = mem_alloc((n + 1) * sizeof *taken);
    uint32_t *matches = mem_alloc((n + 1) * sizeof *matches);
    int status = taken && matches ? 0 : -1;
    for (uint32_t s = 0; s < rank->steps.n && status == 0 && rank->updates.in_turn; s++)
        if (s != rank->steps.reference)
            sort_step(rank, &u, s, taken, matches);
    if (status == 0 && rank->updates.in_turn)
        status = find_free(rank, &u);
    mem_free(taken);
    mem_free(matches);
    fini(&u);
    return status;
}

/* After the update that is to take it, or else the first one that always came after. */
static int add_edge(struct rank_build *rank, const struct updates *u, uint32_t to,
                    const struct local_collective *c)
{
    size_t n_before = rank->edges.n;
    for (uint32_t i = to; i < rank->updates.n && rank->edges.n == n_before; i++)
        if (local_add_if_holds(rank, c->transfer, u->ops[i], u->ops[i] < c->arrival) < 0)
            return -1;
    return 0;
}

int local_add_update_edges(struct rank_build *rank)
{
    struct updates u;
    int status = init(rank, &u);
    if (status < 0)
        return -1;
    size_t n = rank->updates.in_turn ? rank->updates.n : 1;
    if (!rank->updates.in_turn)
        u.taken[0] = (struct taken){0, u.n_exchanges, 0};
    else
        list_taken(rank, &u, rank->steps.reference, u.taken);
    for (uint32_t t = 0; t < n; t++)
        for (size_t e = u.taken[t].first; e < u.taken[t].first + u.taken[t].n && status == 0; e++)
            status = add_edge(rank, &u, t, &rank->collectives.at[u.exchanges[e]]);
    fini(&u);
    return status;
}
