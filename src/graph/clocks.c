/* graph/clocks.c: every rank's clock on one axis, from the ends of common collectives: all members
 * of a collective leave it together (within microseconds on one node, milliseconds over TCP), so
 * that the median difference of their ends estimates the clocks'. */
#include "graph/clocks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "graph/join.h"

void clocks_fini(struct clocks *clocks)
{
    free(clocks->warnings.at);
    arena_fini(&clocks->arena);
    *clocks = (struct clocks){0};
}

/* ---- from local to common ---- */

/* The line of a segment, saturating. */
static int64_t on_line(const struct dpro_clock_segment *s, int64_t local_ns)
{
    double drift = s->drift_ppm * 1e-6 * ((double)local_ns - (double)s->start_ns);
    int64_t sum;
    if (!(drift > -0x1p62 && drift < 0x1p62) ||
        __builtin_add_overflow(s->offset_ns, (int64_t)(drift < 0 ? drift - 0.5 : drift + 0.5),
                               &sum) ||
        __builtin_add_overflow(local_ns, sum, &sum))
        return local_ns;
    return sum;
}

int64_t clock_aligned(const struct clock_map *map, int64_t local_ns)
{
    uint32_t low = 0, high = map->n;
    if (map->n == 0)
        return local_ns;
    while (high - low > 1) { /* the last one that starts at or before it */
        uint32_t middle = low + (high - low) / 2;
        if (map->segments[middle].start_ns <= local_ns)
            low = middle;
        else
            high = middle;
    }
    int64_t aligned = on_line(&map->segments[low], local_ns);
    if (low == 0)
        return aligned;
    int64_t before = on_line(&map->segments[low - 1], map->segments[low].start_ns);
    return aligned < before ? before : aligned;
}

static int64_t moved(const struct clock_map *map, int64_t local_ns)
{
    return local_ns == ABSENT ? ABSENT : clock_aligned(map, local_ns);
}

static void move_rank(struct rank_build *rank, const struct clock_map *map)
{
    size_t n = (size_t)rank->n_timed * rank->steps.n;
    for (size_t i = 0; i < n; i++) {
        rank->start_ns[i] = moved(map, rank->start_ns[i]);
        rank->end_ns[i] = moved(map, rank->end_ns[i]);
    }
    for (size_t o = 0; o < rank->n_timed; o++) {
        rank->seen_start_ns[o] = moved(map, rank->seen_start_ns[o]);
        rank->seen_end_ns[o] = moved(map, rank->seen_end_ns[o]);
    }
    for (size_t s = 0; s < rank->steps.n; s++) {
        rank->steps.at[s].start_ns = moved(map, rank->steps.at[s].start_ns);
        rank->steps.at[s].end_ns = moved(map, rank->steps.at[s].end_ns);
    }
}

void clocks_move(struct join *join)
{
    for (uint32_t r = 0; r < join->n_ranks && join->clocks.of_rank; r++)
        if (join->clocks.of_rank[r].n > 0)
            move_rank(&join->ranks[r], &join->clocks.of_rank[r]);
}

/* ---- from the ends of collectives ---- */

typedef ARRAY(int64_t) i64_array;

struct estimate {
    int64_t offset_ns, uncertainty_ns; /* -1: not tied */
};

static int64_t end_of(const struct rank_build *rank, uint32_t sample, uint32_t collective)
{
    uint32_t transfer = rank->collectives.at[collective].transfer;
    return rank->end_ns[(size_t)rank->sample_step[sample] * rank->n_timed + transfer];
}

static int compare_i64(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

/* Members of these need not leave together. */
static bool ends_together(const struct local_collective *c)
{
    return strcmp(c->kind, "broadcast") != 0 && strcmp(c->kind, "reduce") != 0 &&
           strcmp(c->kind, "send") != 0 && strcmp(c->kind, "recv") != 0 &&
           strcmp(c->kind, "gather") != 0 && strcmp(c->kind, "scatter") != 0;
}

/* Differences to `r`'s ends of the ends of members whose clock is known. */
static int collect_ends(const struct join *join, const struct estimate *estimates, uint32_t r,
                        i64_array *differences)
{
    for (size_t j = 0; j < join->joined.n; j++) {
        const struct joined *joined = &join->joined.at[j];
        const struct member *members = &join->members.at[joined->first_member];
        uint32_t own = NO_ID, known = NO_ID;
        for (uint32_t m = 0; m < joined->n_members; m++) {
            if (members[m].rank == r)
                own = m;
            else if (known == NO_ID && estimates[members[m].rank].uncertainty_ns >= 0)
                known = m;
        }
        if (own == NO_ID || known == NO_ID ||
            !ends_together(&join->ranks[r].collectives.at[members[own].collective]))
            continue;
        for (uint32_t s = 0; s < join->ranks[r].n_samples; s++) {
            int64_t mine = end_of(&join->ranks[r], s, members[own].collective);
            uint32_t other = members[known].rank;
            int64_t theirs = end_of(&join->ranks[other], s, members[known].collective);
            int64_t difference;
            if (mine == ABSENT || theirs == ABSENT ||
                __builtin_sub_overflow(theirs, mine, &difference) ||
                __builtin_add_overflow(difference, estimates[other].offset_ns, &difference))
                continue;
            if (array_push(differences, difference) < 0)
                return -1;
        }
    }
    return 0;
}

static int estimate_ranks(const struct join *join, struct estimate *estimates)
{
    i64_array differences = {0};
    int status = 0;
    for (uint32_t r = 0; r < join->n_ranks; r++)
        estimates[r] = (struct estimate){0, r == 0 ? 0 : -1};
    /* again as long as it ties one more rank: groups may hang together only through others */
    for (bool more = join->n_ranks > 1; more && status == 0;) {
        more = false;
        for (uint32_t r = 1; r < join->n_ranks && status == 0; r++) {
            if (estimates[r].uncertainty_ns >= 0)
                continue;
            differences.n = 0;
            status = collect_ends(join, estimates, r, &differences);
            if (status < 0 || differences.n == 0)
                continue;
            qsort(differences.at, differences.n, sizeof *differences.at, compare_i64);
            estimates[r].offset_ns = differences.at[differences.n / 2];
            estimates[r].uncertainty_ns =
                (differences.at[differences.n * 3 / 4] - differences.at[differences.n / 4]) / 2;
            more = true;
        }
    }
    array_fini(&differences);
    return status;
}

static int write_clock(struct join *join, uint32_t r, const struct estimate *estimate)
{
    struct clocks *clocks = &join->clocks;
    const struct rank_build *rank = &join->ranks[r];
    char name[32];
    int *ranks = arena_alloc(&clocks->arena, sizeof *ranks);
    struct dpro_clock_segment *segment = arena_alloc(&clocks->arena, sizeof *segment);
    int len = snprintf(name, sizeof name, "rank %d", rank->trace->rank);
    const char *host = arena_copy_string(&clocks->arena, name, (size_t)len);
    if (!ranks || !segment || !host)
        return -1;
    *ranks = rank->trace->rank;
    *segment = (struct dpro_clock_segment){
        .start_ns = rank->steps.n ? rank->steps.at[0].start_ns : 0,
        .end_ns = rank->steps.n ? rank->steps.at[rank->steps.n - 1].end_ns : 0,
        .offset_ns = estimate->offset_ns,
        .uncertainty_ns = estimate->uncertainty_ns};
    clocks->at[clocks->n++] =
        (struct dpro_clock){.host = host,
                            .ranks = ranks,
                            .n_ranks = 1,
                            .method = r == 0                         ? "reference"
                                      : estimate->uncertainty_ns < 0 ? "none"
                                                                     : "collectives",
                            .segments = segment,
                            .n_segments = estimate->uncertainty_ns >= 0};
    clocks->of_rank[r] = (struct clock_map){segment, estimate->uncertainty_ns >= 0};
    return 0;
}

int clocks_align(struct join *join, const struct dpro_trace *trace,
                 const struct dpro_graph_options *options, struct dpro_error *err)
{
    struct clocks *clocks = &join->clocks;
    struct estimate *estimates = malloc((join->n_ranks + (size_t)1) * sizeof *estimates);
    clocks->at = arena_array(&clocks->arena, join->n_ranks + (size_t)1, sizeof *clocks->at);
    clocks->of_rank =
        arena_array(&clocks->arena, join->n_ranks + (size_t)1, sizeof *clocks->of_rank);
    clocks->of_transport =
        arena_array(&clocks->arena, trace->n_transports + (size_t)1, sizeof *clocks->of_transport);
    int status = estimates && clocks->at && clocks->of_rank && clocks->of_transport ? 0 : -1;
    if (status == 0)
        status = estimate_ranks(join, estimates);
    for (uint32_t r = 0; r < join->n_ranks && status == 0; r++) {
        if (options->no_align)
            estimates[r] = (struct estimate){0, r == 0 ? 0 : -1};
        status = write_clock(join, r, &estimates[r]);
    }
    for (uint32_t t = 0; t < trace->n_transports && status == 0; t++)
        if (trace->transports[t].rank_index < join->n_ranks)
            clocks->of_transport[t] = clocks->of_rank[trace->transports[t].rank_index];
    if (status == 0 && join->n_ranks > 0)
        clocks->alignment.reference = clocks->at[0].host;
    free(estimates);
    return status < 0 ? dpro_error_nomem(err) : 0;
}
