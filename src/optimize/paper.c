/* optimize/paper.c: Algorithm 1 of the paper (section 4.2), in rounds over the critical path.
 *
 * Where computation is critical Theorem 1 decides on fusing ops, with the tensors they make ready
 * (Theorem 3): that takes a pass that knows a fused op's time, and there is none yet, so there only
 * the number of partitions is chosen. Where communication is critical Theorem 2 decides on fusing
 * a bucket with the one before it. With partial replay switched off a replay of everything
 * decides, with the change and without. */
#include "optimize/search.h"

struct walk {
    struct space *space;
    struct dpro_strategy strategy;
    struct journal journal;
    const struct dpro_pass_view *view; /* of the round's start */
    int64_t value_ns; /* of the strategy as it is; kept up only without partial replay */
};

static int64_t best_sync_ns(struct space *space, uint64_t size, uint32_t *partitions)
{
    *partitions = space_best_partitions(space, size);
    return space_sync_ns(space, size, *partitions);
}

static bool edit(struct walk *w, enum dpro_edit_kind kind, uint32_t at, int64_t value)
{
    struct dpro_edit edit = {kind, at, value};
    return edit_apply(w->space->model, &w->strategy, &edit, &w->journal) == NULL;
}

/* Makes the edit if a replay of everything says that it helps. */
static bool try(struct walk *w, enum dpro_edit_kind kind, uint32_t at, int64_t value)
{
    size_t mark = w->journal.undo.n;
    if (search_stops(w->space->search) || !edit(w, kind, at, value))
        return false;
    int64_t ns = space_evaluate(w->space, &w->strategy);
    if (ns < w->value_ns) {
        w->value_ns = ns;
        return true;
    }
    edits_undo(&w->strategy, &w->journal, mark);
    return false;
}

static void choose_partitions(struct walk *w, uint32_t at, uint64_t size)
{
    if (!w->space->search->options->no_partial) {
        edit(w, DPRO_EDIT_PARTITION, at, space_best_partitions(w->space, size));
        return;
    }
    for (uint32_t k = 1; k <= 8; k *= 2)
        if (k != w->strategy.buckets[at].partitions)
            try(w, DPRO_EDIT_PARTITION, at, k);
}

/* Theorem 2, for bucket `at` and the one before it; `before_ns` is q_{n-1}^e. */
static bool fusing_helps(struct walk *w, int64_t before_ns, int64_t ready_ns, uint64_t size_before,
                         uint64_t size)
{
    uint32_t unused;
    return before_ns > ready_ns + best_sync_ns(w->space, size_before + size, &unused) -
                           best_sync_ns(w->space, size, &unused);
}

static void walk_path(struct walk *w)
{
    const struct dpro_pass_view *view = w->view;
    uint32_t n_buckets = view->n_buckets, at = 0, partitions;
    bool whole = w->space->search->options->no_partial;
    uint64_t size_before = 0;
    int64_t before_ns = 0, before_that_ns = 0; /* ends of bucket at - 1, and of the one before */
    for (uint32_t n = 0; n < n_buckets && !w->space->search->stopped_by; n++, at++) {
        const struct dpro_pass_bucket *bucket = &view->buckets[n];
        uint64_t size = bucket->size_bytes;
        bool fused = false;
        if (at > 0 && whole)
            fused = try(w, DPRO_EDIT_MERGE, at - 1, 0);
        else if (at > 0 && bucket->critical)
            fused = fusing_helps(w, before_ns, bucket->ready_ns, size_before, size) &&
                    edit(w, DPRO_EDIT_MERGE, at - 1, 0);
        if (fused) {
            at--;
            size += size_before;
            before_ns = before_that_ns;
        }
        choose_partitions(w, at, size);
        int64_t takes = best_sync_ns(w->space, size, &partitions);
        int64_t start = bucket->ready_ns > before_ns ? bucket->ready_ns : before_ns;
        before_that_ns = before_ns;
        before_ns = start + takes;
        size_before = size;
    }
}

/* From a bucket for each tensor of the Coarsened View. */
void search_paper(struct space *space)
{
    struct walk w = {.space = space};
    struct convergence convergence = {0};
    if (space_strategy(space, &w.strategy) < 0) {
        space->search->failed = true;
        return;
    }
    w.value_ns = space_evaluate(space, &w.strategy);
    while (!search_stops(space->search) && !has_converged(&convergence, space->best_ns)) {
        w.view = space_look(space, &w.strategy);
        w.journal.undo.n = 0;
        walk_path(&w);
        w.value_ns = space_evaluate(space, &w.strategy);
        space->search->n_rounds++;
        if (w.journal.undo.n == 0)
            break;
    }
    journal_fini(&w.journal);
}
