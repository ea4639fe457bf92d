/* cost/fit.c: what communicating costs, learnt from the trace's own messages and ops. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "cost/cost.h"

/* Where a trace cannot tell what communicating costs computation that shares its cores: TCP and
 * adding up, the kernel's work included. Six recordings that could tell took 1.1 to 5.4 ns a byte,
 * those with two ranks on a core the most: 2.7 in the mean, with a standard deviation of 1.7. The
 * width lets what a trace shows outweigh it. */
static const struct dpro_estimate TCP_CPU_NS = {2.5, 2};
/* TensorFlow's ring goes by gRPC: on a link of 10 Gbit/s, which it does not fill, a byte took a
 * core 4.2 ns, sending, receiving and adding up. */
static const struct dpro_estimate GRPC_CPU_NS = {4.2, 2};
/* And on hosts of one core each, a pack took twice as long while gradients were still computed. */
static const struct dpro_estimate GRPC_HELD_SHARE = {0.4, 0.2};

/* What a message takes beside its bytes, where a trace cannot tell: two system calls, the network's
 * stack at both ends, a thread that wakes up, and half a round trip in a local network are 50 to
 * 200 us; on recordings that tell it was 0 to 430. NCCL's proxies don't sleep. */
static const struct dpro_estimate TCP_MESSAGE_NS = {100e3, 100e3};
static const struct dpro_estimate PROXY_MESSAGE_NS = {20e3, 20e3};
/* Short messages pass a link's rate limiter in bursts, or queue: what their bytes take is that
 * unsure.
 */
#define BURST_SHARE 0.3

/* What DDP's communication hook costs computation beside the launch of a collective, for each
 * bucket: Python is entered from the backward pass, the bucket divided by an op of its own, and a
 * future handed back. With gloo on CPUs a whole bucket took the thread 200 us, 50 of which are the
 * launch, and a callback follows on gloo's thread. Of GPUs, whose CPU mostly runs ahead, nothing is
 * known. */
static const struct dpro_estimate HOOK_NS = {150e3, 75e3};

/* What casting a byte of a bucket to 16 bits and back costs on a CPU: 0.2 ns where the memory for
 * the cast bucket is at hand, 1.7 where the kernel has to give it (one machine, 1 to 20 MB); and
 * gloo adds up 16-bit numbers slower than others, by 0 to 0.4 ns. */
static const struct dpro_estimate CPU_CAST_NS = {0.6, 0.5};

/* What it takes a transfer to start beside computation on its cores: 1 MB took 2 to 15 ms longer
 * there, on a link of 1 Gbit/s that 5 MB filled all the same. */
static const struct dpro_estimate HELD_START_NS = {5e6, 5e6};

struct point {
    double x, y, weight;
    double held; /* how much of x there was while the rank computed */
};

/* The mean of the prior and of what was seen, each by how sure it is. */
static struct dpro_estimate combine(struct dpro_estimate prior, struct dpro_estimate seen)
{
    double a = 1 / (prior.std * prior.std), b = 1 / (seen.std * seen.std);
    return (struct dpro_estimate){(a * prior.value + b * fmax(0, seen.value)) / (a + b),
                                  1 / sqrt(a + b)};
}

static bool on_cpu(const struct dpro_graph *g)
{
    for (uint32_t d = 0; d < g->n_devices; d++)
        if (g->devices[d].kind == DPRO_DEVICE_GPU_STREAM)
            return false;
    return true;
}

/* Horovod's first agreement of all ranks on what to reduce next; NULL: the job is not its. */
static const struct graph_collective *find_negotiation(const struct dpro_graph *g)
{
    for (uint32_t j = 0; j < g->n_collectives; j++)
        if (strcmp(strtab_get(&g->names, g->collectives[j].name), "negotiate") == 0)
            return &g->collectives[j];
    return NULL;
}

static bool is_tensorflow_ring(const struct dpro_graph *g)
{
    return g->framework && strcmp(g->framework, "tensorflow") == 0 && g->n_servers == 0 &&
           !find_negotiation(g);
}

typedef ARRAY(struct point) point_array;

/* y = slope * x + base, both at least 0, by weighted least squares; with x all the same: through
 * the origin. */
static void fit_line(const point_array *points, struct dpro_estimate *slope,
                     struct dpro_estimate *base)
{
    double w = 0, x = 0, y = 0, xx = 0, xy = 0;
    for (size_t i = 0; i < points->n; i++) {
        const struct point *p = &points->at[i];
        w += p->weight;
        x += p->weight * p->x;
        y += p->weight * p->y;
    }
    *slope = *base = (struct dpro_estimate){0};
    if (w <= 0 || x <= 0)
        return;
    x /= w;
    y /= w;
    for (size_t i = 0; i < points->n; i++) {
        const struct point *p = &points->at[i];
        xx += p->weight * (p->x - x) * (p->x - x);
        xy += p->weight * (p->x - x) * (p->y - y);
    }
    bool spread = xx > w * x * x / 16;
    slope->value = spread ? xy / xx : y / x;
    base->value = y - slope->value * x;
    if (!spread || slope->value < 0 || base->value < 0) {
        slope->value = y / x;
        base->value = 0;
    }
    double rest = 0;
    for (size_t i = 0; i < points->n; i++) {
        double off = points->at[i].y - slope->value * points->at[i].x - base->value;
        rest += points->at[i].weight * off * off / w;
    }
    double n = points->n > 2 ? (double)points->n - 2 : 1;
    slope->std = sqrt(rest / n) / (spread ? sqrt(xx / w) : x);
    base->std = sqrt(rest / n);
}

/* y = slope * (x + k * held), for how much longer what is held up takes: *share = k / (1 + k) of
 * its rate is lost. False: the points don't tell that anything is. */
static bool fit_held(const point_array *points, struct dpro_estimate *slope,
                     struct dpro_estimate *share)
{
    enum { SURE = 2 }; /* standard errors */
    double xx = 0, xh = 0, hh = 0, xy = 0, hy = 0, starts = 0, rest = 0;
    for (size_t i = 0; i < points->n; i++) {
        const struct point *p = &points->at[i];
        double part = p->held / p->x, y = p->y - part * HELD_START_NS.value;
        xx += p->weight * p->x * p->x;
        xh += p->weight * p->x * p->held;
        hh += p->weight * p->held * p->held;
        xy += p->weight * p->x * y;
        hy += p->weight * p->held * y;
        starts += p->weight * p->held * part;
    }
    double det = xx * hh - xh * xh;
    if (points->n < 3 || det <= 1e-3 * xx * hh)
        return false;
    double alone = (xy * hh - hy * xh) / det, more = (hy * xx - xy * xh) / det;
    for (size_t i = 0; i < points->n; i++) {
        const struct point *p = &points->at[i];
        double off = p->y - alone * p->x - (more + HELD_START_NS.value / p->x) * p->held;
        rest += p->weight * off * off / ((double)points->n - 2);
    }
    double alone_std = sqrt(rest * hh / det);
    double more_std = hypot(sqrt(rest * xx / det), HELD_START_NS.std * starts / hh);
    if (alone <= SURE * alone_std || more <= SURE * more_std)
        return false;
    *slope = (struct dpro_estimate){alone, alone_std};
    double lost = more / (alone + more);
    double lost_std = more_std * alone / ((alone + more) * (alone + more));
    *share = (struct dpro_estimate){lost, fmax(lost_std, lost / 2)}; /* other buckets may differ */
    return true;
}

/* ---- messages ---- */

/* Bytes over one direction of a rank's link, of a byte of bucket. */
static double wire_share(const struct model_net *net)
{
    double n = net->collective.n_ranks;
    return net->collective.algorithm == MODEL_TREE ? 1 : 2 * (n - 1) / n;
}

/* A bucket's messages on one rank, from when all ranks had come to its last one. */
struct exchange {
    int64_t start_ns, end_ns;
    double size_bytes; /* on the link */
};

static int compare_exchanges(const void *a, const void *b)
{
    const struct exchange *x = a, *y = b;
    if (x->start_ns != y->start_ns)
        return x->start_ns < y->start_ns ? -1 : 1;
    return (x->end_ns > y->end_ns) - (x->end_ns < y->end_ns);
}

/* One point for each busy period in which a rank's link had a bucket to carry without a pause.
 * The rank computed until computed_ns. */
static int add_busy_periods(struct exchange *exchanges, size_t n, int64_t computed_ns,
                            point_array *points)
{
    qsort(exchanges, n, sizeof *exchanges, compare_exchanges);
    for (size_t i = 0, last; i < n; i = last) {
        int64_t end = exchanges[i].end_ns;
        double bytes = 0;
        for (last = i; last < n && exchanges[last].start_ns <= end; last++) {
            bytes += exchanges[last].size_bytes;
            end = exchanges[last].end_ns > end ? exchanges[last].end_ns : end;
        }
        double took = (double)(end - exchanges[i].start_ns);
        double beside = (double)(computed_ns - exchanges[i].start_ns);
        double share = took > 0 ? fmin(fmax(beside / took, 0), 1) : 0;
        struct point point = {bytes, took, 1 / (bytes + 1), share * bytes};
        if (array_push(points, point) < 0)
            return -1;
    }
    return 0;
}

/* When a rank had its last gradient. */
static int64_t last_ready(const struct measured_replay *r, const struct coarse *coarse,
                          const struct dpro_model *model, uint32_t copy, uint32_t rank)
{
    int64_t last = INT64_MIN / 2;
    for (uint32_t t = 0; t < model->n_tensors; t++) {
        uint32_t op = coarse->ready[(size_t)rank * model->n_tensors + t];
        if (op != DPRO_NO_OP && r->end_ns[copy][op] > last)
            last = r->end_ns[copy][op];
    }
    return last;
}

/* What a byte takes, from how long links had something to carry: single messages are measured by
 * when threads came to them, and what they wait for each other is theirs, too. And what such a
 * period takes beside its bytes. */
static int fit_bytes(const struct measured_replay *r, const struct coarse *coarse,
                     const struct dpro_model *model, struct model_net *net,
                     struct dpro_estimate *start)
{
    const struct dpro_graph *g = r->graph;
    point_array points = {0};
    struct exchange *exchanges = malloc((model->n_tensors + (size_t)1) * sizeof *exchanges);
    uint8_t *used = malloc((size_t)g->n_collectives + 1);
    int status = exchanges && used ? 0 : -1;
    for (uint32_t copy = r->first; copy < r->first + r->n && status == 0; copy++)
        for (uint32_t i = 0; i < g->n_ranks && status == 0; i++) {
            size_t n = 0;
            memset(used, 0, (size_t)g->n_collectives + 1);
            for (uint32_t t = 0; t < model->n_tensors; t++) {
                uint32_t bucket = coarse->bucket_of[t];
                const struct graph_collective *c = &g->collectives[bucket];
                if (used[bucket] || c->n_messages == 0 || c->barrier == DPRO_NO_OP)
                    continue;
                used[bucket] = 1;
                uint32_t transfer = g->members[c->first_member + i].transfer;
                exchanges[n++] = (struct exchange){r->end_ns[copy][c->barrier],
                                                   measured_start_ns(r, copy, transfer),
                                                   (double)c->size_bytes * wire_share(net)};
            }
            status = add_busy_periods(exchanges, n, last_ready(r, coarse, model, copy, i), &points);
        }
    if (status == 0)
        fit_line(&points, &net->link.byte_ns, start);
    if (status == 0 && !net->gate.negotiates)
        fit_held(&points, &net->link.byte_ns, &net->link.held_share);
    array_fini(&points);
    free(exchanges);
    free(used);
    return status;
}

/* What a message takes beside its bytes, from the small ones; and the largest there are. */
static void fit_messages(const struct dpro_graph *g, struct model_net *net)
{
    double sum = 0, squares = 0, bytes = 0, n = 0;
    for (uint32_t op = 0; op < g->n_ops; op++)
        if (g->kind[op] == DPRO_OP_RECV && g->size_bytes[op] > net->link.chunk_bytes)
            net->link.chunk_bytes = g->size_bytes[op];
    for (uint32_t op = 0; op < g->n_ops; op++) {
        if (g->kind[op] != DPRO_OP_RECV || g->size_bytes[op] == 0 ||
            g->size_bytes[op] > net->link.chunk_bytes / 2)
            continue;
        double rest = (double)g->dur_ns[op] - net->link.byte_ns.value * (double)g->size_bytes[op];
        sum += rest;
        squares += rest * rest;
        bytes += (double)g->size_bytes[op];
        n++;
    }
    net->link.message_ns = on_cpu(g) ? TCP_MESSAGE_NS : PROXY_MESSAGE_NS;
    if (n == 0)
        return;
    double variance = fmax(0, squares / n - sum / n * (sum / n));
    double unsure = BURST_SHARE * net->link.byte_ns.value * bytes / n;
    struct dpro_estimate seen = {sum / n, sqrt(variance / n + unsure * unsure) + 1};
    net->link.message_ns = combine(net->link.message_ns, seen);
}

/* Whether what is known of most bytes is their messages. */
static bool has_messages(const struct dpro_graph *g, const struct coarse *coarse,
                         const struct dpro_model *model)
{
    uint64_t all = 0, tied = 0;
    for (uint32_t t = 0; t < model->n_tensors; t++) {
        all += model->tensors[t].size_bytes;
        if (g->collectives[coarse->bucket_of[t]].n_messages > 0)
            tied += model->tensors[t].size_bytes;
    }
    return tied > all / 2;
}

/* A rank's buckets in an iteration, each from when all ranks had come to it until it was over. */
static size_t list_transfers(const struct measured_replay *r, const struct coarse *coarse,
                             const struct dpro_model *model, uint32_t copy, uint32_t rank,
                             struct exchange *exchanges, uint8_t *used)
{
    const struct dpro_graph *g = r->graph;
    size_t n = 0;
    memset(used, 0, (size_t)g->n_collectives + 1);
    for (uint32_t t = 0; t < model->n_tensors; t++) {
        uint32_t bucket = coarse->bucket_of[t];
        const struct graph_collective *c = &g->collectives[bucket];
        if (used[bucket] || c->size_bytes == 0 || rank >= c->n_members)
            continue;
        used[bucket] = 1;
        uint32_t transfer = g->members[c->first_member + rank].transfer;
        int64_t start_ns = c->n_messages > 0 && c->barrier != DPRO_NO_OP
                               ? r->end_ns[copy][c->barrier]
                               : measured_start_ns(r, copy, transfer);
        exchanges[n++] = (struct exchange){start_ns, r->end_ns[copy][transfer],
                                           (double)c->size_bytes * wire_share(&model->net)};
    }
    return n;
}

/* One point for each busy period in which a rank had collectives under way. *at_once: whether
 * together they took half as long again as there were some of them. */
static int see_transfers(const struct measured_replay *r, const struct coarse *coarse,
                         const struct dpro_model *model, point_array *points, bool *at_once)
{
    const struct dpro_graph *g = r->graph;
    double sum = 0, any = 0;
    struct exchange *exchanges = malloc((model->n_tensors + (size_t)1) * sizeof *exchanges);
    uint8_t *used = malloc((size_t)g->n_collectives + 1);
    int status = exchanges && used ? 0 : -1;
    for (uint32_t copy = r->first; copy < r->first + r->n && status == 0; copy++)
        for (uint32_t i = 0; i < g->n_ranks && status == 0; i++) {
            size_t n = list_transfers(r, coarse, model, copy, i, exchanges, used);
            for (size_t k = 0; k < n; k++)
                sum += (double)(exchanges[k].end_ns - exchanges[k].start_ns);
            status = add_busy_periods(exchanges, n, INT64_MIN / 2, points);
        }
    for (size_t i = 0; i < points->n; i++)
        any += points->at[i].y;
    *at_once = sum > 1.5 * any;
    free(exchanges);
    free(used);
    return status;
}

/* Collectives that nothing keeps from running at once share the wires: what they took together is
 * known, and not what each would have taken by itself. */
static int fit_at_once(const struct measured_replay *r, const struct coarse *coarse,
                       const struct dpro_model *model, struct model_net *net, bool *at_once)
{
    point_array points = {0};
    int status = see_transfers(r, coarse, model, &points, at_once);
    if (status == 0 && *at_once) {
        fit_line(&points, &net->link.byte_ns, &net->collective.overhead_ns);
        /* the ranks' cores held some of it up, and how much of it shows nowhere */
        net->link.byte_ns.std =
            fmax(net->link.byte_ns.std, GRPC_HELD_SHARE.value / 2 * net->link.byte_ns.value);
        net->link.message_ns = (struct dpro_estimate){0, net->collective.overhead_ns.std};
        net->gate.n_streams = model->n_tensors;
        net->gate.in_order = false;
    }
    array_fini(&points);
    return status;
}

/* Without messages: from whole collectives, each taken to have had the wires for itself. */
static int fit_collectives(const struct measured_replay *r, const struct coarse *coarse,
                           const struct dpro_model *model, struct model_net *net)
{
    const struct dpro_graph *g = r->graph;
    point_array points = {0};
    uint8_t *used = calloc((size_t)g->n_collectives + 1, 1);
    int status = used ? 0 : -1;
    for (uint32_t t = 0; t < model->n_tensors && status == 0; t++) {
        const struct graph_collective *c = &g->collectives[coarse->bucket_of[t]];
        if (used[coarse->bucket_of[t]]++ || c->size_bytes == 0)
            continue;
        for (uint32_t m = c->first_member; m < c->first_member + c->n_members && status == 0; m++) {
            double size = (double)c->size_bytes * wire_share(net);
            double took = (double)g->dur_ns[g->members[m].transfer];
            struct point point = {
                size, took + (c->n_messages > 0 ? (double)g->members[m].exchange_ns : 0), 1 / size,
                0};
            status = array_push(&points, point);
        }
    }
    fit_line(&points, &net->link.byte_ns, &net->link.message_ns);
    net->link.message_ns.value /= 2.0 * (net->collective.n_ranks - 1);
    net->link.message_ns.std /= 2.0 * (net->collective.n_ranks - 1);
    array_fini(&points);
    free(used);
    return status;
}

/* ---- computation beside communication ---- */

typedef ARRAY(double) value_array;

/* Stretches that are the same work: the part of its rate that it loses while something is on the
 * wires, and how sure that is. */
#define FAMILY_STD 0.1 /* works differ by that, however often they were seen */
struct family {
    double lost, weight; /* 1 / variance */
};
typedef ARRAY(struct family) family_array;

struct sighting {
    uint64_t key;
    double elapsed_ns;
    bool overlapped;
};

static int compare_sightings(const void *a, const void *b)
{
    const struct sighting *x = a, *y = b;
    if (x->key != y->key)
        return x->key < y->key ? -1 : 1;
    if (x->overlapped != y->overlapped)
        return x->overlapped ? 1 : -1;
    return (x->elapsed_ns > y->elapsed_ns) - (x->elapsed_ns < y->elapsed_ns);
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double quantile(const value_array *sorted, double fraction)
{
    return sorted->at[(size_t)((double)(sorted->n - 1) * fraction + 0.5)];
}

static double median_of(const struct sighting *sorted, size_t n)
{
    return (sorted[(n - 1) / 2].elapsed_ns + sorted[n / 2].elapsed_ns) / 2;
}

/* How much sightings differ, relative; of few it is taken to be a third at least. */
static double spread_of(const struct sighting *sorted, size_t n)
{
    enum { FEW = 5 };
    double lower = sorted[(n - 1) * 16 / 100].elapsed_ns;
    double upper = sorted[(n - 1) - (n - 1) * 16 / 100].elapsed_ns;
    double spread = (upper - lower) / 2 / median_of(sorted, n);
    return n < FEW && spread < 1 / 3.0 ? 1 / 3.0 : spread;
}

/* A rank's segments that are the same work (repeated blocks, and iterations), seen mostly with and
 * mostly without communication. */
static int compare_work(const struct measured_replay *r, const struct coarse_rank *rank,
                        family_array *families)
{
    enum { SHORT_NS = 100000 };
    ARRAY(struct sighting) seen = {0};
    int status = 0;
    for (size_t i = 0; i < r->n * rank->n_points && status == 0; i++) {
        const struct segment *s = &rank->segments[i];
        double share = s->elapsed_ns > 0 ? (double)s->overlapped_ns / (double)s->elapsed_ns : 0.5;
        uint64_t key = rank->family[i % rank->n_points];
        struct sighting sighting = {key, (double)s->elapsed_ns, share > 0.8};
        if (key != 0 && s->elapsed_ns > SHORT_NS && (share > 0.8 || share < 0.2))
            status = array_push(&seen, sighting);
    }
    if (seen.n > 0)
        qsort(seen.at, seen.n, sizeof *seen.at, compare_sightings);
    for (size_t i = 0, last; i < seen.n && status == 0; i = last) {
        size_t alone = 0;
        for (last = i; last < seen.n && seen.at[last].key == seen.at[i].key; last++)
            alone += !seen.at[last].overlapped;
        size_t beside = last - i - alone;
        if (alone == 0 || beside == 0)
            continue;
        double without = median_of(seen.at + i, alone);
        double with = median_of(seen.at + i + alone, beside);
        double a = spread_of(seen.at + i, alone) / sqrt((double)alone);
        double b = fmax(spread_of(seen.at + i + alone, beside), spread_of(seen.at + i, alone)) /
                   sqrt((double)beside);
        double std = 1.25 * hypot(a, b) * (without / with);
        status = array_push(families, ((struct family){1 - without / with,
                                                       1 / (std * std + FAMILY_STD * FAMILY_STD)}));
    }
    array_fini(&seen);
    return status;
}

static int compare_families(const void *a, const void *b)
{
    const struct family *x = a, *y = b;
    return (x->lost > y->lost) - (x->lost < y->lost);
}

/* The weighted median of the families, and its standard error: theirs, what they differ by, and
 * what they have in common. A median, as the first block of a model often is another work than it
 * seems. */
static struct dpro_estimate lost_share(family_array *families)
{
    static const double COMMON_STD = 0.06;
    double weights = 0, squares = 0, below = 0, scatter = 0;
    size_t middle = 0;
    qsort(families->at, families->n, sizeof *families->at, compare_families);
    for (size_t i = 0; i < families->n; i++) {
        weights += families->at[i].weight;
        squares += families->at[i].weight * families->at[i].weight;
    }
    while (middle + 1 < families->n && below + families->at[middle].weight < weights / 2)
        below += families->at[middle++].weight;
    double lost = families->at[middle].lost;
    for (size_t i = 0; i < families->n; i++)
        scatter += families->at[i].weight * (families->at[i].lost - lost) *
                   (families->at[i].lost - lost) / weights;
    double n = weights * weights / squares;
    double std = sqrt(1 / weights + 1.25 * 1.25 * scatter / n);
    return (struct dpro_estimate){lost, std + COMMON_STD};
}

/* How much slower work is while something is on the wires, from work seen both ways. Where little
 * was seen, what is usual counts more. */
static int fit_interference(const struct measured_replay *r, const struct coarse *coarse,
                            struct model_net *net)
{
    const struct dpro_graph *g = r->graph;
    family_array families = {0};
    bool cpu = on_cpu(g);
    int status = 0;
    for (uint32_t i = 0; i < g->n_ranks && status == 0; i++)
        status = compare_work(r, &coarse->ranks[i], &families);
    struct dpro_estimate usual = {0, 0.1 * net->link.byte_ns.value};
    if (cpu)
        usual = is_tensorflow_ring(g) ? GRPC_CPU_NS : TCP_CPU_NS;
    if (cpu && is_tensorflow_ring(g))
        net->link.held_share = GRPC_HELD_SHARE;
    net->link.cpu_ns = usual;
    if (families.n > 0 && status == 0) {
        struct dpro_estimate lost = lost_share(&families);
        struct dpro_estimate seen = {lost.value * net->link.byte_ns.value,
                                     lost.std * net->link.byte_ns.value};
        net->link.cpu_ns = combine(usual, seen);
    }
    array_fini(&families);
    return status;
}

/* ---- the rest ---- */

/* Calls that ask for a bucket's collective. The median, as the thread that calls loses its core in
 * some of them to those that it wakes. */
static int fit_launches(const struct measured_replay *r, const struct coarse *coarse,
                        const struct dpro_model *model, struct model_net *net)
{
    const struct dpro_graph *g = r->graph;
    uint8_t *arrives = calloc((size_t)g->n_ops + 1, 1);
    value_array calls = {0};
    int status = 0;
    if (!arrives)
        return -1;
    for (uint32_t t = 0; t < model->n_tensors && g->n_collectives > 0; t++) {
        const struct graph_collective *c = &g->collectives[coarse->bucket_of[t]];
        for (uint32_t m = c->first_member; m < c->first_member + c->n_members; m++)
            arrives[g->members[m].arrival] = 1;
    }
    for (uint32_t op = 0; op < g->n_ops && status == 0; op++) {
        bool asks = false;
        for (uint32_t e = g->row[op]; e < g->row[op + 1]; e++)
            asks |= arrives[g->succ[e]];
        if (asks && g->kind[op] == DPRO_OP_LAUNCH && g->device[op] != DPRO_NO_DEVICE)
            status = array_push(&calls, (double)g->dur_ns[op]);
    }
    free(arrives);
    if (calls.n > 0 && status == 0) {
        qsort(calls.at, calls.n, sizeof *calls.at, compare_doubles);
        double spread = (quantile(&calls, 0.84) - quantile(&calls, 0.16)) / 2;
        double middle = quantile(&calls, 0.5), std = spread / sqrt((double)calls.n);
        net->compute.launch_ns = (struct dpro_estimate){middle, fmax(0.3 * middle, 1.25 * std)};
    }
    array_fini(&calls);
    return status;
}

static void choose_algorithm(const struct dpro_graph *g, const struct coarse *coarse,
                             struct model_net *net)
{
    static const struct {
        const char *pattern;
        enum model_algorithm algorithm;
    } known[] = {{"ring", MODEL_RING},
                 {"halving-doubling", MODEL_HALVING_DOUBLING},
                 {"tree", MODEL_TREE},
                 {"direct", MODEL_DIRECT},
                 {"parameter server", MODEL_SERVER}};
    const char *pattern = "parameter server";
    if (g->n_collectives > 0)
        pattern = g->collectives[coarse->bucket_of[0]].pattern;
    net->collective.algorithm = MODEL_RING;
    for (size_t i = 0; pattern && i < sizeof known / sizeof *known; i++)
        if (strcmp(pattern, known[i].pattern) == 0)
            net->collective.algorithm = known[i].algorithm;
}

/* Threads that run a rank's collectives: gloo has two, of which a job with one bucket shows one. A
 * GPU stream is one, Horovod has one, and in TensorFlow a token goes from one to the next. */
static uint32_t count_streams(const struct dpro_graph *g)
{
    enum { GLOO_THREADS = 2 };
    uint32_t n = 0;
    if (find_negotiation(g) || is_tensorflow_ring(g))
        return 1;
    for (uint32_t d = 0; d < g->n_devices; d++)
        n +=
            g->devices[d].kind == DPRO_DEVICE_COMM_THREAD && g->devices[d].rank == g->ranks[0].rank;
    return n == 0 ? 1 : n < GLOO_THREADS ? GLOO_THREADS : n;
}

/* What Horovod's thread does for a bucket beside its transfer, where its cycles are not known:
 * waits for one and for all ranks to agree, copies it in and out, and tells the framework. And what
 * of a transfer its bytes and messages don't explain. */
static void fit_fusion(const struct dpro_graph *g, const struct coarse *coarse,
                       const struct dpro_model *model, double start_ns, struct model_net *net)
{
    const struct graph_collective *negotiation = find_negotiation(g);
    double all = 0, transfers = 0, n = 0;
    for (uint32_t m = 0; negotiation && m < negotiation->n_members; m++) {
        uint32_t device = g->device[g->members[negotiation->first_member + m].transfer];
        for (uint32_t op = 0; op < g->n_ops; op++)
            all += g->device[op] == device ? (double)g->dur_ns[op] : 0;
    }
    for (uint32_t t = 0; negotiation && t < model->n_tensors; t++) {
        const struct graph_collective *c = &g->collectives[coarse->bucket_of[t]];
        bool first = true;
        for (uint32_t k = 0; k < t && first; k++)
            first = coarse->bucket_of[k] != coarse->bucket_of[t];
        for (uint32_t m = c->first_member; first && m < c->first_member + c->n_members; m++) {
            if (c->n_messages == 0)
                transfers += (double)g->dur_ns[g->members[m].transfer];
            n++;
        }
    }
    start_ns -= 2 * (net->collective.n_ranks - 1.0) * net->link.message_ns.value;
    double rest = (n > 0 && all > transfers ? (all - transfers) / n : 0) + fmax(start_ns, 0);
    net->collective.overhead_ns = (struct dpro_estimate){rest, 0.3 * rest};
}

/* What TensorFlow's ring takes beside its messages is copying and adding up, by the byte, as far as
 * sizes don't tell: jobs have one pack as a rule, and cut in many it takes no longer. */
static int fit_packs(const struct measured_replay *r, const struct coarse *coarse,
                     const struct dpro_model *model, struct model_net *net)
{
    const struct dpro_graph *g = r->graph;
    point_array points = {0};
    int status = 0;
    for (uint32_t t = 0; t < model->n_tensors && status == 0; t++) {
        const struct graph_collective *c = &g->collectives[coarse->bucket_of[t]];
        if (c->n_messages == 0 || (t > 0 && coarse->bucket_of[t] == coarse->bucket_of[t - 1]))
            continue;
        for (uint32_t m = c->first_member; m < c->first_member + c->n_members && status == 0; m++) {
            struct point point = {(double)c->size_bytes, (double)g->dur_ns[g->members[m].transfer],
                                  1, 0};
            status = array_push(&points, point);
        }
    }
    struct dpro_estimate slope = {0};
    if (points.n > 0)
        fit_line(&points, &slope, &net->collective.overhead_ns);
    if (net->collective.n_ranks > 1) { /* a rank adds up (n - 1) / n of a bucket */
        double share = (net->collective.n_ranks - 1.0) / net->collective.n_ranks;
        net->collective.reduce_ns = (struct dpro_estimate){slope.value / share, slope.std / share};
    }
    array_fini(&points);
    return status;
}

/* What a collective takes beside its messages: until its thread runs, and after the last message.
 */
static void fit_overhead(const struct measured_replay *r, const struct coarse *coarse,
                         const struct dpro_model *model, double start_ns, struct model_net *net)
{
    const struct dpro_graph *g = r->graph;
    double sum = 0, squares = 0, n = 0;
    for (uint32_t t = 0; t < model->n_tensors; t++) {
        const struct graph_collective *c = &g->collectives[coarse->bucket_of[t]];
        if (c->n_messages == 0 || (t > 0 && coarse->bucket_of[t] == coarse->bucket_of[t - 1]))
            continue;
        for (uint32_t m = c->first_member; m < c->first_member + c->n_members; m++) {
            double ns = (double)g->dur_ns[g->members[m].transfer];
            if (g->gap_ns)
                ns += (double)g->gap_ns[g->members[m].transfer] +
                      (double)g->gap_ns[g->members[m].arrival];
            sum += ns;
            squares += ns * ns;
            n++;
        }
    }
    if (n == 0 || find_negotiation(g)) {
        fit_fusion(g, coarse, model, start_ns, net);
        return;
    }
    double variance = squares / n - sum / n * (sum / n);
    net->collective.overhead_ns =
        (struct dpro_estimate){sum / n, sqrt(variance > 0 ? variance / n : 0)};
}

int fit_net(const struct measured_replay *r, struct coarse *coarse, struct dpro_model *model,
            struct dpro_error *err)
{
    const struct dpro_graph *g = r->graph;
    struct model_net *net = &model->net;
    net->collective.n_ranks = g->n_ranks;
    if (g->n_collectives > 0) /* with those not recorded */
        net->collective.n_ranks = g->collectives[coarse->bucket_of[0]].n_expected;
    net->collective.ranks_per_host = 1;
    net->gate.negotiates = find_negotiation(g) != NULL;
    net->gate.in_order = !net->gate.negotiates; /* what is ready goes */
    net->gate.n_streams = count_streams(g);
    choose_algorithm(g, coarse, net);
    if (net->collective.algorithm == MODEL_SERVER && fit_servers(r, coarse, model) < 0)
        return dpro_error_nomem(err);
    if (on_cpu(g))
        net->compute.hook_ns = HOOK_NS;
    bool served = net->collective.algorithm == MODEL_SERVER;
    bool messages = !served && has_messages(g, coarse, model);
    struct dpro_estimate start = {0};
    if (!served && (messages ? fit_bytes(r, coarse, model, net, &start)
                             : fit_collectives(r, coarse, model, net)) < 0)
        return dpro_error_nomem(err);
    if (messages)
        fit_messages(g, net);
    bool at_once = false; /* a session's collectives, which no token puts in order */
    if (is_tensorflow_ring(g) && !served && fit_at_once(r, coarse, model, net, &at_once) < 0)
        return dpro_error_nomem(err);
    bool in_turn = (net->gate.negotiates || is_tensorflow_ring(g)) && !at_once;
    int reductions = in_turn ? fit_reductions(r, coarse, model, net) : 0;
    if (reductions < 0 || fit_interference(r, coarse, net) < 0 ||
        fit_launches(r, coarse, model, net) < 0)
        return dpro_error_nomem(err);
    if (at_once) {
        net->link.held_share =
            (struct dpro_estimate){0, GRPC_HELD_SHARE.std}; /* is in what was seen */
    } else if (is_tensorflow_ring(g) && !reductions) {
        if (fit_packs(r, coarse, model, net) < 0)
            return dpro_error_nomem(err);
    } else if (!served && !reductions) {
        fit_overhead(r, coarse, model, start.value, net);
    }
    uint64_t bytes = 0;
    double copied = 0;
    for (uint32_t t = 0; t < model->n_tensors; t++)
        bytes += model->tensors[t].size_bytes;
    for (uint32_t i = 0; i < g->n_ranks; i++)
        copied += (double)coarse->ranks[i].copy_back_ns / g->n_ranks;
    net->compute.copy_ns.value = bytes ? copied / (double)bytes : 0;
    net->compute.copy_ns.std = 0.2 * net->compute.copy_ns.value;
    net->compute.cast_ns.value =
        net->compute.copy_ns.value > 0 ? 2 * net->compute.copy_ns.value : 0.2;
    net->compute.cast_ns.std = 0.5 * net->compute.cast_ns.value;
    if (on_cpu(g) && net->compute.cast_ns.value < CPU_CAST_NS.value)
        net->compute.cast_ns = CPU_CAST_NS;
    return 0;
}
