/* Checks the simulated allocator against a recorded history.
 *
 * Between two requests of a program, the record has what the allocator did for the second: blocks
 * for which other streams have ended, segments taken and given back. Such a stretch is replayed as
 * the request that ends it, and the simulated device answers as recorded: where the record goes on
 * with a segment given back, the device had no room. */
#include "allocator_check.h"
#include "base/base.h"
#include "replay/allocator_rollback.h"
#include "replay/allocator_state.h"

#define MADE_UP       ((uint64_t)1 << 62) /* addresses from here on are in no record */
#define NO_ADDRESS    UINT64_MAX
#define MOST_REPLAYED 20000000 /* requests, to find out in which order segments were taken */
#define LOOK_AHEAD    4096     /* acts; a record has them nearly in the simulator's order */

struct replayer {
    const struct allocator_history *history;
    const struct allocator_start *start;
    struct allocator *allocator;
    struct allocator_check *check;
    uint32_t at, end;   /* what of the stretch is not matched yet */
    bool *matched;      /* by request */
    bool reserved_one;  /* range of addresses, for this stretch */
    bool refused;       /* the stretch ends with a refusal */
    uint32_t n_refused; /* times that the device had no room for the request */
    uint64_t next_made_up, reserved;
    uint64_t older, younger; /* addresses of segments, where the first block placed otherwise tells
                                which of the two was taken first; 0: it does not */
};

static bool is_segment_act(uint8_t what)
{
    return what >= ALLOCATOR_SEGMENT_TAKEN && what <= ALLOCATOR_UNMAPPED;
}

static bool gives(uint8_t what)
{
    return what == ALLOCATOR_SEGMENT_GIVEN || what == ALLOCATOR_UNMAPPED;
}

/* Goes on to the next recorded act of a segment that is not matched; NULL: there is none. */
static const struct allocator_request *next_act(struct replayer *r)
{
    const struct allocator_request *requests = r->history->requests;
    while (r->at < r->end && (r->matched[r->at] || !is_segment_act(requests[r->at].what) ||
                              r->start->left_out[r->at]))
        r->at++;
    return r->at < r->end ? &requests[r->at] : NULL;
}

/* The first act of that kind and size, at that address if it is not 0; NULL: there is none. */
static const struct allocator_request *match(struct replayer *r, uint8_t what, uint64_t address,
                                             uint64_t bytes)
{
    next_act(r);
    for (uint32_t i = r->at; i < r->end && i - r->at < LOOK_AHEAD; i++) {
        const struct allocator_request *act = &r->history->requests[i];
        if (!r->matched[i] && !r->start->left_out[i] && act->what == what && act->bytes == bytes &&
            (address == 0 || act->id == address)) {
            r->matched[i] = true;
            return act;
        }
    }
    r->check->n_segment_acts_differ++;
    return NULL;
}

/* Whether the device has no room for what is asked for: then the record goes on with something
 * given back, or with a refusal. It is asked a third time when all was given back. */
static bool has_no_room(struct replayer *r)
{
    const struct allocator_request *act = next_act(r);
    if (act ? !gives(act->what) || r->n_refused == 2 : !r->refused)
        return false;
    r->n_refused++;
    return true;
}

static bool is_unmapped(const struct allocator *a, const struct block_pool *pool, uint64_t address)
{
    uint32_t b = by_address_first(pool->unmapped, a->table.rows.at);
    for (; b != NO_BLOCK; b = by_address_next(pool->unmapped, a->table.rows.at, b))
        if (address - block_at(a, b)->address < block_at(a, b)->size)
            return true;
    return false;
}

/* Where the range of a new expandable segment begins is not recorded, but what is mapped of it
 * first, now or later: the first of its kind that lies in no other range. Where a request that is
 * larger than a range reserves several in vain, it is the lowest of them. 0: nothing is mapped. */
static uint64_t find_range(const struct replayer *r, uint32_t stream, bool small)
{
    const struct allocator_history *history = r->history;
    const struct block_pool *pool = pool_of(r->allocator, stream, small);
    for (uint32_t i = r->at; i < history->n_requests && i - r->at < LOOK_AHEAD; i++) {
        const struct allocator_request *act = &history->requests[i];
        if (act->what == ALLOCATOR_MAPPED && act->stream == stream && !r->start->left_out[i] &&
            (act->bytes == SMALL_SEGMENT) == small && !is_unmapped(r->allocator, pool, act->id))
            return act->id;
    }
    return 0;
}

static uint64_t answer_take(void *arg, uint64_t bytes, uint32_t stream, bool small, bool reserves)
{
    struct replayer *r = arg;
    if (!reserves && has_no_room(r))
        return 0;
    const struct allocator_request *act =
        reserves ? NULL : match(r, ALLOCATOR_SEGMENT_TAKEN, 0, bytes);
    uint64_t address = act                            ? act->id
                       : reserves && !r->reserved_one ? find_range(r, stream, small)
                                                      : 0;
    r->reserved_one |= reserves;
    if (address == 0) {
        address = r->next_made_up;
        r->next_made_up += (bytes + SMALL_SEGMENT - 1) / SMALL_SEGMENT * SMALL_SEGMENT;
    }
    return address;
}

static bool answer_map(void *arg, uint64_t address, uint64_t bytes)
{
    struct replayer *r = arg;
    if (has_no_room(r))
        return false;
    match(r, ALLOCATOR_MAPPED, address, bytes);
    return true;
}

static void answer_give(void *arg, uint64_t address, uint64_t bytes, bool unmaps)
{
    match(arg, unmaps ? ALLOCATOR_UNMAPPED : ALLOCATOR_SEGMENT_GIVEN, address, bytes);
}

static void count_recorded(struct replayer *r, uint32_t first, uint32_t end)
{
    for (uint32_t i = first; i < end; i++) {
        const struct allocator_request *act = &r->history->requests[i];
        if (!is_segment_act(act->what) || r->start->left_out[i])
            continue;
        r->check->n_segment_acts++;
        r->reserved += gives(act->what) ? -act->bytes : act->bytes;
        r->check->recorded_reserved_peak_bytes =
            MAX(r->check->recorded_reserved_peak_bytes, r->reserved);
    }
}

/* Acts that the simulator had no reason for. */
static void count_unmatched(struct replayer *r, uint32_t first, uint32_t end)
{
    for (uint32_t i = first; i < end; i++)
        r->check->n_segment_acts_differ += is_segment_act(r->history->requests[i].what) &&
                                           !r->start->left_out[i] && !r->matched[i];
}

static struct allocator_placement act(struct replayer *r, uint8_t what, uint64_t id)
{
    struct allocator_request request = {.what = what, .id = id};
    return allocator_request(r->allocator, &request);
}

/* Blocks of the stretch that waited no longer. Of those before a taking that found no room some
 * may have waited until the allocator waited for all: from the first on that would have been room.
 * `taken` is a block at the same address already; NO_ADDRESS: none. */
static void finish_waits(struct replayer *r, uint32_t first, uint32_t end,
                         const struct allocator_request *taking, uint64_t taken)
{
    bool fits = false;
    for (uint32_t i = first; i < end; i++) {
        const struct allocator_request *request = &r->history->requests[i];
        if (request->what != ALLOCATOR_GIVE_COMPLETED || r->matched[i] || r->start->left_out[i])
            continue;
        fits = fits || (taking && allocator_would_fit(r->allocator, request->id, taking));
        if (fits || request->id == taken)
            continue;
        r->matched[i] = true;
        act(r, ALLOCATOR_GIVE_COMPLETED, request->id);
    }
}

static void compare(struct replayer *r, uint32_t i, struct allocator_placement placement)
{
    struct allocator_check *check = r->check;
    check->n_requests++;
    if (!placement.failed && placement.segment + placement.offset == r->history->requests[i].id)
        return;
    if (check->n_elsewhere++ > 0)
        return;
    check->first_elsewhere = i;
    if (placement.failed || placement.device_asked)
        return;
    r->older = r->history->requests[i].id;
    r->younger = placement.segment;
}

/* The acts [first, end) and the request that they were done for; one may be missing. */
static void do_stretch(struct replayer *r, uint32_t first, uint32_t end)
{
    const struct allocator_request *requests = r->history->requests;
    bool any = end < r->history->n_requests && !r->start->left_out[end];
    bool takes = any && requests[end].what == ALLOCATOR_TAKE;
    bool given = false, taken_after = false;
    r->refused = any && requests[end].what == ALLOCATOR_FAILED;
    for (uint32_t i = first; i < end; i++) {
        given |= gives(requests[i].what);
        taken_after = !gives(requests[i].what) && (taken_after || is_segment_act(requests[i].what));
    }
    r->at = first;
    r->end = end;
    r->n_refused = 0;
    r->reserved_one = false;
    count_recorded(r, first, end);
    struct allocator_request taking = {.what = ALLOCATOR_TAKE};
    if (takes || r->refused) {
        taking = requests[end];
        taking.what = ALLOCATOR_TAKE;
    }
    bool short_of_room = (takes && given && taken_after) || r->refused;
    finish_waits(r, first, end, short_of_room ? &taking : NULL, NO_ADDRESS);
    /* what is given back for no taking, or for one that then finds room, is a cache emptied */
    if (given && (!short_of_room || allocator_would_fit(r->allocator, NO_ADDRESS, &taking)))
        act(r, ALLOCATOR_EMPTY_CACHE, 0);
    if (takes) {
        compare(r, end, allocator_request(r->allocator, &taking));
    } else if (r->refused) {
        taking.id = NO_ADDRESS;
        allocator_request(r->allocator, &taking);
        act(r, ALLOCATOR_GIVE, taking.id);
    } else if (any) {
        allocator_request(r->allocator, &requests[end]);
    }
    finish_waits(r, first, end, NULL, takes ? taking.id : NO_ADDRESS);
    count_unmatched(r, first, end);
}

static void replay(struct replayer *r)
{
    const struct allocator_history *history = r->history;
    const struct allocator_request *requests = history->requests;
    uint32_t first = 0;
    for (uint32_t i = 0; i < history->n_requests; i++) {
        uint8_t what = requests[i].what;
        bool at_once = i > 0 && what == ALLOCATOR_GIVE_COMPLETED && first == i &&
                       requests[i - 1].what == ALLOCATOR_GIVE_REQUESTED &&
                       requests[i - 1].id == requests[i].id;
        if (is_segment_act(what) || (what == ALLOCATOR_GIVE_COMPLETED && !at_once))
            continue;
        do_stretch(r, first, i);
        first = i + 1;
    }
    if (first < history->n_requests)
        do_stretch(r, first, history->n_requests);
}

static struct allocator *create(const struct allocator_history *history, bool by_address,
                                const struct allocator_device *device)
{
    struct allocator_options options = {
        .settings = history->settings, .device = device, .device_bytes = history->capacity_bytes};
    options.settings.by_address = by_address;
    return allocator_create(&options);
}

static void run(struct replayer *r, bool by_address)
{
    struct allocator_device device = {r, answer_take, answer_map, answer_give};
    const struct allocator_start *start = r->start;
    *r->check = (struct allocator_check){.first_elsewhere = UINT64_MAX,
                                         .n_left_out = start->n_left_out,
                                         .n_unsure_blocks = start->n_unsure_blocks,
                                         .by_address = by_address};
    r->matched = mem_array(r->history->n_requests + 1, sizeof *r->matched);
    r->next_made_up = MADE_UP;
    r->older = r->younger = 0;
    r->allocator = create(r->history, by_address, &device);
    allocator_restore(r->allocator, start->segments.at, (uint32_t)start->segments.n,
                      start->blocks.at);
    r->reserved = allocator_figures(r->allocator).reserved_bytes;
    r->check->recorded_reserved_peak_bytes = r->reserved;
    replay(r);
    struct allocator_figures figures = allocator_figures(r->allocator);
    r->check->reserved_bytes = figures.reserved_bytes;
    r->check->reserved_peak_bytes = figures.reserved_peak_bytes;
    r->check->recorded_reserved_bytes = r->reserved;
    allocator_destroy(r->allocator);
    mem_free(r->matched);
}

/* ---- which segment was taken first ---- */

/* The plain segment that an address lies in; NULL: none that was there at the beginning. */
static struct allocator_segment *plain_at(struct allocator_start *start, uint64_t address)
{
    struct allocator_segment *all = start->segments.at;
    size_t at =
        LOWER_BOUND(i, (size_t)0, start->segments.n, all[i].address + all[i].size_bytes <= address);
    return at < start->segments.n && all[at].address <= address && !all[at].expandable ? &all[at]
                                                                                       : NULL;
}

static void move_to(struct allocator_start *start, struct allocator_segment *moved, uint32_t place)
{
    uint32_t from = moved->order;
    for (size_t s = 0; s < start->segments.n; s++) {
        uint32_t *order = &start->segments.at[s].order;
        if (place < from && *order >= place && *order < from)
            ++*order;
        else if (place > from && *order <= place && *order > from)
            --*order;
    }
    moved->order = place;
}

/* Makes a segment older than another; false: it is, or the snapshot says otherwise. */
static bool put_before(struct allocator_start *start, uint64_t older, uint64_t younger)
{
    struct allocator_segment *first = plain_at(start, older), *second = plain_at(start, younger);
    if (!first || !second || first->order <= second->order)
        return false;
    if (!start->is_ordered[first - start->segments.at])
        move_to(start, first, second->order);
    else if (!start->is_ordered[second - start->segments.at])
        move_to(start, second, first->order);
    else
        return false;
    return true;
}

/* Segments that were there when the record begins come without their order. Where the record takes
 * a block of one of them, and the simulator an equal one of another, the first is older. */
static struct allocator_check check_in_order(const struct allocator_history *history,
                                             bool by_address, bool rises)
{
    struct allocator_start start = {.rises = rises};
    struct allocator_check best, check;
    struct replayer r = {.history = history, .check = &best, .start = &start};
    struct allocator *rounds = create(history, by_address, NULL);
    allocator_roll_back(history, rounds, &start);
    allocator_destroy(rounds);
    run(&r, by_address);
    r.check = &check;
    uint64_t left = MOST_REPLAYED, n_same = 0;
    while (best.n_elsewhere > 0 && !by_address && left >= history->n_requests &&
           n_same <= start.segments.n && put_before(&start, r.older, r.younger)) {
        run(&r, by_address);
        if (check.first_elsewhere < best.first_elsewhere)
            break;
        n_same = check.first_elsewhere > best.first_elsewhere ? 0 : n_same + 1;
        check.n_inferred = best.n_inferred + 1;
        best = check;
        left -= history->n_requests;
    }
    allocator_start_fini(&start);
    return best;
}

struct allocator_check allocator_check(const struct allocator_history *history)
{
    bool by_address = history->settings.by_address;
    struct allocator_check best = check_in_order(history, by_address, false);
    for (int way = 1; way < 3 && best.n_elsewhere > 0; way++) {
        /* the other order; then addresses that rise, which matter where segments have an order */
        struct allocator_check other = way == 1 ? check_in_order(history, !by_address, false)
                                                : check_in_order(history, false, true);
        if (other.n_elsewhere < best.n_elsewhere)
            best = other;
    }
    return best;
}
