/* Algorithm 1 of the paper (section 4.2), in rounds over the critical path.
 *
 * Where computation is critical, Theorem 1 decides which modules a compiler fuses; their gradients'
 * buckets are fused with them (Theorem 3). Then a round goes from bucket to bucket: Theorem 2, with
 * what it costs to launch a bucket, decides whether a bucket is fused with the one before it.
 * Without partial replay, a replay of the whole graph decides each time. */

#include "optimize/memory_search.h"
#include "optimize/search.h"

struct paper_walk {
    struct space *space;
    struct dpro_strategy strategy, tried; /* tried: room for one */
    bool changed;                         /* in this round */
    bool whole;                           /* without partial replay */
    const struct dpro_pass_view *view;    /* of the round's start */
    int64_t value_ns;                     /* of the strategy; kept up only without partial replay */
    double launch_ns;                     /* of a bucket, on the critical rank */
    double won_ns;                        /* by what was fused so far this round */
    uint32_t *compiled; /* by tensor: the module that makes it ready and is compiled */
};

static int64_t best_sync_ns(struct space *space, uint64_t size)
{
    return space_sync_ns(space, size, space_best_partitions(space, size));
}

/* Makes the edit; without partial replay, if a replay of everything says that it helps. */
static bool paper_edit(struct paper_walk *w, enum dpro_edit_kind kind, uint32_t at, int64_t value)
{
    struct space *space = w->space;
    struct dpro_edit edit = {.kind = kind, .at = at, .value = value};
    if (!w->whole) {
        bool made = !edit_apply(space->model, &w->strategy, &edit);
        w->changed |= made;
        return made;
    }
    if (search_stops(space->search) || edits_apply(space->model, &w->strategy, &edit, 1, &w->tried))
        return false;
    int64_t ns = space_evaluate(space, &w->tried);
    if (ns >= w->value_ns)
        return false;
    space_copy(space, &w->tried, &w->strategy);
    w->value_ns = ns;
    return w->changed = true;
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
    const struct model_compute *compute = &w->space->model->net.compute;
    w->won_ns = 0;
    w->launch_ns = (compute->launch_ns.value + compute->handling_ns.value) *
                   w->space->work.classes[view->critical_program].scale;
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
}

/* From a bucket for each tensor of the Coarsened View. */
void search_paper(struct space *space)
{
    struct paper_walk w = {.space = space,
                           .strategy = space_strategy(space),
                           .tried = space_strategy(space),
                           .whole = space->search->options->no_partial};
    struct convergence convergence = {0};
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
}
