/* The spans of a rank's collectives: listing them, finding one by thread and time, and what the
 * logs say of them. */

#include "ingest/pytorch/kineto_words.h"
#include "ingest/rank_job.h"

/* Profiler and logs read the same clock, at different moments. */
enum { SLACK_NS = 200000 };

ORDER(compare_runs, struct comm_run, ASCENDING(thread) ?: ASCENDING(start_ns) ?: ASCENDING(span));

struct comm_run *runs_at(const comm_run_array *runs, int64_t thread, int64_t time_ns)
{
    size_t later =
        LOWER_BOUND(i, (size_t)0, runs->n,
                    runs->at[i].thread < thread || (runs->at[i].thread == thread &&
                                                    runs->at[i].start_ns - SLACK_NS <= time_ns));
    /* the slack may reach into the span before */
    for (size_t back = 1; back <= 2 && back <= later; back++) {
        struct comm_run *run = &runs->at[later - back];
        if (run->thread == thread && run->start_ns <= time_ns && time_ns <= run->end_ns)
            return run;
    }
    struct comm_run *run = later > 0 ? &runs->at[later - 1] : NULL;
    return run && run->thread == thread && time_ns <= run->end_ns + SLACK_NS ? run : NULL;
}

/* ---- listing ---- */

struct runs_call {
    int64_t start_ns;
    uint32_t span;
    uint16_t window;
    struct comm_run *run; /* NULL: a call */
};

ORDER(compare_calls, struct runs_call, ASCENDING(window) ?: ASCENDING(start_ns) ?: ASCENDING(span));

typedef ARRAY(struct runs_call) call_array;

static void add_call(const struct trace_rank *rank, uint32_t span, struct comm_run *run,
                     call_array *calls)
{
    array_add(calls, rank->spans[span].start_ns, span, rank->spans[span].window, run);
}

/* Finds the framework's calls, c10d::..., that asked for the runs, in the same order: the k-th of a
 * window asked for the k-th run. */
static void find_calls(const struct strtab *names, const struct trace_rank *rank,
                       comm_run_array *runs)
{
    SCRATCH call_array calls = {0}, asked = {0};
    for (uint32_t i = 0; i < rank->n_spans; i++)
        if (rank->spans[i].kind == SPAN_CPU_OP &&
            text_begins(strtab_get(names, rank->spans[i].name), "c10d::"))
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
}

/* The call that posted a transfer, which is drawn from within it on; NO_ID: not found. */
static uint32_t find_posting(const struct strtab *names, const struct trace_rank *rank,
                             const struct trace_span *posted)
{
    const struct trace_track *own = &rank->tracks[posted->track];
    uint32_t t = rank_find_track(rank, false, own->pid, ~own->id);
    if (t == NO_ID)
        return NO_ID;
    const struct trace_track *track = &rank->tracks[t];
    uint32_t at = rank_first_from(rank, track, posted->start_ns + 1);
    uint32_t span = at > track->first ? at - 1 : NO_ID;
    while (span != NO_ID && !text_begins(strtab_get(names, rank->spans[span].name), "c10d::"))
        span = rank->spans[span].parent;
    return span;
}

static uint32_t asked_peer(const struct trace_rank *rank, uint32_t call)
{
    for (uint32_t span = call; span != NO_ID; span = rank->spans[span].parent) {
        uint32_t detail = rank->spans[span].detail;
        if (detail != NO_ID && rank->details[detail].peer >= 0)
            return (uint32_t)rank->details[detail].peer;
    }
    return UINT32_MAX;
}

static void find_bytes(const struct strtab *names, const struct trace_rank *rank,
                       struct comm_run *run)
{
    uint32_t detail = rank->spans[run->span].detail;
    if (detail == NO_ID)
        return;
    run->numel = rank->details[detail].numel;
    uint64_t item = kineto_dtype_bytes(strtab_get(names, rank->details[detail].dtype));
    if (__builtin_mul_overflow(run->numel, item, &run->size_bytes))
        run->size_bytes = 0;
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

static void add_run(const struct strtab *names, const struct trace_rank *rank, uint32_t span,
                    comm_run_array *runs)
{
    const struct trace_span *at = &rank->spans[span];
    struct comm_run run = {.start_ns = at->start_ns,
                           .end_ns = at->start_ns + at->dur_ns,
                           .thread = rank->tracks[at->track].id,
                           .span = span,
                           .call = NO_ID,
                           .peer = UINT32_MAX,
                           .posted = rank->tracks[at->track].posted,
                           .sends = strcmp(strtab_get(names, at->name), "gloo:send") == 0};
    find_bytes(names, rank, &run);
    array_push(runs, run);
}

void runs_list(const struct strtab *names, struct trace_rank *rank)
{
    for (uint32_t i = 0; i < rank->n_spans; i++) {
        const char *name = strtab_get(names, rank->spans[i].name);
        if (rank->spans[i].kind == SPAN_ANNOTATION && text_begins(name, "gloo:"))
            add_run(names, rank, i, &rank->runs.gloo);
        else if (rank->spans[i].kind == SPAN_ANNOTATION && text_begins(name, "nccl:"))
            add_run(names, rank, i, &rank->runs.nccl);
    }
    array_sort(&rank->runs.gloo, compare_runs);
    array_sort(&rank->runs.nccl, compare_runs);
    if (rank->runs.gloo.n > 0)
        find_calls(names, rank, &rank->runs.gloo);
    EACH (struct comm_run, run, rank->runs.gloo) {
        if (run->posted) {
            run->call = find_posting(names, rank, &rank->spans[run->span]);
            run->peer = asked_peer(rank, run->call);
        }
        run->call_ns = run->call == NO_ID ? INT64_MAX : rank->spans[run->call].start_ns;
        run->unit = recorded_unit_of(names, rank, run->call);
    }
}

void comm_runs_fini(struct comm_runs *runs)
{
    FREE_ALL(&runs->gloo, &runs->nccl);
}

/* ---- what the logs say ---- */

void logged_build(struct dpro_trace *trace)
{
    EACH_OF (struct trace_rank, rank, trace->ranks, trace->n_ranks + trace->n_servers) {
        comm_runs_fini(&rank->runs);
        if (!rank_is_elsewhere(rank))
            logged_move_spans(rank);
    }
    for (uint32_t l = trace->n_nccl_logs;
         l-- > 0;) { /* a span's first operation is the last here */
        const struct nccl_log *log = trace->nccl_logs[l];
        struct trace_rank *rank = trace_rank_of(trace, log->rank);
        for (size_t o = rank ? log->operations.n : 0; o-- > 0;)
            if (log->operations.at[o].span != NO_ID)
                array_add(&rank->logged.parts, log->operations.at[o].span,
                          {trace->n_transports + l, (uint32_t)o});
    }
    for (uint32_t t = 0; t < trace->n_transports; t++) {
        const struct net_transport *transport = &trace->transports[t];
        if (transport->rank_index == NO_ID)
            continue;
        struct rank_logged *logged = &trace->ranks[transport->rank_index].logged;
        for (size_t c = 0; c < transport->collectives.n; c++)
            if (transport->collectives.at[c].span != NO_ID)
                array_add(&logged->parts, transport->collectives.at[c].span, {t, (uint32_t)c});
    }
}

void logged_move_spans(struct trace_rank *rank)
{
    EACH (const struct span_move, move, rank->logged.moves) {
        struct trace_span *span = &rank->spans[move->span];
        span->start_ns = move->start_ns;
        span->dur_ns = move->end_ns - move->start_ns;
        rank->tracks[span->track].announced = true;
    }
    array_fini(&rank->logged.moves);
}
