/* Whether a plan is one, as far as can be told without the job. */

#include <dpro/verify.h>

#include "plan/plan.h"

#define bad(err, ...) dpro_error_set(err, DPRO_EFORMAT, __VA_ARGS__)

static const char *name_of(const struct plan_file *plan, uint32_t name)
{
    return strtab_get(&plan->strings, name);
}

/* Interned names are compared by id; a parameter is found by its model and name. */
static uint64_t key_of(uint64_t model, uint32_t name)
{
    return model << 32 | ((uint64_t)name + 1);
}

static int check_bucket(const struct plan_file *plan, size_t n, struct map *left,
                        struct dpro_error *err)
{
    const struct plan_file_bucket *bucket = &plan->buckets.at[n];
    uint64_t size = 0;
    if (bucket->model >= plan->models.n)
        return bad(err, "communication.buckets[%zu]: its model is not in job.models", n);
    for (size_t i = bucket->first; i < bucket->first + bucket->n; i++) {
        uint64_t at, key = key_of(bucket->model, plan->names.at[i]);
        const char *name = name_of(plan, plan->names.at[i]);
        if (!map_get(left, key, &at))
            return bad(err, "communication.buckets[%zu]: no parameter of its model is called %s", n,
                       name);
        if (at == UINT64_MAX)
            return bad(err, "communication.buckets[%zu]: a bucket has it already: %s", n, name);
        size += plan->parameters.at[at].size_bytes;
        map_set(left, key, UINT64_MAX);
    }
    return size == bucket->size_bytes
               ? 0
               : bad(err, "communication.buckets[%zu]: size_bytes is not its parameters' sum", n);
}

/* `left` is for each parameter its index, UINT64_MAX when it is in a bucket. */
static int check_parameters(const struct plan_file *plan, struct map *left, struct dpro_error *err)
{
    for (size_t i = 0; i < plan->parameters.n; i++) {
        const struct plan_file_parameter *p = &plan->parameters.at[i];
        uint64_t key = key_of(p->model, p->name);
        if (p->name == 0 || p->size_bytes >= UINT64_MAX >> 20)
            return bad(err, "parameter %zu: it has no name or no size_bytes", i);
        if (!map_insert(left, key, i))
            return bad(err, "parameter %zu: it is there twice: %s", i, name_of(plan, p->name));
    }
    for (size_t n = 0; n < plan->buckets.n; n++) {
        int rc = check_bucket(plan, n, left, err);
        if (rc < 0)
            return rc;
    }
    for (size_t i = 0; i < plan->parameters.n; i++) {
        const struct plan_file_parameter *p = &plan->parameters.at[i];
        uint64_t at;
        if (map_get(left, key_of(p->model, p->name), &at) && at != UINT64_MAX)
            return bad(err, "parameter %zu: it is in no bucket: %s", i, name_of(plan, p->name));
    }
    return 0;
}

/* Each once. */
static int check_modules(const struct plan_file *plan, const char *key, const name_array *names,
                         struct dpro_error *err)
{
    SCRATCH struct map seen = {0};
    int rc = 0;
    for (size_t i = 0; i < names->n && rc == 0; i++)
        if (!map_insert(&seen, names->at[i] + UINT64_C(1), 1))
            rc = bad(err, "%s: a module is there twice: %s", key, name_of(plan, names->at[i]));
    return rc;
}

static int check_all_modules(const struct plan_file *p, struct dpro_error *err)
{
    int rc = check_modules(p, "memory.recompute", &p->recomputed, err);
    if (rc == 0)
        rc = check_modules(p, "computation.compile", &p->compiled, err);
    if (rc == 0)
        rc = check_modules(p, "computation.bf16", &p->in_bf16, err);
    if (rc == 0 && plan_has_computing(p) && !p->changes_numerics)
        rc = bad(err, "computation: it has modules, and changes_numerics is not true");
    return rc;
}

static int check_units(const struct plan_file *plan, struct dpro_error *err)
{
    SCRATCH name_array names = {0};
    for (size_t i = 0; i < plan->units.n; i++)
        array_push(&names, plan->units.at[i].name);
    return check_modules(plan, "sharding.units", &names, err);
}

static const char *stack_name(const struct plan_file *plan)
{
    return plan->stack ? name_of(plan, plan->stack) : dpro_stack_name(DPRO_STACK_DDP);
}

int plan_file_stack(const struct plan_file *plan)
{
    for (int s = DPRO_STACK_DDP; s <= DPRO_STACK_BYTEPS; s++)
        if (strcmp(stack_name(plan), dpro_stack_name((enum dpro_stack)s)) == 0)
            return s;
    return -1;
}

static int plan_check(const struct plan_file *plan, struct dpro_error *err)
{
    const char *framework = name_of(plan, plan->framework);
    bool is_pytorch = strcmp(framework, "pytorch") == 0;
    int stack = plan_file_stack(plan);
    SCRATCH struct map left = {0};
    if (plan->is_list)
        return bad(err, "a list of buckets is no plan");
    if (!is_pytorch && strcmp(framework, "tensorflow") != 0 && strcmp(framework, "mxnet") != 0)
        return bad(err, "its job's framework is not pytorch, tensorflow or mxnet");
    if (stack < 0)
        return bad(err, "its job's stack, %.40s, is none that this dpro knows", stack_name(plan));
    if (stack == DPRO_STACK_DDP && !is_pytorch)
        return bad(err, "the plan is for %s, not pytorch", framework);
    if (plan->world_size == 0)
        return bad(err, "'job.world_size' is missing");
    int rc = check_all_modules(plan, err);
    if (rc == 0)
        rc = check_units(plan, err);
    if (rc < 0 || (plan_has_modules(plan) && plan->buckets.n == 0))
        return rc; /* of a job without gradients in buckets */
    if (plan->parameters.n == 0)
        return bad(err, "job.models has no parameters");
    rc = check_parameters(plan, &left, err);
    return rc;
}

static bool is_of_buckets_alone(const struct plan_file *plan)
{
    bool other = plan_has_modules(plan) || plan->compression != DPRO_COMPRESSION_NONE ||
                 plan->cycle_ns > 0 || plan->fuses;
    EACH (const struct plan_file_bucket, bucket, plan->buckets)
        other |= bucket->partitions > 1 || bucket->priority != 0 || bucket->server >= 0;
    return !other;
}

static int read_plan(const char *path, struct dpro_plan_summary *summary, struct dpro_error *err)
{
    struct plan_file plan;
    int rc = plan_file_read(path, &plan, err);
    if (rc < 0)
        return rc;
    if (plan_check(&plan, err) < 0)
        return dpro_error_prefix(err, "%s", plan.path);
    *summary = (struct dpro_plan_summary){.n_fused_ops = plan.n_fused_ops,
                                          .n_servers = plan.n_servers,
                                          .baseline_ns = plan.baseline_ns,
                                          .iteration_ns = plan.iteration_ns,
                                          .uncertainty_pct = plan.uncertainty_pct,
                                          .n_compiled = (uint32_t)plan.compiled.n,
                                          .n_bf16 = (uint32_t)plan.in_bf16.n,
                                          .n_recomputed = (uint32_t)plan.recomputed.n,
                                          .micro_batches = plan.micro_batches,
                                          .buckets_alone = is_of_buckets_alone(&plan)};
    snprintf(summary->framework, sizeof summary->framework, "%s", name_of(&plan, plan.framework));
    snprintf(summary->stack, sizeof summary->stack, "%s", stack_name(&plan));
    snprintf(summary->device, sizeof summary->device, "%s", name_of(&plan, plan.device));
    plan_file_fini(&plan);
    return 0;
}

int dpro_plan_read(const char *path, struct dpro_plan_summary *summary, struct dpro_error *err)
{
    return WITHIN_SCOPE(dpro_error_nomem(err), read_plan(path, summary, err));
}
