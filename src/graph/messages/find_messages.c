/* The messages of each collective of the graph, from the ends in the logs.
 *
 * The k-th message from one rank to another in a collective is the same work in every iteration. A
 * collective is decomposed only if every message between logged ranks is known at both ends in
 * every iteration, because a SEND without its RECV would be replayed in no time.
 *
 * Messages among unlogged ranks are unseen, and so is what NCCL's ranks of one node pass each other
 * without a network. Such ranks are one *node group*: what one of them received, any of them may
 * have passed on. */
#include "graph/messages/find_messages.h"

#include "graph/messages/endpoints.h"

void messages_fini(struct messages *messages)
{
    FREE_ALL(&messages->all, &messages->times, &messages->links, &messages->lacks);
}

struct message_finder {
    struct join *join;
    struct messages *messages;
    struct endpoints ends;
    struct map link_of;
    found_array shown;     /* in the iteration that the graph shows */
    ARRAY(uint64_t) bytes; /* of each of a collective's messages, in all iterations */
    ARRAY(uint32_t) place; /* of the i-th in order of members among the graph's messages */
};

/* ---- who has a log, and who passes data on unseen ---- */

/* Ranks of one node pass each other data without NCCL's proxies. */
static void join_nodes(const struct join *join, struct joined *joined, struct member *members)
{
    SCRATCH struct map first = {0};
    for (uint32_t m = 0; m < joined->n_members; m++) {
        uint32_t host = join->ranks[members[m].rank].trace->host;
        if (host != 0)
            members[m].node_group = (uint32_t)map_first(&first, host, m);
        joined->has_node_groups |= members[m].node_group != m;
    }
}

/* Horovod may fuse otherwise in an iteration: its messages there are none of this collective's. */
static bool is_seen(const struct message_finder *f, const struct joined *joined, uint32_t sample)
{
    const struct member *members = joined_members(f->join, joined);
    bool seen = !join_is_inferred(f->join, joined);
    for (uint32_t m = 0; m < joined->n_members && !seen; m++)
        seen = endpoints_part(f->join, &members[m], sample)->log != NO_ID;
    return seen;
}

/* The iteration that the graph shows, or the first in which the collective was seen; NO_ID: in
 * none. */
static uint32_t shown_sample(const struct message_finder *f, const struct joined *joined)
{
    const struct rank_build *rank = &f->join->ranks[0];
    uint32_t s = 0;
    while (s + 1 < rank->n_samples && rank->sample_step[s] != rank->steps.reference)
        s++;
    for (uint32_t k = 0; k < rank->n_samples && !is_seen(f, joined, s); k++)
        s = k;
    return is_seen(f, joined, s) ? s : NO_ID;
}

/* Returns how many of the members have a log of their part in every iteration. */
static uint32_t find_node_groups(struct message_finder *f, struct joined *joined)
{
    struct member *members = joined_members(f->join, joined);
    uint32_t n_samples = f->messages->n_samples, n_logged = 0;
    bool by_nccl = false, any = shown_sample(f, joined) != NO_ID;
    f->ends.nobody = NO_ID;
    for (uint32_t m = 0; m < joined->n_members; m++) {
        members[m].node_group = m;
        members[m].unlogged = false;
        for (uint32_t s = 0; s < n_samples; s++) {
            uint32_t log = endpoints_part(f->join, &members[m], s)->log;
            members[m].unlogged |= log == NO_ID && (!any || is_seen(f, joined, s));
            by_nccl |= log != NO_ID && f->ends.logs[log].nccl;
        }
        f->ends.unlogged[m] = members[m].unlogged;
        n_logged += !members[m].unlogged;
        if (f->ends.nobody == NO_ID && members[m].unlogged)
            f->ends.nobody = m;
    }
    joined->n_unlogged = joined->n_members - n_logged;
    joined->has_node_groups = joined->n_unlogged > 0;
    if (by_nccl)
        join_nodes(f->join, joined, members);
    for (uint32_t m = 0; m < joined->n_members; m++) {
        uint32_t node_group = members[m].node_group;
        if (!members[m].unlogged || node_group == members[f->ends.nobody].node_group)
            continue;
        for (uint32_t k = 0; k < joined->n_members; k++)
            if (members[k].node_group == node_group)
                members[k].node_group = members[f->ends.nobody].node_group;
    }
    return n_logged;
}

static void note_lacking(struct message_finder *f, const struct joined *joined, enum lacks lacks)
{
    const struct member *members = joined_members(f->join, joined);
    for (uint32_t m = 0; m < joined->n_members; m++)
        if (members[m].unlogged)
            f->messages->lacks[members[m].rank] |= (uint8_t)lacks;
}

static bool on_comm_thread(const struct rank_build *rank, const struct local_collective *c)
{
    uint32_t device = rank->ops.at[c->arrival].device;
    return device != NO_ID && rank->devices.at[device].kind == DPRO_DEVICE_COMM_THREAD;
}

/* ---- links ---- */

/* NULL: NCCL's network, which no log tells the addresses of; a rank has it for itself. */
static uint32_t find_link(struct message_finder *f, const struct net_connection *c, uint32_t rank)
{
    bool within = c && (memcmp(c->local.ip, c->remote.ip, sizeof c->local.ip) == 0 ||
                        c->local.family == AF_UNIX);
    uint64_t index, key = c ? message_address_key(&c->local) : UINT64_MAX;
    key = map_mix(key ^ (within || !c ? (rank + UINT64_C(1)) << 1 : 0)) | 1;
    if (map_get(&f->link_of, key, &index))
        return (uint32_t)index;
    struct link link = {.rank = rank};
    if (!c) {
        strcpy(link.name, "to the network");
    } else if (within) {
        snprintf(link.name, sizeof link.name, "within the host");
    } else {
        net_address_format(link.name, &c->local);
        char *port = strrchr(link.name, ':');
        if (port)
            *port = '\0';
    }
    map_set(&f->link_of, key, f->messages->links.n);
    array_push(&f->messages->links, link);
    return (uint32_t)f->messages->links.n - 1;
}

/* ---- one collective ---- */

ORDER_OF_INDICES(by_sending, struct found, ASCENDING(time.start_ns));

/* The graph's messages of the collective, from those of the iteration that it shows; f->place says
 * where each of them, by members, went. */
static void add_shown(struct message_finder *f, uint32_t j)
{
    struct joined *joined = &f->join->joined.at[j];
    size_t n = f->shown.n;
    SCRATCH uint32_t *order = sorted_indices(n, f->shown.at, by_sending);
    f->place.n = 0;
    array_reserve(&f->place, n);
    joined->first_message = (uint32_t)f->messages->all.n;
    joined->n_messages = (uint32_t)n;
    for (uint32_t i = 0; i < n; i++) {
        const struct found *found = &f->shown.at[order[i]];
        const struct endpoint *end = &found->end;
        struct message message = {.joined = j,
                                  .from = end->from,
                                  .to = end->to,
                                  .tx = NO_ID,
                                  .rx = NO_ID,
                                  .stream = end->stream,
                                  .channel = end->channel,
                                  .ready = NO_ID,
                                  .is_ready = end->is_ready,
                                  .size_bytes = end->size_bytes};
        f->place.at[order[i]] = i;
        joined->n_data += !end->is_ready;
        if (found->sent)
            message.tx = find_link(f, found->sender, joined_rank(f->join, joined, end->from));
        if (found->received)
            message.rx = find_link(f, found->receiver, joined_rank(f->join, joined, end->to));
        array_push(&f->messages->all, message);
    }
    struct message *added = &f->messages->all.at[joined->first_message];
    for (size_t i = 0, end, n_data; i < n; i = end) {
        end = found_run_end(&f->shown, i, &n_data);
        for (size_t k = i + n_data; k < end; k++)
            added[f->place.at[k - n_data]].ready = joined->first_message + f->place.at[k];
    }
}

static void find_pattern(struct message_finder *f, struct joined *joined)
{
    const struct message *messages = &f->messages->all.at[joined->first_message];
    const struct member *members = joined_members(f->join, joined);
    SCRATCH struct pattern_message *pairs =
        mem_alloc((joined->n_messages + (size_t)1) * sizeof *pairs);
    size_t n = 0;
    for (uint32_t m = 0; m < joined->n_messages; m++)
        if (!messages[m].is_ready)
            pairs[n++] =
                (struct pattern_message){messages[m].from, messages[m].to, messages[m].channel};
    const char *known = NULL;
    for (uint32_t m = 0; m < joined->n_members && !known; m++)
        known = endpoints_algorithm(&f->ends, endpoints_part(f->join, &members[m], 0));
    for (uint32_t m = 0; m < joined->n_members && !known; m++)
        known = members[m].node_group == m ? NULL : "partly seen";
    if (joined->has_servers)
        known = "parameter server";
    uint32_t n_ends = joined->n_members + (joined->has_servers ? f->join->n_servers : 0);
    uint32_t n_passes = JOIN_PART(f->join, joined)->kind == DPRO_ALL_REDUCE ? 2 : 1;
    joined->pattern = pattern_find(pairs, n, n_ends, known, n_passes * (joined->n_members - 1));
}

/* What is framed on its way is some bytes longer or shorter each time. */
static bool nearly_equal(uint64_t a, uint64_t b)
{
    enum { FRAMING = 256 }; /* of so many bytes one */
    return (a > b ? a - b : b - a) <= a / FRAMING;
}

/* Sizes may differ in a collective whose data decide how much each rank gets. */
static bool equal_messages(const found_array *a, const found_array *b, bool any_size)
{
    bool equal = a->n == b->n;
    for (size_t i = 0; i < a->n && equal; i++) {
        const struct endpoint *x = &a->at[i].end, *y = &b->at[i].end;
        equal = x->from == y->from && x->to == y->to && x->is_ready == y->is_ready &&
                x->stream == y->stream && (any_size || nearly_equal(x->size_bytes, y->size_bytes));
    }
    return equal;
}

/* When a collective's transfer began in an iteration, on the first of its members; ABSENT: on some
 * it was not measured. */
static int64_t transfer_start(const struct join *join, const struct joined *joined, uint32_t sample)
{
    const struct member *members = joined_members(join, joined);
    int64_t first = INT64_MAX;
    for (uint32_t m = 0; m < joined->n_members; m++)
        first = MIN(first, *member_transfer_start(join, &members[m], sample));
    return first;
}

/* Where Horovod fused otherwise, messages take as long as in another iteration. */
static bool move_times(struct message_finder *f, const struct joined *joined,
                       struct message_time *times, uint32_t from, uint32_t to)
{
    int64_t start = transfer_start(f->join, joined, from);
    int64_t own = transfer_start(f->join, joined, to), later;
    if (start == ABSENT || own == ABSENT || __builtin_sub_overflow(own, start, &later))
        return false;
    for (uint32_t m = 0; m < joined->n_messages; m++) {
        struct message_time *time = &times[(size_t)m * f->messages->n_samples];
        time[to] = (struct message_time){
            time_add(time[from].start_ns, later), time_add(time[from].end_ns, later),
            time[from].received_ns == ABSENT ? ABSENT : time_add(time[from].received_ns, later)};
    }
    return true;
}

/* The times of a collective's messages in all samples, from those of each. Returns whether all are
 * known and the same messages; *uneven: they are known, but differ. */
static bool time_messages(struct message_finder *f, const struct joined *joined, uint32_t shown,
                          struct message_time *times, bool *uneven)
{
    uint32_t n_samples = f->messages->n_samples, n_seen = 0;
    bool any_size = JOIN_PART(f->join, joined)->kind == DPRO_ALL_TO_ALL;
    f->bytes.n = 0;
    array_reserve(&f->bytes, joined->n_messages);
    uint64_t *bytes = memset(f->bytes.at, 0, joined->n_messages * sizeof *f->bytes.at);
    for (uint32_t s = 0; s < n_samples; s++) {
        if (!is_seen(f, joined, s))
            continue;
        if (!endpoints_pair(&f->ends, joined, s))
            return false;
        *uneven = !equal_messages(&f->ends.found, &f->shown, any_size);
        if (*uneven)
            return false;
        n_seen++;
        for (size_t i = 0; i < f->ends.found.n; i++) {
            times[(size_t)f->place.at[i] * n_samples + s] = f->ends.found.at[i].time;
            bytes[f->place.at[i]] += f->ends.found.at[i].end.size_bytes;
        }
    }
    for (uint32_t m = 0; m < joined->n_messages && any_size && n_seen > 0; m++)
        f->messages->all.at[joined->first_message + m].size_bytes = bytes[m] / n_seen;
    for (uint32_t s = 0; s < n_samples; s++)
        if (!is_seen(f, joined, s) && !move_times(f, joined, times, shown, s))
            return false;
    return true;
}

/* Takes one collective apart, with ready messages where it can, or counts why it can't be. */
static void take_apart(struct message_finder *f, uint32_t j, bool with_ready)
{
    struct joined *joined = &f->join->joined.at[j];
    struct messages *messages = f->messages;
    uint32_t n_samples = f->messages->n_samples, shown = shown_sample(f, joined);
    size_t first_time = messages->times.n, first_message = messages->all.n;
    bool uneven = false;
    f->ends.with_ready = with_ready;
    if (endpoints_pair(&f->ends, joined, shown)) {
        size_t n_new = f->ends.found.n, n = first_message + n_new;
        if (n_new == 0)
            return; /* a barrier, or all that it says is known without data */
        if (n > MOST_MESSAGES || n > MOST_MESSAGE_TIMES / n_samples) {
            messages->n_beyond++;
            messages->n_whole++;
            return;
        }
        found_array swap = f->shown;
        f->shown = f->ends.found;
        f->ends.found = swap;
        add_shown(f, j);
        array_reserve(&messages->times, n_new * n_samples);
        messages->times.n += n_new * n_samples;
        if (time_messages(f, joined, shown, &messages->times.at[first_time], &uneven)) {
            find_pattern(f, joined);
            return;
        }
        messages->all.n = first_message;
        messages->times.n = first_time;
        joined->n_messages = joined->n_data = 0;
    }
    if (with_ready) {
        take_apart(f, j, false);
        return;
    }
    messages->n_whole++;
    messages->n_uneven += uneven;
    note_lacking(f, joined, LACKS_WHOLE);
}

/* ---- all of them ---- */

/* Of servers only what their workers sent them and got from them is of the collective. */
static void take_exchange(struct message_finder *f, uint32_t j)
{
    struct joined *joined = &f->join->joined.at[j];
    if (joined->n_members < joined->n_expected)
        return;
    find_node_groups(f, joined);
    for (uint32_t k = 0; k < f->join->n_servers; k++)
        f->ends.unlogged[joined->n_members + k] = false;
    joined->has_node_groups = false;
    joined->has_servers = true;
    take_apart(f, j, false);
}

/* Takes one apart, if the logs that such have say enough. */
static void take_collective(struct message_finder *f, uint32_t j)
{
    struct joined *joined = &f->join->joined.at[j];
    const struct rank_build *rank = &f->join->ranks[joined->rank];
    const struct local_collective *c = JOIN_PART(f->join, joined);
    bool on_gpu = rank->ops.at[c->arrival].flags & GRAPH_OP_GPU;
    if (build_is_exchange(rank, c->arrival)) {
        take_exchange(f, j);
        return;
    }
    if (joined->n_members < 2 || joined->n_members < joined->n_expected)
        return;
    if (find_node_groups(f, joined) == 0) {
        bool could_be = on_gpu ? f->ends.has_nccl
                               : f->ends.has_gloo && on_comm_thread(rank, c) &&
                                     c->kind != DPRO_NEGOTIATE; /* that moves no tensors */
        f->messages->n_whole += could_be;
        if (could_be)
            note_lacking(f, joined, LACKS_WHOLE);
        return;
    }
    /* Where data are passed on, a ready message stands behind data for a reason. Where all send
     * what they had before, which of a rank's ready messages and data comes first is chance, and
     * must not decide when other ranks are faster or slower. And when a rank without a log sent
     * one, before it stood behind data, nothing tells. */
    bool passes_on = !on_gpu && c->kind == DPRO_ALL_REDUCE && joined->n_unlogged == 0;
    take_apart(f, j, passes_on);
    if (joined->n_messages > 0 && joined->n_unlogged > 0) {
        f->messages->n_partial++;
        note_lacking(f, joined, LACKS_PART);
    }
}

void messages_find(struct messages *messages, struct join *join, const struct dpro_trace *trace)
{
    struct message_finder f = {.join = join, .messages = messages};
    size_t n_ends = join->n_ranks + (size_t)join->n_servers;
    if (trace->n_transports + trace->n_nccl_logs == 0 || n_ends < 2)
        return;
    messages->n_samples = join->ranks[0].n_samples;
    messages->lacks = mem_array(join->n_ranks, 1);
    endpoints_index(&f.ends, join, trace);
    bool any = f.ends.has_gloo || f.ends.has_nccl || f.ends.has_ps;
    for (uint32_t j = 0; j < join->joined.n && any; j++)
        take_collective(&f, j);
    messages_cut_transfers(messages, join);
    endpoints_fini(&f.ends);
    FREE_ALL(&f.link_of, &f.place, &f.bytes, &f.shown);
}
