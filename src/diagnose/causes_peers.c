/* Ranks beside their peers, which do the same work: ops of one name and phase, as many of them. A
 * rank that takes longer for them in most iterations, by more than chance explains, is slow. */
#include "diagnose/causes.h"

/* What a rank takes of what it shares with peers: by iteration, and how much of it more than they
 * do; share of a group: how much of its time is more than its peers usually take. */
struct beside {
    uint32_t n;         /* iterations */
    double *own, *more; /* [rank * n + iteration] */
    double *share;      /* by group */
};

/* Of each kind of op the lower median counts, so that all ranks take a little longer than their
 * peers: what the fastest of them does, of what its peers take, is taken off all. */
static void beside_the_fastest(struct beside *b, const struct peers *p, uint32_t n_ranks,
                               uint32_t n)
{
    double least = 1;
    SCRATCH double *longer = mem_array(n_ranks + (size_t)1, sizeof *longer);
    for (uint32_t r = 0; r < n_ranks; r++) {
        double own = stats_mean_std(b->own + (size_t)r * n, n).mean;
        double more = stats_mean_std(b->more + (size_t)r * n, n).mean;
        longer[r] = own > more ? more / (own - more) : 1;
        least = MIN(least, longer[r]);
    }
    least = MAX(least, 0);
    for (size_t k = 0; k < p->groups.n; k++) {
        double its = longer[p->groups.at[k].rank];
        b->share[k] *= its > 0 ? MAX(1 - least / its, 0) : 0;
    }
    for (size_t i = 0; i < (size_t)n_ranks * n; i++)
        b->more[i] -= least * (b->own[i] - b->more[i]);
}

/* Beside the lower median of the peers, or the fastest of them. */
static struct beside beside_some(const struct peers *p, const struct diagnosed *d, bool fastest,
                                 struct arena *arena)
{
    uint32_t n = d->n_iterations;
    size_t n_all = (size_t)d->g->n_ranks * n + 1;
    struct beside b = {n, arena_array(arena, n_all, sizeof *b.own),
                       arena_array(arena, n_all, sizeof *b.more),
                       arena_array(arena, p->groups.n + 1, sizeof *b.share)};
    SCRATCH int64_t *ns = mem_array(d->g->n_ranks + (size_t)1, sizeof *ns);
    for (size_t i = 0, end; i < p->groups.n; i = end) {
        const struct time_group *groups = p->groups.at;
        end = RUN_END(k, i, (size_t)p->groups.n, groups[k].key == groups[i].key);
        if (end - i < 2)
            continue;
        for (uint32_t s = 0; s <= n; s++) { /* the last is that of the means */
            for (size_t k = i; k < end; k++)
                ns[k - i] = s < n ? groups[k].ns[s] : groups[k].mean_ns;
            int64_t usual = select_i64(ns, end - i, fastest ? 0 : (end - i - 1) / 2);
            for (size_t k = i; k < end; k++) {
                size_t at = (size_t)groups[k].rank * n + s;
                if (s < n) {
                    b.own[at] += (double)groups[k].ns[s];
                    b.more[at] += (double)(groups[k].ns[s] - usual);
                } else if (groups[k].mean_ns > usual) {
                    b.share[k] = (double)(groups[k].mean_ns - usual) / (double)groups[k].mean_ns;
                }
            }
        }
    }
    beside_the_fastest(&b, p, d->g->n_ranks, n);
    return b;
}

#define LEAST_SLOW 0.02 /* of what its peers take */

/* Whether the rank takes longer than its peers (sign -1: less long) from an iteration on: in most
 * of them, and in the mean, by `least`; where there are too few to tell chance, by 5 %. */
static bool rank_differs(const struct beside *b, uint32_t rank, size_t first, int sign,
                         double least)
{
    enum { LEAST_OFTEN = 3 };
    const double *own = b->own + (size_t)rank * b->n, *more = b->more + (size_t)rank * b->n;
    size_t n = b->n - first, n_differ = 0;
    double by = stats_mean_std(more + first, n).mean;
    double others = stats_mean_std(own + first, n).mean - by;
    least = n < LEAST_OFTEN ? 0.05 : least;
    for (size_t i = first; i < b->n; i++)
        n_differ += sign * more[i] > least * (own[i] - more[i]);
    return others > 0 && sign * by > least * others && n_differ * 2 > n;
}

/* By rank, from which iteration on it differs from its peers by more than chance explains. Where
 * most ranks are slow alike, the few that are not show it. */
static struct beside beside_peers(const struct peers *p, const struct diagnosed *d, size_t *since,
                                  struct arena *arena)
{
    struct beside b = beside_some(p, d, false, arena);
    uint32_t n_ranks = d->g->n_ranks;
    stats_levels(b.more, n_ranks, b.n, since);
    for (uint32_t r = 0; r < n_ranks; r++)
        if (since[r] == 0 && rank_differs(&b, r, 0, -1, 0.05)) {
            b = beside_some(p, d, true, arena);
            stats_levels(b.more, n_ranks, b.n, since);
            break;
        }
    return b;
}

/* ---- slow ranks ---- */

/* Whether a rank does what those of most other stages do, nearly all of it by one factor longer:
 * of layers that it has more there are more ops, or others. */
static bool differs_by_one_factor(const struct peers *p, const struct beside *b, uint32_t rank,
                                  uint32_t n_ranks)
{
    double own = stats_mean_std(b->own + (size_t)rank * b->n, b->n).mean, all = 0, alike = 0;
    double factor = own / MAX(own - stats_mean_std(b->more + (size_t)rank * b->n, b->n).mean, 1);
    SCRATCH int64_t *ns = mem_array(n_ranks + (size_t)1, sizeof *ns);
    for (size_t i = 0, end; i < p->groups.n; i = end) {
        const struct time_group *groups = p->groups.at;
        end = RUN_END(k, i, (size_t)p->groups.n, groups[k].key == groups[i].key);
        int64_t its_ns = 0;
        for (size_t k = i; k < end; k++) {
            ns[k - i] = groups[k].mean_ns;
            its_ns = groups[k].rank == rank ? groups[k].mean_ns : its_ns;
        }
        double expected = (double)lower_median(ns, end - i) * factor;
        all += (double)its_ns;
        if ((end - i) * 2 > n_ranks && fabs((double)its_ns - expected) < 0.1 * expected)
            alike += (double)its_ns;
    }
    return alike > 0.9 * all;
}

/* Where no rank shares a stage, peers are only those that compute the same. */
static bool has_peers(const struct diagnosed *d, uint32_t works, const struct peers *p,
                      const struct beside *b, uint32_t rank)
{
    return d->pipeline.dimension == DPRO_NO_DIMENSION || p->by_stage ||
           (works == 1U << WORK_COMPUTE && !d->g->of_stages &&
            differs_by_one_factor(p, b, rank, d->g->n_ranks));
}

/* By rank, the iteration from which on it is slow; their number: never. */
static uint32_t *find_slow(const struct diagnosed *d, uint32_t works, struct peers *p,
                           struct beside *b, struct arena *arena)
{
    uint32_t *since = arena_array(arena, d->g->n_ranks + (size_t)1, sizeof *since);
    peers_make(p, d, works, false, arena);
    if (works == 1U << WORK_COMPUTE)
        lengthen_passes(p, d, arena);
    SCRATCH size_t *differs = mem_array(d->g->n_ranks + (size_t)1, sizeof *differs);
    *b = beside_peers(p, d, differs, arena);
    for (uint32_t r = 0; r < d->g->n_ranks; r++) {
        double least = differs[r] > 0 ? 0.05 : LEAST_SLOW;
        bool slow = differs[r] < b->n && rank_differs(b, r, differs[r], 1, least) &&
                    has_peers(d, works, p, b, r);
        since[r] = slow ? (uint32_t)differs[r] : b->n;
    }
    return since;
}

struct slow_ranks slow_ranks_find(const struct diagnosed *d, uint32_t works, struct arena *arena)
{
    struct peers p = {0};
    struct beside b;
    uint32_t n = d->n_iterations;
    struct slow_ranks slow = {.since = find_slow(d, works, &p, &b, arena)};
    slow.odd = arena_array(arena, (size_t)d->g->n_ranks * n + 1, sizeof *slow.odd);
    SCRATCH double *more = mem_array(n + (size_t)1, sizeof *more);
    for (uint32_t r = 0; r < d->g->n_ranks; r++) {
        size_t first = (size_t)r * n;
        memcpy(more, b.more + first, n * sizeof *more);
        double usual = select_double(more, n, (n - 1) / 2);
        bool mostly = usual > LEAST_SLOW * (stats_mean_std(b.own + first, n).mean - usual);
        for (uint32_t i = 0; i < n && mostly && has_peers(d, works, &p, &b, r); i++)
            slow.odd[first + i] = (b.more[first + i] > usual / 2) == (slow.since[r] == n);
    }
    peers_fini(&p);
    return slow;
}

/* How much of a group's time to take away, by iteration: as much in all as that share, and of each
 * since then by how much more the rank takes in it. */
static void share_since(const struct time_group *group, double share, const struct beside *b,
                        uint32_t since, double *shares)
{
    const double *own = b->own + (size_t)group->rank * b->n;
    const double *more = b->more + (size_t)group->rank * b->n;
    double all = 0, taken = 0;
    for (uint32_t i = 0; i < b->n; i++) {
        shares[i] = i < since || own[i] <= 0 ? 0 : MAX(more[i], 0) / own[i];
        all += (double)group->ns[i];
        taken += shares[i] * (double)group->ns[i];
    }
    for (uint32_t i = 0; i < b->n; i++)
        shares[i] = taken > 0 ? MIN(shares[i] * share * all / taken, 1) : 0;
}

/* What a rank computes, and what its CPU does, each by itself. One long gap that peers don't have
 * is something that it does beside, and no slow CPU. What comes before a stage's passes is its own,
 * such as loading input: there, ranks of other stages are no peers. */
void find_slow_ranks(const struct diagnosed *d, struct cause_found *found)
{
    const struct dpro_graph *g = d->g;
    uint32_t n = d->n_iterations;
    if (g->n_ranks < 2 && g->world_size > 1)
        found->needs = "Record all ranks: one alone has no peers.";
    static const uint32_t sorts[] = {1U << WORK_COMPUTE, 1U << WORK_LAUNCH | 1U << WORK_GAP};
    for (int sort = 0; sort < (lacks_cpu(g) ? 1 : 2) && g->n_ranks > 1; sort++) {
        SCRATCH_ARENA struct arena arena = {0};
        struct peers p = {0};
        struct beside b;
        const uint32_t *since = find_slow(d, sorts[sort], &p, &b, &arena);
        bool *slow = arena_array(&arena, g->n_ranks + (size_t)1, sizeof *slow);
        double *shares = arena_array(&arena, n + (size_t)1, sizeof *shares);
        for (uint32_t r = 0; r < g->n_ranks; r++)
            slow[r] = since[r] == 0;
        EACH (const struct time_group, group, p.groups) {
            uint32_t r = group->rank, first = since[r];
            double share = b.share[group - p.groups.at];
            if (first == n || (sort == 0 && d->varies[r]))
                continue;
            bool told = first > 0 && g->sample_number; /* else in all iterations */
            uint32_t part = !told ? part_of_rank(found, d, r, slow)
                                  : found_part(found, r + (UINT64_C(1) << 32),
                                               "rank %d from iteration %" PRId64 " on",
                                               g->ranks[r].rank, g->sample_number[first]);
            share_since(group, share, &b, first, shares);
            EACH (const uint32_t, time, group->times)
                if (!(*time >= g->n_ops && share > 0.5 && gap_is_long(d, *time - g->n_ops)))
                    piece_share(found, d, *time, part, shares, false);
        }
        peers_fini(&p);
    }
}
