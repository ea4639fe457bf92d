/* report/plan_make.c: a strategy that a search found as a plan for the job, written with the files
 * that the job's stack takes. */
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/error.h"
#include "base/memory.h"
#include "ingest/trace.h"
#include "plan/plan.h"
#include "report/optimize_report.h"

struct maker {
    const struct optimize_facts *facts;
    struct plan_file plan;
    uint32_t *parameter_of; /* by tensor of the model of the search */
    bool *taken;            /* likewise: is a parameter of the plan */
    bool no_memory;
};

/* ---- the job's models ---- */

static uint32_t intern(struct maker *m, const char *text)
{
    return plan_file_intern(&m->plan, text, strlen(text), &m->no_memory);
}

static uint32_t find_tensor(const struct maker *m, const char *name)
{
    const struct dpro_model *model = m->facts->report->model;
    for (uint32_t t = 0; t < dpro_model_n_tensors(model); t++)
        if (!m->taken[t] && strcmp(dpro_model_tensor(model, t).name, name) == 0)
            return t;
    return UINT32_MAX;
}

static void add_model(struct maker *m, const char *name)
{
    m->no_memory |= array_push(&m->plan.models, intern(m, name)) < 0;
}

/* Of the model added last. */
static void add_parameter(struct maker *m, uint32_t tensor)
{
    struct dpro_tensor t = dpro_model_tensor(m->facts->report->model, tensor);
    struct plan_file_parameter parameter = {.name = intern(m, t.name),
                                            .model = (uint32_t)m->plan.models.n - 1,
                                            .size_bytes = t.size_bytes};
    m->taken[tensor] = true;
    m->parameter_of[tensor] = (uint32_t)m->plan.parameters.n;
    m->no_memory |= array_push(&m->plan.parameters, parameter) < 0;
}

/* The model's parameters that are in a bucket, in the model's order. */
static void add_recorded_model(struct maker *m, const struct recording *recording,
                               const struct recorded_model *from)
{
    const struct strtab *names = &m->facts->report->trace->names;
    bool *used = mem_array((size_t)from->n_parameters + 1, sizeof *used);
    m->no_memory |= !used;
    add_model(m, strtab_get(names, from->name));
    for (uint32_t b = from->first_bucket; b < from->first_bucket + from->n_buckets && !m->no_memory;
         b++) {
        const struct recorded_bucket *bucket = &recording->buckets.at[b];
        for (uint32_t i = bucket->first; i < bucket->first + bucket->n; i++) {
            uint32_t member = recording->members.at[i] - from->first_parameter;
            if (member < from->n_parameters)
                used[member] = true;
        }
    }
    for (uint32_t p = 0; p < from->n_parameters && !m->no_memory; p++) {
        uint32_t id = recording->parameters.at[from->first_parameter + p].name;
        uint32_t tensor = used[p] ? find_tensor(m, strtab_get(names, id)) : UINT32_MAX;
        if (tensor != UINT32_MAX)
            add_parameter(m, tensor);
    }
    mem_free(used);
}

/* The models as the recorder wrote them. Of a trace that it did not write, all gradients in the
 * order in which they become ready. */
static void add_models(struct maker *m)
{
    const struct recording *recording = m->facts->recording;
    uint32_t n = dpro_model_n_tensors(m->facts->report->model);
    for (size_t i = 0; recording && i < recording->models.n && !m->no_memory; i++)
        if (recording->models.at[i].n_buckets > 0)
            add_recorded_model(m, recording, &recording->models.at[i]);
    for (uint32_t t = 0; t < n && !m->no_memory; t++) {
        if (m->taken[t])
            continue;
        if (m->plan.models.n == 0)
            add_model(m, "");
        add_parameter(m, t);
    }
}

/* Each of a job's models has a reducer of its own, so no bucket holds gradients of two. */
static void add_bucket(struct maker *m, const struct dpro_bucket *bucket, uint32_t model)
{
    struct plan_file_bucket to = {.model = model,
                                  .first = m->plan.members.n,
                                  .partitions = bucket->partitions,
                                  .priority = bucket->priority,
                                  .server = bucket->server};
    for (uint32_t i = 0; i < bucket->n_tensors && !m->no_memory; i++) {
        uint32_t p = m->parameter_of[bucket->tensors[i]];
        if (m->plan.parameters.at[p].model != model)
            continue;
        m->no_memory |= array_push(&m->plan.members, p) < 0;
        to.size_bytes += m->plan.parameters.at[p].size_bytes;
        to.n++;
    }
    if (to.n > 0)
        m->no_memory |= array_push(&m->plan.buckets, to) < 0;
}

static void make_plan(struct maker *m)
{
    const struct optimize_facts *f = m->facts;
    const struct dpro_model *model = f->report->model;
    struct dpro_cycles cycles = dpro_strategy_cycles(f->planned);
    struct plan_file *plan = &m->plan;
    intern(m, "");
    plan->framework = intern(m, dpro_trace_framework(f->report->trace));
    plan->stack = intern(m, dpro_stack_name(dpro_model_stack(model)));
    plan->world_size = dpro_trace_world_size(f->report->trace);
    plan->is_own = !f->helps;
    plan->baseline_ns = f->found.baseline_ns;
    /* what jobs can be given */
    plan->iteration_ns = f->helps ? f->found.apart_ns : f->found.baseline_ns;
    plan->uncertainty_pct = f->uncertainty_pct;
    plan->compression = dpro_strategy_compression(f->planned);
    plan->cycle_ns = cycles.cycle_ns;
    plan->fuses = cycles.fuses;
    plan->fusion_bytes = cycles.fusion_bytes;
    plan->profiled_cycle_ns = dpro_strategy_cycles(dpro_model_strategy(model)).cycle_ns;
    plan->n_servers = f->n_servers;
    plan->n_fused_ops = f->n_fusions;
    plan->write_fused_ops = optimize_write_fusions;
    plan->fused_ops = f->report->optimum;
    add_models(m);
    for (uint32_t b = 0; b < dpro_strategy_n_buckets(f->planned) && !m->no_memory; b++) {
        struct dpro_bucket bucket = dpro_strategy_bucket(f->model, f->planned, b);
        for (uint32_t i = 0; i < plan->models.n && !m->no_memory; i++)
            add_bucket(m, &bucket, i);
    }
}

static int write_plan(const struct dpro_optimize_report *report, struct dpro_error *err)
{
    struct optimize_facts facts;
    size_t n_tensors = dpro_model_n_tensors(report->model), n;
    struct maker m = {.facts = &facts,
                      .parameter_of = mem_array(n_tensors + 1, sizeof *m.parameter_of),
                      .taken = mem_array(n_tensors + 1, sizeof *m.taken)};
    struct set_file files[PLAN_MOST_FILES + 3];
    int rc = DPRO_ENOMEM;
    optimize_facts_fill(&facts, report);
    m.no_memory = !m.parameter_of || !m.taken;
    if (!m.no_memory)
        make_plan(&m);
    if (m.no_memory) {
        dpro_error_nomem(err);
    } else {
        n = plan_stack_files(&m.plan, files);
        files[n++] = (struct set_file){"optimize.json", false, optimize_write_json, &facts};
        files[n++] = (struct set_file){"optimize.html", false, optimize_write_page, &facts};
        /* last: who sees it sees all */
        files[n++] = (struct set_file){"plan.json", false, plan_file_write, &m.plan};
        rc = file_set_write(report->plan, "plan", files, n, err);
    }
    plan_file_fini(&m.plan);
    mem_free(m.parameter_of);
    mem_free(m.taken);
    return rc;
}

int dpro_optimize_plan(const struct dpro_optimize_report *report, struct dpro_error *err)
{
    return WITHIN_SCOPE(dpro_error_nomem(err), write_plan(report, err));
}
