/* cost/fit_groups.c: learns what communications of groups take, and the links that carry them.
 *
 * A communication begins when its last rank has come to it and its stream has carried those before
 * it; until then it waits. What it takes from then on, in the mean over the iterations, is its
 * latency and the time of its bytes.
 * Where others used the same links meanwhile, it is taken to have had an equal share of them. Links
 * are learnt from all communications together: those of several sizes tell a byte from latency. */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/sort.h"
#include "base/stats.h"
#include "cost/fit.h"

static double mean_of(const double *values, uint32_t n)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += values[i];
    return n > 0 ? sum / n : 0;
}

/* A communication in one iteration. */
struct taken {
    uint32_t communication;
    int64_t ready_ns; /* its last rank has come */
    int64_t start_ns, end_ns;
    double alone_ns; /* its time, had it had the links to itself */
};

ORDER(by_readiness, struct taken, ASCENDING(ready_ns) ?: ASCENDING(communication));
ORDER(by_start, struct taken, ASCENDING(start_ns) ?: ASCENDING(communication));

/* When the last of its ranks has it. */
static int64_t last_end(const struct fitting *f, uint32_t communication, uint32_t iteration)
{
    const struct graph_collective *c = &f->g->collectives[f->coarse->collective_of[communication]];
    const int64_t *end_ns = f->r->copies[f->r->first + iteration].end_ns;
    int64_t last = INT64_MIN;
    for (uint32_t i = c->first_member; i < c->first_member + c->n_members; i++)
        last = MAX(last, end_ns[f->g->members[i].transfer]);
    return last;
}

static void list_taken(const struct fitting *f, uint32_t iteration, struct taken *taken)
{
    const struct dpro_model *m = f->model;
    for (uint32_t k = 0; k < m->n_communications; k++)
        taken[k] = (struct taken){
            .communication = k, .ready_ns = INT64_MIN, .end_ns = last_end(f, k, iteration)};
    for (uint32_t i = 0; i < f->coarse->n_issues; i++) {
        const struct coarse_issue *issue = &f->coarse->issues[i];
        struct taken *of = &taken[issue->communication];
        of->ready_ns = MAX(of->ready_ns, issue->ready_ns[iteration]);
    }
}

/* When each begins: `free_ns` is room for the streams of all groups, from where each begins. */
static void find_starts(const struct fitting *f, struct taken *taken, const uint32_t *first_stream,
                        int64_t *free_ns)
{
    const struct dpro_model *m = f->model;
    qsort(taken, m->n_communications, sizeof *taken, by_readiness);
    for (uint32_t i = 0; i < first_stream[m->n_groups]; i++)
        free_ns[i] = INT64_MIN;
    for (uint32_t k = 0; k < m->n_communications; k++) {
        uint32_t group = m->communications[taken[k].communication].group;
        uint32_t stream = first_stream[group];
        for (uint32_t i = stream; i < first_stream[group + 1]; i++)
            if (free_ns[i] < free_ns[stream])
                stream = i;
        taken[k].start_ns = MIN(MAX(taken[k].ready_ns, free_ns[stream]), taken[k].end_ns);
        free_ns[stream] = MAX(free_ns[stream], taken[k].end_ns);
    }
}

/* Those that are under way, and on which links. */
struct under_way {
    const struct dpro_model *m;
    struct taken *taken;
    ARRAY(uint32_t) * on_link; /* by link: of `taken` */
    uint32_t *n_here;          /* by `taken`: how many share its links, with itself */
    uint32_t *seen, turn;
};

/* A rank has a link out and one in, and the same within its host. Of two ranks the first sends. */
static uint32_t links_of(const struct model_group *group, uint32_t member, uint32_t links[2])
{
    uint32_t first = 4 * group->ranks[member] + 2 * group->within, n = 0;
    if (!group->sends || member == 0)
        links[n++] = first;
    if (!group->sends || member > 0)
        links[n++] = first + 1;
    return n;
}

/* Up to now it has had its share. */
static void give_share(const struct under_way *u, uint32_t which, int64_t now_ns)
{
    struct taken *it = &u->taken[which];
    it->alone_ns += (double)(now_ns - it->start_ns) / u->n_here[which];
    it->start_ns = now_ns;
}

static void begin_or_end(struct under_way *u, uint32_t which, bool begins, int64_t now_ns)
{
    const struct model_group *group =
        &u->m->groups[u->m->communications[u->taken[which].communication].group];
    u->seen[which] = ++u->turn;
    if (!begins)
        give_share(u, which, now_ns);
    for (uint32_t i = 0; i < group->n_ranks; i++) {
        uint32_t links[2], n = links_of(group, i, links);
        for (uint32_t l = 0; l < n; l++) {
            uint32_t kept = 0, other;
            for (size_t k = 0; k < u->on_link[links[l]].n; k++) {
                other = u->on_link[links[l]].at[k];
                if (other != which)
                    u->on_link[links[l]].at[kept++] = other;
                if (u->seen[other] == u->turn)
                    continue;
                u->seen[other] = u->turn;
                give_share(u, other, now_ns);
                u->n_here[other] += begins ? 1 : UINT32_MAX;
                u->n_here[which]++;
            }
            u->on_link[links[l]].n = kept;
            if (begins)
                array_push(&u->on_link[links[l]], which);
        }
    }
}

struct end {
    int64_t end_ns;
    uint32_t which;
};

ORDER(by_end, struct end, ASCENDING(end_ns) ?: ASCENDING(which));

/* From moment to moment, each has an equal share of the links with those that are under way. */
static void share_time(const struct fitting *f, struct taken *taken)
{
    uint32_t n = f->model->n_communications, n_links = 4 * f->g->n_ranks, n_ends = 0, next = 0;
    struct under_way u = {.m = f->model, .taken = taken};
    struct end *ends = mem_alloc((n + (size_t)1) * sizeof *ends);
    u.on_link = mem_array(n_links + (size_t)1, sizeof *u.on_link);
    u.n_here = mem_alloc((n + (size_t)1) * sizeof *u.n_here);
    u.seen = mem_array(n + (size_t)1, sizeof *u.seen);
    qsort(taken, n, sizeof *taken, by_start);
    for (uint32_t k = 0; k < n; k++) {
        u.n_here[k] = 1;
        if (taken[k].end_ns > taken[k].start_ns)
            ends[n_ends++] = (struct end){taken[k].end_ns, k};
    }
    qsort(ends, n_ends, sizeof *ends, by_end);
    for (uint32_t e = 0; e < n_ends; e++) {
        for (; next < n && taken[next].start_ns < ends[e].end_ns; next++)
            if (taken[next].end_ns > taken[next].start_ns)
                begin_or_end(&u, next, true, taken[next].start_ns);
        begin_or_end(&u, ends[e].which, false, ends[e].end_ns);
    }
    for (uint32_t l = 0; l < n_links; l++)
        array_fini(&u.on_link[l]);
    mem_free(u.on_link);
    mem_free(u.n_here);
    mem_free(u.seen);
    mem_free(ends);
}

/* All that was taken, [iteration * n_communications + communication]. */
static double *measure_times(const struct fitting *f)
{
    const struct dpro_model *m = f->model;
    uint32_t n = m->n_communications, n_streams = 0;
    double *times = arena_array(&f->coarse->arena, (size_t)n * f->r->n, sizeof *times);
    struct taken *taken = mem_alloc(n * sizeof *taken);
    uint32_t *first_stream = mem_alloc((m->n_groups + (size_t)1) * sizeof *first_stream);
    for (uint32_t i = 0; i < m->n_groups; i++) {
        first_stream[i] = n_streams;
        n_streams += m->groups[i].n_streams;
    }
    first_stream[m->n_groups] = n_streams;
    int64_t *free_ns = mem_alloc(n_streams * sizeof *free_ns);
    for (uint32_t s = 0; s < f->r->n; s++) {
        list_taken(f, s, taken);
        find_starts(f, taken, first_stream, free_ns);
        share_time(f, taken);
        for (uint32_t k = 0; k < n; k++)
            times[(size_t)s * n + taken[k].communication] = taken[k].alone_ns;
    }
    mem_free(taken);
    mem_free(first_stream);
    mem_free(free_ns);
    return times;
}

/* When each rank has it: of ranks that take turns in being the last, all are. What the first one
 * has it earlier than the last is no part of its time. */
static void measure_lags(const struct fitting *f)
{
    struct dpro_model *m = f->model;
    double *room = mem_alloc((f->r->n + (size_t)1) * sizeof *room);
    double *most = mem_array(m->n_communications + (size_t)1, sizeof *most);
    int64_t *last_ns = mem_array((size_t)m->n_communications * f->r->n + 1, sizeof *last_ns);
    for (uint32_t k = 0; k < m->n_communications; k++)
        for (uint32_t s = 0; s < f->r->n; s++)
            last_ns[(size_t)k * f->r->n + s] = last_end(f, k, s);
    for (uint32_t i = 0; i < f->coarse->n_issues; i++) {
        struct coarse_issue *issue = &f->coarse->issues[i];
        for (uint32_t s = 0; s < f->r->n; s++) {
            const int64_t *end_ns = f->r->copies[f->r->first + s].end_ns;
            room[s] = (double)(last_ns[(size_t)issue->communication * f->r->n + s] -
                               end_ns[issue->transfer]);
        }
        issue->lag_ns = stats_median(room, f->r->n);
        most[issue->communication] = fmax(most[issue->communication], issue->lag_ns);
    }
    for (uint32_t i = 0; i < f->coarse->n_issues; i++) {
        struct coarse_issue *issue = &f->coarse->issues[i];
        issue->lag_ns =
            fmin(most[issue->communication], m->communications[issue->communication].took_ns) -
            issue->lag_ns;
        issue->lag_ns = fmax(issue->lag_ns, 0);
    }
    for (uint32_t k = 0; k < m->n_communications; k++)
        m->communications[k].took_ns = fmax(0, m->communications[k].took_ns - most[k]);
    mem_free(last_ns);
    mem_free(most);
    mem_free(room);
}

/* ---- links ---- */

#define ONE_SIZE(where)                                                                            \
    "all communications " where " are of one size: how their time splits into latency and bytes "  \
    "is assumed, and intervals of other bandwidths are wider for it"
#define UNKNOWN_SIZES                                                                              \
    "the trace does not say how large some communications are: their time is taken for that of "   \
    "bytes, at the bandwidth of the others"

/* Learns a byte's and a message's time of links within hosts, or of the others. */
static void fit_link(const struct fitting *f, const double *times, bool within,
                     struct dpro_estimate *byte_ns, struct dpro_estimate *message_ns)
{
    const struct dpro_model *m = f->model;
    struct dpro_estimate base, usual = f->on_cpu ? FIT_TCP_MESSAGE_NS : FIT_PROXY_MESSAGE_NS;
    fit_points points = {0};
    double steps = 0, bytes = 0, least = DBL_MAX;
    for (uint32_t k = 0; k < m->n_communications; k++) {
        const struct model_communication *c = &m->communications[k];
        for (uint32_t s = 0; s < f->r->n && m->groups[c->group].within == within; s++) {
            double took = fmax(0, times[(size_t)s * m->n_communications + k] - c->waits_ns);
            if (c->n_steps > 0 && took > 0)
                least = fmin(least, took / c->n_steps);
            if (c->link_bytes <= 0)
                continue;
            struct fit_point point = {c->link_bytes, took, 1 / (c->link_bytes + 1), 0};
            array_push(&points, point);
            steps += c->n_steps;
            bytes += c->link_bytes;
        }
    }
    /* no message takes longer than half of the shortest that was seen */
    if (least < DBL_MAX && usual.value > least / 2)
        usual = (struct dpro_estimate){least / 2, least / 2};
    *message_ns = usual;
    *byte_ns = (struct dpro_estimate){0};
    if (points.n == 0)
        return;
    fit_line(&points, byte_ns, &base);
    steps /= (double)points.n;
    if (fit_has_spread(&points)) {
        struct dpro_estimate seen = {base.value / steps, base.std / steps + 1};
        *message_ns = fit_combine(usual, seen);
    } else {
        double mean = bytes / (double)points.n;
        array_push(&f->model->warnings, within ? ONE_SIZE("within hosts") : ONE_SIZE("on links"));
        byte_ns->value = fmax(byte_ns->value - steps * usual.value / mean, byte_ns->value / 2);
        byte_ns->std = hypot(byte_ns->std, steps * usual.std / mean);
    }
    array_fini(&points);
}

/* Their bytes are those that their time would carry. */
static void fit_unknown_sizes(const struct fitting *f)
{
    struct dpro_model *m = f->model;
    struct model_link *link = &f->net->link;
    bool any = false;
    for (uint32_t k = 0; k < m->n_communications; k++) {
        struct model_communication *c = &m->communications[k];
        const struct model_group *group = &m->groups[c->group];
        struct dpro_estimate *byte_ns = group->within ? &link->within_ns : &link->byte_ns;
        double message_ns = group->within ? link->within_message_ns.value : link->message_ns.value;
        if (c->size_bytes > 0 || c->n_steps <= 0 || strcmp(c->kind, "barrier") == 0)
            continue;
        link->is_rate_unknown |= byte_ns->value <= 0;
        if (byte_ns->value <= 0)
            *byte_ns = fit_within(1, 0.5);
        c->link_bytes =
            fmax(0, c->took_ns - c->waits_ns - c->n_steps * message_ns) / byte_ns->value;
        any = true;
    }
    if (any)
        array_push(&m->warnings, UNKNOWN_SIZES);
}

/* Of each kind, what the rank has for which it takes longest; of several such the first. */
static void list_kinds(const struct fitting *f)
{
    struct dpro_model *m = f->model;
    uint32_t *kind_of = mem_alloc((m->n_communications + (size_t)1) * sizeof *kind_of);
    struct dpro_communications *own = mem_alloc(f->g->n_ranks * sizeof *own);
    m->kinds = arena_array(&m->arena, m->n_communications + (size_t)1, sizeof *m->kinds);
    m->n_kinds = 0;
    for (uint32_t k = 0; k < m->n_communications; k++) {
        uint32_t i = 0;
        while (i < m->n_kinds && strcmp(m->kinds[i].kind, m->communications[k].kind) != 0)
            i++;
        kind_of[k] = i;
        if (i == m->n_kinds)
            m->kinds[m->n_kinds++].kind = m->communications[k].kind;
    }
    for (uint32_t i = 0; i < m->n_kinds; i++) {
        for (uint32_t r = 0; r < f->g->n_ranks; r++)
            own[r] = (struct dpro_communications){.kind = m->kinds[i].kind};
        for (uint32_t k = 0; k < m->n_communications; k++) {
            const struct model_communication *c = &m->communications[k];
            const struct model_group *group = &m->groups[c->group];
            for (uint32_t r = 0; r < group->n_ranks && kind_of[k] == i; r++) {
                struct dpro_communications *of = &own[group->ranks[r]];
                of->n++;
                of->size_bytes += c->size_bytes;
                of->took_ns += llround(c->took_ns);
            }
        }
        for (uint32_t r = 0; r < f->g->n_ranks; r++)
            if (own[r].n > 0 && (m->kinds[i].n == 0 || own[r].took_ns > m->kinds[i].took_ns))
                m->kinds[i] = own[r];
    }
    mem_free(own);
    mem_free(kind_of);
}

static void copy_hosts(const struct fitting *f)
{
    const struct dpro_graph *g = f->g;
    if (!g->rank_hosts)
        return;
    uint32_t *hosts = arena_alloc(&f->model->arena, g->n_ranks * sizeof *hosts);
    memcpy(hosts, g->rank_hosts, g->n_ranks * sizeof *hosts);
    f->net->link.rank_hosts = hosts;
}

void fit_groups(const struct fitting *f)
{
    struct dpro_model *m = f->model;
    struct model_link *link = &f->net->link;
    const double *times = measure_times(f);
    double *room = mem_alloc((f->r->n + (size_t)1) * sizeof *room);
    for (uint32_t k = 0; k < m->n_communications; k++) {
        for (uint32_t s = 0; s < f->r->n; s++)
            room[s] = times[(size_t)s * m->n_communications + k];
        m->communications[k].took_ns = mean_of(room, f->r->n);
    }
    mem_free(room);
    measure_lags(f);
    copy_hosts(f);
    link->own_links = !f->on_cpu;
    struct model_link seen = {0};
    fit_link(f, times, false, &seen.byte_ns, &seen.message_ns);
    fit_link(f, times, true, &link->within_ns, &link->within_message_ns);
    if (link->byte_ns.std > 0 && seen.byte_ns.std > 0) /* buckets tell, too */
        link->byte_ns = fit_combine(link->byte_ns, seen.byte_ns);
    else if (link->byte_ns.value <= 0)
        link->byte_ns = seen.byte_ns;
    if (m->n_tensors == 0) {
        link->message_ns = seen.message_ns;
        fit_interference(f);
    }
    fit_unknown_sizes(f);
    f->net->learnt = *link;
    f->net->took_ratio = 1;
    list_kinds(f);
}
