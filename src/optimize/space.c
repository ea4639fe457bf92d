/* Evaluates strategies, keeps the best one, and shows strategies to passes. Evaluations run on
 * several threads, each with an evaluator and a copy of the strategy; the result does not depend on
 * which thread evaluates what. */

#include "base/parallel.h"
#include "cost/program/buckets.h"
#include "cost/program/strategy_work.h"
#include "optimize/memory_search.h"
#include "optimize/search.h"

enum { MOST_THREADS = 64, PART_A_WORKER = 64, QUIET_ROUNDS = 5 };
#define PROGRESS_EVERY_S 0.1
#define QUIET_CHANGE     0.001
#define ROUNDING_NS      1 /* what follows at once may start that much later */

/* ---- what passes propose for a strategy: each is tried on a copy first, so that the search
 * never sees an impossible one ---- */

/* A file's in a child process; those built in, and the caller's own, in this one. */
static void proposals_propose(const struct question *q, struct registered *entry)
{
    if (entry->pass) {
        if (!pass_propose(entry->pass, q->view, q->candidates, q->registry->edits))
            registry_reject(q->registry, entry, "proposed more edits than there is room for");
        return;
    }
    struct child_answer answer = child_run(entry->path, q->view, q->candidates);
    if (*answer.why)
        registry_reject(q->registry, entry, "%s", answer.why);
}

/* What makes no sense at all is not looked at here. */
static bool is_let(const struct question *q, const struct dpro_edit *e)
{
    if (e->kind == DPRO_EDIT_COMPRESS && e->value >= 0 && e->value < 32)
        return q->registry->compressions & 1u << e->value;
    if (e->kind == DPRO_EDIT_COMPUTE && e->at < q->model->n_modules && e->value > 0 &&
        e->value < DPRO_N_COMPUTINGS)
        return q->registry->computing != 0 && (q->gains[e->at].ways & 1u << e->value);
    return true;
}

/* Whether the user allowed it, and the job's stack can be given it. */
static bool is_allowed(const struct question *q, const struct dpro_edit *edits, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (!edit_is_within(&q->model->capabilities, &edits[i]) || !is_let(q, &edits[i]))
            return false;
    return true;
}

/* Drops candidates from `first` on that are not allowed, and all of a pass that proposes what can't
 * be done. There is room for one that is tried. */
static void proposals_sift(const struct question *q, struct registered *entry,
                           struct dpro_strategy *tried, size_t first)
{
    struct candidates *all = q->candidates;
    size_t kept = first;
    for (size_t i = first; i < all->list.n; i++) {
        struct candidate c = all->list.at[i];
        const struct dpro_edit *edits = all->edits.at + c.first;
        if (!is_allowed(q, edits, c.n))
            continue;
        const char *wrong = edits_apply(q->model, q->strategy, edits, c.n, tried);
        if (wrong) {
            registry_reject(q->registry, entry, "proposed what can't be done: %s", wrong);
            kept = first;
            break;
        }
        all->list.at[kept++] = c;
    }
    all->list.n = kept;
}

/* Replaces the candidates by those of all passes, in order. A pass that misbehaves is reported and
 * not asked again. */
static void registry_collect(const struct question *q)
{
    struct registry *r = q->registry;
    SCRATCH_ARENA struct arena arena = {0};
    struct dpro_strategy copy = buckets_copy(q->model, q->strategy, &arena);
    q->candidates->list.n = q->candidates->edits.n = 0;
    EACH (struct registered, entry, r->passes) {
        size_t first = q->candidates->list.n;
        if (!registry_uses(r, entry) ||
            (r->plain && entry->pass != &built_in_passes[PASS_TENSOR_FUSION]))
            continue;
        if (entry->computes != 0 && !entry->pass->propose)
            computing_propose(q, entry->computes);
        else
            proposals_propose(q, entry);
        proposals_sift(q, entry, &copy, first);
    }
}

/* ---- a search ---- */

double search_seconds(const struct search *search)
{
    return (double)time_now_ns(CLOCK_MONOTONIC) * 1e-9 - search->start_s;
}

bool search_stops(struct search *search)
{
    const struct dpro_optimize_options *o = search->options;
    double now = search_seconds(search);
    if (search->stopped_by)
        return true;
    if (o->budget_s > 0 && now >= o->budget_s) {
        search->stopped_by = "budget";
        return true;
    }
    if (o->progress && now - search->told_s >= PROGRESS_EVERY_S) {
        struct dpro_optimize_progress progress = {search->n_candidates, search->baseline_ns,
                                                  search->best_ns};
        search->told_s = now;
        struct memory_frame *frame = memory_step_out();
        if (o->progress(o->arg, &progress) != 0)
            search->stopped_by = "stopped";
        memory_step_in(frame);
    }
    return search->stopped_by != NULL;
}

const char *search_end(const struct search *search)
{
    return search->stopped_by ?: search->n_rounds > 0 ? "converged" : "nothing left to try";
}

uint64_t search_random(struct search *search)
{
    search->random += 0x9e3779b97f4a7c15u;
    return map_mix(search->random);
}

bool has_converged(struct convergence *convergence, int64_t best_ns)
{
    double change = (double)(convergence->best_ns - best_ns);
    bool quiet = convergence->best_ns > 0 && change < QUIET_CHANGE * (double)best_ns;
    convergence->n_quiet = quiet ? convergence->n_quiet + 1 : 0;
    convergence->best_ns = best_ns;
    return convergence->n_quiet >= QUIET_ROUNDS;
}

/* ---- a space ---- */

static int64_t sync_for_view(const struct dpro_pass_view *view, uint64_t size_bytes,
                             uint32_t partitions)
{
    struct space *space = (struct space *)((char *)(uintptr_t)view - offsetof(struct space, view));
    /* lack of memory must not jump over the functions of a user's pass */
    return WITHIN_SCOPE(INT64_MAX, space_sync_ns(space, size_bytes, partitions ? partitions : 1));
}

/* What passes see of the model's programs. */
static void show_programs(struct space *space)
{
    const struct dpro_model *m = space->model;
    space->programs = arena_array(&space->arena, m->n_programs, sizeof *space->programs);
    for (uint32_t p = 0; p < m->n_programs; p++) {
        uint32_t n = m->programs[p].n_ops;
        struct dpro_pass_op *ops = arena_array(&space->arena, n, sizeof *ops);
        for (uint32_t i = 0; i < n; i++) {
            const struct model_op *op = &m->programs[p].ops[i];
            ops[i] = (struct dpro_pass_op){op->name, (enum dpro_op_kind)op->phase,
                                           op->needs != MODEL_NONE, op->tensor, op->work_ns};
        }
        space->programs[p] = (struct dpro_pass_program){ops, n};
    }
}

static void show_modules(struct space *space)
{
    const struct dpro_model *m = space->model;
    space->gains = computing_gains(m, space->search->options, &space->arena);
    space->modules = arena_array(&space->arena, m->n_modules + (size_t)1, sizeof *space->modules);
    for (uint32_t i = 0; i < m->n_modules; i++) {
        const struct model_module *from = &m->modules[i];
        struct dpro_pass_module *to = &space->modules[i];
        *to = (struct dpro_pass_module){.name = from->name,
                                        .class_name = from->class,
                                        .parent = from->parent,
                                        .kept_bytes = from->kept_bytes,
                                        .recompute_ns = from->recompute_ns,
                                        .known = space->gains[i].ways};
        memcpy(to->gained_ns, space->gains[i].ns, sizeof to->gained_ns);
    }
}

void space_init(struct space *space, struct search *search, const struct dpro_model *model)
{
    *space = (struct space){.search = search, .model = model};
    space->best_ns = space->plain_ns = space->own_ns = INT64_MAX;
    int threads = search->options->threads;
    int n = threads > 0 ? MIN(threads, MOST_THREADS) : parallel_cores(MOST_THREADS);
    space->n_workers = (uint32_t)n;
    struct arena *a = &space->arena;
    size_t n_tensors = model->n_tensors;
    space->workers = arena_array(a, space->n_workers, sizeof *space->workers);
    space->tensors = arena_array(a, n_tensors, sizeof *space->tensors);
    space->buckets = arena_array(a, n_tensors, sizeof *space->buckets);
    space->sync = sync_create(&model->net);
    space->best = space_strategy(space);
    space->plain = space_strategy(space);
    space->work = computation_of(model, &space->plain, a);
    space->seen = computation_of(model, &space->plain, a);
    show_programs(space);
    show_modules(space);
    for (uint32_t i = 0; i < space->n_workers; i++) {
        space->workers[i].evaluator = evaluator_create(model);
        space->workers[i].strategy = space_strategy(space);
    }
}

void space_renew(struct space *space)
{
    struct dpro_strategy strategy = space_strategy(space);
    computation_set(space->model, &strategy, &space->work);
    space->seen_changed = true;
}

void space_fini(struct space *space)
{
    for (uint32_t i = 0; i < space->n_workers; i++) {
        evaluator_destroy(space->workers[i].evaluator);
        map_fini(&space->workers[i].peaks);
    }
    candidates_fini(&space->candidates);
    array_fini(&space->values);
    sync_destroy(space->sync);
    arena_fini(&space->arena);
}

struct dpro_strategy space_strategy(struct space *space)
{
    struct dpro_strategy strategy = buckets_make(space->model, &space->arena);
    if (space->search->modules)
        buckets_take_memory(space->model, space->search->modules, &strategy);
    return strategy;
}

struct dpro_strategy space_copy_of(struct space *space, const struct dpro_strategy *from)
{
    return buckets_copy(space->model, from, &space->arena);
}

void space_copy(const struct space *space, const struct dpro_strategy *from,
                struct dpro_strategy *to)
{
    buckets_assign(space->model, from, to);
}

/* ---- evaluating ---- */

static int64_t value_of(struct space *space, struct worker *worker,
                        const struct dpro_strategy *strategy)
{
    const struct search *search = space->search;
    if (!computing_is_possible(space->model, strategy) ||
        (search->memory && !memory_search_allows(search->memory, strategy, &worker->peaks)))
        return INT64_MAX;
    return evaluate_strategy(worker->evaluator, strategy);
}

bool space_is_plain(const struct dpro_model *model, const struct dpro_strategy *strategy)
{
    for (uint32_t t = 0; t < model->n_tensors; t++)
        if (strategy->order[t] != t)
            return false;
    for (uint32_t b = 0; b < strategy->n_buckets; b++)
        if (strategy->buckets[b].partitions != 1 || strategy->buckets[b].priority != 0)
            return false;
    return strategy->compression == DPRO_COMPRESSION_NONE;
}

static void pool_add(struct space *space, const struct dpro_strategy *strategy)
{
    struct dpro_strategy s;
    if (space->of) {
        s = space_strategy(space->fine);
        coarsened_view_expand(space->of, strategy, &s);
    } else {
        s = space_copy_of(space, strategy);
    }
    array_push(&space->search->pool, s);
}

void space_note(struct space *space, const struct dpro_strategy *strategy, int64_t ns)
{
    struct search *search = space->search;
    bool is_plainest = ns < space->plain_ns && space_is_plain(space->model, strategy);
    if (is_plainest || ns < space->own_ns)
        pool_add(space, strategy);
    space->own_ns = ns < space->own_ns ? ns : space->own_ns;
    if (is_plainest) {
        space_copy(space, strategy, &space->plain);
        space->plain_ns = ns;
    }
    if (ns >= space->best_ns)
        return;
    space_copy(space, strategy, &space->best);
    space->best_ns = ns;
    if (ns >= search->best_ns)
        return;
    search->best_ns = ns;
    struct dpro_improvement improvement = {search_seconds(search), search->n_candidates, ns};
    array_push(&search->improvements, improvement);
}

int64_t space_value(struct space *space, const struct dpro_strategy *strategy)
{
    space->search->n_candidates++;
    return value_of(space, &space->workers[0], strategy);
}

int64_t space_evaluate(struct space *space, const struct dpro_strategy *strategy)
{
    int64_t ns = space_value(space, strategy);
    space_note(space, strategy, ns);
    return ns;
}

struct space_part {
    struct space *space;
    const struct dpro_strategy *strategy;
    size_t first, n;
};

static void evaluate_part(void *arg, size_t number)
{
    const struct space_part *part = arg;
    struct space *space = part->space;
    struct worker *w = &space->workers[number];
    for (size_t i = part->first + number; i < part->first + part->n; i += space->n_workers) {
        const struct candidate *c = &space->candidates.list.at[i];
        const struct dpro_edit *edits = space->candidates.edits.at + c->first;
        space->values.at[i] = INT64_MAX;
        if (!edits_apply(space->model, part->strategy, edits, c->n, &w->strategy))
            space->values.at[i] = value_of(space, w, &w->strategy);
    }
}

void space_evaluate_candidates(struct space *space, const struct dpro_strategy *strategy)
{
    size_t n = space->candidates.list.n, step = (size_t)space->n_workers * PART_A_WORKER;
    array_reserve(&space->values, n); /* n of it is always 0 */
    for (size_t first = 0; first < n; first += step) {
        struct space_part part = {space, strategy, first, n - first < step ? n - first : step};
        if (search_stops(space->search)) {
            space->candidates.list.n = first;
            return;
        }
        parallel_for(space->n_workers, (int)space->n_workers, evaluate_part, &part);
        space->search->n_candidates += part.n;
    }
}

void space_collect(struct space *space, const struct dpro_strategy *strategy)
{
    struct question question = {&space->search->registry,    space->model, strategy,
                                space_look(space, strategy), space->gains, &space->candidates};
    registry_collect(&question);
}

/* ---- t_sync ---- */

/* Equal parts on several streams stay in step: all have the latency, then share the wire. */
int64_t space_sync_ns(struct space *space, uint64_t size_bytes, uint32_t partitions)
{
    uint32_t streams = space->model->net.gate.n_streams ? space->model->net.gate.n_streams : 1;
    struct sync_cost cost =
        sync_get(space->sync, size_bytes / partitions + (size_bytes % partitions != 0));
    int64_t rounds = partitions / streams + (partitions % streams != 0);
    return rounds * cost.latency_ns + partitions * cost.wire_ns;
}

uint32_t space_best_partitions(struct space *space, uint64_t size_bytes)
{
    static const uint32_t counts[] = {1, 2, 3, 4, 6, 8, 12, 16};
    uint32_t best = 1;
    int64_t least = INT64_MAX;
    if (space->model->capabilities.parts != PARTS_FREE)
        return 1;
    for (size_t i = 0; i < sizeof counts / sizeof *counts && size_bytes / 4 >= counts[i]; i++) {
        int64_t ns = space_sync_ns(space, size_bytes, counts[i]);
        if (ns < least) {
            least = ns;
            best = counts[i];
        }
    }
    return best;
}

/* ---- looking at a strategy ---- */

/* From the transfer that ends last back to where one did not wait for a stream: the communication
 * on the critical path. */
static void mark_critical(struct space *space, uint32_t n_buckets)
{
    struct dpro_pass_bucket *buckets = space->buckets, *at = NULL;
    for (uint32_t b = 0; b < n_buckets; b++)
        if (!at || buckets[b].end_ns > at->end_ns)
            at = &buckets[b];
    while (at) {
        struct dpro_pass_bucket *before = NULL;
        at->critical = 1;
        if (at->start_ns <= at->ready_ns + ROUNDING_NS)
            break;
        for (uint32_t b = 0; b < n_buckets; b++)
            if (!buckets[b].critical && buckets[b].end_ns <= at->start_ns + ROUNDING_NS &&
                buckets[b].end_ns >= at->start_ns - ROUNDING_NS)
                before = &buckets[b];
        at = before;
    }
}

const struct dpro_pass_view *space_look(struct space *space, const struct dpro_strategy *strategy)
{
    const struct evaluation *e = evaluate_detail(space->workers[0].evaluator, strategy);
    const struct dpro_model *model = space->model;
    bool changes = strategy_changes_work(model, strategy);
    if (changes || space->seen_changed)
        computation_set(model, strategy, &space->seen);
    space->seen_changed = changes;
    for (uint32_t b = 0; b < strategy->n_buckets; b++) {
        const struct strategy_bucket *bucket = &strategy->buckets[b];
        struct dpro_pass_bucket *seen = &space->buckets[b];
        double latest = 0;
        *seen = (struct dpro_pass_bucket){
            .first = bucket->first,
            .n = bucket->n,
            .partitions = bucket->partitions,
            .priority = bucket->priority,
            .ready_ns = e->buckets[b].launched_ns,
            .start_ns = e->buckets[b].start_ns,
            .end_ns = e->buckets[b].end_ns,
        };
        for (uint32_t i = bucket->first; i < bucket->first + bucket->n; i++) {
            uint32_t t = strategy->order[i];
            double ready = computation_ready_ns(&space->seen, t);
            seen->size_bytes += model->tensors[t].size_bytes;
            latest = ready > latest ? ready : latest;
        }
        for (uint32_t i = bucket->first; i < bucket->first + bucket->n; i++) {
            uint32_t t = strategy->order[i];
            double before = latest - computation_ready_ns(&space->seen, t);
            space->tensors[t] =
                (struct dpro_pass_tensor){model->tensors[t].name, model->tensors[t].size_bytes,
                                          seen->ready_ns - (int64_t)before, seen->end_ns, b};
        }
    }
    mark_critical(space, strategy->n_buckets);
    const struct memory_search *memory = space->search->memory;
    for (uint32_t i = 0; i < model->n_modules; i++) {
        space->modules[i].recomputed = strategy->recomputed && strategy->recomputed[i];
        space->modules[i].computing = strategy->computing ? strategy->computing[i] : 0;
    }
    space->view = (struct dpro_pass_view){
        .n_ranks = model->net.collective.n_ranks,
        .n_tensors = model->n_tensors,
        .n_buckets = strategy->n_buckets,
        .tensors = space->tensors,
        .order = strategy->order,
        .buckets = space->buckets,
        .compression = strategy->compression,
        .iteration_ns = e->iteration_ns,
        .programs = space->programs,
        .n_programs = model->n_programs,
        .critical_program = model->ranks[e->last_rank].program,
        .modules = space->modules,
        .n_modules = model->n_modules,
        .micro_batches = MAX(strategy->micro_batches, 1),
        .peak_bytes = memory ? memory_search_peak(memory, strategy, &space->workers[0].peaks) : 0,
        .memory_bytes = memory ? memory->budget_bytes : 0,
        .sync_ns = sync_for_view,
    };
    return &space->view;
}
