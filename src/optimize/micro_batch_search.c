/* In how many micro-batches a batch is computed, of a pipeline also in which order its stages pass
 * them, and, under a budget of memory, which blocks are recomputed.
 *
 * Recomputing only takes time. So all numbers of micro-batches and schedules are asked for without
 * it first; then, the fastest first, those that do not fit are asked for with sets of recomputed
 * blocks, until one without any is slower than the best that fits. */
#include "cost/program/model_memory.h"
#include "cost/program/modules.h"
#include "graph/dimensions/pipeline.h"
#include "optimize/finals.h"
#include "optimize/memory_search.h"
#include "optimize/program_search.h"

enum {
    MOST_MICRO_BATCHES = 512, /* that are tried */
    MOST_DOUBLINGS = 3,       /* where the batch is not known */
    FEW = 6,                  /* modules, of which each set is tried */
    MANY = 12                 /* more are not exchanged */
};

struct batch_search {
    struct program_search *s;
    struct pipeline p;            /* n_stages 0: there is none */
    ARRAY(struct setting) shapes; /* without recomputation */
    uint32_t *modules, n_modules; /* that may be recomputed */
    struct setting now;           /* whose recomputed modules are searched */
    struct map known;             /* by set: number of the answer, from 1 on */
    ARRAY(struct setting) answers;
    struct dpro_error refused; /* the last what-if that was */
};

/* ---- shapes ---- */

static uint32_t n_recomputed(const struct batch_search *x, const struct setting *setting)
{
    return modules_count(setting->recomputed, x->s->model->n_modules, 1);
}

/* The less has to be changed in the script, the simpler: a number; a schedule; the model. */
static uint8_t kind_of(const struct batch_search *x, const struct setting *setting)
{
    uint32_t kind = PLAIN;
    bool several = setting->run.schedule == DPRO_SCHEDULE_INTERLEAVED ||
                   setting->run.schedule == DPRO_SCHEDULE_ZERO_BUBBLE;
    kind += setting->run.n_micro_batches != x->p.n_micro_batches;
    kind += setting->run.schedule != x->p.schedule ? 2 : 0;
    kind += (several && x->p.n_chunks == 1) || setting->micro_batches > 1 ? 4 : 0;
    kind += n_recomputed(x, setting) > 0 ? 8 : 0;
    return kind == PLAIN ? AS_IT_RAN : (uint8_t)kind;
}

/* Those that cut the batch in equal parts; where it is not known, the recorded number doubled and
 * halved. PyTorch's Schedule1F1B takes no fewer than stages; with fewer it would be gpipe. */
static bool is_tried(const struct batch_search *x, enum dpro_schedule schedule, uint32_t n)
{
    const struct dpro_model *m = x->s->model;
    uint32_t was = x->p.n_micro_batches;
    uint64_t rows = m->n_memories > 0 ? (uint64_t)m->memories[0].batch_size * was : 0;
    if (n == was)
        return true;
    if (schedule == DPRO_SCHEDULE_1F1B && n < x->p.n_stages)
        return false;
    if (rows > 0)
        return rows % n == 0;
    for (int i = 1; i <= MOST_DOUBLINGS; i++)
        if (n == was << i || (n << i == was))
            return true;
    return false;
}

/* What a schedule is never answered for is told once. */
static void try_schedule(struct batch_search *x, enum dpro_schedule schedule)
{
    struct program_search *s = x->s;
    struct dpro_error err;
    bool any = false;
    for (uint32_t n = 1; n <= MOST_MICRO_BATCHES && !search_stops(&s->search); n++) {
        struct setting shape = setting_like(s, &s->as_ran);
        shape.run = (struct dpro_pipeline_run){n, schedule};
        shape.kind = kind_of(x, &shape);
        if (!is_tried(x, schedule, n) || program_ask(s, &shape, &err) < 0 || shape.ns == INT64_MAX)
            continue;
        any = true;
        array_push(&x->shapes, shape);
        program_keep(s, &shape);
    }
    if (!any && !search_stops(&s->search))
        log_line(&s->search.options->sink, DPRO_LOG_WARN, "schedule %s is not tried: %s",
                 dpro_schedule_name(schedule), err.text);
}

/* Of ranks without a pipeline: cutting the batch wins memory alone. */
static void try_counts(struct batch_search *x)
{
    struct program_search *s = x->s;
    uint32_t rows = s->model->n_memories > 0 ? s->model->memories[0].batch_size : 0;
    struct dpro_error err = {.text = "the recording does not tell its size"};
    array_push(&x->shapes, s->as_ran);
    for (uint32_t n = 2; n <= rows && !s->search.options->no_accumulation; n++) {
        struct setting shape = setting_like(s, &s->as_ran);
        shape.micro_batches = n;
        shape.kind = kind_of(x, &shape);
        if (rows % n != 0 || search_stops(&s->search) || program_ask(s, &shape, &err) < 0)
            continue;
        array_push(&x->shapes, shape);
        program_keep(s, &shape);
    }
    if (x->shapes.n == 1 && rows != 1 && !s->search.options->no_accumulation)
        log_line(&s->search.options->sink, DPRO_LOG_WARN, "the batch is not cut: %s", err.text);
}

/* ---- modules ---- */

static const struct setting *search_answer(struct batch_search *x)
{
    uint64_t key = 1, number;
    for (uint32_t i = 0; i < x->n_modules; i++)
        key = map_mix(key ^ (x->now.recomputed[x->modules[i]] ? i + 2 : 0)) | 1;
    if (!map_get(&x->known, key, &number)) {
        struct setting asked = setting_like(x->s, &x->now);
        asked.kind = kind_of(x, &asked);
        if (!search_stops(&x->s->search) && program_ask(x->s, &asked, &x->refused) == 0)
            program_keep(x->s, &asked);
        number = x->answers.n;
        array_push(&x->answers, asked);
        map_set(&x->known, key, number);
    }
    return &x->answers.at[number];
}

static int64_t time_of(void *arg)
{
    return search_answer(arg)->ns;
}

static uint64_t peak_of(void *arg)
{
    const struct setting *setting = search_answer(arg);
    return setting->ns < INT64_MAX ? setting->peak.bytes : UINT64_MAX;
}

static const char *name_of(const struct batch_search *x, const struct setting *setting)
{
    struct arena *a = &x->s->optimum->arena;
    uint32_t n = n_recomputed(x, setting);
    if (setting->kind == AS_IT_RAN)
        return "as it ran";
    const char *name = "";
    if (x->p.n_stages > 0)
        name = arena_format(a, "%s %u", dpro_schedule_name(setting->run.schedule),
                            setting->run.n_micro_batches);
    else if (setting->micro_batches > 1)
        name = arena_format(a, "accumulate %u", setting->micro_batches);
    return n > 0 ? arena_format(a, "%s%srecompute %u", name, *name ? ", " : "", n) : name;
}

/* For a job that does not fit. */
static void tell_choice(const struct batch_search *x, const struct setting *setting)
{
    struct memory_search *memory = &x->s->optimum->memory;
    if (memory->is_needed && setting->ns < INT64_MAX)
        array_add(&memory->choices, .name = name_of(x, setting),
                  .n_recomputed = n_recomputed(x, setting),
                  .micro_batches = setting->run.n_micro_batches ?: MAX(setting->micro_batches, 1),
                  .iteration_ns = setting->ns, .peak_bytes = setting->peak.bytes,
                  .fits = program_fits(x->s, setting), .exact = x->n_modules <= FEW);
}

/* Fewest and fastest modules with which a shape fits; all of them where it never does, to know the
 * lowest peak. Returns whether it fits. */
static bool search_recompute(struct batch_search *x, const struct setting *shape)
{
    x->now = *shape;
    x->now.recomputed = arena_array(&x->s->optimum->arena, x->s->model->n_modules, sizeof(bool));
    struct module_sets sets = {
        .model = x->s->model,
        .in = x->now.recomputed,
        .modules = x->modules,
        .n = x->n_modules,
        .few = FEW,
        .many = MANY,
        .limit_bytes = x->s->limit_bytes,
        .time_ns = time_of,
        .peak_bytes = peak_of,
        .arg = x,
    };
    bool fits = sets_fit(&sets);
    tell_choice(x, search_answer(x));
    x->s->search.n_rounds++;
    map_fini(&x->known);
    array_fini(&x->answers);
    return fits;
}

ORDER(by_time, struct setting, ASCENDING(ns) ?: ASCENDING(kind));

/* Parts of blocks where blocks do not suffice: what is computed again is there at once. */
static void recompute_slow_ones(struct batch_search *x)
{
    const struct dpro_model *m = x->s->model;
    x->modules = arena_array(&x->s->optimum->arena, m->n_modules + (size_t)1, sizeof *x->modules);
    EACH (const struct setting, shape, x->shapes) {
        bool fits = program_fits(x->s, shape);
        tell_choice(x, shape);
        for (int inner = 0; inner <= 1 && !fits && shape->ns < x->s->best.ns; inner++) {
            x->n_modules = m->n_memories > 0 ? sets_candidates(m, inner != 0, x->modules) : 0;
            fits = x->n_modules > 0 && search_recompute(x, shape);
        }
    }
    if (x->refused.code < 0)
        log_line(&x->s->search.options->sink, DPRO_LOG_WARN, "not all is recomputed: %s",
                 x->refused.text);
}

/* Their names tell all but the peak. */
static void list_fastest(struct batch_search *x)
{
    enum { MOST_LISTED = 12 };
    uint32_t n = 0;
    EACH (const struct setting, shape, x->shapes)
        if (shape->kind != AS_IT_RAN && n++ < MOST_LISTED)
            program_list(x->s, name_of(x, shape), "", shape);
}

void search_micro_batches(struct program_search *s)
{
    struct batch_search x = {.s = s};
    pipeline_find(s->graph, &s->optimum->arena, &x.p);
    if (x.p.dimension == DPRO_NO_DIMENSION) {
        x.p = (struct pipeline){.n_stages = 0};
        try_counts(&x);
    } else if (x.p.unknown) {
        fail_with(DPRO_EEMPTY,
                  "the pipeline's micro-batches are not known: %s, so that no others "
                  "can be searched",
                  x.p.unknown);
    }
    s->as_ran.run = (struct dpro_pipeline_run){x.p.n_micro_batches, x.p.schedule};
    s->optimum->pipeline[DPRO_BASELINE] = s->optimum->pipeline[DPRO_BEST] = s->as_ran.run;
    if (!s->optimum->memory.is_needed)
        s->best.run = s->as_ran.run;
    for (int schedule = DPRO_SCHEDULE_GPIPE; x.p.n_stages > 0 && schedule < DPRO_N_SCHEDULES;
         schedule++)
        try_schedule(&x, (enum dpro_schedule)schedule);
    array_sort(&x.shapes, by_time);
    recompute_slow_ones(&x);
    if (x.p.n_stages > 0)
        list_fastest(&x);
    array_fini(&x.shapes);
}
