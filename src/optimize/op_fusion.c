/* Op fusion (paper, section 4.1), with the times that passes give for neighbouring ops run as one.
 * As a gradient is communicated when it is ready on all ranks, ops are fused on all ranks that
 * compute alike, each with its own time. */
#include "cost/program/fused.h"
#include "optimize/registry.h"

enum { FIRST_ASKED = 8 }; /* ops: a file is asked about all runs of up to that many at first */

struct search_step step_at(const struct dpro_model *model, const struct dpro_strategy *strategy,
                           uint32_t program, uint32_t op)
{
    const struct model_op *of = &model->programs[program].ops[op];
    const struct dpro_fused_op *fused = fused_at(strategy, program, op);
    return (struct search_step){op, fused ? fused->n : 1, fused ? fused->work_ns : of->work_ns,
                                of->needs != MODEL_NONE};
}

bool fuse_may(const struct registry *r)
{
    for (size_t i = 0; i < r->passes.n; i++)
        if (r->passes.at[i].fuses && registry_uses(r, &r->passes.at[i]))
            return true;
    return false;
}

/* ---- what passes say ---- */

static uint64_t key_of(uint32_t program, uint32_t first, uint32_t n)
{
    return (uint64_t)(program + 1) << 39 | (uint64_t)first << 7 | n; /* n <= DPRO_PASS_MAX_FUSED */
}

static void fusion_remember(struct registry *r, struct registered *entry, uint64_t key, int64_t ns)
{
    if (ns > EDIT_MOST_WORK_NS && !entry->rejected)
        registry_reject(r, entry, "says that a fused op takes longer than eleven days");
    map_set(&entry->times, key, ns < 0 ? UINT64_MAX : (uint64_t)ns);
}

/* Asks a file about all runs of up to n ops, and of a few more. */
static void ask_file(struct registry *r, struct registered *entry,
                     const struct dpro_pass_view *view, uint32_t n)
{
    uint32_t most = entry->n_known ? 2 * entry->n_known : FIRST_ASKED;
    while (most < n)
        most *= 2;
    struct child_question question = {view, entry->n_known ? entry->n_known + 1 : 2,
                                      MIN(most, DPRO_PASS_MAX_FUSED)};
    SCRATCH times_array times = {0};
    struct child_answer answer = child_run(entry->path, &question, NULL, &times);
    if (*answer.why)
        registry_reject(r, entry, "%s", answer.why);
    size_t at = 0;
    for (uint32_t p = 0; p < view->n_programs; p++)
        for (uint32_t k = question.least; k <= question.most; k++)
            for (uint32_t first = 0; first + k <= view->programs[p].n_ops; first++, at++)
                if (at < times.n && times.at[at] >= 0)
                    fusion_remember(r, entry, key_of(p, first, k), times.at[at]);
    entry->n_known = question.most;
}

/* What n ops from `first` on take as one by one pass; negative: they can't be fused. */
static int64_t opfs_ns(const struct question *q, struct registered *entry, uint32_t program,
                       uint32_t first, uint32_t n)
{
    uint64_t key = key_of(program, first, n), said;
    if (n > DPRO_PASS_MAX_FUSED || !registry_uses(q->registry, entry))
        return -1;
    if (!entry->pass && n > entry->n_known)
        ask_file(q->registry, entry, q->view, n);
    if (entry->rejected)
        return -1;
    if (map_get(&entry->times, key, &said))
        return said == UINT64_MAX ? -1 : (int64_t)said;
    if (!entry->pass)
        return -1;
    int64_t ns = entry->pass->opfs_ns(entry->pass, q->view->programs[program].ops + first, n);
    fusion_remember(q->registry, entry, key, ns);
    return entry->rejected ? -1 : ns;
}

static int64_t least_opfs_ns(const struct question *q, struct registered *only, uint32_t program,
                             uint32_t first, uint32_t n)
{
    int64_t least = -1;
    EACH (struct registered, entry, q->registry->passes) {
        if (!entry->fuses || (only && entry != only))
            continue;
        int64_t ns = opfs_ns(q, entry, program, first, n);
        if (ns >= 0 && (least < 0 || ns < least))
            least = ns;
    }
    return least;
}

/* ---- edits ---- */

/* Whether n ops from `first` on make the same gradients ready in both programs, in any order, and
 * wait for nothing on the way. */
static bool is_alike(const struct dpro_model *model, uint32_t a, uint32_t b, uint32_t first,
                     uint32_t n)
{
    const struct model_program *x = &model->programs[a], *y = &model->programs[b];
    uint64_t difference = 0;
    if (first + n > y->n_ops || x->n_ops != y->n_ops)
        return false;
    for (uint32_t i = first; i < first + n; i++) {
        difference += map_mix(x->ops[i].tensor + (uint64_t)1);
        difference -= map_mix(y->ops[i].tensor + (uint64_t)1);
        if (i > first && y->ops[i].needs != MODEL_NONE)
            return false;
    }
    return difference == 0;
}

uint32_t fuse_edits(const struct question *q, struct registered *entry, uint32_t program,
                    uint32_t first, uint32_t n, int64_t *ns)
{
    size_t before = q->candidates->edits.n;
    *ns = least_opfs_ns(q, entry, program, first, n);
    for (uint32_t p = 0; p < q->model->n_programs && *ns >= 0; p++) {
        if (p != program && !is_alike(q->model, program, p, first, n))
            continue;
        int64_t takes = p == program ? *ns : least_opfs_ns(q, entry, p, first, n);
        struct dpro_edit edit = {DPRO_EDIT_FUSE, first, takes, p, n};
        if (takes >= 0 && !edit_check_fuse(q->model, q->strategy, &edit))
            array_push(&q->candidates->edits, edit);
        else if (p == program)
            break;
    }
    return (uint32_t)(q->candidates->edits.n - before);
}

/* The bucket of the last gradient that ops [first, end) make ready, or of the first one. */
static uint32_t bucket_of_ops(const struct dpro_pass_view *view, uint32_t first, uint32_t end,
                              bool last)
{
    const struct dpro_pass_op *ops = view->programs[view->critical_program].ops;
    for (uint32_t i = first; i < end; i++) {
        uint32_t tensor = ops[last ? first + end - 1 - i : i].tensor;
        if (tensor != DPRO_PASS_NO_TENSOR)
            return view->tensors[tensor].bucket;
    }
    return UINT32_MAX;
}

/* Two neighbours are fused, without and (Theorem 3) with the buckets of their gradients. */
static void propose_pair(const struct question *q, struct registered *entry,
                         const struct search_step *a, const struct search_step *b)
{
    uint32_t program = q->view->critical_program, n = a->n + b->n;
    size_t first = q->candidates->edits.n;
    int64_t ns;
    if (fuse_edits(q, entry, program, a->first, n, &ns) == 0)
        return;
    candidates_add(q->candidates, first);
    uint32_t left = bucket_of_ops(q->view, a->first, b->first, true);
    uint32_t right = bucket_of_ops(q->view, b->first, b->first + b->n, false);
    if (left == UINT32_MAX || right != left + 1)
        return;
    struct dpro_edit merge = {.kind = DPRO_EDIT_MERGE, .at = left};
    first = q->candidates->edits.n;
    array_push(&q->candidates->edits, merge);
    fuse_edits(q, entry, program, a->first, n, &ns);
    candidates_add(q->candidates, first);
}

/* A fused op is separated, with those alike. */
static void propose_apart(const struct question *q, const struct search_step *step)
{
    uint32_t program = q->view->critical_program;
    size_t first = q->candidates->edits.n;
    for (uint32_t p = 0; p < q->model->n_programs; p++) {
        const struct dpro_fused_op *fused = fused_at(q->strategy, p, step->first);
        struct dpro_edit unfuse = {DPRO_EDIT_UNFUSE, step->first, 0, p, 0};
        if (fused && fused->n == step->n && is_alike(q->model, program, p, step->first, step->n))
            array_push(&q->candidates->edits, unfuse);
    }
    candidates_add(q->candidates, first);
}

void fuse_propose(const struct question *q, struct registered *entry)
{
    uint32_t program = q->view->critical_program, n_ops = q->model->programs[program].n_ops;
    struct search_step before = {0};
    for (uint32_t op = 0; op < n_ops; op += before.n) {
        struct search_step step = step_at(q->model, q->strategy, program, op);
        if (before.n > 0 && !step.waits)
            propose_pair(q, entry, &before, &step);
        if (step.n > 1)
            propose_apart(q, &step);
        before = step;
    }
}
