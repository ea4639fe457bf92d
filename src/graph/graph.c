/* The public functions that read a finished graph. They copy out one op or lend an array. None can
 * fail; an id out of range gives an empty answer. */
#include "graph/graph.h"

#include "ingest/rank_json.h"
#include "ingest/transport/transport.h"

#include <assert.h>

const struct column_place graph_op_columns[] = {GRAPH_OPS(COLUMN_PLACE_OF, struct dpro_graph)};

const char *dpro_op_kind_name(enum dpro_op_kind kind)
{
    static const char *const names[DPRO_N_OP_KINDS] = {
        "FW",     "BW",   "UPDATE",     "INPUT",  "SEND", "RECV", "PUSH",   "PULL",
        "REDUCE", "COPY", "COLLECTIVE", "LAUNCH", "IN",   "OUT",  "BARRIER"};
    return (unsigned)kind < DPRO_N_OP_KINDS ? names[kind] : NULL;
}

void dpro_graph_destroy(struct dpro_graph *graph)
{
    if (!graph)
        return;
    mem_free(graph->warnings.at); /* the texts are the arena's */
    array_fini(&graph->left_out);
    clocks_fini(&graph->clocks);
    strtab_fini(&graph->names);
    arena_fini(&graph->arena);
    mem_free(graph);
}

uint32_t dpro_graph_n_ops(const struct dpro_graph *graph)
{
    return graph->n_ops;
}

uint32_t dpro_graph_n_edges(const struct dpro_graph *graph)
{
    return graph->row[graph->n_ops] + graph->next_row[graph->n_ops];
}

uint32_t dpro_graph_n_devices(const struct dpro_graph *graph)
{
    return graph->n_devices;
}

void dpro_process_name(char out[DPRO_PROCESS_NAME_MAX], int rank)
{
    _Static_assert((int)DPRO_PROCESS_NAME_MAX == (int)NET_PROCESS_TEXT, "one and the same");
    net_process_format(out, rank);
}

uint32_t dpro_graph_n_ranks(const struct dpro_graph *graph)
{
    return graph->n_ranks;
}

struct dpro_op dpro_graph_op(const struct dpro_graph *graph, dpro_op_id op)
{
    if (op >= graph->n_ops)
        return (struct dpro_op){.id = DPRO_NO_OP,
                                .kind = DPRO_N_OP_KINDS,
                                .rank = -1,
                                .device = DPRO_NO_DEVICE,
                                .name = "",
                                .tensor = ""};
    return (struct dpro_op){
        .id = op,
        .kind = graph->kind[op],
        .rank = graph->ranks[graph->rank[op]].rank,
        .device = graph->device[op],
        .name = strtab_get(&graph->names, graph->name[op]),
        .dur_ns = graph->dur_ns[op],
        .gap_ns = graph->gap_ns[op],
        .seen_start_ns = graph->seen_start_ns ? graph->seen_start_ns[op] : 0,
        .seen_dur_ns = graph->seen_dur_ns ? graph->seen_dur_ns[op] : 0,
        .size_bytes = graph->size_bytes ? graph->size_bytes[op] : 0,
        .transaction = graph->transaction ? graph->transaction[op] : 0,
        .tensor = graph->tensor ? strtab_get(&graph->names, graph->tensor[op]) : "",
    };
}

struct dpro_device dpro_graph_device(const struct dpro_graph *graph, dpro_device_id device)
{
    if (device >= graph->n_devices)
        return (struct dpro_device){.rank = -1, .name = ""};
    const struct graph_device *d = &graph->devices[device];
    return (struct dpro_device){d->kind, d->rank, strtab_get(&graph->names, d->name)};
}

const dpro_op_id *dpro_graph_successors(const struct dpro_graph *graph, dpro_op_id op, int next,
                                        uint32_t *n)
{
    const uint32_t *row = next ? graph->next_row : graph->row;
    const uint32_t *succ = next ? graph->next_succ : graph->succ;
    *n = 0;
    if (op >= graph->n_ops)
        return NULL;
    *n = row[op + 1] - row[op];
    return *n ? succ + row[op] : NULL;
}

const int64_t *dpro_graph_measured_ns(const struct dpro_graph *graph, uint32_t *n_iterations)
{
    /* a graph that was given a mean only has one measured value and no samples */
    *n_iterations = !graph->measured_ns ? 0 : graph->n_samples ? graph->n_samples : 1;
    return graph->measured_ns;
}

bool graph_ranks_meet(const struct dpro_graph *g)
{
    SCRATCH bool *met = mem_array((size_t)g->n_ranks + g->n_servers + 1, sizeof *met);
    uint32_t n_met = 1, before = 0;
    met[0] = true;
    while (n_met > before) {
        before = n_met;
        EACH_OF (const struct graph_collective, c, g->collectives, g->n_collectives) {
            const struct graph_member *members = &g->members[c->first_member];
            bool any = false;
            for (uint32_t m = 0; m < c->n_members; m++)
                any |= met[g->rank[members[m].arrival]];
            for (uint32_t m = 0; m < c->n_members && any; m++) {
                uint32_t rank = g->rank[members[m].arrival];
                n_met += !met[rank] && rank < g->n_ranks;
                met[rank] = true;
            }
        }
    }
    return n_met >= g->n_ranks;
}

int64_t dpro_clock_aligned(const struct dpro_clock *clock, int64_t local_ns)
{
    struct clock_map map = {clock->segments, clock->n_segments};
    return clock_aligned(&map, local_ns);
}

uint32_t dpro_graph_n_clocks(const struct dpro_graph *graph)
{
    return graph->clocks.n;
}

struct dpro_clock dpro_graph_clock(const struct dpro_graph *graph, uint32_t clock)
{
    if (clock >= graph->clocks.n)
        return (struct dpro_clock){.host = "", .method = "none"};
    return graph->clocks.at[clock];
}

struct dpro_alignment dpro_graph_alignment(const struct dpro_graph *graph)
{
    struct dpro_alignment alignment = graph->clocks.alignment;
    if (!alignment.reference)
        alignment.reference = "";
    return alignment;
}

const struct dpro_clock_bound *dpro_graph_clock_bounds(const struct dpro_graph *graph,
                                                       uint32_t clock, uint32_t *n)
{
    *n = clock < graph->clocks.n && graph->clocks.bounds ? graph->clocks.bounds[clock].n : 0;
    return *n ? graph->clocks.bounds[clock].at : NULL;
}

uint32_t dpro_graph_n_collectives(const struct dpro_graph *graph)
{
    return graph->n_collectives;
}

struct dpro_collective dpro_graph_collective(const struct dpro_graph *graph, uint32_t index)
{
    if (index >= graph->n_collectives)
        return (struct dpro_collective){.pattern = ""};
    const struct graph_collective *c = &graph->collectives[index];
    return (struct dpro_collective){.kind = c->kind,
                                    .n_ranks = c->n_members,
                                    .size_bytes = c->size_bytes,
                                    .n_messages = c->n_messages,
                                    .pattern = c->pattern ? c->pattern : "",
                                    .n_chunks = c->n_chunks,
                                    .n_channels = c->n_channels};
}

int dpro_graph_is_sharded(const struct dpro_graph *graph)
{
    for (uint32_t op = 0; graph->gather && op < graph->n_ops; op++)
        if (graph->gather[op])
            return 1;
    return 0;
}

size_t dpro_graph_n_warnings(const struct dpro_graph *graph)
{
    return graph->warnings.n;
}

const char *dpro_graph_warning(const struct dpro_graph *graph, size_t index)
{
    return index < graph->warnings.n ? graph->warnings.at[index] : NULL;
}

static void graph_shorten(int64_t *times_ns, size_t at, int64_t by_ns)
{
    if (times_ns)
        times_ns[at] -= times_ns[at] < by_ns ? times_ns[at] : by_ns;
}

struct dpro_unprofiled_iterations dpro_graph_unprofiled_iterations(const struct dpro_graph *g)
{
    return g->unprofiled_iterations;
}

struct dpro_pace dpro_graph_pace(const struct dpro_graph *g)
{
    return g->pace;
}

struct dpro_steps dpro_graph_steps(const struct dpro_graph *g)
{
    return g->steps.found_by ? g->steps : (struct dpro_steps){.found_by = "nothing", .name = ""};
}

size_t dpro_graph_n_left_out(const struct dpro_graph *g)
{
    return g->left_out.n;
}

struct dpro_left_out dpro_graph_left_out(const struct dpro_graph *g, size_t index)
{
    return index < g->left_out.n ? g->left_out.at[index] : (struct dpro_left_out){0, ""};
}

int64_t dpro_graph_profiler_op_ns(const struct dpro_graph *g)
{
    int64_t sum = 0;
    for (uint32_t r = 0; g->profiler && r < g->n_ranks; r++)
        sum += g->profiler[r].op_ns;
    return g->n_ranks ? sum / g->n_ranks : 0;
}

double graph_tracing_ratio(const struct dpro_graph *g)
{
    enum { FEWEST = 5, LEAST_PCT = 2, MOST_TIMES = 2 };
    uint32_t n;
    const int64_t *ns = dpro_graph_measured_ns(g, &n);
    int64_t own_ns = g->unprofiled.median_ns;
    if (!g->in_session || g->profiled || g->is_scaled || g->unprofiled.n_steps < FEWEST || n == 0 ||
        !dpro_graph_steps_tell(g))
        return 1;
    SCRATCH int64_t *sorted = mem_alloc(n * sizeof *sorted);
    memcpy(sorted, ns, n * sizeof *sorted);
    int64_t traced_ns = stats_median_i64(sorted, n);
    return own_ns + own_ns / 100 * LEAST_PCT < traced_ns && traced_ns < MOST_TIMES * own_ns
               ? (double)own_ns / (double)traced_ns
               : 1;
}

static void scale_times(int64_t *times_ns, size_t n, double ratio)
{
    for (size_t i = 0; i < n && times_ns; i++)
        times_ns[i] = llround(ratio * (double)times_ns[i]);
}

static void graph_scale(struct dpro_graph *g, double ratio)
{
    size_t n = g->n_ops, all = n * g->n_samples;
    if (ratio == 1)
        return;
    scale_times(g->dur_ns, n, ratio);
    scale_times(g->gap_ns, n, ratio);
    scale_times(g->lead_dur_ns, n, ratio);
    scale_times(g->lead_gap_ns, n, ratio);
    scale_times(g->sample_dur_ns, all, ratio);
    scale_times(g->sample_gap_ns, all, ratio);
    g->is_scaled = true;
}

void dpro_graph_take_out_profiler(struct dpro_graph *g)
{
    graph_scale(g, graph_tracing_ratio(g));
    for (uint32_t op = 0; op < g->n_ops && g->profiled; op++) {
        const struct profiler_cost *cost = &g->profiler[g->rank[op]];
        int64_t within = cost->op_ns * (g->profiled[op] & PROFILED_WITHIN) / 2,
                before = cost->op_ns * (g->profiled[op] >> PROFILED_BEFORE) / 2;
        within += g->profiled[op] & PROFILED_LAUNCH ? cost->launch_ns : 0;
        within += g->profiled[op] & PROFILED_CALL ? cost->call_ns : 0;
        if (within == 0 && before == 0)
            continue;
        graph_shorten(g->dur_ns, op, within);
        graph_shorten(g->gap_ns, op, before);
        graph_shorten(g->lead_dur_ns, op, within);
        graph_shorten(g->lead_gap_ns, op, before);
        for (uint32_t s = 0; s < g->n_samples; s++) {
            graph_shorten(g->sample_dur_ns, (size_t)s * g->n_ops + op, within);
            graph_shorten(g->sample_gap_ns, (size_t)s * g->n_ops + op, before);
        }
    }
    g->profiled = NULL;
    g->profiler = NULL;
}

int64_t graph_all_but_latest(const int64_t *ends, uint32_t n, uint32_t spare)
{
    int64_t latest[UINT8_MAX + 1]; /* descending */
    uint32_t kept = 0;
    assert(spare <= UINT8_MAX);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = kept;
        while (at > 0 && latest[at - 1] < ends[i])
            at--;
        if (at > spare)
            continue;
        kept += kept <= spare;
        for (uint32_t k = kept - 1; k > at; k--)
            latest[k] = latest[k - 1];
        latest[at] = ends[i];
    }
    return kept > spare ? latest[spare] : 0;
}

bool graph_has_shared_links(const struct dpro_graph *graph)
{
    for (uint32_t d = 0; d < graph->n_devices; d++)
        if (graph->devices[d].n_sharing > 0)
            return true;
    return false;
}

bool graph_runs_ahead(const struct dpro_graph *graph)
{
    bool ahead = false;
    for (uint32_t r = 0; r < graph->n_ranks; r++)
        ahead |= graph->ranks[r].on_device;
    return ahead;
}

int dpro_graph_steps_tell(const struct dpro_graph *graph)
{
    enum { AGREE_PCT = 2 };
    struct dpro_pace pace = dpro_graph_pace(graph);
    int64_t apart = pace.device_ns - pace.marks_ns;
    return pace.n_ranks == 0 || (apart < 0 ? -apart : apart) <= pace.device_ns / 100 * AGREE_PCT;
}

void graph_each_message(const struct dpro_graph *g,
                        void (*do_it)(void *arg, dpro_op_id send, dpro_op_id receive), void *arg)
{
    SCRATCH struct map sends = {0};
    for (int receives = 0; receives < 2; receives++)
        for (uint32_t r = 0; r < g->n_ranks; r++) {
            dpro_op_id end = g->ranks[r].first_op + g->ranks[r].n_ops;
            for (dpro_op_id op = end - g->ranks[r].n_message_ops; op < end; op++) {
                uint64_t send;
                if (!receives && g->kind[op] == DPRO_OP_SEND)
                    map_set(&sends, g->transaction[op], op);
                else if (receives && g->kind[op] == DPRO_OP_RECV &&
                         map_get(&sends, g->transaction[op], &send))
                    do_it(arg, (dpro_op_id)send, op);
            }
        }
}

uint32_t graph_module_of(const struct dpro_graph *g, uint32_t op)
{
    uint32_t rank = g->rank[op];
    if (!g->memory || rank >= g->n_ranks)
        return MEMORY_NONE;
    const struct graph_memory *memory = &g->memory[rank];
    uint32_t at = op - g->ranks[rank].first_op;
    uint32_t call = at < memory->n_op_calls ? memory->op_calls[at] : MEMORY_NONE;
    return call == MEMORY_NONE ? MEMORY_NONE : memory->calls[call / 2].module;
}

const struct slow_kind *graph_slow_kind(const struct dpro_graph *g, const struct grown_time *grown)
{
    return grown->is_gap
               ? NULL
               : slow_kind_of(grown->is_gpu ? SLOW_KERNELS : strtab_get(&g->names, grown->name));
}
