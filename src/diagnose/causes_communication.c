/* What communication takes: buckets that wait, small messages, what transfers cost the computing
 * beside them, and all other transfers. */
#include "cost/program/cost.h"
#include "diagnose/causes.h"

#include "graph/names/names.h"

#include <float.h>

/* By collective: "dp all_reduce of bucket 2 of 3 (66.7 MB)", where it bears gradients; where there
 * are more than a few, all as one. */
static const char **collective_names(const struct dpro_graph *g, const bool *bears,
                                     struct arena *arena)
{
    enum { MOST_ALONE = 32 };
    const char **names = arena_array(arena, g->n_collectives + (size_t)1, sizeof *names);
    SCRATCH struct map counts = {0};
    for (int pass = 0; pass < 2; pass++)
        for (uint32_t c = 0; c < g->n_collectives; c++) {
            const struct graph_collective *of = &g->collectives[c];
            uint64_t first = of->n_members > 0 ? g->rank[g->members[of->first_member].arrival] : 0;
            uint64_t all = map_mix((uint64_t)of->dimension << 9 | of->kind << 1 | bears[c]) | 1;
            uint64_t own = map_mix(all + (first + 1) * 4 + (uint64_t)pass) | 1, most = 0;
            uint64_t number = map_add(&counts, own, 1);
            map_get(&counts, all, &most);
            if (pass == 0)
                map_set(&counts, all, MAX(most, number));
            bool in_one = of->dimension < g->n_dimensions;
            const char *dimension = in_one ? dpro_graph_dimension(g, of->dimension).name : "";
            names[c] =
                arena_format(arena, "%s%s%s%s", dimension, *dimension ? " " : "",
                             dpro_collective_kind_name(of->kind), bears[c] ? " of buckets" : "");
            if (pass == 0 || most > MOST_ALONE)
                continue;
            names[c] = arena_format(arena, "%.*s %llu of %llu", (int)strlen(names[c]) - bears[c],
                                    names[c], (unsigned long long)number, (unsigned long long)most);
            bool small = of->size_bytes < 100000;
            if (of->size_bytes > 0)
                names[c] =
                    arena_format(arena, "%s (%.*f %s)", names[c], 1,
                                 (double)of->size_bytes / (small ? 1e3 : 1e6), small ? "KB" : "MB");
        }
    return names;
}

/* By collective, whether it reduces gradients: those of its tensors, or as replicas do. */
static bool *find_buckets(const struct dpro_graph *g, struct arena *arena)
{
    bool *bears = arena_array(arena, g->n_collectives + (size_t)1, sizeof *bears);
    for (uint32_t t = 0; t < g->n_tensors; t++)
        if (g->tensors[t].collective < g->n_collectives)
            bears[g->tensors[t].collective] = true;
    for (uint32_t c = 0; c < g->n_collectives; c++) {
        const struct graph_collective *of = &g->collectives[c];
        bears[c] |= of->dimension < g->n_dimensions &&
                    g->dimensions[of->dimension].parallelism == DPRO_REPLICATES;
        bears[c] &= collective_is_one(of->kind, DPRO_ALL_REDUCE, DPRO_REDUCE_SCATTER);
    }
    return bears;
}

static bool is_sized(const struct diagnosed *d, uint32_t op)
{
    return is_timed(d, op) && size_of(d, op) > 0;
}

/* ---- buckets that wait for the backward pass ---- */

/* When a time of the replay is, mean over the iterations that count. */
static double mean_end(const struct diagnosed *d, uint32_t op)
{
    double ns = 0;
    for (uint32_t i = 0; i < d->n_iterations; i++)
        ns += (double)(d->copies[i].end_ns[op] - d->copies[0].end_ns[0]) / d->n_iterations;
    return ns;
}

/* A transfer of a rank that can begin at ready_ns. */
struct ready_transfer {
    double ready_ns, ns;
    uint32_t at; /* the caller's */
};
typedef ARRAY(struct ready_transfer) queue;
ORDER(by_readiness, struct ready_transfer, ASCENDING(ready_ns) ?: ASCENDING(at));

/* When the last of them is over, in order of readiness, where each takes `less_ns` less; `fused`:
 * all that are ready that much after the link is free go as one, which takes it once. */
static double queue_end(const queue *q, bool fused, double less_ns)
{
    double now = q->at[0].ready_ns;
    for (size_t i = 0, end; i < q->n; i = end) {
        now = MAX(now, q->at[i].ready_ns) + (fused ? less_ns : 0);
        double free = now;
        for (end = i; end == i || (fused && end < q->n && q->at[end].ready_ns <= free); end++)
            now += q->at[end].ns - less_ns;
    }
    return now;
}

/* What a rank computes in its last pass back, and of that what is over when it sends `first`. */
static double computed_back(const struct diagnosed *d, uint32_t first, double *before_ns)
{
    const struct dpro_graph *g = d->g;
    const struct graph_rank *rank = &g->ranks[g->rank[first]];
    double sent = mean_end(d, first), forward = -DBL_MAX, all = 0;
    *before_ns = 0;
    for (int phase = DPRO_OP_FW; phase <= DPRO_OP_BW; phase++)
        for (uint32_t op = rank->first_op; op < rank->first_op + rank->n_ops; op++) {
            if (d->works[op] != WORK_COMPUTE || g->phase[op] != phase)
                continue;
            double end = mean_end(d, op);
            if (phase == DPRO_OP_FW) {
                forward = end < sent ? MAX(forward, end) : forward;
            } else if (end > forward) {
                all += (double)g->dur_ns[op];
                *before_ns += end <= sent ? (double)g->dur_ns[op] : 0;
            }
        }
    return all;
}

/* Of a rank's buckets, in order of sending, what could be hidden if each were sent when it is
 * ready: the first one last, all others evenly over the pass before. */
static double hidden_if_ready(const queue *buckets, double pass_ns)
{
    double all = 0, now = 0, ready = 0;
    for (size_t i = 0; i < buckets->n; i++)
        all += buckets->at[i].ns;
    for (size_t i = buckets->n; i-- > 0;) {
        ready += buckets->at[i].ns * pass_ns / all;
        now = MAX(now, ready) + buckets->at[i].ns;
    }
    return all - (now - pass_ns);
}

/* Gradients in several buckets, of which the first is sent only when nearly all of the backward
 * pass is over: as one that is ready last comes first, or as a hook holds them back. */
void find_bucket_order(const struct diagnosed *d, struct cause_found *found)
{
    SCRATCH_ARENA struct arena arena = {0};
    const struct dpro_graph *g = d->g;
    const uint32_t *collective = d->collective_of;
    double *share = arena_array(&arena, g->n_collectives + (size_t)1, sizeof *share);
    const bool *bears = find_buckets(g, &arena);
    const char **names = collective_names(g, bears, &arena);
    for (uint32_t r = 0; r < g->n_ranks; r++) {
        SCRATCH queue buckets = {0};
        double pass_ns, free = -DBL_MAX;
        for (uint32_t c = 0; c < g->n_collectives; c++) {
            const struct graph_collective *of = &g->collectives[c];
            uint32_t arrival = of->n_members > 1 ? g->members[of->first_member].arrival : 0;
            if (bears[c] && of->n_members > 1 && g->rank[arrival] == r)
                array_add(&buckets, .ready_ns = mean_end(d, arrival), .at = c);
        }
        if (buckets.n < 2)
            continue;
        array_sort(&buckets, by_readiness);
        const struct graph_collective *first = &g->collectives[buckets.at[0].at];
        double later = 0;
        double all = computed_back(d, g->members[first->first_member].arrival, &pass_ns);
        EACH (struct ready_transfer, bucket, buckets) {
            double end = mean_end(d, g->members[g->collectives[bucket->at].first_member].transfer);
            bucket->ns = MAX(end - MAX(bucket->ready_ns, free), 1);
            later += free > -DBL_MAX ? bucket->ns : 0;
            free = MAX(free, end);
        }
        double hidden = hidden_if_ready(&buckets, pass_ns);
        if (pass_ns < 0.95 * all || all <= 0)
            continue;
        for (size_t i = 1; i < buckets.n; i++)
            share[buckets.at[i].at] = MIN(hidden / later, 1);
    }
    for (uint32_t op = 0; op < g->n_ops; op++) {
        uint32_t c = collective[op] - 1;
        if (d->works[op] == WORK_TRANSFER && collective[op] > 0 && share[c] > 0)
            piece_share(found, d, op, found_part(found, map_text_key(names[c]), "%s", names[c]),
                        &share[c], true);
    }
}

/* ---- small messages ---- */

struct sized {
    uint64_t class;
    uint64_t bytes;
    double ns;
    uint32_t op;
};
ORDER(by_size, struct sized, ASCENDING(class) ?: ASCENDING(bytes) ?: ASCENDING(op));

/* What any transfer of a class takes, however small: of a line through all, a point as heavy as it
 * is short; and its standard error. */
static double latency_of(const struct sized *all, size_t n, double *ns_per_byte, double *std)
{
    double w = 0, x = 0, y = 0, xx = 0, xy = 0, least = all[0].ns, off = 0;
    for (size_t i = 0; i < n; i++) {
        double weight = 1 / (all[i].ns * all[i].ns), bytes = (double)all[i].bytes;
        w += weight;
        x += weight * bytes;
        y += weight * all[i].ns;
        xx += weight * bytes * bytes;
        xy += weight * bytes * all[i].ns;
        least = MIN(least, all[i].ns);
    }
    double below = w * xx - x * x;
    *ns_per_byte = below > 0 ? MAX((w * xy - x * y) / below, 0) : 0;
    double latency = (y - *ns_per_byte * x) / w;
    for (size_t i = 0; i < n; i++) {
        double its = (all[i].ns - latency - *ns_per_byte * (double)all[i].bytes) / all[i].ns;
        off += its * its / (double)MAX(n - 2, 1);
    }
    *std = below > 0 ? sqrt(off * xx / below) : INFINITY;
    return MIN(MAX(latency, 0), least);
}

static uint32_t arrival_of(const struct dpro_graph *g, uint32_t collective, uint32_t transfer)
{
    const struct graph_collective *of = &g->collectives[collective];
    uint32_t m = 0;
    while (m + 1 < of->n_members && g->members[of->first_member + m].transfer != transfer)
        m++;
    return g->members[of->first_member + m].arrival;
}

/* Of the latency of a rank's collectives, how much larger ones of the same bytes save: these are
 * fewer, but wait for the last of what they bear. */
static double share_saved(const struct diagnosed *d, uint32_t rank, const struct sized *all,
                          size_t n, const uint32_t *collective, double latency,
                          const struct pull *pull)
{
    SCRATCH queue q = {0};
    double first = DBL_MAX;
    for (size_t i = 0; i < n; i++) {
        uint32_t c = collective[all[i].op] - 1;
        if (d->g->rank[all[i].op] != rank || collective[all[i].op] == 0 ||
            d->g->collectives[c].n_messages > 0)
            continue;
        double ready = -DBL_MAX;
        EACH_OF (const struct graph_member, m, &d->g->members[d->g->collectives[c].first_member],
                 d->g->collectives[c].n_members)
            for (uint32_t e = pull->row[m->arrival]; e < pull->row[m->arrival + 1]; e++) {
                uint32_t p = pull->pred[e];
                if (d->g->kind[p] < DPRO_OP_IN && d->g->device[p] != d->g->device[m->transfer])
                    ready = MAX(ready, mean_end(d, p));
            }
        first = MIN(first, mean_end(d, arrival_of(d->g, c, all[i].op)));
        array_add(&q, .ready_ns = ready, .ns = MAX(all[i].ns, latency));
    }
    if (q.n < 2)
        return 1;
    EACH (struct ready_transfer, one, q)
        one->ready_ns = MAX(one->ready_ns, first);
    array_sort(&q, by_readiness);
    double best = queue_end(&q, true, latency), low = 0, high = 1;
    for (int i = 0; i < 20; i++) { /* without that share of the latency it ends as early */
        double middle = (low + high) / 2;
        bool later = queue_end(&q, false, middle * latency) > best;
        low = later ? middle : low;
        high = later ? high : middle;
    }
    return high;
}

/* Transfers that their size does not explain, but that there are many. */
void find_small_messages(const struct diagnosed *d, struct cause_found *found)
{
    enum { LEAST = 4, SIZES_APART = 4, MANY = 32 };
    SCRATCH_ARENA struct arena arena = {0};
    const struct dpro_graph *g = d->g;
    const uint32_t *collective = d->collective_of;
    SCRATCH ARRAY(struct sized) all = {0};
    double *saved = arena_array(&arena, g->n_ranks + (size_t)1, sizeof *saved);
    struct pull pull = pull_make(g->n_ops, g->row, g->succ, &arena);
    size_t most_alike = 0;
    bool told = false;
    for (uint32_t op = 0; op < g->n_ops; op++) {
        if (!is_sized(d, op))
            continue;
        const struct graph_collective *c =
            collective[op] ? &g->collectives[collective[op] - 1] : NULL;
        bool of_messages = c && c->n_messages > 0 && !graph_is_of_message(g, op);
        double ns = 0;
        for (uint32_t i = 0; i < d->n_iterations; i++)
            ns += (double)left_of(d, i, op, false) / d->n_iterations;
        if (!of_messages && ns > 0)
            array_add(&all,
                      map_mix(g->kind[op] * 256 + (g->dimension ? g->dimension[op] : 0)) ^
                          (c ? c->kind * UINT64_C(65537) + c->n_members : 0),
                      g->size_bytes[op], ns, op);
    }
    array_sort(&all, by_size);
    for (size_t i = 0, end; i < all.n; i = end) {
        end = RUN_END(k, i, all.n, all.at[k].class == all.at[i].class);
        most_alike = MAX(most_alike, end - i);
        double rate, std, latency = latency_of(all.at + i, end - i, &rate, &std);
        if (end - i < LEAST || (all.at[end - 1].bytes < SIZES_APART * all.at[i].bytes &&
                                (end - i < MANY || std > latency / 10)))
            continue;
        told = true;
        for (uint32_t r = 0; r < g->n_ranks; r++)
            saved[r] = share_saved(d, r, all.at + i, end - i, collective, latency, &pull);
        for (size_t k = i; k < end; k++) {
            const struct sized *s = &all.at[k];
            double called = collective[s->op] ? saved[g->rank[s->op]] : 1;
            double share = latency / s->ns * called;
            if (3 * latency < rate * (double)s->bytes)
                continue;
            uint32_t part = found_part(found, map_key(s->bytes), "transfers of %llu bytes",
                                       (unsigned long long)s->bytes);
            piece_share(found, d, s->op, part, &share, true);
            uint32_t arrival = collective[s->op] ? arrival_of(g, collective[s->op] - 1, s->op) : 0;
            for (uint32_t e = pull.row[arrival]; collective[s->op] && e < pull.row[arrival + 1];
                 e++)
                if (g->kind[pull.pred[e]] == DPRO_OP_LAUNCH &&
                    d->works[pull.pred[e]] == WORK_TRANSFER)
                    piece_share(found, d, pull.pred[e], part, &called, true);
        }
    }
    if (most_alike > MANY && !told)
        found->needs =
            "All transfers are of nearly one size: record the job with other buckets, too, to "
            "see what each transfer takes whatever its size.";
}

/* ---- what transfers do to computing ---- */

/* From then on computing loses this much of its rate more, or less. */
struct rate_change {
    int64_t at_ns;
    double rate, lost_ns; /* summed: the rate from then on; what was lost until then */
};
typedef ARRAY(struct rate_change) rate_changes;
ORDER(by_time, struct rate_change, ASCENDING(at_ns));

/* The bytes on its rank's link for which a transfer stands; of a ring's messages those sent. */
static double link_bytes(const struct dpro_graph *g, uint32_t op, uint32_t collective)
{
    const struct graph_collective *c = collective > 0 ? &g->collectives[collective - 1] : NULL;
    double share = 1;
    if (c && c->n_messages > 0)
        share = graph_is_of_message(g, op) && g->kind[op] != DPRO_OP_RECV;
    else if (c)
        share = communication_traffic(c->kind, NULL, MAX(c->n_expected, c->n_members)).share;
    return share * (double)g->size_bytes[op];
}

static void sum_losses(rate_changes *changes)
{
    const double most = 0.9; /* both at once take no longer than one after the other, nearly */
    double rate = 0, lost_ns = 0;
    array_sort(changes, by_time);
    for (size_t i = 0; i < changes->n; i++) {
        struct rate_change *change = &changes->at[i];
        if (i > 0)
            lost_ns += change[-1].rate * (double)(change->at_ns - change[-1].at_ns);
        rate += change->rate;
        *change = (struct rate_change){change->at_ns, MAX(MIN(rate, most), 0), lost_ns};
    }
}

static double lost_until(const rate_changes *changes, int64_t ns)
{
    size_t after = LOWER_BOUND(i, (size_t)0, changes->n, changes->at[i].at_ns <= ns);
    if (after == 0)
        return 0;
    const struct rate_change *last = &changes->at[after - 1];
    return last->lost_ns + last->rate * (double)(ns - last->at_ns);
}

/* What the model learnt that a byte on the link costs computing, of the computing beside it. Where
 * batches are of uneven length, it may be their length that it learnt. */
void find_contention(const struct diagnosed *d, struct cause_found *found)
{
    const struct dpro_graph *g = d->g;
    double byte_ns = d->link_cpu_ns.value, half = HALF_OF_95_PCT * d->link_cpu_ns.std;
    bool shown = byte_ns > half && !work_moves(d);
    for (uint32_t r = 0; r < g->n_ranks && shown; r++) {
        uint32_t first = g->ranks[r].first_op, n = g->ranks[r].n_ops;
        int64_t *ns = arena_array(found->arena, (size_t)d->n_iterations * n + 1, sizeof *ns);
        SCRATCH rate_changes changes = {0};
        for (uint32_t i = 0; i < d->n_iterations; i++) {
            const struct replay_copy *copy = &d->copies[i];
            changes.n = 0;
            for (uint32_t op = first; op < first + n; op++) {
                int64_t end = copy->end_ns[op], took = copy->dur_ns[op];
                if (!is_sized(d, op) || took <= 0)
                    continue;
                double rate = byte_ns * link_bytes(g, op, d->collective_of[op]) / (double)took;
                array_add(&changes, end - took, rate, 0);
                array_add(&changes, end, -rate, 0);
            }
            sum_losses(&changes);
            for (uint32_t op = first; op < first + n; op++) {
                int64_t end = copy->end_ns[op], took = copy->dur_ns[op];
                if (d->works[op] == WORK_COMPUTE && took > 0)
                    ns[(size_t)(op - first) * d->n_iterations + i] =
                        llround((lost_until(&changes, end) - lost_until(&changes, end - took)) *
                                (double)left_of(d, i, op, false) / (double)took);
            }
        }
        for (uint32_t op = first; op < first + n && changes.n > 0; op++)
            if (d->works[op] == WORK_COMPUTE)
                array_add(&found->pieces, .op = op,
                          .part = found_part(found, r, "on rank %d", g->ranks[r].rank),
                          .ns = ns + (size_t)(op - first) * d->n_iterations);
    }
    if (shown)
        found->doubt = d->link_cpu_ns.std / byte_ns;
    else if (byte_ns > 0)
        found->needs = arena_format(
            found->arena,
            "Computing may lose %.1f +- %.1f ns for each byte on the link, which is too unsure to "
            "be blamed (what-ifs include it). Record batches of one length, in which the same "
            "modules compute both with and without communication beside them.",
            byte_ns, half);
}

/* ---- all other transfers ---- */

void find_communication(const struct diagnosed *d, struct cause_found *found)
{
    SCRATCH_ARENA struct arena arena = {0};
    const struct dpro_graph *g = d->g;
    const uint8_t *work = d->works;
    const char **names = collective_names(g, find_buckets(g, &arena), &arena);
    for (uint32_t time = 0; time < 2 * g->n_ops; time++) {
        uint32_t op = time % g->n_ops;
        if (work[time] != WORK_TRANSFER)
            continue;
        const char *name = d->collective_of[op] > 0        ? names[d->collective_of[op] - 1]
                           : g->kind[op] == DPRO_OP_LAUNCH ? strtab_get(&g->names, g->name[op])
                                                           : dpro_op_kind_name(g->kind[op]);
        piece_all(found, op, time >= g->n_ops,
                  found_part(found, map_text_key(name), "%.200s", name));
    }
    if (g->n_ranks < g->world_size)
        found->title = arena_format(
            found->arena, "communication or waiting: %u of %u ranks can't tell them apart",
            g->n_ranks, g->world_size);
    if (found->pieces.n == 0 && g->world_size > 1)
        found->needs =
            "No communication was recognised in most iterations, so it counts as computing "
            "or as gaps: record all ranks with the framework's own profiler.";
}
