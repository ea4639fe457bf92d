/* Which parameter server a tensor goes to.
 *
 * MXNet's rule: a key whose array has MXNET_KVSTORE_BIGARRAY_BOUND elements or more is split over
 * all servers; any other goes to server number key * 9973 modulo their number. MXNet numbers
 * servers in the order in which they came to the scheduler, dpro in the order of the files; the
 * trace shows which is which. */
#include "cost/program/server_placement.h"

#include "cost/program/buckets.h"
#include "cost/program/sync.h"

enum { KEY_FACTOR = 9973 };

uint32_t servers_number_of_key(uint32_t key, uint32_t n_servers)
{
    return (uint32_t)((uint64_t)key * KEY_FACTOR % n_servers);
}

uint32_t servers_of_part(const struct dpro_model *model, const struct dpro_strategy *strategy,
                         uint32_t bucket, uint32_t part)
{
    const struct model_net *net = &model->net;
    const struct strategy_bucket *b = &strategy->buckets[bucket];
    uint32_t n = net->servers.n ? net->servers.n : 1;
    if (net->servers.placement == MODEL_ANYWHERE)
        return (b->server + part) % n;
    if (b->partitions > 1)
        return part % n;
    uint32_t number = servers_number_of_key(model->tensors[strategy->order[b->first]].key, n);
    return net->servers.of_key ? net->servers.of_key[number] : number;
}

int servers_number(const struct dpro_model *model, uint32_t server)
{
    return model->net.servers.numbers ? model->net.servers.numbers[server] : (int)server;
}

uint32_t servers_with_number(const struct dpro_model *model, int number)
{
    uint32_t n = sync_n_servers(&model->net);
    for (uint32_t s = 0; s < n; s++)
        if (servers_number(model, s) == number)
            return s;
    return MODEL_NONE;
}

/* ---- changes ---- */

static uint64_t n_elements(const struct dpro_model *model, const struct dpro_strategy *s,
                           uint32_t bucket)
{
    return bucket_size_bytes(model, s, bucket) / sizeof(float);
}

static uint64_t bound_of(const struct dpro_model *model, const struct dpro_strategy *s)
{
    uint64_t least_parted = UINT64_MAX, largest_whole = 0;
    for (uint32_t b = 0; b < s->n_buckets; b++) {
        uint64_t n = n_elements(model, s, b);
        if (s->buckets[b].partitions > 1 && n < least_parted)
            least_parted = n;
        if (s->buckets[b].partitions == 1 && n > largest_whole)
            largest_whole = n;
    }
    if (least_parted < UINT64_MAX)
        return least_parted;
    return largest_whole < SERVERS_DEFAULT_BOUND ? SERVERS_DEFAULT_BOUND : largest_whole + 1;
}

void servers_set_bound(const struct dpro_model *model, uint64_t bound, struct dpro_strategy *s)
{
    uint32_t n_servers = sync_n_servers(&model->net);
    for (uint32_t b = 0; b < s->n_buckets; b++)
        s->buckets[b].partitions = n_elements(model, s, b) >= bound ? n_servers : 1;
}

uint32_t servers_host_of(const struct model_net *net, uint32_t rank)
{
    return net->link.rank_hosts ? net->link.rank_hosts[rank] : rank;
}

struct server_route servers_route(const struct model_net *net, uint32_t rank, uint32_t server,
                                  bool pulls)
{
    uint32_t host = servers_host_of(net, rank), node = sync_server_node(net, server);
    return pulls ? (struct server_route){node, host} : (struct server_route){host, node};
}

double servers_slowness(const struct model_net *net, uint32_t node)
{
    return node >= net->collective.n_ranks && net->servers.link_rate > 0
               ? 1 / net->servers.link_rate
               : 1;
}

static void change_hosts(struct dpro_model *m, uint32_t n, struct arena *arena)
{
    struct model_net *net = &m->net;
    bool *taken = arena_array(arena, m->n_ranks, sizeof *taken);
    int32_t *hosts = arena_array(arena, n, sizeof *hosts);
    bool with_ranks = net->servers.hosts != NULL;
    for (uint32_t r = 0; r < m->n_ranks; r++)
        taken[r] = servers_host_of(net, r) != r;
    for (uint32_t s = 0; s < n; s++) {
        bool known = net->servers.hosts && s < net->servers.n;
        uint32_t free = 0;
        if (known)
            hosts[s] = net->servers.hosts[s];
        while (free < m->n_ranks && taken[free])
            free++;
        if (!known)
            hosts[s] = with_ranks && free < m->n_ranks ? (int32_t)free : -1;
        with_ranks &= hosts[s] >= 0;
        if (hosts[s] >= 0)
            taken[hosts[s]] = true;
    }
    net->servers.hosts = hosts;
}

void servers_change(struct dpro_model *m, uint32_t n_servers, struct arena *arena)
{
    struct model_net *net = &m->net;
    struct dpro_strategy *baseline = &m->baseline;
    uint64_t bound = bound_of(m, baseline);
    change_hosts(m, n_servers, arena);
    net->servers.n = n_servers;
    net->servers.of_key = NULL;
    net->servers.numbers = NULL;
    if (net->servers.placement == MODEL_BY_KEY)
        servers_set_bound(m, bound, baseline);
    else /* in turns */
        for (uint32_t b = 0; b < baseline->n_buckets; b++)
            baseline->buckets[b].server =
                m->tensors[baseline->order[baseline->buckets[b].first]].key % n_servers;
}
