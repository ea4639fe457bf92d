/* A TensorFlow session with parameter servers. All pulls are sent when the step begins, each once
 * the server has read the variable. */

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

/* When a rank pulls a variable, from the first that is sent in an iteration: means. */
struct pulled {
    int64_t read_ns, came_ns;
    uint32_t rank, server, tensor;
};

ORDER(in_turn, struct pulled,
      ASCENDING(rank) ?: ASCENDING(server) ?: ASCENDING(came_ns) ?: ASCENDING(tensor));

/* When the values that ranks pull are read. What goes from one server to one rank comes in the
 * order in which it is sent; reading it ends now in this order and now in that. */
static void fit_reads(const struct fitting *f)
{
    const struct dpro_graph *g = f->g;
    size_t n = f->model->n_tensors, n_pulled = n * g->n_ranks;
    struct pulled *pulled = arena_array(&f->coarse->arena, n_pulled, sizeof *pulled);
    int64_t *read_ns = arena_array(&f->model->arena, n_pulled, sizeof *read_ns),
            first_ns = INT64_MAX;
    for (size_t i = 0; i < n_pulled; i++) {
        const struct graph_exchange *exchange = &g->exchanges[f->coarse->exchange_of[i % n]];
        struct pulled *it = &pulled[i];
        *it = (struct pulled){0, 0, (uint32_t)(i / n), exchange->server, (uint32_t)(i % n)};
        EACH_OF (const struct graph_exchange_end, end, g->exchange_ends + exchange->first_end,
                 exchange->n_ends) {
            if (end->rank != it->rank || end->pulled == DPRO_NO_OP)
                continue;
            int64_t read = measured_mean_ns(f->r, end->read, false);
            it->read_ns = MAX(it->read_ns, read);
            it->came_ns = MAX(it->came_ns, measured_mean_ns(f->r, end->pulled, false));
            first_ns = MIN(first_ns, read);
        }
    }
    qsort(pulled, n_pulled, sizeof *pulled, in_turn);
    for (size_t i = 0; i < n_pulled; i++) {
        struct pulled *this = &pulled[i];
        if (i > 0 && this[-1].rank == this->rank && this[-1].server == this->server)
            this->read_ns = MAX(this->read_ns, this[-1].read_ns + 1);
        read_ns[(size_t)this->rank * n + this->tensor] = MAX(this->read_ns - first_ns, 0);
    }
    f->coarse->read_ns = read_ns;
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
    fit_reads(f);
}
