/* report/plan.c: a strategy as files that jobs take: dpro's own plan.json, and what the job's stack
 * reads. doc/formats/plan.md has them all. */
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/error.h"
#include "ingest/trace.h"
#include "report/optimize.h"

struct plan_parameter {
    const char *name;
    uint32_t model;
    uint64_t size_bytes;
    uint32_t tensor; /* of the model of the search */
};

/* A bucket's tensors, of one of the job's models: indices of parameters. */
struct plan_bucket {
    uint32_t model, first, n; /* into members */
    uint64_t size_bytes;
    uint32_t partitions;
    int32_t priority;
    int server; /* -1: none is chosen */
};

struct plan {
    const struct optimize_facts *facts;
    ARRAY(const char *) models;
    ARRAY(struct plan_parameter) parameters;
    ARRAY(struct plan_bucket) buckets;
    ARRAY(uint32_t) members;
    uint32_t *parameter_of; /* by tensor */
};

/* ---- the job's models ---- */

static const struct recording *find_recording(const struct dpro_trace *trace)
{
    for (uint32_t r = 0; r < trace->n_ranks; r++) {
        const struct recording *recording = trace->ranks[r].recording;
        for (size_t m = 0; recording && m < recording->models.n; m++)
            if (recording->models.at[m].n_buckets > 0)
                return recording;
    }
    return NULL;
}

bool plan_is_named(const struct dpro_optimize_report *report)
{
    enum dpro_stack stack = dpro_model_stack(report->model);
    /* others' keys, variables and gradients have names of their own */
    return (stack != DPRO_STACK_DDP && stack != DPRO_STACK_BYTEPS) ||
           find_recording(report->trace) != NULL;
}

static uint32_t take_tensor(const struct dpro_model *model, const char *name, bool *taken)
{
    for (uint32_t t = 0; t < dpro_model_n_tensors(model); t++) {
        if (!taken[t] && strcmp(dpro_model_tensor(model, t).name, name) == 0) {
            taken[t] = true;
            return t;
        }
    }
    return UINT32_MAX;
}

static int add_parameter(struct plan *plan, const char *name, uint32_t tensor)
{
    struct dpro_tensor t = dpro_model_tensor(plan->facts->report->model, tensor);
    struct plan_parameter p = {.name = name,
                               .model = (uint32_t)plan->models.n - 1,
                               .size_bytes = t.size_bytes,
                               .tensor = tensor};
    plan->parameter_of[tensor] = (uint32_t)plan->parameters.n;
    return array_push(&plan->parameters, p);
}

/* Those of a model's parameters that are in a bucket, in the model's order. */
static int add_recorded_model(struct plan *plan, const struct recording *recording,
                              const struct recorded_model *m, bool *taken)
{
    const struct dpro_trace *trace = plan->facts->report->trace;
    bool *used = calloc((size_t)m->n_parameters + 1, sizeof *used);
    int rc = used ? array_push(&plan->models, strtab_get(&trace->names, m->name)) : -1;
    for (uint32_t b = m->first_bucket; b < m->first_bucket + m->n_buckets && rc == 0; b++) {
        const struct recorded_bucket *bucket = &recording->buckets.at[b];
        for (uint32_t i = bucket->first; i < bucket->first + bucket->n; i++) {
            uint32_t member = recording->members.at[i] - m->first_parameter;
            if (member < m->n_parameters)
                used[member] = true;
        }
    }
    for (uint32_t p = 0; p < m->n_parameters && rc == 0; p++) {
        uint32_t id = recording->parameters.at[m->first_parameter + p].name;
        const char *name = strtab_get(&trace->names, id);
        uint32_t tensor =
            used[p] ? take_tensor(plan->facts->report->model, name, taken) : UINT32_MAX;
        if (tensor != UINT32_MAX)
            rc = add_parameter(plan, name, tensor);
    }
    free(used);
    return rc;
}

/* As the recorder wrote them; of a trace that it did not write, all gradients in the order in which
 * they become ready. */
static int add_models(struct plan *plan)
{
    const struct dpro_model *model = plan->facts->report->model;
    const struct recording *recording = find_recording(plan->facts->report->trace);
    uint32_t n = dpro_model_n_tensors(model);
    bool *taken = calloc((size_t)n + 1, sizeof *taken);
    int rc = taken ? 0 : -1;
    for (size_t m = 0; recording && m < recording->models.n && rc == 0; m++)
        if (recording->models.at[m].n_buckets > 0)
            rc = add_recorded_model(plan, recording, &recording->models.at[m], taken);
    bool all = plan->parameters.n == n;
    for (uint32_t t = 0; t < n && !all && rc == 0; t++) {
        if (taken[t])
            continue;
        if (plan->models.n == 0)
            rc = array_push(&plan->models, "");
        if (rc == 0)
            rc = add_parameter(plan, dpro_model_tensor(model, t).name, t);
    }
    free(taken);
    return rc;
}

/* A job's models have reducers of their own, so that no bucket holds gradients of two. */
static int add_bucket(struct plan *plan, const struct dpro_bucket *bucket, uint32_t model)
{
    struct plan_bucket to = {.model = model,
                             .first = (uint32_t)plan->members.n,
                             .partitions = bucket->partitions,
                             .priority = bucket->priority,
                             .server = bucket->server};
    for (uint32_t i = 0; i < bucket->n_tensors; i++) {
        uint32_t p = plan->parameter_of[bucket->tensors[i]];
        if (plan->parameters.at[p].model != model)
            continue;
        if (array_push(&plan->members, p) < 0)
            return -1;
        to.size_bytes += plan->parameters.at[p].size_bytes;
        to.n++;
    }
    return to.n > 0 ? array_push(&plan->buckets, to) : 0;
}

int plan_create(const struct optimize_facts *facts, struct plan **made, struct dpro_error *err)
{
    const struct dpro_model *model = facts->report->model;
    struct plan *plan = calloc(1, sizeof *plan);
    if (!plan)
        return dpro_error_nomem(err);
    plan->facts = facts;
    plan->parameter_of =
        calloc((size_t)dpro_model_n_tensors(model) + 1, sizeof *plan->parameter_of);
    int rc = plan->parameter_of ? add_models(plan) : -1;
    for (uint32_t b = 0; b < dpro_strategy_n_buckets(facts->planned) && rc == 0; b++) {
        struct dpro_bucket bucket = dpro_strategy_bucket(facts->model, facts->planned, b);
        for (uint32_t m = 0; m < plan->models.n && rc == 0; m++)
            rc = add_bucket(plan, &bucket, m);
    }
    if (rc < 0) {
        plan_destroy(plan);
        return dpro_error_nomem(err);
    }
    *made = plan;
    return 0;
}

void plan_destroy(struct plan *plan)
{
    if (!plan)
        return;
    array_fini(&plan->models);
    array_fini(&plan->parameters);
    array_fini(&plan->buckets);
    array_fini(&plan->members);
    free(plan->parameter_of);
    free(plan);
}

/* ---- plan.json ---- */

static void write_job(struct writer *w, const struct plan *plan)
{
    const struct dpro_trace *trace = plan->facts->report->trace;
    writer_newline(w);
    writer_key(w, "job");
    writer_open(w, '{');
    writer_key_string(w, "framework", dpro_trace_framework(trace));
    writer_key_string(w, "stack", dpro_stack_name(dpro_model_stack(plan->facts->report->model)));
    writer_key_int(w, "world_size", dpro_trace_world_size(trace));
    writer_key(w, "models");
    writer_open(w, '[');
    for (uint32_t m = 0; m < plan->models.n; m++) {
        writer_newline(w);
        writer_open(w, '{');
        writer_key_string(w, "name", plan->models.at[m]);
        writer_key(w, "parameters");
        writer_open(w, '[');
        for (size_t p = 0; p < plan->parameters.n; p++) {
            if (plan->parameters.at[p].model != m)
                continue;
            writer_newline(w);
            writer_open(w, '{');
            writer_key_string(w, "name", plan->parameters.at[p].name);
            writer_key_int(w, "size_bytes", (int64_t)plan->parameters.at[p].size_bytes);
            writer_close(w, '}');
        }
        writer_close(w, ']');
        writer_close(w, '}');
    }
    writer_close(w, ']');
    writer_close(w, '}');
}

static void write_expected(struct writer *w, const struct optimize_facts *f)
{
    writer_newline(w);
    writer_key(w, "expected");
    writer_open(w, '{');
    writer_key(w, "baseline_ms");
    writer_json_ms(w, f->found.own_ns);
    /* of what jobs can be given */
    int64_t best_ns = f->helps ? f->found.apart_ns : f->found.own_ns;
    writer_key(w, "iteration_ms");
    writer_json_ms(w, best_ns);
    writer_key(w, "speedup");
    writer_json_fixed(w, (double)f->found.own_ns / (double)best_ns, 6);
    writer_key(w, "uncertainty_pct");
    writer_json_fixed(w, f->uncertainty_pct, 3);
    writer_close(w, '}');
}

static int write_plan(struct writer *w, void *arg, struct dpro_error *err)
{
    const struct plan *plan = arg;
    enum dpro_compression compression = dpro_strategy_compression(plan->facts->planned);
    (void)err;
    writer_open(w, '{');
    writer_key_string(w, "schema", plan->facts->n_fusions ? "dpro.plan/2" : "dpro.plan/1");
    writer_key_string(w, "dpro", dpro_version());
    write_job(w, plan);
    write_expected(w, plan->facts);
    writer_newline(w);
    writer_key(w, "communication");
    writer_open(w, '{');
    writer_key_string(w, "compression", dpro_compression_name(compression));
    writer_key(w, "changes_numerics");
    writer_bool(w, compression != DPRO_COMPRESSION_NONE);
    writer_key(w, "is_own");
    writer_bool(w, !plan->facts->helps);
    struct dpro_cycles cycles = dpro_strategy_cycles(plan->facts->planned);
    if (cycles.cycle_ns > 0)
        writer_key_ms(w, "cycle_time_ms", cycles.cycle_ns);
    if (cycles.cycle_ns > 0 && cycles.fuses)
        writer_key_int(w, "fusion_threshold_bytes", (int64_t)cycles.fusion_bytes);
    if (plan->facts->n_servers > 0)
        writer_key_int(w, "servers", plan->facts->n_servers);
    writer_key(w, "buckets");
    writer_open(w, '[');
    for (size_t b = 0; b < plan->buckets.n; b++) {
        const struct plan_bucket *bucket = &plan->buckets.at[b];
        writer_newline(w);
        writer_open(w, '{');
        writer_key_int(w, "model", bucket->model);
        writer_key(w, "parameters");
        writer_open(w, '[');
        for (uint32_t i = bucket->first; i < bucket->first + bucket->n; i++)
            writer_string(w, plan->parameters.at[plan->members.at[i]].name);
        writer_close(w, ']');
        writer_key_int(w, "size_bytes", (int64_t)bucket->size_bytes);
        writer_key_int(w, "partitions", bucket->partitions);
        writer_key_int(w, "priority", bucket->priority);
        if (bucket->server >= 0)
            writer_key_int(w, "server", bucket->server);
        writer_close(w, '}');
    }
    writer_close(w, ']');
    writer_close(w, '}');
    if (plan->facts->n_fusions) {
        writer_newline(w);
        writer_key(w, "computation");
        optimize_write_fusions(w, plan->facts->report->optimum);
    }
    writer_close(w, '}');
    writer_text(w, "\n");
    return 0;
}

/* ---- other stacks ---- */

static uint64_t round_up(uint64_t value, uint64_t unit)
{
    return (value + unit - 1) / unit * unit;
}

static uint64_t partition_bytes(const struct plan_bucket *bucket)
{
    return (bucket->size_bytes + bucket->partitions - 1) / bucket->partitions;
}

static uint64_t mean_bucket_bytes(const struct plan *plan)
{
    uint64_t total = 0;
    for (size_t b = 0; b < plan->buckets.n; b++)
        total += plan->buckets.at[b].size_bytes;
    return plan->buckets.n ? total / plan->buckets.n : 0;
}

/* A job of Horovod's is given the plan's groups, which are then to stay as they are, or settings by
 * which it fuses by itself; another one that comes to Horovod gets near to the plan. */
static int write_horovod_env(struct writer *w, void *arg, struct dpro_error *err)
{
    const struct plan *plan = arg;
    const struct dpro_model *model = plan->facts->report->model;
    struct dpro_cycles own = dpro_strategy_cycles(dpro_model_strategy(model));
    struct dpro_cycles cycles = dpro_strategy_cycles(plan->facts->planned);
    uint64_t threshold = 128 << 20; /* Horovod's own */
    (void)err;
    if (dpro_model_stack(model) != DPRO_STACK_HOROVOD) {
        writer_printf(w, "HOROVOD_FUSION_THRESHOLD=%llu\nHOROVOD_CYCLE_TIME=1\n",
                      (unsigned long long)mean_bucket_bytes(plan));
        return 0;
    }
    if (!plan->facts->helps)
        return 0;
    for (size_t b = 0; b < plan->buckets.n; b++)
        if (plan->buckets.at[b].size_bytes > threshold)
            threshold = round_up(plan->buckets.at[b].size_bytes, 1 << 20);
    if (cycles.fuses)
        threshold = cycles.fusion_bytes;
    else
        writer_text(w, "HOROVOD_DISABLE_GROUP_FUSION=1\n");
    writer_printf(w, "HOROVOD_FUSION_THRESHOLD=%llu\n", (unsigned long long)threshold);
    if (cycles.cycle_ns != own.cycle_ns) /* else the job keeps what it has */
        writer_printf(w, "HOROVOD_CYCLE_TIME=%g\n", (double)cycles.cycle_ns / 1e6);
    return 0;
}

static int write_horovod_groups(struct writer *w, void *arg, struct dpro_error *err)
{
    const struct plan *plan = arg;
    (void)err;
    writer_text(w, "{\"mapping\":[");
    for (size_t b = 0; b < plan->buckets.n; b++) {
        const struct plan_bucket *bucket = &plan->buckets.at[b];
        writer_text(w, b ? ",\"" : "\"");
        for (uint32_t i = 0; i < bucket->n; i++)
            writer_printf(w, "%s%u", i ? "+" : "", plan->members.at[bucket->first + i]);
        writer_text(w, "\"");
    }
    writer_text(w, "]}\n");
    return 0;
}

static int write_byteps_env(struct writer *w, void *arg, struct dpro_error *err)
{
    const struct plan *plan = arg;
    uint64_t most = 0;
    (void)err;
    for (size_t b = 0; b < plan->buckets.n; b++)
        if (partition_bytes(&plan->buckets.at[b]) > most)
            most = partition_bytes(&plan->buckets.at[b]);
    writer_printf(w, "BYTEPS_PARTITION_BYTES=%llu\n", (unsigned long long)round_up(most, 4096));
    return 0;
}

/* MXNet sends a tensor of so many elements or more in parts, one a server. */
static int write_mxnet_env(struct writer *w, void *arg, struct dpro_error *err)
{
    const struct plan *plan = arg;
    uint64_t largest = 0, least_parted = UINT64_MAX;
    (void)err;
    for (size_t b = 0; b < plan->buckets.n; b++) {
        const struct plan_bucket *bucket = &plan->buckets.at[b];
        for (uint32_t i = 0; i < bucket->n; i++) {
            uint64_t size = plan->parameters.at[plan->members.at[bucket->first + i]].size_bytes;
            if (size > largest)
                largest = size;
            if (bucket->partitions > 1 && size < least_parted)
                least_parted = size;
        }
    }
    writer_printf(
        w, "MXNET_KVSTORE_BIGARRAY_BOUND=%llu\n",
        (unsigned long long)(least_parted < UINT64_MAX ? (least_parted + 3) / 4 : largest / 4 + 1));
    return 0;
}

static int write_byteps_partition(struct writer *w, void *arg, struct dpro_error *err)
{
    const struct plan *plan = arg;
    (void)err;
    for (size_t b = 0; b < plan->buckets.n; b++) {
        const struct plan_bucket *bucket = &plan->buckets.at[b];
        for (uint32_t i = bucket->first; i < bucket->first + bucket->n; i++) {
            const struct plan_parameter *p = &plan->parameters.at[plan->members.at[i]];
            uint64_t most = partition_bytes(bucket);
            writer_text(w, p->name);
            writer_text(w, " ");
            writer_int(w, (int64_t)(p->size_bytes < most ? p->size_bytes : most));
            writer_text(w, "\n");
        }
    }
    return 0;
}

static int write_torch_compile(struct writer *w, void *arg, struct dpro_error *err)
{
    const struct plan *plan = arg;
    uint64_t mib = round_up(mean_bucket_bytes(plan), 1 << 20) >> 20;
    (void)err;
    writer_open(w, '{');
    writer_key_string(w, "schema", "dpro.torch-compile/1");
    writer_newline(w);
    writer_key(w, "torch._inductor.config");
    writer_open(w, '{');
    writer_key(w, "_fuse_ddp_communication");
    writer_bool(w, true);
    writer_key_int(w, "_fuse_ddp_bucket_size", (int64_t)(mib ? mib : 1));
    writer_key_string(w, "bucket_all_reduces_fx", "all");
    writer_close(w, '}');
    writer_newline(w);
    writer_key(w, "bucket_all_reduces_mb");
    writer_open(w, '[');
    for (size_t b = 0; b < plan->buckets.n; b++)
        writer_json_fixed(w, (double)plan->buckets.at[b].size_bytes / 1048576, 6);
    writer_close(w, ']');
    writer_close(w, '}');
    writer_text(w, "\n");
    return 0;
}

static int write_json(struct writer *w, void *arg, struct dpro_error *err)
{
    (void)err;
    optimize_write_json(w, ((const struct plan *)arg)->facts);
    writer_text(w, "\n");
    return 0;
}

static int write_page(struct writer *w, void *arg, struct dpro_error *err)
{
    (void)err;
    optimize_write_page(w, ((const struct plan *)arg)->facts);
    return 0;
}

enum {
    DDP = 1u << DPRO_STACK_DDP,
    HOROVOD = 1u << DPRO_STACK_HOROVOD,
    MXNET_PS = 1u << DPRO_STACK_MXNET_PS,
    BYTEPS = 1u << DPRO_STACK_BYTEPS,
    ANY = ~0u
};

/* A job of DDP can be moved to Horovod or BytePS. plan.json last: who sees it sees all. */
static const struct {
    unsigned stacks;
    struct report_file file;
} all_files[] = {
    {DDP | HOROVOD, {"horovod.env", false, write_horovod_env}},
    {DDP | HOROVOD, {"horovod_groups.json", false, write_horovod_groups}},
    {DDP | BYTEPS, {"byteps.env", false, write_byteps_env}},
    {DDP | BYTEPS, {"byteps_partition.txt", false, write_byteps_partition}},
    {MXNET_PS, {"mxnet.env", false, write_mxnet_env}},
    {DDP, {"torch_compile.json", false, write_torch_compile}},
    {ANY, {"optimize.json", false, write_json}},
    {ANY, {"optimize.html", false, write_page}},
    {ANY, {"plan.json", false, write_plan}},
};
_Static_assert(sizeof all_files / sizeof *all_files <= MOST_PLAN_FILES, "room for all of them");

int plan_files(const struct dpro_model *model, struct report_file files[MOST_PLAN_FILES])
{
    int n = 0;
    for (size_t i = 0; i < sizeof all_files / sizeof *all_files; i++)
        if (all_files[i].stacks & 1u << dpro_model_stack(model))
            files[n++] = all_files[i].file;
    return n;
}
