/* What each block is for, by when it is taken and how long it lives. An activation is made by the
 * forward pass and still there when the next op of a backward pass begins. A gradient is handed to
 * a parameter by the backward pass and lives on. */

#include "graph/memory/memory_build.h"

struct categorizer {
    struct memory_build *b;
    ARRAY(int64_t) backward; /* when each function of a backward pass begins, ascending */
    int64_t update_ns[2]; /* when the update begins that comes behind all functions of the backward
                             pass, or else when these end; of the iteration, and of what was
                             before */
};

static bool begins_backward(const struct memory_build *b, uint32_t s)
{
    const struct trace_span *span = &b->trace->spans[s];
    return span->window == b->window && span->kind == SPAN_CPU_OP &&
           (b->rank->classes[span->name] & NAME_BACKWARD);
}

static void list_backward(struct categorizer *c)
{
    const struct memory_build *b = c->b;
    for (uint32_t s = 0; s < b->trace->n_spans; s++)
        if (begins_backward(b, s))
            array_push(&c->backward, b->trace->spans[s].start_ns);
    sort_i64(c->backward.at, c->backward.n);
}

static bool lies_in(const struct memory_build *b, uint32_t span, uint32_t classes)
{
    return build_within(b->rank, span, classes) != NO_ID;
}

/* What is handed to a parameter is taken in by a node "torch::autograd::AccumulateGrad", a gradient
 * by the optimizer, too. */
static void list_gradients(struct memory_build *b)
{
    for (uint32_t n = 0; b->node_of_span && n < b->trace->n_et_nodes; n++) {
        const struct et_node *node = &b->trace->et_nodes[n];
        bool hands_over = b->rank->classes[node->name] & NAME_ACCUMULATE;
        if (node->span == NO_ID || (!hands_over && (b->rank->phases[node->span] != DPRO_OP_UPDATE ||
                                                    !lies_in(b, node->span, NAME_OPTIMIZER_STEP))))
            continue;
        EACH_INPUT (tensor, b, node) {
            uint32_t block =
                memory_block_of(b, tensor->storage, b->trace->spans[node->span].start_ns);
            if (block != NO_ID)
                *(hands_over ? &b->blocks.at[block].accumulated : &b->blocks.at[block].updates) =
                    true;
        }
    }
}

/* Whether a function of a backward pass begins while the block is there. */
static bool sees_backward(const struct categorizer *c, const struct block_build *block)
{
    size_t next = LOWER_BOUND(i, 0, c->backward.n, c->backward.at[i] < block->taken_ns);
    return next < c->backward.n && c->backward.at[next] < block->given_ns;
}

/* It is taken and given back within one op, and is no tensor of any. */
static bool is_workspace(const struct memory_build *b, const struct block_build *block)
{
    const struct trace_span *span = &b->trace->spans[block->span];
    return b->node_of_span && block->storage == NO_ID && span->kind == SPAN_CPU_OP &&
           block->given_ns <= span_end_ns(span);
}

/* When the last function of a backward pass is over, before a time. */
static int64_t backward_end(const struct memory_build *b, int64_t before_ns)
{
    int64_t end_ns = INT64_MIN;
    for (uint32_t s = 0; s < b->trace->n_spans; s++) {
        const struct trace_span *span = &b->trace->spans[s];
        if (span->start_ns < before_ns && begins_backward(b, s))
            end_ns = MAX(end_ns, span_end_ns(span));
    }
    return end_ns;
}

/* When the optimizer's step begins behind the last function of the backward pass, before a time. */
static int64_t update_begin(const struct memory_build *b, int64_t before_ns)
{
    int64_t end_ns = backward_end(b, before_ns), begin_ns = INT64_MAX;
    EACH_OF (const struct trace_span, span, b->trace->spans, b->trace->n_spans) {
        if (span->window == b->window && span->start_ns >= end_ns && span->start_ns < before_ns &&
            (b->rank->classes[span->name] & NAME_OPTIMIZER_STEP))
            begin_ns = MIN(begin_ns, span->start_ns);
    }
    return begin_ns < INT64_MAX ? begin_ns : end_ns;
}

/* What is made in the backward pass and is there for the update; where collectives scatter
 * gradients, what comes of that. */
static bool is_gradient(const struct categorizer *c, uint32_t index)
{
    const struct memory_build *b = c->b;
    const struct block_build *block = &b->blocks.at[index];
    bool before = block->taken_ns < b->start_ns;
    if (block->given_ns <= c->update_ns[before] || lies_in(b, block->span, NAME_OPTIMIZER_STEP))
        return false;
    if (block->accumulated || block->updates)
        return true;
    return !b->node_of_span && b->rank->phases[block->span] == DPRO_OP_BW;
}

static bool is_communication(const struct memory_build *b, uint32_t span)
{
    return lies_in(b, span, NAME_COMM_CALL | NAME_COMM_PARAM | NAME_COMM_RUN | NAME_COMM_SCOPE);
}

static uint8_t category_of(const struct categorizer *c, uint32_t index)
{
    const struct memory_build *b = c->b;
    const struct block_build *block = &b->blocks.at[index];
    if (block->span == NO_ID)
        return DPRO_MEMORY_OTHER;
    if (is_gradient(c, index))
        return DPRO_MEMORY_GRADIENT;
    if (is_communication(b, block->span))
        return DPRO_MEMORY_COMMUNICATION;
    if (is_workspace(b, block))
        return DPRO_MEMORY_WORKSPACE;
    switch (b->span_calls[block->span].backward ? DPRO_OP_BW : b->rank->phases[block->span]) {
    case DPRO_OP_INPUT:
        return DPRO_MEMORY_INPUT;
    case DPRO_OP_UPDATE:
        return block->given_ns == AFTER_STEP && lies_in(b, block->span, NAME_OPTIMIZER_STEP)
                   ? DPRO_MEMORY_STATE
                   : DPRO_MEMORY_TEMPORARY;
    case DPRO_OP_BW:
        if (b->span_calls[block->span].call != MEMORY_NONE && !b->span_calls[block->span].backward)
            break;
        return DPRO_MEMORY_TEMPORARY;
    default:
        break;
    }
    return sees_backward(c, block) ? DPRO_MEMORY_ACTIVATION : DPRO_MEMORY_TEMPORARY;
}

/* The outermost op in which the block was taken; within the backward pass, of its function. */
static uint32_t name_of(const struct memory_build *b, uint32_t span)
{
    uint32_t name = 0;
    for (; span != NO_ID; span = b->trace->spans[span].parent) {
        const struct trace_span *it = &b->trace->spans[span];
        uint32_t class = b->rank->classes[it->name];
        if (it->kind == SPAN_CPU_OP && (name == 0 || !(class & NAME_BACKWARD)))
            name = it->name;
    }
    return name;
}

/* What is taken before a module runs for the first time and is there when it does: the batch. */
static void find_inputs(struct memory_build *b)
{
    uint32_t first = b->calls.n > 0 ? b->calls.at[0].forward_first : 0;
    for (size_t i = 0; i < b->blocks.n; i++) {
        struct graph_block *to = &b->blocks.at[i].to;
        if (to->taken != MEMORY_NONE && to->taken < first &&
            (to->given == MEMORY_NONE || to->given > first))
            to->category = DPRO_MEMORY_INPUT;
    }
}

/* The step of the window in which a time lies; NO_ID: it is before the first. */
static uint32_t step_at(const struct memory_build *b, int64_t ns)
{
    uint32_t s = b->step;
    while (s > 0 && b->rank->steps.at[s].start_ns > ns &&
           b->rank->steps.at[s - 1].window == b->window)
        s--;
    return ns >= b->rank->steps.at[s].start_ns ? s : NO_ID;
}

static bool may_be_activation(const struct block_build *block)
{
    return block->to.category == DPRO_MEMORY_ACTIVATION ||
           block->to.category == DPRO_MEMORY_TEMPORARY;
}

/* The step of the window that a block was taken in and that keeps it; NO_ID: it is not kept. */
static uint32_t kept_by(const struct memory_build *b, const struct block_build *block)
{
    bool kept = block->held == NO_ID && block->span != NO_ID && block->given_ns == AFTER_STEP;
    return kept ? step_at(b, block->taken_ns) : NO_ID;
}

/* Some of these sizes were kept before for more than a step, and given back: as collected garbage
 * is. */
static bool is_given_back_later(const struct memory_build *b, const struct map *sizes)
{
    EACH (const struct block_build, block, b->blocks) {
        uint64_t count;
        uint32_t s = block->span != NO_ID && block->given_ns != AFTER_STEP
                         ? step_at(b, block->taken_ns)
                         : NO_ID;
        if (s != NO_ID && step_at(b, block->given_ns) > s + 1 &&
            map_get(sizes, map_key(block->size_bytes), &count))
            return true;
    }
    return false;
}

/* From which of n steps on each keeps something, and no tenth or less of what the last ones do. */
static uint32_t grows_from(const uint64_t *kept, uint32_t n)
{
    enum { LAST = 3, LEAST = 10 };
    uint64_t most = 0;
    uint32_t from = n;
    for (uint32_t s = n > LAST ? n - LAST : 0; s < n; s++)
        most = MAX(most, kept[s]);
    while (from > 0 && kept[from - 1] > 0 && kept[from - 1] >= most / LEAST)
        from--;
    return from;
}

/* From which of the steps on memory grows at its latest pace, which at least three keep and which
 * differs by a quarter of it or more, and by twice what either the steps before or those since vary
 * by. */
static uint32_t pace_from(const uint64_t *kept, uint32_t since, uint32_t n)
{
    enum { FEWEST = 3, FEWEST_BEFORE = 2, LEAST = 4 };
    for (uint32_t at = n; at-- > since + FEWEST_BEFORE;) {
        uint64_t least[2] = {UINT64_MAX, UINT64_MAX}, most[2] = {0}; /* before; since then */
        for (uint32_t s = since; s < n; s++) {
            least[s >= at] = MIN(least[s >= at], kept[s]);
            most[s >= at] = MAX(most[s >= at], kept[s]);
        }
        uint64_t varies = MAX(most[0] - least[0], most[1] - least[1]);
        uint64_t apart = least[1] > most[0]   ? least[1] - most[0]
                         : least[0] > most[1] ? least[0] - most[1]
                                              : 0;
        if (n - at >= FEWEST && apart > 2 * varies && apart >= MAX(most[0], most[1]) / LEAST)
            return at;
    }
    return since;
}

/* What earlier steps keep is no activation, however long a backward pass sees it; where memory
 * grows, that and what the last step keeps of the same sizes is what it grew by. */
static void set_kept_apart(struct memory_build *b, uint32_t first, struct map *kept_before)
{
    EACH (struct block_build, block, b->blocks) {
        uint32_t s = kept_by(b, block);
        uint64_t count = 0;
        if (s == b->step && b->growth_bytes > 0 &&
            map_get(kept_before, map_key(block->size_bytes), &count) && count > 0)
            map_set(kept_before, map_key(block->size_bytes), count - 1);
        else if (s == NO_ID || s == b->step)
            continue;
        if (!may_be_activation(block))
            continue;
        block->to.category = DPRO_MEMORY_OTHER;
        block->to.grows = b->growth_bytes > 0 && s >= first;
    }
}

/* Memory that grows from step to step: the steps before the last, three or more in a row and not
 * the first, or all of fewer, keep something each. The first may make what the job keeps, of which
 * more than a few steps tell. The last one also keeps what the next one gives back. */
static void find_growth(struct memory_build *b)
{
    enum { FEWEST = 3 };
    uint32_t first = b->step, n, from;
    while (first > 0 && b->rank->steps.at[first - 1].window == b->window)
        first--;
    n = b->step - first;
    SCRATCH struct map kept_before = {0}; /* sizes that the last step but one keeps -> how many */
    SCRATCH uint64_t *kept = mem_array(n + (size_t)1, sizeof *kept);
    EACH (const struct block_build, block, b->blocks) {
        uint32_t s = kept_by(b, block);
        if (s == NO_ID || (n <= FEWEST && !may_be_activation(block)))
            continue;
        kept[s - first] += block->size_bytes;
        if (s + 1 == b->step)
            map_add(&kept_before, map_key(block->size_bytes), 1);
    }
    from = grows_from(kept, n);
    bool grows = n > FEWEST ? n - MAX(from, 1) >= FEWEST : n > 1 && from == 0;
    if (n == 1)
        b->kept_bytes = kept[0];
    if (grows && (from <= 1 || !is_given_back_later(b, &kept_before))) {
        uint32_t since = n > FEWEST ? MAX(from, 1) : 0, latest = pace_from(kept, since, n);
        for (uint32_t s = latest; s < n; s++)
            b->growth_bytes += kept[s];
        b->growth_bytes /= n - latest;
        bool always = latest == since && (from == 0 || (from == 1 && kept[0] > 0));
        b->growth_since = always ? -1 : b->rank->steps.at[first + latest].number;
    }
    set_kept_apart(b, from <= 1 ? 0 : first + from, &kept_before);
}

void memory_categorize(struct memory_build *b)
{
    struct categorizer c = {.b = b};
    list_backward(&c);
    c.update_ns[false] = update_begin(b, b->end_ns);
    c.update_ns[true] = update_begin(b, b->start_ns);
    list_gradients(b);
    for (uint32_t i = 0; i < b->blocks.n; i++) {
        struct block_build *block = &b->blocks.at[i];
        if (block->held != NO_ID || block->taken_ns == BEFORE_WINDOW)
            continue;
        block->to.category = category_of(&c, i);
        if (block->span == NO_ID)
            continue;
        block->to.name = name_of(b, block->span);
        block->to.call = b->span_calls[block->span].call;
    }
    find_inputs(b);
    find_growth(b);
    array_fini(&c.backward);
}
