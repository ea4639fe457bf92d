/* One rank from the parts of its files.
 *
 * Spans are scattered straight from the readers' blocks to their track's place in the final array,
 * each block being unmapped when it has been copied, so that a rank never takes much more than its
 * final size. Files list a track in a few long ascending runs, which are merged front to back:
 * moving each span to its place at once would jump about in memory. */

#include "base/parallel.h"
#include "ingest/rank_job.h"

/* Whole microseconds are rounded per event, so that a child may seem to end after its parent. */
enum { ROUNDING_NS = 1000 };

static bool spans_before(const struct trace_span *a, const struct trace_span *b)
{
    return a->start_ns != b->start_ns ? a->start_ns < b->start_ns : a->dur_ns > b->dur_ns;
}

typedef ARRAY(struct trace_span) span_array;

/* Merges spans[0 .. mid) with spans[mid .. n), both ascending. What is in its place stays there;
 * the shorter rest makes room for the other in `room`. */
static void spans_merge(struct trace_span *spans, uint32_t mid, uint32_t n, span_array *room)
{
    uint32_t first = LOWER_BOUND(i, 0, mid, !spans_before(&spans[mid], &spans[i]));
    uint32_t end = LOWER_BOUND(i, mid, n, spans_before(&spans[i], &spans[mid - 1]));
    uint32_t n_a = mid - first, n_b = end - mid, a = 0, b = mid, to = first;
    room->n = 0;
    if (n_a == 0)
        return; /* the second run comes after the first */
    if (n_a <= n_b) {
        array_append(room, spans + first, n_a);
        while (a < n_a && b < end)
            spans[to++] = spans_before(&spans[b], &room->at[a]) ? spans[b++] : room->at[a++];
        memcpy(spans + to, room->at + a, (n_a - a) * sizeof *spans);
        return;
    }
    array_append(room, spans + mid, n_b);
    for (a = mid, b = n_b, to = end; a > first && b > 0;)
        spans[--to] = spans_before(&room->at[b - 1], &spans[a - 1]) ? spans[--a] : room->at[--b];
    memcpy(spans + to - b, room->at, b * sizeof *spans);
}

/* Neighbouring runs are merged until one is left. */
static void sort_track(struct trace_span *spans, uint32_t n)
{
    SCRATCH ARRAY(uint32_t) ends = {0}; /* of ascending runs */
    SCRATCH span_array room = {0};
    for (uint32_t i = 1; i <= n; i++)
        if (i == n || spans_before(&spans[i], &spans[i - 1]))
            array_push(&ends, i);
    while (ends.n > 1) {
        uint32_t n_runs = (uint32_t)ends.n, begin = 0;
        ends.n = 0;
        for (uint32_t r = 0; r < n_runs; r += 2) {
            uint32_t mid = ends.at[r], end = ends.at[MIN(r + 1, n_runs - 1)];
            if (mid < end)
                spans_merge(spans + begin, mid - begin, end - begin, &room);
            ends.at[ends.n++] = begin = end;
        }
    }
}

/* The same event written twice: every id equal too, so that equal calls in one microsecond stay. */
static bool same_event(const struct trace_span *a, const struct trace_span *b)
{
    return a->start_ns == b->start_ns && a->dur_ns == b->dur_ns && a->name == b->name &&
           a->kind == b->kind && a->correlation == b->correlation && a->external == b->external &&
           a->record_fn == b->record_fn && a->sequence == b->sequence &&
           (a->correlation || a->external || a->record_fn);
}

static uint32_t drop_duplicates(struct trace_span *spans, uint32_t n)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < n; i++) {
        bool twice = false;
        for (uint32_t j = kept; j > 0 && !twice && spans[j - 1].start_ns == spans[i].start_ns &&
                                spans[j - 1].dur_ns == spans[i].dur_ns && kept - j < 64;
             j--)
            twice = same_event(&spans[j - 1], &spans[i]);
        if (twice)
            continue;
        if (kept != i)
            spans[kept] = spans[i];
        kept++;
    }
    return kept;
}

/* A call into the GPU's runtime lies in the op that began with it, and does not enclose it, where
 * both seem to take equally long by rounding. */
static void order_calls(struct trace_span *spans, uint32_t n)
{
    for (uint32_t i = 1; i < n; i++)
        for (uint32_t k = i;
             k > 0 && spans[k].kind != SPAN_RUNTIME && spans[k - 1].kind == SPAN_RUNTIME &&
             spans[k - 1].start_ns == spans[k].start_ns &&
             spans[k - 1].dur_ns - spans[k].dur_ns <= ROUNDING_NS;
             k--) {
            struct trace_span call = spans[k - 1];
            spans[k - 1] = spans[k];
            spans[k] = call;
        }
}

/* A span that ends after another one, by rounding, lies within it if most of it does; else it comes
 * after. */
static bool lies_within(const struct trace_span *span, const struct trace_span *other)
{
    int64_t start = span->start_ns, end = start + span->dur_ns;
    int64_t other_end = other->start_ns + other->dur_ns;
    if (other_end <= start)
        return false;
    uint64_t over = end > other_end ? (uint64_t)end - (uint64_t)other_end : 0;
    return over <= ROUNDING_NS && over <= (uint64_t)other_end - (uint64_t)start;
}

/* Sets the parents of a track's spans, which are spans[first .. first + n) of the rank. */
static void nest_track(struct trace_span *spans, uint32_t first, uint32_t n)
{
    SCRATCH ARRAY(uint32_t) stack = {0};
    for (uint32_t i = first; i < first + n; i++) {
        struct trace_span *span = &spans[i];
        while (stack.n > 0 && !lies_within(span, &spans[stack.at[stack.n - 1]]))
            stack.n--;
        span->parent = stack.n ? stack.at[stack.n - 1] : NO_ID;
        if (span->dur_ns > 0)
            array_push(&stack, i);
    }
}

/* Room for what the rank's files hold. Spans are not cleared: pages are taken as they are filled,
 * while the readers' blocks are given back. */
static void make_room(struct rank_job *job)
{
    size_t n_tracks = 0, n_spans = 0, n_details = 0;
    for (size_t w = 0; w < job->n_windows; w++) {
        n_tracks += job->sources[w]->part.tracks.n;
        n_spans += job->sources[w]->part.n_spans;
        n_details += job->sources[w]->part.details.n;
    }
    rank_make_room(job->rank, n_tracks, n_spans, n_details);
}

/* The union of the windows' tracks that have spans, ordered. */
static void join_tracks(struct rank_job *job)
{
    struct trace_rank *rank = job->rank;
    uint32_t n = 0;
    for (size_t w = 0; w < job->n_windows; w++) {
        const struct trace_part *part = &job->sources[w]->part;
        for (size_t t = 0; t < part->tracks.n; t++)
            if (part->tracks.at[t].n_spans) {
                rank->tracks[n] = part->tracks.at[t].track;
                rank->tracks[n++].name = job->sources[w]->names[part->tracks.at[t].track.name];
            }
    }
    if (n)
        qsort(rank->tracks, n, sizeof *rank->tracks, track_compare);
    for (uint32_t t = 0; t < n; t++)
        if (t == 0 || track_compare(&rank->tracks[t], &rank->tracks[rank->n_tracks - 1]) != 0)
            rank->tracks[rank->n_tracks++] = rank->tracks[t];
        else
            rank->tracks[rank->n_tracks - 1].posted |= rank->tracks[t].posted;
    for (size_t w = 0; w < job->n_windows; w++) {
        const struct source *source = job->sources[w];
        const struct trace_part *part = &source->part;
        EACH (const struct part_track, from, part->tracks)
            if (from->n_spans)
                rank->tracks[rank_find_track(rank, from->track.gpu, from->track.pid,
                                             from->track.id)]
                    .n += from->n_spans;
        EACH (const struct part_label, label, part->labels)
            for (int gpu = 0; gpu < 2; gpu++) {
                uint32_t t = rank_find_track(rank, gpu, label->pid, label->id);
                if (t != NO_ID && !rank->tracks[t].name)
                    rank->tracks[t].name = source->names[label->name];
            }
    }
    uint32_t first = 0;
    for (uint32_t t = 0; t < rank->n_tracks; t++) {
        rank->tracks[t].first = first;
        first += rank->tracks[t].n;
    }
}

static void join_details(struct rank_job *job, const struct source *source)
{
    struct trace_rank *rank = job->rank;
    for (size_t i = 0; i < source->part.details.n; i++) {
        struct trace_detail detail = source->part.details.at[i];
        trace_detail_rename(&detail, source->names);
        rank->details[rank->n_details++] = detail;
    }
}

/* One part's spans on their way to their tracks. Each thread takes a portion of the blocks. */
struct scattering {
    struct trace_rank *rank;
    const struct source *source;
    uint32_t window;  /* the part's first */
    uint32_t *tracks; /* of the part -> of the rank */
    ARRAY(struct span_block *) blocks;
    size_t n_portions;
    uint32_t *next; /* where each track goes on, a portion after the other */
};

static size_t portion_begin(const struct scattering *s, size_t portion)
{
    return s->blocks.n * portion / s->n_portions;
}

/* The spans of each track, to where the next portion's places are. */
static void count_portion(void *arg, size_t portion)
{
    const struct scattering *s = arg;
    uint32_t *counts = s->next + (portion + 1) * s->rank->n_tracks;
    for (size_t b = portion_begin(s, portion); b < portion_begin(s, portion + 1); b++)
        EACH_OF (const struct trace_span, span, s->blocks.at[b]->at, s->blocks.at[b]->n)
            counts[s->tracks[span->track]]++;
}

static void scatter_portion(void *arg, size_t portion)
{
    const struct scattering *s = arg;
    struct trace_rank *rank = s->rank;
    uint32_t *next = s->next + portion * rank->n_tracks;
    for (size_t b = portion_begin(s, portion); b < portion_begin(s, portion + 1); b++) {
        struct span_block *block = s->blocks.at[b];
        for (uint32_t i = 0; i < block->n; i++) {
            struct trace_span span = block->at[i];
            span.start_ns += s->source->part.base_ns;
            span.name = s->source->names[span.name];
            span.track = s->tracks[span.track];
            span.window = (uint16_t)(s->window + span.window);
            if (span.detail != NO_ID)
                span.detail += rank->n_details;
            rank->spans[next[span.track]++] = span;
        }
        span_block_free(block);
    }
}

/* Moves one part's spans to their tracks; next[t] is where track t goes on. */
static void spans_scatter(struct rank_job *job, struct source *source, uint32_t window,
                          uint32_t *next)
{
    struct trace_rank *rank = job->rank;
    struct trace_part *part = &source->part;
    size_t n = rank->n_tracks;
    struct scattering s = {.rank = rank, .source = source, .window = window};
    s.tracks = mem_alloc((part->tracks.n + 1) * sizeof *s.tracks);
    for (size_t t = 0; t < part->tracks.n; t++) {
        const struct trace_track *track = &part->tracks.at[t].track;
        s.tracks[t] = rank_find_track(rank, track->gpu, track->pid, track->id);
    }
    for (struct span_block *block = part->first_block; block; block = block->next)
        array_push(&s.blocks, block);
    part->first_block = part->last_block = NULL;
    s.n_portions = MAX(MIN((size_t)job->threads, s.blocks.n), 1);
    s.next = mem_array(s.n_portions * n + 1, sizeof *s.next);
    memcpy(s.next, next, n * sizeof *next);
    parallel_for(s.n_portions - 1, job->threads, count_portion, &s);
    for (size_t i = n; i < s.n_portions * n; i++)
        s.next[i] += s.next[i - n];
    parallel_for(s.n_portions, job->threads, scatter_portion, &s);
    memcpy(next, s.next + (s.n_portions - 1) * n, n * sizeof *next);
    FREE_ALL(&s.blocks, &s.tracks, &s.next);
}

/* What Grappler made of a graph has no shapes: they are those of such nodes before. */
static void join_shapes(struct rank_job *job)
{
    struct trace_rank *rank = job->rank;
    const struct source *source = job->shapes;
    SCRATCH struct map sizes = {0};
    if (!source || source == job->graph)
        return;
    EACH (const struct dfg_node, node, source->part.dfg_nodes)
        if (node->size_bytes && source->names[node->name])
            map_set(&sizes, source->names[node->name], node->size_bytes);
    EACH_OF (struct dfg_node, node, rank->dfg_nodes, rank->n_dfg_nodes)
        node->size_bytes = node->size_bytes ?: map_or(&sizes, node->name, 0);
}

static void join_graph(struct rank_job *job)
{
    struct trace_rank *rank = job->rank;
    const struct source *source = job->graph;
    if (!source)
        return;
    for (size_t i = 0; i < source->part.dfg_inputs.n; i++)
        RANK_PUSH(rank, dfg_inputs, source->part.dfg_inputs.at[i]);
    for (size_t i = 0; i < source->part.dfg_nodes.n; i++) {
        struct dfg_node node = source->part.dfg_nodes.at[i];
        RENAME(source->names, &node.name, &node.type, &node.device, &node.key);
        RANK_PUSH(rank, dfg_nodes, node);
    }
}

static void order_track(void *arg, size_t t)
{
    struct trace_rank *rank = arg;
    struct trace_track *track = &rank->tracks[t];
    struct trace_span *spans = rank->spans + track->first;
    sort_track(spans, track->n);
    track->n = drop_duplicates(spans, track->n);
    if (!track->gpu)
        order_calls(spans, track->n);
}

static void find_parents(void *arg, size_t t)
{
    struct trace_rank *rank = arg;
    const struct trace_track *track = &rank->tracks[t];
    if (!track->posted)
        nest_track(rank->spans, track->first, track->n);
    for (uint32_t i = 0; i < track->n && track->posted; i++)
        rank->spans[track->first + i].parent = NO_ID; /* none is part of another one */
}

void rank_build(struct rank_job *job)
{
    struct trace_rank *rank = job->rank;
    make_room(job);
    join_tracks(job);
    SCRATCH uint32_t *next = mem_alloc((rank->n_tracks + (size_t)1) * sizeof *next);
    for (uint32_t t = 0; t < rank->n_tracks; t++)
        next[t] = rank->tracks[t].first;
    for (size_t w = 0, window = 0; w < job->n_windows; w++) {
        size_t n_cuts = job->sources[w]->part.session.cuts.n;
        spans_scatter(job, job->sources[w], (uint32_t)window, next);
        join_details(job, job->sources[w]);
        window += n_cuts ? n_cuts : 1;
    }
    uint32_t n_kept = 0, n_read = 0;
    for (uint32_t t = 0; t < rank->n_tracks; t++)
        n_read += rank->tracks[t].n;
    parallel_for(rank->n_tracks, job->threads, order_track, rank);
    EACH_OF (struct trace_track, track, rank->tracks, rank->n_tracks) {
        if (n_kept != track->first)
            memmove(rank->spans + n_kept, rank->spans + track->first,
                    track->n * sizeof *rank->spans);
        track->first = n_kept;
        n_kept += track->n;
    }
    job->n_duplicates += n_read - n_kept;
    parallel_for(rank->n_tracks, job->threads, find_parents, rank);
    rank->n_spans = n_kept;
    join_graph(job);
    join_shapes(job);
    rank_join_allocations(job);
    for (size_t i = 0; i < job->table->n; i++)
        if (job->table->at[i]->join_rank)
            job->table->at[i]->join_rank(job);
    const struct reader *profile = job->sources[0]->reader;
    if (job->graph && profile->match_graph)
        profile->match_graph(job);
    else if (job->graph)
        rank_match_graph(job);
}
