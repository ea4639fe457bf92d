/* How long an iteration of the job takes without dpro: by the steps of the same run that were timed
 * without the profiler; else by transport logs of iterations outside of the profile; else the
 * replay, without the profiler's cost where the recorder measured it. */
#include "replay/job_time.h"

#include "graph/graph.h"

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

struct time_measured {
    struct slow_ones of;
    double median, correlation;
    uint32_t n, n_warm_up; /* slow ones at the beginning, which `of` leaves out */
    uint32_t n_paused;     /* iterations with pauses, which are not in those that are usual */
    double paused_ns;      /* of their mean */
};

/* Of a measured iteration, the longest time that one of its ranks waits in long gaps which others
 * don't have. least_ns: of each op, in any iteration. */
static double pause_ns(const struct dpro_graph *g, uint32_t sample, const int64_t *least_ns,
                       double long_ns)
{
    const int64_t *gap_ns = g->sample_gap_ns + (size_t)sample * g->n_ops;
    double longest = 0;
    EACH_OF (const struct graph_rank, rank, g->ranks, g->n_ranks) {
        double sum = 0;
        for (uint32_t op = rank->first_op; op < rank->first_op + rank->n_ops; op++) {
            double more = (double)gap_ns[op] - (double)least_ns[op];
            sum += more >= long_ns ? more : 0;
        }
        longest = fmax(longest, sum);
    }
    return longest;
}

/* Where pauses are in so many iterations that none stands out as slow, and these differ by little
 * else, they are no noise of the machine: the rest is usual. Of a pause, what others would have
 * waited for anyway makes no iteration longer: the share that does is that which fits best. */
static void find_pauses(const struct dpro_graph *g, const int64_t *ns, struct time_measured *m)
{
    const double LONG = 0.1, LITTLE = 1.0 / 3; /* of an iteration; of how much they differ */
    double mean = 0, products = 0, squares = 0;
    if (!g->sample_gap_ns || g->n_samples != m->n || m->n < 3)
        return;
    SCRATCH int64_t *least_ns = mem_alloc((g->n_ops + (size_t)1) * sizeof *least_ns);
    SCRATCH int64_t *rest_ns = mem_alloc(m->n * sizeof *rest_ns);
    SCRATCH double *pauses = mem_alloc(m->n * sizeof *pauses);
    memcpy(least_ns, g->sample_gap_ns, g->n_ops * sizeof *least_ns);
    for (size_t i = g->n_ops; i < (size_t)m->n * g->n_ops; i++)
        least_ns[i % g->n_ops] = MIN(least_ns[i % g->n_ops], g->sample_gap_ns[i]);
    for (uint32_t s = 0; s < m->n; s++) {
        pauses[s] = pause_ns(g, s, least_ns, LONG * m->of.all.mean);
        mean += pauses[s] / m->n;
    }
    for (uint32_t s = 0; s < m->n; s++) {
        products += (pauses[s] - mean) * ((double)ns[s] - m->of.all.mean);
        squares += (pauses[s] - mean) * (pauses[s] - mean);
    }
    double share = squares > 0 ? fmax(0, fmin(products / squares, 1)) : 0;
    for (uint32_t s = 0; s < m->n; s++)
        rest_ns[s] = ns[s] - llround(share * pauses[s]);
    struct mean_std rest = stats_mean_std_i64(rest_ns, m->n);
    if (rest.std > LITTLE * m->of.usual.std || rest.mean <= 0)
        return;
    for (uint32_t s = 0; s < m->n; s++)
        m->n_paused += pauses[s] > 0;
    m->paused_ns = share * mean;
    m->of = (struct slow_ones){.n_all = m->n, .usual = rest, .all = m->of.all};
}

static struct time_measured measured_of(const struct dpro_graph *g)
{
    struct time_measured m = {.n = 0};
    const int64_t *ns = dpro_graph_measured_ns(g, &m.n);
    double squares = 0, products = 0, before = 0;
    SCRATCH double *values = mem_array(m.n + (size_t)1, sizeof *values);
    m.of = stats_slow_ones(ns, g->sample_number, m.n);
    for (uint32_t i = 0; i < m.n; i++) {
        values[i] = (double)ns[i] - m.of.all.mean;
        bool is_slow = ns[i] > m.of.usual_most;
        double off = (double)ns[i] - (is_slow ? m.of.slow.mean : m.of.usual.mean);
        squares += off * off;
        products += i > 0 ? off * before : 0;
        before = off;
    }
    m.correlation = squares > 0 && products > 0 ? products / squares : 0;
    /* one odd iteration says nothing: the median counts */
    m.median = m.n > 0 ? m.of.all.mean + stats_median(values, m.n) : 0;
    if (m.of.are_first) {
        m.n_warm_up = m.of.n;
        m.of.n_all -= m.of.n;
        m.of.n = 0;
        m.of.in_a_row = false;
    } else if (m.n > 0) {
        find_pauses(g, ns, &m);
    }
    return m;
}

/* The machine at another time. On shared machines the noise of iterations has no time scale: means
 * of blocks of steps differ about as much as single steps do. So the spread of those that were seen
 * is the estimate, pulled towards the prior where they are few; of its Student's t distribution the
 * standard deviation. What takes longer for a reason (a loader, a compiler) is no noise of the
 * machine: the usual ones count, unless the slow ones are all in a row, as when a machine gets
 * slower. The profiled and the unprofiled steps of a recording are two
 * blocks: their relative difference, `apart`, is one more sample. */
static double machine_std(const struct slow_ones *profiled, const struct slow_ones *own,
                          double apart)
{
    const struct slow_ones *const seen[2] = {profiled, own};
    double freedom[2] = {0, 0}, std[2] = {0, 0},
           squares = PRIOR_STEPS * PRIOR_MACHINE_STD * PRIOR_MACHINE_STD;
    for (int i = 0; i < 2; i++) {
        const struct slow_ones *of = seen[i];
        const struct mean_std *spread = of->in_a_row ? &of->all : &of->usual;
        uint32_t n_spread = of->in_a_row ? of->n_all : of->n_all - of->n;
        if (spread->mean > 0 && n_spread > 1) {
            freedom[i] = n_spread - 1;
            std[i] = spread->std / spread->mean;
        }
    }
    double n = freedom[0] + freedom[1], most = n > MOST_STEPS ? MOST_STEPS : n;
    for (int i = 0; i < 2; i++)
        if (freedom[i] > 0)
            squares += freedom[i] * most / n * std[i] * std[i];
    double all = PRIOR_STEPS + most;
    if (apart != 0) {
        squares += apart * apart / 2;
        all++;
    }
    return sqrt(squares / (all - 2));
}

/* The relative standard error of a mean over n iterations, usual and slow ones. Which share of all
 * iterations is slow is known as well as the period with which they recur, which n iterations need
 * not hold a whole number of times; else as well as n drawn ones tell, and it may be none.
 * `independent`: the share of the usual ones that are not as their neighbours are. *of_usual: what
 * the usual ones add to it. */
static double error_of_mean(const struct slow_ones *of, double n, double independent,
                            double *of_usual)
{
    *of_usual = 0;
    if (n < 1 || of->n_all == 0)
        return 0;
    double share = (double)of->n / of->n_all, n_usual = n * (1 - share) * independent;
    double more = of->slow.mean - of->usual.mean, mean = of->usual.mean + share * more;
    double periods = of->every > 0 ? n / of->every : 0, part = periods - floor(periods);
    double of_share = of->every > 0 ? sqrt(part * (1 - part)) / n : sqrt(share * (1 - share) / n);
    double of_slow = of->n > 0 ? share * of->slow.std / sqrt(fmax(1, n * share)) : 0;
    if (n_usual > 1)
        *of_usual = (1 - share) * of->usual.std / sqrt(n_usual) / mean;
    return hypot(*of_usual, hypot(of_slow, fmin(of_share, share / HALF_OF_95_PCT) * more) / mean);
}

/* Enough steps were timed without the profiler, and they were the same work. */
static bool tells_of_job(const struct dpro_graph *g, double profiled_ns)
{
    enum { LEAST_STEPS = 5, MOST_APART = 2 };
    const struct dpro_unprofiled *own = &g->unprofiled;
    return dpro_graph_steps_tell(g) && g->unprofiled_ones && own->n_steps >= LEAST_STEPS &&
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

/* Neighbours that are alike count as fewer. */
static void set_noise(const struct time_measured *m, struct job_doubt *doubt)
{
    double independent = (1 - m->correlation) / (1 + m->correlation);
    doubt->noise = error_of_mean(&m->of, m->of.n_all, independent, &doubt->of_usual);
    doubt->n_paused = m->n_paused;
    if (m->n_paused == 0)
        return;
    doubt->paused_ns = llround(m->paused_ns);
    doubt->noise = m->of.all.std / m->of.all.mean / sqrt(m->n); /* as iterations drawn anew tell */
}

/* Slow ones that recur are a part of the job; else the median tells of it, and ranks' steps are
 * pooled, which vary together. */
static void set_own_noise(const struct dpro_graph *g, struct job_doubt *doubt)
{
    const struct slow_ones *of = g->unprofiled_ones;
    double n = fmax(1, (double)of->n_all / fmax(g->n_ranks, 1));
    if (of->every > 0)
        doubt->noise = error_of_mean(of, of->n_all, 1, &doubt->of_usual);
    else if (of->usual.mean > 0)
        doubt->noise = doubt->of_usual = OF_MEDIAN * of->usual.std / of->usual.mean / sqrt(n);
}

double job_recurring_noise(const struct dpro_graph *g, bool unprofiled)
{
    struct time_measured m = measured_of(g);
    struct job_doubt doubt = {.noise = -1};
    if (unprofiled && g->unprofiled_ones && g->unprofiled_ones->every > 0)
        set_own_noise(g, &doubt);
    else if (!unprofiled && m.of.every > 0)
        set_noise(&m, &doubt);
    return doubt.noise;
}

struct dpro_job_time job_time_of(const struct dpro_graph *g, int64_t replay_ns, int64_t profiler_ns,
                                 struct job_doubt *doubt)
{
    struct time_measured m = measured_of(g);
    struct dpro_job_time job = {.ns = replay_ns, .n = m.n};
    int64_t cost_ns, error_ns;
    double apart = 0, half = 0;
    bool recurs = g->unprofiled_ones && g->unprofiled_ones->every > 0;
    *doubt = (struct job_doubt){.noise = 0, .correlation = m.correlation, .without = 1};
    doubt->median_ns = llround(m.median);
    if (profiler_ns < doubt->median_ns)
        doubt->median_ns -= profiler_ns;
    if (m.n > 0 && m.of.all.mean > 0) {
        double profiled_ns = (double)doubt->median_ns, of_profiler = 0;
        set_noise(&m, doubt);
        if (tells_of_job(g, profiled_ns)) {
            job.ns = recurs ? g->unprofiled.mean_ns : g->unprofiled.median_ns;
            job.source = DPRO_JOB_OWN_STEPS;
            job.n = g->unprofiled.n_steps;
            set_own_noise(g, doubt);
            apart = (double)g->unprofiled.median_ns / profiled_ns - 1;
            doubt->without = (double)job.ns / (recurs ? m.of.all.mean : m.median);
        } else if (profiler_ns > 0) {
            job.source = DPRO_JOB_REPLAY;
            of_profiler = PROFILER_ERROR * (double)profiler_ns / (double)replay_ns;
            doubt->without = fmax(0, 1 - (double)profiler_ns / m.of.all.mean);
        } else if (job_profiler_by_logs(g, &cost_ns, &error_ns)) {
            job.source = DPRO_JOB_LOGS;
            job.n = g->unprofiled_iterations.n_iterations;
            doubt->without = 1 - (double)cost_ns / m.of.all.mean;
            job.ns = llround((double)replay_ns * doubt->without);
            if (error_ns > 0)
                doubt->noise = doubt->of_usual = (double)error_ns / m.of.all.mean;
        }
        if (m.n_warm_up > 0 &&
            (job.source == DPRO_JOB_REPLAY || job.source == DPRO_JOB_AS_RECORDED)) {
            job.ns = llround((double)job.ns * m.of.usual.mean / m.of.all.mean);
            job.n_warm_up = m.n_warm_up;
        }
        doubt->noise = hypot(doubt->noise, of_profiler);
        doubt->of_usual = hypot(doubt->of_usual, of_profiler);
        doubt->machine = machine_std(&m.of, g->unprofiled_ones ?: &(struct slow_ones){0}, apart);
        half = HALF_OF_95_PCT * hypot(doubt->noise, doubt->machine);
    }
    job.low_ns = llround((double)job.ns * fmax(0, 1 - half));
    job.high_ns = llround((double)job.ns * (1 + half));
    return job;
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
