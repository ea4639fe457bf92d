/* ingest/tensorflow/session_profile.c: steps of a session from what each of its processes profiled.
 *
 * A step is what the client ran in a range that it marked (the recorder marks its steps), or, where
 * it marked none, one run. All processes number a run alike, so that what a run did in each of them
 * is a matter of looking it up; within a process one run begins after the other. The profiles say
 * when a kernel that waits for another process was called and when it had what it waited for, but
 * not what that was: the graph says, in the RunMetadata of a step before. */
#include "ingest/tensorflow/session_profile.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "base/map.h"
#include "base/sort.h"
#include "ingest/load.h"
#include "ingest/tensorflow/session.h"

/* Tracks that the profile does not have are of no process: their pid. */
enum { OF_WAITS = 1, OF_VARIABLES };

struct session_profile *session_profile_of(struct trace_part *part)
{
    if (!part->session)
        part->session = calloc(1, sizeof *part->session);
    return part->session;
}

void session_profile_destroy(struct session_profile *session)
{
    if (session)
        array_fini(&session->moments);
    free(session);
}

/* A run in a process. */
struct run {
    uint64_t id;
    uint32_t track;
    int64_t start_ns;
    bool done;
};

/* A stretch of a thread: until the next one begins there. */
struct work {
    uint32_t track;
    int64_t start_ns;
    uint64_t run;
};

/* A range that the client marked. */
struct mark {
    uint32_t track;
    bool runs; /* some began there in it: then others of the client fill queues */
    int64_t start_ns, end_ns;
    int32_t number;
};

/* One process. */
struct process {
    struct source *profile, *graph; /* graph: NULL where there is no RunMetadata at all */
    ARRAY(struct run) runs;         /* ascending */
    ARRAY(struct work) works;       /* by track, ascending */
    ARRAY(struct mark) marks;
};

struct step {
    uint32_t n_processes; /* that have it whole */
    uint32_t last;        /* process counted, + 1 */
};

struct joiner {
    struct loader *loader;
    struct process *processes;
    size_t n;
    struct map step_of_run, step_of_number; /* index */
    ARRAY(struct step) steps;               /* in the client's order */
    uint32_t *cuts;                         /* by step; NO_ID: not whole */
    uint32_t n_cuts;
    bool no_memory;
};

ORDER(by_time, struct session_moment, ASCENDING(ns) ?: ASCENDING(run) ?: ASCENDING(name) ?: ASCENDING(kind));

/* ---- runs and marks of a process ---- */

ORDER(compare_works, struct work, ASCENDING(track) ?: ASCENDING(start_ns) ?: ASCENDING(run));

ORDER(compare_runs, struct run, ASCENDING(start_ns) ?: ASCENDING(id));

static void find_runs(struct joiner *j, struct process *process)
{
    struct session_profile *session = process->profile->part.session;
    struct map done = {0};
    for (size_t i = 0; i < session->moments.n && !j->no_memory; i++)
        if (session->moments.at[i].kind == MOMENT_RUN_DONE)
            j->no_memory |= map_set(&done, map_key(session->moments.at[i].run), 1) < 0;
    for (size_t i = 0; i < session->moments.n && !j->no_memory; i++) {
        const struct session_moment *moment = &session->moments.at[i];
        struct run run = {moment->run, moment->track, moment->ns,
                          map_get(&done, map_key(moment->run), NULL)};
        struct work work = {moment->track, moment->ns, moment->run};
        if (moment->kind == MOMENT_RUN)
            j->no_memory |= array_push(&process->runs, run) < 0;
        else if (moment->kind == MOMENT_WORK)
            j->no_memory |= array_push(&process->works, work) < 0;
    }
    array_sort(&process->runs, compare_runs);
    array_sort(&process->works, compare_works);
    map_fini(&done);
}

ORDER(compare_marks, struct mark, ASCENDING(start_ns) ?: ASCENDING(number));

/* NULL: there is none at that time. */
static struct mark *mark_at(const struct process *process, int64_t ns)
{
    size_t next = LOWER_BOUND(i, (size_t)0, process->marks.n, process->marks.at[i].start_ns <= ns);
    return next > 0 && process->marks.at[next - 1].end_ns > ns ? &process->marks.at[next - 1]
                                                               : NULL;
}

static void find_marks(struct joiner *j, struct process *process)
{
    const struct trace_part *part = &process->profile->part;
    for (const struct span_block *block = part->first_block; block; block = block->next)
        for (uint32_t i = 0; i < block->n; i++) {
            const struct trace_span *span = &block->at[i];
            struct mark mark = {span->track, false, span->start_ns, span->start_ns + span->dur_ns,
                                span->sequence};
            if (span->kind == SPAN_STEP)
                j->no_memory |= array_push(&process->marks, mark) < 0;
        }
    array_sort(&process->marks, compare_marks);
    for (size_t r = 0; r < process->runs.n; r++) {
        struct mark *mark = mark_at(process, process->runs.at[r].start_ns);
        if (mark && mark->track == process->runs.at[r].track)
            mark->runs = true;
    }
}

/* ---- steps ---- */

static uint32_t step_of(struct joiner *j, int64_t number)
{
    struct step step = {0};
    uint64_t index;
    if (map_get(&j->step_of_number, map_key((uint64_t)number), &index))
        return (uint32_t)index;
    j->no_memory |= map_set(&j->step_of_number, map_key((uint64_t)number), j->steps.n) < 0 ||
                    array_push(&j->steps, step) < 0;
    return (uint32_t)j->steps.n - 1;
}

/* The number of the mark that a run began in; false: in none. */
static bool find_mark(const struct process *process, const struct run *run, int64_t *number)
{
    const struct mark *mark = mark_at(process, run->start_ns);
    if (!mark || (mark->runs && mark->track != run->track))
        return false;
    *number = mark->number;
    return true;
}

/* Its runs are steps by their marks, or, where `marked` is false, by themselves. */
static void number_runs(struct joiner *j, const struct process *process, bool marked)
{
    for (size_t r = 0; r < process->runs.n && !j->no_memory; r++) {
        int64_t number = (int64_t)r;
        if (marked && !find_mark(process, &process->runs.at[r], &number))
            continue;
        uint32_t step = step_of(j, number);
        j->no_memory |= map_set(&j->step_of_run, map_key(process->runs.at[r].id), step) < 0;
    }
}

/* Whether a process that marked steps of its own took part in those that are numbered. */
static bool takes_part(const struct joiner *j, const struct process *process)
{
    size_t n = 0, n_known = 0;
    int64_t number;
    for (size_t r = 0; r < process->runs.n; r++)
        if (find_mark(process, &process->runs.at[r], &number)) {
            n++;
            n_known += map_get(&j->step_of_run, map_key(process->runs.at[r].id), NULL);
        }
    return n_known * 2 >= n;
}

static void drop_process(struct joiner *j, size_t p)
{
    array_fini(&j->processes[p].runs);
    array_fini(&j->processes[p].works);
    array_fini(&j->processes[p].marks);
    j->processes[p] = j->processes[--j->n];
}

static void warn_of_others(struct joiner *j, int rank, int other)
{
    trace_warn(j->loader->trace, &j->loader->options->sink,
               "ranks drive sessions of their own (first: rank %d, last: rank %d): that of rank "
               "%d is replayed, as if the others did not run beside it",
               rank, other, rank);
}

/* The runs of the client, the lowest rank that marked some. Others that marked runs of their own
 * drive sessions of their own, of which one is put together. */
static void find_steps(struct joiner *j)
{
    struct process *client = NULL;
    int other = -1;
    for (size_t p = 0; p < j->n; p++)
        if (j->processes[p].marks.n > 0 && j->processes[p].profile->rank >= 0 &&
            (!client || j->processes[p].profile->rank < client->profile->rank))
            client = &j->processes[p];
    number_runs(j, client ? client : &j->processes[0], client != NULL);
    int rank = client ? client->profile->rank : 0;
    for (size_t p = j->n; p > 0; p--)
        if (!takes_part(j, &j->processes[p - 1])) {
            other = j->processes[p - 1].profile->rank;
            drop_process(j, p - 1);
        }
    if (other != -1)
        warn_of_others(j, rank, other);
}

/* Steps that every process has, whole. */
static void choose_steps(struct joiner *j)
{
    uint64_t step;
    for (size_t p = 0; p < j->n; p++)
        for (size_t r = 0; r < j->processes[p].runs.n; r++) {
            const struct run *run = &j->processes[p].runs.at[r];
            if (!run->done || !map_get(&j->step_of_run, map_key(run->id), &step))
                continue;
            struct step *of = &j->steps.at[step];
            of->n_processes += of->last != p + 1;
            of->last = (uint32_t)p + 1;
        }
    j->cuts = malloc((j->steps.n + 1) * sizeof *j->cuts);
    if (!j->cuts) {
        j->no_memory = true;
        return;
    }
    for (size_t s = 0; s < j->steps.n; s++)
        j->cuts[s] =
            j->steps.at[s].n_processes == j->n && j->n_cuts < UINT16_MAX ? j->n_cuts++ : NO_ID;
}

/* NO_ID: of no step. */
static uint32_t cut_of(const struct joiner *j, uint64_t run)
{
    uint64_t step;
    return map_get(&j->step_of_run, map_key(run), &step) ? j->cuts[step] : NO_ID;
}

/* What a span ran for: what its thread did then, or, of other spans, the last run that had begun.
 */
static uint32_t cut_at(const struct joiner *j, const struct process *process,
                       const struct trace_span *span)
{
    const struct work *works = process->works.at;
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
    struct joiner *j;
    struct process *process;
    struct trace_part *part;
    const struct trace_part *graph;
    struct map nodes;    /* string id of the graph -> node */
    struct map sizes;    /* string id of a key in the graph -> bytes */
    struct map details;  /* node, + 1 -> what all its transfers have in common */
    struct map profiled; /* string ids, + 1, of nodes that have spans of their own */
    struct session_lanes lanes;
};

static void place(struct cutting *c, struct trace_span span, uint32_t cut)
{
    int64_t *end_ns = &c->part->cuts.at[cut].end_ns, end = span.start_ns + span.dur_ns;
    span.window = (uint16_t)cut;
    *end_ns = end > *end_ns ? end : *end_ns;
    c->j->no_memory |= !part_place_span(c->part, &span);
}

/* Keeps what was run in the steps, however a thread of the process came to run it. */
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
        for (uint32_t i = 0; i < done.first_block->n && !c->j->no_memory; i++) {
            const struct trace_span *span = &done.first_block->at[i];
            uint32_t cut = cut_at(c->j, c->process, span);
            if (cut == NO_ID || span->kind == SPAN_STEP)
                continue;
            c->j->no_memory |= map_set(&c->profiled, span->name + UINT64_C(1), 1) < 0;
            place(c, *span, cut);
        }
        part_free_blocks(&done);
    }
}

static void find_nodes(struct cutting *c)
{
    const struct trace_part *graph = c->graph;
    for (size_t n = 0; n < graph->dfg_nodes.n && !c->j->no_memory; n++)
        if (graph->dfg_nodes.at[n].name)
            c->j->no_memory |= map_set(&c->nodes, graph->dfg_nodes.at[n].name, n) < 0;
    for (const struct span_block *block = graph->first_block; block; block = block->next)
        for (uint32_t i = 0; i < block->n && !c->j->no_memory; i++) {
            const struct trace_span *span = &block->at[i];
            const struct trace_detail *detail =
                span->kind == SPAN_TRANSFER ? &graph->details.at[span->detail] : NULL;
            if (detail && detail->process_group)
                c->j->no_memory |= map_set(&c->sizes, detail->process_group, detail->bytes) < 0;
        }
}

/* A kernel that waited, as the graph knows it. */
static void add_wait(struct cutting *c, const struct session_moment *from, int64_t end_ns,
                     uint32_t cut)
{
    struct trace_part *part = c->part;
    const struct trace_part *graph = c->graph;
    const char *name = strtab_get(&part->names, from->name);
    uint32_t id = strtab_find(&graph->names, name, strtab_len(&part->names, from->name));
    bool *no_memory = &c->j->no_memory;
    uint64_t n, common = 0, bytes = 0;
    if (id == STRTAB_FULL || id == 0 || !map_get(&c->nodes, id, &n))
        return;
    const struct dfg_node *node = &graph->dfg_nodes.at[n];
    const char *type = strtab_get(&graph->names, node->type),
               *key = strtab_get(&graph->names, node->key);
    struct trace_detail detail = {.peer = -1, .comm_sequence = -1, .wait_stream = -1};
    struct trace_span span = {.start_ns = from->ns,
                              .dur_ns = end_ns - from->ns,
                              .name = from->name,
                              .sequence = -1,
                              .detail = NO_ID,
                              .kind = SPAN_CPU_OP,
                              .parent = NO_ID,
                              .node = NO_ID};
    if (strstr(type, "Recv")) {
        if (!node->key || !trace_key_leaves_task(key))
            return;
        map_get(&c->sizes, node->key, &bytes);
        span.kind = SPAN_TRANSFER;
        span.track = session_inbox(part, OF_WAITS, key, no_memory);
        detail.process_group = part_intern(part, key, strlen(key), no_memory);
        detail.bytes = bytes;
    } else if (strncmp(type, "Collective", 10) == 0) {
        if (map_get(&c->profiled, from->name + UINT64_C(1), NULL))
            return;
        span.kind = SPAN_COLLECTIVE;
        span.track = session_lane(&c->lanes, part, OF_WAITS, &span, no_memory);
        detail.collective = part_intern(part, type, strlen(type), no_memory);
        session_name_group(part, key, &detail, no_memory);
    } else {
        span.track = session_lane(&c->lanes, part, OF_WAITS, &span, no_memory);
    }
    if (span.kind != SPAN_CPU_OP && !map_get(&c->details, n + 1, &common)) {
        common = part->details.n;
        *no_memory |=
            array_push(&part->details, detail) < 0 || map_set(&c->details, n + 1, common) < 0;
    }
    if (span.kind != SPAN_CPU_OP)
        span.detail = (uint32_t)common;
    if (!*no_memory)
        place(c, span, cut);
}

ORDER(by_kernel, struct session_moment, ASCENDING(run) ?: ASCENDING(name) ?: by_time(x, y));

/* Puts the calls and answers of the steps' runs to the front, those of one run together; ends[cut]
 * is where those of a step end. In place: there are as many as there are kernels that wait. */
static void group_moments(const struct cutting *c, size_t *ends)
{
    struct session_moment *at = c->part->session->moments.at;
    size_t n = 0, *next = ends + c->j->n_cuts;
    for (size_t i = 0; i < c->part->session->moments.n; i++) {
        struct session_moment moment = at[i];
        bool waits = moment.kind == MOMENT_WAIT || moment.kind == MOMENT_WAIT_DONE;
        uint32_t cut = waits && moment.name ? cut_of(c->j, moment.run) : NO_ID;
        if (cut == NO_ID)
            continue;
        at[n++] = moment;
        ends[cut]++;
    }
    for (uint32_t cut = 0; cut < c->j->n_cuts; cut++) {
        next[cut] = cut ? ends[cut - 1] : 0;
        ends[cut] += next[cut];
    }
    for (uint32_t cut = 0; cut < c->j->n_cuts; cut++)
        while (next[cut] < ends[cut]) {
            struct session_moment moment = at[next[cut]];
            uint32_t own = cut_of(c->j, moment.run);
            at[next[cut]] = at[next[own]];
            at[next[own]++] = moment;
        }
}

/* Of one node in one run, as often as a loop has it run: in the order of time. */
static void add_waits(struct cutting *c)
{
    struct session_moment *at = c->part->session->moments.at;
    size_t *ends = calloc(2 * (size_t)c->j->n_cuts + 1, sizeof *ends);
    c->j->no_memory |= !ends;
    if (!ends)
        return;
    group_moments(c, ends);
    for (uint32_t cut = 0; cut < c->j->n_cuts; cut++) {
        size_t first = cut ? ends[cut - 1] : 0, n_pairs = 0;
        struct session_moment *pairs = at + first;
        qsort(pairs, ends[cut] - first, sizeof *pairs, by_kernel);
        for (size_t i = 0; i + 1 < ends[cut] - first; i++)
            if (pairs[i].kind == MOMENT_WAIT && pairs[i + 1].kind == MOMENT_WAIT_DONE &&
                pairs[i].run == pairs[i + 1].run && pairs[i].name == pairs[i + 1].name) {
                struct session_moment begin = pairs[i], end = pairs[i + 1];
                pairs[2 * n_pairs] = begin;
                pairs[2 * n_pairs++ + 1] = end;
                i++;
            }
        qsort(pairs, n_pairs, 2 * sizeof *pairs, by_time); /* by what begins each */
        for (size_t i = 0; i < n_pairs && !c->j->no_memory; i++)
            add_wait(c, &pairs[2 * i], pairs[2 * i + 1].ns, cut);
    }
    free(ends);
}

/* TensorFlow's profiler leaves out kernels that take next to no time. Those that stand for a
 * variable say which one is read and updated: each is there when its step begins. */
static void add_variables(struct cutting *c, uint32_t cut)
{
    const struct trace_part *graph = c->graph;
    struct session_lanes lanes = {.n = 0};
    int64_t start_ns = c->part->cuts.at[cut].start_ns;
    for (size_t n = 0; n < graph->dfg_nodes.n && !c->j->no_memory; n++) {
        const struct dfg_node *node = &graph->dfg_nodes.at[n];
        const char *type = strtab_get(&graph->names, node->type),
                   *name = strtab_get(&graph->names, node->name);
        struct trace_span span = {.start_ns = start_ns,
                                  .dur_ns = 1,
                                  .sequence = -1,
                                  .detail = NO_ID,
                                  .kind = SPAN_CPU_OP,
                                  .parent = NO_ID,
                                  .node = NO_ID};
        if (strcmp(type, "VarHandleOp") != 0 && strcmp(type, "VariableV2") != 0 &&
            strcmp(type, "Variable") != 0)
            continue;
        span.name = part_intern(c->part, name, strlen(name), &c->j->no_memory);
        if (map_get(&c->profiled, span.name + UINT64_C(1), NULL))
            continue;
        span.track = session_lane(&lanes, c->part, OF_VARIABLES, &span, &c->j->no_memory);
        start_ns++;
        if (!c->j->no_memory)
            place(c, span, cut);
    }
}

static void cut_process(struct joiner *j, struct process *process)
{
    struct trace_part *part = &process->profile->part;
    struct cutting c = {.j = j, .process = process, .part = part};
    const struct part_cut none = {0};
    for (uint32_t i = 0; i < j->n_cuts && !j->no_memory; i++)
        j->no_memory |= array_push(&part->cuts, none) < 0;
    for (size_t r = process->runs.n; r > 0 && !j->no_memory;
         r--) { /* it begins with its first run */
        const struct run *run = &process->runs.at[r - 1];
        uint32_t cut = cut_of(j, run->id);
        if (cut != NO_ID)
            part->cuts.at[cut] =
                (struct part_cut){.start_ns = run->start_ns, .end_ns = run->start_ns};
    }
    if (!j->no_memory)
        keep_spans(&c);
    if (!j->no_memory && process->graph) {
        c.graph = &process->graph->part;
        find_nodes(&c);
        if (!j->no_memory)
            add_waits(&c);
        for (uint32_t i = 0; i < j->n_cuts && !j->no_memory; i++)
            add_variables(&c, i);
    }
    part->is_session_step = true;
    part->start_ns += part->base_ns;
    part->end_ns += part->base_ns;
    map_fini(&c.nodes);
    map_fini(&c.sizes);
    map_fini(&c.details);
    map_fini(&c.profiled);
}

/* When each step was going on in any process, as far as clocks tell, from when it was in the
 * client.
 */
static void find_wholes(struct joiner *j)
{
    struct process *client = &j->processes[0];
    for (size_t p = 1; p < j->n; p++)
        if ((unsigned)j->processes[p].profile->rank < (unsigned)client->profile->rank)
            client = &j->processes[p];
    const struct trace_part *own = &client->profile->part;
    for (uint32_t i = 0; i < j->n_cuts; i++) {
        int64_t whole_ns[2] = {own->cuts.at[i].start_ns + own->base_ns,
                               own->cuts.at[i].end_ns + own->base_ns};
        for (int pass = 0; pass < 2; pass++)
            for (size_t p = 0; p < j->n; p++) {
                struct trace_part *part = &j->processes[p].profile->part;
                struct part_cut *cut = &part->cuts.at[i];
                session_extend(whole_ns, cut->start_ns + part->base_ns,
                               cut->end_ns + part->base_ns);
                cut->whole_start_ns = whole_ns[0];
                cut->whole_end_ns = whole_ns[1];
            }
    }
}

/* ---- which files ---- */

static bool is_step(const struct source *source)
{
    return source->kind == DPRO_FILE_RUN_METADATA && source->part.is_session_step &&
           source->rank != -1 && source->part.n_spans > 0;
}

static bool is_session_profile(const struct source *source)
{
    return source->kind == DPRO_FILE_XPLANE && source->part.session && source->rank != -1;
}

/* One process a rank that a RunMetadata tells of; of several RunMetadata the first has the graph.
 */
static void find_processes(struct joiner *j)
{
    struct source_list *list = &j->loader->list;
    bool has_graphs = false;
    for (size_t i = 0; i < list->n; i++)
        has_graphs |= is_step(&list->at[i]);
    j->processes = calloc(list->n + 1, sizeof *j->processes);
    j->no_memory |= !j->processes;
    for (size_t i = 0; i < list->n && !j->no_memory; i++) {
        struct source *profile = &list->at[i], *graph = NULL;
        for (size_t k = 0; k < list->n && is_session_profile(profile) && !graph; k++)
            if (is_step(&list->at[k]) && list->at[k].rank == profile->rank &&
                list->at[k].attempt == profile->attempt)
                graph = &list->at[k];
        if (is_session_profile(profile) && (graph || !has_graphs))
            j->processes[j->n++] = (struct process){.profile = profile, .graph = graph};
    }
}

/* Whether the RunMetadata that the source is of, which tells of all tasks, has a process's graph.
 */
static bool tells_of_processes(const struct joiner *j, const struct source *source)
{
    bool tells = false;
    for (size_t p = 0; p < j->n; p++)
        tells |= j->processes[p].graph && strcmp(j->processes[p].graph->path, source->path) == 0;
    return tells;
}

static bool has_process(const struct joiner *j, int rank)
{
    for (size_t p = 0; p < j->n; p++)
        if (j->processes[p].profile->rank == rank)
            return true;
    return false;
}

/* A task of the session's that no profile is of; NULL: each has one. */
static const struct source *find_missing(const struct joiner *j)
{
    const struct source_list *list = &j->loader->list;
    for (size_t i = 0; i < list->n; i++) {
        if (is_step(&list->at[i]) && tells_of_processes(j, &list->at[i]) &&
            !has_process(j, list->at[i].rank))
            return &list->at[i];
    }
    return NULL;
}

/* The profiles, where there are steps by RunMetadata only. */
static void leave_profiles_out(struct joiner *j)
{
    struct source_list *list = &j->loader->list;
    for (size_t i = 0; i < list->n; i++)
        if (is_session_profile(&list->at[i]))
            list->at[i].kind = DPRO_FILE_OTHER;
}

/* Of the RunMetadata the graphs are what is wanted. A client that no process's profile is of, and
 * whose RunMetadata tells of steps, drives a session of its own. */
static void leave_steps_out(struct joiner *j)
{
    struct source_list *list = &j->loader->list;
    int rank = INT_MAX, other = -1;
    for (size_t p = 0; p < j->n; p++)
        if (j->processes[p].profile->rank >= 0 && j->processes[p].profile->rank < rank)
            rank = j->processes[p].profile->rank;
    for (size_t i = 0; i < list->n; i++)
        if (is_step(&list->at[i]) && list->at[i].rank > other &&
            !tells_of_processes(j, &list->at[i]) && !has_process(j, list->at[i].rank))
            other = list->at[i].rank;
    if (other != -1)
        warn_of_others(j, rank, other);
    for (size_t i = 0; i < list->n; i++) {
        struct source *source = &list->at[i];
        bool wanted = false;
        for (size_t p = 0; p < j->n; p++)
            wanted |= j->processes[p].graph == source || j->processes[p].profile == source;
        if (!wanted && (is_session_profile(source) || is_step(source)))
            source->kind = DPRO_FILE_OTHER;
        if (!wanted || !is_step(source))
            continue;
        part_free_blocks(&source->part);
        source->part.n_spans = 0;
        for (size_t t = 0; t < source->part.tracks.n; t++)
            source->part.tracks.at[t].n_spans = 0;
    }
}

static void warn_missing(struct joiner *j, const struct source *missing)
{
    char process[NET_PROCESS_TEXT];
    if (missing)
        net_process_format(process, missing->rank);
    trace_warn(
        j->loader->trace, &j->loader->options->sink,
        missing ? "%s: there is no profile of %s beside it, so that the steps in its RunMetadata "
                  "are all that is replayed; record it again with dpro profile before that "
                  "task's command, too"
                : "%s: no step is whole in the profiles of all tasks, so that the steps in "
                  "its RunMetadata are all that is replayed; record it again%s",
        missing ? missing->path : j->processes[0].graph->path, missing ? process : "");
}

static void join(struct joiner *j)
{
    find_processes(j);
    if (j->n == 0 || j->no_memory)
        return;
    for (size_t p = 0; p < j->n && !j->no_memory; p++) {
        find_runs(j, &j->processes[p]);
        find_marks(j, &j->processes[p]);
    }
    if (!j->no_memory)
        find_steps(j);
    const struct source *missing = find_missing(j);
    if (!missing && !j->no_memory)
        choose_steps(j);
    if (j->no_memory)
        return;
    if (j->n_cuts == 0 && j->processes[0].graph) {
        warn_missing(j, missing);
        leave_profiles_out(j);
    }
    if (j->n_cuts == 0)
        return;
    for (size_t p = 0; p < j->n && !j->no_memory; p++)
        cut_process(j, &j->processes[p]);
    if (!j->no_memory)
        find_wholes(j);
    leave_steps_out(j);
}

int session_profiles_join(struct loader *loader, struct dpro_error *err)
{
    struct joiner j = {.loader = loader};
    join(&j);
    while (j.n > 0)
        drop_process(&j, j.n - 1);
    free(j.processes);
    free(j.cuts);
    array_fini(&j.steps);
    map_fini(&j.step_of_run);
    map_fini(&j.step_of_number);
    return j.no_memory ? dpro_error_nomem(err) : 0;
}
