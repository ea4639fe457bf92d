/* graph/global/assemble.c: the joined ranks as one graph: ops get their numbers, edges their order,
 * and all that was learnt about them is written down. */
#include "graph/global/assemble.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/error.h"
#include "base/map.h"
#include "base/memory.h"
#include "base/sort.h"
#include "graph/global/assembly.h"
#include "graph/servers/exchanges.h"

enum { TENSOR_NAME = 256 }; /* longer ones are cut */

/* ---- numbering ---- */

/* Whose a message's op is: of its members, NO_ID where there is no such op. */
static uint32_t member_of_message(const struct message *message, enum message_op as)
{
    if (as == MESSAGE_CALL)
        return message->tx == NO_ID ? message->to : message->from;
    if (as == MESSAGE_SEND)
        return message->tx == NO_ID ? NO_ID : message->from;
    return message->rx == NO_ID ? NO_ID : message->to;
}

/* The rank of a message's op; NO_ID: there is none. */
static uint32_t rank_of_message(const struct join *join, const struct message *message,
                                enum message_op as)
{
    uint32_t member = member_of_message(message, as);
    return member == NO_ID ? NO_ID : joined_rank(join, &join->joined.at[message->joined], member);
}

/* Gives the ops of messages their numbers, rank by rank in the order of the messages; n_ops[] is
 * how many each rank has. */
static int number_messages(struct assembly *a, const uint32_t *n_ops)
{
    const struct join *join = a->join;
    size_t n = a->messages->all.n * N_MESSAGE_OPS, first = 0;
    uint32_t n_processes = assembly_n_processes(a);
    uint32_t *next = mem_array(n_processes + (size_t)1, sizeof *next);
    a->message_ops = mem_alloc((n + 1) * sizeof *a->message_ops);
    a->message_of = mem_alloc((n + 1) * sizeof *a->message_of);
    a->first_of = mem_alloc((n_processes + (size_t)1) * sizeof *a->first_of);
    if (!next || !a->message_ops || !a->message_of || !a->first_of) {
        mem_free(next);
        return -1;
    }
    for (uint32_t r = 0; r < n_processes; r++) {
        a->first_of[r] = (uint32_t)first;
        first += n_ops[r];
    }
    for (size_t place = 0; place < n; place++) {
        const struct message *message = &a->messages->all.at[place / N_MESSAGE_OPS];
        uint32_t r = rank_of_message(join, message, (enum message_op)(place % N_MESSAGE_OPS));
        a->message_ops[place] = DPRO_NO_OP;
        if (r == NO_ID)
            continue;
        a->message_of[a->first_of[r] + next[r]] = (uint32_t)place;
        a->message_ops[place] = a->first_message[r] + next[r]++;
    }
    mem_free(next);
    return 0;
}

/* A barrier belongs to the first member's rank: each rank's ops are followed by the barriers it
 * keeps, and these by the ops of its messages. */
static int number_ops(struct assembly *a)
{
    struct join *join = a->join;
    uint32_t n_processes = assembly_n_processes(a);
    uint32_t *n_barriers = mem_array(n_processes + (size_t)1, sizeof *n_barriers);
    a->first_op = mem_array(n_processes + (size_t)1, sizeof *a->first_op);
    a->first_device = mem_array(n_processes + (size_t)1, sizeof *a->first_device);
    a->barriers = mem_alloc((join->joined.n + 1) * sizeof *a->barriers);
    a->first_message = mem_array(n_processes + (size_t)1, sizeof *a->first_message);
    uint32_t *n_messages = mem_array(n_processes + (size_t)1, sizeof *n_messages);
    if (!n_barriers || !a->first_op || !a->first_device || !a->barriers || !a->first_message ||
        !n_messages) {
        mem_free(n_barriers);
        mem_free(n_messages);
        return -1;
    }
    for (size_t m = 0; m < a->messages->all.n; m++)
        for (int as = 0; as < N_MESSAGE_OPS; as++) {
            uint32_t r = rank_of_message(join, &a->messages->all.at[m], (enum message_op)as);
            if (r != NO_ID)
                n_messages[r]++;
        }
    for (size_t j = 0; j < join->joined.n; j++)
        n_barriers[join->joined.at[j].rank] += join->joined.at[j].n_members > 1;
    uint64_t n_ops = 0, n_devices = 0;
    for (uint32_t r = 0; r < n_processes; r++) {
        a->first_op[r] = (uint32_t)n_ops;
        a->first_device[r] = (uint32_t)n_devices;
        n_ops += join->ranks[r].ops.n + n_barriers[r];
        a->first_message[r] = (uint32_t)n_ops;
        n_ops += n_messages[r];
        n_devices += join->ranks[r].devices.n;
        if (n_ops >= UINT32_MAX / 2)
            break;
    }
    a->n_ops = (uint32_t)n_ops;
    a->first_op[n_processes] = a->n_ops;
    a->first_device[n_processes] = (uint32_t)n_devices;
    memset(n_barriers, 0, n_processes * sizeof *n_barriers);
    for (size_t j = 0; j < join->joined.n; j++) {
        const struct joined *joined = &join->joined.at[j];
        a->barriers[j] = DPRO_NO_OP;
        if (joined->n_members > 1)
            a->barriers[j] = a->first_op[joined->rank] + (uint32_t)join->ranks[joined->rank].ops.n +
                             n_barriers[joined->rank]++;
    }
    int status = n_ops >= UINT32_MAX / 2 ? -1 : number_messages(a, n_messages);
    mem_free(n_barriers);
    mem_free(n_messages);
    return status;
}

/* ---- the graph ---- */

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
    else if (device->kind == DPRO_DEVICE_COMM_THREAD)
        snprintf(text, size, "communication thread %" PRId64, track->id);
    else if (*name && strpbrk(name, "0123456789")) /* "thread 5114 (python)" tells threads apart */
        snprintf(text, size, "%.120s", name);
    else
        snprintf(text, size, "thread %" PRId64 "%s%.80s", track->id, *name ? " " : "", name);
    return text;
}

static int add_devices(struct assembly *a, struct dpro_graph_builder *builder)
{
    char text[160];
    for (uint32_t r = 0; r < assembly_n_processes(a); r++) {
        const struct rank_build *rank = &a->join->ranks[r];
        for (size_t d = 0; d < rank->devices.n; d++) {
            const struct graph_device *device = &rank->devices.at[d];
            if (dpro_graph_add_device(builder, device->kind, rank->trace->rank,
                                      device_name(a, rank->trace, device, text, sizeof text)) < 0)
                return -1;
        }
    }
    for (size_t l = 0; l < a->lines.n; l++) {
        const struct line *line = &a->lines.at[l];
        const struct link *link = &a->messages->links.at[line->direction / 2];
        bool in = line->direction % 2;
        int length = snprintf(text, sizeof text, "link %s, %s", link->name, in ? "in" : "out");
        if (line->n_sharing > 1) {
            char from[NET_PROCESS_TEXT], to[NET_PROCESS_TEXT];
            net_process_format(from, a->join->ranks[line->from].trace->rank);
            net_process_format(to, a->join->ranks[line->to].trace->rank);
            snprintf(text + length, sizeof text - (size_t)length, ", %s to %s", from, to);
        }
        if (dpro_graph_add_device(builder, in ? DPRO_DEVICE_LINK_RX : DPRO_DEVICE_LINK_TX,
                                  a->join->ranks[link->rank].trace->rank, text) < 0)
            return -1;
    }
    return 0;
}

static const struct local_tensor *tensor_of(const struct rank_build *rank, uint32_t op,
                                            size_t *index)
{
    if (rank->tensors.n == 0 || op < rank->tensors.at[0].in)
        return NULL;
    *index = (op - rank->tensors.at[0].in) / 2; /* made in pairs, in order */
    return *index < rank->tensors.n ? &rank->tensors.at[*index] : NULL;
}

/* A parameter's name where it is known. */
static void name_tensor(const struct assembly *a, const struct local_tensor *tensor, size_t index,
                        char text[TENSOR_NAME])
{
    if (tensor->name && tensor->output) /* as TensorFlow writes it */
        snprintf(text, TENSOR_NAME, "%.240s:%u", strtab_get(&a->trace->names, tensor->name),
                 tensor->output);
    else if (tensor->name)
        snprintf(text, TENSOR_NAME, "%s", strtab_get(&a->trace->names, tensor->name));
    else
        snprintf(text, TENSOR_NAME, "gradient %zu", index);
}

/* What a collective carries: its bucket by its parameters, its unit by its name, else its number.
 */
static void name_carried(const struct assembly *a, const struct rank_build *rank,
                         uint32_t collective, char text[TENSOR_NAME])
{
    const struct local_collective *c = &rank->collectives.at[collective];
    const struct strtab *names = &a->trace->names;
    if (c->bucket == NO_ID && build_is_exchange(rank, c->arrival)) {
        snprintf(text, TENSOR_NAME, "%s", strtab_get(names, c->group));
        return;
    }
    if (c->bucket == NO_ID) {
        snprintf(text, TENSOR_NAME, "%s %u", c->kind, collective);
        return;
    }
    const struct recording *recording = rank->trace->recording;
    const struct recorded_bucket *bucket = &recording->buckets.at[c->bucket];
    const struct recorded_model *model = &recording->models.at[bucket->model];
    if (model->n_units > 0 && c->bucket >= model->first_unit) {
        const char *name = strtab_get(names, bucket->name);
        snprintf(text, TENSOR_NAME, "unit %s", *name ? name : strtab_get(names, model->name));
        return;
    }
    uint32_t first = recording->members.at[bucket->first]; /* one that fits is not empty */
    int len = snprintf(text, TENSOR_NAME, "bucket %u: %.200s", c->bucket - model->first_bucket,
                       strtab_get(names, recording->parameters.at[first].name));
    if (bucket->n > 1)
        snprintf(text + len, (size_t)(TENSOR_NAME - len), " and %u more", bucket->n - 1);
}

static int add_op(struct assembly *a, struct dpro_graph_builder *builder, uint32_t r, uint32_t o)
{
    const struct rank_build *rank = &a->join->ranks[r];
    const struct local_op *op = &rank->ops.at[o];
    char tensor_name[TENSOR_NAME] = "", text[TENSOR_NAME + 8];
    size_t index;
    const struct local_tensor *tensor = o >= rank->n_timed ? tensor_of(rank, o, &index) : NULL;
    struct dpro_op out = {.kind = op->kind,
                          .rank = rank->trace->rank,
                          .device = op->device == NO_ID ? DPRO_NO_DEVICE
                                                        : a->first_device[r] + op->device,
                          .name = strtab_get(&a->trace->names, op->name),
                          .size_bytes = op->size_bytes,
                          .tensor = tensor_name};
    if (o == rank->boundary)
        out.name = "iteration boundary";
    else if (op->spare > 0)
        out.name = "a communication thread is free";
    if (r >= a->join->n_ranks) {
        uint32_t server = r - a->join->n_ranks;
        const struct joined *joined = &a->join->joined.at[servers_joined_of(a->servers, server, o)];
        name_carried(a, &a->join->ranks[joined->rank], joined->collective, tensor_name);
        servers_name_op(a->servers, server, o, text, sizeof text);
        out.name = text;
    }
    if (tensor) {
        name_tensor(a, tensor, index, tensor_name);
        snprintf(text, sizeof text, "%s %s", op->kind == DPRO_OP_IN ? "In" : "Out", tensor_name);
        out.name = text;
    } else if (op->collective != NO_ID) {
        name_carried(a, rank, op->collective, tensor_name);
        if (op->flags & GRAPH_OP_ARRIVAL) {
            snprintf(text, sizeof text, "arrival at %s", rank->collectives.at[op->collective].kind);
            out.name = text;
        }
    }
    return dpro_graph_add_op(builder, &out) < 0 ? -1 : 0;
}

static int add_message_op(struct assembly *a, struct dpro_graph_builder *builder, uint32_t r,
                          uint32_t op)
{
    static const enum dpro_op_kind kinds[] = {DPRO_OP_LAUNCH, DPRO_OP_SEND, DPRO_OP_RECV};
    static const char *const names[2][N_MESSAGE_OPS] = {
        {"call that sends to", "send to", "receive from"},
        {"call that gives notice to", "notice to", "notice from"}};
    char tensor_name[TENSOR_NAME], text[64];
    enum message_op as = MESSAGE_CALL;
    uint32_t m = assembly_message(a, r, op, &as);
    const struct message *message = &a->messages->all.at[m];
    const struct joined *joined = &a->join->joined.at[message->joined];
    const struct member *members = &a->join->members.at[joined->first_member];
    bool receives = member_of_message(message, as) == message->to;
    uint32_t other = receives ? message->from : message->to;
    uint32_t worker = message->from < joined->n_members ? message->from : message->to;
    const struct rank_build *rank = &a->join->ranks[r];
    const char *does =
        as == MESSAGE_CALL && receives ? "call that sends, of" : names[message->is_notice][as];
    char process[NET_PROCESS_TEXT];
    net_process_format(process, a->join->ranks[joined_rank(a->join, joined, other)].trace->rank);
    name_carried(a, &a->join->ranks[members[worker].rank], members[worker].collective, tensor_name);
    if (other < joined->n_members && members[other].unlogged && joined->n_unlogged > 1)
        snprintf(text, sizeof text, "%s a rank without a log", does);
    else
        snprintf(text, sizeof text, "%s %s", does, process);
    enum dpro_op_kind kind = kinds[as];
    if (joined->has_servers && as != MESSAGE_CALL)
        kind = message->to < joined->n_members ? DPRO_OP_PULL : DPRO_OP_PUSH;
    struct dpro_op out = {.kind = kind,
                          .rank = rank->trace->rank,
                          .device = DPRO_NO_DEVICE,
                          .name = text,
                          .size_bytes = as == MESSAGE_CALL ? 0 : message->size_bytes,
                          .tensor = tensor_name};
    if (as != MESSAGE_CALL) {
        out.device = assembly_line_device(a, a->line_of[2 * m + (as == MESSAGE_RECV)]);
        out.transaction = a->join->joined.n + m + 1; /* those before are the collectives' */
    }
    return dpro_graph_add_op(builder, &out) < 0 ? -1 : 0;
}

static int add_ops(struct assembly *a, struct dpro_graph_builder *builder)
{
    for (uint32_t r = 0; r < assembly_n_processes(a); r++) {
        const struct rank_build *rank = &a->join->ranks[r];
        for (uint32_t o = 0; o < rank->ops.n; o++)
            if (add_op(a, builder, r, o) < 0)
                return -1;
        for (size_t j = 0; j < a->join->joined.n; j++) {
            const struct joined *joined = &a->join->joined.at[j];
            char text[64];
            if (joined->rank != r || a->barriers[j] == DPRO_NO_OP)
                continue;
            snprintf(text, sizeof text, "all at %s", rank->collectives.at[joined->collective].kind);
            struct dpro_op barrier = {.kind = DPRO_OP_BARRIER,
                                      .rank = rank->trace->rank,
                                      .device = DPRO_NO_DEVICE,
                                      .name = text,
                                      .tensor = ""};
            if (dpro_graph_add_op(builder, &barrier) < 0)
                return -1;
        }
        for (uint32_t op = a->first_message[r]; op < a->first_op[r + 1]; op++)
            if (add_message_op(a, builder, r, op) < 0)
                return -1;
    }
    return 0;
}

/* What was seen in the shown iteration, on an axis that begins with it. */
static int fill_seen(struct assembly *a)
{
    struct dpro_graph *g = a->graph;
    struct join *join = a->join;
    int64_t zero = INT64_MAX;
    for (uint32_t s = 0; s < a->n_samples; s++)
        if (join->ranks[0].sample_step[s] == join->ranks[0].steps.reference)
            g->shown_sample = s - a->first_sample;
    for (uint32_t r = 0; r < join->n_ranks; r++) {
        const struct rank_build *rank = &join->ranks[r];
        int64_t start = rank->pace.track != NO_ID ? rank->seen_start_ns[rank->pace.first]
                                                  : rank->steps.at[rank->steps.reference].start_ns;
        zero = start < zero ? start : zero;
    }
    if (!g->seen_start_ns)
        g->seen_start_ns = arena_array(&g->arena, a->n_ops, sizeof *g->seen_start_ns);
    if (!g->seen_dur_ns)
        g->seen_dur_ns = arena_array(&g->arena, a->n_ops, sizeof *g->seen_dur_ns);
    if (!g->seen_start_ns || !g->seen_dur_ns)
        return -1;
    for (uint32_t r = 0, n = 0; r < assembly_n_processes(a); r++) {
        const struct rank_build *rank = &join->ranks[r];
        const struct step *step = &rank->steps.at[rank->steps.reference];
        if (a->first_op[r + 1] > a->first_op[r]) /* else a server that took no part */
            g->ranks[n++].offset_ns = assembly_span(zero, step->start_ns);
        for (uint32_t o = 0; o < rank->n_timed; o++) {
            uint32_t op = a->first_op[r] + o;
            int64_t start = rank->seen_start_ns[o];
            if (__builtin_sub_overflow(start, zero, &g->seen_start_ns[op]))
                g->seen_start_ns[op] = 0;
            g->seen_dur_ns[op] = assembly_span(start, rank->seen_end_ns[o]);
        }
        for (uint32_t op = a->first_message[r]; op < a->first_op[r + 1]; op++) {
            enum message_op as = MESSAGE_CALL;
            uint32_t m = assembly_message(a, r, op, &as);
            const struct message_time *time =
                assembly_time_of(a, m, g->shown_sample + a->first_sample);
            int64_t dur = g->sample_dur_ns[(size_t)g->shown_sample * a->n_ops + op];
            int64_t start = as == MESSAGE_CALL ? time->start_ns : time->end_ns - dur;
            if (__builtin_sub_overflow(start, zero, &g->seen_start_ns[op]))
                g->seen_start_ns[op] = 0;
            g->seen_dur_ns[op] = dur;
        }
    }
    return 0;
}

static int fill_lead(struct assembly *a)
{
    struct dpro_graph *g = a->graph;
    const struct join *join = a->join;
    int64_t first = INT64_MAX;
    if (a->first_sample == 0)
        return 0;
    g->lead_begin_ns = arena_array(&g->arena, join->n_ranks, sizeof *g->lead_begin_ns);
    for (uint32_t r = 0; r < join->n_ranks && g->lead_begin_ns; r++) {
        g->lead_begin_ns[r] = join->ranks[r].steps.at[assembly_step(a, r, 0)].start_ns;
        first = g->lead_begin_ns[r] < first ? g->lead_begin_ns[r] : first;
    }
    for (uint32_t r = 0; r < join->n_ranks && g->lead_begin_ns; r++)
        g->lead_begin_ns[r] = assembly_span(first, g->lead_begin_ns[r]);
    return g->lead_begin_ns ? 0 : -1;
}

static int fill_measured(struct assembly *a)
{
    struct dpro_graph *g = a->graph;
    struct join *join = a->join;
    g->measured_ns = arena_array(&g->arena, g->n_samples, sizeof *g->measured_ns);
    g->sample_number = arena_array(&g->arena, g->n_samples, sizeof *g->sample_number);
    g->sample_follows = arena_array(&g->arena, g->n_samples, sizeof *g->sample_follows);
    if (!g->measured_ns || !g->sample_number || !g->sample_follows)
        return -1;
    /* of one that was chosen among others it is known when the next one begins */
    g->single_iteration = a->n_samples == 1 && join->ranks[0].steps.n == 1;
    for (uint32_t s = 0; s < g->n_samples; s++) {
        __int128 sum = 0;
        int64_t first = INT64_MAX, last = INT64_MIN;
        for (uint32_t r = 0; r < join->n_ranks; r++) {
            const struct rank_build *rank = &join->ranks[r];
            uint32_t step = assembly_step(a, r, a->first_sample + s);
            sum += build_step_ns(rank, step);
            for (uint32_t o = 0; o < rank->n_timed && g->single_iteration; o++) {
                size_t at = assembly_at(rank, step, o);
                if (o == rank->boundary || rank->start_ns[at] == ABSENT)
                    continue;
                first = rank->start_ns[at] < first ? rank->start_ns[at] : first;
                last = rank->end_ns[at] > last ? rank->end_ns[at] : last;
            }
        }
        g->measured_ns[s] =
            g->single_iteration ? assembly_span(first, last) : (int64_t)(sum / join->n_ranks);
        g->sample_follows[s] =
            join->choice.overlaps_next ||
            join->ranks[0].steps.at[assembly_step(a, 0, a->first_sample + s)].follows;
        g->sample_number[s] =
            join->ranks[0].steps.at[assembly_step(a, 0, a->first_sample + s)].number;
    }
    return 0;
}

static void fill_pace(struct assembly *a)
{
    struct dpro_pace *pace = &a->graph->pace;
    for (uint32_t r = 0; r < a->join->n_ranks; r++)
        pace->n_ranks += a->join->ranks[r].pace.track != NO_ID;
    for (uint32_t r = 0; r < a->join->n_ranks; r++) {
        const struct rank_build *rank = &a->join->ranks[r];
        if (rank->pace.track == NO_ID)
            continue;
        pace->marks_ns += rank->pace.times.marks_ns / pace->n_ranks;
        pace->device_ns += rank->pace.times.device_ns / pace->n_ranks;
        pace->ahead_ns += rank->pace.times.ahead_ns / pace->n_ranks;
    }
}

static int fill_left_out(struct assembly *a)
{
    struct map seen = {0}; /* numbers, as several ranks may show why */
    int status = 0;
    for (size_t i = 0; i < a->join->choice.left_out.n && status == 0; i++) {
        const struct left_out *from = &a->join->choice.left_out.at[i];
        struct dpro_left_out to = {.number = from->number};
        uint64_t key = map_key((uint64_t)from->number);
        if (from->kept || map_get(&seen, key, NULL))
            continue;
        to.reason = arena_copy_string(&a->graph->arena, from->reason, strlen(from->reason));
        status = to.reason ? map_set(&seen, key, 1) : -1;
        if (status == 0)
            status = array_push(&a->graph->left_out, to);
    }
    map_fini(&seen);
    return status;
}

/* An address that a process has for its own. */
struct own_address {
    struct net_address address; /* without its port */
    uint32_t process;
};

ORDER(by_address, struct own_address,
      memcmp(&x->address, &y->address, sizeof x->address) ?: ASCENDING(process));

static int list_addresses(const struct assembly *a, struct own_address **addresses, size_t *n)
{
    const struct dpro_graph *g = a->graph;
    ARRAY(struct own_address) list = {0};
    int status = 0;
    for (uint32_t p = 0; p < g->n_ranks + g->n_servers; p++)
        for (uint32_t t = 0; t < a->trace->n_transports; t++) {
            const struct net_transport *transport = &a->trace->transports[t];
            for (size_t i = 0; i < transport->connections.n && status == 0; i++) {
                const struct net_address *local = &transport->connections.at[i].local;
                struct own_address own = {{.zone = local->zone, .family = local->family}, p};
                memcpy(own.address.ip, local->ip, sizeof own.address.ip);
                if (transport->rank == g->ranks[p].rank && local->family != AF_UNIX)
                    status = array_push(&list, own);
            }
        }
    if (list.n > 0)
        qsort(list.at, list.n, sizeof *list.at, by_address);
    *addresses = list.at;
    *n = list.n;
    return status;
}

/* Which rank is the first one with whom each process has an address in common. */
static int fill_hosts(struct assembly *a)
{
    struct dpro_graph *g = a->graph;
    struct own_address *addresses;
    size_t n;
    if (g->n_servers == 0)
        return 0;
    g->rank_hosts = arena_array(&g->arena, g->n_ranks + (size_t)1, sizeof *g->rank_hosts);
    g->server_hosts = arena_array(&g->arena, g->n_servers + (size_t)1, sizeof *g->server_hosts);
    int status = list_addresses(a, &addresses, &n);
    if (!g->rank_hosts || !g->server_hosts)
        status = -1;
    for (uint32_t r = 0; r < g->n_ranks && status == 0; r++)
        g->rank_hosts[r] = r;
    for (uint32_t s = 0; s < g->n_servers && status == 0; s++)
        g->server_hosts[s] = -1;
    for (size_t i = 0, first = 0; i < n && status == 0; i++) { /* ranks go before servers */
        uint32_t process = addresses[i].process;
        if (memcmp(&addresses[i].address, &addresses[first].address, sizeof addresses->address) !=
            0)
            first = i;
        uint32_t with = addresses[first].process;
        if (process < g->n_ranks && with < g->rank_hosts[process])
            g->rank_hosts[process] = with;
        if (process >= g->n_ranks && with < g->n_ranks) {
            int32_t *host = &g->server_hosts[process - g->n_ranks];
            *host = *host < 0 || with < (uint32_t)*host ? (int32_t)with : *host;
        }
    }
    mem_free(addresses);
    return status;
}

/* The threads of an executor's pool take its ops in turns. */
static void fill_pools(struct assembly *a)
{
    for (uint32_t r = 0; r < assembly_n_processes(a); r++) {
        const struct rank_build *rank = &a->join->ranks[r];
        uint32_t pool = DPRO_NO_DEVICE;
        for (uint32_t d = 0; d < rank->devices.n; d++) {
            const struct graph_device *device = &rank->devices.at[d]; /* named after its track */
            if (device->n_slots > 0) {
                a->graph->devices[a->first_device[r] + d].pool = a->first_device[r] + d;
                a->graph->devices[a->first_device[r] + d].n_slots = device->n_slots;
                continue;
            }
            if (rank->n_slots == 0 || device->kind != DPRO_DEVICE_CPU_THREAD ||
                !rank->trace->tracks[device->name].pool)
                continue;
            if (pool == DPRO_NO_DEVICE)
                pool = a->first_device[r] + d;
            a->graph->devices[a->first_device[r] + d].pool = pool;
            a->graph->devices[a->first_device[r] + d].n_slots = rank->n_slots;
        }
    }
}

static void fill_shared_links(struct assembly *a)
{
    for (uint32_t l = 0; l < a->lines.n; l++) {
        const struct line *line = &a->lines.at[l];
        struct graph_device *device = &a->graph->devices[assembly_line_device(a, l)];
        if (line->n_sharing == 1)
            continue;
        device->shared = assembly_line_device(a, line->first);
        device->n_sharing = line->n_sharing;
    }
}

static int fill_cycles(struct assembly *a)
{
    enum { USUAL_MIB = 128 }; /* since 0.21; 64 before */
    const struct fusion *fusion = a->trace->fusion;
    struct graph_cycles *cycles = &a->graph->cycles;
    if (!fusion || fusion->cycle_ns <= 0)
        return 0;
    *cycles = (struct graph_cycles){.cycle_ns = fusion->cycle_ns,
                                    .negotiate_ns = fusion->negotiate_ns,
                                    .fuses = true,
                                    .fusion_bytes = (uint64_t)USUAL_MIB << 20};
    if (fusion->most_bytes < cycles->fusion_bytes)
        cycles->fusion_bytes = fusion->most_bytes;
    for (uint32_t r = 0; r < a->trace->n_ranks; r++) {
        const struct recording *recording = a->trace->ranks[r].recording;
        if (!recording || !recording->fusion.is_set)
            continue;
        cycles->fuses = !recording->fusion.in_groups;
        cycles->fusion_bytes = recording->fusion.most_bytes;
    }
    cycles->reductions =
        arena_array(&a->graph->arena, fusion->n_samples + (size_t)1, sizeof *cycles->reductions);
    if (!cycles->reductions)
        return -1;
    for (uint32_t i = 0; i < fusion->n_samples; i++)
        cycles->reductions[cycles->n_reductions++] =
            (struct graph_reduction){fusion->samples[i].size_bytes, fusion->samples[i].took_ns};
    return 0;
}

static int fill_ops(struct assembly *a)
{
    struct dpro_graph *g = a->graph;
    for (uint32_t r = 0, n = 0; r < assembly_n_processes(a); r++) {
        const struct rank_build *rank = &a->join->ranks[r];
        if (a->first_op[r + 1] == a->first_op[r])
            continue; /* a server that took no part */
        for (uint32_t o = 0; o < rank->ops.n; o++) {
            g->flags[a->first_op[r] + o] = rank->ops.at[o].flags;
            g->phase[a->first_op[r] + o] = rank->ops.at[o].phase;
            if (rank->ops.at[o].spare == 0)
                continue;
            if (!g->spare && !(g->spare = arena_array(&g->arena, g->n_ops, 1)))
                return -1;
            g->spare[a->first_op[r] + o] = rank->ops.at[o].spare;
        }
        for (uint32_t op = a->first_op[r] + (uint32_t)rank->ops.n; op < a->first_message[r]; op++)
            g->phase[op] = DPRO_OP_BARRIER;
        g->ranks[n].n_message_ops = a->first_op[r + 1] - a->first_message[r];
        g->ranks[n++].boundary =
            rank->boundary == NO_ID ? DPRO_NO_OP : a->first_op[r] + rank->boundary;
        if (r < a->join->n_ranks && rank->pace.track != NO_ID) {
            g->ranks[n - 1].on_device = true;
            g->ranks[n - 1].first_work = a->first_op[r] + rank->pace.first;
            g->ranks[n - 1].last_work = a->first_op[r] + rank->pace.last;
        }
    }
    uint32_t n_workers = 0; /* a session's servers are built as its workers are */
    while (n_workers < a->join->n_ranks && a->join->ranks[n_workers].trace->rank >= 0)
        n_workers++;
    g->n_servers = g->n_ranks - n_workers;
    g->n_ranks = n_workers;
    if (fill_hosts(a) < 0)
        return -1;
    g->framework = dpro_trace_framework(a->trace);
    g->in_session = a->join->n_ranks > 0 && a->join->ranks[0].trace->in_session;
    g->world_size = (uint32_t)a->join->world_size;
    fill_pace(a);
    fill_pools(a);
    fill_shared_links(a);
    return fill_cycles(a);
}

/* Of unknown size, a collective is like itself only. */
static uint64_t kind_and_size(const struct dpro_graph *g, const struct graph_collective *c)
{
    uint64_t size = c->size_bytes ? c->size_bytes : UINT64_MAX - (uint64_t)(c - g->collectives);
    return map_mix(map_mix(size) + c->name) | 1;
}

/* How much longer a transfer took than the shortest of any collective of its kind and size is
 * waiting, where ranks are missing. Of those made of messages only the ends are transfers. */
static int fill_missing_waits(struct dpro_graph *g)
{
    struct map shortest = {0};
    int status = 0;
    for (uint32_t j = 0; j < g->n_collectives && status == 0; j++) {
        const struct graph_collective *c = &g->collectives[j];
        uint64_t least = INT64_MAX;
        if (c->n_messages > 0)
            continue;
        map_get(&shortest, kind_and_size(g, c), &least);
        for (uint32_t m = 0; m < c->n_members; m++)
            for (uint32_t s = 0; s < g->n_samples; s++) {
                uint32_t op = g->members[c->first_member + m].transfer;
                uint64_t dur = (uint64_t)g->sample_dur_ns[(size_t)s * g->n_ops + op];
                least = dur < least ? dur : least;
            }
        status = map_set(&shortest, kind_and_size(g, c), least);
    }
    for (uint32_t j = 0; j < g->n_collectives && status == 0; j++) {
        struct graph_collective *c = &g->collectives[j];
        uint64_t least = 0;
        if (c->n_expected > c->n_members && map_get(&shortest, kind_and_size(g, c), &least))
            c->missing_wait_ns =
                assembly_span((int64_t)least, g->dur_ns[g->members[c->first_member].transfer]);
    }
    map_fini(&shortest);
    return status;
}

static int fill_collectives(struct assembly *a)
{
    struct dpro_graph *g = a->graph;
    struct join *join = a->join;
    g->n_collectives = (uint32_t)join->joined.n;
    g->n_members = (uint32_t)join->members.n;
    g->collectives = arena_array(&g->arena, g->n_collectives, sizeof *g->collectives);
    g->members = arena_array(&g->arena, g->n_members, sizeof *g->members);
    if (g->n_collectives > 0 && !g->transaction)
        g->transaction = arena_array(&g->arena, g->n_ops, sizeof *g->transaction);
    if (!g->collectives || !g->members || (g->n_collectives > 0 && !g->transaction))
        return -1;
    for (uint32_t j = 0; j < g->n_collectives; j++) {
        const struct joined *joined = &join->joined.at[j];
        const struct rank_build *rank = &join->ranks[joined->rank];
        const struct local_collective *c = &rank->collectives.at[joined->collective];
        const char *group = strtab_get(&a->trace->names, c->group);
        g->collectives[j] =
            (struct graph_collective){.name = strtab_add(&g->names, c->kind, strlen(c->kind)),
                                      .group = strtab_add(&g->names, group, strlen(group)),
                                      .key = c->key,
                                      .size_bytes = c->size_bytes,
                                      .barrier = a->barriers[j],
                                      .first_member = joined->first_member,
                                      .n_members = joined->n_members,
                                      .n_expected = joined->n_expected,
                                      .n_messages = joined->n_data,
                                      .pattern = joined->pattern.name,
                                      .n_chunks = joined->pattern.n_chunks,
                                      .n_channels = joined->pattern.n_channels};
        for (uint32_t m = joined->first_member; m < joined->first_member + joined->n_members; m++) {
            const struct member *member = &join->members.at[m];
            const struct local_collective *own =
                &join->ranks[member->rank].collectives.at[member->collective];
            g->members[m].arrival = a->first_op[member->rank] + own->arrival;
            g->members[m].transfer = a->first_op[member->rank] + own->transfer;
            g->members[m].exchange_ns = member->exchange_ns;
            g->transaction[g->members[m].arrival] = j + 1;
            g->transaction[g->members[m].transfer] = j + 1;
        }
    }
    return fill_missing_waits(g);
}

static int fill_tensors(struct assembly *a)
{
    struct dpro_graph *g = a->graph;
    struct join *join = a->join;
    size_t n = 0;
    for (uint32_t r = 0; r < join->n_ranks; r++)
        n += join->ranks[r].tensors.n;
    g->tensors = arena_array(&g->arena, n, sizeof *g->tensors);
    uint32_t *joined_of = mem_alloc((join->members.n + 1) * sizeof *joined_of);
    size_t *first = mem_array(join->n_ranks + (size_t)1, sizeof *first); /* of each rank's */
    if (!g->tensors || !joined_of || !first) {
        mem_free(joined_of);
        mem_free(first);
        return -1;
    }
    for (uint32_t r = 0; r < join->n_ranks; r++)
        first[r + 1] = first[r] + join->ranks[r].collectives.n;
    for (size_t j = 0; j < join->joined.n; j++)
        for (uint32_t m = 0; m < join->joined.at[j].n_members; m++) {
            const struct member *member = &join->members.at[join->joined.at[j].first_member + m];
            joined_of[first[member->rank] + member->collective] = (uint32_t)j;
        }
    for (uint32_t r = 0; r < join->n_ranks; r++) {
        const struct rank_build *rank = &join->ranks[r];
        for (size_t t = 0; t < rank->tensors.n; t++) {
            const struct local_tensor *tensor = &rank->tensors.at[t];
            char text[TENSOR_NAME];
            name_tensor(a, tensor, t, text);
            g->tensors[g->n_tensors++] =
                (struct graph_tensor){.name = strtab_add(&g->names, text, strlen(text)),
                                      .size_bytes = tensor->size_bytes,
                                      .rank = r,
                                      .in = a->first_op[r] + tensor->in,
                                      .out = a->first_op[r] + tensor->out,
                                      .collective = joined_of[first[r] + tensor->collective]};
        }
    }
    mem_free(joined_of);
    mem_free(first);
    return 0;
}

/* Only the recorder knows what the profiler costs. Ranks run the same ops: what one measured above
 * the others is chance, and must not move the ranks against each other. */
static int fill_profiled(struct assembly *a)
{
    struct dpro_graph *g = a->graph;
    int64_t sum_ns = 0;
    uint32_t n_known = 0;
    for (uint32_t r = 0; r < a->join->n_ranks; r++) {
        const struct recording *recording = a->join->ranks[r].trace->recording;
        if (recording && recording->profiler_op_ns > 0) {
            sum_ns += recording->profiler_op_ns;
            n_known++;
        }
    }
    if (n_known == 0)
        return 0;
    g->profiler_op_ns = arena_array(&g->arena, assembly_n_processes(a), sizeof *g->profiler_op_ns);
    g->profiled = arena_array(&g->arena, a->n_ops, sizeof *g->profiled);
    if (!g->profiler_op_ns || !g->profiled)
        return -1;
    for (uint32_t r = 0; r < a->join->n_ranks; r++) {
        const struct rank_build *rank = &a->join->ranks[r];
        const struct recording *recording = rank->trace->recording;
        if (!recording || recording->profiler_op_ns <= 0)
            continue;
        g->profiler_op_ns[r] = sum_ns / n_known;
        for (uint32_t o = 0; o < rank->ops.n; o++)
            g->profiled[a->first_op[r] + o] = rank->ops.at[o].profiled;
    }
    return 0;
}

static int build_graph(struct assembly *a, struct dpro_error *err)
{
    struct dpro_graph_builder *builder = dpro_graph_builder_create(err);
    if (!builder)
        return DPRO_ENOMEM;
    int status = 0;
    if (add_devices(a, builder) < 0 || add_ops(a, builder) < 0)
        status = dpro_error_nomem(err);
    for (size_t e = 0; e < a->edges.n && status == 0; e++) {
        const struct edge *edge = &a->edges.at[e];
        if (dpro_graph_add_edge(builder, edge->from, edge->to, edge->next) < 0)
            status = dpro_error_nomem(err);
    }
    if (status == 0)
        status = dpro_graph_finish(builder, &a->graph, err);
    dpro_graph_builder_destroy(builder);
    return status;
}

int assemble_graph(struct job *job, const struct dpro_trace *trace,
                   const struct dpro_graph_options *options, struct dpro_graph **graph,
                   struct dpro_error *err)
{
    struct join *join = &job->join;
    struct assembly a = {.join = join,
                         .messages = &job->messages,
                         .servers = &job->servers,
                         .trace = trace,
                         .n_samples = join->ranks[0].n_samples,
                         .first_sample = join->choice.has_lead,
                         .raw_receives = options->raw_receives != 0};
    uint32_t dropped = 0;
    int status = 0;
    if (number_ops(&a) < 0 || assembly_find_lines(&a) < 0 || assembly_order(&a, &dropped) < 0)
        status = dpro_error_nomem(err);
    if (status == 0)
        status = build_graph(&a, err);
    if (status == 0) {
        if (fill_ops(&a) < 0 || assembly_time(&a) < 0 || fill_seen(&a) < 0 ||
            fill_measured(&a) < 0 || fill_left_out(&a) < 0 || fill_lead(&a) < 0 ||
            fill_collectives(&a) < 0 || fill_tensors(&a) < 0 || (exchanges_find(a.graph), false) ||
            fill_profiled(&a) < 0 || assembly_warn(&a, options, dropped) < 0) {
            dpro_graph_destroy(a.graph);
            status = dpro_error_nomem(err);
        } else {
            a.graph->unprofiled_iterations = job->unprofiled_iterations;
            a.graph->clocks = join->clocks;
            join->clocks = (struct clocks){0};
            *graph = a.graph;
        }
    }
    mem_free(a.first_op);
    mem_free(a.barriers);
    mem_free(a.first_device);
    mem_free(a.first_message);
    mem_free(a.message_ops);
    mem_free(a.message_of);
    mem_free(a.first_of);
    mem_free(a.order);
    mem_free(a.line_of);
    array_fini(&a.lines);
    array_fini(&a.edges);
    return status;
}

int assemble_clocks(struct join *join, const struct dpro_graph_options *options,
                    struct dpro_graph **graph, struct dpro_error *err)
{
    struct assembly a = {.join = join};
    struct dpro_graph_builder *builder = dpro_graph_builder_create(err);
    if (!builder)
        return DPRO_ENOMEM;
    int status = dpro_graph_finish(builder, &a.graph, err);
    dpro_graph_builder_destroy(builder);
    if (status < 0)
        return status;
    if (assembly_warn_clocks(&a, options) < 0) {
        dpro_graph_destroy(a.graph);
        return dpro_error_nomem(err);
    }
    a.graph->clocks = join->clocks;
    join->clocks = (struct clocks){0};
    *graph = a.graph;
    return 0;
}
