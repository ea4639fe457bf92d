/* What a rank computes in an iteration, of ops whose shapes the profile has, and how long that
 * takes: on a CPU the ops themselves, on a GPU what they launch. */
#include "graph/rank_build.h"

#define LEAST_NS 20000 /* of what is shorter the clock's steps tell no rate */

static struct arithmetic *work_of(const struct rank_build *rank, uint32_t span)
{
    uint32_t detail = rank->trace->spans[span].detail;
    return detail != NO_ID && rank->trace->details[detail].work.flops != 0
               ? &rank->trace->details[detail].work
               : NULL;
}

static bool is_sampled(const struct rank_build *rank, int64_t ns)
{
    for (uint32_t s = 0; s < rank->n_samples; s++) {
        const struct step *step = &rank->steps.at[rank->sample_step[s]];
        if (step->timed && ns >= step->start_ns && ns < step->end_ns)
            return true;
    }
    return false;
}

/* What the device does for each span that counts, by its detail. */
static bool sum_kernels(const struct rank_build *rank, int64_t *kernels_ns)
{
    bool any = false;
    EACH (const struct slice, slice, rank->slices) {
        const struct trace_span *span = &rank->trace->spans[slice->span];
        if (!rank->trace->tracks[span->track].gpu)
            continue;
        any = true;
        uint32_t at = slice->launch == NO_ID ? NO_ID : rank->slices.at[slice->launch].span;
        while (at != NO_ID && !work_of(rank, at))
            at = rank->trace->spans[at].parent;
        if (at != NO_ID)
            kernels_ns[rank->trace->spans[at].detail] += slice->end_ns - slice->start_ns;
    }
    return any;
}

void build_sum_work(struct rank_build *rank)
{
    const struct trace_rank *trace = rank->trace;
    SCRATCH int64_t *kernels_ns = mem_array(trace->n_details + (size_t)1, sizeof *kernels_ns);
    bool on_gpu = sum_kernels(rank, kernels_ns);
    for (uint32_t i = 0; i < trace->n_spans; i++) {
        const struct arithmetic *work = work_of(rank, i);
        if (!work || !is_sampled(rank, trace->spans[i].start_ns))
            continue;
        int64_t ns = on_gpu ? kernels_ns[trace->spans[i].detail] : trace->spans[i].dur_ns;
        struct family_work *sum = &rank->work[work->family][work->precision];
        if (work->flops < 0) {
            rank->lacks_strides = true;
            continue;
        }
        sum->flops += work->flops / rank->n_samples;
        sum->bytes += work->bytes / rank->n_samples;
        sum->ns += (double)ns / rank->n_samples;
        if (ns >= LEAST_NS)
            sum->best = MAX(sum->best, work->flops / ((double)ns / 1e9));
    }
}
