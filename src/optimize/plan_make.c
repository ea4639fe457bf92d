/* Makes a plan of a strategy. Its models are those of the recorded job. Each of its buckets has
 * tensors of one model, as each model has a reducer of its own. */
#include "optimize/plan_make.h"

#include "cost/change/families.h"
#include "cost/memory/strategy_memory.h"
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
    for (uint32_t t = 0; t < m->model->n_tensors; t++)
        if (m->parameter_of[t] == UINT32_MAX && strcmp(m->model->tensors[t].name, name) == 0)
            return t;
    return UINT32_MAX;
}

static void add_parameter(struct make_maker *m, uint32_t tensor, const char *name)
{
    m->parameter_of[tensor] = (uint32_t)m->plan->parameters.n;
    array_add(&m->plan->parameters, make_intern(m, name), (uint32_t)m->plan->models.n - 1,
              m->model->tensors[tensor].size_bytes);
}

/* The model's parameters that are in a bucket, in the model's order. One that sends nothing, as the
 * only rank does, is no model of a plan. */
static void add_recorded_model(struct make_maker *m, const struct recording *recording,
                               uint32_t number)
{
    const struct strtab *names = &m->trace->names;
    const struct recorded_model *from = &recording->models.at[number];
    SCRATCH bool *used = mem_array(from->n_parameters, sizeof *used);
    size_t n_before = m->plan->parameters.n;
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
        uint32_t model = recorded_namesake(recording, number, id);
        const char *name = strtab_get(names, id);
        char alike[256];
        snprintf(alike, sizeof alike, RECORDED_NAMESAKE, name, model);
        uint32_t tensor = used[p] ? find_tensor(m, model > 0 ? alike : name) : UINT32_MAX;
        if (tensor != UINT32_MAX)
            add_parameter(m, tensor, name);
    }
    if (m->plan->parameters.n == n_before)
        m->plan->models.n--;
}

/* The models as the recorder wrote them. Of a trace that it did not write, all gradients in the
 * order in which they become ready. */
static void add_models(struct make_maker *m)
{
    const struct recording *recording = plan_recording(m->trace);
    for (uint32_t i = 0; recording && i < recording->models.n; i++)
        if (recording->models.at[i].n_buckets > 0)
            add_recorded_model(m, recording, i);
    for (uint32_t t = 0; t < m->model->n_tensors; t++) {
        if (m->parameter_of[t] != UINT32_MAX)
            continue;
        if (m->plan->models.n == 0)
            array_push(&m->plan->models, make_intern(m, ""));
        add_parameter(m, t, m->model->tensors[t].name);
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

static void add_modules(struct make_maker *m, const struct dpro_model *model,
                        const struct dpro_strategy *strategy)
{
    struct plan_file *plan = m->plan;
    for (uint32_t i = 0; i < model->n_modules; i++) {
        uint32_t name = make_intern(m, model->modules[i].name);
        unsigned way = computing_way(model, strategy, i);
        if (strategy->recomputed && strategy->recomputed[i])
            array_push(&plan->recomputed, name);
        if (way & DPRO_COMPILED)
            array_push(&plan->compiled, name);
        if (way & DPRO_BF16)
            array_push(&plan->in_bf16, name);
    }
    plan->micro_batches = MAX(strategy->micro_batches, 1);
}

static void add_units(struct make_maker *m, const struct dpro_optimum *o, enum dpro_which which)
{
    size_t f = (size_t)which - DPRO_FINALISTS;
    bool is_one = which >= DPRO_FINALISTS && f < o->finalist_settings.n;
    const struct setting *setting = is_one ? o->finalist_settings.at[f] : NULL;
    uint32_t best = which == DPRO_BEST ? o->summary.prefetch : 0;
    m->plan->prefetch = setting ? setting->prefetch : best;
    for (uint32_t i = 0; i < o->units.n; i++) {
        const struct dpro_unit *unit = &o->units.at[i];
        bool reshards = setting              ? setting->reshards[o->unit_numbers.at[i]]
                        : which == DPRO_BEST ? unit->reshards != 0
                                             : unit->reshards_before != 0;
        array_add(&m->plan->units, make_intern(m, unit->name), reshards);
    }
}

static uint64_t peak_of_finalist(const struct dpro_optimum *o, enum dpro_which which)
{
    size_t f = (size_t)which - DPRO_FINALISTS;
    if (f < o->finalist_settings.n)
        return o->finalist_settings.at[f]->peak.bytes;
    return memory_is_known(o->models[DPRO_BEST])
               ? memory_peak_told(o->models[DPRO_BEST], &o->finalist_strategies.at[f]).bytes
               : 0;
}

void plan_make(const struct dpro_trace *trace, const struct dpro_optimum *o, enum dpro_which which,
               struct plan_file *plan)
{
    bool is_own = which == DPRO_BASELINE, is_finalist = which >= DPRO_FINALISTS;
    const struct dpro_model *ran = o->models[DPRO_BASELINE];
    const struct dpro_model *model = o->models[MIN(which, DPRO_BEST)];
    const struct dpro_strategy *strategy =
        is_finalist ? &o->finalist_strategies.at[which - DPRO_FINALISTS] : &o->strategies[which];
    struct make_maker m = {trace, ran, plan, mem_alloc(ran->n_tensors * sizeof *m.parameter_of)};
    memset(m.parameter_of, 0xFF, ran->n_tensors * sizeof *m.parameter_of);
    make_intern(&m, "");
    plan->framework = make_intern(&m, dpro_trace_framework(trace));
    plan->stack = make_intern(&m, dpro_stack_name(ran->capabilities.stack));
    plan->world_size = dpro_trace_world_size(trace);
    if (trace->n_ranks > 0 && trace->ranks[0].recording)
        plan->device =
            make_intern(&m, strtab_get(&trace->names, trace->ranks[0].recording->device));
    unsigned changed = families_of(model, &o->strategies[DPRO_BASELINE], strategy);
    bool of_modules = changed & ~OF_COMMUNICATION || o->memory.is_needed;
    plan->is_own = is_own || (of_modules && !(changed & OF_COMMUNICATION));
    plan->baseline_ns = o->summary.baseline_ns; /* what jobs can be given */
    plan->iteration_ns = is_own        ? o->summary.baseline_ns
                         : is_finalist ? o->finalists.at[which - DPRO_FINALISTS].iteration_ns
                                       : o->summary.best_ns;
    plan->budget_bytes = o->memory.budget_bytes;
    plan->baseline_peak_bytes = o->peaks[DPRO_BASELINE].bytes;
    plan->peak_bytes = is_finalist ? peak_of_finalist(o, which) : o->peaks[which].bytes;
    plan->compression = strategy->compression;
    plan->cycle_ns = strategy->cycle_ns;
    plan->fuses = strategy->fuses;
    plan->fusion_bytes = strategy->fusion_bytes;
    plan->profiled_cycle_ns = ran->baseline.cycle_ns;
    plan->n_servers = dpro_model_n_servers(model);
    add_models(&m);
    add_modules(&m, model, strategy);
    add_units(&m, o, which);
    for (uint32_t b = 0; b < strategy->n_buckets; b++) {
        struct dpro_bucket bucket = dpro_strategy_bucket(model, strategy, b);
        for (uint32_t i = 0; i < plan->models.n; i++)
            add_bucket(&m, &bucket, i);
    }
    mem_free(m.parameter_of);
}
