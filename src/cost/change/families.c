/* By which kinds of changes (families) one strategy differs from another. Parts, order and servers
 * are compared only between buckets that hold the same. */
#include "cost/change/families.h"

#include "cost/program/modules.h"

static bool has_same_buckets(const struct dpro_model *model, const struct dpro_strategy *x,
                             const struct dpro_strategy *y)
{
    bool same = x->n_buckets == y->n_buckets &&
                memcmp(x->order, y->order, model->n_tensors * sizeof *x->order) == 0;
    for (uint32_t b = 0; same && b < x->n_buckets; b++)
        same = x->buckets[b].n == y->buckets[b].n;
    return same || model->n_tensors == 0;
}

static bool module_recomputes(const struct dpro_strategy *s, uint32_t module)
{
    return s->recomputed && s->recomputed[module];
}

static bool is_resharded(const struct dpro_strategy *s, uint32_t unit)
{
    return unit < s->n_units && s->resharded[unit];
}

unsigned families_of(const struct dpro_model *model, const struct dpro_strategy *before,
                     const struct dpro_strategy *s)
{
    static const struct strategy_bucket new = {.partitions = 1};
    bool fuses = s->fuses || before->fuses; /* then buckets are only the result */
    bool same = fuses || has_same_buckets(model, before, s);
    unsigned of = same ? 0 : OF_BUCKETS;
    for (uint32_t b = 0; b < s->n_buckets && !fuses; b++) {
        const struct strategy_bucket *is = &s->buckets[b], *was = same ? &before->buckets[b] : &new;
        of |= is->partitions != was->partitions ? OF_PARTS : 0;
        of |= is->priority != was->priority ? OF_ORDER : 0;
        of |= same && is->server != was->server ? OF_SERVERS : 0;
    }
    if (s->fuses != before->fuses || s->cycle_ns != before->cycle_ns ||
        s->fusion_bytes != before->fusion_bytes)
        of |= OF_CYCLES;
    of |= s->compression != before->compression ? OF_COMPRESSION : 0;
    for (uint32_t m = 0; m < model->n_modules; m++) {
        unsigned ways = computing_way(model, s, m) ^ computing_way(model, before, m);
        of |= ways & DPRO_COMPILED ? OF_COMPILED : 0;
        of |= ways & DPRO_BF16 ? OF_BF16 : 0;
        of |= module_recomputes(s, m) != module_recomputes(before, m) ? OF_RECOMPUTED : 0;
    }
    for (uint32_t u = 0; u < MAX(s->n_units, before->n_units); u++)
        of |= is_resharded(s, u) != is_resharded(before, u) ? OF_UNITS : 0;
    of |= s->prefetch != before->prefetch ? OF_PREFETCH : 0;
    return MAX(s->micro_batches, 1) != MAX(before->micro_batches, 1) ? of | OF_MICRO_BATCHES : of;
}

const char *families_name(unsigned families, struct arena *arena)
{
    static const char *const names[N_CHANGE_KINDS] = {
        "buckets", "parts", "order",     "servers",       "cycles", "compression",
        "compile", "bf16",  "recompute", "micro-batches", "units",  "prefetch"};
    const char *name = "";
    for (unsigned i = 0; i < N_CHANGE_KINDS; i++)
        if (families & 1u << i)
            name = arena_format(arena, "%s%s%s", name, *name ? "+" : "", names[i]);
    return name;
}

static void keep_communication(const struct dpro_model *model, const struct dpro_strategy *before,
                               unsigned kept, struct dpro_strategy *s)
{
    bool same = has_same_buckets(model, before, s);
    if (!(kept & OF_CYCLES)) {
        s->fuses = before->fuses;
        s->cycle_ns = before->cycle_ns;
        s->fusion_bytes = before->fusion_bytes;
    }
    s->compression = kept & OF_COMPRESSION ? s->compression : before->compression;
    if (!(kept & OF_BUCKETS) && !same) {
        s->n_buckets = before->n_buckets;
        memcpy(s->order, before->order, model->n_tensors * sizeof *s->order);
        memcpy(s->buckets, before->buckets, s->n_buckets * sizeof *s->buckets);
        return;
    }
    for (uint32_t b = 0; b < s->n_buckets; b++) {
        struct strategy_bucket *bucket = &s->buckets[b];
        const struct strategy_bucket *was = same ? &before->buckets[b] : NULL;
        bucket->partitions = kept & OF_PARTS ? bucket->partitions : was ? was->partitions : 1;
        bucket->priority = kept & OF_ORDER ? bucket->priority : was ? was->priority : 0;
        bucket->server = !(kept & OF_SERVERS) && was ? was->server : bucket->server;
    }
}

void families_keep(const struct dpro_model *model, const struct dpro_strategy *before,
                   unsigned kept, struct dpro_strategy *s)
{
    unsigned ways = (kept & OF_COMPILED ? DPRO_COMPILED : 0) | (kept & OF_BF16 ? DPRO_BF16 : 0);
    keep_communication(model, before, kept, s);
    for (uint32_t m = 0; m < model->n_modules; m++) {
        uint8_t was = before->computing ? before->computing[m] : 0;
        s->computing[m] = (uint8_t)((s->computing[m] & ways) | (was & ~ways));
        s->recomputed[m] = kept & OF_RECOMPUTED ? s->recomputed[m] : module_recomputes(before, m);
    }
    s->micro_batches = kept & OF_MICRO_BATCHES ? s->micro_batches : before->micro_batches;
}
