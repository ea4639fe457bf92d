/* Undoes a record of requests, backwards. Undoing an allocation leaves nothing; undoing a free
 * leaves a block; a segment that was taken is gone, and one that was given back is there. */
#include "replay/allocator_state.h"

struct undone_block {
    uint64_t address, bytes; /* as asked for, or the block's where `exact` */
    uint8_t state;           /* enum allocator_block_state; FREE: it is not held */
    bool exact;
};

struct rollback {
    const struct allocator_history *history;
    struct allocator_start *start;
    ARRAY(struct undone_block) held;
    struct map numbers; /* of held blocks, by address */
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

static void undo_given_segment(struct rollback *r, const struct allocator_request *act, size_t at,
                               bool expandable)
{
    insert_segment(r, at,
                   &(struct allocator_segment){.address = act->id,
                                               .size_bytes = act->bytes,
                                               .stream = act->stream,
                                               .small = expandable ? is_small_range(r, act)
                                                                   : act->bytes == SMALL_SEGMENT,
                                               .expandable = expandable});
    join_next(r, at);
    if (at > 0)
        join_next(r, at - 1);
}

static void undo_taken_segment(struct rollback *r, const struct allocator_request *act, size_t at,
                               bool expandable)
{
    struct allocator_segment *all = r->start->segments.at;
    uint64_t end = all[at].address + all[at].size_bytes;
    if (all[at].expandable != expandable || all[at].address > act->id ||
        end < act->id + act->bytes || (!expandable && all[at].size_bytes != act->bytes))
        return;
    struct allocator_segment behind = all[at];
    behind.address = act->id + act->bytes;
    behind.size_bytes = end - behind.address;
    all[at].size_bytes = act->id - all[at].address;
    bool whole = all[at].size_bytes == 0;
    if (behind.size_bytes > 0)
        insert_segment(r, at + 1, &behind);
    all = r->start->segments.at;
    /* the address of a range of which other parts are mapped stays known */
    if (whole && !is_same_range(r, at, at + 1) && !(at > 0 && is_same_range(r, at - 1, at)))
        memmove(all + at, all + at + 1, (--r->start->segments.n - at) * sizeof *all);
}

/* Unless the request contradicts what is known behind it. */
static void rollback_undo(struct rollback *r, const struct allocator_request *act)
{
    struct undone_block *held = held_at(r, act->id);
    uint8_t state = held ? held->state : ALLOCATOR_FREE;
    bool expandable = act->what == ALLOCATOR_MAPPED || act->what == ALLOCATOR_UNMAPPED;
    bool is_range = act->bytes > 0 && act->bytes <= UINT64_MAX / 16 && act->id <= UINT64_MAX / 4;
    size_t at = segment_at(r, act->id);
    bool inside = at < r->start->segments.n && is_range &&
                  r->start->segments.at[at].address < act->id + act->bytes;
    switch (act->what) {
    case ALLOCATOR_TAKE:
        if (state == ALLOCATOR_TAKEN)
            held->state = ALLOCATOR_FREE;
        break;
    case ALLOCATOR_GIVE:
    case ALLOCATOR_GIVE_COMPLETED:
        if (state == ALLOCATOR_FREE)
            rollback_hold(r, act->id, act->bytes,
                          act->what == ALLOCATOR_GIVE ? ALLOCATOR_TAKEN : ALLOCATOR_WAITING, false);
        break;
    case ALLOCATOR_GIVE_REQUESTED:
        if (state == ALLOCATOR_WAITING)
            held->state = ALLOCATOR_TAKEN;
        break;
    case ALLOCATOR_SEGMENT_TAKEN:
    case ALLOCATOR_MAPPED:
        if (inside)
            undo_taken_segment(r, act, at, expandable);
        break;
    case ALLOCATOR_SEGMENT_GIVEN:
    case ALLOCATOR_UNMAPPED:
        if (is_range && !inside)
            undo_given_segment(r, act, at, expandable);
        break;
    default:
        break;
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
        struct allocator_block block = {held->address, MIN(size, room), held->state};
        array_push(&start->blocks, block);
    }
    segment->n_blocks = (uint32_t)start->blocks.n - segment->first_block;
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
    struct rollback r = {.history = history, .start = start};
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
        if (!addressed || !is_private(history, request->id))
            rollback_undo(&r, request);
    }
    array_sort(&r.held, by_held_address);
    size_t next = 0;
    for (size_t s = 0; s < start->segments.n; s++)
        place_blocks(&r, allocator, &start->segments.at[s], &next);
    number_segments(start);
    FREE_ALL(&r.held, &r.numbers);
}

void allocator_start_fini(struct allocator_start *start)
{
    FREE_ALL(&start->segments, &start->blocks);
}
