/* Steps of a session from what each of its processes profiled.
 *
 * A step is what the client ran in a range that it marked (the recorder marks its steps), or, where
 * it marked none, one run. All processes number a run alike, so that what a run did in each of them
 * is looked up by its number. Within a process one run begins after the other. The graphs are those
 * of the RunMetadata beside the profiles: a profile says when a kernel that waits for another
 * process was called and when it had what it waited for, but not what that was. */

#include "adapters/tensorflow/tf_parts.h"
#include "ingest/sources.h"

/* A run in a process. */
struct session_run {
    uint64_t id;
    uint32_t track;
    int64_t start_ns;
    bool done;
};

/* A stretch of a thread: until the next one begins there. */
struct session_work {
    uint32_t track;
    int64_t start_ns;
    uint64_t run;
};

struct session_mark {
    uint32_t track;
    bool runs; /* some began there in it: then others of the client fill queues */
    int64_t start_ns, end_ns;
    int32_t number;
};

struct session_process {
    struct source *profile, *graph;   /* graph: NULL where there is no RunMetadata at all */
    ARRAY(struct session_run) runs;   /* ascending */
    ARRAY(struct session_work) works; /* by track, ascending */
    ARRAY(struct session_mark) marks;
};

struct session_step {
    uint32_t n_processes; /* that have it whole */
    uint32_t last;        /* process counted, + 1 */
};

struct session_joiner {
    struct trace_build *build;
    struct arena arena; /* has processes and cuts */
    struct session_process *processes;
    size_t n;
    struct map step_of_run, step_of_number; /* index */
    ARRAY(struct session_step) steps;       /* in the client's order */
    uint32_t *cuts;                         /* by step; NO_ID: not whole */
    uint32_t n_cuts;
};

/* ---- the payload of a profile that has a session's runs ---- */

const struct payload_kind session_payload = {sizeof(struct session_profile), .of_spans = true,
                                             .arrays = {offsetof(struct session_profile, moments)}};

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
    struct trace_span span = span_at(SPAN_CPU_OP, from->name, 0, from->ns, wait->end_ns);
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
        struct trace_span span = span_at(SPAN_CPU_OP, 0, 0, start_ns, start_ns + 1);
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

static void session_cut_process(struct session_joiner *j, struct session_process *process)
{
    struct trace_part *part = &process->profile->part;
    struct cutting c = {.j = j, .process = process, .part = part};
    for (uint32_t i = 0; i < j->n_cuts; i++)
        array_add(&part->session.cuts, 0);
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

/* ---- runs and marks of a process ---- */

ORDER(compare_works, struct session_work,
      ASCENDING(track) ?: ASCENDING(start_ns) ?: ASCENDING(run));

ORDER(compare_runs, struct session_run, ASCENDING(start_ns) ?: ASCENDING(id));

static void find_runs(struct session_process *process)
{
    const struct session_profile *session = session_profile_of(&process->profile->part);
    const struct session_moment *moment, *end = session->moments.at + session->moments.n;
    SCRATCH struct map done = {0};
    for (moment = session->moments.at; moment < end; moment++)
        if (moment->kind == MOMENT_RUN_DONE)
            map_set(&done, map_key(moment->run), 1);
    for (moment = session->moments.at; moment < end; moment++) {
        if (moment->kind == MOMENT_RUN)
            array_add(&process->runs, moment->run, moment->track, moment->ns,
                      map_get(&done, map_key(moment->run), NULL));
        else if (moment->kind == MOMENT_WORK)
            array_add(&process->works, moment->track, moment->ns, moment->run);
    }
    array_sort(&process->runs, compare_runs);
    array_sort(&process->works, compare_works);
}

ORDER(compare_marks, struct session_mark, ASCENDING(start_ns) ?: ASCENDING(number));

/* NULL: there is none at that time. */
static struct session_mark *mark_at(const struct session_process *process, int64_t ns)
{
    size_t next = LOWER_BOUND(i, (size_t)0, process->marks.n, process->marks.at[i].start_ns <= ns);
    return next > 0 && process->marks.at[next - 1].end_ns > ns ? &process->marks.at[next - 1]
                                                               : NULL;
}

static void find_marks(struct session_process *process)
{
    FOR_EACH_SPAN (&process->profile->part, span)
        if (span->kind == SPAN_STEP)
            array_add(&process->marks, span->track, false, span->start_ns, span_end_ns(span),
                      span->sequence);
    array_sort(&process->marks, compare_marks);
    for (size_t r = 0; r < process->runs.n; r++) {
        struct session_mark *mark = mark_at(process, process->runs.at[r].start_ns);
        if (mark && mark->track == process->runs.at[r].track)
            mark->runs = true;
    }
}

/* ---- steps ---- */

static uint32_t step_of(struct session_joiner *j, int64_t number)
{
    uint32_t index = (uint32_t)map_number(&j->step_of_number, map_key((uint64_t)number));
    if (index == j->steps.n)
        array_add(&j->steps, 0);
    return index;
}

/* The number of the mark that a run began in; false: in none. */
static bool find_mark(const struct session_process *process, const struct session_run *run,
                      int64_t *number)
{
    const struct session_mark *mark = mark_at(process, run->start_ns);
    if (!mark || (mark->runs && mark->track != run->track))
        return false;
    *number = mark->number;
    return true;
}

/* Its runs are steps by their marks, or, where `marked` is false, by themselves. */
static void number_runs(struct session_joiner *j, const struct session_process *process,
                        bool marked)
{
    for (size_t r = 0; r < process->runs.n; r++) {
        int64_t number = (int64_t)r;
        if (marked && !find_mark(process, &process->runs.at[r], &number))
            continue;
        uint32_t step = step_of(j, number);
        map_set(&j->step_of_run, map_key(process->runs.at[r].id), step);
    }
}

/* Whether most runs in a process's own marks are of numbered steps. */
static bool takes_part(const struct session_joiner *j, const struct session_process *process)
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

static void drop_process(struct session_joiner *j, size_t p)
{
    FREE_ALL(&j->processes[p].runs, &j->processes[p].works, &j->processes[p].marks);
    j->processes[p] = j->processes[--j->n];
}

/* Numbers the runs of the client, the lowest rank that marked steps. Processes whose marks hold
 * other runs drive other sessions and are left out. */
static void find_steps(struct session_joiner *j)
{
    struct session_process *client = NULL;
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
        build_warn(j->build,
                   "several ranks drive a session (first: rank %d, last: rank %d): only that of "
                   "rank %d is replayed",
                   rank, other, rank);
}

/* Steps that every process has, whole. */
static void choose_steps(struct session_joiner *j)
{
    uint64_t step;
    for (size_t p = 0; p < j->n; p++)
        EACH (const struct session_run, run, j->processes[p].runs) {
            if (!run->done || !map_get(&j->step_of_run, map_key(run->id), &step))
                continue;
            struct session_step *of = &j->steps.at[step];
            of->n_processes += of->last != p + 1;
            of->last = (uint32_t)p + 1;
        }
    j->cuts = arena_array(&j->arena, j->steps.n, sizeof *j->cuts);
    for (size_t s = 0; s < j->steps.n; s++)
        j->cuts[s] =
            j->steps.at[s].n_processes == j->n && j->n_cuts < UINT16_MAX ? j->n_cuts++ : NO_ID;
}

/* The time of each step in all processes whose clocks agree with the client's. */
static void find_wholes(struct session_joiner *j)
{
    struct session_process *client = &j->processes[0];
    for (size_t p = 1; p < j->n; p++)
        if ((unsigned)j->processes[p].profile->rank < (unsigned)client->profile->rank)
            client = &j->processes[p];
    const struct trace_part *own = &client->profile->part;
    for (uint32_t i = 0; i < j->n_cuts; i++) {
        int64_t whole_ns[2] = {own->session.cuts.at[i].start_ns + own->base_ns,
                               own->session.cuts.at[i].end_ns + own->base_ns};
        for (int pass = 0; pass < 2; pass++)
            for (size_t p = 0; p < j->n; p++) {
                struct trace_part *part = &j->processes[p].profile->part;
                struct part_cut *cut = &part->session.cuts.at[i];
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
    return source_is_profile(source) && source->part.session.is_step && source->rank != -1 &&
           !session_profile_of(&source->part);
}

static bool is_session_profile(const struct source *source)
{
    return source_payload(source, &session_payload) && source->rank != -1;
}

/* A process for each rank of the RunMetadata; the first RunMetadata of a rank has its graph. */
static void find_processes(struct session_joiner *j)
{
    struct source_list *list = &j->build->list;
    bool has_graphs = false;
    for (size_t i = 0; i < list->n; i++)
        has_graphs |= is_step(&list->at[i]);
    j->processes = arena_array(&j->arena, list->n, sizeof *j->processes);
    for (size_t i = 0; i < list->n; i++) {
        struct source *profile = &list->at[i], *graph = NULL;
        for (size_t k = 0; k < list->n && is_session_profile(profile) && !graph; k++)
            if (is_step(&list->at[k]) && list->at[k].rank == profile->rank &&
                list->at[k].attempt == profile->attempt)
                graph = &list->at[k];
        if (is_session_profile(profile) && (graph || !has_graphs))
            j->processes[j->n++] = (struct session_process){.profile = profile, .graph = graph};
    }
}

/* A task in the RunMetadata of a process that has no profile; NULL: each has one. */
static const struct source *find_missing(const struct session_joiner *j)
{
    EACH (const struct source, source, j->build->list) {
        bool tells = false, has = !is_step(source);
        for (size_t p = 0; p < j->n; p++) {
            const struct session_process *process = &j->processes[p];
            tells |= process->graph && strcmp(process->graph->path, source->path) == 0;
            has |= process->profile->rank == source->rank;
        }
        if (tells && !has)
            return source;
    }
    return NULL;
}

/* Only the graphs of the RunMetadata are used. */
static void leave_steps_out(struct session_joiner *j)
{
    struct source_list *list = &j->build->list;
    EACH (struct source, source, *list) {
        bool wanted = false;
        for (size_t p = 0; p < j->n; p++)
            wanted |= j->processes[p].graph == source || j->processes[p].profile == source;
        if (!wanted && (is_session_profile(source) || is_step(source)))
            source->reader = NULL;
        if (!wanted || !is_step(source))
            continue;
        part_free_blocks(&source->part);
        source->part.n_spans = 0;
        for (size_t t = 0; t < source->part.tracks.n; t++)
            source->part.tracks.at[t].n_spans = 0;
    }
}

static void warn_missing(struct session_joiner *j, const struct source *missing)
{
    build_warn(j->build,
               missing
                   ? "%s: no profile of %s is beside it, so only the steps in its RunMetadata are "
                     "replayed; record again, with 'dpro profile' before that task's command, too"
                   : "%s: no step is whole in the profiles of all tasks, so only the steps in its "
                     "RunMetadata are replayed; record again%s",
               missing ? missing->path : j->processes[0].graph->path,
               missing ? NET_PROCESS(missing->rank) : "");
}

static void join_session(struct session_joiner *j)
{
    find_processes(j);
    if (j->n == 0)
        return;
    for (size_t p = 0; p < j->n; p++) {
        find_runs(&j->processes[p]);
        find_marks(&j->processes[p]);
    }
    find_steps(j);
    const struct source *missing = find_missing(j);
    if (!missing)
        choose_steps(j);
    if (j->n_cuts == 0 && j->processes[0].graph) { /* the RunMetadata's steps are used */
        warn_missing(j, missing);
        EACH (struct source, source, j->build->list)
            source->reader = is_session_profile(source) ? NULL : source->reader;
    }
    if (j->n_cuts == 0)
        return;
    for (size_t p = 0; p < j->n; p++)
        session_cut_process(j, &j->processes[p]);
    find_wholes(j);
    leave_steps_out(j);
}

void session_profiles_join(struct trace_build *build)
{
    struct session_joiner j = {.build = build};
    join_session(&j);
    while (j.n > 0)
        drop_process(&j, j.n - 1);
    arena_fini(&j.arena);
    FREE_ALL(&j.steps, &j.step_of_run, &j.step_of_number);
}
