/* Parameter servers as the trace shows them: where they are, how fast links and servers' threads
 * are, and which key went where. */

#include "cost/learn/fit.h"
#include "cost/program/server_placement.h"
#include "graph/graph.h"

/* shorter messages show the time of a message, longer ones that of bytes */
enum { PAUSE_NS = 50000, LONG_BYTES = 4096 };

static void list_served(struct fitting *f)
{
    const struct dpro_graph *g = f->g;
    for (uint32_t op = 0; op < g->n_ops; op++)
        for (uint32_t e = g->row[op]; e < g->row[op + 1]; e++) {
            uint32_t to = g->succ[e], from = g->rank[op], at = g->rank[to];
            if (!exchange_arrives(g, to) || (from < g->n_ranks) == (at < g->n_ranks))
                continue;
            array_push(&f->served,
                       ((struct fit_served){to, MIN(at, from), MAX(at, from) - g->n_ranks, op}));
        }
}

/* ---- links ---- */

/* What a byte takes in one iteration, between hosts or within one: of the busy periods in
 * which a link had something to carry without a pause, the long ones. The last bytes of one
 * transfer often come when the next one's are awaited. Within a host nothing is queued: of single
 * transfers. 0: none. */
static double byte_ns_of(const struct fitting *f, uint32_t copy, bool within, struct fit_busy *busy)
{
    const struct dpro_graph *g = f->g;
    size_t n = 0;
    double longest = 0, ns = 0, bytes = 0;
    EACH (const struct fit_served, t, f->served) {
        if ((f->net->servers.hosts[t->server] == (int32_t)servers_host_of(f->net, t->rank)) ==
            within)
            busy[n++] = (struct fit_busy){.start_ns = measured_start_ns(f->r, copy, t->op),
                                          .end_ns = f->r->copies[copy].end_ns[t->op],
                                          .link = graph_link_of(g, g->device[t->op]),
                                          .bytes = (double)g->size_bytes[t->op]};
    }
    if (!within)
        n = fit_busy_periods(busy, n, PAUSE_NS);
    for (size_t i = 0; i < n; i++)
        longest = fmax(longest, busy[i].bytes);
    for (size_t i = 0; i < n; i++)
        if (busy[i].bytes >= longest / 8 && busy[i].end_ns > busy[i].start_ns) {
            ns += (double)(busy[i].end_ns - busy[i].start_ns);
            bytes += busy[i].bytes;
        }
    return bytes > 0 ? ns / bytes : 0;
}

/* The median of iterations: in some a transfer was not seen, or only its end. */
static struct dpro_estimate fit_way(const struct fitting *f, bool within)
{
    fit_times times = {0};
    SCRATCH struct fit_busy *busy = mem_alloc(f->served.n * sizeof *busy);
    for (uint32_t copy = f->r->first; copy < f->r->first + f->r->n; copy++) {
        double ns = byte_ns_of(f, copy, within, busy);
        if (ns > 0)
            array_push(&times, ns);
    }
    return fit_median(&times);
}

static void find_servers(const struct dpro_graph *g, struct dpro_model *model)
{
    int32_t *hosts = arena_array(&model->arena, g->n_servers, sizeof *hosts);
    int *numbers = arena_array(&model->arena, g->n_servers, sizeof *numbers);
    for (uint32_t s = 0; s < g->n_servers; s++) {
        char name[DPRO_PROCESS_NAME_MAX];
        dpro_process_name(name, g->ranks[g->n_ranks + s].rank); /* "ps 0" */
        const char *number = strrchr(name, ' ');
        hosts[s] = g->server_hosts ? g->server_hosts[s] : -1;
        numbers[s] = number ? atoi(number + 1) : (int)s;
    }
    model->net.servers.hosts = hosts;
    model->net.servers.numbers = numbers;
}

/* ---- key-value stores: they answer a pull when all ranks have pushed the key ---- */

/* Whether it is what a push makes a server do: the first of a key is copied, the others added. */
static bool serves_push(const struct dpro_graph *g, uint32_t op)
{
    return g->rank[op] >= g->n_ranks && g->size_bytes && g->size_bytes[op] > 0 &&
           (g->kind[op] == DPRO_OP_REDUCE || g->kind[op] == DPRO_OP_COPY);
}

/* What a push makes a server do: so much for itself, as small ones show, and the rest a byte. */
static void fit_pushes(const struct dpro_graph *g, struct model_net *net)
{
    struct sums small = {0};
    double ns = 0, bytes = 0;
    for (uint32_t op = 0; op < g->n_ops; op++)
        if (serves_push(g, op) && g->size_bytes[op] < LONG_BYTES)
            sums_add(&small, (double)g->dur_ns[op]);
    net->servers.push_ns = sums_mean(&small);
    for (uint32_t op = 0; op < g->n_ops; op++)
        if (serves_push(g, op) && g->size_bytes[op] >= LONG_BYTES) {
            ns += fmax((double)g->dur_ns[op] - net->servers.push_ns.value, 0);
            bytes += (double)g->size_bytes[op];
        }
    net->collective.reduce_ns = fit_within(bytes > 0 ? ns / bytes : 0, 0.2);
}

/* When a tensor's last push was served and its first answer sent, by the tensor's string id. */
struct answered {
    int64_t served_ns, answered_ns;
};

/* From a server's last work on a key to its first answer, and from the last answer's arrival to the
 * end of the exchange. */
static void fit_waits(const struct fitting *f)
{
    const struct dpro_graph *g = f->g;
    fit_times answers = {0}, ends = {0};
    SCRATCH struct answered *of_tensor = mem_alloc(g->names.n * sizeof *of_tensor);
    for (uint32_t name = 0; name < g->names.n; name++)
        of_tensor[name] = (struct answered){INT64_MIN, INT64_MAX};
    for (uint32_t op = 0; op < g->n_ops; op++)
        if (serves_push(g, op))
            of_tensor[g->tensor[op]].served_ns =
                MAX(of_tensor[g->tensor[op]].served_ns, measured_mean_ns(f->r, op, false));
    EACH (const struct fit_served, it, f->served) {
        int64_t *first_ns = &of_tensor[g->tensor[it->op]].answered_ns;
        if (g->kind[it->op] == DPRO_OP_PULL)
            *first_ns = MIN(*first_ns, measured_mean_ns(f->r, it->op, true));
    }
    EACH_OF (const struct graph_exchange, exchange, g->exchanges, g->n_exchanges) {
        struct answered times = of_tensor[exchange->carried];
        if (times.served_ns > INT64_MIN && times.answered_ns < INT64_MAX)
            array_push(&answers, fmax((double)(times.answered_ns - times.served_ns), 0));
        EACH_OF (const struct graph_exchange_end, end, g->exchange_ends + exchange->first_end,
                 exchange->n_ends)
            array_push(&ends, (double)g->dur_ns[end->pulled] + (double)g->gap_ns[end->pulled]);
    }
    f->net->servers.answer_ns = fit_median(&answers);
    f->net->collective.overhead_ns = fit_median(&ends);
}

/* Which server is which in MXNet's numbers. Returns whether its rule holds for every key. */
static bool learn_rule(const struct dpro_graph *g, uint32_t *server_of_key)
{
    for (uint32_t s = 0; s < g->n_servers; s++)
        server_of_key[s] = MODEL_NONE;
    EACH_OF (const struct graph_exchange, exchange, g->exchanges, g->n_exchanges) {
        if (exchange->key == 0)
            return false;
        uint32_t number = servers_number_of_key(exchange->key - 1, g->n_servers);
        if (exchange->n_parts > 1) {
            if (exchange->n_parts != g->n_servers)
                return false;
            continue;
        }
        if (server_of_key[number] != MODEL_NONE && server_of_key[number] != exchange->server)
            return false;
        server_of_key[number] = exchange->server;
    }
    for (uint32_t s = 0; s < g->n_servers; s++) /* those that no key went to */
        for (uint32_t spare = 0; server_of_key[s] == MODEL_NONE; spare++) {
            uint32_t known = 0;
            while (known < g->n_servers && server_of_key[known] != spare)
                known++;
            server_of_key[s] = known == g->n_servers ? spare : MODEL_NONE;
        }
    return true;
}

static void fit_store(struct fitting *f)
{
    struct model_net *net = f->net;
    uint32_t *of_key = arena_array(&f->model->arena, f->g->n_servers, sizeof *of_key);
    net->servers.of_key = of_key;
    net->servers.placement = learn_rule(f->g, of_key) ? MODEL_BY_KEY : MODEL_ANYWHERE;
    fit_pushes(f->g, net);
    fit_waits(f);
}

/* ---- a TensorFlow session: all pulls are sent when the step begins ---- */

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

static void fit_session(struct fitting *f)
{
    const struct dpro_graph *g = f->g;
    struct model_net *net = f->net;
    fit_times small = {0}, rests = {0};
    double n_pushes = 0;
    for (size_t i = 0; i < f->served.n; i++) {
        uint32_t op = f->served.at[i].op;
        n_pushes += g->kind[op] == DPRO_OP_PUSH;
        if (g->size_bytes[op] < LONG_BYTES)
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

/* ---- all of it ---- */

void fit_servers(struct fitting *f)
{
    const struct dpro_graph *g = f->g;
    struct model_net *net = f->net;
    net->servers.n = g->n_servers ? g->n_servers : 1;
    net->gate.n_streams = f->model->n_tensors; /* what goes to servers waits for nothing else */
    net->gate.in_order = false;
    list_served(f);
    fit_hosts(f);
    find_servers(g, f->model);
    net->link.byte_ns = fit_way(f, false);
    net->link.within_ns = fit_way(f, true);
    (g->pulls_with_step ? fit_session : fit_store)(f);
    array_fini(&f->served);
}
