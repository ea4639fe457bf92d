/* cost/fit_servers.c: what a trace shows of parameter servers: where they are, how fast links and
 * servers' threads are, and which key went where.
 *
 * Key-value stores answer a pull when all ranks have pushed the key. In a session all pulls are
 * sent when the step begins, each once the server has read the variable. */
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/sort.h"
#include "base/stats.h"
#include "cost/fit.h"
#include "cost/server_placement.h"
#include "graph/servers/exchanges.h"

enum { LONG_BYTES = 4096, PAUSE_NS = 50000 };

/* Linux keeps as much of a socket in its link's queue as goes in a millisecond, and two segments of
 * 64 KB at least (TCP small queues); two sockets may send. */
enum { QUEUE_BYTES = 4 * 64 * 1024 };

/* What came from another process over a link: at a server from a rank, or the other way round. */
struct transfer {
    uint32_t op, rank, server;
    uint32_t from; /* the sender's op that it follows */
};
typedef ARRAY(struct transfer) transfer_array;

static void list_transfers(const struct dpro_graph *g, transfer_array *transfers)
{
    for (uint32_t op = 0; op < g->n_ops; op++)
        for (uint32_t e = g->row[op]; e < g->row[op + 1]; e++) {
            uint32_t to = g->succ[e], from = g->rank[op], at = g->rank[to];
            if (!exchange_arrives(g, to) || (from < g->n_ranks) == (at < g->n_ranks))
                continue;
            struct transfer t = {to, at < g->n_ranks ? at : from,
                                 (at < g->n_ranks ? from : at) - g->n_ranks, op};
            array_push(transfers, t);
        }
}

typedef ARRAY(double) times_array;

static struct dpro_estimate median_of(times_array *times)
{
    if (times->n == 0)
        return (struct dpro_estimate){0};
    sort_double(times->at, times->n);
    double spread = times->at[(times->n - 1) * 84 / 100] - times->at[(times->n - 1) * 16 / 100];
    return (struct dpro_estimate){stats_median(times->at, times->n),
                                  spread / 2 / sqrt((double)times->n)};
}

/* ---- links ---- */

struct moment {
    int64_t start_ns, end_ns;
    uint32_t device;
    double bytes;
};

ORDER(by_device, struct moment, ASCENDING(device) ?: ASCENDING(start_ns) ?: ASCENDING(end_ns));

/* What a byte takes in one iteration, between hosts or within one: of the busy periods in
 * which a link had something to carry without a pause, the long ones. The last bytes of one
 * transfer often come when the next one's are awaited. Within a host nothing is queued: of single
 * transfers. 0: none. */
static double byte_ns_of(const struct measured_replay *r, const struct model_net *net,
                         const transfer_array *transfers, uint32_t copy, bool within,
                         struct moment *moments)
{
    size_t n = 0, n_periods = 0;
    double longest = 0, ns = 0, bytes = 0;
    for (size_t i = 0; i < transfers->n; i++) {
        const struct transfer *t = &transfers->at[i];
        bool together = net->servers.hosts[t->server] == (int32_t)servers_host_of(net, t->rank);
        if (together == within)
            moments[n++] =
                (struct moment){measured_start_ns(r, copy, t->op), r->end_ns[copy][t->op],
                                graph_link_of(r->graph, r->graph->device[t->op]),
                                (double)r->graph->size_bytes[t->op]};
    }
    qsort(moments, n, sizeof *moments, by_device);
    for (size_t i = 0; i < n; i++) {
        struct moment *last = n_periods ? &moments[n_periods - 1] : NULL;
        if (!within && last && last->device == moments[i].device &&
            moments[i].start_ns <= last->end_ns + PAUSE_NS) {
            last->bytes += moments[i].bytes;
            last->end_ns = moments[i].end_ns > last->end_ns ? moments[i].end_ns : last->end_ns;
        } else {
            moments[n_periods++] = moments[i];
        }
    }
    for (size_t i = 0; i < n_periods; i++)
        longest = fmax(longest, moments[i].bytes);
    for (size_t i = 0; i < n_periods; i++)
        if (moments[i].bytes >= longest / 8 && moments[i].end_ns > moments[i].start_ns) {
            ns += (double)(moments[i].end_ns - moments[i].start_ns);
            bytes += moments[i].bytes;
        }
    return bytes > 0 ? ns / bytes : 0;
}

/* The median of iterations: in some a transfer was not seen, or only its end. */
static struct dpro_estimate fit_way(const struct measured_replay *r, const struct model_net *net,
                                    const transfer_array *transfers, bool within)
{
    times_array times = {0};
    struct moment *moments = mem_alloc((transfers->n + 1) * sizeof *moments);
    for (uint32_t copy = r->first; copy < r->first + r->n; copy++) {
        double ns = byte_ns_of(r, net, transfers, copy, within, moments);
        if (ns > 0)
            array_push(&times, ns);
    }
    struct dpro_estimate byte_ns = median_of(&times);
    array_fini(&times);
    mem_free(moments);
    return byte_ns;
}

static void find_servers(const struct dpro_graph *g, struct dpro_model *model)
{
    int32_t *hosts = arena_array(&model->arena, g->n_servers + (size_t)1, sizeof *hosts);
    int *numbers = arena_array(&model->arena, g->n_servers + (size_t)1, sizeof *numbers);
    for (uint32_t s = 0; s < g->n_servers; s++) {
        char name[DPRO_PROCESS_NAME_MAX];
        dpro_process_name(name, g->ranks[g->n_ranks + s].rank); /* "ps 0" */
        const char *number = strrchr(name, ' ');
        hosts[s] = g->server_hosts ? g->server_hosts[s] : -1;
        numbers[s] = number ? atoi(number + 1) : (int)s;
    }
    uint32_t *ranks = g->rank_hosts ? arena_array(&model->arena, g->n_ranks, sizeof *ranks) : NULL;
    for (uint32_t r = 0; ranks && r < g->n_ranks; r++)
        ranks[r] = g->rank_hosts[r];
    model->net.link.rank_hosts = ranks;
    model->net.servers.hosts = hosts;
    model->net.servers.numbers = numbers;
}

/* ---- key-value stores ---- */

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

/* When a tensor's last push was served and its first answer sent, by the string id of the tensor.
 */
struct answered {
    int64_t served_ns, answered_ns;
};

static void find_answers(const struct measured_replay *r, uint32_t copy,
                         const transfer_array *transfers, struct answered *of_tensor)
{
    const struct dpro_graph *g = r->graph;
    for (uint32_t name = 0; name < g->names.n; name++)
        of_tensor[name] = (struct answered){INT64_MIN, INT64_MAX};
    for (uint32_t op = 0; op < g->n_ops; op++)
        if (serves_push(g, op) && r->end_ns[copy][op] > of_tensor[g->tensor[op]].served_ns)
            of_tensor[g->tensor[op]].served_ns = r->end_ns[copy][op];
    for (size_t i = 0; i < transfers->n; i++) {
        uint32_t op = transfers->at[i].op;
        int64_t start = measured_start_ns(r, copy, op);
        if (g->kind[op] == DPRO_OP_PULL && start < of_tensor[g->tensor[op]].answered_ns)
            of_tensor[g->tensor[op]].answered_ns = start;
    }
}

/* From a server's last work on a key to its first answer, and from the last answer's arrival to the
 * end of the exchange. */
static void fit_waits(const struct measured_replay *r, const transfer_array *transfers,
                      struct model_net *net)
{
    const struct dpro_graph *g = r->graph;
    times_array answers = {0}, ends = {0};
    struct answered *of_tensor = mem_alloc(((size_t)g->names.n + 1) * sizeof *of_tensor);
    for (uint32_t copy = r->first; copy < r->first + r->n; copy++) {
        find_answers(r, copy, transfers, of_tensor);
        for (uint32_t e = 0; e < g->n_exchanges; e++) {
            const struct graph_exchange *exchange = &g->exchanges[e];
            const struct graph_exchange_end *end = g->exchange_ends + exchange->first_end;
            struct answered times = of_tensor[exchange->carried];
            if (times.served_ns > INT64_MIN && times.answered_ns < INT64_MAX)
                array_push(&answers, fmax((double)(times.answered_ns - times.served_ns), 0));
            for (uint32_t i = 0; i < exchange->n_ends; i++) {
                double ns = (double)r->dur_ns[copy][end[i].pulled];
                if (r->gap_ns[copy])
                    ns += (double)r->gap_ns[copy][end[i].pulled];
                array_push(&ends, ns);
            }
        }
    }
    net->servers.answer_ns = median_of(&answers);
    net->collective.overhead_ns = median_of(&ends);
    array_fini(&answers);
    array_fini(&ends);
    mem_free(of_tensor);
}

/* Which server is which in MXNet's numbers. Returns whether its rule holds for every key. */
static bool learn_rule(const struct dpro_graph *g, uint32_t *server_of_key)
{
    for (uint32_t s = 0; s < g->n_servers; s++)
        server_of_key[s] = MODEL_NONE;
    for (uint32_t e = 0; e < g->n_exchanges; e++) {
        const struct graph_exchange *exchange = &g->exchanges[e];
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
    for (uint32_t s = 0; s < g->n_servers; s++) { /* those that no key went to */
        uint32_t spare = 0, known = 0;
        for (; server_of_key[s] == MODEL_NONE; spare++) {
            for (known = 0; known < g->n_servers && server_of_key[known] != spare; known++)
                ;
            if (known == g->n_servers)
                server_of_key[s] = spare;
        }
    }
    return true;
}

static void fit_store(const struct measured_replay *r, const transfer_array *transfers,
                      struct dpro_model *model)
{
    const struct dpro_graph *g = r->graph;
    struct model_net *net = &model->net;
    uint32_t *server_of_key = arena_array(&model->arena, g->n_servers, sizeof *server_of_key);
    net->servers.of_key = server_of_key;
    net->servers.placement = learn_rule(g, server_of_key) ? MODEL_BY_KEY : MODEL_ANYWHERE;
    fit_pushes(g, net);
    fit_waits(r, transfers, net);
}

/* ---- sessions ---- */

/* A step lasts longer than its ops: until the client knows, and until servers begin to send. */
static double between_steps(const struct measured_replay *r, uint32_t copy,
                            const transfer_array *transfers)
{
    const struct dpro_graph *g = r->graph;
    const struct graph_rank *last = &g->ranks[g->n_ranks - 1];
    int64_t first_read = INT64_MAX, over = INT64_MIN;
    int64_t begun = r->end_ns[copy - 1][g->ranks[0].boundary];
    for (size_t i = 0; i < transfers->n; i++) {
        const struct transfer *t = &transfers->at[i];
        bool pushed = g->kind[t->op] == DPRO_OP_PUSH;
        int64_t end = r->end_ns[copy][pushed ? t->op : t->from];
        if (pushed)
            over = end > over ? end : over;
        else
            first_read = end < first_read ? end : first_read;
    }
    for (uint32_t op = 0; op < last->first_op + last->n_ops; op++)
        if (g->device[op] != DPRO_NO_DEVICE && r->end_ns[copy][op] > over)
            over = r->end_ns[copy][op];
    return fmax(
        (double)(r->end_ns[copy][g->ranks[0].boundary] - over) + (double)(first_read - begun), 0);
}

/* All that the servers compute once something was pushed. */
static double served_ns(const struct measured_replay *r, const transfer_array *transfers)
{
    const struct dpro_graph *g = r->graph;
    int64_t first_push = INT64_MAX;
    double ns = 0;
    for (size_t i = 0; i < transfers->n; i++)
        if (g->kind[transfers->at[i].op] == DPRO_OP_PUSH &&
            r->end_ns[r->first][transfers->at[i].op] < first_push)
            first_push = r->end_ns[r->first][transfers->at[i].op];
    for (uint32_t op = 0; op < g->n_ops; op++)
        if (g->rank[op] >= g->n_ranks && g->device[op] != DPRO_NO_DEVICE &&
            g->devices[g->device[op]].kind == DPRO_DEVICE_CPU_THREAD &&
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
        const int64_t *end_ns = r->end_ns[r->first + i];
        read[i] = came[i] = 0;
        for (uint32_t k = 0; k < exchange->n_ends; k++) {
            if (ends[k].rank != rank || ends[k].pulled == DPRO_NO_OP)
                continue;
            int64_t sent = end_ns[ends[k].read] - first_ns[i];
            int64_t there = end_ns[ends[k].pulled] - first_ns[i];
            read[i] = sent > read[i] ? sent : read[i];
            came[i] = there > came[i] ? there : came[i];
        }
    }
    return (struct pulled){.read_ns = stats_median_upper_i64(read, r->n),
                           .came_ns = stats_median_upper_i64(came, r->n),
                           .rank = rank,
                           .server = exchange->server};
}

/* When the values that ranks pull are read. What goes from one server to one rank comes in the
 * order in which it is sent; reading it ends now in this order and now in that. */
static void fit_reads(const struct measured_replay *r, struct coarse *coarse,
                      struct dpro_model *model)
{
    const struct dpro_graph *g = r->graph;
    struct arena *arena = &coarse->arena;
    size_t n = model->n_tensors, n_pulled = n * g->n_ranks;
    int64_t *first_ns = arena_alloc(arena, r->n * sizeof *first_ns);
    int64_t *times = arena_alloc(arena, 2 * (size_t)r->n * sizeof *times);
    struct pulled *pulled = arena_array(arena, n_pulled, sizeof *pulled);
    int64_t *read_ns = arena_array(&model->arena, n_pulled, sizeof *read_ns);
    for (uint32_t i = 0; i < r->n; i++) {
        first_ns[i] = INT64_MAX;
        for (uint32_t e = 0; e < g->n_exchanges; e++) {
            const struct graph_exchange_end *ends = g->exchange_ends + g->exchanges[e].first_end;
            for (uint32_t k = 0; k < g->exchanges[e].n_ends; k++)
                if (ends[k].read != DPRO_NO_OP &&
                    r->end_ns[r->first + i][ends[k].read] < first_ns[i])
                    first_ns[i] = r->end_ns[r->first + i][ends[k].read];
        }
    }
    for (size_t i = 0; i < n_pulled; i++) {
        const struct graph_exchange *exchange = &g->exchanges[coarse->exchange_of[i % n]];
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
    coarse->read_ns = read_ns;
}

static void fit_session(const struct measured_replay *r, struct coarse *coarse,
                        const transfer_array *transfers, struct dpro_model *model)
{
    const struct dpro_graph *g = r->graph;
    struct model_net *net = &model->net;
    times_array small = {0}, rests = {0};
    double n_pushes = 0;
    for (size_t i = 0; i < transfers->n; i++) {
        uint32_t op = transfers->at[i].op;
        n_pushes += g->kind[op] == DPRO_OP_PUSH;
        if (g->size_bytes[op] < LONG_BYTES)
            array_push(&small, (double)g->dur_ns[op]);
    }
    for (uint32_t copy = r->first; copy < r->first + r->n; copy++)
        array_push(&rests, between_steps(r, copy, transfers));
    net->gate.pulls_with_step = true;
    net->link.message_ns = median_of(&small);
    net->gate.step_ns = median_of(&rests);
    net->servers.push_ns = fit_within(n_pushes > 0 ? served_ns(r, transfers) / n_pushes : 0, 0.3);
    net->servers.placement = MODEL_ANYWHERE;
    array_fini(&small);
    array_fini(&rests);
    fit_reads(r, coarse, model);
}

/* ---- both ---- */

void fit_servers(const struct fitting *f)
{
    const struct measured_replay *r = f->r;
    const struct dpro_graph *g = f->g;
    struct model_net *net = f->net;
    transfer_array transfers = {0};
    net->servers.n = g->n_servers ? g->n_servers : 1;
    net->gate.n_streams = f->model->n_tensors; /* what goes to servers waits for nothing else */
    net->gate.in_order = false;
    net->link.queue_bytes = QUEUE_BYTES;
    list_transfers(g, &transfers);
    find_servers(g, f->model);
    net->link.byte_ns = fit_way(r, net, &transfers, false);
    net->link.within_ns = fit_way(r, net, &transfers, true);
    if (g->pulls_with_step)
        fit_session(r, f->coarse, &transfers, f->model);
    else
        fit_store(r, &transfers, f->model);
    array_fini(&transfers);
}
