/* Horovod's thread on every rank.
 *
 * Only rank 0, the leading one, writes a timeline, unless Horovod was patched. What it says of a
 * group holds for all ranks, since none begins before all are ready. thread_times.c finds when
 * another rank moved the same bytes, hand_overs.c when its framework handed over the tensors,
 * thread_groups.c what that means for the groups of the graph. */
#include "adapters/horovod/thread.h"

#include "ingest/rank_job.h"

/* ---- spans ---- */

static void add_span(struct placing *p, uint8_t kind, uint32_t name, uint32_t window,
                     int64_t start_ns, int64_t end_ns, const struct trace_detail *detail)
{
    struct trace_span span = span_at(kind, name, 0, start_ns, MAX(start_ns, end_ns));
    span.window = (uint16_t)window;
    rank_add_span(p->rank, span, detail);
}

/* When the last of a group's tensors was handed over; NEVER: not known. */
static int64_t last_enqueue(const struct placing *p, uint32_t round, uint32_t group)
{
    const struct fused_group *g = &p->fusion->groups[group];
    const uint32_t *enqueues = p->rank->fused.enqueues + (size_t)round * p->fusion->n_tensors;
    int64_t last_ns = NEVER;
    for (uint32_t i = g->first; i < g->first + g->n; i++) {
        uint32_t span = enqueues[i];
        if (span == NO_ID)
            continue;
        int64_t end = p->rank->spans[span].start_ns + p->rank->spans[span].dur_ns;
        last_ns = MAX(last_ns, end);
    }
    return last_ns;
}

static void add_spans(struct placing *p)
{
    uint32_t negotiate = strtab_format(&p->trace->names, "NEGOTIATE_ALLREDUCE");
    uint32_t copy_in = strtab_format(&p->trace->names, "MEMCPY_IN_FUSION_BUFFER");
    uint32_t copy_out = strtab_format(&p->trace->names, "MEMCPY_OUT_FUSION_BUFFER");
    uint32_t callbacks = strtab_format(&p->trace->names, "CALLBACKS");
    const struct fusion *f = p->fusion;
    struct trace_rank *rank = p->rank;
    int64_t free_ns = NEVER;
    size_t n_groups = p->rounds->rounds.n * f->n_groups;
    rank_make_room(rank, 1, 5 * n_groups, 2 * n_groups);
    rank->fused.track = rank->n_tracks;
    rank_add_track(rank, strtab_format(&p->trace->names, "Horovod thread"));
    rank->tracks[rank->fused.track].serial = true;
    for (uint32_t r = 0; r < p->rounds->rounds.n; r++)
        for (uint32_t g = 0; g < f->n_groups; g++) {
            const struct fused_times *t = &p->groups[(size_t)r * f->n_groups + g];
            const struct fused_group *group = &f->groups[g];
            uint32_t window = t->start_ns == NEVER ? NO_ID : trace_window_at(rank, t->start_ns);
            if (window == NO_ID)
                continue;
            int64_t ready = last_enqueue(p, r, g);
            struct trace_detail detail = {
                .process_group = strtab_format(&p->trace->names, "horovod"), DETAIL_UNKNOWN};
            if (ready == NEVER || ready > t->start_ns)
                ready = t->start_ns;
            if (ready < free_ns)
                ready = free_ns < t->start_ns ? free_ns : t->start_ns;
            /* the negotiation must begin first */
            int64_t start = ready < t->start_ns ? t->start_ns : t->start_ns + 1;
            int64_t transfer = start < t->transfer_ns ? t->transfer_ns : start;
            detail.comm_sequence = fusion_sequence(f, r, g);
            add_span(p, SPAN_ANNOTATION, negotiate, window, ready, start, &detail);
            add_span(p, SPAN_CPU_OP, copy_in, window, start, transfer, NULL);
            detail.comm_sequence++;
            detail.numel = group->numel;
            detail.dtype = group->dtype;
            add_span(p, SPAN_ANNOTATION, group->backend, window, transfer, t->transferred_ns,
                     &detail);
            add_span(p, SPAN_CPU_OP, copy_out, window, t->transferred_ns, t->out_ns, NULL);
            add_span(p, SPAN_CPU_OP, callbacks, window, t->out_ns, t->end_ns, NULL);
            free_ns = t->end_ns;
        }
    if (rank->tracks[rank->fused.track].n == 0) {
        rank->n_tracks--;
        rank->fused.track = NO_ID;
    }
}

/* ---- all of it ---- */

/* Sets from when until when the rank was busy with each round. */
static void time_rounds(struct placing *p)
{
    struct fused_rank *fused = &p->rank->fused;
    uint32_t n = (uint32_t)p->rounds->rounds.n, n_groups = p->fusion->n_groups;
    fused->starts_ns = arena_array(&p->trace->arena, n, sizeof *fused->starts_ns);
    fused->ends_ns = arena_array(&p->trace->arena, n, sizeof *fused->ends_ns);
    for (uint32_t r = 0; r < n; r++) {
        fused->starts_ns[r] = fused->ends_ns[r] = NEVER;
        for (uint32_t i = 0; i < p->fusion->n_tensors; i++) {
            uint32_t span = fused->enqueues[(size_t)r * p->fusion->n_tensors + i];
            int64_t start = span == NO_ID ? NEVER : p->rank->spans[span].start_ns;
            if (start != NEVER && (fused->starts_ns[r] == NEVER || start < fused->starts_ns[r]))
                fused->starts_ns[r] = start;
        }
        for (uint32_t g = 0; g < n_groups; g++)
            if (p->groups[(size_t)r * n_groups + g].start_ns != NEVER)
                fused->ends_ns[r] = p->groups[(size_t)r * n_groups + g].end_ns;
    }
    fused->n_rounds = n;
}

static void place_rank(struct placing *p, int lead)
{
    const struct rounds *rounds = p->rounds;
    size_t n_cells = rounds->rounds.n * p->fusion->n_tensors;
    uint32_t *enqueues = arena_array(&p->trace->arena, n_cells, sizeof *enqueues);
    p->actual = arena_array(&p->arena, rounds->groups.n, sizeof *p->actual);
    hand_overs_find(p);
    p->rank->fused.enqueues = enqueues;
    memset(enqueues, 0xFF, n_cells * sizeof *enqueues);
    for (size_t g = 0; g < rounds->groups.n; g++)
        p->actual[g] = rounds->groups.at[g].times;
    bool leads = p->rank->rank == lead;
    bool writes = p->rank->timeline && p->rank->timeline->writer == TIMELINE_HOROVOD;
    p->rank->fused.own_times = leads;
    if (!leads && writes)
        thread_times_from_own(p);
    else if (!leads)
        thread_times_from_logs(p, lead);
    if (!rank_on_epoch(p->rank) && p->fusion->timeline->on_epoch)
        hand_overs_put_on_clock(p);
    hand_overs_take(p, enqueues);
    thread_place_groups(p);
    time_rounds(p);
    add_spans(p);
}

/* Sets the place of each tensor, and its actual group in each round. There are no more cells than
 * runs, since rounds have all tensors. */
static void make_index(struct arena *arena, const struct fusion *f, const struct rounds *rounds,
                       uint32_t **place_of, uint32_t **cells)
{
    size_t n_cells = rounds->rounds.n * f->n_tensors, n_tensors = f->timeline->tensors.n;
    uint32_t *places = *place_of = arena_array(arena, n_tensors, sizeof *places);
    *cells = arena_array(arena, n_cells, sizeof **cells);
    memset(places, 0xFF, n_tensors * sizeof *places);
    memset(*cells, 0xFF, n_cells * sizeof **cells);
    for (uint32_t i = 0; i < f->n_tensors; i++)
        places[f->tensors[i]] = i;
    for (size_t r = 0; r < rounds->rounds.n; r++) {
        const struct actual_round *round = &rounds->rounds.at[r];
        for (uint32_t g = round->first; g < round->first + round->n; g++)
            for (uint32_t i = 0; i < rounds->groups.at[g].n; i++) {
                uint32_t place = places[rounds_tensor(rounds, rounds->groups.at[g].first + i)];
                if (place != NO_ID)
                    (*cells)[r * f->n_tensors + place] = g;
            }
    }
}

static void place_ranks(struct dpro_trace *trace, const struct rounds *rounds, int lead)
{
    struct arena arena = {0};
    uint32_t *place_of, *cells;
    make_index(&arena, trace->fusion, rounds, &place_of, &cells);
    for (uint32_t r = 0; r < trace->n_ranks; r++) {
        struct placing p = {.trace = trace,
                            .fusion = trace->fusion,
                            .rounds = rounds,
                            .rank = &trace->ranks[r],
                            .place_of = place_of,
                            .cells = cells};
        place_rank(&p, lead);
        array_fini(&p.refs);
        arena_fini(&p.arena);
    }
    arena_fini(&arena);
}

#define STEP_MARK "ProfilerStep#"

/* When the rank's iterations began, as the job marked them or dpro's recorder timed them. */
static void find_marks(const struct dpro_trace *trace, const struct trace_rank *rank,
                       mark_array *marks)
{
    if (!rank_on_epoch(rank) || !rank->timeline->on_epoch)
        return; /* of two clocks */
    for (size_t s = 0; rank->recording && s < rank->recording->steps.n; s++)
        array_push(marks, rank->recording->steps.at[s].start_ns);
    for (uint32_t s = 0; s < rank->n_spans && !rank->recording; s++)
        if (rank->spans[s].kind == SPAN_STEP ||
            (rank->spans[s].kind == SPAN_ANNOTATION &&
             strncmp(strtab_get(&trace->names, rank->spans[s].name), STEP_MARK,
                     strlen(STEP_MARK)) == 0))
            array_push(marks, rank->spans[s].start_ns);
}

void fusion_build(struct dpro_trace *trace)
{
    const struct trace_rank *lead = NULL;
    struct rounds rounds = {.names = &trace->names};
    SCRATCH mark_array marks = {0};
    EACH_OF (struct trace_rank, rank, trace->ranks, trace->n_ranks) {
        rank->fused.track = NO_ID;
        if (!lead && rank->timeline && rank->timeline->writer == TIMELINE_HOROVOD)
            lead = rank;
    }
    if (!lead)
        return;
    rounds.timeline = lead->timeline;
    find_marks(trace, lead, &marks);
    trace->fusion = rounds_find(&trace->arena, &marks, &rounds);
    if (trace->fusion) {
        place_ranks(trace, &rounds, lead->rank);
        fused_find_messages(trace, &rounds, lead->rank);
    }
    rounds_fini(&rounds);
}
