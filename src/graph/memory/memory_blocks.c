/* The blocks of a window: allocations and frees joined by address.
 *
 * A block that is freed without having been allocated was there before the window. So are the
 * blocks of memory.json, unless they have gone since. A GPU's allocator reports every block that
 * goes. A CPU's profile does not if the block is older than the recording. Such a block has gone if
 * other memory was taken at its address. If the recorder did not look again, it has also gone if a
 * block of its size was made in the iteration before and kept, as gradients and batches are. A
 * CPU's profiler does not see frees by a collective's own thread. */

#include "base/intervals.h"
#include "graph/memory/memory_build.h"
/* More than any device has: the sum of what was there before stays far from overflow. */
#define MOST_BYTES ((uint64_t)1 << 44)
/* Larger ones are no addresses. */
#define MOST_ADDRESS ((uint64_t)1 << 62)
uint32_t memory_span_at(const struct trace_rank *trace, uint32_t track, int64_t ns)
{
    if (track == NO_ID)
        return NO_ID;
    const struct trace_track *on = &trace->tracks[track];
    uint32_t first = on->first,
             at = LOWER_BOUND(i, first, first + on->n, trace->spans[i].start_ns <= ns);
    if (at == first)
        return NO_ID;
    at--;
    while (at != NO_ID && span_end_ns(&trace->spans[at]) < ns)
        at = trace->spans[at].parent;
    return at;
}

uint32_t memory_push_block(struct memory_build *b, int64_t taken_ns, uint64_t address,
                           uint64_t size_bytes)
{
    array_add(&b->blocks, .taken_ns = taken_ns, .given_ns = AFTER_STEP, .address = address,
              .size_bytes = size_bytes, .span = NO_ID, .held = NO_ID, .storage = NO_ID,
              .to = {.size_bytes = size_bytes,
                     .taken = MEMORY_NONE,
                     .given = MEMORY_NONE,
                     .category = DPRO_MEMORY_OTHER,
                     .call = MEMORY_NONE,
                     .made_by = MEMORY_NONE});
    return (uint32_t)b->blocks.n - 1;
}

struct block_build *memory_add_before(struct memory_build *b, uint8_t category, uint32_t name,
                                      uint64_t size_bytes)
{
    uint32_t index = memory_push_block(b, BEFORE_WINDOW, 0, size_bytes); /* which may move them */
    struct block_build *block = &b->blocks.at[index];
    block->to.category = category;
    block->to.name = name;
    return block;
}

/* ---- events ---- */

struct blocks_joiner {
    struct memory_build *b;
    struct map live;    /* address -> 1 + its block; 0: none */
    struct map of_size; /* where no addresses are said: size -> 1 + the latest block; 0: none */
};

static void push_moment(struct memory_build *b, const struct trace_allocation *event,
                        uint32_t block, bool gives)
{
    if (event->ns >= b->start_ns)
        array_add(&b->moments, event->ns, event->track, block, gives);
    *(gives ? &b->blocks.at[block].given_ns : &b->blocks.at[block].taken_ns) = event->ns;
}

/* 1 + the block that an event gives back, or finds where it takes one; 0: none. */
static uint64_t pop_live(struct blocks_joiner *joiner, const struct trace_allocation *event)
{
    uint64_t block = 0;
    if (event->address != 0) {
        uint64_t key = map_key(event->address);
        if (map_get(&joiner->live, key, &block) && block != 0)
            map_set(&joiner->live, key, 0);
    } else if (event->bytes < 0) { /* the latest of its size */
        uint64_t key = map_key((uint64_t)-event->bytes);
        if (map_get(&joiner->of_size, key, &block) && block != 0)
            map_set(&joiner->of_size, key, joiner->b->blocks.at[block - 1].previous);
    }
    return block;
}

static void push_live(struct blocks_joiner *joiner, uint32_t block)
{
    struct block_build *it = &joiner->b->blocks.at[block];
    if (it->address != 0) {
        map_set(&joiner->live, map_key(it->address), block + UINT64_C(1));
        return;
    }
    map_get(&joiner->of_size, map_key(it->size_bytes), &it->previous);
    map_set(&joiner->of_size, map_key(it->size_bytes), block + UINT64_C(1));
}

static void add_event(struct blocks_joiner *joiner, const struct trace_allocation *event)
{
    struct memory_build *b = joiner->b;
    uint64_t live = pop_live(joiner, event);
    if (event->bytes < 0 && live == 0)
        live = 1 + memory_push_block(b, BEFORE_WINDOW, event->address, (uint64_t)-event->bytes);
    if (live != 0) { /* or taken again: that it was given back is not recorded */
        push_moment(b, event, (uint32_t)live - 1, true);
        b->blocks.at[live - 1].unseen = event->bytes > 0;
    }
    if (event->bytes < 0)
        return;
    uint32_t block = memory_push_block(b, event->ns, event->address, (uint64_t)event->bytes);
    b->blocks.at[block].span = memory_span_at(b->trace, event->track, event->ns);
    push_moment(b, event, block, false);
    push_live(joiner, block);
}

static bool is_wanted(const struct memory_build *b, const struct trace_allocation *event)
{
    return event->window == b->window && event->device == b->device && event->ns < b->end_ns &&
           event->bytes != 0;
}

/* The end of the call of a collective that a span is part of; AFTER_STEP: it is part of none. */
static int64_t collective_end(const struct memory_build *b, uint32_t span)
{
    span = build_within(b->rank, span, NAME_COMM_CALL);
    return span == NO_ID ? AFTER_STEP : span_end_ns(&b->trace->spans[span]);
}

/* At its new time. */
static void move_giving(struct memory_build *b, uint32_t block)
{
    const struct block_build *it = &b->blocks.at[block];
    struct moment_build moment = {it->given_ns, b->trace->spans[it->span].track, block, true};
    size_t old = b->moments.n;
    while (old-- > 0 && !(b->moments.at[old].block == block && b->moments.at[old].gives))
        ;
    if (old < b->moments.n) {
        b->moments.n--;
        memmove(&b->moments.at[old], &b->moments.at[old + 1],
                (b->moments.n - old) * sizeof *b->moments.at);
    }
    if (it->given_ns < b->start_ns)
        return;
    uint32_t at = memory_place_of(b, it->given_ns);
    array_push(&b->moments, moment);
    memmove(&b->moments.at[at + 1], &b->moments.at[at],
            (b->moments.n - 1 - at) * sizeof *b->moments.at);
    b->moments.at[at] = moment;
}

/* What a collective took, and nobody was seen to give back, it gives back at its end. What is still
 * there when the next iteration is over was given back, too; of this one's it may be a result. */
static void end_collectives(struct memory_build *b)
{
    for (uint32_t i = 0; i < b->blocks.n && b->device < 0; i++) {
        struct block_build *block = &b->blocks.at[i];
        block->unseen |= block->given_ns == AFTER_STEP && block->taken_ns < b->start_ns;
        int64_t end_ns = block->unseen ? collective_end(b, block->span) : AFTER_STEP;
        block->unseen = end_ns < block->given_ns;
        if (!block->unseen)
            continue;
        block->given_ns = MAX(end_ns, block->taken_ns + 1);
        move_giving(b, i);
    }
}

void memory_join_allocations(struct memory_build *b)
{
    struct blocks_joiner joiner = {.b = b};
    for (uint32_t i = 0; i < b->trace->n_allocations; i++)
        if (is_wanted(b, &b->trace->allocations[i]))
            add_event(&joiner, &b->trace->allocations[i]);
    end_collectives(b);
    FREE_ALL(&joiner.live, &joiner.of_size);
}

/* ---- what was there before ---- */

/* Where memory was taken in the window, ascending and apart. */
static interval_array find_taken(const struct memory_build *b)
{
    interval_array taken = {0};
    EACH (const struct block_build, block, b->blocks)
        if (block->taken_ns != BEFORE_WINDOW && block->size_bytes > 0 &&
            block->address < MOST_ADDRESS && block->size_bytes < MOST_ADDRESS)
            array_add(&taken, (int64_t)block->address,
                      (int64_t)(block->address + block->size_bytes));
    intervals_join(&taken);
    return taken;
}

static bool is_taken_again(const interval_array *taken, const struct held_block *held)
{
    int64_t address = (int64_t)held->address;
    return held->address != 0 && held->address < MOST_ADDRESS &&
           intervals_within(taken, address, address + (int64_t)held->size_bytes) > 0;
}

/* What a job makes anew in every iteration. */
static bool is_made_anew(uint8_t category)
{
    return category == DPRO_MEMORY_GRADIENT || category == DPRO_MEMORY_INPUT ||
           category == DPRO_MEMORY_OTHER;
}

/* What the iteration before has made and kept: how many blocks of each size. */
static struct map count_kept(const struct memory_build *b)
{
    struct map kept = {0};
    EACH (const struct block_build, block, b->blocks) {
        if (block->taken_ns != BEFORE_WINDOW && block->taken_ns < b->start_ns &&
            block->given_ns >= b->start_ns)
            map_add(&kept, map_key(block->size_bytes), 1);
    }
    return kept;
}

static bool is_replaced(struct map *kept, uint64_t size_bytes)
{
    uint64_t n = 0;
    if (!map_get(kept, map_key(size_bytes), &n) || n == 0)
        return false;
    map_set(kept, map_key(size_bytes), n - 1);
    return true;
}

static void describe_held(struct memory_build *b, uint32_t block, uint32_t held)
{
    struct block_build *to = &b->blocks.at[block];
    to->held = held;
    to->to.asked_bytes = memory_rounded(b, b->held->blocks[held].size_bytes);
    to->to.category = b->held->blocks[held].category;
    to->to.name = b->held->blocks[held].name;
}

/* By name first, so that gradients are told to have been replaced before other blocks of their
 * size are. */
static void add_held(struct memory_build *b)
{
    SCRATCH struct map given = {0}; /* address -> block */
    SCRATCH interval_array taken = find_taken(b);
    SCRATCH struct map kept = count_kept(b);
    size_t n_seen = b->blocks.n;
    bool is_sure = b->device >= 0 || b->held->of_last_step;
    for (uint32_t i = 0; i < n_seen; i++)
        if (b->blocks.at[i].taken_ns == BEFORE_WINDOW)
            map_set(&given, map_key(b->blocks.at[i].address), i);
    for (int pass = 0; pass < 2; pass++)
        for (uint32_t h = 0; h < b->held->n_blocks; h++) {
            const struct held_block *held = &b->held->blocks[h];
            uint64_t block;
            if ((held->category == DPRO_MEMORY_OTHER) != (pass == 1) ||
                held->size_bytes > MOST_BYTES)
                continue;
            if (held->address != 0 && map_get(&given, map_key(held->address), &block)) {
                describe_held(b, (uint32_t)block, h);
            } else if (!is_taken_again(&taken, held) && (is_sure || !is_made_anew(held->category) ||
                                                         !is_replaced(&kept, held->size_bytes))) {
                block = memory_push_block(b, BEFORE_WINDOW, held->address,
                                          memory_rounded(b, held->size_bytes));
                describe_held(b, (uint32_t)block, h);
            }
        }
}

/* Without a memory.json: what dpro's recorder says of the rank's models. */
static void add_recorded(struct memory_build *b)
{
    const struct recording *recording = b->trace->recording;
    if (!recording)
        return;
    for (size_t i = 0; i < recording->parameters.n; i++)
        memory_add_before(b, DPRO_MEMORY_PARAMETER, recording->parameters.at[i].name,
                          MIN(recording->parameters.at[i].size_bytes, MOST_BYTES));
    if (recording->optimizer_bytes > 0)
        memory_add_before(b, DPRO_MEMORY_STATE, 0, MIN(recording->optimizer_bytes, MOST_BYTES))
            ->merged = true;
    EACH (const struct recorded_model, model, recording->models) {
        for (uint32_t i = 0; i < model->n_buckets; i++) {
            const struct recorded_bucket *bucket = &recording->buckets.at[model->first_bucket + i];
            memory_add_before(b, DPRO_MEMORY_BUCKET, 0, MIN(bucket->size_bytes, MOST_BYTES));
        }
    }
}

/* ---- sums ---- */

ORDER(by_start, struct held_allocated, ASCENDING(address));

static bool is_there_before(const struct memory_build *b, const struct block_build *block)
{
    return block->taken_ns < b->start_ns && block->given_ns >= b->start_ns;
}

static struct held_allocated *allocated_at(struct held_allocated *all, size_t n, uint64_t address)
{
    size_t at = LOWER_BOUND(i, (size_t)0, n, all[i].address < address);
    return at < n && all[at].address == address ? &all[at] : NULL;
}

/* The least block that may have been made for that many bytes: a rest of up to 1 MiB is not cut off
 * larger ones. */
static struct held_allocated *allocated_for(struct held_allocated *all, size_t n, uint64_t bytes)
{
    enum { MOST_REST = 1 << 20 };
    struct held_allocated *best = NULL;
    for (size_t i = 0; i < n; i++) {
        uint64_t rest = all[i].size_bytes - bytes;
        bool fits = all[i].size_bytes >= bytes && rest <= (bytes > MOST_REST ? MOST_REST : 0);
        if (fits && (!best || all[i].size_bytes < best->size_bytes))
            best = &all[i];
    }
    return best;
}

/* Blocks of a GPU's allocator that nobody lists: such as workspaces of libraries. Of those without
 * an address, such as DDP's buckets, each is one of its size. */
static void add_unlisted(struct memory_build *b)
{
    SCRATCH ARRAY(struct held_allocated) all = {0};
    array_append(&all, b->held->allocated, b->held->n_allocated);
    array_sort(&all, by_start);
    size_t n_listed = b->blocks.n;
    for (size_t i = 0; i < n_listed; i++) {
        struct held_allocated *found = is_there_before(b, &b->blocks.at[i])
                                           ? allocated_at(all.at, all.n, b->blocks.at[i].address)
                                           : NULL;
        if (found)
            found->size_bytes = 0;
    }
    EACH_OF (struct block_build, block, b->blocks.at, n_listed) {
        if (block->address != 0 || !is_there_before(b, block))
            continue;
        struct held_allocated *found = allocated_for(all.at, all.n, block->size_bytes);
        if (found) {
            block->address = found->address;
            found->size_bytes = 0;
        }
    }
    for (size_t k = 0; k < all.n; k++)
        if (all.at[k].size_bytes > 0)
            memory_add_before(b, DPRO_MEMORY_OTHER, 0, all.at[k].size_bytes)->address =
                all.at[k].address;
}

/* What a GPU's allocator says it had given out before the iteration, less what is known of it. */
static void add_rest(struct memory_build *b)
{
    int64_t before = -1, known = 0;
    for (uint32_t i = 0; i < b->trace->n_allocations && before < 0; i++) {
        const struct trace_allocation *event = &b->trace->allocations[i];
        if (is_wanted(b, event) && event->ns >= b->start_ns && event->allocated_bytes >= 0)
            before = MAX(event->allocated_bytes - event->bytes, 0);
    }
    for (size_t i = 0; i < b->blocks.n; i++)
        if (is_there_before(b, &b->blocks.at[i]))
            known += (int64_t)b->blocks.at[i].size_bytes;
    if (before > known)
        memory_add_before(b, DPRO_MEMORY_OTHER, 0, (uint64_t)(before - known))->merged = true;
}

/* How far above what was held when the iteration began the profiler's own count of bytes got;
 * below 0: it has none. What events that are missing took is in it. */
static int64_t counted_rise(const struct memory_build *b)
{
    int64_t before = -1, most = -1, unseen = 0; /* given back, and still counted */
    size_t next = 0;
    EACH_OF (const struct trace_allocation, event, b->trace->allocations, b->trace->n_allocations) {
        if (!is_wanted(b, event) || event->ns < b->start_ns || event->ns >= b->end_ns)
            continue;
        if (event->allocated_bytes < 0)
            return -1;
        for (; next < b->moments.n && b->moments.at[next].ns < event->ns; next++) {
            const struct block_build *block = &b->blocks.at[b->moments.at[next].block];
            unseen += b->moments.at[next].gives && block->unseen ? (int64_t)block->size_bytes : 0;
        }
        if (most < 0)
            before = most = MAX(event->allocated_bytes - event->bytes, 0);
        most = MAX(most, event->allocated_bytes - unseen);
    }
    return most < 0 ? -1 : most - before;
}

/* The highest sum of what blocks hold, as the moments follow each other; as the profiler counted
 * it, where it did. */
static uint64_t find_peak(const struct memory_build *b)
{
    uint64_t now = 0, peak;
    for (size_t i = 0; i < b->blocks.n; i++)
        if (is_there_before(b, &b->blocks.at[i]))
            now += b->blocks.at[i].size_bytes;
    int64_t rise = counted_rise(b);
    if (rise >= 0)
        return now + (uint64_t)rise;
    peak = now;
    for (size_t i = 0; i < b->moments.n; i++) {
        uint64_t size = b->blocks.at[b->moments.at[i].block].size_bytes;
        now = b->moments.at[i].gives ? now - size : now + size;
        peak = MAX(peak, now);
    }
    return peak;
}

void memory_measure(struct memory_build *b)
{
    struct graph_memory *to = b->to;
    if (to->source != DPRO_MEMORY_ALLOCATIONS)
        return;
    if (b->device >= 0 && b->held)
        add_unlisted(b);
    if (b->device >= 0)
        add_rest(b);
    EACH_OF (const struct trace_allocation, event, b->trace->allocations, b->trace->n_allocations) {
        if (!is_wanted(b, event) || event->ns < b->start_ns)
            continue;
        if (event->reserved_bytes > 0)
            to->measured_reserved_bytes =
                MAX(to->measured_reserved_bytes, (uint64_t)event->reserved_bytes);
        if (b->device >= 0 && event->allocated_bytes > 0)
            to->measured_peak_bytes =
                MAX(to->measured_peak_bytes,
                    (uint64_t)MAX(event->allocated_bytes, event->allocated_bytes - event->bytes));
    }
    bool is_recorded = b->trace->recording && b->trace->recording->parameters.n > 0;
    bool is_whole = b->held ? !b->held->is_cut : is_recorded || b->node_of_span;
    if (b->device < 0 && is_whole) /* else what was there before is not known */
        to->measured_peak_bytes = find_peak(b);
}

void memory_add_older(struct memory_build *b)
{
    if (b->held)
        add_held(b);
    else
        add_recorded(b);
}
