/* optimize/assign.c: what a parameter server's job can be given where it is little: from which size
 * on arrays are parted over all servers, or which server each tensor is on. */
#include <stdlib.h>

#include "cost/buckets.h"
#include "cost/server_placement.h"
#include "optimize/search.h"

/* A tensor moves, and an array is parted, only for so much of an iteration: the model is not more
 * exact. */
#define WORTH_A_MOVE 0.0005
#define WORTH_PARTS  0.005

enum { MOST_WAYS = 4096 }; /* up to that many are all tried */

static int compare_sizes(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x < y) - (x > y);
}

/* All bounds that differ, from the one that parts nothing on; of those that are about as good the
 * one that parts least. */
static void search_bounds(struct space *space, const struct dpro_strategy *own)
{
    const struct dpro_model *model = space->model;
    struct dpro_strategy strategy, chosen;
    uint64_t *sizes = malloc((model->n_tensors + (size_t)1) * sizeof *sizes);
    if (!sizes || space_strategy(space, &strategy) < 0 || space_strategy(space, &chosen) < 0) {
        space->search->failed = true;
        free(sizes);
        return;
    }
    space_copy(space, own, &strategy);
    for (uint32_t b = 0; b < strategy.n_buckets; b++)
        sizes[b] = bucket_size_bytes(model, &strategy, b) / sizeof(float);
    qsort(sizes, strategy.n_buckets, sizeof *sizes, compare_sizes);
    int64_t chosen_ns = INT64_MAX;
    for (uint32_t i = 0; i <= strategy.n_buckets && !search_stops(space->search); i++) {
        if (i > 0 && (sizes[i - 1] == 0 || (i > 1 && sizes[i - 1] == sizes[i - 2])))
            continue;
        servers_set_bound(model, i > 0 ? sizes[i - 1] : UINT64_MAX, &strategy);
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
    free(sizes);
}

/* All ways to place the tensors, where these are few: moving one or two at a time may end where
 * only three would help. Returns whether they were. */
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

/* The largest first, each to the server that has least. */
static void level(const struct dpro_model *model, const uint32_t *largest_first, uint64_t *load,
                  struct dpro_strategy *strategy)
{
    uint32_t n = sync_n_servers(&model->net);
    for (uint32_t s = 0; s < n; s++)
        load[s] = 0;
    for (uint32_t i = 0; i < strategy->n_buckets; i++) {
        uint32_t b = largest_first[i], least = 0;
        for (uint32_t s = 1; s < n; s++)
            least = load[s] < load[least] ? s : least;
        strategy->buckets[b].server = least;
        load[least] += bucket_size_bytes(model, strategy, b) + 1;
    }
}

/* Moves tensors to other servers, and swaps them, as long as that helps. */
static void improve(struct space *space, const uint32_t *largest_first,
                    struct dpro_strategy *strategy)
{
    uint32_t n = strategy->n_buckets, n_servers = sync_n_servers(&space->model->net);
    int64_t best_ns = space_evaluate(space, strategy);
    for (bool moved = true; moved && !search_stops(space->search); space->search->n_rounds++) {
        moved = false;
        for (uint32_t i = 0; i < n && !search_stops(space->search); i++) {
            struct strategy_bucket *a = &strategy->buckets[largest_first[i]];
            uint32_t was = a->server, to = was;
            for (uint32_t s = 0; s < n_servers; s++) {
                a->server = s;
                int64_t ns = s == was ? INT64_MAX : space_evaluate(space, strategy);
                if ((double)ns < (double)best_ns * (1 - WORTH_A_MOVE)) {
                    best_ns = ns;
                    to = s;
                }
            }
            a->server = to;
            moved |= to != was;
            for (uint32_t k = i + 1; k < n && !search_stops(space->search); k++) {
                struct strategy_bucket *b = &strategy->buckets[largest_first[k]];
                uint32_t first = a->server, second = b->server;
                if (first == second)
                    continue;
                a->server = second;
                b->server = first;
                int64_t ns = space_evaluate(space, strategy);
                if ((double)ns < (double)best_ns * (1 - WORTH_A_MOVE)) {
                    best_ns = ns;
                    moved = true;
                } else {
                    a->server = first;
                    b->server = second;
                }
            }
        }
    }
}

/* What moved for next to nothing goes back. */
static void stay(struct space *space, const struct dpro_strategy *own,
                 struct dpro_strategy *strategy)
{
    int64_t most_ns = (int64_t)((double)space->best_ns * (1 + WORTH_A_MOVE));
    space_copy(space, &space->best, strategy);
    for (uint32_t b = 0; b < own->n_buckets && !search_stops(space->search); b++) {
        uint32_t moved = strategy->buckets[b].server;
        strategy->buckets[b].server = own->buckets[b].server;
        if (moved != own->buckets[b].server && space_evaluate(space, strategy) > most_ns)
            strategy->buckets[b].server = moved;
    }
    space->best_ns = space_evaluate(space, strategy);
    space_copy(space, strategy, &space->best);
}

struct sorting {
    const struct dpro_model *model;
    const struct dpro_strategy *strategy;
};

static int compare_buckets(const void *a, const void *b, void *arg)
{
    const struct sorting *sorting = arg;
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    uint64_t size_x = bucket_size_bytes(sorting->model, sorting->strategy, x);
    uint64_t size_y = bucket_size_bytes(sorting->model, sorting->strategy, y);
    if (size_x != size_y)
        return size_x > size_y ? -1 : 1;
    return x < y ? -1 : x > y;
}

static void search_places(struct space *space, const struct dpro_strategy *own)
{
    const struct dpro_model *model = space->model;
    uint32_t n = own->n_buckets;
    struct dpro_strategy strategy;
    uint32_t *largest_first = malloc((n + (size_t)1) * sizeof *largest_first);
    uint64_t *load = malloc((sync_n_servers(&model->net) + (size_t)1) * sizeof *load);
    if (!largest_first || !load || space_strategy(space, &strategy) < 0) {
        space->search->failed = true;
    } else {
        space_copy(space, own, &strategy);
        for (uint32_t b = 0; b < n; b++)
            largest_first[b] = b;
        struct sorting sorting = {model, &strategy};
        qsort_r(largest_first, n, sizeof *largest_first, compare_buckets, &sorting);
        if (!try_all(space, &strategy)) {
            improve(space, largest_first, &strategy);
            level(model, largest_first, load, &strategy);
            improve(space, largest_first, &strategy);
        }
        stay(space, own, &strategy);
    }
    free(largest_first);
    free(load);
}

bool assign_is_all(const struct dpro_model *model)
{
    return sync_n_servers(&model->net) > 0 &&
           (model->capabilities.parts == PARTS_OVER_SERVERS || model->capabilities.places);
}

void search_assign(struct space *space, const struct dpro_strategy *own)
{
    if (space->model->capabilities.places)
        search_places(space, own);
    else
        search_bounds(space, own);
}
