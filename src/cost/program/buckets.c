/* Which tensors travel together, by DDP's rule or as a file says. */
#include "cost/program/buckets.h"

#include "cost/program/server_placement.h"
#include "cost/program/sync.h"
#include "ingest/rank_json.h"
#include "plan/plan.h"

/* Of ten jobs with gloo and a core a rank, measured by turns (tests/turns), hooks that cut or order
 * buckets took 0.3 to 1.8 ms a bucket, 0.7 in the median, where those that only cast take 0.15. A
 * link is idle as long before each part: of 0, 0.3, 0.6 and 0.9 ms the jobs chose 0.6 for each one
 * that was left out, whose promises came from 5.2 to 2.9 points (root mean square) nearer. */
#define CUTTING_HOOKS 4

struct dpro_strategy buckets_make(const struct dpro_model *model, struct arena *arena)
{
    size_t n = model->n_tensors + (size_t)1;
    struct dpro_strategy strategy = {
        .order = arena_array(arena, n, sizeof *strategy.order),
        .buckets = arena_array(arena, n, sizeof *strategy.buckets),
        .n_buckets = model->n_tensors,
        .cycle_ns = model->net.gate.cycle_ns,
        .recomputed = arena_array(arena, model->n_modules + (size_t)1, sizeof *strategy.recomputed),
        .computing = arena_array(arena, model->n_modules + (size_t)1, sizeof *strategy.computing)};
    for (uint32_t t = 0; t < model->n_tensors; t++) {
        strategy.order[t] = t;
        strategy.buckets[t] = (struct strategy_bucket){.first = t, .n = 1, .partitions = 1};
    }
    return strategy;
}

void buckets_assign(const struct dpro_model *model, const struct dpro_strategy *from,
                    struct dpro_strategy *strategy)
{
    strategy->n_buckets = from->n_buckets;
    strategy->cycle_ns = from->cycle_ns;
    strategy->fuses = from->fuses;
    strategy->fusion_bytes = from->fusion_bytes;
    strategy->compression = from->compression;
    if (model->n_tensors) { /* without any there are no arrays */
        memcpy(strategy->order, from->order, model->n_tensors * sizeof *from->order);
        memcpy(strategy->buckets, from->buckets, from->n_buckets * sizeof *from->buckets);
    }
    buckets_take_memory(model, from, strategy);
}

void buckets_take_memory(const struct dpro_model *model, const struct dpro_strategy *from,
                         struct dpro_strategy *strategy)
{
    strategy->micro_batches = from->micro_batches;
    if (strategy->recomputed && from->recomputed)
        memcpy(strategy->recomputed, from->recomputed, model->n_modules * sizeof *from->recomputed);
    else if (strategy->recomputed)
        memset(strategy->recomputed, 0, model->n_modules * sizeof *strategy->recomputed);
    if (strategy->computing && from->computing)
        memcpy(strategy->computing, from->computing, model->n_modules * sizeof *from->computing);
    else if (strategy->computing)
        memset(strategy->computing, 0, model->n_modules * sizeof *strategy->computing);
}

struct dpro_strategy buckets_copy(const struct dpro_model *model, const struct dpro_strategy *from,
                                  struct arena *arena)
{
    struct dpro_strategy strategy = buckets_make(model, arena);
    buckets_assign(model, from, &strategy);
    return strategy;
}

/* Callbacks launch buckets, on threads that share the interpreter with the backward pass. */
static bool cuts_or_orders(const struct dpro_strategy *s)
{
    bool cuts = false;
    for (uint32_t b = 0; b < s->n_buckets; b++)
        cuts |= s->buckets[b].partitions > 1 || s->buckets[b].priority != s->buckets[0].priority;
    return cuts;
}

/* What DDP's communication hook takes for each bucket; 0: the strategy needs none. One that only
 * casts sends a bucket as DDP does. */
static double hook_ns(const struct dpro_model *model, const struct dpro_strategy *s)
{
    if (model->capabilities.stack != DPRO_STACK_DDP)
        return 0;
    return model->net.compute.hook_ns.value *
           (cuts_or_orders(s) ? CUTTING_HOOKS : s->compression != DPRO_COMPRESSION_NONE);
}

/* Computing time to launch a bucket: its collectives, its cast, and the hook. */
static double launch_ns(const struct dpro_model *model, const struct dpro_strategy *strategy,
                        uint32_t bucket, uint64_t size_bytes, double hook_ns)
{
    const struct model_net *net = &model->net;
    double ns = net->compute.launch_ns.value * strategy->buckets[bucket].partitions + hook_ns;
    if (strategy->compression != DPRO_COMPRESSION_NONE)
        ns += net->compute.cast_ns.value * (double)size_bytes / 2;
    else if (hook_ns > 0)
        ns += net->compute.copy_ns.value * (double)size_bytes; /* DDP divides while it copies */
    return ns;
}

void buckets_cost(const struct dpro_model *m, const struct dpro_strategy *s,
                  struct bucket_cost *costs, uint32_t *bucket_of)
{
    double hook = hook_ns(m, s), idle = cuts_or_orders(s) ? hook : 0;
    for (uint32_t b = 0; b < s->n_buckets; b++) {
        const struct strategy_bucket *bucket = &s->buckets[b];
        uint64_t size = 0;
        for (uint32_t i = bucket->first; i < bucket->first + bucket->n; i++) {
            size += m->tensors[s->order[i]].size_bytes;
            bucket_of[s->order[i]] = b;
        }
        costs[b] = (struct bucket_cost){.size_bytes = size};
        costs[b].copy_ns = m->net.compute.copy_ns.value * (double)size;
        costs[b].launch_ns = launch_ns(m, s, b, size, hook);
        costs[b].handling_ns = m->net.compute.handling_ns.value * bucket->partitions;
        costs[b].idle_ns = idle;
        if (s->compression != DPRO_COMPRESSION_NONE) {
            /* cast when launched, and back by whoever receives it */
            costs[b].size_bytes = size / 2;
            costs[b].cast_ns = m->net.compute.cast_ns.value * (double)size / 2 / bucket->partitions;
        }
    }
}

/* That each tensor's bucket goes to, by the model's own strategy, which may be the one that is
 * about to be written: buckets keep their first tensor's where nothing else is said. Owned. */
static uint32_t *own_servers(const struct dpro_model *m)
{
    const struct dpro_strategy *own = &m->baseline;
    uint32_t *servers = mem_array((size_t)m->n_tensors + 1, sizeof *servers);
    if (m->net.collective.algorithm == MODEL_SERVER && m->net.servers.placement == MODEL_ANYWHERE)
        EACH_OF (const struct strategy_bucket, bucket, own->buckets, own->n_buckets)
            for (uint32_t i = bucket->first; i < bucket->first + bucket->n; i++)
                servers[own->order[i]] = bucket->server;
    return servers;
}

/* Whether the next tensor gets ready only after those before it were sent: of a step with two
 * models (GAN), the second one's backward pass follows the first one's update. op: of the first
 * rank's program, the first one that was not looked at. */
static bool next_follows_communication(const struct dpro_model *model, uint32_t *op)
{
    const struct model_program *program = &model->programs[model->ranks[0].program];
    bool waited = false;
    while (*op < program->n_ops) {
        const struct model_op *at = &program->ops[(*op)++];
        bool for_gradients = at->needs < model->n_tensors || at->needs == MODEL_ALL;
        waited |= for_gradients && !at->needs_before;
        if (at->tensor != MODEL_NONE)
            return waited;
    }
    return false;
}

void buckets_by_cap(const struct dpro_model *model, uint64_t first_bytes, uint64_t cap_bytes,
                    struct dpro_strategy *strategy)
{
    SCRATCH uint32_t *servers = own_servers(model);
    uint64_t bytes = 0, cap = first_bytes;
    strategy->n_buckets = 0;
    strategy->fuses = false;
    strategy->compression = DPRO_COMPRESSION_NONE;
    uint32_t op = 0;
    next_follows_communication(model, &op); /* the first one */
    for (uint32_t t = 0, first = 0; t < model->n_tensors; t++) {
        strategy->order[t] = t;
        bytes += model->tensors[t].held_bytes ?: model->tensors[t].size_bytes;
        bool must_end = next_follows_communication(model, &op);
        if (bytes < cap && t + 1 < model->n_tensors && !must_end)
            continue;
        strategy->buckets[strategy->n_buckets++] = (struct strategy_bucket){
            .first = first, .n = t + 1 - first, .partitions = 1, .server = servers[first]};
        first = t + 1;
        bytes = 0;
        cap = must_end ? first_bytes : cap_bytes;
    }
}

void buckets_partition(const struct dpro_model *model, uint64_t partition_bytes,
                       struct dpro_strategy *strategy)
{
    for (uint32_t b = 0; b < strategy->n_buckets; b++) {
        uint64_t bytes = bucket_size_bytes(model, strategy, b);
        uint64_t parts = bytes / partition_bytes + (bytes % partition_bytes != 0);
        uint64_t most = bytes / 4 > 1 ? bytes / 4 : 1; /* an element each */
        parts = parts > most ? most : parts;
        strategy->buckets[b].partitions = parts > 1 ? (uint32_t)parts : 1;
    }
}

/* ---- from a file ---- */

static uint32_t find_tensor(const struct dpro_model *model, const char *name)
{
    uint32_t t = 0;
    while (t < model->n_tensors && strcmp(model->tensors[t].name, name) != 0)
        t++;
    return t < model->n_tensors ? t : MODEL_NONE;
}

/* Whether an earlier model of the plan's has a parameter of this name. */
static bool has_namesake(const struct plan_file *plan, uint32_t model, uint32_t name)
{
    EACH (const struct plan_file_parameter, parameter, plan->parameters)
        if (parameter->name == name && parameter->model < model)
            return true;
    return false;
}

/* taken[t]: tensor t is in a bucket. */
static void take_buckets(const struct dpro_model *m, const struct plan_file *plan, bool *taken,
                         struct dpro_strategy *s)
{
    uint32_t n_taken = 0;
    for (size_t b = 0; b < plan->buckets.n; b++) {
        const struct plan_file_bucket *from = &plan->buckets.at[b];
        s->buckets[s->n_buckets++] = (struct strategy_bucket){n_taken, (uint32_t)from->n,
                                                              from->partitions, from->priority, 0};
        for (size_t i = from->first; i < from->first + from->n; i++) {
            const char *name = strtab_get(&plan->strings, plan->names.at[i]);
            char alike[256];
            if (from->model > 0 && has_namesake(plan, from->model, plan->names.at[i])) {
                snprintf(alike, sizeof alike, RECORDED_NAMESAKE, name, from->model);
                name = alike;
            }
            uint32_t t = find_tensor(m, name);
            if (t == MODEL_NONE || taken[t])
                fail_with(DPRO_EFORMAT, "%s: bucket %zu: '%.200s' %s", plan->path, b, name,
                          t == MODEL_NONE
                              ? "is no gradient of this trace; a plan fits the model that "
                                "it was made for"
                              : "is in another bucket or twice in this one; list it once");
            taken[t] = true;
            s->order[n_taken++] = t;
        }
    }
    uint32_t first = 0;
    while (n_taken < m->n_tensors && taken[first])
        first++;
    if (n_taken < m->n_tensors)
        fail_with(DPRO_EFORMAT,
                  "%s: %u of the %u gradients of this trace are in no bucket, "
                  "'%.200s' among them; list each once",
                  plan->path, m->n_tensors - n_taken, m->n_tensors, m->tensors[first].name);
}

static void take_servers(const struct dpro_model *m, const struct plan_file *plan,
                         const uint32_t *own, struct dpro_strategy *s)
{
    uint32_t n = sync_n_servers(&m->net);
    if (n > 0 && plan->n_servers > 0 && plan->n_servers != n)
        fail_with(DPRO_EUSAGE,
                  "%s: the plan is for %u parameter servers, this job has %u; add "
                  "--servers %u",
                  plan->path, plan->n_servers, n, plan->n_servers);
    for (size_t b = 0; b < plan->buckets.n; b++) {
        int number = m->capabilities.places ? plan->buckets.at[b].server : -1;
        uint32_t server =
            number >= 0 ? servers_with_number(m, number) : own[s->order[s->buckets[b].first]];
        if (server == MODEL_NONE)
            fail_with(DPRO_EFORMAT,
                      "%s: bucket %zu: there is no parameter server %d in this trace; "
                      "make a plan for this job",
                      plan->path, b, number);
        s->buckets[b].server = server;
    }
}

bool buckets_take(const struct dpro_model *model, const struct plan_file *plan,
                  struct dpro_strategy *strategy)
{
    SCRATCH bool *taken = mem_array((size_t)model->n_tensors + 1, sizeof *taken);
    SCRATCH uint32_t *servers = own_servers(model);
    strategy->n_buckets = 0;
    strategy->fuses = plan->fuses && model->net.gate.cycle_ns > 0;
    strategy->fusion_bytes = plan->fusion_bytes;
    if (plan->cycle_ns > 0 && model->net.gate.cycle_ns > 0)
        strategy->cycle_ns = plan->cycle_ns;
    strategy->compression = plan->compression;
    if (plan->buckets.n == 0)
        fail_with(DPRO_EFORMAT,
                  "%s: no buckets in it; give a plan or a list of "
                  "lists of gradients",
                  plan->path);
    if (plan->buckets.n > model->n_tensors)
        fail_with(DPRO_EFORMAT,
                  "%s: more buckets than the model has gradients (%u); list each gradient "
                  "once",
                  plan->path, model->n_tensors);
    take_buckets(model, plan, taken, strategy);
    take_servers(model, plan, servers, strategy);
    return plan->recomputed.n + plan->compiled.n + plan->in_bf16.n > 0 || plan->micro_batches > 1;
}

bool buckets_read(const struct dpro_model *model, const char *path, struct dpro_strategy *strategy)
{
    struct plan_file plan;
    plan_file_read(path, &plan);
    bool more = buckets_take(model, &plan, strategy);
    plan_file_fini(&plan);
    return more;
}
