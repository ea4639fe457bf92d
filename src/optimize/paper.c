/* Algorithm 1 of the paper (section 4.2), in rounds over the critical path.
 *
 * A round goes from bucket to bucket, with the ops that lead up to each. Where computation is
 * critical, Theorem 1 decides by the passes' times whether two ops are fused; then the buckets of
 * their gradients are fused with them (Theorem 3). Theorem 2, with what it costs to launch a
 * bucket, decides whether a bucket is fused with the one before it. Ops whose gradients share a
 * bucket, and ops without gradients, are fused freely (Theorem 3). Without partial replay, a replay
 * of the whole graph decides each time. */

#include "optimize/memory_search.h"
#include "optimize/search.h"

struct paper_walk {
    struct space *space;
    struct dpro_strategy strategy, tried; /* tried: room for one */
    bool changed;                         /* in this round */
    bool whole;                           /* without partial replay */
    const struct dpro_pass_view *view;    /* of the round's start */
    int64_t value_ns;                     /* of the strategy; kept up only without partial replay */
    /* ops of the critical rank */
    bool fuses; /* some pass knows what fused ops take */
    double scale;
    double launch_ns;        /* of a bucket, on the critical rank */
    struct search_step last; /* that the walk has passed; n 0: none */
    double won_ns;           /* by what was fused so far this round */
    uint32_t *op_of;         /* by tensor: the op that makes it ready */
    uint32_t *compiled;      /* by tensor: the module that makes it ready and is compiled */
    struct candidates edits; /* room for those of one fused op */
};

static int64_t best_sync_ns(struct space *space, uint64_t size)
{
    return space_sync_ns(space, size, space_best_partitions(space, size));
}

/* Makes the edits; without partial replay, if a replay of everything says that they help. */
static bool paper_make(struct paper_walk *w, const struct dpro_edit *edits, uint32_t n)
{
    struct space *space = w->space;
    if ((w->whole && search_stops(space->search)) ||
        edits_apply(space->model, &w->strategy, edits, n, &w->tried))
        return false;
    int64_t ns = w->whole ? space_evaluate(space, &w->tried) : w->value_ns;
    if (w->whole && ns >= w->value_ns)
        return false;
    space_copy(space, &w->tried, &w->strategy);
    w->value_ns = ns;
    return w->changed = true;
}

static bool paper_edit(struct paper_walk *w, enum dpro_edit_kind kind, uint32_t at, int64_t value)
{
    struct dpro_edit edit = {.kind = kind, .at = at, .value = value};
    if (w->whole)
        return paper_make(w, &edit, 1);
    bool made = !edit_apply(w->space->model, &w->strategy, &edit);
    w->changed |= made;
    return made;
}

static void choose_partitions(struct paper_walk *w, uint32_t at, uint64_t size)
{
    if (!w->whole)
        paper_edit(w, DPRO_EDIT_PARTITION, at, space_best_partitions(w->space, size));
    for (uint32_t k = 1; w->whole && k <= 8; k *= 2)
        if (k != w->strategy.buckets[at].partitions)
            paper_edit(w, DPRO_EDIT_PARTITION, at, k);
}

/* Theorem 2, for a bucket and the one before it: their ends are q_{n-1}^e = `before_ns` and, of the
 * one before both, `before_that_ns`. The paper's has no cost of launching a bucket, which fusing
 * saves: all that is ready later is ready earlier by that. So transfers are fused, too, if they
 * end before the next bucket is ready. */
static bool fusing_helps(struct paper_walk *w, int64_t before_that_ns, int64_t before_ns,
                         int64_t ready_ns, int64_t next_ns, uint64_t size_before, uint64_t size)
{
    int64_t launch_ns = (int64_t)w->launch_ns;
    int64_t apart_ns = MAX(before_ns, ready_ns) + best_sync_ns(w->space, size);
    int64_t fused_ns =
        MAX(before_that_ns, ready_ns - launch_ns) + best_sync_ns(w->space, size_before + size);
    return fused_ns < apart_ns || (launch_ns > 0 && fused_ns <= next_ns - launch_ns);
}

/* ---- ops ---- */

/* Theorem 1: fuses the op with the last one that was passed if that wins more than it delays a
 * bucket that was ready before it. */
static bool fuse_op(struct paper_walk *w, const struct search_step *step, double delay_ns)
{
    struct space *space = w->space;
    uint32_t program = w->view->critical_program;
    int64_t ns;
    if (w->last.n == 0 || step->waits)
        return false;
    w->edits.edits.n = 0;
    struct question question = {
        &space->search->registry, space->model, &w->strategy, w->view, space->gains, &w->edits};
    uint32_t n = fuse_edits(&question, NULL, program, w->last.first, w->last.n + step->n, &ns);
    if (n == 0)
        return false;
    double gain_ns = (double)(w->last.work_ns + step->work_ns - ns) * w->scale;
    if ((!w->whole && delay_ns >= gain_ns) || !paper_make(w, w->edits.edits.at, n))
        return false;
    w->won_ns += gain_ns;
    w->last = (struct search_step){w->last.first, w->last.n + step->n, ns, w->last.waits};
    return true;
}

/* Walks on to op number `end`. Fusing the first op with the one before it delays a bucket by
 * delay_ns; returns whether they were fused. */
static bool walk_ops(struct paper_walk *w, uint32_t end, double delay_ns)
{
    bool fused_first = false;
    for (bool first = true; w->last.first + w->last.n < end; first = false) {
        struct search_step step = step_at(w->space->model, &w->strategy, w->view->critical_program,
                                          w->last.first + w->last.n);
        if (fuse_op(w, &step, first ? delay_ns : 0))
            fused_first |= first;
        else
            w->last = step;
    }
    return fused_first;
}

/* The number of ops up to the last that makes a gradient of the bucket ready. */
static uint32_t ops_up_to(const struct paper_walk *w, const struct dpro_pass_bucket *bucket)
{
    uint32_t end = 0;
    for (uint32_t i = bucket->first; i < bucket->first + bucket->n; i++) {
        uint32_t op = w->op_of[w->view->order[i]];
        end = op + 1 > end ? op + 1 : end;
    }
    return end;
}

static void begin_ops(struct paper_walk *w)
{
    const struct dpro_pass_program *program = &w->view->programs[w->view->critical_program];
    const struct model_compute *compute = &w->space->model->net.compute;
    w->fuses = fuse_may(&w->space->search->registry);
    w->last = (struct search_step){0};
    w->won_ns = 0;
    w->scale = w->space->work.classes[w->view->critical_program].scale;
    w->launch_ns = (compute->launch_ns.value + compute->handling_ns.value) * w->scale;
    for (uint32_t i = 0; i < program->n_ops; i++)
        if (program->ops[i].tensor != DPRO_PASS_NO_TENSOR)
            w->op_of[program->ops[i].tensor] = i;
}

/* ---- modules ---- */

/* Of a module: what communication may lose where all of its gradients get ready at its end: the
 * transfers of its buckets but the last, and no more than its backward pass takes. Where
 * communication is critical throughout, a compiler wins nothing. */
static double delay_of(const struct paper_walk *w, uint32_t module, const bool *gradient_of)
{
    const struct dpro_pass_view *view = w->view;
    double sum = 0, last = 0, begin = INFINITY, end = 0;
    bool hidden = false;
    EACH_OF (const struct dpro_pass_bucket, bucket, view->buckets, view->n_buckets) {
        if (!gradient_of[view->order[bucket->first]])
            continue;
        last = (double)best_sync_ns(w->space, bucket->size_bytes);
        sum += last;
        begin = fmin(begin, (double)bucket->ready_ns);
        end = fmax(end, (double)bucket->ready_ns);
        hidden |= !bucket->critical;
    }
    if (end > 0 && !hidden && view->modules[module].parent != DPRO_PASS_NO_MODULE)
        return INFINITY;
    return fmin(sum - last, fmax(0, end - begin));
}

/* Theorem 1, for what a compiler fuses: which modules are compiled, or in 16 bits. */
static void choose_modules(struct paper_walk *w)
{
    struct space *space = w->space;
    const struct dpro_model *m = space->model;
    unsigned bits = space->search->registry.computing;
    SCRATCH double *delay_ns = mem_array(m->n_modules + (size_t)1, sizeof *delay_ns);
    SCRATCH bool *gradient_of = mem_array(m->n_tensors + (size_t)1, sizeof *gradient_of);
    SCRATCH uint8_t *computing = mem_array(m->n_modules + (size_t)1, 1);
    for (uint32_t i = 0; i < m->n_modules; i++) {
        if (space->gains[i].ways == 0)
            continue;
        memset(gradient_of, 0, m->n_tensors);
        if (computing_gradients(m, w->view->critical_program, i, gradient_of))
            delay_ns[i] = delay_of(w, i, gradient_of);
    }
    computing_by_gain(m, space->gains, bits, delay_ns, computing);
    for (uint32_t i = 0; i < m->n_modules; i++)
        if (computing[i] != w->strategy.computing[i])
            paper_edit(w, DPRO_EDIT_COMPUTE, i, computing[i]);
    for (uint32_t i = 0; i < m->n_modules; i++) {
        if (!(w->strategy.computing[i] & DPRO_COMPILED))
            continue;
        memset(gradient_of, 0, m->n_tensors);
        computing_gradients(m, w->view->critical_program, i, gradient_of);
        for (uint32_t t = 0; t < m->n_tensors; t++)
            if (gradient_of[t])
                w->compiled[t] = i;
    }
}

/* Theorem 3: gradients of a module that is compiled are ready at once. */
static bool are_ready_at_once(const struct paper_walk *w, uint32_t bucket)
{
    const struct dpro_pass_bucket *a = &w->view->buckets[bucket - 1], *b = a + 1;
    uint32_t module = w->compiled[w->view->order[a->first]];
    bool same = module != MODEL_NONE;
    for (uint32_t i = a->first; i < b->first + b->n && same; i++)
        same = w->compiled[w->view->order[i]] == module;
    return same;
}

/* ---- buckets ---- */

static void walk_path(struct paper_walk *w)
{
    const struct dpro_pass_view *view = w->view;
    uint32_t n_buckets = view->n_buckets, at = 0;
    uint64_t size_before = 0;
    int64_t before_ns = 0, before_that_ns = 0; /* ends of bucket at - 1, and of the one before */
    begin_ops(w);
    memset(w->compiled, 0xff, w->space->model->n_tensors * sizeof *w->compiled);
    if (w->space->search->registry.computing != 0)
        choose_modules(w);
    for (uint32_t n = 0; n < n_buckets && !w->space->search->stopped_by; n++, at++) {
        const struct dpro_pass_bucket *bucket = &view->buckets[n];
        uint64_t size = bucket->size_bytes;
        int64_t ready_ns = bucket->ready_ns - (int64_t)w->won_ns;
        int64_t next_ns = n + 1 < n_buckets ? bucket[1].ready_ns - (int64_t)w->won_ns : 0;
        bool fused = false;
        if (at > 0 &&
            (w->whole || are_ready_at_once(w, n) ||
             fusing_helps(w, before_that_ns, before_ns, ready_ns, next_ns, size_before, size)))
            fused = paper_edit(w, DPRO_EDIT_MERGE, at - 1, 0);
        if (w->fuses) {
            double delay_ns = 0;
            if (at > 0 && !fused) /* where communication is critical, fused ops win nothing */
                delay_ns = bucket->critical && view->buckets[n - 1].critical
                               ? INFINITY
                               : (double)best_sync_ns(w->space, size_before);
            bool ops = walk_ops(w, ops_up_to(w, bucket), delay_ns);
            ready_ns = bucket->ready_ns - (int64_t)w->won_ns;
            if (ops && at > 0 && !fused && !w->whole)
                fused = paper_edit(w, DPRO_EDIT_MERGE, at - 1, 0);
        }
        if (fused) {
            at--;
            size += size_before;
            before_ns = before_that_ns;
            w->won_ns += w->launch_ns;
            ready_ns -= (int64_t)w->launch_ns;
        }
        choose_partitions(w, at, size);
        int64_t takes = best_sync_ns(w->space, size);
        int64_t start = ready_ns > before_ns ? ready_ns : before_ns;
        before_that_ns = before_ns;
        before_ns = start + takes;
        size_before = size;
    }
    if (w->fuses)
        walk_ops(w, view->programs[view->critical_program].n_ops, 0);
}

/* From a bucket for each tensor of the Coarsened View. */
void search_paper(struct space *space)
{
    struct paper_walk w = {.space = space,
                           .strategy = space_strategy(space),
                           .tried = space_strategy(space),
                           .whole = space->search->options->no_partial};
    struct convergence convergence = {0};
    w.op_of = arena_array(&space->arena, space->model->n_tensors, sizeof *w.op_of);
    w.compiled = arena_array(&space->arena, space->model->n_tensors, sizeof *w.compiled);
    const struct memory_search *memory = space->search->memory;
    if (space->search->registry.computing != 0 && !(memory && memory->is_needed))
        /* it begins with nothing compiled */
        memset(w.strategy.computing, 0, space->model->n_modules);
    space->own_ns = INT64_MAX;
    w.value_ns = space_evaluate(space, &w.strategy);
    while (!search_stops(space->search) && !has_converged(&convergence, space->own_ns)) {
        w.view = space_look(space, &w.strategy);
        w.changed = false;
        walk_path(&w);
        w.value_ns = space_evaluate(space, &w.strategy);
        space->search->n_rounds++;
        if (!w.changed)
            break;
    }
    candidates_fini(&w.edits);
}
