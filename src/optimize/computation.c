/* When gradients get ready if nothing slows computation down, and with that a lower bound of the
 * iteration time of any strategy: the computation, the bytes on the busiest link, and what must
 * follow when the last gradients are ready. */

#include "cost/program/strategy_work.h"
#include "cost/program/sync.h"
#include "optimize/space.h"

/* The slowest rank of each program: the others do the same, and never later. */
static void find_classes(const struct dpro_model *m, struct computation *w)
{
    for (uint32_t p = 0; p < m->n_programs; p++) {
        double scale = -1;
        for (uint32_t r = 0; r < m->n_ranks; r++)
            if (m->ranks[r].program == p && m->ranks[r].work_scale > scale)
                scale = m->ranks[r].work_scale;
        w->classes[p].scale = scale;
    }
}

/* What each op of a program takes on its slowest rank. */
static void list_work(const struct dpro_model *m, const struct dpro_strategy *s, uint32_t p,
                      struct computation *w)
{
    uint32_t n = m->programs[p].n_ops;
    SCRATCH int64_t *more_ns = mem_array(n + (size_t)1, sizeof *more_ns);
    if (strategy_changes_work(m, s))
        strategy_more_work(m, s, p, more_ns);
    for (uint32_t i = 0; i < n; i++)
        w->work_ns[i] = (double)(more_ns[i] + m->programs[p].ops[i].work_ns) * w->classes[p].scale;
}

/* Of tensors; what else is communicated is none. */
static void find_ready(const struct model_program *program, uint32_t n_tensors,
                       struct computation *w, struct computation_class *class)
{
    uint32_t begin = 0;
    while (begin < program->n_ops && program->ops[begin].needs != MODEL_ALL)
        begin++;
    w->drains &= begin < program->n_ops;
    class->total_ns = 0;
    for (uint32_t i = 0; i < program->n_ops; i++) {
        uint32_t at = (begin + i) % program->n_ops;
        class->total_ns += w->work_ns[at];
        if (program->ops[at].tensor < n_tensors)
            class->ready_ns[program->ops[at].tensor] = class->total_ns;
    }
}

/* From an op that waits for a tensor to where it is ready again. */
static double longest_cycle(const struct model_program *program, const struct computation *w,
                            uint32_t n_tensors)
{
    double longest = 0;
    for (uint32_t i = 0; i < program->n_ops; i++) {
        uint32_t tensor = program->ops[i].needs;
        double passed = 0;
        bool ready = tensor >= n_tensors;
        for (uint32_t k = 0; k < program->n_ops && !ready; k++) {
            uint32_t at = (i + k) % program->n_ops;
            passed += w->work_ns[at];
            ready = program->ops[at].tensor == tensor;
        }
        longest = ready ? fmax(longest, passed) : longest;
    }
    return longest;
}

void computation_set(const struct dpro_model *model, const struct dpro_strategy *strategy,
                     struct computation *work)
{
    for (uint32_t p = 0; p < model->n_programs; p++)
        if (work->classes[p].scale >= 0) {
            list_work(model, strategy, p, work);
            find_ready(&model->programs[p], model->n_tensors, work, &work->classes[p]);
        }
}

struct computation computation_of(const struct dpro_model *model,
                                  const struct dpro_strategy *strategy, struct arena *arena)
{
    struct computation work = {.n_classes = model->n_programs, .drains = true};
    work.classes = arena_array(arena, model->n_programs, sizeof *work.classes);
    find_classes(model, &work);
    uint32_t most_ops = 0;
    for (uint32_t p = 0; p < model->n_programs; p++) {
        most_ops = MAX(most_ops, model->programs[p].n_ops);
        work.classes[p].ready_ns = arena_array(arena, model->n_tensors, sizeof(double));
    }
    work.work_ns = arena_array(arena, most_ops, sizeof *work.work_ns);
    computation_set(model, strategy, &work);
    for (uint32_t p = 0; p < model->n_programs; p++) {
        if (work.classes[p].scale < 0)
            continue;
        list_work(model, strategy, p, &work);
        work.min_cycle_ns =
            fmax(work.min_cycle_ns, longest_cycle(&model->programs[p], &work, model->n_tensors));
    }
    return work;
}

double computation_ready_ns(const struct computation *work, uint32_t tensor)
{
    double latest = 0;
    for (uint32_t c = 0; c < work->n_classes; c++)
        latest = fmax(latest, work->classes[c].ready_ns[tensor]);
    return latest;
}

/* ---- a lower bound ---- */

struct bound_ready {
    double when_ns;
    uint64_t size_bytes;
};

ORDER(by_time, struct bound_ready, ASCENDING(when_ns));

/* A rank that waits for all tensors at once: what is not ready at some time must still be launched,
 * transferred and copied back. */
static double longest_tail(const struct dpro_model *m, const struct computation_class *class,
                           double wire_ns, double least_ns, struct bound_ready *order)
{
    uint32_t n = m->n_tensors;
    double longest = 0, bytes = 0;
    uint64_t smallest = UINT64_MAX;
    for (uint32_t t = 0; t < n; t++) {
        order[t] = (struct bound_ready){class->ready_ns[t], m->tensors[t].size_bytes};
        smallest = order[t].size_bytes < smallest ? order[t].size_bytes : smallest;
    }
    qsort(order, n, sizeof *order, by_time);
    for (uint32_t t = n; t-- > 0;) {
        bytes += (double)order[t].size_bytes;
        double tail = m->net.compute.launch_ns.value * class->scale + least_ns + bytes * wire_ns +
                      m->net.compute.copy_ns.value * class->scale * (double)smallest;
        longest = fmax(longest, order[t].when_ns + tail);
    }
    return longest;
}

int64_t lower_bound(const struct dpro_model *model, const struct computation *work)
{
    const struct model_net *net = &model->net;
    /* a server on a rank's host is reached without a link */
    double wire_ns = 0, bytes = 0, bound = 0;
    const uint64_t many = 1ull << 40;
    if (!sync_n_servers(net)) /* padding and rounding only add to it */
        wire_ns = (double)sync_cost(net, many).wire_ns / (double)many * (1 - 1e-6);
    double least_ns =
        (double)(sync_ns(net->collective.overhead_ns, 1) +
                 (net->collective.n_ranks > 1 ? sync_ns(net->link.message_ns, 1) : 0));
    SCRATCH struct bound_ready *order = mem_alloc(model->n_tensors * sizeof *order);
    for (uint32_t t = 0; t < model->n_tensors; t++)
        bytes += (double)model->tensors[t].size_bytes;
    EACH_OF (const struct computation_class, class, work->classes, work->n_classes) {
        if (class->scale < 0)
            continue;
        double overhead = net->compute.launch_ns.value + net->compute.handling_ns.value;
        if (!model->capabilities.together)
            overhead *= model->n_tensors;
        if (work->drains)
            overhead += net->compute.copy_ns.value * bytes;
        bound = fmax(bound, class->total_ns + overhead * class->scale);
        if (work->drains)
            bound = fmax(bound, longest_tail(model, class, wire_ns, least_ns, order));
    }
    double largest, beside_ns = model_sent_bytes(model, model->n_ranks, false, &largest) *
                                net->link.byte_ns.value;
    bound = fmax(bound, bytes * wire_ns);
    bound = fmax(bound, model->carried_share * (bytes * wire_ns + beside_ns));
    bound = fmax(bound, (double)model->launching_ns);
    if (work->min_cycle_ns > 0)
        bound = fmax(bound, work->min_cycle_ns + least_ns);
    return (int64_t)(bound + model->pause_ns);
}
