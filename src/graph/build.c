/* graph/build.c: from a trace to the global data-flow graph: every rank alone, then together. */
#include "graph/build.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "base/pool.h"
#include "graph/assemble.h"
#include "graph/join.h"
#include "graph/names.h"

struct build {
    const struct dpro_trace *trace;
    const struct dpro_graph_options *options;
    struct rank_build *ranks;
    uint32_t n_ranks;
    uint32_t *classes;
    struct dpro_error *errors; /* one a rank */
    uint64_t **hashes;         /* [rank][step] */
    struct join join;
};

static int first_error(const struct build *build, struct dpro_error *err)
{
    for (uint32_t r = 0; r < build->n_ranks; r++)
        if (build->errors[r].code < 0) {
            if (err)
                *err = build->errors[r];
            return dpro_error_prefix(err, "rank %d", build->ranks[r].trace->rank);
        }
    return 0;
}

/* ---- each rank alone ---- */

static void cut_rank(void *arg, size_t r)
{
    struct build *build = arg;
    struct rank_build *rank = &build->ranks[r];
    struct dpro_error *err = &build->errors[r];
    if (build_steps(rank, err) < 0 || build_phases(rank, err) < 0 || build_items(rank, err) < 0)
        return;
    build->hashes[r] = malloc((rank->steps.n + 1) * sizeof *build->hashes[r]);
    if (!build->hashes[r]) {
        dpro_error_nomem(err);
        return;
    }
    for (uint32_t s = 0; s < rank->steps.n; s++)
        build->hashes[r][s] = build_step_hash(rank, s);
}

static void link_rank(void *arg, size_t r)
{
    struct build *build = arg;
    struct rank_build *rank = &build->ranks[r];
    struct dpro_error *err = &build->errors[r];
    if (build_ops(rank, err) < 0 || build_local_edges(rank, err) < 0)
        return;
    if (build_tensors(rank, err) == 0 && build_pool(rank, err) == 0)
        build_forget(rank);
}

/* ---- which iterations to learn from ---- */

static int compare_i64(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

static int64_t count_items(const struct rank_build *rank, uint32_t step)
{
    int64_t n = 0;
    for (uint32_t l = 0; l < rank->n_lanes; l++)
        n += rank->lanes[l].first[step + 1] - rank->lanes[l].first[step];
    return n;
}

static bool wanted(const struct build *build, const struct step *step)
{
    const struct dpro_graph_options *o = build->options;
    if (!step->timed)
        return false;
    return (o->first_step == 0 && o->last_step == 0) ||
           (step->number >= o->first_step && step->number <= o->last_step);
}

/* The step of `rank` with that number, the `nth` such; NO_ID: none. */
static uint32_t find_step(const struct build *build, const struct rank_build *rank, int64_t number,
                          uint32_t nth)
{
    for (uint32_t s = 0; s < rank->steps.n; s++)
        if (wanted(build, &rank->steps.at[s]) && rank->steps.at[s].number == number && nth-- == 0)
            return s;
    return NO_ID;
}

static uint32_t count_wanted(const struct build *build, const struct rank_build *rank)
{
    uint32_t n = 0;
    for (uint32_t s = 0; s < rank->steps.n; s++)
        n += wanted(build, &rank->steps.at[s]);
    return n;
}

static uint32_t nth_wanted(const struct build *build, const struct rank_build *rank, uint32_t nth)
{
    for (uint32_t s = 0; s < rank->steps.n; s++)
        if (wanted(build, &rank->steps.at[s]) && nth-- == 0)
            return s;
    return NO_ID;
}

/* Steps that all ranks measured: of equal number, or, where ranks count differently, of equal
 * place. Returns how many; 0 with no error when there are none. */
static int choose_samples(struct build *build, bool by_number, struct dpro_error *err)
{
    struct rank_build *lead = &build->ranks[0];
    for (uint32_t r = 0; r < build->n_ranks; r++) {
        struct rank_build *rank = &build->ranks[r];
        free(rank->sample_step);
        rank->n_samples = 0;
        rank->sample_step = malloc((lead->steps.n + 1) * sizeof *rank->sample_step);
        if (!rank->sample_step)
            return dpro_error_nomem(err);
    }
    uint32_t place = 0;
    for (uint32_t s = 0; s < lead->steps.n; s++) {
        if (!wanted(build, &lead->steps.at[s]))
            continue;
        uint32_t nth = 0;
        for (uint32_t before = 0; before < s; before++)
            nth += wanted(build, &lead->steps.at[before]) &&
                   lead->steps.at[before].number == lead->steps.at[s].number;
        bool all = true;
        for (uint32_t r = 0; r < build->n_ranks && all; r++) {
            struct rank_build *rank = &build->ranks[r];
            uint32_t found = by_number ? find_step(build, rank, lead->steps.at[s].number, nth)
                                       : nth_wanted(build, rank, place);
            rank->sample_step[rank->n_samples] = found;
            all = found != NO_ID;
        }
        place++;
        for (uint32_t r = 0; r < build->n_ranks && all; r++)
            build->ranks[r].n_samples++;
    }
    return (int)lead->n_samples;
}

/* How far values[i] lies from the middle of the sorted values: 0 to n. */
static double off_middle(const int64_t *values, uint32_t n, uint32_t i)
{
    uint32_t below = 0;
    for (uint32_t k = 0; k < n; k++)
        below += values[k] < values[i] || (values[k] == values[i] && k < i);
    return below * 2 > n ? below * 2.0 - n : n - below * 2.0;
}

/* The template: the iteration that most others equal, as seen over all ranks; of those, one that
 * follows another (so that what laps over is seen), then the one whose length is nearest the
 * median. */
static uint32_t choose_template(const struct build *build)
{
    uint32_t n = build->ranks[0].n_samples, best = 0;
    double best_score = -1;
    int64_t *lengths = calloc((size_t)n * 2 + 1, sizeof *lengths), *counts = lengths + n;
    for (uint32_t i = 0; i < n && lengths; i++) {
        const struct step *step = &build->ranks[0].steps.at[build->ranks[0].sample_step[i]];
        lengths[i] = step->end_ns - step->start_ns;
        for (uint32_t r = 0; r < build->n_ranks; r++)
            counts[i] += count_items(&build->ranks[r], build->ranks[r].sample_step[i]);
    }
    for (uint32_t i = 0; i < n && lengths; i++) {
        uint64_t equals = 0, follows = 0;
        for (uint32_t r = 0; r < build->n_ranks; r++) {
            const struct rank_build *rank = &build->ranks[r];
            uint64_t own = build->hashes[r][rank->sample_step[i]];
            follows += rank->steps.at[rank->sample_step[i]].follows;
            for (uint32_t k = 0; k < n; k++)
                equals += build->hashes[r][rank->sample_step[k]] == own;
        }
        double score = (double)equals * 16 * n + (follows == build->n_ranks ? 8.0 * n : 0) +
                       2 * (n - off_middle(counts, n, i)) + (n - off_middle(lengths, n, i));
        if (score > best_score) {
            best_score = score;
            best = i;
        }
    }
    free(lengths);
    return best;
}

/* An iteration that holds less than half of what a rank's iterations usually hold was not recorded
 * to its end: a file was cut, or buffers overflowed. Nothing is to be learnt from its times. */
static int leave_out_incomplete(struct build *build, struct dpro_error *err)
{
    for (uint32_t r = 0; r < build->n_ranks; r++) {
        struct rank_build *rank = &build->ranks[r];
        int64_t *counts = malloc((rank->steps.n + 1) * 2 * sizeof *counts);
        uint32_t n = 0;
        if (!counts)
            return dpro_error_nomem(err);
        int64_t *sorted = counts + rank->steps.n + 1;
        for (uint32_t s = 0; s < rank->steps.n; s++) {
            counts[s] = count_items(rank, s);
            if (wanted(build, &rank->steps.at[s]))
                sorted[n++] = counts[s];
        }
        qsort(sorted, n, sizeof *sorted, compare_i64);
        for (uint32_t s = 0; s < rank->steps.n && n > 1; s++) {
            if (!wanted(build, &rank->steps.at[s]) || counts[s] * 2 >= sorted[n / 2])
                continue;
            rank->steps.at[s].timed = false;
            if (build->join.n_incomplete++ == 0)
                build->join.first_incomplete_rank = r;
        }
        free(counts);
    }
    return 0;
}

static int prepare_samples(struct build *build, struct dpro_error *err)
{
    int status = leave_out_incomplete(build, err);
    if (status < 0)
        return status;
    uint32_t fewest = UINT32_MAX;
    int64_t low = INT64_MAX, high = INT64_MIN;
    for (uint32_t r = 0; r < build->n_ranks; r++) {
        uint32_t n = count_wanted(build, &build->ranks[r]);
        fewest = n < fewest ? n : fewest;
        for (uint32_t s = 0; s < build->ranks[r].steps.n; s++) {
            int64_t number = build->ranks[r].steps.at[s].number;
            low = number < low ? number : low;
            high = number > high ? number : high;
        }
    }
    if (fewest == 0)
        return dpro_error_set(err, DPRO_EEMPTY,
                              build->options->first_step || build->options->last_step
                                  ? "no iteration left by --steps; the trace has %lld to %lld"
                                  : "no ops found to replay in the trace (%lld..%lld); was the "
                                    "profiler active while the job trained?",
                              (long long)low, (long long)high);
    int n = choose_samples(build, true, err);
    if (n == 0)
        n = choose_samples(build, false, err);
    if (n < 0)
        return n;
    uint32_t template = choose_template(build);
    for (uint32_t r = 0; r < build->n_ranks; r++)
        build->ranks[r].template_step = build->ranks[r].sample_step[template];
    return 0;
}

/* ---- all together ---- */

static int create(struct build *build, struct dpro_error *err)
{
    const struct dpro_trace *trace = build->trace;
    build->n_ranks = trace->n_ranks;
    if (build->options->single_rank && build->n_ranks > 1)
        build->n_ranks = 1;
    build->ranks = calloc(build->n_ranks + 1, sizeof *build->ranks);
    build->errors = calloc(build->n_ranks + 1, sizeof *build->errors);
    build->hashes = calloc(build->n_ranks + 1, sizeof *build->hashes);
    build->classes = calloc(trace->names.n + 1, sizeof *build->classes);
    build->join.clocks = calloc(build->n_ranks + 1, sizeof *build->join.clocks);
    if (!build->ranks || !build->errors || !build->hashes || !build->classes || !build->join.clocks)
        return dpro_error_nomem(err);
    for (uint32_t id = 0; id < trace->names.n; id++)
        build->classes[id] =
            name_classify(strtab_get(&trace->names, id), strtab_len(&trace->names, id));
    for (uint32_t r = 0; r < build->n_ranks; r++) {
        build->ranks[r].trace = &trace->ranks[r];
        build->ranks[r].names = &trace->names;
        build->ranks[r].classes = build->classes;
    }
    build->join.ranks = build->ranks;
    build->join.n_ranks = build->n_ranks;
    build->join.world_size = trace->world_size;
    return 0;
}

static void destroy(struct build *build)
{
    for (uint32_t r = 0; build->ranks && r < build->n_ranks; r++) {
        struct rank_build *rank = &build->ranks[r];
        build_forget(rank);
        array_fini(&rank->steps);
        array_fini(&rank->ops);
        array_fini(&rank->edges);
        array_fini(&rank->devices);
        array_fini(&rank->collectives);
        array_fini(&rank->tensors);
        free(rank->sample_step);
        free(rank->start_ns);
        free(rank->end_ns);
        free(rank->seen_start_ns);
        free(rank->seen_end_ns);
        if (build->hashes)
            free(build->hashes[r]);
    }
    free(build->ranks);
    free(build->errors);
    free(build->hashes);
    free(build->classes);
    join_fini(&build->join);
}

static int run(struct build *build, struct dpro_graph **graph, struct dpro_error *err)
{
    if (build->trace->n_ranks == 0)
        return dpro_error_set(err, DPRO_EEMPTY, "the trace holds no rank");
    int status = create(build, err);
    if (status < 0)
        return status;
    pool_run(build->n_ranks, 0, cut_rank, build);
    if ((status = first_error(build, err)) < 0 || (status = prepare_samples(build, err)) < 0)
        return status;
    pool_run(build->n_ranks, 0, link_rank, build);
    if ((status = first_error(build, err)) < 0)
        return status;
    uint64_t n_ops = 0;
    for (uint32_t r = 0; r < build->n_ranks; r++)
        n_ops += build->ranks[r].n_timed;
    if (n_ops <= build->n_ranks) /* boundaries only */
        return dpro_error_set(err, DPRO_EEMPTY,
                              "no ops found within the trace's iterations; was the profiler active "
                              "while the job trained?");
    if ((status = join_match(&build->join, err)) < 0 ||
        (status = join_clocks(&build->join, err)) < 0)
        return status;
    join_cut_waiting(&build->join);
    return assemble_graph(&build->join, build->trace, build->options, graph, err);
}

int dpro_graph_build(const struct dpro_trace *trace, const struct dpro_graph_options *options,
                     struct dpro_graph **graph, struct dpro_error *err)
{
    struct dpro_graph_options defaults = {0};
    struct build build = {.trace = trace, .options = options ? options : &defaults};
    int status = run(&build, graph, err);
    destroy(&build);
    return status;
}
