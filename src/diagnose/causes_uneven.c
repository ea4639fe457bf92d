/* Work that some ranks have more of than their peers. Where forward and backward passes of some
 * batches take longer than of others, on all stages of a pipeline, and the update does not, it is
 * the work that is uneven. A rank that takes the same factor longer for all of them has more work
 * only if shapes tell so. Stages of a pipeline that compute more than others, and what stages wait
 * for each other. */
#include "diagnose/causes.h"

#include <float.h>

/* ---- uneven work ---- */

/* Times of passes. Those of a pipeline's micro-batches, or of those whose gradients a rank
 * accumulates, each have a place in its order. Ranks that compute the same batches are a line: a
 * pipeline, else a rank. */
struct timed_passes {
    uint32_t n_places, n_chunks, n_lines, n_stages;
    uint32_t *line, *stage;            /* by rank; stages of those that are peers */
    double *ratio[DPRO_OP_UPDATE + 1]; /* [(rank * n_places + place) * n_iterations + iteration]: of
                                          the rank's usual one; of updates: the rank's */
    double *usual[DPRO_OP_UPDATE + 1]; /* ns, [rank * n_chunks + chunk] */
    double *length[DPRO_OP_UPDATE];    /* of a batch: [(line * n_places + place) * ... */
};

static uint32_t chunk_of(const struct timed_passes *t, size_t place)
{
    return (uint32_t)(place / t->n_stages % t->n_chunks);
}

/* The place that the k-th time of a group has; UINT32_MAX: not known. */
static uint32_t place_of(const struct timed_passes *t, const struct time_group *group, size_t k)
{
    return group->times.n % t->n_places > 0 ? UINT32_MAX
                                            : (uint32_t)(k / (group->times.n / t->n_places));
}

static void find_lines(struct timed_passes *t, const struct diagnosed *d, struct arena *arena)
{
    const struct dpro_graph *g = d->g;
    const struct pipeline *line = &d->pipeline;
    bool told = line->dimension != DPRO_NO_DIMENSION;
    t->line = arena_array(arena, g->n_ranks + (size_t)1, sizeof *t->line);
    t->stage = arena_array(arena, g->n_ranks + (size_t)1, sizeof *t->stage);
    t->n_places = g->ranks[0].n_micro_batches;
    for (uint32_t r = 0; r < g->n_ranks; r++) {
        told = told && line->stage_of[r] != UINT32_MAX;
        t->n_places = g->ranks[r].n_micro_batches == t->n_places ? t->n_places : 1;
    }
    t->n_stages = told ? line->n_stages : 1;
    t->n_chunks = told ? line->n_chunks : 1;
    t->n_places = MAX(told ? line->n_micro_batches * line->n_chunks : t->n_places, 1);
    for (uint32_t r = 0; r < g->n_ranks; r++) {
        t->line[r] = told ? line->group_of[r] : r;
        t->stage[r] = told ? line->stage_of[r] : 0;
        t->n_lines = MAX(t->n_lines, t->line[r] + 1);
    }
}

uint32_t *passes_by_op(const struct diagnosed *d, struct arena *arena)
{
    uint32_t *passes = arena_array(arena, d->g->n_ops + (size_t)1, sizeof *passes);
    struct timed_passes t = {0};
    struct peers p = {0};
    find_lines(&t, d, arena);
    if (t.n_places == 1)
        return passes;
    peers_make(&p, d, 1U << WORK_COMPUTE, false, arena);
    EACH (const struct time_group, group, p.groups)
        for (size_t k = 0; k < group->times.n; k++) {
            uint32_t op = group->times.at[k], place = place_of(&t, group, k);
            if (d->g->phase[op] <= DPRO_OP_BW && place != UINT32_MAX)
                passes[op] = 1 + 2 * place + (d->g->phase[op] == DPRO_OP_BW);
        }
    peers_fini(&p);
    return passes;
}

static double median_of(double *x, size_t n)
{
    return n > 0 ? select_double(x, n, (n - 1) / 2) : 0;
}

/* A rank's times of a phase, as shares of its usual one of the chunk. */
static void relate_passes(struct timed_passes *t, uint32_t rank, uint32_t phase, uint32_t n)
{
    size_t first = (size_t)rank * t->n_places * n, n_all = (size_t)t->n_places * n;
    SCRATCH double *some = mem_array(n_all + 1, sizeof *some);
    for (uint32_t chunk = 0; chunk < t->n_chunks; chunk++) {
        size_t n_some = 0;
        for (size_t i = 0; i < n_all; i++)
            if (chunk_of(t, i / n) == chunk)
                some[n_some++] = t->ratio[phase][first + i];
        t->usual[phase][rank * t->n_chunks + chunk] = median_of(some, n_some);
    }
    for (size_t i = 0; i < n_all; i++) {
        double usual = t->usual[phase][rank * t->n_chunks + chunk_of(t, i / n)];
        t->ratio[phase][first + i] = usual > 0 ? t->ratio[phase][first + i] / usual : 1;
    }
}

static struct timed_passes passes_of(const struct peers *p, const struct diagnosed *d, bool all,
                                     struct arena *arena)
{
    struct timed_passes t = {0};
    uint32_t n = d->n_iterations, n_ranks = d->g->n_ranks;
    find_lines(&t, d, arena);
    for (uint32_t phase = 0; phase <= DPRO_OP_UPDATE; phase++) {
        t.ratio[phase] = arena_array(arena, (size_t)n_ranks * t.n_places * n + 1, sizeof(double));
        t.usual[phase] = arena_array(arena, (size_t)n_ranks * t.n_chunks + 1, sizeof(double));
    }
    for (size_t at = 0; at < p->groups.n; at++) {
        const struct time_group *group = &p->groups.at[at];
        uint32_t phase = d->g->phase[group->times.at[0] % d->g->n_ops];
        bool alone = (at == 0 || group[-1].key != group->key) &&
                     (at + 1 == p->groups.n || group[1].key != group->key);
        for (size_t k = 0; k < group->times.n && phase <= DPRO_OP_UPDATE && !alone; k++) {
            bool update = phase == DPRO_OP_UPDATE;
            uint32_t place = update ? 0 : place_of(&t, group, k);
            uint32_t end = update ? t.n_places : place + 1;
            for (; place < MIN(end, t.n_places); place++)
                for (uint32_t i = 0; i < n; i++)
                    t.ratio[phase][((size_t)group->rank * t.n_places + place) * n + i] +=
                        (double)(all ? d->copies[i].dur_ns[group->times.at[k]]
                                     : left_of(d, i, group->times.at[k], false));
        }
    }
    for (uint32_t phase = 0; phase <= DPRO_OP_UPDATE; phase++)
        for (uint32_t r = 0; r < n_ranks; r++)
            relate_passes(&t, r, phase, n);
    return t;
}

/* How two vary together by rank, place and iteration, less what all are off in it. */
struct together {
    double correlation, slope, spread; /* how much y varies for one of x; how much x does */
    uint32_t n_vary;                   /* iterations in which x does, by half of that or more */
};

static struct together vary_together(const double *x, const double *y, uint32_t n_rows, uint32_t n)
{
    struct together t = {.n_vary = 0};
    double xx = 0, xy = 0, yy = 0;
    SCRATCH double *most = mem_array(n + (size_t)1, sizeof *most);
    for (uint32_t i = 0; i < n; i++) {
        double mean_x = 0, mean_y = 0;
        for (size_t at = i; at < (size_t)n_rows * n; at += n) {
            mean_x += x[at] / n_rows;
            mean_y += y[at] / n_rows;
        }
        for (size_t at = i; at < (size_t)n_rows * n; at += n) {
            double dx = x[at] - mean_x, dy = y[at] - mean_y;
            xx += dx * dx;
            xy += dx * dy;
            yy += dy * dy;
            most[i] = MAX(most[i], fabs(dx));
        }
    }
    t.correlation = xx > 0 && yy > 0 ? xy / sqrt(xx * yy) : 0;
    t.slope = xx > 0 ? xy / xx : 0;
    t.spread = sqrt(xx / ((double)n_rows * n));
    for (uint32_t i = 0; i < n; i++)
        t.n_vary += most[i] > t.spread / 2;
    return t;
}

/* The rank of the next stage of its line, round; else itself. */
static uint32_t next_stage(const struct timed_passes *t, uint32_t n_ranks, uint32_t rank)
{
    for (uint32_t r = 0; r < n_ranks; r++)
        if (t->line[r] == t->line[rank] && t->stage[r] == (t->stage[rank] + 1) % t->n_stages)
            return r;
    return rank;
}

/* Passes forward and back vary alike, otherwise than others, in a third of iterations, and on all
 * stages of their pipeline; and the update does not. */
static bool varies_as_work(const struct diagnosed *d, const struct timed_passes *t)
{
    uint32_t n = d->n_iterations, n_ranks = d->g->n_ranks, n_rows = n_ranks * t->n_places;
    size_t of_rank = (size_t)t->n_places * n;
    double *const *x = t->ratio;
    if (d->g->n_samples * t->n_places < 4)
        return false;
    SCRATCH double *next = mem_array((size_t)n_rows * n + 1, sizeof *next);
    for (uint32_t r = 0; r < n_ranks; r++)
        memcpy(next + r * of_rank, x[DPRO_OP_FW] + next_stage(t, n_ranks, r) * of_rank,
               of_rank * sizeof *next);
    struct together passes = vary_together(x[DPRO_OP_FW], x[DPRO_OP_BW], n_rows, n);
    struct together update = vary_together(x[DPRO_OP_FW], x[DPRO_OP_UPDATE], n_rows, n);
    double least =
        MIN(passes.correlation, vary_together(x[DPRO_OP_FW], next, n_rows, n).correlation);
    return passes.spread > 0.02 && passes.n_vary * 3 > n && least > 0.7 && passes.slope > 1.0 / 3 &&
           passes.slope < 3 && !(update.correlation > 0.7 && update.slope > passes.slope / 3);
}

bool work_moves(const struct diagnosed *d)
{
    SCRATCH_ARENA struct arena arena = {0};
    struct peers p = {0};
    peers_make(&p, d, 1U << WORK_COMPUTE, true, &arena);
    struct timed_passes passes = passes_of(&p, d, true, &arena);
    bool moves = varies_as_work(d, &passes);
    peers_fini(&p);
    return moves;
}

double flops_of_rank(const struct dpro_graph *g, uint32_t rank)
{
    double sum = 0;
    for (uint32_t k = 0; g->work && k < N_FAMILIES * N_PRECISIONS; k++)
        sum += g->work[rank].of[k / N_PRECISIONS][k % N_PRECISIONS].flops;
    return sum;
}

/* By the shapes of its ops: more than each of its peers. */
static bool computes_more(const struct dpro_graph *g, const struct timed_passes *t, uint32_t rank)
{
    double own = flops_of_rank(g, rank), most = 0;
    for (uint32_t r = 0; r < g->n_ranks; r++)
        most = r != rank && t->stage[r] == t->stage[rank] ? MAX(most, flops_of_rank(g, r)) : most;
    return most > 0 && own > 1.01 * most;
}

/* A rank's usual time of a phase and chunk beside that of its peers. */
static double beside_usual(const struct timed_passes *t, uint32_t n_ranks, uint32_t rank,
                           uint32_t phase, uint32_t chunk)
{
    size_t n_peers = 0;
    SCRATCH double *of_peers = mem_array(n_ranks + (size_t)1, sizeof *of_peers);
    for (uint32_t peer = 0; peer < n_ranks; peer++)
        if (t->stage[peer] == t->stage[rank])
            of_peers[n_peers++] = t->usual[phase][peer * t->n_chunks + chunk];
    double usual = median_of(of_peers, n_peers);
    return usual > 0 ? t->usual[phase][rank * t->n_chunks + chunk] / usual : 1;
}

/* The usual batches of a line beside those of the others; by how much more chance explains. What
 * is slow takes the same factor longer for each, so that it is no work unless shapes say so; by
 * what factor, updates tell, which are alike. */
static double usual_length(const struct timed_passes *t, const struct diagnosed *d, uint32_t line,
                           uint32_t phase, bool moves)
{
    const struct dpro_graph *g = d->g;
    size_t n_of = 0, n_all = (size_t)t->n_places * d->n_iterations;
    SCRATCH double *of_ranks = mem_array((size_t)g->n_ranks * t->n_chunks + 1, sizeof *of_ranks);
    bool more = false, alone = t->n_lines == g->n_ranks;
    double std = 0, slower = 1;
    for (uint32_t r = 0; r < g->n_ranks; r++)
        for (uint32_t c = 0; c < t->n_chunks && t->line[r] == line; c++) {
            of_ranks[n_of++] = beside_usual(t, g->n_ranks, r, phase, c);
            more |= computes_more(g, t, r);
            slower = alone ? beside_usual(t, g->n_ranks, r, DPRO_OP_UPDATE, 0) : 1;
        }
    for (uint32_t k = 0; k < t->n_lines; k++)
        std += stats_mean_std(t->length[phase] + k * n_all, n_all).std / t->n_lines;
    double usual = median_of(of_ranks, n_of), by_chance = 4 * std / sqrt((double)n_all);
    if (fabs(slower - 1) > 0.05 && fabs(usual / slower - 1) < by_chance)
        usual /= slower;
    /* all stages of a pipeline are hardly slow alike */
    bool chance = moves && (!alone || fabs(usual - 1) < by_chance);
    return more || chance ? usual : 1;
}

/* Of each batch its length, by the median of the stages that compute it. */
static void find_medians(struct timed_passes *t, uint32_t phase, uint32_t n_ranks, size_t n_all)
{
    SCRATCH double *some = mem_array(n_ranks + (size_t)1, sizeof *some);
    for (uint32_t line = 0; line < t->n_lines; line++)
        for (size_t i = 0; i < n_all; i++) {
            size_t n_some = 0;
            for (uint32_t r = 0; r < n_ranks; r++)
                if (t->line[r] == line)
                    some[n_some++] = t->ratio[phase][r * n_all + i];
            t->length[phase][line * n_all + i] = median_of(some, n_some);
        }
}

/* A rank's usual time is that of one pass; beside lengths, the mean of all passes tells it better.
 */
static void relate_to_lengths(struct timed_passes *t, uint32_t phase, uint32_t rank, uint32_t n)
{
    size_t n_all = (size_t)t->n_places * n;
    double *ratio = t->ratio[phase] + rank * n_all;
    const double *length = t->length[phase] + t->line[rank] * n_all;
    for (uint32_t chunk = 0; chunk < t->n_chunks; chunk++) {
        double sum = 0, n_of = 0;
        for (size_t i = 0; i < n_all; i++)
            if (chunk_of(t, i / n) == chunk && length[i] > 0) {
                sum += ratio[i] / length[i];
                n_of++;
            }
        for (size_t i = 0; i < n_all && sum > 0; i++)
            ratio[i] *= chunk_of(t, i / n) == chunk ? n_of / sum : 1;
        t->usual[phase][rank * t->n_chunks + chunk] *= sum > 0 ? sum / n_of : 1;
    }
}

static void find_lengths(struct timed_passes *t, const struct diagnosed *d, bool moves,
                         struct arena *arena)
{
    uint32_t n = d->n_iterations, n_ranks = d->g->n_ranks;
    size_t n_all = (size_t)t->n_places * n;
    for (uint32_t phase = DPRO_OP_FW; phase <= DPRO_OP_BW; phase++) {
        t->length[phase] = arena_array(arena, t->n_lines * n_all + 1, sizeof *t->length[phase]);
        find_medians(t, phase, n_ranks, n_all);
        for (uint32_t r = 0; r < n_ranks; r++)
            relate_to_lengths(t, phase, r, n);
        find_medians(t, phase, n_ranks, n_all);
        for (uint32_t line = 0; line < t->n_lines; line++) {
            double usual = usual_length(t, d, line, phase, moves);
            for (double *at = t->length[phase] + line * n_all, *end = at + n_all; at < end; at++)
                *at = moves ? *at * usual : usual;
        }
    }
}

/* Whether most of what batches vary by is the same in each iteration. */
static bool differ_alike(const struct timed_passes *t, uint32_t n)
{
    double of_means = 0, all = 0;
    for (size_t row = 0; row < (size_t)t->n_lines * t->n_places; row++) {
        struct mean_std own = stats_mean_std(t->length[DPRO_OP_FW] + row * n, n);
        of_means += (own.mean - 1) * (own.mean - 1);
        all += own.std * own.std;
    }
    return of_means > all;
}

/* What of a pass a batch of the iteration's mean length would save, in place of lengths. Without a
 * pipeline it is all of a rank that counts, and one that has less than the mean by chance waits as
 * before. */
static void even_lengths(struct timed_passes *t, bool by_rank, bool alike, uint32_t n)
{
    for (uint32_t phase = DPRO_OP_FW; phase <= DPRO_OP_BW; phase++)
        for (uint32_t i = 0; i < n; i++) {
            double mean = 0;
            size_t n_rows = (size_t)t->n_lines * t->n_places;
            for (size_t row = 0; row < n_rows; row++)
                mean += t->length[phase][row * n + i] / (double)n_rows;
            for (uint32_t line = 0; line < t->n_lines; line++) {
                double *of = t->length[phase] + (size_t)line * t->n_places * n + i, own = 0;
                for (uint32_t k = 0; k < t->n_places; k++)
                    own += of[(size_t)k * n] / t->n_places;
                for (uint32_t k = 0; k < t->n_places; k++) {
                    double length = by_rank ? own : of[(size_t)k * n];
                    double share = length > 0 ? 1 - mean / length : 0;
                    of[(size_t)k * n] = by_rank && !alike ? MAX(share, 0) : share;
                }
            }
        }
}

/* Work of ranks that is uneven op by op, as of experts to which tokens go: by rank, how much longer
 * it takes than its work explains. NULL: ops follow the length of their pass, or none is known. */
static double *factors_of_ops(const struct peers *p, const struct diagnosed *d,
                              const struct timed_passes *t, struct arena *arena)
{
    uint32_t n = d->n_iterations, n_ranks = d->g->n_ranks;
    double *factor = arena_array(arena, n_ranks + (size_t)1, sizeof *factor);
    SCRATCH double *length = mem_array((size_t)n_ranks * n + 1, sizeof *length);
    double off = 0, told = 0, all = 0, least = DBL_MAX, square = 0;
    for (uint32_t i = 0; i < n; i++) {
        double mean = 0;
        for (uint32_t r = 0; r < n_ranks; r++)
            mean += t->length[DPRO_OP_FW][(size_t)t->line[r] * n + i] / n_ranks;
        for (uint32_t r = 0; r < n_ranks && mean > 0; r++)
            length[r * n + i] = t->length[DPRO_OP_FW][(size_t)t->line[r] * n + i] / mean;
    }
    for (int again = 0; again < 2; again++) { /* how far off, once factors are known */
        for (size_t at = 0, end; at < p->groups.n; at = end) {
            const struct time_group *groups = p->groups.at;
            end = RUN_END(k, at, (size_t)p->groups.n, groups[k].key == groups[at].key);
            bool of_passes = d->g->phase[groups[at].times.at[0] % d->g->n_ops] <= DPRO_OP_BW;
            for (uint32_t i = 0; i < n && of_passes && end - at == n_ranks; i++) {
                double mean = 0;
                for (size_t k = at; k < end; k++)
                    mean +=
                        (double)groups[k].ns[i] / (again ? factor[groups[k].rank] : 1) / n_ranks;
                for (size_t k = at; k < end; k++) {
                    uint32_t r = groups[k].rank;
                    double explained = mean * length[r * n + i], own = (double)groups[k].ns[i];
                    factor[r] += again ? 0 : own;
                    told += again * (explained - mean) * (explained - mean);
                    square += again * mean * mean;
                    off += again * (own / factor[r] - explained) * (own / factor[r] - explained);
                }
            }
        }
        for (uint32_t r = 0; r < n_ranks && !again; r++) {
            double work = stats_mean_std(length + (size_t)r * n, n).mean;
            factor[r] = work > 0 ? factor[r] / work : 0;
            all += factor[r];
            least = MIN(least, factor[r]);
        }
        if (least <= 0)
            return NULL;
        for (uint32_t r = 0; r < n_ranks && !again; r++)
            factor[r] *= n_ranks / all;
    }
    return told > 1e-9 * square && 4 * off > told ? factor : NULL;
}

/* Of the k-th op of a run of groups, what a mean one would save each rank. */
static void even_op(const struct time_group *run, uint32_t n_ranks, size_t k, bool alike,
                    const double *factor, const struct diagnosed *d, double *shares)
{
    uint32_t n = d->n_iterations;
    for (uint32_t i = 0; i < n; i++) {
        double mean = 0;
        for (uint32_t r = 0; r < n_ranks; r++) {
            double ns = (double)left_of(d, i, run[r].times.at[k], false) / factor[run[r].rank];
            shares[(size_t)r * n + i] = ns;
            mean += ns / n_ranks;
        }
        for (uint32_t r = 0; r < n_ranks; r++) {
            double *own = &shares[(size_t)r * n + i];
            double share = *own > 0 ? 1 - mean / *own : 0;
            *own = alike ? share : MAX(share, 0);
        }
    }
}

void lengthen_passes(struct peers *p, const struct diagnosed *d, struct arena *arena)
{
    struct peers all = {0};
    uint32_t n = d->n_iterations, n_ranks = d->g->n_ranks;
    peers_make(&all, d, 1U << WORK_COMPUTE, true, arena);
    struct timed_passes t = passes_of(&all, d, true, arena);
    bool moves = t.n_lines == n_ranks && varies_as_work(d, &t);
    if (moves)
        find_lengths(&t, d, true, arena);
    bool by_op = moves && t.n_places == 1 && factors_of_ops(&all, d, &t, arena);
    if (moves && !by_op && !differ_alike(&t, n)) {
        even_lengths(&t, true, true, n);
        EACH (struct time_group, group, p->groups) {
            uint32_t phase = d->g->phase[group->times.at[0] % d->g->n_ops];
            double sum = 0;
            for (uint32_t i = 0; i < n; i++) {
                double share = phase <= DPRO_OP_BW
                                   ? t.length[phase][(size_t)group->rank * t.n_places * n + i]
                                   : 0;
                group->ns[i] = llround((double)group->ns[i] * (1 - MIN(share, 0)));
                sum += (double)group->ns[i];
            }
            group->mean_ns = (int64_t)(sum / n);
        }
    }
    peers_fini(&all);
}

/* Each pass, or each op, would be of a batch of the mean length. */
void find_uneven_work(const struct diagnosed *d, struct cause_found *found)
{
    SCRATCH_ARENA struct arena arena = {0};
    struct peers p = {0};
    uint32_t n = d->n_iterations, n_ranks = d->g->n_ranks;
    if (n_ranks < 2)
        return;
    peers_make(&p, d, 1U << WORK_COMPUTE, false, &arena);
    struct timed_passes t = passes_of(&p, d, false, &arena);
    find_lengths(&t, d, varies_as_work(d, &t), &arena);
    bool by_rank = t.n_lines == n_ranks, alike = differ_alike(&t, n);
    double *factor = by_rank && t.n_places == 1 ? factors_of_ops(&p, d, &t, &arena) : NULL;
    double *shares = arena_array(&arena, (size_t)n_ranks * n + 1, sizeof *shares);
    even_lengths(&t, by_rank, alike, n);
    for (size_t at = 0, end; at < p.groups.n; at = end) {
        const struct time_group *run = &p.groups.at[at];
        end = RUN_END(k, at, (size_t)p.groups.n, p.groups.at[k].key == run->key);
        bool by_op = factor && end - at == n_ranks;
        for (size_t k = 0; k < run->times.n; k++) {
            if (by_op)
                even_op(run, n_ranks, k, alike, factor, d, shares);
            for (const struct time_group *group = run; group < p.groups.at + end; group++) {
                uint32_t r = group->rank, time = group->times.at[k];
                uint32_t phase = d->g->phase[time % d->g->n_ops];
                uint32_t place = place_of(&t, group, k), per = t.n_stages;
                if (phase > DPRO_OP_BW || place == UINT32_MAX)
                    continue;
                uint32_t batch = place / per / t.n_chunks * per + place % per;
                uint32_t part =
                    alike && t.n_places > 1 && !by_rank
                        ? found_part(found, batch + UINT64_C(1), "micro-batch %u", batch)
                        : part_of_rank(found, d, r, NULL);
                const double *of_pass =
                    t.length[phase] + ((size_t)t.line[r] * t.n_places + place) * n;
                piece_share(found, d, time, part,
                            by_op ? shares + (size_t)(group - run) * n : of_pass, false);
            }
        }
    }
    peers_fini(&p);
}

/* ---- stages ---- */

double stages_compute(const struct diagnosed *d, bool all, struct arena *arena, double **of_stage)
{
    const struct dpro_graph *g = d->g;
    uint32_t n = d->pipeline.n_stages;
    double mean = 0, *n_of = arena_array(arena, n + (size_t)1, sizeof *n_of);
    *of_stage = arena_array(arena, n + (size_t)1, sizeof **of_stage);
    for (uint32_t r = 0; r < g->n_ranks; r++) {
        uint32_t stage = d->pipeline.stage_of[r], first = g->ranks[r].first_op;
        if (stage == UINT32_MAX)
            continue;
        n_of[stage]++;
        for (uint32_t op = first; op < first + g->ranks[r].n_ops; op++)
            for (uint32_t i = 0; i < d->n_iterations && d->works[op] == WORK_COMPUTE; i++)
                (*of_stage)[stage] +=
                    (double)(all ? d->copies[i].dur_ns[op] : left_of(d, i, op, false));
    }
    for (uint32_t s = 0; s < n; s++) {
        (*of_stage)[s] /= MAX(n_of[s], 1);
        mean += (*of_stage)[s] / n;
    }
    return mean;
}

/* Stages that compute more than the mean of all: their ranks' mean. */
#define LEAST_UNEVEN 1.02
void find_uneven_stages(const struct diagnosed *d, struct cause_found *found)
{
    SCRATCH_ARENA struct arena arena = {0};
    const struct dpro_graph *g = d->g;
    const struct pipeline *pipeline = &d->pipeline;
    if (pipeline->dimension == DPRO_NO_DIMENSION || pipeline->n_stages < 2)
        return;
    double *of_stage, mean = stages_compute(d, false, &arena, &of_stage);
    uint32_t most = 0;
    for (uint32_t s = 0; s < pipeline->n_stages; s++)
        most = of_stage[s] > of_stage[most] ? s : most;
    for (uint32_t op = 0; op < g->n_ops && of_stage[most] > mean * LEAST_UNEVEN; op++) {
        uint32_t stage = g->rank[op] < g->n_ranks ? pipeline->stage_of[g->rank[op]] : UINT32_MAX;
        if (d->works[op] != WORK_COMPUTE || stage == UINT32_MAX || of_stage[stage] <= 0)
            continue;
        double share = 1 - mean / of_stage[stage];
        uint32_t whose = of_stage[stage] > mean * LEAST_UNEVEN ? stage : most;
        piece_share(found, d, op, found_part(found, whose + 1, "stage %u", whose), &share, true);
    }
}

/* ---- bubbles ---- */

/* A stage waits for another one's message: by the edges to the barrier, and from the messages. */
void find_bubbles(const struct diagnosed *d, struct cause_found *found)
{
    SCRATCH_ARENA struct arena arena = {0};
    const struct dpro_graph *g = d->g;
    const struct pipeline *pipeline = &d->pipeline;
    if (pipeline->dimension == DPRO_NO_DIMENSION)
        return;
    struct pull pull = pull_make(g->n_ops, g->row, g->succ, &arena);
    EACH_OF (const struct graph_collective, of, g->collectives, g->n_collectives) {
        const struct graph_member *members = &g->members[of->first_member];
        if (of->dimension != pipeline->dimension || of->n_members != 2)
            continue;
        for (int m = 0; m < 2; m++) {
            uint32_t own = pipeline->stage_of[g->rank[members[m].arrival]];
            uint32_t other = pipeline->stage_of[g->rank[members[!m].arrival]];
            uint32_t part = found_part(found, (uint64_t)own << 32 | (other + 1),
                                       "stage %u waits for stage %u", own, other);
            if (of->barrier != DPRO_NO_OP)
                array_add(&found->cuts, .from = members[!m].arrival, .to = of->barrier,
                          .part = part);
            for (uint32_t e = pull.row[members[m].transfer]; e < pull.row[members[m].transfer + 1];
                 e++)
                if (graph_is_of_message(g, pull.pred[e]))
                    array_add(&found->cuts, .from = pull.pred[e], .to = members[m].transfer,
                              .part = part);
        }
    }
}
