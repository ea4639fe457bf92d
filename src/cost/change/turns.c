/* Reads what was measured by turns, and corrects by it what the model says. */
#include "cost/change/turns.h"

#include <unistd.h>

#include "base/json_members.h"
#include "cost/change/change.h"
#include "cost/change/families.h"
#include "cost/learn/uncertainty.h"
#include "cost/program/buckets.h"
#include "cost/program/evaluate.h"
#include "ingest/rank_json.h"
#include "ingest/trace.h"
#include "plan/plan.h"

#define OF_KINDS 0.5 /* of a plan's error, what plans of the same kinds share */

enum { MOST_TURNS = 64 };

struct turns_reading {
    const struct dpro_model *model;
    struct turns *to;
    uint32_t schema, version;
    int64_t world_size;
    double saves_pct, std_pct; /* of a turn */
    struct dpro_strategy strategy;
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

static void read_turn_plan(struct json_reader *r, void *out UNUSED, size_t offset UNUSED)
{
    struct turns_reading *reading = r->arg;
    struct plan_file plan;
    plan_file_read_within(r, &plan);
    reading->strategy =
        buckets_copy(reading->model, &reading->model->baseline, &reading->to->arena);
    if (r->why.code == 0)
        take_plan(reading->model, &plan, &reading->strategy);
    plan_file_fini(&plan);
}

/* By what the model says of it. What makes no difference there tells nothing. */
static void add_turn(struct turns_reading *reading)
{
    struct dpro_model planned = *reading->model;
    planned.baseline = reading->strategy;
    double share = (double)evaluate_once(&planned) / (double)evaluate_once(reading->model);
    double measured = 1 - reading->saves_pct / 100;
    double doubt =
        share * uncertainty_of(reading->model, &planned, &(struct change_beside){0}).speedup;
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
        reading->strategy.order = NULL;
        json_read_object(r, members, reading);
        if (reading->strategy.order && r->why.code == 0 && reading->to->of.n < MOST_TURNS)
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

int turns_read(const char *const *paths, size_t n_paths, const struct dpro_model *model,
               const struct dpro_trace *trace, struct turns **turns, struct dpro_error *err)
{
    struct turns_reading reading = {.model = model};
    return OUTCOME(err, find_file(paths, n_paths, trace, &reading, turns));
}

void turns_destroy(struct turns *turns)
{
    if (!turns)
        return;
    arena_fini(&turns->arena);
    FREE_ALL(&turns->of, &turns);
}

static double turns_alike(const struct dpro_model *m, const struct dpro_strategy *x,
                          const struct dpro_strategy *y)
{
    unsigned of_x = families_of(m, &m->baseline, x), of_y = families_of(m, &m->baseline, y);
    double share = (double)__builtin_popcount(of_x & of_y) / __builtin_popcount(of_x | of_y);
    return families_of(m, x, y) == 0 ? 1 : OF_KINDS * share;
}

struct correction turns_correct(const struct dpro_model *m, const struct dpro_strategy *strategy,
                                double doubt)
{
    struct correction c = {.ratio = 1, .left = 1};
    uint32_t n = m->turns ? (uint32_t)m->turns->of.n : 0;
    double rows[MOST_TURNS][MOST_TURNS + 2]; /* of all measured ones; of this one; their errors */
    double log = 0, known = 0;
    if (families_of(m, &m->baseline, strategy) == 0)
        return c;
    for (uint32_t i = 0; i < n; i++) {
        const struct measured_turn *turn = &m->turns->of.at[i];
        for (uint32_t k = 0; k < n; k++)
            rows[i][k] = turns_alike(m, &turn->strategy, &m->turns->of.at[k].strategy);
        rows[i][i] += turn->noise * turn->noise + 1e-9;
        rows[i][n] = turns_alike(m, &turn->strategy, strategy);
        rows[i][n + 1] = turn->error;
        c.is_known |= rows[i][n] == 1;
    }
    for (uint32_t i = 0; i < n; i++) { /* by elimination */
        log += rows[i][n] * rows[i][n + 1] / rows[i][i];
        known += rows[i][n] * rows[i][n] / rows[i][i];
        for (uint32_t k = i + 1; k < n; k++)
            for (uint32_t j = n + 2; j-- > i;)
                rows[k][j] -= rows[k][i] / rows[i][i] * rows[i][j];
    }
    c.ratio = exp(doubt * log);
    c.left = sqrt(fmax(0, 1 - known));
    return c;
}
