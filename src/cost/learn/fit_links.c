/* The time of a byte and of a message on a link, learnt from the trace's messages, or from whole
 * collectives where no messages are known. */

#include "cost/learn/fit.h"

/* Short messages pass a link's rate limiter in bursts, or queue: what their bytes take is that
 * unsure. */
#define BURST_SHARE 0.3

double fit_wire_share(const struct model_net *net)
{
    double n = net->collective.n_ranks;
    return net->collective.algorithm == MODEL_TREE ? 1 : 2 * (n - 1) / n;
}

ORDER(by_link, struct fit_busy, ASCENDING(link) ?: ASCENDING(start_ns) ?: ASCENDING(end_ns));

size_t fit_busy_periods(struct fit_busy *busy, size_t n, int64_t pause_ns)
{
    size_t n_periods = 0;
    qsort(busy, n, sizeof *busy, by_link);
    for (size_t i = 0; i < n; i++) {
        struct fit_busy *last = n_periods ? &busy[n_periods - 1] : NULL;
        if (last && last->link == busy[i].link && busy[i].start_ns <= last->end_ns + pause_ns) {
            last->bytes += busy[i].bytes;
            last->lost_ns += busy[i].lost_ns;
            last->end_ns = MAX(last->end_ns, busy[i].end_ns);
        } else {
            busy[n_periods++] = busy[i];
        }
    }
    return n_periods;
}

static int64_t last_ready(const struct fitting *f, uint32_t copy, uint32_t rank)
{
    int64_t last = INT64_MIN / 2;
    for (uint32_t t = 0; t < f->model->n_tensors; t++) {
        uint32_t op = f->coarse->ready[(size_t)rank * f->model->n_tensors + t];
        if (op != DPRO_NO_OP && f->r->copies[copy].end_ns[op] > last)
            last = f->r->copies[copy].end_ns[op];
    }
    return last;
}

/* A rank's buckets in an iteration, each from when all ranks had come to it: until its messages are
 * through, or until it is over. */
static size_t list_buckets(const struct fitting *f, uint32_t copy, uint32_t rank, bool messages,
                           struct fit_busy *buckets)
{
    const struct measured_replay *r = f->r;
    size_t n = 0;
    for (uint32_t t = 0; t < f->model->n_tensors; t++) {
        const struct graph_collective *c = fit_bucket(f, t);
        if (!c || (messages ? c->n_messages == 0 || c->barrier == DPRO_NO_OP
                            : c->size_bytes == 0 || rank >= c->n_members))
            continue;
        uint32_t transfer = f->g->members[c->first_member + rank].transfer;
        int64_t start_ns = measured_start_ns(r, copy, transfer);
        int64_t end_ns = messages ? start_ns : r->copies[copy].end_ns[transfer];
        if (c->n_messages > 0 && c->barrier != DPRO_NO_OP)
            start_ns = r->copies[copy].end_ns[c->barrier];
        double lost_ns =
            f->lost_ns ? f->lost_ns[(size_t)(copy - r->first) * f->model->n_tensors + t] : 0;
        buckets[n++] = (struct fit_busy){.start_ns = start_ns,
                                         .end_ns = end_ns,
                                         .bytes = (double)c->size_bytes * fit_wire_share(f->net),
                                         .lost_ns = lost_ns};
    }
    return n;
}

/* One point for each busy period in which a rank's link had a bucket to carry without a pause; of
 * those that it had for buckets alone, if there are any: to share a link costs more than what is
 * divided. Yields what the buckets took, one by one. */
static double see_busy_periods(const struct fitting *f, bool messages, fit_points *points)
{
    const struct measured_replay *r = f->r;
    SCRATCH struct fit_busy *busy = mem_alloc(f->model->n_tensors * sizeof *busy);
    SCRATCH fit_points shared = {0};
    double took_ns = 0;
    for (uint32_t copy = r->first; copy < r->first + r->n; copy++)
        for (uint32_t rank = 0; rank < f->g->n_ranks; rank++) {
            int64_t computed_ns = last_ready(f, copy, rank);
            size_t n = list_buckets(f, copy, rank, messages, busy);
            for (size_t i = 0; i < n; i++)
                took_ns += (double)(busy[i].end_ns - busy[i].start_ns);
            n = fit_busy_periods(busy, n, 0);
            for (size_t i = 0; i < n; i++) {
                double bytes = busy[i].bytes,
                       took = (double)(busy[i].end_ns - busy[i].start_ns) - busy[i].lost_ns;
                double beside = (double)(computed_ns - busy[i].start_ns);
                double share = took > 0 ? fmin(fmax(beside / took, 0), 1) : 0;
                array_push(busy[i].lost_ns > 0 ? &shared : points,
                           ((struct fit_point){bytes, took, 1 / (bytes + 1), share * bytes}));
            }
        }
    for (size_t i = 0, n = points->n; i < shared.n && n == 0; i++)
        array_push(points, shared.at[i]);
    return took_ns;
}

/* What a byte takes, from how long links had something to carry: single messages are measured by
 * when threads came to them, and what they wait for each other is theirs, too. */
void fit_bytes(const struct fitting *f)
{
    struct dpro_estimate start;
    SCRATCH fit_points points = {0};
    see_busy_periods(f, true, &points);
    fit_line(&points, &f->net->link.byte_ns, &start);
    if (!f->net->gate.negotiates)
        fit_held(&points, &f->net->link.byte_ns, &f->net->link.held_share);
}

/* What a message takes beside its bytes, from the small ones; and the largest there are. */
void fit_messages(const struct fitting *f)
{
    const struct dpro_graph *g = f->g;
    struct model_link *link = &f->net->link;
    struct sums rests = {0};
    double bytes = 0;
    for (uint32_t op = 0; op < g->n_ops; op++)
        if (g->kind[op] == DPRO_OP_RECV && g->size_bytes[op] > link->chunk_bytes)
            link->chunk_bytes = g->size_bytes[op];
    for (uint32_t op = 0; op < g->n_ops; op++) {
        if (g->kind[op] != DPRO_OP_RECV || g->size_bytes[op] == 0 ||
            g->size_bytes[op] > link->chunk_bytes / 2)
            continue;
        sums_add(&rests, (double)g->dur_ns[op] - link->byte_ns.value * (double)g->size_bytes[op]);
        bytes += (double)g->size_bytes[op];
    }
    link->message_ns = f->on_cpu ? FIT_TCP_MESSAGE_NS : FIT_PROXY_MESSAGE_NS;
    if (rests.n == 0)
        return;
    struct dpro_estimate seen = sums_mean(&rests);
    seen.std = hypot(seen.std, BURST_SHARE * link->byte_ns.value * bytes / rests.n) + 1;
    link->message_ns = fit_combine(link->message_ns, seen);
}

bool fit_has_messages(const struct fitting *f)
{
    uint64_t all = 0, tied = 0;
    for (uint32_t t = 0; t < f->model->n_tensors; t++) {
        all += f->model->tensors[t].size_bytes;
        if (f->g->collectives[f->coarse->bucket_of[t]].n_messages > 0)
            tied += f->model->tensors[t].size_bytes;
    }
    return tied > all / 2;
}

/* Collectives that run at once share the wires: what they took together is known, and not what each
 * would have taken by itself. */
bool fit_at_once(const struct fitting *f)
{
    struct model_net *net = f->net;
    struct model_link *link = &net->link;
    SCRATCH fit_points points = {0};
    double took_ns = see_busy_periods(f, false, &points), any_ns = 0;
    for (size_t i = 0; i < points.n; i++)
        any_ns += points.at[i].y;
    bool at_once = took_ns > 1.5 * any_ns; /* together half as long again as there were some */
    if (at_once) {
        fit_line(&points, &link->byte_ns, &net->collective.overhead_ns);
        /* the ranks' cores held some of it up, and how much of it shows nowhere */
        link->byte_ns.std =
            fmax(link->byte_ns.std, FIT_GRPC_HELD_SHARE.value / 2 * link->byte_ns.value);
        link->message_ns = (struct dpro_estimate){0, net->collective.overhead_ns.std};
        net->gate.n_streams = f->model->n_tensors;
        net->gate.in_order = false;
    }
    return at_once;
}

/* Where several threads run collectives, these share the wires: what counts is how long a rank had
 * any under way, which tells little of single messages. */
void fit_collectives(const struct fitting *f)
{
    struct model_link *link = &f->net->link;
    double n_messages = 2.0 * (f->net->collective.n_ranks - 1);
    bool shared = f->net->gate.n_streams > 1;
    SCRATCH fit_points points = {0};
    if (shared)
        see_busy_periods(f, false, &points);
    if (points.n > 0)
        n_messages *= (double)f->n_transfers * f->r->n / (double)points.n;
    for (size_t i = 0; i < f->n_transfers && !shared; i++) {
        const struct fit_transfer *t = &f->transfers[i];
        double size = t->size_bytes * fit_wire_share(f->net);
        struct fit_point point = {size, t->took_ns + t->exchange_ns, 1 / size, 0};
        if (size > 0)
            array_push(&points, point);
    }
    fit_line(&points, &link->byte_ns, &link->message_ns);
    link->message_ns.value /= n_messages;
    link->message_ns.std /= n_messages;
    if (shared && points.n > 0) {
        link->message_ns = fit_combine(FIT_TCP_MESSAGE_NS, link->message_ns);
        struct dpro_estimate byte, held; /* the surer of two explanations of what bytes took */
        if (fit_held(&points, &byte, &held) &&
            byte.std * link->byte_ns.value < link->byte_ns.std * byte.value) {
            link->byte_ns = byte;
            link->held_share = held;
        }
    }
}

/* ---- all-reduces that run one after the other ---- */

/* Horovod's groups; else each bucket on each rank, from when all were there. */
static void see_reductions(const struct fitting *f, bool cycles, fit_points *seen)
{
    const struct graph_cycles *c = &f->g->cycles;
    for (uint32_t i = 0; cycles && i < c->n_reductions; i++)
        array_add(seen, (double)c->reductions[i].size_bytes, (double)c->reductions[i].took_ns, 1,
                  0);
    EACH_OF (const struct fit_transfer, t, f->transfers, f->n_transfers)
        if (!cycles && t->size_bytes > 0)
            array_add(seen, t->size_bytes, t->took_ns + t->exchange_ns + t->gaps_ns, 1, 0);
}

bool fit_reductions(const struct fitting *f)
{
    enum { LEAST_GROUPS = 4, LEAST_PACKS = 4 };
    struct model_net *net = f->net;
    struct dpro_estimate byte, base;
    SCRATCH fit_points seen = {0};
    double messages = 2 * (net->collective.n_ranks - 1.0);
    double share = messages / net->collective.n_ranks; /* of a byte, on a rank's link */
    bool cycles = net->gate.negotiates && f->g->cycles.cycle_ns > 0;
    see_reductions(f, cycles, &seen);
    if (net->collective.n_ranks < 2 ||
        seen.n < (cycles ? LEAST_GROUPS : (size_t)LEAST_PACKS * f->g->n_ranks))
        return false;
    fit_line_cut(&seen, &byte, &base);
    net->link.byte_ns = (struct dpro_estimate){byte.value / share, byte.std / share};
    if (net->link.message_ns.value > base.value / messages)
        net->link.message_ns = (struct dpro_estimate){base.value / messages, base.std / messages};
    net->collective.overhead_ns =
        (struct dpro_estimate){base.value - messages * net->link.message_ns.value, base.std};
    if (cycles) {
        net->gate.negotiate_ns = fit_within((double)f->g->cycles.negotiate_ns, 0.3);
        net->gate.cycle_ns = f->g->cycles.cycle_ns;
    }
    return true;
}
