/* What communications and buckets take with the links to themselves.
 *
 * One begins when its last rank has come to it and its stream has carried those before it; until
 * then it waits. From then on it is on its ranks' links. While several are on a link, each has an
 * equal share of it, as in the simulation. */
#include "base/intervals.h"
#include "cost/learn/fit.h"

/* What is on a link: all, and of these communications of groups. */
struct link_load {
    uint32_t n, beside;
    uint32_t turn; /* in which it was counted last: ranks may share it */
};

/* A communication or a bucket in one iteration. */
struct shares_taken {
    uint32_t number;          /* of the communication; behind them, of a bucket's first tensor */
    int64_t ready_ns;         /* its last rank has come */
    int64_t start_ns, end_ns; /* the start moves on */
    double alone_ns;          /* its time, had it had the links to itself */
    double took_ns, lost_ns;  /* with others; of a bucket, what it lost to communications */
    struct link_load here;    /* on the link that holds it up most, with itself */
};

ORDER(by_readiness, struct shares_taken, ASCENDING(ready_ns) ?: ASCENDING(number));
ORDER(by_start, struct shares_taken, ASCENDING(start_ns) ?: ASCENDING(number));

struct shares_sharing {
    const struct fitting *f;
    const struct dpro_model *m;
    const uint32_t *hosts; /* by rank: whose link it has to other hosts; NULL: its own */
    struct model_group everyone;
    struct shares_taken *taken; /* of an iteration, by start */
    uint32_t n_taken;
    uint32_t *active, n_active; /* of `taken`: under way */
    struct link_load *on_link;
    uint32_t turn;
    interval_array *flights; /* by rank: messages, from a send's begin to its receive's end */
    uint32_t *first_stream;  /* by group */
    int64_t *free_ns;        /* by stream */
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

/* Up to a moment all that are under way have had their shares; then one begins or ends. On the link
 * on which most are, each has an equal share. */
static void begin_or_end(struct shares_sharing *u, uint32_t which, bool begins, int64_t now_ns)
{
    uint32_t n_active = 0, one = begins ? 1 : UINT32_MAX;
    bool beside = u->taken[which].number < u->m->n_communications;
    const struct model_group *group = group_of(u, u->taken[which].number);
    for (uint32_t i = 0; i < u->n_active; i++) {
        struct shares_taken *it = &u->taken[u->active[i]];
        double ns = (double)(now_ns - it->start_ns);
        it->took_ns += ns;
        it->alone_ns += ns / it->here.n;
        if (it->number >= u->m->n_communications) /* all buckets lose, divided among them */
            it->lost_ns += ns * it->here.beside / it->here.n / (it->here.n - it->here.beside);
        it->start_ns = now_ns;
        if (u->active[i] != which)
            u->active[n_active++] = u->active[i];
    }
    if (begins)
        u->active[n_active++] = which;
    u->n_active = n_active;
    u->turn++;
    for (uint32_t i = 0; i < group->n_ranks; i++) {
        uint32_t links[2], n = links_of(u, group, i, links);
        for (uint32_t l = 0; l < n; l++) {
            struct link_load *on = &u->on_link[links[l]];
            on->n += on->turn != u->turn ? one : 0;
            on->beside += on->turn != u->turn && beside ? one : 0;
            on->turn = u->turn;
        }
    }
    for (uint32_t k = 0; k < n_active; k++) {
        struct shares_taken *it = &u->taken[u->active[k]];
        group = group_of(u, it->number);
        it->here = (struct link_load){0, 0, 0};
        for (uint32_t i = 0; i < group->n_ranks; i++) {
            uint32_t links[2], n = links_of(u, group, i, links);
            for (uint32_t l = 0; l < n; l++)
                if (u->on_link[links[l]].n > it->here.n)
                    it->here = u->on_link[links[l]];
        }
    }
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

/* ---- all of it ---- */

static void init_sharing(const struct fitting *f, struct shares_sharing *u)
{
    const struct dpro_model *m = f->model;
    struct arena *arena = &f->coarse->arena;
    uint32_t *ranks = arena_alloc(arena, f->g->n_ranks * sizeof *ranks), n_streams = 0;
    size_t n = m->n_communications + (size_t)m->n_tensors;
    for (uint32_t r = 0; r < f->g->n_ranks; r++)
        ranks[r] = r;
    *u = (struct shares_sharing){.f = f, .m = m, .hosts = f->on_cpu ? f->g->rank_hosts : NULL};
    u->everyone = (struct model_group){.ranks = ranks, .n_ranks = f->g->n_ranks};
    u->taken = arena_array(arena, n, sizeof *u->taken);
    u->active = arena_array(arena, n, sizeof *u->active);
    u->flights = mem_array(f->g->n_ranks + (size_t)1, sizeof *u->flights);
    u->on_link = arena_array(arena, 4 * (size_t)f->g->n_ranks, sizeof *u->on_link);
    u->first_stream = arena_array(arena, m->n_groups + (size_t)1, sizeof *u->first_stream);
    for (uint32_t i = 0; i < m->n_groups; i++) {
        u->first_stream[i] = n_streams;
        n_streams += m->groups[i].n_streams;
    }
    u->first_stream[m->n_groups] = n_streams;
    u->free_ns = arena_array(arena, n_streams, sizeof *u->free_ns);
}

void fit_shares(struct fitting *f)
{
    struct shares_sharing u;
    uint32_t n_tensors = f->model->n_tensors, n = f->model->n_communications;
    init_sharing(f, &u);
    f->times = arena_array(&f->coarse->arena, (size_t)n * f->r->n, sizeof *f->times);
    f->shares = arena_array(&f->coarse->arena, (size_t)n * f->r->n, sizeof *f->shares);
    f->flown = arena_array(&f->coarse->arena, (size_t)n * f->r->n, sizeof *f->flown);
    f->lost_ns = arena_array(&f->coarse->arena, (size_t)n_tensors * f->r->n, sizeof *f->lost_ns);
    list_flights(&u);
    for (uint32_t s = 0; s < f->r->n; s++) {
        list_taken(&u, s);
        share_iteration(&u);
        EACH_OF (const struct shares_taken, it, u.taken, u.n_taken) {
            size_t at = (size_t)s * n + it->number;
            if (it->number >= n) {
                f->lost_ns[(size_t)s * n_tensors + it->number - n] = it->lost_ns;
                continue;
            }
            f->times[at] = it->alone_ns;
            f->shares[at] = it->took_ns > it->alone_ns ? it->alone_ns / it->took_ns : 1;
            f->flown[at] = flown_part(&u, it);
        }
    }
    for (uint32_t r = 0; r < f->g->n_ranks; r++)
        array_fini(&u.flights[r]);
    mem_free(u.flights);
}
