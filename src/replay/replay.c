/* replay/replay.c: the chain of iterations that a prediction rests on.
 *
 * A job's iteration time is the period of consecutive iterations, not the makespan of one, so
 * copies of the graph run one after the other: two with mean durations to get into the swing, then
 * one for each measured iteration, with the durations and gaps that all ranks had in it, so that
 * what the ranks had in common stays in common and the slowest of noisy ranks is as slow as it
 * was; where it was measured, the iteration that led up to the first, which each rank begins when
 * it did, in place of those with mean durations; and the last one once more, so that it is also
 * followed by another. Where the recording began with the first of them, all that overlaps
 * with it from the swing is let run dry before it, as it was then; not where iterations are
 * measured on the GPU, which is never dry. Then, if asked for, copies of iterations that are drawn
 * from the measured ones. All ranks and servers take the same one: an op's duration holds what it
 * waited for the others, and two ranks' waits of different iterations would add up to one that
 * never was.
 *
 * To predict an iteration that is left out, it runs after the up to three iterations that came
 * before it, with the mean of all the others; where only the time is asked for, with each of the
 * others in turn, as the slowest of average ranks is faster than the slowest of real ones. */
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/log.h"
#include "base/map.h"
#include "base/sort.h"
#include "base/stats.h"
#include "replay/replay.h"

enum { N_WARM_UP = 2, N_LEAD = 1, N_AFTER = 1, N_BEFORE = 3, COPIES_OF_MEAN = 4 };

#define MEAN UINT32_MAX /* instead of a sample */
#define LEAD (UINT32_MAX - 1)

struct dpro_replay {
    struct arena arena;
    uint32_t n_ops, n_ranks;
    int64_t iteration_ns;
    int64_t *iterations_ns;
    uint32_t n_iterations;
    int64_t *sorted_ns; /* what percentiles are taken of */
    uint32_t n_sorted;
    struct dpro_rank_time *ranks;
    int64_t *start_ns, *end_ns;
    struct dpro_critical_op *critical;
    uint32_t n_critical;
    int64_t critical_ns;
};

struct chain {
    struct arena arena;
    const struct dpro_graph *g;
    const struct dpro_replay_options *options;
    struct delays delays;
    uint32_t *samples; /* those learnt from */
    uint32_t n_samples;
    uint32_t stand_in;     /* the sample, or MEAN, that one left out is replayed with */
    uint32_t first_sample; /* of the first copy after warm-up; the others follow in order */
    bool drains;           /* before that copy everything runs dry */
    bool leads;            /* before that copy is what led up to the first sample, from its begin */
    uint32_t n_warm_up;
    uint32_t n_main;   /* copies that the prediction is the mean of, or the last of them if one
                          sample is left out */
    uint32_t n_kept;   /* warm-up, main, after: end times are kept for breakdown and path */
    uint32_t n_copies; /* and the drawn ones */
    uint32_t n_closed;
    bool only_time;                     /* nothing is kept but what the iteration times need */
    int64_t *mean_dur_ns, *mean_gap_ns; /* without the sample left out; NULL: the graph's own */
    int64_t **sample_dur_ns;            /* changed by delays; made on first use */
    int64_t *lead_dur_ns;               /* likewise */
    int64_t *draining_gap_ns;           /* of the last warm-up copy, if it drains */
    int64_t *boundary_ns;               /* [copy * n_ranks + rank index]: ends of iterations */
    int64_t *work_begin_ns;     /* likewise: where they begin on the GPU, of ranks that are measured
                                   there */
    struct replay_copy *copies; /* the first n_kept */
    int64_t *release_ns;
    int64_t first_ns, last_ns; /* of a single iteration: first start, last end */
    uint32_t last_op;          /* the op that ends last in it */
};

/* ---- durations of a copy ---- */

/* Room for a value of each op. */
static int64_t *op_values(struct arena *arena, const struct dpro_graph *g)
{
    return arena_alloc(arena, ((size_t)g->n_ops + 1) * sizeof(int64_t));
}

/* The durations as the delays change them, in *changed; made when it is NULL. */
static int get_delayed(struct chain *c, const int64_t *from, int64_t **changed,
                       const int64_t **dur_ns)
{
    *dur_ns = from;
    if (c->delays.n == 0)
        return 0;
    if (!*changed && (*changed = op_values(&c->arena, c->g))) {
        if (c->g->n_ops)
            memcpy(*changed, from, c->g->n_ops * sizeof **changed);
        delays_apply(&c->delays, c->g, true, *changed);
    }
    *dur_ns = *changed;
    return *changed ? 0 : -1;
}

/* The mean over the samples in use, rounded to the nearest. */
static int64_t *mean_of(struct chain *c, const int64_t *values)
{
    uint32_t n = c->g->n_ops;
    int64_t *mean = op_values(&c->arena, c->g);
    if (!mean)
        return NULL;
    for (uint32_t op = 0; op < n; op++) {
        __int128 sum = c->n_samples / 2;
        for (uint32_t i = 0; i < c->n_samples; i++)
            sum += values[(size_t)c->samples[i] * n + op];
        mean[op] = (int64_t)(sum / c->n_samples);
    }
    return mean;
}

static int make_mean(struct chain *c)
{
    const struct dpro_graph *g = c->g;
    const int64_t *unused;
    if (!c->options->skip_sample)
        return get_delayed(c, g->dur_ns, &c->mean_dur_ns, &unused);
    c->mean_dur_ns = mean_of(c, g->sample_dur_ns);
    if (!c->mean_dur_ns || (g->sample_gap_ns && !(c->mean_gap_ns = mean_of(c, g->sample_gap_ns))))
        return -1;
    delays_apply(&c->delays, g, true, c->mean_dur_ns);
    return 0;
}

static void get_mean(const struct chain *c, const int64_t **dur_ns, const int64_t **gap_ns)
{
    *dur_ns = c->mean_dur_ns ? c->mean_dur_ns : c->g->dur_ns;
    *gap_ns = c->mean_gap_ns ? c->mean_gap_ns : c->g->gap_ns;
}

/* Mean gaps, but for so long a pause at each boundary (of ranks, and of the servers of a session,
 * which begin with them) that all else comes to an end in it. */
static int make_draining(struct chain *c)
{
    const int64_t *dur, *gap;
    uint32_t n = c->g->n_ops;
    int64_t pause = 0;
    get_mean(c, &dur, &gap);
    c->draining_gap_ns = op_values(&c->arena, c->g);
    if (!c->draining_gap_ns)
        return -1;
    for (uint32_t op = 0; op < n; op++) {
        c->draining_gap_ns[op] = gap ? gap[op] : 0;
        pause = time_add(pause, time_add(dur[op], c->draining_gap_ns[op]));
    }
    if (pause > INT64_MAX / 8)
        pause = INT64_MAX / 8; /* hostile durations: leave room for what follows */
    for (uint32_t r = 0; r < c->g->n_ranks + c->g->n_servers; r++)
        if (c->g->ranks[r].boundary != DPRO_NO_OP)
            c->draining_gap_ns[c->g->ranks[r].boundary] =
                time_add(c->draining_gap_ns[c->g->ranks[r].boundary], pause);
    return 0;
}

/* The draw depends on seed and copy only, so that it is the same in whatever order copies are
 * opened. */
static uint32_t draw(const struct chain *c, uint32_t copy)
{
    uint64_t x = map_mix(c->options->seed + 0x9e3779b97f4a7c15u * (copy + 1));
    return c->samples[(uint32_t)(((unsigned __int128)x * c->n_samples) >> 64)];
}

/* Which durations a copy has: a sample, MEAN or LEAD. */
static uint32_t sample_of(const struct chain *c, uint32_t copy)
{
    if (copy >= c->n_kept)
        return c->n_samples ? draw(c, copy) : MEAN;
    if (copy < c->n_warm_up && c->leads)
        return LEAD;
    if (c->g->single_iteration || copy < c->n_warm_up || c->n_samples == 0)
        return MEAN;
    if (copy >= c->n_warm_up + c->n_main)
        copy = c->n_warm_up + c->n_main - 1;
    uint32_t sample = c->first_sample + copy - c->n_warm_up;
    return sample + 1 == c->options->skip_sample ? c->stand_in : sample;
}

/* The last copy that replays the sample which the graph shows. */
static uint32_t shown_copy(const struct chain *c)
{
    if (c->g->single_iteration)
        return 0;
    uint32_t last = c->n_warm_up + c->n_main - 1;
    for (uint32_t copy = last; c->n_samples && copy >= c->n_warm_up; copy--)
        if (sample_of(c, copy) == c->g->shown_sample)
            return copy;
    return last;
}

/* ---- what the engine calls ---- */

static int open_copy(void *arg, uint32_t copy, const int64_t **dur_ns, const int64_t **gap_ns,
                     struct dpro_error *err)
{
    struct chain *c = arg;
    const struct dpro_graph *g = c->g;
    uint32_t sample = sample_of(c, copy);
    size_t first = (size_t)sample * g->n_ops;
    int rc = 0;
    if (sample == MEAN) {
        get_mean(c, dur_ns, gap_ns);
    } else if (sample == LEAD) {
        rc = get_delayed(c, g->lead_dur_ns, &c->lead_dur_ns, dur_ns);
        *gap_ns = g->lead_gap_ns;
    } else {
        rc = get_delayed(c, g->sample_dur_ns + first, &c->sample_dur_ns[sample], dur_ns);
        *gap_ns = g->sample_gap_ns ? g->sample_gap_ns + first : NULL;
    }
    if (c->drains && copy == c->n_warm_up - 1)
        *gap_ns = c->draining_gap_ns;
    return rc < 0 ? dpro_error_nomem(err) : 0;
}

/* From the first to the last op that takes time or a device; the others only mark moments. */
static void find_makespan(struct chain *c, const struct replay_copy *copy)
{
    for (int marks = 0; marks < 2; marks++) {
        c->first_ns = INT64_MAX;
        c->last_ns = -1;
        for (uint32_t op = 0; op < c->g->n_ops; op++) {
            int64_t end = copy->end_ns[op], start = end - copy->dur_ns[op];
            if (!marks && c->g->device[op] == DPRO_NO_DEVICE && copy->dur_ns[op] == 0)
                continue;
            c->first_ns = start < c->first_ns ? start : c->first_ns;
            if (end > c->last_ns) {
                c->last_ns = end;
                c->last_op = op;
            }
        }
        if (c->last_ns >= 0)
            return;
    }
    c->first_ns = c->last_ns = 0; /* no ops at all */
}

static int close_copy(void *arg, struct replay_copy *copy, struct dpro_error *err)
{
    (void)err;
    struct chain *c = arg;
    const struct dpro_graph *g = c->g;
    for (uint32_t r = 0; r < g->n_ranks; r++) {
        int64_t *end = &c->boundary_ns[(size_t)copy->number * g->n_ranks + r];
        const struct graph_rank *rank = &g->ranks[r];
        if (rank->on_device) {
            c->work_begin_ns[(size_t)copy->number * g->n_ranks + r] =
                copy->end_ns[rank->first_work] - copy->dur_ns[rank->first_work];
            *end = copy->end_ns[rank->last_work];
            continue;
        }
        if (rank->boundary != DPRO_NO_OP) {
            *end = copy->end_ns[rank->boundary];
            continue;
        }
        for (uint32_t op = rank->first_op; op < rank->first_op + rank->n_ops; op++)
            if (copy->end_ns[op] > *end)
                *end = copy->end_ns[op];
    }
    log_progress(&c->options->sink, "replay", "iterations", ++c->n_closed, c->n_copies);
    if (g->single_iteration)
        find_makespan(c, copy);
    if (copy->number < c->n_kept && !c->only_time) {
        c->copies[copy->number] = *copy;
        copy->end_ns = copy->shared_dur_ns = NULL;
        /* the critical path hardly ever goes back further than the copy before */
        uint32_t shown = shown_copy(c);
        if (copy->number + 2 < shown || copy->number > shown + 1)
            c->copies[copy->number].device_prev = NULL;
        else
            copy->device_prev = NULL;
    }
    return 0;
}

/* ---- setting up ---- */

static int check_times(const struct dpro_graph *g, const int64_t *values, size_t n,
                       const char *what, struct dpro_error *err)
{
    for (size_t i = 0; values && i < n; i++)
        if (values[i] < 0)
            return dpro_error_set(err, DPRO_EFORMAT, "graph: op %zu (%s) has a negative %s",
                                  i % g->n_ops, strtab_get(&g->names, g->name[i % g->n_ops]), what);
    return 0;
}

static int plan_copies(struct chain *c, struct dpro_error *err)
{
    const struct dpro_graph *g = c->g;
    uint32_t skip = c->options->skip_sample, n = g->sample_dur_ns ? g->n_samples : 0;
    if (skip > n)
        return dpro_error_set(err, DPRO_EUSAGE,
                              "replay: cannot leave out iteration %u of %u measured", skip, n);
    if (skip && n == 1)
        return dpro_error_set(err, DPRO_EEMPTY,
                              "replay: no iteration is left to learn from; record two or more");
    c->samples = arena_array(&c->arena, (size_t)n + 1, sizeof *c->samples);
    c->sample_dur_ns = arena_array(&c->arena, (size_t)n + 1, sizeof *c->sample_dur_ns);
    if (!c->samples || !c->sample_dur_ns)
        return dpro_error_nomem(err);
    for (uint32_t s = 0; s < n; s++)
        if (s + 1 != skip)
            c->samples[c->n_samples++] = s;
    uint32_t n_drawn = g->single_iteration ? 0 : c->options->samples;
    if (g->single_iteration) {
        c->n_main = c->n_kept = 1;
    } else {
        c->n_main = c->n_samples ? n : COPIES_OF_MEAN;
        if (skip) {
            c->first_sample = skip > N_BEFORE ? skip - 1 - N_BEFORE : 0;
            c->n_main = skip - c->first_sample;
        }
        c->drains = c->n_samples && g->sample_follows && !g->sample_follows[c->first_sample] &&
                    !graph_runs_ahead(g);
        c->leads = g->lead_dur_ns && c->first_sample == 0;
        c->n_warm_up = c->leads ? N_LEAD : N_WARM_UP;
        c->n_kept = c->n_warm_up + c->n_main + N_AFTER;
    }
    if (n_drawn > 1000000)
        return dpro_error_set(err, DPRO_EUSAGE, "replay: %u samples are too many; 1000000 at most",
                              n_drawn);
    c->n_copies = c->n_kept + n_drawn;
    size_t n_ends = (size_t)c->n_copies * g->n_ranks + 1;
    c->copies = arena_array(&c->arena, c->n_kept, sizeof *c->copies);
    c->boundary_ns = arena_array(&c->arena, n_ends, sizeof *c->boundary_ns);
    c->work_begin_ns = arena_array(&c->arena, n_ends, sizeof *c->work_begin_ns);
    c->release_ns =
        arena_array(&c->arena, (size_t)g->n_ranks + g->n_servers + 1, sizeof *c->release_ns);
    if (!c->copies || !c->boundary_ns || !c->work_begin_ns || !c->release_ns || make_mean(c) < 0 ||
        (c->drains && make_draining(c) < 0))
        return dpro_error_nomem(err);
    int64_t earliest = 0;
    for (uint32_t r = 0; r < g->n_ranks; r++)
        if (g->ranks[r].offset_ns < earliest)
            earliest = g->ranks[r].offset_ns;
    for (uint32_t r = 0; g->single_iteration && r < g->n_ranks; r++)
        if (__builtin_sub_overflow(g->ranks[r].offset_ns, earliest, &c->release_ns[r]))
            c->release_ns[r] = INT64_MAX / 2;
    for (uint32_t r = 0; c->leads && r < g->n_ranks; r++)
        c->release_ns[r] = g->lead_begin_ns[r];
    return 0;
}

static int chain_init(struct chain *c, const struct dpro_graph *g,
                      const struct dpro_replay_options *options, struct dpro_error *err)
{
    *c = (struct chain){.g = g, .options = options, .stand_in = MEAN};
    size_t n_values = (size_t)g->n_samples * g->n_ops;
    int rc = check_times(g, g->dur_ns, g->n_ops, "duration", err);
    if (rc == 0)
        rc = check_times(g, g->gap_ns, g->n_ops, "gap", err);
    if (rc == 0)
        rc = check_times(g, g->sample_dur_ns, n_values, "duration", err);
    if (rc == 0)
        rc = check_times(g, g->sample_gap_ns, n_values, "gap", err);
    if (rc == 0)
        rc = delays_parse(g, options->delays, options->n_delays, &c->delays, err);
    return rc < 0 ? rc : plan_copies(c, err);
}

static void chain_fini(struct chain *c)
{
    for (uint32_t i = 0; c->copies && i < c->n_kept; i++) {
        free(c->copies[i].end_ns);
        free(c->copies[i].device_prev);
        free(c->copies[i].shared_dur_ns);
    }
    arena_fini(&c->arena);
    delays_fini(&c->delays);
}

static int run_engine(struct chain *c, struct dpro_error *err)
{
    const struct dpro_sink *sink = &c->options->sink;
    struct event_options options = {.n_copies = c->n_copies,
                                    .release_ns =
                                        c->g->single_iteration || c->leads ? c->release_ns : NULL,
                                    .want_device_prev = !c->only_time};
    struct replay_hooks hooks = {c, open_copy, close_copy};
    if (c->options->engine == DPRO_ENGINE_FIXED && (c->g->spare || graph_has_pools(c->g))) {
        log_line(
            sink, DPRO_LOG_INFO,
            "replay: which op frees a thread of a pool may change, so there is no fixed order; "
            "replayed event by event");
    } else if (c->options->engine == DPRO_ENGINE_FIXED && graph_has_shared_links(c->g)) {
        log_line(
            sink, DPRO_LOG_INFO,
            "replay: connections send over a link at once, so there is no order; replayed event by "
            "event");
    } else if (c->options->engine == DPRO_ENGINE_FIXED) {
        const int64_t *dur_ns, *gap_ns;
        uint64_t n_violations;
        bool interleaved;
        get_mean(c, &dur_ns, &gap_ns);
        struct event_options fixed = options;
        if (c->leads) /* it has an order of iterations that follow others only */
            fixed.release_ns = NULL;
        int rc =
            fixed_replay(c->g, &fixed, &hooks, dur_ns, gap_ns, &interleaved, &n_violations, err);
        if (rc < 0)
            return rc;
        if (n_violations)
            log_line(
                sink, DPRO_LOG_WARN,
                "replay: %llu of %llu ops were ready before the op that the fixed order runs first",
                (unsigned long long)n_violations, (unsigned long long)c->n_copies * c->g->n_ops);
        if (!interleaved)
            return 0;
        log_line(sink, DPRO_LOG_INFO,
                 "replay: iterations take turns on a device, so there is no fixed "
                 "order; replayed event by event");
    }
    return event_replay(c->g, &options, &hooks, NULL, err);
}

/* On a GPU an iteration ends where the next one begins. */
static void end_where_next_begins(struct chain *c)
{
    uint32_t n = c->g->n_ranks;
    for (uint32_t r = 0; r < n; r++)
        for (uint32_t copy = 0; c->g->ranks[r].on_device && copy + 1 < c->n_copies; copy++)
            c->boundary_ns[(size_t)copy * n + r] = c->work_begin_ns[(size_t)(copy + 1) * n + r];
}

static int chain_run(struct chain *c, struct dpro_error *err)
{
    int rc = run_engine(c, err);
    if (rc == 0)
        end_where_next_begins(c);
    return rc;
}

/* ---- results ---- */

/* The mean over ranks of the time since the boundary in the copy before. */
static int64_t period(const struct chain *c, uint32_t copy)
{
    uint32_t n = c->g->n_ranks;
    const int64_t *now = c->boundary_ns + (size_t)copy * n;
    __int128 sum = 0;
    for (uint32_t r = 0; r < n; r++)
        sum += (__int128)now[r] - now[(ptrdiff_t)r - n];
    return n ? (int64_t)(sum / n) : 0;
}

static int64_t latest_boundary(const struct chain *c, uint32_t copy, uint32_t *rank)
{
    const int64_t *ends = c->boundary_ns + (size_t)copy * c->g->n_ranks;
    *rank = 0;
    for (uint32_t r = 1; r < c->g->n_ranks; r++)
        if (ends[r] > ends[*rank])
            *rank = r;
    return c->g->n_ranks ? ends[*rank] : 0;
}

static uint32_t last_of(const struct replay_copy *copy, uint32_t first, uint32_t n)
{
    uint32_t last = first;
    for (uint32_t op = first; op < first + n; op++)
        if (copy->end_ns[op] > copy->end_ns[last])
            last = op;
    return last;
}

static uint32_t last_op(const struct chain *c, uint32_t copy)
{
    uint32_t rank;
    if (c->g->single_iteration)
        return c->last_op;
    latest_boundary(c, copy, &rank);
    const struct graph_rank *r = &c->g->ranks[rank];
    if (r->on_device)
        return r->last_work;
    return r->boundary != DPRO_NO_OP ? r->boundary
                                     : last_of(&c->copies[copy], r->first_op, r->n_ops);
}

static void fill_periods(const struct chain *c, int64_t *iterations_ns)
{
    for (uint32_t i = 0; i < c->n_main; i++)
        iterations_ns[i] =
            c->g->single_iteration ? c->last_ns - c->first_ns : period(c, c->n_warm_up + i);
}

static int64_t predicted_ns(const struct chain *c, const int64_t *iterations_ns)
{
    return c->options->skip_sample ? iterations_ns[c->n_main - 1]
                                   : stats_mean_i64(iterations_ns, c->n_main);
}

static int fill_iterations(const struct chain *c, struct dpro_replay *r)
{
    uint32_t n_drawn = c->n_copies - c->n_kept;
    r->n_iterations = c->n_main;
    r->n_sorted = n_drawn ? n_drawn : c->n_main;
    r->iterations_ns = arena_array(&r->arena, r->n_iterations, sizeof *r->iterations_ns);
    r->sorted_ns = arena_array(&r->arena, r->n_sorted, sizeof *r->sorted_ns);
    if (!r->iterations_ns || !r->sorted_ns)
        return -1;
    fill_periods(c, r->iterations_ns);
    for (uint32_t i = 0; i < r->n_sorted; i++)
        r->sorted_ns[i] = n_drawn ? period(c, c->n_kept + i) : r->iterations_ns[i];
    sort_i64(r->sorted_ns, r->n_sorted);
    r->iteration_ns = predicted_ns(c, r->iterations_ns);
    return 0;
}

static int fill_ranks(struct chain *c, struct dpro_replay *r, struct dpro_error *err)
{
    uint32_t n = c->g->n_ranks;
    int64_t *from = arena_array(&c->arena, (size_t)n + 1, sizeof *from);
    int64_t *to = arena_array(&c->arena, (size_t)n + 1, sizeof *to);
    r->ranks = arena_array(&r->arena, (size_t)n + 1, sizeof *r->ranks);
    if (!from || !to || !r->ranks)
        return dpro_error_nomem(err);
    for (uint32_t i = 0; i < n; i++) {
        bool single = c->g->single_iteration;
        from[i] = single ? c->first_ns : c->boundary_ns[(size_t)(c->n_warm_up - 1) * n + i];
        to[i] =
            single ? c->last_ns : c->boundary_ns[(size_t)(c->n_warm_up + c->n_main - 1) * n + i];
    }
    struct breakdown_span span = {c->copies, c->n_kept, from, to, c->n_main};
    return breakdown_fill(c->g, &span, r->ranks, err);
}

static int fill_shown(const struct chain *c, struct dpro_replay *r, struct dpro_error *err)
{
    uint32_t shown = shown_copy(c), unused, n = c->g->n_ops;
    const struct replay_copy *copy = &c->copies[shown];
    int64_t start = c->g->single_iteration ? c->first_ns : latest_boundary(c, shown - 1, &unused);
    r->start_ns = op_values(&r->arena, c->g);
    r->end_ns = op_values(&r->arena, c->g);
    if (!r->start_ns || !r->end_ns)
        return dpro_error_nomem(err);
    for (uint32_t op = 0; op < n; op++) {
        r->end_ns[op] = copy->end_ns[op] - start;
        r->start_ns[op] = r->end_ns[op] - copy->dur_ns[op];
    }
    if (n == 0)
        return 0;
    struct critical_span span = {c->copies, c->n_kept, shown, last_op(c, shown), start};
    if (copy->end_ns[span.op] <= start)
        return 0;
    r->critical_ns = copy->end_ns[span.op] - start;
    return critical_find(c->g, &span, &r->arena, &r->critical, &r->n_critical, err);
}

static int fill_results(struct chain *c, struct dpro_replay *r, struct dpro_error *err)
{
    r->n_ops = c->g->n_ops;
    r->n_ranks = c->g->n_ranks;
    if (fill_iterations(c, r) < 0)
        return dpro_error_nomem(err);
    int rc = fill_ranks(c, r, err);
    return rc < 0 ? rc : fill_shown(c, r, err);
}

/* Whether each of the others in turn stands in for a left-out iteration, not their mean: unless
 * they are many, or the graph is large. */
static bool others_stand_in(const struct chain *c)
{
    enum { MOST_SAMPLES = 16, MOST_OPS = 8000000 };
    return c->options->skip_sample && c->n_samples <= MOST_SAMPLES &&
           (uint64_t)c->n_copies * c->n_samples * c->g->n_ops <= MOST_OPS;
}

int replay_predict(const struct dpro_graph *graph, const struct dpro_replay_options *options,
                   int64_t *iteration_ns, struct dpro_error *err)
{
    struct chain chain;
    __int128 sum = 0;
    int rc = chain_init(&chain, graph, options, err);
    int64_t *iterations_ns =
        rc < 0 ? NULL : arena_array(&chain.arena, chain.n_main, sizeof *iterations_ns);
    if (rc == 0 && !iterations_ns)
        rc = dpro_error_nomem(err);
    chain.only_time = true;
    uint32_t n = rc == 0 && others_stand_in(&chain) ? chain.n_samples : 0;
    for (uint32_t i = 0; i < (n ? n : 1) && rc == 0; i++) {
        if (n > 0)
            chain.stand_in = chain.samples[i];
        rc = chain_run(&chain, err);
        if (rc < 0)
            break;
        fill_periods(&chain, iterations_ns);
        sum += predicted_ns(&chain, iterations_ns);
    }
    if (rc == 0)
        *iteration_ns = (int64_t)(sum / (n ? n : 1));
    chain_fini(&chain);
    return rc;
}

int dpro_replay_run(const struct dpro_graph *graph, const struct dpro_replay_options *options,
                    struct dpro_replay **replay, struct dpro_error *err)
{
    static const struct dpro_replay_options defaults;
    struct chain chain;
    struct dpro_replay *result = calloc(1, sizeof *result);
    if (!result)
        return dpro_error_nomem(err);
    int rc = chain_init(&chain, graph, options ? options : &defaults, err);
    if (rc == 0)
        rc = chain_run(&chain, err);
    if (rc == 0)
        rc = fill_results(&chain, result, err);
    if (rc == 0)
        *replay = result;
    else
        dpro_replay_destroy(result);
    chain_fini(&chain);
    return rc;
}

void dpro_replay_destroy(struct dpro_replay *replay)
{
    if (replay)
        arena_fini(&replay->arena);
    free(replay);
}

int64_t dpro_replay_iteration_ns(const struct dpro_replay *replay)
{
    return replay->iteration_ns;
}

int64_t dpro_replay_percentile_ns(const struct dpro_replay *replay, double fraction)
{
    return stats_quantile_i64(replay->sorted_ns, replay->n_sorted, fraction);
}

const int64_t *dpro_replay_iterations_ns(const struct dpro_replay *replay, uint32_t *n)
{
    *n = replay->n_iterations;
    return replay->iterations_ns;
}

struct dpro_rank_time dpro_replay_rank(const struct dpro_replay *replay, uint32_t rank_index)
{
    if (rank_index >= replay->n_ranks)
        return (struct dpro_rank_time){.rank = -1, .waited_most_for = -1};
    return replay->ranks[rank_index];
}

int64_t dpro_replay_start_ns(const struct dpro_replay *replay, dpro_op_id op)
{
    return op < replay->n_ops ? replay->start_ns[op] : 0;
}

int64_t dpro_replay_end_ns(const struct dpro_replay *replay, dpro_op_id op)
{
    return op < replay->n_ops ? replay->end_ns[op] : 0;
}

const struct dpro_critical_op *dpro_replay_critical(const struct dpro_replay *replay, uint32_t *n)
{
    *n = replay->n_critical;
    return replay->critical;
}

int64_t dpro_replay_critical_ns(const struct dpro_replay *replay)
{
    return replay->critical_ns;
}
