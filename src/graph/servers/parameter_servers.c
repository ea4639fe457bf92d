/* What parameter servers do between pushes and answers.
 *
 * One thread takes one whole push after the other: it copies the first of a key, adds each other
 * one, and with the last one also updates. The answers follow right after the last push's work,
 * which is the time between its arrival and the first answer. */
#include "graph/servers/parameter_servers.h"

void servers_fini(struct servers *servers)
{
    FREE_ALL(&servers->processes, &servers->served, &servers->exchanged);
}

/* ---- who there is ---- */

void servers_find(struct servers *servers, const struct dpro_trace *trace)
{
    struct join *join = servers->join;
    servers->processes = mem_array(trace->n_transports, sizeof *servers->processes);
    EACH_OF (const struct net_transport, transport, trace->transports, trace->n_transports) {
        struct rank_build *server = &join->ranks[join->n_ranks + join->n_servers];
        bool again = join->n_servers > 0 && server[-1].trace->rank == transport->rank;
        if (transport->rank >= -1 || !transport->has_ps || again)
            continue;
        servers->processes[join->n_servers].rank = transport->rank;
        server->trace = &servers->processes[join->n_servers];
        server->names = join->ranks[0].names;
        server->classes = join->ranks[0].classes;
        server->all_classes = join->ranks[0].all_classes;
        server->boundary = NO_ID;
        join->n_servers++;
    }
}

void servers_begin(struct servers *servers)
{
    struct join *join = servers->join;
    const struct rank_build *lead = &join->ranks[0];
    for (uint32_t k = 0; k < join->n_servers; k++) {
        struct rank_build *server = &join->ranks[join->n_ranks + k];
        server->n_samples = lead->n_samples;
        server->sample_step = mem_alloc(lead->n_samples * sizeof *server->sample_step);
        /* what of the waiting it takes first is its own affair: a pool of one */
        array_add(&server->devices, .kind = DPRO_DEVICE_CPU_THREAD, .rank = server->trace->rank,
                  .n_slots = 1);
        /* a step for each sample: its times are kept by step */
        for (uint32_t s = 0; s < lead->n_samples; s++) {
            array_push(&server->steps, lead->steps.at[lead->sample_step[s]]);
            server->steps.at[s].follows = false;
            server->sample_step[s] = s;
            if (lead->sample_step[s] == lead->steps.reference)
                server->steps.reference = s;
            if (lead->sample_step[s] == lead->steps.shown)
                server->steps.shown = s;
        }
    }
}

/* ---- ops ---- */

static bool is_push(const struct joined *joined, const struct message *m, uint32_t server)
{
    return m->to == joined->n_members + server && m->size_bytes > 0;
}

/* That a push has come is answered at once; what it made the server do, the answer to a pull waits
 * for. Where only pushes are answered these do. */
static void list_answers(struct servers *servers, const struct joined *joined,
                         struct served *served)
{
    const struct message *all = servers->messages->all.at;
    uint32_t first = joined->first_message, end = first + joined->n_messages;
    served->first_answer = (uint32_t)servers->exchanged.n;
    for (int with_bytes = 1; with_bytes >= 0 && served->n_answers == 0; with_bytes--)
        for (uint32_t m = first; m < end; m++)
            if (all[m].from == joined->n_members + served->server &&
                all[m].to < joined->n_members && all[m].size_bytes >= (uint64_t)with_bytes) {
                array_push(&servers->exchanged, m);
                served->n_answers++;
            }
}

static void servers_serve(struct servers *servers, uint32_t j, uint32_t k)
{
    struct join *join = servers->join;
    const struct joined *joined = &join->joined.at[j];
    struct rank_build *server = &join->ranks[join->n_ranks + k];
    struct served served = {.joined = j,
                            .server = k,
                            .op = (uint32_t)server->ops.n,
                            .first_push = (uint32_t)servers->exchanged.n};
    for (uint32_t i = 0; i < joined->n_messages; i++) {
        uint32_t m = joined->first_message + i;
        const struct message *message = &servers->messages->all.at[m];
        if (!is_push(joined, message, k))
            continue;
        uint32_t op = build_push_virtual(server, DPRO_OP_REDUCE, message->size_bytes);
        server->ops.at[op].device = 0;
        server->ops.at[op].phase = DPRO_OP_COLLECTIVE;
        array_push(&servers->exchanged, m);
        served.n_pushes++;
    }
    list_answers(servers, joined, &served);
    if (served.n_pushes > 0 && served.n_answers > 0) {
        array_push(&servers->served, served);
        return;
    }
    servers->exchanged.n = served.first_push;
    server->ops.n = served.op;
}

/* ---- times ---- */

/* When the first answer that waits for a key's pushes was sent. */
static int64_t answered_ns(const struct servers *servers, const struct served *served,
                           uint32_t sample)
{
    int64_t answered = INT64_MAX;
    for (uint32_t i = 0; i < served->n_answers; i++) {
        uint32_t message = servers->exchanged.at[served->first_answer + i];
        answered = MIN(answered, message_time_of(servers->messages, message, sample)->start_ns);
    }
    return answered;
}

/* The pushes of one key. Of several the first to arrive in the iteration that is shown is copied.
 */
static void time_key(const struct servers *servers, const struct served *served, uint32_t sample,
                     struct rank_build *server)
{
    uint32_t first = 0, last = 0;
    int64_t *start_ns = step_start(server, sample, served->op);
    int64_t *end_ns = step_end(server, sample, served->op);
    for (uint32_t i = 0; i < served->n_pushes; i++) {
        uint32_t message = servers->exchanged.at[served->first_push + i];
        start_ns[i] = end_ns[i] = message_time_of(servers->messages, message, sample)->end_ns;
        first = start_ns[i] < start_ns[first] ? i : first;
        last = start_ns[i] >= start_ns[last] ? i : last;
    }
    end_ns[last] = MAX(end_ns[last], answered_ns(servers, served, sample));
    if (sample == server->steps.reference && first != last)
        server->ops.at[served->op + first].kind = DPRO_OP_COPY;
}

ORDER_OF_INDICES(by_own_start, int64_t, COMPARE(*x, *y));

/* A server's thread does one thing at a time. */
static void line_up(struct rank_build *server)
{
    uint32_t n = server->n_timed;
    for (uint32_t s = 0; s < server->n_samples; s++) {
        int64_t *start_ns = server->start_ns + (size_t)s * n, free_ns = INT64_MIN;
        SCRATCH uint32_t *order = sorted_indices(n, start_ns, by_own_start);
        for (uint32_t i = 0; i < n; i++) {
            size_t at = (size_t)s * n + order[i];
            server->start_ns[at] = MAX(server->start_ns[at], free_ns);
            free_ns = server->end_ns[at] = MAX(server->end_ns[at], server->start_ns[at]);
        }
    }
}

static void time_server(struct servers *servers, uint32_t k)
{
    struct join *join = servers->join;
    struct rank_build *server = &join->ranks[join->n_ranks + k];
    size_t n = server->ops.n * (size_t)server->n_samples;
    server->n_timed = (uint32_t)server->ops.n;
    server->start_ns = mem_alloc(n * sizeof *server->start_ns);
    server->end_ns = mem_alloc(n * sizeof *server->end_ns);
    server->seen_start_ns = mem_alloc(server->ops.n * sizeof *server->seen_start_ns);
    server->seen_end_ns = mem_alloc(server->ops.n * sizeof *server->seen_end_ns);
    for (size_t i = 0; i < servers->served.n; i++)
        for (uint32_t s = 0; s < server->n_samples; s++)
            if (servers->served.at[i].server == k)
                time_key(servers, &servers->served.at[i], s, server);
    line_up(server);
    for (uint32_t o = 0; o < server->ops.n; o++) {
        size_t at = build_at(server, server->steps.shown, o);
        server->seen_start_ns[o] = server->start_ns[at];
        server->seen_end_ns[o] = server->end_ns[at];
    }
}

void servers_build(struct servers *servers)
{
    struct join *join = servers->join;
    for (uint32_t k = 0; k < join->n_servers; k++) {
        for (uint32_t j = 0; j < join->joined.n; j++)
            if (join->joined.at[j].n_messages > 0 && join->joined.at[j].has_servers)
                servers_serve(servers, j, k);
        time_server(servers, k);
    }
}

/* ---- in the graph ---- */

/* They are in the order of servers, then ops. */
static const struct served *served_of(const struct servers *servers, uint32_t server, uint32_t op)
{
    const struct served *all = servers->served.at;
    size_t behind =
        LOWER_BOUND(i, 1, servers->served.n,
                    all[i].server < server || (all[i].server == server && all[i].op <= op));
    return &all[behind - 1];
}

const struct joined *servers_name_op(const struct servers *servers, uint32_t server, uint32_t op,
                                     struct strtab *names, uint32_t *name)
{
    const struct join *join = servers->join;
    static const char *const does[] = {[DPRO_OP_COPY] = "copy the push",
                                       [DPRO_OP_REDUCE] = "add the push",
                                       [DPRO_OP_UPDATE] = "update by the push"};
    const struct served *served = served_of(servers, server, op);
    const struct joined *joined = &join->joined.at[served->joined];
    const struct message *push =
        &servers->messages->all.at[servers->exchanged.at[served->first_push + op - served->op]];
    *name = strtab_format(names, "%s of rank %d",
                          does[join->ranks[join->n_ranks + server].ops.at[op].kind],
                          join->ranks[joined_rank(join, joined, push->from)].trace->rank);
    return joined;
}
