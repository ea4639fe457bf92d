/* Which iterations are learnt from, and which is the reference iteration. */
#include "graph/steps/choose_steps.h"

static bool steps_wanted(const struct chooser *c, const struct step *step)
{
    const struct dpro_job_options *o = c->options;
    if (!step->timed)
        return false;
    return (o->first_step == 0 && o->last_step == 0) ||
           (step->number >= o->first_step && step->number <= o->last_step);
}

/* Steps of one number that all ranks measured, in the lead's order of time; of those with one
 * number on a rank the k-th is the k-th on the others. Returns how many. */
static uint32_t choose_samples(struct chooser *c)
{
    SCRATCH struct map n_ranks = {0}, samples = {0};
    for (int pass = 0; pass < 2; pass++) /* count, then fill in; the lead numbers the samples */
        EACH_OF (struct rank_build, rank, c->ranks, c->n_ranks) {
            SCRATCH struct map seen = {0};
            uint64_t sample;
            if (pass == 1) {
                mem_free(rank->sample_step);
                rank->sample_step = mem_alloc((rank->steps.n + 1) * sizeof *rank->sample_step);
            }
            for (uint32_t s = 0; s < rank->steps.n; s++) {
                if (!steps_wanted(c, &rank->steps.at[s]))
                    continue;
                uint64_t key = map_key((uint64_t)rank->steps.at[s].number);
                key = map_key(key + map_add(&seen, key, 1));
                if (pass == 0)
                    map_add(&n_ranks, key, 1);
                else if (map_or(&n_ranks, key, 0) == c->n_ranks && rank == c->ranks)
                    rank->sample_step[map_number(&samples, key)] = s;
                else if (map_get(&samples, key, &sample))
                    rank->sample_step[sample] = s;
            }
            rank->n_samples = (uint32_t)samples.n;
        }
    return (uint32_t)samples.n;
}

/* How far each value lies from the median: 0 to n. */
static double *off_median(const int64_t *values, uint32_t n, struct arena *scratch)
{
    double *off = arena_array(scratch, n, sizeof *off);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t below = 0;
        for (uint32_t k = 0; k < n; k++)
            below += values[k] < values[i] || (values[k] == values[i] && k < i);
        off[i] = fabs(2.0 * below - n);
    }
    return off;
}

/* Adds to equals[i] how many of a rank's samples are the same as its i-th. */
static void count_equals(const struct rank_build *rank, uint64_t *equals)
{
    SCRATCH struct map counts = {0};
    for (uint32_t i = 0; i < rank->n_samples; i++)
        map_add(&counts, rank->steps.at[rank->sample_step[i]].hash | 1, 1);
    for (uint32_t i = 0; i < rank->n_samples; i++)
        equals[i] += map_add(&counts, rank->steps.at[rank->sample_step[i]].hash | 1, 0);
}

/* What an iteration holds, over all ranks: kernels, and on ranks without a GPU ops. */
struct step_held {
    int64_t works, collectives, waits;
};

static struct step_held held_in(const struct chooser *c, uint32_t sample)
{
    struct step_held held = {0};
    for (uint32_t r = 0; r < c->n_ranks; r++) {
        const struct rank_build *rank = &c->ranks[r];
        const struct step_content *of = &rank->steps.at[rank->sample_step[sample]].holds;
        held.works += of->n_works > 0 ? of->n_kernels : of->n_ops;
        held.collectives += of->n_collectives;
        held.waits += of->n_waits;
    }
    return held;
}

/* Some iterations compute more than the usual one, each as much, such as those with a validation
 * pass: one of them, whose further ops take no time in the rest. Not one that waits for a GPU more
 * often, whose CPU runs ahead else: the call would hold it up in all. Else the usual one. */
static uint32_t choose_fullest(const struct chooser *c, uint32_t usual)
{
    enum { LEAST_PCT = 5 }; /* of its work; less may be chance */
    struct step_held most = held_in(c, usual);
    int64_t least = most.works + most.works * LEAST_PCT / 100;
    bool ahead = false;
    for (uint32_t r = 0; r < c->n_ranks; r++)
        ahead |= c->ranks[r].pace.track != NO_ID;
    for (uint32_t i = c->choice.has_lead, n = c->ranks[0].n_samples; i < n; i++) {
        struct step_held held = held_in(c, i);
        uint32_t n_alike = 0;
        for (uint32_t k = c->choice.has_lead; k < n; k++)
            n_alike += held_in(c, k).works == held.works;
        if (held.works <= MAX(most.works, least) || held.collectives != most.collectives ||
            (ahead && held.waits > most.waits) || n_alike < 2)
            continue;
        most = held;
        usual = i;
    }
    return usual;
}

/* The reference iteration: the one that most others equal, as seen over all ranks; of those, one
 * that follows another (so that what overlaps is seen), then the one whose length is nearest the
 * median. */
static uint32_t choose_reference(const struct chooser *c)
{
    uint32_t n = c->ranks[0].n_samples, best = 0;
    double best_score = -1;
    SCRATCH_ARENA struct arena scratch = {0};
    int64_t *lengths = arena_array(&scratch, n, sizeof *lengths);
    int64_t *counts = arena_array(&scratch, n, sizeof *counts);
    uint64_t *equals = arena_array(&scratch, n, sizeof *equals);
    for (uint32_t r = 0; r < c->n_ranks; r++)
        count_equals(&c->ranks[r], equals);
    for (uint32_t i = 0; i < n; i++) {
        lengths[i] = build_step_ns(&c->ranks[0], c->ranks[0].sample_step[i]);
        for (uint32_t r = 0; r < c->n_ranks; r++)
            counts[i] += c->ranks[r].steps.at[c->ranks[r].sample_step[i]].n_slices;
    }
    const double *off_length = off_median(lengths, n, &scratch);
    const double *off_count = off_median(counts, n, &scratch);
    for (uint32_t i = c->choice.has_lead; i < n; i++) {
        bool follows = true;
        for (uint32_t r = 0; r < c->n_ranks; r++)
            follows &= c->ranks[r].steps.at[c->ranks[r].sample_step[i]].follows;
        double score = (double)equals[i] * 16 * n + (follows ? 8.0 * n : 0) +
                       2 * (n - off_count[i]) + (n - off_length[i]);
        if (score > best_score) {
            best_score = score;
            best = i;
        }
    }
    return choose_fullest(c, best);
}

static int64_t mean_ns(const struct chooser *c, uint32_t sample)
{
    int64_t sum = 0;
    for (uint32_t r = 0; r < c->n_ranks; r++)
        sum += build_step_ns(&c->ranks[r], c->ranks[r].sample_step[sample]) / c->n_ranks;
    return sum;
}

/* The iteration to show: the one that was asked for, or the one nearest to the mean, as the
 * prediction is; of equally near ones *shown, as it is. */
static int choose_shown(const struct chooser *c, uint32_t *shown, struct dpro_error *err)
{
    const struct rank_build *lead = &c->ranks[0];
    const int64_t *asked = c->options->shown;
    uint32_t first = c->choice.has_lead, n = lead->n_samples;
    int64_t mean = 0;
    for (uint32_t s = first; s < n; s++) {
        mean += mean_ns(c, s) / (n - first);
        if (asked && lead->steps.at[lead->sample_step[s]].number == *asked) {
            *shown = s;
            return 0;
        }
    }
    if (asked)
        return dpro_error_set(
            err, DPRO_EUSAGE, "iteration %lld was not measured on all ranks; they are %lld to %lld",
            (long long)*asked, (long long)lead->steps.at[lead->sample_step[first]].number,
            (long long)lead->steps.at[lead->sample_step[n - 1]].number);
    for (uint32_t s = first; s < n; s++)
        if (llabs(mean_ns(c, s) - mean) < llabs(mean_ns(c, *shown) - mean))
            *shown = s;
    return 0;
}

/* Whether it may be the one within which a damaged file ends: the last of its window, which holds
 * less than each other one. */
static bool may_be_cut(const struct rank_build *rank, uint32_t s)
{
    const struct step *step = &rank->steps.at[s];
    int64_t least = INT64_MAX;
    if (step->window >= rank->trace->n_windows || !rank->trace->windows[step->window].is_cut ||
        (s + 1 < rank->steps.n && rank->steps.at[s + 1].window == step->window))
        return false;
    for (uint32_t i = 0; i < rank->steps.n; i++)
        if (i != s && rank->steps.at[i].timed)
            least = MIN(least, rank->steps.at[i].n_slices);
    return step->n_slices < least;
}

static uint32_t first_cut(const struct rank_build *rank)
{
    uint32_t w = 0;
    while (w < rank->trace->n_windows && !rank->trace->windows[w].is_cut)
        w++;
    return w < rank->trace->n_windows ? w : NO_ID;
}

uint32_t steps_cut_window(const struct chooser *c, uint32_t rank)
{
    EACH (const struct step, step, c->ranks[rank].steps)
        if (steps_wanted(c, step))
            return NO_ID;
    return first_cut(&c->ranks[rank]);
}

/* The most collectives of an iteration of the rank that is wanted. */
static int64_t most_collectives(const struct chooser *c, const struct rank_build *rank)
{
    int64_t most = 0;
    EACH (const struct step, step, rank->steps)
        if (steps_wanted(c, step))
            most = MAX(most, step->holds.n_collectives);
    return most;
}

void steps_leave_out_lacking(struct chooser *c)
{
    int64_t least = INT64_MAX;
    for (uint32_t r = 0; r < c->n_ranks; r++)
        if (first_cut(&c->ranks[r]) == NO_ID)
            least = MIN(least, most_collectives(c, &c->ranks[r]));
    for (uint32_t r = 0; r < c->n_ranks && least < INT64_MAX; r++) {
        size_t kept = 0;
        if (first_cut(&c->ranks[r]) == NO_ID || most_collectives(c, &c->ranks[r]) >= least)
            continue;
        EACH (struct step, step, c->ranks[r].steps)
            step->timed = false;
        EACH (const struct left_out, odd, c->choice.left_out)
            if (odd->rank != r)
                c->choice.left_out.at[kept++] = *odd;
        c->choice.left_out.n = kept;
    }
}

/* An iteration that holds less than half of what a rank's iterations usually hold was not recorded
 * to its end: a file was cut, or buffers overflowed. Nothing is to be learnt from its times. */
void steps_leave_out_incomplete(struct chooser *c)
{
    for (uint32_t r = 0; r < c->n_ranks; r++) {
        struct rank_build *rank = &c->ranks[r];
        size_t n_before = c->choice.left_out.n;
        SCRATCH ARRAY(int64_t) counts = {0};
        for (uint32_t s = 0; s < rank->steps.n; s++)
            if (steps_wanted(c, &rank->steps.at[s]))
                array_push(&counts, rank->steps.at[s].n_slices);
        int64_t usual = stats_median_upper_i64(counts.at, counts.n);
        for (uint32_t s = 0; s < rank->steps.n; s++) {
            struct step *step = &rank->steps.at[s];
            bool half = step->n_slices * 2 < usual && !step_is_whole(rank, s);
            if (!steps_wanted(c, step) || !(half || may_be_cut(rank, s)))
                continue;
            step->timed = false;
            struct left_out odd = {.number = step->number, .rank = r, .incomplete = true};
            snprintf(odd.reason, sizeof odd.reason, "%s",
                     half ? "it holds less than half of the usual ops; was its file cut short?"
                          : "it holds fewer ops than others, and its file is cut off within it");
            array_push(&c->choice.left_out, odd);
        }
        if (steps_cut_window(c, r) != NO_ID)
            c->choice.left_out.n = n_before; /* so is the rank */
    }
}

/* What a recording's first iteration found on the links and in the servers' queues was not
 * recorded. Where there are others that follow it, it only leads up to them. */
static bool steps_leads(const struct chooser *c)
{
    enum { ENOUGH = 3 };
    bool first = false;
    EACH_OF (const struct rank_build, rank, c->ranks, c->n_ranks) {
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

static int refuse_empty(const struct chooser *c, struct dpro_error *err)
{
    for (uint32_t r = 0; r < c->n_ranks; r++) {
        const struct trace_rank *trace = c->ranks[r].trace;
        uint32_t w = steps_cut_window(c, r);
        if (w != NO_ID)
            return dpro_error_set(err, DPRO_EEMPTY,
                                  "no whole iteration of rank %d is left: %.500s is cut off, or "
                                  "damaged; copy or record it again",
                                  trace->rank, c->files[trace->windows[w].file].path);
        if (c->ranks[r].steps.n == 0)
            return dpro_error_set(err, DPRO_EEMPTY,
                                  "no iteration found in the profile of rank %d; was the profiler "
                                  "active while the job trained?",
                                  trace->rank);
    }
    return dpro_error_set(err, DPRO_EEMPTY,
                          "no iteration is left that all ranks measured; was the profiler active "
                          "while the job trained?");
}

/* No range has the name that the user said: some that there are. */
static int refuse_mark(const struct rank_build *rank, const char *pattern, struct dpro_error *err)
{
    enum { NAMED = 5 };
    SCRATCH struct map named = {0};
    char list[300] = "";
    for (uint32_t i = 0; i < rank->trace->n_spans && named.n < NAMED; i++) {
        const struct trace_span *span = &rank->trace->spans[i];
        size_t len = strlen(list);
        if (span->kind == SPAN_ANNOTATION && !(rank->classes[span->name] & ~NAME_LOADER) &&
            map_insert(&named, map_key(span->name), 1))
            snprintf(list + len, sizeof list - len, "%s'%.50s'", len > 0 ? ", " : "",
                     strtab_get(rank->names, span->name));
    }
    return dpro_error_set(err, DPRO_EEMPTY,
                          "no range of rank %d has a name that --step-mark %.100s matches%s%s",
                          rank->trace->rank, pattern,
                          *list ? "; the recording has "
                                : "; the recording has no ranges of its "
                                  "own, put each step into "
                                  "torch.profiler.record_function(NAME)",
                          list);
}

int choose_steps(struct chooser *c, struct dpro_error *err)
{
    for (uint32_t r = 0; c->options->step_mark && r < c->n_ranks; r++)
        if (c->ranks[r].steps.n == 0)
            return refuse_mark(&c->ranks[r], c->options->step_mark, err);
    late_steps_leave_out(c);
    steps_number(c);
    unusual_steps_leave_out(c);
    uint32_t fewest = UINT32_MAX;
    int64_t low = INT64_MAX, high = INT64_MIN;
    for (uint32_t r = 0; r < c->n_ranks; r++) {
        uint32_t n = 0;
        EACH (const struct step, step, c->ranks[r].steps) {
            n += steps_wanted(c, step);
            low = MIN(low, step->number);
            high = MAX(high, step->number);
        }
        fewest = MIN(fewest, n);
    }
    if (fewest == 0 && low <= high && (c->options->first_step || c->options->last_step))
        return dpro_error_set(err, DPRO_EEMPTY,
                              "no iteration left by --steps; the trace has %lld to %lld",
                              (long long)low, (long long)high);
    if (fewest == 0 || choose_samples(c) == 0)
        return refuse_empty(c, err);
    c->choice.overlaps_next = c->ranks[0].steps.has_exchange; /* of servers' answers */
    c->choice.has_lead = c->choice.overlaps_next && steps_leads(c);
    uint32_t reference = choose_reference(c), shown = reference;
    int status = choose_shown(c, &shown, err);
    for (uint32_t r = 0; r < c->n_ranks; r++) {
        c->ranks[r].steps.reference = c->ranks[r].sample_step[reference];
        c->ranks[r].steps.shown = c->ranks[r].sample_step[shown];
    }
    return status;
}
