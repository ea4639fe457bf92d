/* What groups of ranks communicate in an iteration beside buckets: which collective or message,
 * between whom, on which stream, and how many bytes that is on a link. */

#include <dpro/dimensions.h>

#include "cost/program/cost.h"

/* gloo's threads of a process group, of which a group with one collective shows one. */
enum { GLOO_THREADS = 2 };

static bool is_one(const struct dpro_graph *g, uint32_t j)
{
    const struct graph_collective *c = &g->collectives[j];
    return c->kind != DPRO_NEGOTIATE;
}

bool has_communications(const struct dpro_graph *g)
{
    bool any = false;
    for (uint32_t j = 0; j < g->n_collectives; j++)
        any |= is_one(g, j) && g->collectives[j].n_expected > 1;
    return any && g->n_exchanges == 0 && g->n_servers == 0 && g->cycles.cycle_ns == 0;
}

/* ---- bytes and messages ---- */

struct traffic communication_traffic(uint8_t kind, const char *pattern, double n)
{
    double log_n = ceil(log2(n));
    bool halves = pattern && strcmp(pattern, "halving-doubling") == 0;
    if (n < 2)
        return (struct traffic){0, 0};
    if (kind == DPRO_SEND_RECV) /* its size is that of both */
        return (struct traffic){0.5, 1};
    if (kind == DPRO_ALL_REDUCE)
        return (struct traffic){2 * (n - 1) / n, halves ? 2 * log_n : 2 * (n - 1)};
    if (kind == DPRO_ALL_GATHER)
        return (struct traffic){n - 1, n - 1};
    if (collective_is_one(kind, DPRO_REDUCE_SCATTER, DPRO_ALL_TO_ALL))
        return (struct traffic){(n - 1) / n, n - 1};
    if (collective_is_one(kind, DPRO_GATHER, DPRO_SCATTER))
        return (struct traffic){n - 1, 1};
    if (kind == DPRO_BARRIER)
        return (struct traffic){0, log_n};
    return (struct traffic){1, collective_is_one(kind, DPRO_BROADCAST, DPRO_REDUCE) ? log_n : 1};
}

/* Two ranks that exchange over gloo's one connection take turns: each asks for what it receives
 * behind what it sends, so the one that comes first sends when the other one has sent. An
 * all-gather passes in two halves, of which the second ones go both ways at once. */
static double turns_of(const struct dpro_graph *g, const struct graph_collective *c)
{
    uint32_t device = g->device[g->members[c->first_member].transfer];
    if (c->n_expected != 2 || device == DPRO_NO_DEVICE ||
        g->devices[device].kind != DPRO_DEVICE_COMM_THREAD)
        return 1;
    return c->kind == DPRO_ALL_TO_ALL ? 2 : c->kind == DPRO_ALL_GATHER ? 1.5 : 1;
}

/* ---- groups ---- */

static bool is_pair(const struct graph_collective *c)
{
    return c->n_members == 2 && c->n_expected == 2 &&
           collective_is_one(c->kind, DPRO_SEND, DPRO_RECV);
}

/* Ranks of a collective; of a pair the sender first: the collective has the name of the first
 * member's part. */
static uint32_t *ranks_of(const struct dpro_graph *g, const struct graph_collective *c,
                          struct arena *arena)
{
    const struct graph_member *members = &g->members[c->first_member];
    bool turned = is_pair(c) && c->kind == DPRO_RECV;
    uint32_t *ranks = arena_alloc(arena, (c->n_members + (size_t)1) * sizeof *ranks);
    for (uint32_t m = 0; m < c->n_members; m++)
        ranks[m] = g->rank[members[turned ? c->n_members - 1 - m : m].arrival];
    return ranks;
}

/* A GPU stream that carries the collective on its first rank, else none. */
static uint32_t stream_of(const struct dpro_graph *g, const struct graph_collective *c)
{
    uint32_t device = g->device[g->members[c->first_member].transfer];
    bool is_stream = device != DPRO_NO_DEVICE && g->devices[device].kind == DPRO_DEVICE_GPU_STREAM;
    return is_stream ? device : DPRO_NO_DEVICE;
}

/* What a group of ranks communicates on several GPU streams is in order on each of them only. */
static uint64_t group_key(const struct dpro_graph *g, const struct graph_collective *c,
                          const uint32_t *ranks)
{
    uint64_t key = map_mix(c->group * UINT64_C(2) + is_pair(c) + 1);
    key = map_mix(key + stream_of(g, c));
    for (uint32_t m = 0; m < c->n_members; m++)
        key = map_mix(key + ranks[m] + 1);
    return key | 1;
}

static bool on_one_host(const uint32_t *hosts, const uint32_t *ranks, uint32_t n)
{
    bool one = hosts != NULL && n > 1;
    for (uint32_t i = 0; i < n && one; i++)
        one = hosts[ranks[i]] == hosts[ranks[0]];
    return one;
}

#define WITH_SEVERAL                                                                               \
    "a kernel in which a rank sends to and receives from several others keeps its time: how much " \
    "of it is waiting is unknown, so other links do not change it"

static void warn_of_several(const struct dpro_graph *g, struct dpro_model *m)
{
    bool any = false;
    for (uint32_t j = 0; j < g->n_collectives; j++)
        any |= g->collectives[j].n_expected < 2 && g->collectives[j].size_bytes > 0 &&
               g->collectives[j].kind == DPRO_SEND_RECV;
    if (any)
        array_push(&m->warnings, WITH_SEVERAL);
}

/* Devices that carried the group's communications on its first rank. */
typedef ARRAY(uint32_t) device_array;

static void add_device(device_array *devices, uint32_t device)
{
    for (size_t i = 0; i < devices->n; i++)
        if (devices->at[i] == device)
            return;
    array_push(devices, device);
}

static uint32_t count_streams(const struct dpro_graph *g, const device_array *devices)
{
    uint32_t n = MAX((uint32_t)devices->n, 1);
    bool threads = devices->n > 0 && devices->at[0] != DPRO_NO_DEVICE &&
                   g->devices[devices->at[0]].kind == DPRO_DEVICE_COMM_THREAD;
    return threads ? MAX(n, GLOO_THREADS) : n;
}

/* Whether all ranks of the job are on one host, and so what is communicated of gradients. */
static bool is_on_one_host(const struct dpro_graph *g)
{
    bool one = g->rank_hosts && job_size(g) == g->n_ranks;
    for (uint32_t r = 0; r < g->n_ranks && one; r++)
        one = g->rank_hosts[r] == g->rank_hosts[0];
    return one;
}

/* Links within hosts are others than those between them, where there are both. */
static void tell_links(const struct dpro_graph *g, struct dpro_model *m)
{
    bool within = false, between = m->n_tensors > 0 && !is_on_one_host(g);
    for (uint32_t i = 0; i < m->n_groups; i++) {
        bool one = m->groups[i].within;
        within |= one;
        between |= !one && m->groups[i].n_ranks > 1;
    }
    m->net.link.is_within = within && !between;
    for (uint32_t i = 0; i < m->n_groups; i++)
        m->groups[i].within &= between;
}

static void mark_transfers(const struct dpro_graph *g, uint32_t j, struct coarse *coarse)
{
    const struct graph_collective *c = &g->collectives[j];
    for (uint32_t m = c->first_member; m < c->first_member + c->n_members; m++)
        coarse->transfer_of[g->members[m].transfer] = 1 + j;
}

/* What is ready with a collective that is none of a bucket. */
static void mark_outputs(const struct dpro_graph *g, struct coarse *coarse)
{
    EACH_OF (const struct graph_tensor, tensor, g->tensors, g->n_tensors) {
        if (tensor->collective != UINT32_MAX && tensor->out != DPRO_NO_OP)
            coarse->transfer_of[tensor->out] = 1 + tensor->collective;
    }
}

ORDER(by_rank, struct coarse_issue, ASCENDING(rank) ?: ASCENDING(communication));

/* Beside gradients what takes less than that of an iteration, such as the loss or the buffers of
 * BatchNorm, stays a part of the work. */
#define LEAST_SHARE 0.01

/* The transfers that are no bucket's, against an iteration. However short, messages between stages
 * say which of them computes when. */
static bool matters_beside_buckets(const struct dpro_graph *g, const struct coarse *coarse)
{
    double ns = 0, n = 0;
    if (job_dimension(g, DPRO_STAGES))
        return true;
    for (uint32_t j = 0; j < g->n_collectives; j++) {
        const struct graph_collective *c = &g->collectives[j];
        for (uint32_t m = c->first_member;
             m < c->first_member + c->n_members && coarse->first_of[j] == MODEL_NONE; m++)
            ns += (double)g->dur_ns[g->members[m].transfer] + (double)g->members[m].exchange_ns;
    }
    for (uint32_t s = 0; s < g->n_samples; s++)
        n += (double)g->measured_ns[s] / g->n_samples;
    return ns / g->n_ranks > LEAST_SHARE * n;
}

void find_communications(const struct dpro_graph *g, struct dpro_model *model,
                         struct coarse *coarse)
{
    SCRATCH struct map numbers = {0};
    if (model->n_tensors > 0 && !matters_beside_buckets(g, coarse))
        return;
    device_array *devices = arena_array(&coarse->arena, g->n_collectives, sizeof *devices);
    model->groups = arena_array(&model->arena, g->n_collectives, sizeof *model->groups);
    model->communications =
        arena_array(&model->arena, g->n_collectives, sizeof *model->communications);
    coarse->collective_of =
        arena_array(&coarse->arena, g->n_collectives, sizeof *coarse->collective_of);
    coarse->issues = arena_array(&coarse->arena, g->n_members, sizeof *coarse->issues);
    for (uint32_t j = 0; j < g->n_collectives; j++) {
        const struct graph_collective *c = &g->collectives[j];
        if (!is_one(g, j) || coarse->first_of[j] != MODEL_NONE)
            continue;
        uint32_t *ranks = ranks_of(g, c, &model->arena);
        uint32_t number = (uint32_t)map_number(&numbers, group_key(g, c, ranks));
        const char *pattern = c->n_expected > 2 ? c->pattern : NULL; /* of two, any fits */
        struct model_group *group = &model->groups[number];
        if (number == model->n_groups) {
            *group = (struct model_group){.ranks = ranks,
                                          .n_ranks = c->n_members,
                                          .n_members = c->n_expected,
                                          .sends = is_pair(c),
                                          .within = c->n_members == c->n_expected &&
                                                    on_one_host(g->rank_hosts, ranks, c->n_members),
                                          .dimension = dpro_graph_collective_dimension(g, j)};
            model->n_groups++;
        }
        uint32_t k = model->n_communications++;
        struct traffic traffic = communication_traffic(c->kind, pattern, c->n_expected);
        model->communications[k] = (struct model_communication){
            .kind = c->kind,
            .pattern = pattern,
            .group = number,
            .collective = j,
            .size_bytes = c->size_bytes,
            .turns = turns_of(g, c),
            .link_bytes = traffic.share * turns_of(g, c) * (double)c->size_bytes,
            .sent_bytes = traffic.share * (double)c->size_bytes,
            .n_steps = traffic.n_steps,
            .waits_ns = (double)c->missing_wait_ns};
        coarse->collective_of[k] = j;
        coarse->first_of[j] = model->n_tensors + k;
        mark_transfers(g, j, coarse);
        for (uint32_t m = 0; m < c->n_members; m++) {
            const struct graph_member *member = &g->members[c->first_member + m];
            coarse->issues[coarse->n_issues++] =
                (struct coarse_issue){.rank = g->rank[member->arrival],
                                      .communication = k,
                                      .arrival = member->arrival,
                                      .transfer = member->transfer};
        }
        add_device(&devices[number], g->device[g->members[c->first_member].transfer]);
    }
    mark_outputs(g, coarse);
    qsort(coarse->issues, coarse->n_issues, sizeof *coarse->issues, by_rank);
    for (uint32_t i = 0; i < model->n_groups; i++) {
        model->groups[i].n_streams = count_streams(g, &devices[i]);
        array_fini(&devices[i]);
    }
    tell_links(g, model);
    warn_of_several(g, model);
}
