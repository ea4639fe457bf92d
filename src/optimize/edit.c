/* Edits of a strategy, and lists of them. */
#include "optimize/registry.h"

#include "cost/program/buckets.h"
#include "cost/program/fused.h"
#include "optimize/memory_search.h"

enum { MAX_PARTITIONS = 4096, MAX_MICRO_BATCHES = 1024 };

static void edit_merge(struct dpro_strategy *s, uint32_t at)
{
    s->buckets[at].n += s->buckets[at + 1].n;
    s->n_buckets--;
    memmove(&s->buckets[at + 1], &s->buckets[at + 2], (s->n_buckets - at - 1) * sizeof *s->buckets);
}

static void edit_split(struct dpro_strategy *s, uint32_t at, uint32_t n)
{
    struct strategy_bucket *b = &s->buckets[at];
    memmove(b + 1, b, (s->n_buckets - at) * sizeof *b);
    s->n_buckets++;
    b[1].first += n;
    b[1].n -= n;
    b[0].n = n;
}

static void edit_reverse(uint32_t *from, uint32_t *to)
{
    for (; from < to && from < --to; from++) {
        uint32_t tensor = *from;
        *from = *to;
        *to = tensor;
    }
}

/* Its tensors move along: a rotation is three reversals. */
static void edit_move(struct dpro_strategy *s, uint32_t at, uint32_t to)
{
    struct strategy_bucket moved = s->buckets[at];
    uint32_t low = at < to ? at : to, high = at < to ? to : at;
    uint32_t *begin = s->order + s->buckets[low].first;
    uint32_t *end = s->order + s->buckets[high].first + s->buckets[high].n;
    uint32_t *middle = at < to ? begin + moved.n : end - moved.n;
    edit_reverse(begin, middle);
    edit_reverse(middle, end);
    edit_reverse(begin, end);
    if (at < to)
        memmove(&s->buckets[at], &s->buckets[at + 1], (to - at) * sizeof moved);
    else
        memmove(&s->buckets[to + 1], &s->buckets[to], (at - to) * sizeof moved);
    s->buckets[to] = moved;
    for (uint32_t b = low, first = (uint32_t)(begin - s->order); b <= high; b++) {
        s->buckets[b].first = first;
        first += s->buckets[b].n;
    }
}

/* ---- ops ---- */

/* How many fused ops from number `f` on lie within the edit's. */
static uint32_t n_taken_in(const struct dpro_strategy *s, const struct dpro_edit *e, uint32_t f)
{
    uint32_t n = 0;
    while (f + n < s->n_fused && s->fused[f + n].program == e->program &&
           s->fused[f + n].first < e->at + e->n)
        n++;
    return n;
}

static const char *check_fuse(const struct dpro_model *model, const struct dpro_strategy *s,
                              const struct dpro_edit *e)
{
    if (e->program >= model->n_programs)
        return "there is no such program";
    const struct model_program *program = &model->programs[e->program];
    if (e->n < 2 || e->n > program->n_ops || e->at > program->n_ops - e->n)
        return "two or more ops of a program can be fused";
    if (e->value < 0 || e->value > EDIT_MOST_WORK_NS)
        return "a fused op takes 0 to 1e15 ns";
    for (uint32_t i = e->at + 1; i < e->at + e->n; i++)
        if (program->ops[i].needs != MODEL_NONE)
            return "an op that waits for communication can't be fused with the one before it";
    uint32_t f = fused_find(s, e->program, e->at), n = n_taken_in(s, e, f);
    if (n > 0 && (s->fused[f].first < e->at ||
                  s->fused[f + n - 1].first + s->fused[f + n - 1].n > e->at + e->n))
        return "a fused op is taken in whole";
    return NULL;
}

static const char *check_accumulate(const struct dpro_model *model, const struct dpro_edit *e)
{
    if (e->value < 1 || e->value > MAX_MICRO_BATCHES)
        return "a batch is cut into 1 to 1024 micro-batches";
    return e->value == 1 || memory_divides_batch(model, (uint32_t)e->value)
               ? NULL
               : "the ranks' batches can't be cut into so many, or are not known";
}

/* ---- all edits ---- */

bool edit_is_of_ops(const struct dpro_edit *e)
{
    return e->kind == DPRO_EDIT_FUSE || e->kind == DPRO_EDIT_UNFUSE;
}

bool edit_is_of_modules(const struct dpro_edit *e)
{
    return e->kind == DPRO_EDIT_COMPUTE || e->kind == DPRO_EDIT_RECOMPUTE ||
           e->kind == DPRO_EDIT_ACCUMULATE;
}

/* No stack can fuse ops or cut batches by a plan, as the report says; modules are known of PyTorch
 * alone. */
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

const char *edit_check(const struct dpro_model *model, const struct dpro_strategy *s,
                       const struct dpro_edit *e)
{
    if (edit_is_of_buckets(e) && e->kind != DPRO_EDIT_COMPRESS && e->at >= s->n_buckets)
        return "there is no such bucket";
    if (!edit_is_within(&model->capabilities, e))
        return "what carries the job's gradients can't be given that";
    switch (e->kind) {
    case DPRO_EDIT_MERGE:
        return e->at + 1 < s->n_buckets ? NULL : "the last bucket has none after it to take in";
    case DPRO_EDIT_SPLIT:
        return e->value > 0 && e->value < s->buckets[e->at].n
                   ? NULL
                   : "a split leaves tensors on both sides";
    case DPRO_EDIT_PARTITION:
        return e->value > 0 && e->value <= MAX_PARTITIONS &&
                       (e->value == 1 ||
                        (uint64_t)e->value * 4 <= bucket_size_bytes(model, s, e->at))
                   ? NULL
                   : "a bucket has 1 to 4096 partitions, of 4 bytes or more";
    case DPRO_EDIT_PRIORITY:
        return e->value == (int32_t)e->value ? NULL : "a priority has 32 bits";
    case DPRO_EDIT_MOVE:
        return e->value >= 0 && e->value < s->n_buckets ? NULL : "there is no such place";
    case DPRO_EDIT_COMPRESS:
        return e->value >= DPRO_COMPRESSION_NONE && e->value <= DPRO_COMPRESSION_BF16
                   ? NULL
                   : "there is no such compression";
    case DPRO_EDIT_FUSE:
        return check_fuse(model, s, e);
    case DPRO_EDIT_UNFUSE:
        return fused_at(s, e->program, e->at) ? NULL : "no fused op begins there";
    case DPRO_EDIT_RECOMPUTE:
        return e->at < model->n_modules ? NULL : "there is no such module";
    case DPRO_EDIT_ACCUMULATE:
        return check_accumulate(model, e);
    case DPRO_EDIT_COMPUTE:
        return e->at >= model->n_modules ? "there is no such module"
               : e->value < 0 || e->value >= DPRO_N_COMPUTINGS
                   ? "there is no such way to compute a module"
               : model->modules[e->at].costs[e->value].is_known ||
                       model->modules[e->at].costs[e->value].is_assumed || e->value == 0
                   ? NULL
                   : "what that way to compute the module costs is not known";
    }
    return "there is no such kind of edit";
}

/* ---- making them ---- */

static void edit_fuse(struct dpro_strategy *s, const struct dpro_edit *e)
{
    uint32_t f = fused_find(s, e->program, e->at), n = n_taken_in(s, e, f);
    memmove(&s->fused[f + 1], &s->fused[f + n], (s->n_fused - f - n) * sizeof *s->fused);
    s->fused[f] = (struct dpro_fused_op){e->program, e->at, e->n, e->value};
    s->n_fused += 1 - n;
}

static void edit_unfuse(struct dpro_strategy *s, const struct dpro_edit *e)
{
    uint32_t f = fused_find(s, e->program, e->at);
    s->n_fused--;
    memmove(&s->fused[f], &s->fused[f + 1], (s->n_fused - f) * sizeof *s->fused);
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
    const char *wrong = edit_check(model, s, e);
    if (wrong)
        return wrong;
    switch (e->kind) {
    case DPRO_EDIT_MERGE:
        edit_merge(s, e->at);
        break;
    case DPRO_EDIT_SPLIT:
        edit_split(s, e->at, (uint32_t)e->value);
        limit_partitions(model, s, e->at);
        limit_partitions(model, s, e->at + 1);
        break;
    case DPRO_EDIT_PARTITION:
        s->buckets[e->at].partitions = (uint32_t)e->value;
        break;
    case DPRO_EDIT_PRIORITY:
        s->buckets[e->at].priority = (int32_t)e->value;
        break;
    case DPRO_EDIT_MOVE:
        edit_move(s, e->at, (uint32_t)e->value);
        break;
    case DPRO_EDIT_COMPRESS:
        s->compression = (enum dpro_compression)e->value;
        break;
    case DPRO_EDIT_FUSE:
        edit_fuse(s, e);
        break;
    case DPRO_EDIT_UNFUSE:
        edit_unfuse(s, e);
        break;
    case DPRO_EDIT_RECOMPUTE:
        s->recomputed[e->at] = e->value != 0;
        break;
    case DPRO_EDIT_ACCUMULATE:
        s->micro_batches = (uint32_t)e->value;
        break;
    case DPRO_EDIT_COMPUTE:
        edit_compute(model, s, e);
        break;
    }
    return NULL;
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
