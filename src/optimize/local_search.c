/* Descent from the best strategy. In a round every candidate of every pass is evaluated; the best
 * is taken, then each other one that helped by itself, if it still does. When nothing helps, the
 * search starts again from a few random edits of the best, or from random buckets, until five
 * starts in a row find nothing better. */

#include "cost/program/buckets.h"
#include "optimize/search.h"

struct ranked {
    int64_t ns;
    uint32_t candidate;
};

ORDER(best_first, struct ranked, ASCENDING(ns) ?: ASCENDING(candidate));

/* ---- symmetry: edits of one block are repeated in blocks like it ---- */

/* Equal for neighbours of equal sizes in blocks alike: layer numbers in names don't count. */
static uint64_t border_kind(const struct dpro_model *model, const struct dpro_strategy *strategy,
                            uint32_t place)
{
    uint64_t hash = 14695981039346656037u;
    for (uint32_t side = 0; side < 2; side++) {
        const struct model_tensor *tensor = &model->tensors[strategy->order[place - 1 + side]];
        hash = (hash ^ tensor->size_bytes) * 1099511628211u;
        for (const char *c = tensor->name; *c; c++)
            if (*c < '0' || *c > '9')
                hash = (hash ^ (uint8_t)*c) * 1099511628211u;
    }
    return hash;
}

/* What a place between two tensors is like. */
struct place_kind {
    uint64_t kind;
    uint32_t bucket; /* that the tensor after it is in */
    bool is_first;   /* of its kind */
};

/* Where a split at `place` cuts its bucket, when places of that kind before it have been cut. */
static uint32_t cut_at(const struct place_kind *kinds, uint32_t first, uint32_t place)
{
    for (uint32_t p = place; p-- > first + 1;)
        if (kinds[p].kind == kinds[place].kind)
            return place - p;
    return place - first;
}

/* A candidate that takes away (or makes) the borders at all places like one. */
static void add_for_kind(struct space *space, const struct dpro_strategy *strategy,
                         const struct place_kind *kinds, uint32_t place, bool merges)
{
    struct candidates *candidates = &space->candidates;
    size_t before = candidates->edits.n;
    uint32_t n = 0;
    for (uint32_t p = place; p < space->model->n_tensors && n < DPRO_PASS_MAX_EDITS; p++) {
        uint32_t b = kinds[p].bucket, first = strategy->buckets[b].first;
        if (kinds[p].kind != kinds[place].kind || (first == p) != merges)
            continue;
        struct dpro_edit edit = {
            .kind = DPRO_EDIT_SPLIT, .at = b + n, .value = cut_at(kinds, first, p)};
        if (merges) /* as many buckets fewer before it as there were edits */
            edit = (struct dpro_edit){.kind = DPRO_EDIT_MERGE, .at = b - n - 1, .value = 0};
        array_push(&candidates->edits, edit);
        n++;
    }
    if (n == 1) /* is proposed anyway */
        candidates->edits.n = before;
    candidates_add(candidates, before);
}

static void add_for_all_blocks(struct space *space, const struct dpro_strategy *strategy)
{
    uint32_t n = space->model->n_tensors;
    SCRATCH struct place_kind *kinds = mem_array(n, sizeof *kinds);
    for (uint32_t b = 0; b < strategy->n_buckets; b++)
        for (uint32_t i = 0; i < strategy->buckets[b].n; i++)
            kinds[strategy->buckets[b].first + i].bucket = b;
    for (uint32_t place = 1; place < n; place++) {
        uint32_t before = 1;
        kinds[place].kind = border_kind(space->model, strategy, place);
        while (kinds[before].kind != kinds[place].kind)
            before++;
        kinds[place].is_first = before == place;
    }
    for (uint32_t place = 1; place < n; place++)
        for (int merges = 1; merges >= 0 && kinds[place].is_first; merges--)
            add_for_kind(space, strategy, kinds, place, merges);
}

/* ---- a round ---- */

/* Adapts a candidate's edits, made for the round's first strategy, to the strategy after other
 * edits: its first bucket is found again by its first tensor, and must still be as long. Edits of
 * modules stay as they are. */
static bool move_edits(const struct dpro_strategy *before, const struct dpro_strategy *now,
                       const struct dpro_edit *edits, uint32_t n, struct dpro_edit *moved)
{
    uint32_t first = 0, at = 0;
    memcpy(moved, edits, n * sizeof *moved);
    while (first < n && !edit_is_of_buckets(&edits[first]))
        first++;
    if (first == n)
        return true;
    const struct strategy_bucket *bucket = &before->buckets[edits[first].at];
    while (at < now->n_buckets && now->buckets[at].first != bucket->first)
        at++;
    if (at == now->n_buckets || now->buckets[at].n != bucket->n)
        return false;
    for (uint32_t i = first; i < n; i++) {
        if (!edit_is_of_buckets(&edits[i]))
            continue;
        moved[i].at += at - edits[first].at;
        if (edits[i].kind == DPRO_EDIT_MOVE)
            moved[i].value += (int64_t)at - edits[first].at;
    }
    return true;
}

static int rank_candidates(const struct space *space, int64_t below_ns, struct ranked *ranked)
{
    int n = 0;
    for (uint32_t i = 0; i < space->candidates.list.n; i++)
        if (space->values.at[i] < below_ns)
            ranked[n++] = (struct ranked){space->values.at[i], i};
    qsort(ranked, (size_t)n, sizeof *ranked, best_first);
    return n;
}

/* Where a descent is. */
struct search_place {
    struct dpro_strategy strategy, tried; /* tried: room for one */
    int64_t ns;
};

/* Whether anything helped. `before` is the strategy that the candidates are for. */
static bool take_best(struct space *space, struct search_place *at,
                      const struct dpro_strategy *before, const struct ranked *ranked, int n)
{
    enum { MOST_TRIES = 256 };
    bool changed = false;
    SCRATCH struct dpro_edit *moved = mem_alloc((space->candidates.edits.n + 1) * sizeof *moved);
    for (int i = 0; i < n && i < MOST_TRIES && !search_stops(space->search); i++) {
        const struct candidate *c = &space->candidates.list.at[ranked[i].candidate];
        if (!move_edits(before, &at->strategy, space->candidates.edits.at + c->first, c->n,
                        moved) ||
            edits_apply(space->model, &at->strategy, moved, c->n, &at->tried))
            continue;
        int64_t ns = space_evaluate(space, &at->tried);
        if (ns >= at->ns)
            continue;
        space_copy(space, &at->tried, &at->strategy);
        at->ns = ns;
        changed = true;
    }
    return changed;
}

/* All candidates of a strategy. */
static void search_collect(struct space *space, const struct dpro_strategy *strategy)
{
    space_collect(space, strategy);
    if (!space->search->options->no_symmetry && space->model->capabilities.together)
        add_for_all_blocks(space, strategy);
}

/* Down to where nothing helps. */
static void local_descend(struct space *space, struct search_place *at,
                          struct dpro_strategy *before)
{
    bool goes_on = true;
    while (goes_on && !search_stops(space->search)) {
        search_collect(space, &at->strategy);
        space_copy(space, &at->strategy, before);
        space_evaluate_candidates(space, &at->strategy);
        struct ranked *ranked = mem_alloc((space->candidates.list.n + 1) * sizeof *ranked);
        int n = rank_candidates(space, at->ns, ranked);
        goes_on = n > 0 && take_best(space, at, before, ranked, n);
        mem_free(ranked);
        space->search->n_rounds++;
    }
}

static void start_elsewhere(struct space *space, const struct dpro_strategy *best,
                            struct search_place *at, uint32_t turn)
{
    enum { N_EDITS = 4 };
    struct search *search = space->search;
    struct dpro_strategy *s = &at->strategy;
    if (turn % 2) {
        double borders = search_uniform(search);
        space_copy(space, best, s);
        buckets_by_cap(space->model, 0, 0, s);
        for (uint32_t b = s->n_buckets; b-- > 1;)
            if (search_uniform(search) > borders * borders) {
                struct dpro_edit merge = {.kind = DPRO_EDIT_MERGE, .at = b - 1, .value = 0};
                edit_apply(space->model, s, &merge);
            }
    } else {
        space_copy(space, best, s);
        for (int i = 0; i < N_EDITS; i++) {
            search_collect(space, s);
            if (space->candidates.list.n == 0)
                break;
            const struct candidate *c =
                &space->candidates.list.at[search_random(search) % space->candidates.list.n];
            const struct dpro_edit *edits = space->candidates.edits.at + c->first;
            if (!edits_apply(space->model, s, edits, c->n, &at->tried))
                space_copy(space, &at->tried, s);
        }
    }
    at->ns = space_evaluate(space, s);
}

void search_descend(struct space *space, const struct dpro_strategy *from)
{
    struct search_place at = {space_copy_of(space, from), space_strategy(space),
                              space_evaluate(space, from)};
    struct dpro_strategy before = space_strategy(space);
    local_descend(space, &at, &before);
}

void search_local(struct space *space, bool plain)
{
    const struct dpro_strategy *best = plain ? &space->plain : &space->best;
    const int64_t *best_ns = plain ? &space->plain_ns : &space->best_ns;
    struct convergence convergence = {0};
    if (*best_ns == INT64_MAX)
        return;
    struct search_place at = {space_copy_of(space, best), space_strategy(space), *best_ns};
    struct dpro_strategy before = space_strategy(space);
    space->search->registry.plain = plain;
    space->own_ns = INT64_MAX;
    for (uint32_t turn = 0; !search_stops(space->search); turn++) {
        local_descend(space, &at, &before);
        if (has_converged(&convergence, *best_ns))
            break;
        start_elsewhere(space, best, &at, turn);
    }
    space->search->registry.plain = false;
}
