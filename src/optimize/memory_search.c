/* Tries the memory passes (paper, Algorithm 1, line 1): recomputation alone, micro-batches alone,
 * and both, each evaluated as a whole. The fastest that fits the budget is chosen. */
#include "optimize/memory_search.h"
#include "cost/program/model_memory.h"

#include "cost/learn/uncertainty.h"
#include "cost/memory/strategy_memory.h"
#include "cost/program/buckets.h"
#include "cost/program/evaluate.h"
#include "cost/program/modules.h"

enum { MOST_MICRO_BATCHES = 64, FEW = 12, MANY = 128 };

struct choosing {
    struct memory_search *search;
    const struct dpro_model *model;
    struct arena *arena;
    struct evaluator *evaluator;
    struct dpro_strategy strategy; /* looked at */
    uint32_t *modules;             /* room for candidates */
    double best_ns[2];             /* handicapped; with modules computed otherwise */
    bool may_cut;                  /* batches */
    const char *prefix;            /* of names: how modules are computed */
};

static uint32_t n_recomputed(const struct dpro_model *m, const struct dpro_strategy *s)
{
    return modules_count(s->recomputed, m->n_modules, 1);
}

void memory_search_tell(struct memory_search *s, bool computed)
{
    for (size_t i = 0; i < s->choices.n; i++)
        s->choices.at[i].chosen = i + 1 == s->best[computed];
}

/* By how much of an iteration micro-batches must win: a standard error of how long they take, which
 * is assumed where recomputation was recorded, and what changing the script for them is worth. */
static double search_handicap(const struct choosing *c)
{
    const double WORTH_A_SCRIPT = 0.01;
    struct dpro_model after = *c->model;
    after.baseline = c->strategy;
    return c->strategy.micro_batches > MAX(c->model->baseline.micro_batches, 1)
               ? WORTH_A_SCRIPT + uncertainty_of_batch(c->model, &after)
               : 0;
}

/* Notes the strategy at hand; chooses it where it is the best that fits. */
static bool search_try(struct choosing *c, const char *name, bool is_exact)
{
    struct memory_search *to = c->search;
    uint32_t parts = MAX(c->strategy.micro_batches, 1);
    struct dpro_memory_choice choice = {
        .name = arena_format(c->arena, "%s%s", c->prefix, name),
        .n_computed = modules_count(c->strategy.computing, c->model->n_modules, UINT8_MAX),
        .n_recomputed = n_recomputed(c->model, &c->strategy),
        .micro_batches = parts,
        .iteration_ns = evaluate_strategy(c->evaluator, &c->strategy),
        .peak_bytes = memory_peak_bytes(c->model, &c->strategy),
        .exact = is_exact};
    choice.fits = choice.peak_bytes <= to->budget_bytes;
    to->least_bytes = MIN(to->least_bytes, choice.peak_bytes);
    double ns = (double)choice.iteration_ns * (1 + search_handicap(c));
    bool computed = choice.n_computed > 0;
    if (choice.fits && ns < c->best_ns[computed]) {
        c->best_ns[computed] = ns;
        to->best[computed] = to->choices.n + 1;
        buckets_assign(c->model, &c->strategy, computed ? &to->computed : &to->chosen);
        *(computed ? &to->fits_computed : &to->fits) = true;
    }
    array_push(&to->choices, choice);
    return choice.fits;
}

static void recompute_none(struct choosing *c)
{
    memset(c->strategy.recomputed, 0, c->model->n_modules * sizeof *c->strategy.recomputed);
}

/* What people would take: all repeated blocks, every second one, all but every sqrt(n)-th. */
static void try_rules(struct choosing *c)
{
    bool *blocks = c->strategy.recomputed, other = true;
    memory_repeated(c->model, blocks);
    if (n_recomputed(c->model, &c->strategy) == 0)
        return;
    search_try(c, "recompute all", false);
    for (uint32_t m = 0; m < c->model->n_modules; m++)
        if (blocks[m]) {
            blocks[m] = other;
            other = !other;
        }
    search_try(c, "recompute every second", false);
    memory_square_root(c->model, blocks);
    search_try(c, "recompute sqrt", false);
    recompute_none(c);
}

static int64_t time_of(void *arg)
{
    const struct choosing *c = arg;
    return evaluate_strategy(c->evaluator, &c->strategy);
}

static uint64_t peak_of(void *arg)
{
    const struct choosing *c = arg;
    return memory_peak_bytes(c->model, &c->strategy);
}

/* Of the first n of c->modules. */
static struct module_sets sets_of(struct choosing *c, uint32_t n)
{
    return (struct module_sets){.model = c->model,
                                .in = c->strategy.recomputed,
                                .modules = c->modules,
                                .n = n,
                                .few = FEW,
                                .many = MANY,
                                .limit_bytes = c->search->budget_bytes,
                                .time_ns = time_of,
                                .peak_bytes = peak_of,
                                .arg = c};
}

/* With the micro-batches at hand: of blocks; of what is within them where that does not do. */
static void try_choice(struct choosing *c)
{
    uint32_t parts = MAX(c->strategy.micro_batches, 1);
    for (int inner = 0; inner <= 1; inner++) {
        uint32_t n = sets_candidates(c->model, inner != 0, c->modules);
        const char *what = inner ? "recompute parts of blocks" : "recompute chosen";
        if (n == 0)
            break;
        if (parts > 1)
            what = arena_format(c->arena, "%s, accumulate %u", what, parts);
        struct module_sets sets = sets_of(c, n);
        bool fits = sets_fit(&sets);
        if (n_recomputed(c->model, &c->strategy) > 0)
            search_try(c, what, fits && n <= FEW);
        recompute_none(c);
        if (fits)
            break;
    }
}

bool memory_divides_batch(const struct dpro_model *m, uint32_t parts)
{
    if (m->cut.refused || m->n_communications > 0)
        return false;
    for (uint32_t i = 0; i < m->n_memories; i++)
        if (m->memories[i].batch_size == 0 || m->memories[i].batch_size % parts != 0)
            return false;
    return m->n_memories > 0;
}

/* Where nothing fits: the lowest peak, with modules of all levels, at any cost of time. */
static void try_least(struct choosing *c)
{
    struct memory_search *to = c->search;
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->model->n_modules; i++)
        if (c->model->modules[i].name[0] != '\0' && c->model->modules[i].kept_bytes > 0)
            c->modules[n++] = i;
    struct module_sets sets = sets_of(c, n);
    sets_lowest(&sets);
    uint32_t parts = MAX(c->strategy.micro_batches, 1);
    uint64_t peak = memory_peak_bytes(c->model, &c->strategy);
    if (peak < to->least_bytes)
        search_try(c,
                   parts > 1 ? arena_format(c->arena, "least memory, accumulate %u", parts)
                             : "least memory",
                   false);
    recompute_none(c);
}

static void try_all_least(struct choosing *c)
{
    for (uint32_t parts = 1; parts <= MOST_MICRO_BATCHES; parts++)
        if (parts == 1 || (c->may_cut && memory_divides_batch(c->model, parts))) {
            c->strategy.micro_batches = parts;
            try_least(c);
        }
    c->strategy.micro_batches = c->model->baseline.micro_batches;
}

static void try_micro_batches(struct choosing *c, bool compiles)
{
    for (uint32_t parts = 2; c->may_cut && parts <= MOST_MICRO_BATCHES; parts++) {
        if (!memory_divides_batch(c->model, parts))
            continue;
        c->strategy.micro_batches = parts;
        if (!search_try(c, arena_format(c->arena, "accumulate %u", parts), false) && !compiles)
            try_choice(c);
    }
    c->strategy.micro_batches = c->model->baseline.micro_batches;
}

static bool is_compiling(const struct dpro_model *model, const struct computing_choice *way)
{
    return modules_count(way->computing, model->n_modules, DPRO_COMPILED) > 0;
}

/* With modules computed otherwise. What is compiled can't be recomputed. */
static void try_computed(struct choosing *c, const struct computing_choice *way)
{
    bool compiles = is_compiling(c->model, way);
    memcpy(c->strategy.computing, way->computing, c->model->n_modules);
    c->prefix = "";
    if (search_try(c, way->name, false))
        return;
    c->prefix = arena_format(c->arena, "%s, ", way->name);
    if (!compiles)
        try_choice(c);
    try_micro_batches(c, compiles);
}

/* Of the device with the least; 0: not known. */
static uint64_t capacity_of(const struct dpro_model *m)
{
    uint64_t least = UINT64_MAX;
    for (uint32_t i = 0; i < m->n_memories; i++)
        if (m->memories[i].capacity_bytes > 0)
            least = MIN(least, m->memories[i].capacity_bytes);
    return least == UINT64_MAX ? 0 : least;
}

void memory_search_budget(const struct dpro_model *model, const struct dpro_optimize_options *o,
                          struct memory_search *search)
{
    uint64_t capacity = capacity_of(model);
    *search =
        (struct memory_search){.model = model, .fits = true, .is_known = memory_is_known(model)};
    search->capacity_bytes = capacity;
    search->budget_bytes = o->memory_bytes;
    if (o->memory_bytes == 0 && o->memory_share == 0)
        return;
    if (!search->is_known)
        fail_with(DPRO_EEMPTY, "the trace does not tell what the job's ranks hold, so no memory "
                               "budget can be kept; record the job with 'dpro profile'");
    if (o->memory_share > 0) {
        if (capacity == 0)
            fail_with(DPRO_EEMPTY, "the budget is a share of the devices' memory, which the trace "
                                   "does not tell; give it in bytes");
        search->budget_bytes = (uint64_t)fmax(1, fmin((double)capacity * o->memory_share, 1e18));
    }
    if (capacity > 0 && search->budget_bytes > capacity)
        log_line(&o->sink, DPRO_LOG_WARN,
                 "the budget of %.4g GB is more than the %.4g GB that the job's device has",
                 (double)search->budget_bytes / 1e9, (double)capacity / 1e9);
}

/* What can't be tried, of a job that does not fit. */
static void report_unknown(const struct dpro_model *model, const struct dpro_optimize_options *o)
{
    bool batch = !o->no_accumulation && !model->cut.refused && model->n_communications == 0;
    if (!o->no_accumulation && model->n_communications > 0)
        log_line(&o->sink, DPRO_LOG_WARN,
                 "the batch is not cut: ranks communicate within each pass; 'dpro whatif "
                 "--accumulate' predicts it for FSDP");
    if (!o->no_accumulation && model->cut.refused)
        log_line(&o->sink, DPRO_LOG_WARN, "the batch is not cut: %s", model->cut.refused);
    if (model->n_modules == 0)
        log_line(&o->sink, DPRO_LOG_WARN,
                 "nothing is recomputed: the recording does not tell the job's modules; record it "
                 "with 'dpro profile'");
    for (uint32_t i = 0; i < model->n_memories && batch; i++)
        if (model->memories[i].batch_size == 0) {
            log_line(&o->sink, DPRO_LOG_WARN,
                     "the batch is not cut: the recording does not tell its size; record the job "
                     "with 'dpro profile', or ask 'dpro whatif --accumulate', which needs no size");
            batch = false;
        }
}

void memory_search_run(const struct dpro_model *model, const struct dpro_model *fine,
                       const struct dpro_optimize_options *options,
                       const struct computing_choice *ways, uint32_t n_ways, struct arena *arena,
                       struct memory_search *search)
{
    memory_search_budget(model, options, search);
    if (!search->is_known)
        return;
    uint64_t peak = memory_peak_bytes(model, &model->baseline);
    if (search->budget_bytes == 0 || peak <= search->budget_bytes)
        return;
    report_unknown(model, options);
    search->is_needed = true;
    search->fits = false;
    search->least_bytes = peak;
    search->chosen = buckets_copy(model, &model->baseline, arena);
    search->computed = buckets_copy(model, &model->baseline, arena);
    struct choosing c = {.search = search,
                         .model = model,
                         .arena = arena,
                         .evaluator = evaluator_create(fine),
                         .strategy = buckets_copy(model, &model->baseline, arena),
                         .modules =
                             arena_array(arena, model->n_modules + (size_t)1, sizeof *c.modules),
                         .best_ns = {INFINITY, INFINITY},
                         .prefix = "",
                         .may_cut = !options->no_accumulation};
    search_try(&c, "as it ran", false);
    try_rules(&c);
    try_choice(&c);
    try_micro_batches(&c, false);
    if (!search->fits)
        try_all_least(&c);
    for (uint32_t i = 0; i < n_ways; i++)
        try_computed(&c, &ways[i]);
    for (uint32_t i = 0; i < n_ways && !search->fits && !search->fits_computed; i++)
        if (!is_compiling(model, &ways[i])) {
            memcpy(c.strategy.computing, ways[i].computing, model->n_modules);
            c.prefix = arena_format(arena, "%s, ", ways[i].name);
            try_all_least(&c);
        }
    search->needs_computed = !search->fits && search->fits_computed;
    if (search->needs_computed)
        buckets_assign(model, &search->computed, &search->chosen);
    search->fits |= search->fits_computed;
    memory_search_tell(search, search->needs_computed);
    evaluator_destroy(c.evaluator);
}

/* Equal where two strategies do the same to modules, all that memory knows of a strategy. */
static uint64_t key_of(const struct dpro_model *m, const struct dpro_strategy *s)
{
    uint64_t hash = map_mix(MAX(s->micro_batches, 1)) | 1;
    for (uint32_t i = 0; i < m->n_modules; i++) {
        uint64_t way = (s->computing ? 2 * s->computing[i] : 0) +
                       (s->recomputed && s->recomputed[i] ? UINT64_C(1) : 0);
        if (way > 0)
            hash = map_mix(hash ^ ((uint64_t)(i + 1) << 8 | way)) | 1;
    }
    return hash;
}

uint64_t memory_search_peak(const struct memory_search *search, const struct dpro_strategy *s,
                            struct map *peaks)
{
    uint64_t peak, key = key_of(search->model, s);
    if (!search->is_known)
        return 0;
    if (!map_get(peaks, key, &peak)) {
        peak = memory_peak_bytes(search->model, s);
        map_set(peaks, key, peak);
    }
    return peak;
}

bool memory_search_allows(const struct memory_search *search, const struct dpro_strategy *s,
                          struct map *peaks)
{
    if (search->budget_bytes == 0 || !search->fits)
        return true;
    return memory_search_peak(search, s, peaks) <= search->budget_bytes;
}
