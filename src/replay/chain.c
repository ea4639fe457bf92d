/* Makes the chain of iterations that a prediction is made from, and replays it. */
#include "replay/chain.h"

#include "base/options.h"

enum { N_WARM_UP = 2, N_LEAD = 1, N_AFTER = 1, N_BEFORE = 3, COPIES_OF_MEAN = 4 };
#define LEAD (UINT32_MAX - 1) /* instead of a sample: what led up to the first */

/* ---- durations of a copy ---- */

static int64_t *op_values(struct arena *arena, const struct dpro_graph *g)
{
    return arena_alloc(arena, ((size_t)g->n_ops + 1) * sizeof(int64_t));
}

static chain_total *sum_samples(const struct dpro_graph *g, const int64_t *values,
                                struct arena *arena)
{
    chain_total *sum = arena_array(arena, (size_t)g->n_ops + 1, sizeof *sum);
    for (uint32_t s = 0; s < g->n_samples; s++)
        for (uint32_t op = 0; op < g->n_ops; op++)
            sum[op] += values[(size_t)s * g->n_ops + op];
    return sum;
}

/* The mean over the samples in use, rounded to the nearest; `sums` are of all. */
static int64_t *mean_of(struct chain *c, const int64_t *values, const chain_total *sums)
{
    uint32_t n = c->g->n_ops, used = c->n_samples;
    const int64_t *without = values + (size_t)(c->options->skip_sample - 1) * n;
    int64_t *mean = op_values(&c->arena, c->g);
    for (uint32_t op = 0; op < n; op++) {
        chain_total sum = sums[op] - without[op] + used / 2;
        mean[op] = (int64_t)(sum <= INT64_MAX ? (int64_t)sum / used : sum / used);
    }
    return mean;
}

static void get_mean(const struct chain *c, const int64_t **dur_ns, const int64_t **gap_ns)
{
    *dur_ns = c->mean_dur_ns ? c->mean_dur_ns : c->g->dur_ns;
    *gap_ns = c->mean_gap_ns ? c->mean_gap_ns : c->g->gap_ns;
}

/* Mean gaps, but for so long a pause at each boundary (of ranks, and of the servers of a session,
 * which begin with them) that all else comes to an end in it. */
static void make_draining(struct chain *c)
{
    const int64_t *dur, *gap;
    uint32_t n = c->g->n_ops;
    int64_t pause = 0;
    get_mean(c, &dur, &gap);
    c->draining_gap_ns = op_values(&c->arena, c->g);
    for (uint32_t op = 0; op < n; op++) {
        c->draining_gap_ns[op] = gap[op];
        pause = time_add(pause, time_add(dur[op], c->draining_gap_ns[op]));
    }
    if (pause > INT64_MAX / 8)
        pause = INT64_MAX / 8; /* hostile durations: leave room for what follows */
    for (uint32_t r = 0; r < c->g->n_ranks + c->g->n_servers; r++)
        if (c->g->ranks[r].boundary != DPRO_NO_OP)
            c->draining_gap_ns[c->g->ranks[r].boundary] =
                time_add(c->draining_gap_ns[c->g->ranks[r].boundary], pause);
}

/* The draw depends on seed and copy only, so that it is the same in whatever order copies are
 * opened. */
static uint32_t chain_draw(const struct chain *c, uint32_t copy)
{
    uint64_t x = map_mix(c->options->seed + 0x9e3779b97f4a7c15u * (copy + 1));
    return c->samples[(uint32_t)(((unsigned __int128)x * c->n_samples) >> 64)];
}

/* Which durations a copy has: a sample, CHAIN_MEAN or LEAD. */
static uint32_t sample_of(const struct chain *c, uint32_t copy)
{
    if (copy >= c->n_kept)
        return c->n_samples ? chain_draw(c, copy) : CHAIN_MEAN;
    if (copy < c->n_warm_up && c->leads)
        return LEAD;
    if (c->g->single_iteration || copy < c->n_warm_up || c->n_samples == 0)
        return CHAIN_MEAN;
    if (copy >= c->n_warm_up + c->n_main)
        copy = c->n_warm_up + c->n_main - 1;
    uint32_t sample = c->first_sample + copy - c->n_warm_up;
    return sample + 1 == c->options->skip_sample ? c->stand_in : sample;
}

uint32_t chain_shown_copy(const struct chain *c)
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

static void open_copy(void *arg, uint32_t copy, const int64_t **dur_ns, const int64_t **gap_ns)
{
    struct chain *c = arg;
    const struct dpro_graph *g = c->g;
    uint32_t sample = sample_of(c, copy);
    size_t first = (size_t)sample * g->n_ops;
    if (sample == CHAIN_MEAN) {
        get_mean(c, dur_ns, gap_ns);
    } else if (sample == LEAD) {
        *dur_ns = g->lead_dur_ns;
        *gap_ns = g->lead_gap_ns;
    } else {
        *dur_ns = g->sample_dur_ns + first;
        *gap_ns = g->sample_gap_ns ? g->sample_gap_ns + first : NULL;
    }
    if (c->drains && copy == c->n_warm_up - 1)
        *gap_ns = c->draining_gap_ns;
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

/* Where each rank's iteration begins on the GPU. */
static void note_begins(struct chain *c, const struct replay_copy *copy)
{
    for (uint32_t r = 0; r < c->g->n_ranks; r++) {
        const struct graph_rank *rank = &c->g->ranks[r];
        if (rank->on_device)
            c->work_begin_ns[(size_t)copy->number * c->g->n_ranks + r] =
                copy->end_ns[rank->first_work] - copy->dur_ns[rank->first_work];
    }
}

/* Where each rank's iteration ends. */
static void note_ends(struct chain *c, const struct replay_copy *copy)
{
    const struct dpro_graph *g = c->g;
    for (uint32_t r = 0; r < g->n_ranks; r++) {
        const struct graph_rank *rank = &g->ranks[r];
        int64_t *end = &c->boundary_ns[(size_t)copy->number * g->n_ranks + r];
        if (rank->on_device) {
            *end = copy->end_ns[rank->last_work];
        } else if (rank->boundary != DPRO_NO_OP) {
            *end = copy->end_ns[rank->boundary];
        } else {
            *end = 0;
            for (uint32_t op = rank->first_op; op < rank->first_op + rank->n_ops; op++)
                *end = MAX(*end, copy->end_ns[op]);
        }
    }
}

static void close_copy(void *arg, struct replay_copy *copy)
{
    struct chain *c = arg;
    note_begins(c, copy);
    note_ends(c, copy);
    log_progress(&c->options->sink, "replay", "iterations", ++c->n_closed, c->n_copies);
    if (c->g->single_iteration)
        find_makespan(c, copy);
    if (copy->number < c->n_kept && !c->only_time) {
        c->copies[copy->number] = *copy;
        copy->end_ns = copy->shared_dur_ns = NULL;
        copy->device_prev = NULL;
    }
}

/* ---- setting up ---- */

/* Which samples are learnt from, and which copies are replayed. */
static void plan_copies(struct chain *c)
{
    enum { MOST_DRAWN = 1000000 };
    const struct dpro_graph *g = c->g;
    uint32_t skip = c->options->skip_sample, n = g->sample_dur_ns ? g->n_samples : 0;
    uint32_t n_drawn = g->single_iteration ? 0 : c->options->samples;
    if (skip > n)
        fail_with(DPRO_EUSAGE, "replay: cannot leave out iteration %u of %u measured", skip, n);
    if (skip && n == 1)
        fail_with(DPRO_EEMPTY, "replay: no iteration is left to learn from; record two or more");
    if (n_drawn > MOST_DRAWN)
        fail_with(DPRO_EUSAGE, "replay: %u samples are too many; %d at most", n_drawn, MOST_DRAWN);
    c->samples = arena_array(&c->arena, (size_t)n + 1, sizeof *c->samples);
    for (uint32_t s = 0; s < n; s++)
        if (s + 1 != skip)
            c->samples[c->n_samples++] = s;
    c->n_main = g->single_iteration ? 1 : c->n_samples ? n : COPIES_OF_MEAN;
    if (skip && !g->single_iteration) {
        c->first_sample = skip > N_BEFORE ? skip - 1 - N_BEFORE : 0;
        c->n_main = skip - c->first_sample;
    }
    c->n_kept = c->n_main;
    if (!g->single_iteration) {
        c->drains = c->n_samples && g->sample_follows && !g->sample_follows[c->first_sample] &&
                    !graph_runs_ahead(g);
        c->leads = g->lead_dur_ns && c->first_sample == 0;
        c->n_warm_up = c->leads ? N_LEAD : N_WARM_UP;
        c->n_kept += c->n_warm_up + N_AFTER;
    }
    c->n_copies = c->n_kept + n_drawn;
}

/* When ranks begin the first copy: where it is one that was measured, when they did. */
static void make_releases(struct chain *c)
{
    const struct dpro_graph *g = c->g;
    int64_t earliest = 0;
    if (!g->single_iteration && !c->leads)
        return;
    c->release_ns =
        arena_array(&c->arena, (size_t)g->n_ranks + g->n_servers + 1, sizeof *c->release_ns);
    for (uint32_t r = 0; r < g->n_ranks; r++)
        earliest = g->ranks[r].offset_ns < earliest ? g->ranks[r].offset_ns : earliest;
    for (uint32_t r = 0; r < g->n_ranks; r++)
        if (c->leads)
            c->release_ns[r] = g->lead_begin_ns[r];
        else if (__builtin_sub_overflow(g->ranks[r].offset_ns, earliest, &c->release_ns[r]))
            c->release_ns[r] = INT64_MAX / 2;
}

void chain_check_times(const struct dpro_graph *g)
{
    size_t n_values = (size_t)g->n_samples * g->n_ops;
    const struct {
        const int64_t *values;
        size_t n;
        const char *what;
    } times[] = {{g->dur_ns, g->n_ops, "duration"},
                 {g->gap_ns, g->n_ops, "gap"},
                 {g->sample_dur_ns, n_values, "duration"},
                 {g->sample_gap_ns, n_values, "gap"}};
    for (size_t k = 0; k < sizeof times / sizeof *times; k++)
        for (size_t i = 0; times[k].values && i < times[k].n; i++)
            if (times[k].values[i] < 0)
                fail_with(DPRO_EFORMAT, "graph: op %zu (%s) has a negative %s", i % g->n_ops,
                          strtab_get(&g->names, g->name[i % g->n_ops]), times[k].what);
}

void chain_sums_make(struct chain_sums *sums, const struct dpro_graph *g, struct arena *arena)
{
    if (g->sample_dur_ns)
        sums->dur = sum_samples(g, g->sample_dur_ns, arena);
    if (g->sample_gap_ns)
        sums->gap = sum_samples(g, g->sample_gap_ns, arena);
}

void chain_init(struct chain *c, const struct dpro_graph *g,
                const struct dpro_replay_options *options, const struct chain_sums *sums)
{
    struct chain_sums own = {NULL, NULL};
    *c = (struct chain){.g = g, .options = options, .stand_in = CHAIN_MEAN};
    if (!sums)
        chain_check_times(g);
    if (options->n_delays > 0) {
        delayed_graph(g, options->delays, options->n_delays, 1, &c->arena, &c->delayed);
        c->g = &c->delayed;
    }
    plan_copies(c);
    c->ranks_meet = graph_ranks_meet(c->g);
    size_t n_ends = (size_t)c->n_copies * c->g->n_ranks + 1;
    c->copies = arena_array(&c->arena, c->n_kept, sizeof *c->copies);
    c->boundary_ns = arena_array(&c->arena, n_ends, sizeof *c->boundary_ns);
    c->work_begin_ns = arena_array(&c->arena, n_ends, sizeof *c->work_begin_ns);
    make_releases(c);
    if (options->skip_sample && !sums)
        chain_sums_make(&own, c->g, &c->arena);
    if (options->skip_sample)
        c->mean_dur_ns = mean_of(c, c->g->sample_dur_ns, (sums ?: &own)->dur);
    if (options->skip_sample && c->g->sample_gap_ns)
        c->mean_gap_ns = mean_of(c, c->g->sample_gap_ns, (sums ?: &own)->gap);
    if (c->drains)
        make_draining(c);
}

void chain_fini(struct chain *c)
{
    EACH_OF (struct replay_copy, copy, c->copies, c->n_kept)
        FREE_ALL(&copy->end_ns, &copy->device_prev, &copy->shared_dur_ns);
    arena_fini(&c->arena);
}

/* ---- the run ---- */

void chain_run(struct chain *c)
{
    struct event_options options = {.n_copies = c->n_copies, .release_ns = c->release_ns};
    if (!c->only_time) { /* the critical path hardly ever goes back further than the copy before */
        uint32_t shown = chain_shown_copy(c);
        options.first_prev = shown > 2 && !c->all_prev ? shown - 2 : 0;
        options.end_prev = c->all_prev ? c->n_kept : shown + 2;
    }
    if (c->only_time && !c->g->single_iteration && !graph_runs_ahead(c->g))
        options.n_needed = c->n_warm_up + c->n_main;
    event_replay(c->g, &options, &(struct replay_hooks){c, open_copy, close_copy});
    /* on a GPU an iteration ends where the next one begins */
    uint32_t n = c->g->n_ranks;
    for (uint32_t r = 0; r < n; r++)
        for (uint32_t copy = 0; c->g->ranks[r].on_device && copy + 1 < c->n_copies; copy++)
            c->boundary_ns[(size_t)copy * n + r] = c->work_begin_ns[(size_t)(copy + 1) * n + r];
}

/* ---- times ---- */

int64_t chain_latest_boundary(const struct chain *c, uint32_t copy, uint32_t *rank)
{
    const int64_t *ends = c->boundary_ns + (size_t)copy * c->g->n_ranks;
    *rank = 0;
    for (uint32_t r = 1; r < c->g->n_ranks; r++)
        if (ends[r] > ends[*rank])
            *rank = r;
    return c->g->n_ranks ? ends[*rank] : 0;
}

/* Ranks' own times differ by what one was late at the last boundary, and others will wait for. */
int64_t chain_period(const struct chain *c, uint32_t copy)
{
    uint32_t last;
    if (c->ranks_meet)
        return chain_latest_boundary(c, copy, &last) - chain_latest_boundary(c, copy - 1, &last);
    uint32_t n = c->g->n_ranks;
    const int64_t *now = c->boundary_ns + (size_t)copy * n;
    __int128 sum = 0;
    for (uint32_t r = 0; r < n; r++)
        sum += (__int128)now[r] - now[(ptrdiff_t)r - n];
    return n ? (int64_t)(sum / n) : 0;
}

void chain_periods(const struct chain *c, int64_t *iterations_ns)
{
    for (uint32_t i = 0; i < c->n_main; i++)
        iterations_ns[i] =
            c->g->single_iteration ? c->last_ns - c->first_ns : chain_period(c, c->n_warm_up + i);
}

int64_t chain_predicted_ns(const struct chain *c, const int64_t *iterations_ns)
{
    return c->options->skip_sample ? iterations_ns[c->n_main - 1]
                                   : stats_mean_i64(iterations_ns, c->n_main);
}

/* ---- iteration times only ---- */

/* Whether each of the others in turn stands in for a left-out iteration, not their mean: unless
 * they are many, or the graph is large. */
static bool others_stand_in(const struct chain *c)
{
    enum { MOST_SAMPLES = 16, MOST_OPS = 2000000 };
    return c->options->skip_sample && c->n_samples <= MOST_SAMPLES &&
           (uint64_t)c->n_copies * c->n_samples * c->g->n_ops <= MOST_OPS;
}

int64_t replay_predict(const struct dpro_graph *graph, const struct dpro_replay_options *options,
                       const struct chain_sums *sums)
{
    struct chain chain;
    __int128 sum = 0;
    chain_init(&chain, graph, options, sums);
    int64_t *iterations_ns = arena_array(&chain.arena, chain.n_main, sizeof *iterations_ns);
    chain.only_time = true;
    bool stand_in = others_stand_in(&chain);
    uint32_t n = stand_in ? chain.n_samples : 1;
    for (uint32_t i = 0; i < n; i++) {
        if (stand_in)
            chain.stand_in = chain.samples[i];
        chain_run(&chain);
        chain_periods(&chain, iterations_ns);
        sum += chain_predicted_ns(&chain, iterations_ns);
    }
    chain_fini(&chain);
    return (int64_t)(sum / n);
}

static int64_t predict_as_asked(const struct dpro_graph *graph,
                                const struct dpro_replay_options *options)
{
    struct dpro_replay_options mine;
    OPTIONS_MUST_TAKE(&mine, options);
    return replay_predict(graph, &mine, NULL);
}

int dpro_replay_predict(const struct dpro_graph *graph, const struct dpro_replay_options *options,
                        int64_t *iteration_ns, struct dpro_error *err)
{
    return OUTCOME(err, *iteration_ns = predict_as_asked(graph, options));
}
