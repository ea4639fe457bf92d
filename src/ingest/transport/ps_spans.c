/* Which spans of the workers' profiles ps-lite's messages are of, and what those spans exchange.
 *
 * A worker's span around a push, a pull or both begins before its request is passed on, and spans
 * and requests come in the same order: the timestamps count. */

#include "ingest/trace.h"
#include "ingest/transport/ps.h"

static const int64_t SLACK_NS = 200000;

static bool is_exchange(const struct dpro_trace *trace, const struct trace_span *span)
{
    return span->kind == SPAN_ANNOTATION && span->detail != NO_ID &&
           text_begins(strtab_get(&trace->names, span->name), "KVStoreDist");
}

struct ps_request {
    int32_t timestamp;
    int64_t first_ns; /* passed on, or else sent */
    uint32_t message; /* the first of them: a key that several servers share has one a server */
};

ORDER(by_timestamp, struct ps_request, ASCENDING(timestamp) ?: ASCENDING(message));

/* Spans that began in the same microsecond are ordered by their ends. */
ORDER_OF_INDICES(by_start, struct trace_span, ASCENDING(start_ns) ?: ASCENDING(dur_ns));

static uint64_t answer_key(const struct net_message *m)
{
    return map_mix(map_mix((uint32_t)m->timestamp + UINT64_C(1)) ^ (m->key << 8 | m->server)) | 1;
}

ORDER_OF_POINTERS(by_part, struct net_message,
                  ASCENDING(key) ?: ASCENDING(server) ?: COMPARE(x, y));

/* The keys that a worker pushes, by number, with the names of their parameters. The size of a key
 * that several servers share is that of all parts. */
static void list_keys(struct dpro_trace *trace, const struct net_transport *t, ps_keys *keys)
{
    SCRATCH ARRAY(const struct net_message *) pushes = {0};
    EACH (const struct net_message, m, t->messages)
        if (m->stream % 2 == 0 && ps_is_push(m) && m->collective != NO_ID)
            array_push(&pushes, m);
    array_sort(&pushes, by_part);
    for (size_t i = 0; i < pushes.n; i++) {
        const struct net_message *m = pushes.at[i];
        bool fresh = i == 0 || pushes.at[i - 1]->key != m->key;
        if (fresh)
            array_add(keys, .key = m->key);
        if (fresh || pushes.at[i - 1]->server != m->server)
            keys->at[keys->n - 1].size_bytes += m->length;
    }
    mxnet_name_keys(trace, &trace->ranks[t->rank_index], keys);
}

static void name_spans(struct dpro_trace *trace, const struct net_transport *t)
{
    struct trace_rank *rank = &trace->ranks[t->rank_index];
    SCRATCH ps_keys keys = {0};
    list_keys(trace, t, &keys);
    EACH (const struct net_message, m, t->messages) {
        if (m->protocol != NET_PS || m->collective == NO_ID)
            continue;
        uint32_t span = t->collectives.at[m->collective].span;
        if (rank->details[rank->spans[span].detail].process_group)
            continue;
        size_t k = LOWER_BOUND(at, (size_t)0, keys.n, keys.at[at].key < m->key);
        uint32_t name = k < keys.n && keys.at[k].key == m->key ? keys.at[k].name : 0;
        rank->details[rank->spans[span].detail].process_group =
            name ?: strtab_format(&trace->names, "key %" PRIu64, m->key);
    }
}

/* Describes what a span exchanges as a collective's detail. */
static void describe_exchange(struct dpro_trace *trace, struct trace_rank *rank, uint32_t span,
                              const struct net_message *m, const uint32_t names[4])
{
    struct trace_detail *detail = &rank->details[rank->spans[span].detail];
    detail->numel += ps_is_push(m) || ps_is_pull(m) ? m->length / sizeof(float) : 0;
    detail->collective = names[(ps_is_push(m) ? 1 : 0) + (m->flags & PS_PULL ? 2 : 0)];
    detail->group_size = trace->world_size;
    detail->key = m->key < UINT32_MAX ? (uint32_t)m->key + 1 : 0;
}

/* A rank's requests and the spans that made them, both in order. */
struct tying {
    struct dpro_trace *trace;
    struct net_transport *t;
    struct trace_rank *rank;
    uint32_t names[4]; /* string ids, by push and 2 * pull */
    ARRAY(struct ps_request) requests;
    ARRAY(uint32_t) spans;
    struct map asked; /* answer_key() of a request -> its exchange */
};

static void list_requests(struct tying *tying)
{
    for (uint32_t i = 0; i < tying->rank->n_spans; i++)
        if (is_exchange(tying->trace, &tying->rank->spans[i]))
            array_push(&tying->spans, i);
    for (uint32_t i = 0; i < tying->t->messages.n; i++) {
        const struct net_message *m = &tying->t->messages.at[i];
        int64_t first = m->sent_ns == INT64_MIN ? m->start_ns : m->sent_ns;
        if (m->stream % 2 == 0 && (m->flags & PS_REQUEST) && first != INT64_MIN)
            array_add(&tying->requests, m->timestamp, first, i);
    }
    array_sort_by(&tying->spans, by_start, tying->rank->spans);
    array_sort(&tying->requests, by_timestamp);
}

/* The span that made the requests from i to end, of one timestamp. */
static void tie_requests(struct tying *tying, size_t i, size_t end, uint32_t span)
{
    uint32_t exchange = net_add_exchange(tying->t, span);
    for (; i < end; i++) {
        struct net_message *m = &tying->t->messages.at[tying->requests.at[i].message];
        m->collective = exchange;
        describe_exchange(tying->trace, tying->rank, span, m, tying->names);
        map_set(&tying->asked, answer_key(m), exchange);
    }
    tying->trace->transport_info.n_tied++;
}

static void tie_all_requests(struct tying *tying)
{
    const struct ps_request *requests = tying->requests.at;
    size_t n = tying->requests.n;
    for (size_t i = 0, s = 0, end; i < n; i = end) {
        int64_t first = requests[i].first_ns;
        for (end = i; end < n && requests[end].timestamp == requests[i].timestamp; end++)
            first = MIN(first, requests[end].first_ns);
        const struct trace_span *span = NULL;
        for (; s < tying->spans.n; s++) {
            span = &tying->rank->spans[tying->spans.at[s]];
            if (span_end_ns(span) + SLACK_NS >= first)
                break;
        }
        if (!span || s == tying->spans.n || first < span->start_ns - SLACK_NS)
            continue;
        tie_requests(tying, i, end, tying->spans.at[s++]);
    }
    tying->trace->transport_info.n_collectives += tying->spans.n;
}

static void tie_answers(struct tying *tying)
{
    EACH (struct net_message, m, tying->t->messages) {
        uint64_t exchange;
        if (m->protocol != NET_PS || m->stream % 2 == 0 || (m->flags & PS_REQUEST) ||
            !map_get(&tying->asked, answer_key(m), &exchange))
            continue;
        m->collective = (uint32_t)exchange;
        uint32_t span = tying->t->collectives.at[exchange].span;
        struct trace_detail *detail = &tying->rank->details[tying->rank->spans[span].detail];
        if (ps_is_pull(m) && detail->collective == tying->names[2])
            detail->numel += m->length / sizeof(float);
    }
}

static void tie_rank(struct dpro_trace *trace, struct net_transport *t)
{
    static const char *const words[] = {"", "push", "pull", "push_pull"};
    struct tying tying = {.trace = trace, .t = t, .rank = &trace->ranks[t->rank_index]};
    for (int i = 0; i < 4; i++)
        tying.names[i] = strtab_add(&trace->names, words[i], strlen(words[i]));
    list_requests(&tying);
    tie_all_requests(&tying);
    tie_answers(&tying);
    FREE_ALL(&tying.requests, &tying.spans, &tying.asked);
    name_spans(trace, t);
}

/* Where some worker's messages are not known, exchanges are matched by order. Then no worker's
 * exchanges may have names. */
static void forget_names(struct dpro_trace *trace)
{
    bool any = false, all = true;
    for (int pass = 0; pass < 2; pass++)
        EACH_OF (struct trace_rank, rank, trace->ranks, trace->n_ranks) {
            bool exchanges = false, named = false;
            for (uint32_t i = 0; i < rank->n_spans; i++) {
                if (!is_exchange(trace, &rank->spans[i]))
                    continue;
                uint32_t *name = &rank->details[rank->spans[i].detail].process_group;
                exchanges = true;
                named |= *name != 0;
                if (pass == 1 && any && !all)
                    *name = 0;
            }
            any |= named;
            all &= named || !exchanges;
        }
}

void ps_tie_spans(struct dpro_trace *trace)
{
    EACH_OF (struct net_transport, t, trace->transports, trace->n_transports) {
        if (t->rank_index == NO_ID)
            continue;
        tie_rank(trace, t);
        byteps_add_exchanges(trace, t);
    }
    forget_names(trace);
}
