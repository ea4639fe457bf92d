/* Finding the span of a collective by thread and time. */
#include "ingest/transport/runs.h"
#include "base/sort.h"
#include "ingest/pytorch/kineto_words.h"

#include <string.h>

/* Profiler and logs read the same clock, at different moments. */
enum { SLACK_NS = 200000 };

ORDER(compare_runs, struct run, ASCENDING(thread) ?: ASCENDING(start_ns) ?: ASCENDING(span));

void runs_list(const struct dpro_trace *trace, const struct trace_rank *rank, const char *prefix,
               run_array *runs)
{
    for (uint32_t i = 0; i < rank->n_spans; i++) {
        const struct trace_span *span = &rank->spans[i];
        if (span->kind != SPAN_ANNOTATION ||
            !text_begins(strtab_get(&trace->names, span->name), prefix))
            continue;
        array_add(runs, span->start_ns, span->start_ns + span->dur_ns, rank->tracks[span->track].id,
                  i, NO_ID, false);
    }
    array_sort(runs, compare_runs);
}

struct run *runs_at(const run_array *runs, int64_t thread, int64_t time_ns)
{
    size_t later =
        LOWER_BOUND(i, (size_t)0, runs->n,
                    runs->at[i].thread < thread || (runs->at[i].thread == thread &&
                                                    runs->at[i].start_ns - SLACK_NS <= time_ns));
    /* the slack may reach into the span before */
    for (size_t back = 1; back <= 2 && back <= later; back++) {
        struct run *run = &runs->at[later - back];
        if (run->thread == thread && run->start_ns <= time_ns && time_ns <= run->end_ns)
            return run;
    }
    struct run *run = later > 0 ? &runs->at[later - 1] : NULL;
    return run && run->thread == thread && time_ns <= run->end_ns + SLACK_NS ? run : NULL;
}

struct call {
    int64_t start_ns;
    uint32_t span;
    uint16_t window;
    struct run *run; /* NULL: a call */
};

ORDER(compare_calls, struct call, ASCENDING(window) ?: ASCENDING(start_ns) ?: ASCENDING(span));

typedef ARRAY(struct call) call_array;

static void add_call(const struct trace_rank *rank, uint32_t span, struct run *run,
                     call_array *calls)
{
    struct call call = {rank->spans[span].start_ns, span, rank->spans[span].window, run};
    array_push(calls, call);
}

void runs_find_calls(const struct dpro_trace *trace, const struct trace_rank *rank, run_array *runs)
{
    call_array calls = {0}, asked = {0};
    for (uint32_t i = 0; i < rank->n_spans; i++)
        if (rank->spans[i].kind == SPAN_CPU_OP &&
            text_begins(strtab_get(&trace->names, rank->spans[i].name), "c10d::"))
            add_call(rank, i, NULL, &calls);
    for (size_t r = 0; r < runs->n; r++)
        add_call(rank, runs->at[r].span, &runs->at[r], &asked);
    array_sort(&calls, compare_calls);
    array_sort(&asked, compare_calls);
    for (size_t i = 0, k = 0; i < asked.n;) {
        uint16_t window = asked.at[i].window;
        size_t end = i, from;
        while (end < asked.n && asked.at[end].window == window)
            end++;
        while (k < calls.n && calls.at[k].window < window)
            k++;
        for (from = k; k < calls.n && calls.at[k].window == window; k++)
            ;
        for (; i < end; i++, from++)
            if (k - from == end - i)
                asked.at[i].run->call = calls.at[from].span;
    }
    array_fini(&calls);
    array_fini(&asked);
}

uint64_t runs_bytes(const struct dpro_trace *trace, const struct trace_rank *rank, uint32_t span,
                    uint64_t *numel)
{
    uint32_t detail = rank->spans[span].detail;
    uint64_t bytes;
    *numel = 0;
    if (detail == NO_ID)
        return 0;
    *numel = rank->details[detail].numel;
    uint64_t item = kineto_dtype_bytes(strtab_get(&trace->names, rank->details[detail].dtype));
    return __builtin_mul_overflow(*numel, item, &bytes) ? 0 : bytes;
}

/* "FSDP::all_gather (blocks.0)" names its unit, "FSDP::all_gather" is the root's. */
uint32_t recorded_unit_of(const struct strtab *names, const struct trace_rank *rank, uint32_t span)
{
    const struct recording *recording = rank->recording;
    for (uint32_t up = span; recording && up != NO_ID; up = rank->spans[up].parent) {
        const char *name = strtab_get(names, rank->spans[up].name);
        if (!text_begins(name, "FSDP::"))
            continue;
        const char *open = strchr(name, '('), *close = open ? strrchr(open, ')') : NULL;
        const char *unit = open && close ? open + 1 : "";
        size_t len = open && close ? (size_t)(close - open - 1) : 0;
        for (size_t m = 0; m < recording->models.n; m++)
            for (uint32_t u = 0; u < recording->models.at[m].n_units; u++) {
                uint32_t index = recording->models.at[m].first_unit + u;
                uint32_t id = recording->buckets.at[index].name;
                if (strtab_len(names, id) == len && memcmp(strtab_get(names, id), unit, len) == 0)
                    return index;
            }
    }
    return NO_ID;
}
