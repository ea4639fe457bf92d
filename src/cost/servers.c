/* cost/servers.c: the parameter servers of a trace: which key went where, how fast, and what their
 * threads do with it.
 *
 * MXNet's rule: a key whose array has MXNET_KVSTORE_BIGARRAY_BOUND elements or more is parted over
 * all servers; any other goes to server number key * 9973 modulo their number. The servers' own
 * numbers are those in which they came to the scheduler, ours those of the files: what the trace
 * shows tells which is which. */
#include "cost/servers.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cost/buckets.h"
#include "cost/cost.h"
#include "cost/sync.h"

enum { KEY_FACTOR = 9973, LONG_BYTES = 4096, PAUSE_NS = 50000 };

/* Linux keeps as much of a socket in its link's queue as goes in a millisecond, and two segments of
 * 64 KB at least (TCP small queues); two sockets may send. */
enum { QUEUE_BYTES = 4 * 64 * 1024 };

static uint32_t number_of_key(uint32_t key, uint32_t n_servers)
{
    return (uint32_t)((uint64_t)key * KEY_FACTOR % n_servers);
}

uint32_t servers_of_part(const struct dpro_model *model, const struct dpro_strategy *strategy,
                         uint32_t bucket, uint32_t part)
{
    const struct model_net *net = &model->net;
    const struct strategy_bucket *b = &strategy->buckets[bucket];
    uint32_t n = net->n_servers ? net->n_servers : 1;
    if (net->placement == MODEL_ANYWHERE)
        return (b->server + part) % n;
    if (b->partitions > 1)
        return part % n;
    uint32_t number = number_of_key(model->tensors[strategy->order[b->first]].key, n);
    return net->server_of_key ? net->server_of_key[number] : number;
}

int servers_number(const struct dpro_model *model, uint32_t server)
{
    return model->net.server_numbers ? model->net.server_numbers[server] : (int)server;
}

uint32_t servers_with_number(const struct dpro_model *model, int number)
{
    uint32_t n = sync_n_servers(&model->net);
    for (uint32_t s = 0; s < n; s++)
        if (servers_number(model, s) == number)
            return s;
    return MODEL_NONE;
}

/* ---- changes ---- */

static uint64_t n_elements(const struct dpro_model *model, const struct dpro_strategy *s,
                           uint32_t bucket)
{
    return bucket_size_bytes(model, s, bucket) / sizeof(float);
}

uint64_t servers_bound(const struct dpro_model *model, const struct dpro_strategy *s)
{
    uint64_t least_parted = UINT64_MAX, largest_whole = 0;
    for (uint32_t b = 0; b < s->n_buckets; b++) {
        uint64_t n = n_elements(model, s, b);
        if (s->buckets[b].partitions > 1 && n < least_parted)
            least_parted = n;
        if (s->buckets[b].partitions == 1 && n > largest_whole)
            largest_whole = n;
    }
    if (least_parted < UINT64_MAX)
        return least_parted;
    return largest_whole < SERVERS_DEFAULT_BOUND ? SERVERS_DEFAULT_BOUND : largest_whole + 1;
}

void servers_set_bound(const struct dpro_model *model, uint64_t bound, struct dpro_strategy *s)
{
    uint32_t n_servers = sync_n_servers(&model->net);
    for (uint32_t b = 0; b < s->n_buckets; b++)
        s->buckets[b].partitions = n_elements(model, s, b) >= bound ? n_servers : 1;
}

static uint32_t host_of(const struct model_net *net, uint32_t rank)
{
    return net->rank_hosts ? net->rank_hosts[rank] : rank;
}

static int change_hosts(struct dpro_model *m, uint32_t n, struct arena *arena)
{
    struct model_net *net = &m->net;
    bool *taken = arena_array(arena, m->n_ranks + (size_t)1, sizeof *taken);
    int32_t *hosts = arena_array(arena, n, sizeof *hosts);
    bool with_ranks = net->server_hosts != NULL;
    if (!taken || !hosts)
        return -1;
    for (uint32_t r = 0; r < m->n_ranks; r++)
        taken[r] = host_of(net, r) != r;
    for (uint32_t s = 0; s < n; s++) {
        bool known = net->server_hosts && s < net->n_servers;
        uint32_t free = 0;
        if (known)
            hosts[s] = net->server_hosts[s];
        while (free < m->n_ranks && taken[free])
            free++;
        if (!known)
            hosts[s] = with_ranks && free < m->n_ranks ? (int32_t)free : -1;
        with_ranks &= hosts[s] >= 0;
        if (hosts[s] >= 0)
            taken[hosts[s]] = true;
    }
    net->server_hosts = hosts;
    return 0;
}

int servers_change(struct dpro_model *m, uint32_t n_servers, struct arena *arena)
{
    struct model_net *net = &m->net;
    struct dpro_strategy *baseline = &m->baseline;
    uint64_t bound = servers_bound(m, baseline);
    if (change_hosts(m, n_servers, arena) < 0)
        return -1;
    net->n_servers = n_servers;
    net->server_of_key = NULL;
    net->server_numbers = NULL;
    if (net->placement == MODEL_BY_KEY)
        servers_set_bound(m, bound, baseline);
    else /* in turns */
        for (uint32_t b = 0; b < baseline->n_buckets; b++)
            baseline->buckets[b].server =
                m->tensors[baseline->order[baseline->buckets[b].first]].key % n_servers;
    return 0;
}

/* ---- what the trace shows ---- */

/* What came from another process over a link: at a server from a rank, or the other way round. */
struct transfer {
    uint32_t op, rank, server;
    uint32_t from; /* the sender's op that it follows */
};
typedef ARRAY(struct transfer) transfer_array;

static bool is_transfer(const struct dpro_graph *g, uint32_t op)
{
    bool pushed = g->kind[op] == DPRO_OP_PUSH && g->rank[op] >= g->n_ranks;
    bool pulled = g->kind[op] == DPRO_OP_PULL && g->rank[op] < g->n_ranks;
    return (pushed || pulled) && g->size_bytes && g->size_bytes[op] > 0 &&
           g->device[op] != DPRO_NO_DEVICE && g->devices[g->device[op]].kind == DPRO_DEVICE_LINK_RX;
}

static int list_transfers(const struct dpro_graph *g, transfer_array *transfers)
{
    for (uint32_t op = 0; op < g->n_ops; op++)
        for (uint32_t e = g->row[op]; e < g->row[op + 1]; e++) {
            uint32_t to = g->succ[e], from = g->rank[op], at = g->rank[to];
            if (!is_transfer(g, to) || (from < g->n_ranks) == (at < g->n_ranks))
                continue;
            struct transfer t = {to, at < g->n_ranks ? at : from,
                                 (at < g->n_ranks ? from : at) - g->n_ranks, op};
            if (array_push(transfers, t) < 0)
                return -1;
        }
    return 0;
}

/* ---- times ---- */

static int compare_times(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

typedef ARRAY(double) times_array;

static struct dpro_estimate middle_of(times_array *times)
{
    if (times->n == 0)
        return (struct dpro_estimate){0};
    qsort(times->at, times->n, sizeof *times->at, compare_times);
    double spread = times->at[(times->n - 1) * 84 / 100] - times->at[(times->n - 1) * 16 / 100];
    return (struct dpro_estimate){(times->at[(times->n - 1) / 2] + times->at[times->n / 2]) / 2,
                                  spread / 2 / sqrt((double)times->n)};
}

/* ---- links ---- */

struct moment {
    int64_t start_ns, end_ns;
    uint32_t device;
    double bytes;
};

static int compare_moments(const void *a, const void *b)
{
    const struct moment *x = a, *y = b;
    if (x->device != y->device)
        return x->device < y->device ? -1 : 1;
    if (x->start_ns != y->start_ns)
        return x->start_ns < y->start_ns ? -1 : 1;
    return (x->end_ns > y->end_ns) - (x->end_ns < y->end_ns);
}

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
        bool together = net->server_hosts[t->server] == (int32_t)host_of(net, t->rank);
        if (together == within)
            moments[n++] =
                (struct moment){measured_start_ns(r, copy, t->op), r->end_ns[copy][t->op],
                                graph_link_of(r->graph, r->graph->device[t->op]),
                                (double)r->graph->size_bytes[t->op]};
    }
    qsort(moments, n, sizeof *moments, compare_moments);
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

/* The middle one of iterations: in some a transfer was not seen, or only its end. */
static int fit_way(const struct measured_replay *r, const struct model_net *net,
                   const transfer_array *transfers, bool within, struct dpro_estimate *byte_ns)
{
    times_array times = {0};
    struct moment *moments = malloc((transfers->n + 1) * sizeof *moments);
    int status = moments ? 0 : -1;
    for (uint32_t copy = r->first; copy < r->first + r->n && status == 0; copy++) {
        double ns = byte_ns_of(r, net, transfers, copy, within, moments);
        if (ns > 0)
            status = array_push(&times, ns);
    }
    *byte_ns = middle_of(&times);
    array_fini(&times);
    free(moments);
    return status;
}

static int find_servers(const struct dpro_graph *g, struct dpro_model *model)
{
    int32_t *hosts = arena_array(&model->arena, g->n_servers + (size_t)1, sizeof *hosts);
    int *numbers = arena_array(&model->arena, g->n_servers + (size_t)1, sizeof *numbers);
    for (uint32_t s = 0; hosts && numbers && s < g->n_servers; s++) {
        char name[DPRO_PROCESS_NAME_MAX];
        dpro_process_name(name, g->ranks[g->n_ranks + s].rank); /* "ps 0" */
        const char *number = strrchr(name, ' ');
        hosts[s] = g->server_hosts ? g->server_hosts[s] : -1;
        numbers[s] = number ? atoi(number + 1) : (int)s;
    }
    uint32_t *ranks = g->rank_hosts ? arena_array(&model->arena, g->n_ranks, sizeof *ranks) : NULL;
    for (uint32_t r = 0; ranks && r < g->n_ranks; r++)
        ranks[r] = g->rank_hosts[r];
    model->net.rank_hosts = ranks;
    model->net.server_hosts = hosts;
    model->net.server_numbers = numbers;
    return hosts && numbers && (ranks || !g->rank_hosts) ? 0 : -1;
}

/* ---- servers' threads ---- */

/* Whether it is what a push makes a server do: the first of a key is copied, the others added. */
static bool serves_push(const struct dpro_graph *g, uint32_t op)
{
    return g->rank[op] >= g->n_ranks && g->size_bytes && g->size_bytes[op] > 0 &&
           (g->kind[op] == DPRO_OP_REDUCE || g->kind[op] == DPRO_OP_COPY);
}

/* What a push makes a server do: so much for itself, as small ones show, and the rest a byte. */
static void fit_pushes(const struct dpro_graph *g, struct model_net *net)
{
    double small_ns = 0, squares = 0, n_small = 0, ns = 0, bytes = 0;
    for (int large = 0; large < 2; large++)
        for (uint32_t op = 0; op < g->n_ops; op++) {
            double dur = (double)g->dur_ns[op];
            if (!serves_push(g, op) || (g->size_bytes[op] >= LONG_BYTES) != large)
                continue;
            if (large) {
                ns += fmax(dur - net->push_ns.value, 0);
                bytes += (double)g->size_bytes[op];
                continue;
            }
            small_ns += dur;
            squares += dur * dur;
            n_small++;
            double mean = small_ns / n_small, variance = squares / n_small - mean * mean;
            net->push_ns = (struct dpro_estimate){mean, sqrt(fmax(variance, 0) / n_small)};
        }
    net->reduce_ns.value = bytes > 0 ? ns / bytes : 0;
    net->reduce_ns.std = 0.2 * net->reduce_ns.value;
}

/* From a server's last work on a key to its first answer, and from the last answer's arrival to the
 * end of the exchange. */
static int fit_waits(const struct measured_replay *r, const struct coarse *coarse,
                     const struct dpro_model *model, const transfer_array *transfers,
                     struct model_net *net)
{
    const struct dpro_graph *g = r->graph;
    times_array answers = {0}, ends = {0};
    int status = 0;
    for (uint32_t copy = r->first; copy < r->first + r->n && status == 0; copy++)
        for (uint32_t t = 0; t < model->n_tensors && status == 0; t++) {
            const struct graph_collective *c = &g->collectives[coarse->bucket_of[t]];
            int64_t served = INT64_MIN, answered = INT64_MAX;
            uint32_t name = g->tensor[g->members[c->first_member].transfer];
            for (uint32_t op = 0; op < g->n_ops; op++)
                if (serves_push(g, op) && g->tensor[op] == name && r->end_ns[copy][op] > served)
                    served = r->end_ns[copy][op];
            for (size_t i = 0; i < transfers->n; i++) {
                uint32_t op = transfers->at[i].op;
                if (g->kind[op] == DPRO_OP_PULL && g->tensor[op] == name &&
                    measured_start_ns(r, copy, op) < answered)
                    answered = measured_start_ns(r, copy, op);
            }
            if (served > INT64_MIN && answered < INT64_MAX)
                status = array_push(&answers, fmax((double)(answered - served), 0));
            for (uint32_t m = c->first_member; m < c->first_member + c->n_members && status == 0;
                 m++) {
                uint32_t transfer = g->members[m].transfer;
                double ns = (double)r->dur_ns[copy][transfer];
                if (r->gap_ns[copy])
                    ns += (double)r->gap_ns[copy][transfer];
                status = array_push(&ends, ns);
            }
        }
    net->answer_ns = middle_of(&answers);
    net->collective_ns = middle_of(&ends);
    array_fini(&answers);
    array_fini(&ends);
    return status;
}

/* ---- keys ---- */

void baseline_placement(const struct dpro_graph *g, uint32_t collective,
                        struct strategy_bucket *bucket)
{
    const struct graph_collective *c = &g->collectives[collective];
    uint32_t name = g->tensor[g->members[c->first_member].transfer], n = 0;
    bucket->server = 0;
    for (uint32_t op = 0; op < g->n_ops; op++)
        if (is_transfer(g, op) && g->kind[op] == DPRO_OP_PULL && g->rank[op] == 0 &&
            g->tensor[op] == name)
            n++;
    for (uint32_t op = g->n_ops; op-- > 0;)
        if (is_transfer(g, op) && g->kind[op] == DPRO_OP_PUSH && g->tensor[op] == name)
            bucket->server = g->rank[op] - g->n_ranks;
    bucket->partitions = n > 1 ? n : 1;
}

/* Which server is which in MXNet's numbers. Returns whether its rule holds for every key. */
static bool learn_rule(const struct dpro_graph *g, const struct coarse *coarse,
                       const struct dpro_model *model, uint32_t *server_of_key)
{
    for (uint32_t s = 0; s < g->n_servers; s++)
        server_of_key[s] = MODEL_NONE;
    for (uint32_t t = 0; t < model->n_tensors; t++) {
        struct strategy_bucket bucket = {.n = 1};
        uint32_t number = number_of_key(model->tensors[t].key, g->n_servers);
        baseline_placement(g, coarse->bucket_of[t], &bucket);
        if (g->collectives[coarse->bucket_of[t]].key == 0)
            return false;
        if (bucket.partitions > 1) {
            if (bucket.partitions != g->n_servers)
                return false;
            continue;
        }
        if (server_of_key[number] != MODEL_NONE && server_of_key[number] != bucket.server)
            return false;
        server_of_key[number] = bucket.server;
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

int fit_servers(const struct measured_replay *r, const struct coarse *coarse,
                struct dpro_model *model)
{
    const struct dpro_graph *g = r->graph;
    struct model_net *net = &model->net;
    transfer_array transfers = {0};
    uint32_t *server_of_key = arena_array(&model->arena, g->n_servers, sizeof *server_of_key);
    net->n_servers = g->n_servers ? g->n_servers : 1;
    net->queue_bytes = QUEUE_BYTES;
    int status = server_of_key ? list_transfers(g, &transfers) : -1;
    if (status == 0)
        status = find_servers(g, model);
    fit_pushes(g, net);
    if (status == 0)
        status = fit_waits(r, coarse, model, &transfers, net);
    if (status == 0)
        status = fit_way(r, net, &transfers, false, &net->byte_ns);
    if (status == 0)
        status = fit_way(r, net, &transfers, true, &net->within_ns);
    if (status == 0) {
        for (uint32_t t = 0; t < model->n_tensors; t++) {
            uint32_t key = g->collectives[coarse->bucket_of[t]].key;
            model->tensors[t].key = key ? key - 1 : t;
        }
        net->server_of_key = server_of_key;
        net->placement =
            learn_rule(g, coarse, model, server_of_key) ? MODEL_BY_KEY : MODEL_ANYWHERE;
    }
    array_fini(&transfers);
    return status;
}

/* ---- sessions ---- */

/* From when to when servers have to do with an iteration. */
struct session_times {
    int64_t first_read_ns; /* the end of the first op that something is sent after */
    int64_t last_push_ns;  /* the last arrival */
};

static struct session_times look_at_session(const struct measured_replay *r, uint32_t copy,
                                            const transfer_array *transfers)
{
    const struct dpro_graph *g = r->graph;
    struct session_times times = {INT64_MAX, INT64_MIN};
    for (size_t i = 0; i < transfers->n; i++) {
        const struct transfer *t = &transfers->at[i];
        bool pushed = g->kind[t->op] == DPRO_OP_PUSH;
        int64_t end = r->end_ns[copy][pushed ? t->op : t->from];
        if (pushed)
            times.last_push_ns = end > times.last_push_ns ? end : times.last_push_ns;
        else
            times.first_read_ns = end < times.first_read_ns ? end : times.first_read_ns;
    }
    return times;
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

/* A step lasts longer than its ops: until the client knows, and until servers begin to send. The
 * middle one of iterations, as the last arrivals of one may not have been seen. */
static int fit_steps(const struct measured_replay *r, const transfer_array *transfers,
                     struct model_net *net)
{
    const struct dpro_graph *g = r->graph;
    const struct graph_rank *last = &g->ranks[g->n_ranks - 1];
    times_array rests = {0};
    int status = 0;
    for (uint32_t copy = r->first; copy < r->first + r->n && status == 0; copy++) {
        struct session_times times = look_at_session(r, copy, transfers);
        int64_t begun = r->end_ns[copy - 1][g->ranks[0].boundary], over = times.last_push_ns;
        for (uint32_t op = 0; op < last->first_op + last->n_ops; op++)
            if (g->device[op] != DPRO_NO_DEVICE && r->end_ns[copy][op] > over)
                over = r->end_ns[copy][op];
        status = array_push(&rests, fmax((double)(r->end_ns[copy][g->ranks[0].boundary] - over) +
                                             (double)(times.first_read_ns - begun),
                                         0));
    }
    net->step_ns = middle_of(&rests);
    array_fini(&rests);
    return status;
}

int fit_session(const struct measured_replay *r, struct dpro_model *model)
{
    const struct dpro_graph *g = r->graph;
    struct model_net *net = &model->net;
    transfer_array transfers = {0};
    times_array small = {0};
    double n_pushes = 0;
    *net = (struct model_net){.algorithm = MODEL_SERVER,
                              .n_ranks = g->n_ranks,
                              .ranks_per_host = 1,
                              .n_servers = g->n_servers,
                              .placement = MODEL_ANYWHERE,
                              .pulls_at_start = true,
                              .queue_bytes = QUEUE_BYTES,
                              .n_streams = model->n_tensors};
    int status = list_transfers(g, &transfers);
    if (status == 0)
        status = find_servers(g, model);
    if (status == 0)
        status = fit_way(r, net, &transfers, false, &net->byte_ns);
    if (status == 0)
        status = fit_way(r, net, &transfers, true, &net->within_ns);
    for (size_t i = 0; i < transfers.n && status == 0; i++) {
        n_pushes += g->kind[transfers.at[i].op] == DPRO_OP_PUSH;
        if (g->size_bytes[transfers.at[i].op] < LONG_BYTES)
            status = array_push(&small, (double)g->dur_ns[transfers.at[i].op]);
    }
    if (status == 0) {
        status = fit_steps(r, &transfers, net);
        net->message_ns = middle_of(&small);
        net->push_ns.value = n_pushes > 0 ? served_ns(r, &transfers) / n_pushes : 0;
        net->push_ns.std = 0.3 * net->push_ns.value;
    }
    array_fini(&transfers);
    array_fini(&small);
    return status;
}
