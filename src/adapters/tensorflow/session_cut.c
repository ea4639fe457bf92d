/* A process's profile, cut into the steps of its session.
 *
 * The profile says when a kernel that waits for another process was called and when it had what it
 * waited for, but not what that was: the graph says, in the RunMetadata of a step before. */

#include "adapters/tensorflow/session_cut.h"
#include "adapters/tensorflow/session_run_steps.h"
#include "adapters/tensorflow/tf_parts.h"

/* ---- the payload of a profile that has a session's runs ---- */

static void session_fini(void *payload)
{
    array_fini(&((struct session_profile *)payload)->moments);
}

const struct payload_kind session_payload = {sizeof(struct session_profile), session_fini, NULL,
                                             true};

struct session_profile *session_profile_of(const struct trace_part *part)
{
    return part_payload(part, &session_payload);
}

/* ---- which step ---- */

static uint32_t cut_of(const struct session_joiner *j, uint64_t run)
{
    uint64_t step;
    return map_get(&j->step_of_run, map_key(run), &step) ? j->cuts[step] : NO_ID;
}

/* The pids of tracks that the profile does not have: no process has them. */
enum { OF_WAITS = 1, OF_VARIABLES };

ORDER(by_time, struct session_moment,
      ASCENDING(ns) ?: ASCENDING(run) ?: ASCENDING(name) ?: ASCENDING(kind));

/* The cut of a span: that of what its thread worked for then, or else of the last run that had
 * begun. */
static uint32_t cut_at(const struct session_joiner *j, const struct session_process *process,
                       const struct trace_span *span)
{
    const struct session_work *works = process->works.at;
    size_t work =
        LOWER_BOUND(i, (size_t)0, process->works.n,
                    works[i].track < span->track ||
                        (works[i].track == span->track && works[i].start_ns <= span->start_ns));
    if (work > 0 && works[work - 1].track == span->track)
        return cut_of(j, works[work - 1].run);
    size_t run =
        LOWER_BOUND(i, (size_t)0, process->runs.n, process->runs.at[i].start_ns <= span->start_ns);
    return run > 0 ? cut_of(j, process->runs.at[run - 1].id) : NO_ID;
}

/* ---- a process's spans, anew ---- */

struct cutting {
    struct session_joiner *j;
    struct session_process *process;
    struct trace_part *part;
    const struct trace_part *graph;
    struct map nodes;           /* string id of the graph -> node */
    struct map sizes;           /* string id of a key in the graph -> bytes */
    struct map details;         /* node, + 1 -> what all its transfers have in common */
    struct map profiled;        /* string ids, + 1, of nodes that have spans of their own */
    struct tf_idle_tracks idle; /* of waits */
};

static void place_span(struct cutting *c, struct trace_span span, uint32_t cut)
{
    int64_t *end_ns = &c->part->session.cuts.at[cut].end_ns;
    span.window = (uint16_t)cut;
    *end_ns = MAX(*end_ns, span.start_ns + span.dur_ns);
    part_place_span(c->part, &span);
}

/* Keeps the spans that were run in the steps. */
static void keep_spans(struct cutting *c)
{
    struct trace_part *part = c->part;
    struct span_block *blocks = part->first_block;
    part->first_block = part->last_block = NULL;
    part->n_spans = 0;
    for (size_t t = 0; t < part->tracks.n; t++) {
        part->tracks.at[t].n_spans = 0;
        part->tracks.at[t].track.pool |= !part->tracks.at[t].track.gpu;
    }
    while (blocks) { /* given back one by one: they are most of what there is */
        struct trace_part done = {.first_block = blocks};
        blocks = blocks->next;
        done.first_block->next = NULL;
        EACH (const struct trace_span, span, *done.first_block) {
            uint32_t cut = cut_at(c->j, c->process, span);
            if (cut == NO_ID || span->kind == SPAN_STEP)
                continue;
            map_set(&c->profiled, span->name + UINT64_C(1), 1);
            place_span(c, *span, cut);
        }
        part_free_blocks(&done);
    }
}

static void find_nodes(struct cutting *c)
{
    const struct trace_part *graph = c->graph;
    for (size_t n = 0; n < graph->dfg_nodes.n; n++)
        if (graph->dfg_nodes.at[n].name)
            map_set(&c->nodes, graph->dfg_nodes.at[n].name, n);
    FOR_EACH_SPAN (graph, span) {
        const struct trace_detail *detail =
            span->kind == SPAN_TRANSFER ? &graph->details.at[span->detail] : NULL;
        if (detail && detail->process_group)
            map_set(&c->sizes, detail->process_group, detail->bytes);
    }
}

/* A kernel that waited. */
struct session_cut_wait {
    uint32_t cut;
    struct session_moment begin;
    int64_t end_ns;
};

/* Adds it as the graph knows it. */
static void add_wait(struct cutting *c, const struct session_cut_wait *wait)
{
    const struct session_moment *from = &wait->begin;
    struct trace_part *part = c->part;
    const struct trace_part *graph = c->graph;
    const char *name = strtab_get(&part->names, from->name);
    uint32_t id = strtab_find(&graph->names, name, strtab_len(&part->names, from->name));
    uint64_t n, common = 0, bytes = 0;
    if (id == STRTAB_NONE || id == 0 || !map_get(&c->nodes, id, &n))
        return;
    const struct dfg_node *node = &graph->dfg_nodes.at[n];
    const char *type = strtab_get(&graph->names, node->type),
               *key = strtab_get(&graph->names, node->key);
    struct trace_detail detail = {DETAIL_UNKNOWN};
    struct trace_span span = {.start_ns = from->ns,
                              .dur_ns = wait->end_ns - from->ns,
                              .name = from->name,
                              .kind = SPAN_CPU_OP,
                              SPAN_UNKNOWN};
    if (strstr(type, "Recv")) {
        if (!node->key || !trace_key_leaves_task(key))
            return;
        map_get(&c->sizes, node->key, &bytes);
        span.kind = SPAN_TRANSFER;
        span.track = session_inbox(part, OF_WAITS, key);
        detail.process_group = part_intern(part, key, strlen(key));
        detail.bytes = bytes;
    } else if (text_begins(type, "Collective")) {
        if (map_get(&c->profiled, from->name + UINT64_C(1), NULL))
            return;
        span.kind = SPAN_COLLECTIVE;
        span.track = session_track(&c->idle, part, OF_WAITS, &span);
        detail.collective = part_intern(part, type, strlen(type));
        session_name_group(part, key, &detail);
    } else {
        span.track = session_track(&c->idle, part, OF_WAITS, &span);
    }
    if (span.kind != SPAN_CPU_OP) {
        if (!map_get(&c->details, n + 1, &common)) {
            common = tf_detail(part, &detail);
            map_set(&c->details, n + 1, common);
        }
        span.detail = (uint32_t)common;
    }
    place_span(c, span, wait->cut);
}

/* Calls and answers of one node in one run, as often as a loop has it run: in the order of time. */
ORDER(by_kernel, struct session_moment, ASCENDING(run) ?: ASCENDING(name) ?: by_time(x, y));
ORDER(by_cut, struct session_cut_wait, ASCENDING(cut) ?: by_time(&x->begin, &y->begin));

static void add_waits(struct cutting *c)
{
    const struct session_profile *session = session_profile_of(c->part);
    struct session_moment *at = session->moments.at;
    SCRATCH ARRAY(struct session_cut_wait) waits = {0};
    size_t n = 0;
    for (size_t i = 0; i < session->moments.n; i++)
        if ((at[i].kind == MOMENT_WAIT || at[i].kind == MOMENT_WAIT_DONE) && at[i].name &&
            cut_of(c->j, at[i].run) != NO_ID)
            at[n++] = at[i];
    if (n > 0)
        qsort(at, n, sizeof *at, by_kernel);
    for (size_t i = 0; i + 1 < n; i++) {
        struct session_cut_wait wait = {cut_of(c->j, at[i].run), at[i], at[i + 1].ns};
        if (at[i].kind == MOMENT_WAIT && at[i + 1].kind == MOMENT_WAIT_DONE &&
            at[i].run == at[i + 1].run && at[i].name == at[i + 1].name) {
            array_push(&waits, wait);
            i++;
        }
    }
    array_sort(&waits, by_cut);
    for (size_t i = 0; i < waits.n; i++)
        add_wait(c, &waits.at[i]);
}

/* TensorFlow's profiler leaves out kernels that take hardly any time, among them those of
 * variables. Each variable gets a span where the step begins. */
static void add_variables(struct cutting *c, uint32_t cut)
{
    const struct trace_part *graph = c->graph;
    struct tf_idle_tracks idle = {.n = 0};
    int64_t start_ns = c->part->session.cuts.at[cut].start_ns;
    EACH (const struct dfg_node, node, graph->dfg_nodes) {
        const char *type = strtab_get(&graph->names, node->type),
                   *name = strtab_get(&graph->names, node->name);
        struct trace_span span = {
            .start_ns = start_ns, .dur_ns = 1, .kind = SPAN_CPU_OP, SPAN_UNKNOWN};
        if (!text_is_one(type, "VarHandleOp", "VariableV2", "Variable"))
            continue;
        span.name = part_intern(c->part, name, strlen(name));
        if (map_get(&c->profiled, span.name + UINT64_C(1), NULL))
            continue;
        span.track = session_track(&idle, c->part, OF_VARIABLES, &span);
        start_ns++;
        place_span(c, span, cut);
    }
}

void session_cut_process(struct session_joiner *j, struct session_process *process)
{
    struct trace_part *part = &process->profile->part;
    struct cutting c = {.j = j, .process = process, .part = part};
    const struct part_cut none = {0};
    for (uint32_t i = 0; i < j->n_cuts; i++)
        array_push(&part->session.cuts, none);
    for (size_t r = process->runs.n; r-- > 0;) { /* the first run begins a step */
        const struct session_run *run = &process->runs.at[r];
        uint32_t cut = cut_of(j, run->id);
        if (cut != NO_ID)
            part->session.cuts.at[cut] =
                (struct part_cut){.start_ns = run->start_ns, .end_ns = run->start_ns};
    }
    keep_spans(&c);
    if (process->graph) {
        c.graph = &process->graph->part;
        find_nodes(&c);
        add_waits(&c);
        for (uint32_t i = 0; i < j->n_cuts; i++)
            add_variables(&c, i);
    }
    part->session.is_step = true;
    part->start_ns += part->base_ns;
    part->end_ns += part->base_ns;
    FREE_ALL(&c.nodes, &c.sizes, &c.details, &c.profiled);
}
