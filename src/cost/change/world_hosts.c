/* The ranks of another world, and the hosts that they are on. */
#include "cost/change/world_hosts.h"

#include "cost/program/cost.h"
#include "cost/program/model_memory.h"

/* Ranks that the trace has on one host the topology has there, too, and no others. */
static void check_told_hosts(const struct world *w, const uint32_t *hosts)
{
    uint32_t per_host = w->told->ranks_per_host;
    for (uint32_t r = 0; r < w->n_before; r++)
        for (uint32_t i = 0; i < r; i++) {
            int a = (int)w->number[i], b = (int)w->number[r];
            bool one = hosts[i] == hosts[r];
            if (one != ((uint32_t)a / per_host == (uint32_t)b / per_host))
                refuse("the trace has ranks %d and %d on %s, but the topology, with %u a host, has "
                       "them on %s: give a topology with the job's own ranks_per_host",
                       a, b, one ? "one host" : "two hosts", per_host, one ? "two" : "one");
        }
}

/* How buckets of all ranks pass over hosts. */
static void ask_buckets(struct world *w)
{
    struct model_collective *collective = &w->m->net.collective;
    bool rings = strcmp(w->collectives, "ring") == 0;
    bool known = w->m->n_communications == 0 && strcmp(w->collectives, "tree") != 0;
    if (!known && !rings)
        refuse("buckets of gradients are predicted over hosts in one ring, or hierarchical if "
               "nothing else communicates: --collectives %s is not supported",
               w->collectives);
    if (!known)
        return;
    w->passes = true;
    collective->algorithm = rings ? MODEL_RING : MODEL_HIERARCHICAL;
    collective->ranks_per_host = w->told->ranks_per_host;
}

void world_check_buckets(struct world *w)
{
    const struct model_net *net = &w->m->net;
    uint32_t per_host = w->told->ranks_per_host;
    enum model_algorithm algorithm = net->collective.algorithm;
    bool rings = algorithm == MODEL_RING || algorithm == MODEL_TREE ||
                 (algorithm == MODEL_DIRECT && w->r->before == 2); /* which can't be told apart */
    bool several = w->size > per_host && per_host > 1;
    if (algorithm == MODEL_SERVER)
        refuse("a topology is not for jobs with parameter servers: --bandwidth and "
               "--server-bandwidth change their links");
    if (w->m->n_tensors == 0 || net->link.is_within)
        return;
    if (w->collectives && several)
        ask_buckets(w);
    rings |= net->collective.algorithm == MODEL_HIERARCHICAL;
    if (w->m->n_communications > 0 ? w->size <= per_host || (several && net->link.own_links)
                                   : several && !rings)
        refuse("the trace does not tell what of the gradients' buckets passes between hosts of %u "
               "ranks: give --bandwidth instead of a topology",
               per_host);
}

void world_take_hosts(struct world *w)
{
    struct model_net *net = &w->m->net;
    uint32_t per_host = w->told->ranks_per_host, n = w->g ? w->r->world : w->n_before;
    if (!w->g && w->m->n_communications > 0)
        refuse("a topology needs the graph of the job");
    if (w->size > per_host && w->size % per_host != 0)
        refuse("%u ranks are no whole number of hosts of %u ranks each, as the topology "
               "has them",
               w->size, per_host);
    bool told = w->g && w->g->rank_hosts && w->n_before == w->g->n_ranks;
    if (told)
        check_told_hosts(w, w->g->rank_hosts);
    if (told || w->m->n_communications == 0)
        return;
    if (n > per_host)
        refuse("the trace does not tell which of its %u ranks are on one host, and the topology "
               "has %u there, so the speed of links within hosts is unknown",
               n, per_host);
    if (w->size > per_host) /* else links stay as they were learnt: each rank's own */
        net->link.rank_hosts = arena_array(w->arena, w->n_before, sizeof *net->link.rank_hosts);
    net->link.is_within = net->learnt.is_within = w->assumes_host = true;
}

static void see_host(struct world *w, uint64_t number, uint32_t *n)
{
    uint64_t host = number / w->told->ranks_per_host;
    if (number >= w->size || w->seen[host] == w->turn)
        return;
    w->seen[host] = w->turn;
    ++*n;
}

static void see_hosts(struct world *w, uint64_t rank, uint32_t place, const struct members *m,
                      uint32_t *n_hosts)
{
    uint32_t first = place - place % m->of;
    for (uint32_t p = first + place % m->step; p < first + m->of; p += m->step)
        see_host(w, replicas_number(w->r, w->stride, rank, p), n_hosts);
}

uint32_t world_hosts_in_row(struct world *w, uint64_t rank, const struct members *m)
{
    uint32_t n_hosts = 0;
    for (uint32_t p = 0; p < w->r->after; p++) {
        uint32_t n = 0;
        if (p % m->of >= m->step) /* of a group that has been seen */
            continue;
        w->turn++;
        see_hosts(w, rank, p, m, &n);
        if (p > 0 && n != n_hosts)
            return 0;
        n_hosts = n;
    }
    return n_hosts;
}

uint32_t world_count_hosts(struct world *w, const struct model_group *group,
                           const struct members *m)
{
    uint32_t n_hosts = 0;
    const struct graph_dimension *d =
        group->dimension != UINT32_MAX ? &w->g->dimensions[group->dimension] : NULL;
    uint32_t stride = d ? replicas_stride(d, w->r->world) : 0;
    if (m->n == w->size)
        return (m->n + w->told->ranks_per_host - 1) / w->told->ranks_per_host;
    /* of members that are not all known, one tells where its group is */
    uint32_t n_known = group->n_ranks != group->n_members && d ? 1 : group->n_ranks;
    w->turn++;
    for (uint32_t i = 0; i < n_known; i++) {
        uint64_t rank = w->number[group->ranks[i]];
        if (m->n != group->n_members) {
            see_hosts(w, rank, w->place[group->ranks[i]], m, &n_hosts);
        } else if (group->n_ranks == m->n) {
            see_host(w, replicas_number(w->r, w->stride, rank, MODEL_NONE), &n_hosts);
        } else if (stride > 0) { /* not all of the dimension's group were recorded */
            uint64_t first = rank - rank / stride % d->size * stride;
            for (uint32_t k = 0; k < d->size; k++)
                see_host(w,
                         replicas_number(w->r, w->stride, first + (uint64_t)k * stride, MODEL_NONE),
                         &n_hosts);
        }
    }
    return n_hosts;
}

/* Members of a group on each of several hosts, and the links to other hosts that they share. */
struct spread_out {
    double here, links;
    double within;  /* time of a byte within a host against that on a link to others */
    double latency; /* of a message, likewise */
};

static struct spread_out spread_of(const struct world *w, double n, double n_hosts)
{
    const struct topology *t = w->told;
    bool own = w->m->net.link.own_links;
    bool known = t->within.latency_ns > 0 && t->between.latency_ns > 0;
    return (struct spread_out){n / n_hosts, own ? n / n_hosts : 1,
                               topology_rate(t, own) / told_rate(&t->within),
                               known ? fmin(1, t->within.latency_ns / t->between.latency_ns) : 1};
}

struct traffic world_ring_traffic(const struct world *w, uint8_t kind, struct traffic t, double n,
                                  double n_hosts)
{
    struct spread_out s = spread_of(w, n, n_hosts);
    double away = (n - s.here) / (n - 1);
    if (collective_is_one(kind, DPRO_SEND, DPRO_RECV, DPRO_SEND_RECV))
        return t;
    if (collective_is_one(kind, DPRO_GATHER, DPRO_SCATTER))
        return (struct traffic){t.share * away, t.n_steps};
    if (kind == DPRO_ALL_TO_ALL)
        return (struct traffic){t.share * away * s.here / s.links, t.n_steps};
    t.share *= fmax(1 / s.links, s.within);
    t.n_steps *= topology_latency(w->told, n, n_hosts);
    return t;
}

struct traffic world_tree_traffic(const struct world *w, double n, double n_hosts)
{
    struct spread_out s = spread_of(w, n, n_hosts);
    return (struct traffic){2 * fmax(1 / s.links, s.within),
                            2 * ((s.here - 1) * s.latency + ceil(log2(n_hosts)))};
}

bool world_hierarchical_traffic(const struct world *w, uint8_t kind, double n, double n_hosts,
                                struct traffic *t)
{
    struct spread_out s = spread_of(w, n, n_hosts);
    double inner = s.here - 1, outer = n_hosts - 1, n_steps = outer + inner * s.latency;
    double reduced = inner / s.here * s.within + outer / n_hosts / s.links;
    if (kind == DPRO_ALL_GATHER)
        *t = (struct traffic){inner * n_hosts * s.within + outer * s.here / s.links, n_steps};
    else if (collective_is_one(kind, DPRO_ALL_REDUCE, DPRO_REDUCE_SCATTER))
        *t = kind == DPRO_ALL_REDUCE ? (struct traffic){2 * reduced, 2 * n_steps}
                                     : (struct traffic){reduced, n_steps};
    else
        return false;
    return true;
}

/* ---- ranks ---- */

void world_find_places(struct world *w)
{
    const struct dpro_model *m = w->m;
    SCRATCH struct map at = {0};
    const struct graph_dimension *d = NULL;
    if (w->r->dimension != UINT32_MAX) {
        d = &w->g->dimensions[w->r->dimension];
        for (uint32_t i = 0; i < d->n_groups * d->size; i++)
            map_set(&at, map_key((uint64_t)d->ranks[i]), i);
    }
    for (uint32_t r = 0; r < m->n_ranks; r++) {
        uint64_t i = r;
        if (d && !map_get(&at, map_key(w->number[r]), &i))
            refuse("rank %d is in no replica, so other numbers of ranks can't be asked for; "
                   "--dims says how the job is parallel",
                   m->ranks[r].rank);
        w->place[r] = (uint32_t)(i % w->r->before);
        w->row[r] = (uint32_t)(i / w->r->before);
    }
}

/* The memories that ranks of a smaller job still have. */
static void keep_memories(struct dpro_model *m, struct arena *arena)
{
    uint32_t *kept_as = arena_array(arena, m->n_memories + (size_t)1, sizeof *kept_as);
    struct model_memory *kept = arena_array(arena, m->n_memories, sizeof *kept);
    uint32_t n = 0;
    for (uint32_t r = 0; r < m->n_ranks && m->n_memories > 0; r++) {
        uint32_t *as = &kept_as[m->ranks[r].memory];
        if (*as == 0) {
            kept[n] = m->memories[m->ranks[r].memory];
            kept[n].rank = r;
            *as = ++n;
        }
        m->ranks[r].memory = *as - 1;
    }
    m->memories = kept;
    m->n_memories = n;
}

/* Where hosts are known, a copy is on a copy of its host. */
static void copy_hosts(const struct world *w, const uint32_t *old_of,
                       const struct model_rank *ranks, uint32_t n)
{
    struct model_link *link = &w->m->net.link;
    if (!link->rank_hosts)
        return;
    SCRATCH struct map first = {0};
    uint32_t *hosts = arena_array(w->arena, n, sizeof *hosts);
    for (uint32_t r = 0; r < n; r++) {
        uint32_t old = old_of[r];
        uint64_t host = w->told ? replicas_number(w->r, w->stride, w->number[old], MODEL_NONE) /
                                      w->told->ranks_per_host
                                : link->rank_hosts[old];
        uint64_t of = r, key = host + ((uint64_t)ranks[r].copy << 32);
        if (!map_get(&first, map_key(key), &of))
            map_set(&first, map_key(key), r);
        hosts[r] = (uint32_t)of;
    }
    link->rank_hosts = hosts;
}

const uint64_t *world_copy_ranks(struct world *w)
{
    struct dpro_model *m = w->m;
    uint32_t n_rows = 0, most = 0, n = 0, n_old = m->n_ranks;
    for (uint32_t r = 0; r < n_old; r++)
        n_rows = MAX(n_rows, w->row[r] + 1);
    uint32_t *first = arena_array(w->arena, n_rows + (size_t)1, sizeof *first);
    uint32_t *of_row = arena_array(w->arena, n_old, sizeof *of_row);
    uint32_t *wanted = arena_array(w->arena, n_rows, sizeof *wanted);
    uint64_t total = 0;
    for (uint32_t r = 0; r < n_old; r++)
        first[w->row[r] + 1]++;
    for (uint32_t q = 0; q < n_rows; q++) {
        uint64_t here = (uint64_t)first[q + 1] * w->r->after;
        wanted[q] = (uint32_t)((here + w->r->before - 1) / w->r->before);
        most = MAX(most, wanted[q]);
        total += wanted[q];
        first[q + 1] += first[q];
    }
    uint32_t *n_in = arena_array(w->arena, n_rows, sizeof *n_in);
    struct model_rank *ranks = arena_array(w->arena, total, sizeof *ranks);
    uint32_t *old_of = arena_array(w->arena, total, sizeof *old_of);
    uint64_t *number = arena_array(w->arena, total, sizeof *number);
    memset(w->new_of, 0xff, n_old * sizeof *w->new_of);
    for (uint32_t r = 0; r < n_old; r++) {
        uint32_t q = w->row[r];
        of_row[first[q] + n_in[q]] = r;
        if (n_in[q]++ >= wanted[q])
            continue;
        old_of[n] = r;
        ranks[n] = m->ranks[r];
        ranks[n].like = ranks[n].copy > 0 ? w->new_of[ranks[n].like] : 0;
        number[n] = replicas_number(w->r, w->stride, w->number[r], MODEL_NONE);
        w->new_of[r] = n++;
    }
    int last = m->ranks[n_old - 1].rank;
    for (uint32_t p = 0; p < most; p++)
        for (uint32_t q = 0; q < n_rows; q++) {
            uint32_t n_here = n_in[q];
            if (p < n_here || p >= wanted[q])
                continue;
            uint32_t old = of_row[first[q] + p % n_here];
            old_of[n] = old;
            ranks[n] = m->ranks[old];
            ranks[n].rank = ++last;
            ranks[n].like = w->new_of[old];
            number[n] = replicas_number(w->r, w->stride, w->number[old], p);
            ranks[n++].copy += p / n_here;
        }
    copy_hosts(w, old_of, ranks, n);
    m->ranks = ranks;
    m->n_ranks = n;
    keep_memories(m, w->arena);
    return number;
}
