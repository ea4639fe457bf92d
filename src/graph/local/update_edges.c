/* Edges of a worker that updates its parameters itself, with gradients that servers added up.
 *
 * MXNet's optimizer takes gradients in order of their keys, as many at once as it updates together
 * (MXNET_OPTIMIZER_AGGREGATION_SIZE). The engine runs first the update whose gradients are there
 * first. All updates have one name, so the times at which gradients came show which is which. */
#include "graph/local/local_edges.h"

/* The exchanges whose gradients one update takes. */
struct edges_taken {
    size_t first, n; /* in order of keys */
    int64_t ready_ns;
};

typedef ARRAY(struct edges_taken) taken_array;

struct updates {
    ARRAY(uint32_t) ops;       /* in order of start */
    ARRAY(uint32_t) exchanges; /* collectives, in order of keys */
    size_t together;
    taken_array taken; /* by update, in the order in which they were ready in the reference
                          iteration */
};

ORDER_OF_INDICES(by_key, struct local_collective, ASCENDING(key));

ORDER(by_ready, struct edges_taken, ASCENDING(ready_ns) ?: ASCENDING(first));

/* In the order in which they were ready in a step. Returns whether that is known. */
static bool list_taken(const struct rank_build *rank, const struct updates *u, uint32_t step,
                       taken_array *taken)
{
    taken->n = 0;
    for (size_t e = 0; e < u->exchanges.n; e++) {
        const struct local_collective *c = &rank->collectives.at[u->exchanges.at[e]];
        int64_t ready = local_pred_end(rank, step, c->transfer, u->ops.at[0] < c->arrival);
        if (ready == ABSENT)
            return false;
        if (e % u->together == 0)
            array_add(taken, e, 0, INT64_MIN);
        struct edges_taken *last = &taken->at[taken->n - 1];
        last->n++;
        last->ready_ns = MAX(last->ready_ns, ready);
    }
    array_sort(taken, by_ready);
    return true;
}

static void edges_fini(struct updates *u)
{
    FREE_ALL(&u->ops, &u->exchanges, &u->taken);
}

static struct updates find_updates(const struct rank_build *rank)
{
    struct updates u = {0};
    for (uint32_t o = 0; o < rank->n_timed; o++)
        if (local_is_update(rank, o))
            array_push(&u.ops, o);
    for (uint32_t c = 0; c < rank->collectives.n; c++)
        if (build_is_exchange(rank, rank->collectives.at[c].arrival))
            array_push(&u.exchanges, c);
    array_sort_by(&u.exchanges, by_key, rank->collectives.at);
    u.together = u.ops.n > 0 ? (u.exchanges.n + u.ops.n - 1) / u.ops.n : 0;
    return u;
}

/* Whether each update has its gradients: as many for each, but for the last. */
static bool are_shared_out(const struct rank_build *rank, struct updates *u)
{
    for (size_t i = 1; i < u->ops.n; i++)
        if (rank->ops.at[u->ops.at[i]].name != rank->ops.at[u->ops.at[0]].name)
            return false;
    return u->together > 0 && (u->exchanges.n + u->together - 1) / u->together == u->ops.n &&
           list_taken(rank, u, rank->steps.reference, &u->taken);
}

/* What ran in a step as the update of the same gradients as in the reference iteration. */
static void sort_step(struct rank_build *rank, const struct updates *u, uint32_t step,
                      taken_array *taken, uint32_t *matches)
{
    for (size_t i = 0; i < u->ops.n; i++)
        if ((matches[i] = rank->match[build_at(rank, step, u->ops.at[i])]) == NO_ID)
            return;
    if (!list_taken(rank, u, step, taken))
        return;
    for (size_t i = 0; i < u->ops.n; i++) {
        size_t turn = 0, at = build_at(rank, step, u->ops.at[i]);
        while (taken->at[turn].first != u->taken.at[i].first)
            turn++;
        rank->match[at] = matches[turn];
        rank->start_ns[at] = rank->slices.at[matches[turn]].start_ns;
        rank->end_ns[at] = rank->slices.at[matches[turn]].end_ns;
    }
}

/* When its thread had done what came before each, whatever that was. */
static void find_free(struct rank_build *rank, const struct updates *u)
{
    build_alloc_free_ns(rank);
    for (uint32_t s = 0; s < rank->steps.n; s++)
        for (size_t i = 0; i < u->ops.n; i++) {
            size_t at = build_at(rank, s, u->ops.at[i]);
            uint32_t slice = rank->match[at], track = rank->ops.at[u->ops.at[i]].track;
            if (slice != NO_ID && slice > rank->tracks.at[track].first[0])
                rank->free_ns[at] = rank->slices.at[slice - 1].end_ns;
        }
}

void rule_sort_updates(struct rank_build *rank)
{
    struct updates u = find_updates(rank);
    rank->updates.n = (uint32_t)u.ops.n;
    rank->updates.in_turn = u.ops.n > 0 && are_shared_out(rank, &u);
    if (rank->updates.in_turn) {
        SCRATCH taken_array taken = {0};
        SCRATCH uint32_t *matches = mem_alloc(u.ops.n * sizeof *matches);
        for (uint32_t s = 0; s < rank->steps.n; s++)
            if (s != rank->steps.reference)
                sort_step(rank, &u, s, &taken, matches);
        find_free(rank, &u);
    }
    edges_fini(&u);
}

/* After the update that is to take it, or else the first one that always came after. */
static void add_edge(struct rank_build *rank, const struct updates *u, size_t to,
                     const struct local_collective *c)
{
    for (size_t i = to; i < u->ops.n; i++)
        if (local_add_if_holds(rank, c->transfer, u->ops.at[i], u->ops.at[i] < c->arrival))
            return;
}

void rule_updates(struct rank_build *rank)
{
    struct updates u = find_updates(rank);
    if (rank->updates.in_turn)
        list_taken(rank, &u, rank->steps.reference, &u.taken);
    else
        array_add(&u.taken, 0, u.exchanges.n, 0);
    for (size_t t = 0; t < u.taken.n; t++)
        for (size_t e = u.taken.at[t].first; e < u.taken.at[t].first + u.taken.at[t].n; e++)
            add_edge(rank, &u, t, &rank->collectives.at[u.exchanges.at[e]]);
    edges_fini(&u);
}
