/* graph/ops/rank_ops.c: a rank's ops and their samples.
 *
 * Every slice of the reference iteration iteration becomes an op, every collective two: its arrival
 * and its transfer. The same work is then found in each other iteration: on CPU tracks by aligning
 * the sequences of names, on streams through the launching call, which survives it when a library
 * picks another kernel. Slices that are empty in every measured iteration are left out. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/map.h"
#include "base/memory.h"
#include "base/sort.h"
#include "base/time.h"
#include "graph/names/collective_kinds.h"
#include "graph/names/span_names.h"
#include "graph/rank_build.h"
#include "ingest/pytorch/kineto_words.h"

struct placed {
    uint32_t slice, track;
};

static uint64_t key_of(const struct rank_build *rank, uint32_t slice)
{
    const struct trace_span *span = slice_span(rank, slice);
    uint64_t key = (uint64_t)span->name << 32 | rank->slices.at[slice].segment;
    if (span->node != NO_ID)
        key = map_mix((uint64_t)span->node << 32 | rank->slices.at[slice].segment);
    /* one of a node's kernels, or of the parts in which its tensor travels */
    if (span->node != NO_ID &&
        (rank->trace->tracks[span->track].gpu || span->kind == SPAN_COLLECTIVE))
        key = map_mix(key ^ span->name);
    if (span->detail != NO_ID &&
        span->kind == SPAN_ANNOTATION) /* buckets of one name differ in size */
        key ^= map_mix(rank->trace->details[span->detail].numel +
                       ((uint64_t)rank->trace->details[span->detail].process_group << 32));
    return key;
}

uint64_t build_step_hash(const struct rank_build *rank, uint32_t step)
{
    uint64_t hash = 1;
    uint64_t pooled = 0; /* in whatever order */
    for (uint32_t l = 0; l < rank->tracks.n; l++) {
        const struct track *track = &rank->tracks.at[l];
        if (build_is_unordered(rank, track)) {
            for (uint32_t i = track->first[step]; i < track->first[step + 1]; i++)
                pooled += map_mix(key_of(rank, i) + 1);
            continue;
        }
        hash = map_mix(hash + l + 1);
        for (uint32_t i = track->first[step]; i < track->first[step + 1]; i++)
            hash = (hash ^ key_of(rank, i)) * 0xd6e8feb86659fd93u + 1;
    }
    return map_mix(hash + pooled);
}

/* The slices of one outermost span on a track: [first, first + n). */
struct group {
    uint32_t first, n;
};

typedef ARRAY(struct group) group_array;
typedef ARRAY(uint64_t) key_array;

/* A track's slices in one step, cut where one outermost span ends and the next begins. */
struct groups {
    group_array parts;
    key_array names;  /* of the outermost spans */
    key_array hashes; /* of all that each part holds */
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

static int group_slices(const struct rank_build *rank, uint32_t first, uint32_t end,
                        struct groups *groups)
{
    enum { ROUNDING_NS = 1000 }; /* a span may seem to begin before the last one is over */
    int64_t until = INT64_MIN;
    uint32_t root = NO_ID;
    groups->parts.n = groups->names.n = groups->hashes.n = 0;
    for (uint32_t i = first; i < end; i++) {
        uint64_t key = map_mix(key_of(rank, i) + 1);
        int64_t start = rank->slices.at[i].start_ns;
        if (groups->parts.n > 0 && start < until &&
            (start < until - ROUNDING_NS || root_of(rank, i) == root)) {
            uint64_t *hash = &groups->hashes.at[groups->hashes.n - 1];
            groups->parts.at[groups->parts.n - 1].n++;
            *hash = map_mix(*hash * 3 + key);
            continue;
        }
        root = root_of(rank, i);
        const struct trace_span *span = &rank->trace->spans[root];
        until = span->start_ns + span->dur_ns;
        struct group group = {i, 1};
        if (array_push(&groups->parts, group) < 0 ||
            array_push(&groups->names, (uint64_t)span->name + 1) < 0 ||
            array_push(&groups->hashes, key) < 0)
            return -1;
    }
    return 0;
}

struct aligner {
    struct groups a, b;
    key_array keys, calls;  /* calls: those of the slices that launch work */
    ARRAY(uint32_t) places; /* of these in their part; behind the last, what each is matched with */
    ARRAY(uint32_t) outer;  /* by part of a: the part of b */
};

/* Aligns what lies between the matches that are there already. */
static int match_between(const uint64_t *a, uint32_t n_a, const uint64_t *b, uint32_t n_b,
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
        if (match_sequences(a + i, end - i, b + k, end_b - k, to + i) < 0)
            return -1;
        for (uint32_t g = i; g < end; g++)
            if (to[g] != NO_ID)
                to[g] += k;
        i = end;
    }
    return 0;
}

/* Parts that hold exactly the same first; then, between those, parts of the same name. */
static int match_parts(struct aligner *al)
{
    uint32_t n_a = (uint32_t)al->a.parts.n, n_b = (uint32_t)al->b.parts.n;
    uint32_t *to;
    al->outer.n = 0;
    if (array_reserve(&al->outer, n_a) < 0)
        return -1;
    to = al->outer.at;
    if (match_sequences(al->a.hashes.at, n_a, al->b.hashes.at, n_b, to) < 0)
        return -1;
    return match_between(al->a.names.at, n_a, al->b.names.at, n_b, to);
}

/* Adds the calls of a part that launch work: their keys, and their places in it. */
static int list_calls(struct aligner *al, const struct rank_build *rank, struct group part)
{
    for (uint32_t i = 0; i < part.n; i++)
        if (rank->slices.at[part.first + i].launch != NO_ID &&
            (array_push(&al->calls, key_of(rank, part.first + i)) < 0 ||
             array_push(&al->places, i) < 0))
            return -1;
    return 0;
}

/* What matters most on a thread is its calls that launch work, and an op within another one shifts
 * the numbers of the stretches around it: the calls are matched first. */
static int match_calls(struct aligner *al, const struct rank_build *rank, struct group a,
                       struct group b, uint32_t *to)
{
    al->calls.n = al->places.n = 0;
    if (list_calls(al, rank, a) < 0)
        return -1;
    uint32_t n_a = (uint32_t)al->calls.n, n_b;
    if (list_calls(al, rank, b) < 0 || array_reserve(&al->places, al->places.n + n_a) < 0)
        return -1;
    n_b = (uint32_t)al->calls.n - n_a;
    uint32_t *found = al->places.at + n_a + n_b;
    if (match_sequences(al->calls.at, n_a, al->calls.at + n_a, n_b, found) < 0)
        return -1;
    for (uint32_t i = 0; i < n_a; i++)
        if (found[i] != NO_ID)
            to[al->places.at[i]] = al->places.at[n_a + found[i]];
    return 0;
}

/* to[] has what is matched already, by place in b. */
static int match_slices(struct aligner *al, const struct rank_build *rank, struct group a,
                        struct group b, bool in_order, uint32_t *to)
{
    al->keys.n = 0;
    if (array_reserve(&al->keys, (size_t)a.n + b.n) < 0)
        return -1;
    for (uint32_t i = 0; i < a.n; i++)
        al->keys.at[i] = key_of(rank, a.first + i);
    for (uint32_t i = 0; i < b.n; i++)
        al->keys.at[a.n + i] = key_of(rank, b.first + i);
    int status = in_order ? match_between(al->keys.at, a.n, al->keys.at + a.n, b.n, to)
                          : match_by_count(al->keys.at, a.n, al->keys.at + a.n, b.n, to);
    for (uint32_t i = 0; i < a.n; i++)
        if (to[i] != NO_ID)
            to[i] += b.first;
    return status;
}

/* Aligns a track's slices of the reference iteration with those of `step`: outermost spans first,
 * then what each holds, so that differences stay where they are. to[] by place in the reference
 * iteration's range. */
static int match_track(struct aligner *al, const struct rank_build *rank, const struct track *track,
                       uint32_t step, uint32_t *to)
{
    uint32_t t = rank->steps.reference;
    struct group all_a = {track->first[t], track->first[t + 1] - track->first[t]};
    struct group all_b = {track->first[step], track->first[step + 1] - track->first[step]};
    for (uint32_t i = 0; i < all_a.n; i++)
        to[i] = NO_ID;
    if (all_a.n == 0 || all_b.n == 0)
        return 0;
    if (track->kind != DPRO_DEVICE_CPU_THREAD) /* which thread of a pool is first is chance */
        return match_slices(al, rank, all_a, all_b, track->kind == DPRO_DEVICE_GPU_STREAM, to);
    if (group_slices(rank, all_a.first, all_a.first + all_a.n, &al->a) < 0 ||
        group_slices(rank, all_b.first, all_b.first + all_b.n, &al->b) < 0 || match_parts(al) < 0)
        return -1;
    for (size_t g = 0; g < al->a.parts.n; g++) {
        struct group part = al->a.parts.at[g], other;
        if (al->outer.at[g] == NO_ID)
            continue;
        other = al->b.parts.at[al->outer.at[g]];
        if (match_calls(al, rank, part, other, to + (part.first - all_a.first)) < 0 ||
            match_slices(al, rank, part, other, true, to + (part.first - all_a.first)) < 0)
            return -1;
    }
    return 0;
}

static void groups_fini(struct groups *groups)
{
    array_fini(&groups->parts);
    array_fini(&groups->names);
    array_fini(&groups->hashes);
}

static void aligner_fini(struct aligner *al)
{
    groups_fini(&al->a);
    groups_fini(&al->b);
    array_fini(&al->keys);
    array_fini(&al->calls);
    array_fini(&al->places);
    array_fini(&al->outer);
}

/* Device work follows its call: the k-th of the call here is the k-th of the call there. `found`
 * maps the reference iteration's slices (by place) to those of the step; CPU tracks are done
 * already. */
static void match_device(const struct rank_build *rank, const struct track *track,
                         const uint32_t *place_of, const uint32_t *found, uint32_t *to)
{
    uint32_t first = track->first[rank->steps.reference];
    uint32_t n = track->first[rank->steps.reference + 1] - first;
    for (uint32_t i = 0; i < n; i++) {
        const struct slice *work = &rank->slices.at[first + i];
        if (work->launch == NO_ID || place_of[work->launch] == NO_ID)
            continue;
        uint32_t call = found[place_of[work->launch]];
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

typedef ARRAY(uint32_t) slice_array;

/* What is matched over all threads of the pools. */
struct pooled {
    slice_array a, b, to;
    key_array keys_a, keys_b;
};

struct matcher {
    struct rank_build *rank;
    struct placed *placed; /* the reference iteration's slices, in track order, then by time */
    uint32_t *track_place; /* where each track's part of placed[] begins */
    uint32_t n;
    uint32_t *place_of; /* slice -> place in the reference iteration, by track; NO_ID */
    uint32_t *found;    /* [step * n + place] */
    struct aligner aligner;
    struct pooled pooled;
};

ORDER_OF_INDICES(by_start, struct slice, ASCENDING(start_ns));

/* Slices of the executor's pools in a step, in order of start. */
static int list_pooled(const struct rank_build *rank, uint32_t step, slice_array *slices)
{
    slices->n = 0;
    for (uint32_t l = 0; l < rank->tracks.n; l++) {
        const struct track *track = &rank->tracks.at[l];
        for (uint32_t i = track->first[step];
             build_is_unordered(rank, track) && i < track->first[step + 1]; i++)
            if (array_push(slices, i) < 0)
                return -1;
    }
    if (slices->n > 1)
        qsort_r(slices->at, slices->n, sizeof *slices->at, by_start, rank->slices.at);
    return 0;
}

static int list_keys(const struct rank_build *rank, const slice_array *slices, key_array *keys)
{
    keys->n = 0;
    for (size_t i = 0; i < slices->n; i++)
        if (array_push(keys, key_of(rank, slices->at[i])) < 0)
            return -1;
    return 0;
}

/* On whichever of their threads: the k-th run of a node is its k-th run there. */
static int match_pools(struct matcher *m, uint32_t step, uint32_t *found)
{
    const struct rank_build *rank = m->rank;
    struct pooled *p = &m->pooled;
    if (list_pooled(rank, rank->steps.reference, &p->a) < 0 || list_pooled(rank, step, &p->b) < 0)
        return -1;
    p->to.n = 0;
    if (p->a.n == 0)
        return 0;
    if (list_keys(rank, &p->a, &p->keys_a) < 0 || list_keys(rank, &p->b, &p->keys_b) < 0 ||
        array_reserve(&p->to, p->a.n) < 0 ||
        match_by_count(p->keys_a.at, (uint32_t)p->a.n, p->keys_b.at, (uint32_t)p->b.n, p->to.at) <
            0)
        return -1;
    for (size_t i = 0; i < p->a.n; i++)
        found[m->place_of[p->a.at[i]]] = p->to.at[i] == NO_ID ? NO_ID : p->b.at[p->to.at[i]];
    return 0;
}

static int match_steps(struct matcher *m)
{
    struct rank_build *rank = m->rank;
    for (uint32_t s = 0; s < rank->steps.n; s++) {
        uint32_t *found = m->found + (size_t)s * m->n;
        if (match_pools(m, s, found) < 0)
            return -1;
        for (int pass = 0; pass < 2; pass++) /* CPU tracks first */
            for (uint32_t l = 0; l < rank->tracks.n; l++) {
                const struct track *track = &rank->tracks.at[l];
                bool gpu = track->kind == DPRO_DEVICE_GPU_STREAM;
                if (gpu != (pass == 1) || build_is_unordered(rank, track))
                    continue;
                if (match_track(&m->aligner, rank, track, s, found + m->track_place[l]) < 0)
                    return -1;
                if (gpu)
                    match_device(rank, track, m->place_of, found, found + m->track_place[l]);
            }
    }
    return 0;
}

static bool always_empty(const struct matcher *m, uint32_t place)
{
    const struct rank_build *rank = m->rank;
    for (uint32_t s = 0; s < rank->steps.n; s++) {
        uint32_t slice = m->found[(size_t)s * m->n + place];
        if (slice != NO_ID && rank->slices.at[slice].end_ns > rank->slices.at[slice].start_ns)
            return false;
    }
    return true;
}

static int compare_times(const void *a, const void *b, void *arg)
{
    const struct rank_build *rank = arg;
    const struct placed *x = a, *y = b;
    const struct slice *p = &rank->slices.at[x->slice], *q = &rank->slices.at[y->slice];
    if (p->start_ns != q->start_ns)
        return p->start_ns < q->start_ns ? -1 : 1;
    return x->slice < y->slice ? -1 : x->slice > y->slice;
}

/* The device that runs a track's slice: its track. A thread of an executor's pool only starts a
 * collective, which goes on while the thread runs other ops: collectives are on a device of their
 * own. */
static uint32_t device_of(struct rank_build *rank, const struct track *track, uint32_t slice,
                          uint32_t *device_of_track)
{
    uint32_t source = slice_span(rank, slice)->track;
    if (track->kind == DPRO_DEVICE_COMM_THREAD && rank->trace->tracks[source].pool)
        device_of_track += rank->trace->n_tracks;
    if (device_of_track[source] == NO_ID) {
        struct graph_device device = {
            .kind = track->kind, .rank = rank->trace->rank, .name = source};
        if (rank->trace->tracks[source].serial) /* its copies are communication, too */
            device.kind = DPRO_DEVICE_COMM_THREAD;
        device_of_track[source] = (uint32_t)rank->devices.n;
        if (array_push(&rank->devices, device) < 0)
            return NO_ID;
    }
    return device_of_track[source];
}

static uint8_t phase_of_slice(const struct rank_build *rank, uint32_t slice)
{
    const struct slice *it = &rank->slices.at[slice];
    const struct trace_span *span = slice_span(rank, slice);
    if (rank->trace->tracks[span->track].gpu) {
        if (it->launch == NO_ID)
            return DPRO_OP_FW;
        return rank->phases[rank->slices.at[it->launch].span];
    }
    return rank->phases[it->span];
}

/* What a parameter server takes in was pushed to it, what comes from one was pulled. */
static uint8_t received_as(const struct rank_build *rank, const struct trace_span *span)
{
    uint32_t key = span->detail == NO_ID ? 0 : rank->trace->details[span->detail].process_group;
    if (rank->trace->rank < 0)
        return DPRO_OP_PUSH;
    return strstr(strtab_get(rank->names, key), " /job:ps/") ? DPRO_OP_PULL : DPRO_OP_RECV;
}

/* From one GPU's memory to another one's, as Kineto and TensorFlow name it. */
static bool copies_to_peer(const struct rank_build *rank, const struct trace_span *span)
{
    static const char *const names[] = {"Memcpy PtoP", "MemcpyP2P"};
    const char *name = strtab_get(rank->names, span->name);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (span->kind == SPAN_MEMCPY && strncmp(name, names[i], strlen(names[i])) == 0)
            return true;
    return false;
}

static void classify(const struct rank_build *rank, struct local_op *op)
{
    const struct trace_span *span = slice_span(rank, op->slice);
    uint32_t class = rank->classes[span->name];
    uint8_t track_kind = rank->tracks.at[op->track].kind;
    op->phase = phase_of_slice(rank, op->slice);
    op->kind = op->phase;
    if (track_kind == DPRO_DEVICE_COMM_THREAD) {
        op->kind = op->phase = DPRO_OP_COLLECTIVE;
    } else if (track_kind == DPRO_DEVICE_LINK_RX) {
        op->kind = op->phase = received_as(rank, span);
    } else if (track_kind == DPRO_DEVICE_GPU_STREAM) {
        op->flags |= GRAPH_OP_GPU;
        if (span->kind == SPAN_MEMCPY)
            op->kind = DPRO_OP_COPY;
        if (copies_to_peer(rank, span))
            op->phase = DPRO_OP_COLLECTIVE;
        if ((class & NAME_INPUT_COPY) && op->phase == DPRO_OP_FW)
            op->phase = DPRO_OP_INPUT;
        if ((class & NAME_INPUT_COPY) && op->phase == DPRO_OP_INPUT)
            op->kind = DPRO_OP_INPUT;
        if (build_communicates(rank, op->slice))
            op->kind = op->phase = DPRO_OP_COLLECTIVE;
    } else if (span->kind == SPAN_RUNTIME || (class & (NAME_COMM_CALL | NAME_EXECUTOR_CALL))) {
        op->kind = DPRO_OP_LAUNCH;
    } else if (class & (NAME_FUSION_COPY | NAME_CALLBACK)) {
        op->kind = class & NAME_FUSION_COPY ? DPRO_OP_COPY : DPRO_OP_LAUNCH;
        op->phase = DPRO_OP_COLLECTIVE;
    } else if (class & (NAME_PUSH | NAME_PULL)) {
        op->kind = class & NAME_PUSH ? DPRO_OP_PUSH : DPRO_OP_PULL;
        op->phase = DPRO_OP_COLLECTIVE;
    } else if (class & (NAME_BUCKET_IN | NAME_BUCKET_OUT)) {
        op->kind = DPRO_OP_COPY;
    }
    if (span->detail != NO_ID && op->kind != DPRO_OP_COLLECTIVE)
        op->size_bytes = rank->trace->details[span->detail].bytes;
}

/* The kind of collective that a span's name stands for; NULL: it does not tell. */
static const char *kind_of(const struct rank_build *rank, const struct trace_span *span)
{
    struct comm_name kernel;
    if (span->kind == SPAN_COLLECTIVE)
        return NULL;
    if (span->kind == SPAN_KERNEL &&
        comm_name_of_kernel(strtab_get(rank->names, span->name),
                            strtab_len(rank->names, span->name), &kernel))
        return kernel.kind;
    return name_collective(strtab_get(rank->names, span->name));
}

/* Takes what a span says of a collective where nothing is known yet. */
static void learn_collective(const struct rank_build *rank, const struct trace_span *span,
                             struct local_collective *c, uint64_t *item_bytes)
{
    const char *kind = kind_of(rank, span);
    if (kind && (!c->kind || strcmp(c->kind, "send_recv") == 0))
        c->kind = kind;
    if (span->detail == NO_ID)
        return;
    const struct trace_detail *d = &rank->trace->details[span->detail];
    const char *recorded = name_collective(strtab_get(rank->names, d->collective));
    if (recorded && (!c->kind || strcmp(c->kind, "send_recv") == 0))
        c->kind = recorded;
    if (c->numel == 0)
        c->numel = d->numel;
    if (*item_bytes == 0)
        *item_bytes = kineto_dtype_bytes(strtab_get(rank->names, d->dtype));
    if (c->group == 0)
        c->group = d->process_group;
    if (c->group_ranks == 0)
        c->group_ranks = d->group_ranks;
    if (c->group_size <= 0)
        c->group_size = d->group_size;
    if (c->sequence < 0)
        c->sequence = d->comm_sequence;
    if (c->peer < 0)
        c->peer = d->peer;
    if (c->key == 0)
        c->key = d->key;
}

void build_learn_collective(const struct rank_build *rank, uint32_t span_index,
                            struct local_collective *c)
{
    const uint32_t asks = NAME_COMM_CALL | NAME_COMM_PARAM | NAME_COMM_SCOPE;
    const uint32_t wanted = NAME_COMM_RUN | NAME_COMM_KERNEL | asks;
    uint64_t item_bytes = 0;
    if (c->numel && c->size_bytes)
        item_bytes = c->size_bytes / c->numel;
    for (uint32_t at = span_index; at != NO_ID; at = rank->trace->spans[at].parent) {
        const struct trace_span *span = &rank->trace->spans[at];
        if (span->kind == SPAN_COLLECTIVE || (rank->classes[span->name] & wanted)) {
            learn_collective(rank, span, c, &item_bytes);
            if (rank->classes[span->name] & NAME_EXCHANGE)
                break; /* what is around it in time are others */
            if (rank->classes[span->name] & asks)
                c->launch_span = at;
        }
    }
    c->size_bytes = c->numel * (item_bytes ? item_bytes : 4);
}

static uint8_t end_of(const struct rank_build *rank, const struct local_op *op)
{
    struct comm_name kernel;
    if (!(op->flags & GRAPH_OP_GPU))
        return COMM_ENDS_TOGETHER;
    return comm_name_of_kernel(strtab_get(rank->names, op->name), strtab_len(rank->names, op->name),
                               &kernel)
               ? kernel.end
               : COMM_ENDS_UNSURE;
}

static int push_collective(struct rank_build *rank, struct local_op op)
{
    struct local_collective c = {.sequence = -1, .peer = -1, .launch_span = NO_ID, .bucket = NO_ID};
    build_learn_collective(rank, rank->slices.at[op.slice].span, &c);
    uint32_t launch = rank->slices.at[op.slice].launch;
    if ((op.flags & GRAPH_OP_GPU) && launch != NO_ID)
        build_learn_collective(rank, rank->slices.at[launch].span, &c);
    if (!c.kind)
        c.kind = "collective";
    c.end = end_of(rank, &op);
    op.collective = (uint32_t)rank->collectives.n;
    c.arrival = (uint32_t)rank->ops.n;
    c.transfer = c.arrival + 1;
    struct local_op arrival = op;
    arrival.kind = DPRO_OP_BARRIER;
    arrival.phase = DPRO_OP_BARRIER;
    arrival.flags |= GRAPH_OP_ARRIVAL;
    op.size_bytes = c.size_bytes;
    if (strcmp(c.kind, "send") == 0)
        op.kind = DPRO_OP_SEND;
    else if (strcmp(c.kind, "recv") == 0)
        op.kind = DPRO_OP_RECV;
    if (array_push(&rank->ops, arrival) < 0 || array_push(&rank->ops, op) < 0)
        return -1;
    return array_push(&rank->collectives, c);
}

static int make_ops(struct matcher *m)
{
    struct rank_build *rank = m->rank;
    size_t n_devices = 2 * (size_t)rank->trace->n_tracks + 1; /* a track's own, its collectives' */
    uint32_t *device_of_track = mem_alloc(n_devices * sizeof *device_of_track);
    struct placed *by_time = mem_alloc((m->n + 1) * sizeof *by_time);
    int status = device_of_track && by_time ? 0 : -1;
    if (status == 0) {
        memset(device_of_track, 0xFF, n_devices * sizeof *device_of_track);
        memcpy(by_time, m->placed, m->n * sizeof *by_time);
        qsort_r(by_time, m->n, sizeof *by_time, compare_times, rank);
    }
    for (uint32_t i = 0; i < m->n && status == 0; i++) {
        struct local_op op = {
            .slice = by_time[i].slice, .track = by_time[i].track, .collective = NO_ID};
        const struct track *track = &rank->tracks.at[op.track];
        const struct slice *slice = &rank->slices.at[op.slice];
        if (track->kind == DPRO_DEVICE_CPU_THREAD && slice->launch == NO_ID &&
            always_empty(m, m->place_of[op.slice]))
            continue;
        op.name = slice_span(rank, op.slice)->name;
        op.profiled = (uint8_t)(slice->profiled_within | slice->profiled_before << 4);
        bool exchange = track->kind == DPRO_DEVICE_COMM_THREAD && /* no thread runs it */
                        (rank->classes[op.name] & NAME_EXCHANGE);
        op.device = exchange ? NO_ID : device_of(rank, track, op.slice, device_of_track);
        if (op.device == NO_ID && !exchange) {
            status = -1;
            break;
        }
        classify(rank, &op);
        status =
            op.kind == DPRO_OP_COLLECTIVE ? push_collective(rank, op) : array_push(&rank->ops, op);
    }
    if (status == 0) {
        struct local_op boundary = {.slice = NO_ID,
                                    .track = NO_ID,
                                    .device = NO_ID,
                                    .kind = DPRO_OP_BARRIER,
                                    .phase = DPRO_OP_BARRIER,
                                    .flags = GRAPH_OP_BOUNDARY,
                                    .collective = NO_ID};
        rank->boundary = (uint32_t)rank->ops.n;
        status = array_push(&rank->ops, boundary);
    }
    mem_free(device_of_track);
    mem_free(by_time);
    return status;
}

/* Where each op was found in every step; the matcher's own tables are given up for it. */
static int place_ops(struct matcher *m)
{
    struct rank_build *rank = m->rank;
    size_t n = rank->ops.n, total;
    rank->n_timed = (uint32_t)n;
    if (__builtin_mul_overflow(n, rank->steps.n, &total))
        return -1;
    rank->match = mem_alloc((total + 1) * sizeof *rank->match);
    if (!rank->match)
        return -1;
    for (uint32_t s = 0; s < rank->steps.n; s++)
        for (size_t o = 0; o < n; o++) {
            uint32_t slice = rank->ops.at[o].slice;
            rank->match[s * n + o] =
                slice == NO_ID ? NO_ID : m->found[(size_t)s * m->n + m->place_of[slice]];
        }
    mem_free(m->found);
    mem_free(m->place_of);
    m->found = NULL;
    m->place_of = NULL;
    return 0;
}

/* Times of every op in every step. A collective's arrival takes no time; its transfer is cut to
 * what follows the last arrival once the ranks are joined. */
static int time_ops(struct rank_build *rank)
{
    size_t n = rank->ops.n, total = n * rank->steps.n;
    rank->start_ns = mem_alloc((total + 1) * sizeof *rank->start_ns);
    rank->end_ns = mem_alloc((total + 1) * sizeof *rank->end_ns);
    rank->seen_start_ns = mem_alloc((n + 1) * sizeof *rank->seen_start_ns);
    rank->seen_end_ns = mem_alloc((n + 1) * sizeof *rank->seen_end_ns);
    if (!rank->start_ns || !rank->end_ns || !rank->seen_start_ns || !rank->seen_end_ns)
        return -1;
    for (uint32_t s = 0; s < rank->steps.n; s++)
        for (size_t o = 0; o < n; o++) {
            size_t at = s * n + o;
            rank->start_ns[at] = rank->end_ns[at] = ABSENT;
            if (o == rank->boundary) {
                rank->start_ns[at] = rank->end_ns[at] = rank->steps.at[s].end_ns;
            } else if (rank->match[at] != NO_ID) {
                const struct slice *slice = &rank->slices.at[rank->match[at]];
                bool arrives = rank->ops.at[o].flags & GRAPH_OP_ARRIVAL;
                rank->start_ns[at] = slice->start_ns;
                rank->end_ns[at] = arrives ? slice->start_ns : slice->end_ns;
            }
        }
    size_t shown = (size_t)rank->steps.reference * n;
    memcpy(rank->seen_start_ns, rank->start_ns + shown, n * sizeof *rank->seen_start_ns);
    memcpy(rank->seen_end_ns, rank->end_ns + shown, n * sizeof *rank->seen_end_ns);
    return 0;
}

/* What a step's streams did for its own calls. */
static int64_t stream_ns(const struct rank_build *rank, uint32_t step)
{
    int64_t sum = 0;
    for (uint32_t l = 0; l < rank->tracks.n; l++) {
        const struct track *track = &rank->tracks.at[l];
        for (uint32_t i = track->first[step];
             track->kind == DPRO_DEVICE_GPU_STREAM && i < track->first[step + 1]; i++)
            if (rank->slices.at[i].launch != NO_ID)
                sum = time_add(sum, rank->slices.at[i].end_ns - rank->slices.at[i].start_ns);
    }
    return sum;
}

/* The same of what was matched. */
static int64_t matched_ns(const struct rank_build *rank, uint32_t step)
{
    int64_t sum = 0;
    for (uint32_t o = 0; o < rank->n_timed; o++) {
        uint32_t track = rank->ops.at[o].track,
                 slice = rank->match[(size_t)step * rank->n_timed + o];
        if (track != NO_ID && rank->tracks.at[track].kind == DPRO_DEVICE_GPU_STREAM &&
            slice != NO_ID && rank->slices.at[slice].launch != NO_ID)
            sum = time_add(sum, rank->slices.at[slice].end_ns - rank->slices.at[slice].start_ns);
    }
    return sum;
}

/* Iterations that hold more than the reference iteration, whose ops alone are replayed. */
static void find_unmatched(struct rank_build *rank)
{
    int64_t sum = 0, n = 0;
    for (uint32_t s = 0; s < rank->steps.n; s++)
        if (rank->steps.at[s].timed) {
            int64_t left = stream_ns(rank, s) - matched_ns(rank, s);
            sum = time_add(sum, left > 0 ? left : 0);
            n++;
        }
    rank->unmatched_ns = n > 0 ? sum / n : 0;
}

static int run(struct matcher *m)
{
    struct rank_build *rank = m->rank;
    m->track_place = mem_array(rank->tracks.n + 1, sizeof *m->track_place);
    if (!m->track_place)
        return -1;
    for (uint32_t l = 0; l < rank->tracks.n; l++) {
        const uint32_t *first = &rank->tracks.at[l].first[rank->steps.reference];
        m->track_place[l] = m->n;
        m->n += first[1] - first[0];
    }
    m->placed = mem_alloc((m->n + 1) * sizeof *m->placed);
    m->place_of = mem_alloc((rank->slices.n + 1) * sizeof *m->place_of);
    m->found = mem_alloc(((size_t)m->n * rank->steps.n + 1) * sizeof *m->found);
    if (!m->placed || !m->place_of || !m->found)
        return -1;
    memset(m->place_of, 0xFF, (rank->slices.n + 1) * sizeof *m->place_of);
    for (uint32_t l = 0, place = 0; l < rank->tracks.n; l++) {
        const uint32_t *first = &rank->tracks.at[l].first[rank->steps.reference];
        for (uint32_t i = first[0]; i < first[1]; i++) {
            m->placed[place] = (struct placed){i, l};
            m->place_of[i] = place++;
        }
    }
    if (match_steps(m) < 0 || build_find_scopes(rank) < 0 || make_ops(m) < 0 || place_ops(m) < 0)
        return -1;
    find_unmatched(rank);
    return time_ops(rank);
}

int build_ops(struct rank_build *rank, struct dpro_error *err)
{
    struct matcher matcher = {.rank = rank};
    int status = run(&matcher);
    mem_free(matcher.placed);
    mem_free(matcher.track_place);
    mem_free(matcher.place_of);
    mem_free(matcher.found);
    aligner_fini(&matcher.aligner);
    array_fini(&matcher.pooled.a);
    array_fini(&matcher.pooled.b);
    array_fini(&matcher.pooled.to);
    array_fini(&matcher.pooled.keys_a);
    array_fini(&matcher.pooled.keys_b);
    return status < 0 ? dpro_error_nomem(err) : 0;
}

void build_forget(struct rank_build *rank)
{
    for (uint32_t l = 0; l < rank->tracks.n; l++)
        mem_free(rank->tracks.at[l].first);
    array_fini(&rank->tracks);
    array_fini(&rank->slices);
    map_fini(&rank->named_scopes);
    mem_free(rank->match);
    mem_free(rank->phases);
    rank->match = NULL;
    rank->phases = NULL;
}
