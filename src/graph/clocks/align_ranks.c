/* graph/clocks/align_ranks.c: every rank's clock on one axis (paper, section 3.2), from what the
 * ranks sent each other.
 *
 * Transfers come first: they tell clocks apart by microseconds. Ranks that these don't tie to the
 * reference are tied by their collectives, which all members leave together, within microseconds on
 * one node and milliseconds over TCP. Workers of parameter servers say nothing to each other: they
 * are tied through the servers, whose clocks are unknowns like theirs. Processes of one host share
 * a clock, unless that contradicts what they sent: then they run in containers, or somebody played
 * with their time. */
#include "graph/clocks/align_ranks.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "align/align.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/sort.h"
#include "graph/clocks/collective_constraints.h"
#include "graph/collectives/match_collectives.h"

/* ---- from local to common ---- */

static int64_t moved(const struct clock_map *map, int64_t local_ns)
{
    return local_ns == ABSENT ? ABSENT : clock_aligned(map, local_ns);
}

static void move_rank(struct rank_build *rank, const struct clock_map *map)
{
    size_t n = (size_t)rank->n_timed * rank->steps.n;
    for (size_t i = 0; i < n; i++) {
        rank->start_ns[i] = moved(map, rank->start_ns[i]);
        if (rank->free_ns)
            rank->free_ns[i] = moved(map, rank->free_ns[i]);
        rank->end_ns[i] = moved(map, rank->end_ns[i]);
    }
    for (size_t o = 0; o < rank->n_timed; o++) {
        rank->seen_start_ns[o] = moved(map, rank->seen_start_ns[o]);
        rank->seen_end_ns[o] = moved(map, rank->seen_end_ns[o]);
    }
    for (size_t s = 0; s < rank->steps.n; s++) {
        rank->steps.at[s].start_ns = moved(map, rank->steps.at[s].start_ns);
        rank->steps.at[s].end_ns = moved(map, rank->steps.at[s].end_ns);
    }
}

void clocks_move(struct join *join)
{
    for (uint32_t r = 0; r < join->n_ranks && join->clocks.of_rank; r++)
        if (join->clocks.of_rank[r].n > 0)
            move_rank(&join->ranks[r], &join->clocks.of_rank[r]);
}

/* ---- who shares a clock ---- */

enum {
    /* Lines are rounded to nanoseconds, and so are times on them. */
    MAP_ROUNDING_NS = 5,
    /* Profiles of one host's processes convert their times each on its own. */
    PROFILE_ROUNDING_NS = 100000,
};

struct host {
    const char *name; /* "": unknown */
    bool twice;       /* another machine goes by the same name */
    uint32_t n_nodes;
    bool split; /* its processes' clocks differ */
};

struct state {
    struct join *join;
    const struct dpro_trace *trace;
    clock_nodes nodes;
    struct host *hosts;
    uint32_t n_hosts, n_clocks, n_split;
    uint32_t *host_of, *clock_of; /* a node */
    struct align *align;
    uint8_t *sources;                  /* a clock: bits by enum constraint_source */
    bool *tied;                        /* a clock, by what was sent */
    uint32_t pair_from, pair_to, pair; /* the last one asked for */
    struct clock_map *maps;            /* a clock */
};

static uint32_t add_host(struct state *st, const char *name)
{
    uint32_t h = st->n_hosts++;
    st->hosts[h] = (struct host){.name = name};
    return h;
}

/* Machines by their boot id, or by their host's name where the id is unknown. */
static int find_hosts(struct state *st)
{
    size_t n = st->nodes.n;
    struct strtab texts = {0};
    uint32_t *host_of_machine = mem_alloc((2 * n + 2) * sizeof *host_of_machine);
    uint32_t *host_of_name = mem_alloc((2 * n + 2) * sizeof *host_of_name);
    st->hosts = mem_array(n + 1, sizeof *st->hosts);
    st->host_of = mem_alloc((n + 1) * sizeof *st->host_of);
    st->clock_of = mem_alloc((n + 1) * sizeof *st->clock_of);
    int status = host_of_machine && host_of_name && st->hosts && st->host_of && st->clock_of &&
                         strtab_add(&texts, "", 0) != STRTAB_FULL
                     ? 0
                     : -1;
    for (size_t i = 0; i < 2 * n + 2 && status == 0; i++)
        host_of_machine[i] = host_of_name[i] = NO_ID;
    for (size_t i = 0; i < n && status == 0; i++) {
        const struct clock_node *node = &st->nodes.at[i];
        const char *text = node->boot_id[0] ? node->boot_id : node->host;
        uint32_t machine = strtab_add(&texts, text, strlen(text));
        uint32_t name = strtab_add(&texts, node->host, strlen(node->host));
        if (machine == STRTAB_FULL || name == STRTAB_FULL) {
            status = -1;
        } else if (machine == 0) { /* nothing is known: on its own */
            st->host_of[i] = add_host(st, "");
        } else if (host_of_machine[machine] != NO_ID) {
            st->host_of[i] = host_of_machine[machine];
        } else {
            st->host_of[i] = host_of_machine[machine] = add_host(st, node->host);
            if (host_of_name[name] == NO_ID)
                host_of_name[name] = st->host_of[i];
            else
                st->hosts[st->host_of[i]].twice = st->hosts[host_of_name[name]].twice = true;
        }
    }
    for (size_t i = 0; i < n && status == 0; i++)
        st->hosts[st->host_of[i]].n_nodes++;
    strtab_fini(&texts);
    mem_free(host_of_machine);
    mem_free(host_of_name);
    return status;
}

/* The reference's clock is 0; others follow by their lowest rank, then those that have no rank. */
static int number_clocks(struct state *st)
{
    uint32_t *clock_of_host = mem_alloc((st->n_hosts + (size_t)1) * sizeof *clock_of_host);
    uint32_t reference =
        st->join->n_ranks ? clock_node_of(&st->nodes, st->join->ranks[0].trace->rank) : 0;
    if (!clock_of_host)
        return -1;
    for (uint32_t h = 0; h < st->n_hosts; h++)
        clock_of_host[h] = NO_ID;
    st->clock_of[reference] = clock_of_host[st->host_of[reference]] = 0;
    st->n_clocks = 1;
    for (uint32_t i = 0; i < st->nodes.n; i++) {
        uint32_t *shared = &clock_of_host[st->host_of[i]];
        if (i == reference)
            continue;
        if (st->hosts[st->host_of[i]].split)
            st->clock_of[i] = st->n_clocks++;
        else
            st->clock_of[i] = *shared = *shared == NO_ID ? st->n_clocks++ : *shared;
    }
    mem_free(clock_of_host);
    return 0;
}

/* ---- evidence ---- */

static void split(struct state *st, uint32_t host)
{
    st->n_split += !st->hosts[host].split && st->hosts[host].n_nodes > 1;
    st->hosts[host].split = st->hosts[host].n_nodes > 1;
}

static uint32_t pair_of(struct state *st, uint32_t from, uint32_t to)
{
    if (st->pair == ALIGN_NONE || st->pair_from != from || st->pair_to != to) {
        st->pair = align_pair(st->align, from, to);
        st->pair_from = from;
        st->pair_to = to;
    }
    return st->pair;
}

static bool ties_by_collectives(const struct state *st, uint32_t clock, uint32_t other)
{
    return !st->tied[clock] || !st->tied[other];
}

static int learn(void *arg, const struct clock_constraint *e)
{
    struct state *st = arg;
    uint32_t from = st->clock_of[e->from], to = st->clock_of[e->to];
    if (from == to) {
        int64_t rounding = e->source == CONSTRAINT_FROM_COLLECTIVES ? PROFILE_ROUNDING_NS : 0;
        if (e->to_ns < e->from_ns && e->from_ns - e->to_ns > rounding)
            split(st, st->host_of[e->from]);
        return 0;
    }
    if (e->source == CONSTRAINT_FROM_COLLECTIVES && !ties_by_collectives(st, from, to))
        return 0;
    for (int end = 0; end < 2; end++) {
        uint32_t clock = end ? to : from;
        if (e->source == CONSTRAINT_FROM_COLLECTIVES && st->tied[clock])
            continue; /* it only ties the other */
        st->sources[clock] |= (uint8_t)(1u << e->source);
        if (e->source == CONSTRAINT_FROM_COLLECTIVES)
            align_keep(st->align, clock);
    }
    uint32_t pair = pair_of(st, from, to);
    return pair == ALIGN_NONE ? -1
                              : align_before(st->align, pair, from, e->from_ns, e->to_ns,
                                             (uint64_t)e->source << 62 | e->mark);
}

static int learn_near(void *arg, uint32_t node, int64_t ns, uint32_t other_node, int64_t other_ns)
{
    struct state *st = arg;
    uint32_t clock = st->clock_of[node], other = st->clock_of[other_node];
    if (clock == other || !ties_by_collectives(st, clock, other))
        return 0;
    uint32_t pair = pair_of(st, clock, other);
    return pair == ALIGN_NONE ? -1 : align_near(st->align, pair, clock, ns, other_ns);
}

static int visit(struct state *st, int (*before)(void *, const struct clock_constraint *),
                 bool near)
{
    struct constraint_visitor visitor = {.before = before, .arg = st};
    if (constraints_visit_transports(st->trace, &st->nodes, &visitor) < 0 ||
        constraints_visit_nccl(st->trace, &st->nodes, &visitor) < 0)
        return -1;
    if (near && align_ties(st->align, st->tied) < 0)
        return -1;
    visitor.near = near ? learn_near : NULL;
    return constraints_visit_collectives(st->join, &st->nodes, &visitor);
}

/* All calls of a process but its first and last hundredth: connections are made long before they
 * are used, and what is known that far off would be told of the whole. */
static int cover_transport(struct state *st, const struct net_transport *t)
{
    size_t n = t->transfers.n;
    if (n == 0)
        return 0;
    int64_t *times = mem_alloc(n * sizeof *times);
    if (!times)
        return -1;
    for (size_t i = 0; i < n; i++)
        times[i] = t->transfers.at[i].start_ns;
    sort_i64(times, n);
    align_cover(st->align, st->clock_of[clock_node_of(&st->nodes, t->rank)], times[n / 100],
                times[n - 1 - n / 100]);
    mem_free(times);
    return 0;
}

/* The iterations of ranks with a profile, the traffic of others. */
static int cover(struct state *st)
{
    int status = 0;
    for (uint32_t i = 0; i < st->nodes.n; i++) {
        if (st->nodes.at[i].rank_index == NO_ID)
            continue;
        const struct rank_build *rank = &st->join->ranks[st->nodes.at[i].rank_index];
        for (uint32_t s = 0; s < rank->steps.n; s++)
            align_cover(st->align, st->clock_of[i], rank->steps.at[s].start_ns,
                        rank->steps.at[s].end_ns);
    }
    for (uint32_t t = 0; t < st->trace->n_transports && status == 0; t++)
        if (st->trace->transports[t].rank_index >= st->join->n_ranks)
            status = cover_transport(st, &st->trace->transports[t]);
    return status;
}

static void forget(struct state *st)
{
    align_destroy(st->align);
    mem_free(st->sources);
    mem_free(st->tied);
    st->align = NULL;
    st->sources = NULL;
    st->tied = NULL;
}

static int solve(struct state *st)
{
    forget(st);
    if (number_clocks(st) < 0)
        return -1;
    st->pair = ALIGN_NONE;
    st->align = align_create(st->n_clocks);
    st->sources = mem_array(st->n_clocks, sizeof *st->sources);
    st->tied = mem_array(st->n_clocks, sizeof *st->tied);
    if (!st->align || !st->sources || !st->tied)
        return -1;
    return cover(st) < 0 || visit(st, learn, true) < 0 ? -1 : align_solve(st->align);
}

/* Contradictions between two clocks may come of taking several clocks for one. */
static void split_conflicts(struct state *st)
{
    const struct align_conflict *conflicts;
    uint32_t n = align_conflicts(st->align, &conflicts);
    for (uint32_t k = 0; k < n; k++)
        for (uint32_t i = 0; i < st->nodes.n; i++) {
            uint32_t clock = st->clock_of[i];
            if (clock == conflicts[k].from || clock == conflicts[k].to)
                split(st, st->host_of[i]);
        }
}

/* ---- what came out ---- */

static int warn(struct state *st, const char *format, ...) __attribute__((format(printf, 2, 3)));
static int warn(struct state *st, const char *format, ...)
{
    struct clocks *clocks = &st->join->clocks;
    char text[512];
    va_list args;
    va_start(args, format);
    int len = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (len < 0)
        return 0;
    const char *copy = arena_copy_string(&clocks->arena, text,
                                         (size_t)len < sizeof text ? (size_t)len : sizeof text - 1);
    return copy ? array_push(&clocks->warnings, copy) : -1;
}

static const char *name_method(const struct state *st, uint32_t clock, bool tied)
{
    static const char *const names[] = {"none",
                                        "transport",
                                        "nccl",
                                        "transport+nccl",
                                        "collectives",
                                        "transport+collectives",
                                        "nccl+collectives",
                                        "transport+nccl+collectives"};
    return clock == 0 ? "reference" : names[tied ? st->sources[clock] & 7 : 0];
}

/* Names are the clocks' own: hosts that are split or go by one name get a rank's number, or a
 * server's. */
static const char *name_clock(struct state *st, uint32_t node, bool shared)
{
    const struct host *host = &st->hosts[st->host_of[node]];
    const char *name = st->nodes.at[node].host;
    char text[320], process[NET_PROCESS_TEXT];
    int len;
    net_process_format(process, st->nodes.at[node].rank);
    if (name[0] == '\0')
        len = snprintf(text, sizeof text, "%s", process);
    else if (host->twice || (host->split && !shared))
        len = snprintf(text, sizeof text, "%.255s (%s)", name, process);
    else
        len = snprintf(text, sizeof text, "%.255s", name);
    return arena_copy_string(&st->join->clocks.arena, text, (size_t)len);
}

/* Who uses a clock, from its lowest rank on: the nodes in[first[c] .. first[c + 1]) use clock c. */
static int list_users(const struct state *st, uint32_t **first, uint32_t **in)
{
    *first = mem_array(st->n_clocks + (size_t)2, sizeof **first);
    *in = mem_alloc((st->nodes.n + 1) * sizeof **in);
    if (!*first || !*in)
        return -1;
    for (uint32_t i = 0; i < st->nodes.n; i++)
        (*first)[st->clock_of[i] + 2]++;
    for (uint32_t c = 0; c <= st->n_clocks; c++)
        (*first)[c + 1] += (*first)[c];
    for (uint32_t i = 0; i < st->nodes.n; i++)
        (*in)[(*first)[st->clock_of[i] + 1]++] = i;
    return 0;
}

static int write_clock(struct state *st, uint32_t c, const uint32_t *users, uint32_t n)
{
    struct clocks *clocks = &st->join->clocks;
    const struct dpro_clock_segment *segments = NULL;
    const struct dpro_clock_bound *bounds = NULL;
    uint32_t n_segments = st->align ? align_segments(st->align, c, &segments) : 0;
    uint32_t n_bounds = 0, n_ranks = 0;
    if (n_segments > 0)
        bounds = align_bounds(st->align, c, &n_bounds);
    int *ranks = arena_array(&clocks->arena, n, sizeof *ranks);
    struct dpro_clock_segment *own =
        arena_array(&clocks->arena, n_segments + (size_t)1, sizeof *own);
    struct clock_bounds *own_bounds = &clocks->bounds[c];
    own_bounds->at = arena_array(&clocks->arena, n_bounds + (size_t)1, sizeof *own_bounds->at);
    if (!ranks || !own || !own_bounds->at)
        return -1;
    for (uint32_t i = 0; i < n; i++)
        if (st->nodes.at[users[i]].rank >= 0)
            ranks[n_ranks++] = st->nodes.at[users[i]].rank;
    if (n_segments > 0)
        memcpy(own, segments, n_segments * sizeof *own);
    if (n_bounds > 0)
        memcpy(own_bounds->at, bounds, n_bounds * sizeof *bounds);
    own_bounds->n = n_bounds;
    clocks->at[c] = (struct dpro_clock){.host = name_clock(st, users[0], n > 1),
                                        .ranks = ranks,
                                        .n_ranks = n_ranks,
                                        .method = name_method(st, c, n_segments > 0),
                                        .segments = own,
                                        .n_segments = n_segments};
    st->maps[c] = (struct clock_map){own, n_segments};
    return clocks->at[c].host ? 0 : -1;
}

static int write_clocks(struct state *st)
{
    struct clocks *clocks = &st->join->clocks;
    uint32_t *first, *users;
    int status = list_users(st, &first, &users);
    clocks->at = arena_array(&clocks->arena, st->n_clocks, sizeof *clocks->at);
    clocks->bounds = arena_array(&clocks->arena, st->n_clocks, sizeof *clocks->bounds);
    st->maps = mem_array(st->n_clocks, sizeof *st->maps);
    if (!clocks->at || !clocks->bounds || !st->maps)
        status = -1;
    for (uint32_t c = 0; c < st->n_clocks && status == 0; c++)
        status = write_clock(st, c, users + first[c], first[c + 1] - first[c]);
    mem_free(first);
    mem_free(users);
    if (status == 0) {
        clocks->n = st->n_clocks;
        clocks->alignment.reference = clocks->at[0].host;
    }
    return status;
}

static int write_maps(struct state *st)
{
    struct clocks *clocks = &st->join->clocks;
    uint32_t n_ranks = st->join->n_ranks, n_servers = st->join->n_servers;
    clocks->of_rank =
        arena_array(&clocks->arena, n_ranks + (size_t)n_servers + 1, sizeof *clocks->of_rank);
    if (!clocks->of_rank)
        return -1;
    for (uint32_t i = 0; i < st->nodes.n; i++)
        if (st->nodes.at[i].rank_index != NO_ID)
            clocks->of_rank[st->nodes.at[i].rank_index] = st->maps[st->clock_of[i]];
    for (uint32_t k = n_ranks; k < n_ranks + n_servers; k++)
        clocks->of_rank[k] =
            st->maps[st->clock_of[clock_node_of(&st->nodes, st->join->ranks[k].trace->rank)]];
    return 0;
}

static int count(void *arg, const struct clock_constraint *e)
{
    struct state *st = arg;
    struct dpro_alignment *alignment = &st->join->clocks.alignment;
    uint32_t from = st->clock_of[e->from], to = st->clock_of[e->to];
    if (e->source == CONSTRAINT_FROM_COLLECTIVES && st->tied && !ties_by_collectives(st, from, to))
        return 0;
    alignment->n_pairs++;
    alignment->violations_before += e->to_ns < e->from_ns;
    int64_t from_ns = clock_aligned(&st->maps[from], e->from_ns);
    int64_t to_ns = clock_aligned(&st->maps[to], e->to_ns);
    alignment->violations_after +=
        to_ns < from_ns && (uint64_t)from_ns - (uint64_t)to_ns > MAP_ROUNDING_NS;
    return 0;
}

static int warn_all(struct state *st)
{
    const struct align_conflict *conflicts;
    uint32_t n = align_conflicts(st->align, &conflicts), untied = 0, first = NO_ID;
    uint32_t rough = 0, first_rough = NO_ID;
    int status = 0;
    for (uint32_t c = 0; c < st->n_clocks; c++)
        if (st->maps[c].n == 0) {
            untied++;
            first = first == NO_ID ? c : first;
        }
    for (uint32_t c = 1; c < st->n_clocks && st->trace->n_transports > 0; c++)
        if (st->maps[c].n > 0 && st->sources[c] == 1u << CONSTRAINT_FROM_COLLECTIVES) {
            rough++;
            first_rough = first_rough == NO_ID ? c : first_rough;
        }
    if (rough > 0)
        status |=
            warn(st,
                 "%u of %u clocks (first: that of %s) are known from collectives alone, since "
                 "no transport log tells of both ends of their ranks' connections: record "
                 "the transport of every rank and server; addresses that are translated on the way "
                 "(NAT), and logs of other runs, have no other end here",
                 rough, st->n_clocks, st->join->clocks.at[first_rough].host);
    if (untied > 0)
        status |= warn(st,
                       "%u of %u clocks (first: that of %s) can't be tied to that of %s, since "
                       "nothing recorded went both ways between them: their times are used as "
                       "recorded; record the transport of every rank and server",
                       untied, st->n_clocks, st->join->clocks.at[first].host,
                       st->join->clocks.at[0].host);
    for (uint32_t h = 0; h < st->n_hosts; h++)
        if (st->hosts[h].split)
            status |= warn(
                st,
                "the processes on host '%s' contradict each other's times, so each of them gets "
                "a clock of its own",
                st->hosts[h].name[0] ? st->hosts[h].name : "one host");
    if (n > 0) {
        char texts[2][160];
        for (int k = 0; k < 2; k++) {
            enum constraint_source source = (enum constraint_source)(conflicts->marks[k] >> 62);
            uint64_t mark = conflicts->marks[k] & ((UINT64_C(1) << 62) - 1);
            if (source == CONSTRAINT_FROM_COLLECTIVES)
                collective_constraint_describe(st->join, mark, texts[k], sizeof texts[k]);
            else
                constraint_describe(st->trace, source, mark, texts[k], sizeof texts[k]);
        }
        status |=
            warn(st,
                 "the times of %s and %s contradict each other by %.3f ms, whatever their "
                 "clocks are (%s; %s); %u such stretches are left out of the alignment; are "
                 "all logs of one run, and did a clock step?",
                 st->join->clocks.at[conflicts->from].host, st->join->clocks.at[conflicts->to].host,
                 (double)conflicts->by_ns / 1e6, texts[0], texts[1], n);
    }
    return status;
}

/* What has been asked for clocks alone has no other answer. */
static int warn_alone(struct state *st)
{
    char process[NET_PROCESS_TEXT];
    if (st->nodes.n != 1)
        return 0;
    net_process_format(process, st->nodes.at[0].rank);
    return warn(st,
                "these are %s's times alone: there is nothing to compare its clock with; add "
                "the other ranks' logs or profiles",
                process);
}

static int align_all(struct state *st, const struct dpro_graph_options *options)
{
    if (clock_nodes_list(st->trace, st->join->n_ranks, &st->nodes) < 0 || find_hosts(st) < 0)
        return -1;
    if (options->no_align) {
        if (number_clocks(st) < 0)
            return -1;
    } else {
        for (uint32_t before = NO_ID; before != st->n_split;) {
            before = st->n_split;
            if (solve(st) < 0)
                return -1;
            split_conflicts(st);
        }
    }
    if (write_clocks(st) < 0)
        return -1;
    if (write_maps(st) < 0 || visit(st, count, false) < 0)
        return -1;
    if (options->clocks_only && warn_alone(st) < 0)
        return -1;
    return st->align ? warn_all(st) : 0;
}

int clocks_align(struct join *join, const struct dpro_trace *trace,
                 const struct dpro_graph_options *options, struct dpro_error *err)
{
    struct state st = {.join = join, .trace = trace};
    int status = align_all(&st, options);
    forget(&st);
    array_fini(&st.nodes);
    mem_free(st.hosts);
    mem_free(st.host_of);
    mem_free(st.clock_of);
    mem_free(st.maps);
    return status < 0 ? dpro_error_nomem(err) : 0;
}
