/* ingest/tensorflow/session_runs.c: the runs of a session's processes, and the steps that they are.
 *
 * A step is what the client ran in a range that it marked (the recorder marks its steps), or, where
 * it marked none, one run. All processes number a run alike. Within a process one run begins after
 * the other. */
#include <stdlib.h>

#include "base/sort.h"
#include "ingest/tensorflow/session_processes.h"
#include "ingest/tensorflow/tf_parts.h"

ORDER(compare_works, struct work, ASCENDING(track) ?: ASCENDING(start_ns) ?: ASCENDING(run));

ORDER(compare_runs, struct run, ASCENDING(start_ns) ?: ASCENDING(id));

static void find_runs(struct joiner *j, struct process *process)
{
    const struct session_profile *session = session_profile_of(&process->profile->part);
    const struct session_moment *moment, *end = session->moments.at + session->moments.n;
    struct map done = {0};
    for (moment = session->moments.at; moment < end && !j->no_memory; moment++)
        if (moment->kind == MOMENT_RUN_DONE)
            j->no_memory = map_set(&done, map_key(moment->run), 1) < 0;
    for (moment = session->moments.at; moment < end && !j->no_memory; moment++) {
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
    FOR_EACH_SPAN(&process->profile->part, span)
    {
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

void session_find_runs(struct joiner *j, struct process *process)
{
    find_runs(j, process);
    if (!j->no_memory)
        find_marks(j, process);
}

/* ---- steps ---- */

static uint32_t step_of(struct joiner *j, int64_t number)
{
    struct step fresh = {0};
    int64_t index = map_number(&j->step_of_number, map_key((uint64_t)number));
    j->no_memory |= index < 0 || ((size_t)index == j->steps.n && array_push(&j->steps, fresh) < 0);
    return (uint32_t)index;
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

void session_drop_process(struct joiner *j, size_t p)
{
    array_fini(&j->processes[p].runs);
    array_fini(&j->processes[p].works);
    array_fini(&j->processes[p].marks);
    j->processes[p] = j->processes[--j->n];
}

void session_warn_of_others(struct joiner *j, int rank, int other)
{
    build_warn(j->build,
               "ranks drive sessions of their own (first: rank %d, last: rank %d): that of rank "
               "%d is replayed, as if the others did not run beside it",
               rank, other, rank);
}

/* The runs of the client, the lowest rank that marked some. Others that marked runs of their own
 * drive sessions of their own, of which one is put together. */
void session_find_steps(struct joiner *j)
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
            session_drop_process(j, p - 1);
        }
    if (other != -1)
        session_warn_of_others(j, rank, other);
}

/* Steps that every process has, whole. */
void session_choose_steps(struct joiner *j)
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

uint32_t session_cut_of(const struct joiner *j, uint64_t run)
{
    uint64_t step;
    return map_get(&j->step_of_run, map_key(run), &step) ? j->cuts[step] : NO_ID;
}
