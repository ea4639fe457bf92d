/* Makes profiles of communication timelines where there are no others: their rounds are the
 * iterations.
 *
 * Of Horovod's only the rounds and the hand-overs are marked here: its thread comes with
 * fusion_build(). */

#include "ingest/sources.h"

static const int64_t MARK_NS = 1000, HAND_OVER_NS = 100;

/* All times are the coordinator's, so that the ranks are as on one host. */
#define ONE_CLOCK "coordinator"

/* What one timeline tells. Horovod's coordinator notes when each rank was ready to reduce a tensor,
 * unless it knows from its cache that all will be. */
struct telling {
    struct timeline *timeline;
    const struct strtab *names; /* of the timeline's part */
    struct arena arena;
    int64_t *start_ns; /* by round: when it began */
    uint32_t n_rounds;
    int64_t end_ns;   /* of the last round */
    uint32_t n_ranks; /* that the coordinator notes; 0: none */
    uint32_t n_whole; /* negotiations in which it noted all of them */
    uint32_t *n_last; /* by rank: in how many of these it was the last */
    bool in_most;     /* of all negotiations */
};

/* ---- rounds ---- */

static int64_t begins_ns(const struct timeline_run *run)
{
    int64_t start = run->whole.start_ns;
    for (int s = 0; s < N_TIMELINE_STAGES; s++)
        if (timeline_has(run, (enum timeline_stage)s))
            start = MIN(start, run->stages[s].start_ns);
    return start;
}

/* The k-th of a tensor's runs is of round k. Tensors that travel now and then are of none. */
static void find_rounds(struct telling *t)
{
    const struct timeline *timeline = t->timeline;
    uint32_t most_runs = 0;
    for (size_t i = 0; i < timeline->tensors.n; i++)
        most_runs = MAX(most_runs, timeline->tensors.at[i].n_runs);
    /* by tensor: its next round */
    uint32_t *next = arena_array(&t->arena, timeline->tensors.n, sizeof *next);
    t->start_ns = arena_array(&t->arena, most_runs, sizeof *t->start_ns);
    t->end_ns = INT64_MIN;
    EACH (const struct timeline_run, run, timeline->runs) {
        if (timeline->tensors.at[run->tensor].n_runs * 2 < most_runs)
            continue;
        uint32_t round = next[run->tensor]++;
        while (t->n_rounds <= round)
            t->start_ns[t->n_rounds++] = INT64_MAX;
        t->start_ns[round] = MIN(t->start_ns[round], begins_ns(run));
        t->end_ns = MAX(t->end_ns, run->whole.end_ns);
    }
}

/* ---- when ranks were ready ---- */

ORDER(by_ready, struct timeline_ready, ASCENDING(ns) ?: ASCENDING(rank) ?: ASCENDING(tensor));
ORDER(by_rank, struct timeline_ready, ASCENDING(rank) ?: by_ready(x, y));

/* Sorts what was noted by rank. */
static void find_readiness(struct telling *t)
{
    struct timeline *timeline = t->timeline;
    SCRATCH struct map heard = {0}; /* negotiation -> how many ranks so far */
    SCRATCH struct map noted = {0}; /* and each of these */
    for (size_t i = 0; i < timeline->ready.n; i++)
        t->n_ranks = MAX(t->n_ranks, (uint32_t)timeline->ready.at[i].rank + 1);
    if (t->n_ranks < 2)
        return;
    t->n_last = arena_array(&t->arena, t->n_ranks, sizeof *t->n_last);
    array_sort(&timeline->ready, by_ready);
    EACH (const struct timeline_ready, ready, timeline->ready) {
        uint64_t key = map_key((uint64_t)ready->tensor << 32 | ready->run);
        if (!map_insert(&noted, map_key(key + (uint64_t)ready->rank), 1))
            continue; /* written twice */
        uint64_t n = map_add(&heard, key, 1);
        t->n_whole += n == t->n_ranks;
        t->n_last[ready->rank] += n == t->n_ranks;
    }
    t->in_most = t->n_whole > timeline->runs.n / 2;
    array_sort(&timeline->ready, by_rank);
}

/* ---- parts ---- */

static void add_track(struct trace_part *part, const char *name)
{
    array_add(&part->tracks, .track = {.pid = 1,
                                       .id = (int64_t)part->tracks.n,
                                       .name = part_intern(part, name, strlen(name))});
}

static void add_span(struct trace_part *part, size_t track, uint8_t kind, const char *name,
                     int64_t start_ns, int64_t end_ns)
{
    struct trace_span span =
        span_at(kind, part_intern(part, name, strlen(name)), (uint32_t)track, start_ns, end_ns);
    int64_t first_ns = part->start_ns, last_ns = part->end_ns;
    part_place_span(part, &span);
    part->start_ns = MIN(first_ns, start_ns); /* the timeline's own time counts, too */
    part->end_ns = MAX(last_ns, end_ns);
}

/* Each tensor or partition is a track, on which its transfers are the work. */
static void add_transfers(struct telling *t, struct trace_part *part)
{
    static const struct {
        enum timeline_stage stage;
        const char *name;
    } stages[] = {{STAGE_PUSH, "PUSH"}, {STAGE_PULL, "PULL"}};
    const struct timeline *timeline = t->timeline;
    for (size_t i = 0; i < timeline->tensors.n; i++)
        add_track(part, strtab_get(t->names, timeline->tensors.at[i].name));
    for (size_t i = 0; i < timeline->runs.n; i++)
        for (size_t s = 0; s < sizeof stages / sizeof *stages; s++) {
            const struct timeline_run *run = &timeline->runs.at[i];
            const struct timeline_tensor *tensor = &timeline->tensors.at[run->tensor];
            const struct timeline_interval *time = &run->stages[stages[s].stage];
            char name[600], partition[24] = "";
            if (!timeline_has(run, stages[s].stage))
                continue;
            if (tensor->partition >= 0)
                snprintf(partition, sizeof partition, "~PART%d", (int)tensor->partition);
            snprintf(name, sizeof name, "%.500s%s.%s", strtab_get(t->names, tensor->name),
                     partition, stages[s].name);
            add_span(part, run->tensor + (size_t)1, SPAN_CPU_OP, name, time->start_ns,
                     time->end_ns);
        }
}

/* The rounds as iterations, on the part's first track. Horovod's last one has no end: what the job
 * computes before the next one would begin is not in the timeline. */
static void add_rounds(struct telling *t, struct trace_part *part)
{
    bool of_horovod = t->timeline->writer == TIMELINE_HOROVOD;
    uint32_t n = of_horovod && t->n_rounds > 2 ? t->n_rounds - 1 : t->n_rounds;
    add_track(part, "rounds");
    for (uint32_t r = 0; r < n; r++) {
        char mark[40];
        int64_t start_ns = t->start_ns[r];
        int64_t end_ns = r + 1 < t->n_rounds ? t->start_ns[r + 1] : t->end_ns;
        snprintf(mark, sizeof mark, "ProfilerStep#%u", r);
        if (end_ns - start_ns < 2 * MARK_NS)
            continue;
        add_span(part, 0, SPAN_ANNOTATION, mark, start_ns, end_ns);
        /* ties a round to the one before */
        add_span(part, 0, SPAN_CPU_OP, "round", start_ns, start_ns + MARK_NS);
    }
}

/* Adds what the coordinator heard of a rank as hand-overs on a thread of that rank, one after the
 * other. */
static void add_hand_overs(struct telling *t, struct trace_part *part, int rank)
{
    const struct timeline *timeline = t->timeline;
    int64_t free_ns = INT64_MIN;
    uint32_t round = 0;
    size_t i = LOWER_BOUND(k, (size_t)0, timeline->ready.n, timeline->ready.at[k].rank < rank);
    for (; i < timeline->ready.n && timeline->ready.at[i].rank == rank; i++) {
        const struct timeline_ready *ready = &timeline->ready.at[i];
        while (round < t->n_rounds && t->start_ns[round] <= ready->ns) /* its mark comes first */
            free_ns = t->start_ns[round++] + MARK_NS;
        int64_t start_ns = MAX(ready->ns, free_ns);
        free_ns = start_ns + HAND_OVER_NS;
        add_span(part, 0, SPAN_CPU_OP,
                 strtab_get(t->names, timeline->tensors.at[ready->tensor].name), start_ns, free_ns);
    }
}

static void name_rank(const struct telling *t, struct trace_part *part, int rank)
{
    part->process.has_rank = true;
    part->process.rank = rank;
    part->process.world_size = (int)t->n_ranks;
    part->process.host = part_intern(part, ONE_CLOCK, strlen(ONE_CLOCK));
}

/* A source of its own for another rank than the timeline's. */
static void add_rank(struct telling *t, struct trace_build *build, size_t index, int rank)
{
    struct source fresh = {.reader = build->list.at[index].reader,
                           .path = mem_copy_string(build->list.at[index].path),
                           .attempt = build->list.at[index].attempt,
                           .part = {.start_ns = INT64_MAX, .end_ns = INT64_MIN}};
    t->names = &build->list.at[index].part.names; /* the list moves as it grows */
    name_rank(t, &fresh.part, rank);
    add_rounds(t, &fresh.part);
    add_hand_overs(t, &fresh.part, rank);
    array_push(&build->list, fresh);
}

static void stand_alone(struct telling *t, struct trace_build *build, size_t index)
{
    struct trace_part *part = &build->list.at[index].part;
    find_rounds(t);
    find_readiness(t);
    add_rounds(t, part);
    if (t->timeline->writer != TIMELINE_HOROVOD)
        add_transfers(t, part);
    part->base_ns = 0; /* the runs' times have it */
    if (t->n_ranks > 1)
        name_rank(t, part, 0); /* the coordinator, who alone notes it */
    if (!t->in_most)
        return;
    add_hand_overs(t, part, 0);
    for (uint32_t r = 1; r < t->n_ranks; r++)
        add_rank(t, build, index, (int)r);
}

/* Says what a timeline alone tells, and what it does not. */
static void warn_alone(const struct telling *t, struct trace_build *build, const char *path)
{
    char last[160] = "";
    uint32_t rank = 0;
    for (uint32_t r = 1; r < t->n_ranks && t->n_last; r++)
        rank = t->n_last[r] > t->n_last[rank] ? r : rank;
    if (t->n_whole > 0)
        snprintf(last, sizeof last,
                 " (of %u ranks, rank %u was the last to be ready in %u of %u negotiations)",
                 t->n_ranks, rank, t->n_last[rank], t->n_whole);
    build_warn(build,
               "%s: a communication timeline without a profile tells when tensors travelled%s, "
               "and nothing of the computation; add the framework's profile of the same steps",
               path, last);
}

void timelines_stand_alone(struct trace_build *build)
{
    size_t n = build->list.n;
    for (size_t i = 0; i < n; i++) {
        const struct source *source = &build->list.at[i];
        struct telling t = {.timeline = source_payload(source, &timeline_payload),
                            .names = &source->part.names};
        if (!t.timeline || !source_usable(source))
            continue;
        stand_alone(&t, build, i);
        warn_alone(&t, build, build->list.at[i].path);
        arena_fini(&t.arena);
    }
}
