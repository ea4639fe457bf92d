/* graph/steps/choose_steps.c: which iterations are learnt from, and which one gives the graph its
 * ops. */
#include "graph/steps/choose_steps.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/map.h"
#include "base/memory.h"
#include "base/sort.h"
#include "graph/names/span_names.h"

static bool wanted(const struct chooser *c, const struct step *step)
{
    const struct dpro_graph_options *o = c->options;
    if (!step->timed)
        return false;
    return (o->first_step == 0 && o->last_step == 0) ||
           (step->number >= o->first_step && step->number <= o->last_step);
}

struct numbered {
    int64_t number;
    uint32_t step;
};

ORDER(compare_numbered, struct numbered, ASCENDING(number) ?: ASCENDING(step));

/* The steps to learn from, by number (equal ones in their order) or as they are. */
static int list_wanted(const struct chooser *c, const struct rank_build *rank, bool by_number,
                       struct numbered **list, uint32_t *n)
{
    *n = 0;
    *list = mem_alloc((rank->steps.n + 1) * sizeof **list);
    if (!*list)
        return -1;
    for (uint32_t s = 0; s < rank->steps.n; s++)
        if (wanted(c, &rank->steps.at[s]))
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

ORDER(compare_steps, struct numbered, ASCENDING(step));

/* Steps that all ranks measured: of equal number, or, where ranks count differently, of equal
 * place. Returns how many; 0 with no error when there are none. */
static int choose_samples(struct chooser *c, bool by_number, struct dpro_error *err)
{
    struct numbered *common = NULL, *own = NULL;
    uint32_t n, n_own;
    if (list_wanted(c, &c->ranks[0], by_number, &common, &n) < 0)
        return dpro_error_nomem(err);
    for (uint32_t r = 1; r < c->n_ranks; r++) {
        if (list_wanted(c, &c->ranks[r], by_number, &own, &n_own) < 0)
            goto no_memory;
        keep_common(common, &n, own, n_own, by_number);
        mem_free(own);
        own = NULL;
    }
    for (uint32_t r = 0; r < c->n_ranks; r++) {
        struct rank_build *rank = &c->ranks[r];
        mem_free(rank->sample_step);
        rank->sample_step = mem_alloc((n + (size_t)1) * sizeof *rank->sample_step);
        if (!rank->sample_step || list_wanted(c, rank, by_number, &own, &n_own) < 0)
            goto no_memory;
        uint32_t found = 0;
        for (uint32_t k = 0; k < n_own && found < n; k++)
            if (!by_number || own[k].number == common[found].number)
                rank->sample_step[found++] = own[k].step;
        rank->n_samples = n;
        mem_free(own);
        own = NULL;
    }
    /* in the lead's order of time */
    if (by_number && n > 1) {
        for (uint32_t i = 0; i < n; i++)
            common[i] = (struct numbered){i, c->ranks[0].sample_step[i]};
        qsort(common, n, sizeof *common, compare_steps);
        uint32_t *moved = mem_alloc(n * sizeof *moved);
        if (!moved)
            goto no_memory;
        for (uint32_t r = 0; r < c->n_ranks; r++) {
            for (uint32_t i = 0; i < n; i++)
                moved[i] = c->ranks[r].sample_step[common[i].number];
            memcpy(c->ranks[r].sample_step, moved, n * sizeof *moved);
        }
        mem_free(moved);
    }
    mem_free(common);
    return (int)n;

no_memory:
    mem_free(common);
    mem_free(own);
    return dpro_error_nomem(err);
}

static int64_t count_items(const struct rank_build *rank, uint32_t step)
{
    int64_t n = 0;
    for (uint32_t l = 0; l < rank->tracks.n; l++)
        n += rank->tracks.at[l].first[step + 1] - rank->tracks.at[l].first[step];
    return n;
}

/* How far each value lies from the middle of all: 0 to n. */
static int off_middle(const int64_t *values, uint32_t n, double *off)
{
    struct numbered *sorted = mem_alloc((n + (size_t)1) * sizeof *sorted);
    if (!sorted)
        return -1;
    for (uint32_t i = 0; i < n; i++)
        sorted[i] = (struct numbered){values[i], i};
    qsort(sorted, n, sizeof *sorted, compare_numbered);
    for (uint32_t below = 0; below < n; below++)
        off[sorted[below].step] = below * 2 > n ? below * 2.0 - n : n - below * 2.0;
    mem_free(sorted);
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

/* The reference iteration: the one that most others equal, as seen over all ranks; of those, one
 * that follows another (so that what overlaps is seen), then the one whose length is nearest the
 * median. */
static int choose_reference(const struct chooser *c, uint32_t *best)
{
    uint32_t n = c->ranks[0].n_samples;
    double best_score = -1;
    int64_t *values = mem_array(n + (size_t)1, sizeof *values);
    uint64_t *equals = mem_array(n + (size_t)1, sizeof *equals);
    double *off_length = mem_alloc((n + (size_t)1) * sizeof *off_length);
    double *off_count = mem_alloc((n + (size_t)1) * sizeof *off_count);
    int status = values && equals && off_length && off_count ? 0 : -1;
    for (uint32_t r = 0; r < c->n_ranks && status == 0; r++)
        status = count_equals(&c->ranks[r], c->hashes[r], equals);
    for (uint32_t i = 0; i < n && status == 0; i++)
        values[i] = build_step_ns(&c->ranks[0], c->ranks[0].sample_step[i]);
    if (status == 0)
        status = off_middle(values, n, off_length);
    for (uint32_t i = 0; i < n && status == 0; i++) {
        values[i] = 0;
        for (uint32_t r = 0; r < c->n_ranks; r++)
            values[i] += count_items(&c->ranks[r], c->ranks[r].sample_step[i]);
    }
    if (status == 0)
        status = off_middle(values, n, off_count);
    *best = 0;
    for (uint32_t i = c->choice.has_lead; i < n && status == 0; i++) {
        bool follows = true;
        for (uint32_t r = 0; r < c->n_ranks; r++)
            follows &= c->ranks[r].steps.at[c->ranks[r].sample_step[i]].follows;
        double score = (double)equals[i] * 16 * n + (follows ? 8.0 * n : 0) +
                       2 * (n - off_count[i]) + (n - off_length[i]);
        if (score > best_score) {
            best_score = score;
            *best = i;
        }
    }
    mem_free(values);
    mem_free(equals);
    mem_free(off_length);
    mem_free(off_count);
    return status;
}

/* An iteration that holds less than half of what a rank's iterations usually hold was not recorded
 * to its end: a file was cut, or buffers overflowed. Nothing is to be learnt from its times. */
static int leave_out_incomplete(struct chooser *c, struct dpro_error *err)
{
    for (uint32_t r = 0; r < c->n_ranks; r++) {
        struct rank_build *rank = &c->ranks[r];
        int64_t *counts = mem_alloc((rank->steps.n + 1) * 2 * sizeof *counts);
        uint32_t n = 0;
        if (!counts)
            return dpro_error_nomem(err);
        int64_t *sorted = counts + rank->steps.n + 1;
        for (uint32_t s = 0; s < rank->steps.n; s++) {
            counts[s] = count_items(rank, s);
            if (wanted(c, &rank->steps.at[s]))
                sorted[n++] = counts[s];
        }
        sort_i64(sorted, n);
        for (uint32_t s = 0; s < rank->steps.n && n > 1; s++) {
            if (!wanted(c, &rank->steps.at[s]) || counts[s] * 2 >= sorted[n / 2])
                continue;
            rank->steps.at[s].timed = false;
            struct left_out left_out = {rank->steps.at[s].number,
                                        r,
                                        false,
                                        true,
                                        false,
                                        "it holds less than half of the usual ops"};
            if (array_push(&c->choice.left_out, left_out) < 0) {
                mem_free(counts);
                return dpro_error_nomem(err);
            }
        }
        mem_free(counts);
    }
    return 0;
}

/* Servers' answers overlap with the next iteration. */
static bool overlaps_next(const struct chooser *c)
{
    const struct rank_build *lead = &c->ranks[0];
    bool exchanges = false;
    for (uint32_t i = 0; i < lead->trace->n_spans && !exchanges; i++)
        exchanges = lead->classes[lead->trace->spans[i].name] & NAME_EXCHANGE;
    return exchanges;
}

/* What a recording's first iteration found on the links and in the servers' queues was not
 * recorded. Where there are others that follow it, it only leads up to them. */
static bool leads(const struct chooser *c)
{
    enum { ENOUGH = 3 };
    bool first = false;
    for (uint32_t r = 0; r < c->n_ranks; r++) {
        const struct rank_build *rank = &c->ranks[r];
        if (rank->n_samples < ENOUGH)
            return false;
        first |= !rank->steps.at[rank->sample_step[0]].follows;
        for (uint32_t s = 1; s < ENOUGH; s++)
            if (!rank->steps.at[rank->sample_step[s]].follows ||
                rank->sample_step[s] != rank->sample_step[s - 1] + 1)
                return false;
    }
    return first;
}

int choose_steps(struct chooser *c, struct dpro_error *err)
{
    int status = leave_out_incomplete(c, err);
    if (status == 0)
        status = odd_ends_leave_out(c, err);
    if (status < 0)
        return status;
    uint32_t fewest = UINT32_MAX;
    int64_t low = INT64_MAX, high = INT64_MIN;
    for (uint32_t r = 0; r < c->n_ranks; r++) {
        uint32_t n = 0;
        for (uint32_t s = 0; s < c->ranks[r].steps.n; s++) {
            n += wanted(c, &c->ranks[r].steps.at[s]);
            int64_t number = c->ranks[r].steps.at[s].number;
            low = number < low ? number : low;
            high = number > high ? number : high;
        }
        fewest = n < fewest ? n : fewest;
    }
    if (fewest == 0 && low <= high && (c->options->first_step || c->options->last_step))
        return dpro_error_set(err, DPRO_EEMPTY,
                              "no iteration left by --steps; the trace has %lld to %lld",
                              (long long)low, (long long)high);
    if (fewest == 0)
        return dpro_error_set(err, DPRO_EEMPTY,
                              "no ops found to replay in the trace; was the profiler active while "
                              "the job trained?");
    int n = choose_samples(c, true, err);
    if (n == 0) {
        n = choose_samples(c, false, err);
        c->choice.by_place = true;
    }
    if (n < 0)
        return n;
    c->choice.overlaps_next = overlaps_next(c);
    c->choice.has_lead = c->choice.overlaps_next && leads(c);
    uint32_t reference;
    if (choose_reference(c, &reference) < 0)
        return dpro_error_nomem(err);
    for (uint32_t r = 0; r < c->n_ranks; r++)
        c->ranks[r].steps.reference = c->ranks[r].sample_step[reference];
    return 0;
}
