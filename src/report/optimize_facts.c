/* Works out the facts of a search's reports. */
#include "report/optimize_facts.h"

#include "cost/program/model.h"
#include "optimize/plan_make.h"
#include "optimize/result.h"
#include "report/words.h"

#define LEAST_GAIN_PCT 0.5 /* below that a plan is not worth its upkeep */
#define MISFIT_TO_TELL 5.0 /* percent */

double optimize_half_pct(const struct optimize_facts *f, int64_t ns, double uncertainty_pct)
{
    return HALF_OF_95_PCT * uncertainty_pct * (double)ns / (double)f->found.baseline_ns;
}

static void say_script(struct optimize_facts *f)
{
    static const char *const classes[] = {
        [DPRO_SCHEDULE_GPIPE] = "ScheduleGPipe(stage",
        [DPRO_SCHEDULE_1F1B] = "Schedule1F1B(stage",
        [DPRO_SCHEDULE_INTERLEAVED] = "ScheduleInterleaved1F1B([stage, ...]",
        [DPRO_SCHEDULE_ZERO_BUBBLE] = "ScheduleInterleavedZeroBubble([stage, ...]"};
    struct dpro_pipeline_run run = dpro_optimum_pipeline(f->report->optimum, DPRO_BEST);
    if (!f->helps || f->is_for_job)
        return;
    struct words words = {.n = 0};
    if (run.n_micro_batches > 0 && run.schedule != DPRO_SCHEDULE_UNKNOWN)
        words_add(&words, "; ", "with torch.distributed.pipelining, %s, n_microbatches=%u, ...)",
                  classes[run.schedule], run.n_micro_batches);
    if (optimize_n_recomputed(f->report->optimum, DPRO_BEST) > 0)
        words_add(&words, "; ", "torch.utils.checkpoint around the modules that are recomputed%s",
                  dpro_graph_is_sharded(f->report->graph) ? ", before fully_shard" : "");
    uint32_t parts =
        dpro_strategy_micro_batches(dpro_optimum_strategy(f->report->optimum, DPRO_BEST));
    if (parts > 1)
        words_add(&words, "; ", "%u micro-batches a step, one after the other", parts);
    snprintf(f->script, sizeof f->script, "%.300s", words.text);
}

void optimize_facts_fill(struct optimize_facts *f, const struct dpro_optimize_report *report)
{
    *f = (struct optimize_facts){.report = report, .found = dpro_optimum_summary(report->optimum)};
    double own = (double)f->found.baseline_ns, best = (double)f->found.best_ns;
    f->speedup = own / best;
    f->less_pct = 100 * (1 - best / own);
    f->less_half_pct = HALF_OF_95_PCT * f->found.uncertainty_pct / (f->speedup * f->speedup);
    f->uncertainty_pct = optimize_half_pct(f, f->found.best_ns, f->found.uncertainty_pct);
    f->is_undivided = report->model->whole_bytes > 0;
    if (f->is_undivided) { /* what smaller buckets can reach is not known, nor what a cap makes */
        f->found.lower_bound_ns = 0;
        f->found.setting = NULL;
    }
    f->at_most_pct = 100 * (1 - (double)f->found.lower_bound_ns / own);
    f->helps = f->less_pct >= LEAST_GAIN_PCT && f->less_pct > f->less_half_pct;
    optimize_memory_fill(f);
    optimize_computing_fill(f);
    f->is_of_units = dpro_optimum_n_units(report->optimum) > 0;
    f->is_of_pipeline = dpro_optimum_pipeline(report->optimum, DPRO_BASELINE).n_micro_batches > 0;
    f->is_for_job =
        f->is_of_units ||
        (!dpro_graph_is_sharded(report->graph) &&
         (dpro_model_n_tensors(report->model) > 0 || dpro_graph_n_dimensions(report->graph) == 0));
    f->is_likely_other = f->found.likely_ns != f->found.best_ns;
    EACH (const struct dpro_baseline, baseline, report->optimum->baselines)
        f->is_likely_other |= baseline->likely_ns != baseline->iteration_ns;
    say_script(f);
    const struct dpro_strategy *planned = dpro_optimum_strategy(report->optimum, f->planned);
    const char *changes = dpro_model_batch_cut(report->model).changes;
    f->cut_changes = changes && dpro_strategy_micro_batches(planned) > 1 ? changes : "";
    double misfit_pct = 100 * dpro_model_misfit(report->model);
    if (fabs(misfit_pct) > MISFIT_TO_TELL)
        snprintf(f->misfit, sizeof f->misfit,
                 "the model is %+.1f %% off the measured iteration, and its predictions may be off "
                 "by as much; to measure, use %s",
                 misfit_pct,
                 dpro_model_stack(report->model) != DPRO_STACK_BYTEPS ? "dpro verify"
                                                                      : "a run with the plan");
    enum dpro_stack stack = dpro_model_stack(report->model);
    /* others' keys, variables and gradients have names of their own */
    f->is_named = plan_recording(report->trace) || dpro_model_n_tensors(report->model) == 0 ||
                  (stack != DPRO_STACK_DDP && stack != DPRO_STACK_BYTEPS);
    f->warnings = (struct warnings){
        .trace = report->trace,
        .graph = report->graph,
        .model = report->model,
        .listed = report->warnings,
        .more = {f->misfit,
                 f->is_named ? ""
                             : "the trace does not name the parameters, so the job can't be given "
                               "this plan",
                 f->unsure_peak, f->helps ? optimize_computing_warning(f) : "", f->cut_changes,
                 f->found.compression == DPRO_COMPRESSION_NONE
                     ? ""
                     : "compression rounds gradients: the job does not train to the same numbers; "
                       "check its loss"}};
}
