/* A lower bound of the iteration time of any strategy: the computation, the bytes on the busiest
 * link, and what must follow when the last gradients are ready. */

#include "cost/program/sync.h"
#include "optimize/space.h"

struct bound_ready {
    double when_ns;
    uint64_t size_bytes;
};

ORDER(by_time, struct bound_ready, ASCENDING(when_ns));

/* What a byte costs the busiest link at least: padding and rounding only add to it. */
static double wire_ns_a_byte(const struct model_net *net)
{
    const uint64_t bytes = 1ull << 40;
    return (double)sync_cost(net, bytes).wire_ns / (double)bytes * (1 - 1e-6);
}

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
    double wire_ns = sync_n_servers(net) ? 0 : wire_ns_a_byte(net), bytes = 0, bound = 0;
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
