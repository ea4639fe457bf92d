/* Writes the joined ranks into one graph: devices, ops, edges, names. */

#include "graph/builder.h"
#include "graph/global/assembly.h"

/* ---- devices ---- */

static const char *device_name(const struct assembly *a, const struct trace_rank *rank,
                               const struct graph_device *device, char *text, size_t size)
{
    if (rank->rank < 0)
        return "server thread";
    const struct trace_track *track = &rank->tracks[device->name];
    const char *name = strtab_get(&a->trace->names, track->name);
    if (device->kind == DPRO_DEVICE_GPU_STREAM)
        snprintf(text, size, "GPU %" PRIu64 " stream %" PRId64, track->pid, track->id);
    else if (track->serial)
        snprintf(text, size, "%.120s", name);
    else if (track->posted)
        snprintf(text, size, "sends and receives of thread %" PRId64, ~track->id);
    else if (device->kind == DPRO_DEVICE_COMM_THREAD)
        snprintf(text, size, "communication thread %" PRId64, track->id);
    else if (*name && strpbrk(name, "0123456789")) /* "thread 5114 (python)" tells threads apart */
        snprintf(text, size, "%.120s", name);
    else
        snprintf(text, size, "thread %" PRId64 "%s%.80s", track->id, *name ? " " : "", name);
    return text;
}

static void add_devices(struct assembly *a, struct graph_builder *builder)
{
    char text[160];
    EACH_OF (const struct rank_build, rank, a->join->ranks, assembly_n_processes(a))
        EACH (const struct graph_device, device, rank->devices)
            graph_builder_add_device(builder, device->kind, rank->trace->rank,
                                     device_name(a, rank->trace, device, text, sizeof text));
    EACH (const struct assembly_line, line, a->lines) {
        const struct link *link = &a->messages->links.at[line->direction / 2];
        bool in = line->direction % 2;
        int length = snprintf(text, sizeof text, "link %s, %s", link->name, in ? "in" : "out");
        if (line->n_sharing > 1)
            snprintf(text + length, sizeof text - (size_t)length, ", %s to %s",
                     NET_PROCESS(a->join->ranks[line->from].trace->rank),
                     NET_PROCESS(a->join->ranks[line->to].trace->rank));
        graph_builder_add_device(builder, in ? DPRO_DEVICE_LINK_RX : DPRO_DEVICE_LINK_TX,
                                 a->join->ranks[link->rank].trace->rank, text);
    }
}

/* ---- ops ---- */

static const struct local_tensor *tensor_of(const struct rank_build *rank, uint32_t op,
                                            size_t *index)
{
    if (rank->tensors.n == 0 || op < rank->tensors.at[0].in)
        return NULL;
    *index = (op - rank->tensors.at[0].in) / 2; /* made in pairs, in order */
    return *index < rank->tensors.n ? &rank->tensors.at[*index] : NULL;
}

static void add_op(struct assembly *a, struct graph_builder *builder, uint32_t r, uint32_t o)
{
    const struct rank_build *rank = &a->join->ranks[r];
    const struct local_op *op = &rank->ops.at[o];
    const char *range = strtab_get(&a->trace->names, op->range ? op->range : op->caller);
    size_t index;
    const struct local_tensor *tensor = o >= rank->n_timed ? tensor_of(rank, o, &index) : NULL;
    struct graph_op row = {.kind = op->kind,
                           .phase = op->phase,
                           .flags = op->flags,
                           .spare = op->spare,
                           .pass = op->pass,
                           .profiled = assembly_knows_profiler(rank) ? op->profiled : 0,
                           .device = op->device == NO_ID ? DPRO_NO_DEVICE
                                                         : a->first_device[r] + op->device,
                           .size_bytes = op->size_bytes};
    if (o == rank->boundary)
        row.name = strtab_format(a->names, "iteration boundary");
    else if (op->spare > 0)
        row.name = strtab_format(a->names, "a communication thread is free");
    if (r >= a->join->n_ranks) {
        const struct joined *joined =
            servers_name_op(a->servers, r - a->join->n_ranks, o, a->names, &row.name);
        row.tensor = assembly_name_carried(a, &a->join->ranks[joined->rank], joined->collective);
    }
    if (tensor) {
        row.tensor = assembly_name_tensor(a, rank, tensor, index);
        row.name = strtab_format(a->names, "%s %s", op->kind == DPRO_OP_IN ? "In" : "Out",
                                 strtab_get(a->names, row.tensor));
    } else if (op->collective != NO_ID) {
        row.tensor = assembly_name_carried(a, rank, op->collective);
        if (op->flags & GRAPH_OP_ARRIVAL)
            row.name =
                strtab_format(a->names, "arrival at %s",
                              dpro_collective_kind_name(rank->collectives.at[op->collective].kind));
    }
    if (op->range && op->caller)
        row.where = strtab_format(a->names, "%.99s in %.99s",
                                  strtab_get(&a->trace->names, op->caller), range);
    else
        row.where = strtab_format(a->names, "%.199s", range);
    row.name = row.name ?: strtab_copy(a->names, &a->trace->names, op->name);
    graph_builder_add(builder, rank->trace->rank, &row);
}

static void add_message_op(struct assembly *a, struct graph_builder *builder, uint32_t r,
                           uint32_t op)
{
    static const enum dpro_op_kind kinds[] = {DPRO_OP_LAUNCH, DPRO_OP_SEND, DPRO_OP_RECV};
    static const char *const names[2][N_MESSAGE_OPS] = {
        {"call that sends to", "send to", "receive from"},
        {"call that sends ready message to", "ready message to", "ready message from"}};
    enum message_op as = MESSAGE_CALL;
    uint32_t m = assembly_message(a, r, op, &as);
    const struct message *message = &a->messages->all.at[m];
    const struct joined *joined = &a->join->joined.at[message->joined];
    const struct member *members = joined_members(a->join, joined);
    bool receives = assembly_member_of(message, as) == message->to;
    uint32_t other = receives ? message->from : message->to;
    uint32_t worker = message->from < joined->n_members ? message->from : message->to;
    const struct rank_build *rank = &a->join->ranks[r];
    const char *does =
        as == MESSAGE_CALL && receives ? "call that sends, of" : names[message->is_ready][as];
    const char *with =
        other < joined->n_members && members[other].unlogged && joined->n_unlogged > 1
            ? "a rank without a log"
            : NET_PROCESS(a->join->ranks[joined_rank(a->join, joined, other)].trace->rank);
    struct graph_op row = {.kind = (uint8_t)kinds[as],
                           .phase = DPRO_OP_BARRIER,
                           .device = DPRO_NO_DEVICE,
                           .name = strtab_format(a->names, "%s %s", does, with),
                           .tensor = assembly_name_carried(a, &a->join->ranks[members[worker].rank],
                                                           members[worker].collective)};
    if (as != MESSAGE_CALL) {
        if (joined->has_servers)
            row.kind = message->to < joined->n_members ? DPRO_OP_PULL : DPRO_OP_PUSH;
        row.phase = DPRO_OP_COLLECTIVE;
        row.size_bytes = message->size_bytes;
        row.device = assembly_line_device(a, a->line_of[2 * m + (as == MESSAGE_RECV)]);
        row.transaction = a->join->joined.n + m + 1; /* those before are the collectives' */
    }
    graph_builder_add(builder, rank->trace->rank, &row);
}

/* The op that begins a collective's transfer on all its ranks. */
static void add_barrier(struct assembly *a, struct graph_builder *builder,
                        const struct joined *joined)
{
    const char *kind = dpro_collective_kind_name(JOIN_PART(a->join, joined)->kind);
    struct graph_op barrier = {.kind = DPRO_OP_BARRIER,
                               .phase = DPRO_OP_BARRIER,
                               .device = DPRO_NO_DEVICE,
                               .name = strtab_format(a->names, "all at %s", kind)};
    graph_builder_add(builder, a->join->ranks[joined->rank].trace->rank, &barrier);
}

static void add_ops(struct assembly *a, struct graph_builder *builder)
{
    const struct join *join = a->join;
    uint32_t *joined_at = arena_alloc(&a->scratch, a->n_ops * sizeof *joined_at); /* by barrier */
    for (size_t j = 0; j < join->joined.n; j++)
        if (a->barriers[j] != DPRO_NO_OP)
            joined_at[a->barriers[j]] = (uint32_t)j;
    for (uint32_t r = 0; r < assembly_n_processes(a); r++) {
        uint32_t n = (uint32_t)join->ranks[r].ops.n, op = a->first_op[r] + n;
        for (uint32_t o = 0; o < n; o++)
            add_op(a, builder, r, o);
        for (; op < a->first_message[r]; op++)
            add_barrier(a, builder, &join->joined.at[joined_at[op]]);
        for (; op < a->first_op[r + 1]; op++)
            add_message_op(a, builder, r, op);
    }
}

/* ---- all ---- */

/* A graph of the ops and edges, which are none where only clocks are asked for. */
static void create_graph(struct assembly *a)
{
    struct graph_builder *builder = graph_builder_create();
    a->names = graph_builder_names(builder);
    if (a->n_ops > 0) {
        add_devices(a, builder);
        add_ops(a, builder);
    }
    EACH (const struct local_edge, edge, a->edges)
        graph_builder_add_edge(builder, edge->from, edge->to, edge->next);
    a->graph = graph_builder_finish(builder);
}

static void hand_over(struct assembly *a, struct dpro_graph **graph)
{
    a->graph->clocks = a->join->clocks;
    a->join->clocks = (struct clocks){0};
    *graph = a->graph;
}

void assemble_graph(struct job *job, const struct dpro_trace *trace,
                    const struct dpro_job_options *options, struct dpro_graph **graph)
{
    struct join *join = &job->join;
    struct assembly a = {.join = join,
                         .messages = &job->messages,
                         .servers = &job->servers,
                         .dimensions = &job->dimensions,
                         .trace = trace,
                         .options = options,
                         .n_samples = join->ranks[0].n_samples,
                         .first_sample = join->choice.has_lead};
    assembly_number_ops(&a);
    assembly_find_lines(&a);
    assembly_order(&a);
    create_graph(&a);
    assembly_fill(&a);
    assembly_warn(&a);
    a.graph->unprofiled = dpro_trace_unprofiled(trace);
    a.graph->unprofiled_ones =
        arena_copy(&a.graph->arena, &trace->unprofiled_ones, 1, sizeof trace->unprofiled_ones);
    a.graph->unprofiled_iterations = job->unprofiled_iterations;
    hand_over(&a, graph);
    arena_fini(&a.scratch);
    FREE_ALL(&a.lines, &a.edges);
}

void assemble_clocks(struct join *join, const struct dpro_job_options *options,
                     struct dpro_graph **graph)
{
    struct assembly a = {.join = join, .options = options};
    create_graph(&a);
    assembly_warn_clocks(&a);
    hand_over(&a, graph);
}
