/* Predicts a job as it ran and with changes, both by the same model, so that the model's errors
 * cancel in the ratio. */

#include "base/options.h"
#include "cost/change/change_programs.h"
#include "cost/change/changes.h"
#include "cost/change/turns.h"
#include "cost/learn/uncertainty.h"
#include "cost/memory/strategy_memory.h"
#include "cost/program/evaluate.h"
#include "replay/replay.h"

enum { N_DRAWS = 200 };
#define MISFIT_TO_TELL_PCT 5.0

/* Which gradients travel together is what comes of the cycles. */
static void show_groups(struct dpro_model *model)
{
    struct evaluator *evaluator = evaluator_create(model);
    evaluate_strategy(evaluator, &model->baseline);
    evaluated_groups(evaluator, &model->baseline);
    evaluator_destroy(evaluator);
}

/* How the work of ranks varies from one iteration to the next. */
struct spread {
    double *common;   /* [n_samples] by which all ranks vary together; 1 in the mean */
    double *pauses;   /* [n_samples] in which all ranks pause */
    double *alone;    /* [n_ranks] standard deviation of what a rank varies by itself */
    double mean, all; /* standard deviations: the mean of `alone`, that of `common` */
};

static double variance_of(const double *values, const double *less, uint32_t n)
{
    double sum = 0;
    for (uint32_t s = 0; s < n; s++)
        sum += (values[s] - (less ? less[s] : 1)) * (values[s] - (less ? less[s] : 1));
    return n > 1 ? sum / (n - 1) : 0;
}

/* Splits the spread of samples in two: the mean over the recorded ranks has all of what the ranks
 * share, and a part of what is each rank's own. With one rank, all of it is that rank's own. */
static void find_spread(const struct dpro_model *m, struct arena *arena, struct spread *spread)
{
    uint32_t n = 0, n_samples = m->n_samples;
    spread->common = arena_array(arena, n_samples + (size_t)1, sizeof *spread->common);
    spread->alone = arena_array(arena, m->n_ranks, sizeof *spread->alone);
    for (uint32_t r = 0; r < m->n_ranks; r++)
        n += m->ranks[r].copy == 0;
    for (uint32_t r = 0; r < m->n_ranks; r++)
        for (uint32_t s = 0; s < n_samples && m->ranks[r].copy == 0; s++)
            spread->common[s] += m->ranks[r].sample_scale[s] / n;
    spread->pauses = arena_array(arena, n_samples + (size_t)1, sizeof *spread->pauses);
    for (uint32_t s = 0; s < n_samples; s++)
        spread->pauses[s] = model_common_pause(m, s);
    double squares = 0;
    for (uint32_t r = 0; r < m->n_ranks; r++) {
        const struct model_rank *rank = &m->ranks[r];
        if (rank->copy > 0) {
            spread->alone[r] = spread->alone[rank->like];
            continue;
        }
        double own = variance_of(rank->sample_scale, NULL, n_samples), apart = own;
        if (n > 1)
            apart = variance_of(rank->sample_scale, spread->common, n_samples) * n / (n - 1.0);
        spread->alone[r] = sqrt(fmin(apart, own));
        squares += fmin(apart, own) / n;
    }
    double common = variance_of(spread->common, NULL, n_samples);
    double left = fmax(0, common - squares / n);
    for (uint32_t s = 0; s < n_samples; s++)
        spread->common[s] = 1 + (common > 0 ? sqrt(left / common) : 0) * (spread->common[s] - 1);
    spread->mean = sqrt(squares);
    spread->all = sqrt(left);
}

/* Between 0 and 1, without both. */
static double uniform_of(uint64_t key)
{
    return ((double)(map_mix(key) >> 11) + 0.5) * 0x1p-53;
}

/* Normal; the same for the same two. */
static double normal_of(uint64_t a, uint64_t b)
{
    const double TURN = 6.283185307179586;
    uint64_t key = map_mix(map_mix(a + 1) + b);
    return sqrt(-2 * log(uniform_of(key))) * cos(TURN * uniform_of(key + 1));
}

/* The iterations that percentiles are of: those that were measured, each once; or if copies of
 * ranks vary, each so often that they are N_DRAWS or more. */
struct draws {
    uint32_t n;
    int64_t *ns; /* [n] by the model */
};

/* What a rank pauses in a draw. A copy pauses with all others, and for itself as its rank did in
 * any iteration. */
static double pause_of(const struct dpro_model *model, const struct spread *spread, uint32_t r,
                       uint32_t number)
{
    const struct model_rank *rank = &model->ranks[r];
    uint32_t n = model->n_samples, sample = number % n;
    if (!rank->sample_pause_ns || rank->copy == 0)
        return rank->sample_pause_ns ? rank->sample_pause_ns[sample] : 0;
    uint32_t own = (uint32_t)(uniform_of(map_mix(map_mix(number + UINT64_C(1)) + r)) * n);
    return spread->pauses[sample] + rank->sample_pause_ns[own] - spread->pauses[own];
}

/* Each rank computes as fast as it did in that iteration, and pauses as long. A copy varies with
 * all others, and as much as its rank by itself; it pauses as that did in some iteration. */
static void draw_ranks(const struct dpro_model *model, const struct spread *spread, uint32_t number,
                       struct model_rank *ranks, struct dpro_model *drawn)
{
    uint32_t sample = number % model->n_samples;
    *drawn = *model;
    drawn->ranks = ranks;
    drawn->pause_ns = 0;
    for (uint32_t r = 0; r < model->n_ranks; r++) {
        const struct model_rank *from = &model->ranks[r];
        double scale = from->sample_scale[sample];
        if (from->copy > 0)
            scale = spread->common[sample] * fmax(0, 1 + spread->alone[r] * normal_of(number, r));
        ranks[r] = *from;
        ranks[r].work_scale *= scale;
        drawn->pause_ns = fmax(drawn->pause_ns, pause_of(model, spread, r, number));
    }
}

static void make_draws(const struct dpro_model *model, const struct spread *spread,
                       struct arena *arena, struct draws *draws)
{
    uint32_t n = model->n_samples > 1 ? model->n_samples : 0;
    draws->n = n;
    for (uint32_t r = 0; r < model->n_ranks && n > 0; r++)
        if (model->ranks[r].copy > 0 && spread->alone[r] > 0)
            draws->n = MAX(n, (N_DRAWS + n - 1) / n * n);
    draws->ns = arena_array(arena, draws->n + (size_t)1, sizeof *draws->ns);
}

/* Returns their mean. */
static double draw_iterations(const struct timed_job *it, const struct spread *spread,
                              const char *stage, const struct dpro_sink *sink, struct draws *draws)
{
    const struct dpro_model *m = it->model;
    int64_t *ns = draws->ns;
    SCRATCH struct model_rank *ranks = mem_alloc(m->n_ranks * sizeof *ranks);
    double sum = 0;
    for (uint32_t d = 0; d < draws->n; d++) {
        struct dpro_model drawn;
        draw_ranks(m, spread, d, ranks, &drawn);
        ns[d] = evaluate_once(&drawn);
        if (it->n_others > 0) {
            draw_ranks(it->others, spread, d, ranks, &drawn);
            drawn.pause_ns = 0;
            ns[d] += it->n_others * evaluate_once(&drawn);
        }
        log_progress(sink, stage, "iterations", d + 1, draws->n);
        sum += (double)ns[d];
    }
    return sum / draws->n;
}

static void set_percentiles(const struct draws *of, struct dpro_prediction *p)
{
    sort_i64(of->ns, of->n);
    p->p50_ns = of->n > 0 ? stats_median_i64(of->ns, of->n) : p->iteration_ns;
    p->p95_ns = of->n > 0 ? of->ns[(of->n * 95 + 99) / 100 - 1] : p->iteration_ns;
}

/* The measured iterations, as they were without dpro. */
static void measured_percentiles(const struct dpro_model *model, const struct draws *draws,
                                 double scale, struct dpro_prediction *p)
{
    for (uint32_t d = 0; d < draws->n; d++)
        draws->ns[d] = model->sample_ns ? model->sample_ns[d] : scaled_ns(scale, draws->ns[d]);
    set_percentiles(draws, p);
}

/* Of each measured iteration, what changes by the model: what it is slow for stays, where that is
 * none of what changes. Where durations changed, that is first
 * what its replay with them tells, which has what holds it up, and then what the mean changes by
 * beside that. */
static void changed_percentiles(const struct timed_job *it, const struct draws *as_it_is,
                                const struct draws *draws, double scale,
                                const struct dpro_prediction *baseline, struct dpro_prediction *p)
{
    const struct dpro_model *m = it->model;
    double replayed = 0, measured = 0, other_ns;
    for (uint32_t s = 0; s < as_it_is->n && m->changed_ns; s++) {
        replayed += (double)m->changed_ns[s];
        measured += (double)m->sample_ns[s];
    }
    other_ns = (double)p->iteration_ns - replayed / measured * (double)baseline->iteration_ns;
    for (uint32_t d = 0; d < draws->n; d++) {
        int64_t *ns = &draws->ns[d];
        uint32_t s = d % m->n_samples;
        if (m->changed_ns && draws->n == as_it_is->n)
            *ns = llround(fmax(0, (double)m->changed_ns[s] + other_ns));
        else if (m->sample_ns)
            *ns = llround(
                fmax(0, (double)m->sample_ns[s] + scale * ((double)*ns - (double)as_it_is->ns[s])));
        else
            *ns = scaled_ns(scale, *ns);
    }
    set_percentiles(draws, p);
}

/* *noise_ns: how much longer the mean of the draws is than the iteration of mean durations, as the
 * slowest of noisy ranks is slower than the slowest of their means. */
static void whatif_predict(struct timed_job *it, const struct spread *spread, const char *stage,
                           const struct dpro_sink *sink, struct draws *draws, int64_t *iteration_ns,
                           double *noise_ns)
{
    job_time(it);
    if (it->ns >= (double)INT64_MAX)
        refuse("an iteration of the changed job never ends; change less");
    *iteration_ns = llround(it->ns);
    *noise_ns = 0;
    if (draws->n > 0)
        *noise_ns = draw_iterations(it, spread, stage, sink, draws) - (double)*iteration_ns;
}

/* The job with the changes, which no prediction was made of yet. What is noted of its other
 * micro-batches is said of all. */
static void change_job(const struct dpro_graph *graph, const struct dpro_model *model,
                       const struct dpro_changes *changes, const struct topology *told,
                       struct dpro_whatif *w)
{
    struct notes same = {.arena = &w->arena};
    w->notes.arena = &w->arena;
    change_copy(model, &w->arena, &w->model);
    change_check(changes, model);
    /* before the world changes: it is of the recorded ranks */
    change_programs(graph, changes, &w->model, &w->notes, &w->programs);
    change_apply(graph, told, changes, &w->model, &w->notes);
    w->programs.passes.pause_ns = 0; /* once an iteration */
    if (w->programs.n_passes > 0)
        change_apply(graph, told, changes, &w->programs.passes, &same);
    array_fini(&same.lines);
}

/* More ranks: a slower slowest one. */
static void add_stragglers(const struct dpro_model *model, const struct spread *spread,
                           double noise_ns, struct dpro_whatif *w)
{
    w->answer.predicted.iteration_ns += llround(noise_ns);
    if (model->n_samples > 1)
        note(
            &w->notes,
            "a rank's computation varies by %.1f %% between iterations, that of all ranks together "
            "by %.1f %%: waiting for the slowest of so many ranks makes an iteration %.2f ms %s",
            100 * spread->mean, 100 * spread->all, fabs(noise_ns) / 1e6,
            noise_ns < 0 ? "shorter" : "longer");
}

/* By what was measured by turns, if nothing is asked for but what a plan can say. */
static void correct_by_turns(const struct dpro_model *model, const struct dpro_changes *changes,
                             struct uncertainty *u, struct dpro_whatif *w)
{
    struct dpro_prediction *p = &w->answer.predicted;
    double share = (double)p->iteration_ns / (double)w->answer.baseline.iteration_ns;
    if (model->turns && model->turns->problem[0])
        note(&w->notes, "%s", model->turns->problem);
    struct correction c = changes_correct(changes, model, &w->model.baseline, u->speedup * share);
    if (c.left == 1 || w->notes.untimed)
        return;
    note(&w->notes,
         "corrected by measured turns of this job (plans: %zu); without them an iteration takes "
         "%.2f ms",
         model->turns->of.n, (double)p->iteration_ns / 1e6);
    p->iteration_ns = scaled_ns(c.ratio, p->iteration_ns);
    p->p50_ns = scaled_ns(c.ratio, p->p50_ns);
    p->p95_ns = scaled_ns(c.ratio, p->p95_ns);
    u->after *= c.left;
    u->speedup *= c.left / c.ratio;
    for (int i = 0; i < DPRO_N_UNCERTAINTY_PARTS; i++) {
        u->parts[i].after *= c.left;
        u->parts[i].speedup *= c.left / c.ratio;
    }
}

static void add_uncertainty(struct timed_job *before, struct timed_job *after,
                            const struct dpro_changes *changes, double slowest_error_ns,
                            struct dpro_whatif *w)
{
    const struct dpro_model *model = before->model;
    struct change_beside beside = {.slowest_error_ns = slowest_error_ns, .sink = &changes->sink};
    struct uncertainty u = program_uncertainty(before, after, &w->programs, beside);
    correct_by_turns(model, changes, &u, w);
    if (fabs(100 * u.misfit) > MISFIT_TO_TELL_PCT)
        note(&w->notes,
             "the model is %+.1f %% off the measured iteration; trust the ratio more than the "
             "milliseconds",
             100 * u.misfit);
    double ratio =
        (double)w->answer.baseline.iteration_ns / (double)w->answer.predicted.iteration_ns;
    w->answer.baseline.uncertainty_pct = 100 * HALF_OF_95_PCT * u.before;
    w->answer.predicted.uncertainty_pct = 100 * HALF_OF_95_PCT * u.after;
    w->answer.speedup = (struct dpro_estimate){ratio, u.speedup};
    memcpy(w->answer.uncertainty, u.parts, sizeof w->answer.uncertainty);
}

/* The model has a GPU's work, which goes on no faster than threads launch it. */
static void tell_launching(const struct dpro_model *model, const struct dpro_changes *changes,
                           struct dpro_whatif *w)
{
    struct dpro_model unbound = w->model;
    unbound.launching_ns = 0;
    if (w->model.launching_ns == 0 && model->launching_ns > w->answer.predicted.iteration_ns)
        note(&w->notes,
             "the CPU alone takes %.2f ms an iteration, more than predicted: without a faster CPU, "
             "no iteration is shorter than that",
             (double)model->launching_ns / 1e6);
    if (w->model.launching_ns == 0 || w->programs.n_passes > 0 ||
        changes_ask_only(changes, OF_DURATIONS))
        return;
    int64_t gpu_ns = evaluate_once(&unbound);
    if (gpu_ns < MIN(w->model.launching_ns, w->answer.baseline.iteration_ns))
        note(&w->notes,
             "the CPU alone takes %.2f ms an iteration, so that no less is predicted; the GPU and "
             "its communication would take %.2f ms",
             (double)w->model.launching_ns / 1e6, (double)gpu_ns / 1e6);
}

/* What was changed, by the job's parts. */
static void tell_parts(const struct dpro_model *model, struct dpro_whatif *w)
{
    const struct program_change *change = &w->programs;
    const struct pipeline_change *pipeline = &change->pipeline;
    struct dpro_whatif_answer *answer = &w->answer;
    double *bubbles = arena_array(&w->arena, 2 * (size_t)pipeline->n_stages + 1, sizeof *bubbles);
    for (uint32_t s = 0; s < pipeline->n_stages; s++) {
        bubbles[2 * s] = pipeline_bubble(model, pipeline, s, answer->baseline.iteration_ns);
        bubbles[2 * s + 1] =
            pipeline_bubble(&w->model, pipeline, s, answer->predicted.iteration_ns);
    }
    answer->bubbles = bubbles;
    answer->n_stages = pipeline->n_stages;
    memcpy(answer->pipeline, pipeline->runs, sizeof answer->pipeline);
    answer->units = change->units.units;
    answer->n_units = change->units.n_units;
    answer->model = &w->model;
    answer->modules = change->has_modules ? &change->modules : &w->model;
    answer->untimed = w->notes.untimed;
}

/* Other durations change the job by what their replay says, and all other changes that by what the
 * model says: what they take longer is added, as it may be on links where that is on threads, and
 * what they save is as large a part, down to what launching takes. */
static int64_t changed_ns(const struct dpro_model *m, double scale, int64_t baseline_ns,
                          int64_t model_ns)
{
    if (m->changed_ratio == 0)
        return scaled_ns(scale, model_ns);
    double before_ns = (double)MAX(m->changed_model_ns, 1), more_ns = (double)model_ns - before_ns;
    double replayed_ns = m->changed_ratio * (double)baseline_ns;
    double least_ns = fmin(replayed_ns, scale * (double)m->launching_ns);
    double ns = replayed_ns + more_ns * (more_ns > 0 ? scale : replayed_ns / before_ns);
    return llround(fmax(ns, least_ns));
}

static void run_whatif(const struct dpro_graph *graph, const struct dpro_model *model,
                       const struct dpro_changes *changes, struct dpro_whatif **whatif)
{
    double noise_before, noise_after;
    struct dpro_whatif *w = mem_array(1, sizeof *w);
    change_job(graph, model, changes, NULL, w);
    struct timed_job before = {.model = model}, after = {.model = &w->model,
                                                         .others = &w->programs.passes,
                                                         .n_others = w->programs.n_passes};
    struct spread spread = {.mean = 0};
    struct draws draws[2];
    find_spread(&w->model, &w->arena, &spread);
    make_draws(model, &spread, &w->arena, &draws[0]);
    make_draws(&w->model, &spread, &w->arena, &draws[1]);
    whatif_predict(&before, &spread, "predict the job as it is", &changes->sink, &draws[0],
                   &w->answer.baseline.iteration_ns, &noise_before);
    whatif_predict(&after, &spread, "predict the changed job", &changes->sink, &draws[1],
                   &w->answer.predicted.iteration_ns, &noise_after);
    double scale = model_job_scale(model, w->answer.baseline.iteration_ns);
    w->answer.baseline.iteration_ns = scaled_ns(scale, w->answer.baseline.iteration_ns);
    w->answer.predicted.iteration_ns = changed_ns(&w->model, scale, w->answer.baseline.iteration_ns,
                                                  w->answer.predicted.iteration_ns);
    changed_percentiles(&after, &draws[0], &draws[1], scale, &w->answer.baseline,
                        &w->answer.predicted);
    measured_percentiles(model, &draws[0], scale, &w->answer.baseline);
    tell_parts(model, w);
    tell_launching(model, changes, w);
    bool other_ranks = w->model.n_ranks != model->n_ranks;
    double slowest_ns = other_ranks ? noise_after - noise_before : 0;
    if (other_ranks)
        add_stragglers(model, &spread, slowest_ns, w);
    /* the standard error of a standard deviation that so many iterations show */
    slowest_ns /= sqrt(2 * fmax(model->n_samples, 2) - 2);
    add_uncertainty(&before, &after, changes, fabs(slowest_ns), w);
    if (w->model.baseline.fuses &&
        (changes->cycle_ns || changes->fusion_bytes ||
         w->answer.predicted.iteration_ns != w->answer.baseline.iteration_ns))
        show_groups(&w->model); /* else they are as recorded */
    if (w->programs.has_modules) {
        memcpy(w->answer.memory, w->programs.memory, sizeof w->answer.memory);
    } else if (memory_is_known(model)) {
        w->answer.memory[0] = memory_peak_told(model, &model->baseline);
        w->answer.memory[1] = memory_peak_told(&w->model, &w->model.baseline);
    }
    if (changes_ask_only(changes, 0)) {
        w->answer.n_questions = n_change_rows;
        w->questions = arena_array(&w->arena, n_change_rows, sizeof *w->questions);
        w->answer.questions = w->questions;
    }
    if (w->notes.untimed) { /* what is worked out above took it as it is */
        w->answer.predicted = (struct dpro_prediction){0};
        w->answer.speedup = (struct dpro_estimate){0};
        memset(w->answer.uncertainty, 0, sizeof w->answer.uncertainty);
    }
    *whatif = w;
}

/* Whether a job can be asked for that kind. */
static void try_question(const struct dpro_graph *graph, const struct dpro_model *model,
                         const struct change_row *row, struct dpro_question *question)
{
    struct dpro_whatif *w = mem_array(1, sizeof *w);
    struct job_facts facts = {.graph = graph, .model = model, .arena = &w->arena};
    struct dpro_changes changes = {.size = sizeof changes};
    if (row->tell)
        row->tell(&facts, (struct told_text){question->recorded, sizeof question->recorded});
    if (question_ask(row, &facts, &changes))
        change_job(graph, model, &changes, facts.hosts, w);
    else
        change_check_row(row, model);
    if (w->notes.untimed)
        dpro_error_set(&question->why, 0, "%s", w->notes.untimed);
    dpro_whatif_destroy(w);
}

static int answer_question(const struct dpro_graph *graph, const struct dpro_model *model,
                           const struct change_row *row, struct dpro_question *question)
{
    question->kind = &row->kind;
    int rc = OUTCOME(&question->why, try_question(graph, model, row, question));
    if (question->why.code == 0 && row->needs_text)
        dpro_error_set(&question->why, 0, "%s", row->needs_text);
    return rc;
}

static int make_whatif(const struct dpro_graph *graph, const struct dpro_model *model,
                       const struct dpro_changes *changes, struct dpro_whatif **whatif,
                       struct dpro_error *err)
{
    return OUTCOME(err, run_whatif(graph, model, changes, whatif));
}

int dpro_whatif_run(const struct dpro_graph *graph, const struct dpro_model *model,
                    const struct dpro_changes *changes, struct dpro_whatif **whatif,
                    struct dpro_error *err)
{
    struct dpro_changes mine;
    struct dpro_whatif *made;
    int rc = OPTIONS_TAKE(&mine, changes, err);
    if (rc < 0 || (rc = make_whatif(graph, model, &mine, &made, err)) < 0)
        return rc;
    for (size_t i = 0; i < made->answer.n_questions; i++)
        if (answer_question(graph, model, &change_rows[i], &made->questions[i]) == DPRO_ENOMEM) {
            dpro_whatif_destroy(made);
            return dpro_error_nomem(err);
        }
    *whatif = made;
    return 0;
}

/* ---- reading it ---- */

void dpro_whatif_destroy(struct dpro_whatif *whatif)
{
    if (!whatif)
        return;
    array_fini(&whatif->notes.lines);
    arena_fini(&whatif->model.arena);
    arena_fini(&whatif->arena);
    mem_free(whatif);
}

const struct dpro_whatif_answer *dpro_whatif_answer(const struct dpro_whatif *whatif)
{
    return &whatif->answer;
}

const char *dpro_uncertainty_name(enum dpro_uncertainty_source source)
{
    static const char *const names[] = {
        [DPRO_UNCERTAIN_LEARNT] = "learnt numbers", [DPRO_UNCERTAIN_ITERATIONS] = "iterations",
        [DPRO_UNCERTAIN_MACHINE] = "machine drift", [DPRO_UNCERTAIN_MODEL] = "model misfit",
        [DPRO_UNCERTAIN_CHANGE] = "extrapolation",  [DPRO_UNCERTAIN_BATCH] = "batch size",
        [DPRO_UNCERTAIN_COMPUTING] = "computing"};
    return names[source];
}

size_t dpro_whatif_n_warnings(const struct dpro_whatif *whatif)
{
    return whatif->notes.lines.n;
}

const char *dpro_whatif_warning(const struct dpro_whatif *whatif, size_t index)
{
    return whatif->notes.lines.at[index];
}
