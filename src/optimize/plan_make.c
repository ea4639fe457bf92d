/* Makes a plan of a strategy. Its models are those of the recorded job. Each of its buckets has
 * tensors of one model, as each model has a reducer of its own. */
#include "optimize/plan_make.h"

#include "cost/change/families.h"
#include "ingest/trace.h"
#include "optimize/computing.h"
#include "optimize/program_search.h"

struct make_maker {
    const struct dpro_trace *trace;
    const struct dpro_model *model; /* as the job ran */
    struct plan_file *plan;
    uint32_t *parameter_of; /* by tensor of the model; UINT32_MAX: not added yet */
};

const struct recording *plan_recording(const struct dpro_trace *trace)
{
    for (uint32_t r = 0; r < trace->n_ranks; r++) {
        const struct recording *recording = trace->ranks[r].recording;
        for (size_t m = 0; recording && m < recording->models.n; m++)
            if (recording->models.at[m].n_buckets > 0)
                return recording;
    }
    return NULL;
}

static uint32_t make_intern(struct make_maker *m, const char *text)
{
    return strtab_add(&m->plan->strings, text, strlen(text));
}

static uint32_t find_tensor(const struct make_maker *m, const char *name)
{
    for (uint32_t t = 0; t < dpro_model_n_tensors(m->model); t++)
        if (m->parameter_of[t] == UINT32_MAX &&
            strcmp(dpro_model_tensor(m->model, t).name, name) == 0)
            return t;
    return UINT32_MAX;
}

static void add_parameter(struct make_maker *m, uint32_t tensor)
{
    struct dpro_tensor t = dpro_model_tensor(m->model, tensor);
    struct plan_file_parameter parameter = {.name = make_intern(m, t.name),
                                            .model = (uint32_t)m->plan->models.n - 1,
                                            .size_bytes = t.size_bytes};
    m->parameter_of[tensor] = (uint32_t)m->plan->parameters.n;
    array_push(&m->plan->parameters, parameter);
}

/* The model's parameters that are in a bucket, in the model's order. */
static void add_recorded_model(struct make_maker *m, const struct recording *recording,
                               const struct recorded_model *from)
{
    const struct strtab *names = &m->trace->names;
    SCRATCH bool *used = mem_array(from->n_parameters, sizeof *used);
    array_push(&m->plan->models, make_intern(m, strtab_get(names, from->name)));
    for (uint32_t b = from->first_bucket; b < from->first_bucket + from->n_buckets; b++) {
        const struct recorded_bucket *bucket = &recording->buckets.at[b];
        for (uint32_t i = bucket->first; i < bucket->first + bucket->n; i++) {
            uint32_t member = recording->members.at[i] - from->first_parameter;
            if (member < from->n_parameters)
                used[member] = true;
        }
    }
    for (uint32_t p = 0; p < from->n_parameters; p++) {
        uint32_t id = recording->parameters.at[from->first_parameter + p].name;
        uint32_t tensor = used[p] ? find_tensor(m, strtab_get(names, id)) : UINT32_MAX;
        if (tensor != UINT32_MAX)
            add_parameter(m, tensor);
    }
}

/* The models as the recorder wrote them. Of a trace that it did not write, all gradients in the
 * order in which they become ready. */
static void add_models(struct make_maker *m)
{
    const struct recording *recording = plan_recording(m->trace);
    for (size_t i = 0; recording && i < recording->models.n; i++)
        if (recording->models.at[i].n_buckets > 0)
            add_recorded_model(m, recording, &recording->models.at[i]);
    for (uint32_t t = 0; t < dpro_model_n_tensors(m->model); t++) {
        if (m->parameter_of[t] != UINT32_MAX)
            continue;
        if (m->plan->models.n == 0)
            array_push(&m->plan->models, make_intern(m, ""));
        add_parameter(m, t);
    }
}

static void add_bucket(struct make_maker *m, const struct dpro_bucket *bucket, uint32_t model)
{
    struct plan_file_bucket to = {.model = model,
                                  .first = m->plan->members.n,
                                  .partitions = bucket->partitions,
                                  .priority = bucket->priority,
                                  .server = bucket->server};
    for (uint32_t i = 0; i < bucket->n_tensors; i++) {
        uint32_t p = m->parameter_of[bucket->tensors[i]];
        if (m->plan->parameters.at[p].model != model)
            continue;
        array_push(&m->plan->members, p);
        to.size_bytes += m->plan->parameters.at[p].size_bytes;
        to.n++;
    }
    if (to.n > 0)
        array_push(&m->plan->buckets, to);
}

static void add_modules(struct make_maker *m, const struct dpro_optimum *optimum,
                        enum dpro_which which)
{
    const struct dpro_model *model = dpro_optimum_model(optimum, which);
    const struct dpro_strategy *strategy = dpro_optimum_strategy(optimum, which);
    for (uint32_t i = 0; i < dpro_model_n_modules(model); i++) {
        struct dpro_module module = dpro_strategy_module(model, strategy, i);
        unsigned way = computing_way(model, strategy, i);
        if (module.recomputed)
            array_push(&m->plan->recomputed, make_intern(m, module.name));
        if (way & DPRO_COMPILED)
            array_push(&m->plan->compiled, make_intern(m, module.name));
        if (way & DPRO_BF16)
            array_push(&m->plan->in_bf16, make_intern(m, module.name));
    }
    m->plan->micro_batches = dpro_strategy_micro_batches(strategy);
    m->plan->budget_bytes = dpro_optimum_memory_budget(optimum).budget_bytes;
    m->plan->baseline_peak_bytes = dpro_optimum_memory_peak(optimum, DPRO_BASELINE).bytes;
    m->plan->peak_bytes = dpro_optimum_memory_peak(optimum, which).bytes;
}

static void add_units(struct make_maker *m, const struct dpro_optimum *o, enum dpro_which which)
{
    size_t f = (size_t)which - DPRO_FINALISTS;
    bool is_one = which >= DPRO_FINALISTS && f < o->finalist_settings.n;
    const struct setting *setting = is_one ? o->finalist_settings.at[f] : NULL;
    uint32_t best = which == DPRO_BEST ? o->summary.prefetch : 0;
    m->plan->prefetch = setting ? setting->prefetch : best;
    for (uint32_t i = 0; i < dpro_optimum_n_units(o); i++) {
        struct dpro_unit unit = dpro_optimum_unit(o, i);
        bool reshards = which == DPRO_BEST ? unit.reshards : unit.reshards_before;
        if (setting)
            reshards = setting->reshards[o->unit_numbers.at[i]];
        array_push(&m->plan->units, ((struct plan_file_unit){make_intern(m, unit.name), reshards}));
    }
}

void plan_make(const struct dpro_trace *trace, const struct dpro_optimum *optimum,
               enum dpro_which which, struct plan_file *plan)
{
    const struct dpro_model *ran = dpro_optimum_model(optimum, DPRO_BASELINE);
    const struct dpro_model *model = dpro_optimum_model(optimum, which);
    const struct dpro_strategy *strategy = dpro_optimum_strategy(optimum, which);
    struct dpro_optimum_summary found = dpro_optimum_summary(optimum);
    struct dpro_cycles cycles = dpro_strategy_cycles(strategy);
    size_t n_tensors = dpro_model_n_tensors(ran);
    struct make_maker m = {trace, ran, plan, mem_alloc(n_tensors * sizeof *m.parameter_of)};
    memset(m.parameter_of, 0xFF, n_tensors * sizeof *m.parameter_of);
    make_intern(&m, "");
    plan->framework = make_intern(&m, dpro_trace_framework(trace));
    plan->stack = make_intern(&m, dpro_stack_name(dpro_model_stack(ran)));
    plan->world_size = dpro_trace_world_size(trace);
    if (trace->n_ranks > 0 && trace->ranks[0].recording)
        plan->device =
            make_intern(&m, strtab_get(&trace->names, trace->ranks[0].recording->device));
    bool is_own = which == DPRO_BASELINE; /* in all */
    unsigned changed = families_of(model, dpro_optimum_strategy(optimum, DPRO_BASELINE), strategy);
    bool of_modules = changed & ~OF_COMMUNICATION || dpro_optimum_memory_budget(optimum).needed;
    plan->is_own = is_own || (of_modules && !(changed & OF_COMMUNICATION));
    plan->baseline_ns = found.baseline_ns;
    /* what jobs can be given */
    plan->iteration_ns = is_own ? found.baseline_ns
                         : which == DPRO_BEST
                             ? found.best_ns
                             : dpro_optimum_finalist(optimum, which - DPRO_FINALISTS).iteration_ns;
    plan->compression = dpro_strategy_compression(strategy);
    plan->cycle_ns = cycles.cycle_ns;
    plan->fuses = cycles.fuses;
    plan->fusion_bytes = cycles.fusion_bytes;
    plan->profiled_cycle_ns = dpro_strategy_cycles(dpro_model_strategy(ran)).cycle_ns;
    plan->n_servers = dpro_model_n_servers(model);
    add_models(&m);
    add_modules(&m, optimum, which);
    add_units(&m, optimum, which);
    for (uint32_t b = 0; b < dpro_strategy_n_buckets(strategy); b++) {
        struct dpro_bucket bucket = dpro_strategy_bucket(model, strategy, b);
        for (uint32_t i = 0; i < plan->models.n; i++)
            add_bucket(&m, &bucket, i);
    }
    mem_free(m.parameter_of);
}
