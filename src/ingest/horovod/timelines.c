/* ingest/horovod/timelines.c: gives each communication timeline to its rank. A rank has one; one
 * that was recorded at another time than the rank's profile is of another run. Where there is no
 * profile at all the timelines are what there is: their rounds are the iterations. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/map.h"
#include "base/sort.h"
#include "ingest/load.h"

/* A timeline is often of the whole run, a profile of seconds of it; clocks of one process are
 * equal.
 */
static const int64_t SLACK_NS = 1000000000;
static const int64_t MARK_NS = 1000, HAND_OVER_NS = 100;

static struct trace_rank *find_rank(struct dpro_trace *trace, int number)
{
    for (uint32_t r = 0; r < trace->n_ranks; r++)
        if (trace->ranks[r].rank == number)
            return &trace->ranks[r];
    return NULL;
}

/* How far the timeline is from the nearest of the rank's windows. */
static int64_t distance_ns(const struct trace_rank *rank, const struct source *source)
{
    int64_t least = INT64_MAX;
    if (!source->part.timeline->on_epoch || !rank_on_epoch(rank))
        return 0;
    for (uint32_t w = 0; w < rank->n_windows; w++) {
        const struct trace_window *window = &rank->windows[w];
        int64_t away = 0;
        if (window->start_ns > source->part.end_ns)
            away = window->start_ns - source->part.end_ns;
        else if (source->part.start_ns > window->end_ns)
            away = source->part.start_ns - window->end_ns;
        least = away < least ? away : least;
    }
    return least;
}

static void rename_all(struct timeline *timeline, const uint32_t *names)
{
    for (size_t t = 0; t < timeline->tensors.n; t++) {
        struct timeline_tensor *tensor = &timeline->tensors.at[t];
        tensor->name = names[tensor->name];
        tensor->dtype = names[tensor->dtype];
        tensor->backend = names[tensor->backend];
    }
    for (size_t r = 0; r < timeline->runs.n; r++)
        timeline->runs.at[r].op = names[timeline->runs.at[r].op];
}

static void give(struct loader *loader, struct source *source)
{
    struct dpro_trace *trace = loader->trace;
    const struct dpro_sink *sink = &loader->options->sink;
    struct trace_rank *rank = find_rank(trace, source->rank);
    if (!rank) {
        trace_warn(
            trace, sink,
            "%s: rank %d has no profile that its timeline could go with; it is left out; add "
            "the framework's profile of the same steps",
            source->path, source->rank);
        return;
    }
    int64_t away = distance_ns(rank, source);
    if (away > SLACK_NS) {
        trace_warn(trace, sink,
                   "%s: recorded %" PRId64 " seconds away from rank %d's profile, so of another "
                   "run or of other steps; it is left out",
                   source->path, away / 1000000000, source->rank);
        return;
    }
    if (rank->timeline) {
        trace_warn(trace, sink, "%s: second timeline of rank %d, left out", source->path,
                   source->rank);
        return;
    }
    rank->timeline = source->part.timeline;
    source->part.timeline = NULL;
    rename_all(rank->timeline, source->names);
    if (rank->timeline->n_open > 0)
        trace_warn(trace, sink,
                   "%s: %" PRIu64 " tensors were on their way where the timeline ends; of these "
                   "the last communication is left out",
                   source->path, rank->timeline->n_open);
}

/* ---- without a profile ---- */

/* When each round began: the k-th of a tensor's runs is of round k. Tensors that travel now and
 * then are of none. */
struct beginnings {
    int64_t *start_ns; /* by round */
    uint32_t *next;    /* by tensor: its next round */
    uint32_t n, most_runs;
    int64_t end_ns;
};

static int64_t begins_ns(const struct timeline_run *run)
{
    int64_t start = run->whole.start_ns;
    for (int s = 0; s < N_TIMELINE_STAGES; s++)
        if (timeline_has(run, (enum timeline_stage)s) && run->stages[s].start_ns < start)
            start = run->stages[s].start_ns;
    return start;
}

static int find_beginnings(const struct timeline *t, struct beginnings *b)
{
    *b = (struct beginnings){.end_ns = INT64_MIN};
    for (size_t i = 0; i < t->tensors.n; i++)
        if (t->tensors.at[i].n_runs > b->most_runs)
            b->most_runs = t->tensors.at[i].n_runs;
    b->start_ns = malloc((b->most_runs + (size_t)1) * sizeof *b->start_ns);
    b->next = calloc(t->tensors.n + 1, sizeof *b->next);
    if (!b->start_ns || !b->next)
        return -1;
    for (size_t i = 0; i < t->runs.n; i++) {
        const struct timeline_run *run = &t->runs.at[i];
        if (t->tensors.at[run->tensor].n_runs * 2 < b->most_runs)
            continue;
        uint32_t round = b->next[run->tensor]++;
        int64_t start = begins_ns(run);
        for (; b->n <= round; b->n++)
            b->start_ns[b->n] = INT64_MAX;
        b->start_ns[round] = start < b->start_ns[round] ? start : b->start_ns[round];
        b->end_ns = run->whole.end_ns > b->end_ns ? run->whole.end_ns : b->end_ns;
    }
    return 0;
}

ORDER(by_ready, struct timeline_ready, ASCENDING(ns) ?: ASCENDING(rank) ?: ASCENDING(tensor));
ORDER(by_rank, struct timeline_ready, ASCENDING(rank) ?: by_ready(x, y));

/* Horovod's coordinator notes when each rank was ready to reduce a tensor, unless it knows from its
 * cache that all will be. */
struct readiness {
    uint32_t n_ranks; /* that it notes; 0: none */
    uint32_t n_whole; /* negotiations in which it noted all of them */
    uint32_t *n_last; /* by rank: in how many of these it was the last */
    bool in_most;     /* of all negotiations */
};

/* -1: no memory. Sorts what was noted by rank. */
static int find_readiness(struct timeline *t, struct readiness *out)
{
    struct map heard = {0}; /* negotiation -> how many ranks so far */
    struct map noted = {0}; /* and each of these */
    int status = 0;
    *out = (struct readiness){0};
    for (size_t i = 0; i < t->ready.n; i++)
        if ((uint32_t)t->ready.at[i].rank >= out->n_ranks)
            out->n_ranks = (uint32_t)t->ready.at[i].rank + 1;
    if (out->n_ranks < 2)
        return 0;
    out->n_last = calloc(out->n_ranks, sizeof *out->n_last);
    qsort(t->ready.at, t->ready.n, sizeof *t->ready.at, by_ready);
    status = out->n_last ? 0 : -1;
    for (size_t i = 0; i < t->ready.n && status == 0; i++) {
        const struct timeline_ready *ready = &t->ready.at[i];
        uint64_t key = map_key((uint64_t)ready->tensor << 32 | ready->run), n = 0;
        uint64_t of_rank = map_key(key + (uint64_t)ready->rank);
        if (map_get(&noted, of_rank, NULL))
            continue; /* written twice */
        map_get(&heard, key, &n);
        if (map_set(&noted, of_rank, 1) < 0 || map_set(&heard, key, ++n) < 0)
            status = -1;
        if (n != out->n_ranks || status < 0)
            continue;
        out->n_whole++;
        out->n_last[ready->rank]++;
    }
    out->in_most = out->n_whole > t->runs.n / 2;
    qsort(t->ready.at, t->ready.n, sizeof *t->ready.at, by_rank);
    map_fini(&heard);
    map_fini(&noted);
    return status;
}

static int add_track(struct trace_part *part, uint32_t name)
{
    struct part_track track = {.track = {.pid = 1, .id = (int64_t)part->tracks.n, .name = name}};
    return array_push(&part->tracks, track);
}

static int add_span(struct trace_part *part, size_t track, uint8_t kind, const char *name,
                    struct timeline_interval time)
{
    struct trace_span *span = part_add_span(part);
    uint32_t id = strtab_add(&part->names, name, strlen(name));
    if (!span || id == STRTAB_FULL)
        return -1;
    *span = (struct trace_span){.start_ns = time.start_ns,
                                .dur_ns = time.end_ns - time.start_ns,
                                .name = id,
                                .track = (uint32_t)track,
                                .sequence = -1,
                                .detail = NO_ID,
                                .kind = kind,
                                .parent = NO_ID,
                                .node = NO_ID};
    part->tracks.at[track].n_spans++;
    part->start_ns = time.start_ns < part->start_ns ? time.start_ns : part->start_ns;
    part->end_ns = time.end_ns > part->end_ns ? time.end_ns : part->end_ns;
    return 0;
}

/* Each tensor or partition is a track, on which its transfers are the work. */
static int add_transfers(struct trace_part *part)
{
    static const struct {
        enum timeline_stage stage;
        const char *name;
    } stages[] = {{STAGE_PUSH, "PUSH"}, {STAGE_PULL, "PULL"}};
    const struct timeline *t = part->timeline;
    for (size_t i = 0; i < t->tensors.n; i++)
        if (add_track(part, t->tensors.at[i].name) < 0)
            return -1;
    for (size_t i = 0; i < t->runs.n; i++)
        for (size_t s = 0; s < sizeof stages / sizeof *stages; s++) {
            const struct timeline_run *run = &t->runs.at[i];
            const struct timeline_tensor *tensor = &t->tensors.at[run->tensor];
            char name[600], partition[24] = "";
            if (!timeline_has(run, stages[s].stage))
                continue;
            if (tensor->partition >= 0)
                snprintf(partition, sizeof partition, "~PART%d", (int)tensor->partition);
            snprintf(name, sizeof name, "%.500s%s.%s", strtab_get(&part->names, tensor->name),
                     partition, stages[s].name);
            if (add_span(part, run->tensor + (size_t)1, SPAN_CPU_OP, name,
                         run->stages[stages[s].stage]) < 0)
                return -1;
        }
    return 0;
}

/* The rounds as iterations, on the part's first track. Horovod's last one has no end: what the job
 * computes before the next one would begin is not in the timeline. */
static int add_rounds(struct trace_part *part, const struct beginnings *b, bool of_horovod)
{
    uint32_t n = of_horovod && b->n > 2 ? b->n - 1 : b->n;
    int status = 0;
    for (uint32_t r = 0; r < n && status == 0; r++) {
        char mark[40];
        struct timeline_interval time = {b->start_ns[r],
                                         r + 1 < b->n ? b->start_ns[r + 1] : b->end_ns};
        snprintf(mark, sizeof mark, "ProfilerStep#%u", r);
        if (time.end_ns - time.start_ns < 2 * MARK_NS)
            continue;
        status = add_span(part, 0, SPAN_ANNOTATION, mark, time);
        /* what ties a round to the one before: else each tensor would go on by itself */
        time.end_ns = time.start_ns + MARK_NS;
        if (status == 0)
            status = add_span(part, 0, SPAN_CPU_OP, "round", time);
    }
    return status;
}

/* What the coordinator heard of a rank, as if the rank's thread had been recorded while it handed
 * the tensors over, one after the other. */
static int add_hand_overs(struct trace_part *part, const struct trace_part *from,
                          const struct beginnings *b, int rank)
{
    const struct timeline *t = from->timeline;
    int64_t free_ns = INT64_MIN;
    int status = 0;
    uint32_t round = 0;
    size_t first = LOWER_BOUND(i, (size_t)0, t->ready.n, t->ready.at[i].rank < rank);
    for (size_t i = first; i < t->ready.n && t->ready.at[i].rank == rank && status == 0; i++) {
        const struct timeline_ready *ready = &t->ready.at[i];
        while (round < b->n && b->start_ns[round] <= ready->ns) /* its mark comes first */
            free_ns = b->start_ns[round++] + MARK_NS;
        int64_t start = ready->ns > free_ns ? ready->ns : free_ns;
        struct timeline_interval time = {start, start + HAND_OVER_NS};
        free_ns = time.end_ns;
        status = add_span(part, 0, SPAN_CPU_OP,
                          strtab_get(&from->names, t->tensors.at[ready->tensor].name), time);
    }
    return status;
}

/* All times are the coordinator's, so that the ranks are as on one host. */
#define ONE_CLOCK "coordinator"

/* A source of its own for another rank than the timeline's. */
static int add_rank(struct loader *loader, size_t index, const struct beginnings *b, int rank,
                    int n_ranks)
{
    struct source fresh = {.kind = DPRO_FILE_TIMELINE};
    const struct trace_part *from = &loader->list.at[index].part;
    fresh.path = strdup(loader->list.at[index].path);
    fresh.attempt = loader->list.at[index].attempt;
    fresh.part = (struct trace_part){.start_ns = INT64_MAX,
                                     .end_ns = INT64_MIN,
                                     .has_rank = true,
                                     .rank = rank,
                                     .world_size = n_ranks};
    uint32_t empty = strtab_add(&fresh.part.names, "", 0);
    uint32_t name = strtab_add(&fresh.part.names, "rounds", strlen("rounds"));
    fresh.part.host = strtab_add(&fresh.part.names, ONE_CLOCK, strlen(ONE_CLOCK));
    int status =
        fresh.path && empty != STRTAB_FULL && name != STRTAB_FULL && fresh.part.host != STRTAB_FULL
            ? 0
            : -1;
    if (status == 0)
        status = add_track(&fresh.part, name);
    if (status == 0)
        status = add_rounds(&fresh.part, b, true);
    if (status == 0)
        status = add_hand_overs(&fresh.part, from, b, rank);
    if (status == 0)
        status = array_push(&loader->list, fresh);
    if (status < 0) {
        free(fresh.path);
        part_fini(&fresh.part);
    }
    return status;
}

/* Of Horovod's only the rounds and hand-overs are marked here: its thread comes with fusion_build.
 */
static int stand_alone(struct loader *loader, size_t index, struct readiness *ready)
{
    struct trace_part *part = &loader->list.at[index].part;
    const struct timeline *t = part->timeline;
    struct beginnings b;
    uint32_t name = strtab_add(&part->names, "rounds", strlen("rounds"));
    int status = find_beginnings(t, &b);
    if (status == 0)
        status = find_readiness(part->timeline, ready);
    if (status == 0)
        status = name == STRTAB_FULL ? -1 : add_track(part, name);
    if (status == 0)
        status = add_rounds(part, &b, t->writer == TIMELINE_HOROVOD);
    if (status == 0 && t->writer != TIMELINE_HOROVOD)
        status = add_transfers(part);
    part->base_ns = 0; /* the runs' times have it */
    if (ready->n_ranks > 1) {
        part->has_rank = true;
        part->rank = 0; /* the coordinator, who alone notes it */
        part->world_size = (int)ready->n_ranks;
        part->host = strtab_add(&part->names, ONE_CLOCK, strlen(ONE_CLOCK));
        status = part->host == STRTAB_FULL ? -1 : status;
    }
    if (status == 0 && ready->in_most)
        status = add_hand_overs(part, part, &b, 0);
    for (uint32_t r = 1; r < ready->n_ranks && ready->in_most && status == 0; r++)
        status = add_rank(loader, index, &b, (int)r, (int)ready->n_ranks);
    free(b.start_ns);
    free(b.next);
    return status;
}

/* What a timeline alone tells, and what it does not. */
static void warn_alone(struct loader *loader, const char *path, const struct readiness *ready)
{
    char last[160] = "";
    uint32_t rank = 0;
    for (uint32_t r = 1; r < ready->n_ranks && ready->n_last; r++)
        rank = ready->n_last[r] > ready->n_last[rank] ? r : rank;
    if (ready->n_whole > 0)
        snprintf(last, sizeof last,
                 " (of %u ranks, rank %u was the last to be ready in %u of %u negotiations)",
                 ready->n_ranks, rank, ready->n_last[rank], ready->n_whole);
    trace_warn(loader->trace, &loader->options->sink,
               "%s: a communication timeline without a profile tells when tensors travelled%s, "
               "and nothing of the computation; add the framework's profile of the same steps",
               path, last);
}

int timelines_stand_alone(struct loader *loader, struct dpro_error *err)
{
    size_t n = loader->list.n;
    for (size_t i = 0; i < n; i++)
        if (source_is_profile(&loader->list.at[i]))
            return 0;
    for (size_t i = 0; i < n; i++) {
        const struct source *source = &loader->list.at[i];
        struct readiness ready = {0};
        if (source->kind != DPRO_FILE_TIMELINE || !source_usable(source))
            continue;
        int status = stand_alone(loader, i, &ready);
        if (status == 0)
            warn_alone(loader, loader->list.at[i].path, &ready);
        free(ready.n_last);
        if (status < 0)
            return dpro_error_nomem(err);
    }
    return 0;
}

int timelines_build(struct loader *loader, struct dpro_error *err)
{
    for (size_t i = 0; i < loader->list.n; i++) {
        struct source *source = &loader->list.at[i];
        if (source->kind == DPRO_FILE_TIMELINE && source_usable(source) && source->rank >= 0 &&
            source->part.timeline)
            give(loader, source);
    }
    if (fusion_build(loader->trace, &loader->options->sink) < 0)
        return dpro_error_nomem(err);
    return 0;
}
