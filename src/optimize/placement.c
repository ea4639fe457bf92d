/* Plans for parameter servers: where only placement can be changed, the size from which arrays are
 * split over all servers, or the server of each tensor; or the size of parts. */

#include "cost/program/buckets.h"
#include "cost/program/server_placement.h"
#include "optimize/search.h"

/* A tensor moves, and an array is partitioned, only if that wins more of an iteration than this:
 * the model is not more exact. */
#define WORTH_A_MOVE 0.0005
#define WORTH_PARTS  0.005

enum { MOST_WAYS = 4096 }; /* up to that many are all tried */

/* Tries all bounds that make a difference, first the one that partitions nothing; of those about as
 * good, the one that partitions least is taken. */
static void search_bounds(struct space *space, const struct dpro_strategy *baseline)
{
    const struct dpro_model *model = space->model;
    struct dpro_strategy strategy = space_copy_of(space, baseline), chosen = space_strategy(space);
    uint64_t *sizes = arena_array(&space->arena, model->n_tensors, sizeof *sizes);
    uint32_t n = strategy.n_buckets;
    for (uint32_t b = 0; b < n; b++)
        sizes[b] = bucket_size_bytes(model, &strategy, b) / sizeof(float);
    sort_u64(sizes, n);
    int64_t chosen_ns = INT64_MAX;
    for (uint32_t i = n + 1; i-- > 0 && !search_stops(space->search);) {
        if (i < n && (sizes[i] == 0 || (i + 1 < n && sizes[i] == sizes[i + 1])))
            continue;
        servers_set_bound(model, i < n ? sizes[i] : UINT64_MAX, &strategy);
        int64_t ns = space_evaluate(space, &strategy);
        if ((double)ns < (double)chosen_ns * (1 - WORTH_PARTS)) {
            chosen_ns = ns;
            space_copy(space, &strategy, &chosen);
        }
        space->search->n_rounds++;
    }
    if (chosen_ns < space->search->baseline_ns) {
        space_copy(space, &chosen, &space->best);
        space->best_ns = chosen_ns;
    }
}

/* Tries all placements where these are few, as moving one or two tensors at a time may miss a gain
 * that takes three. Returns whether they were few. */
static bool try_all(struct space *space, struct dpro_strategy *strategy)
{
    uint32_t n_servers = sync_n_servers(&space->model->net), n_ways = 1;
    for (uint32_t b = 0; b < strategy->n_buckets; b++)
        if ((n_ways *= n_servers) > MOST_WAYS)
            return false;
    for (uint32_t way = 0; way < n_ways && !search_stops(space->search); way++) {
        uint32_t rest = way;
        for (uint32_t b = 0; b < strategy->n_buckets; b++, rest /= n_servers)
            strategy->buckets[b].server = rest % n_servers;
        space_evaluate(space, strategy);
    }
    space->search->n_rounds++;
    return true;
}

ORDER_OF_INDICES(by_size, uint64_t, COMPARE(*y, *x));

/* The largest first, each to the server that has least. */
static void placement_level(const struct dpro_model *model, const uint32_t *largest_first,
                            const uint64_t *sizes, uint64_t *load, struct dpro_strategy *strategy)
{
    uint32_t n = sync_n_servers(&model->net);
    for (uint32_t i = 0; i < strategy->n_buckets; i++) {
        uint32_t b = largest_first[i], least = 0;
        for (uint32_t s = 1; s < n; s++)
            least = load[s] < load[least] ? s : least;
        strategy->buckets[b].server = least;
        load[least] += sizes[b] + 1;
    }
}

/* Whether the strategy, as it was changed, takes that much less than *best_ns. */
static bool is_better(struct space *space, const struct dpro_strategy *strategy, int64_t *best_ns)
{
    int64_t ns = space_evaluate(space, strategy);
    bool better = (double)ns < (double)*best_ns * (1 - WORTH_A_MOVE);
    *best_ns = better ? ns : *best_ns;
    return better;
}

/* Moves tensors to other servers, and swaps them, as long as that helps. */
static void placement_improve(struct space *space, const uint32_t *largest_first,
                              struct dpro_strategy *strategy)
{
    struct search *search = space->search;
    uint32_t n = strategy->n_buckets, n_servers = sync_n_servers(&space->model->net);
    int64_t best_ns = space_evaluate(space, strategy);
    for (bool moved = true; moved && !search_stops(search); search->n_rounds++) {
        moved = false;
        for (uint32_t i = 0; i < n && !search_stops(search); i++) {
            uint32_t *a = &strategy->buckets[largest_first[i]].server, was = *a, to = was;
            for (uint32_t s = 0; s < n_servers; s++) {
                *a = s;
                if (s != was && is_better(space, strategy, &best_ns))
                    to = s;
            }
            *a = to;
            moved |= to != was;
            for (uint32_t k = i + 1; k < n && !search_stops(search); k++) {
                uint32_t *b = &strategy->buckets[largest_first[k]].server;
                uint32_t first = *a, second = *b;
                *a = second;
                *b = first;
                if (first == second || is_better(space, strategy, &best_ns)) {
                    moved |= first != second;
                } else {
                    *a = first;
                    *b = second;
                }
            }
        }
    }
}

/* Tensors go back where moving them won next to nothing. */
static void placement_stay(struct space *space, const struct dpro_strategy *baseline,
                           struct dpro_strategy *strategy)
{
    int64_t most_ns = (int64_t)((double)space->best_ns * (1 + WORTH_A_MOVE));
    space_copy(space, &space->best, strategy);
    for (uint32_t b = 0; b < baseline->n_buckets && !search_stops(space->search); b++) {
        uint32_t moved = strategy->buckets[b].server;
        strategy->buckets[b].server = baseline->buckets[b].server;
        if (moved != baseline->buckets[b].server && space_evaluate(space, strategy) > most_ns)
            strategy->buckets[b].server = moved;
    }
    space->best_ns = space_evaluate(space, strategy);
    space_copy(space, strategy, &space->best);
}

static void search_places(struct space *space, const struct dpro_strategy *baseline)
{
    const struct dpro_model *model = space->model;
    size_t n = baseline->n_buckets, n_servers = sync_n_servers(&model->net);
    struct dpro_strategy strategy = space_copy_of(space, baseline);
    uint32_t *largest_first = arena_array(&space->arena, n, sizeof *largest_first);
    uint64_t *sizes = arena_array(&space->arena, n, sizeof *sizes);
    uint64_t *load = arena_array(&space->arena, n_servers, sizeof *load);
    for (uint32_t b = 0; b < n; b++) {
        largest_first[b] = b;
        sizes[b] = bucket_size_bytes(model, &strategy, b);
    }
    qsort_r(largest_first, n, sizeof *largest_first, by_size, sizes);
    if (!try_all(space, &strategy)) {
        placement_improve(space, largest_first, &strategy);
        placement_level(model, largest_first, sizes, load, &strategy);
        placement_improve(space, largest_first, &strategy);
    }
    placement_stay(space, baseline, &strategy);
}

/* From the smallest that is usual to what cuts nothing. */
void search_part_size(struct space *space)
{
    enum { LEAST_PART = 1 << 16 };
    const struct dpro_model *model = space->model;
    struct dpro_strategy strategy = space_copy_of(space, &space->best);
    uint64_t largest = 0;
    for (uint32_t b = 0; b < strategy.n_buckets; b++)
        largest = MAX(largest, bucket_size_bytes(model, &strategy, b));
    for (uint64_t size = LEAST_PART; size < largest && !search_stops(space->search); size *= 2) {
        buckets_partition(model, size, &strategy);
        space_evaluate(space, &strategy);
        space->search->n_rounds++;
    }
}

bool placement_is_all(const struct dpro_model *model)
{
    return sync_n_servers(&model->net) > 0 &&
           (model->capabilities.parts == PARTS_OVER_SERVERS || model->capabilities.places);
}

void search_placement(struct space *space, const struct dpro_strategy *baseline)
{
    if (space->model->capabilities.places)
        search_places(space, baseline);
    else
        search_bounds(space, baseline);
}
