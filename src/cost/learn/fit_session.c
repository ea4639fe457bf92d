/* A TensorFlow session with parameter servers. All pulls are sent when the step begins. */

#include "cost/learn/fit.h"

/* A step lasts longer than its ops: until the client knows, and until servers begin to send. */
static double between_steps(const struct fitting *f, uint32_t copy)
{
    const struct dpro_graph *g = f->g;
    const struct graph_rank *last = &g->ranks[g->n_ranks - 1];
    const int64_t *end_ns = f->r->copies[copy].end_ns;
    int64_t first_read = INT64_MAX, over = INT64_MIN;
    int64_t begun = f->r->copies[copy - 1].end_ns[g->ranks[0].boundary];
    EACH (const struct fit_served, t, f->served) {
        if (g->kind[t->op] == DPRO_OP_PUSH)
            over = MAX(over, end_ns[t->op]);
        else
            first_read = MIN(first_read, end_ns[t->from]);
    }
    for (uint32_t op = 0; op < last->first_op + last->n_ops; op++)
        if (g->device[op] != DPRO_NO_DEVICE)
            over = MAX(over, end_ns[op]);
    return fmax((double)(end_ns[g->ranks[0].boundary] - over) + (double)(first_read - begun), 0);
}

/* All that the servers compute once something was pushed. */
static double served_ns(const struct fitting *f)
{
    const struct dpro_graph *g = f->g;
    const struct measured_replay *r = f->r;
    int64_t first_push = INT64_MAX;
    double ns = 0;
    for (size_t i = 0; i < f->served.n; i++)
        if (g->kind[f->served.at[i].op] == DPRO_OP_PUSH)
            first_push = MIN(first_push, r->copies[r->first].end_ns[f->served.at[i].op]);
    for (uint32_t op = 0; op < g->n_ops; op++)
        if (g->rank[op] >= g->n_ranks && graph_is_on(g, op, DPRO_DEVICE_CPU_THREAD) &&
            measured_start_ns(r, r->first, op) >= first_push)
            ns += (double)g->dur_ns[op];
    return ns;
}

void fit_session(struct fitting *f)
{
    const struct dpro_graph *g = f->g;
    struct model_net *net = f->net;
    fit_times small = {0}, rests = {0};
    double n_pushes = 0;
    for (size_t i = 0; i < f->served.n; i++) {
        uint32_t op = f->served.at[i].op;
        n_pushes += g->kind[op] == DPRO_OP_PUSH;
        if (g->size_bytes[op] < FIT_LONG_BYTES)
            array_push(&small, (double)g->dur_ns[op]);
    }
    for (uint32_t copy = f->r->first; copy < f->r->first + f->r->n; copy++)
        array_push(&rests, between_steps(f, copy));
    net->gate.pulls_with_step = true;
    net->link.message_ns = fit_median(&small);
    net->gate.step_ns = fit_median(&rests);
    net->servers.push_ns = fit_within(n_pushes > 0 ? served_ns(f) / n_pushes : 0, 0.3);
    net->servers.placement = MODEL_ANYWHERE;
}
