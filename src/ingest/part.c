/* Keeping what one file holds, and what its reader has to say. */
#include "ingest/part.h"
#include "base/utf8.h"

#include <stdatomic.h>
#include <sys/mman.h>

/* Large files take blocks of huge pages: faulting in small ones costs a tenth of the reading. */
enum { FIRST_BLOCK_BYTES = 1 << 16, FIRST_ALIGN = 64, HUGE_PAGE = 1 << 21 };
static const size_t LAST_BLOCK_BYTES = 2 * HUGE_PAGE;

struct span_pages {
    atomic_size_t n_blocks;
};

static char *part_align(void *at, size_t page)
{
    return (char *)at + ((size_t) - (uintptr_t)at & (page - 1));
}

static struct span_block *add_block(struct trace_part *part)
{
    struct span_block *last = part->last_block;
    size_t n_bytes = last ? MIN(last->n_bytes * 2, LAST_BLOCK_BYTES) : FIRST_BLOCK_BYTES;
    size_t page = n_bytes >= HUGE_PAGE ? HUGE_PAGE : FIRST_ALIGN;
    struct span_pages *pages = mem_map(n_bytes + page);
    pages->n_blocks = 1;
    struct span_block *fresh = (void *)part_align(pages + 1, page);
    if (page == HUGE_PAGE)
        madvise(fresh, n_bytes, MADV_HUGEPAGE); /* a wish */
    *fresh = (struct span_block){
        .pages = pages,
        .n_bytes = n_bytes,
        .cap = (uint32_t)((n_bytes - sizeof *fresh) / sizeof fresh->at[0]),
    };
    if (last)
        last->next = fresh;
    else
        part->first_block = fresh;
    return part->last_block = fresh;
}

struct trace_span *part_add_span(struct trace_part *part)
{
    struct span_block *block = part->last_block;
    if (!block || block->n == block->cap) {
        if (part->n_spans >= UINT32_MAX - 1)
            mem_fail();
        block = add_block(part);
    }
    part->n_spans++;
    return &block->at[block->n++];
}

void span_block_free(struct span_block *block)
{
    struct span_pages *pages = block->pages;
    if (--pages->n_blocks == 0)
        mem_free(pages);
}

struct span_block *part_take_rest(struct trace_part *part)
{
    struct span_block *last = part->last_block, *rest = NULL;
    if (last && last->n == 0) { /* no span came */
        part->first_block = part->last_block = NULL;
        return last;
    }
    if (last && last->cap - last->n > 1) {
        _Static_assert(sizeof *rest <= sizeof rest->at[0], "in the place of a span");
        rest = (void *)&last->at[last->n];
        *rest = (struct span_block){
            .pages = last->pages, .n_bytes = last->n_bytes, .cap = last->cap - last->n - 1};
        last->pages->n_blocks++;
        last->cap = last->n;
    }
    return rest;
}

void part_free_blocks(struct trace_part *part)
{
    for (struct span_block *block = part->first_block, *next; block; block = next) {
        next = block->next;
        span_block_free(block);
    }
    part->first_block = part->last_block = NULL;
}

void part_place_span(struct trace_part *part, const struct trace_span *span)
{
    struct trace_span *to = part_add_span(part);
    *to = *span;
    part_count_span(part, to);
}

void part_add_allocation(struct trace_part *part, const struct trace_allocation *allocation)
{
    if (allocation->bytes == 0 || allocation->bytes > TRACE_BYTES_MAX ||
        allocation->bytes < -TRACE_BYTES_MAX || !trace_time_fits(allocation->ns)) {
        part->losses.n_allocations++;
        return;
    }
    array_push(&part->allocations, *allocation);
}

void trace_detail_rename(struct trace_detail *detail, const uint32_t *names)
{
    RENAME(names, &detail->dtype, &detail->collective, &detail->process_group, &detail->group_ranks,
           &detail->group_description);
}

void part_set_rank(struct trace_part *part, int64_t rank, int64_t world_size)
{
    if (rank >= 0 && rank <= INT32_MAX) { /* a wild one is left out and told of: find_ranks.c */
        part->process.has_rank = true;
        part->process.rank = (int)rank;
    }
    if (world_size > 0 && world_size <= NET_MAX_PROCESSES)
        part->process.world_size = (int)world_size;
}

struct group_reading {
    uint32_t name, description;
    ARRAY(int32_t) ranks;
};

static void read_group_ranks(struct json_reader *r, void *out, size_t offset UNUSED)
{
    struct group_reading *group = out;
    int64_t rank;
    JSON_EACH (r->js)
        if (json_read_decimal(r->js, 0, &rank) == JSON_VALUE && rank >= 0 && rank <= INT32_MAX)
            array_push(&group->ranks, (int32_t)rank);
}

void part_read_group(struct trace_part *part, struct json *js, const char *name_key,
                     const char *description_key)
{
    const struct json_member members[] = {
        MEMBER(struct group_reading, name_key, RAW, name), /* it may be a number, or a list */
        MEMBER(struct group_reading, description_key, TEXT, description),
        MEMBER_BY("ranks", read_group_ranks, 0),
        {NULL}};
    struct json_reader r = {.js = js, .strings = &part->names};
    struct group_reading read = {0};
    if (json_read_object(&r, members, &read) && js->fail == JSON_OK) {
        int32_t *ranks = arena_copy(&part->arena, read.ranks.at, read.ranks.n, sizeof *ranks);
        array_add(&part->groups, read.name, read.description, (uint32_t)read.ranks.n, ranks);
    }
    array_fini(&read.ranks);
}

bool part_times_fit(struct trace_part *part, struct part_time start, struct part_time dur)
{
    int64_t end_ns;
    bool fits = start.is == JSON_VALUE && dur.is == JSON_VALUE && dur.ns >= 0 &&
                !__builtin_add_overflow(start.ns, dur.ns, &end_ns) && trace_time_fits(start.ns) &&
                trace_time_fits(end_ns);
    part->losses.n_broken += !fits;
    return fits;
}

void part_read_time(struct json_reader *r, void *out, size_t offset)
{
    struct part_time *time = (void *)((char *)out + offset);
    time->is = json_read_decimal(r->js, 3, &time->ns);
}

void part_read_phase(struct json_reader *r, void *out, size_t offset)
{
    const char *text;
    size_t len;
    *((char *)out + offset) = (char)(json_scalar(r->js, &text, &len) && len == 1 ? *text : 0);
}

static void read_events(struct trace_part *part, struct json *js, const struct part_events *how,
                        void *reader)
{
    struct json_reader r = {.js = js, .strings = &part->names, .arg = part};
    SCRATCH void *nothing = mem_alloc(how->size);
    memcpy(nothing, how->event, how->size);
    js->p++;
    for (;;) {
        while (json_peek(js) == ',')
            js->p++;
        if ((how->may_stay_open && json_peek(js) < 0) || !json_array_next(js))
            break;
        memcpy(how->event, nothing, how->size);
        if (!json_read_object(&r, how->members, how->event))
            part->losses.n_broken++;
        else if (js->fail == JSON_OK)
            how->take(reader, how->event);
    }
}

void part_read_events(struct trace_part *part, struct json *js, const struct part_events *how,
                      void *reader)
{
    json_skip_mark(js);
    bool bare = json_peek(js) == '[';
    if (bare)
        read_events(part, js, how, reader);
    JSON_KEYS (js, !bare && json_open_document(js), key, len)
        if (json_is(key, len, "traceEvents") && json_peek(js) == '[')
            read_events(part, js, how, reader);
        else
            json_skip(js);
}

size_t part_split_line(const char *line, size_t len, struct part_field fields[PART_FIELDS_MAX])
{
    const char *end = line + len;
    size_t n = 0;
    for (const char *at = line, *stop; n < PART_FIELDS_MAX && at <= end; at = stop + 1) {
        stop = memchr(at, ',', (size_t)(end - at)) ?: end;
        bool quoted = stop - at >= 2 && *at == '"' && stop[-1] == '"';
        fields[n++] = (struct part_field){at + quoted, (size_t)(stop - at) - 2 * quoted};
    }
    return n;
}

bool part_next_line(struct trace_part *part, struct bytes *bytes, const char **line, size_t *len)
{
    bool there = bytes_line(bytes, line, len);
    while (there && *len == 0)
        there = bytes_line(bytes, line, len);
    bool cut = there && bytes->ended && bytes->p == bytes->end && bytes->p[-1] != '\n';
    part->damage.cut |= cut || bytes->rc < 0;
    return there && !cut;
}

void *part_make_payload(struct trace_part *part, const struct payload_kind *kind)
{
    if (!part->payload)
        part->payload = mem_array(1, kind->size_bytes);
    part->payload_kind = kind;
    return part->payload;
}

void *part_payload(const struct trace_part *part, const struct payload_kind *kind)
{
    return part->payload_kind == kind ? part->payload : NULL;
}

void *part_take_payload(struct trace_part *part, const struct payload_kind *kind)
{
    void *payload = part_payload(part, kind);
    if (payload)
        part->payload = NULL;
    return payload;
}

void payload_destroy(const struct payload_kind *kind, void *payload)
{
    if (payload && kind->fini)
        kind->fini(payload);
    for (int i = 0; payload && !kind->fini && i < 8 && (i == 0 || kind->arrays[i] > 0); i++)
        mem_free_at((char *)payload + kind->arrays[i]);
    mem_free(payload);
}

void part_free_payload(struct trace_part *part)
{
    payload_destroy(part->payload_kind, part->payload);
    part->payload = NULL;
}

void part_fini(struct trace_part *part)
{
    part_free_blocks(part);
    strtab_fini(&part->names);
    arena_fini(&part->arena);
    FREE_ALL(&part->tracks, &part->details, &part->labels, &part->groups, &part->allocations,
             &part->dfg_nodes, &part->dfg_inputs);
    part_free_payload(part);
    array_fini(&part->session.cuts);
    if (part->next)
        part_fini(part->next);
    mem_free(part->next);
}

void trace_warn(struct dpro_trace *trace, const struct dpro_sink *sink, const char *format, ...)
{
    char raw[2048], text[2048];
    va_list args;
    va_start(args, format);
    vsnprintf(raw, sizeof raw, format, args);
    va_end(args);
    size_t len = utf8_escape(text, sizeof text, raw, strlen(raw));
    array_push(&trace->warnings, arena_copy_string(&trace->arena, text, len));
    log_line(sink, DPRO_LOG_WARN, "%s", text);
}
