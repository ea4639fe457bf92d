/* cost/serve.c: an evaluation of a job with parameter servers, message by message.
 *
 * A rank pushes a part of a bucket when the bucket is whole. What goes from one process to another
 * keeps its order (of equal priority); different ways share the links that they have in common
 * equally, but for one that begins while others send: it stands behind what they have in the link's
 * queue. What a message takes beside its bytes passes while others are on the links. A server's
 * thread takes what was pushed as it comes; when all ranks have pushed a part, it answers them all
 * (or, in a session, sends it when it has read it in the next iteration). */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cost/evaluator.h"
#include "cost/servers.h"

#define NONE UINT32_MAX

enum { SETTLED = 3 };

/* One way of a part: number part * 2 * n_ranks + 2 * rank + down. In one list at a time. */
struct parcel {
    uint32_t next;
};

struct part {
    uint32_t bucket, server;
    uint32_t n_pushed;
    double wire_ns, within_ns, serve_ns; /* of a push: on a link, within a host, at the server */
};

struct list {
    uint32_t first, last;
};

/* From a rank to a server or back. */
struct way {
    struct list parcels;     /* the first is under way */
    uint32_t from, to, rank; /* nodes; the rank at either end */
    double left_ns;          /* of the first one, alone on its links */
    double queued_ns;        /* until it shares them */
};

struct server {
    struct list parcels; /* the first is being served */
    double left_ns;
};

enum happening {
    ARRIVED,     /* a parcel, and is handed over or served */
    ANSWERED,    /* all pushed a parcel's part */
    STEP_BEGINS, /* of a session */
    READ,        /* by a server of a session: what is pulled is sent */
};

struct timer {
    double at_ns;
    uint64_t number; /* of those at one time the first that was set goes first */
    enum happening what;
    uint32_t parcel;
};

struct worker {
    const struct class *class;
    uint32_t at, iteration;
    bool blocked, ended; /* ended: it waits for the session's next iteration */
    double left_ns, done_ns[MOST_ITERATIONS + 1];
    uint32_t n_under_way[2]; /* ways with something on them, over links and within its host */
    uint32_t *n_missing;     /* [bucket] parts */
    uint32_t *n_got;         /* [bucket] iterations */
};

struct serving {
    const struct model_net *net;
    uint32_t n_ranks, n_servers, n_nodes;
    struct way *ways; /* [rank * n_servers + server], then those down */
    uint32_t *active; /* ways */
    uint32_t n_active;
    uint32_t *n_sending, *n_receiving; /* [node] ways on its link */
    double server_link;                /* how much longer a byte takes on a link of theirs */
    struct server *servers;
    struct worker *workers;
    uint32_t *counts; /* of the workers, [2 * rank * n_buckets] */
    ARRAY(struct parcel) parcels;
    ARRAY(struct part) parts;
    ARRAY(struct timer) timers;              /* a heap */
    uint64_t n_timers;                       /* ever set */
    uint32_t *first_part;                    /* [bucket], one more */
    size_t n_ended, n_served, n_handed_over; /* of a session's iteration: ranks, parts, parcels */
    double now_ns, wire_ns;
    double rates[2]; /* at which a rank computes while something of its own is under way */
    bool failed;
};

struct serving *serving_create(const struct dpro_model *model)
{
    struct serving *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    const struct model_net *net = s->net = &model->net;
    s->n_ranks = model->n_ranks;
    s->n_servers = sync_n_servers(net);
    s->n_nodes = sync_n_nodes(net);
    size_t n_ways = (size_t)s->n_ranks * s->n_servers, n_counts = (size_t)model->n_tensors + 1;
    s->ways = calloc(2 * n_ways + 1, sizeof *s->ways);
    s->active = calloc(2 * n_ways + 1, sizeof *s->active);
    s->n_sending = calloc(s->n_nodes + (size_t)1, sizeof *s->n_sending);
    s->n_receiving = calloc(s->n_nodes + (size_t)1, sizeof *s->n_receiving);
    s->servers = calloc(s->n_servers, sizeof *s->servers);
    s->workers = calloc(s->n_ranks + (size_t)1, sizeof *s->workers);
    s->counts = calloc(2 * n_counts * s->n_ranks + 1, sizeof *s->counts);
    s->first_part = calloc(n_counts + 1, sizeof *s->first_part);
    if (!s->ways || !s->active || !s->n_sending || !s->n_receiving || !s->servers || !s->workers ||
        !s->counts || !s->first_part) {
        serving_destroy(s);
        return NULL;
    }
    for (uint32_t r = 0; r < s->n_ranks; r++) {
        s->workers[r].n_missing = s->counts + 2 * n_counts * r;
        s->workers[r].n_got = s->workers[r].n_missing + n_counts;
        for (uint32_t v = 0; v < s->n_servers; v++) {
            uint32_t node = sync_server_node(net, v),
                     own = net->rank_hosts ? net->rank_hosts[r] : r;
            s->ways[r * s->n_servers + v] = (struct way){.from = own, .to = node, .rank = r};
            s->ways[n_ways + r * s->n_servers + v] =
                (struct way){.from = node, .to = own, .rank = r};
        }
    }
    return s;
}

void serving_destroy(struct serving *s)
{
    if (!s)
        return;
    free(s->ways);
    free(s->active);
    free(s->n_sending);
    free(s->n_receiving);
    free(s->servers);
    free(s->workers);
    free(s->counts);
    free(s->first_part);
    array_fini(&s->parcels);
    array_fini(&s->parts);
    array_fini(&s->timers);
    free(s);
}

/* ---- lists ---- */

static uint32_t part_of(const struct serving *s, uint32_t parcel)
{
    return parcel / (2 * s->n_ranks);
}

static uint32_t rank_of(const struct serving *s, uint32_t parcel)
{
    return parcel / 2 % s->n_ranks;
}

static bool goes_down(uint32_t parcel)
{
    return parcel % 2 != 0;
}

static uint32_t parcel_of(const struct serving *s, uint32_t part, uint32_t rank, bool down)
{
    return (part * s->n_ranks + rank) * 2 + down;
}

static int32_t priority_of(const struct evaluator *e, uint32_t parcel)
{
    const struct serving *s = e->serving;
    return e->strategy->buckets[s->parts.at[part_of(s, parcel)].bucket].priority;
}

/* Behind all that go before it; the first is under way already. */
static void line_up(const struct evaluator *e, struct list *list, uint32_t parcel)
{
    struct parcel *parcels = e->serving->parcels.at;
    uint32_t before = list->last;
    if (list->first != NONE && priority_of(e, list->last) < priority_of(e, parcel)) {
        before = list->first;
        while (before != list->last &&
               priority_of(e, parcels[before].next) >= priority_of(e, parcel))
            before = parcels[before].next;
    }
    if (list->first == NONE) {
        parcels[parcel].next = NONE;
        list->first = list->last = parcel;
        return;
    }
    parcels[parcel].next = parcels[before].next;
    parcels[before].next = parcel;
    if (list->last == before)
        list->last = parcel;
}

static uint32_t take_first(struct serving *s, struct list *list)
{
    uint32_t parcel = list->first;
    list->first = s->parcels.at[parcel].next;
    if (list->first == NONE)
        list->last = NONE;
    return parcel;
}

/* ---- timers ---- */

static bool goes_off_before(const struct timer *a, const struct timer *b)
{
    return a->at_ns < b->at_ns || (a->at_ns == b->at_ns && a->number < b->number);
}

static void set_timer(struct serving *s, double at_ns, enum happening what, uint32_t parcel)
{
    struct timer timer = {at_ns, s->n_timers++, what, parcel};
    if (array_push(&s->timers, timer) < 0) {
        s->failed = true;
        return;
    }
    struct timer *at = s->timers.at;
    size_t i = s->timers.n - 1;
    for (; i > 0 && goes_off_before(&timer, &at[(i - 1) / 2]); i = (i - 1) / 2)
        at[i] = at[(i - 1) / 2];
    at[i] = timer;
}

static struct timer take_timer(struct serving *s)
{
    struct timer *at = s->timers.at, first = at[0], last = at[--s->timers.n];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < s->timers.n; i = child) {
        child += child + 1 < s->timers.n && goes_off_before(&at[child + 1], &at[child]);
        if (!goes_off_before(&at[child], &last))
            break;
        at[i] = at[child];
    }
    at[i] = last;
    return first;
}

/* ---- on the ways ---- */

static bool is_within(const struct way *way)
{
    return way->from == way->to;
}

static void begin(struct serving *s, struct way *way)
{
    const struct part *part = &s->parts.at[part_of(s, way->parcels.first)];
    way->left_ns = is_within(way) ? part->within_ns : part->wire_ns;
}

static bool is_free(const struct serving *s, const struct way *way)
{
    return s->n_sending[way->from] == 0 && s->n_receiving[way->to] == 0;
}

static void share(struct serving *s, struct way *way)
{
    way->queued_ns = 0;
    s->n_sending[way->from]++;
    s->n_receiving[way->to]++;
}

static void send(struct evaluator *e, uint32_t parcel)
{
    struct serving *s = e->serving;
    uint32_t rank = rank_of(s, parcel);
    uint32_t at = rank * s->n_servers + s->parts.at[part_of(s, parcel)].server;
    at += goes_down(parcel) ? s->n_ranks * s->n_servers : 0;
    struct way *way = &s->ways[at];
    line_up(e, &way->parcels, parcel);
    if (way->parcels.first != parcel)
        return;
    begin(s, way);
    s->active[s->n_active++] = at;
    s->workers[rank].n_under_way[is_within(way)]++;
    if (is_within(way))
        return;
    way->queued_ns = is_free(s, way) ? 0 : (double)s->net->queue_bytes * s->net->byte_ns.value;
    if (way->queued_ns <= 0)
        share(s, way);
}

static void serve(struct evaluator *e, uint32_t parcel)
{
    struct serving *s = e->serving;
    const struct part *part = &s->parts.at[part_of(s, parcel)];
    struct server *server = &s->servers[part->server];
    line_up(e, &server->parcels, parcel);
    if (server->parcels.first == parcel)
        server->left_ns = part->serve_ns;
}

static void arrive(struct evaluator *e, uint32_t active)
{
    struct serving *s = e->serving;
    struct way *way = &s->ways[s->active[active]];
    uint32_t parcel = take_first(s, &way->parcels);
    if (way->parcels.first != NONE) {
        begin(s, way);
    } else {
        s->active[active] = s->active[--s->n_active];
        s->workers[way->rank].n_under_way[is_within(way)]--;
        if (!is_within(way)) {
            s->n_sending[way->from]--;
            s->n_receiving[way->to]--;
        }
        for (uint32_t i = 0; i < s->n_active; i++) {
            struct way *other = &s->ways[s->active[i]];
            if (other->queued_ns > 0 && is_free(s, other))
                share(s, other);
        }
    }
    double rest_ns = goes_down(parcel) ? s->net->collective_ns.value : 0;
    set_timer(s, s->now_ns + s->net->message_ns.value + rest_ns, ARRIVED, parcel);
}

/* ---- ranks ---- */

static bool may_pass(const struct evaluator *e, uint32_t rank, const struct action *a)
{
    const struct worker *w = &e->serving->workers[rank];
    switch (a->kind) {
    case LAUNCH:
    case WAIT_BEFORE:
        return w->n_got[a->bucket] >= w->iteration;
    case WAIT:
        return w->n_got[a->bucket] > w->iteration;
    default:
        return true;
    }
}

static void end_session_step(struct serving *s)
{
    if (s->n_ended == s->n_ranks && s->n_served == s->parts.n &&
        s->n_handed_over == s->parts.n * s->n_ranks) {
        s->n_ended = s->n_served = s->n_handed_over = 0;
        set_timer(s, s->now_ns + s->net->step_ns.value, STEP_BEGINS, NONE);
    }
}

static void launch(struct evaluator *e, uint32_t rank, uint32_t b)
{
    struct serving *s = e->serving;
    struct worker *w = &s->workers[rank];
    if (!s->net->pulls_at_start)
        w->n_missing[b] = s->first_part[b + 1] - s->first_part[b];
    if (rank + 1 == s->n_ranks)
        e->buckets[b].launched_ns = s->now_ns;
    e->buckets[b].start_ns = s->now_ns;
    for (uint32_t p = s->first_part[b]; p < s->first_part[b + 1]; p++)
        send(e, parcel_of(s, p, rank, false));
}

static void act(struct evaluator *e, uint32_t rank)
{
    struct serving *s = e->serving;
    struct worker *w = &s->workers[rank];
    while (w->left_ns <= 0) {
        const struct action *a = &w->class->actions[w->at];
        w->blocked = !may_pass(e, rank, a);
        if (w->blocked)
            return;
        if (a->kind == LAUNCH)
            launch(e, rank, a->bucket);
        w->at++;
        if (a->kind == END) {
            w->done_ns[w->iteration++] = s->now_ns;
            w->at = 0;
            w->ended = s->net->pulls_at_start;
            w->blocked = w->ended || w->iteration > MOST_ITERATIONS;
        }
        w->left_ns = w->class->actions[w->at].work_ns;
        if (w->ended) {
            s->n_ended++;
            end_session_step(s);
        }
        if (w->blocked)
            return;
    }
}

/* When the last of a bucket's variables is read, from the step's begin. */
static double sent_ns(const struct evaluator *e, uint32_t b, uint32_t rank)
{
    const struct strategy_bucket *bucket = &e->strategy->buckets[b];
    const int64_t *times = e->model->ranks[rank].sent_ns;
    int64_t last = 0;
    for (uint32_t i = bucket->first; times && i < bucket->first + bucket->n; i++) {
        int64_t ns = times[e->strategy->order[i]];
        last = ns > last ? ns : last;
    }
    return (double)last;
}

static void begin_session_step(struct evaluator *e)
{
    struct serving *s = e->serving;
    for (uint32_t r = 0; r < s->n_ranks; r++) {
        for (uint32_t b = 0; b < e->strategy->n_buckets; b++)
            s->workers[r].n_missing[b] = s->first_part[b + 1] - s->first_part[b];
        s->workers[r].ended = false;
        s->workers[r].blocked = s->workers[r].iteration > MOST_ITERATIONS;
    }
    for (uint32_t b = 0; b < e->strategy->n_buckets; b++)
        for (uint32_t r = 0; r < s->n_ranks; r++)
            for (uint32_t p = s->first_part[b]; p < s->first_part[b + 1]; p++)
                set_timer(s, s->now_ns + sent_ns(e, b, r), READ, parcel_of(s, p, r, true));
    for (uint32_t r = 0; r < s->n_ranks; r++)
        if (!s->workers[r].blocked)
            act(e, r);
}

static void hand_over(struct evaluator *e, uint32_t parcel)
{
    struct serving *s = e->serving;
    uint32_t rank = rank_of(s, parcel), b = s->parts.at[part_of(s, parcel)].bucket;
    struct worker *w = &s->workers[rank];
    s->n_handed_over++;
    if (--w->n_missing[b] == 0) {
        w->n_got[b]++;
        e->buckets[b].end_ns = s->now_ns;
        if (w->blocked && !w->ended && w->iteration <= MOST_ITERATIONS)
            act(e, rank);
    }
    if (s->net->pulls_at_start)
        end_session_step(s);
}

static void go_off(struct evaluator *e, struct timer timer)
{
    struct serving *s = e->serving;
    switch (timer.what) {
    case ARRIVED:
        if (goes_down(timer.parcel))
            hand_over(e, timer.parcel);
        else
            serve(e, timer.parcel);
        break;
    case ANSWERED:
        for (uint32_t r = 0; r < s->n_ranks; r++)
            send(e, parcel_of(s, part_of(s, timer.parcel), r, true));
        break;
    case STEP_BEGINS:
        begin_session_step(e);
        break;
    case READ:
        send(e, timer.parcel);
        break;
    }
}

static void served(struct evaluator *e, uint32_t number)
{
    struct serving *s = e->serving;
    struct server *server = &s->servers[number];
    uint32_t parcel = take_first(s, &server->parcels);
    struct part *part = &s->parts.at[part_of(s, parcel)];
    if (server->parcels.first != NONE)
        server->left_ns = s->parts.at[part_of(s, server->parcels.first)].serve_ns;
    if (++part->n_pushed == s->n_ranks) {
        part->n_pushed = 0;
        s->n_served++;
        if (s->net->pulls_at_start)
            end_session_step(s);
        else
            set_timer(s, s->now_ns + s->net->answer_ns.value, ANSWERED, parcel);
    }
}

/* ---- time ---- */

enum event { RANK, WAY, SERVER, TIMER };

static double slowness(const struct serving *s, uint32_t node, uint32_t n_sharing)
{
    return node < s->n_ranks ? n_sharing : n_sharing * s->server_link;
}

/* How much longer it takes than a way that has a rank's link for itself. */
static double slowed(const struct serving *s, const struct way *way)
{
    if (is_within(way))
        return 1;
    return fmax(slowness(s, way->from, s->n_sending[way->from]),
                slowness(s, way->to, s->n_receiving[way->to]));
}

static double rate_of(const struct serving *s, const struct worker *w)
{
    return w->n_under_way[0] ? s->rates[0] : w->n_under_way[1] ? s->rates[1] : 1;
}

static bool step(struct evaluator *e)
{
    struct serving *s = e->serving;
    double dt = INFINITY;
    enum event event = TIMER;
    uint32_t which = 0;
    bool on_wire = false;
    for (uint32_t r = 0; r < s->n_ranks; r++) {
        const struct worker *w = &s->workers[r];
        double left = w->left_ns / rate_of(s, w);
        if (!w->blocked && left < dt) {
            dt = left;
            event = RANK;
            which = r;
        }
    }
    for (uint32_t i = 0; i < s->n_active; i++) {
        const struct way *way = &s->ways[s->active[i]];
        double left = way->queued_ns > 0 ? way->queued_ns : way->left_ns * slowed(s, way);
        on_wire |= !is_within(way);
        if (left < dt) {
            dt = left;
            event = WAY;
            which = i;
        }
    }
    for (uint32_t v = 0; v < s->n_servers; v++)
        if (s->servers[v].parcels.first != NONE && s->servers[v].left_ns < dt) {
            dt = s->servers[v].left_ns;
            event = SERVER;
            which = v;
        }
    if (s->timers.n > 0 && s->timers.at[0].at_ns - s->now_ns < dt) {
        dt = s->timers.at[0].at_ns - s->now_ns;
        event = TIMER;
    }
    if (isinf(dt) || s->failed)
        return false;
    dt = dt > 0 ? dt : 0;
    s->now_ns += dt;
    s->wire_ns += on_wire ? dt : 0;
    for (uint32_t i = 0; i < s->n_active; i++) {
        struct way *way = &s->ways[s->active[i]];
        if (way->queued_ns > 0)
            way->queued_ns = way->queued_ns > dt ? way->queued_ns - dt : DBL_MIN;
        else
            way->left_ns -= dt / slowed(s, way);
    }
    for (uint32_t r = 0; r < s->n_ranks; r++)
        if (!s->workers[r].blocked)
            s->workers[r].left_ns -= dt * rate_of(s, &s->workers[r]);
    for (uint32_t v = 0; v < s->n_servers; v++)
        s->servers[v].left_ns -= dt;
    switch (event) {
    case RANK:
        s->workers[which].left_ns = 0;
        act(e, which);
        break;
    case WAY:
        if (s->ways[s->active[which]].queued_ns > 0)
            share(s, &s->ways[s->active[which]]);
        else
            arrive(e, which);
        break;
    case SERVER:
        served(e, which);
        break;
    case TIMER:
        go_off(e, take_timer(s));
        break;
    }
    return true;
}

/* ---- all of it ---- */

static int lay_out(struct evaluator *e)
{
    struct serving *s = e->serving;
    const struct dpro_strategy *strategy = e->strategy;
    const struct model_net *net = s->net;
    s->parts.n = 0;
    for (uint32_t b = 0; b < strategy->n_buckets; b++) {
        uint32_t n = strategy->buckets[b].partitions;
        s->first_part[b] = (uint32_t)s->parts.n;
        for (uint32_t p = 0; p < n; p++) {
            uint64_t size =
                e->buckets[b].size_bytes * (p + 1) / n - e->buckets[b].size_bytes * p / n;
            double bytes = (double)size;
            struct part part = {.bucket = b,
                                .server = servers_of_part(e->model, strategy, b, p),
                                .wire_ns = bytes * net->byte_ns.value,
                                .within_ns = bytes * net->within_ns.value,
                                .serve_ns = net->push_ns.value + bytes * net->reduce_ns.value};
            if (array_push(&s->parts, part) < 0)
                return -1;
        }
    }
    s->first_part[strategy->n_buckets] = (uint32_t)s->parts.n;
    return array_reserve(&s->parcels, s->parts.n * 2 * s->n_ranks) < 0 ? -1 : 0;
}

static void reset(struct evaluator *e)
{
    struct serving *s = e->serving;
    uint32_t n_ways = 2 * s->n_ranks * s->n_servers;
    s->n_active = 0;
    s->n_ended = s->n_served = s->n_handed_over = 0;
    s->timers.n = 0;
    s->n_timers = 0;
    s->now_ns = s->wire_ns = 0;
    s->rates[0] = evaluator_rate(s->net->cpu_ns.value, s->net->byte_ns.value);
    s->rates[1] = evaluator_rate(s->net->cpu_ns.value, s->net->within_ns.value);
    s->server_link = s->net->server_link > 0 ? 1 / s->net->server_link : 1;
    s->failed = false;
    memset(s->n_sending, 0, s->n_nodes * sizeof *s->n_sending);
    memset(s->n_receiving, 0, s->n_nodes * sizeof *s->n_receiving);
    for (uint32_t w = 0; w < n_ways; w++)
        s->ways[w] = (struct way){.parcels = {NONE, NONE},
                                  .from = s->ways[w].from,
                                  .to = s->ways[w].to,
                                  .rank = s->ways[w].rank};
    for (uint32_t v = 0; v < s->n_servers; v++)
        s->servers[v].parcels = (struct list){NONE, NONE};
    for (uint32_t r = 0; r < s->n_ranks; r++) {
        struct worker *w = &s->workers[r];
        w->class = &e->classes[e->class_of[r]];
        w->at = w->iteration = w->n_under_way[0] = w->n_under_way[1] = 0;
        w->blocked = w->ended = s->net->pulls_at_start;
        w->left_ns = w->class->actions[0].work_ns;
        memset(w->n_got, 0, e->strategy->n_buckets * sizeof *w->n_got);
        memset(w->n_missing, 0, e->strategy->n_buckets * sizeof *w->n_missing);
    }
    if (s->net->pulls_at_start)
        set_timer(s, 0, STEP_BEGINS, NONE);
}

static uint32_t n_done(const struct serving *s)
{
    uint32_t n = UINT32_MAX;
    for (uint32_t r = 0; r < s->n_ranks; r++)
        n = s->workers[r].iteration < n ? s->workers[r].iteration : n;
    return n;
}

/* When all have done their n-th iteration. */
static double done_ns(const struct serving *s, uint32_t n)
{
    double latest = 0;
    for (uint32_t r = 0; r < s->n_ranks; r++)
        latest = fmax(latest, s->workers[r].done_ns[n - 1]);
    return latest;
}

static bool is_steady(const struct serving *s, uint32_t n)
{
    if (n < SETTLED)
        return false;
    for (uint32_t r = 0; r < s->n_ranks; r++) {
        const double *done = s->workers[r].done_ns, *first = s->workers[0].done_ns;
        double period = first[n - 1] - first[n - 2];
        if (fabs(done[n - 1] - done[n - 2] - period) > 0.5 ||
            fabs(done[n - 2] - done[n - 3] - period) > 0.5)
            return false;
    }
    return true;
}

int64_t serving_run(struct evaluator *e)
{
    struct serving *s = e->serving;
    uint32_t n = 0;
    if (lay_out(e) < 0)
        return INT64_MAX;
    reset(e);
    for (uint32_t r = 0; r < s->n_ranks; r++)
        if (!s->workers[r].blocked && s->workers[r].left_ns <= 0)
            act(e, r);
    while (n < MOST_ITERATIONS && !is_steady(s, n) && step(e))
        n = n_done(s);
    if (n < 2 || s->failed)
        return INT64_MAX;
    if (is_steady(s, n) || n < 2 * SETTLED)
        return llround(done_ns(s, n) - done_ns(s, n - 1));
    /* one that swings between several lengths */
    return llround((done_ns(s, n) - done_ns(s, n / 2)) / (n - n / 2));
}

void serving_detail(const struct evaluator *e, struct evaluation *result)
{
    const struct serving *s = e->serving;
    uint32_t n = n_done(s);
    double from = n >= 2 ? done_ns(s, n - 1) : 0, latest = -1;
    for (uint32_t b = 0; b < e->strategy->n_buckets; b++) {
        const struct bucket_state *bucket = &e->buckets[b];
        result->launched_ns[b] = llround(bucket->launched_ns - from);
        result->start_ns[b] = llround(bucket->start_ns - from);
        result->end_ns[b] = llround(bucket->end_ns - from);
    }
    for (uint32_t r = 0; r < s->n_ranks && n >= 1; r++) {
        double done = s->workers[r].done_ns[n - 1];
        result->done_ns[r] = llround(done - from);
        if (done > latest) {
            latest = done;
            result->last_rank = r;
        }
    }
    result->wire_ns = n > 0 ? llround(s->wire_ns / n) : 0;
}
