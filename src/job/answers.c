/* What is asked of a job: a replay with its validation, a what-if, a search. */

#include "base/options.h"
#include "diagnose/baseline.h"
#include "graph/graph.h"
#include "ingest/rank_json.h"
#include "ingest/trace.h"
#include "job/job.h"
#include "replay/job_time.h"

/* ---- replay ---- */

/* What is found of the graph as recorded: the Daydream baseline, and the validation where there is
 * a profiler's cost to be taken out of it; else that is made with the replay. */
static int look_at(struct dpro_job *job, const struct dpro_graph *recorded,
                   const struct dpro_job_replay_options *asked, struct dpro_error *err)
{
    struct dpro_replay_options plain = {.threads = job->threads, .sink = job->options.sink};
    double rate = asked->bandwidth_bytes_per_s;
    int rc = 0;
    if (dpro_graph_n_collectives(recorded) > 0)
        rc = dpro_replay_daydream(recorded, rate, &job->daydream, err);
    if (rc < 0)
        return rc;
    job->daydream_rate = rate;
    if (asked->no_validate || job->has_validation || job->options.keep_profiler ||
        (dpro_graph_profiler_op_ns(recorded) == 0 && graph_tracing_ratio(recorded) == 1))
        return 0;
    if ((rc = dpro_replay_validate(recorded, &plain, &job->validation, err)) < 0)
        return rc;
    job->has_validation = true;
    dpro_job_tell_stage(job, "validated");
    return 0;
}

/* Where the graph is no longer as recorded, the traces are read again. */
static int look_at_recorded(struct dpro_job *job, const struct dpro_job_replay_options *asked,
                            struct dpro_error *err)
{
    struct dpro_job_options options = job->options;
    const struct dpro_graph *recorded;
    struct dpro_job *again;
    if (job->profiler.with_ns == 0)
        return look_at(job, job->graph, asked, err);
    if (job->daydream_rate == asked->bandwidth_bytes_per_s &&
        (job->has_validation || asked->no_validate))
        return 0;
    options.processes = NULL;
    int rc = dpro_job_open(job->paths, job->n_paths, &options, &again, err);
    if (rc < 0)
        return rc;
    if ((rc = dpro_job_graph(again, &recorded, err)) == 0)
        rc = look_at(job, recorded, asked, err);
    dpro_job_close(again);
    return rc;
}

static int run_replay(struct dpro_job *job, const struct dpro_replay_options *options,
                      bool validates, struct dpro_error *err)
{
    dpro_replay_destroy(job->replay);
    job->replay = NULL;
    validates = validates && !job->has_validation;
    int rc = validates ? dpro_replay_validate(job->graph, options, &job->validation, err) : 0;
    if (rc < 0 || (rc = dpro_replay_run(job->graph, options, &job->replay, err)) < 0)
        return rc;
    job->has_validation = job->has_validation || validates;
    dpro_job_tell_stage(job, validates ? "replayed and validated" : "replayed");
    return 0;
}

int dpro_job_replay(struct dpro_job *job, const struct dpro_job_replay_options *given,
                    struct dpro_report *report, struct dpro_error *err)
{
    static const struct dpro_validation none = {.method = "none"};
    struct dpro_job_replay_options asked;
    const struct dpro_graph *graph;
    int rc = OPTIONS_TAKE(&asked, given, err);
    if (rc < 0 || (rc = dpro_job_graph(job, &graph, err)) < 0)
        return rc;
    struct dpro_replay_options plain = {.threads = job->threads, .sink = job->options.sink};
    struct dpro_replay_options options = {.threads = job->threads,
                                          .sink = job->options.sink,
                                          .samples = asked.samples,
                                          .seed = asked.seed,
                                          .delays = asked.delays,
                                          .n_delays = asked.n_delays};
    struct dpro_report made = {.trace = job->trace,
                               .graph = graph,
                               .n_samples = asked.samples,
                               .what_if = asked.n_delays > 0,
                               .sink = job->options.sink};
    job_begin_stage(job);
    if ((rc = look_at_recorded(job, &asked, err)) < 0 ||
        (rc = job_take_out_profiler(job, err)) < 0 ||
        (made.what_if && (rc = dpro_replay_predict(graph, &plain, &made.as_it_is_ns, err)) < 0) ||
        (rc = run_replay(job, &options, !asked.no_validate, err)) < 0)
        return rc;
    made.replay = job->replay;
    made.validation = asked.no_validate ? &none : &job->validation;
    made.daydream = dpro_graph_n_collectives(graph) > 0 ? &job->daydream : NULL;
    made.profiler_op_ns = job->profiler.op_ns;
    made.profiler_ns = job->profiler.ns;
    *report = made;
    return 0;
}

/* ---- what-ifs ---- */

int dpro_job_whatif(struct dpro_job *job, const struct dpro_changes *changes,
                    struct dpro_whatif_report *report, struct dpro_error *err)
{
    const struct dpro_model *model;
    struct dpro_whatif *whatif;
    struct dpro_changes asked;
    int rc = OPTIONS_TAKE(&asked, changes, err);
    asked.sink = job->options.sink;
    if (rc < 0 || (rc = dpro_job_model(job, 1, &model, err)) < 0 ||
        (rc = dpro_whatif_run(job->graph, model, &asked, &whatif, err)) < 0)
        return rc;
    dpro_whatif_destroy(job->whatif);
    job->whatif = whatif;
    job->changes = asked;
    *report = (struct dpro_whatif_report){.trace = job->trace,
                                          .graph = job->graph,
                                          .model = model,
                                          .changes = &job->changes,
                                          .whatif = whatif};
    return 0;
}

/* ---- diagnoses ---- */

/* Of more there would be no answer within seconds. */
enum { MOST_MODELLED_OPS = 300000 };

static void measure_job(struct dpro_job *job, struct dpro_job_time *time)
{
    struct job_doubt doubt;
    struct dpro_measures *measures = &job->measures;
    int64_t replay_ns = dpro_diagnosis_view(job->diagnosis)->explained_ns;
    measures->replay = dpro_replay_view(job->replayed);
    roofline_make(job->graph, measures->replay, &measures->roofline);
    *time = job_time_of(job->graph, replay_ns, job->profiler.ns, &doubt);
    measures->pop = pop_of(job->graph, measures->replay, job->threads);
}

int dpro_job_diagnose(struct dpro_job *job, const struct dpro_diagnose_options *given,
                      struct dpro_diagnose_report *report, struct dpro_error *err)
{
    struct dpro_diagnose_options options;
    struct dpro_error without; /* why there is no model: then no what-ifs are asked */
    const struct dpro_graph *graph;
    int rc = OPTIONS_TAKE(&options, given, err);
    if (rc < 0 || (rc = dpro_job_graph(job, &graph, err)) < 0)
        return rc;
    if (dpro_graph_n_ops(graph) <= MOST_MODELLED_OPS &&
        dpro_job_model(job, 1, &options.model, &without) == DPRO_ENOMEM)
        return dpro_error_nomem(err);
    job_begin_stage(job);
    if ((rc = job_replay(job, err)) < 0)
        return rc;
    options.threads = job->threads;
    options.trace = job->n_paths == 1 ? job->paths[0] : NULL;
    options.sink = job->options.sink;
    options.profiler_ns = job->profiler.ns;
    dpro_diagnosis_destroy(job->diagnosis);
    job->diagnosis = NULL;
    if ((rc = dpro_diagnose_run(graph, &options, &job->diagnosis, err)) < 0)
        return rc;
    *report = (struct dpro_diagnose_report){.trace = job->trace,
                                            .graph = graph,
                                            .diagnosis = job->diagnosis,
                                            .measures = &job->measures,
                                            .profiler_ns = job->profiler.ns};
    if ((rc = OUTCOME(err, measure_job(job, &report->job))) == 0)
        dpro_job_tell_stage(job, "diagnosed");
    return rc;
}

static bool knows_profiler(const struct dpro_job *job)
{
    return dpro_graph_profiler_op_ns(job->graph) > 0 || graph_tracing_ratio(job->graph) != 1;
}

static int check_frameworks(const struct dpro_against_report *r, struct dpro_error *err)
{
    const char *a = r->a->framework, *b = r->b->framework;
    return !a || !b || strcmp(a, b) == 0
               ? 0
               : dpro_error_set(err, DPRO_EFORMAT,
                                "A is a job of %s, B of %s: they are different jobs", a, b);
}

/* A job whose modules are compiled has other ops, but the same gradients. */
static int check_ops(const struct dpro_against_report *r, struct dpro_error *err)
{
    const struct dpro_against_view *v = dpro_against_view(r->against);
    uint64_t a = gradients_of(r->a), b = gradients_of(r->b);
    return MAX(v->a_matched, v->b_matched) >= LEAST_COMMON || (a > 0 && a == b)
               ? 0
               : dpro_error_set(err, DPRO_EFORMAT,
                                "ops that both have take %.0f %% of what A computes and %.0f %% of "
                                "what B does: they are different jobs",
                                100 * v->a_matched, 100 * v->b_matched);
}

int dpro_job_against(struct dpro_job *job, struct dpro_job *than,
                     struct dpro_against_report *report, struct dpro_error *err)
{
    struct dpro_diagnose_options options = {
        .size = sizeof options, .threads = job->threads, .sink = job->options.sink};
    *report = (struct dpro_against_report){.a = NULL};
    int rc = dpro_job_graph(than, &report->a, err);
    if (rc < 0 || (rc = dpro_job_graph(job, &report->b, err)) < 0)
        return rc;
    report->a_trace = than->trace;
    report->b_trace = job->trace;
    options.threads = job->threads;
    if ((rc = check_frameworks(report, err)) < 0 || report->a->lacks_gpu || report->b->lacks_gpu)
        return rc;
    job_begin_stage(job);
    if (knows_profiler(than) && knows_profiler(job) &&
        ((rc = job_take_out_profiler(than, err)) < 0 || (rc = job_take_out_profiler(job, err)) < 0))
        return rc;
    dpro_against_destroy(job->against);
    job->against = NULL;
    if ((rc = dpro_against_run(report->a, report->b, &options, &job->against, err)) < 0)
        return rc;
    report->against = job->against;
    dpro_job_tell_stage(job, "compared");
    return check_ops(report, err);
}

/* ---- searches ---- */

static int keep_line(struct dpro_job *job, const char *text)
{
    char *line = mem_copy_string(text);
    array_reserve(&job->lines, 2); /* last, as it lasts; NULL ends them */
    job->lines.at[job->lines.n++] = line;
    job->lines.at[job->lines.n] = NULL;
    return 0;
}

/* One that there is no memory for is still handed on. */
static void on_line(void *arg, enum dpro_log_level level, const char *text)
{
    struct dpro_job *job = arg;
    const struct dpro_sink *to = &job->options.sink;
    if (level == DPRO_LOG_WARN)
        WITHIN_SCOPE(DPRO_ENOMEM, keep_line(job, text));
    if (to->log && level <= to->level)
        to->log(to->arg, level, text);
}

struct watched {
    int (*progress)(void *arg, const struct dpro_optimize_progress *progress);
    void *arg;
    const struct dpro_sink *sink;
};

static int on_progress(void *arg, const struct dpro_optimize_progress *progress)
{
    const struct watched *w = arg;
    int stops = w->progress ? w->progress(w->arg, progress) : 0;
    log_progress(w->sink, "searching", "candidates", progress->n_candidates, 0);
    return stops;
}

/* Whether ranks exchange more than gradients and shards, as stages or experts do. */
static bool exchanges_in_passes(const struct dpro_graph *graph)
{
    bool any = false;
    for (uint32_t d = 0; d < dpro_graph_n_dimensions(graph); d++) {
        enum dpro_parallelism of = dpro_graph_dimension(graph, d).parallelism;
        any |= of != DPRO_REPLICATES && of != DPRO_SHARDS;
    }
    return any;
}

int dpro_job_optimize(struct dpro_job *job, const struct dpro_optimize_options *given,
                      struct dpro_optimize_report *report, struct dpro_error *err)
{
    const struct dpro_sink *sink = &job->options.sink;
    struct dpro_optimize_options options;
    int rc = OPTIONS_TAKE(&options, given, err);
    if (rc < 0)
        return rc;
    struct watched watched = {.progress = options.progress, .arg = options.arg, .sink = sink};
    const struct dpro_model *model;
    const struct dpro_graph *graph;
    if ((rc = dpro_job_graph(job, &graph, err)) < 0)
        return rc;
    bool all = options.memory_bytes > 0 || options.memory_share > 0 || exchanges_in_passes(graph);
    rc = dpro_job_model(job, all, &model, err);
    if (rc < 0)
        return rc;
    options.threads = job->threads;
    options.graph = job->graph;
    options.progress = on_progress;
    options.arg = &watched;
    options.sink =
        (struct dpro_sink){.log = on_line,
                           .arg = job,
                           .level = sink->level > DPRO_LOG_WARN ? sink->level : DPRO_LOG_WARN};
    dpro_optimum_destroy(job->optimum);
    job->optimum = NULL;
    job_forget_lines(job);
    if ((rc = dpro_optimize_run(model, &options, &job->optimum, err)) < 0) {
        job_forget_lines(job);
        return rc;
    }
    *report = (struct dpro_optimize_report){.trace = job->trace,
                                            .graph = job->graph,
                                            .model = model,
                                            .optimum = job->optimum,
                                            .warnings = (const char *const *)job->lines.at};
    return 0;
}
