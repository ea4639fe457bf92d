/* A rank's execution trace, and which span is which of its nodes.
 *
 * Since 2024 both sides carry the record function's id. Before that they name the same calls in the
 * same order: a node's rf_id counts the calls of the process as they start, so each thread's nodes
 * by rf_id and each thread's spans by start are the same sequence of names, but for what one side
 * did not see. */

#include "ingest/pytorch/kineto.h"

#define AT(member) offsetof(struct execution_trace, member)
const struct payload_kind et_payload = {sizeof(struct execution_trace), .n_at = AT(nodes.n),
                                        .arrays = {AT(nodes), AT(tensors)}};

enum {
    LOOK_AHEAD = 64, /* names one side may have that the other has not, in a row */
    SURE_RUN = 16,   /* equal names in a row that make a place the right one to begin */
};

static bool is_call(const struct trace_span *span)
{
    return span->kind == SPAN_CPU_OP || span->kind == SPAN_ANNOTATION;
}

/* Matches by an id that both sides have; only into windows of the node's process. */
static uint32_t match_by_id(struct rank_job *job, uint32_t window, bool external, uint32_t *found)
{
    struct trace_rank *rank = job->rank;
    SCRATCH struct map by_id = {0};
    uint64_t pid = job->execution_trace->part.process.pid;
    uint32_t n_matched = 0;
    for (uint32_t i = 0; i < rank->n_spans; i++) {
        const struct trace_span *span = &rank->spans[i];
        uint32_t id = external ? span->external : span->record_fn;
        if (span->window == window && id != 0 && is_call(span) &&
            (!pid || rank->tracks[span->track].pid == pid))
            map_set(&by_id, id, i);
    }
    for (uint32_t i = 0; i < rank->n_et_nodes; i++) {
        const struct et_node *node = &rank->et_nodes[i];
        uint64_t span;
        if (node->record_fn == 0 || !map_get(&by_id, node->record_fn, &span) ||
            rank->spans[span].name != node->name)
            continue;
        found[i] = (uint32_t)span;
        n_matched++;
    }
    return n_matched;
}

struct join_et_call {
    uint32_t thread, record_fn, node;
};

ORDER(by_thread, struct join_et_call, ASCENDING(thread) ?: ASCENDING(record_fn) ?: ASCENDING(node));

/* Walks both sequences; returns how many names met, and sets the nodes' spans, if wanted. */
static uint32_t join_et_walk(struct trace_rank *rank, const struct join_et_call *calls,
                             uint32_t n_calls, const uint32_t *spans, uint32_t n_spans,
                             uint32_t *found)
{
    uint32_t n_matched = 0, c = 0, s = 0;
    /* where to begin: the recording of one side may have started much earlier */
    for (uint32_t begin = 0; begin < n_spans && n_calls > 0; begin++) {
        uint32_t run = 0;
        while (run < SURE_RUN && run < n_calls && begin + run < n_spans &&
               rank->spans[spans[begin + run]].name == rank->et_nodes[calls[run].node].name)
            run++;
        if (run == SURE_RUN || (run == n_calls && run > 0)) {
            s = begin;
            break;
        }
    }
    while (c < n_calls && s < n_spans) {
        bool met = false;
        for (uint32_t skip = 0; skip <= LOOK_AHEAD && !met; skip++) {
            for (uint32_t on_spans = 0; on_spans <= skip && !met; on_spans++) {
                uint32_t sc = c + (skip - on_spans), ss = s + on_spans;
                if (sc < n_calls && ss < n_spans &&
                    rank->et_nodes[calls[sc].node].name == rank->spans[spans[ss]].name) {
                    c = sc;
                    s = ss;
                    met = true;
                }
            }
        }
        if (!met) {
            c++;
            s++;
            continue;
        }
        if (found)
            found[calls[c].node] = spans[s];
        n_matched++;
        c++;
        s++;
    }
    return n_matched;
}

/* Each thread's nodes against the thread's spans that fit best. */
static uint32_t match_by_order(struct rank_job *job, uint32_t window, uint32_t *found)
{
    struct trace_rank *rank = job->rank;
    const struct trace_part *part = &job->execution_trace->part;
    SCRATCH struct join_et_call *calls = mem_alloc((rank->n_et_nodes + (size_t)1) * sizeof *calls);
    SCRATCH uint32_t *spans = mem_alloc((rank->n_spans + (size_t)1) * sizeof *spans);
    SCRATCH uint32_t *first = mem_alloc((rank->n_tracks + (size_t)1) * sizeof *first);
    uint32_t n_calls = 0, n = 0, n_matched = 0;
    for (uint32_t i = 0; i < rank->n_et_nodes; i++)
        if (rank->et_nodes[i].record_fn)
            calls[n_calls++] =
                (struct join_et_call){rank->et_nodes[i].thread, rank->et_nodes[i].record_fn, i};
    if (n_calls)
        qsort(calls, n_calls, sizeof *calls, by_thread);
    for (uint32_t t = 0; t < rank->n_tracks; t++) {
        const struct trace_track *track = &rank->tracks[t];
        first[t] = n;
        if (track->gpu || (part->process.pid && track->pid != part->process.pid))
            continue;
        for (uint32_t i = track->first; i < track->first + track->n; i++)
            if (rank->spans[i].window == window && is_call(&rank->spans[i]))
                spans[n++] = i;
    }
    first[rank->n_tracks] = n;
    for (uint32_t c = 0, end; c < n_calls; c = end) {
        end = RUN_END(k, c, n_calls, calls[k].thread == calls[c].thread);
        uint32_t best = 0, best_track = NO_ID;
        for (uint32_t t = 0; t < rank->n_tracks; t++) {
            uint32_t met = join_et_walk(rank, calls + c, end - c, spans + first[t],
                                        first[t + 1] - first[t], NULL);
            if (met > best) {
                best = met;
                best_track = t;
            }
        }
        if (best_track == NO_ID)
            continue;
        n_matched += best;
        join_et_walk(rank, calls + c, end - c, spans + first[best_track],
                     first[best_track + 1] - first[best_track], found);
    }
    return n_matched;
}

enum way { BY_RECORD_FN, BY_EXTERNAL, BY_ORDER };

/* Whether the recorder says that an execution trace was recorded in one of the rank's windows, and
 * not in this one: what is left of a damaged file may resemble another window more. */
static bool is_of_other(const struct trace_rank *rank, uint32_t window)
{
    bool here = false, any = false;
    for (size_t s = 0; rank->recording && s < rank->recording->steps.n; s++) {
        const struct recorded_step *step = &rank->recording->steps.at[s];
        for (uint32_t w = 0; w < rank->n_windows && step->window == RECORDED_STRUCTURE; w++) {
            bool within = rank->windows[w].start_ns < step->end_ns &&
                          step->start_ns < rank->windows[w].end_ns;
            any |= within;
            here |= within && w == window;
        }
    }
    return any && !here;
}

static void join_et_match(struct rank_job *job)
{
    struct trace_rank *rank = job->rank;
    SCRATCH uint32_t *found = mem_alloc((rank->n_et_nodes + (size_t)1) * sizeof *found);
    uint32_t best = 0, best_window = NO_ID, n_with_id = 0;
    for (uint32_t i = 0; i < rank->n_et_nodes; i++)
        n_with_id += rank->et_nodes[i].record_fn != 0;
    /* a better way is only looked for when the one before explains less than half of the nodes */
    for (enum way way = BY_RECORD_FN; way <= BY_ORDER && best <= n_with_id / 2; way++) {
        for (uint32_t w = 0; w < job->n_windows && rank->n_windows == job->n_windows; w++) {
            const struct trace_part *part = &job->sources[w]->part;
            if (part->has_record_fn != (way == BY_RECORD_FN) || is_of_other(rank, w))
                continue;
            memset(found, 0xFF, rank->n_et_nodes * sizeof *found);
            uint32_t n = way == BY_ORDER ? match_by_order(job, w, found)
                                         : match_by_id(job, w, way == BY_EXTERNAL, found);
            if (n <= best)
                continue;
            best = n;
            best_window = w;
            for (uint32_t i = 0; i < rank->n_et_nodes; i++)
                rank->et_nodes[i].span = found[i];
        }
    }
    if (best_window != NO_ID)
        rank->windows[best_window].has_execution_trace = best >= n_with_id / 2;
}

void et_describe(struct trace_build *build, struct rank_job *job)
{
    struct trace_rank *rank = job->rank;
    struct source *source = job->execution_trace =
        job_source(build, job, &et_payload, "second execution trace of", "");
    if (source && !rank->pid)
        rank->pid = source->part.process.pid;
}

/* A functional collective's last input is its group's name, which the profile lacks. */
static void join_groups(struct rank_job *job)
{
    struct trace_rank *rank = job->rank;
    EACH_OF (const struct et_node, node, rank->et_nodes, rank->n_et_nodes) {
        const char *text = strtab_get(job->names, node->text_inputs);
        const char *end = node->text_inputs ? strrchr(text, '"') : NULL, *start = end;
        uint32_t detail = node->span == NO_ID ? NO_ID : rank->spans[node->span].detail;
        while (start && start > text && start[-1] != '"')
            start--;
        if (!start || start == text || detail == NO_ID || rank->details[detail].process_group ||
            !strstr(strtab_get(job->names, node->name), "c10d_functional::"))
            continue;
        uint32_t group = strtab_find(job->names, start, (size_t)(end - start));
        rank->details[detail].process_group = group == STRTAB_NONE ? 0 : group;
    }
}

void et_join(struct rank_job *job)
{
    struct trace_rank *rank = job->rank;
    const struct source *source = job->execution_trace;
    if (!source)
        return;
    struct execution_trace *et = part_payload(&source->part, &et_payload);
    rank->et_is_cut = source_is_damaged(source);
    EACH (struct et_tensor, tensor, et->tensors)
        tensor->device = source->names[tensor->device];
    EACH (struct et_node, node, et->nodes)
        RENAME(source->names, &node->name, &node->text_inputs);
    rank->et_nodes = et->nodes.at;
    rank->et_tensors = et->tensors.at;
    rank->n_et_nodes = (uint32_t)et->nodes.n;
    rank->n_et_tensors = (uint32_t)et->tensors.n;
    et->nodes.at = NULL; /* they are the rank's */
    et->tensors.at = NULL;
    join_et_match(job);
    join_groups(job);
}
