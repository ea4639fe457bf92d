/* ingest/part.c: keeping one file's spans, and telling formats apart by content. */
#include "ingest/part.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/protobuf.h"
#include "ingest/tensorflow/session_profile.h"
#include "tracer/record.h"

/* Large files take blocks of huge pages: faulting in small ones costs a tenth of the whole reading.
 */
enum { FIRST_BLOCK_BYTES = 1 << 16, HUGE_PAGE = 1 << 21, LAST_BLOCK_BYTES = 2 * HUGE_PAGE };

static void *map_block(size_t bytes)
{
    size_t extra = bytes >= HUGE_PAGE ? HUGE_PAGE : 0;
    char *at =
        mmap(NULL, bytes + extra, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        return NULL;
    if (extra) { /* trim to whole huge pages */
        size_t head = (size_t) - (uintptr_t)at & (HUGE_PAGE - 1);
        if (head)
            munmap(at, head);
        if (extra - head)
            munmap(at + head + bytes, extra - head);
        at += head;
        madvise(at, bytes, MADV_HUGEPAGE); /* a wish */
    }
    return at;
}

struct trace_span *part_add_span(struct trace_part *part)
{
    struct span_block *block = part->last_block;
    if (!block || block->n == block->cap) {
        size_t bytes = block ? block->map_bytes * 2 : FIRST_BLOCK_BYTES;
        if (bytes > LAST_BLOCK_BYTES)
            bytes = LAST_BLOCK_BYTES;
        if (part->n_spans >= UINT32_MAX - 1)
            return NULL;
        struct span_block *fresh = map_block(bytes);
        if (!fresh)
            return NULL;
        fresh->map_bytes = bytes;
        fresh->cap = (uint32_t)((bytes - sizeof *fresh) / sizeof fresh->at[0]);
        if (block)
            block->next = fresh;
        else
            part->first_block = fresh;
        part->last_block = block = fresh;
    }
    part->n_spans++;
    return &block->at[block->n++];
}

void part_free_blocks(struct trace_part *part)
{
    for (struct span_block *block = part->first_block, *next; block; block = next) {
        next = block->next;
        munmap(block, block->map_bytes);
    }
    part->first_block = part->last_block = NULL;
}

bool part_place_span(struct trace_part *part, const struct trace_span *span)
{
    struct trace_span *to = part_add_span(part);
    if (!to)
        return false;
    *to = *span;
    part->tracks.at[span->track].n_spans++;
    if (part->n_spans == 1 || span->start_ns < part->start_ns)
        part->start_ns = span->start_ns;
    if (part->n_spans == 1 || span->start_ns + span->dur_ns > part->end_ns)
        part->end_ns = span->start_ns + span->dur_ns;
    return true;
}

uint32_t part_intern(struct trace_part *part, const char *text, size_t len, bool *no_memory)
{
    uint32_t id = strtab_add(&part->names, text, len);
    *no_memory |= id == STRTAB_FULL;
    return *no_memory ? 0 : id;
}

uint32_t part_read_text(struct trace_part *part, struct json *js, bool *no_memory)
{
    const char *text;
    size_t len;
    if (json_peek(js) != '"')
        return json_skip(js), 0;
    return json_string(js, &text, &len) ? part_intern(part, text, len, no_memory) : 0;
}

void part_read_events(struct trace_part *part, struct json *js, void (*read_event)(void *reader),
                      void *reader, const bool *no_memory)
{
    const char *key;
    size_t len;
    json_skip_mark(js);
    int c = json_peek(js);
    if (c != '[' && c != '{')
        json_stop(js, c < 0 ? JSON_ENDED : JSON_BAD);
    else
        js->p += c == '{';
    while (!*no_memory && (c == '[' || (c == '{' && json_object_next(js, &key, &len)))) {
        if (c == '{' && (!json_is(key, len, "traceEvents") || json_peek(js) != '[')) {
            json_skip(js);
            continue;
        }
        js->p++;
        while (!*no_memory && json_array_next(js)) {
            if (json_peek(js) == '{') {
                read_event(reader);
            } else {
                part->losses.n_broken++;
                json_skip(js);
            }
        }
        if (c == '[')
            break;
    }
}

void part_fini(struct trace_part *part)
{
    part_free_blocks(part);
    strtab_fini(&part->names);
    arena_fini(&part->arena);
    array_fini(&part->tracks);
    array_fini(&part->details);
    array_fini(&part->links);
    array_fini(&part->launches);
    array_fini(&part->labels);
    array_fini(&part->groups);
    array_fini(&part->et_nodes);
    array_fini(&part->et_threads);
    array_fini(&part->et_tensors);
    array_fini(&part->dfg_nodes);
    array_fini(&part->dfg_inputs);
    recording_destroy(part->recording);
    if (part->transport)
        net_transport_fini(part->transport);
    free(part->transport);
    nccl_log_destroy(part->nccl);
    timeline_destroy(part->timeline);
    session_profile_destroy(part->session);
    array_fini(&part->cuts);
    if (part->next)
        part_fini(part->next);
    free(part->next);
}

static const struct reader readers[] = {
    {DPRO_FILE_KINETO, "profile", "event", "events", kineto_read, NULL},
    {DPRO_FILE_MXNET, "profile", "event", "events", mxnet_read, NULL},
    {DPRO_FILE_MXNET_TEXT, "graph", "node", "nodes", NULL, mxnet_text_read},
    {DPRO_FILE_MXNET_SYMBOL, "graph", "node", "nodes", mxnet_symbol_read, NULL},
    {DPRO_FILE_EXECUTION_TRACE, "execution trace", "node", "nodes", et_read, NULL},
    {DPRO_FILE_RECORDING, "recording", "entry", "entries", recording_read, NULL},
    {DPRO_FILE_TIMELINE, "communication timeline", "event", "events", timeline_read, NULL},
    {DPRO_FILE_TRANSPORT, "transport log", "record", "records", NULL, log_read},
    {DPRO_FILE_TRANSPORT_CSV, "transport log", "line", "lines", NULL, net_csv_read},
    {DPRO_FILE_NCCL, "NCCL log", "record", "records", NULL, log_read},
    {DPRO_FILE_XPLANE, "profile", "event", "events", NULL, xplane_read},
    {DPRO_FILE_RUN_METADATA, "run metadata", "entry", "entries", NULL, runmeta_read},
    {DPRO_FILE_GRAPH_DEF, "graph", "node", "nodes", NULL, graphdef_read},
};

const struct reader *reader_of(enum dpro_file_kind kind)
{
    for (size_t i = 0; i < sizeof readers / sizeof *readers; i++)
        if (readers[i].kind == kind)
            return &readers[i];
    return NULL;
}

/* Names that only a communication layer's timeline has. */
static bool is_timeline_name(const char *name, size_t len)
{
    static const char *const starts[] = {"NEGOTIATE_", "CYCLE_START", "MEMCPY_IN_FUSION_BUFFER",
                                         "Comm.byteps"};
    for (size_t i = 0; i < sizeof starts / sizeof *starts; i++)
        if (len >= strlen(starts[i]) && memcmp(name, starts[i], strlen(starts[i])) == 0)
            return true;
    return false;
}

/* What the arguments of an event say of its writer. */
struct hints {
    bool timeline, mxnet;
};

static void read_hints(struct json *js, struct hints *hints)
{
    const char *key, *text;
    size_t len;
    js->p++;
    while (json_object_next(js, &key, &len)) {
        hints->timeline |= json_is(key, len, "start_time_since_epoch_in_micros");
        if (!json_is(key, len, "name") || json_peek(js) != '"') {
            json_skip(js);
        } else if (json_string(js, &text, &len)) {
            hints->mxnet |= json_is(text, len, "cpu/0");
            hints->timeline |= memmem(text, len, "HorovodAllreduce", 16) != NULL;
        }
    }
}

/* One event of a Chrome trace: whose, as far as it alone can tell. OTHER: no event. Sets *foreign
 * at one without a category, which PyTorch always writes. */
static enum dpro_file_kind recognise_event(struct json *js, bool *certain, bool *foreign)
{
    const char *key, *text;
    size_t len;
    bool is_event = false, is_metadata = false, timeline = false, category = false;
    struct hints hints = {.timeline = false};
    js->p++;
    while (json_object_next(js, &key, &len)) {
        if (json_is(key, len, "name") && json_peek(js) == '"') {
            timeline |= json_string(js, &text, &len) && is_timeline_name(text, len);
            continue;
        }
        if (json_is(key, len, "args") && json_peek(js) == '{') {
            read_hints(js, &hints);
            continue;
        }
        if (json_is(key, len, "ph") && json_peek(js) == '"') {
            is_event = true;
            is_metadata = json_string(js, &text, &len) && json_is(text, len, "M");
            continue;
        }
        category |= json_is(key, len, "cat");
        json_skip(js);
    }
    timeline |= hints.timeline;
    *certain = true;
    if (hints.mxnet) /* its first events name its devices */
        return DPRO_FILE_MXNET;
    if (timeline)
        return DPRO_FILE_TIMELINE;
    *certain = category;
    if (is_event && !is_metadata && !category)
        *foreign = true;
    return is_event ? DPRO_FILE_KINETO : DPRO_FILE_OTHER;
}

/* An array is a Chrome trace when its first element is an event. Whose it is may show only after
 * many that name processes. Sets *none when it is none of the formats here. */
static enum dpro_file_kind recognise_array(struct json *js, bool *none)
{
    enum dpro_file_kind kind = DPRO_FILE_OTHER, found;
    bool certain = false, foreign = false;
    while (!certain && json_array_next(js) && json_peek(js) == '{') {
        found = recognise_event(js, &certain, &foreign);
        if (found == DPRO_FILE_OTHER && js->fail != JSON_OK)
            break;
        if (kind == DPRO_FILE_OTHER || certain)
            kind = found;
        if (kind == DPRO_FILE_OTHER)
            break;
    }
    *none = !certain && foreign;
    return *none ? DPRO_FILE_OTHER : kind;
}

static bool is_text(const unsigned char *p, uint64_t len, size_t there)
{
    for (size_t i = 0; i < len && i < there; i++)
        if (!isprint(p[i]))
            return false;
    return len > 0;
}

/* What the first field of a protobuf file is: of XSpace a plane {id, name}, of GraphDef a node
 * {name, op}, of RunMetadata a list of devices {{device}} or a graph. Only the first bytes of the
 * file are there. */
enum dpro_file_kind protobuf_recognise(const unsigned char *p, size_t n)
{
    struct pb_view file = {p, p + n, false};
    uint64_t tag = 0, len;
    for (; file.p < file.end; file.p += len) {
        size_t there;
        struct pb_field field;
        const unsigned char *payload;
        tag = *file.p;
        if (tag != 0x0a && tag != 0x1a && tag != 0x22)
            return DPRO_FILE_OTHER;
        /* its length, while what it holds may reach beyond what is there */
        for (len = 0, there = 1; file.p + there < file.end && there <= 9; there++) {
            len |= (uint64_t)(file.p[there] & 0x7f) << (7 * (there - 1));
            if (file.p[there] < 0x80)
                break;
        }
        if (file.p + there >= file.end || there > 9)
            return DPRO_FILE_OTHER;
        file.p += there + 1;
        there = (size_t)(file.end - file.p);
        if (len == 0)
            continue; /* no step_stats: a function's graphs come next */
        struct pb_view inner = {file.p, file.p + (len < there ? len : there), false};
        if (inner.p < inner.end && tag != 0x0a)
            return *inner.p == 0x0a ? DPRO_FILE_RUN_METADATA : DPRO_FILE_OTHER;
        while (inner.p < inner.end) {
            const unsigned char *at = inner.p;
            bool whole = pb_view_next(&inner, &field, &payload);
            size_t left = (size_t)(file.end - payload);
            if (!whole && (field.number == 0 || (at[0] & 7) != PB_BYTES))
                break;
            if (field.number == 1 && field.wire == PB_VARINT)
                continue;
            if (field.number == 1)
                return is_text(payload, field.value, left)      ? DPRO_FILE_GRAPH_DEF
                       : payload < file.end && *payload == 0x0a ? DPRO_FILE_RUN_METADATA
                                                                : DPRO_FILE_OTHER;
            return field.number == 2 && is_text(payload, field.value, left) ? DPRO_FILE_XPLANE
                                                                            : DPRO_FILE_OTHER;
        }
        return DPRO_FILE_OTHER;
    }
    return DPRO_FILE_OTHER;
}

/* Formats that are no JSON, by how they begin. */
static enum dpro_file_kind recognise_text(const struct json *js)
{
    struct log_header header;
    size_t there = (size_t)(js->end - js->p);
    if (there >= sizeof header) {
        memcpy(&header, js->p, sizeof header);
        if (memcmp(header.magic, LOG_MAGIC, sizeof header.magic) == 0)
            return header.kind == LOG_NCCL ? DPRO_FILE_NCCL : DPRO_FILE_TRANSPORT;
    }
    static const char mxnet[] = "Symbol Outputs:";
    if (there > strlen(mxnet) && memcmp(js->p, mxnet, strlen(mxnet)) == 0)
        return DPRO_FILE_MXNET_TEXT;
    static const char *const lines[] = {"t_start_ns,t_end_ns,", "# op,local>peer,"};
    for (size_t i = 0; i < 2; i++)
        if (there > strlen(lines[i]) && memcmp(js->p, lines[i], strlen(lines[i])) == 0)
            return DPRO_FILE_TRANSPORT_CSV;
    return DPRO_FILE_OTHER;
}

enum dpro_file_kind recognise(struct json *js)
{
    const char *key, *text;
    size_t len;
    bool schema = false, none;
    json_skip_mark(js);
    /* before spaces are skipped: a newline is also a protobuf tag */
    enum dpro_file_kind kind =
        protobuf_recognise((const unsigned char *)js->p, (size_t)(js->end - js->p));
    if (kind != DPRO_FILE_OTHER)
        return kind;
    int c = json_peek(js);
    if (c != '{' && c != '[')
        return recognise_text(js);
    js->p++;
    if (c == '[')
        return recognise_array(js, &none);
    while (json_object_next(js, &key, &len)) {
        if (json_is(key, len, "traceEvents") && json_peek(js) == '[') {
            js->p++;
            enum dpro_file_kind of = recognise_array(js, &none);
            return of == DPRO_FILE_OTHER && !none ? DPRO_FILE_KINETO : of;
        }
        if (json_is(key, len, "traceEvents") || json_is(key, len, "schemaVersion") ||
            json_is(key, len, "deviceProperties"))
            return DPRO_FILE_KINETO;
        if (json_is(key, len, "schema")) {
            schema = true;
            if (json_peek(js) != '"')
                json_skip(js);
            else if (json_string(js, &text, &len) && len > 9 &&
                     (memcmp(text, "dpro.rank/", 9) == 0 || memcmp(text, "dpro.job/", 9) == 0))
                return DPRO_FILE_RECORDING;
            continue;
        }
        if (json_is(key, len, "nodes"))
            return schema                       ? DPRO_FILE_EXECUTION_TRACE
                   : mxnet_symbol_recognise(js) ? DPRO_FILE_MXNET_SYMBOL
                                                : DPRO_FILE_OTHER;
        json_skip(js);
    }
    return DPRO_FILE_OTHER;
}
