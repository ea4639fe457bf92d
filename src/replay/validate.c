/* The error of predictions where the truth is known. Each measured iteration is predicted from all
 * the others, so no prediction has seen what it is compared with. Predictions run in threads; the
 * result does not depend on which thread made which. */

#include "base/options.h"
#include "base/parallel.h"
#include "replay/chain.h"

enum {
    /* Each prediction takes the mean of all the others: of more iterations than this, as many are
     * predicted, evenly spread, or the work would grow with their square. */
    MOST_PREDICTIONS = 50,
    MOST_THREADS = 16, /* each holds some hundred bytes an op */
};

static bool is_predicted(uint32_t s, uint32_t n)
{
    return n <= MOST_PREDICTIONS ||
           (uint64_t)s * MOST_PREDICTIONS / n != (uint64_t)(s + 1) * MOST_PREDICTIONS / n;
}

struct prediction {
    int64_t ns;
    int rc;
    struct dpro_error err;
};

struct validate_work {
    const struct dpro_graph *g;
    const struct chain_sums *sums;
    const struct dpro_sink *sink;
    uint32_t n_predictions;
    uint64_t n_done;
    struct prediction *predictions; /* by sample */
};

static void validate_predict(void *arg, size_t s)
{
    struct validate_work *work = arg;
    struct prediction *p = &work->predictions[s];
    /* the job as it was: no delays; quietly, as there are many */
    struct dpro_replay_options leave_out = {.skip_sample = (uint32_t)s + 1};
    if (!is_predicted((uint32_t)s, work->g->n_samples))
        return;
    p->rc = OUTCOME(&p->err, p->ns = replay_predict(work->g, &leave_out, work->sums));
    log_progress_more(work->sink, "validate", "iterations", &work->n_done, 1, work->n_predictions);
}

static void validate_compare(const struct dpro_graph *g, const struct prediction *predictions,
                             struct dpro_validation *v)
{
    uint32_t n = g->n_samples;
    struct mean_std measured = stats_mean_std_i64(g->measured_ns, n);
    for (uint32_t s = 0; s < n; s++) {
        double ns = (double)g->measured_ns[s];
        if (ns <= 0 || !is_predicted(s, n))
            continue; /* a broken clock; there is no error relative to it */
        double error = ((double)predictions[s].ns - ns) / ns * 100;
        v->mean_error_pct += error;
        v->mean_abs_error_pct += fabs(error);
        v->max_abs_error_pct = fmax(v->max_abs_error_pct, fabs(error));
        v->n++;
    }
    if (v->n) {
        v->mean_error_pct /= v->n;
        v->mean_abs_error_pct /= v->n;
    }
    v->measured_std_pct = measured.mean > 0 ? measured.std / measured.mean * 100 : 0;
}

static struct dpro_validation validation_of(const struct dpro_graph *graph,
                                            const struct dpro_replay_options *options)
{
    struct dpro_validation v = {.method = "none"};
    struct dpro_replay_options mine;
    OPTIONS_MUST_TAKE(&mine, options);
    if (graph->n_samples < 2 || !graph->sample_dur_ns || !graph->measured_ns ||
        graph->single_iteration)
        return v;
    v.method = "leave-one-out";
    chain_check_times(graph);
    SCRATCH_ARENA struct arena arena = {0};
    struct chain_sums sums = {NULL, NULL};
    chain_sums_make(&sums, graph, &arena);
    struct prediction *predictions = mem_array(graph->n_samples, sizeof *predictions);
    struct validate_work work = {
        .g = graph, .sums = &sums, .sink = &mine.sink, .predictions = predictions};
    for (uint32_t s = 0; s < graph->n_samples; s++)
        work.n_predictions += is_predicted(s, graph->n_samples);
    parallel_for(graph->n_samples, mine.threads > 0 ? mine.threads : parallel_cores(MOST_THREADS),
                 validate_predict, &work);
    for (uint32_t s = 0; s < graph->n_samples; s++)
        if (predictions[s].rc < 0)
            fail_with(predictions[s].rc, "validation without iteration %u: %s", s + 1,
                      predictions[s].err.text);
    validate_compare(graph, predictions, &v);
    mem_free(predictions);
    return v;
}

int dpro_replay_validate(const struct dpro_graph *graph, const struct dpro_replay_options *options,
                         struct dpro_validation *validation, struct dpro_error *err)
{
    return OUTCOME(err, *validation = validation_of(graph, options));
}
