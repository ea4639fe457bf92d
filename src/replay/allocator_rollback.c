/* Undoes a record of requests, backwards. Undoing an allocation leaves nothing; undoing a free
 * leaves a block; a segment that was taken is gone, and one that was given back is there. */
#include "replay/allocator_state.h"

struct undone_block {
    uint64_t address, bytes; /* as asked for, or the block's where `exact` */
    uint8_t state;           /* enum allocator_block_state; FREE: it is not held */
    bool exact;
};

/* A block that may be larger than what was asked for, since a block is not cut where little would
 * remain. Behind it is a free block. */
struct unsure {
    uint64_t address, end; /* of both */
    uint32_t block;        /* index in the start's */
    bool done;
};

struct rollback {
    const struct allocator_history *history;
    struct allocator_start *start;
    ARRAY(struct undone_block) held;
    struct map numbers;          /* of held blocks, by address */
    ARRAY(struct unsure) unsure; /* by address */
    bool *left_out;              /* by request: it contradicts the rest */
};

static struct undone_block *held_at(struct rollback *r, uint64_t address)
{
    uint64_t number;
    return map_get(&r->numbers, map_key(address), &number) ? &r->held.at[number] : NULL;
}

static void rollback_hold(struct rollback *r, uint64_t address, uint64_t bytes, uint8_t state,
                          bool exact)
{
    int64_t number = map_number(&r->numbers, map_key(address));
    struct undone_block held = {address, bytes, state, exact};
    if ((size_t)number == r->held.n)
        array_push(&r->held, held);
    else
        r->held.at[number] = held;
}

/* The first of the segments that ends behind an address. */
static size_t segment_at(const struct rollback *r, uint64_t address)
{
    const struct allocator_segment *at = r->start->segments.at;
    return LOWER_BOUND(i, (size_t)0, r->start->segments.n,
                       at[i].address + at[i].size_bytes <= address);
}

static bool is_private(const struct allocator_history *history, uint64_t address)
{
    uint32_t s =
        LOWER_BOUND(i, 0u, history->n_segments,
                    history->segments[i].address + history->segments[i].size_bytes <= address);
    return s < history->n_segments && history->segments[s].private_pool &&
           history->segments[s].address <= address;
}

static void insert_segment(struct rollback *r, size_t at, const struct allocator_segment *segment)
{
    array_push(&r->start->segments, *segment);
    struct allocator_segment *all = r->start->segments.at;
    memmove(all + at + 1, all + at, (r->start->segments.n - 1 - at) * sizeof *all);
    all[at] = *segment;
}

/* Whether two segments that follow each other may be parts of one range. */
static bool is_same_range(const struct rollback *r, size_t at, size_t next)
{
    const struct allocator_segment *all = r->start->segments.at;
    uint64_t device = r->history->capacity_bytes;
    return next < r->start->segments.n && all[at].expandable && all[next].expandable &&
           all[at].stream == all[next].stream && all[at].small == all[next].small &&
           all[next].address - all[at].address < (device ? device + device / 8 : RANGE_DEFAULT);
}

/* Mapped parts of a range that touch are one. */
static void join_next(struct rollback *r, size_t at)
{
    struct allocator_segment *all = r->start->segments.at;
    if (!is_same_range(r, at, at + 1) ||
        all[at].address + all[at].size_bytes != all[at + 1].address)
        return;
    all[at].size_bytes += all[at + 1].size_bytes;
    r->start->segments.n--;
    memmove(all + at + 1, all + at + 2, (r->start->segments.n - 1 - at) * sizeof *all);
}

/* Of an expandable segment, which kind of pool it is of: as what is known beside it, else by its
 * size, since small ones grow by 2 MiB. */
static bool is_small_range(const struct rollback *r, const struct allocator_request *act)
{
    const struct allocator_segment *all = r->start->segments.at;
    size_t at = segment_at(r, act->id);
    if (at < r->start->segments.n && all[at].expandable && all[at].stream == act->stream &&
        all[at].address == act->id + act->bytes)
        return all[at].small;
    if (at > 0 && all[at - 1].expandable && all[at - 1].stream == act->stream &&
        all[at - 1].address + all[at - 1].size_bytes == act->id)
        return all[at - 1].small;
    return act->bytes % r->history->settings.large_segment_bytes != 0;
}

/* Whether it could be; else the request is left out. */
static bool undo_segment_act(struct rollback *r, const struct allocator_request *act)
{
    bool expandable = act->what == ALLOCATOR_MAPPED || act->what == ALLOCATOR_UNMAPPED;
    size_t at = segment_at(r, act->id);
    struct allocator_segment *all = r->start->segments.at;
    bool inside = at < r->start->segments.n && all[at].address < act->id + act->bytes;
    if (act->bytes == 0 || act->bytes > UINT64_MAX / 16 || act->id > UINT64_MAX / 4)
        return false;
    if (act->what == ALLOCATOR_SEGMENT_GIVEN || act->what == ALLOCATOR_UNMAPPED) {
        struct allocator_segment segment = {.address = act->id,
                                            .size_bytes = act->bytes,
                                            .stream = act->stream,
                                            .small = act->bytes == SMALL_SEGMENT,
                                            .expandable = expandable};
        if (inside)
            return false;
        if (expandable)
            segment.small = is_small_range(r, act);
        insert_segment(r, at, &segment);
        join_next(r, at);
        if (at > 0)
            join_next(r, at - 1);
        return true;
    }
    if (!inside || all[at].expandable != expandable || all[at].address > act->id ||
        all[at].address + all[at].size_bytes < act->id + act->bytes)
        return false;
    if (!expandable && all[at].size_bytes != act->bytes)
        return false;
    struct allocator_segment behind = all[at];
    behind.size_bytes -= act->id + act->bytes - behind.address;
    behind.address = act->id + act->bytes;
    all[at].size_bytes = act->id - all[at].address;
    bool whole = all[at].size_bytes == 0;
    if (behind.size_bytes > 0)
        insert_segment(r, at + 1, &behind);
    all = r->start->segments.at;
    /* the address of a range of which other parts are mapped stays known */
    if (whole && !is_same_range(r, at, at + 1) && !(at > 0 && is_same_range(r, at - 1, at)))
        memmove(all + at, all + at + 1, (--r->start->segments.n - at) * sizeof *all);
    return true;
}

static bool rollback_undo(struct rollback *r, const struct allocator_request *act)
{
    struct undone_block *held = held_at(r, act->id);
    bool there = held && held->state != ALLOCATOR_FREE;
    switch (act->what) {
    case ALLOCATOR_TAKE:
        if (!there || held->state != ALLOCATOR_TAKEN)
            return false;
        held->state = ALLOCATOR_FREE;
        return true;
    case ALLOCATOR_GIVE:
    case ALLOCATOR_GIVE_COMPLETED:
        if (there)
            return false;
        rollback_hold(r, act->id, act->bytes,
                      act->what == ALLOCATOR_GIVE ? ALLOCATOR_TAKEN : ALLOCATOR_WAITING, false);
        return true;
    case ALLOCATOR_GIVE_REQUESTED:
        if (!there || held->state != ALLOCATOR_WAITING)
            return false;
        held->state = ALLOCATOR_TAKEN;
        return true;
    case ALLOCATOR_SEGMENT_TAKEN:
    case ALLOCATOR_SEGMENT_GIVEN:
    case ALLOCATOR_MAPPED:
    case ALLOCATOR_UNMAPPED:
        return undo_segment_act(r, act);
    default:
        return true;
    }
}

ORDER(by_held_address, struct undone_block, ASCENDING(address));

/* The blocks of a segment, from held[*next] on. */
static void place_blocks(struct rollback *r, const struct allocator *allocator,
                         struct allocator_segment *segment, size_t *next)
{
    struct allocator_start *start = r->start;
    const struct allocator_settings *settings = &r->history->settings;
    uint64_t end = segment->address + segment->size_bytes;
    segment->first_block = (uint32_t)start->blocks.n;
    for (; *next < r->held.n && r->held.at[*next].address < end; ++*next) {
        const struct undone_block *held = &r->held.at[*next];
        if (held->state == ALLOCATOR_FREE || held->address < segment->address)
            continue;
        size_t after = *next + 1;
        while (after < r->held.n && r->held.at[after].state == ALLOCATOR_FREE)
            after++;
        uint64_t limit = after < r->held.n ? MIN(end, r->held.at[after].address) : end;
        uint64_t room = limit - held->address;
        uint64_t size = held->exact ? held->bytes : allocator_rounded(allocator, held->bytes);
        bool whole = !segment->small && !segment->expandable && !held->exact;
        if (whole &&
            (size >= settings->max_split_bytes || (room > size && room - size <= SMALL_SIZE)))
            size = room;
        if (whole && room > size) {
            struct unsure unsure = {held->address, limit, (uint32_t)start->blocks.n, false};
            array_push(&r->unsure, unsure);
        }
        struct allocator_block block = {held->address, MIN(size, room), held->state};
        array_push(&start->blocks, block);
    }
    segment->n_blocks = (uint32_t)start->blocks.n - segment->first_block;
}

/* The first block that is taken behind one begins where that one ends. */
static void measure_unsure(struct rollback *r)
{
    struct unsure *all = r->unsure.at;
    size_t n = r->unsure.n, n_left = n;
    for (uint32_t i = 0; i < r->history->n_requests && n_left > 0; i++) {
        const struct allocator_request *request = &r->history->requests[i];
        if (request->what > ALLOCATOR_GIVE_COMPLETED || r->left_out[i])
            continue;
        size_t u = LOWER_BOUND(k, (size_t)0, n, all[k].end <= request->id);
        if (u == n || all[u].done || request->id < all[u].address)
            continue;
        if (request->what == ALLOCATOR_TAKE && request->id > all[u].address) {
            r->start->blocks.at[all[u].block].size_bytes = request->id - all[u].address;
        } else if (request->what == ALLOCATOR_TAKE || request->id != all[u].address) {
            continue;
        }
        all[u].done = true;
        n_left--;
    }
}

ORDER_OF_INDICES(by_age, struct allocator_segment, ASCENDING(order) ?: DESCENDING(address));

/* Numbers the segments: first those whose order is not known. */
static void number_segments(struct allocator_start *start)
{
    struct allocator_segment *all = start->segments.at;
    uint32_t n = (uint32_t)start->segments.n, next = 0;
    SCRATCH uint32_t *ages = sorted_indices(n, all, by_age);
    for (uint32_t i = 0; i < n; i++)
        all[ages[i]].order = ++next;
}

void allocator_roll_back(const struct allocator_history *history, const struct allocator *allocator,
                         struct allocator_start *start)
{
    struct rollback r = {.history = history,
                         .start = start,
                         .left_out = mem_array(history->n_requests + 1, sizeof *r.left_out)};
    *start = (struct allocator_start){.segments = {0}};
    EACH_OF (const struct allocator_segment, segment, history->segments, history->n_segments) {
        if (segment->private_pool || segment->size_bytes > UINT64_MAX / 16 ||
            segment->address > UINT64_MAX / 4)
            continue;
        array_push(&start->segments, *segment);
        for (uint32_t b = 0; b < segment->n_blocks; b++) {
            const struct allocator_block *block = &history->blocks[segment->first_block + b];
            if (block->state != ALLOCATOR_FREE)
                rollback_hold(&r, block->address, block->size_bytes, block->state, true);
        }
    }
    for (uint32_t i = history->n_requests; i-- > 0;) {
        const struct allocator_request *request = &history->requests[i];
        bool addressed =
            request->what != ALLOCATOR_EMPTY_CACHE && request->what != ALLOCATOR_FAILED;
        r.left_out[i] =
            (addressed && is_private(history, request->id)) || !rollback_undo(&r, request);
    }
    array_sort(&r.held, by_held_address);
    size_t next = 0;
    for (size_t s = 0; s < start->segments.n; s++)
        place_blocks(&r, allocator, &start->segments.at[s], &next);
    measure_unsure(&r);
    number_segments(start);
    FREE_ALL(&r.unsure, &r.held, &r.numbers, &r.left_out);
}

void allocator_start_fini(struct allocator_start *start)
{
    FREE_ALL(&start->segments, &start->blocks);
}
