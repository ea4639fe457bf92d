/* ingest/tensorflow/session_profile.c: steps of a session from what each of its processes profiled.
 *
 * All processes number a run alike, so that what a run did in each of them is looked up by its
 * number. Of the RunMetadata beside the profiles the graphs are taken. */
#include "ingest/tensorflow/session_profile.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "ingest/tensorflow/session_processes.h"
#include "ingest/tensorflow/session_steps.h"

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
    return source_is_profile(source) && source->part.is_session_step && source->rank != -1 &&
           !session_profile_of(&source->part);
}

static bool is_session_profile(const struct source *source)
{
    return source_payload(source, &session_payload) && source->rank != -1;
}

/* One process a rank that a RunMetadata tells of; of several RunMetadata the first has the graph.
 */
static void find_processes(struct joiner *j)
{
    struct source_list *list = &j->build->list;
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
    const struct source_list *list = &j->build->list;
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
    struct source_list *list = &j->build->list;
    for (size_t i = 0; i < list->n; i++)
        if (is_session_profile(&list->at[i]))
            list->at[i].reader = NULL;
}

/* Of the RunMetadata the graphs are what is wanted. A client that no process's profile is of, and
 * whose RunMetadata tells of steps, drives a session of its own. */
static void leave_steps_out(struct joiner *j)
{
    struct source_list *list = &j->build->list;
    int rank = INT_MAX, other = -1;
    for (size_t p = 0; p < j->n; p++)
        if (j->processes[p].profile->rank >= 0 && j->processes[p].profile->rank < rank)
            rank = j->processes[p].profile->rank;
    for (size_t i = 0; i < list->n; i++)
        if (is_step(&list->at[i]) && list->at[i].rank > other &&
            !tells_of_processes(j, &list->at[i]) && !has_process(j, list->at[i].rank))
            other = list->at[i].rank;
    if (other != -1)
        session_warn_of_others(j, rank, other);
    for (size_t i = 0; i < list->n; i++) {
        struct source *source = &list->at[i];
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

static void warn_missing(struct joiner *j, const struct source *missing)
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

static void join(struct joiner *j)
{
    find_processes(j);
    if (j->n == 0 || j->no_memory)
        return;
    for (size_t p = 0; p < j->n && !j->no_memory; p++)
        session_find_runs(j, &j->processes[p]);
    if (!j->no_memory)
        session_find_steps(j);
    const struct source *missing = find_missing(j);
    if (!missing && !j->no_memory)
        session_choose_steps(j);
    if (j->no_memory)
        return;
    if (j->n_cuts == 0 && j->processes[0].graph) {
        warn_missing(j, missing);
        leave_profiles_out(j);
    }
    if (j->n_cuts == 0)
        return;
    for (size_t p = 0; p < j->n && !j->no_memory; p++)
        session_cut_process(j, &j->processes[p]);
    if (!j->no_memory)
        find_wholes(j);
    leave_steps_out(j);
}

int session_profiles_join(struct trace_build *build, struct dpro_error *err)
{
    struct joiner j = {.build = build};
    join(&j);
    while (j.n > 0)
        session_drop_process(&j, j.n - 1);
    free(j.processes);
    free(j.cuts);
    array_fini(&j.steps);
    map_fini(&j.step_of_run);
    map_fini(&j.step_of_number);
    return j.no_memory ? dpro_error_nomem(err) : 0;
}
