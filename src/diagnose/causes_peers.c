/* Ranks beside their peers, which do the same work: ops of one name and phase, as many of them. A
 * rank that takes longer for them in nearly every iteration is slow. But where forward and backward
 * passes take longer together, by turns on all ranks, or without the update, which knows nothing of
 * the batch, it is the work that is uneven; in a pipeline, where they do so on all its stages. */
#include "diagnose/causes.h"

#include "graph/dimensions/pipeline.h"

/* Times by rank of one kind of op. */
struct peers {
    time_groups groups; /* in runs of one key */
    struct map numbers;
    const uint8_t *work;
    struct pipeline pipeline;
    bool by_stage; /* ranks of one stage are peers; all are where no stage has two ranks */
};

ORDER(by_key, struct time_group, ASCENDING(key) ?: ASCENDING(rank));

static bool is_phase(const struct dpro_graph *g, uint32_t op, uint32_t phase)
{
    return phase >= DPRO_N_OP_KINDS || g->phase[op] == phase;
}

/* Groups of the times of these sorts. Kinds of op that a rank has more or fewer of than another one
 * are other kinds. */
static void peers_make(struct peers *p, const struct diagnosed *d, uint32_t works, bool all,
                       struct arena *arena)
{
    const struct dpro_graph *g = d->g;
    SCRATCH struct map counts = {0};
    SCRATCH uint64_t *keys = mem_array(2 * (size_t)g->n_ops + 1, sizeof *keys);
    p->work = works_of(g, arena);
    pipeline_find(g, arena, &p->pipeline);
    p->by_stage = p->pipeline.dimension != DPRO_NO_DIMENSION && g->n_ranks > p->pipeline.n_stages;
    for (int pass = 0; pass < 2; pass++)
        for (uint32_t time = 0; time < 2 * g->n_ops; time++) {
            uint32_t op = time % g->n_ops, r = g->rank[op];
            bool gap = time >= g->n_ops;
            if (!of_works(p->work[time], works) || r >= g->n_ranks)
                continue;
            if (pass == 0) {
                uint64_t stage = p->by_stage ? p->pipeline.stage_of[r] : 0;
                keys[time] = map_mix(map_mix(g->name[op] + (stage << 32)) + p->work[time] * 64 +
                                     g->phase[op] * 2 + gap);
                map_add(&counts, map_mix(keys[time] + r + 1) | 1, 1);
            } else {
                uint64_t count = 0;
                map_get(&counts, map_mix(keys[time] + r + 1) | 1, &count);
                groups_add(&p->groups, &p->numbers, d, keys[time] ^ count, op, gap);
            }
        }
    groups_sum(&p->groups, d, all, arena);
    array_sort(&p->groups, by_key);
}

static void peers_fini(struct peers *p)
{
    groups_fini(&p->groups);
    map_fini(&p->numbers);
}

/* What a rank takes of what it shares with peers: by iteration, and how much of it more than they
 * do; share of a group: how much of its time is more than its peers usually take. */
struct beside {
    double *own, *more; /* [rank * n_iterations + iteration] */
    double *share;      /* by group */
};

/* Of each kind of op the lower median counts, so that all ranks take a little longer than their
 * peers: what the fastest of them does, of what its peers take, is taken off all. */
static void beside_the_fastest(struct beside *b, const struct peers *p, uint32_t n_ranks,
                               uint32_t n)
{
    double least = 1;
    for (uint32_t r = 0; r < n_ranks; r++) {
        double own = stats_mean_std(b->own + (size_t)r * n, n).mean;
        double more = stats_mean_std(b->more + (size_t)r * n, n).mean;
        least = own > more ? MIN(least, more / (own - more)) : least;
    }
    least = MAX(least, 0);
    for (size_t k = 0; k < p->groups.n; k++) {
        uint32_t r = p->groups.at[k].rank;
        double own = stats_mean_std(b->own + (size_t)r * n, n).mean;
        double more = stats_mean_std(b->more + (size_t)r * n, n).mean;
        b->share[k] *= more > 0 ? MAX(1 - least * (own - more) / more, 0) : 0;
    }
    for (size_t i = 0; i < (size_t)n_ranks * n; i++)
        b->more[i] -= least * (b->own[i] - b->more[i]);
}

/* Beside the lower median of the peers, or the fastest of them. */
static struct beside beside_some(const struct peers *p, const struct diagnosed *d, uint32_t phase,
                                 bool fastest, struct arena *arena)
{
    uint32_t n = d->n_iterations;
    size_t n_all = (size_t)d->g->n_ranks * n + 1;
    struct beside b = {arena_array(arena, n_all, sizeof *b.own),
                       arena_array(arena, n_all, sizeof *b.more),
                       arena_array(arena, p->groups.n + 1, sizeof *b.share)};
    SCRATCH int64_t *ns = mem_array(d->g->n_ranks + (size_t)1, sizeof *ns);
    for (size_t i = 0, end; i < p->groups.n; i = end) {
        const struct time_group *groups = p->groups.at;
        end = RUN_END(k, i, (size_t)p->groups.n, groups[k].key == groups[i].key);
        if (end - i < 2 || !is_phase(d->g, groups[i].times.at[0] % d->g->n_ops, phase))
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

enum { LEAST_OFTEN = 3 }; /* iterations that tell chance */

/* Whether the rank takes longer than its peers (sign -1: less long) in nearly all iterations, by
 * `least` in the mean and by more than chance explains; where there are too few of them to tell, by
 * 5 %. */
static bool rank_differs(const struct beside *b, uint32_t rank, uint32_t n, int sign, double least,
                         double *ratio)
{
    const double *own = b->own + (size_t)rank * n, *more = b->more + (size_t)rank * n;
    struct mean_std of_own = stats_mean_std(own, n), of_more = stats_mean_std(more, n);
    uint32_t n_differ = 0;
    for (uint32_t i = 0; i < n; i++)
        n_differ += sign * more[i] > 0;
    double others = of_own.mean - of_more.mean;
    *ratio = others > 0 ? of_own.mean / others : 1;
    return sign * (*ratio - 1) > (n < LEAST_OFTEN ? 0.05 : least) && n_differ * 4 >= n * 3 &&
           sign * of_more.mean > 3 * of_more.std / sqrt((double)n);
}

static bool is_slower(const struct beside *b, uint32_t rank, uint32_t n, double *ratio)
{
    return rank_differs(b, rank, n, 1, 0.02, ratio);
}

/* Where most ranks are slow alike, the few that are not show it. */
static struct beside beside_peers(const struct peers *p, const struct diagnosed *d, uint32_t phase,
                                  struct arena *arena)
{
    struct beside b = beside_some(p, d, phase, false, arena);
    double ratio;
    for (uint32_t r = 0; r < d->g->n_ranks; r++)
        if (rank_differs(&b, r, d->n_iterations, -1, 0.05, &ratio))
            return beside_some(p, d, phase, true, arena);
    return b;
}

/* ---- uneven work ---- */

/* By [rank * n + iteration]: a rank's times against their median, less what all are off. */
static double *vary_from_others(const double *x, uint32_t n_ranks, uint32_t n)
{
    double *off = mem_array((size_t)n_ranks * n + 1, sizeof *off);
    for (uint32_t r = 0; r < n_ranks; r++) {
        double *of = memcpy(off + (size_t)r * n, x + (size_t)r * n, n * sizeof *of);
        double usual = select_double(of, n, (n - 1) / 2);
        for (uint32_t i = 0; i < n; i++)
            of[i] = usual > 0 ? x[(size_t)r * n + i] / usual - 1 : 0;
    }
    for (uint32_t i = 0; i < n; i++) {
        double all = 0;
        for (uint32_t r = 0; r < n_ranks; r++)
            all += off[(size_t)r * n + i] / n_ranks;
        for (uint32_t r = 0; r < n_ranks; r++)
            off[(size_t)r * n + i] -= all;
    }
    return off;
}

/* How much the two vary together by rank and iteration: the correlation, and how much y varies for
 * one of x; how much x varies, and in how many iterations by half of that or more. */
static double vary_together(const double *x, const double *y, uint32_t n_ranks, uint32_t n,
                            double *slope, double *spread, uint32_t *n_vary)
{
    double xx = 0, xy = 0, yy = 0;
    SCRATCH double *dx = vary_from_others(x, n_ranks, n);
    SCRATCH double *dy = vary_from_others(y, n_ranks, n);
    for (size_t i = 0; i < (size_t)n_ranks * n; i++) {
        xx += dx[i] * dx[i];
        xy += dx[i] * dy[i];
        yy += dy[i] * dy[i];
    }
    *slope = xx > 0 ? xy / xx : 0;
    *spread = sqrt(xx / ((double)n_ranks * n));
    *n_vary = 0;
    for (uint32_t i = 0; i < n; i++) {
        double most = 0;
        for (uint32_t r = 0; r < n_ranks; r++)
            most = MAX(most, fabs(dx[(size_t)r * n + i]));
        *n_vary += most > *spread / 2;
    }
    return xx > 0 && yy > 0 ? xy / sqrt(xx * yy) : 0;
}

/* Times of passes: of each of a pipeline's micro-batches, else all of a rank's as one. Rows are
 * [rank * n_places + place in its order]. */
struct timed_passes {
    uint32_t n_places;
    double *ns[DPRO_OP_UPDATE + 1]; /* [row * n_iterations + iteration]; of updates: the rank's */
};

/* The pass of its rank that the k-th time of a group is in; UINT32_MAX: not known. */
static uint32_t row_of(const struct timed_passes *passes, const struct time_group *group, size_t k)
{
    uint32_t n = passes->n_places;
    return group->times.n % n > 0 ? UINT32_MAX
                                  : group->rank * n + (uint32_t)(k / (group->times.n / n));
}

static struct timed_passes passes_of(const struct peers *p, const struct diagnosed *d, bool all,
                                     struct arena *arena)
{
    uint32_t n = d->n_iterations, n_rows = d->g->n_ranks;
    bool told = p->pipeline.dimension != DPRO_NO_DIMENSION;
    for (uint32_t r = 0; told && r < d->g->n_ranks; r++)
        told = p->pipeline.stage_of[r] != UINT32_MAX;
    struct timed_passes passes = {
        .n_places = told ? MAX(p->pipeline.n_micro_batches * p->pipeline.n_chunks, 1) : 1};
    n_rows *= passes.n_places;
    for (uint32_t phase = 0; phase <= DPRO_OP_UPDATE; phase++)
        passes.ns[phase] = arena_array(arena, (size_t)n_rows * n + 1, sizeof(double));
    for (size_t at = 0; at < p->groups.n; at++) {
        const struct time_group *group = &p->groups.at[at];
        uint32_t phase = d->g->phase[group->times.at[0] % d->g->n_ops];
        bool alone = (at == 0 || group[-1].key != group->key) &&
                     (at + 1 == p->groups.n || group[1].key != group->key);
        for (size_t k = 0; k < group->times.n && phase <= DPRO_OP_UPDATE && !alone; k++) {
            bool update = phase == DPRO_OP_UPDATE;
            uint32_t row = update ? group->rank * passes.n_places : row_of(&passes, group, k);
            uint32_t end = row + (update ? passes.n_places : 1);
            for (; row < MIN(end, n_rows); row++)
                for (uint32_t i = 0; i < n; i++)
                    passes.ns[phase][(size_t)row * n + i] +=
                        (double)(all ? d->copies[i].dur_ns[group->times.at[k]]
                                     : left_of(d, i, group->times.at[k], false));
        }
    }
    return passes;
}

/* The rank of the next stage of its pipeline, round; without one itself. */
static uint32_t next_stage(const struct peers *p, uint32_t n_ranks, uint32_t rank)
{
    const struct pipeline *line = &p->pipeline;
    for (uint32_t r = 0; r < n_ranks && line->dimension != DPRO_NO_DIMENSION; r++)
        if (line->group_of[r] == line->group_of[rank] &&
            line->stage_of[r] == (line->stage_of[rank] + 1) % line->n_stages)
            return r;
    return rank;
}

/* Passes forward and back vary alike, otherwise than others, in a third of iterations, and on all
 * stages of their pipeline; and the update does not. */
static bool varies_as_work(const struct diagnosed *d, const struct peers *p,
                           const struct timed_passes *passes)
{
    uint32_t n = d->n_iterations, n_rows = d->g->n_ranks * passes->n_places;
    double slope, spread, update_slope, next_slope, unused;
    uint32_t n_vary, n_others;
    double *const *ns = passes->ns;
    if (d->g->n_samples < 4)
        return false;
    double together =
        vary_together(ns[DPRO_OP_FW], ns[DPRO_OP_BW], n_rows, n, &slope, &spread, &n_vary);
    double update = vary_together(ns[DPRO_OP_FW], ns[DPRO_OP_UPDATE], n_rows, n, &update_slope,
                                  &unused, &n_others);
    if (passes->n_places > 1) {
        size_t of_rank = (size_t)passes->n_places * n;
        SCRATCH double *of_next = mem_array((size_t)n_rows * n + 1, sizeof *of_next);
        for (uint32_t r = 0; r < d->g->n_ranks; r++)
            memcpy(of_next + r * of_rank,
                   ns[DPRO_OP_FW] + next_stage(p, d->g->n_ranks, r) * of_rank,
                   of_rank * sizeof *of_next);
        together = MIN(together, vary_together(ns[DPRO_OP_FW], of_next, n_rows, n, &next_slope,
                                               &unused, &n_others));
    }
    return spread > 0.02 && n_vary * 3 > n && together > 0.7 && slope > 1.0 / 3 && slope < 3 &&
           !(update > 0.7 && update_slope > slope / 3);
}

/* A rank has more work than its peers: both passes take longer, the update does not. */
static bool has_more_work(const struct diagnosed *d, const struct beside *of_phase, uint32_t rank)
{
    double ratio[DPRO_OP_UPDATE + 1];
    uint32_t n = d->n_iterations;
    bool forward = is_slower(&of_phase[DPRO_OP_FW], rank, n, &ratio[DPRO_OP_FW]);
    bool backward = is_slower(&of_phase[DPRO_OP_BW], rank, n, &ratio[DPRO_OP_BW]);
    is_slower(&of_phase[DPRO_OP_UPDATE], rank, n, &ratio[DPRO_OP_UPDATE]);
    double least = MIN(ratio[DPRO_OP_FW], ratio[DPRO_OP_BW]);
    double update = stats_mean_std(of_phase[DPRO_OP_UPDATE].own + (size_t)rank * n, n).mean;
    double forwards = stats_mean_std(of_phase[DPRO_OP_FW].own + (size_t)rank * n, n).mean;
    return forward && backward && update > forwards / 50 &&
           ratio[DPRO_OP_UPDATE] - 1 < (least - 1) / 4;
}

bool work_moves(const struct diagnosed *d)
{
    SCRATCH_ARENA struct arena arena = {0};
    struct peers p = {0};
    peers_make(&p, d, 1U << WORK_COMPUTE, true, &arena);
    struct timed_passes passes = passes_of(&p, d, true, &arena);
    bool moves = varies_as_work(d, &p, &passes);
    peers_fini(&p);
    return moves;
}

static uint32_t stage_of(const struct peers *p, uint32_t rank)
{
    return p->by_stage ? p->pipeline.stage_of[rank] : 0;
}

static double n_peers(const struct peers *p, uint32_t n_ranks, uint32_t rank)
{
    uint32_t n = 0;
    for (uint32_t r = 0; r < n_ranks; r++)
        n += stage_of(p, r) == stage_of(p, rank);
    return n;
}

/* What a rank's passes take in the mean iteration; or what of it is more than its peers'. */
static double pass_mean(const struct beside *of_phase, bool all, uint32_t rank, uint32_t n)
{
    double sum = 0;
    for (uint32_t phase = DPRO_OP_FW; phase <= DPRO_OP_BW; phase++)
        sum +=
            stats_mean_std((all ? of_phase[phase].own : of_phase[phase].more) + rank * n, n).mean;
    return sum;
}

/* What of a pass is more than the mean of its peers in an iteration, of those of its stage and
 * model chunk, as a share: by [phase][row * n_iterations + iteration], in place. */
static void even_passes(struct timed_passes *passes, const struct peers *p, uint32_t n_ranks,
                        uint32_t n)
{
    const struct pipeline *line = &p->pipeline;
    uint32_t n_places = passes->n_places, n_rows = n_ranks * n_places;
    uint32_t n_chunks = n_places > 1 ? line->n_chunks : 1;
    size_t n_all = (size_t)(n_rows + 1) * n_chunks;
    SCRATCH double *sum = mem_array(n_all, sizeof *sum);
    SCRATCH double *n_of = mem_array(n_all, sizeof *n_of);
    SCRATCH uint32_t *peers = mem_array(n_rows + (size_t)1, sizeof *peers);
    for (uint32_t row = 0; row < n_rows; row++) {
        uint32_t rank = row / n_places, place = row % n_places;
        peers[row] = n_places == 1
                         ? stage_of(p, rank)
                         : line->stage_of[rank] * n_chunks + place / line->n_stages % n_chunks;
    }
    for (uint32_t phase = DPRO_OP_FW; phase <= DPRO_OP_BW; phase++)
        for (uint32_t i = 0; i < n; i++) {
            memset(sum, 0, n_all * sizeof *sum);
            memset(n_of, 0, n_all * sizeof *n_of);
            for (uint32_t row = 0; row < n_rows; row++) {
                sum[peers[row]] += passes->ns[phase][(size_t)row * n + i];
                n_of[peers[row]]++;
            }
            for (uint32_t row = 0; row < n_rows; row++) {
                double *own = &passes->ns[phase][(size_t)row * n + i];
                *own = *own > 0 ? 1 - sum[peers[row]] / n_of[peers[row]] / *own : 0;
                if (n_places == 1) /* a rank that has less than the mean waits as before */
                    *own = MAX(*own, 0);
            }
        }
}

/* Of work that moves each pass would have the mean of the iteration; what one rank has more goes to
 * all of its peers alike. */
void find_uneven_work(const struct diagnosed *d, struct cause_found *found)
{
    SCRATCH_ARENA struct arena arena = {0};
    struct beside of_phase[DPRO_OP_UPDATE + 1];
    struct peers p = {0};
    uint32_t n = d->n_iterations, n_ranks = d->g->n_ranks;
    if (n_ranks < 2)
        return;
    peers_make(&p, d, 1U << WORK_COMPUTE, false, &arena);
    for (uint32_t phase = 0; phase <= DPRO_OP_UPDATE; phase++)
        of_phase[phase] = beside_peers(&p, d, phase, &arena);
    struct timed_passes passes = passes_of(&p, d, false, &arena);
    bool moves = varies_as_work(d, &p, &passes);
    even_passes(&passes, &p, n_ranks, n);
    bool *more = arena_array(&arena, n_ranks + (size_t)1, sizeof *more);
    double *given = arena_array(&arena, n_ranks + (size_t)1, sizeof *given); /* to each rank */
    uint32_t *giver = arena_array(&arena, n_ranks + (size_t)1, sizeof *giver);
    for (uint32_t r = 0; r < n_ranks; r++)
        if ((more[r] = !moves && has_more_work(d, of_phase, r) &&
                       (!p.by_stage || has_more_work(d, of_phase, next_stage(&p, n_ranks, r))))) {
            given[stage_of(&p, r)] += pass_mean(of_phase, false, r, n) / n_peers(&p, n_ranks, r);
            giver[stage_of(&p, r)] = r;
        }
    for (size_t at = 0; at < p.groups.n; at++) {
        const struct time_group *group = &p.groups.at[at];
        uint32_t r = group->rank, stage = stage_of(&p, r);
        for (size_t k = 0; k < group->times.n; k++) {
            uint32_t time = group->times.at[k], phase = d->g->phase[time % d->g->n_ops];
            uint32_t row = row_of(&passes, group, k);
            if (phase > DPRO_OP_BW || !(moves ? row != UINT32_MAX : given[stage] > 0))
                continue;
            uint32_t part = part_of_rank(found, d, moves || more[r] ? r : giver[stage], NULL);
            double share = -given[stage] / MAX(pass_mean(of_phase, true, r, n), 1);
            if (more[r])
                share = of_phase[phase].share[at] *
                        (1 - given[stage] / MAX(pass_mean(of_phase, false, r, n), 1));
            piece_share(found, d, time, part, moves ? passes.ns[phase] + (size_t)row * n : &share,
                        !moves);
        }
    }
    peers_fini(&p);
}

/* ---- slow ranks ---- */

/* What a rank computes, and what its CPU does, each by itself. One long gap that peers don't have
 * is something that it does beside, and no slow CPU. What comes before a stage's passes is its own,
 * such as loading input: there, ranks of other stages are no peers. */
void find_slow_ranks(const struct diagnosed *d, struct cause_found *found)
{
    if (d->g->n_ranks < 2 && d->g->world_size > 1)
        found->needs = "Record all ranks: one alone has no peers.";
    static const uint32_t sorts[] = {1U << WORK_COMPUTE, 1U << WORK_LAUNCH | 1U << WORK_GAP};
    for (int sort = 0; sort < 2 && d->g->n_ranks > 1; sort++) {
        SCRATCH_ARENA struct arena arena = {0};
        struct peers p = {0};
        bool *slow = arena_array(&arena, d->g->n_ranks + (size_t)1, sizeof *slow);
        double ratio;
        peers_make(&p, d, sorts[sort], false, &arena);
        struct beside b = beside_peers(&p, d, DPRO_N_OP_KINDS, &arena);
        bool peers = sort == 0 || p.pipeline.dimension == DPRO_NO_DIMENSION || p.by_stage;
        for (uint32_t r = 0; r < d->g->n_ranks; r++)
            slow[r] = peers && is_slower(&b, r, d->n_iterations, &ratio);
        for (size_t k = 0; k < p.groups.n; k++) {
            const struct time_group *group = &p.groups.at[k];
            uint32_t part =
                slow[group->rank] ? part_of_rank(found, d, group->rank, slow) : UINT32_MAX;
            EACH (const uint32_t, time, group->times)
                if (part != UINT32_MAX && !(*time >= d->g->n_ops && b.share[k] > 0.5 &&
                                            gap_is_long(d, *time - d->g->n_ops)))
                    piece_share(found, d, *time, part, &b.share[k], true);
        }
        peers_fini(&p);
    }
}

/* ---- stages ---- */

/* Stages that compute more than the mean of all: their ranks' mean. */
#define LEAST_UNEVEN 1.02
void find_uneven_stages(const struct diagnosed *d, struct cause_found *found)
{
    SCRATCH_ARENA struct arena arena = {0};
    const struct dpro_graph *g = d->g;
    struct pipeline pipeline;
    pipeline_find(g, &arena, &pipeline);
    if (pipeline.dimension == DPRO_NO_DIMENSION || pipeline.n_stages < 2)
        return;
    const uint8_t *work = works_of(g, &arena);
    double *of_stage = arena_array(&arena, pipeline.n_stages, sizeof *of_stage), mean = 0;
    double *n_of = arena_array(&arena, pipeline.n_stages, sizeof *n_of);
    for (uint32_t r = 0; r < g->n_ranks; r++) {
        uint32_t stage = pipeline.stage_of[r];
        for (uint32_t op = g->ranks[r].first_op;
             stage != UINT32_MAX && op < g->ranks[r].first_op + g->ranks[r].n_ops; op++)
            for (uint32_t i = 0; i < d->n_iterations && work[op] == WORK_COMPUTE; i++)
                of_stage[stage] += (double)left_of(d, i, op, false);
        if (stage != UINT32_MAX)
            n_of[stage]++;
    }
    uint32_t most = 0;
    for (uint32_t s = 0; s < pipeline.n_stages; s++) {
        of_stage[s] /= MAX(n_of[s], 1);
        mean += of_stage[s] / pipeline.n_stages;
        most = of_stage[s] > of_stage[most] ? s : most;
    }
    for (uint32_t op = 0; op < g->n_ops && of_stage[most] > mean * LEAST_UNEVEN; op++) {
        uint32_t stage = g->rank[op] < g->n_ranks ? pipeline.stage_of[g->rank[op]] : UINT32_MAX;
        if (work[op] != WORK_COMPUTE || stage == UINT32_MAX || of_stage[stage] <= 0)
            continue;
        double share = 1 - mean / of_stage[stage];
        uint32_t whose = of_stage[stage] > mean * LEAST_UNEVEN ? stage : most;
        piece_share(found, d, op, found_part(found, whose + 1, "stage %u", whose), &share, true);
    }
}
