/* graph/build.c: from a trace to the global data-flow graph: every rank alone, then together. */
#include "graph/build.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "base/map.h"
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

/* Notes what was seen in the template and lets go of what only building the rank needed: items take
 * as much memory as all the times that are kept. */
static int keep_seen(struct rank_build *rank)
{
    size_t first = (size_t)rank->template_step * rank->n_timed;
    rank->seen_start_ns = malloc((rank->n_timed + (size_t)1) * sizeof *rank->seen_start_ns);
    rank->seen_end_ns = malloc((rank->n_timed + (size_t)1) * sizeof *rank->seen_end_ns);
    if (!rank->seen_start_ns || !rank->seen_end_ns)
        return -1;
    for (uint32_t o = 0; o < rank->n_timed; o++) {
        uint32_t item = rank->match[first + o];
        rank->seen_start_ns[o] =
            item == NO_ID ? rank->start_ns[first + o] : rank->items.at[item].start_ns;
        rank->seen_end_ns[o] =
            item == NO_ID ? rank->end_ns[first + o] : rank->items.at[item].end_ns;
    }
    array_fini(&rank->items);
    free(rank->match);
    free(rank->phases);
    rank->match = NULL;
    rank->phases = NULL;
    return 0;
}

static void link_rank(void *arg, size_t r)
{
    struct build *build = arg;
    struct rank_build *rank = &build->ranks[r];
    struct dpro_error *err = &build->errors[r];
    if (build_ops(rank, err) < 0 || build_local_edges(rank, err) < 0)
        return;
    if (build_tensors(rank, err) == 0 && keep_seen(rank) < 0)
        dpro_error_nomem(err);
}

/* ---- which iterations to learn from ---- */

static bool wanted(const struct build *build, const struct step *step)
{
    const struct dpro_graph_options *o = build->options;
    if (!step->timed)
        return false;
    return (o->first_step == 0 && o->last_step == 0) ||
           (step->number >= o->first_step && step->number <= o->last_step);
}

struct numbered {
    int64_t number;
    uint32_t step;
};

static int compare_numbered(const void *a, const void *b)
{
    const struct numbered *x = a, *y = b;
    if (x->number != y->number)
        return x->number < y->number ? -1 : 1;
    return x->step < y->step ? -1 : x->step > y->step;
}

/* The steps to learn from, by number (equal ones in their order) or as they are. */
static int list_wanted(const struct build *build, const struct rank_build *rank, bool by_number,
                       struct numbered **list, uint32_t *n)
{
    *n = 0;
    *list = malloc((rank->steps.n + 1) * sizeof **list);
    if (!*list)
        return -1;
    for (uint32_t s = 0; s < rank->steps.n; s++)
        if (wanted(build, &rank->steps.at[s]))
            (*list)[(*n)++] = (struct numbered){rank->steps.at[s].number, s};
    if (by_number && *n > 1)
        qsort(*list, *n, sizeof **list, compare_numbered);
    return 0;
}

/* Removes from *lead what the rank has not; of steps of one number the k-th is the k-th there. */
static void keep_common(struct numbered *lead, uint32_t *n_lead, const struct numbered *own,
                        uint32_t n_own, bool by_number)
{
    uint32_t kept = 0;
    for (uint32_t i = 0, k = 0; i < *n_lead && k < n_own;) {
        if (by_number && lead[i].number != own[k].number) {
            if (lead[i].number < own[k].number)
                i++;
            else
                k++;
            continue;
        }
        lead[kept++] = lead[i++];
        k++;
    }
    *n_lead = kept;
}

static int compare_steps(const void *a, const void *b)
{
    const struct numbered *x = a, *y = b;
    return x->step < y->step ? -1 : x->step > y->step;
}

/* Steps that all ranks measured: of equal number, or, where ranks count differently, of equal
 * place. Returns how many; 0 with no error when there are none. */
static int choose_samples(struct build *build, bool by_number, struct dpro_error *err)
{
    struct numbered *common = NULL, *own = NULL;
    uint32_t n, n_own;
    if (list_wanted(build, &build->ranks[0], by_number, &common, &n) < 0)
        return dpro_error_nomem(err);
    for (uint32_t r = 1; r < build->n_ranks; r++) {
        if (list_wanted(build, &build->ranks[r], by_number, &own, &n_own) < 0)
            goto no_memory;
        keep_common(common, &n, own, n_own, by_number);
        free(own);
        own = NULL;
    }
    for (uint32_t r = 0; r < build->n_ranks; r++) {
        struct rank_build *rank = &build->ranks[r];
        free(rank->sample_step);
        rank->sample_step = malloc((n + (size_t)1) * sizeof *rank->sample_step);
        if (!rank->sample_step || list_wanted(build, rank, by_number, &own, &n_own) < 0)
            goto no_memory;
        uint32_t found = 0;
        for (uint32_t k = 0; k < n_own && found < n; k++)
            if (!by_number || own[k].number == common[found].number)
                rank->sample_step[found++] = own[k].step;
        rank->n_samples = n;
        free(own);
        own = NULL;
    }
    /* in the lead's order of time */
    if (by_number && n > 1) {
        for (uint32_t i = 0; i < n; i++)
            common[i] = (struct numbered){i, build->ranks[0].sample_step[i]};
        qsort(common, n, sizeof *common, compare_steps);
        uint32_t *moved = malloc(n * sizeof *moved);
        if (!moved)
            goto no_memory;
        for (uint32_t r = 0; r < build->n_ranks; r++) {
            for (uint32_t i = 0; i < n; i++)
                moved[i] = build->ranks[r].sample_step[common[i].number];
            memcpy(build->ranks[r].sample_step, moved, n * sizeof *moved);
        }
        free(moved);
    }
    free(common);
    return (int)n;

no_memory:
    free(common);
    free(own);
    return dpro_error_nomem(err);
}

static int64_t count_items(const struct build *build, uint32_t sample)
{
    int64_t n = 0;
    for (uint32_t r = 0; r < build->n_ranks; r++) {
        const struct rank_build *rank = &build->ranks[r];
        for (uint32_t l = 0; l < rank->n_lanes; l++)
            n += rank->lanes[l].first[rank->sample_step[sample] + 1] -
                 rank->lanes[l].first[rank->sample_step[sample]];
    }
    return n;
}

/* How far each value lies from the middle of all: 0 to n. */
static int off_middle(const int64_t *values, uint32_t n, double *off)
{
    struct numbered *sorted = malloc((n + (size_t)1) * sizeof *sorted);
    if (!sorted)
        return -1;
    for (uint32_t i = 0; i < n; i++)
        sorted[i] = (struct numbered){values[i], i};
    qsort(sorted, n, sizeof *sorted, compare_numbered);
    for (uint32_t below = 0; below < n; below++)
        off[sorted[below].step] = below * 2 > n ? below * 2.0 - n : n - below * 2.0;
    free(sorted);
    return 0;
}

/* Adds to equals[i] how many of a rank's samples are the same as its i-th. */
static int count_equals(const struct rank_build *rank, const uint64_t *hashes, uint64_t *equals)
{
    struct map counts = {0};
    int status = 0;
    for (uint32_t i = 0; i < rank->n_samples && status == 0; i++) {
        uint64_t key = hashes[rank->sample_step[i]] | 1, n = 0;
        map_get(&counts, key, &n);
        status = map_set(&counts, key, n + 1);
    }
    for (uint32_t i = 0; i < rank->n_samples && status == 0; i++) {
        uint64_t n = 0;
        map_get(&counts, hashes[rank->sample_step[i]] | 1, &n);
        equals[i] += n;
    }
    map_fini(&counts);
    return status;
}

/* The template: the iteration that most others equal, as seen over all ranks; of those, one that
 * follows another (so that what laps over is seen), then the one whose length is nearest the
 * median. */
static int choose_template(const struct build *build, uint32_t *best)
{
    uint32_t n = build->ranks[0].n_samples;
    double best_score = -1;
    int64_t *values = malloc((n + (size_t)1) * sizeof *values);
    uint64_t *equals = calloc(n + (size_t)1, sizeof *equals);
    double *off_length = malloc((n + (size_t)1) * sizeof *off_length);
    double *off_count = malloc((n + (size_t)1) * sizeof *off_count);
    int status = values && equals && off_length && off_count ? 0 : -1;
    for (uint32_t r = 0; r < build->n_ranks && status == 0; r++)
        status = count_equals(&build->ranks[r], build->hashes[r], equals);
    for (uint32_t i = 0; i < n && status == 0; i++) {
        const struct step *step = &build->ranks[0].steps.at[build->ranks[0].sample_step[i]];
        values[i] = step->end_ns - step->start_ns;
    }
    if (status == 0)
        status = off_middle(values, n, off_length);
    for (uint32_t i = 0; i < n && status == 0; i++)
        values[i] = count_items(build, i);
    if (status == 0)
        status = off_middle(values, n, off_count);
    *best = 0;
    for (uint32_t i = 0; i < n && status == 0; i++) {
        bool follows = true;
        for (uint32_t r = 0; r < build->n_ranks; r++)
            follows &= build->ranks[r].steps.at[build->ranks[r].sample_step[i]].follows;
        double score = (double)equals[i] * 16 * n + (follows ? 8.0 * n : 0) +
                       2 * (n - off_count[i]) + (n - off_length[i]);
        if (score > best_score) {
            best_score = score;
            *best = i;
        }
    }
    free(values);
    free(equals);
    free(off_length);
    free(off_count);
    return status;
}

static int prepare_samples(struct build *build, struct dpro_error *err)
{
    uint32_t fewest = UINT32_MAX;
    int64_t low = INT64_MAX, high = INT64_MIN;
    for (uint32_t r = 0; r < build->n_ranks; r++) {
        uint32_t n = 0;
        for (uint32_t s = 0; s < build->ranks[r].steps.n; s++) {
            n += wanted(build, &build->ranks[r].steps.at[s]);
            int64_t number = build->ranks[r].steps.at[s].number;
            low = number < low ? number : low;
            high = number > high ? number : high;
        }
        fewest = n < fewest ? n : fewest;
    }
    if (fewest == 0 && low <= high && (build->options->first_step || build->options->last_step))
        return dpro_error_set(err, DPRO_EEMPTY,
                              "no iteration left by --steps; the trace has %lld to %lld",
                              (long long)low, (long long)high);
    if (fewest == 0)
        return dpro_error_set(err, DPRO_EEMPTY,
                              "no ops found to replay in the trace; was the profiler active while "
                              "the job trained?");
    int n = choose_samples(build, true, err);
    if (n == 0) {
        n = choose_samples(build, false, err);
        build->join.by_place = true;
    }
    if (n < 0)
        return n;
    uint32_t template;
    if (choose_template(build, &template) < 0)
        return dpro_error_nomem(err);
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
        for (uint32_t l = 0; l < rank->n_lanes; l++)
            free(rank->lanes[l].first);
        free(rank->lanes);
        array_fini(&rank->steps);
        array_fini(&rank->items);
        array_fini(&rank->ops);
        array_fini(&rank->edges);
        array_fini(&rank->devices);
        array_fini(&rank->collectives);
        array_fini(&rank->tensors);
        free(rank->sample_step);
        free(rank->match);
        free(rank->start_ns);
        free(rank->end_ns);
        free(rank->phases);
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
