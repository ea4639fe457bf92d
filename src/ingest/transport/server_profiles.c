/* Which server each profile of a parameter server is of.
 *
 * Servers are numbered by ps-lite, their profiles by who collected them. But a server answers right
 * after it has updated: in its own profile, which has its own clock, an op ends just before. */

#include "ingest/trace.h"
#include "ingest/transport/ps.h"

enum { JUST_BEFORE_NS = 500000, ROUNDING_NS = 2000, MAX_SERVERS = 1024 };

/* When the engine's ops ended, in order. */
static int64_t *list_ends(const struct dpro_trace *trace, const struct trace_rank *profile,
                          uint32_t *n)
{
    int64_t *ends = mem_array(profile->n_spans, sizeof *ends);
    *n = 0;
    EACH_OF (const struct trace_span, span, profile->spans, profile->n_spans) {
        const char *name = strtab_get(&trace->names, span->name);
        if (span->kind == SPAN_CPU_OP && !text_begins(name, "MX") &&
            strcmp(name, "WaitForVar") != 0 && strcmp(name, "DeleteVariable") != 0)
            ends[(*n)++] = span_end_ns(span);
    }
    sort_i64(ends, *n);
    return ends;
}

/* How many of a server's answers follow an op of the profile. */
static uint32_t count_fits(const struct net_transport *t, const int64_t *ends, uint32_t n)
{
    uint32_t fits = 0;
    EACH (const struct net_message, m, t->messages) {
        if (m->stream % 2 || !ps_is_pull(m) || m->start_ns == INT64_MIN)
            continue;
        uint32_t after = LOWER_BOUND(e, 0u, n, ends[e] <= m->start_ns + ROUNDING_NS);
        fits += after > 0 && m->start_ns - ends[after - 1] <= JUST_BEFORE_NS;
    }
    return fits;
}

struct profile_fit {
    uint32_t fits, transport, profile;
    bool named; /* as the names have it */
};

ORDER(compare_pairs, struct profile_fit,
      DESCENDING(fits) ?: DESCENDING(named) ?: ASCENDING(transport) ?: ASCENDING(profile));

ORDER(by_number, struct trace_rank, ASCENDING(rank));

/* The best fits first, one profile a server. Profiles that fit none keep their numbers. */
static void assign_profiles(struct dpro_trace *trace, const struct profile_fit *pairs, size_t n)
{
    bool transports[MAX_SERVERS] = {false}, profiles[MAX_SERVERS] = {false};
    EACH_OF (const struct profile_fit, pair, pairs, n) {
        if (transports[pair->transport % MAX_SERVERS] || profiles[pair->profile] || pair->fits == 0)
            continue;
        transports[pair->transport % MAX_SERVERS] = profiles[pair->profile] = true;
        trace->servers[pair->profile].rank = trace->transports[pair->transport].rank;
    }
    qsort(trace->servers, trace->n_servers, sizeof *trace->servers, by_number);
}

void ps_assign_profiles(struct dpro_trace *trace)
{
    SCRATCH ARRAY(struct profile_fit) pairs = {0};
    size_t n_fitting = 0;
    if (trace->n_servers < 2 || trace->n_servers > MAX_SERVERS || trace->n_transports > MAX_SERVERS)
        return;
    for (uint32_t p = 0; p < trace->n_servers; p++) {
        uint32_t n_ends, best = 0;
        SCRATCH int64_t *ends = list_ends(trace, &trace->servers[p], &n_ends);
        for (uint32_t t = 0; t < trace->n_transports; t++) {
            const struct net_transport *transport = &trace->transports[t];
            if (transport->rank >= -1 || !transport->has_ps)
                continue;
            struct profile_fit pair = {count_fits(transport, ends, n_ends), t, p,
                                       transport->rank == trace->servers[p].rank};
            best = MAX(best, pair.fits);
            array_push(&pairs, pair);
        }
        n_fitting += best > 0;
    }
    if (n_fitting == trace->n_servers) {
        array_sort(&pairs, compare_pairs);
        assign_profiles(trace, pairs.at, pairs.n);
    }
}
