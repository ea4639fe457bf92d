/* ingest/byteps/byteps.c: BytePS's pushes and pulls, from what its nodes logged to what a worker's
 * profile, a transport log and a server's profile would show.
 *
 * Of a key a worker pushes (PUSH_REQ), the server says that it has it (PUSH_RES), the worker asks
 * for the sum (PULL_REQ) and gets it (PULL_RES): one *exchange*. The k-th request of a key and
 * worker has the k-th answer. Each moment is by the clock of the node whose log has it: over ZeroMQ
 * the sender notes when its sending begins and ends, over RDMA the receiver notes the end. */
#include "ingest/byteps/byteps.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/sort.h"
#include "ingest/horovod/timeline.h"
#include "ingest/load.h"
#include "ingest/reference/reference.h"

enum stage { PUSH_REQ, PUSH_RES, PULL_REQ, PULL_RES, N_STAGES = PS_STAGES };
enum { MAX_NODES = 4096, NAME_BYTES = 1024 };
static const int64_t NEVER = INT64_MIN;

struct sent {
    int64_t start_ns, end_ns; /* NEVER: not logged */
    int32_t start_by, end_by; /* nodes */
};

/* What one worker does with one key: its messages of each stage, in order. */
struct stream {
    int32_t worker, server; /* nodes */
    uint32_t tensor;        /* index */
    ARRAY(struct sent) sent[N_STAGES];
};

/* A tensor, or a part of it. */
struct tensor {
    char *name;          /* with ~PART behind it where it has parts */
    uint64_t size_bytes; /* 0: unknown */
};

struct node {
    int32_t id;            /* as logged */
    int32_t number;        /* of its role, as files and folders count */
    struct source *source; /* index: its transport is here */
    const char *path;      /* of its log; NULL: there is none */
    size_t n_streams;      /* that the profiles' steps have */
    size_t n_short;        /* of these it logged fewer messages than the other end */
};

struct joiner {
    struct loader *loader;
    ARRAY(struct tensor) tensors;
    ARRAY(struct stream) streams;
    struct map stream_of; /* worker, server, tensor -> index + 1 */
    struct map tensor_of; /* of a key: -> index + 1; of names: by their hash */
    ARRAY(struct node) nodes;
    int32_t n_workers; /* of the nodes */
    bool no_memory;
};

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* "worker_1.log", "rdma_3", "server_log_0.txt": the digits behind the last '_'; -1: none. */
static int32_t number_in_name(const char *path)
{
    char name[NAME_MAX + 1];
    snprintf(name, sizeof name, "%s", base_name(path));
    name[strcspn(name, ".")] = '\0';
    char *at = strrchr(name, '_'), *end;
    if (!at || at[1] < '0' || at[1] > '9')
        return -1;
    long number = strtol(at + 1, &end, 10);
    return *end || number > MAX_NODES ? -1 : (int32_t)number;
}

/* ---- nodes ---- */

static struct node *find_node(struct joiner *j, int32_t id)
{
    for (size_t n = 0; n < j->nodes.n; n++)
        if (j->nodes.at[n].id == id)
            return &j->nodes.at[n];
    return NULL;
}

/* A node by its number in ps-lite; where no log of it says otherwise it counts as ps-lite does. */
static struct node *node_of(struct joiner *j, int32_t id)
{
    struct node *known = find_node(j, id);
    struct node fresh = {.id = id, .number = (id - (byteps_is_worker(id) ? 9 : 8)) / 2};
    if (known || j->nodes.n >= MAX_NODES)
        return known;
    if (array_push(&j->nodes, fresh) < 0) {
        j->no_memory = true;
        return NULL;
    }
    return &j->nodes.at[j->nodes.n - 1];
}

/* The rank, or other process, that a node is: of a worker the first rank of its host. */
static int process_of(const struct joiner *j, const struct node *node)
{
    char name[32];
    if (!byteps_is_worker(node->id)) {
        int len = snprintf(name, sizeof name, "server%d", (int)node->number);
        return net_process_in(name, (size_t)len);
    }
    int rank = -1, by_number = -1;
    for (size_t i = 0; i < j->loader->list.n; i++) {
        const struct source *source = &j->loader->list.at[i];
        if (!source_is_profile(source) || source->rank < 0)
            continue;
        const char *host = strtab_get(&source->part.names, source->part.host);
        size_t digits = strlen(host);
        while (digits > 0 && host[digits - 1] >= '0' && host[digits - 1] <= '9')
            digits--;
        bool of_host = host[digits] && strtol(host + digits, NULL, 10) == node->number;
        if (of_host && (rank == -1 || source->rank < rank))
            rank = source->rank;
        if (source->rank == node->number)
            by_number = source->rank;
    }
    return rank == -1 ? by_number : rank;
}

/* ---- tensors ---- */

static uint64_t hash_name(const char *name)
{
    uint64_t hash = 1;
    for (; *name; name++)
        hash = map_mix(hash ^ (unsigned char)*name ^ 0x100);
    return hash | 1;
}

/* The index of a tensor by name; UINT32_MAX: no memory. */
static uint32_t tensor_named(struct joiner *j, const char *name)
{
    uint64_t known;
    if (map_get(&j->tensor_of, hash_name(name), &known))
        return (uint32_t)known;
    struct tensor fresh = {.name = strdup(name)};
    if (!fresh.name || array_push(&j->tensors, fresh) < 0 ||
        map_set(&j->tensor_of, hash_name(name), j->tensors.n - 1) < 0) {
        j->no_memory = true;
        return UINT32_MAX;
    }
    return (uint32_t)j->tensors.n - 1;
}

static uint64_t hash_key(uint64_t key)
{
    return map_mix(map_mix(key + 7) ^ 0x6b6579) | 1; /* apart from names */
}

/* What a tensor is called: by the gradient that its number stands for, where that is listed;
 * "byteps.Gradient.fc.weight" by PyTorch's name of the parameter. */
static void name_tensor(const struct joiner *j, const char *raw, char *name, size_t size)
{
    static const char prefix[] = "byteps.Gradient.";
    if (strncmp(raw, prefix, strlen(prefix)) == 0)
        raw += strlen(prefix);
    const char *part = strstr(raw, "~PART");
    char plain[NAME_BYTES];
    snprintf(plain, sizeof plain, "%.*s", (int)(part ? part - raw : (long)strlen(raw)), raw);
    reference_tensor_name(j->loader, plain, name, size);
    size_t len = strlen(name);
    snprintf(name + len, size - len, "%s", part ? part : "");
}

/* The tensors of all keys that key_dict.txt lists. */
static void list_keys(struct joiner *j)
{
    for (size_t i = 0; i < j->loader->list.n; i++) {
        const struct source *source = &j->loader->list.at[i];
        const struct byteps_part *byteps = source->part.byteps;
        for (size_t k = 0; byteps && k < byteps->keys.n && !j->no_memory; k++) {
            const struct byteps_key *key = &byteps->keys.at[k];
            char raw[NAME_BYTES], name[NAME_BYTES];
            int len =
                snprintf(raw, sizeof raw, "%.900s", strtab_get(&source->part.names, key->name));
            if (key->part >= 0)
                snprintf(raw + len, sizeof raw - (size_t)len, "~PART%d", (int)key->part);
            name_tensor(j, raw, name, sizeof name);
            uint32_t tensor = tensor_named(j, name);
            j->no_memory |= !j->no_memory && map_set(&j->tensor_of, hash_key(key->key), tensor) < 0;
        }
    }
}

/* The tensor of a key, or of a name in a timeline; UINT32_MAX: a key that no tensor has. */
static uint32_t tensor_of(struct joiner *j, const struct source *source, uint32_t name,
                          uint64_t key)
{
    char text[NAME_BYTES];
    uint64_t known;
    if (!name)
        return map_get(&j->tensor_of, hash_key(key), &known) ? (uint32_t)known : UINT32_MAX;
    name_tensor(j, strtab_get(&source->part.names, name), text, sizeof text);
    return tensor_named(j, text);
}

/* A part's bytes are an even share: what BytePS cuts at is not known. */
static void size_tensors(struct joiner *j)
{
    for (size_t t = 0; t < j->tensors.n; t++) {
        const char *name = j->tensors.at[t].name, *part = strstr(name, "~PART");
        size_t n_parts = 0;
        for (size_t k = 0; k < j->tensors.n && part; k++)
            n_parts += strncmp(j->tensors.at[k].name, name, (size_t)(part - name) + 5) == 0;
        j->tensors.at[t].size_bytes =
            reference_tensor_bytes(j->loader, name) / (n_parts ? n_parts : 1);
    }
}

/* ---- streams ---- */

static struct stream *stream_of(struct joiner *j, int32_t worker, int32_t server, uint32_t tensor)
{
    uint64_t key =
        map_mix(map_mix((uint64_t)(uint32_t)worker << 32 | (uint32_t)server) + tensor) | 1;
    uint64_t known;
    if (map_get(&j->stream_of, key, &known))
        return &j->streams.at[known];
    struct stream fresh = {.worker = worker, .server = server, .tensor = tensor};
    if (array_push(&j->streams, fresh) < 0 || map_set(&j->stream_of, key, j->streams.n - 1) < 0) {
        j->no_memory = true;
        return NULL;
    }
    return &j->streams.at[j->streams.n - 1];
}

struct moment {
    int64_t time_ns;
    int32_t by;
    uint32_t stream;
    uint8_t stage;
    bool starts;
};
typedef ARRAY(struct moment) moments;

ORDER(by_time, struct moment, ASCENDING(stream) ?: ASCENDING(stage) ?: DESCENDING(starts) ?: ASCENDING(time_ns));

/* The k-th beginning of a stage has the k-th end. */
static void pair_moments(struct joiner *j, const moments *list)
{
    for (size_t i = 0, starts, end; i < list->n && !j->no_memory; i = end) {
        const struct moment *first = &list->at[i];
        for (starts = i; starts < list->n && list->at[starts].stream == first->stream &&
                         list->at[starts].stage == first->stage && list->at[starts].starts;
             starts++)
            ;
        for (end = starts; end < list->n && list->at[end].stream == first->stream &&
                           list->at[end].stage == first->stage;
             end++)
            ;
        struct stream *stream = &j->streams.at[first->stream];
        for (size_t k = i; k < starts && !j->no_memory; k++) {
            struct sent sent = {list->at[k].time_ns, NEVER, list->at[k].by, 0};
            if (starts + (k - i) < end) {
                sent.end_ns = list->at[starts + (k - i)].time_ns;
                sent.end_by = list->at[starts + (k - i)].by;
            }
            j->no_memory = array_push(&stream->sent[first->stage], sent) < 0;
        }
    }
}

/* Returns how many messages are of keys that no tensor has. */
static uint64_t list_streams(struct joiner *j)
{
    moments list = {0};
    uint64_t n_unknown = 0;
    for (size_t i = 0; i < j->loader->list.n; i++) {
        const struct source *source = &j->loader->list.at[i];
        const struct byteps_part *byteps = source->part.byteps;
        for (size_t m = 0; byteps && m < byteps->moments.n && !j->no_memory; m++) {
            const struct byteps_moment *from = &byteps->moments.at[m];
            uint32_t tensor = tensor_of(j, source, from->name, from->key);
            bool request = from->flags & BYTEPS_REQUEST;
            bool push = from->flags & BYTEPS_PUSH;
            if (request != byteps_is_worker(from->from))
                continue;
            n_unknown += tensor == UINT32_MAX;
            struct stream *stream = tensor == UINT32_MAX
                                        ? NULL
                                        : stream_of(j, request ? from->from : from->to,
                                                    request ? from->to : from->from, tensor);
            struct moment moment = {from->time_ns, from->logged_by ? from->logged_by : from->from,
                                    0,
                                    (uint8_t)(push      ? request ? PUSH_REQ : PUSH_RES
                                              : request ? PULL_REQ
                                                        : PULL_RES),
                                    from->flags & BYTEPS_STARTS};
            if (!stream)
                continue;
            moment.stream = (uint32_t)(stream - j->streams.at);
            j->no_memory |= array_push(&list, moment) < 0;
        }
    }
    array_sort(&list, by_time);
    pair_moments(j, &list);
    array_fini(&list);
    return n_unknown;
}

/* ---- exchanges ---- */

/* How far ahead of the worker's the server's clock is, about: an answer is sent after its request,
 * and a pull after the push's answer. */
static int64_t clock_ahead(const struct stream *s)
{
    int64_t most = INT64_MAX, least = INT64_MIN;
    for (size_t k = 0; k < s->sent[PUSH_RES].n && k < s->sent[PUSH_REQ].n; k++) {
        int64_t ahead = s->sent[PUSH_RES].at[k].start_ns - s->sent[PUSH_REQ].at[k].start_ns;
        most = ahead < most ? ahead : most;
    }
    size_t n_pulls = s->sent[PULL_REQ].n, n_pushes = s->sent[PUSH_RES].n;
    for (size_t k = 0; k < n_pulls && k < n_pushes && s->sent[PULL_RES].n == n_pulls; k++) {
        const struct sent *answer = &s->sent[PUSH_RES].at[n_pushes - 1 - k];
        int64_t ahead = answer->start_ns - s->sent[PULL_REQ].at[n_pulls - 1 - k].start_ns;
        least = ahead > least ? ahead : least;
    }
    if (most == INT64_MAX)
        return least == INT64_MIN ? 0 : least;
    return least == INT64_MIN || least > most ? most : least + (most - least) / 2;
}

/* Pull k of a stream and the push before it; UINT32_MAX: there is none. */
static size_t push_before(const struct stream *s, size_t pull)
{
    size_t k = s->sent[PUSH_REQ].n;
    while (k > 0 && s->sent[PUSH_REQ].at[k - 1].start_ns > s->sent[PULL_REQ].at[pull].start_ns)
        k--;
    return k == 0 ? SIZE_MAX : k - 1;
}

static uint32_t add_track(struct joiner *j, struct source *source, const char *name)
{
    struct part_track fresh = {.track = {.id = (int64_t)source->part.tracks.n + 1000000}};
    fresh.track.name = strtab_add(&source->part.names, name, strlen(name));
    j->no_memory |= fresh.track.name == STRTAB_FULL || array_push(&source->part.tracks, fresh) < 0;
    return (uint32_t)source->part.tracks.n - 1;
}

static void add_span(struct joiner *j, struct source *source, struct trace_span span)
{
    span.start_ns -= source->part.base_ns; /* which is added to all of its spans */
    span.sequence = -1;
    span.parent = span.node = NO_ID;
    j->no_memory = j->no_memory || !part_place_span(&source->part, &span);
}

static struct trace_detail detail_of(struct joiner *j, struct source *source,
                                     const struct tensor *tensor)
{
    struct trace_detail detail = {.peer = -1, .comm_sequence = -1, .wait_stream = -1};
    struct strtab *names = &source->part.names;
    detail.process_group = strtab_add(names, tensor->name, strlen(tensor->name));
    detail.collective = strtab_add(names, "push_pull", 9);
    detail.dtype = strtab_add(names, "float32", 7);
    detail.numel = tensor->size_bytes / 4;
    j->no_memory |= detail.process_group == STRTAB_FULL || detail.collective == STRTAB_FULL ||
                    detail.dtype == STRTAB_FULL;
    return detail;
}

/* ---- transports ---- */

/* Who is at an end of a connection that no address is known of. */
static struct net_address address_of(const struct node *node, const struct node *peer)
{
    struct net_address address = {.family = NET_FAMILY_NODE, .port = (uint16_t)peer->id};
    uint64_t process = (uint64_t)node->number << 1 | byteps_is_worker(node->id);
    memcpy(address.ip, &process, sizeof process);
    return address;
}

static struct net_transport *transport_of(struct joiner *j, struct node *node)
{
    struct source *source = node->source;
    if (!source)
        return NULL;
    if (!source->part.transport) {
        source->part.transport = calloc(1, sizeof *source->part.transport);
        j->no_memory |= !source->part.transport;
        if (source->part.transport) {
            source->part.transport->by_sender = true;
            source->part.transport->numbered = true;
        }
    }
    return source->part.transport;
}

/* The stream of what a node sends to another; UINT32_MAX: no memory. */
static uint32_t connect_nodes(struct joiner *j, struct node *node, struct node *peer)
{
    struct net_transport *t = transport_of(j, node);
    struct net_connection fresh = {.number = (uint32_t)peer->id,
                                   .local = address_of(node, peer),
                                   .remote = address_of(peer, node),
                                   .peer = NO_ID,
                                   .peer_connection = NO_ID,
                                   .context = NO_ID,
                                   .whole = true};
    for (size_t c = 0; t && c < t->connections.n; c++)
        if (t->connections.at[c].number == fresh.number)
            return (uint32_t)c * 2;
    if (!t || array_push(&t->connections, fresh) < 0) {
        j->no_memory = true;
        return UINT32_MAX;
    }
    return (uint32_t)(t->connections.n - 1) * 2;
}

/* One message at both its ends: the sender's, and where that is known the receiver's time. */
static void add_message(struct joiner *j, const struct stream *s, enum stage stage,
                        const struct sent *sent, uint32_t exchange)
{
    bool request = stage == PUSH_REQ || stage == PULL_REQ;
    struct node *from = find_node(j, request ? s->worker : s->server);
    struct node *to = find_node(j, request ? s->server : s->worker);
    uint64_t size = j->tensors.at[s->tensor].size_bytes;
    bool by_receiver = sent->end_ns != NEVER && sent->end_by == to->id;
    bool carries = stage == PUSH_REQ || stage == PULL_RES;
    struct ps_message message = {
        .size_bytes = 1,
        .key = s->tensor,
        .data_bytes = carries ? size ? size : 1 : 0,
        .sent_ns = NEVER,
        .span = NO_ID,
        .timestamp = (int32_t)exchange,
        .flags = (uint8_t)((request ? PS_REQUEST : 0) | (stage <= PUSH_RES ? PS_PUSH : PS_PULL))};
    for (int side = 0; side < 2 && !j->no_memory; side++) {
        struct node *own = side ? to : from, *peer = side ? from : to;
        uint32_t stream = connect_nodes(j, own, peer);
        if (stream == UINT32_MAX)
            return;
        struct net_transport *t = own->source->part.transport;
        message.stream = stream + (uint32_t)side;
        message.received = side;
        message.offset = (uint64_t)exchange * N_STAGES + stage; /* alike at both ends */
        message.start_ns = side ? by_receiver ? sent->end_ns : NEVER : sent->start_ns;
        message.end_ns = side ? message.start_ns : by_receiver ? sent->start_ns : sent->end_ns;
        if (!side && message.end_ns == NEVER)
            message.end_ns = message.start_ns;
        j->no_memory |= array_push(&t->ps, message) < 0;
    }
}

/* ---- one worker's exchanges ---- */

static struct source *profile_of(struct loader *loader, int rank)
{
    for (size_t i = 0; i < loader->list.n; i++)
        if (source_is_profile(&loader->list.at[i]) && loader->list.at[i].rank == rank)
            return &loader->list.at[i];
    return NULL;
}

/* The exchanges of a key that lie in the time of the worker's profile. */
static void add_exchanges(struct joiner *j, struct stream *s, struct source *profile,
                          int64_t first_ns, int64_t last_ns, uint32_t *n)
{
    const struct tensor *tensor = &j->tensors.at[s->tensor];
    struct node *server = find_node(j, s->server), *worker = find_node(j, s->worker);
    int64_t ahead_ns = clock_ahead(s);
    uint32_t track = NO_ID, span_name = 0;
    char name[NAME_BYTES + 16];
    bool answered =
        s->sent[PUSH_RES].n == s->sent[PUSH_REQ].n && s->sent[PULL_RES].n == s->sent[PULL_REQ].n;
    for (size_t k = 0; k < s->sent[PULL_REQ].n && !j->no_memory; k++) {
        size_t push = push_before(s, k);
        if (push == SIZE_MAX || s->sent[PUSH_REQ].at[push].start_ns < first_ns ||
            s->sent[PUSH_REQ].at[push].start_ns > last_ns)
            continue;
        const struct sent *of[N_STAGES] = {&s->sent[PUSH_REQ].at[push], NULL,
                                           &s->sent[PULL_REQ].at[k], NULL};
        int64_t end_ns = of[PULL_REQ]->end_ns != NEVER && of[PULL_REQ]->end_by == s->worker
                             ? of[PULL_REQ]->end_ns
                             : of[PULL_REQ]->start_ns;
        if (answered) {
            of[PUSH_RES] = &s->sent[PUSH_RES].at[push];
            of[PULL_RES] = &s->sent[PULL_RES].at[k];
            const struct sent *last = of[PULL_RES];
            int64_t over = last->end_ns == NEVER ? last->start_ns : last->end_ns;
            if (last->end_ns == NEVER || last->end_by != s->worker)
                over -= ahead_ns;
            end_ns = over > end_ns ? over : end_ns;
        }
        if (track == NO_ID) {
            snprintf(name, sizeof name, "BytePSPushPull.%s", tensor->name);
            span_name = strtab_add(&profile->part.names, name, strlen(name));
            j->no_memory |= span_name == STRTAB_FULL;
            track = add_track(j, profile, "BytePS");
        }
        struct trace_detail detail = detail_of(j, profile, tensor);
        detail.group_size = j->n_workers; /* not all ranks, where hosts have several GPUs */
        j->no_memory |= array_push(&profile->part.details, detail) < 0;
        struct trace_span span = {.start_ns = of[PUSH_REQ]->start_ns,
                                  .dur_ns = end_ns - of[PUSH_REQ]->start_ns,
                                  .name = span_name,
                                  .track = track,
                                  .correlation = (uint64_t)*n + 1,
                                  .detail = (uint32_t)profile->part.details.n - 1,
                                  .kind = SPAN_COLLECTIVE};
        add_span(j, profile, span);
        for (int stage = 0; stage < N_STAGES && !j->no_memory; stage++)
            if (of[stage] && answered && server->source && worker->source)
                add_message(j, s, (enum stage)stage, of[stage], *n);
        ++*n;
    }
}

/* ---- what servers do ---- */

struct done {
    int64_t time_ns;
    uint32_t tensor, thread;
    uint8_t op;
    bool starts;
};

ORDER(by_work, struct done,
      ASCENDING(thread) ?: ASCENDING(tensor) ?: ASCENDING(op) ?: ASCENDING(time_ns) ?: DESCENDING(starts));

static void add_work(struct joiner *j, struct source *target, const struct source *from,
                     int32_t server)
{
    static const char *const names[N_BYTEPS_OPS] = {"COPY_FIRST", "SUM", "COPY_MERGED"};
    ARRAY(struct done) list = {0};
    const struct byteps_part *byteps = from->part.byteps;
    uint32_t track = NO_ID, thread = 0;
    for (size_t i = 0; i < byteps->work.n && !j->no_memory; i++) {
        const struct byteps_work *work = &byteps->work.at[i];
        struct done done = {work->time_ns, tensor_of(j, from, work->name, work->key), work->thread,
                            work->op, work->starts};
        if (work->server == server && done.tensor != UINT32_MAX)
            j->no_memory |= array_push(&list, done) < 0;
    }
    array_sort(&list, by_work);
    for (size_t i = 0; i < list.n && !j->no_memory; i++) {
        const struct done *start = &list.at[i], *stop = start + 1;
        bool paired = i + 1 < list.n && start->starts && !stop->starts &&
                      stop->thread == start->thread && stop->tensor == start->tensor &&
                      stop->op == start->op;
        if (!paired) {
            target->part.losses.n_unpaired++;
            continue;
        }
        if (track == NO_ID || thread != start->thread) {
            thread = start->thread;
            track = add_track(j, target, "server thread");
        }
        struct trace_detail detail = detail_of(j, target, &j->tensors.at[start->tensor]);
        struct trace_span span = {.start_ns = start->time_ns,
                                  .dur_ns = stop->time_ns - start->time_ns,
                                  .track = track,
                                  .kind = SPAN_CPU_OP};
        span.name = strtab_add(&target->part.names, names[start->op], strlen(names[start->op]));
        j->no_memory |= span.name == STRTAB_FULL || array_push(&target->part.details, detail) < 0;
        span.detail = (uint32_t)target->part.details.n - 1;
        add_span(j, target, span);
        i++;
    }
    array_fini(&list);
}

/* A server copies each sum that is pulled: says when its log has fewer of them. */
static void check_work(struct joiner *j, const struct source *from, int32_t server)
{
    const struct byteps_part *byteps = from->part.byteps;
    size_t *n_pulled = calloc(j->tensors.n + 1, sizeof *n_pulled), n_all = 0, n_told = 0;
    j->no_memory |= !n_pulled;
    for (size_t s = 0; s < j->streams.n && !j->no_memory; s++) {
        const struct stream *stream = &j->streams.at[s];
        const struct node *node = find_node(j, stream->server);
        size_t *most = &n_pulled[stream->tensor];
        if (node && node->number == server && stream->sent[PULL_REQ].n > *most)
            *most = stream->sent[PULL_REQ].n;
    }
    for (size_t t = 0; t < j->tensors.n && !j->no_memory; t++)
        n_all += n_pulled[t];
    for (size_t w = 0; w < byteps->work.n && !j->no_memory; w++) {
        const struct byteps_work *work = &byteps->work.at[w];
        uint32_t tensor = tensor_of(j, from, work->name, work->key);
        if (work->server != server || work->op != BYTEPS_COPY_MERGED || work->starts ||
            tensor == UINT32_MAX || tensor >= j->tensors.n || n_pulled[tensor] == 0)
            continue;
        n_pulled[tensor]--;
        n_told++;
    }
    if (n_told < n_all && !j->no_memory)
        trace_warn(j->loader->trace, &j->loader->options->sink,
                   "%s: tells of %zu of the %zu sums that were pulled from server %d; the others' "
                   "times are taken from these; was it cut short?",
                   from->path, n_told, n_all, (int)server);
    free(n_pulled);
}

/* ---- sources ---- */

/* A source of its own for a node of which a file tells beside others. */
static struct source *add_source(struct joiner *j, const struct source *like, int rank)
{
    struct source fresh = {.path = strdup(like->path), .kind = like->kind, .rank = rank};
    fresh.device = like->device;
    fresh.inode = like->inode;
    if (!fresh.path || strtab_add(&fresh.part.names, "", 0) == STRTAB_FULL ||
        array_push(&j->loader->list, fresh) < 0) {
        free(fresh.path);
        strtab_fini(&fresh.part.names);
        j->no_memory = true;
        return NULL;
    }
    return &j->loader->list.at[j->loader->list.n - 1];
}

/* Gives each node the source that will hold its transport; a node's own log, else a timeline. These
 * may be added to the list, which moves: so nodes know them by index first. */
static void give_sources(struct joiner *j)
{
    struct loader *loader = j->loader;
    size_t *index = malloc((j->nodes.n + 1) * sizeof *index), n_own = loader->list.n;
    j->no_memory |= !index;
    for (size_t n = 0; n < j->nodes.n && !j->no_memory; n++) {
        const struct node *node = &j->nodes.at[n];
        size_t timeline = SIZE_MAX;
        int process = process_of(j, node);
        index[n] = SIZE_MAX;
        for (size_t i = 0; i < n_own; i++) {
            const struct byteps_part *byteps = loader->list.at[i].part.byteps;
            if (!byteps || byteps->moments.n == 0)
                continue;
            if (byteps->node == node->id)
                index[n] = i;
            if (byteps->node == 0 && timeline == SIZE_MAX)
                timeline = i;
        }
        if (process == -1)
            continue;
        if (index[n] == SIZE_MAX && timeline != SIZE_MAX) {
            struct source like = loader->list.at[timeline];
            index[n] = add_source(j, &like, process) ? loader->list.n - 1 : SIZE_MAX;
        }
        if (index[n] != SIZE_MAX)
            loader->list.at[index[n]].rank = process;
    }
    for (size_t n = 0; n < j->nodes.n && !j->no_memory; n++)
        j->nodes.at[n].source = index[n] == SIZE_MAX || process_of(j, &j->nodes.at[n]) == -1
                                    ? NULL
                                    : &loader->list.at[index[n]];
    free(index);
}

static bool works_in(const struct byteps_part *byteps, int32_t server)
{
    for (size_t w = 0; w < byteps->work.n; w++)
        if (byteps->work.at[w].server == server)
            return true;
    return false;
}

/* The servers whose work some file tells. */
static void give_server_profiles(struct joiner *j)
{
    size_t n_own = j->loader->list.n;
    for (size_t i = 0; i < n_own && !j->no_memory; i++) {
        struct source *source = &j->loader->list.at[i];
        struct byteps_part *byteps = source->part.byteps;
        int32_t most = -1, own = number_in_name(source->path);
        if (!byteps || byteps->work.n == 0)
            continue;
        for (size_t w = 0; w < byteps->work.n; w++) {
            struct byteps_work *work = &byteps->work.at[w];
            if (work->server < 0)
                work->server = own < 0 ? 0 : own;
            most = work->server > most && work->server < MAX_NODES ? work->server : most;
        }
        bool first = true;
        for (int32_t server = 0; server <= most && !j->no_memory; server++) {
            char name[32];
            int process =
                net_process_in(name, (size_t)snprintf(name, sizeof name, "server%d", (int)server));
            struct source like = j->loader->list.at[i], *target = &j->loader->list.at[i];
            if (!works_in(byteps, server))
                continue;
            if (!first)
                target = add_source(j, &like, process);
            if (target) {
                target->rank = process;
                add_work(j, target, &j->loader->list.at[i], server);
                check_work(j, &j->loader->list.at[i], server);
            }
            first = false;
        }
    }
}

/* ---- all of it ---- */

/* Of a stream that has not as many answers as requests. */
static void blame(struct joiner *j, const struct stream *s)
{
    size_t n_requests = s->sent[PUSH_REQ].n + s->sent[PULL_REQ].n;
    size_t n_answers = s->sent[PUSH_RES].n + s->sent[PULL_RES].n;
    struct node *server = find_node(j, s->server), *worker = find_node(j, s->worker);
    bool uneven =
        s->sent[PUSH_RES].n != s->sent[PUSH_REQ].n || s->sent[PULL_RES].n != s->sent[PULL_REQ].n;
    server->n_streams++;
    worker->n_streams++;
    server->n_short += uneven && n_answers < n_requests;
    worker->n_short += uneven && n_answers >= n_requests;
}

static void warn_node(struct joiner *j, const struct node *node, const char *path)
{
    const char *role = byteps_is_worker(node->id) ? "worker" : "server";
    if (!node->path)
        trace_warn(j->loader->trace, &j->loader->options->sink,
                   "%s: there is no log of %s %d (node %d) beside it: %s; add its log", path, role,
                   (int)node->number, (int)node->id,
                   byteps_is_worker(node->id)
                       ? "when it pushed and pulled is not known"
                       : "what workers exchange with it is replayed whole, not message by message");
    else
        trace_warn(j->loader->trace, &j->loader->options->sink,
                   "%s: of %zu of %s %d's %zu exchanges of a key with a node it tells less than "
                   "that node's log: these are replayed whole, not message by message; was it cut "
                   "short?",
                   node->path, node->n_short, role, (int)node->number, node->n_streams);
}

static void warn(struct joiner *j, const char *path, uint64_t n_unknown)
{
    if (n_unknown > 0)
        trace_warn(j->loader->trace, &j->loader->options->sink,
                   "%s: %" PRIu64 " messages are of keys that no tensor has, and are left out; is "
                   "key_dict.txt of this run here, and whole?",
                   path, n_unknown);
    for (size_t n = 0; n < j->nodes.n; n++)
        if (j->nodes.at[n].n_short > 0)
            warn_node(j, &j->nodes.at[n], path);
}

static void join_workers(struct joiner *j)
{
    for (size_t n = 0; n < j->nodes.n; n++)
        j->n_workers += byteps_is_worker(j->nodes.at[n].id);
    for (size_t n = 0; n < j->nodes.n && !j->no_memory; n++) {
        const struct node *node = &j->nodes.at[n];
        int rank = byteps_is_worker(node->id) ? process_of(j, node) : -1;
        struct source *profile = rank >= 0 ? profile_of(j->loader, rank) : NULL;
        int64_t first_ns = profile ? profile->part.start_ns : 0;
        int64_t last_ns = profile ? profile->part.end_ns : 0;
        uint32_t n_exchanges = 0;
        for (size_t s = 0; s < j->streams.n && profile && !j->no_memory; s++) {
            struct stream *stream = &j->streams.at[s];
            if (stream->worker != node->id || !find_node(j, stream->server))
                continue;
            blame(j, stream);
            add_exchanges(j, stream, profile, first_ns, last_ns, &n_exchanges);
        }
    }
}

/* Which log is whose; in a timeline that was made from them are all of them. */
static void find_logs(struct joiner *j)
{
    for (size_t i = 0; i < j->loader->list.n && !j->no_memory; i++) {
        const struct source *source = &j->loader->list.at[i];
        const struct byteps_part *byteps = source->part.byteps;
        for (size_t m = 0; byteps && m < byteps->moments.n; m++) {
            const struct byteps_moment *moment = &byteps->moments.at[m];
            struct node *by = find_node(j, moment->logged_by ? moment->logged_by : moment->from);
            if (by && !by->path)
                by->path = source->path;
        }
    }
}

/* ---- BytePS's own traces, where there are no logs ---- */

/* Whether a rank's transport log has its pushes and pulls. */
static bool is_on_wire(const struct loader *loader, int rank)
{
    for (size_t i = 0; i < loader->list.n; i++) {
        const struct source *source = &loader->list.at[i];
        if (source->rank == rank && source_usable(source) && source->part.transport &&
            byteps_n_exchanges(source->part.transport) > 0)
            return true;
    }
    return false;
}

static const struct timeline *timeline_of(const struct source *source)
{
    const struct timeline *t = source_usable(source) ? source->part.timeline : NULL;
    return t && t->writer == TIMELINE_BYTEPS && t->on_epoch ? t : NULL;
}

/* The tensor of one in a timeline, as a key's; UINT32_MAX: no memory. */
static uint32_t traced_tensor(struct joiner *j, const struct source *source, uint32_t index)
{
    const struct timeline *timeline = source->part.timeline;
    const struct timeline_tensor *t = &timeline->tensors.at[index];
    char raw[NAME_BYTES], name[NAME_BYTES];
    bool parts = false;
    for (size_t i = 0; i < timeline->tensors.n; i++)
        parts |= timeline->tensors.at[i].name == t->name && timeline->tensors.at[i].partition > 0;
    int len = snprintf(raw, sizeof raw, "%.900s", strtab_get(&source->part.names, t->name));
    if (parts)
        snprintf(raw + len, sizeof raw - (size_t)len, "~PART%d", (int)t->partition);
    name_tensor(j, raw, name, sizeof name);
    return tensor_named(j, name);
}

/* From a push's begin, copying it to the host included, to the pull's end: one exchange, whole. */
static void add_runs(struct joiner *j, const struct source *source, struct source *profile)
{
    const struct timeline *timeline = source->part.timeline;
    uint32_t *tracks = malloc((timeline->tensors.n + 1) * sizeof *tracks);
    j->no_memory |= !tracks;
    for (size_t t = 0; t < timeline->tensors.n && !j->no_memory; t++)
        tracks[t] = NO_ID;
    for (size_t r = 0; r < timeline->runs.n && !j->no_memory; r++) {
        const struct timeline_run *run = &timeline->runs.at[r];
        uint32_t index = traced_tensor(j, source, run->tensor);
        if (!timeline_has(run, STAGE_PUSH) || !timeline_has(run, STAGE_PULL) ||
            run->whole.start_ns < profile->part.start_ns ||
            run->whole.start_ns > profile->part.end_ns || index == UINT32_MAX)
            continue;
        const struct tensor *tensor = &j->tensors.at[index];
        char name[NAME_BYTES + 16];
        int len = snprintf(name, sizeof name, "BytePSPushPull.%s", tensor->name);
        struct trace_detail detail = detail_of(j, profile, tensor);
        detail.group_size = j->n_workers;
        j->no_memory |= array_push(&profile->part.details, detail) < 0;
        struct trace_span span = {.start_ns = run->whole.start_ns,
                                  .dur_ns = run->whole.end_ns - run->whole.start_ns,
                                  .detail = (uint32_t)profile->part.details.n - 1,
                                  .kind = SPAN_COLLECTIVE};
        if (tracks[run->tensor] == NO_ID)
            tracks[run->tensor] = add_track(j, profile, "BytePS");
        span.track = tracks[run->tensor];
        span.name = strtab_add(&profile->part.names, name, (size_t)len);
        j->no_memory |= span.name == STRTAB_FULL;
        if (!j->no_memory)
            add_span(j, profile, span);
    }
    free(tracks);
}

static void join_timelines(struct joiner *j)
{
    struct loader *loader = j->loader;
    for (size_t i = 0; i < loader->list.n && !j->no_memory; i++) {
        const struct source *source = &loader->list.at[i];
        const struct timeline *timeline = timeline_of(source);
        for (size_t t = 0; timeline && t < timeline->tensors.n && !j->no_memory; t++)
            traced_tensor(j, source, (uint32_t)t);
        j->n_workers += timeline && profile_of(loader, source->rank);
    }
    if (j->n_workers == 0)
        return;
    size_tensors(j);
    for (size_t i = 0; i < loader->list.n && !j->no_memory; i++) {
        const struct source *source = &loader->list.at[i];
        struct source *profile = timeline_of(source) ? profile_of(loader, source->rank) : NULL;
        if (profile && !is_on_wire(loader, source->rank))
            add_runs(j, source, profile);
    }
}

static int joiner_fini(struct joiner *j, struct dpro_error *err)
{
    for (size_t t = 0; t < j->tensors.n; t++)
        free(j->tensors.at[t].name);
    for (size_t s = 0; s < j->streams.n; s++)
        for (int stage = 0; stage < N_STAGES; stage++)
            array_fini(&j->streams.at[s].sent[stage]);
    array_fini(&j->tensors);
    array_fini(&j->streams);
    array_fini(&j->nodes);
    map_fini(&j->stream_of);
    map_fini(&j->tensor_of);
    return j->no_memory ? dpro_error_nomem(err) : 0;
}

int byteps_join(struct loader *loader, struct dpro_error *err)
{
    struct joiner j = {.loader = loader};
    const char *path = NULL;
    for (size_t i = 0; i < loader->list.n && !j.no_memory; i++) {
        const struct source *source = &loader->list.at[i];
        const struct byteps_part *byteps = source->part.byteps;
        if (byteps && !path && byteps->moments.n > 0)
            path = source->path;
        struct node *node = byteps && byteps->node ? node_of(&j, byteps->node) : NULL;
        if (node && number_in_name(source->path) >= 0)
            node->number = number_in_name(source->path);
    }
    if (!path) {
        join_timelines(&j);
        return joiner_fini(&j, err);
    }
    list_keys(&j);
    uint64_t n_unknown = list_streams(&j);
    for (size_t s = 0; s < j.streams.n && !j.no_memory; s++) {
        node_of(&j, j.streams.at[s].worker);
        node_of(&j, j.streams.at[s].server);
    }
    find_logs(&j);
    size_tensors(&j);
    give_server_profiles(&j);
    give_sources(&j);
    join_workers(&j);
    if (!j.no_memory)
        warn(&j, path, n_unknown);
    return joiner_fini(&j, err);
}

/* ---- spans ---- */

int byteps_tie(struct dpro_trace *trace)
{
    for (uint32_t n = 0; n < trace->n_transports; n++) {
        struct net_transport *t = &trace->transports[n];
        struct map span_of = {0}; /* exchange + 1 -> span */
        int status = 0;
        if (!t->by_sender || t->rank_index == NO_ID)
            continue;
        const struct trace_rank *rank = &trace->ranks[t->rank_index];
        for (uint32_t s = 0; s < rank->n_spans && status == 0; s++)
            if (rank->spans[s].kind == SPAN_COLLECTIVE && rank->spans[s].correlation)
                status = map_set(&span_of, rank->spans[s].correlation, s);
        for (size_t m = 0; m < t->ps.n; m++) {
            uint64_t span;
            if (map_get(&span_of, (uint64_t)(uint32_t)t->ps.at[m].timestamp + 1, &span))
                t->ps.at[m].span = (uint32_t)span;
        }
        map_fini(&span_of);
        if (status < 0)
            return -1;
    }
    return 0;
}
