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

/* When a rank pulls a variable, from the first that is sent in an iteration: medians. */
struct pulled {
    int64_t read_ns, came_ns;
    uint32_t rank, server, tensor;
};

ORDER(in_turn, struct pulled,
      ASCENDING(rank) ?: ASCENDING(server) ?: ASCENDING(came_ns) ?: ASCENDING(tensor));

/* `times`: room for two of each iteration. */
static struct pulled look_at_pull(const struct measured_replay *r, const int64_t *first_ns,
                                  const struct graph_exchange *exchange, uint32_t rank,
                                  int64_t *times)
{
    const struct graph_exchange_end *ends = r->graph->exchange_ends + exchange->first_end;
    int64_t *read = times, *came = times + r->n;
    for (uint32_t i = 0; i < r->n; i++) {
        const int64_t *end_ns = r->copies[r->first + i].end_ns;
        read[i] = came[i] = 0;
        for (uint32_t k = 0; k < exchange->n_ends; k++) {
            if (ends[k].rank != rank || ends[k].pulled == DPRO_NO_OP)
                continue;
            read[i] = MAX(read[i], end_ns[ends[k].read] - first_ns[i]);
            came[i] = MAX(came[i], end_ns[ends[k].pulled] - first_ns[i]);
        }
    }
    return (struct pulled){.read_ns = stats_median_upper_i64(read, r->n),
                           .came_ns = stats_median_upper_i64(came, r->n),
                           .rank = rank,
                           .server = exchange->server};
}

/* When the values that ranks pull are read. What goes from one server to one rank comes in the
 * order in which it is sent; reading it ends now in this order and now in that. */
static void fit_reads(const struct fitting *f)
{
    const struct dpro_graph *g = f->g;
    const struct measured_replay *r = f->r;
    struct arena *arena = &f->coarse->arena;
    size_t n = f->model->n_tensors, n_pulled = n * g->n_ranks;
    int64_t *first_ns = arena_alloc(arena, r->n * sizeof *first_ns);
    int64_t *times = arena_alloc(arena, 2 * (size_t)r->n * sizeof *times);
    struct pulled *pulled = arena_array(arena, n_pulled, sizeof *pulled);
    int64_t *read_ns = arena_array(&f->model->arena, n_pulled, sizeof *read_ns);
    for (uint32_t i = 0; i < r->n; i++) {
        first_ns[i] = INT64_MAX;
        for (uint32_t e = 0; e < g->n_exchanges; e++) {
            const struct graph_exchange_end *ends = g->exchange_ends + g->exchanges[e].first_end;
            for (uint32_t k = 0; k < g->exchanges[e].n_ends; k++)
                if (ends[k].read != DPRO_NO_OP)
                    first_ns[i] = MIN(first_ns[i], r->copies[r->first + i].end_ns[ends[k].read]);
        }
    }
    for (size_t i = 0; i < n_pulled; i++) {
        const struct graph_exchange *exchange = &g->exchanges[f->coarse->exchange_of[i % n]];
        pulled[i] = look_at_pull(r, first_ns, exchange, (uint32_t)(i / n), times);
        pulled[i].tensor = (uint32_t)(i % n);
    }
    qsort(pulled, n_pulled, sizeof *pulled, in_turn);
    for (size_t i = 0; i < n_pulled; i++) {
        struct pulled *this = &pulled[i];
        if (i > 0 && this[-1].rank == this->rank && this[-1].server == this->server &&
            this->read_ns <= this[-1].read_ns)
            this->read_ns = this[-1].read_ns + 1;
        read_ns[(size_t)this->rank * n + this->tensor] = this->read_ns;
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
