/* What a rank does longer in its slow iterations: time by name, of threads and streams, against the
 * median of all iterations; and time in which none of its threads has an op. What waits, for ranks
 * or for the GPU, is no cause, but collectives are that most iterations don't have. */

#include "graph/ops/match_slices.h"

/* What has time: ops of a name, gaps before them, calls of a GPU's runtime, its kernels, and
 * collectives. */
enum time_of { OF_OPS, OF_GAPS, OF_CALLS, OF_KERNELS, OF_COLLECTIVES };
#define TIME_KEY(name, what) ((uint64_t)(name) << 3 | (what))
#define KEY_WHAT(key)        ((enum time_of)((key)&7))

/* Time by sample of what has one key. */
struct key_times {
    struct map numbers; /* by key */
    ARRAY(uint64_t) keys;
    ARRAY(int64_t) ns;               /* [number * samples + sample] */
    int64_t *kernels_ns, *n_kernels; /* by sample: of all names */
    int64_t *streams_ns;             /* and with what waits for other ranks */
};

enum { SHORT = 100 }; /* parts of an iteration: shorter gaps and ops explain nothing */

struct sample_window {
    int64_t start_ns, end_ns;
};

static uint32_t window_at(const struct sample_window *windows, uint32_t n, int64_t at_ns)
{
    for (uint32_t s = 0; s < n; s++)
        if (at_ns >= windows[s].start_ns && at_ns < windows[s].end_ns)
            return s;
    return NO_ID;
}

static void add_time(struct key_times *times, uint64_t key, uint32_t n, uint32_t sample, int64_t ns)
{
    if (sample == NO_ID || ns <= 0)
        return;
    uint32_t at = (uint32_t)map_number(&times->numbers, key + 1);
    if (at == times->keys.n) {
        array_push(&times->keys, key);
        for (uint32_t s = 0; s < n; s++)
            array_push(&times->ns, 0);
    }
    int64_t *sum = &times->ns.at[(size_t)at * n + sample];
    *sum = time_add(*sum, ns);
}

/* From mark to mark, or where iterations are measured on the GPU from its first work to that of the
 * next one. */
static struct sample_window window_of(const struct rank_build *rank, uint32_t step)
{
    struct sample_window window = {rank->steps.at[step].start_ns, rank->steps.at[step].end_ns};
    if (rank->pace.track == NO_ID)
        return window;
    const struct track *track = &rank->tracks.at[rank->pace.track];
    for (uint32_t i = track->first[step]; i < track->first[step + 1]; i++)
        if (rank->slices.at[i].launch != NO_ID) {
            window.start_ns = rank->slices.at[i].start_ns;
            window.end_ns = time_add(window.start_ns, build_step_ns(rank, step));
            break;
        }
    return window;
}

static bool is_of_process(const struct rank_build *rank, const struct track *track)
{
    (void)rank;
    return track->kind != DPRO_DEVICE_LINK_RX;
}

static bool steps_waits(const struct rank_build *rank, uint32_t slice)
{
    const uint32_t classes = NAME_COMM_RUN | NAME_COMM_CALL | NAME_COMM_PARAM | NAME_COMM_KERNEL |
                             NAME_STREAM_SYNC | NAME_DEVICE_SYNC | NAME_STREAM_WAIT |
                             NAME_COMM_WAIT | NAME_NEGOTIATE | NAME_PUSH | NAME_PULL |
                             NAME_EXCHANGE | NAME_HOST_WAIT | NAME_EXCHANGE_CALL | NAME_COMM_SCOPE;
    const struct trace_span *span = slice_span(rank, slice);
    return (rank->classes[span->name] & classes) || build_runs_collective(rank, span) ||
           (rank->trace->tracks[span->track].gpu && build_communicates(rank, slice));
}

/* What an op's time is called: by the range that nearly all of it is in, where that says why it is
 * long, as of a call of compiled code in which that is compiled again. */
static uint32_t name_of_time(const struct rank_build *rank, const job_ranges *ranges,
                             const struct slice *slice, uint32_t name, int64_t sample_ns)
{
    if (slice->end_ns - slice->start_ns <= sample_ns / SHORT)
        return name;
    uint32_t range = range_in(ranges, slice->start_ns, slice->end_ns, sample_ns);
    return range == NO_ID || !slow_kind_of(strtab_get(rank->names, range)) ? name : range;
}

static void add_gap(const struct rank_build *rank, const struct sample_window *windows,
                    struct key_times *times, const job_ranges *ranges, uint32_t before,
                    int64_t start_ns, int64_t end_ns)
{
    uint32_t sample = window_at(windows, rank->n_samples, start_ns), range = NO_ID;
    if (sample == NO_ID)
        return;
    int64_t ns = windows[sample].end_ns - windows[sample].start_ns;
    if (end_ns - start_ns > ns / SHORT)
        range = range_in(ranges, start_ns, end_ns, ns);
    add_time(times, range == NO_ID ? TIME_KEY(before, OF_GAPS) : TIME_KEY(range, OF_OPS),
             rank->n_samples, sample, end_ns - start_ns);
}

static void sum_times(const struct rank_build *rank, const struct sample_window *windows,
                      struct key_times *times)
{
    SCRATCH job_ranges ranges = list_ranges(rank, INT64_MIN, INT64_MAX);
    int64_t busy_until = INT64_MIN;
    for (uint32_t s = 0; s < rank->steps.n; s++) {
        slice_list slices = slices_by_start(rank, s, is_of_process);
        for (size_t i = 0; i < slices.n; i++) {
            const struct slice *slice = &rank->slices.at[slices.at[i]];
            const struct trace_span *span = slice_span(rank, slices.at[i]);
            bool gpu = rank->trace->tracks[span->track].gpu;
            bool is_call = span->kind == SPAN_RUNTIME;
            int64_t ns = slice->end_ns - slice->start_ns;
            uint32_t sample = window_at(windows, rank->n_samples, slice->start_ns);
            if (gpu && sample != NO_ID)
                times->streams_ns[sample] = time_add(times->streams_ns[sample], ns);
            if (!steps_waits(rank, slices.at[i])) {
                uint32_t name =
                    gpu || is_call || sample == NO_ID
                        ? span->name
                        : name_of_time(rank, &ranges, slice, span->name,
                                       windows[sample].end_ns - windows[sample].start_ns);
                add_time(times,
                         TIME_KEY(name, gpu       ? OF_KERNELS
                                        : is_call ? OF_CALLS
                                                  : OF_OPS),
                         rank->n_samples, sample, ns);
                if (gpu && sample != NO_ID) {
                    times->kernels_ns[sample] = time_add(times->kernels_ns[sample], ns);
                    times->n_kernels[sample]++;
                }
            } else if (build_runs_collective(rank, span)) {
                add_time(times, TIME_KEY(span->name, OF_COLLECTIVES), rank->n_samples, sample, ns);
            }
            if (gpu)
                continue;
            if (busy_until != INT64_MIN && slice->start_ns > busy_until)
                add_gap(rank, windows, times, &ranges, span->name, busy_until, slice->start_ns);
            busy_until = MAX(busy_until, slice->end_ns);
            if (is_call) /* cut where it blocks */
                busy_until = MAX(busy_until, time_add(span->start_ns, span->dur_ns));
        }
        array_fini(&slices);
    }
}

ORDER(by_excess, struct grown_time, ASCENDING(sample) ?: DESCENDING(more_ns) ?: ASCENDING(name));

/* By sample, what it is more than the median of all. */
static int64_t *more_than_usual(const int64_t *of, uint32_t n, struct arena *scratch)
{
    int64_t *more = arena_copy(scratch, of, n, sizeof *more);
    sort_i64(more, n);
    int64_t usual = more[(n - 1) / 2];
    for (uint32_t s = 0; s < n; s++)
        more[s] = of[s] - usual;
    return more;
}

/* Whether a name tells a cause of its own, in whichever iterations. */
static bool name_is_cause(const struct rank_build *rank, uint32_t name)
{
    const struct slow_kind *kind = slow_kind_of(strtab_get(rank->names, name));
    return kind && kind->is_cause;
}

static bool any_is_cause(const struct rank_build *rank)
{
    for (uint32_t name = 0; name < rank->names->n; name++)
        if (name_is_cause(rank, name))
            return true;
    return false;
}

/* What explains at least a tenth of what a slow sample takes longer; where that is less than half
 * of it, such as of an evaluation, a hundredth. Of the other samples as much as a tenth of what a
 * slow one takes longer: other ranks may do there what this one does in the slow ones. What its
 * name tells is kept also where it is in so many iterations that none is slow. Where as many
 * kernels take longer they count together; calls that launch take longer where streams are busy for
 * longer, as the GPU's queue is full. */
static void keep_grown(struct rank_build *rank, const struct key_times *times, const int64_t *ns,
                       int64_t usual_most, struct arena *scratch)
{
    uint32_t n = rank->n_samples;
    size_t n_keys = times->keys.n;
    const int64_t *slower = more_than_usual(ns, n, scratch);
    const int64_t *kernels = more_than_usual(times->kernels_ns, n, scratch);
    const int64_t *streams = more_than_usual(times->streams_ns, n, scratch);
    const int64_t *n_more = more_than_usual(times->n_kernels, n, scratch);
    int64_t least_slower = INT64_MAX;
    int64_t *explained_ns = arena_array(scratch, n, sizeof *explained_ns);
    int64_t *most_ns = arena_array(scratch, n, sizeof *most_ns);
    uint32_t *most = arena_array(scratch, n, sizeof *most); /* the kernel that grew most */
    for (uint32_t s = 0; s < n; s++)
        if (ns[s] > usual_most)
            least_slower = MIN(least_slower, slower[s]);
    for (size_t i = 0; i < 2 * n_keys; i++) {
        bool again = i >= n_keys;
        uint64_t key = times->keys.at[i % n_keys];
        enum time_of what = KEY_WHAT(key);
        uint32_t name = (uint32_t)(key >> 3);
        bool launches =
            what == OF_CALLS && call_classify(strtab_get(rank->names, name)) == CALL_LAUNCH;
        bool told = (what == OF_OPS || what == OF_CALLS) && name_is_cause(rank, name);
        if (!told && least_slower == INT64_MAX)
            continue;
        const int64_t *of = &times->ns.at[i % n_keys * n];
        const int64_t *more = more_than_usual(of, n, scratch);
        if (what == OF_COLLECTIVES && n > 0 && more[0] != of[0])
            continue; /* most have it */
        for (uint32_t s = 0; s < n; s++) {
            bool slow = ns[s] > usual_most;
            int64_t least = (slow ? slower[s] : least_slower) / 10;
            bool together = n_more[s] <= 0 && kernels[s] > least;
            if (together && what == OF_KERNELS && !again && more[s] > most_ns[s]) {
                most_ns[s] = more[s];
                most[s] = name;
            }
            if ((together && what == OF_KERNELS) || (launches && streams[s] > more[s] / 2))
                continue;
            bool is_much = more[s] > MIN(least, told ? ns[s] / SHORT : INT64_MAX);
            if (!again && is_much)
                explained_ns[s] = time_add(explained_ns[s], more[s]);
            if (again ? slow && explained_ns[s] < 5 * least && !is_much && more[s] > least / 10 &&
                            what != OF_GAPS
                      : is_much)
                array_add(&rank->grown, .sample = s, .name = name, .is_gap = what == OF_GAPS,
                          .more_ns = more[s]);
        }
        for (uint32_t s = 0; i + 1 == n_keys && s < n; s++)
            if (most_ns[s] > 0) {
                explained_ns[s] = time_add(explained_ns[s], kernels[s]);
                array_add(&rank->grown, .sample = s, .name = most[s], .is_gpu = true,
                          .more_ns = kernels[s]);
            }
    }
    array_sort(&rank->grown, by_excess);
}

void slow_steps_find(struct rank_build *rank)
{
    SCRATCH_ARENA struct arena scratch = {0};
    uint32_t n = rank->n_samples;
    int64_t *ns = arena_array(&scratch, n + (size_t)1, sizeof *ns);
    int64_t *number = arena_array(&scratch, n + (size_t)1, sizeof *number);
    for (uint32_t s = 0; s < n; s++) {
        ns[s] = build_step_ns(rank, rank->sample_step[s]);
        number[s] = rank->steps.at[rank->sample_step[s]].number;
    }
    int64_t usual_most = stats_slow_ones(ns, number, n).usual_most;
    if (usual_most < INT64_MAX || any_is_cause(rank)) {
        struct sample_window *windows = arena_array(&scratch, n, sizeof *windows);
        struct key_times times = {.kernels_ns = arena_array(&scratch, n, sizeof(int64_t)),
                                  .n_kernels = arena_array(&scratch, n, sizeof(int64_t)),
                                  .streams_ns = arena_array(&scratch, n, sizeof(int64_t))};
        for (uint32_t s = 0; s < n; s++)
            windows[s] = window_of(rank, rank->sample_step[s]);
        sum_times(rank, windows, &times);
        keep_grown(rank, &times, ns, usual_most, &scratch);
        FREE_ALL(&times.numbers, &times.keys, &times.ns);
    }
}
