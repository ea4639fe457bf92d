/* Which pass of which stage an op is in, where the job marks it: PyTorch's schedules of several
 * stages a rank annotate each action as "PP:2F0", the forward pass of stage 2 of micro-batch 0 (B:
 * backward; I, W: its parts for inputs and for weights). The backward pass may run on a thread of
 * its own meanwhile. */

#include "graph/rank_build.h"

enum { MOST_STAGES = 1 << 20 };

struct pass_mark {
    int64_t start_ns, end_ns;
    uint32_t pass;
};

ORDER(by_start, struct pass_mark, ASCENDING(start_ns) ?: ASCENDING(end_ns));

uint32_t build_marked_pass(const char *name)
{
    static const char kinds[] = "FBIW";
    if (!text_begins(name, "PP:") || !isdigit((unsigned char)name[3]))
        return 0;
    char *end;
    unsigned long stage = strtoul(name + 3, &end, 10);
    const char *kind = *end ? strchr(kinds, *end) : NULL;
    if (!kind || stage >= MOST_STAGES || !isdigit((unsigned char)end[1]))
        return 0;
    return MARKED_PASS((uint32_t)stage, (uint32_t)(kind - kinds));
}

void build_passes(struct rank_build *rank)
{
    const struct step *step = &rank->steps.at[rank->steps.reference];
    SCRATCH ARRAY(struct pass_mark) marks = {0};
    uint32_t n_marked = 0; /* most jobs have no such names */
    for (uint32_t id = 0; id < rank->names->n && n_marked == 0; id++)
        n_marked += build_marked_pass(strtab_get(rank->names, id)) > 0;
    if (n_marked == 0)
        return;
    EACH_OF (const struct trace_span, span, rank->trace->spans, rank->trace->n_spans) {
        uint32_t pass = 0;
        if (span->kind == SPAN_ANNOTATION && span->window == step->window &&
            span->start_ns >= step->start_ns && span->start_ns < step->end_ns)
            pass = build_marked_pass(strtab_get(rank->names, span->name));
        if (pass > 0)
            array_add(&marks, .start_ns = span->start_ns, .end_ns = span_end_ns(span),
                      .pass = pass);
    }
    array_sort(&marks, by_start);
    for (uint32_t o = 0; o < rank->n_timed && marks.n > 0; o++) {
        uint32_t slice = rank->ops.at[o].slice;
        if (slice == NO_ID)
            continue;
        if ((rank->ops.at[o].flags & GRAPH_OP_GPU) && rank->slices.at[slice].launch != NO_ID)
            slice = rank->slices.at[slice].launch;
        int64_t ns = rank->slices.at[slice].start_ns;
        size_t next = LOWER_BOUND(m, (size_t)0, marks.n, marks.at[m].start_ns <= ns);
        if (next > 0 && ns < marks.at[next - 1].end_ns)
            rank->ops.at[o].pass = marks.at[next - 1].pass;
    }
}
