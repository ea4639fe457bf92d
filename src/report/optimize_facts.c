/* Works out the facts of a search's reports. */
#include "report/optimize_facts.h"

#include "optimize/plan_make.h"

#define LEAST_GAIN_PCT 0.5 /* below that a plan is not worth its upkeep */
#define MISFIT_TO_TELL 5.0 /* percent */

int dpro_optimize_helps(const struct dpro_optimize_report *report)
{
    struct optimize_facts facts;
    optimize_facts_fill(&facts, report);
    return facts.helps;
}

int dpro_optimize_is_for_job(const struct dpro_optimize_report *report)
{
    struct optimize_facts facts;
    optimize_facts_fill(&facts, report);
    return facts.is_for_job;
}

double optimize_half_pct(const struct optimize_facts *f, int64_t ns, double uncertainty_pct)
{
    return HALF_OF_95_PCT * uncertainty_pct * (double)ns / (double)f->o->summary.baseline_ns;
}

bool optimize_is_row(const struct optimize_facts *f, const struct dpro_baseline *baseline)
{
    return !f->is_undivided || baseline->computes ||
           text_is_one(baseline->name, "one-bucket", "byteps", "communication");
}

struct computed_modules optimize_computed(const struct dpro_optimum *o, enum dpro_which which,
                                          unsigned bit)
{
    const struct dpro_model *model = o->models[which];
    struct computed_modules found = {.first = ""};
    for (uint32_t m = 0; m < model->n_modules; m++) {
        if (!(computing_way(model, &o->strategies[which], m) & bit))
            continue;
        found.last = model->modules[m].name;
        found.first = found.n++ == 0 ? found.last : found.first;
        found.is_all |= found.last[0] == '\0';
    }
    return found;
}

uint32_t optimize_n_recomputed(const struct dpro_optimum *o, enum dpro_which which)
{
    return modules_count(o->strategies[which].recomputed, o->models[which]->n_modules, 1);
}

uint32_t optimize_n_parts(const struct dpro_optimum *o, enum dpro_which which)
{
    return MAX(o->strategies[which].micro_batches, 1);
}

static void find_script(struct optimize_facts *f)
{
    static const char *const classes[] = {
        [DPRO_SCHEDULE_GPIPE] = "ScheduleGPipe(stage",
        [DPRO_SCHEDULE_1F1B] = "Schedule1F1B(stage",
        [DPRO_SCHEDULE_INTERLEAVED] = "ScheduleInterleaved1F1B([stage, ...]",
        [DPRO_SCHEDULE_ZERO_BUBBLE] = "ScheduleInterleavedZeroBubble([stage, ...]"};
    struct dpro_pipeline_run run = f->o->pipeline[DPRO_BEST];
    uint32_t parts = optimize_n_parts(f->o, DPRO_BEST);
    struct words words = {.n = 0};
    if (run.n_micro_batches > 0 && run.schedule != DPRO_SCHEDULE_UNKNOWN)
        words_add(&words, "; ", "with torch.distributed.pipelining, %s, n_microbatches=%u, ...)",
                  classes[run.schedule], run.n_micro_batches);
    if (optimize_n_recomputed(f->o, DPRO_BEST) > 0)
        words_add(&words, "; ", "torch.utils.checkpoint around the modules that are recomputed%s",
                  dpro_graph_is_sharded(f->report->graph) ? ", before fully_shard" : "");
    if (parts > 1)
        words_add(&words, "; ", "%u micro-batches a step, one after the other", parts);
    snprintf(f->script, sizeof f->script, "%.300s", words.text);
}

/* Whether it helps: to fit the budget, else to take less time. Halves of 95 %. */
static void find_gain(struct optimize_facts *f)
{
    const struct dpro_optimum_summary *s = &f->o->summary;
    double own = (double)s->baseline_ns, best = (double)s->best_ns;
    f->speedup = own / best;
    f->less_pct = 100 * (1 - best / own);
    f->less_half_pct = HALF_OF_95_PCT * s->uncertainty_pct / (f->speedup * f->speedup);
    f->uncertainty_pct = optimize_half_pct(f, s->best_ns, s->uncertainty_pct);
    f->helps = f->budget.needed ? f->budget.fits != 0
                                : f->less_pct >= LEAST_GAIN_PCT && f->less_pct > f->less_half_pct;
    f->planned = f->helps ? DPRO_BEST : DPRO_BASELINE;
    const struct dpro_memory_peak *kept = &f->o->peaks[f->planned];
    double half = HALF_OF_95_PCT * kept->std_bytes, budget = (double)f->budget.budget_bytes;
    if (budget > 0 && f->budget.fits && (double)kept->bytes + half > budget)
        snprintf(
            f->unsure_peak, sizeof f->unsure_peak,
            "the peak is known to +- %s only and may not fit; a budget of %s leaves room for that",
            BYTES_TEXT(llround(half)), BYTES_TEXT(llround(fmax(0, budget - half))));
}

/* What computing modules otherwise does to numbers; "": nothing. */
static const char *computing_warning(const struct optimize_facts *f)
{
    if (!f->helps || !f->computes)
        return "";
    return optimize_computed(f->o, DPRO_BEST, DPRO_BF16).n > 0
               ? "bf16 rounds what modules compute: the job does not train to the same numbers; "
                 "check its loss"
               : "compiled modules may round otherwise in the last bits, and are compiled once "
                 "when the job begins, which takes time";
}

void optimize_facts_fill(struct optimize_facts *f, const struct dpro_optimize_report *report)
{
    const struct dpro_optimum *o = report->optimum;
    const struct dpro_model *model = report->model;
    enum dpro_stack stack = model->capabilities.stack;
    *f = (struct optimize_facts){.report = report,
                                 .o = o,
                                 .budget = dpro_optimum_memory_budget(o),
                                 .communicates = model->n_tensors > 0,
                                 .is_undivided = model->whole_bytes > 0,
                                 .is_of_units = o->units.n > 0,
                                 .is_of_pipeline = o->pipeline[DPRO_BASELINE].n_micro_batches > 0,
                                 .is_likely_other = o->summary.likely_ns != o->summary.best_ns};
    find_gain(f);
    f->computes = optimize_computed(o, DPRO_BEST, DPRO_COMPILED | DPRO_BF16).n > 0;
    f->is_for_job =
        f->is_of_units || (!dpro_graph_is_sharded(report->graph) &&
                           (f->communicates || dpro_graph_n_dimensions(report->graph) == 0));
    EACH (const struct dpro_baseline, baseline, o->baselines)
        f->is_likely_other |= baseline->likely_ns != baseline->iteration_ns;
    if (f->helps && !f->is_for_job)
        find_script(f);
    bool cuts = model->cut.changes && optimize_n_parts(o, f->planned) > 1;
    f->cut_changes = cuts ? model->cut.changes : "";
    if (fabs(100 * model->misfit) > MISFIT_TO_TELL)
        snprintf(f->misfit, sizeof f->misfit,
                 "the model is %+.1f %% off the measured iteration, and its predictions may be off "
                 "by as much; to measure, use %s",
                 100 * model->misfit,
                 stack != DPRO_STACK_BYTEPS ? "dpro verify" : "a run with the plan");
    /* others' keys, variables and gradients have names of their own */
    f->is_named = plan_recording(report->trace) || !f->communicates ||
                  (stack != DPRO_STACK_DDP && stack != DPRO_STACK_BYTEPS);
    f->warnings = (struct warnings){
        .trace = report->trace,
        .graph = report->graph,
        .model = model,
        .listed = report->warnings,
        .more = {f->misfit,
                 f->is_named ? ""
                             : "the trace does not name the parameters, so the job can't be given "
                               "this plan",
                 f->unsure_peak, computing_warning(f), f->cut_changes,
                 o->summary.compression == DPRO_COMPRESSION_NONE
                     ? ""
                     : "compression rounds gradients: the job does not train to the same numbers; "
                       "check its loss"}};
}
