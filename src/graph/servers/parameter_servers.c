/* What parameter servers do between pushes and answers.
 *
 * One thread takes one whole push after the other: it copies the first of a key, adds each other
 * one, and with the last one also updates. The profile has no keys. The answers follow right after
 * the last push's work, so the last sum and the last update that began before them are that push's.
 * The work of another push is the first of its kind that began after it arrived. Without a profile,
 * the last push's work is the time between its arrival and the first answer. */
#include "graph/servers/parameter_servers.h"

enum { ROUNDING_NS = 2000 }; /* profiles have whole microseconds */

void servers_fini(struct servers *servers)
{
    FREE_ALL(&servers->absent, &servers->served, &servers->exchanged);
}

/* ---- who there is ---- */

static const struct trace_rank *profile_of(const struct dpro_trace *trace, int process)
{
    for (uint32_t s = 0; s < trace->n_servers; s++)
        if (trace->servers[s].rank == process)
            return &trace->servers[s];
    return NULL;
}

void servers_find(struct servers *servers, const struct dpro_trace *trace)
{
    struct join *join = servers->join;
    servers->absent = mem_array(trace->n_transports, sizeof *servers->absent);
    EACH_OF (const struct net_transport, transport, trace->transports, trace->n_transports) {
        struct rank_build *server = &join->ranks[join->n_ranks + join->n_servers];
        bool again = join->n_servers > 0 && server[-1].trace->rank == transport->rank;
        if (transport->rank >= -1 || !transport->has_ps || again)
            continue;
        server->trace = profile_of(trace, transport->rank);
        if (!server->trace) {
            struct trace_rank *absent = &servers->absent[join->n_servers];
            absent->rank = transport->rank;
            server->trace = absent;
            servers->n_unprofiled++;
        }
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

enum sort { SORT_COPY, SORT_SUM, SORT_UPDATE, N_SORTS };

/* What a push makes the server do. */
struct servers_task {
    int64_t after_ns, before_ns; /* it arrived; its key was answered first; on the common axis */
    uint32_t op, sample;
    bool first, last; /* of its key */
};
typedef ARRAY(struct servers_task) task_array;

ORDER(by_arrival, struct servers_task, ASCENDING(after_ns) ?: ASCENDING(op));

ORDER(by_answer, struct servers_task, ASCENDING(before_ns) ?: ASCENDING(op));

static void set_times(struct rank_build *server, const struct servers_task *task, int64_t start,
                      int64_t end)
{
    *step_start(server, task->sample, task->op) = start;
    *step_end(server, task->sample, task->op) = end;
}

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

/* The pushes of one key; their times as they are without a profile. */
static void list_tasks(struct servers *servers, const struct served *served, uint32_t sample,
                       task_array *tasks)
{
    struct join *join = servers->join;
    struct rank_build *server = &join->ranks[join->n_ranks + served->server];
    const uint32_t *messages = servers->exchanged.at;
    int64_t answered = answered_ns(servers, served, sample);
    size_t n_before = tasks->n, first = n_before, last = n_before;
    for (uint32_t i = 0; i < served->n_pushes; i++) {
        struct servers_task task = {
            .after_ns = message_time_of(servers->messages, messages[served->first_push + i], sample)
                            ->end_ns,
            .before_ns = answered,
            .op = served->op + i,
            .sample = sample};
        array_push(tasks, task);
        if (by_arrival(&task, &tasks->at[first]) < 0)
            first = tasks->n - 1;
        if (by_arrival(&task, &tasks->at[last]) > 0)
            last = tasks->n - 1;
    }
    tasks->at[first].first = first != last;
    tasks->at[last].last = true;
    for (size_t i = n_before; i < tasks->n; i++) {
        int64_t arrived = tasks->at[i].after_ns;
        set_times(server, &tasks->at[i], arrived, i == last ? MAX(arrived, answered) : arrived);
    }
}

/* What a span of a server's profile is; N_SORTS: nothing that a push asks for. */
static enum sort sort_of(const struct rank_build *server, const struct trace_span *span)
{
    const char *name = strtab_get(server->names, span->name);
    if (span->kind != SPAN_CPU_OP || text_begins(name, "MX") || strcmp(name, "WaitForVar") == 0 ||
        strcmp(name, "DeleteVariable") == 0)
        return N_SORTS;
    if (text_begins(name, "Copy"))
        return SORT_COPY;
    return server->classes[span->name] & NAME_UPDATE_NODE ? SORT_UPDATE : SORT_SUM;
}

struct servers_work {
    int64_t start_ns, end_ns; /* on the common axis */
    bool used;
};

struct profile {
    ARRAY(struct servers_work) work[N_SORTS]; /* by start */
};

ORDER(by_start, struct servers_work, ASCENDING(start_ns));

static void list_work(const struct rank_build *server, const struct clock_map *clock,
                      struct profile *profile)
{
    EACH_OF (const struct trace_span, span, server->trace->spans, server->trace->n_spans) {
        enum sort sort = sort_of(server, span);
        if (sort != N_SORTS)
            array_add(&profile->work[sort], clock_aligned(clock, span->start_ns),
                      clock_aligned(clock, span_end_ns(span)), false);
    }
    for (int s = 0; s < N_SORTS; s++)
        array_sort(&profile->work[s], by_start);
}

/* How many begin before `ns`. */
static size_t n_before(const struct profile *profile, enum sort sort, int64_t ns)
{
    return LOWER_BOUND(i, 0, profile->work[sort].n, profile->work[sort].at[i].start_ns < ns);
}

/* The last of a sort, or the first, not used yet, that began after one time and before another;
 * NULL: none. */
static const struct servers_work *servers_take(struct profile *profile, enum sort sort, bool last,
                                               int64_t after, int64_t before)
{
    size_t low = n_before(profile, sort, after - ROUNDING_NS);
    size_t high = n_before(profile, sort, before);
    for (size_t n = low; n < high; n++) {
        struct servers_work *work = &profile->work[sort].at[last ? high - 1 - (n - low) : n];
        if (!work->used) {
            work->used = true;
            return work;
        }
    }
    return NULL;
}

static void time_task(struct servers *servers, struct rank_build *server,
                      const struct servers_task *task, const struct servers_work *begun,
                      const struct servers_work *done)
{
    int64_t start = begun ? begun->start_ns : done ? done->start_ns : task->after_ns;
    int64_t end = done ? done->end_ns : begun ? begun->end_ns : start;
    servers->n_untimed += !begun && !done;
    start = MAX(start, task->after_ns);
    end = MIN(end, task->before_ns);
    set_times(server, task, start, MAX(start, end));
}

static void time_by_profile(struct servers *servers, uint32_t k, task_array *tasks)
{
    struct join *join = servers->join;
    struct rank_build *server = &join->ranks[join->n_ranks + k];
    struct profile profile = {0};
    list_work(server, &join->clocks.of_rank[join->n_ranks + k], &profile);
    /* where workers update, the sum is stored by a copy */
    enum sort final = profile.work[SORT_UPDATE].n > 0 ? SORT_UPDATE : SORT_COPY;
    array_sort(tasks, by_answer);
    EACH (const struct servers_task, task, *tasks) {
        if (!task->last)
            continue;
        const struct servers_work *done =
            servers_take(&profile, final, true, task->after_ns, task->before_ns);
        const struct servers_work *sum = servers_take(&profile, SORT_SUM, true, task->after_ns,
                                                      done ? done->start_ns : task->before_ns);
        time_task(servers, server, task, sum, done);
    }
    array_sort(tasks, by_arrival);
    EACH (const struct servers_task, task, *tasks)
        if (!task->last)
            time_task(servers, server, task,
                      servers_take(&profile, task->first ? SORT_COPY : SORT_SUM, false,
                                   task->after_ns, task->before_ns),
                      NULL);
    for (int s = 0; s < N_SORTS; s++)
        array_fini(&profile.work[s]);
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

/* Of a key's pushes the first to arrive in the iteration that is shown is copied; of one worker it
 * is all that there is. */
static void name_kinds(struct rank_build *server, const task_array *tasks)
{
    for (size_t i = 0; i < tasks->n; i++)
        if (tasks->at[i].sample == server->steps.reference && tasks->at[i].first)
            server->ops.at[tasks->at[i].op].kind = DPRO_OP_COPY;
}

static void time_server(struct servers *servers, uint32_t k)
{
    struct join *join = servers->join;
    struct rank_build *server = &join->ranks[join->n_ranks + k];
    SCRATCH task_array tasks = {0};
    size_t n = server->ops.n * (size_t)server->n_samples;
    server->n_timed = (uint32_t)server->ops.n;
    server->start_ns = mem_alloc(n * sizeof *server->start_ns);
    server->end_ns = mem_alloc(n * sizeof *server->end_ns);
    server->seen_start_ns = mem_alloc(server->ops.n * sizeof *server->seen_start_ns);
    server->seen_end_ns = mem_alloc(server->ops.n * sizeof *server->seen_end_ns);
    for (size_t i = 0; i < servers->served.n; i++)
        for (uint32_t s = 0; s < server->n_samples; s++)
            if (servers->served.at[i].server == k)
                list_tasks(servers, &servers->served.at[i], s, &tasks);
    name_kinds(server, &tasks);
    if (server->trace->n_spans > 0)
        time_by_profile(servers, k, &tasks);
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
