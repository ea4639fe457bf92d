/* optimize/work.c: when gradients get ready if nothing slows computation down, and what follows
 * from that for every strategy. */
#include <math.h>
#include <stdlib.h>

#include "cost/fused.h"
#include "optimize/search.h"

static uint32_t first_wait_for_all(const struct model_program *program)
{
    for (uint32_t i = 0; i < program->n_ops; i++)
        if (program->ops[i].needs == MODEL_ALL)
            return i;
    return MODEL_NONE;
}

/* The slowest rank of each program: the others do the same, and never later. */
static void find_classes(const struct dpro_model *m, struct work *w)
{
    for (uint32_t p = 0; p < m->n_programs; p++) {
        double scale = -1;
        for (uint32_t r = 0; r < m->n_ranks; r++)
            if (m->ranks[r].program == p && m->ranks[r].work_scale > scale)
                scale = m->ranks[r].work_scale;
        w->classes[p].scale = scale;
    }
}

/* Over a program's ops and round to its beginning, from the first op or one that waits, either of
 * which is never in the middle of a fused one. */
struct walker {
    const struct dpro_model *model;
    const struct dpro_strategy *strategy;
    uint32_t program, at, fused;
};

static struct walker walk_from(const struct dpro_model *m, const struct dpro_strategy *s,
                               uint32_t program, uint32_t op)
{
    return (struct walker){m, s, program, op, fused_find(s, program, op)};
}

static const struct model_op *walk_on(struct walker *w, double *work_ns)
{
    const struct model_program *program = &w->model->programs[w->program];
    const struct model_op *op = &program->ops[w->at];
    *work_ns = (double)fused_work_ns(w->model, w->strategy, w->program, w->at, &w->fused);
    if (++w->at == program->n_ops) {
        w->at = 0;
        w->fused = fused_find(w->strategy, w->program, 0);
    }
    return op;
}

static void walk(const struct dpro_model *m, const struct dpro_strategy *s, uint32_t p,
                 struct work *w)
{
    const struct model_program *program = &m->programs[p];
    struct work_class *class = &w->classes[p];
    uint32_t begin = first_wait_for_all(program);
    if (begin == MODEL_NONE) {
        w->drains = false;
        begin = 0;
    }
    struct walker walker = walk_from(m, s, p, begin);
    double now = 0, work_ns;
    for (uint32_t i = 0; i < program->n_ops; i++) {
        const struct model_op *op = walk_on(&walker, &work_ns);
        now += work_ns * class->scale;
        if (op->tensor != MODEL_NONE)
            class->ready_ns[op->tensor] = now;
    }
    class->total_ns = now;
}

/* From an op that waits for a tensor to where it is ready again. */
static double longest_cycle(const struct dpro_model *m, const struct dpro_strategy *s, uint32_t p,
                            double scale)
{
    const struct model_program *program = &m->programs[p];
    double longest = 0;
    for (uint32_t i = 0; i < program->n_ops; i++) {
        uint32_t tensor = program->ops[i].needs;
        if (tensor >= m->n_tensors)
            continue;
        struct walker walker = walk_from(m, s, p, i);
        double passed = 0, work_ns;
        for (uint32_t k = 0; k < program->n_ops; k++) {
            const struct model_op *op = walk_on(&walker, &work_ns);
            passed += work_ns * scale;
            if (op->tensor == tensor) {
                longest = fmax(longest, passed);
                break;
            }
        }
    }
    return longest;
}

void work_set(const struct dpro_model *model, const struct dpro_strategy *strategy,
              struct work *work)
{
    for (uint32_t p = 0; p < model->n_programs; p++)
        if (work->classes[p].scale >= 0)
            walk(model, strategy, p, work);
}

int work_of(const struct dpro_model *model, const struct dpro_strategy *strategy,
            struct arena *arena, struct work *work)
{
    *work = (struct work){.n_classes = model->n_programs, .drains = true};
    work->classes = arena_array(arena, model->n_programs + (size_t)1, sizeof *work->classes);
    if (!work->classes)
        return -1;
    find_classes(model, work);
    for (uint32_t p = 0; p < model->n_programs; p++) {
        struct work_class *class = &work->classes[p];
        class->ready_ns = arena_array(arena, model->n_tensors + (size_t)1, sizeof(double));
        if (!class->ready_ns)
            return -1;
        if (class->scale >= 0) /* some rank runs it */
            work->min_cycle_ns =
                fmax(work->min_cycle_ns, longest_cycle(model, strategy, p, class->scale));
    }
    work_set(model, strategy, work);
    return 0;
}

double work_ready_ns(const struct work *work, uint32_t tensor)
{
    double latest = 0;
    for (uint32_t c = 0; c < work->n_classes; c++)
        latest = fmax(latest, work->classes[c].ready_ns[tensor]);
    return latest;
}

/* ---- the bound ---- */

struct ready {
    double when_ns;
    uint64_t size_bytes;
};

static int compare_ready(const void *a, const void *b)
{
    const struct ready *x = a, *y = b;
    return (x->when_ns > y->when_ns) - (x->when_ns < y->when_ns);
}

/* What a byte costs the busiest link at least: padding and rounding only add to it. */
static double wire_ns_a_byte(const struct model_net *net)
{
    const uint64_t bytes = 1ull << 40;
    struct sync_cost cost;
    if (sync_cost(net, bytes, &cost) < 0)
        return 0;
    return (double)cost.wire_ns / (double)bytes * (1 - 1e-6);
}

/* A rank that waits for all tensors at once: what it has not got ready at some time must still be
 * launched, transferred and copied back. */
static double longest_tail(const struct dpro_model *m, const struct work_class *class,
                           double wire_ns, double least_ns, struct ready *order)
{
    uint32_t n = m->n_tensors;
    double longest = 0, bytes = 0;
    uint64_t smallest = UINT64_MAX;
    for (uint32_t t = 0; t < n; t++) {
        order[t] = (struct ready){class->ready_ns[t], m->tensors[t].size_bytes};
        smallest = order[t].size_bytes < smallest ? order[t].size_bytes : smallest;
    }
    qsort(order, n, sizeof *order, compare_ready);
    for (uint32_t t = n; t-- > 0;) {
        bytes += (double)order[t].size_bytes;
        double tail = m->net.launch_ns.value * class->scale + least_ns + bytes * wire_ns +
                      m->net.copy_ns.value * class->scale * (double)smallest;
        longest = fmax(longest, order[t].when_ns + tail);
    }
    return longest;
}

int lower_bound(const struct dpro_model *model, const struct work *work, int64_t *bound_ns)
{
    const struct model_net *net = &model->net;
    /* what a server has with it takes no link */
    double wire_ns = sync_n_servers(net) ? 0 : wire_ns_a_byte(net), bytes = 0, bound = 0;
    double least_ns = (double)(sync_start_ns(net) + (net->n_ranks > 1 ? sync_message_ns(net) : 0));
    struct ready *order = malloc((model->n_tensors + (size_t)1) * sizeof *order);
    if (!order)
        return -1;
    for (uint32_t t = 0; t < model->n_tensors; t++)
        bytes += (double)model->tensors[t].size_bytes;
    for (uint32_t c = 0; c < work->n_classes && model->n_tensors; c++) {
        const struct work_class *class = &work->classes[c];
        if (class->scale < 0)
            continue;
        double overhead = net->launch_ns.value;
        if (!model->capabilities.together)
            overhead *= model->n_tensors;
        if (work->drains)
            overhead += net->copy_ns.value * bytes;
        bound = fmax(bound, class->total_ns + overhead * class->scale);
        if (work->drains)
            bound = fmax(bound, longest_tail(model, class, wire_ns, least_ns, order));
    }
    bound = fmax(bound, bytes * wire_ns);
    if (work->min_cycle_ns > 0)
        bound = fmax(bound, work->min_cycle_ns + least_ns);
    free(order);
    *bound_ns = (int64_t)bound;
    return 0;
}
