/* Finds device work that communicates.
 *
 * Most such kernels are known by name. Another kernel communicates if it was launched right inside
 * an op or range that is named for communication ("symm_mem::one_shot_all_reduce", the job's own
 * "all_to_all"), with no other op between them. If the range also has a kernel known by name, only
 * that one communicates, and the others prepare it. */

#include "graph/rank_build.h"

static bool is_mark(const struct trace_span *span)
{
    return span->kind == SPAN_ANNOTATION || span->kind == SPAN_GPU_ANNOTATION;
}

/* The innermost op or range around a span that is named for communication; NO_ID: there is none, or
 * an op of another name lies between. */
static uint32_t scope_of(const struct rank_build *rank, uint32_t span)
{
    for (uint32_t up = rank->trace->spans[span].parent; up != NO_ID;
         up = rank->trace->spans[up].parent) {
        const struct trace_span *around = &rank->trace->spans[up];
        uint32_t class = rank->classes[around->name];
        bool named = class & (NAME_COMM_SCOPE | NAME_COMM_CALL | NAME_COMM_PARAM);
        if (named && (around->kind == SPAN_CPU_OP || is_mark(around)))
            return up;
        if (around->kind == SPAN_CPU_OP)
            return NO_ID;
    }
    return NO_ID;
}

/* The scope of device work: around its launch, or, if that is not known, around itself on its
 * stream, where all that was launched in a range lies in the range's shadow. */
static uint32_t scope_of_work(const struct rank_build *rank, uint32_t slice)
{
    const struct slice *it = &rank->slices.at[slice];
    return scope_of(rank, it->launch == NO_ID ? it->span : rank->slices.at[it->launch].span);
}

static void find_scopes(struct rank_build *rank, uint32_t slice)
{
    const struct trace_span *span = slice_span(rank, slice);
    if (span->kind != SPAN_KERNEL || !(rank->classes[span->name] & NAME_COMM_KERNEL))
        return;
    /* whatever lies between: a range around it has its kernel */
    uint32_t launch = rank->slices.at[slice].launch;
    const uint32_t from[] = {rank->slices.at[slice].span,
                             launch == NO_ID ? NO_ID : rank->slices.at[launch].span};
    for (int f = 0; f < 2; f++)
        for (uint32_t up = from[f]; up != NO_ID; up = rank->trace->spans[up].parent)
            map_set(&rank->named_scopes, up + UINT64_C(1), 1);
}

void build_find_scopes(struct rank_build *rank)
{
    if (!(rank->all_classes & NAME_COMM_KERNEL))
        return;
    EACH (const struct track, track, rank->tracks)
        for (uint32_t i = track->first[0];
             track->kind == DPRO_DEVICE_GPU_STREAM && i < track->first[rank->steps.n]; i++)
            find_scopes(rank, i);
}

bool build_communicates(const struct rank_build *rank, uint32_t slice)
{
    const struct trace_span *span = slice_span(rank, slice);
    if (span->kind != SPAN_KERNEL)
        return false;
    if (rank->classes[span->name] & NAME_COMM_KERNEL)
        return true;
    const char *name = strtab_get(rank->names, span->name);
    if (text_begins(name, "triton_")) /* Inductor's: computation */
        return false;
    uint32_t scope = scope_of_work(rank, slice);
    return scope != NO_ID && !map_get(&rank->named_scopes, scope + UINT64_C(1), NULL);
}
