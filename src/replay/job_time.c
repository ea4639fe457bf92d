/* How long an iteration of the job takes without dpro: by the steps of the same run that were timed
 * without the profiler; else by transport logs of iterations outside of the profile; else the
 * replay, without the profiler's cost where the recorder measured it. */
#include "replay/job_time.h"

#include <math.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/stats.h"
#include "graph/graph.h"

#define HALF_OF_95_PCT 1.96 /* in standard errors */

/* Of a job on a machine that nothing is known of, how much one run's iterations differ from those
 * of another, relative: blocks of 10 to 50 steps before and after 14 recordings of one machine
 * differed by 4.5 % (root mean square). That counts as much as PRIOR_STEPS steps that were seen.
 * What was seen counts as at most MOST_STEPS, as what varies within seconds tells little of what
 * varies within hours. */
#define PRIOR_MACHINE_STD 0.045
enum { PRIOR_STEPS = 5, MOST_STEPS = 10 };

/* Recorders on one machine measured an op's cost as 2.0 to 5.9 us. */
#define PROFILER_ERROR 0.4

/* A median varies so much more than a mean. */
#define OF_MEDIAN 1.253

struct measured {
    struct mean_std all;
    double median, correlation;
    uint32_t n;
};

static struct measured measured_of(const struct dpro_graph *g)
{
    struct measured m = {.n = 0};
    const int64_t *ns = dpro_graph_measured_ns(g, &m.n);
    double squares = 0, products = 0;
    double *values = mem_array(m.n + (size_t)1, sizeof *values);
    m.all = stats_mean_std_i64(ns, m.n);
    for (uint32_t i = 0; i < m.n; i++) {
        values[i] = (double)ns[i] - m.all.mean;
        squares += values[i] * values[i];
        if (i > 0)
            products += values[i] * values[i - 1];
    }
    m.correlation = squares > 0 && products > 0 ? products / squares : 0;
    /* one odd iteration says nothing: the median counts */
    m.median = m.n > 0 ? m.all.mean + stats_median(values, m.n) : 0;
    mem_free(values);
    return m;
}

/* The machine at another time. On shared machines the noise of iterations has no time scale: means
 * of blocks of steps differ about as much as single steps do. So the spread of those that were seen
 * is the estimate, pulled towards the prior where they are few; of its Student's t distribution the
 * standard deviation. The profiled and the unprofiled steps of a recording are two such blocks:
 * their relative difference, `apart`, is one more sample. */
static double machine_std(const struct measured *m, const struct dpro_unprofiled *own, double apart)
{
    struct {
        double std, n;
    } seen[2] = {{0, 0}, {0, 0}};
    if (m->n > 1 && m->all.mean > 0) {
        seen[0].std = m->all.std / m->all.mean;
        seen[0].n = m->n - 1;
    }
    if (own->n_steps > 1 && own->mean_ns > 0 && own->std_ns >= 0) {
        seen[1].std = (double)own->std_ns / (double)own->mean_ns;
        seen[1].n = own->n_steps - 1;
    }
    double n = seen[0].n + seen[1].n, most = n > MOST_STEPS ? MOST_STEPS : n;
    double squares = PRIOR_STEPS * PRIOR_MACHINE_STD * PRIOR_MACHINE_STD, freedom = PRIOR_STEPS;
    for (int i = 0; i < 2 && n > 0; i++)
        squares += seen[i].n * most / n * seen[i].std * seen[i].std;
    freedom += most;
    if (apart != 0) {
        squares += apart * apart / 2;
        freedom++;
    }
    return sqrt(squares / (freedom - 2));
}

/* Enough steps were timed without the profiler, and they were the same work. */
static bool tells_of_job(const struct dpro_graph *g, double profiled_ns)
{
    enum { LEAST_STEPS = 5, MOST_APART = 2 };
    const struct dpro_unprofiled *own = &g->unprofiled;
    return dpro_graph_steps_tell(g) && own->n_steps >= LEAST_STEPS &&
           (double)own->median_ns < MOST_APART * profiled_ns &&
           (double)own->median_ns * MOST_APART > profiled_ns;
}

/* A profiler makes nothing faster: no cost where profiled iterations took less. */
bool job_profiler_by_logs(const struct dpro_graph *g, int64_t *cost_ns, int64_t *error_ns)
{
    struct dpro_unprofiled_iterations o = dpro_graph_unprofiled_iterations(g);
    uint32_t n;
    const int64_t *ns = dpro_graph_measured_ns(g, &n);
    struct mean_std all = stats_mean_std_i64(ns, n);
    double more = 0;
    *error_ns = 0;
    if (o.n_iterations > 0 && n > 1) {
        more = (double)(llround(all.mean) - o.asking_ns - o.mean_ns);
        *error_ns = llround(
            sqrt(all.std * all.std / n + (double)o.std_ns * (double)o.std_ns / o.n_iterations));
    }
    *cost_ns = o.asking_ns + (more > 0 ? llround(more) : 0);
    return o.n_iterations > 0 || o.asking_ns > 0;
}

/* The noise of the measured iterations' mean; neighbours that are alike count as fewer. */
static double mean_noise(const struct measured *m)
{
    double n = m->n * (1 - m->correlation) / (1 + m->correlation);
    return n > 1 ? m->all.std / m->all.mean / sqrt(n) : 0;
}

/* Ranks' steps are pooled, and vary together. */
static double own_noise(const struct dpro_graph *g)
{
    const struct dpro_unprofiled *own = &g->unprofiled;
    double n = fmax(1, (double)own->n_steps / fmax(g->n_ranks, 1));
    return own->std_ns > 0 ? OF_MEDIAN * (double)own->std_ns / (double)own->mean_ns / sqrt(n) : 0;
}

struct dpro_job_time job_time_of(const struct dpro_graph *g, int64_t replay_ns, int64_t profiler_ns,
                                 struct job_doubt *doubt)
{
    struct measured m = measured_of(g);
    struct dpro_job_time job = {.ns = replay_ns, .n = m.n};
    int64_t cost_ns, error_ns;
    double apart = 0, half = 0;
    *doubt = (struct job_doubt){.noise = 0, .correlation = m.correlation};
    doubt->median_ns = llround(m.median);
    if (profiler_ns < doubt->median_ns)
        doubt->median_ns -= profiler_ns;
    if (m.n > 0 && m.all.mean > 0) {
        double profiled_ns = (double)doubt->median_ns;
        if (tells_of_job(g, profiled_ns)) {
            job.ns = g->unprofiled.median_ns;
            job.source = DPRO_JOB_OWN_STEPS;
            job.n = g->unprofiled.n_steps;
            doubt->noise = own_noise(g);
            apart = (double)job.ns / profiled_ns - 1;
        } else if (profiler_ns > 0) {
            job.source = DPRO_JOB_REPLAY;
            doubt->noise =
                hypot(mean_noise(&m), PROFILER_ERROR * (double)profiler_ns / (double)replay_ns);
        } else if (job_profiler_by_logs(g, &cost_ns, &error_ns)) {
            job.source = DPRO_JOB_LOGS;
            job.n = g->unprofiled_iterations.n_iterations;
            job.ns -= llround((double)replay_ns * (double)cost_ns / m.all.mean);
            doubt->noise = error_ns > 0 ? (double)error_ns / m.all.mean : mean_noise(&m);
        } else {
            doubt->noise = mean_noise(&m);
        }
        doubt->machine = machine_std(&m, &g->unprofiled, apart);
        half = HALF_OF_95_PCT * hypot(doubt->noise, doubt->machine);
    }
    job.low_ns = llround((double)job.ns * fmax(0, 1 - half));
    job.high_ns = llround((double)job.ns * (1 + half));
    return job;
}

static int find_job_time(const struct dpro_graph *graph, int64_t replay_ns, int64_t profiler_ns,
                         struct dpro_job_time *job)
{
    struct job_doubt doubt;
    *job = job_time_of(graph, replay_ns, profiler_ns, &doubt);
    return 0;
}

int dpro_replay_job_time(const struct dpro_graph *graph, int64_t replay_ns, int64_t profiler_ns,
                         struct dpro_job_time *job, struct dpro_error *err)
{
    return WITHIN_SCOPE(dpro_error_nomem(err), find_job_time(graph, replay_ns, profiler_ns, job));
}

const char *dpro_job_source_name(enum dpro_job_source source)
{
    static const char *const names[] = {
        [DPRO_JOB_AS_RECORDED] = "as recorded",
        [DPRO_JOB_REPLAY] = "replay without the profiler",
        [DPRO_JOB_LOGS] = "transport logs without the profiler",
        [DPRO_JOB_OWN_STEPS] = "steps without the profiler",
    };
    return (unsigned)source <= DPRO_JOB_OWN_STEPS ? names[source] : NULL;
}
