/* What passes propose for a strategy. Each proposal is tried on a copy first, so the search never
 * sees an impossible one. */
#include "cost/program/buckets.h"
#include "optimize/registry.h"

/* A file's in a child process; those built in, and the caller's own, in this one. */
static void proposals_propose(const struct question *q, struct registered *entry)
{
    if (entry->pass) {
        if (!pass_propose(entry->pass, q->view, q->candidates, q->registry->edits))
            registry_reject(q->registry, entry, "proposed more edits than there is room for");
        return;
    }
    struct child_question question = {.view = q->view};
    struct child_answer answer = child_run(entry->path, &question, q->candidates, NULL);
    if (*answer.why)
        registry_reject(q->registry, entry, "%s", answer.why);
}

/* What makes no sense at all is not looked at here. */
static bool is_let(const struct question *q, const struct dpro_edit *e)
{
    if (e->kind == DPRO_EDIT_COMPRESS && e->value >= 0 && e->value < 32)
        return q->registry->compressions & 1u << e->value;
    if (e->kind == DPRO_EDIT_COMPUTE && e->at < q->model->n_modules && e->value > 0 &&
        e->value < DPRO_N_COMPUTINGS)
        return q->registry->computing != 0 && (q->gains[e->at].ways & 1u << e->value);
    return true;
}

/* Whether the user allowed it, and the job's stack can be given it. */
static bool is_allowed(const struct question *q, const struct dpro_edit *edits, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (!edit_is_within(&q->model->capabilities, &edits[i]) || !is_let(q, &edits[i]))
            return false;
    return true;
}

/* Drops candidates from `first` on that are not allowed, and all of a pass that proposes what can't
 * be done. There is room for one that is tried. */
static void proposals_sift(const struct question *q, struct registered *entry,
                           struct dpro_strategy *tried, size_t first)
{
    struct candidates *all = q->candidates;
    size_t kept = first;
    for (size_t i = first; i < all->list.n; i++) {
        struct candidate c = all->list.at[i];
        const struct dpro_edit *edits = all->edits.at + c.first;
        if (!is_allowed(q, edits, c.n))
            continue;
        const char *wrong = edits_apply(q->model, q->strategy, edits, c.n, tried);
        if (wrong) {
            registry_reject(q->registry, entry, "proposed what can't be done: %s", wrong);
            kept = first;
            break;
        }
        all->list.at[kept++] = c;
    }
    all->list.n = kept;
}

void registry_collect(const struct question *q)
{
    struct registry *r = q->registry;
    SCRATCH_ARENA struct arena arena = {0};
    struct dpro_strategy copy = buckets_copy(q->model, q->strategy, &arena);
    q->candidates->list.n = q->candidates->edits.n = 0;
    EACH (struct registered, entry, r->passes) {
        size_t first = q->candidates->list.n;
        if (!registry_uses(r, entry) ||
            (r->plain && entry->pass != &built_in_passes[PASS_TENSOR_FUSION]))
            continue;
        if (entry->proposes)
            proposals_propose(q, entry);
        else if (entry->computes != 0)
            computing_propose(q, entry->computes);
        if (entry->fuses && !entry->rejected)
            fuse_propose(q, entry);
        proposals_sift(q, entry, &copy, first);
    }
}
