/* Links whose transfers take longer than those of other links of their class. */
#include "diagnose/causes.h"

#include <float.h>

/* Those who take part in a transfer, and of what class it is. */
struct timed_link {
    uint64_t class, who;
    uint32_t from, to; /* ranks of a message; the first and the last of a collective's; indices */
    bool is_pair, of_two, of_unknown_size; /* a message; two ranks' */
};

static bool share_host(const struct dpro_graph *g, uint32_t rank, uint32_t other)
{
    return g->rank_hosts && g->rank_hosts[rank] == g->rank_hosts[other];
}

static struct timed_link pair_link(const struct dpro_graph *g, uint32_t kind, uint32_t from,
                                   uint32_t to)
{
    bool near = share_host(g, from, to);
    return (struct timed_link){.class = kind * 4 + near,
                               .who = (uint64_t)from << 32 | to,
                               .from = from,
                               .to = to,
                               .is_pair = true,
                               .of_two = true};
}

/* The ranks of a collective: process groups have names, but not of all frameworks. */
static struct timed_link group_link(const struct dpro_graph *g, uint32_t kind,
                                    const struct graph_collective *c)
{
    const struct graph_member *members = &g->members[c->first_member];
    uint32_t first = g->rank[members[0].arrival], last = g->rank[members[c->n_members - 1].arrival];
    if (c->n_members == 2 && collective_is_one(c->kind, DPRO_SEND, DPRO_RECV))
        return c->kind == DPRO_SEND ? pair_link(g, kind, first, last)
                                    : pair_link(g, kind, last, first);
    struct timed_link link = pair_link(g, 0, first, last);
    link.class = ((2 + link.class) * 64 + c->kind) * 65536 + c->n_members;
    link.who ^= map_mix(c->group + UINT64_C(1));
    link.is_pair = false;
    link.of_two = c->n_members == 2;
    return link;
}

static void note_message(void *arg, dpro_op_id send, dpro_op_id receive)
{
    uint32_t *peer = arg;
    peer[send] = receive;
    peer[receive] = send;
}

/* Of an op that transfers; of class 0: nobody knows who does. What stages of a timeline send each
 * other, activations and their gradients, is of one size; what they reduce isn't known. */
static struct timed_link link_of(const struct diagnosed *d, uint32_t op, uint32_t peer,
                                 const struct graph_collective *c)
{
    const struct dpro_graph *g = d->g;
    struct timed_link link = {.class = 0};
    if (peer != DPRO_NO_OP && g->rank[peer] < g->n_ranks) {
        bool sends = g->kind[op] == DPRO_OP_SEND;
        link = pair_link(g, g->kind[op], g->rank[sends ? op : peer], g->rank[sends ? peer : op]);
    } else if (c && !graph_is_of_message(g, op) && c->n_messages == 0) {
        link = group_link(g, g->kind[op], c);
    }
    link.of_unknown_size = size_of(d, op) == 0 && !(g->of_stages && link.is_pair);
    if (link.of_unknown_size && !g->of_stages)
        return (struct timed_link){.class = 0};
    if (link.class > 0)
        link.class =
            map_mix(link.class ^ map_mix(size_of(d, op)) ^ (g->dimension ? g->dimension[op] : 0));
    return link;
}

ORDER(by_class, struct time_group, ASCENDING(key) ?: ASCENDING(rank));

/* The mean time of a link's transfers, and whether it is longer than that in nearly all iterations,
 * by more than chance explains. */
static double transfer_ns(const struct time_group *group, uint32_t n, double usual_ns, bool *longer)
{
    double n_ops = (double)group->times.n;
    struct mean_std of = stats_mean_std_i64(group->ns, n);
    uint32_t n_longer = 0;
    for (uint32_t s = 0; s < n; s++)
        n_longer += (double)group->ns[s] > usual_ns * n_ops;
    *longer = n_longer * 4 >= n * 3 && of.mean / n_ops - usual_ns >= 3 * of.std / n_ops / sqrt(n);
    return of.mean / n_ops;
}

/* What most links of a class take; where more than half are those of one rank or host, and all of
 * these slower than all others, what most of the others do. */
static double usual_transfer(const struct dpro_graph *g, const struct time_group *groups, size_t n,
                             const struct timed_link *links, const double *ns)
{
    SCRATCH double *some = mem_array(n + 1, sizeof *some);
    size_t slowest = 0;
    for (size_t k = 1; k < n; k++)
        slowest = ns[k] > ns[slowest] ? k : slowest;
    const struct timed_link *worst = &links[groups[slowest].rank];
    for (int end = 0; end < 2 && worst->of_two; end++) {
        uint32_t rank = end ? worst->to : worst->from;
        size_t n_others = 0;
        double most = 0, least = DBL_MAX;
        for (size_t k = 0; k < n; k++) {
            const struct timed_link *link = &links[groups[k].rank];
            if (link->from == rank || link->to == rank || share_host(g, link->from, rank) ||
                share_host(g, link->to, rank)) {
                least = MIN(least, ns[k]);
            } else {
                most = MAX(most, ns[k]);
                some[n_others++] = ns[k];
            }
        }
        if (n_others > 1 && least > 1.2 * most)
            return select_double(some, n_others, (n_others - 1) / 2);
    }
    memcpy(some, ns, n * sizeof *some);
    return select_double(some, n, (n - 1) / 2);
}

/* Links whose transfers take a fifth longer than those of most links of their class, of three or
 * more; where sizes aren't known, three times as long. */
void find_slow_links(const struct diagnosed *d, struct cause_found *found)
{
    SCRATCH_ARENA struct arena arena = {0};
    const struct dpro_graph *g = d->g;
    uint32_t *peer = arena_array(&arena, g->n_ops + (size_t)1, sizeof *peer);
    SCRATCH struct map numbers = {0};
    SCRATCH struct map of_groups = {0};
    SCRATCH ARRAY(struct timed_link) links = {0};
    time_groups groups = {0};
    bool longer;
    memset(peer, 0xff, g->n_ops * sizeof *peer);
    graph_each_message(g, note_message, peer);
    for (uint32_t op = 0; op < g->n_ops; op++) {
        if (!is_timed(d, op) || g->rank[op] >= g->n_ranks)
            continue;
        struct timed_link link =
            link_of(d, op, peer[op],
                    d->collective_of[op] > 0 ? &g->collectives[d->collective_of[op] - 1] : NULL);
        if (link.class == 0)
            continue;
        size_t at = (size_t)map_number(&numbers, map_mix(link.who * 2 + link.is_pair) | 1);
        if (at == links.n)
            array_push(&links, link);
        links.at[at].of_unknown_size |= link.of_unknown_size;
        groups_add(&groups, &of_groups, link.class, (uint32_t)at, op);
    }
    groups_sum(&groups, d, false, &arena);
    array_sort(&groups, by_class);
    SCRATCH double *usual = mem_array(groups.n + (size_t)1, sizeof *usual);
    for (size_t i = 0, end; i < groups.n; i = end) {
        end = RUN_END(k, i, (size_t)groups.n, groups.at[k].key == groups.at[i].key);
        for (size_t k = i; k < end; k++)
            usual[k - i] = transfer_ns(&groups.at[k], d->n_iterations, 0, &longer);
        double most = usual_transfer(g, &groups.at[i], end - i, links.at, usual);
        for (size_t k = i; k < end && end - i > 2; k++) {
            const struct timed_link *link = &links.at[groups.at[k].rank];
            double mean = transfer_ns(&groups.at[k], d->n_iterations, most, &longer);
            double share = 1 - most / mean;
            if (!longer || mean < (link->of_unknown_size ? 3 : 1.2) * most)
                continue;
            EACH (const uint32_t, op, groups.at[k].times)
                piece_share(found, d, *op,
                            found_part(found, map_key(link->who),
                                       link->is_pair ? "rank %d to rank %d" : "ranks %d to %d",
                                       g->ranks[link->from].rank, g->ranks[link->to].rank),
                            &share, true);
        }
    }
    groups_fini(&groups);
}
