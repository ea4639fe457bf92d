/* Steps of a session from what each of its processes profiled.
 *
 * A step is what the client ran in a range that it marked (the recorder marks its steps), or, where
 * it marked none, one run. All processes number a run alike, so that what a run did in each of them
 * is looked up by its number. Within a process one run begins after the other. The graphs are those
 * of the RunMetadata beside the profiles. */
#include "adapters/tensorflow/session_profile.h"

#include "adapters/tensorflow/session_cut.h"
#include "adapters/tensorflow/session_run_steps.h"

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
        struct session_run run = {moment->run, moment->track, moment->ns,
                                  map_get(&done, map_key(moment->run), NULL)};
        struct session_work work = {moment->track, moment->ns, moment->run};
        if (moment->kind == MOMENT_RUN)
            array_push(&process->runs, run);
        else if (moment->kind == MOMENT_WORK)
            array_push(&process->works, work);
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
    FOR_EACH_SPAN (&process->profile->part, span) {
        struct session_mark mark = {span->track, false, span->start_ns, span_end_ns(span),
                                    span->sequence};
        if (span->kind == SPAN_STEP)
            array_push(&process->marks, mark);
    }
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

static void warn_of_others(struct session_joiner *j, int rank, int other)
{
    build_warn(j->build,
               "several ranks drive a session (first: rank %d, last: rank %d): only that of rank "
               "%d is replayed",
               rank, other, rank);
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
        warn_of_others(j, rank, other);
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

/* Whether the source is of a RunMetadata file that has some process's graph. */
static bool tells_of_processes(const struct session_joiner *j, const struct source *source)
{
    bool tells = false;
    for (size_t p = 0; p < j->n; p++)
        tells |= j->processes[p].graph && strcmp(j->processes[p].graph->path, source->path) == 0;
    return tells;
}

static bool has_process(const struct session_joiner *j, int rank)
{
    for (size_t p = 0; p < j->n; p++)
        if (j->processes[p].profile->rank == rank)
            return true;
    return false;
}

/* A task of the session without a profile; NULL: each has one. */
static const struct source *find_missing(const struct session_joiner *j)
{
    const struct source_list *list = &j->build->list;
    for (size_t i = 0; i < list->n; i++) {
        if (is_step(&list->at[i]) && tells_of_processes(j, &list->at[i]) &&
            !has_process(j, list->at[i].rank))
            return &list->at[i];
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
    char process[NET_PROCESS_TEXT];
    if (missing)
        net_process_format(process, missing->rank);
    build_warn(
        j->build,
        missing ? "%s: there is no profile of %s beside it, so that the steps in its RunMetadata "
                  "are all that is replayed; record it again with dpro profile before that "
                  "task's command, too"
                : "%s: no step is whole in the profiles of all tasks, so that the steps in "
                  "its RunMetadata are all that is replayed; record it again%s",
        missing ? missing->path : j->processes[0].graph->path, missing ? process : "");
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
