/* ingest/horovod/thread.c: Horovod's thread on every rank.
 *
 * Only rank 0 writes a timeline, unless it was patched. What it says of a group holds for all
 * ranks, since none begins before all are ready. When another rank moved the same bytes, its
 * transport log tells: what rank 0 sent and received while a group was transferred are ranges of
 * its connections' bytes, and the other ends moved the very same ranges. Where a rank has no log,
 * its group took as long as rank 0's, at the same time. When a rank handed over its tensors its
 * framework's profile tells. */
#include "ingest/horovod/thread.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/map.h"
#include "base/sort.h"
#include "ingest/load.h"

static const int64_t NEVER = INT64_MIN;

/* One rank's groups, as they were fused; then as they are in the graph, [round * n_groups + g]. */
struct placing {
    struct dpro_trace *trace;
    const struct fusion *fusion;
    const struct rounds *rounds;
    struct trace_rank *rank;
    struct fused_times *actual; /* by rounds->groups */
    struct fused_times *groups; /* [round * n_groups + group]; start_ns NEVER: not in that round */
    const uint32_t *place_of;   /* by tensor of the timeline: in fusion->tensors; NO_ID */
    const uint32_t *cells;      /* [round * n_tensors + place]: the actual group; NO_ID */
    struct span_ref *refs;      /* room for the rank's spans that enqueue */
    size_t n_refs;
};

struct span_ref {
    int64_t start_ns;
    uint32_t span;
    uint32_t place; /* of the tensor; NO_ID: its name does not tell */
};

/* ---- when a rank transferred a group ---- */

struct byte_range {
    uint64_t start, end;       /* of a stream's bytes; empty: none */
    int64_t first_ns, last_ns; /* of the peer's calls that moved them */
};

/* The group that was being transferred at a time; NO_ID: none. */
static uint32_t group_at(const struct rounds *rounds, int64_t time_ns)
{
    size_t next = LOWER_BOUND(g, (size_t)0, rounds->groups.n,
                              rounds->groups.at[g].times.transfer_ns <= time_ns);
    return next > 0 && time_ns <= rounds->groups.at[next - 1].times.transferred_ns
               ? (uint32_t)next - 1
               : NO_ID;
}

/* Which bytes of a stream rank 0 moved during each group. */
static void find_ranges(const struct rounds *rounds, const struct net_transport *t, uint32_t stream,
                        struct byte_range *ranges)
{
    for (size_t g = 0; g < rounds->groups.n; g++)
        ranges[g] = (struct byte_range){UINT64_MAX, 0, INT64_MAX, INT64_MIN};
    for (uint32_t i = t->first_transfer[stream]; i < t->first_transfer[stream + 1]; i++) {
        const struct net_transfer *transfer = &t->transfers.at[i];
        uint32_t g = group_at(rounds, transfer->start_ns);
        if (g == NO_ID)
            continue;
        if (transfer->offset < ranges[g].start)
            ranges[g].start = transfer->offset;
        if (transfer->offset + transfer->bytes > ranges[g].end)
            ranges[g].end = transfer->offset + transfer->bytes;
    }
}

/* When the peer moved them; ranges ascend, as bytes do. */
static void time_ranges(const struct net_transport *peer, uint32_t stream, size_t n,
                        struct byte_range *ranges)
{
    size_t g = 0;
    for (uint32_t i = peer->first_transfer[stream]; i < peer->first_transfer[stream + 1]; i++) {
        const struct net_transfer *transfer = &peer->transfers.at[i];
        uint64_t end = transfer->offset + transfer->bytes;
        while (g < n && (ranges[g].end <= transfer->offset || ranges[g].start >= ranges[g].end))
            g++;
        if (g == n)
            break;
        if (end <= ranges[g].start)
            continue;
        if (transfer->start_ns < ranges[g].first_ns)
            ranges[g].first_ns = transfer->start_ns;
        if (transfer->end_ns > ranges[g].last_ns)
            ranges[g].last_ns = transfer->end_ns;
    }
}

static const struct net_transport *transport_of(const struct dpro_trace *trace, int rank)
{
    for (uint32_t t = 0; t < trace->n_transports; t++)
        if (trace->transports[t].rank == rank)
            return &trace->transports[t];
    return NULL;
}

static int64_t after_of(const struct fused_times *times)
{
    return times->end_ns - times->transferred_ns;
}

/* Moves a group so that its transfer is from first to last; what comes before and after it takes as
 * long as on rank 0. Where rank 0's thread was put off its core after it, this one was not: that is
 * no longer than usual_ns. */
static void move_group(struct fused_times *times, int64_t first_ns, int64_t last_ns,
                       int64_t usual_ns)
{
    int64_t out = times->out_ns - times->transferred_ns, after = after_of(times);
    if (after > usual_ns) {
        out = (int64_t)((double)out * (double)usual_ns / (double)after);
        after = usual_ns;
    }
    times->start_ns += first_ns - times->transfer_ns;
    times->transfer_ns = first_ns;
    times->transferred_ns = last_ns;
    times->out_ns = last_ns + out;
    times->end_ns = last_ns + after;
}

/* The upper quartile of what rank 0 did after a transfer. -1: no memory. */
static int64_t usual_after(const struct rounds *rounds)
{
    size_t n = rounds->groups.n;
    int64_t *lengths = malloc((n + 1) * sizeof *lengths), usual = -1;
    for (size_t g = 0; lengths && g < n; g++)
        lengths[g] = after_of(&rounds->groups.at[g].times);
    if (lengths)
        usual = n ? MAX(select_i64(lengths, n, n * 3 / 4), 0) : 0;
    free(lengths);
    return usual;
}

/* Looks up the rank's groups in the logs. Returns how many were found there, -1: no memory. */
static int64_t times_from_logs(struct placing *p, int lead)
{
    const struct net_transport *own = transport_of(p->trace, lead);
    size_t n = p->rounds->groups.n;
    struct byte_range *found = malloc((n + 1) * sizeof *found),
                      *ranges = malloc((n + 1) * sizeof *ranges);
    int64_t n_found = 0, shift_ns = 0, usual_ns = usual_after(p->rounds);
    if (!found || !ranges || usual_ns < 0) {
        free(found);
        free(ranges);
        return -1;
    }
    for (size_t g = 0; g < n; g++)
        found[g] = (struct byte_range){0, 0, INT64_MAX, INT64_MIN};
    for (uint32_t s = 0; own && s < own->connections.n * 2; s++) {
        uint32_t peer_stream;
        const struct net_transport *peer = net_peer(p->trace, own, s, &peer_stream);
        if (!peer || peer->rank != p->rank->rank ||
            own->first_transfer[s] == own->first_transfer[s + 1])
            continue;
        find_ranges(p->rounds, own, s, ranges);
        time_ranges(peer, peer_stream, n, ranges);
        for (size_t g = 0; g < n; g++) {
            if (ranges[g].first_ns < found[g].first_ns)
                found[g].first_ns = ranges[g].first_ns;
            if (ranges[g].last_ns > found[g].last_ns)
                found[g].last_ns = ranges[g].last_ns;
        }
    }
    for (size_t g = 0; g < n; g++) {
        if (found[g].first_ns < found[g].last_ns) {
            shift_ns = found[g].first_ns - p->actual[g].transfer_ns;
            move_group(&p->actual[g], found[g].first_ns, found[g].last_ns, usual_ns);
            n_found++;
        } else if (n_found > 0) { /* as far off as the last one that was found */
            move_group(&p->actual[g], p->actual[g].transfer_ns + shift_ns,
                       p->actual[g].transferred_ns + shift_ns, usual_ns);
        }
    }
    free(found);
    free(ranges);
    return n_found;
}

/* ---- a rank that wrote a timeline, too ---- */

/* The runs of a timeline by tensor, each tensor's in order. */
struct runs_of {
    uint32_t *first, *runs;
};

static int list_runs(const struct timeline *t, struct runs_of *of)
{
    of->first = calloc(t->tensors.n + 2, sizeof *of->first);
    of->runs = malloc((t->runs.n + 1) * sizeof *of->runs);
    if (!of->first || !of->runs)
        return -1;
    for (size_t i = 0; i < t->runs.n; i++)
        of->first[t->runs.at[i].tensor + 2]++;
    for (size_t i = 2; i < t->tensors.n + 2; i++)
        of->first[i] += of->first[i - 1];
    for (uint32_t i = 0; i < t->runs.n; i++)
        of->runs[of->first[t->runs.at[i].tensor + 1]++] = i;
    return 0;
}

/* The k-th time that a tensor travelled is the same on both; of a group that the rank fused
 * otherwise the times are those of its tensors. */
static int times_from_own(struct placing *p)
{
    const struct timeline *lead = p->fusion->timeline, *own = p->rank->timeline;
    struct runs_of of = {NULL, NULL};
    struct map tensors = {0};                                     /* name + 1 -> the rank's own */
    uint32_t *seen = calloc(lead->tensors.n + 1, sizeof *seen);   /* by tensor: runs so far */
    uint32_t *place = malloc((lead->runs.n + 1) * sizeof *place); /* of a run among its tensor's */
    int status = seen && place ? list_runs(own, &of) : -1;
    for (uint32_t t = 0; t < own->tensors.n && status == 0; t++)
        status = map_set(&tensors, (uint64_t)own->tensors.at[t].name + 1, t);
    for (size_t i = 0; i < lead->runs.n && status == 0; i++)
        place[i] = seen[lead->runs.at[i].tensor]++;
    for (size_t g = 0; g < p->rounds->groups.n && status == 0; g++) {
        const struct actual_group *group = &p->rounds->groups.at[g];
        struct fused_times times = FUSED_NOTHING;
        for (uint32_t i = group->first; i < group->first + group->n; i++) {
            uint32_t run = p->rounds->runs.at[i];
            uint64_t name = lead->tensors.at[lead->runs.at[run].tensor].name + UINT64_C(1), tensor;
            if (!map_get(&tensors, name, &tensor) ||
                of.first[tensor] + place[run] >= of.first[tensor + 1])
                continue;
            fused_widen(&times, &own->runs.at[of.runs[of.first[tensor] + place[run]]]);
        }
        if (times.start_ns <= times.end_ns)
            p->actual[g] = times;
    }
    p->rank->fused.own_times = status == 0;
    map_fini(&tensors);
    free(seen);
    free(place);
    free(of.first);
    free(of.runs);
    return status;
}

/* ---- when a rank handed over its tensors ---- */

ORDER(by_ref, struct span_ref, ASCENDING(start_ns) ?: ASCENDING(span));

/* By string id: the place of the tensor that an op of that name, or of that node, hands over, + 1.
 */
static uint32_t *places_by_name(const struct placing *p)
{
    const struct strtab *names = &p->trace->names;
    const struct timeline *t = p->fusion->timeline;
    uint32_t *of = calloc(names->n + (size_t)1, sizeof *of);
    char text[512];
    for (uint32_t i = 0; of && i < p->fusion->n_tensors; i++) {
        uint32_t tensor = p->fusion->tensors[i], name = t->tensors.at[tensor].name;
        size_t len = strtab_len(names, name);
        static const char type[] = ":HorovodAllreduce";
        of[name] = i + 1;
        if (len + sizeof type > sizeof text)
            continue;
        memcpy(text, strtab_get(names, name), len);
        memcpy(text + len, type, sizeof type);
        uint32_t typed = strtab_find(names, text, len + sizeof type - 1);
        if (typed != STRTAB_FULL)
            of[typed] = i + 1;
    }
    return of;
}

static bool is_mxnets(const struct strtab *names, const struct trace_span *span)
{
    return strcmp(strtab_get(names, span->name), "horovod_allreduce") == 0;
}

/* What hands a tensor over without saying which: MXNet's ops; with PyTorch a hook that runs where
 * autograd has accumulated the tensor. */
static bool is_nameless(const struct strtab *names, const struct trace_span *span)
{
    return is_mxnets(names, span) ||
           strcmp(strtab_get(names, span->name),
                  "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad") == 0;
}

static int find_refs(struct placing *p)
{
    const struct trace_rank *rank = p->rank;
    uint32_t *place_of = places_by_name(p);
    size_t n = 0;
    if (!place_of)
        return -1;
    for (int pass = 0; pass < 2; pass++) {
        for (uint32_t i = 0; i < rank->n_spans; i++) {
            const struct trace_span *span = &rank->spans[i];
            uint32_t place = place_of[span->name];
            if (place == 0 && span->node < rank->n_dfg_nodes)
                place = place_of[rank->dfg_nodes[span->node].name];
            if (span->kind > SPAN_CPU_OP || (place == 0 && !is_nameless(&p->trace->names, span)))
                continue;
            if (pass == 0)
                n++;
            else
                p->refs[p->n_refs++] =
                    (struct span_ref){span->start_ns, i, place == 0 ? NO_ID : place - 1};
        }
        if (pass == 0 && !(p->refs = malloc((n + 1) * sizeof *p->refs)))
            break;
    }
    free(place_of);
    if (!p->refs)
        return -1;
    if (n > 1)
        qsort(p->refs, n, sizeof *p->refs, by_ref);
    return 0;
}

/* The times of a tensor in a round, as the rank had it; NULL: it is not in that round. */
static const struct fused_times *times_of(const struct placing *p, uint32_t round, uint32_t place)
{
    uint32_t group = p->cells[(size_t)round * p->fusion->n_tensors + place];
    return group == NO_ID ? NULL : &p->actual[group];
}

/* Named ones: the first round in which the tensor was reduced after that. Of two the later one:
 * what was handed over before it was reduced before the timeline began. */
static int take_named(const struct placing *p, uint32_t *enqueues)
{
    uint32_t n_tensors = p->fusion->n_tensors;
    uint32_t *next = calloc(n_tensors + (size_t)1, sizeof *next); /* by place: its next round */
    if (!next)
        return -1;
    for (size_t i = 0; i < p->n_refs; i++) {
        const struct span_ref *ref = &p->refs[i];
        if (ref->place == NO_ID)
            continue;
        for (; next[ref->place] < p->rounds->rounds.n; next[ref->place]++) {
            const struct fused_times *times = times_of(p, next[ref->place], ref->place);
            if (times && times->transferred_ns >= ref->start_ns)
                break;
        }
        if (next[ref->place] < p->rounds->rounds.n)
            enqueues[(size_t)next[ref->place] * n_tensors + ref->place] = ref->span;
    }
    free(next);
    return 0;
}

/* The length of a tensor's name without what Horovod appends to the tensors of a grouped call:
 * "_2of14". */
static size_t call_length(const char *name, size_t len)
{
    size_t at = len;
    while (at > 0 && isdigit((unsigned char)name[at - 1]))
        at--;
    if (at == len || at < 3 || memcmp(name + at - 2, "of", 2) != 0)
        return len;
    size_t digits = at -= 2;
    while (at > 0 && isdigit((unsigned char)name[at - 1]))
        at--;
    return at < digits && at > 1 && name[at - 1] == '_' ? at - 1 : len;
}

/* The places of a round's tensors in the order in which they were fused, and which call handed each
 * over: a grouped call does so for all of its tensors. Returns how many calls; -1: no memory. */
static int64_t list_calls(const struct placing *p, const struct actual_round *round,
                          uint32_t *places, uint32_t *calls)
{
    struct strtab *names = &p->trace->names;
    struct map seen = {0}; /* name + 1 -> call */
    int64_t n_calls = 0;
    size_t n = 0;
    int status = 0;
    for (uint32_t g = round->first; g < round->first + round->n; g++) {
        const struct actual_group *group = &p->rounds->groups.at[g];
        for (uint32_t m = group->first; m < group->first + group->n && status == 0; m++, n++) {
            uint32_t tensor = p->fusion->timeline->runs.at[p->rounds->runs.at[m]].tensor;
            uint32_t name = p->fusion->timeline->tensors.at[tensor].name;
            const char *text = strtab_get(names, name);
            uint64_t call = (uint64_t)n_calls;
            uint32_t prefix = strtab_add(names, text, call_length(text, strtab_len(names, name)));
            if (prefix == STRTAB_FULL)
                status = -1;
            else if (!map_get(&seen, prefix + UINT64_C(1), &call)) {
                status = map_set(&seen, prefix + UINT64_C(1), call);
                n_calls++;
            }
            places[n] = p->place_of[tensor];
            calls[n] = (uint32_t)call;
        }
    }
    map_fini(&seen);
    return status < 0 ? -1 : n_calls;
}

/* Nameless ones: as many as a round has tensors, or calls that hand over one or more; the k-th is
 * taken for the k-th in the order in which they were fused. */
static int take_nameless(const struct placing *p, uint32_t *enqueues)
{
    size_t i = 0;
    uint32_t *places = malloc((p->rounds->runs.n + 1) * sizeof *places);
    uint32_t *calls = malloc((p->rounds->runs.n + 1) * sizeof *calls);
    int status = places && calls ? 0 : -1;
    for (uint32_t r = 0; r < p->rounds->rounds.n && status == 0; r++) {
        const struct actual_round *round = &p->rounds->rounds.at[r];
        size_t first = i, n = 0, n_tensors = 0;
        int64_t last_ns = p->actual[round->first + round->n - 1].transferred_ns;
        int64_t n_calls = list_calls(p, round, places, calls);
        for (uint32_t g = round->first; g < round->first + round->n; g++)
            n_tensors += p->rounds->groups.at[g].n;
        while (i < p->n_refs && p->refs[i].start_ns <= last_ns)
            i++;
        bool one_each = i - first >= n_tensors;
        n = one_each ? n_tensors : (size_t)n_calls;
        if (n_calls < 0)
            status = -1;
        if (i - first > n) /* some are of rounds before the timeline began */
            first = i - n;
        if (i - first != n)
            continue;
        for (size_t k = 0; k < n_tensors && status == 0; k++)
            if (places[k] != NO_ID)
                enqueues[(size_t)r * p->fusion->n_tensors + places[k]] =
                    p->refs[first + (one_each ? k : calls[k])].span;
    }
    free(places);
    free(calls);
    return status;
}

/* MXNet's op lasts until the tensor is reduced, while its thread goes on: handing it over takes no
 * time that could be told. */
static void shorten_mxnets(const struct placing *p)
{
    enum { HANDING_OVER_NS = 1000 };
    for (size_t i = 0; i < p->n_refs; i++) {
        struct trace_span *span = &p->rank->spans[p->refs[i].span];
        if (is_mxnets(&p->trace->names, span) && span->dur_ns > HANDING_OVER_NS)
            span->dur_ns = HANDING_OVER_NS;
    }
}

/* ---- clocks ---- */

/* A profile whose times count from its own start is put on the timeline's clock: no tensor is
 * reduced before it was handed over, and some were at once. Which round the profile begins with is
 * not known: the one for which the waits differ least. */
static void put_on_clock(struct placing *p)
{
    enum { ENOUGH = 4096 };
    struct trace_rank *rank = p->rank;
    uint32_t n_rounds = (uint32_t)p->rounds->rounds.n;
    size_t n_refs = p->n_refs < ENOUGH ? p->n_refs : ENOUGH;
    double best_spread = -1;
    int64_t best_ns = 0;
    for (uint32_t first = 0; first < n_rounds; first++) {
        double sum = 0, squares = 0;
        int64_t least = INT64_MAX, first_wait = 0;
        size_t n = 0;
        for (size_t i = 0; i < n_refs; i++) {
            size_t round = first + i / p->fusion->n_tensors;
            uint32_t place = p->refs[i].place;
            if (round >= n_rounds)
                break;
            const struct fused_times *times =
                place == NO_ID ? NULL : times_of(p, (uint32_t)round, place);
            if (!times)
                continue;
            int64_t wait = times->start_ns - p->refs[i].start_ns;
            first_wait = n == 0 ? wait : first_wait;
            double ms = (double)(wait - first_wait) / 1e6; /* waits are decades, all alike */
            sum += ms;
            squares += ms * ms;
            least = wait < least ? wait : least;
            n++;
        }
        double spread = n > 0 ? squares / (double)n - sum / (double)n * (sum / (double)n) : 0;
        if (n * 2 > n_refs && (best_spread < 0 || spread < best_spread)) {
            best_spread = spread;
            best_ns = least;
        }
    }
    if (best_spread < 0 || best_ns > TRACE_TIME_MAX / 2 || best_ns < -TRACE_TIME_MAX / 2)
        return;
    rank_shift(rank, best_ns);
    for (size_t i = 0; i < p->n_refs; i++)
        p->refs[i].start_ns += best_ns;
}

/* ---- from the groups as they were fused to those of the graph ---- */

static int64_t share(int64_t ns, double part)
{
    return part >= 1 ? ns : (int64_t)((double)ns * part);
}

static int64_t length_of(const struct actual_group *group)
{
    const struct fused_times *times = &group->times;
    return times->end_ns > times->start_ns ? times->end_ns - times->start_ns : 1;
}

/* What the parts of a group of the graph add up to in a round. */
struct parts {
    uint32_t n;
    struct fused_times sums; /* start_ns is not used; the others: how long until then */
};

/* Gives a group of the graph the part of an actual one from one fraction of its length to another.
 */
static void add_part(struct parts *parts, struct fused_times *group, const struct fused_times *t,
                     double from, double to)
{
    double of = to - from;
    parts->n++;
    parts->sums.transfer_ns += share(t->transfer_ns - t->start_ns, of);
    parts->sums.transferred_ns += share(t->transferred_ns - t->transfer_ns, of);
    parts->sums.out_ns += share(t->out_ns - t->transferred_ns, of);
    parts->sums.end_ns += share(t->end_ns - t->out_ns, of);
    int64_t end_ns = t->start_ns + share(t->end_ns - t->start_ns, to);
    if (parts->n == 1 || end_ns > group->end_ns)
        group->end_ns = end_ns;
}

/* How long each group of the graph takes, on rank 0, in those rounds that fused as it does. */
static void find_usual_lengths(const struct placing *p, double *usual)
{
    const struct fusion *f = p->fusion;
    for (uint32_t r = 0; r < p->rounds->rounds.n; r++)
        for (uint32_t g = 0; g < f->n_groups && f->alike[r]; g++)
            usual[g] += (double)length_of(&p->rounds->groups.at[p->rounds->rounds.at[r].first + g]);
}

/* How much of its group's length each tensor of the graph stands for: by its size, where that is
 * known. */
static void find_weights(const struct placing *p, const double *usual, double *weights)
{
    const struct fusion *f = p->fusion;
    for (uint32_t g = 0; g < f->n_groups; g++) {
        const struct fused_group *group = &f->groups[g];
        double all = (double)group->numel + group->n; /* no tensor counts for nothing */
        for (uint32_t i = group->first; i < group->first + group->n; i++) {
            uint64_t numel = group->numel ? f->timeline->tensors.at[f->tensors[i]].numel : 0;
            weights[i] = usual[g] * ((double)numel + 1) / all;
        }
    }
}

/* By actual group: the weights of all its tensors, of those that were shared out, and of the group
 * of the graph at hand. */
struct sharing {
    double *usual, *weights; /* by group of the graph; by place */
    double *all, *done, *now;
};

static void sum_weights(const struct placing *p, const struct sharing *sharing)
{
    size_t n_cells = p->rounds->rounds.n * p->fusion->n_tensors;
    for (size_t i = 0; i < n_cells; i++)
        if (p->cells[i] != NO_ID)
            sharing->all[p->cells[i]] += sharing->weights[i % p->fusion->n_tensors];
}

/* What Horovod's thread did in a round is shared out among the groups of the graph, in its order.
 * Where a round fused otherwise, what a group took is those groups' whose tensors it had, for as
 * long as they usually take: so the thread was busy for as long as it was, when it was. In a round
 * of another order a group is over no earlier than those that the graph has before it. All ranks'
 * are cut at the same places, by rank 0's lengths. */
static void spread_round(const struct placing *p, uint32_t round, const struct sharing *sharing,
                         struct parts *parts, struct fused_times *groups)
{
    const struct fusion *f = p->fusion;
    const uint32_t *cells = p->cells + (size_t)round * f->n_tensors;
    for (uint32_t g = 0; g < f->n_groups; g++) {
        const struct fused_group *group = &f->groups[g];
        for (uint32_t i = group->first; i < group->first + group->n; i++)
            if (cells[i] != NO_ID)
                sharing->now[cells[i]] += sharing->weights[i];
        for (uint32_t i = group->first; i < group->first + group->n; i++) {
            double now = cells[i] == NO_ID ? 0 : sharing->now[cells[i]];
            if (now <= 0)
                continue; /* none, or with a tensor before */
            double *done = &sharing->done[cells[i]], all = sharing->all[cells[i]];
            add_part(&parts[g], &groups[g], &p->actual[cells[i]], *done / all, (*done + now) / all);
            *done += now;
            sharing->now[cells[i]] = 0;
        }
        if (g > 0 && parts[g].n > 0 && parts[g - 1].n > 0 &&
            groups[g].end_ns < groups[g - 1].end_ns)
            groups[g].end_ns = groups[g - 1].end_ns;
    }
}

/* Lays the groups of a round out so that each ends where its last part did, takes as long as its
 * parts together, and is over before the next begins. */
static void lay_out(const struct placing *p, struct fused_times *groups, struct parts *parts)
{
    int64_t next_ns = INT64_MAX;
    for (uint32_t g = p->fusion->n_groups; g-- > 0;) {
        const struct fused_times *sums = &parts[g].sums;
        groups[g].start_ns = NEVER;
        if (parts[g].n > 0) {
            groups[g].end_ns = groups[g].end_ns < next_ns ? groups[g].end_ns : next_ns;
            groups[g].out_ns = groups[g].end_ns - sums->end_ns;
            groups[g].transferred_ns = groups[g].out_ns - sums->out_ns;
            groups[g].transfer_ns = groups[g].transferred_ns - sums->transferred_ns;
            groups[g].start_ns = groups[g].transfer_ns - sums->transfer_ns;
            next_ns = groups[g].start_ns;
        }
        parts[g] = (struct parts){0};
    }
}

static int place_groups(struct placing *p)
{
    uint32_t n = p->fusion->n_groups;
    size_t n_actual = p->rounds->groups.n;
    struct parts *parts = calloc(n + (size_t)1, sizeof *parts);
    double *numbers = calloc(n + (size_t)p->fusion->n_tensors + 3 * n_actual + 1, sizeof *numbers);
    int status = parts && numbers ? 0 : -1;
    if (status == 0) {
        struct sharing sharing = {.usual = numbers, .weights = numbers + n};
        sharing.all = sharing.weights + p->fusion->n_tensors;
        sharing.done = sharing.all + n_actual;
        sharing.now = sharing.done + n_actual;
        find_usual_lengths(p, sharing.usual);
        find_weights(p, sharing.usual, sharing.weights);
        sum_weights(p, &sharing);
        for (uint32_t r = 0; r < p->rounds->rounds.n; r++) {
            struct fused_times *groups = p->groups + (size_t)r * n;
            spread_round(p, r, &sharing, parts, groups);
            lay_out(p, groups, parts);
        }
    }
    free(parts);
    free(numbers);
    return status;
}

/* ---- spans ---- */

struct names {
    uint32_t negotiate, copy_in, copy_out, callbacks, group, thread;
};

static int intern_names(struct dpro_trace *trace, struct names *names)
{
    const struct {
        uint32_t *id;
        const char *text;
    } all[] = {{&names->negotiate, "NEGOTIATE_ALLREDUCE"},
               {&names->copy_in, "MEMCPY_IN_FUSION_BUFFER"},
               {&names->copy_out, "MEMCPY_OUT_FUSION_BUFFER"},
               {&names->callbacks, "CALLBACKS"},
               {&names->group, "horovod"},
               {&names->thread, "Horovod thread"}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if ((*all[i].id = strtab_add(&trace->names, all[i].text, strlen(all[i].text))) ==
            STRTAB_FULL)
            return -1;
    return 0;
}

static void add_span(struct placing *p, uint8_t kind, uint32_t name, uint32_t window,
                     int64_t start_ns, int64_t end_ns, uint32_t detail)
{
    struct trace_rank *rank = p->rank;
    rank->spans[rank->n_spans++] = (struct trace_span){
        .start_ns = start_ns,
        .dur_ns = end_ns > start_ns ? end_ns - start_ns : 0,
        .name = name,
        .track = rank->n_tracks - 1,
        .sequence = -1,
        .detail = detail,
        .kind = kind,
        .window = (uint16_t)window,
        .parent = NO_ID,
        .node = NO_ID,
    };
    rank->tracks[rank->n_tracks - 1].n++;
}

static uint32_t add_detail(struct placing *p, const struct names *names,
                           const struct fused_group *group, int64_t sequence)
{
    struct trace_rank *rank = p->rank;
    rank->details[rank->n_details] = (struct trace_detail){
        .numel = group ? group->numel : 0,
        .dtype = group ? group->dtype : 0,
        .process_group = names->group,
        .peer = -1,
        .comm_sequence = sequence,
        .wait_stream = -1,
    };
    return rank->n_details++;
}

/* When the last of a group's tensors was handed over; NEVER: not known. */
static int64_t last_enqueue(const struct placing *p, uint32_t round, uint32_t group)
{
    const struct fused_group *g = &p->fusion->groups[group];
    const uint32_t *enqueues = p->rank->fused.enqueues + (size_t)round * p->fusion->n_tensors;
    int64_t last_ns = NEVER;
    for (uint32_t i = g->first; i < g->first + g->n; i++) {
        uint32_t span = enqueues[i];
        if (span == NO_ID)
            continue;
        int64_t end = p->rank->spans[span].start_ns + p->rank->spans[span].dur_ns;
        last_ns = end > last_ns ? end : last_ns;
    }
    return last_ns;
}

static uint32_t window_at(const struct trace_rank *rank, int64_t time_ns)
{
    for (uint32_t w = 0; w < rank->n_windows; w++)
        if (rank->windows[w].start_ns <= time_ns && time_ns <= rank->windows[w].end_ns)
            return w;
    return NO_ID;
}

static void add_spans(struct placing *p, const struct names *names)
{
    const struct fusion *f = p->fusion;
    struct trace_rank *rank = p->rank;
    int64_t free_ns = NEVER;
    rank->fused.track = rank->n_tracks;
    rank->tracks[rank->n_tracks++] = (struct trace_track){.serial = true,
                                                          .pid = rank->pid,
                                                          .id = rank->n_tracks,
                                                          .name = names->thread,
                                                          .first = rank->n_spans};
    for (uint32_t r = 0; r < p->rounds->rounds.n; r++)
        for (uint32_t g = 0; g < f->n_groups; g++) {
            const struct fused_times *t = &p->groups[(size_t)r * f->n_groups + g];
            const struct fused_group *group = &f->groups[g];
            uint32_t window = t->start_ns == NEVER ? NO_ID : window_at(rank, t->start_ns);
            if (window == NO_ID)
                continue;
            int64_t ready = last_enqueue(p, r, g), sequence = fusion_sequence(f, r, g);
            if (ready == NEVER || ready > t->start_ns)
                ready = t->start_ns;
            if (ready < free_ns)
                ready = free_ns < t->start_ns ? free_ns : t->start_ns;
            /* of two spans that begin together the longer one would come first */
            int64_t start = ready < t->start_ns ? t->start_ns : t->start_ns + 1;
            int64_t transfer = start < t->transfer_ns ? t->transfer_ns : start;
            add_span(p, SPAN_ANNOTATION, names->negotiate, window, ready, start,
                     add_detail(p, names, NULL, sequence));
            add_span(p, SPAN_CPU_OP, names->copy_in, window, start, transfer, NO_ID);
            add_span(p, SPAN_ANNOTATION, group->backend, window, transfer, t->transferred_ns,
                     add_detail(p, names, group, sequence + 1));
            add_span(p, SPAN_CPU_OP, names->copy_out, window, t->transferred_ns, t->out_ns, NO_ID);
            add_span(p, SPAN_CPU_OP, names->callbacks, window, t->out_ns, t->end_ns, NO_ID);
            free_ns = t->end_ns;
        }
    if (rank->tracks[rank->fused.track].n == 0) {
        rank->n_tracks--;
        rank->fused.track = NO_ID;
    }
}

/* ---- all of it ---- */

/* From when until when the rank was busy with each round. */
static int time_rounds(struct placing *p)
{
    struct fused_rank *fused = &p->rank->fused;
    uint32_t n = (uint32_t)p->rounds->rounds.n, n_groups = p->fusion->n_groups;
    fused->starts_ns = arena_array(&p->trace->arena, n, sizeof *fused->starts_ns);
    fused->ends_ns = arena_array(&p->trace->arena, n, sizeof *fused->ends_ns);
    if (!fused->starts_ns || !fused->ends_ns)
        return -1;
    for (uint32_t r = 0; r < n; r++) {
        fused->starts_ns[r] = fused->ends_ns[r] = NEVER;
        for (uint32_t i = 0; i < p->fusion->n_tensors; i++) {
            uint32_t span = fused->enqueues[(size_t)r * p->fusion->n_tensors + i];
            int64_t start = span == NO_ID ? NEVER : p->rank->spans[span].start_ns;
            if (start != NEVER && (fused->starts_ns[r] == NEVER || start < fused->starts_ns[r]))
                fused->starts_ns[r] = start;
        }
        for (uint32_t g = 0; g < n_groups; g++)
            if (p->groups[(size_t)r * n_groups + g].start_ns != NEVER)
                fused->ends_ns[r] = p->groups[(size_t)r * n_groups + g].end_ns;
    }
    fused->n_rounds = n;
    return 0;
}

static int place_rank(struct placing *p, int lead, const struct names *names)
{
    const struct rounds *rounds = p->rounds;
    size_t n_cells = rounds->rounds.n * p->fusion->n_tensors;
    uint32_t *enqueues = arena_array(&p->trace->arena, n_cells, sizeof *enqueues);
    p->actual = malloc((rounds->groups.n + 1) * sizeof *p->actual);
    p->groups = malloc((rounds->rounds.n * p->fusion->n_groups + 1) * sizeof *p->groups);
    if (!p->actual || !p->groups || !enqueues || find_refs(p) < 0)
        return -1;
    p->rank->fused.enqueues = enqueues;
    memset(enqueues, 0xFF, n_cells * sizeof *enqueues);
    for (size_t g = 0; g < rounds->groups.n; g++)
        p->actual[g] = rounds->groups.at[g].times;
    bool leads = p->rank->rank == lead;
    bool writes = p->rank->timeline && p->rank->timeline->writer == TIMELINE_HOROVOD;
    p->rank->fused.own_times = leads;
    if (!leads && (writes ? times_from_own(p) : times_from_logs(p, lead)) < 0)
        return -1;
    if (!rank_on_epoch(p->rank) && p->fusion->timeline->on_epoch)
        put_on_clock(p);
    if (take_named(p, enqueues) < 0)
        return -1;
    if (p->n_refs > 0 && p->refs[0].place == NO_ID && take_nameless(p, enqueues) < 0)
        return -1;
    shorten_mxnets(p);
    if (place_groups(p) < 0 || time_rounds(p) < 0)
        return -1;
    add_spans(p, names);
    return 0;
}

/* Where each tensor is, and in which actual group of each round: cells are no more than runs, since
 * rounds have all tensors. */
struct index {
    uint32_t *place_of, *cells;
};

static int make_index(const struct fusion *f, const struct rounds *rounds, struct index *index)
{
    size_t n_cells = rounds->rounds.n * f->n_tensors;
    index->place_of = malloc((f->timeline->tensors.n + 1) * sizeof *index->place_of);
    index->cells = malloc((n_cells + 1) * sizeof *index->cells);
    if (!index->place_of || !index->cells)
        return -1;
    memset(index->place_of, 0xFF, f->timeline->tensors.n * sizeof *index->place_of);
    memset(index->cells, 0xFF, n_cells * sizeof *index->cells);
    for (uint32_t g = 0; g < f->n_groups; g++)
        for (uint32_t i = f->groups[g].first; i < f->groups[g].first + f->groups[g].n; i++)
            index->place_of[f->tensors[i]] = i;
    for (size_t r = 0; r < rounds->rounds.n; r++) {
        const struct actual_round *round = &rounds->rounds.at[r];
        for (uint32_t g = round->first; g < round->first + round->n; g++)
            for (uint32_t i = 0; i < rounds->groups.at[g].n; i++) {
                uint32_t run = rounds->runs.at[rounds->groups.at[g].first + i];
                uint32_t place = index->place_of[f->timeline->runs.at[run].tensor];
                if (place != NO_ID)
                    index->cells[r * f->n_tensors + place] = g;
            }
    }
    return 0;
}

static int place_ranks(struct dpro_trace *trace, const struct rounds *rounds, int lead)
{
    struct names names;
    struct index index = {NULL, NULL};
    int status = intern_names(trace, &names);
    if (status == 0)
        status = make_index(trace->fusion, rounds, &index);
    for (uint32_t r = 0; r < trace->n_ranks && status == 0; r++) {
        struct placing p = {.trace = trace,
                            .fusion = trace->fusion,
                            .rounds = rounds,
                            .rank = &trace->ranks[r],
                            .place_of = index.place_of,
                            .cells = index.cells};
        status = place_rank(&p, lead, &names);
        free(p.actual);
        free(p.groups);
        free(p.refs);
    }
    free(index.place_of);
    free(index.cells);
    return status;
}

#define STEP_MARK "ProfilerStep#"

/* When the rank's iterations began, as the job marked them or dpro's recorder timed them. */
static int find_marks(const struct dpro_trace *trace, const struct trace_rank *rank,
                      mark_array *marks)
{
    int status = 0;
    if (!rank_on_epoch(rank) || !rank->timeline->on_epoch)
        return 0; /* of two clocks */
    for (size_t s = 0; rank->recording && s < rank->recording->steps.n && status == 0; s++)
        status = array_push(marks, rank->recording->steps.at[s].start_ns);
    for (uint32_t s = 0; s < rank->n_spans && !rank->recording && status == 0; s++)
        if (rank->spans[s].kind == SPAN_STEP ||
            (rank->spans[s].kind == SPAN_ANNOTATION &&
             strncmp(strtab_get(&trace->names, rank->spans[s].name), STEP_MARK,
                     strlen(STEP_MARK)) == 0))
            status = array_push(marks, rank->spans[s].start_ns);
    return status;
}

int fusion_build(struct dpro_trace *trace, const struct dpro_sink *sink)
{
    const struct timeline *timeline = NULL;
    struct rounds rounds = {0};
    mark_array marks = {0};
    int lead = -1, status = 0;
    for (uint32_t r = 0; r < trace->n_ranks; r++) {
        trace->ranks[r].fused.track = NO_ID;
        if (!timeline && trace->ranks[r].timeline &&
            trace->ranks[r].timeline->writer == TIMELINE_HOROVOD) {
            timeline = trace->ranks[r].timeline;
            lead = trace->ranks[r].rank;
            status = find_marks(trace, &trace->ranks[r], &marks);
        }
    }
    if (!timeline)
        return 0;
    if (status == 0)
        status = rounds_find(timeline, &trace->names, &marks, &rounds, &trace->fusion);
    if (status == 0 && trace->fusion) {
        status = place_ranks(trace, &rounds, lead);
        if (status == 0)
            status = fused_find_messages(trace, &rounds, lead);
        log_line(sink, DPRO_LOG_DEBUG,
                 "Horovod: %u tensors in %u groups; %u of %u rounds fused the same",
                 trace->fusion->n_tensors, trace->fusion->n_groups, trace->fusion->n_alike,
                 trace->fusion->n_rounds);
    }
    rounds_fini(&rounds);
    array_fini(&marks);
    return status;
}
