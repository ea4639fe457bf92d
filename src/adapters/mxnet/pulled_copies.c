/* MXNet's copies of pulled parameters to where the program uses them.
 *
 * The engine copies in the order in which answers come. Its few other copies are ops of the
 * iteration. */

#include "graph/rank_build.h"

typedef ARRAY(uint32_t) span_list;

ORDER_OF_INDICES(by_end, struct trace_span,
                 COMPARE(x->start_ns + x->dur_ns, y->start_ns + y->dur_ns));

ORDER_OF_INDICES(by_start, struct trace_span, ASCENDING(start_ns));

void build_find_stores(const struct rank_build *rank, struct map *stored_ns)
{
    struct trace_span *spans = rank->trace->spans;
    SCRATCH span_list pulls = {0}, copies = {0};
    if (!(rank->all_classes & NAME_EXCHANGE))
        return;
    for (uint32_t i = 0; i < rank->trace->n_spans; i++) {
        const char *name = strtab_get(rank->names, spans[i].name);
        if ((rank->classes[spans[i].name] & NAME_EXCHANGE) && strstr(name, "Pull"))
            array_push(&pulls, i);
        else if (spans[i].kind == SPAN_CPU_OP && text_begins(name, "Copy"))
            array_push(&copies, i);
    }
    if (pulls.n > 0 && copies.n >= pulls.n) {
        qsort_r(pulls.at, pulls.n, sizeof *pulls.at, by_end, spans);
        qsort_r(copies.at, copies.n, sizeof *copies.at, by_start, spans);
        for (size_t c = 0, p = 0; c < copies.n && p < pulls.n; c++) {
            const struct trace_span *copy = &spans[copies.at[c]], *pull = &spans[pulls.at[p]];
            if (copy->start_ns + CLOCK_ROUNDING_NS < pull->start_ns + pull->dur_ns)
                continue;
            uint64_t stored = (uint64_t)(copy->start_ns + copy->dur_ns);
            map_set(stored_ns, copies.at[c] + UINT64_C(1), stored);
            map_set(stored_ns, pulls.at[p++] + UINT64_C(1), stored);
        }
    }
}
