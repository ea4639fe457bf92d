/* replay/validate.c: how far off the prediction is where the truth is known. Each measured
 * iteration is predicted from all the others, so that no prediction has seen what it is compared
 * with. */
#include <math.h>

#include "replay/replay.h"

/* Each prediction replays all the others: of more iterations than this, as many are predicted,
 * evenly spread, or the work would grow with their square. */
enum { MOST_PREDICTIONS = 50 };

int dpro_replay_validate(const struct dpro_graph *graph, const struct dpro_replay_options *options,
                         struct dpro_validation *validation, struct dpro_error *err)
{
    struct dpro_validation v = {.method = "none"};
    uint32_t n = graph->sample_dur_ns && graph->measured_ns ? graph->n_samples : 0;
    double sum = 0, squares = 0;
    if (n < 2 || graph->single_iteration) {
        *validation = v;
        return 0;
    }
    v.method = "leave-one-out";
    for (uint32_t s = 0; s < n; s++)
        sum += (double)graph->measured_ns[s];
    double mean = sum / n;
    for (uint32_t s = 0; s < n; s++) {
        double measured = (double)graph->measured_ns[s];
        squares += (measured - mean) * (measured - mean);
        if (n > MOST_PREDICTIONS &&
            (uint64_t)s * MOST_PREDICTIONS / n == (uint64_t)(s + 1) * MOST_PREDICTIONS / n)
            continue;
        if (measured <= 0)
            continue; /* a broken clock; there is no error relative to it */
        /* the job as it was: no delays */
        struct dpro_replay_options leave_out = {.skip_sample = s + 1};
        if (options) {
            leave_out.engine = options->engine;
            leave_out.sink = options->sink;
        }
        int64_t predicted_ns;
        int rc = replay_predict(graph, &leave_out, &predicted_ns, err);
        if (rc < 0)
            return dpro_error_prefix(err, "validation without iteration %u", s + 1);
        double error = ((double)predicted_ns - measured) / measured * 100;
        v.mean_error_pct += error;
        v.mean_abs_error_pct += fabs(error);
        v.max_abs_error_pct = fmax(v.max_abs_error_pct, fabs(error));
        v.n++;
    }
    if (v.n) {
        v.mean_error_pct /= v.n;
        v.mean_abs_error_pct /= v.n;
    }
    v.measured_std_pct = mean > 0 ? sqrt(squares / (n - 1)) / mean * 100 : 0;
    *validation = v;
    return 0;
}
