/* What each dimension of parallelism costs, and who sends how much to whom, worked out once for
 * every form of the report. */

#include "graph/graph.h"
#include "report/facts.h"

/* ---- time and bytes by dimension ---- */

static int64_t lost_ns(const struct dpro_dimension_time *time)
{
    return time->exposed_communication_ns + time->wait_for_peers_ns;
}

/* `dimension`: 1 + its index; 0: none. */
static struct dimension_fact sum_dimension(const struct report_facts *f, uint32_t dimension)
{
    struct dimension_fact fact = {.most_rank = -1};
    uint32_t n = MAX(f->n_ranks, 1);
    for (uint32_t r = 0; r < f->n_ranks; r++) {
        struct dpro_dimension_time time =
            f->replay->dimensions[(size_t)r * (f->replay->n_dimensions + 1) + dimension];
        fact.mean.exposed_communication_ns += time.exposed_communication_ns;
        fact.mean.wait_for_peers_ns += time.wait_for_peers_ns;
        fact.mean.communication_ns += time.communication_ns;
        if (fact.most_rank < 0 || lost_ns(&time) > fact.most_ns) {
            fact.most_ns = lost_ns(&time);
            fact.most_rank = f->ranks[r].time.rank;
        }
    }
    fact.mean.exposed_communication_ns /= n;
    fact.mean.wait_for_peers_ns /= n;
    fact.mean.communication_ns /= n;
    return fact;
}

static void sum_dimensions(struct report_facts *f)
{
    struct parallel_facts *p = &f->parallel;
    uint32_t n = dpro_graph_n_dimensions(f->g);
    if (n == 0)
        return;
    p->dimensions = arena_array(&f->arena, n + (size_t)1, sizeof *p->dimensions);
    for (uint32_t d = 0; d <= n; d++) {
        struct dimension_fact fact = sum_dimension(f, d < n ? d + 1 : 0);
        fact.name = d < n ? dpro_graph_dimension(f->g, d).name : "between";
        fact.bytes = d < n ? dpro_graph_dimension(f->g, d).bytes_per_rank : 0;
        if (d < n || fact.most_ns + fact.mean.communication_ns > 0)
            p->dimensions[p->n_dimensions++] = fact;
    }
}

/* ---- who sends how much to whom ---- */

enum { MOST_SENDERS = 256 }; /* of more ranks, the first */

struct adder {
    const struct dpro_graph *graph;
    ARRAY(struct traffic_fact) all;
    struct map places;
};

static void add_bytes(struct adder *adder, int from, int to, uint32_t dimension, uint64_t bytes,
                      bool assumed)
{
    const struct dpro_graph *g = adder->graph;
    uint32_t shown = MIN(g->n_ranks, (uint32_t)MOST_SENDERS);
    int last = shown > 0 ? g->ranks[shown - 1].rank : -1;
    if (bytes == 0 || from == to || from > last || to > last)
        return;
    uint64_t key = map_mix(map_mix((uint64_t)from << 32 | (uint32_t)to) + dimension) | 1;
    size_t place = (size_t)map_number(&adder->places, key);
    if (place == adder->all.n)
        array_add(&adder->all, .from = from, .to = to, .dimension = dimension);
    adder->all.at[place].bytes += bytes;
    adder->all.at[place].assumed |= assumed;
}

static int rank_of(const struct dpro_graph *g, uint32_t op)
{
    return g->ranks[g->rank[op]].rank;
}

/* A message that was logged. */
static void add_message(void *arg, dpro_op_id send, dpro_op_id receive)
{
    struct adder *adder = arg;
    const struct dpro_graph *g = adder->graph;
    add_bytes(adder, rank_of(g, send), rank_of(g, receive), dpro_graph_op_dimension(g, receive),
              g->size_bytes ? g->size_bytes[receive] : 0, false);
}

/* Ranks of the collective's group, ascending; 0: they are not known. */
static uint32_t group_of(const struct dpro_graph *g, const struct graph_collective *c, int *ranks)
{
    const struct graph_member *members = &g->members[c->first_member];
    if (c->n_members == c->n_expected) {
        for (uint32_t m = 0; m < c->n_members; m++)
            ranks[m] = rank_of(g, members[m].transfer);
        return c->n_members;
    }
    if (g->n_dimensions == 0 || c->dimension >= g->n_dimensions ||
        g->dimensions[c->dimension].size != c->n_expected)
        return 0;
    const struct graph_dimension *d = &g->dimensions[c->dimension];
    for (uint32_t k = 0; k < d->n_groups; k++)
        for (uint32_t i = 0; i < d->size; i++)
            if (d->ranks[(size_t)k * d->size + i] == rank_of(g, members[0].transfer)) {
                memcpy(ranks, d->ranks + (size_t)k * d->size, d->size * sizeof *ranks);
                return d->size;
            }
    return 0;
}

/* What each member of a ring of n sends to the next one, of `bytes` that it puts in. */
static uint64_t ring_bytes(uint8_t kind, uint64_t bytes, uint64_t n)
{
    bytes = MIN(bytes, UINT64_MAX / (2 * n));
    if (kind == DPRO_ALL_REDUCE)
        return bytes * 2 * (n - 1) / n;
    if (kind == DPRO_ALL_GATHER)
        return bytes * (n - 1);
    if (kind == DPRO_REDUCE_SCATTER)
        return bytes * (n - 1) / n;
    if (kind == DPRO_SEND_RECV) /* its size is that of both ways */
        return n == 2 ? bytes / 2 : 0;
    return 0;
}

static void add_collective(struct adder *adder, const struct graph_collective *c, int *ranks)
{
    const struct dpro_graph *g = adder->graph;
    uint8_t kind = c->kind;
    const struct graph_member *members = &g->members[c->first_member];
    uint32_t dimension = g->n_dimensions > 0 ? c->dimension : DPRO_NO_DIMENSION;
    if (collective_is_one(kind, DPRO_SEND, DPRO_RECV)) {
        bool first_sends = c->n_members == 2 && g->kind[members[0].transfer] == DPRO_OP_SEND;
        if (c->n_members == 2)
            add_bytes(adder, rank_of(g, members[!first_sends].transfer),
                      rank_of(g, members[first_sends].transfer), dimension, c->size_bytes, false);
        return;
    }
    uint32_t n = group_of(g, c, ranks);
    for (uint32_t i = 0; i < n; i++) {
        if (kind == DPRO_ALL_TO_ALL)
            for (uint32_t k = 0; k < n; k++)
                add_bytes(adder, ranks[i], ranks[k], dimension, c->size_bytes / n, true);
        else
            add_bytes(adder, ranks[i], ranks[(i + 1) % n], dimension,
                      ring_bytes(kind, c->size_bytes, n), true);
    }
}

ORDER(by_ranks, struct traffic_fact, ASCENDING(from) ?: ASCENDING(to) ?: ASCENDING(dimension));

static void sum_traffic(struct report_facts *f)
{
    struct adder adder = {.graph = f->g};
    uint32_t most = 1;
    for (uint32_t c = 0; c < f->g->n_collectives; c++)
        most = MAX(most, f->g->collectives[c].n_members);
    for (uint32_t d = 0; d < f->g->n_dimensions; d++)
        most = MAX(most, f->g->dimensions[d].size);
    int *ranks = mem_alloc(most * sizeof *ranks);
    graph_each_message(f->g, add_message, &adder);
    EACH_OF (const struct graph_collective, c, f->g->collectives, f->g->n_collectives)
        if (c->n_messages == 0 && c->n_members > 0 && c->n_expected > 1)
            add_collective(&adder, c, ranks);
    array_sort(&adder.all, by_ranks);
    f->parallel.n_traffic = (uint32_t)adder.all.n;
    f->parallel.traffic =
        arena_copy(&f->arena, adder.all.at, adder.all.n, sizeof *f->parallel.traffic);
    FREE_ALL(&ranks, &adder.all, &adder.places);
}

void parallel_sum(struct report_facts *f)
{
    sum_dimensions(f);
    pipeline_find(f->g, &f->arena, &f->parallel.pipeline);
    sum_traffic(f);
}
