/* What communications and buckets take with the links to themselves.
 *
 * One begins when its last rank has come to it and its stream has carried those before it; until
 * then it waits. From then on it is on its ranks' links. While several are on a link, its time is
 * divided among them: first equally, then in rounds so that each gets of it what its bytes and
 * messages need by what links are learnt to take, until nothing changes. The simulation has them
 * share the same links. */
#include <float.h>

#include "base/intervals.h"
#include "cost/learn/fit.h"

/* A communication or a bucket in one iteration. */
struct shares_taken {
    uint32_t number;          /* of the communication; behind them, of a bucket's first tensor */
    int64_t ready_ns;         /* its last rank has come */
    int64_t start_ns, end_ns; /* the start moves on */
    double weight, alone_ns;  /* its time, had it had the links to itself */
    double took_ns, lost_ns;  /* with others; of a bucket, what it lost to communications */
    /* while it is under way: weights on the link that holds it up most, with its own, and of
     * communications alone; how many these are */
    double here, here_beside;
    uint32_t n_here, n_beside;
    uint32_t seen; /* the turn in which it was met last */
};

ORDER(by_readiness, struct shares_taken, ASCENDING(ready_ns) ?: ASCENDING(number));
ORDER(by_start, struct shares_taken, ASCENDING(start_ns) ?: ASCENDING(number));

struct shares_sharing {
    const struct fitting *f;
    const struct dpro_model *m;
    const uint32_t *hosts; /* by rank: whose link it has to other hosts; NULL: its own */
    struct model_group everyone;
    uint32_t n;                 /* communications and tensors */
    double *weights;            /* [iteration * n + number] */
    double *alone_ns;           /* likewise; a bucket has the number of its first tensor */
    double *parts;              /* likewise: of the time that it took */
    struct shares_taken *taken; /* of an iteration, by start */
    uint32_t n_taken;
    interval_array *flights; /* by rank: messages, from a send's begin to its receive's end */
    uint32_t *first_stream;  /* by group */
    int64_t *free_ns;        /* by stream */
    /* while those of an iteration are under way */
    ARRAY(uint32_t) * on_link;   /* by link: of `taken` */
    double bucket_ns, beside_ns; /* of the time of two of which one was a bucket, what each had */
    uint32_t turn;
    ARRAY(uint32_t) touched;
    bool any; /* any shared a link with another one */
};

int64_t fit_last_end(const struct fitting *f, uint32_t collective, uint32_t iteration)
{
    const struct graph_collective *c = &f->g->collectives[collective];
    const int64_t *end_ns = f->r->copies[f->r->first + iteration].end_ns;
    int64_t last = INT64_MIN;
    for (uint32_t i = c->first_member; i < c->first_member + c->n_members; i++)
        last = MAX(last, end_ns[f->g->members[i].transfer]);
    return last;
}

/* ---- when each is on the links ---- */

static const struct model_group *group_of(const struct shares_sharing *u, uint32_t number)
{
    return number < u->m->n_communications ? &u->m->groups[u->m->communications[number].group]
                                           : &u->everyone;
}

static void find_starts(const struct shares_sharing *u)
{
    const struct dpro_model *m = u->m;
    qsort(u->taken, m->n_communications, sizeof *u->taken, by_readiness);
    for (uint32_t i = 0; i < u->first_stream[m->n_groups]; i++)
        u->free_ns[i] = INT64_MIN;
    EACH_OF (struct shares_taken, it, u->taken, m->n_communications) {
        uint32_t group = m->communications[it->number].group;
        uint32_t stream = u->first_stream[group];
        for (uint32_t i = stream; i < u->first_stream[group + 1]; i++)
            if (u->free_ns[i] < u->free_ns[stream])
                stream = i;
        it->start_ns = MIN(MAX(it->ready_ns, u->free_ns[stream]), it->end_ns);
        u->free_ns[stream] = MAX(u->free_ns[stream], it->end_ns);
    }
}

/* A bucket is on the links from when all ranks have come to it. */
static int64_t bucket_start(const struct fitting *f, const struct graph_collective *c,
                            uint32_t iteration)
{
    uint32_t copy = f->r->first + iteration;
    int64_t start = INT64_MIN;
    if (c->barrier != DPRO_NO_OP)
        return f->r->copies[copy].end_ns[c->barrier];
    for (uint32_t i = c->first_member; i < c->first_member + c->n_members; i++)
        start = MAX(start, measured_start_ns(f->r, copy, f->g->members[i].transfer));
    return start;
}

static void list_taken(struct shares_sharing *u, uint32_t iteration)
{
    const struct fitting *f = u->f;
    uint32_t n = u->m->n_communications;
    for (uint32_t k = 0; k < n; k++)
        u->taken[k] = (struct shares_taken){
            .number = k,
            .ready_ns = INT64_MIN,
            .end_ns = fit_last_end(f, f->coarse->collective_of[k], iteration)};
    EACH_OF (const struct coarse_issue, issue, f->coarse->issues, f->coarse->n_issues) {
        struct shares_taken *of = &u->taken[issue->communication];
        of->ready_ns = MAX(of->ready_ns, issue->ready_ns[iteration]);
    }
    find_starts(u);
    u->n_taken = n;
    for (uint32_t t = 0; t < u->m->n_tensors; t++) {
        const struct graph_collective *c = fit_bucket(f, t);
        if (!c)
            continue;
        struct shares_taken *bucket = &u->taken[u->n_taken++];
        *bucket = (struct shares_taken){
            .number = n + t, .end_ns = fit_last_end(f, f->coarse->bucket_of[t], iteration)};
        bucket->start_ns = MIN(bucket_start(f, c, iteration), bucket->end_ns);
    }
    qsort(u->taken, u->n_taken, sizeof *u->taken, by_start);
    for (uint32_t i = 0; i < u->n_taken; i++)
        u->taken[i].weight = u->weights[(size_t)iteration * u->n + u->taken[i].number];
}

/* ---- who shares them ---- */

/* A rank has a link out and one in, and the same within its host. Of two ranks the first sends. */
static uint32_t links_of(const struct shares_sharing *u, const struct model_group *group,
                         uint32_t member, uint32_t links[2])
{
    uint32_t rank = group->ranks[member], n = 0;
    if (u->hosts && !group->within)
        rank = u->hosts[rank];
    uint32_t first = 4 * rank + 2 * group->within;
    if (!group->sends || member == 0)
        links[n++] = first;
    if (!group->sends || member > 0)
        links[n++] = first + 1;
    return n;
}

/* Up to now it has had its share. */
static void give_share(struct shares_sharing *u, uint32_t which, int64_t now_ns)
{
    struct shares_taken *it = &u->taken[which];
    double ns = (double)(now_ns - it->start_ns), buckets = it->here - it->here_beside;
    it->took_ns += ns;
    it->alone_ns += ns * it->weight / it->here;
    if (it->number >= u->m->n_communications && it->n_here == 2 && it->n_beside == 1) {
        u->bucket_ns += ns * it->weight / it->here;
        u->beside_ns += ns * it->here_beside / it->here;
    }
    if (it->number >= u->m->n_communications) /* what all buckets lose is divided among them */
        it->lost_ns += ns * it->here_beside / it->here * it->weight / buckets;
    it->start_ns = now_ns;
}

/* The link on which most are decides. */
static void find_share(struct shares_sharing *u, uint32_t which)
{
    struct shares_taken *it = &u->taken[which];
    const struct model_group *group = group_of(u, it->number);
    it->here = 0;
    for (uint32_t i = 0; i < group->n_ranks; i++) {
        uint32_t links[2], n = links_of(u, group, i, links);
        for (uint32_t l = 0; l < n; l++) {
            double all = 0, beside = 0;
            uint32_t n_beside = 0;
            for (size_t k = 0; k < u->on_link[links[l]].n; k++) {
                const struct shares_taken *other = &u->taken[u->on_link[links[l]].at[k]];
                all += other->weight;
                beside += other->number < u->m->n_communications ? other->weight : 0;
                n_beside += other->number < u->m->n_communications;
            }
            u->any |= u->on_link[links[l]].n > 1;
            if (all <= it->here)
                continue;
            it->here = all;
            it->here_beside = beside;
            it->n_here = (uint32_t)u->on_link[links[l]].n;
            it->n_beside = n_beside;
        }
    }
}

static void begin_or_end(struct shares_sharing *u, uint32_t which, bool begins, int64_t now_ns)
{
    const struct model_group *group = group_of(u, u->taken[which].number);
    u->taken[which].seen = ++u->turn;
    u->touched.n = 0;
    if (!begins)
        give_share(u, which, now_ns);
    for (uint32_t i = 0; i < group->n_ranks; i++) {
        uint32_t links[2], n = links_of(u, group, i, links);
        for (uint32_t l = 0; l < n; l++) {
            uint32_t kept = 0;
            for (size_t k = 0; k < u->on_link[links[l]].n; k++) {
                uint32_t other = u->on_link[links[l]].at[k];
                if (other != which)
                    u->on_link[links[l]].at[kept++] = other;
                if (u->taken[other].seen == u->turn)
                    continue;
                u->taken[other].seen = u->turn;
                give_share(u, other, now_ns);
                array_push(&u->touched, other);
            }
            u->on_link[links[l]].n = kept;
            if (begins)
                array_push(&u->on_link[links[l]], which);
        }
    }
    if (begins)
        find_share(u, which);
    for (size_t k = 0; k < u->touched.n; k++)
        find_share(u, u->touched.at[k]);
}

struct end {
    int64_t end_ns;
    uint32_t which;
};

ORDER(by_end, struct end, ASCENDING(end_ns) ?: ASCENDING(which));

static void share_iteration(struct shares_sharing *u)
{
    uint32_t n_ends = 0, next = 0;
    SCRATCH struct end *ends = mem_alloc((u->n_taken + (size_t)1) * sizeof *ends);
    for (uint32_t k = 0; k < u->n_taken; k++)
        if (u->taken[k].end_ns > u->taken[k].start_ns)
            ends[n_ends++] = (struct end){u->taken[k].end_ns, k};
    qsort(ends, n_ends, sizeof *ends, by_end);
    for (uint32_t e = 0; e < n_ends; e++) {
        for (; next < u->n_taken && u->taken[next].start_ns < ends[e].end_ns; next++)
            if (u->taken[next].end_ns > u->taken[next].start_ns)
                begin_or_end(u, next, true, u->taken[next].start_ns);
        begin_or_end(u, ends[e].which, false, ends[e].end_ns);
    }
}

/* ---- when bytes are under way ---- */

static void add_flight(void *arg, dpro_op_id send, dpro_op_id receive)
{
    const struct shares_sharing *u = arg;
    const struct measured_replay *r = u->f->r;
    if (!u->f->g->size_bytes || u->f->g->size_bytes[receive] == 0)
        return;
    for (uint32_t copy = r->first; copy < r->first + r->n; copy++) {
        struct interval flight = {measured_start_ns(r, copy, send),
                                  r->copies[copy].end_ns[receive]};
        array_push(&u->flights[u->f->g->rank[send]], flight);
        array_push(&u->flights[u->f->g->rank[receive]], flight);
    }
}

static void list_flights(struct shares_sharing *u)
{
    graph_each_message(u->f->g, add_flight, u);
    for (uint32_t r = 0; r < u->f->g->n_ranks; r++)
        intervals_join(&u->flights[r]);
}

/* The part of the time of a collective that shares with none in which messages with bytes are under
 * way, on the rank for which that is longest; -1: not known. */
static double flown_part(const struct shares_sharing *u, const struct shares_taken *it)
{
    const struct graph_collective *c =
        &u->f->g->collectives[u->f->coarse->collective_of[it->number]];
    int64_t most = 0, took = (int64_t)it->took_ns;
    if (group_of(u, it->number)->sends || c->n_messages == 0 || took <= 0 ||
        it->alone_ns < it->took_ns)
        return -1;
    for (uint32_t i = c->first_member; i < c->first_member + c->n_members; i++) {
        uint32_t rank = u->f->g->rank[u->f->g->members[i].arrival];
        most = MAX(most, intervals_within(&u->flights[rank], it->end_ns - took, it->end_ns));
    }
    return (double)most / (double)took;
}

/* ---- what each needs ---- */

struct need {
    double byte_ns, message_ns;
};

/* Bytes on a link and messages one after the other of a communication or a bucket. */
static void loads_of(const struct shares_sharing *u, uint32_t number, double *bytes, double *steps)
{
    const struct model_net *net = u->f->net;
    if (number < u->m->n_communications) {
        *bytes = u->m->communications[number].link_bytes;
        *steps = u->m->communications[number].n_steps;
        return;
    }
    const struct graph_collective *c = fit_bucket(u->f, number - u->m->n_communications);
    *bytes = c ? (double)c->size_bytes * fit_wire_share(net) : 0;
    *steps = 2 * (net->collective.n_ranks - 1.0);
}

/* Of links within hosts, or of the others: from those that shared none, if they tell a byte from a
 * message; else bytes explain all that is more than messages usually take. */
static struct need learn_need(const struct shares_sharing *u, bool within)
{
    struct dpro_estimate byte_ns, base, usual = FIT_PROXY_MESSAGE_NS;
    SCRATCH fit_points unshared = {0};
    double bytes, steps, all_steps = 0, least = DBL_MAX, weight = 0, ns = 0;
    if (u->f->on_cpu)
        usual = FIT_TCP_MESSAGE_NS;
    for (size_t i = 0; i < (size_t)u->f->r->n * u->n; i++) {
        loads_of(u, (uint32_t)(i % u->n), &bytes, &steps);
        if (group_of(u, (uint32_t)(i % u->n))->within != within || u->alone_ns[i] <= 0)
            continue;
        least = steps > 0 ? fmin(least, u->alone_ns[i] / steps) : least;
        if (bytes <= 0)
            continue;
        ns += u->alone_ns[i] / bytes;
        weight++;
        if (u->parts[i] < 1)
            continue;
        array_push(&unshared, ((struct fit_point){bytes, u->alone_ns[i], 1 / (bytes + 1), 0}));
        all_steps += steps;
    }
    struct need need = {weight > 0 ? ns / weight : 0, fmin(usual.value, least / 2)};
    if (all_steps > 0 && fit_has_spread(&unshared)) {
        fit_line(&unshared, &byte_ns, &base);
        need = (struct need){byte_ns.value, base.value * (double)unshared.n / all_steps};
    }
    return need;
}

/* Yields the largest relative change of a weight. */
static double set_weights(const struct shares_sharing *u)
{
    const struct need needs[2] = {learn_need(u, false), learn_need(u, true)};
    double most = 0;
    for (size_t i = 0; i < (size_t)u->f->r->n * u->n; i++) {
        uint32_t number = (uint32_t)(i % u->n);
        const struct need *need = &needs[group_of(u, number)->within];
        double bytes, steps;
        loads_of(u, number, &bytes, &steps);
        double ns = bytes * need->byte_ns + steps * need->message_ns;
        if (bytes <= 0 || need->byte_ns <= 0 || u->alone_ns[i] <= 0)
            continue;
        double ratio = fmin(fmax(ns / u->alone_ns[i], 0.1), 10);
        u->weights[i] = fmin(fmax(u->weights[i] * ratio, 1e-6), 1e6);
        most = fmax(most, fabs(ratio - 1));
    }
    return most;
}

/* ---- all of it ---- */

static void init_sharing(const struct fitting *f, struct shares_sharing *u)
{
    const struct dpro_model *m = f->model;
    struct arena *arena = &f->coarse->arena;
    uint32_t *ranks = arena_alloc(arena, f->g->n_ranks * sizeof *ranks), n_streams = 0;
    size_t n = m->n_communications + (size_t)m->n_tensors, all = n * f->r->n;
    for (uint32_t r = 0; r < f->g->n_ranks; r++)
        ranks[r] = r;
    *u = (struct shares_sharing){.f = f, .m = m, .n = (uint32_t)n};
    u->hosts = f->on_cpu ? f->g->rank_hosts : NULL;
    u->everyone = (struct model_group){.ranks = ranks, .n_ranks = f->g->n_ranks};
    u->weights = arena_array(arena, all, sizeof *u->weights);
    u->alone_ns = arena_array(arena, all, sizeof *u->alone_ns);
    u->parts = arena_array(arena, all, sizeof *u->parts);
    u->taken = arena_array(arena, n, sizeof *u->taken);
    u->flights = mem_array(f->g->n_ranks + (size_t)1, sizeof *u->flights);
    u->on_link = mem_array(4 * (size_t)f->g->n_ranks + 1, sizeof *u->on_link);
    u->first_stream = arena_array(arena, m->n_groups + (size_t)1, sizeof *u->first_stream);
    for (size_t i = 0; i < all; i++)
        u->weights[i] = 1;
    for (uint32_t i = 0; i < m->n_groups; i++) {
        u->first_stream[i] = n_streams;
        n_streams += m->groups[i].n_streams;
    }
    u->first_stream[m->n_groups] = n_streams;
    u->free_ns = arena_array(arena, n_streams, sizeof *u->free_ns);
}

void fit_shares(struct fitting *f)
{
    enum { MOST_ROUNDS = 20 };
    static const double SAME = 1e-3;
    struct shares_sharing u;
    uint32_t n_tensors = f->model->n_tensors, n = f->model->n_communications;
    init_sharing(f, &u);
    f->times = arena_array(&f->coarse->arena, (size_t)n * f->r->n, sizeof *f->times);
    f->shares = arena_array(&f->coarse->arena, (size_t)n * f->r->n, sizeof *f->shares);
    f->flown = arena_array(&f->coarse->arena, (size_t)n * f->r->n, sizeof *f->flown);
    f->lost_ns = arena_array(&f->coarse->arena, (size_t)n_tensors * f->r->n, sizeof *f->lost_ns);
    list_flights(&u);
    for (int round = 0; round < MOST_ROUNDS; round++) {
        u.bucket_ns = u.beside_ns = 0;
        for (uint32_t s = 0; s < f->r->n; s++) {
            list_taken(&u, s);
            share_iteration(&u);
            EACH_OF (const struct shares_taken, it, u.taken, u.n_taken) {
                double *part = &u.parts[(size_t)s * u.n + it->number];
                u.alone_ns[(size_t)s * u.n + it->number] = it->alone_ns;
                *part = it->took_ns > it->alone_ns ? it->alone_ns / it->took_ns : 1;
                if (it->number >= n) {
                    f->lost_ns[(size_t)s * n_tensors + it->number - n] = it->lost_ns;
                    continue;
                }
                f->times[(size_t)s * n + it->number] = it->alone_ns;
                f->shares[(size_t)s * n + it->number] = *part;
                f->flown[(size_t)s * n + it->number] = flown_part(&u, it);
            }
        }
        if (!u.any || set_weights(&u) < SAME)
            break;
    }
    if (u.beside_ns > 0)
        f->net->link.bucket_weight = u.bucket_ns / u.beside_ns;
    for (uint32_t l = 0; l < 4 * f->g->n_ranks; l++)
        array_fini(&u.on_link[l]);
    mem_free(u.on_link);
    for (uint32_t r = 0; r < f->g->n_ranks; r++)
        array_fini(&u.flights[r]);
    mem_free(u.flights);
    array_fini(&u.touched);
}
