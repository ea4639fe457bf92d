/* Iterations without a profiler, found in transport logs that reach beyond the profiles, mostly
 * into the job's warm-up.
 *
 * Every iteration sends the same number of bytes. So a stream reaches offsets that lie an
 * iteration's bytes apart one iteration apart, whatever else it carries. */
#include "graph/steps/choose_steps.h"

enum {
    FEWEST = 5,            /* iterations that tell something */
    MOST = 10000,          /* that are looked at on either side of the profile */
    LEAST_BYTES = 1 << 12, /* of an iteration: less is no gradients */
    LEAST_ANSWER = 1024,   /* of one that carries what was recorded */
    LEAST_REQUEST = 36,    /* of one: HTTP/2's own frames are shorter */
};
#define ALIKE       0.01 /* most of the iterations' bytes are within this part of the median */
#define PAUSE_TIMES 2    /* an iteration of so many times the median did something else, too */

/* What a rank sent on one connection, by offset. */
struct sent {
    const struct net_transfer *at;
    uint32_t n;
    double iteration_bytes;
    uint64_t base; /* an offset within the profile, amid an iteration's bytes */
};

/* Where the stream was at a time. */
static uint64_t offset_at(const struct sent *sent, int64_t time_ns)
{
    uint32_t low = LOWER_BOUND(i, 0, sent->n, sent->at[i].end_ns <= time_ns);
    return low < sent->n ? sent->at[low].offset
                         : sent->at[sent->n - 1].offset + sent->at[sent->n - 1].bytes;
}

/* When the stream reached an offset; ABSENT: not recorded. */
static int64_t time_at(const struct sent *sent, double offset)
{
    uint32_t low = LOWER_BOUND(i, 0, sent->n, (double)sent->at[i].offset <= offset);
    if (low == 0)
        return ABSENT;
    const struct net_transfer *transfer = &sent->at[low - 1];
    double within = offset - (double)transfer->offset;
    if (within >= transfer->bytes)
        return ABSENT;
    return transfer->start_ns +
           llround((double)(transfer->end_ns - transfer->start_ns) * within / transfer->bytes);
}

/* The bytes of most iterations; 0: they differ. What one sends may go out in the next, which has
 * twice as many then. `sizes` has room for one an iteration. */
static double find_bytes(const struct rank_build *rank, const struct sent *sent, double *sizes)
{
    uint32_t n = rank->n_samples, n_alike = 0;
    for (uint32_t s = 0; s < n; s++) {
        const struct step *step = &rank->steps.at[rank->sample_step[s]];
        uint64_t from = offset_at(sent, step->start_ns), to = offset_at(sent, step->end_ns);
        sizes[s] = to > from ? (double)(to - from) : 0;
    }
    double median = stats_median_upper(sizes, n), n_sent = 0;
    if (median < LEAST_BYTES)
        return 0;
    for (uint32_t s = 0; s < n; s++) {
        double times = round(sizes[s] / median);
        n_alike += fabs(sizes[s] - median * times) <= ALIKE * median;
        n_sent += times;
    }
    return n_alike * 2 > n && fabs(n_sent - n) <= 1 ? median : 0;
}

/* The connection on which the rank sends most; n 0: none. */
static struct sent find_sent(const struct rank_build *rank, const struct net_transport *transport)
{
    struct sent most = {0};
    SCRATCH double *sizes = mem_alloc((rank->n_samples + (size_t)1) * sizeof *sizes);
    for (uint32_t c = 0; c < transport->connections.n; c++) {
        uint32_t first = transport->first_transfer[2 * c];
        struct sent sent = {.at = transport->transfers.at + first,
                            .n = transport->first_transfer[2 * c + 1] - first};
        if (sent.n == 0)
            continue;
        sent.iteration_bytes = find_bytes(rank, &sent, sizes);
        if (sent.iteration_bytes > most.iteration_bytes) {
            const struct step *step = &rank->steps.at[rank->sample_step[0]];
            sent.base =
                offset_at(&sent, step->start_ns) + (uint64_t)llround(sent.iteration_bytes / 2);
            most = sent;
        }
    }
    return most;
}

/* The k-th moment before (or after) the profile's; ABSENT: not recorded, or profiled. */
static int64_t unprofiled_moment(const struct sent *sent, int k, int64_t from_ns, int64_t to_ns)
{
    double offset = (double)sent->base + k * sent->iteration_bytes;
    int64_t time = offset < 0 ? ABSENT : time_at(sent, offset);
    return time >= from_ns && time <= to_ns ? ABSENT : time;
}

/* How long the iterations took. Each stretch's first and last one share their time with what came
 * before and after it, such as the log's being switched off. */
static uint32_t list_iterations(const struct sent *sent, int64_t from_ns, int64_t to_ns,
                                double *times)
{
    const struct net_transfer *last = &sent->at[sent->n - 1];
    double before = ((double)sent->base - (double)sent->at[0].offset) / sent->iteration_bytes,
           after =
               ((double)last->offset + last->bytes - (double)sent->base) / sent->iteration_bytes;
    int first = before < MOST ? -(int)before : -MOST, end = after < MOST ? (int)after : MOST;
    uint32_t n = 0;
    int64_t at[4] = {ABSENT, ABSENT, ABSENT, ABSENT}; /* moments in a row */
    for (int k = first; k <= end; k++) {
        for (int i = 0; i < 3; i++)
            at[i] = at[i + 1];
        at[3] = unprofiled_moment(sent, k, from_ns, to_ns);
        bool inside = at[1] < at[2] && at[2] < at[3];
        if (at[0] != ABSENT && at[0] < at[1] && inside)
            times[n++] = (double)(at[2] - at[1]);
    }
    return n;
}

/* ---- a session's master, which asks for logs ---- */

/* On a task's connection with the master, between two of the task's iterations: two long answers,
 * one to the request that ran the iteration, one with the logs. From the first request behind the
 * former to the first one behind the latter the master did nothing else. 0: it is not so here. */
static int64_t find_asking(const struct net_transport *transport, uint32_t connection,
                           int64_t from_ns, int64_t to_ns)
{
    const uint32_t *first = &transport->first_transfer[2 * connection];
    const struct net_transfer *at = transport->transfers.at;
    int64_t asked_ns[2];
    uint32_t n = 0, r = first[1];
    for (uint32_t i = first[0]; i < first[1] && at[i].start_ns < to_ns; i++) {
        if (at[i].start_ns < from_ns || at[i].bytes < LEAST_ANSWER)
            continue;
        while (r < first[2] && (at[r].start_ns < at[i].end_ns || at[r].bytes < LEAST_REQUEST))
            r++;
        if (n == 2 || r == first[2] || at[r].start_ns > to_ns)
            return 0;
        asked_ns[n++] = at[r].start_ns;
    }
    return n == 2 ? asked_ns[1] - asked_ns[0] : 0;
}

/* When the task's ops of a sample began and ended. */
static void find_ops(const struct rank_build *rank, uint32_t sample, int64_t *from_ns,
                     int64_t *to_ns)
{
    *from_ns = INT64_MAX;
    *to_ns = INT64_MIN;
    for (uint32_t o = 0; o < rank->n_timed; o++) {
        int64_t start = rank->start_ns[build_sample_at(rank, sample, o)],
                end = rank->end_ns[build_sample_at(rank, sample, o)];
        if (start == ABSENT || o == rank->boundary)
            continue;
        *from_ns = MIN(*from_ns, start);
        *to_ns = MAX(*to_ns, end);
    }
}

/* The mean over a task's iterations; 0: not in most of them. */
static int64_t mean_asking(const struct rank_build *rank, const struct net_transport *transport)
{
    int64_t sum_ns = 0, began_ns, ended_ns, next_ns, over_ns;
    uint32_t n = 0;
    for (uint32_t s = 0; s + 1 < rank->n_samples; s++) {
        if (rank->sample_step[s + 1] != rank->sample_step[s] + 1)
            continue; /* a step between them is left out */
        find_ops(rank, s, &began_ns, &ended_ns);
        find_ops(rank, s + 1, &next_ns, &over_ns);
        for (uint32_t c = 0; c < transport->connections.n && next_ns > ended_ns; c++) {
            int64_t asking_ns = find_asking(transport, c, ended_ns, next_ns);
            if (asking_ns <= 0)
                continue;
            sum_ns += asking_ns;
            n++;
            break;
        }
    }
    return n * 2 > rank->n_samples - 1 ? sum_ns / n : 0;
}

/* ---- all together ---- */

static void sum_up(double *times, uint32_t n, struct dpro_unprofiled_iterations *out)
{
    sort_double(times, n);
    while (n > 0 && times[n - 1] > PAUSE_TIMES * times[n / 2])
        n--;
    if (n < FEWEST || n <= out->n_iterations)
        return;
    struct mean_std found = stats_mean_std(times, n);
    out->n_iterations = n;
    out->mean_ns = llround(found.mean);
    out->std_ns = llround(found.std);
}

static void look_at(const struct rank_build *rank, const struct net_transport *transport,
                    struct dpro_unprofiled_iterations *out)
{
    const struct trace_rank *trace = rank->trace;
    struct sent sent = find_sent(rank, transport);
    if (sent.n == 0)
        return;
    int64_t from_ns = INT64_MAX, to_ns = INT64_MIN;
    EACH_OF (const struct trace_window, window, trace->windows, trace->n_windows) {
        from_ns = MIN(from_ns, window->start_ns);
        to_ns = MAX(to_ns, window->end_ns);
    }
    SCRATCH double *times = mem_alloc((2 * MOST + 1) * sizeof *times);
    sum_up(times, list_iterations(&sent, from_ns, to_ns, times), out);
}

void unprofiled_iterations_find(const struct rank_build *ranks, uint32_t n_ranks,
                                const struct dpro_trace *trace,
                                struct dpro_unprofiled_iterations *out)
{
    *out = (struct dpro_unprofiled_iterations){0};
    if (trace->unprofiled.n_steps > 0)
        return; /* timed without a profiler, which tells more */
    EACH_OF (const struct net_transport, transport, trace->transports, trace->n_transports) {
        EACH_OF (const struct rank_build, rank, ranks, n_ranks) {
            if (rank->trace->rank != transport->rank)
                continue;
            look_at(rank, transport, out);
            int64_t asking_ns = rank->trace->in_session ? mean_asking(rank, transport) : 0;
            if (asking_ns > 0 && (out->asking_ns == 0 || asking_ns < out->asking_ns))
                out->asking_ns = asking_ns; /* a request that a log lacks makes it longer */
        }
    }
}
