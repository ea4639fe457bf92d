/* Which part of training each CPU span belongs to.
 *
 * Strong evidence first: the ranges of the optimizer, the data loader and passes that a pipeline's
 * schedule marks, autograd's functions, and DDP's bucket copies, each with all that it encloses.
 * Other spans are classified by place. On an autograd thread they are backward. On other threads
 * they are forward until the iteration's backward has begun, backward within it unless autograd
 * recorded them as forward, and update after it. What an op calls is of its phase. */
#include <string.h>

#include "base/memory.h"
#include "base/sort.h"
#include "graph/ops/framework_graph.h"

enum { UNKNOWN = DPRO_N_OP_KINDS };

static uint8_t own_phase(uint32_t class)
{
    if (class & (NAME_OPTIMIZER_STEP | NAME_ZERO_GRAD | NAME_UPDATE_NODE))
        return DPRO_OP_UPDATE;
    if (class & NAME_LOADER)
        return DPRO_OP_INPUT;
    if (class &
        (NAME_BACKWARD | NAME_BACKWARD_NODE | NAME_ACCUMULATE | NAME_BUCKET_IN | NAME_BUCKET_OUT))
        return DPRO_OP_BW;
    return UNKNOWN;
}

/* Of a pipeline's stage. */
static uint8_t marked_phase(const char *name)
{
    uint32_t pass = build_marked_pass(name);
    if (pass == 0)
        return UNKNOWN;
    return MARKED_KIND(pass) == PASS_FORWARD ? DPRO_OP_FW : DPRO_OP_BW;
}

struct backward {
    int64_t first_ns, last_ns; /* in one step */
};

/* The first step that is not over at a time, from the one at an earlier time on. */
static uint32_t step_at(const struct rank_build *rank, uint32_t step, int64_t time)
{
    while (step < rank->steps.n && rank->steps.at[step].end_ns <= time)
        step++;
    return step;
}

static void mark_track(struct rank_build *rank, const struct trace_track *track,
                       const uint8_t *of_nodes, struct backward *backward, bool *autograd)
{
    for (uint32_t i = track->first, step = 0; i < track->first + track->n; i++) {
        const struct trace_span *span = &rank->trace->spans[i];
        uint8_t phase =
            span->node != NO_ID ? of_nodes[span->node] : own_phase(rank->classes[span->name]);
        if (phase == UNKNOWN && span->kind == SPAN_ANNOTATION)
            phase = marked_phase(strtab_get(rank->names, span->name));
        if (phase == UNKNOWN && span->parent != NO_ID)
            phase = rank->phases[span->parent];
        rank->phases[i] = phase;
        if (phase != DPRO_OP_BW)
            continue;
        *autograd |= span->fwd_thread > 0 || (rank->classes[span->name] & NAME_BACKWARD);
        step = step_at(rank, step, span->start_ns);
        if (step == rank->steps.n)
            continue;
        backward[step].first_ns = MIN(backward[step].first_ns, span->start_ns);
        backward[step].last_ns = MAX(backward[step].last_ns, span->start_ns + span->dur_ns);
    }
}

static bool is_op(const struct rank_build *rank, uint32_t span)
{
    return span != NO_ID && rank->trace->spans[span].kind == SPAN_CPU_OP;
}

static uint8_t phase_by_place(const struct trace_span *span, const struct backward *backward)
{
    if (span->start_ns < backward->first_ns)
        return DPRO_OP_FW;
    if (span->start_ns >= backward->last_ns)
        return DPRO_OP_UPDATE;
    return span->sequence >= 0 && span->fwd_thread == 0 ? DPRO_OP_FW : DPRO_OP_BW;
}

void build_phases(struct rank_build *rank)
{
    const struct trace_rank *trace = rank->trace;
    struct arena scratch = {0};
    struct backward *backward = arena_array(&scratch, rank->steps.n + 1, sizeof *backward);
    bool *autograd = arena_array(&scratch, trace->n_tracks + 1, sizeof *autograd);
    const uint8_t *of_nodes = dfg_find_phases(rank, &scratch);
    rank->phases = mem_alloc(trace->n_spans + 1);
    memset(rank->phases, UNKNOWN, trace->n_spans + 1);
    for (size_t s = 0; s <= rank->steps.n; s++)
        backward[s] = (struct backward){INT64_MAX, INT64_MIN};
    for (uint32_t t = 0; t < trace->n_tracks; t++)
        if (!trace->tracks[t].gpu)
            mark_track(rank, &trace->tracks[t], of_nodes, backward, &autograd[t]);
    for (uint32_t t = 0; t < trace->n_tracks; t++) {
        const struct trace_track *track = &trace->tracks[t];
        bool is_backward = autograd[t] && t != rank->main_track;
        uint32_t step = 0;
        for (uint32_t i = track->first; !track->gpu && i < track->first + track->n; i++) {
            const struct trace_span *span = &trace->spans[i];
            if (rank->phases[i] != UNKNOWN)
                continue;
            step = step_at(rank, step, span->start_ns);
            rank->phases[i] = is_backward                 ? DPRO_OP_BW
                              : is_op(rank, span->parent) ? rank->phases[span->parent]
                                                          : phase_by_place(span, &backward[step]);
        }
    }
    arena_fini(&scratch);
}
