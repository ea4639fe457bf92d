/* What each iteration of a rank holds, by which iterations are chosen. */
#include "base/memory.h"
#include "base/parallel.h"
#include "base/time.h"
#include "graph/rank_build.h"

static bool is_call(const struct rank_build *rank, const struct slice *slice)
{
    return rank->trace->spans[slice->span].kind == SPAN_RUNTIME && slice->segment == 0;
}

struct contents {
    struct rank_build *rank;
    bool *launches; /* by name: whether calls of it launch work */
};

static void add_slice(const struct rank_build *rank, const struct slice *slice,
                      const bool *launches, struct step_content *c)
{
    const struct trace_span *span = &rank->trace->spans[slice->span];
    bool gpu = rank->trace->tracks[span->track].gpu;
    if (gpu && slice->launch == NO_ID) {
        c->n_before++;
        c->before_ns = time_add(c->before_ns, slice->end_ns - slice->start_ns);
        return;
    }
    c->n_works += gpu;
    c->n_ops +=
        !gpu && slice->segment == 0 && span->kind != SPAN_RUNTIME; /* those that poll vary */
    c->n_meetings +=
        (rank->classes[span->name] & NAME_COMM_KERNEL) != 0 || build_runs_collective(rank, span);
    c->n_lost += is_call(rank, slice) && slice->launch == NO_ID && launches[span->name];
}

static void fill_step(void *arg, size_t s)
{
    const struct contents *contents = arg;
    struct rank_build *rank = contents->rank;
    struct step *step = &rank->steps.at[s];
    step->holds.ns = build_step_ns(rank, (uint32_t)s);
    for (uint32_t l = 0; l < rank->tracks.n; l++) {
        const uint32_t *first = rank->tracks.at[l].first;
        step->n_slices += first[s + 1] - first[s];
        for (uint32_t i = first[s]; i < first[s + 1]; i++)
            add_slice(rank, &rank->slices.at[i], contents->launches, &step->holds);
    }
}

void build_contents(struct rank_build *rank)
{
    struct contents contents = {rank, mem_array(rank->names->n, sizeof *contents.launches)};
    for (uint32_t i = 0; i < rank->slices.n; i++)
        if (is_call(rank, &rank->slices.at[i]) && rank->slices.at[i].launch != NO_ID)
            contents.launches[slice_span(rank, i)->name] = true;
    parallel_for(rank->steps.n, rank->threads, fill_step, &contents);
    mem_free(contents.launches);
    if (rank->main_track == NO_ID)
        return;
    const struct trace_track *track = &rank->trace->tracks[rank->main_track];
    for (uint32_t i = track->first, s = 0; i < track->first + track->n; i++) {
        const struct trace_span *span = &rank->trace->spans[i];
        while (s < rank->steps.n && rank->steps.at[s].end_ns <= span->start_ns)
            s++;
        if (s < rank->steps.n && rank->steps.at[s].start_ns <= span->start_ns)
            rank->steps.at[s].holds.n_meetings +=
                (rank->classes[span->name] & NAME_OPTIMIZER_STEP) != 0;
    }
}
