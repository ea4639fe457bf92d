/* Finds the same work in every iteration.
 *
 * On CPU tracks the sequences of names are aligned. Device work is found through the call that
 * launched it, as a library may pick another kernel. */
#include "graph/ops/match_slices.h"

#include "base/parallel.h"

/* The slices of one outermost span on a track: [first, first + n). */
struct group {
    uint32_t first, n;
};

typedef ARRAY(struct group) group_array;
typedef ARRAY(uint64_t) key_array;

/* A track's slices in one step, cut where one outermost span ends and the next begins. */
struct groups {
    group_array parts;
    key_array names;   /* of the outermost spans */
    key_array hashes;  /* of all that each part holds */
    bool without_call; /* of a stream: some of its work is found by its place only */
};

/* The outermost op that a slice lies in; its own span where that is none. */
static uint32_t root_of(const struct rank_build *rank, uint32_t slice)
{
    uint32_t root = rank->slices.at[slice].span;
    for (uint32_t up = root; up != NO_ID; up = rank->trace->spans[up].parent)
        if (rank->trace->spans[up].kind == SPAN_CPU_OP &&
            !(rank->classes[rank->trace->spans[up].name] &
              (NAME_STEP | NAME_OPTIMIZER_STEP | NAME_ZERO_GRAD)))
            root = up;
    return root;
}

static void group_slices(const struct rank_build *rank, uint32_t first, uint32_t end,
                         struct groups *groups)
{
    enum { ROUNDING_NS = 1000 }; /* a span may seem to begin before the last one is over */
    groups->parts.n = groups->names.n = groups->hashes.n = 0;
    for (uint32_t i = first, begin; i < end;) {
        uint32_t root = root_of(rank, i);
        const struct trace_span *span = &rank->trace->spans[root];
        int64_t until = span_end_ns(span), start;
        uint64_t hash = map_mix(rank->keys[i] + 1);
        for (begin = i++; i < end && (start = rank->slices.at[i].start_ns) < until &&
                          (start < until - ROUNDING_NS || root_of(rank, i) == root);
             i++) /* the next waits for little */
            hash = (hash ^ map_mix(rank->keys[i] + 1)) * 0xd6e8feb86659fd93u + 1;
        array_add(&groups->parts, begin, i - begin);
        array_push(&groups->names, (uint64_t)span->name + 1);
        array_push(&groups->hashes, hash);
    }
}

struct aligner {
    const struct groups *reference;
    struct groups groups;
    key_array calls;        /* keys of the slices that launch work */
    ARRAY(uint32_t) places; /* of these in their part; behind the last, what each is matched with */
    ARRAY(uint32_t) outer;  /* by part of the reference iteration: the part here */
};

/* Aligns what lies between the matches that are there already. */
static void match_between(const uint64_t *a, uint32_t n_a, const uint64_t *b, uint32_t n_b,
                          uint32_t *to)
{
    for (uint32_t i = 0, k = 0; i < n_a;) {
        if (to[i] != NO_ID) {
            k = to[i++] + 1;
            continue;
        }
        uint32_t end = i;
        while (end < n_a && to[end] == NO_ID)
            end++;
        uint32_t end_b = end < n_a ? to[end] : n_b;
        match_sequences(a + i, end - i, b + k, end_b - k, to + i);
        for (uint32_t g = i; g < end; g++)
            if (to[g] != NO_ID)
                to[g] += k;
        i = end;
    }
}

/* Parts that hold exactly the same first; then, between those, parts of the same name. */
static void match_parts(struct aligner *al)
{
    const struct groups *a = al->reference, *b = &al->groups;
    uint32_t n_a = (uint32_t)a->parts.n, n_b = (uint32_t)b->parts.n;
    al->outer.n = 0;
    array_reserve(&al->outer, n_a);
    match_sequences(a->hashes.at, n_a, b->hashes.at, n_b, al->outer.at);
    match_between(a->names.at, n_a, b->names.at, n_b, al->outer.at);
}

/* Adds the calls of a part that launch work: their keys, and their places in it. */
static void list_calls(struct aligner *al, const struct rank_build *rank, struct group part)
{
    for (uint32_t i = 0; i < part.n; i++)
        if (rank->slices.at[part.first + i].launch != NO_ID) {
            array_push(&al->calls, rank->keys[part.first + i]);
            array_push(&al->places, i);
        }
}

/* What matters most on a thread is its calls that launch work, and an op within another one shifts
 * the numbers of the stretches around it: the calls are matched first. */
static void match_calls(struct aligner *al, const struct rank_build *rank, struct group a,
                        struct group b, uint32_t *to)
{
    al->calls.n = al->places.n = 0;
    list_calls(al, rank, a);
    uint32_t n_a = (uint32_t)al->calls.n;
    list_calls(al, rank, b);
    uint32_t n_b = (uint32_t)al->calls.n - n_a;
    if (n_a == 0 || n_b == 0)
        return;
    array_reserve(&al->places, n_a);
    uint32_t *found = al->places.at + n_a + n_b;
    match_sequences(al->calls.at, n_a, al->calls.at + n_a, n_b, found);
    for (uint32_t i = 0; i < n_a; i++)
        if (found[i] != NO_ID)
            to[al->places.at[i]] = al->places.at[n_a + found[i]];
}

/* to[] has what is matched already, by place in b. */
static void match_slices(const struct rank_build *rank, struct group a, struct group b,
                         bool in_order, uint32_t *to)
{
    (in_order ? match_between : match_by_count)(rank->keys + a.first, a.n, rank->keys + b.first,
                                                b.n, to);
    for (uint32_t i = 0; i < a.n; i++)
        if (to[i] != NO_ID)
            to[i] += b.first;
}

static void match_parts_inside(struct aligner *al, const struct rank_build *rank, struct group a,
                               struct group b, uint32_t *to)
{
    match_calls(al, rank, a, b, to);
    match_slices(rank, a, b, true, to);
}

/* From one part's first slice to another one's last. */
static struct group slices_reach(const struct groups *groups, size_t first, size_t end)
{
    const struct group *last = &groups->parts.at[end - 1];
    uint32_t from = groups->parts.at[first].first;
    return (struct group){from, last->first + last->n - from};
}

/* Ops may lie in another span, as in one that compiles them first: parts in a row that no part is
 * matched with, with those in a row there. */
static void match_regrouped(struct aligner *al, const struct rank_build *rank, uint32_t first,
                            uint32_t *to)
{
    const struct groups *a = al->reference, *b = &al->groups;
    for (size_t i = 0, k = 0, end; i < a->parts.n; i = end) {
        end = i + 1;
        if (al->outer.at[i] != NO_ID) {
            k = (size_t)al->outer.at[i] + 1;
            continue;
        }
        while (end < a->parts.n && al->outer.at[end] == NO_ID)
            end++;
        size_t end_b = end < a->parts.n ? al->outer.at[end] : b->parts.n;
        if (k < end_b) {
            struct group part = slices_reach(a, i, end);
            match_parts_inside(al, rank, part, slices_reach(b, k, end_b),
                               to + (part.first - first));
        }
    }
}

/* Aligns a track's slices of the reference iteration with those of `step`: outermost spans first,
 * then what each holds, so that differences stay where they are. to[] by place in the reference
 * iteration's range. */
static void match_track(struct aligner *al, const struct rank_build *rank,
                        const struct track *track, uint32_t step, uint32_t *to)
{
    uint32_t t = rank->steps.reference;
    struct group all_a = {track->first[t], track->first[t + 1] - track->first[t]};
    struct group all_b = {track->first[step], track->first[step + 1] - track->first[step]};
    for (uint32_t i = 0; i < all_a.n; i++)
        to[i] = NO_ID;
    if (all_a.n == 0 || all_b.n == 0 ||
        (track->kind == DPRO_DEVICE_GPU_STREAM && !al->reference->without_call))
        return;
    if (track->kind != DPRO_DEVICE_CPU_THREAD) { /* which thread of a pool is first is chance */
        match_slices(rank, all_a, all_b, track->kind == DPRO_DEVICE_GPU_STREAM, to);
        return;
    }
    const struct groups *reference = al->reference;
    group_slices(rank, all_b.first, all_b.first + all_b.n, &al->groups);
    match_parts(al);
    for (size_t g = 0; g < reference->parts.n; g++) {
        if (al->outer.at[g] == NO_ID)
            continue;
        struct group part = reference->parts.at[g], other = al->groups.parts.at[al->outer.at[g]];
        uint32_t *to_part = to + (part.first - all_a.first);
        if (reference->hashes.at[g] == al->groups.hashes.at[al->outer.at[g]] && part.n == other.n) {
            for (uint32_t i = 0; i < part.n; i++)
                to_part[i] = other.first + i;
            continue;
        }
        match_parts_inside(al, rank, part, other, to_part);
    }
    match_regrouped(al, rank, all_a.first, to);
}

static void groups_fini(struct groups *groups)
{
    FREE_ALL(&groups->parts, &groups->names, &groups->hashes);
}

/* Device work follows its call: the k-th of the call here is the k-th of the call there. `found`
 * maps the reference iteration's slices (by place) to those of the step; CPU tracks are done
 * already. */
static void match_device(const struct rank_build *rank, const struct track *track,
                         const struct slice_matches *matches, const uint32_t *found, uint32_t *to)
{
    uint32_t first = track->first[rank->steps.reference];
    uint32_t n = track->first[rank->steps.reference + 1] - first;
    for (uint32_t i = 0; i < n; i++) {
        const struct slice *work = &rank->slices.at[first + i];
        if (work->launch == NO_ID || slice_place(matches, work->launch) == NO_ID)
            continue;
        uint32_t call = found[slice_place(matches, work->launch)];
        to[i] = NO_ID;
        if (call == NO_ID)
            continue;
        uint32_t here = rank->slices.at[work->launch].launch, there = rank->slices.at[call].launch;
        while (here != first + i && here != NO_ID && there != NO_ID) {
            here = rank->slices.at[here].next;
            there = rank->slices.at[there].next;
        }
        to[i] = there;
    }
}

ORDER_OF_INDICES(by_start, struct slice, ASCENDING(start_ns));

slice_list slices_by_start(const struct rank_build *rank, uint32_t step,
                           bool (*wanted)(const struct rank_build *, const struct track *))
{
    slice_list slices = {0};
    EACH (const struct track, track, rank->tracks)
        for (uint32_t i = track->first[step]; wanted(rank, track) && i < track->first[step + 1];
             i++)
            array_push(&slices, i);
    array_sort_by(&slices, by_start, rank->slices.at);
    return slices;
}

static key_array list_keys(const struct rank_build *rank, const slice_list *slices)
{
    key_array keys = {0};
    for (size_t i = 0; i < slices->n; i++)
        array_push(&keys, rank->keys[slices->at[i]]);
    return keys;
}

/* On whichever of their threads: the k-th run of a node is its k-th run there. `reference` has the
 * slices of the reference iteration. */
static void match_pools(const struct rank_build *rank, const slice_list *reference, uint32_t step,
                        const struct slice_matches *matches, uint32_t *found)
{
    if (reference->n == 0)
        return;
    SCRATCH slice_list slices = slices_by_start(rank, step, build_is_unordered), to = {0};
    SCRATCH key_array keys = list_keys(rank, reference), keys_there = list_keys(rank, &slices);
    array_reserve(&to, reference->n);
    match_by_count(keys.at, (uint32_t)keys.n, keys_there.at, (uint32_t)keys_there.n, to.at);
    for (size_t i = 0; i < reference->n; i++)
        found[slice_place(matches, reference->at[i])] =
            to.at[i] == NO_ID ? NO_ID : slices.at[to.at[i]];
}

struct step_matching {
    const struct rank_build *rank;
    const struct groups *references; /* the reference iteration's, by track */
    const uint32_t *track_place;
    const struct slice_matches *matches;
    slice_list pooled; /* of the reference iteration */
};

static void match_step(void *arg, size_t s)
{
    const struct step_matching *m = arg;
    const struct rank_build *rank = m->rank;
    struct aligner aligner = {0};
    uint32_t *found = m->matches->found + s * m->matches->n;
    for (uint32_t i = 0; i < m->matches->n && s == rank->steps.reference; i++)
        found[i] = m->matches->placed[i].slice;
    if (s == rank->steps.reference)
        return;
    match_pools(rank, &m->pooled, (uint32_t)s, m->matches, found);
    for (int pass = 0; pass < 2; pass++) /* CPU tracks first */
        for (uint32_t l = 0; l < rank->tracks.n; l++) {
            const struct track *track = &rank->tracks.at[l];
            uint32_t *to = found + m->track_place[l];
            bool gpu = track->kind == DPRO_DEVICE_GPU_STREAM;
            if (gpu != (pass == 1) || build_is_unordered(rank, track))
                continue;
            aligner.reference = &m->references[l];
            match_track(&aligner, rank, track, (uint32_t)s, to);
            if (gpu)
                match_device(rank, track, m->matches, found, to);
        }
    groups_fini(&aligner.groups);
    FREE_ALL(&aligner.calls, &aligner.places, &aligner.outer);
}

void slice_matches_find(const struct rank_build *rank, struct slice_matches *matches)
{
    SCRATCH uint32_t *track_place = mem_array(rank->tracks.n + 1, sizeof *track_place);
    uint32_t n = 0;
    SCRATCH struct groups *references = mem_array(rank->tracks.n + 1, sizeof *references);
    for (uint32_t l = 0; l < rank->tracks.n; l++) {
        const uint32_t *first = &rank->tracks.at[l].first[rank->steps.reference];
        track_place[l] = n;
        n += first[1] - first[0];
    }
    *matches = (struct slice_matches){
        .n = n,
        .placed = mem_alloc((n + (size_t)1) * sizeof *matches->placed),
        .places = mem_array(rank->slices.n + 1, sizeof *matches->places),
        .found = mem_alloc(((size_t)n * rank->steps.n + 1) * sizeof *matches->found)};
    for (uint32_t l = 0, place = 0; l < rank->tracks.n; l++) {
        const uint32_t *first = &rank->tracks.at[l].first[rank->steps.reference];
        if (rank->tracks.at[l].kind == DPRO_DEVICE_CPU_THREAD)
            group_slices(rank, first[0], first[1], &references[l]);
        for (uint32_t i = first[0]; i < first[1]; i++) {
            references[l].without_call |= rank->slices.at[i].launch == NO_ID;
            matches->placed[place] = (struct placed){i, l};
            matches->places[i] = ++place;
        }
    }
    struct step_matching matching = {
        rank, references, track_place, matches,
        slices_by_start(rank, rank->steps.reference, build_is_unordered)};
    parallel_for(rank->steps.n, rank->threads, match_step, &matching);
    for (uint32_t l = 0; l < rank->tracks.n; l++)
        groups_fini(&references[l]);
    array_fini(&matching.pooled);
}

void slice_matches_fini(struct slice_matches *matches)
{
    FREE_ALL(&matches->placed, &matches->places, &matches->found);
}
