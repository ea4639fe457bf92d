/* What single iterations and ranks take longer than usual. An op that varies a little is longer
 * than its median half of the time, though the sum of many such ops hardly varies. So what the ops
 * of a rank take longer counts as far as their sum is longer than its own median: where another
 * process shares a core, other ops are cut in each iteration. Without noise, what is shorter than
 * usual would take as long as usual, too: a mean hardly changes where single sums vary. Stages of a
 * pipeline meet after each pass, so that the passes of a rank do not even out. */
#include "diagnose/causes.h"

#include "graph/names/names.h"

enum { LEAST_SAMPLES = 4 }; /* of which one may be unusual */

/* What is longer than usual: all work of one sort on a rank, and of which iterations. */
struct excess {
    const struct diagnosed *d;
    struct cause_found *found;
    const bool *wanted;         /* by iteration; NULL: all */
    const uint32_t *parts;      /* [rank * n_iterations + iteration] */
    const uint32_t *gpu_parts;  /* of work of a GPU; NULL: the same */
    const uint32_t *slow_since; /* by rank, as in struct slow_ranks; NULL: none is */
    const bool
        *odd; /* [rank * n_iterations + iteration] that tell nothing of what is usual; or NULL */
    bool evens_out; /* what the short iterations are shorter is set against it */
    double *sorted;
};

static bool is_slow(const struct excess *e, uint32_t rank)
{
    return e->slow_since && e->slow_since[rank] == 0;
}

/* The median of those iterations that tell what is usual. Of a rank that is late by chance, no more
 * than that of all: there may be one other iteration only, in which another pass is longer. */
static double usual_of(const struct excess *e, uint32_t rank, const double *values)
{
    uint32_t n = e->d->n_iterations, n_usual = 0;
    const bool *odd = e->odd ? e->odd + (size_t)rank * n : NULL;
    memcpy(e->sorted, values, n * sizeof *values);
    double of_all = select_double(e->sorted, n, (n - 1) / 2);
    for (uint32_t i = 0; i < n; i++)
        if (odd && !odd[i])
            e->sorted[n_usual++] = values[i];
    double usual = n_usual > 0 ? select_double(e->sorted, n_usual, (n_usual - 1) / 2) : of_all;
    return is_slow(e, rank) ? usual : MIN(usual, of_all);
}

/* What is longer of a group, and its whole against what is usual. */
struct group_excess {
    int64_t *usual; /* by time of the group */
    double *more,
        *less;    /* by iteration: what its longer times are longer, its shorter ones shorter */
    double *over; /* by iteration: all of it, signed */
};

static struct group_excess excess_of(const struct excess *e, const struct time_group *group,
                                     struct arena *arena)
{
    uint32_t n = e->d->n_iterations, n_ops = e->d->g->n_ops;
    int64_t *usual = arena_array(arena, group->times.n + 1, sizeof *usual);
    double *more = arena_array(arena, n + (size_t)1, sizeof *more);
    double *less = arena_array(arena, n + (size_t)1, sizeof *less);
    double *all = arena_array(arena, n + (size_t)1, sizeof *all);
    double *values = arena_array(arena, n + (size_t)1, sizeof *values);
    for (size_t k = 0; k < group->times.n; k++) {
        uint32_t op = group->times.at[k] % n_ops, gap = group->times.at[k] >= n_ops;
        for (uint32_t i = 0; i < n; i++)
            values[i] = (double)left_of(e->d, i, op, gap);
        usual[k] = llround(usual_of(e, group->rank, values));
        for (uint32_t i = 0; i < n; i++) {
            double over = (double)(left_of(e->d, i, op, gap) - usual[k]);
            all[i] += over;
            more[i] += MAX(over, 0);
            less[i] += MAX(-over, 0);
        }
    }
    double mean = stats_mean_std(all, n).mean;
    double usual_sum = usual_of(e, group->rank, all);
    usual_sum =
        is_slow(e, group->rank) ? MIN(usual_sum, mean) : usual_sum; /* the mean makes it slow */
    for (uint32_t i = 0; i < n; i++)
        all[i] -= usual_sum;
    return (struct group_excess){usual, more, less, all};
}

static void excess_claim(const struct excess *e, const struct time_group *group,
                         const struct group_excess *of)
{
    uint32_t n = e->d->n_iterations, n_ops = e->d->g->n_ops;
    for (size_t k = 0; k < group->times.n; k++) {
        uint32_t op = group->times.at[k] % n_ops, gap = group->times.at[k] >= n_ops;
        bool on_gpu = e->gpu_parts && (e->d->g->flags[op] & GRAPH_OP_GPU);
        const uint32_t *parts = (on_gpu ? e->gpu_parts : e->parts) + (size_t)group->rank * n;
        for (uint32_t i = 0, part; i < n; i++) { /* a piece for each part */
            int64_t *ns = NULL;
            part = parts[i];
            for (uint32_t j = 0; j < i; j++)
                part = parts[j] == part ? UINT32_MAX : part;
            for (uint32_t j = i; j < n && part != UINT32_MAX; j++) {
                int64_t over = left_of(e->d, j, op, gap) - of->usual[k];
                double sum = of->over[j], *sums = sum > 0 ? of->more : of->less;
                if (parts[j] != part || (e->wanted && !e->wanted[j]) || over == 0 || sum == 0 ||
                    (over > 0) != (sum > 0) || (sum < 0 && !e->evens_out))
                    continue;
                ns = ns ?: arena_array(e->found->arena, n, sizeof *ns);
                ns[j] = llround((double)over * MIN(fabs(sum) / sums[j], 1));
            }
            if (ns)
                array_add(&e->found->pieces, .op = op, .part = part, .gap = gap, .ns = ns);
        }
    }
}

/* Groups of each rank's work of these sorts: of each of them, its gaps apart, or of each
 * micro-batch's pass and of all the rest.
 */
static void excess_claim_all(struct excess *e, uint32_t works)
{
    SCRATCH_ARENA struct arena arena = {0};
    const struct dpro_graph *g = e->d->g;
    const uint8_t *work = e->d->works;
    SCRATCH struct map numbers = {0};
    time_groups groups = {0};
    const uint32_t *passes = e->evens_out ? passes_by_op(e->d, &arena) : NULL;
    e->sorted = arena_array(&arena, e->d->n_iterations + (size_t)1, sizeof *e->sorted);
    for (uint32_t time = 0; time < 2 * g->n_ops; time++) {
        uint32_t op = time % g->n_ops;
        if (of_works(work[time], works) && g->rank[op] < g->n_ranks &&
            !(e->slow_since && e->slow_since[g->rank[op]] > 0 &&
              e->slow_since[g->rank[op]] < e->d->n_iterations))
            groups_add(&groups, &numbers,
                       e->evens_out ? passes[op] : work[time] * UINT64_C(2) + (time >= g->n_ops),
                       g->rank[op], time);
    }
    struct group_excess *of = arena_array(&arena, groups.n + 1, sizeof *of);
    for (size_t k = 0; k < groups.n; k++)
        of[k] = excess_of(e, &groups.at[k], &arena);
    for (size_t k = 0; k < groups.n; k++)
        excess_claim(e, &groups.at[k], &of[k]);
    groups_fini(&groups);
}

/* By iteration, what the rows before took of the rank that they took most of, beyond what they take
 * of it in most iterations. */
static int64_t *explained_ns(const struct diagnosed *d, struct arena *arena)
{
    uint32_t n = d->n_iterations;
    int64_t *most = arena_array(arena, n + (size_t)1, sizeof *most);
    int64_t *taken = arena_array(arena, n + (size_t)1, sizeof *taken);
    int64_t *sorted = arena_array(arena, n + (size_t)1, sizeof *sorted);
    for (uint32_t r = 0; r < d->g->n_ranks; r++) {
        uint32_t first = d->g->ranks[r].first_op, end = first + d->g->ranks[r].n_ops;
        for (uint32_t i = 0; i < n; i++) {
            const struct replay_copy *copy = &d->copies[i];
            taken[i] = 0;
            for (uint32_t op = first; op < end; op++)
                taken[i] += copy->dur_ns[op] + (copy->gap_ns ? copy->gap_ns[op] : 0) -
                            left_of(d, i, op, false) - left_of(d, i, op, true);
        }
        memcpy(sorted, taken, n * sizeof *taken);
        int64_t usual = lower_median(sorted, n);
        for (uint32_t i = 0; i < n; i++)
            most[i] = MAX(most[i], taken[i] - usual);
    }
    return most;
}

/* By iteration, whether it is unusually long, beside what is explained already. */
static bool *unusual_iterations(const struct diagnosed *d, struct arena *arena, uint32_t *n_slow,
                                struct slow_ones *ones)
{
    const struct dpro_graph *g = d->g;
    uint32_t n = d->n_iterations;
    bool *are = arena_array(arena, n + (size_t)1, sizeof *are);
    *n_slow = 0;
    if (g->n_samples != n || !g->measured_ns)
        return are;
    const int64_t *explained = explained_ns(d, arena);
    int64_t *ns = arena_copy(arena, g->measured_ns, n, sizeof *ns);
    int64_t usual = lower_median(ns, n);
    for (uint32_t i = 0; i < n; i++)
        ns[i] = MAX(g->measured_ns[i] - explained[i], MIN(usual, g->measured_ns[i]));
    *ones = stats_slow_ones(ns, g->sample_number, n);
    for (uint32_t i = 0; i < n; i++) {
        are[i] = ns[i] > ones->usual_most;
        *n_slow += are[i];
    }
    return are;
}

/* What is known of them behind their name; text in `again`. */
static const char *tell_again(const struct slow_ones *ones, char again[40])
{
    again[0] = '\0';
    if (ones->every > 0)
        snprintf(again, 40, ", every %u iterations", ones->every);
    else if (ones->are_first)
        snprintf(again, 40, ", in the first iterations");
    return again;
}

/* What a rank did most longer in an iteration: of what its name tells, where there is such; but
 * what is a cause of its own. UINT32_MAX: nobody knows what the GPU did. */
static uint32_t reason_of(const struct diagnosed *d, struct cause_found *found, uint32_t rank,
                          uint32_t iteration, const char *again)
{
    const struct dpro_graph *g = d->g;
    const struct grown_time *most = NULL;
    const struct slow_kind *kind = NULL;
    bool is_told = false;
    EACH_OF (const struct grown_time, grown, g->grown, g->n_grown) {
        const struct slow_kind *its = graph_slow_kind(g, grown);
        bool told = its && !grown->is_gpu;
        if (grown->sample == iteration && grown->rank == rank && !(its && its->is_cause) &&
            ((told && !is_told) ||
             (told == is_told && grown->more_ns > (most ? most->more_ns : 0)))) {
            most = grown;
            kind = its;
            is_told = told;
        }
    }
    if (!kind && g->lacks_gpu)
        return UINT32_MAX;
    if (!most)
        return found_part(found, 1, "other ops%s%s",
                          d->g->n_collectives > 0 ? " and communication" : "", again);
    if (kind)
        return found_part(found, map_text_key(kind->what), "%s%s", kind->what, again);
    const char *name = strtab_get(&g->names, most->name);
    return most->is_gap ? found_part(found, map_key(most->name) ^ 2,
                                     "no op was recorded, before %.160s%s", name, again)
                        : found_part(found, map_key(most->name), "%.200s%s", name, again);
}

/* Whether in each unusual iteration one rank takes longer, by turns another one, and no name tells
 * why: ranks pause by turns, and there would be no such iterations if they did at once. */
static bool pause_by_turns(const struct diagnosed *d, const bool *are)
{
    const struct dpro_graph *g = d->g;
    SCRATCH int64_t *ns = mem_array(g->n_ranks + (size_t)1, sizeof *ns);
    uint32_t first = UINT32_MAX;
    bool by_turns = false;
    for (uint32_t i = 0; i < d->n_iterations; i++) {
        int64_t all_ns = 0;
        uint32_t most = 0;
        if (!are[i])
            continue;
        memset(ns, 0, g->n_ranks * sizeof *ns);
        EACH_OF (const struct grown_time, grown, g->grown, g->n_grown) {
            if (grown->sample != i)
                continue;
            const struct slow_kind *kind = graph_slow_kind(g, grown);
            if (kind && kind->is_cause)
                continue;
            if (kind && !grown->is_gpu)
                return false;
            ns[grown->rank] += grown->more_ns;
            all_ns += grown->more_ns;
            most = ns[grown->rank] > ns[most] ? grown->rank : most;
        }
        if (ns[most] * 3 <= all_ns * 2)
            return false;
        by_turns |= first != UINT32_MAX && most != first;
        first = most;
    }
    return by_turns;
}

void find_slow_iterations(const struct diagnosed *d, struct cause_found *found)
{
    SCRATCH_ARENA struct arena arena = {0};
    struct slow_ones ones = {0};
    uint32_t n = d->n_iterations, n_slow;
    char again[40];
    if (d->g->n_samples < LEAST_SAMPLES)
        found->needs = "Record 4 iterations or more: of fewer, none is unusual.";
    else if (d->g->lacks_gpu)
        found->needs = "The GPU's work was not recorded: its CPUs are ahead of it in some of them.";
    if (d->g->n_samples < LEAST_SAMPLES)
        return;
    bool *are = unusual_iterations(d, &arena, &n_slow, &ones);
    const uint32_t *since =
        n_slow > 0 ? slow_ranks_find(d, 1U << WORK_COMPUTE, &arena).since : NULL;
    for (uint32_t r = 0; r < d->g->n_ranks && since; r++)
        for (uint32_t i = since[r] > 0 ? since[r] : n; i < n; i++) {
            n_slow -= are[i];
            are[i] = false;
        }
    if (n_slow == 0 || pause_by_turns(d, are))
        return;
    uint32_t *parts = arena_array(&arena, (size_t)d->g->n_ranks * n + 1, sizeof *parts);
    bool any = false;
    tell_again(&ones, again);
    for (uint32_t r = 0; r < d->g->n_ranks; r++)
        for (uint32_t i = 0; i < n; i++) {
            parts[r * n + i] = are[i] ? reason_of(d, found, r, i, again) : UINT32_MAX;
            any |= parts[r * n + i] != UINT32_MAX;
        }
    if (!any)
        return;
    struct excess e = {.d = d, .found = found, .wanted = are, .parts = parts};
    excess_claim_all(
        &e, ~(1U << WORK_NONE | 1U << WORK_SYNC | (work_moves(d) ? 1U << WORK_COMPUTE : 0)));
}

/* ---- what is named ---- */

struct longer_time {
    uint32_t time; /* gap * n_ops + op */
    int64_t ns;    /* than usual */
};
ORDER(by_longest, struct longer_time, DESCENDING(ns) ?: ASCENDING(time));

/* By [rank * n_iterations + iteration], how much more of what is called so there is than in most
 * iterations, beside what the pieces take of it. NULL: there is none. */
static int64_t *named_more(const struct diagnosed *d, const struct cause_found *found,
                           const char *what, struct arena *arena)
{
    uint32_t n = d->n_iterations, n_ranks = d->g->n_ranks;
    int64_t *more = arena_array(arena, (size_t)n_ranks * n + 1, sizeof *more);
    int64_t *taken = arena_array(arena, (size_t)n_ranks * n + 1, sizeof *taken);
    bool any = false;
    EACH_OF (const struct grown_time, grown, d->g->grown, d->g->n_grown) {
        const struct slow_kind *kind = graph_slow_kind(d->g, grown);
        if (!kind || strcmp(kind->what, what) != 0 || grown->sample >= n)
            continue;
        more[grown->rank * n + grown->sample] += grown->more_ns;
        any = true;
    }
    EACH (const struct piece, piece, found->pieces)
        for (uint32_t i = 0; i < n && d->g->rank[piece->op] < n_ranks; i++)
            taken[d->g->rank[piece->op] * n + i] += left_of(d, i, piece->op, piece->gap);
    int64_t *sorted = arena_array(arena, n + (size_t)1, sizeof *sorted);
    for (uint32_t r = 0; r < n_ranks; r++) {
        memcpy(sorted, taken + (size_t)r * n, n * sizeof *sorted);
        int64_t usual = lower_median(sorted, n);
        for (uint32_t i = r * n; i < (r + 1) * n; i++)
            more[i] -= MAX(taken[i] - usual, 0);
    }
    return any ? more : NULL;
}

/* What a rank's CPU takes longer than usual, the longest time first, as what is named is in one
 * place: as much in all as there is more of that. */
static void claim_longest(const struct diagnosed *d, struct cause_found *found, uint32_t rank,
                          const int64_t *more, const bool *taken, uint32_t part,
                          struct arena *arena)
{
    const uint32_t works = 1U << WORK_LAUNCH | 1U << WORK_GAP | 1U << WORK_MEMORY |
                           1U << WORK_COPY | (work_moves(d) ? 0 : 1U << WORK_COMPUTE);
    const struct dpro_graph *g = d->g;
    uint32_t n = d->n_iterations, first = g->ranks[rank].first_op, n_ops = g->ranks[rank].n_ops;
    struct longer_time *longer = arena_array(arena, 2 * (size_t)n_ops + 1, sizeof *longer);
    int64_t *usual = arena_array(arena, 2 * (size_t)n_ops + 1, sizeof *usual);
    int64_t *ns = arena_array(arena, n + (size_t)1, sizeof *ns);
    int64_t **of_time = arena_array(arena, 2 * (size_t)n_ops + 1, sizeof *of_time);
    for (uint32_t k = 0; k < 2 * n_ops; k++) {
        for (uint32_t i = 0; i < n; i++)
            ns[i] = left_of(d, i, first + k % n_ops, k >= n_ops);
        usual[k] = lower_median(ns, n);
    }
    for (uint32_t i = 0; i < n; i++) {
        size_t n_longer = 0;
        int64_t left = more[i];
        for (uint32_t k = 0; k < 2 * n_ops && left > 0; k++) {
            uint32_t op = first + k % n_ops, time = (k >= n_ops) * g->n_ops + op;
            int64_t over = left_of(d, i, op, k >= n_ops) - usual[k];
            if (over > 0 && !taken[time] && of_works(d->works[time], works) &&
                !(g->flags[op] & GRAPH_OP_GPU))
                longer[n_longer++] = (struct longer_time){k, over};
        }
        qsort(longer, n_longer, sizeof *longer, by_longest);
        for (size_t k = 0; k < n_longer && left > 0; k++) {
            int64_t **of = &of_time[longer[k].time];
            *of = *of ?: arena_array(found->arena, n, sizeof **of);
            (*of)[i] = MIN(longer[k].ns, left);
            left -= (*of)[i];
        }
    }
    for (uint32_t k = 0; k < 2 * n_ops; k++)
        if (of_time[k])
            array_add(&found->pieces, .op = first + k % n_ops, .part = part, .gap = k >= n_ops,
                      .ns = of_time[k]);
}

/* What is in some iterations only is no op of the graph. */
static void find_named_in_some(const struct diagnosed *d, struct cause_found *found,
                               const char *what)
{
    SCRATCH_ARENA struct arena arena = {0};
    const struct dpro_graph *g = d->g;
    uint32_t n = d->n_iterations;
    const int64_t *more =
        g->n_samples == n ? named_more(d, found, what, &arena) : NULL; /* else they are apart */
    if (!more)
        return;
    bool *taken = arena_array(&arena, 2 * (size_t)g->n_ops + 1, sizeof *taken);
    bool *any = arena_array(&arena, g->n_ranks + (size_t)1, sizeof *any);
    int64_t *most = arena_array(&arena, n + (size_t)1, sizeof *most);
    char again[40];
    EACH (const struct piece, piece, found->pieces)
        taken[piece->gap * (size_t)g->n_ops + piece->op] = true;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t r = 0; r < g->n_ranks; r++) {
            most[i] = MAX(most[i], more[r * n + i]);
            any[r] |= more[r * n + i] > 0;
        }
    struct slow_ones ones = stats_slow_ones(most, g->sample_number, n);
    uint32_t part = found_part(found, map_text_key(what), "%s%s", what, tell_again(&ones, again));
    for (uint32_t r = 0; r < g->n_ranks; r++)
        if (any[r])
            claim_longest(d, found, r, more + (size_t)r * n, taken, part, &arena);
}

void find_named(const struct diagnosed *d, struct cause_found *found, const char *what)
{
    const struct dpro_graph *g = d->g;
    SCRATCH bool *are = mem_array(g->names.n + (size_t)1, sizeof *are);
    for (uint32_t id = 0; id < g->names.n; id++) {
        const char *name = strtab_get(&g->names, id);
        const struct slow_kind *kind = slow_kind_of(name);
        are[id] = kind && strcmp(kind->what, what) == 0 && !strstr(name, "ompiled");
    }
    for (uint32_t time = 0; time < 2 * g->n_ops; time++) {
        uint32_t op = time % g->n_ops, gap = time >= g->n_ops;
        uint32_t name = !gap ? g->name[op] : g->where ? g->where[op] : 0;
        bool on_cpu = gap ? d->works[time] == WORK_GAP : !(g->flags[op] & GRAPH_OP_GPU);
        if (are[name] && on_cpu && (!gap || name > 0))
            piece_all(found, op, gap, part_of_rank(found, d, g->rank[op], NULL));
    }
    find_named_in_some(d, found, what);
}

/* ---- noise ---- */

void find_noise(const struct diagnosed *d, struct cause_found *found)
{
    SCRATCH_ARENA struct arena arena = {0};
    uint32_t n = d->n_iterations;
    if (d->g->n_samples < 3) {
        found->needs = "Record 3 iterations or more.";
        return;
    }
    struct slow_ranks slow = slow_ranks_find(d, 1U << WORK_COMPUTE, &arena);
    for (uint32_t r = 0; r < d->g->n_ranks; r++)
        d->varies[r] = slow.since[r] == n;
    size_t n_all = (size_t)d->g->n_ranks * n;
    uint32_t *parts = arena_array(&arena, n_all + 1, sizeof *parts);
    uint32_t *gpu_parts = arena_array(&arena, n_all + 1, sizeof *gpu_parts);
    for (size_t i = 0; i < n_all; i++) {
        uint32_t r = (uint32_t)(i / n);
        parts[i] = part_of_rank(found, d, r, NULL);
        gpu_parts[i] = found_part(found, UINT64_MAX - r, "kernels of rank %d", d->g->ranks[r].rank);
    }
    struct excess e = {.d = d,
                       .found = found,
                       .parts = parts,
                       .gpu_parts = gpu_parts,
                       .slow_since = slow.since,
                       .odd = slow.odd,
                       .evens_out = true};
    excess_claim_all(&e, (work_moves(d) ? 0 : 1U << WORK_COMPUTE) | 1U << WORK_LAUNCH |
                             1U << WORK_GAP | 1U << WORK_MEMORY | 1U << WORK_COPY);
}

/* Of a single iteration, ranks that begin later than the first one. */
void find_start_apart(const struct diagnosed *d, struct cause_found *found)
{
    const struct dpro_graph *g = d->g;
    int64_t earliest_ns = INT64_MAX;
    SCRATCH bool *follows = mem_array(g->n_ops + (size_t)1, sizeof *follows);
    for (uint32_t e = 0; e < g->row[g->n_ops]; e++)
        follows[g->succ[e]] = true;
    for (uint32_t r = 0; r < g->n_ranks; r++)
        earliest_ns = MIN(earliest_ns, g->ranks[r].offset_ns);
    for (uint32_t op = 0; op < g->n_ops && g->single_iteration; op++)
        if (!follows[op] && g->rank[op] < g->n_ranks &&
            g->ranks[g->rank[op]].offset_ns > earliest_ns)
            array_add(&found->cuts, .from = DPRO_NO_OP, .to = op,
                      .part = part_of_rank(found, d, g->rank[op], NULL));
}
