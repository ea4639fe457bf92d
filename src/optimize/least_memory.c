/* The lowest peak that recomputing modules can reach, at any cost of time. Of a few modules every
 * set is tried. Of many, single modules are added and removed as long as that lowers the peak. A
 * peak that several places share moves only when the last of them does, so what counts is a smooth
 * maximum over all places. */

#include "cost/memory/strategy_memory.h"
#include "cost/program/model_memory.h"
#include "optimize/memory_search.h"
#include "optimize/module_sets.h"

enum {
    MOST_IN_SETS = 10,
    MOST_MEMORIES = 4,
    MOST_LOOKS = 2000,
    MOST_PLACES = 20000000,
    MOST_ROUNDS = 8,
    MOST_STARTS = 3
};

struct descent {
    const struct dpro_model *model;
    struct dpro_strategy *strategy;
    uint32_t *modules, n;          /* that give something back, of all levels */
    uint32_t n_memories, n_places; /* that are looked at; their places together */
    uint64_t *peaks;               /* by place */
    uint32_t n_looks, most_looks;
    double sharpness; /* of the maximum */
};

static double smooth_peak(struct descent *d)
{
    double most = 0, sum = 0;
    uint64_t *peaks = d->peaks;
    EACH_OF (const struct model_memory, m, d->model->memories, d->n_memories) {
        memory_peaks(d->model, d->strategy, m, peaks);
        peaks += m->n_moments + 1;
    }
    for (uint32_t i = 0; i < d->n_places; i++)
        most = fmax(most, (double)d->peaks[i]);
    for (uint32_t i = 0; i < d->n_places; i++)
        sum += pow((double)d->peaks[i] / most, d->sharpness);
    d->n_looks++;
    return sum > 0 ? most * pow(sum, 1 / d->sharpness) : most;
}

static void memory_descend(struct descent *d)
{
    bool *recomputed = d->strategy->recomputed, better = true;
    double least = smooth_peak(d);
    for (int round = 0; better && round < MOST_ROUNDS; round++) {
        better = false;
        for (uint32_t i = 0; i < d->n && d->n_looks < d->most_looks; i++) {
            bool *at = &recomputed[d->modules[i]];
            *at = !*at;
            double now = smooth_peak(d);
            if (now < least)
                better = true;
            else
                *at = !*at;
            least = fmin(least, now);
        }
    }
}

/* All, of which the outermost count; none; the others at random. */
static void begin_at(struct descent *d, uint32_t start)
{
    for (uint32_t i = 0; i < d->n; i++)
        d->strategy->recomputed[d->modules[i]] =
            start < 2 ? start == 0 : map_mix((uint64_t)start << 32 | i) % 2 == 0;
}

static uint64_t peak_of(void *arg)
{
    const struct descent *d = arg;
    return memory_peak_bytes(d->model, d->strategy);
}

static void find_places(struct descent *d)
{
    d->n_memories = MIN(d->model->n_memories, MOST_MEMORIES);
    EACH_OF (const struct model_memory, m, d->model->memories, d->n_memories)
        d->n_places += m->n_moments + 1;
    d->most_looks = MIN(MOST_LOOKS, MOST_PLACES / (d->n_places + 1)); /* seconds at the most */
    d->peaks = mem_alloc((d->n_places + (size_t)1) * sizeof *d->peaks);
}

void recompute_least(const struct dpro_model *model, struct dpro_strategy *strategy)
{
    struct descent d = {.model = model, .strategy = strategy};
    d.modules = mem_alloc((model->n_modules + (size_t)1) * sizeof *d.modules);
    for (uint32_t i = 0; i < model->n_modules; i++)
        if (model->modules[i].name[0] != '\0' && model->modules[i].kept_bytes > 0)
            d.modules[d.n++] = i;
    struct module_sets sets = {.in = strategy->recomputed,
                               .modules = d.modules,
                               .n = d.n,
                               .peak_bytes = peak_of,
                               .arg = &d};
    if (d.n <= MOST_IN_SETS) {
        sets_lowest(&sets);
    } else {
        bool *best = mem_array(model->n_modules, sizeof *best);
        uint64_t least = UINT64_MAX;
        find_places(&d);
        for (uint32_t start = 0; start < MOST_STARTS && d.n_looks < d.most_looks; start++) {
            begin_at(&d, start);
            for (d.sharpness = 16; d.sharpness <= 256; d.sharpness *= 4)
                memory_descend(&d);
            uint64_t peak = memory_peak_bytes(model, strategy);
            if (peak < least)
                memcpy(best, strategy->recomputed, model->n_modules * sizeof *best);
            least = MIN(least, peak);
        }
        memcpy(strategy->recomputed, best, model->n_modules * sizeof *best);
        mem_free(best);
        mem_free(d.peaks);
    }
    /* what lies within others, or brings the peak down no further; inner ones first */
    sets_drop_needless(&sets, NULL, peak_of(&d));
    mem_free(d.modules);
}
