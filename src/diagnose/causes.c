/* The table of causes: what each takes away from the replayed iterations. */
#include "diagnose/pieces.h"

#include <dpro/dimensions.h>

/* ---- a rank that computes slower than its peers ---- */

struct work { /* an op, by what its rank does for how many times */
    uint64_t key;
    uint32_t op;
};

ORDER(by_key, struct work, ASCENDING(key) ?: ASCENDING(op));

static bool is_computing(const struct dpro_graph *g, uint32_t op)
{
    return g->kind[op] == DPRO_OP_FW || g->kind[op] == DPRO_OP_BW || g->kind[op] == DPRO_OP_UPDATE;
}

/* All ranks' ops, those that do the same side by side. */
static struct work *same_work(const struct diagnosed *d, size_t *n)
{
    const struct dpro_graph *g = d->g;
    SCRATCH struct map times = {0};
    struct work *all = mem_array(g->n_ops + (size_t)1, sizeof *all);
    *n = 0;
    for (uint32_t op = 0; op < g->n_ops; op++) {
        if (!is_computing(g, op))
            continue;
        uint64_t what = map_mix((uint64_t)g->name[op] << 8 | g->kind[op]);
        uint64_t time = map_add(&times, map_key(what ^ map_mix(g->rank[op] + (uint64_t)1)), 1);
        all[(*n)++] = (struct work){map_mix(what + time), op};
    }
    if (*n > 0)
        qsort(all, *n, sizeof *all, by_key);
    return all;
}

static void find_slow_ranks(const struct diagnosed *d, struct cause_found *found)
{
    size_t n;
    SCRATCH struct work *all = same_work(d, &n);
    SCRATCH int64_t *peers = mem_array(n + 1, sizeof *peers);
    for (size_t first = 0, end; first < n; first = end) {
        for (end = first; end < n && all[end].key == all[first].key;)
            end++;
        size_t n_peers = end - first;
        if (n_peers < 2)
            continue;
        int64_t *more = arena_array(found->arena, n_peers * d->n_iterations, sizeof *more);
        for (uint32_t i = 0; i < d->n_iterations; i++) {
            for (size_t k = 0; k < n_peers; k++)
                peers[k] = left_of(d, i, all[first + k].op, false);
            sort_i64(peers, n_peers);
            for (size_t k = 0; k < n_peers; k++)
                more[k * d->n_iterations + i] =
                    MAX(left_of(d, i, all[first + k].op, false) - peers[(n_peers - 1) / 2], 0);
        }
        for (size_t k = 0; k < n_peers; k++) {
            uint32_t op = all[first + k].op, rank = d->g->rank[op];
            uint32_t part = found_part(found, rank, "rank %d", d->g->ranks[rank].rank);
            array_add(&found->pieces, .op = op, .part = part, .ns = more + k * d->n_iterations);
        }
    }
}

/* ---- communication ---- */

static bool is_communication(const struct dpro_graph *g, uint32_t op)
{
    return g->kind[op] == DPRO_OP_COLLECTIVE ||
           (g->kind[op] >= DPRO_OP_SEND && g->kind[op] <= DPRO_OP_REDUCE);
}

static void find_communication(const struct diagnosed *d, struct cause_found *found)
{
    const struct dpro_graph *g = d->g;
    for (uint32_t op = 0; op < g->n_ops; op++) {
        if (!is_communication(g, op))
            continue;
        uint32_t dimension = g->dimension ? g->dimension[op] : 0;
        const char *tensor = g->tensor ? strtab_get(&g->names, g->tensor[op]) : "";
        const char *name = tensor[0] ? tensor : strtab_get(&g->names, g->name[op]);
        uint32_t part =
            dimension ? found_part(found, map_text_key(name) ^ dimension, "%s (%s)", name,
                                   dpro_parallelism_name(g->dimensions[dimension - 1].parallelism))
                      : found_part(found, map_text_key(name), "%s", name);
        array_add(&found->pieces, .op = op, .part = part);
        array_add(&found->pieces, .op = op, .part = part, .gap = true);
    }
}

/* ---- launching ---- */

static void find_launch(const struct diagnosed *d, struct cause_found *found)
{
    const struct dpro_graph *g = d->g;
    for (uint32_t op = 0; op < g->n_ops; op++) {
        if (g->kind[op] != DPRO_OP_LAUNCH)
            continue;
        uint32_t rank = g->rank[op];
        uint32_t part = found_part(found, rank, "rank %d", g->ranks[rank].rank);
        array_add(&found->pieces, .op = op, .part = part);
        array_add(&found->pieces, .op = op, .part = part, .gap = true);
    }
}

const struct cause_row cause_rows[] = {
    {"slow_rank", "a rank computes slower than its peers on the same work", find_slow_ranks, NULL},
    {"communication", "communication that nothing hides", find_communication, NULL},
    {"launch", "the CPU is behind the GPU: launching its work", find_launch, NULL},
};
const uint32_t n_cause_rows = sizeof cause_rows / sizeof *cause_rows;
