/* Matches collectives over ranks, and finds which part of their time is waiting.
 *
 * All ranks of a process group issue its collectives in the same order, so the k-th of a group on
 * one rank is the k-th on every other. */
#include "graph/collectives/match_collectives.h"

struct collectives_entry {
    uint64_t group, order; /* what members have in common */
    uint64_t count;        /* before it in its group and iteration on its rank */
    int64_t sequence;      /* as recorded; -1: not */
    uint32_t rank, collective;
};

static bool point_to_point(const struct local_collective *c)
{
    return c->peer >= 0 && collective_is_one(c->kind, DPRO_SEND, DPRO_RECV);
}

/* A kernel that sends to one other rank and receives from it. */
static bool collectives_swaps(const struct local_collective *c)
{
    return c->peer >= 0 && c->second_peer < 0 && c->kind == DPRO_SEND_RECV;
}

/* What the group is called on every rank. Unrecorded: streams and thread pools stand for groups, in
 * order of first use, since a process group has a stream of its own. */
static uint64_t group_key(const struct rank_build *rank, const struct local_collective *c,
                          struct map *unnamed_devices)
{
    uint64_t name = map_text_key(strtab_get(rank->names, c->group));
    if (point_to_point(c) || collectives_swaps(c)) {
        uint64_t own = (uint64_t)rank->trace->rank, peer = (uint64_t)c->peer;
        bool swaps = collectives_swaps(c), own_first = swaps ? own < peer : c->kind == DPRO_SEND;
        uint64_t pair = own_first ? own << 32 | peer : peer << 32 | own;
        return map_mix(map_mix(pair + (swaps ? 0x5a95 : 0x5e4d)) + name) | 1;
    }
    if (c->end == COMM_ENDS_ALONE) /* a group of its own */
        return map_mix(map_mix((uint64_t)rank->trace->rank + 1) + c->transfer) | 1;
    const struct local_op *op = &rank->ops.at[c->transfer];
    uint32_t device = op->flags & GRAPH_OP_GPU ? op->device : NO_ID;
    uint64_t members = c->members == NO_ID ? map_text_key(strtab_get(rank->names, c->group_ranks))
                                           : map_key(c->members);
    if (c->group != 0 || c->group_ranks != 0 || (c->members != NO_ID && device == NO_ID))
        return map_mix(name + members) | 1;
    uint64_t number = (uint64_t)map_number(unnamed_devices, map_key(device));
    return map_mix(number + 1 + members) | 1;
}

static void collect_rank(struct join *join, uint32_t r, struct collectives_entry *entries,
                         size_t *n)
{
    struct rank_build *rank = &join->ranks[r];
    SCRATCH struct map counts = {0}, unnamed = {0};
    for (uint32_t c = 0; c < rank->collectives.n; c++) {
        const struct local_collective *coll = &rank->collectives.at[c];
        uint64_t group = group_key(rank, coll, &unnamed);
        uint64_t count = map_add(&counts, group, 1) - 1;
        int64_t sequence = point_to_point(coll) || collectives_swaps(coll) ? -1 : coll->sequence;
        entries[(*n)++] = (struct collectives_entry){group, count, count, sequence, r, c};
    }
}

ORDER(compare_entries, struct collectives_entry,
      ASCENDING(group) ?: ASCENDING(order) ?: ASCENDING(rank) ?: ASCENDING(collective));

static bool collectives_agree(const struct local_collective *a, const struct local_collective *b)
{
    if (point_to_point(a) && point_to_point(b))
        return a->numel == b->numel || !a->numel || !b->numel;
    if (a->kind != b->kind)
        return false;
    /* members of these may contribute different amounts */
    bool uneven =
        collective_is_one(a->kind, DPRO_ALL_TO_ALL, DPRO_SEND_RECV, DPRO_ALL_GATHER, DPRO_GATHER);
    return uneven || a->numel == b->numel || !a->numel || !b->numel;
}

static void add_joined(struct join *join, const struct collectives_entry *entries, size_t n)
{
    const struct local_collective *coll = JOIN_PART(join, entries);
    struct joined joined = {.first_member = (uint32_t)join->members.n,
                            .n_members = (uint32_t)n,
                            .rank = entries->rank,
                            .collective = entries->collective};
    if (point_to_point(coll) || collectives_swaps(coll))
        joined.n_expected = 2;
    else if (coll->end == COMM_ENDS_ALONE)
        joined.n_expected = 1;
    else if (coll->group_size > 0)
        joined.n_expected = (uint32_t)coll->group_size;
    else
        joined.n_expected = (uint32_t)join->world_size;
    joined.n_expected = MAX(joined.n_expected, joined.n_members);
    for (size_t i = 0; i < n; i++)
        array_add(&join->members, .rank = entries[i].rank, .collective = entries[i].collective);
    array_push(&join->joined, joined);
}

/* Sequence numbers say which collective is which even where one was lost, if every member has them,
 * none has one twice, and they began to count together; else the order in the iteration does. */
static void order_group(struct collectives_entry *entries, size_t n)
{
    bool recorded = true, several = false, twice = false, shared = false;
    for (size_t i = 0; i < n; i++) {
        recorded &= entries[i].sequence >= 0;
        several |= entries[i].rank != entries[0].rank;
    }
    if (!recorded)
        return;
    for (size_t i = 0; i < n; i++)
        entries[i].order = (uint64_t)entries[i].sequence;
    qsort(entries, n, sizeof *entries, compare_entries);
    for (size_t i = 1; i < n; i++) {
        bool same = entries[i].order == entries[i - 1].order;
        twice |= same && entries[i].rank == entries[i - 1].rank;
        shared |= same && entries[i].rank != entries[i - 1].rank;
    }
    if (!twice && (shared || !several))
        return;
    for (size_t i = 0; i < n; i++)
        entries[i].order = entries[i].count;
    qsort(entries, n, sizeof *entries, compare_entries);
}

/* The entries of one group, in order: whether all agree and no rank appears twice at one place. */
static bool collectives_fits(const struct join *join, const struct collectives_entry *entries,
                             size_t n)
{
    for (size_t i = 1; i < n; i++)
        if (entries[i].order == entries[i - 1].order &&
            (entries[i].rank == entries[i - 1].rank ||
             !collectives_agree(JOIN_PART(join, &entries[i - 1]), JOIN_PART(join, &entries[i]))))
            return false;
    return true;
}

/* Where some were not recorded on every rank, places mean nothing any more: what is of one kind and
 * size still goes together in order. */
static void order_by_size(const struct join *join, struct collectives_entry *entries, size_t n)
{
    SCRATCH struct map counts = {0}; /* of a kind and size, on a rank */
    for (size_t i = 0; i < n; i++) {
        const struct local_collective *c = JOIN_PART(join, &entries[i]);
        const char *kind = dpro_collective_kind_name(point_to_point(c) ? DPRO_SEND_RECV : c->kind);
        uint64_t key = map_mix(map_text_key(kind) + c->numel);
        uint64_t before = map_add(&counts, map_mix(key + entries[i].rank + 1) | 1, 1) - 1;
        if (c->numel == 0) /* of unknown size: alone */
            before = (uint64_t)(entries[i].rank + 1) << 32 | i;
        entries[i].order = map_mix(key + before);
    }
    qsort(entries, n, sizeof *entries, compare_entries);
}

static void join_group(struct join *join, struct collectives_entry *entries, size_t n)
{
    order_group(entries, n);
    bool complete = collectives_fits(join, entries, n);
    if (!complete)
        order_by_size(join, entries, n);
    for (size_t i = 0, next; i < n; i = next) {
        next = RUN_END(
            k, i, n,
            entries[k].order == entries[i].order && entries[k].rank != entries[i].rank &&
                collectives_agree(JOIN_PART(join, &entries[i]), JOIN_PART(join, &entries[k])));
        add_joined(join, entries + i, next - i);
        if (complete || next - i > 1)
            continue;
        if (join->n_mismatched++ == 0) {
            join->first_mismatch_rank = entries[i].rank;
            join->first_mismatch = entries[i].collective;
        }
        join->joined.at[join->joined.n - 1].n_expected = 1; /* keep what was measured */
    }
}

/* In the order in which the iteration begins them: what is ready at once is sent in the order of
 * the graph's ops. */
ORDER(compare_joined, struct joined, ASCENDING(collective) ?: ASCENDING(rank));

void join_match(struct join *join)
{
    size_t total = 0, n = 0;
    for (uint32_t r = 0; r < join->n_ranks; r++)
        total += join->ranks[r].collectives.n;
    SCRATCH struct collectives_entry *entries = mem_alloc((total + 1) * sizeof *entries);
    for (uint32_t r = 0; r < join->n_ranks; r++)
        collect_rank(join, r, entries, &n);
    qsort(entries, n, sizeof *entries, compare_entries);
    for (size_t i = 0, next; i < n; i = next) {
        next = RUN_END(k, i, n, entries[k].group == entries[i].group);
        join_group(join, entries + i, next - i);
    }
    array_sort(&join->joined, compare_joined);
}

bool join_is_inferred(const struct join *join, const struct joined *joined)
{
    const struct rank_build *rank = &join->ranks[joined->rank];
    uint32_t device = rank->ops.at[JOIN_PART(join, joined)->transfer].device;
    if (device == NO_ID || !rank->trace->tracks[rank->devices.at[device].name].serial)
        return false;
    const struct member *members = joined_members(join, joined);
    for (uint32_t m = 0; m < joined->n_members; m++)
        if (!join->ranks[members[m].rank].trace->fused.own_times)
            return true;
    return false;
}

/* ---- what is not together after all ---- */

/* Ranks' clocks agree that well on one host, and less delays no replay that matters. */
enum { TOGETHER_NS = 20000 };

/* Whether a member was through before another one began, in more than one iteration of ten. */
static bool collectives_contradicts(const struct join *join, const struct joined *joined)
{
    const struct member *members = joined_members(join, joined);
    uint32_t n_samples = join->ranks[0].n_samples, n_against = 0;
    for (uint32_t s = 0; s < n_samples; s++) {
        int64_t last = ABSENT, first_end = INT64_MAX;
        for (uint32_t m = 0; m < joined->n_members; m++) {
            int64_t start = member_arrived_ns(join, &members[m], s);
            int64_t end = member_left_ns(join, &members[m], s);
            if (start == ABSENT || end == ABSENT)
                continue;
            last = MAX(last, start);
            first_end = MIN(first_end, end);
        }
        n_against += last != ABSENT && first_end < last - TOGETHER_NS;
    }
    return n_against * 10 > n_samples;
}

/* Each rank's part by itself, as it was measured. */
static void take_apart(struct join *join, const struct joined *joined)
{
    for (uint32_t m = 0; m < joined->n_members; m++) {
        struct joined alone = *joined;
        alone.first_member = joined->first_member + m;
        alone.n_members = alone.n_expected = 1;
        alone.rank = join->members.at[alone.first_member].rank;
        alone.collective = join->members.at[alone.first_member].collective;
        array_push(&join->joined, alone);
    }
}

void join_check_unsure(struct join *join)
{
    size_t n = join->joined.n, kept = 0;
    for (size_t j = 0; j < n; j++) {
        const struct joined joined = join->joined.at[j];
        if (joined.n_members > 1 && JOIN_PART(join, &joined)->end == COMM_ENDS_UNSURE &&
            collectives_contradicts(join, &joined))
            take_apart(join, &joined);
        else
            join->joined.at[kept++] = joined;
    }
    if (kept == n)
        return;
    memmove(join->joined.at + kept, join->joined.at + n,
            (join->joined.n - n) * sizeof *join->joined.at);
    join->joined.n -= n - kept;
    array_sort(&join->joined, compare_joined);
}

/* ---- waiting ---- */

bool member_is_posted(const struct join *join, const struct member *member)
{
    const struct rank_build *rank = &join->ranks[member->rank];
    uint32_t device = rank->ops.at[rank->collectives.at[member->collective].transfer].device;
    return device != NO_ID && rank->trace->tracks[rank->devices.at[device].name].posted;
}

/* Whether the thread of a member did nothing else when its transfer was over, so that it has seen
 * at once that it was. */
static bool member_blocks(const struct join *join, const struct member *member, uint32_t sample,
                          int64_t arrived_ns, int64_t over_ns)
{
    enum { LATE_NS = 200000 }; /* a thread that comes later waits for less */
    const struct rank_build *rank = &join->ranks[member->rank];
    const struct local_collective *coll = JOIN_PART(join, member);
    if (coll->launch_op == NO_ID)
        return false;
    int64_t since = arrived_ns;
    for (uint32_t op = coll->launch_op + 1;
         op < rank->n_timed && rank->ops.at[op].track == rank->ops.at[coll->launch_op].track;
         op++) {
        int64_t start = *build_start(rank, sample, op);
        if (start != ABSENT && start >= over_ns)
            break;
        since = MAX(since, *build_end(rank, sample, op));
    }
    return since <= arrived_ns || over_ns - since > LATE_NS;
}

/* A pair is over at both ends when either has seen that it is. But what is sent may be in the
 * sender's buffers only when that goes on: then it is over when a receiver that waits for it has
 * seen that. */
static void cut_posted(struct join *join, const struct joined *joined, uint32_t sample,
                       int64_t last_arrival)
{
    const struct member *members = joined_members(join, joined);
    if (joined->n_members != 2 || !member_is_posted(join, &members[0]) ||
        !member_is_posted(join, &members[1]))
        return;
    int64_t *left[2];
    for (int m = 0; m < 2; m++)
        left[m] = build_end(&join->ranks[members[m].rank], sample,
                            JOIN_PART(join, &members[m])->transfer);
    if (*left[0] == ABSENT || *left[1] == ABSENT)
        return;
    int receives = JOIN_PART(join, &members[1])->kind == DPRO_RECV;
    bool is_sent = JOIN_PART(join, &members[!receives])->kind == DPRO_SEND;
    int64_t over = MAX(MIN(*left[0], *left[1]), last_arrival);
    if (is_sent && *left[receives] > over &&
        member_blocks(join, &members[receives], sample, last_arrival, *left[receives]))
        over = *left[receives];
    for (int m = 0; m < 2; m++)
        *left[m] = MIN(*left[m], over);
}

static void cut_joined(struct join *join, const struct joined *joined, uint32_t sample)
{
    const struct member *members = joined_members(join, joined);
    int64_t last = ABSENT;
    for (uint32_t m = 0; m < joined->n_members; m++)
        last = MAX(last, member_arrived_ns(join, &members[m], sample));
    cut_posted(join, joined, sample, last);
    for (uint32_t m = 0; m < joined->n_members; m++) {
        int64_t *start = member_transfer_start(join, &members[m], sample);
        if (*start != ABSENT && last > *start)
            *start = MIN(last, member_left_ns(join, &members[m], sample));
    }
}

void join_cut_waiting(struct join *join)
{
    uint32_t n_samples = join->n_ranks ? join->ranks[0].n_samples : 0;
    for (size_t j = 0; j < join->joined.n; j++)
        for (uint32_t s = 0; s < n_samples; s++)
            cut_joined(join, &join->joined.at[j], s);
}

void join_fini(struct join *join)
{
    FREE_ALL(&join->ranks, &join->classes, &join->joined, &join->members, &join->cross,
             &join->choice.left_out, &join->blind, &join->cut);
    clocks_fini(&join->clocks);
    member_sets_fini(&join->sets);
}
