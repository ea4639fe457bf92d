/* The cost of all-reduces that run one after the other: Horovod's groups, all that its timeline
 * has, and the packs of TensorFlow's ring, where a step has several. */

#include "cost/learn/fit.h"

/* Horovod's groups; else each bucket on each rank, from when all were there. */
static void see_reductions(const struct fitting *f, bool cycles, fit_points *seen)
{
    const struct graph_cycles *c = &f->g->cycles;
    for (uint32_t i = 0; cycles && i < c->n_reductions; i++)
        array_add(seen, (double)c->reductions[i].size_bytes, (double)c->reductions[i].took_ns, 1,
                  0);
    EACH_OF (const struct fit_transfer, t, f->transfers, f->n_transfers)
        if (!cycles && t->size_bytes > 0)
            array_add(seen, t->size_bytes, t->took_ns + t->exchange_ns + t->gaps_ns, 1, 0);
}

bool fit_reductions(const struct fitting *f)
{
    enum { LEAST_GROUPS = 4, LEAST_PACKS = 4 };
    struct model_net *net = f->net;
    struct dpro_estimate byte, base;
    SCRATCH fit_points seen = {0};
    double messages = 2 * (net->collective.n_ranks - 1.0);
    double share = messages / net->collective.n_ranks; /* of a byte, on a rank's link */
    bool cycles = net->gate.negotiates && f->g->cycles.cycle_ns > 0;
    see_reductions(f, cycles, &seen);
    if (net->collective.n_ranks < 2 ||
        seen.n < (cycles ? LEAST_GROUPS : (size_t)LEAST_PACKS * f->g->n_ranks))
        return false;
    fit_line_cut(&seen, &byte, &base);
    net->link.byte_ns = (struct dpro_estimate){byte.value / share, byte.std / share};
    if (net->link.message_ns.value > base.value / messages)
        net->link.message_ns = (struct dpro_estimate){base.value / messages, base.std / messages};
    net->collective.overhead_ns =
        (struct dpro_estimate){base.value - messages * net->link.message_ns.value, base.std};
    if (cycles) {
        net->gate.negotiate_ns = fit_within((double)f->g->cycles.negotiate_ns, 0.3);
        net->gate.cycle_ns = f->g->cycles.cycle_ns;
    }
    return true;
}
