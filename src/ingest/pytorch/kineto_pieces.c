/* One large profile, read by several threads. Each takes the next piece of the text, reads it into
 * a part of its own, and joins that to the whole in the pieces' order, so that all ids are those of
 * one thread.
 *
 * A piece ends where an event seems to begin: with the same characters as the first one. Whether
 * one does is seen when the piece is read: it then ends between two events. So if the first piece
 * begins rightly, all do. */
#include "ingest/pytorch/kineto_events.h"

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "base/parallel.h"

enum { PIECE = 1 << 21, MOST_BEGIN = 32 };

struct pieces {
    const struct piece_reader *reader;
    struct json *js;
    struct kineto_events *whole;
    const char *begin; /* how an event begins, from its bracket to its first key's end */
    size_t n_begin;

    pthread_mutex_t lock; /* of what follows; nothing that takes it needs memory */
    char *carry;          /* text that was read and is of no piece yet */
    size_t n_carry;
    uint64_t offset; /* of it, in the text */
    size_t n_taken;
    bool ended; /* no piece is left */

    atomic_size_t n_joined;
    atomic_bool failed;
};

/* Where the last event in a text begins; 0: it is not seen. */
static size_t last_border(const struct pieces *p, const char *text, size_t n)
{
    for (const char *at = text + n; (at = memrchr(text, '{', (size_t)(at - text))) != NULL;) {
        const char *before = at;
        while (before > text && (unsigned char)before[-1] <= ' ')
            before--;
        if (before > text && before[-1] == ',' && (size_t)(text + n - at) >= p->n_begin &&
            memcmp(at, p->begin, p->n_begin) == 0)
            return (size_t)(at - text);
    }
    return 0;
}

static void pieces_fill(struct pieces *p, char *text, size_t *n)
{
    int64_t got = 1;
    struct dpro_error unsaid; /* reading again, it fails again */
    memcpy(text, p->carry, p->n_carry);
    for (*n = p->n_carry; *n < PIECE && got > 0; *n += got > 0 ? (size_t)got : 0)
        got = input_read(p->js->in, text + *n, PIECE - *n, &unsaid);
    if (got < 0)
        p->failed = true;
    else if (p->js->on_chunk)
        p->js->on_chunk(p->js->arg, p->js->in);
}

/* The next piece; false: there is none. What comes behind the last one is in `carry`. */
static bool take_piece(struct pieces *p, char *text, size_t *n, size_t *number)
{
    pthread_mutex_lock(&p->lock);
    bool taken = !p->ended && !p->failed;
    if (taken) {
        pieces_fill(p, text, n);
        size_t border = *n == PIECE ? last_border(p, text, *n) : 0;
        p->ended = border == 0;
        p->n_carry = *n - border;
        memcpy(p->carry, text + border, p->n_carry);
        p->offset += border;
        taken = border > 0;
        *number = p->n_taken;
        p->n_taken += taken;
        *n = border;
    }
    pthread_mutex_unlock(&p->lock);
    return taken;
}

/* Until all pieces before it are joined; false: one of them can't be read. */
static bool await_turn(struct pieces *p, size_t number)
{
    while (p->n_joined != number && !p->failed) {
        if (memory_scope() && memory_scope()->failed)
            mem_fail(); /* as that thread did */
        nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
    }
    return !p->failed;
}

/* ---- joining a piece ---- */

struct pieces_joint {
    uint32_t *names, *tracks; /* ids of the piece -> of the whole */
    uint32_t first_detail;
    struct span_block *first, *last;
};

static void join_blocks(struct trace_part *whole, struct trace_part *part)
{
    if (!part->first_block)
        return;
    if (whole->last_block)
        whole->last_block->next = part->first_block;
    else
        whole->first_block = part->first_block;
    whole->last_block = part->last_block;
    bool first = whole->n_spans == 0;
    whole->start_ns = first ? part->start_ns : MIN(whole->start_ns, part->start_ns);
    whole->end_ns = first ? part->end_ns : MAX(whole->end_ns, part->end_ns);
    whole->most_number = MAX(whole->most_number, part->most_number);
    if (whole->least_number == 0 ||
        (part->least_number > 0 && part->least_number < whole->least_number))
        whole->least_number = part->least_number;
    whole->n_spans += part->n_spans;
    part->first_block = part->last_block = NULL;
}

static void join_details(struct trace_part *whole, const struct trace_part *part,
                         const uint32_t *names)
{
    EACH (const struct trace_detail, from, part->details) {
        struct trace_detail detail = *from;
        trace_detail_rename(&detail, names);
        array_push(&whole->details, detail);
    }
    EACH (const struct part_label, from, part->labels)
        array_add(&whole->labels, from->pid, from->id, names[from->name]);
}

static void join_losses(struct part_losses *to, const struct part_losses *from)
{
    to->n_broken += from->n_broken;
    to->n_allocations += from->n_allocations;
}

static void join_flows(struct kineto_part *to, const struct kineto_part *from,
                       const struct pieces_joint *joint)
{
    EACH (const struct part_label, label, from->processes)
        array_add(&to->processes, label->pid, label->id, joint->names[label->name]);
    if (from->has_correlation && !to->has_correlation) {
        to->has_correlation = true;
        array_fini(&to->launches);
    }
    EACH (const struct kineto_flow, flow, from->links) {
        array_push(&to->links, *flow);
        to->links.at[to->links.n - 1].track = joint->tracks[flow->track];
    }
    for (size_t i = 0; i < from->launches.n && !to->has_correlation; i++) {
        array_push(&to->launches, from->launches.at[i]);
        to->launches.at[to->launches.n - 1].track = joint->tracks[from->launches.at[i].track];
    }
    EACH (const struct trace_module_call, call, from->module_calls) {
        array_push(&to->module_calls, *call);
        to->module_calls.at[to->module_calls.n - 1].track = joint->tracks[call->track];
        to->module_calls.at[to->module_calls.n - 1].module = joint->names[call->module];
    }
}

static void join_piece(struct kineto_events *to, const struct kineto_events *from,
                       struct pieces_joint *joint)
{
    struct trace_part *whole = to->part, *part = from->part;
    joint->names = mem_alloc(part->names.n * sizeof *joint->names);
    for (uint32_t id = 0; id < part->names.n; id++)
        joint->names[id] = strtab_copy(&whole->names, &part->names, id);
    joint->tracks = mem_alloc((part->tracks.n + 1) * sizeof *joint->tracks);
    for (size_t t = 0; t < part->tracks.n; t++) {
        const struct part_track *track = &part->tracks.at[t];
        const struct kineto_row *row = track->row ? &from->more->rows.at[track->row - 1] : NULL;
        uint32_t at =
            row ? kineto_find_row(to, track->track.pid, track->track.id,
                                  joint->names[row->category])
                : kineto_find_track(to, track->track.gpu, track->track.pid, track->track.id);
        if (row)
            to->more->rows.at[whole->tracks.at[at].row - 1].on_stream |= row->on_stream;
        whole->tracks.at[at].n_spans += track->n_spans;
        whole->tracks.at[at].track.posted |= track->track.posted;
        joint->tracks[t] = at;
    }
    joint->first_detail = (uint32_t)whole->details.n;
    joint->first = part->first_block;
    joint->last = part->last_block;
    join_blocks(whole, part);
    join_details(whole, part, joint->names);
    join_losses(&whole->losses, &part->losses);
    join_flows(to->more, from->more, joint);
    EACH (const struct trace_allocation, from_allocation, part->allocations) {
        array_push(&whole->allocations, *from_allocation);
        whole->allocations.at[whole->allocations.n - 1].track =
            joint->tracks[from_allocation->track];
    }
    whole->n_events += part->n_events;
    whole->has_record_fn |= part->has_record_fn;
    whole->process.pid = whole->process.pid ?: part->process.pid;
}

/* The piece's spans, which nobody else looks at yet. */
static void rename_spans(const struct pieces_joint *joint)
{
    struct span_block *block = joint->first;
    for (bool more = block != NULL; more;) {
        EACH_OF (struct trace_span, span, block->at, block->n) {
            span->name = joint->names[span->name];
            span->track = joint->tracks[span->track];
            if (span->detail != NO_ID)
                span->detail += joint->first_detail;
        }
        more = block != joint->last; /* behind it lie the next piece's */
        block = more ? block->next : NULL;
    }
}

/* ---- threads ---- */

static void read_pieces(struct pieces *p, void *reader, struct json *js)
{
    size_t n, number;
    struct span_block *rest = NULL; /* of what the spans of the piece before are in */
    while (take_piece(p, js->buffer, &n, &number)) {
        struct trace_part part = {.first_block = rest, .last_block = rest};
        struct kineto_events events;
        json_lend(js, js->buffer, n, 0, false);
        bool whole = p->reader->read(reader, &part, &events);
        if (!whole || part.losses.n_unpaired > 0)
            p->failed = true;
        rest = part_take_rest(&part);
        if (await_turn(p, number)) {
            struct pieces_joint joint;
            join_piece(p->whole, &events, &joint);
            p->n_joined = number + 1;
            rename_spans(&joint);
            FREE_ALL(&joint.names, &joint.tracks);
        }
        part_fini(&part);
    }
    if (rest)
        span_block_free(rest);
}

static void read_thread(void *arg, size_t item UNUSED)
{
    struct pieces *p = arg;
    struct dpro_error unsaid;
    struct json js;
    json_init(&js, p->js->in, PIECE, &unsaid);
    void *reader = p->reader->create(&js);
    read_pieces(p, reader, &js);
    p->reader->destroy(reader);
    json_fini(&js);
}

/* From its bracket to the end of its first key. */
static size_t length_of_begin(const struct json *js)
{
    const char *end = js->p + MIN((size_t)(js->end - js->p), (size_t)MOST_BEGIN);
    const char *quote = memchr(js->p, '"', (size_t)(end - js->p));
    quote = quote ? memchr(quote + 1, '"', (size_t)(end - quote - 1)) : NULL;
    return quote ? (size_t)(quote + 1 - js->p) : 0;
}

bool kineto_read_pieces(const struct piece_reader *reader, struct json *js,
                        struct kineto_events *to)
{
    char begin[MOST_BEGIN];
    struct pieces p = {.reader = reader, .js = js, .whole = to, .begin = begin};
    p.n_begin = length_of_begin(js);
    if (p.n_begin == 0 || js->ended || (size_t)(js->end - js->p) > PIECE)
        return true;
    memcpy(begin, js->p, p.n_begin);
    pthread_mutex_init(&p.lock, NULL);
    p.carry = mem_alloc(JSON_TEXT_MAX + js->chunk + PIECE + JSON_PADDING);
    p.n_carry = (size_t)(js->end - js->p);
    memcpy(p.carry, js->p, p.n_carry);
    p.offset = json_offset(js);
    parallel_for((size_t)js->threads, js->threads, read_thread, &p);
    pthread_mutex_destroy(&p.lock);
    json_lend(js, p.carry, p.n_carry, p.offset, true);
    return !p.failed;
}
