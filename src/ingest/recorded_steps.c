/* What all ranks' recordings say together: which were cut short, and the steps that were timed
 * without a profiler. */

#include "ingest/sources.h"

/* What the recorders say was left out. */
static void warn_unfinished(struct trace_build *build)
{
    const struct dpro_trace *trace = build->trace;
    uint64_t n_recorded = 0, n_bad = 0, n_unfinished = 0;
    for (uint32_t r = 0; r < trace->n_ranks; r++) {
        const struct recording *recording = trace->ranks[r].recording;
        n_recorded += recording != NULL;
        n_unfinished += recording && !recording->complete;
        n_bad += recording ? recording->n_broken : 0;
    }
    if (n_unfinished > 0)
        build_warn(build,
                   "%" PRIu64 " of %" PRIu64 " ranks had not ended their recording (the job still "
                   "runs, or ended before the last window): what there is is used",
                   n_unfinished, n_recorded);
    if (n_bad > 0)
        build_warn(build, "rank.json: %" PRIu64 " entries make no sense, skipped", n_bad);
}

/* The job's steps without a profiler: those that all ranks timed, each the mean over the ranks. */
static void sum_unprofiled(struct dpro_trace *trace)
{
    SCRATCH ARRAY(int64_t) times = {0}, numbers = {0}, faults = {0}, cpu = {0};
    struct slow_ones one = {0}; /* of the first rank */
    for (uint32_t r = 0; r < trace->n_ranks; r++) {
        const struct recording *recording = trace->ranks[r].recording;
        for (size_t s = 0; recording && s < recording->steps.n; s++) {
            const struct recorded_step *step = &recording->steps.at[s];
            if (step->window != RECORDED_TIMING && step->window != RECORDED_STRUCTURE) {
                array_push(&times, step->end_ns - step->start_ns);
                array_push(&numbers, step->number);
                if (step->page_faults >= 0)
                    array_push(&faults, step->page_faults);
                if (step->cpu_ns >= 0)
                    array_push(&cpu, step->cpu_ns);
            }
        }
        if (one.n_all == 0)
            one = stats_slow_ones(times.at, numbers.at, (uint32_t)times.n);
    }
    struct dpro_unprofiled *out = &trace->unprofiled;
    out->page_faults = faults.n > 0 ? stats_median_i64(faults.at, faults.n) : -1;
    out->cpu_ns = cpu.n > 0 ? stats_median_i64(cpu.at, cpu.n) : -1;
    if (times.n > 0) {
        struct mean_std of = stats_mean_std_i64(times.at, times.n);
        trace->unprofiled_ones = stats_slow_ones(times.at, NULL, (uint32_t)times.n);
        trace->unprofiled_ones.every = one.every;
        trace->unprofiled_ones.in_a_row = one.in_a_row;
        out->n_steps = times.n < UINT32_MAX ? (uint32_t)times.n : UINT32_MAX;
        out->mean_ns = llround(of.mean);
        out->median_ns = stats_median_i64(times.at, times.n);
        out->std_ns = times.n > 1 ? llround(of.std) : -1;
    }
}

void recordings_join(struct trace_build *build)
{
    warn_unfinished(build);
    sum_unprofiled(build->trace);
}
