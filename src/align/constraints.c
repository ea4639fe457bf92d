/* The constraints of every pair of clocks, few of which matter: those that some line could
 * touch. */

#include "align/solver.h"

enum {
    SLICE_BITS = 24, /* of the lower clock's nanoseconds, 17 ms: where segments end, at most so much
                        was judged together */
    FEW_CONSTRAINTS = 64,
};

struct align *align_create(uint32_t n_clocks)
{
    struct align *a = mem_array(1, sizeof *a);
    a->n_clocks = n_clocks;
    a->clocks = arena_array(&a->arena, n_clocks + (size_t)1, sizeof *a->clocks);
    for (uint32_t c = 0; c < n_clocks; c++)
        a->clocks[c] = (struct clock){.cover_start_ns = INT64_MAX, .cover_end_ns = INT64_MIN};
    return a;
}

void align_destroy(struct align *a)
{
    if (!a)
        return;
    for (size_t p = 0; p < a->pairs.n; p++)
        FREE_ALL(&a->pairs.at[p].constraints[0], &a->pairs.at[p].constraints[1],
                 &a->pairs.at[p].nears);
    FREE_ALL(&a->pairs, &a->windows, &a->conflicts, &a->pair_of);
    arena_fini(&a->arena);
    mem_free(a);
}

static bool is_time(int64_t ns)
{
    return ns >= -ALIGN_TIME_MAX && ns <= ALIGN_TIME_MAX;
}

void align_cover(struct align *a, uint32_t clock, int64_t start_ns, int64_t end_ns)
{
    struct clock *c = &a->clocks[clock];
    if (!is_time(start_ns) || !is_time(end_ns) || end_ns < start_ns)
        return;
    c->cover_start_ns = MIN(c->cover_start_ns, start_ns);
    c->cover_end_ns = MAX(c->cover_end_ns, end_ns);
}

uint32_t align_pair(struct align *a, uint32_t clock, uint32_t other)
{
    struct pair pair = {.low = clock < other ? clock : other,
                        .high = clock < other ? other : clock};
    uint64_t key = ((uint64_t)pair.low << 32 | pair.high) + 1, index;
    if (map_get(&a->pair_of, key, &index))
        return (uint32_t)index;
    index = a->pairs.n;
    if (index >= ALIGN_NONE / 2)
        mem_fail();
    map_set(&a->pair_of, key, index);
    array_push(&a->pairs, pair);
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

void constraints_tighten(constraints_array *constraints)
{
    struct constraint *at = constraints->at;
    size_t n = constraints->n, kept = 0, first = 0, i = 1;
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

/* Where there is no more room those that matter are kept; where that gives little, there is twice
 * as much, from few on, as a job has many pairs. */
static void add_constraint(constraints_array *to, struct constraint constraint)
{
    if (to->n == to->cap) {
        if (to->cap >= FEW_CONSTRAINTS)
            constraints_tighten(to);
        if (to->n >= to->cap / 2) {
            size_t cap = to->cap ? to->cap * 2 : 4;
            to->at = mem_resize(to->at, cap, sizeof *to->at);
            to->cap = cap;
        }
    }
    to->at[to->n++] = constraint;
}

void align_before(struct align *a, uint32_t pair, uint32_t from, int64_t from_ns, int64_t to_ns,
                  uint64_t mark)
{
    struct pair *p = &a->pairs.at[pair];
    int direction = from == p->low ? LOW_TO_HIGH : HIGH_TO_LOW;
    int64_t low_ns = direction == LOW_TO_HIGH ? from_ns : to_ns;
    if (is_time(from_ns) && is_time(to_ns))
        add_constraint(&p->constraints[direction],
                       (struct constraint){low_ns, to_ns - from_ns, mark});
}

void align_keep(struct align *a, uint32_t clock)
{
    a->clocks[clock].keeps = true;
}

void align_near(struct align *a, uint32_t pair, uint32_t clock, int64_t clock_ns, int64_t other_ns)
{
    struct pair *p = &a->pairs.at[pair];
    bool low = clock == p->low;
    if (is_time(clock_ns) && is_time(other_ns))
        array_add(&p->nears, low ? clock_ns : other_ns, low ? other_ns : clock_ns);
}

uint32_t constraints_within(const struct align *align, const struct pair *pair, int direction,
                            int64_t start_ns, int64_t end_ns, uint32_t *first)
{
    const constraints_array *constraints = &pair->constraints[direction];
    __int128 bounds[2] = {(__int128)start_ns - align->clocks[pair->low].coarse_ns,
                          (__int128)end_ns - align->clocks[pair->low].coarse_ns};
    size_t found[2];
    for (int b = 0; b < 2; b++)
        found[b] = LOWER_BOUND(i, (size_t)0, constraints->n, constraints->at[i].low_ns < bounds[b]);
    *first = (uint32_t)found[0];
    return (uint32_t)(found[1] - found[0]);
}
