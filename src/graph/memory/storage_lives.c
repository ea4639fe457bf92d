/* Blocks without a record of allocations, from the storages of the execution trace.
 *
 * A storage is taken by the op that first puts it out and given back after its last use. Some live
 * longer: what a backward function reads, until that is over; a gradient until it is cleared; the
 * batch until the iteration is over. Unknown are what a library takes within an op other than a
 * convolution (convolution_copies.c), and what the program keeps in a variable without using it,
 * such as the model's output. */
#include "graph/memory/memory_build.h"

struct lives_life {
    uint64_t storage, size_bytes, numel;
    int64_t born_ns, last_ns;
    uint32_t span, last_span; /* that made it, that used it last */
    uint8_t item_bytes;
    bool accumulated, updates; /* it was handed to a parameter, and used in an update */
    bool kept;                 /* until its iteration is over */
};
typedef ARRAY(struct lives_life) life_array;

struct biographer {
    struct memory_build *b;
    life_array lives;         /* by when they were first seen */
    struct map now;           /* storage -> 1 + its latest life; 0: it is older */
    struct map trained;       /* older ones that an update uses */
    ARRAY(int64_t) clearings; /* of gradients, ascending */
};

static struct lives_life *life_of(const struct biographer *b, uint64_t storage)
{
    uint64_t at;
    return map_get(&b->now, map_key(storage), &at) && at > 0 ? &b->lives.at[at - 1] : NULL;
}

static bool is_there(const struct biographer *b, const struct et_tensor *tensor)
{
    return memory_device_of(b->b, tensor) == b->b->device && memory_extent_of(tensor) > 0;
}

static void lives_use(struct biographer *b, uint32_t span, const struct et_tensor *tensor)
{
    const struct trace_span *at = &b->b->trace->spans[span];
    struct lives_life *life = life_of(b, tensor->storage);
    uint8_t phase = b->b->rank->phases[span];
    if (!life) {
        if (phase == DPRO_OP_UPDATE)
            map_set(&b->trained, map_key(tensor->storage), 1);
        return;
    }
    if (tensor->item_bytes != life->item_bytes) {
        /* the number beside a tensor, which no op makes, has the number of one that has gone */
        map_set(&b->now, map_key(tensor->storage), 0);
        return;
    }
    if (span_end_ns(at) < life->last_ns)
        return;
    life->last_ns = span_end_ns(at);
    life->last_span = span;
    life->updates |= phase == DPRO_OP_UPDATE;
    life->accumulated |= (b->b->rank->classes[at->name] & NAME_ACCUMULATE) != 0;
}

/* The innermost op that puts it out makes it. What comes behind that within an outer one is another
 * storage, of the same number. */
static void be_born(struct biographer *b, uint32_t span, const struct et_tensor *tensor)
{
    const struct trace_span *at = &b->b->trace->spans[span];
    struct lives_life *life = life_of(b, tensor->storage);
    struct lives_life born = {.storage = tensor->storage,
                              .size_bytes = memory_extent_of(tensor),
                              .numel = tensor->numel,
                              .born_ns = at->start_ns,
                              .last_ns = span_end_ns(at),
                              .span = span,
                              .last_span = span,
                              .item_bytes = (uint8_t)MIN(tensor->item_bytes, 255)};
    if (life && life->born_ns <= at->start_ns &&
        span_end_ns(at) <= span_end_ns(&b->b->trace->spans[life->span])) {
        born.size_bytes = MAX(born.size_bytes, life->size_bytes);
        *life = born;
        return;
    }
    array_push(&b->lives, born);
    map_set(&b->now, map_key(tensor->storage), b->lives.n);
}

static void read_node(struct biographer *b, const struct et_node *node)
{
    enum { MOST_OUTPUTS = 4096 }; /* longer lists are what is updated in its place */
    EACH_INPUT (tensor, b->b, node)
        lives_use(b, node->span, tensor);
    for (uint32_t i = 0; i < MIN(node->n_outputs, MOST_OUTPUTS); i++) {
        const struct et_tensor *tensor = &b->b->trace->et_tensors[node->first_output + i];
        if (memory_takes_in(b->b, node, tensor->storage))
            lives_use(b, node->span, tensor);
        else if (is_there(b, tensor))
            be_born(b, node->span, tensor);
    }
}

/* ---- what is kept ---- */

static bool is_forward(const struct biographer *b, uint32_t span)
{
    return b->b->trace->spans[span].start_ns >= b->b->start_ns &&
           b->b->rank->phases[span] == DPRO_OP_FW;
}

static bool uses_trained(const struct biographer *b, const struct et_node *node)
{
    EACH_INPUT (tensor, b->b, node) {
        uint64_t key = map_key(tensor->storage);
        if (map_get(&b->trained, key, NULL) && !map_get(&b->now, key, NULL))
            return true;
    }
    return false;
}

/* The batch is made before the first op that has a parameter. It is over when something else has
 * its number. */
static void keep_batch(struct biographer *b)
{
    int64_t first_ns = INT64_MAX;
    for (size_t i = 0; i < b->b->ordered.n && first_ns == INT64_MAX; i++) {
        uint32_t span = b->b->ordered.at[i], n = b->b->node_of_span[span];
        if (n != NO_ID && is_forward(b, span) && uses_trained(b, &b->b->trace->et_nodes[n]))
            first_ns = b->b->trace->spans[span].start_ns;
    }
    for (size_t i = 0; i < b->lives.n && first_ns != INT64_MAX; i++) {
        struct lives_life *life = &b->lives.at[i];
        life->kept = life->born_ns >= b->b->start_ns && life->born_ns < first_ns &&
                     life_of(b, life->storage) == life;
    }
}

static void list_clearings(struct biographer *b)
{
    const struct memory_build *build = b->b;
    EACH_OF (const struct trace_span, span, build->trace->spans, build->trace->n_spans) {
        if ((build->rank->classes[span->name] & NAME_ZERO_GRAD) && span->window == build->window &&
            span_end_ns(span) < build->end_ns)
            array_push(&b->clearings, span_end_ns(span));
    }
    sort_i64(b->clearings.at, b->clearings.n);
}

/* The next time that gradients are cleared; where that is not seen, when the iteration is over. */
static int64_t clearing_after(const struct biographer *b, int64_t ns)
{
    size_t next = LOWER_BOUND(i, 0, b->clearings.n, b->clearings.at[i] < ns);
    if (next < b->clearings.n)
        return b->clearings.at[next];
    return ns < b->b->start_ns ? ns : AFTER_STEP;
}

static int64_t given_ns(const struct biographer *b, const struct lives_life *life)
{
    const struct memory_build *build = b->b;
    const struct trace_span *spans = build->trace->spans;
    int64_t last_ns = life->last_ns;
    if (life->kept)
        return AFTER_STEP;
    if (life->accumulated && life->updates)
        return clearing_after(b, last_ns);
    for (uint32_t up = life->last_span; up != NO_ID; up = spans[up].parent)
        if ((build->rank->classes[spans[up].name] & NAME_BACKWARD) &&
            life->born_ns < spans[up].start_ns) /* it is handed to the function */
            last_ns = MAX(last_ns, span_end_ns(&spans[up]));
    return last_ns >= build->end_ns ? AFTER_STEP : last_ns;
}

/* ---- blocks ---- */

ORDER(by_time, struct moment_build, ASCENDING(ns) ?: DESCENDING(gives) ?: ASCENDING(block));

static void add_block(struct biographer *b, const struct lives_life *life)
{
    struct memory_build *build = b->b;
    const struct trace_span *spans = build->trace->spans;
    uint32_t index = memory_push_block(build, life->born_ns, 0, life->size_bytes);
    struct block_build *block = &build->blocks.at[index];
    block->given_ns = MAX(given_ns(b, life), life->born_ns + 1);
    block->span = life->span;
    block->numel = life->numel;
    block->to.item_bytes = life->item_bytes;
    memory_bind(build, index, life->storage);
    if (life->born_ns >= build->start_ns)
        array_add(&build->moments, life->born_ns, spans[life->span].track, index, false);
    if (block->given_ns != AFTER_STEP && block->given_ns >= build->start_ns)
        array_add(&build->moments, block->given_ns, spans[life->last_span].track, index, true);
}

void memory_find_lives(struct memory_build *build)
{
    struct biographer b = {.b = build};
    EACH (const uint32_t, span, build->ordered)
        if (build->node_of_span[*span] != NO_ID)
            read_node(&b, &build->trace->et_nodes[build->node_of_span[*span]]);
    keep_batch(&b);
    list_clearings(&b);
    for (size_t i = 0; i < b.lives.n; i++)
        add_block(&b, &b.lives.at[i]);
    memory_add_convolution_copies(build);
    array_sort(&build->moments, by_time);
    memory_order_bindings(build);
    FREE_ALL(&b.lives, &b.clearings, &b.now, &b.trained);
}
