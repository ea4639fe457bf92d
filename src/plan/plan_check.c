/* Whether a plan is one, as far as can be told without the job. */

#include <dpro/verify.h>

#include "plan/plan.h"

#define bad(plan, format, ...) fail_with(DPRO_EFORMAT, "%s: " format, (plan)->path, ##__VA_ARGS__)

/* Interned names are compared by id; a parameter is found by its model and name. */
static uint64_t key_of(uint64_t model, uint32_t name)
{
    return model << 32 | ((uint64_t)name + 1);
}

static void check_bucket(const struct plan_file *plan, size_t n, struct map *left)
{
    const struct plan_file_bucket *bucket = &plan->buckets.at[n];
    uint64_t size = 0;
    if (bucket->model >= plan->models.n)
        bad(plan, "communication.buckets[%zu]: its model is not in job.models", n);
    for (size_t i = bucket->first; i < bucket->first + bucket->n; i++) {
        uint64_t at, key = key_of(bucket->model, plan->names.at[i]);
        const char *name = plan_name(plan, plan->names.at[i]);
        if (!map_get(left, key, &at))
            bad(plan, "communication.buckets[%zu]: no parameter of its model is called %s", n,
                name);
        if (at == UINT64_MAX)
            bad(plan, "communication.buckets[%zu]: a bucket has it already: %s", n, name);
        size += plan->parameters.at[at].size_bytes;
        map_set(left, key, UINT64_MAX);
    }
    if (size != bucket->size_bytes)
        bad(plan, "communication.buckets[%zu]: size_bytes is not its parameters' sum", n);
}

/* `left` is for each parameter its index, UINT64_MAX when it is in a bucket. */
static void check_parameters(const struct plan_file *plan, struct map *left)
{
    for (size_t i = 0; i < plan->parameters.n; i++) {
        const struct plan_file_parameter *p = &plan->parameters.at[i];
        uint64_t key = key_of(p->model, p->name);
        if (p->name == 0 || p->size_bytes >= UINT64_MAX >> 20)
            bad(plan, "parameter %zu: it has no name or no size_bytes", i);
        if (!map_insert(left, key, i))
            bad(plan, "parameter %zu: it is there twice: %s", i, plan_name(plan, p->name));
    }
    for (size_t n = 0; n < plan->buckets.n; n++) {
        check_bucket(plan, n, left);
    }
    for (size_t i = 0; i < plan->parameters.n; i++) {
        const struct plan_file_parameter *p = &plan->parameters.at[i];
        uint64_t at;
        if (map_get(left, key_of(p->model, p->name), &at) && at != UINT64_MAX)
            bad(plan, "parameter %zu: it is in no bucket: %s", i, plan_name(plan, p->name));
    }
}

/* Each once. */
static void check_modules(const struct plan_file *plan, const char *key, const name_array *names)
{
    SCRATCH struct map seen = {0};
    for (size_t i = 0; i < names->n; i++)
        if (!map_insert(&seen, names->at[i] + UINT64_C(1), 1))
            bad(plan, "%s: a module is there twice: %s", key, plan_name(plan, names->at[i]));
}

static void check_all_modules(const struct plan_file *p)
{
    check_modules(p, "memory.recompute", &p->recomputed);
    check_modules(p, "computation.compile", &p->compiled);
    check_modules(p, "computation.bf16", &p->in_bf16);
    if (plan_has_computing(p) && !p->changes_numerics)
        bad(p, "computation: it has modules, and changes_numerics is not true");
}

static const char *stack_name(const struct plan_file *plan)
{
    return plan->stack ? plan_name(plan, plan->stack) : dpro_stack_name(DPRO_STACK_DDP);
}

int plan_file_stack(const struct plan_file *plan)
{
    for (int s = DPRO_STACK_DDP; s <= DPRO_STACK_BYTEPS; s++)
        if (strcmp(stack_name(plan), dpro_stack_name((enum dpro_stack)s)) == 0)
            return s;
    return -1;
}

static void plan_check(const struct plan_file *plan)
{
    const char *framework = plan_name(plan, plan->framework);
    bool is_pytorch = strcmp(framework, "pytorch") == 0;
    int stack = plan_file_stack(plan);
    SCRATCH struct map left = {0};
    if (plan->is_list)
        bad(plan, "a list of buckets is no plan");
    if (!is_pytorch && strcmp(framework, "tensorflow") != 0 && strcmp(framework, "mxnet") != 0)
        bad(plan, "its job's framework is not pytorch, tensorflow or mxnet");
    if (stack < 0)
        bad(plan, "its job's stack, %.40s, is none that this dpro knows", stack_name(plan));
    if (stack == DPRO_STACK_DDP && !is_pytorch)
        bad(plan, "the plan is for %s, not pytorch", framework);
    if (plan->world_size == 0)
        bad(plan, "'job.world_size' is missing");
    check_all_modules(plan);
    SCRATCH name_array units = {0};
    EACH (const struct plan_file_unit, unit, plan->units)
        array_push(&units, unit->name);
    check_modules(plan, "sharding.units", &units);
    if (plan_has_modules(plan) && plan->buckets.n == 0)
        return; /* of a job without gradients in buckets */
    if (plan->parameters.n == 0)
        bad(plan, "job.models has no parameters");
    check_parameters(plan, &left);
}

static bool is_of_buckets_alone(const struct plan_file *plan)
{
    bool other = plan_has_modules(plan) || plan->compression != DPRO_COMPRESSION_NONE ||
                 plan->cycle_ns > 0 || plan->fuses;
    EACH (const struct plan_file_bucket, bucket, plan->buckets)
        other |= bucket->partitions > 1 || bucket->priority != 0 || bucket->server >= 0;
    return !other;
}

static void read_plan(const char *path, struct dpro_plan_summary *summary)
{
    struct plan_file plan;
    plan_file_read(path, &plan);
    plan_check(&plan);
    *summary = (struct dpro_plan_summary){.n_servers = plan.n_servers,
                                          .baseline_ns = plan.baseline_ns,
                                          .iteration_ns = plan.iteration_ns,
                                          .uncertainty_pct = plan.uncertainty_pct,
                                          .n_compiled = (uint32_t)plan.compiled.n,
                                          .n_bf16 = (uint32_t)plan.in_bf16.n,
                                          .n_recomputed = (uint32_t)plan.recomputed.n,
                                          .micro_batches = plan.micro_batches,
                                          .buckets_alone = is_of_buckets_alone(&plan)};
    snprintf(summary->framework, sizeof summary->framework, "%s", plan_name(&plan, plan.framework));
    snprintf(summary->stack, sizeof summary->stack, "%s", stack_name(&plan));
    snprintf(summary->device, sizeof summary->device, "%s", plan_name(&plan, plan.device));
    plan_file_fini(&plan);
}

int dpro_plan_read(const char *path, struct dpro_plan_summary *summary, struct dpro_error *err)
{
    return OUTCOME(err, read_plan(path, summary));
}
