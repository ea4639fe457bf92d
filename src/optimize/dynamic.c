/* The best contiguous buckets, by dynamic programming.
 *
 * It is exact where all-reduces run one after the other in order, don't slow computation down, and
 * are waited for all at once by ranks that are alike. Then bucket m of tensors i..j-1 ends at
 *
 * end[m][j] = max(end[m-1][i], ready[j] + m launches) + t_sync(bytes of i..j-1)
 *
 * A round takes the longest of: all computation, launches and copying back; and, for each bucket,
 * its end and the copying back of it and of all buckets after it. Only the smallest end of a prefix
 * matters if the round must be shorter than a limit: buckets that end too late for it are left out.
 * Bisection finds the smallest limit with a solution. Elsewhere the result is a start for other
 * searches. */

#include "optimize/search.h"

/* States looked at in one pass at most; the number of buckets is limited to that. */
#define MOST_STATES 1e8
#define HALF_A_NS   0.5

struct dynamic_table {
    struct arena arena;
    struct space *space;
    uint32_t n, most; /* tensors, buckets */
    double *ready;    /* [j * classes + c]: tensors before j, each with ready[] of its class */
    double *bytes;    /* [j]: of tensors before j */
    double *sync;     /* [i * (n + 1) + j] */
    double *end;      /* [m * (n + 1) + j] */
    double *worst;    /* likewise: the longest a bucket so far makes the round */
    uint32_t *from;   /* likewise: where the last bucket begins */
    double copy_ns;   /* a byte, on the slowest rank */
};

static double at_rest(const struct dynamic_table *t, uint32_t n_buckets)
{
    const struct model_net *net = &t->space->model->net;
    const struct computation *work = &t->space->work;
    double longest = 0;
    EACH_OF (const struct computation_class, class, work->classes, work->n_classes) {
        double overhead =
            n_buckets * (net->compute.launch_ns.value + net->compute.handling_ns.value);
        if (work->drains)
            overhead += net->compute.copy_ns.value * t->bytes[t->n];
        longest = fmax(longest, class->total_ns + overhead * class->scale);
    }
    return longest;
}

/* When the m-th bucket, which ends before tensor j, is launched on the last rank. */
static double dynamic_launched(const struct dynamic_table *t, uint32_t m, uint32_t j)
{
    const struct computation *work = &t->space->work;
    double latest = 0, launches = m * t->space->model->net.compute.launch_ns.value;
    for (uint32_t c = 0; c < work->n_classes; c++)
        latest = fmax(latest, t->ready[(size_t)j * work->n_classes + c] +
                                  launches * work->classes[c].scale);
    return latest;
}

static void dynamic_fill(struct dynamic_table *t, double limit)
{
    size_t width = t->n + (size_t)1;
    for (size_t i = 0; i < (t->most + 1) * width; i++)
        t->end[i] = INFINITY;
    t->end[0] = t->worst[0] = 0;
    for (uint32_t m = 1; m <= t->most && at_rest(t, m) < limit; m++)
        for (uint32_t j = m; j <= t->n; j++) {
            double ready = dynamic_launched(t, m, j), *end = &t->end[m * width + j];
            for (uint32_t i = m - 1; i < j; i++) {
                double before = t->end[(m - 1) * width + i];
                double ends = fmax(before, ready) + t->sync[i * width + j];
                double round = ends + t->copy_ns * (t->bytes[t->n] - t->bytes[i]);
                if (ends >= *end || round >= limit)
                    continue;
                *end = ends;
                t->worst[m * width + j] = fmax(t->worst[(m - 1) * width + i], round);
                t->from[m * width + j] = i;
            }
        }
}

/* The best number of buckets in the table; 0: none will do. */
static uint32_t best_count(const struct dynamic_table *t, double limit, double *round)
{
    size_t width = t->n + (size_t)1;
    uint32_t best = 0;
    for (uint32_t m = 1; m <= t->most; m++) {
        double ns = fmax(t->worst[m * width + t->n], at_rest(t, m));
        if (isinf(t->end[m * width + t->n]) || ns >= limit)
            continue;
        limit = *round = ns;
        best = m;
    }
    return best;
}

static void read_back(const struct dynamic_table *t, uint32_t m, struct dpro_strategy *strategy)
{
    size_t width = t->n + (size_t)1;
    strategy->n_buckets = m;
    strategy->compression = DPRO_COMPRESSION_NONE;
    for (uint32_t i = 0; i < t->n; i++)
        strategy->order[i] = i;
    for (uint32_t j = t->n; m > 0; m--) {
        uint32_t i = t->from[m * width + j];
        strategy->buckets[m - 1] =
            (struct strategy_bucket){.first = i, .n = j - i, .partitions = 1};
        j = i;
    }
}

static void table_init(struct dynamic_table *t, struct space *space, double slowdown)
{
    const struct dpro_model *model = space->model;
    const struct computation *work = &space->work;
    uint32_t n = model->n_tensors;
    size_t width = n + (size_t)1;
    double most = MOST_STATES / ((double)width * (double)width);
    *t = (struct dynamic_table){.space = space, .n = n, .most = most < n ? (uint32_t)most + 1 : n};
    size_t n_states = (t->most + (size_t)1) * width;
    t->ready = arena_array(&t->arena, width * work->n_classes + 1, sizeof *t->ready);
    t->bytes = arena_array(&t->arena, width, sizeof *t->bytes);
    t->sync = arena_array(&t->arena, width * width, sizeof *t->sync);
    t->end = arena_array(&t->arena, n_states, sizeof *t->end);
    t->worst = arena_array(&t->arena, n_states, sizeof *t->worst);
    t->from = arena_array(&t->arena, n_states, sizeof *t->from);
    for (uint32_t c = 0; c < work->n_classes; c++)
        t->copy_ns = fmax(t->copy_ns, work->classes[c].scale * model->net.compute.copy_ns.value);
    if (!work->drains)
        t->copy_ns = 0;
    for (uint32_t j = 0; j < n; j++) {
        uint64_t size = 0;
        t->bytes[j + 1] = t->bytes[j] + (double)model->tensors[j].size_bytes;
        for (uint32_t c = 0; c < work->n_classes; c++)
            t->ready[(j + (size_t)1) * work->n_classes + c] = fmax(
                t->ready[(size_t)j * work->n_classes + c], work->classes[c].ready_ns[j] * slowdown);
        for (uint32_t i = j + 1; i-- > 0;) {
            size += model->tensors[i].size_bytes;
            t->sync[i * width + j + 1] = (double)space_sync_ns(space, size, 1);
        }
    }
}

void search_dynamic(struct space *space, double slowdown)
{
    struct dynamic_table t;
    struct dpro_strategy found = space_strategy(space);
    double round = 0;
    table_init(&t, space, slowdown);
    space->own_ns = INT64_MAX;
    dynamic_fill(&t, INFINITY);
    uint32_t n_buckets = best_count(&t, INFINITY, &round);
    if (n_buckets)
        read_back(&t, n_buckets, &found);
    /* nothing is shorter than `least`; with no copying back the first answer is the best */
    for (double least = at_rest(&t, 1); t.copy_ns > 0 && round - least > HALF_A_NS;) {
        double limit = (least + round) / 2;
        dynamic_fill(&t, limit);
        uint32_t m = best_count(&t, limit, &round);
        if (m) {
            n_buckets = m;
            read_back(&t, m, &found);
        } else {
            least = limit;
        }
        if (search_stops(space->search))
            break;
    }
    if (n_buckets)
        space_evaluate(space, &found);
    arena_fini(&t.arena);
}
