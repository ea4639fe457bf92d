/* The messages of a collective, and their replay.
 *
 * An algorithm is written once, as a list of messages in the order in which links carry them. The
 * replay here is one pass over the list; tests/unit/model_graph.c makes SEND and RECV ops of it.
 * Segments and chunks of a step are all as long as the longest, as libraries pad them.
 *
 * If a ring adds up no slower than its links transfer, chunks queue only for the link. A step
 * begins when the one before has left the link, or when its first chunk has come through, whichever
 * is later. That is a closed form. */
#include "cost/program/sync.h"

enum {
    MAX_CHUNKS = 256, /* of a step; beyond, chunks get larger */
    CACHE_BITS = 13,
};

/* One chunk's share of time; MAX_CHUNKS of them in each step of 4096 ranks' ring fit in 63 bits. */
static const int64_t LONGEST_NS = 4000000000000;

static uint64_t divide_up(uint64_t a, uint64_t b)
{
    return a / b + (a % b != 0);
}

struct chunks {
    uint32_t n;
    uint64_t bytes; /* of each */
};

static struct chunks sync_cut(const struct model_net *net, uint64_t bytes)
{
    uint64_t most = net->link.chunk_bytes, n = most ? divide_up(bytes, most) : 1;
    n = MAX(MIN(n, (uint64_t)MAX_CHUNKS), 1);
    return (struct chunks){(uint32_t)n, divide_up(bytes, n)};
}

int64_t sync_ns(struct dpro_estimate each_ns, uint64_t n)
{
    double ns = (double)n * each_ns.value;
    return ns > (double)LONGEST_NS ? LONGEST_NS : ns > 0 ? (int64_t)ceil(ns) : 0;
}

int64_t sync_wire_ns(const struct model_net *net, const struct sync_message *message)
{
    return sync_ns(message->within ? net->link.within_ns : net->link.byte_ns, message->bytes);
}

int64_t sync_message_ns(const struct model_net *net, const struct sync_message *message)
{
    return sync_ns(message->within ? net->link.within_message_ns : net->link.message_ns, 1);
}

uint32_t sync_n_servers(const struct model_net *net)
{
    return net->collective.algorithm != MODEL_SERVER ? 0 : net->servers.n ? net->servers.n : 1;
}

/* Of the first n servers, those on hosts of their own. */
static uint32_t count_apart(const struct model_net *net, uint32_t n)
{
    uint32_t n_apart = 0;
    for (uint32_t s = 0; s < n; s++)
        n_apart += !net->servers.hosts || net->servers.hosts[s] < 0;
    return n_apart;
}

uint32_t sync_server_node(const struct model_net *net, uint32_t server)
{
    if (net->servers.hosts && net->servers.hosts[server] >= 0)
        return (uint32_t)net->servers.hosts[server];
    return net->collective.n_ranks + count_apart(net, server);
}

uint32_t sync_n_nodes(const struct model_net *net)
{
    return net->collective.n_ranks + count_apart(net, sync_n_servers(net));
}

/* Hosts that can't be filled evenly are taken for one ring. */
static uint32_t ranks_a_host(const struct model_net *net)
{
    uint32_t n = net->collective.ranks_per_host;
    return net->collective.algorithm == MODEL_HIERARCHICAL && n > 0 &&
                   net->collective.n_ranks % n == 0
               ? n
               : net->collective.n_ranks;
}

/* ---- the messages ---- */

struct lister {
    struct sync_messages *m;
    const struct model_net *net;
    uint32_t n_nodes; /* in the list: 1 if one stands for all */
    bool within;      /* what is added stays on its host */
};

/* The number of the message. */
static uint32_t sync_add(const struct lister *l, uint32_t from, uint32_t to, uint64_t bytes,
                         uint32_t needs, bool adds)
{
    struct sync_message message = {
        from % l->n_nodes, to % l->n_nodes, needs, adds, l->within, bytes};
    array_push(&l->m->list, message);
    return (uint32_t)l->m->list.n - 1;
}

/* A table of n message numbers, none yet. */
static uint32_t *sync_table(const struct lister *l, size_t n)
{
    l->m->received.n = 0;
    array_reserve(&l->m->received, n + 1);
    memset(l->m->received.at, 0xff, n * sizeof(uint32_t));
    return l->m->received.at;
}

/* Ranks h * width + l, all l and h, in one ring for each h (stride 1) or each l (stride width). */
struct rings {
    uint32_t width, stride;
};

static uint32_t sync_neighbour(const struct lister *l, const struct rings *rings, uint32_t rank,
                               bool before)
{
    uint32_t n = rings->stride == 1 ? rings->width : l->net->collective.n_ranks / rings->width;
    uint32_t place = rank / rings->stride % n, next = (place + (before ? n - 1 : 1)) % n;
    return rank - place * rings->stride + next * rings->stride;
}

/* Steps around rings; last[] is each node's last message from before and becomes that of here. */
static void add_ring_steps(const struct lister *l, const struct rings *rings, uint32_t n_steps,
                           uint32_t n_adding, uint64_t bytes, uint32_t *last)
{
    uint32_t n = l->n_nodes;
    struct chunks chunks = sync_cut(l->net, bytes);
    size_t first = l->m->list.n, before = 0;
    for (uint32_t s = 0; s < n_steps; s++) {
        for (uint32_t c = 0; c < chunks.n; c++)
            for (uint32_t i = 0; i < n; i++) {
                uint32_t sent = sync_neighbour(l, rings, i, true) % n;
                uint32_t needs = s ? (uint32_t)before + c * n + sent : last[i];
                sync_add(l, i, sync_neighbour(l, rings, i, false), chunks.bytes, needs,
                         s < n_adding);
            }
        before = first + (size_t)s * chunks.n * n;
    }
    for (uint32_t i = 0; i < n && n_steps; i++)
        last[i] = (uint32_t)before + (chunks.n - 1) * n + sync_neighbour(l, rings, i, true) % n;
}

static void list_rings(const struct lister *l, uint64_t size)
{
    uint32_t *last = sync_table(l, l->n_nodes), n = l->net->collective.n_ranks,
             width = ranks_a_host(l->net);
    uint32_t n_hosts = n / width;
    struct rings inner = {width, 1}, outer = {width, width};
    uint64_t segment = divide_up(size, width);
    struct lister within = *l;
    within.within = n_hosts > 1 && l->net->link.within_ns.value > 0;
    if (n_hosts == 1) { /* chunk after chunk goes round twice */
        add_ring_steps(l, &inner, 2 * (n - 1), n - 1, segment, last);
        return;
    }
    add_ring_steps(&within, &inner, width - 1, width - 1, segment, last);
    add_ring_steps(l, &outer, 2 * (n_hosts - 1), n_hosts - 1, divide_up(segment, n_hosts), last);
    add_ring_steps(&within, &inner, width - 1, 0, segment, last);
}

/* One message, in chunks; the number of the last one. */
static uint32_t add_whole(const struct lister *l, uint32_t from, uint32_t to, uint64_t bytes,
                          uint32_t needs, bool adds)
{
    struct chunks chunks = sync_cut(l->net, bytes);
    uint32_t last = SYNC_NONE;
    for (uint32_t c = 0; c < chunks.n; c++)
        last = sync_add(l, from, to, chunks.bytes, needs, adds);
    return last;
}

/* Ranks beyond the largest power of two hand in their data first and get the result last. */
static void list_halving_doubling(const struct lister *l, uint64_t size)
{
    uint32_t n = l->net->collective.n_ranks, n_half = 1, n_halvings = 0;
    for (; n_half * 2 <= n; n_half *= 2)
        n_halvings++;
    uint32_t n_senders = l->n_nodes == 1 ? 1 : n_half;
    uint32_t *last = sync_table(l, (size_t)n * 2);
    uint32_t *now = last + n;
    for (uint32_t i = n_half; i < n; i++)
        last[i - n_half] = add_whole(l, i, i - n_half, size, SYNC_NONE, true);
    for (uint32_t step = 0; step < 2 * n_halvings; step++) {
        bool adds = step < n_halvings;
        uint32_t bit = adds ? n_half >> (step + 1) : 1u << (step - n_halvings);
        for (uint32_t i = 0; i < n_senders; i++) {
            uint32_t to = (i ^ bit) % n_senders;
            now[to] = add_whole(l, i, to, divide_up(size, n_half / bit), last[i], adds);
        }
        memcpy(last, now, n_senders * sizeof *last);
    }
    for (uint32_t i = n_half; i < n; i++)
        add_whole(l, i - n_half, i, size, last[i - n_half], false);
}

static uint32_t depth_of(uint32_t node)
{
    uint32_t depth = 0;
    for (; node; node = (node - 1) / 2)
        depth++;
    return depth;
}

/* Levels below a node of a tree of n. */
static uint32_t height_of(uint32_t node, uint32_t n)
{
    uint32_t height = 0;
    for (; 2 * node + 1 < n; node = 2 * node + 1)
        height++;
    return height;
}

/* The later of what a node's children send up. */
static uint32_t last_of_children(const uint32_t *up, uint32_t node, uint32_t n, uint32_t n_chunks,
                                 uint32_t chunk)
{
    uint32_t last = SYNC_NONE;
    for (uint32_t child = 2 * node + 1; child <= 2 * node + 2 && child < n; child++) {
        uint32_t sent = up[(size_t)child * n_chunks + chunk];
        last = last == SYNC_NONE || sent > last ? sent : last;
    }
    return last;
}

/* Up a binary tree and down again; all ranks pass chunk after chunk on. */
static void list_tree(const struct lister *l, uint64_t size)
{
    uint32_t n = l->net->collective.n_ranks, deepest = depth_of(n - 1);
    struct chunks chunks = sync_cut(l->net, size);
    uint32_t n_chunks = chunks.n;
    uint32_t *up = sync_table(l, (size_t)n * n_chunks * 2);
    uint32_t *down = up + (size_t)n * n_chunks;
    for (uint32_t time = 0; time < 2 * deepest + n_chunks; time++)
        for (uint32_t i = 1; i < n; i++) {
            uint32_t parent = (i - 1) / 2, rising = time - height_of(i, n);
            uint32_t sinking = time - deepest - (depth_of(i) - 1);
            if (rising < n_chunks) {
                uint32_t needs = last_of_children(up, i, n, n_chunks, rising);
                up[i * n_chunks + rising] = sync_add(l, i, parent, chunks.bytes, needs, true);
            }
            if (sinking < n_chunks) {
                uint32_t needs = parent ? down[parent * n_chunks + sinking]
                                        : last_of_children(up, 0, n, n_chunks, sinking);
                down[i * n_chunks + sinking] = sync_add(l, parent, i, chunks.bytes, needs, false);
            }
        }
}

/* Workers go round the servers, and servers round the workers, each from a place of its own. */
static void list_servers(const struct lister *l, uint64_t size)
{
    uint32_t n = l->net->collective.n_ranks, n_servers = sync_n_servers(l->net);
    uint32_t *last = sync_table(l, n_servers);
    struct chunks chunks = sync_cut(l->net, divide_up(size, n_servers));
    for (uint32_t c = 0; c < chunks.n; c++) {
        for (uint32_t turn = 0; turn < n_servers; turn++)
            for (uint32_t i = 0; i < n; i++) {
                uint32_t server = (i + turn) % n_servers;
                uint32_t node = sync_server_node(l->net, server);
                if (node != i)
                    last[server] = sync_add(l, i, node, chunks.bytes, SYNC_NONE, true);
            }
        for (uint32_t turn = 0; turn < n; turn++)
            for (uint32_t server = 0; server < n_servers; server++) {
                uint32_t node = sync_server_node(l->net, server), to = (server + turn) % n;
                if (node != to)
                    sync_add(l, node, to, chunks.bytes, last[server], false);
            }
    }
}

static void list_direct(const struct lister *l, uint64_t size)
{
    uint32_t n = l->net->collective.n_ranks, n_nodes = l->n_nodes;
    struct chunks chunks = sync_cut(l->net, divide_up(size, n));
    uint32_t *last = sync_table(l, (size_t)n_nodes * chunks.n);
    for (int gathers = 0; gathers < 2; gathers++)
        for (uint32_t c = 0; c < chunks.n; c++)
            for (uint32_t turn = 1; turn < n; turn++)
                for (uint32_t i = 0; i < n_nodes; i++) {
                    uint32_t to = (i + turn) % n_nodes;
                    uint32_t needs = gathers ? last[c * n_nodes + i] : SYNC_NONE;
                    uint32_t sent = sync_add(l, i, to, chunks.bytes, needs, !gathers);
                    if (!gathers)
                        last[c * n_nodes + to] = sent;
                }
}

static bool all_alike(const struct model_net *net)
{
    return net->collective.algorithm != MODEL_TREE && net->collective.algorithm != MODEL_SERVER &&
           (net->collective.algorithm != MODEL_HALVING_DOUBLING ||
            (net->collective.n_ranks & (net->collective.n_ranks - 1)) == 0);
}

void sync_list(const struct model_net *net, uint64_t size_bytes, bool alike,
               struct sync_messages *messages)
{
    static void (*const algorithms[])(const struct lister *l, uint64_t size_bytes) = {
        [MODEL_RING] = list_rings,     [MODEL_HALVING_DOUBLING] = list_halving_doubling,
        [MODEL_TREE] = list_tree,      [MODEL_HIERARCHICAL] = list_rings,
        [MODEL_SERVER] = list_servers, [MODEL_DIRECT] = list_direct};
    struct lister l = {messages, net, alike && all_alike(net) ? 1 : sync_n_nodes(net), false};
    messages->list.n = 0;
    if (net->collective.n_ranks >= 2 || net->collective.algorithm == MODEL_SERVER)
        algorithms[net->collective.algorithm](&l, size_bytes);
}

void sync_messages_fini(struct sync_messages *messages)
{
    array_fini(&messages->list);
    array_fini(&messages->received);
}

/* ---- their replay ---- */

struct sync_link {
    int64_t sent_ns, received_ns, added_ns; /* when it is free again */
    int64_t sends_ns, receives_ns;          /* in all */
};

/* `ready` and `links` have room for all messages and nodes. */
static struct sync_cost sync_replay(const struct model_net *net,
                                    const struct sync_messages *messages, int64_t *ready,
                                    struct sync_link *links)
{
    int64_t total = 0, wire = 0;
    for (size_t i = 0; i < messages->list.n; i++) {
        const struct sync_message *m = &messages->list.at[i];
        struct sync_link *from = &links[m->from], *to = &links[m->to];
        int64_t busy = sync_wire_ns(net, m);
        int64_t start = (m->needs == SYNC_NONE ? 0 : ready[m->needs]) + sync_message_ns(net, m);
        start = MAX(start, MAX(from->sent_ns, to->received_ns));
        ready[i] = from->sent_ns = to->received_ns = start + busy;
        if (m->adds)
            ready[i] = to->added_ns =
                MAX(ready[i], to->added_ns) + sync_ns(net->collective.reduce_ns, m->bytes);
        from->sends_ns += busy;
        to->receives_ns += busy;
        total = MAX(total, ready[i]);
        wire = MAX(wire, MAX(from->sends_ns, to->receives_ns));
    }
    return (struct sync_cost){sync_ns(net->collective.overhead_ns, 1) + total - wire, wire};
}

static struct sync_cost replay_alone(const struct model_net *net, uint64_t size_bytes,
                                     struct sync_messages *messages)
{
    sync_list(net, size_bytes, true, messages);
    SCRATCH int64_t *ready = mem_alloc(messages->list.n * sizeof *ready);
    SCRATCH struct sync_link *links = mem_array(sync_n_nodes(net) + (size_t)1, sizeof *links);
    return sync_replay(net, messages, ready, links);
}

/* One ring, see above. Each of its 2 (n - 1) steps keeps the link busy for n_chunks * wire. */
static bool ring_cost(const struct model_net *net, uint64_t size_bytes, struct sync_cost *cost)
{
    if ((net->collective.algorithm != MODEL_RING &&
         net->collective.algorithm != MODEL_HIERARCHICAL) ||
        ranks_a_host(net) != net->collective.n_ranks)
        return false;
    int64_t n = net->collective.n_ranks, start_ns = sync_ns(net->collective.overhead_ns, 1);
    struct chunks chunks = sync_cut(net, divide_up(size_bytes, net->collective.n_ranks));
    int64_t wire = sync_ns(net->link.byte_ns, chunks.bytes), step = chunks.n * wire;
    int64_t adding = sync_ns(net->collective.reduce_ns, chunks.bytes);
    int64_t message_ns = sync_ns(net->link.message_ns, 1);
    if (n < 2) {
        *cost = (struct sync_cost){start_ns, 0};
        return true;
    }
    if (adding > wire)
        return false;
    int64_t total = message_ns + (n - 1) * MAX(step, wire + adding + message_ns) +
                    (n - 2) * MAX(step, wire + message_ns) + step;
    cost->wire_ns = 2 * (n - 1) * step;
    cost->latency_ns = start_ns + total - cost->wire_ns;
    return true;
}

/* `messages` is room for them. */
static struct sync_cost find_cost(const struct model_net *net, uint64_t size_bytes,
                                  struct sync_messages *messages)
{
    struct sync_cost cost;
    if (!ring_cost(net, size_bytes, &cost))
        cost = replay_alone(net, size_bytes, messages);
    return cost;
}

struct sync_cost sync_cost(const struct model_net *net, uint64_t size_bytes)
{
    struct sync_messages messages = {0};
    struct sync_cost cost = find_cost(net, size_bytes, &messages);
    sync_messages_fini(&messages);
    return cost;
}

/* ---- remembering ---- */

struct sync {
    const struct model_net *net;
    struct sync_messages messages;
    struct {
        uint64_t size_plus_1; /* 0: nothing */
        struct sync_cost cost;
    } slots[1u << CACHE_BITS];
};

struct sync *sync_create(const struct model_net *net)
{
    struct sync *sync = mem_array(1, sizeof *sync);
    sync->net = net;
    return sync;
}

void sync_destroy(struct sync *sync)
{
    if (sync)
        sync_messages_fini(&sync->messages);
    mem_free(sync);
}

struct sync_cost sync_get(struct sync *sync, uint64_t size_bytes)
{
    size_t slot = (size_t)(map_mix(size_bytes) >> (64 - CACHE_BITS));
    if (sync->slots[slot].size_plus_1 != size_bytes + 1) {
        sync->slots[slot].cost = find_cost(sync->net, size_bytes, &sync->messages);
        sync->slots[slot].size_plus_1 = size_bytes + 1;
    }
    return sync->slots[slot].cost;
}
