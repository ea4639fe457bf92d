/* Reads what was measured by turns, beside what the model says of it. */
#include <unistd.h>

#include "base/json_members.h"
#include "cost/change/change_programs.h"
#include "cost/change/families.h"
#include "cost/change/turns.h"
#include "cost/learn/uncertainty.h"
#include "cost/program/buckets.h"
#include "cost/program/evaluate.h"
#include "ingest/rank_json.h"
#include "ingest/trace.h"
#include "plan/plan.h"

struct turns_reading {
    const struct dpro_graph *graph;
    const struct dpro_model *model;
    struct timed_job before;
    struct turns *to;
    uint32_t schema, version;
    int64_t world_size;
    double saves_pct, std_pct; /* of a turn */
    bool has_plan;
    struct dpro_strategy strategy;
    struct dpro_changes units; /* that the plan asks for of FSDP's; reshard NULL: none */
};

static void take_plan(const struct dpro_model *m, const struct plan_file *plan,
                      struct dpro_strategy *s)
{
    SCRATCH bool *chosen = mem_array(m->n_modules + (size_t)1, sizeof *chosen);
    if (m->n_tensors > 0)
        buckets_take(m, plan, s);
    for (size_t b = 0; b < plan->buckets.n && m->n_tensors > 0; b++)
        if (plan->buckets.at[b].size_bytes != PLAN_NO_SIZE &&
            plan->buckets.at[b].size_bytes != bucket_size_bytes(m, s, (uint32_t)b))
            fail_with(DPRO_EFORMAT, "%s: bucket %zu has another size in this trace", plan->path, b);
    modules_take(m, plan, &plan->recomputed, s->recomputed);
    for (unsigned bit = DPRO_COMPILED; bit <= DPRO_BF16; bit *= 2) {
        memset(chosen, 0, m->n_modules);
        modules_take(m, plan, bit == DPRO_COMPILED ? &plan->compiled : &plan->in_bf16, chosen);
        for (uint32_t i = 0; i < m->n_modules; i++)
            s->computing[i] |= (uint8_t)(chosen[i] ? bit : 0);
    }
    s->micro_batches = plan->micro_batches;
}

static void take_units(const struct plan_file *plan, struct arena *arena, struct dpro_changes *c)
{
    const char *names = "";
    size_t n = 0;
    EACH (const struct plan_file_unit, unit, plan->units) {
        const char *name = plan_name(plan, unit->name);
        n += unit->reshards;
        if (unit->reshards && *name)
            names = arena_format(arena, "%s%s%s", names, *names ? "," : "", name);
    }
    c->prefetch = plan->prefetch;
    if (plan->units.n > 0)
        c->reshard = n == plan->units.n ? "all" : *names ? names : "none";
}

static void read_turn_plan(struct json_reader *r, void *out UNUSED, size_t offset UNUSED)
{
    struct turns_reading *reading = r->arg;
    struct plan_file plan;
    plan_file_read_within(r, &plan);
    reading->has_plan = true;
    reading->strategy =
        buckets_copy(reading->model, &reading->model->baseline, &reading->to->arena);
    if (r->why.code == 0)
        take_plan(reading->model, &plan, &reading->strategy);
    take_units(&plan, &reading->to->arena, &reading->units);
    plan_file_fini(&plan);
}

/* A what-if of FSDP's units. Returns their share of the job's time; NAN: it can't be told here. */
static double share_of_units(struct turns_reading *reading, double *speedup_std)
{
    struct arena *arena = &reading->to->arena;
    struct dpro_strategy *s = &reading->strategy;
    struct dpro_whatif *w;
    struct dpro_error why;
    int rc = dpro_whatif_run(reading->graph, reading->model, &reading->units, &w, &why);
    if (rc == DPRO_ENOMEM)
        mem_fail();
    if (rc < 0)
        return NAN;
    s->n_units = w->model.baseline.n_units;
    s->prefetch = w->model.baseline.prefetch;
    s->resharded =
        arena_copy(arena, w->model.baseline.resharded, s->n_units + (size_t)1, sizeof(bool));
    *speedup_std = w->answer.speedup.std;
    double share =
        (double)w->answer.predicted.iteration_ns / (double)w->answer.baseline.iteration_ns;
    dpro_whatif_destroy(w);
    return share;
}

/* By what the model says of it. What makes no difference there tells nothing. */
static void add_turn(struct turns_reading *reading)
{
    struct dpro_model planned = *reading->model;
    planned.baseline = reading->strategy;
    double measured = 1 - reading->saves_pct / 100, std = 0, share = 1;
    if (reading->units.reshard) {
        share = share_of_units(reading, &std);
        planned.baseline = reading->strategy;
    } else {
        struct timed_job after = {.model = &planned};
        job_time(&reading->before);
        job_time(&after);
        share = after.ns / reading->before.ns;
        std = uncertainty_of(&reading->before, &after, &(struct change_beside){0}).speedup;
    }
    double doubt = share * std;
    if (doubt > 0 && families_of(&planned, &reading->model->baseline, &planned.baseline))
        array_add(&reading->to->of, reading->strategy, log(measured / share) / doubt,
                  reading->std_pct / 100 / measured / doubt);
}

static void read_turns(struct json_reader *r, void *out UNUSED, size_t offset UNUSED)
{
    static const struct json_member members[] = {
        MEMBER(struct turns_reading, "saves_pct", WITHIN, saves_pct, FROM_TO(-1e6, 99.9),
               .needed = true),
        MEMBER(struct turns_reading, "std_pct", WITHIN, std_pct, FROM_TO(0, 1e6), .needed = true),
        MEMBER_BY("plan", read_turn_plan, 0),
        {NULL}};
    struct turns_reading *reading = r->arg;
    bool is_list = json_must_open(r);
    while (is_list && json_next_item(r)) {
        reading->has_plan = false;
        reading->units = (struct dpro_changes){.reshard = NULL};
        json_read_object(r, members, reading);
        if (reading->has_plan && r->why.code == 0 && reading->to->of.n < TURNS_MOST)
            add_turn(reading);
    }
}

/* Of PyTorch; "": no recording says it. */
static const char *version_of(const struct dpro_trace *trace)
{
    uint32_t version = 0;
    for (uint32_t r = 0; r < trace->n_ranks && version == 0; r++)
        version = trace->ranks[r].recording ? trace->ranks[r].recording->torch : 0;
    return strtab_get(&trace->names, version);
}

static void read_file(const char *path, const struct dpro_trace *trace,
                      struct turns_reading *reading)
{
    static const struct json_member members[] = {
        MEMBER(struct turns_reading, "schema", TEXT, schema),
        MEMBER(struct turns_reading, "framework_version", TEXT, version),
        MEMBER(struct turns_reading, "world_size", INT, world_size),
        MEMBER_BY("turns", read_turns, 0),
        {NULL}};
    struct dpro_error why;
    struct strtab strings = {0};
    struct json_reader r = {.strings = &strings, .arg = reading};
    fail_on(json_read_file(&r, path, members, reading, "not what was measured by turns", &why),
            &why);
    const char *had = strtab_get(&strings, reading->version), *has = version_of(trace);
    if (strcmp(strtab_get(&strings, reading->schema), "dpro.turns/1") != 0)
        fail_with(DPRO_EFORMAT, "%s: its schema is not dpro.turns/1", path);
    if (reading->world_size != trace->world_size)
        fail_with(DPRO_EFORMAT, "%s: it is of a job of %lld ranks, this one has %d", path,
                  (long long)reading->world_size, trace->world_size);
    if (strcmp(had, has) != 0)
        fail_with(DPRO_EFORMAT, "%s: it is of torch %.40s, this job ran with %.40s", path, had,
                  has);
    strtab_fini(&strings);
}

static int try_file(const char *path, const struct dpro_trace *trace, struct turns_reading *reading,
                    struct dpro_error *why)
{
    return OUTCOME(why, read_file(path, trace, reading));
}

/* What can't be used is a problem, and all that was read of it is gone. */
static void find_file(const char *const *paths, size_t n_paths, const struct dpro_trace *trace,
                      struct turns_reading *reading, struct turns **made)
{
    struct dpro_error why = {.code = 0};
    struct turns *turns = NULL;
    for (size_t i = 0; i < n_paths && !turns; i++) {
        char *path = mem_format("%s/turns.json", paths[i]);
        if (access(path, F_OK) == 0) {
            reading->to = turns = mem_array(1, sizeof *turns);
            try_file(path, trace, reading, &why);
            memory_check();
        }
        mem_free(path);
    }
    if (why.code < 0) {
        *turns = (struct turns){.of.n = 0};
        snprintf(turns->problem, sizeof turns->problem,
                 "%.400s; what was measured by turns is left out", why.text);
    }
    *made = turns;
}

int turns_read(const char *const *paths, size_t n_paths, const struct dpro_graph *graph,
               const struct dpro_model *model, const struct dpro_trace *trace, struct turns **turns,
               struct dpro_error *err)
{
    struct turns_reading reading = {.graph = graph, .model = model, .before = {.model = model}};
    return OUTCOME(err, find_file(paths, n_paths, trace, &reading, turns));
}
