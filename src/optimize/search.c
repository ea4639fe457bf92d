/* A search from beginning to end.
 *
 * The job's own strategy and the baselines are evaluated first, in the model as it is. Then comes
 * the search in the Coarsened View, whose best is brought back and refined. The best of all is the
 * result, so it is never worse than what it is compared with. */
#include "optimize/search.h"

#include "cost/change/change.h"
#include "cost/program/buckets.h"
#include "cost/program/server_placement.h"
#include "optimize/result.h"

/* The search runs on so many of the slowest ranks; its results are evaluated on all. */
enum { MOST_RANKS = 8 };

/* By how much a strategy must be better to be preferred to a simpler one. */
#define WORTH_OTHER_THAN_BUCKETS 0.005
#define WORTH_A_BUCKET           0.0005
#define MOST_DOUBT               1.5 /* against that of the modules one by one */

/* How much later the last gradient is ready than without communication, which slows it down. */
static double slowdown_of(struct space *space)
{
    const struct dpro_pass_view *view = space_look(space, &space->best);
    double ready = 0, launched = 0;
    for (uint32_t t = 0; t < view->n_tensors; t++)
        ready = fmax(ready, computation_ready_ns(&space->work, t));
    for (uint32_t b = 0; b < view->n_buckets; b++)
        launched = fmax(launched, (double)view->buckets[b].ready_ns);
    return ready > 0 && launched > ready ? launched / ready : 1;
}

/* The defaults that the job's stack can be given. */
static void try_defaults(struct space *space)
{
    struct dpro_strategy strategy = space_strategy(space);
    for (uint32_t i = 0; i < N_DEFAULTS; i++)
        if (default_is_within(&space->model->capabilities, i)) {
            default_make(space->model, &space->work, i, &strategy);
            strategy.fuses = false; /* groups alone are searched */
            strategy.cycle_ns = space->model->net.gate.cycle_ns;
            space_evaluate(space, &strategy);
        }
}

/* Whether what the algorithm itself finds is asked for, not the best of it and of what else is
 * known. */
static bool is_asked_alone(const struct search *search)
{
    enum dpro_algorithm algorithm = search->options->algorithm;
    return algorithm == DPRO_ALGORITHM_PAPER || algorithm == DPRO_ALGORITHM_DP;
}

static void descend_from_ways(struct space *space)
{
    const struct search *search = space->search;
    struct dpro_strategy from = space_copy_of(space, &space->best);
    for (uint32_t i = 0; i < search->n_ways && search->registry.computing != 0; i++) {
        memcpy(from.computing, search->ways[i].computing, space->model->n_modules);
        search_descend(space, &from);
    }
}

/* From space->best. */
static void run_algorithm(struct space *space)
{
    bool together = space->model->capabilities.together;
    enum dpro_algorithm algorithm = space->search->options->algorithm;
    if (together && (algorithm == DPRO_ALGORITHM_DEFAULT || algorithm == DPRO_ALGORITHM_DP))
        search_dynamic(space, 1);
    if (algorithm == DPRO_ALGORITHM_PAPER)
        search_paper(space);
    if (algorithm != DPRO_ALGORITHM_DEFAULT)
        return;
    double slowdown = slowdown_of(space);
    if (slowdown > 1 + WORTH_A_BUCKET && together && !search_stops(space->search))
        search_dynamic(space, slowdown);
    if (!search_stops(space->search))
        search_paper(space);
    descend_from_ways(space);
    search_local(space, true);
    search_local(space, false);
}

/* Makes `strategy` the one that was tried if that takes no longer than `limit`. */
static bool costs_little(struct space *space, struct dpro_strategy *strategy,
                         const struct dpro_strategy *tried, int64_t limit)
{
    bool kept = space_evaluate(space, tried) <= limit;
    if (kept)
        space_copy(space, tried, strategy);
    return kept;
}

/* Buckets are merged as long as that costs next to nothing. */
static void merge_idle_borders(struct space *space, struct dpro_strategy *strategy, int64_t limit)
{
    struct dpro_strategy tried = space_strategy(space);
    for (uint32_t at = 0; at + 1 < strategy->n_buckets && !search_stops(space->search);) {
        struct dpro_edit merge = {.kind = DPRO_EDIT_MERGE, .at = at, .value = 0};
        if (edits_apply(space->model, strategy, &merge, 1, &tried))
            break;
        at += !costs_little(space, strategy, &tried, limit);
    }
}

/* Modules are computed as they are where anything else wins next to nothing: all of a class, then
 * one by one. */
static void keep_idle_modules(struct space *space, struct dpro_strategy *strategy, int64_t limit)
{
    const struct dpro_model *m = space->model;
    struct dpro_strategy tried = space_strategy(space);
    for (int each = 0; each <= 1; each++)
        for (uint32_t i = 0; i < m->n_modules && !search_stops(space->search); i++)
            for (unsigned way = 0; way < strategy->computing[i]; way++) {
                unsigned from = strategy->computing[i];
                if ((way & ~from) != 0)
                    continue;
                space_copy(space, strategy, &tried);
                for (uint32_t k = each ? i : 0; k < (each ? i + 1 : m->n_modules); k++)
                    if (strategy->computing[k] == from &&
                        (way == 0 || (space->gains[k].ways & 1u << way)) &&
                        strcmp(m->modules[k].class, m->modules[i].class) == 0)
                        tried.computing[k] = (uint8_t)way;
                costs_little(space, strategy, &tried, limit);
            }
}

/* Replaces the result by a simpler one where that is as good: the model is not more exact, and a
 * simpler plan is safer in the job. Never slower than `limit`. */
static void search_simplify(struct space *space, int64_t limit)
{
    bool plain = (double)space->plain_ns <= (double)space->best_ns * (1 + WORTH_OTHER_THAN_BUCKETS);
    if (plain && space->plain_ns <= limit) {
        space_copy(space, &space->plain, &space->best);
        space->best_ns = space->plain_ns;
    }
    struct dpro_strategy strategy = space_copy_of(space, &space->best);
    int64_t most = MIN((int64_t)((double)space->best_ns * (1 + WORTH_A_BUCKET)), limit);
    keep_idle_modules(space, &strategy, most);
    merge_idle_borders(space, &strategy, most);
    space_copy(space, &strategy, &space->best);
    space->best_ns = space_evaluate(space, &strategy);
}

/* All of a collective's ranks wait for each other; those of a parameter server share its links. */
static bool alike_ranks_are_one(const struct search *search, const struct dpro_model *model)
{
    return !search->options->no_symmetry && !sync_n_servers(&model->net);
}

/* In a view, from the best so far where that is the same job; what is found comes back. */
static void search_view(struct space *fine, const struct coarsened_view *view)
{
    struct space coarse;
    struct dpro_strategy found = space_strategy(fine);
    space_init(&coarse, fine->search, &view->model);
    coarse.fine = fine;
    coarse.of = view;
    bool is_smaller = view->differs || view->model.n_ranks < fine->model->n_ranks;
    if (is_smaller && !is_asked_alone(fine->search)) {
        try_defaults(&coarse);
    } else if (!is_smaller) {
        space_note(&coarse, &fine->best, fine->best_ns);
        if (fine->plain_ns < INT64_MAX)
            space_note(&coarse, &fine->plain, fine->plain_ns);
    }
    run_algorithm(&coarse);
    coarsened_view_expand(view, &coarse.best, &found);
    space_evaluate(fine, &found);
    if (coarse.plain_ns < INT64_MAX) {
        coarsened_view_expand(view, &coarse.plain, &found);
        space_evaluate(fine, &found);
    }
    space_fini(&coarse);
}

/* In the Coarsened View, where there is one; what is found is refined. */
static void search_coarse(struct space *fine)
{
    const struct dpro_optimize_options *o = fine->search->options;
    bool symmetry = alike_ranks_are_one(fine->search, fine->model);
    uint32_t most_ranks = symmetry ? MOST_RANKS : UINT32_MAX;
    struct coarsened_view view;
    coarsened_view_make(fine->model, !o->no_coarsen, symmetry, most_ranks, &view);
    search_view(fine, &view);
    if (view.differs && fine->model->n_ranks <= most_ranks &&
        o->algorithm == DPRO_ALGORITHM_DEFAULT) {
        struct dpro_strategy from = space_copy_of(fine, &fine->best);
        search_descend(fine, &from);
    }
    coarsened_view_fini(&view);
}

/* What the job as it ran takes; strategies start from `start`, which is that where it fits its
 * memory. */
static int64_t baseline_of(struct space *space, const struct dpro_strategy *baseline,
                           const struct dpro_strategy *start)
{
    int64_t start_ns = is_asked_alone(space->search) ? space_value(space, start)
                       : start->fuses                ? cycles_baseline(space, start)
                                                     : space_evaluate(space, start);
    return start == baseline ? start_ns : evaluate_strategy(space->workers[0].evaluator, baseline);
}

/* From the defaults, and how the job ran. */
static void search_communication(struct space *space, const struct dpro_strategy *start,
                                 int64_t least_ns)
{
    const struct dpro_model *job = space->search->memory->model;
    bool is_default = space->search->options->algorithm == DPRO_ALGORITHM_DEFAULT;
    int64_t compared_ns = MIN(least_ns, space->best_ns); /* the result is, with these */
    if (placement_is_all(job))
        search_placement(space, start);
    else
        search_coarse(space);
    if (job->capabilities.parts == PARTS_OF_ONE_SIZE)
        search_part_size(space);
    if (is_default && !placement_is_all(job))
        search_simplify(space, compared_ns);
    if (job->net.gate.cycle_ns > 0 && !is_asked_alone(space->search))
        cycles_search(space, start, compared_ns);
}

/* Takes what is simpler where it is about as good as the best. */
static void search_prefer(struct space *space, const struct dpro_strategy *simpler)
{
    int64_t ns = space_value(space, simpler);
    if ((double)ns <= (double)space->best_ns * (1 + WORTH_OTHER_THAN_BUCKETS)) {
        space_copy(space, simpler, &space->best);
        space->best_ns = ns;
    }
}

/* A job whose modules change keeps its own buckets where others win next to nothing. */
static void keep_communication(struct space *space, const struct dpro_strategy *own)
{
    struct dpro_strategy tried = space_copy_of(space, own);
    buckets_take_memory(space->model, &space->best, &tried);
    search_prefer(space, &tried);
}

/* ---- how modules are computed ---- */

/* 16 bits in the whole model, where 16 bits in some modules alone win next to nothing more and are
 * no surer. */
static void prefer_whole(struct space *space)
{
    const struct dpro_strategy *best = &space->best;
    struct dpro_strategy tried = space_copy_of(space, best);
    unsigned used = 0;
    double std_ns = 0;
    for (uint32_t i = 0; i < space->model->n_modules; i++) {
        used |= best->computing[i];
        std_ns += best->computing[i] ? space->gains[i].std_ns[DPRO_BF16] : 0;
    }
    if (used != DPRO_BF16 || space->model->modules[0].name[0] != '\0' ||
        !(space->gains[0].ways & 1u << DPRO_BF16) ||
        space->gains[0].std_ns[DPRO_BF16] > MOST_DOUBT * std_ns)
        return;
    memset(tried.computing, 0, space->model->n_modules);
    tried.computing[0] = DPRO_BF16;
    search_prefer(space, &tried);
}

/* Tries the ways with the buckets of the best strategy, and what was chosen for memory. */
static void try_ways(struct space *space, const struct memory_search *memory)
{
    struct search *search = space->search;
    struct dpro_strategy tried = space_copy_of(space, &space->best);
    size_t n = space->model->n_modules;
    for (uint32_t i = 0; i < search->n_ways && n > 0 && !search_stops(search); i++) {
        memcpy(tried.computing, search->ways[i].computing, n);
        space_evaluate(space, &tried);
    }
    if (memory->fits_computed) {
        buckets_take_memory(space->model, &memory->computed, &tried);
        space_evaluate(space, &tried);
    }
}

/* Goes on from the best of communication alone: ways to compute modules for these buckets, buckets
 * for these ways, as long as that leads on. */
static void search_computing(struct space *space, const struct dpro_strategy *own, int64_t least_ns)
{
    enum { MOST_TURNS = 2 };
    struct search *search = space->search;
    const struct dpro_strategy *before = search->modules;
    struct dpro_strategy modules = space_strategy(space);
    int64_t best_ns = INT64_MAX;
    search->registry.computing = search->options->computing;
    try_ways(space, search->memory);
    search->modules = &modules;
    for (int turn = 0; turn < MOST_TURNS && space->best_ns < best_ns && !search_stops(search);
         turn++) {
        best_ns = space->best_ns;
        buckets_take_memory(space->model, &space->best, &modules);
        space_renew(space);
        search_communication(space, own, least_ns);
        if (memcmp(modules.computing, space->best.computing, space->model->n_modules) == 0)
            break;
    }
    prefer_whole(space);
    if (computing_is_changed(space->model, &space->best))
        keep_communication(space, own);
    search->modules = before;
    space_renew(space);
}

/* In a space of the job, all ranks that differ in it. */
static void search_space(struct space *space, struct dpro_optimum *o)
{
    const struct dpro_model *model = o->models[DPRO_BEST];
    struct search *search = space->search;
    bool changes = o->memory.is_needed && o->memory.fits;
    const struct dpro_strategy *start = changes ? &o->memory.chosen : &model->baseline;
    struct dpro_strategy alone;
    search->baseline_ns = baseline_of(space, &model->baseline, start);
    if (search->baseline_ns == INT64_MAX)
        result_never_ends();
    if (o->memory.fits) {
        if (!is_asked_alone(search))
            try_defaults(space);
        search_communication(space, start, changes ? INT64_MAX : search->baseline_ns);
        if (changes)
            keep_communication(space, &model->baseline);
        if (search->n_ways > 0) {
            alone = space_copy_of(space, &space->best);
            search->alone = o->memory.needs_computed ? NULL : &alone;
            search_computing(space, &model->baseline, changes ? INT64_MAX : search->baseline_ns);
        }
    }
    result_choose(o, space);
    result_fill(o, space);
}

void search_one(const struct dpro_model *model, uint32_t n_servers,
                const struct dpro_optimize_options *options, struct dpro_optimum **optimum)
{
    struct search search = {
        .options = options, .random = options->seed, .told_s = -1, .best_ns = INT64_MAX};
    struct dpro_optimum *o = mem_array(1, sizeof *o);
    struct coarsened_view fine;
    struct space space;
    o->models[DPRO_BASELINE] = o->models[DPRO_BEST] = model;
    if (n_servers != sync_n_servers(&model->net)) {
        o->models[DPRO_BEST] = &o->changed;
        change_copy(model, &o->arena, &o->changed);
        servers_change(&o->changed, n_servers, &o->arena);
    }
    registry_init(&search.registry, options);
    search.start_s = search_seconds(&search);
    coarsened_view_make(o->models[DPRO_BEST], false,
                        alike_ranks_are_one(&search, o->models[DPRO_BEST]), UINT32_MAX, &fine);
    cycles_prepare(&fine.model);
    const struct module_gain *gains = computing_gains(o->models[DPRO_BEST], options, &o->arena);
    o->computing = computing_known(o->models[DPRO_BEST], options, gains);
    search.n_ways = computing_choices(o->models[DPRO_BEST], gains, &o->arena, search.ways);
    memory_search_run(o->models[DPRO_BEST], &fine.model, options, search.ways, search.n_ways,
                      &o->arena, &o->memory);
    search.memory = &o->memory;
    if (o->memory.is_needed && o->memory.fits)
        search.modules = &o->memory.chosen;
    space_init(&space, &search, &fine.model);
    search_space(&space, o);
    space_fini(&space);
    coarsened_view_fini(&fine);
    registry_fini(&search.registry);
    array_fini(&search.improvements);
    array_fini(&search.pool);
    *optimum = o;
}
