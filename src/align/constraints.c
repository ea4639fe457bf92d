/* align/constraints.c: the constraints of every pair of clocks, few of which matter: those that
 * some line could touch. */
#include <stdlib.h>

#include "align/solver.h"
#include "base/sort.h"

enum {
    SLICE_BITS = 24, /* of the lower clock's nanoseconds, 17 ms: where segments end, at most so much
                        was judged together */
    FEW_CONSTRAINTS = 64,
};

struct align *align_create(uint32_t n_clocks)
{
    struct align *a = calloc(1, sizeof *a);
    if (!a)
        return NULL;
    size_t n = n_clocks + (size_t)1;
    a->n_clocks = n_clocks;
    a->cover_start_ns = malloc(n * sizeof *a->cover_start_ns);
    a->cover_end_ns = malloc(n * sizeof *a->cover_end_ns);
    a->keeps = calloc(n, sizeof *a->keeps);
    a->coarse_ns = calloc(n, sizeof *a->coarse_ns);
    a->tied = calloc(n, sizeof *a->tied);
    a->segments = calloc(n, sizeof *a->segments);
    a->n_segments = calloc(n, sizeof *a->n_segments);
    a->bounds = calloc(n, sizeof *a->bounds);
    a->n_bounds = calloc(n, sizeof *a->n_bounds);
    if (!a->cover_start_ns || !a->cover_end_ns || !a->keeps || !a->coarse_ns || !a->tied ||
        !a->segments || !a->n_segments || !a->bounds || !a->n_bounds) {
        align_destroy(a);
        return NULL;
    }
    for (uint32_t c = 0; c < n_clocks; c++) {
        a->cover_start_ns[c] = INT64_MAX;
        a->cover_end_ns[c] = INT64_MIN;
    }
    return a;
}

void align_destroy(struct align *a)
{
    if (!a)
        return;
    for (size_t p = 0; p < a->pairs.n; p++) {
        free(a->pairs.at[p].constraints[0].at);
        free(a->pairs.at[p].constraints[1].at);
        array_fini(&a->pairs.at[p].nears);
    }
    for (size_t w = 0; w < a->windows.n; w++) {
        free(a->windows.at[w].lines);
        free(a->windows.at[w].uncertainty_ns);
    }
    for (uint32_t c = 0; c < a->n_clocks; c++) {
        if (a->segments)
            free(a->segments[c]);
        if (a->bounds)
            free(a->bounds[c]);
    }
    array_fini(&a->pairs);
    array_fini(&a->windows);
    array_fini(&a->conflicts);
    map_fini(&a->pair_of);
    free(a->cover_start_ns);
    free(a->cover_end_ns);
    free(a->keeps);
    free(a->coarse_ns);
    free(a->tied);
    free(a->segments);
    free(a->n_segments);
    free(a->bounds);
    free(a->n_bounds);
    free(a->row);
    free(a->arcs);
    free(a);
}

void align_cover(struct align *a, uint32_t clock, int64_t start_ns, int64_t end_ns)
{
    if (start_ns < -ALIGN_TIME_MAX || end_ns > ALIGN_TIME_MAX || end_ns < start_ns)
        return;
    if (start_ns < a->cover_start_ns[clock])
        a->cover_start_ns[clock] = start_ns;
    if (end_ns > a->cover_end_ns[clock])
        a->cover_end_ns[clock] = end_ns;
}

uint32_t align_pair(struct align *a, uint32_t clock, uint32_t other)
{
    struct pair pair = {.low = clock < other ? clock : other,
                        .high = clock < other ? other : clock};
    uint64_t key = ((uint64_t)pair.low << 32 | pair.high) + 1, index;
    if (map_get(&a->pair_of, key, &index))
        return (uint32_t)index;
    index = a->pairs.n;
    if (index >= ALIGN_NONE / 2 || map_set(&a->pair_of, key, index) < 0 ||
        array_push(&a->pairs, pair) < 0)
        return ALIGN_NONE;
    return (uint32_t)index;
}

ORDER(compare_constraints, struct constraint, ASCENDING(low_ns) ?: ASCENDING(slack_ns));

/* Whether b is not below the line from a to c. */
static bool is_above(const struct constraint *a, const struct constraint *b,
                     const struct constraint *c)
{
    return ((__int128)b->slack_ns - a->slack_ns) * ((__int128)c->low_ns - a->low_ns) >=
           ((__int128)c->slack_ns - a->slack_ns) * ((__int128)b->low_ns - a->low_ns);
}

void constraints_tighten(struct constraints *constraints)
{
    struct constraint *at = constraints->at;
    uint32_t n = constraints->n, kept = 0, first = 0, i = 1;
    while (i < n && compare_constraints(&at[i - 1], &at[i]) <= 0)
        i++;
    if (i < n)
        qsort(at, n, sizeof *at, compare_constraints);
    for (i = 0; i < n; i++) {
        if (kept > 0 && at[i].low_ns >> SLICE_BITS != at[kept - 1].low_ns >> SLICE_BITS)
            first = kept;
        if (kept > first && at[i].low_ns == at[kept - 1].low_ns)
            continue; /* the tighter one came first */
        while (kept >= first + 2 && is_above(&at[kept - 2], &at[kept - 1], &at[i]))
            kept--;
        at[kept++] = at[i];
    }
    constraints->n = kept;
}

static int add_constraint(struct constraints *constraints, struct constraint constraint)
{
    if (constraints->n == constraints->cap) {
        if (constraints->cap >= FEW_CONSTRAINTS)
            constraints_tighten(constraints);
        if (constraints->n >= constraints->cap / 2) {
            uint32_t cap = constraints->cap ? constraints->cap * 2 : 4;
            struct constraint *at =
                cap > constraints->cap ? realloc(constraints->at, cap * sizeof *at) : NULL;
            if (!at)
                return -1;
            constraints->at = at;
            constraints->cap = cap;
        }
    }
    constraints->at[constraints->n++] = constraint;
    return 0;
}

static bool is_time(int64_t ns)
{
    return ns >= -ALIGN_TIME_MAX && ns <= ALIGN_TIME_MAX;
}

int align_before(struct align *a, uint32_t pair, uint32_t from, int64_t from_ns, int64_t to_ns,
                 uint64_t mark)
{
    struct pair *p = &a->pairs.at[pair];
    int direction = from == p->low ? LOW_TO_HIGH : HIGH_TO_LOW;
    if (!is_time(from_ns) || !is_time(to_ns))
        return 0;
    return add_constraint(
        &p->constraints[direction],
        (struct constraint){direction == LOW_TO_HIGH ? from_ns : to_ns, to_ns - from_ns, mark});
}

void align_keep(struct align *a, uint32_t clock)
{
    a->keeps[clock] = true;
}

int align_near(struct align *a, uint32_t pair, uint32_t clock, int64_t clock_ns, int64_t other_ns)
{
    struct pair *p = &a->pairs.at[pair];
    bool low = clock == p->low;
    if (!is_time(clock_ns) || !is_time(other_ns))
        return 0;
    return array_push(&p->nears,
                      ((struct near){low ? clock_ns : other_ns, low ? other_ns : clock_ns}));
}

uint32_t constraints_within(const struct align *align, const struct pair *pair, int direction,
                            int64_t start_ns, int64_t end_ns, uint32_t *first)
{
    const struct constraints *constraints = &pair->constraints[direction];
    __int128 bounds[2] = {(__int128)start_ns - align->coarse_ns[pair->low],
                          (__int128)end_ns - align->coarse_ns[pair->low]};
    uint32_t found[2];
    for (int b = 0; b < 2; b++)
        found[b] = LOWER_BOUND(i, 0, constraints->n, constraints->at[i].low_ns < bounds[b]);
    *first = found[0];
    return found[1] - found[0];
}
