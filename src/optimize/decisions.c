/* How the best strategy differs from the job's own. */

#include "cost/program/buckets.h"
#include "cost/program/server_placement.h"
#include "cost/program/strategy_work.h"
#include "optimize/result.h"

struct deciding {
    struct dpro_optimum *o;
    const struct dpro_model *model;
    const struct dpro_strategy *before, *best;
    uint32_t *baseline_bucket; /* by tensor */
};

#define format(d, ...) arena_format(&(d)->o->arena, __VA_ARGS__)

static void decisions_decide(struct deciding *d, const char *pass, const char *target,
                             const char *decision)
{
    struct dpro_decision entry = {pass, target, decision};
    array_push(&d->o->decisions, entry);
}

static const char *bucket_text(struct deciding *d, uint32_t b)
{
    const struct strategy_bucket *bucket = &d->best->buckets[b];
    const char *first = d->model->tensors[d->best->order[bucket->first]].name;
    const char *last = d->model->tensors[d->best->order[bucket->first + bucket->n - 1]].name;
    if (bucket->n == 1)
        return format(d, "bucket %u (%.200s)", b + 1, first);
    return format(d, "bucket %u (%.200s ... %.200s)", b + 1, first, last);
}

/* The bucket of the job as it ran that holds the first tensor of one of the best. */
static uint32_t bucket_before(const struct deciding *d, uint32_t b)
{
    return d->baseline_bucket[d->best->order[d->best->buckets[b].first]];
}

/* Whether a bucket holds what one of the job as it ran holds. */
static bool is_unchanged(const struct deciding *d, uint32_t b)
{
    const struct strategy_bucket *bucket = &d->best->buckets[b];
    uint32_t before = bucket_before(d, b);
    for (uint32_t i = bucket->first; i < bucket->first + bucket->n; i++)
        if (d->baseline_bucket[d->best->order[i]] != before)
            return false;
    return d->before->buckets[before].n == bucket->n;
}

static void decide_bucket(struct deciding *d, uint32_t b)
{
    const struct strategy_bucket *bucket = &d->best->buckets[b];
    const struct strategy_bucket *before = &d->before->buckets[bucket_before(d, b)];
    const char *text = bucket_text(d, b);
    bool same = is_unchanged(d, b);
    if (!same)
        decisions_decide(d, built_in_passes[PASS_TENSOR_FUSION].name, text,
                         format(d, "%u tensor%s, %.2f MB", bucket->n, bucket->n == 1 ? "" : "s",
                                (double)bucket_size_bytes(d->model, d->best, b) * 1e-6));
    if (bucket->partitions != (same ? before->partitions : 1))
        decisions_decide(d, built_in_passes[PASS_TENSOR_PARTITION].name, text,
                         bucket->partitions == 1 ? "whole"
                                                 : format(d, "%u parts", bucket->partitions));
    int server = servers_number(d->model, bucket->server);
    int was = servers_number(d->o->models[DPRO_BASELINE], before->server);
    if (d->model->capabilities.places && same && server != was)
        decisions_decide(d, "placement", text,
                         format(d, "on parameter server %d, not %d", server, was));
    if (bucket->priority != (same ? before->priority : 0))
        decisions_decide(d, built_in_passes[PASS_PRIORITY].name, text,
                         format(d, "priority %d", bucket->priority));
}

/* The size that cuts all as the strategy has it; 0: nothing is cut. */
static uint64_t part_size(const struct deciding *d, const struct dpro_strategy *s)
{
    uint64_t most = 0;
    bool cut = false;
    for (uint32_t b = 0; b < s->n_buckets; b++) {
        uint64_t bytes = bucket_size_bytes(d->model, s, b), parts = s->buckets[b].partitions;
        most = MAX(most, bytes / parts + (bytes % parts != 0));
        cut |= parts > 1;
    }
    return cut ? most : 0;
}

static void decide_settings(struct deciding *d)
{
    const struct dpro_strategy *best = d->best, *before = d->before;
    if (d->model->capabilities.parts == PARTS_OF_ONE_SIZE &&
        part_size(d, best) != part_size(d, before))
        decisions_decide(d, built_in_passes[PASS_TENSOR_PARTITION].name, "BYTEPS_PARTITION_BYTES",
                         part_size(d, best) == 0
                             ? "so large that nothing is cut"
                             : format(d, "%.2f MB", (double)part_size(d, best) * 1e-6));
    uint32_t n = dpro_model_n_servers(d->model);
    uint32_t was = dpro_model_n_servers(d->o->models[DPRO_BASELINE]);
    if (n != was)
        decisions_decide(d, "servers", "the job",
                         format(d, "%u parameter servers, not %u", n, was));
    if (best->cycle_ns != before->cycle_ns)
        decisions_decide(d, "cycles", "Horovod's cycle time",
                         format(d, "%g ms, not %g ms", (double)best->cycle_ns * 1e-6,
                                (double)before->cycle_ns * 1e-6));
    if (best->fuses && (!before->fuses || best->fusion_bytes != before->fusion_bytes))
        decisions_decide(d, "cycles", "Horovod's fusion threshold",
                         format(d, "%.2f MB", (double)best->fusion_bytes * 1e-6));
}

static void decide_memory(struct deciding *d)
{
    const struct dpro_model *m = d->model;
    for (uint32_t i = 0; i < m->n_modules; i++)
        if (d->best->recomputed[i] && !(d->before->recomputed && d->before->recomputed[i]))
            decisions_decide(d, "recomputation", format(d, "module %.200s", m->modules[i].name),
                             format(d, "computed again, %.1f ms for %.1f MB",
                                    (double)m->modules[i].recompute_ns * 1e-6,
                                    (double)m->modules[i].kept_bytes * 1e-6));
    if (d->best->micro_batches > 1 && d->best->micro_batches != d->before->micro_batches)
        decisions_decide(d, "accumulation", "the step's batch",
                         format(d, "%u micro-batches", d->best->micro_batches));
}

/* Modules of a class that are computed in the same way, as one. */
static void decide_computing(struct deciding *d, uint32_t first)
{
    const struct dpro_model *m = d->model;
    unsigned way = computing_way(m, d->best, first);
    struct computing_change all = {.before_ns = 0};
    uint32_t n = 0, last = first;
    for (uint32_t i = 0; i < m->n_modules; i++) {
        if (computing_way(m, d->best, i) != way ||
            strcmp(m->modules[i].class, m->modules[first].class) != 0)
            continue;
        if (i < first)
            return;
        struct computing_change change = computing_change_of(m, i, way);
        all.before_ns += change.before_ns;
        all.after_ns += change.after_ns;
        last = i;
        n++;
    }
    const char *name = m->modules[first].name;
    decisions_decide(
        d, built_in_passes[way & DPRO_COMPILED ? PASS_OP_FUSION : PASS_MIXED_PRECISION].name,
        *name == '\0' ? "the model"
        : n == 1      ? format(d, "module %.200s", name)
                      : format(d, "modules %.200s ... %.200s", name, m->modules[last].name),
        format(d, "%s, %.1f ms instead of %.1f ms",
               way == DPRO_COMPILED ? "compiled"
               : way == DPRO_BF16   ? "in 16 bits"
                                    : "compiled, in 16 bits",
               all.after_ns * 1e-6, all.before_ns * 1e-6));
}

void result_decide(struct dpro_optimum *o)
{
    static const char *const precisions[] = {"full precision", "fp16", "bf16"};
    const struct dpro_model *model = o->models[DPRO_BEST];
    const struct dpro_strategy *before = &o->strategies[DPRO_BASELINE];
    const struct dpro_strategy *best = &o->strategies[DPRO_BEST];
    struct deciding d = {o, model, before, best,
                         mem_array(model->n_tensors, sizeof *d.baseline_bucket)};
    for (uint32_t b = 0; b < before->n_buckets; b++)
        for (uint32_t i = 0; i < before->buckets[b].n; i++)
            d.baseline_bucket[before->order[before->buckets[b].first + i]] = b;
    for (uint32_t i = 0; i < model->n_modules; i++)
        if (computing_way(model, best, i) != DPRO_AS_IT_IS)
            decide_computing(&d, i);
    decide_memory(&d);
    decide_settings(&d);
    for (uint32_t b = 0; b < best->n_buckets && !best->fuses; b++) /* else they come of that */
        decide_bucket(&d, b);
    bool reordered = false;
    for (uint32_t b = 1; b < best->n_buckets; b++)
        reordered |= bucket_before(&d, b) < bucket_before(&d, b - 1);
    if (!best->fuses && reordered)
        decisions_decide(&d, built_in_passes[PASS_BUCKET_ORDER].name, "all buckets",
                         "launched in another order");
    if (best->compression != before->compression)
        decisions_decide(&d, built_in_passes[PASS_COMPRESSION].name, "all buckets",
                         precisions[best->compression]);
    mem_free(d.baseline_bucket);
}
