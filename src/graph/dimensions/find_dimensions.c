/* From process groups to dimensions.
 *
 * Groups that do the same and have the same shape are a *family*: they are one dimension's. The
 * families with most bytes come first. A family within a dimension belongs to it, one across
 * several dimensions to none. */
#include "graph/dimensions/find_dimensions.h"

/* ---- families ---- */

static bool is_of(const struct group_traffic *traffic, int does, enum carried carried)
{
    bool routed = traffic->routes && carried == CARRIED_EXCHANGED;
    return does == DPRO_EXPERTS && traffic->routes ? routed : !routed;
}

static void add_use(struct finder *f, uint32_t use, int does)
{
    const struct group_traffic *traffic = &f->traffics.all.at[use];
    const struct member_sets *sets = &f->join->sets;
    uint32_t size = member_sets_size(sets, traffic->set), at = 0;
    struct grid_box box = grid_box_of(member_sets_ranks(sets, traffic->set), size);
    if (!grid_fits(&box, 1, f->join->world_size))
        box.n = 0;
    while (at < f->families.n &&
           (f->families.at[at].does != does || f->families.at[at].size != size ||
            !grid_box_equal(&f->families.at[at].box, &box)))
        at++;
    if (at == f->families.n)
        array_add(&f->families, .does = does, .box = box, .size = size, .dimension = NO_ID);
    struct family *family = &f->families.at[at];
    array_push(&family->uses, use);
    family->n_ranks += traffic->n_ranks;
    for (int c = 0; c < N_CARRIED; c++)
        for (int in = 0; in < N_CARRIED_IN && is_of(traffic, does, (enum carried)c); in++) {
            family->n += traffic->n[c][in];
            family->bytes += traffic->bytes[c][in];
        }
}

static uint64_t bytes_per_rank(const struct family *family)
{
    return family->n_ranks > 0 ? family->bytes / family->n_ranks : 0;
}

static int by_weight(const void *a, const void *b)
{
    const struct family *x = a, *y = b;
    return COMPARE(bytes_per_rank(y), bytes_per_rank(x)) ?: DESCENDING(n)
                                                         ?: ASCENDING(does)
                                                         ?: ASCENDING(size);
}

static void find_families(struct finder *f)
{
    for (uint32_t u = 0; u < f->traffics.all.n; u++) {
        if (f->traffics.all.at[u].does != NO_PARALLELISM)
            add_use(f, u, f->traffics.all.at[u].does);
        if (f->traffics.all.at[u].routes)
            add_use(f, u, DPRO_EXPERTS);
    }
    array_sort(&f->families, by_weight);
}

/* ---- dimensions ---- */

static struct found_dimension *dimension_at(struct finder *f, uint32_t at)
{
    return &f->found->all.at[at];
}

/* Whether the groups of a family have a rank in common. */
static bool has_overlap(const struct finder *f, const struct family *family)
{
    SCRATCH struct map seen = {0};
    bool found = false;
    for (size_t u = 0; u < family->uses.n; u++) {
        uint32_t set = finder_use(f, family, u)->set;
        const int32_t *ranks = member_sets_ranks(&f->join->sets, set);
        for (uint32_t i = 0; i < member_sets_size(&f->join->sets, set); i++)
            found |= map_first(&seen, map_key((uint64_t)ranks[i]), set) != set;
    }
    return found;
}

static void set_box(struct found_dimension *dimension, const struct grid_box *box)
{
    dimension->box = *box;
    dimension->size = grid_box_size(box);
}

enum { MOST_DIMENSIONS = 2 * DPRO_N_PARALLELISMS }; /* more groups than these make no sense */

static void add_dimension(struct finder *f, struct family *family, const struct grid_box *box)
{
    if (f->found->all.n == MOST_DIMENSIONS) {
        f->is_grid = false;
        return;
    }
    family->dimension = (uint32_t)f->found->all.n;
    array_add(&f->found->all, .does = family->does, .box = *box, .size = family->size,
              .n_per_rank = family->n / MAX(family->n_ranks, 1),
              .bytes_per_rank = bytes_per_rank(family));
    if (box->n > 0)
        dimension_at(f, family->dimension)->size = grid_box_size(box);
}

/* A family whose groups share ranks with those of a dimension. Returns whether the family is done
 * with. *box: what of it is left. */
static bool dimensions_meet(struct finder *f, struct family *family, uint32_t other,
                            struct grid_box *box)
{
    struct found_dimension *dimension = dimension_at(f, other);
    bool is_inner = dimension->box.n > 0 && finder_lies_in(f, family, &dimension->box);
    if (is_inner && (family->does == dimension->does || !keeps_parameters(dimension->does) ||
                     keeps_parameters(family->does) || family->box.n == 0)) {
        family->dimension = other;
        return true;
    }
    if (is_inner) { /* gradients are summed over this dimension, too: what is left replicates */
        struct grid_box rest = grid_box_without(&dimension->box, &family->box);
        if (rest.n > 0)
            set_box(dimension, &rest);
        else
            dimension->size = 0; /* nothing is */
        return false;
    }
    if (box->n > 0 && grid_box_within(&dimension->box, box)) {
        if (!keeps_parameters(family->does) || dimension->does != DPRO_CONTEXT)
            return true; /* across dimensions */
        *box = grid_box_without(box, &dimension->box);
        return box->n == 0;
    }
    f->is_grid = false;
    return false;
}

/* Whether a group has two ranks that are in one group of a dimension. */
static bool shares_two(const struct finder *f, uint32_t set, uint32_t other)
{
    const int32_t *ranks = member_sets_ranks(&f->join->sets, set);
    uint32_t n = 0;
    for (uint32_t i = 0; i < member_sets_size(&f->join->sets, set); i++)
        n += member_sets_holds(&f->join->sets, other, ranks[i]);
    return n > 1;
}

static bool dimensions_meets(const struct finder *f, const struct family *family,
                             const struct grid_box *box, uint32_t dimension)
{
    const struct grid_box *other = &f->found->all.at[dimension].box;
    if (box->n > 0 && other->n > 0)
        return grid_box_overlap(box, other);
    EACH (const struct family, owner, f->families)
        for (size_t i = 0; i < owner->uses.n && owner->dimension == dimension; i++)
            for (size_t u = 0; u < family->uses.n; u++)
                if (shares_two(f, finder_use(f, family, u)->set, finder_use(f, owner, i)->set))
                    return true;
    return false;
}

static void place_family(struct finder *f, struct family *family)
{
    struct grid_box box = family->box;
    f->is_grid &= !has_overlap(f, family);
    for (uint32_t d = 0; d < f->found->all.n; d++) {
        const struct found_dimension *other = dimension_at(f, d);
        bool routed = (family->does == DPRO_EXPERTS) != (other->does == DPRO_EXPERTS);
        if (other->size > 0 && !routed && dimensions_meets(f, family, &box, d) &&
            dimensions_meet(f, family, d, &box))
            return;
    }
    add_dimension(f, family, &box);
}

/* Those that replicate nothing come last. */
ORDER(by_parallelism, struct found_dimension,
      COMPARE(x->size <= 1, y->size <= 1) ?: ASCENDING(does) ?: DESCENDING(size) ?: ASCENDING(was));

/* What replicates nothing, or no more as another dimension took its place, is none. */
static void sort_dimensions(struct finder *f)
{
    uint32_t n = (uint32_t)f->found->all.n, n_kept = 0;
    SCRATCH uint32_t *places = mem_alloc((n + (size_t)1) * sizeof *places);
    for (uint32_t d = 0; d < n; d++)
        dimension_at(f, d)->was = d;
    array_sort(&f->found->all, by_parallelism);
    for (uint32_t d = 0; d < n; d++)
        places[dimension_at(f, d)->was] = dimension_at(f, d)->size > 1 ? n_kept++ : NO_ID;
    f->found->all.n = n_kept;
    EACH (struct family, family, f->families)
        if (family->dimension != NO_ID)
            family->dimension = places[family->dimension];
}

/* ---- the grid ---- */

static void check_grid(struct finder *f)
{
    struct grid_box boxes[MOST_DIMENSIONS];
    uint32_t n = 0;
    EACH (struct found_dimension, dimension, f->found->all) {
        f->is_grid &= dimension->box.n > 0;
        if (dimension->does == DPRO_EXPERTS)
            EACH (const struct found_dimension, other, f->found->all)
                dimension->lies_over |=
                    other->does != DPRO_EXPERTS && (dimension->box.n == 0 || other->box.n == 0 ||
                                                    grid_box_overlap(&dimension->box, &other->box));
        if (!dimension->lies_over)
            boxes[n++] = dimension->box;
    }
    f->is_grid = f->is_grid && grid_fits(boxes, n, f->join->world_size);
}

static void add_box_group(struct found_dimension *dimension, int32_t first)
{
    for (size_t at = 0; at < dimension->groups.n; at += dimension->size)
        if (dimension->groups.at[at] == first)
            return;
    for (uint32_t i = 0; i < dimension->size; i++)
        array_push(&dimension->groups, grid_rank_of(&dimension->box, first, i));
}

/* Of a grid all groups, else those of the ranks in the trace. */
static void fill_groups(struct finder *f)
{
    for (uint32_t d = 0; d < f->found->all.n; d++) {
        struct found_dimension *dimension = dimension_at(f, d);
        if (f->is_grid) {
            for (int32_t rank = 0; rank < f->join->world_size; rank++)
                if (grid_first_of(&dimension->box, rank) == rank)
                    for (uint32_t i = 0; i < dimension->size; i++)
                        array_push(&dimension->groups, grid_rank_of(&dimension->box, rank, i));
            continue;
        }
        EACH (const struct family, family, f->families)
            for (size_t u = 0; u < family->uses.n && family->dimension == d; u++) {
                uint32_t set = finder_use(f, family, u)->set;
                const int32_t *ranks = member_sets_ranks(&f->join->sets, set);
                uint32_t n = member_sets_size(&f->join->sets, set);
                if (dimension->box.n > 0)
                    for (uint32_t i = 0; i < n; i++)
                        add_box_group(dimension, grid_first_of(&dimension->box, ranks[i]));
                else if (n == dimension->size)
                    array_append(&dimension->groups, ranks, n);
            }
    }
}

/* ---- words ---- */

__attribute__((format(printf, 3, 4))) static void add_words(char *text, size_t size,
                                                            const char *format, ...)
{
    size_t n = strlen(text);
    va_list args;
    va_start(args, format);
    vsnprintf(text + n, size - n, format, args);
    va_end(args);
}

#define WORDS(dimension, ...)                                                                      \
    add_words((dimension)->evidence, sizeof(dimension)->evidence, __VA_ARGS__)

static void say_groups(const struct finder *f, struct found_dimension *d, uint32_t n_seen)
{
    uint32_t n = d->size > 0 ? (uint32_t)d->groups.n / d->size : 0;
    if (n_seen < n)
        WORDS(d, "%u of %u groups", n_seen, n);
    else
        WORDS(d, "%u group%s", n, n == 1 ? "" : "s");
    if ((int)d->size == f->join->world_size)
        WORDS(d, " of all %u ranks", d->size);
    else if (d->box.n == 1 && d->box.at[0].from == 1)
        WORDS(d, " of %u neighbouring ranks", d->size);
    else if (d->box.n == 1)
        WORDS(d, " of %u ranks, %d apart", d->size, d->box.at[0].from);
    else
        WORDS(d, " of %u ranks", d->size);
}

/* "24 all-reduces in forward and backward" */
static void say_carried(const struct finder *f, struct found_dimension *d,
                        const struct family *family)
{
    static const char *const what[N_CARRIED][2] = {{"all-reduce", "all-reduces"},
                                                   {"all-gather", "all-gathers"},
                                                   {"reduce-scatter", "reduce-scatters"},
                                                   {"all-to-all", "all-to-alls"},
                                                   {"send or receive", "sends and receives"},
                                                   {"push and pull", "pushes and pulls"},
                                                   {"broadcast", "broadcasts"},
                                                   {"other collective", "other collectives"}};
    bool first = true;
    for (int c = 0; c < N_CARRIED; c++) {
        uint64_t n[N_CARRIED_IN] = {0}, all = 0;
        for (size_t u = 0; u < family->uses.n; u++)
            for (int in = 0; in < N_CARRIED_IN; in++)
                if (is_of(finder_use(f, family, u), family->does, (enum carried)c))
                    n[in] += finder_use(f, family, u)->n[c][in];
        for (int in = 0; in < N_CARRIED_IN; in++)
            all += n[in];
        uint64_t each = (all + family->n_ranks / 2) / MAX(family->n_ranks, 1);
        if (all == 0)
            continue;
        WORDS(d, "%s%llu %s", first ? ": a rank's " : ", ", (unsigned long long)MAX(each, 1),
              what[c][each > 1]);
        first = false;
        if (n[CARRIED_ELSEWHERE] == 0)
            WORDS(d, " in %s",
                  n[0] == 0   ? "backward"
                  : n[1] == 0 ? "forward"
                              : "forward and backward");
    }
    if (!first && family->bytes > 0)
        WORDS(d, ", %.3g MB", (double)bytes_per_rank(family) / 1e6);
}

static void say_name(const struct finder *f, struct found_dimension *d, const struct family *family)
{
    for (size_t u = 0; u < family->uses.n; u++) {
        const struct group_traffic *traffic = finder_use(f, family, u);
        if (traffic->name) {
            bool agrees = traffic->named == family->does ||
                          (keeps_parameters(traffic->named) && keeps_parameters(family->does));
            WORDS(d, agrees ? "; named %.60s" : "; though named %.60s", traffic->name);
            return;
        }
    }
}

/* The family that a dimension rests on: one that does the same, if any. */
static const struct family *family_of(const struct finder *f, uint32_t dimension)
{
    const struct family *found = NULL;
    EACH (const struct family, family, f->families) {
        bool same = family->does == f->found->all.at[dimension].does;
        if (family->dimension == dimension && (!found || (same && found->does != family->does)))
            found = family;
    }
    return found;
}

static void say_evidence(struct finder *f, bool is_asked)
{
    for (uint32_t d = 0; d < f->found->all.n; d++) {
        struct found_dimension *dimension = dimension_at(f, d);
        const struct family *family = family_of(f, d);
        bool is_whole = family && family->size == dimension->size;
        if (is_asked)
            WORDS(dimension, "as asked for; ");
        say_groups(f, dimension, is_whole ? (uint32_t)family->uses.n : UINT32_MAX);
        if (!family) {
            WORDS(dimension, ": no communication of theirs in the trace");
            continue;
        }
        say_carried(f, dimension, family);
        say_name(f, dimension, family);
    }
}

static void say_note(struct finder *f)
{
    struct dimensions *found = f->found;
    uint64_t product = 1;
    uint32_t world = (uint32_t)MAX(f->join->world_size, 0);
    if (world < 2)
        return;
    EACH (const struct found_dimension, dimension, found->all)
        product *= dimension->lies_over || dimension->box.n == 0 ? 1 : dimension->size;
    if (found->all.n == 0 && f->traffics.n_unknown > 0)
        snprintf(found->note, sizeof found->note,
                 "the trace does not say which ranks take part in its collectives, so how the job "
                 "is parallel is unknown; the times of collectives are known");
    else if (found->all.n > 0 && !f->is_grid)
        snprintf(found->note, sizeof found->note,
                 "the groups form no grid of %u ranks; groups and times are those of the trace, "
                 "other numbers of ranks can't be asked for",
                 world);
    else if (found->all.n > 0 && product < world)
        snprintf(found->note, sizeof found->note,
                 "the dimensions make up %llu of %u ranks: nothing in the trace says what the "
                 "factor %llu between them is",
                 (unsigned long long)product, world, (unsigned long long)(world / product));
    else if (found->all.n > 0 && f->traffics.n_unknown > 0)
        snprintf(found->note, sizeof found->note,
                 "the trace does not tell the group of %u collectives: they are in no dimension",
                 f->traffics.n_unknown);
}

/* ---- all ---- */

/* Each collective's dimension, by its traffic and, of all-to-alls, by what routes. */
static void dimensions_assign(struct finder *f)
{
    size_t n = f->traffics.all.n;
    SCRATCH uint32_t *main = mem_alloc((2 * n + 1) * sizeof *main);
    uint32_t *routed = main + n;
    memset(main, 0xFF, (2 * n + 1) * sizeof *main);
    EACH (const struct family, family, f->families)
        for (size_t u = 0; u < family->uses.n; u++) {
            bool routes = family->does == DPRO_EXPERTS && finder_use(f, family, u)->routes;
            (routes ? routed : main)[family->uses.at[u]] = family->dimension;
        }
    EACH_OF (struct rank_build, rank, f->join->ranks, f->join->n_ranks)
        EACH (struct local_collective, c, rank->collectives) {
            uint32_t use = traffics_of(&f->traffics, rank, c);
            c->dimension = NO_ID;
            if (use == NO_ID)
                continue;
            bool routes =
                f->traffics.all.at[use].routes && traffic_carried(rank, c) == CARRIED_EXCHANGED;
            c->dimension = (routes ? routed : main)[use];
        }
}

void dimensions_find(struct dimensions *dimensions, struct join *join, const char *asked)
{
    struct finder f = {.join = join, .found = dimensions, .is_grid = true};
    traffics_find(&f.traffics, join);
    find_families(&f);
    if (asked)
        dimensions_lay_out(&f, asked);
    else
        EACH (struct family, family, f.families)
            place_family(&f, family);
    sort_dimensions(&f);
    check_grid(&f);
    fill_groups(&f);
    say_evidence(&f, asked != NULL);
    say_note(&f);
    dimensions_assign(&f);
    EACH (struct family, family, f.families)
        array_fini(&family->uses);
    array_fini(&f.families);
    traffics_fini(&f.traffics);
}

void dimensions_fini(struct dimensions *dimensions)
{
    EACH (struct found_dimension, dimension, dimensions->all)
        array_fini(&dimension->groups);
    array_fini(&dimensions->all);
}
