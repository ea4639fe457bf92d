/* What a worker of BytePS exchanges, from its messages, or from its own trace where no log has
 * them.
 *
 * PyTorch's profile has none of BytePS's pushes and pulls: its own threads make them. A push of a
 * key and the pull that follows it are one exchange, from when the push was passed on until the sum
 * was there, and become a span. When a push was passed on that was sent right behind another
 * message is not seen: at the earliest when that one was. Key 65536 n + k is part k of the n-th
 * tensor that the program declared. PyTorch's optimizer declares the gradients first, in the order
 * of their parameters' names.
 *
 * BytePS's own trace, comm.json, tells when each part of a tensor was copied to the host, pushed
 * and pulled. From the first of these to the pull's end is one exchange. */

#include "ingest/rank_job.h"
#include "ingest/transport/ps.h"

enum { KEYS_PER_TENSOR = 1 << 16 };

struct wire_exchange {
    uint64_t key;
    int64_t start_ns, end_ns;
    uint32_t push, pull; /* messages: the requests */
};

struct tensor {
    uint64_t number, size_bytes;
    uint32_t n_parts, name; /* string id; 0: not known */
};

struct wire_maker {
    struct dpro_trace *trace;
    struct net_transport *transport;
    struct trace_rank *rank;
    struct arena arena;
    struct map answers; /* of a request: index */
    int64_t *passed_ns; /* by message, of requests: when it may have been passed on */
    ARRAY(struct wire_exchange) exchanges;
    ARRAY(struct tensor) tensors;
    uint32_t *requests; /* by key, then time */
    size_t n_requests;
};

/* A message that begins so soon after the one before it has waited for that. */
static const int64_t BUSY_NS = 50000;

/* When the worker passed a request on, or had a whole answer; INT64_MIN: not recorded. */
static int64_t time_of(const struct net_message *m)
{
    if (m->sent_ns != INT64_MIN)
        return m->sent_ns;
    return m->stream % 2 == 0 ? m->start_ns : m->end_ns;
}

static bool is_request(const struct net_message *m)
{
    return m->stream % 2 == 0 && time_of(m) != INT64_MIN &&
           (m->flags & (PS_BYTEPS | PS_REQUEST)) == (PS_BYTEPS | PS_REQUEST);
}

static size_t count_exchanges(const struct net_transport *transport)
{
    size_t n = 0;
    EACH (const struct net_message, m, transport->messages)
        n += (m->flags & (PS_BYTEPS | PS_REQUEST | PS_PULL)) == (PS_BYTEPS | PS_REQUEST | PS_PULL);
    return n;
}

static uint64_t answer_key(const struct net_message *m)
{
    uint64_t what = m->key << 1 | ((m->flags & PS_PUSH) != 0);
    return map_mix(map_mix((uint32_t)m->timestamp + UINT64_C(1)) ^ map_mix(what)) | 1;
}

ORDER_OF_INDICES(compare_requests, struct net_message,
                 ASCENDING(key) ?: COMPARE(time_of(x), time_of(y)));

static void list_requests(struct wire_maker *m)
{
    const struct net_transport *t = m->transport;
    m->requests = arena_array(&m->arena, t->messages.n, sizeof *m->requests);
    for (uint32_t i = 0; i < t->messages.n; i++) {
        const struct net_message *message = &t->messages.at[i];
        if (is_request(message))
            m->requests[m->n_requests++] = i;
        else if ((message->flags & PS_BYTEPS) && !(message->flags & PS_REQUEST) &&
                 message->stream % 2 == 1)
            map_set(&m->answers, answer_key(message), i);
    }
    qsort_r(m->requests, m->n_requests, sizeof *m->requests, compare_requests, t->messages.at);
}

/* Sets when each request may have been passed on; messages of a stream keep their order. */
static void find_passed(struct wire_maker *m)
{
    const struct net_transport *t = m->transport;
    int64_t begun_ns = INT64_MIN, end_ns = INT64_MIN;
    m->passed_ns = arena_array(&m->arena, t->messages.n, sizeof *m->passed_ns);
    for (size_t i = 0; i < t->messages.n; i++) {
        const struct net_message *at = &t->messages.at[i];
        bool follows = i > 0 && at->stream == at[-1].stream && end_ns != INT64_MIN;
        m->passed_ns[i] = time_of(at);
        if (at->sent_ns != INT64_MIN || at->stream % 2 == 1 || at->start_ns == INT64_MIN)
            continue;
        if (follows && at->start_ns - end_ns < BUSY_NS)
            begun_ns++; /* the order is kept */
        else
            begun_ns = at->start_ns;
        m->passed_ns[i] = begun_ns;
        end_ns = at->end_ns;
    }
}

/* Each pull with the push before it. */
static void list_exchanges(struct wire_maker *m)
{
    const struct net_message *all = m->transport->messages.at;
    uint32_t push = NO_ID;
    for (size_t i = 0; i < m->n_requests; i++) {
        uint32_t index = m->requests[i];
        const struct net_message *at = &all[index];
        uint64_t answer;
        if (at->flags & PS_PUSH) {
            push = index;
            continue;
        }
        if (push == NO_ID || all[push].key != at->key ||
            !map_get(&m->answers, answer_key(at), &answer))
            continue;
        struct wire_exchange fresh = {.key = at->key,
                                      .start_ns = m->passed_ns[push],
                                      .end_ns = time_of(&all[answer]),
                                      .push = push,
                                      .pull = index};
        push = NO_ID;
        if (fresh.end_ns >= fresh.start_ns && trace_window_at(m->rank, fresh.start_ns) != NO_ID)
            array_push(&m->exchanges, fresh);
    }
}

/* ---- names ---- */

static void list_tensors(struct wire_maker *m)
{
    uint64_t key = UINT64_MAX;
    EACH (const struct wire_exchange, e, m->exchanges) {
        struct tensor fresh = {.number = e->key / KEYS_PER_TENSOR};
        if (e->key == key)
            continue;
        key = e->key;
        if (m->tensors.n == 0 || m->tensors.at[m->tensors.n - 1].number != fresh.number)
            array_push(&m->tensors, fresh);
        struct tensor *tensor = &m->tensors.at[m->tensors.n - 1];
        tensor->size_bytes += m->transport->messages.at[e->push].length;
        tensor->n_parts++;
    }
}

static int by_name(const void *a, const void *b, void *arg)
{
    const struct recorded_parameter *x = a, *y = b;
    return strcmp(strtab_get(arg, x->name), strtab_get(arg, y->name));
}

/* Names tensors after the parameters where these are as many and as large. */
static void name_tensors(struct wire_maker *m)
{
    const struct recording *recording = m->rank->recording;
    size_t n = recording ? recording->parameters.n : 0;
    struct recorded_parameter *all =
        arena_copy(&m->arena, n > 0 ? recording->parameters.at : NULL, n, sizeof *all);
    qsort_r(all, n, sizeof *all, by_name, &m->trace->names);
    bool fits = n == m->tensors.n;
    for (size_t i = 0; i < n && fits; i++)
        fits = all[i].size_bytes == m->tensors.at[i].size_bytes;
    for (size_t i = 0; i < n && fits; i++)
        m->tensors.at[i].name = all[i].name;
}

/* ---- spans ---- */

/* "fc.weight~PART1", or "key 65536" where the name is not known. */
static uint32_t name_group(struct strtab *names, const struct wire_exchange *e,
                           const struct tensor *tensor)
{
    char part[32] = "";
    if (tensor->n_parts > 1)
        snprintf(part, sizeof part, "~PART%" PRIu64, e->key % KEYS_PER_TENSOR);
    if (tensor->name)
        return strtab_format(names, "%.900s%s", strtab_get(names, tensor->name), part);
    return strtab_format(names, "key %" PRIu64 "%s", e->key - e->key % KEYS_PER_TENSOR, part);
}

/* Adds an exchange to the rank's last track. */
static void add_exchange(struct dpro_trace *trace, struct trace_rank *rank, uint32_t group,
                         uint64_t numel, int32_t n_workers, struct timeline_interval time)
{
    struct strtab *names = &trace->names;
    struct trace_detail detail = {.numel = numel,
                                  .dtype = strtab_add(names, "float32", 7),
                                  .collective = strtab_add(names, "push_pull", 9),
                                  .process_group = group,
                                  .group_size = n_workers,
                                  DETAIL_UNKNOWN};
    uint32_t name = strtab_format(names, "BytePSPushPull.%s", strtab_get(names, group));
    struct trace_span span = span_at(SPAN_COLLECTIVE, name, 0, time.start_ns, time.end_ns);
    span.window = (uint16_t)trace_window_at(rank, time.start_ns);
    rank_add_span(rank, span, &detail);
}

static void add_span(struct wire_maker *m, const struct wire_exchange *e,
                     const struct tensor *tensor)
{
    struct net_message *all = m->transport->messages.at;
    const uint32_t requests[] = {e->push, e->pull};
    uint32_t exchange = net_add_exchange(m->transport, m->rank->n_spans);
    add_exchange(m->trace, m->rank, name_group(&m->trace->names, e, tensor),
                 all[e->push].length / sizeof(float), m->trace->world_size,
                 (struct timeline_interval){e->start_ns, e->end_ns});
    for (int k = 0; k < 2; k++) {
        uint64_t answer;
        all[requests[k]].collective = exchange;
        if (map_get(&m->answers, answer_key(&all[requests[k]]), &answer))
            all[answer].collective = exchange;
    }
    m->trace->transport_info.n_tied++;
    m->trace->transport_info.n_collectives++;
}

/* Each key has a track. */
static void add_spans(struct wire_maker *m)
{
    struct trace_rank *rank = m->rank;
    size_t tensor = 0, n = m->exchanges.n;
    rank_make_room(rank, n, n, n); /* each on a track at worst */
    for (size_t i = 0; i < n; i++) {
        const struct wire_exchange *e = &m->exchanges.at[i];
        if (i == 0 || e->key != e[-1].key)
            rank_add_track(rank, strtab_add(&m->trace->names, "BytePS", 6));
        while (m->tensors.at[tensor].number != e->key / KEYS_PER_TENSOR)
            tensor++;
        add_span(m, e, &m->tensors.at[tensor]);
    }
}

static bool is_tied(const struct net_transport *transport)
{
    for (size_t i = 0; i < transport->messages.n; i++)
        if (transport->messages.at[i].flags && transport->messages.at[i].collective != NO_ID)
            return true;
    return false;
}

void byteps_add_exchanges(struct dpro_trace *trace, struct net_transport *transport)
{
    struct wire_maker m = {
        .trace = trace, .transport = transport, .rank = &trace->ranks[transport->rank_index]};
    if (count_exchanges(transport) == 0 || is_tied(transport))
        return;
    list_requests(&m);
    find_passed(&m);
    list_exchanges(&m);
    list_tensors(&m);
    name_tensors(&m);
    add_spans(&m);
    FREE_ALL(&m.answers, &m.exchanges, &m.tensors);
    arena_fini(&m.arena);
}

/* ---- its own trace ---- */

static bool has_own_trace(const struct trace_rank *rank)
{
    return rank->timeline && rank->timeline->writer == TIMELINE_BYTEPS && rank->timeline->on_epoch;
}

/* "byteps.Gradient.fc.weight" is PyTorch's parameter fc.weight; a part's number follows. */
static uint32_t name_of_own(struct strtab *names, const struct timeline *timeline, uint32_t tensor)
{
    static const char prefix[] = "byteps.Gradient.";
    const struct timeline_tensor *t = &timeline->tensors.at[tensor];
    const char *raw = strtab_get(names, t->name);
    bool parts = false;
    EACH (const struct timeline_tensor, other, timeline->tensors)
        parts |= other->name == t->name && other->partition > 0;
    raw += text_begins(raw, prefix) ? strlen(prefix) : 0;
    return parts ? strtab_format(names, "%.900s~PART%d", raw, (int)t->partition)
                 : strtab_format(names, "%.900s", raw);
}

ORDER_OF_INDICES(by_tensor, struct timeline_run, ASCENDING(tensor));

static void add_own_exchanges(struct dpro_trace *trace, struct trace_rank *rank, int32_t n_workers)
{
    struct timeline *timeline = rank->timeline;
    SCRATCH uint32_t *order = sorted_indices(timeline->runs.n, timeline->runs.at, by_tensor);
    uint32_t tensor = NO_ID, group = 0;
    rank_make_room(rank, timeline->tensors.n, timeline->runs.n, timeline->runs.n);
    for (size_t i = 0; i < timeline->runs.n; i++) {
        const struct timeline_run *run = &timeline->runs.at[order[i]];
        if (!timeline_has(run, STAGE_PUSH) || !timeline_has(run, STAGE_PULL) ||
            trace_window_at(rank, run->whole.start_ns) == NO_ID)
            continue;
        if (run->tensor != tensor) {
            tensor = run->tensor;
            group = name_of_own(&trace->names, timeline, tensor);
            rank_add_track(rank, strtab_add(&trace->names, "BytePS", 6));
        }
        add_exchange(trace, rank, group, 0, n_workers, run->whole);
    }
}

void byteps_join(struct dpro_trace *trace)
{
    int32_t n_workers = 0; /* not all ranks, where hosts have several GPUs */
    EACH_OF (const struct trace_rank, rank, trace->ranks, trace->n_ranks)
        n_workers += has_own_trace(rank);
    EACH_OF (struct trace_rank, rank, trace->ranks, trace->n_ranks) {
        bool is_logged = false;
        EACH_OF (const struct net_transport, t, trace->transports, trace->n_transports)
            is_logged |= t->rank == rank->rank && count_exchanges(t) > 0;
        if (has_own_trace(rank) && !is_logged)
            add_own_exchanges(trace, rank, n_workers);
    }
}
