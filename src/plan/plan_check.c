/* plan/plan_check.c: whether a plan is one, as far as can be told without the job. */
#include <string.h>

#include <dpro/verify.h>

#include "base/error.h"
#include "base/map.h"
#include "plan/plan.h"

struct checker {
    const struct plan_file *plan;
    struct dpro_error *err;
};

static int bad(struct checker *r, const char *what, size_t n, const char *problem, uint32_t name)
{
    return dpro_error_set(r->err, DPRO_EFORMAT, "%s: %s %zu: %s%s", r->plan->path, what, n, problem,
                          strtab_get(&r->plan->strings, name));
}

/* Interned names are compared by id; a parameter is found by its model and name. */
static uint64_t key_of(uint64_t model, uint32_t name)
{
    return model << 32 | ((uint64_t)name + 1);
}

static int check_bucket(struct checker *r, size_t n, struct map *left)
{
    const struct plan_file_bucket *bucket = &r->plan->buckets.at[n];
    uint64_t size = 0;
    if (bucket->model >= r->plan->models.n)
        return bad(r, "bucket", n, "its model is not in job.models", 0);
    for (size_t i = bucket->first; i < bucket->first + bucket->n; i++) {
        uint64_t at, key = key_of(bucket->model, r->plan->names.at[i]);
        if (!map_get(left, key, &at))
            return bad(r, "bucket", n, "no parameter of its model is called ",
                       r->plan->names.at[i]);
        if (at == UINT64_MAX)
            return bad(r, "bucket", n, "a bucket has it already: ", r->plan->names.at[i]);
        size += r->plan->parameters.at[at].size_bytes;
        if (map_set(left, key, UINT64_MAX) < 0)
            return dpro_error_nomem(r->err);
    }
    if (size != bucket->size_bytes)
        return bad(r, "bucket", n, "size_bytes is not its parameters' sum", 0);
    return 0;
}

static int check_parameters(struct checker *r, struct map *left)
{
    for (size_t i = 0; i < r->plan->parameters.n; i++) {
        const struct plan_file_parameter *p = &r->plan->parameters.at[i];
        uint64_t key = key_of(p->model, p->name);
        if (p->name == 0 || p->size_bytes >= UINT64_MAX >> 20)
            return bad(r, "parameter", i, "it has no name or no size_bytes", 0);
        if (map_get(left, key, NULL))
            return bad(r, "parameter", i, "it is there twice: ", p->name);
        if (map_set(left, key, i) < 0)
            return dpro_error_nomem(r->err);
    }
    for (size_t n = 0; n < r->plan->buckets.n; n++) {
        int rc = check_bucket(r, n, left);
        if (rc < 0)
            return rc;
    }
    for (size_t i = 0; i < r->plan->parameters.n; i++) {
        const struct plan_file_parameter *p = &r->plan->parameters.at[i];
        uint64_t at;
        if (map_get(left, key_of(p->model, p->name), &at) && at != UINT64_MAX)
            return bad(r, "parameter", i, "it is in no bucket: ", p->name);
    }
    return 0;
}

static bool is_known(const char *framework)
{
    static const char *const known[] = {"pytorch", "tensorflow", "mxnet"};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(framework, known[i]) == 0)
            return true;
    return false;
}

static const char *stack_name(const struct plan_file *plan)
{
    return plan->stack ? strtab_get(&plan->strings, plan->stack) : dpro_stack_name(DPRO_STACK_DDP);
}

int plan_file_stack(const struct plan_file *plan)
{
    for (int s = DPRO_STACK_DDP; s <= DPRO_STACK_BYTEPS; s++)
        if (strcmp(stack_name(plan), dpro_stack_name((enum dpro_stack)s)) == 0)
            return s;
    return -1;
}

static int check(struct checker *r)
{
    const struct plan_file *plan = r->plan;
    struct map left = {NULL, 0, 0}; /* parameter: its index, UINT64_MAX when it is in a bucket */
    if (plan->is_list)
        return dpro_error_set(r->err, DPRO_EFORMAT, "%s: a list of buckets is no plan",
                              r->plan->path);
    if (!is_known(strtab_get(&plan->strings, plan->framework)))
        return dpro_error_set(r->err, DPRO_EFORMAT,
                              "%s: its job's framework is not pytorch, tensorflow or mxnet",
                              r->plan->path);
    if (plan_file_stack(plan) < 0)
        return dpro_error_set(r->err, DPRO_EFORMAT,
                              "%s: its job's stack, %.40s, is none that this dpro knows",
                              r->plan->path, stack_name(plan));
    if (plan_file_stack(plan) == DPRO_STACK_DDP &&
        strcmp(strtab_get(&plan->strings, plan->framework), "pytorch") != 0)
        return dpro_error_set(r->err, DPRO_EFORMAT, "%s: the plan is for %s, not pytorch",
                              r->plan->path, strtab_get(&plan->strings, plan->framework));
    if (plan->world_size < 1 || plan->world_size > INT32_MAX)
        return dpro_error_set(r->err, DPRO_EFORMAT, "%s: job.world_size is not a number of ranks",
                              r->plan->path);
    if (plan->parameters.n == 0)
        return dpro_error_set(r->err, DPRO_EFORMAT, "%s: job.models has no parameters",
                              r->plan->path);
    int rc = check_parameters(r, &left);
    map_fini(&left);
    return rc;
}

int dpro_plan_read(const char *path, struct dpro_plan_summary *summary, struct dpro_error *err)
{
    struct plan_file plan;
    struct checker checker = {&plan, err};
    int rc = plan_file_read(path, &plan, err);
    if (rc < 0)
        return rc;
    rc = check(&checker);
    if (rc == 0)
        *summary = (struct dpro_plan_summary){.world_size = (int)plan.world_size,
                                              .n_buckets = (uint32_t)plan.buckets.n,
                                              .n_fused_ops = plan.n_fused_ops,
                                              .n_servers = plan.n_servers,
                                              .baseline_ns = plan.baseline_ns,
                                              .iteration_ns = plan.iteration_ns,
                                              .uncertainty_pct = plan.uncertainty_pct};
    if (rc == 0) {
        snprintf(summary->framework, sizeof summary->framework, "%s",
                 strtab_get(&plan.strings, plan.framework));
        snprintf(summary->stack, sizeof summary->stack, "%s", stack_name(&plan));
    }
    plan_file_fini(&plan);
    return rc;
}
