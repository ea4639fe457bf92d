/* Which ops gather the parameters of an FSDP unit, and where a unit's backward pass asks for it.
 * PyTorch's fully_shard annotates both: "FSDP::all_gather (blocks.0)", "FSDP::all_gather_copy_out
 * (blocks.0)", and for a backward pass within "FSDP::pre_backward (blocks.1)". */

#include "graph/rank_build.h"

static bool is_named(const struct rank_build *rank, uint32_t span, const char *name)
{
    const char *is = strtab_get(rank->names, rank->trace->spans[span].name);
    size_t len = strlen(name);
    return strncmp(is, name, len) == 0 && (is[len] == '\0' || text_begins(is + len, " ("));
}

/* The span, or the one around it, in which a unit's backward pass begins; NO_ID: there is none. */
static uint32_t pre_backward_of(const struct rank_build *rank, uint32_t span)
{
    while (span != NO_ID && !is_named(rank, span, "FSDP::pre_backward"))
        span = rank->trace->spans[span].parent;
    return span;
}

static const char PREFETCH[] = "FSDP::backward_prefetch for ";

/* Whether the name of the span, or of one around it, begins so. */
static bool lies_in(const struct rank_build *rank, uint32_t span, const char *prefix)
{
    while (span != NO_ID &&
           !text_begins(strtab_get(rank->names, rank->trace->spans[span].name), prefix))
        span = rank->trace->spans[span].parent;
    return span != NO_ID;
}

/* Units that name the ones they ask for do it outside of where their own pass begins. */
static bool is_for_backward(const struct rank_build *rank, uint32_t span)
{
    return lies_in(rank, span, PREFETCH) || pre_backward_of(rank, span) != NO_ID;
}

uint32_t build_gather_of(const struct rank_build *rank, uint32_t span, bool *copies_out)
{
    for (; span != NO_ID; span = rank->trace->spans[span].parent) {
        *copies_out = is_named(rank, span, "FSDP::all_gather_copy_out");
        if (*copies_out || is_named(rank, span, "FSDP::all_gather"))
            break;
    }
    uint32_t unit = span == NO_ID ? NO_ID : recorded_unit_of(rank->names, rank->trace, span);
    return unit == NO_ID ? 0 : GATHER(unit, is_for_backward(rank, span));
}

bool build_unit_mark(const struct rank_build *rank, uint32_t span, enum unit_mark *mark,
                     uint32_t *unit)
{
    static const char *const names[N_UNIT_MARKS] = {
        [UNIT_FORWARD_ENDS] = "FSDP::post_forward", [UNIT_BACKWARD_BEGINS] = "FSDP::pre_backward"};
    const struct recording *recording = rank->trace->recording;
    const char *is = strtab_get(rank->names, rank->trace->spans[span].name);
    if (!text_begins(is, "FSDP::"))
        return false;
    for (int m = 0; m < N_UNIT_MARKS; m++)
        if (names[m] && is_named(rank, span, names[m])) {
            *mark = (enum unit_mark)m;
            *unit = recorded_unit_of(rank->names, rank->trace, span);
            return *unit != NO_ID;
        }
    if (!text_begins(is, PREFETCH))
        return false;
    *mark = UNIT_PREFETCHED;
    for (*unit = 0; *unit < recording->buckets.n; ++*unit)
        if (strcmp(strtab_get(rank->names, recording->buckets.at[*unit].name),
                   is + sizeof PREFETCH - 1) == 0)
            return true;
    return false;
}

/* The last op that a thread began before a time, in the iteration that the graph shows. */
static uint32_t op_before(const struct rank_build *rank, uint32_t track, int64_t ns)
{
    uint32_t last = NO_ID;
    int64_t last_ns = INT64_MIN;
    for (uint32_t o = 0; o < rank->n_timed; o++) {
        uint32_t slice = rank->ops.at[o].slice;
        if (slice == NO_ID || slice_span(rank, slice)->track != track)
            continue;
        int64_t start_ns = rank->slices.at[slice].start_ns;
        if (start_ns < ns && start_ns >= last_ns) {
            last_ns = start_ns;
            last = o;
        }
    }
    return last;
}

/* A backward pass asks for a unit's parameters before it begins the unit that it takes first; where
 * nobody does ahead, before its own. */
static void find_requests(struct rank_build *rank)
{
    const struct step *step = &rank->steps.at[rank->steps.reference];
    uint32_t n = (uint32_t)rank->trace->recording->buckets.n, unit;
    enum unit_mark mark;
    SCRATCH bool *ahead = mem_array(n + (size_t)1, sizeof *ahead);
    rank->unit_requests = mem_alloc((n + (size_t)1) * sizeof *rank->unit_requests);
    for (unit = 0; unit < n; unit++)
        rank->unit_requests[unit] = NO_ID;
    for (uint32_t s = 0; s < rank->trace->n_spans; s++) {
        const struct trace_span *span = &rank->trace->spans[s];
        if (span->window != step->window || span->start_ns < step->start_ns ||
            span->start_ns >= step->end_ns || !build_unit_mark(rank, s, &mark, &unit) ||
            mark == UNIT_FORWARD_ENDS || ahead[unit])
            continue;
        uint32_t within = pre_backward_of(rank, s);
        ahead[unit] = mark == UNIT_PREFETCHED;
        rank->unit_requests[unit] =
            op_before(rank, span->track, rank->trace->spans[within == NO_ID ? s : within].start_ns);
    }
}

void build_gathers(struct rank_build *rank)
{
    const struct recording *recording = rank->trace->recording;
    bool has_units = false, unused;
    for (size_t m = 0; recording && m < recording->models.n; m++)
        has_units |= recording->models.at[m].n_units > 0;
    if (!has_units)
        return;
    for (uint32_t o = 0; o < rank->n_timed; o++) {
        uint32_t slice = rank->ops.at[o].slice;
        if (slice == NO_ID)
            continue;
        bool launched =
            (rank->ops.at[o].flags & GRAPH_OP_GPU) && rank->slices.at[slice].launch != NO_ID;
        if (launched)
            slice = rank->slices.at[slice].launch;
        rank->ops.at[o].gather = build_gather_of(rank, rank->slices.at[slice].span, &unused);
        if (lies_in(rank, rank->slices.at[slice].span, "FSDP::")) /* FSDP's own work */
            rank->ops.at[o].flags |= GRAPH_OP_UNIT;
    }
    EACH (const struct local_collective, it, rank->collectives) {
        uint32_t gather =
            it->launch_span == NO_ID ? 0 : build_gather_of(rank, it->launch_span, &unused);
        rank->ops.at[it->arrival].gather = rank->ops.at[it->transfer].gather = gather;
    }
    find_requests(rank);
}
