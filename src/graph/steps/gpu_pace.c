/* Measures iterations on the GPU where the CPU runs ahead.
 *
 * A CPU that only launches work runs ahead until the launch queue is full. Until then its marks are
 * closer together than the iterations are; the job's period shows only on the stream that computes.
 * The GPU is used if, in most steps and by more than the clock's rounding, that stream still had
 * work of the step before when the next step's first kernel was launched. Then an iteration reaches
 * from the beginning of its first kernel to that of the next one's; one that was recorded alone,
 * from the end of the work before it to that of its own. */
#include "graph/rank_build.h"

/* The CPU is ahead by so many percent of the period: where the marks and the GPU's work differ by
 * at least DIFFER_PCT, so much is enough; where they agree, as behind a full queue, it takes
 * AHEAD_PCT. */
enum { DIFFER_PCT = 1, AHEAD_PCT = 10 };

static bool pace_computes(const struct rank_build *rank, const struct slice *slice)
{
    const struct trace_span *span = &rank->trace->spans[slice->span];
    return slice->launch != NO_ID && span->kind == SPAN_KERNEL &&
           !(rank->classes[span->name] & NAME_COMM_KERNEL);
}

/* The stream that computes longest; NO_ID: there is none. */
static uint32_t find_track(const struct rank_build *rank)
{
    uint32_t best = NO_ID;
    int64_t longest = 0;
    for (uint32_t l = 0; l < rank->tracks.n; l++) {
        const struct track *track = &rank->tracks.at[l];
        int64_t sum = 0;
        if (track->kind != DPRO_DEVICE_GPU_STREAM)
            continue;
        for (uint32_t i = track->first[0]; i < track->first[rank->steps.n]; i++)
            if (pace_computes(rank, &rank->slices.at[i]))
                sum = time_add(sum, rank->slices.at[i].end_ns - rank->slices.at[i].start_ns);
        if (sum > longest) {
            longest = sum;
            best = l;
        }
    }
    return best;
}

/* A step's work on the stream. */
struct pace_work {
    int64_t launch_ns, start_ns, end_ns; /* of the first kernel; of the last one. ABSENT: none */
    int64_t before_ns; /* when the work before it was done; ABSENT: none is known */
};

static struct pace_work work_of(const struct rank_build *rank, uint32_t track, uint32_t step)
{
    struct pace_work work = {ABSENT, ABSENT, ABSENT, ABSENT};
    const uint32_t *first = &rank->tracks.at[track].first[step];
    for (uint32_t i = first[0]; i < first[1]; i++) {
        const struct slice *slice = &rank->slices.at[i];
        if (!pace_computes(rank, slice))
            continue;
        if (work.start_ns == ABSENT) {
            work.start_ns = slice->start_ns;
            work.launch_ns = rank->slices.at[slice->launch].start_ns;
        }
        work.end_ns = MAX(work.end_ns, slice->end_ns);
    }
    return work;
}

/* Of a step that was recorded alone. */
static int64_t end_before_work(const struct rank_build *rank, uint32_t track, uint32_t step,
                               const struct pace_work *work)
{
    const struct trace_track *source = &rank->trace->tracks[rank->tracks.at[track].source];
    int64_t end = ABSENT;
    EACH_OF (const struct trace_span, span, rank->trace->spans + source->first, source->n)
        if (span->kind == SPAN_KERNEL && span->window == rank->steps.at[step].window &&
            span->start_ns < work->start_ns)
            end = MAX(end, span_end_ns(span));
    return end;
}

static void find_works(const struct rank_build *rank, uint32_t track, struct pace_work *works)
{
    for (uint32_t s = 0; s < rank->steps.n; s++) {
        works[s] = work_of(rank, track, s);
        if (step_is_alone(rank, s))
            works[s].before_ns = end_before_work(rank, track, s, &works[s]);
        else if (rank->steps.at[s].follows && s > 0)
            works[s].before_ns = works[s - 1].end_ns;
    }
}

/* When a step's last work on a CPU thread was over. */
static int64_t end_on_cpu(const struct rank_build *rank, size_t step)
{
    int64_t end = INT64_MIN;
    EACH (const struct track, track, rank->tracks)
        for (uint32_t i = track->first[step];
             track->kind == DPRO_DEVICE_CPU_THREAD && i < track->first[step + 1]; i++)
            end = MAX(end, rank->slices.at[i].end_ns);
    return end;
}

/* The last step of a row is as long beyond its work as usual. */
static void fill_device_times(struct rank_build *rank, const struct pace_work *works,
                              int64_t rest_ns)
{
    for (size_t s = 0; s < rank->steps.n; s++) {
        struct step *step = &rank->steps.at[s];
        bool goes_on = s + 1 < rank->steps.n && rank->steps.at[s + 1].follows &&
                       works[s + 1].start_ns != ABSENT;
        int64_t end = goes_on ? works[s + 1].start_ns : time_add(works[s].end_ns, rest_ns);
        step->before_ns = works[s].before_ns;
        if (step_is_alone(rank, s) && step->before_ns != ABSENT) /* not with its window */
            step->end_ns = step->program_end_ns = MIN(step->end_ns, end_on_cpu(rank, s));
        step->device_ns = step->end_ns - step->start_ns;
        if (works[s].start_ns != ABSENT && end > works[s].start_ns)
            step->device_ns = end - works[s].start_ns;
    }
}

/* The CPU is ahead by what the GPU had yet to do of the step before when it was given this one. */
static void pace_judge(struct rank_build *rank, const struct pace_work *works, int64_t *ahead,
                       int64_t *rest, uint32_t track)
{
    int64_t cpu_ns = 0, gpu_ns = 0;
    uint32_t n = 0;
    for (size_t s = 0; s < rank->steps.n; s++) {
        const struct step *step = &rank->steps.at[s];
        const struct pace_work *work = &works[s];
        if (work->start_ns == ABSENT || work->before_ns == ABSENT)
            continue;
        cpu_ns = time_add(cpu_ns, step->follows ? step->start_ns - step[-1].start_ns
                                                : step->end_ns - step->start_ns);
        gpu_ns = time_add(gpu_ns, step->follows ? work->start_ns - work[-1].start_ns
                                                : work->end_ns - work->before_ns);
        ahead[n] = work->before_ns - work->launch_ns;
        rest[n++] = work->start_ns - work->before_ns;
    }
    bool fills = gpu_ns - cpu_ns > gpu_ns / 100 * DIFFER_PCT;
    int64_t ahead_ns = stats_median_upper_i64(ahead, n);
    if (n == 0 || ahead_ns <= gpu_ns / n / 100 * (fills ? DIFFER_PCT : AHEAD_PCT))
        return;
    rank->pace.track = track;
    rank->pace.times = (struct dpro_pace){1, cpu_ns / n, gpu_ns / n, ahead_ns};
    fill_device_times(rank, works, stats_median_upper_i64(rest, n));
}

void build_pace(struct rank_build *rank)
{
    rank->pace.track = NO_ID;
    uint32_t track = find_track(rank);
    size_t n = rank->steps.n;
    if (track == NO_ID)
        return;
    SCRATCH_ARENA struct arena scratch = {0};
    struct pace_work *works = arena_array(&scratch, n, sizeof *works);
    find_works(rank, track, works);
    pace_judge(rank, works, arena_array(&scratch, n, sizeof(int64_t)),
               arena_array(&scratch, n, sizeof(int64_t)), track);
}

void build_pace_ops(struct rank_build *rank)
{
    rank->pace.first = rank->pace.last = NO_ID;
    for (uint32_t o = 0; o < rank->ops.n && rank->pace.track != NO_ID; o++) {
        const struct local_op *op = &rank->ops.at[o];
        if (op->track != rank->pace.track || !pace_computes(rank, &rank->slices.at[op->slice]))
            continue;
        if (rank->pace.first == NO_ID)
            rank->pace.first = o;
        rank->pace.last = o;
    }
    if (rank->pace.first == NO_ID)
        rank->pace.track = NO_ID;
}

int64_t build_step_begin(const struct rank_build *rank, uint32_t step)
{
    size_t at = rank->pace.track == NO_ID ? 0 : build_at(rank, step, rank->pace.first);
    bool on_gpu = rank->pace.track != NO_ID && rank->start_ns[at] != ABSENT;
    return on_gpu ? rank->start_ns[at] : rank->steps.at[step].start_ns;
}

int64_t build_step_ns(const struct rank_build *rank, uint32_t step)
{
    const struct step *s = &rank->steps.at[step];
    int64_t ns;
    if (rank->pace.track != NO_ID)
        return s->device_ns;
    return __builtin_sub_overflow(s->end_ns, s->start_ns, &ns) || ns < 0 ? 0 : ns;
}
