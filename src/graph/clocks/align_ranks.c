/* Every rank's clock on one axis (paper, section 3.2), from what the ranks sent each other.
 *
 * Transfers come first: they bound clocks within microseconds. Ranks without any are tied by their
 * collectives, which all members leave together, within microseconds on one node and milliseconds
 * over TCP. Workers of parameter servers send each other nothing; they are tied through the
 * servers, whose clocks are unknowns, too. Processes of one host share a clock unless that
 * contradicts what they sent, as in containers with clocks of their own. When a collective ended is
 * less sure than that: a few that seem to end too early split no host, and none splits processes of
 * which it is known that they had one kernel. */
#include "graph/clocks/clocks.h"

#include "align/align.h"
#include "base/parallel.h"

/* ---- from local to common ---- */

static int64_t ranks_moved(const struct clock_map *map, int64_t local_ns)
{
    return local_ns == ABSENT ? ABSENT : clock_aligned(map, local_ns);
}

struct moving {
    struct rank_build *rank;
    const struct clock_map *map;
};

static void move_step(void *arg, size_t s)
{
    const struct moving *moving = arg;
    struct rank_build *rank = moving->rank;
    struct step *step = &rank->steps.at[s];
    for (size_t i = s * rank->n_timed; i < (s + 1) * rank->n_timed; i++) {
        rank->start_ns[i] = ranks_moved(moving->map, rank->start_ns[i]);
        if (rank->free_ns)
            rank->free_ns[i] = ranks_moved(moving->map, rank->free_ns[i]);
        rank->end_ns[i] = ranks_moved(moving->map, rank->end_ns[i]);
    }
    step->start_ns = ranks_moved(moving->map, step->start_ns);
    step->end_ns = ranks_moved(moving->map, step->end_ns);
}

static bool ranks_moves(const struct clock_map *map)
{
    EACH_OF (const struct dpro_clock_segment, segment, map->segments, map->n)
        if (segment->offset_ns != 0 || segment->drift_ppm != 0)
            return true;
    return false;
}

static void move_rank(void *arg, size_t r)
{
    struct join *join = arg;
    struct rank_build *rank = &join->ranks[r];
    const struct clock_map *map = &join->clocks.of_rank[r];
    if (!ranks_moves(map))
        return;
    parallel_for(rank->steps.n, rank->threads, move_step, &(struct moving){rank, map});
    for (size_t o = 0; o < rank->n_timed; o++) {
        rank->seen_start_ns[o] = ranks_moved(map, rank->seen_start_ns[o]);
        rank->seen_end_ns[o] = ranks_moved(map, rank->seen_end_ns[o]);
    }
}

void clocks_move(struct join *join, int threads)
{
    if (join->clocks.of_rank)
        parallel_for(join->n_ranks, threads, move_rank, join);
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
    bool one_kernel;                  /* its processes' boot ids say so */
    bool split;                       /* its processes' clocks differ */
    uint64_t n_collective, n_against; /* pairs of its processes' moments, those out of order */
    uint32_t clock; /* that its processes share; of a split one that of the last one */
};

struct ranks_state {
    struct join *join;
    const struct dpro_trace *trace;
    struct arena scratch; /* what follows */
    clock_nodes nodes;
    struct host *hosts;
    uint32_t n_hosts, n_clocks, n_split;
    uint32_t *host_of, *clock_of; /* a node */
    struct align *align;
    uint8_t *sources;       /* a clock: bits by enum constraint_source */
    bool *tied;             /* a clock, by what was sent */
    struct clock_map *maps; /* a clock */
};

static uint32_t add_host(struct ranks_state *st, const char *name)
{
    uint32_t h = st->n_hosts++;
    st->hosts[h] = (struct host){.name = name};
    return h;
}

/* Machines by their boot id, or by their host's name where the id is unknown. */
static void find_hosts(struct ranks_state *st)
{
    size_t n = st->nodes.n;
    SCRATCH struct map machines = {0}, names = {0}; /* the first host of each */
    st->hosts = arena_array(&st->scratch, n, sizeof *st->hosts);
    st->host_of = arena_array(&st->scratch, n, sizeof *st->host_of);
    st->clock_of = arena_array(&st->scratch, n, sizeof *st->clock_of);
    for (size_t i = 0; i < n; i++) {
        const struct clock_node *node = &st->nodes.at[i];
        const char *machine = node->boot_id[0] ? node->boot_id : node->host;
        uint64_t host, first;
        if (machine[0] == '\0') { /* nothing is known: on its own */
            host = add_host(st, "");
        } else if (!map_get(&machines, map_text_key(machine), &host)) {
            host = add_host(st, node->host);
            st->hosts[host].one_kernel = node->boot_id[0] != '\0';
            map_set(&machines, map_text_key(machine), host);
            first = map_first(&names, map_text_key(node->host), host);
            if (first != host)
                st->hosts[host].twice = st->hosts[first].twice = true;
        }
        st->host_of[i] = (uint32_t)host;
        st->hosts[host].n_nodes++;
    }
}

/* The reference's clock is 0; others follow by their lowest rank, then those that have no rank. */
static void number_clocks(struct ranks_state *st)
{
    uint32_t reference =
        st->join->n_ranks ? clock_node_of(&st->nodes, st->join->ranks[0].trace->rank) : 0;
    for (uint32_t h = 0; h < st->n_hosts; h++)
        st->hosts[h].clock = NO_ID;
    st->clock_of[reference] = st->hosts[st->host_of[reference]].clock = 0;
    st->n_clocks = 1;
    for (uint32_t i = 0; i < st->nodes.n; i++) {
        struct host *host = &st->hosts[st->host_of[i]];
        if (i == reference)
            continue;
        if (host->split || host->clock == NO_ID)
            host->clock = st->n_clocks++;
        st->clock_of[i] = host->clock;
    }
}

/* ---- evidence ---- */

static void ranks_split(struct ranks_state *st, uint32_t host)
{
    st->n_split += !st->hosts[host].split && st->hosts[host].n_nodes > 1;
    st->hosts[host].split = st->hosts[host].n_nodes > 1;
}

static bool ties_by_collectives(const struct ranks_state *st, uint32_t clock, uint32_t other)
{
    return !st->tied[clock] || !st->tied[other];
}

static void ranks_learn(void *arg, const struct clock_constraint *e)
{
    struct ranks_state *st = arg;
    uint32_t from = st->clock_of[e->from], to = st->clock_of[e->to];
    bool by_collectives = e->source == CONSTRAINT_FROM_COLLECTIVES;
    if (from == to) {
        struct host *host = &st->hosts[st->host_of[e->from]];
        int64_t rounding = by_collectives ? PROFILE_ROUNDING_NS : 0;
        bool against = e->to_ns < e->from_ns && e->from_ns - e->to_ns > rounding;
        host->n_collective += by_collectives;
        host->n_against += by_collectives && against;
        if (against && !by_collectives)
            ranks_split(st, st->host_of[e->from]);
        return;
    }
    if (by_collectives && !ties_by_collectives(st, from, to))
        return;
    for (int end = 0; end < 2; end++) {
        uint32_t clock = end ? to : from;
        if (by_collectives && st->tied[clock])
            continue; /* it only ties the other */
        st->sources[clock] |= (uint8_t)(1u << e->source);
        if (by_collectives)
            align_keep(st->align, clock);
    }
    align_before(st->align, align_pair(st->align, from, to), from, e->from_ns, e->to_ns, e->source);
}

static void learn_near(void *arg, uint32_t node, int64_t ns, uint32_t other_node, int64_t other_ns)
{
    struct ranks_state *st = arg;
    uint32_t clock = st->clock_of[node], other = st->clock_of[other_node];
    if (clock != other && ties_by_collectives(st, clock, other))
        align_near(st->align, align_pair(st->align, clock, other), clock, ns, other_ns);
}

static void ranks_visit(struct ranks_state *st,
                        void (*before)(void *, const struct clock_constraint *), bool near)
{
    struct constraint_visitor visitor = {.before = before, .arg = st};
    constraints_visit_transports(st->trace, &st->nodes, &visitor);
    constraints_visit_nccl(st->trace, &st->nodes, &visitor);
    if (near)
        align_ties(st->align, st->tied);
    visitor.near = near ? learn_near : NULL;
    constraints_visit_collectives(st->join, &st->nodes, &visitor);
}

/* All calls of a process but its first and last hundredth: connections are made long before they
 * are used, and what is known that far off would be told of the whole. */
static void cover_transport(struct ranks_state *st, const struct net_transport *t)
{
    size_t n = t->transfers.n;
    if (n == 0)
        return;
    SCRATCH int64_t *times = mem_alloc(n * sizeof *times);
    for (size_t i = 0; i < n; i++)
        times[i] = t->transfers.at[i].start_ns;
    sort_i64(times, n);
    align_cover(st->align, st->clock_of[clock_node_of(&st->nodes, t->rank)], times[n / 100],
                times[n - 1 - n / 100]);
}

/* The iterations of ranks with a profile, the traffic of others. */
static void ranks_cover(struct ranks_state *st)
{
    for (uint32_t i = 0; i < st->nodes.n; i++) {
        if (st->nodes.at[i].rank_index == NO_ID)
            continue;
        const struct rank_build *rank = &st->join->ranks[st->nodes.at[i].rank_index];
        for (uint32_t s = 0; s < rank->steps.n; s++)
            align_cover(st->align, st->clock_of[i], rank->steps.at[s].start_ns,
                        rank->steps.at[s].end_ns);
    }
    for (uint32_t t = 0; t < st->trace->n_transports; t++)
        if (st->trace->transports[t].rank_index >= st->join->n_ranks)
            cover_transport(st, &st->trace->transports[t]);
}

static void ranks_solve(struct ranks_state *st)
{
    number_clocks(st);
    memset(st->sources, 0, st->nodes.n * sizeof *st->sources);
    memset(st->tied, 0, st->nodes.n * sizeof *st->tied);
    align_destroy(st->align);
    st->align = align_create(st->n_clocks);
    ranks_cover(st);
    for (uint32_t h = 0; h < st->n_hosts; h++)
        st->hosts[h].n_collective = st->hosts[h].n_against = 0;
    ranks_visit(st, ranks_learn, true);
    /* of clocks that differ by more than a collective takes, half of the pairs are out of order */
    for (uint32_t h = 0; h < st->n_hosts; h++)
        if (!st->hosts[h].one_kernel && st->hosts[h].n_against * 10 > st->hosts[h].n_collective)
            ranks_split(st, h);
    align_solve(st->align);
}

/* Contradictions between two clocks may come of taking several clocks for one. */
static void split_conflicts(struct ranks_state *st)
{
    const struct align_conflict *conflicts;
    uint32_t n = align_conflicts(st->align, &conflicts);
    for (uint32_t k = 0; k < n; k++) {
        bool by_collectives = conflicts[k].marks[0] == CONSTRAINT_FROM_COLLECTIVES ||
                              conflicts[k].marks[1] == CONSTRAINT_FROM_COLLECTIVES;
        for (uint32_t i = 0; i < st->nodes.n; i++) {
            uint32_t clock = st->clock_of[i];
            if ((clock == conflicts[k].from || clock == conflicts[k].to) &&
                !(by_collectives && st->hosts[st->host_of[i]].one_kernel))
                ranks_split(st, st->host_of[i]);
        }
    }
}

/* ---- what came out ---- */

#define WARN(st, ...)                                                                              \
    array_push(&(st)->join->clocks.warnings, arena_format(&(st)->join->clocks.arena, __VA_ARGS__))

static const char *name_method(const struct ranks_state *st, uint32_t clock, bool tied)
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
static const char *name_clock(struct ranks_state *st, uint32_t node, bool shared)
{
    const struct host *host = &st->hosts[st->host_of[node]];
    const char *name = st->nodes.at[node].host;
    struct arena *arena = &st->join->clocks.arena;
    const char *process = NET_PROCESS(st->nodes.at[node].rank);
    if (name[0] == '\0')
        return arena_format(arena, "%s", process);
    if (host->twice || (host->split && !shared))
        return arena_format(arena, "%.255s (%s)", name, process);
    return arena_format(arena, "%.255s", name);
}

static void write_clock(struct ranks_state *st, uint32_t c, const uint32_t *users, uint32_t n)
{
    struct clocks *clocks = &st->join->clocks;
    struct align_result is = st->align ? *align_result(st->align, c) : (struct align_result){0};
    uint32_t n_ranks = 0;
    int *ranks = arena_array(&clocks->arena, n, sizeof *ranks);
    struct dpro_clock_segment *own =
        arena_copy(&clocks->arena, is.segments, is.n_segments, sizeof *own);
    clocks->bounds[c] = (struct clock_bounds){
        arena_copy(&clocks->arena, is.bounds, is.n_bounds, sizeof *is.bounds), is.n_bounds};
    for (uint32_t i = 0; i < n; i++)
        if (st->nodes.at[users[i]].rank >= 0)
            ranks[n_ranks++] = st->nodes.at[users[i]].rank;
    clocks->at[c] = (struct dpro_clock){.host = name_clock(st, users[0], n > 1),
                                        .ranks = ranks,
                                        .n_ranks = n_ranks,
                                        .method = name_method(st, c, is.n_segments > 0),
                                        .segments = own,
                                        .n_segments = is.n_segments};
    st->maps[c] = (struct clock_map){own, is.n_segments};
}

static void write_clocks(struct ranks_state *st)
{
    struct clocks *clocks = &st->join->clocks;
    uint32_t *users = arena_array(&st->scratch, st->nodes.n, sizeof *users);
    clocks->at = arena_array(&clocks->arena, st->n_clocks, sizeof *clocks->at);
    clocks->bounds = arena_array(&clocks->arena, st->n_clocks, sizeof *clocks->bounds);
    st->maps = arena_array(&st->scratch, st->n_clocks, sizeof *st->maps);
    for (uint32_t c = 0; c < st->n_clocks; c++) {
        uint32_t n = 0;
        for (uint32_t i = 0; i < st->nodes.n; i++)
            if (st->clock_of[i] == c)
                users[n++] = i;
        write_clock(st, c, users, n);
    }
    clocks->n = st->n_clocks;
    clocks->alignment.reference = clocks->at[0].host;
}

static void write_maps(struct ranks_state *st)
{
    struct clocks *clocks = &st->join->clocks;
    uint32_t n_ranks = st->join->n_ranks, n_servers = st->join->n_servers;
    clocks->of_rank =
        arena_array(&clocks->arena, n_ranks + (size_t)n_servers, sizeof *clocks->of_rank);
    for (uint32_t i = 0; i < st->nodes.n; i++)
        if (st->nodes.at[i].rank_index != NO_ID)
            clocks->of_rank[st->nodes.at[i].rank_index] = st->maps[st->clock_of[i]];
    for (uint32_t k = n_ranks; k < n_ranks + n_servers; k++)
        clocks->of_rank[k] =
            st->maps[st->clock_of[clock_node_of(&st->nodes, st->join->ranks[k].trace->rank)]];
}

static void ranks_count(void *arg, const struct clock_constraint *e)
{
    struct ranks_state *st = arg;
    struct dpro_alignment *alignment = &st->join->clocks.alignment;
    uint32_t from = st->clock_of[e->from], to = st->clock_of[e->to];
    if (e->source == CONSTRAINT_FROM_COLLECTIVES && st->align && !ties_by_collectives(st, from, to))
        return;
    alignment->n_pairs++;
    alignment->violations_before += e->to_ns < e->from_ns;
    int64_t from_ns = clock_aligned(&st->maps[from], e->from_ns);
    int64_t to_ns = clock_aligned(&st->maps[to], e->to_ns);
    alignment->violations_after +=
        to_ns < from_ns && (uint64_t)from_ns - (uint64_t)to_ns > MAP_ROUNDING_NS;
}

static void warn_clocks(struct ranks_state *st)
{
    uint32_t n_untied = 0, first = NO_ID, n_rough = 0, first_rough = NO_ID;
    for (uint32_t c = st->n_clocks; c-- > 0;)
        if (st->maps[c].n == 0) {
            n_untied++;
            first = c;
        } else if (c > 0 && st->trace->n_transports > 0 &&
                   st->sources[c] == 1u << CONSTRAINT_FROM_COLLECTIVES) {
            n_rough++;
            first_rough = c;
        }
    if (n_rough > 0)
        WARN(st,
             "%u of %u clocks (first: that of %s) are known from collectives alone: no transport "
             "log has both ends of their ranks' connections; record the transport of every rank "
             "and server; addresses behind NAT, and logs of other runs, have no other end here",
             n_rough, st->n_clocks, st->join->clocks.at[first_rough].host);
    if (n_untied > 0)
        WARN(st,
             "%u of %u clocks (first: that of %s) can't be tied to that of %s, since "
             "nothing recorded went both ways between them: their times are used as "
             "recorded; record the transport of every rank and server",
             n_untied, st->n_clocks, st->join->clocks.at[first].host, st->join->clocks.at[0].host);
    for (uint32_t h = 0; h < st->n_hosts; h++)
        if (st->hosts[h].split)
            WARN(st,
                 "the processes on host '%s' contradict each other's times, so each of them gets "
                 "a clock of its own",
                 st->hosts[h].name[0] ? st->hosts[h].name : "one host");
}

static void warn_conflicts(struct ranks_state *st)
{
    const struct align_conflict *conflicts;
    uint32_t n = align_conflicts(st->align, &conflicts);
    if (n > 0)
        WARN(st,
             "the times of %s and %s contradict each other by %.3f ms, whatever their clocks are; "
             "%u such stretches are left out of the alignment; are all logs of one run, and did a "
             "clock step?",
             st->join->clocks.at[conflicts->from].host, st->join->clocks.at[conflicts->to].host,
             (double)conflicts->by_ns / 1e6, n);
}

/* What has been asked for clocks alone has no other answer. */
static void warn_alone(struct ranks_state *st)
{
    if (st->nodes.n == 1)
        WARN(st,
             "these are %s's times alone: there is nothing to compare its clock with; add the "
             "other ranks' logs or profiles",
             NET_PROCESS(st->nodes.at[0].rank));
}

void clocks_align(struct join *join, const struct dpro_trace *trace,
                  const struct dpro_job_options *options)
{
    struct ranks_state st = {.join = join, .trace = trace};
    clock_nodes_list(trace, join->n_ranks, &st.nodes);
    st.sources = arena_array(&st.scratch, st.nodes.n, sizeof *st.sources);
    st.tied = arena_array(&st.scratch, st.nodes.n, sizeof *st.tied);
    find_hosts(&st);
    if (options->no_align)
        number_clocks(&st);
    for (uint32_t before = NO_ID; before != st.n_split && !options->no_align;) {
        before = st.n_split;
        ranks_solve(&st);
        split_conflicts(&st);
    }
    write_clocks(&st);
    write_maps(&st);
    ranks_visit(&st, ranks_count, false);
    if (options->clocks_only)
        warn_alone(&st);
    if (st.align) {
        warn_clocks(&st);
        warn_conflicts(&st);
    }
    align_destroy(st.align);
    array_fini(&st.nodes);
    arena_fini(&st.scratch);
}
