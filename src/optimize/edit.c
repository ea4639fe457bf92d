/* Edits of a strategy, and lists of them. */
#include "optimize/registry.h"

#include "cost/program/buckets.h"
#include "optimize/memory_search.h"

enum { MAX_PARTITIONS = 4096, MAX_MICRO_BATCHES = 1024 };

static void edit_split(struct dpro_strategy *s, uint32_t at, uint32_t n)
{
    struct strategy_bucket *b = &s->buckets[at];
    memmove(b + 1, b, (s->n_buckets - at) * sizeof *b);
    s->n_buckets++;
    b[1].first += n;
    b[1].n -= n;
    b[0].n = n;
}

/* Its tensors move along. */
static void edit_move(struct dpro_strategy *s, uint32_t at, uint32_t to)
{
    struct strategy_bucket moved = s->buckets[at];
    uint32_t low = MIN(at, to), high = MAX(at, to), *begin = s->order + s->buckets[low].first;
    uint32_t n = s->buckets[high].first + s->buckets[high].n - s->buckets[low].first;
    SCRATCH uint32_t *tensors = mem_array(moved.n, sizeof *tensors);
    memcpy(tensors, s->order + moved.first, moved.n * sizeof *tensors);
    if (at < to) {
        memmove(begin, begin + moved.n, (n - moved.n) * sizeof *begin);
        memmove(&s->buckets[at], &s->buckets[at + 1], (to - at) * sizeof moved);
    } else {
        memmove(begin + moved.n, begin, (n - moved.n) * sizeof *begin);
        memmove(&s->buckets[to + 1], &s->buckets[to], (at - to) * sizeof moved);
    }
    memcpy(at < to ? begin + n - moved.n : begin, tensors, moved.n * sizeof *tensors);
    s->buckets[to] = moved;
    for (uint32_t b = low, first = (uint32_t)(begin - s->order); b <= high; b++) {
        s->buckets[b].first = first;
        first += s->buckets[b].n;
    }
}

/* ---- all edits ---- */

/* No stack can cut batches by a plan, as the report says; modules are known of PyTorch alone. */
bool edit_is_within(const struct model_capabilities *c, const struct dpro_edit *e)
{
    const bool can[] = {
        [DPRO_EDIT_MERGE] = c->together,
        [DPRO_EDIT_SPLIT] = c->together,
        [DPRO_EDIT_PARTITION] = c->parts == PARTS_FREE,
        [DPRO_EDIT_PRIORITY] = c->priorities,
        [DPRO_EDIT_MOVE] = c->reorders,
        [DPRO_EDIT_COMPRESS] =
            e->value < 0 || e->value >= 32 || (c->compressions & 1u << (e->value & 31)),
    };
    return (unsigned)e->kind > DPRO_EDIT_COMPRESS || can[e->kind]; /* no bucket's come later */
}

/* Halves of a bucket that was cut finely may be too small for as many partitions. */
static void limit_partitions(const struct dpro_model *model, struct dpro_strategy *s, uint32_t at)
{
    uint64_t most = bucket_size_bytes(model, s, at) / 4;
    if (s->buckets[at].partitions > most)
        s->buckets[at].partitions = most ? (uint32_t)most : 1;
}

/* What lies within the module is computed as it is. */
static void edit_compute(const struct dpro_model *model, struct dpro_strategy *s,
                         const struct dpro_edit *e)
{
    s->computing[e->at] = (uint8_t)e->value;
    for (uint32_t i = e->at + 1; i < model->n_modules && e->value != DPRO_AS_IT_IS; i++) {
        uint32_t outer = model->modules[i].parent;
        while (outer != MODEL_NONE && outer > e->at)
            outer = model->modules[outer].parent;
        if (outer == e->at)
            s->computing[i] = DPRO_AS_IT_IS;
    }
}

const char *edit_apply(const struct dpro_model *model, struct dpro_strategy *s,
                       const struct dpro_edit *e)
{
    uint32_t at = e->at;
    int64_t value = e->value;
    if (edit_is_of_buckets(e) && e->kind != DPRO_EDIT_COMPRESS && at >= s->n_buckets)
        return "there is no such bucket";
    if (!edit_is_within(&model->capabilities, e))
        return "the job's stack can't be given that";
    if ((e->kind == DPRO_EDIT_RECOMPUTE || e->kind == DPRO_EDIT_COMPUTE) && at >= model->n_modules)
        return "there is no such module";
    switch (e->kind) {
    case DPRO_EDIT_MERGE:
        if (at + 1 >= s->n_buckets)
            return "the last bucket has none after it to take in";
        s->buckets[at].n += s->buckets[at + 1].n;
        s->n_buckets--;
        memmove(&s->buckets[at + 1], &s->buckets[at + 2],
                (s->n_buckets - at - 1) * sizeof *s->buckets);
        return NULL;
    case DPRO_EDIT_SPLIT:
        if (value <= 0 || value >= s->buckets[at].n)
            return "a split leaves tensors on both sides";
        edit_split(s, at, (uint32_t)value);
        limit_partitions(model, s, at);
        limit_partitions(model, s, at + 1);
        return NULL;
    case DPRO_EDIT_PARTITION:
        if (value < 1 || value > MAX_PARTITIONS ||
            (value > 1 && (uint64_t)value * 4 > bucket_size_bytes(model, s, at)))
            return "a bucket has 1 to 4096 partitions, of 4 bytes or more";
        s->buckets[at].partitions = (uint32_t)value;
        return NULL;
    case DPRO_EDIT_PRIORITY:
        if (value != (int32_t)value)
            return "a priority has 32 bits";
        s->buckets[at].priority = (int32_t)value;
        return NULL;
    case DPRO_EDIT_MOVE:
        if (value < 0 || value >= s->n_buckets)
            return "there is no such place";
        edit_move(s, at, (uint32_t)value);
        return NULL;
    case DPRO_EDIT_COMPRESS:
        if (value < DPRO_COMPRESSION_NONE || value > DPRO_COMPRESSION_BF16)
            return "there is no such compression";
        s->compression = (enum dpro_compression)value;
        return NULL;
    case DPRO_EDIT_RECOMPUTE:
        s->recomputed[at] = value != 0;
        return NULL;
    case DPRO_EDIT_ACCUMULATE:
        if (value < 1 || value > MAX_MICRO_BATCHES)
            return "a batch is cut into 1 to 1024 micro-batches";
        if (value > 1 && !memory_divides_batch(model, (uint32_t)value))
            return "the ranks' batches can't be cut into so many, or are not known";
        s->micro_batches = (uint32_t)value;
        return NULL;
    case DPRO_EDIT_COMPUTE:
        if (value < 0 || value >= DPRO_N_COMPUTINGS)
            return "there is no such way to compute a module";
        if (value > 0 && !model->modules[at].costs[value].is_known &&
            !model->modules[at].costs[value].is_assumed)
            return "what that way to compute the module costs is not known";
        edit_compute(model, s, e);
        return NULL;
    }
    return "there is no such kind of edit";
}

const char *edits_apply(const struct dpro_model *model, const struct dpro_strategy *from,
                        const struct dpro_edit *edits, uint32_t n, struct dpro_strategy *to)
{
    const char *wrong = NULL;
    buckets_assign(model, from, to);
    for (uint32_t i = 0; i < n && !wrong; i++)
        wrong = edit_apply(model, to, &edits[i]);
    return wrong;
}

void candidates_fini(struct candidates *candidates)
{
    array_fini(&candidates->list);
    array_fini(&candidates->edits);
}

void candidates_add(struct candidates *candidates, size_t first)
{
    struct candidate c = {(uint32_t)first, (uint32_t)(candidates->edits.n - first)};
    if (c.n > 0)
        array_push(&candidates->list, c);
}
