/* ingest/reference/chunks.c: what a patched NCCL wrote of its rings.
 *
 * comm_detail.json: each chunk that was sent or received, an X event named
 * "allreduce.<numbers of tensors>.SEND" with loopId, channelId, chunkId and sliceId in its args;
 * the chunk's number is the step of the ring. nccl_rank_graph.json: {"RealRing": {channel: "0[bus]
 * -> 1[bus] [receive] via NET/Socket/0,1[bus] -> 2[bus] via P2P"}}, who is next to whom. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "ingest/part.h"
#include "ingest/reference/reference.h"

/* What fits a chunk's number: loop, step of the ring, slice. */
enum { MAX_LOOPS = 2047, MAX_STEPS = 4096, MAX_SLICES = 256 };
enum { MAX_NUMBER = 1 << 20, MAX_TOGETHER = 4096 };

struct reader_state {
    struct json *js;
    struct trace_part *part;
    struct reference_part *reference;
    bool no_memory;
};

struct event {
    int64_t ts_ns, dur_ns;
    uint64_t loop, channel, chunk, slice;
    uint32_t tensors; /* 0: the name is none of a chunk */
    bool has_ts, has_dur, has_chunk, sends, is_interval;
};

static int by_number(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* "2+1" -> "1+2": those that travel together, in order, so that all ranks call them the same. */
static uint32_t sorted_numbers(struct reader_state *r, const char *text, size_t len)
{
    static const char digits[] = "0123456789";
    uint32_t numbers[MAX_TOGETHER];
    char sorted[MAX_TOGETHER * 8];
    size_t n = 0, at = 0;
    for (size_t i = 0; i < len && n < MAX_TOGETHER; i++) {
        uint32_t number = 0;
        size_t first = i;
        for (; i < len && memchr(digits, text[i], 10) && number < 1000000; i++)
            number = number * 10 + (uint32_t)(text[i] - '0');
        if (i == first || (i < len && text[i] != '+'))
            return 0;
        numbers[n++] = number;
    }
    if (n > 1)
        qsort(numbers, n, sizeof *numbers, by_number);
    for (size_t i = 0; i < n; i++)
        at += (size_t)snprintf(sorted + at, sizeof sorted - at, "%s%u", i ? "+" : "", numbers[i]);
    return n == 0 ? 0 : part_intern(r->part, sorted, at, &r->no_memory);
}

/* "allreduce.2+1.SEND"; what stands between << and >> is left out. */
static void read_name(struct reader_state *r, struct event *e)
{
    char name[JSON_TEXT_MAX / 8];
    const char *text;
    size_t len, n = 0;
    if (json_peek(r->js) != '"') {
        json_skip(r->js);
        return;
    }
    if (!json_string(r->js, &text, &len))
        return;
    for (size_t i = 0, depth = 0; i < len && n + 1 < sizeof name; i++) {
        bool opens = i + 1 < len && text[i] == '<' && text[i + 1] == '<';
        bool closes = depth && i + 1 < len && text[i] == '>' && text[i + 1] == '>';
        depth += opens;
        if (!depth)
            name[n++] = text[i];
        depth -= closes;
        i += opens || closes;
    }
    name[n] = '\0';
    char *op = strrchr(name, '.');
    if (!op || (strcmp(op, ".SEND") != 0 && strcmp(op, ".RECV") != 0))
        return;
    e->sends = op[1] == 'S';
    *op = '\0';
    char *numbers = strrchr(name, '.');
    numbers = numbers ? numbers + 1 : name;
    e->tensors = sorted_numbers(r, numbers, strlen(numbers));
}

static void read_args(struct reader_state *r, struct event *e)
{
    struct json *js = r->js;
    const char *key;
    size_t len;
    if (!json_open(js, '{'))
        return;
    while (json_object_next(js, &key, &len)) {
        if (json_is(key, len, "loopId"))
            json_read_unsigned(js, &e->loop);
        else if (json_is(key, len, "channelId"))
            json_read_unsigned(js, &e->channel);
        else if (json_is(key, len, "sliceId"))
            json_read_unsigned(js, &e->slice);
        else if (json_is(key, len, "chunkId"))
            e->has_chunk = json_read_unsigned(js, &e->chunk) == JSON_VALUE;
        else
            json_skip(js);
    }
}

static void take_chunk(struct reader_state *r, const struct event *e)
{
    struct part_losses *losses = &r->part->losses;
    if (!e->has_ts) {
        losses->n_no_time++;
    } else if (!e->has_dur) {
        losses->n_no_dur++;
    } else if (e->dur_ns < 0) {
        losses->n_negative++;
    } else if (!trace_time_fits(e->ts_ns + e->dur_ns)) {
        losses->n_overflow++;
    } else if (e->loop >= MAX_LOOPS || e->channel >= MAX_NUMBER || e->chunk >= MAX_STEPS ||
               e->slice >= MAX_SLICES) {
        losses->n_broken++;
    } else {
        struct chunk chunk = {
            .tensors = e->tensors,
            .channel = (uint32_t)e->channel,
            .step = (uint32_t)((e->loop * MAX_STEPS + e->chunk) * MAX_SLICES + e->slice),
            .start_ns = e->ts_ns,
            .end_ns = e->ts_ns + e->dur_ns,
            .sends = e->sends};
        r->no_memory |=
            r->reference->chunks.n >= NO_ID - 1 || array_push(&r->reference->chunks, chunk) < 0;
    }
}

static void read_event(void *reader)
{
    struct reader_state *r = reader;
    struct json *js = r->js;
    struct event e = {.ts_ns = 0};
    const char *key, *text;
    size_t len;
    js->p++;
    while (json_object_next(js, &key, &len)) {
        if (json_is(key, len, "name"))
            read_name(r, &e);
        else if (json_is(key, len, "ph"))
            e.is_interval = json_scalar(js, &text, &len) && json_is(text, len, "X");
        else if (json_is(key, len, "ts"))
            e.has_ts = json_read_decimal(js, 3, &e.ts_ns) == JSON_VALUE && trace_time_fits(e.ts_ns);
        else if (json_is(key, len, "dur"))
            e.has_dur =
                json_read_decimal(js, 3, &e.dur_ns) == JSON_VALUE && trace_time_fits(e.dur_ns);
        else if (json_is(key, len, "args"))
            read_args(r, &e);
        else
            json_skip(js);
    }
    if (js->fail != JSON_OK || r->no_memory)
        return;
    r->part->n_events++;
    if (e.is_interval && e.tensors && e.has_chunk)
        take_chunk(r, &e);
}

int chunks_read(struct json *js, struct trace_part *part, struct dpro_error *err)
{
    struct reader_state r = {.js = js, .part = part, .reference = reference_part_of(part)};
    r.no_memory = !r.reference || strtab_add(&part->names, "", 0) == STRTAB_FULL;
    part_read_events(part, js, read_event, &r, &r.no_memory);
    return r.no_memory ? dpro_error_nomem(err) : 0;
}

/* ---- rings ---- */

/* "0[1a000] -> 1[1b000] [receive] via ...": the two ranks. False: none. */
static bool read_hop(const char *text, size_t len, struct ring_hop *hop)
{
    char copy[256] = "", *end;
    memcpy(copy, text, len < sizeof copy ? len : sizeof copy - 1);
    long from = strtol(copy, &end, 10), to;
    bool is_hop = end > copy;
    const char *arrow = strstr(copy, "->");
    if (!is_hop || !arrow)
        return false;
    to = strtol(arrow + 2, &end, 10);
    hop->from = (int32_t)from;
    hop->to = (int32_t)to;
    return end > arrow + 2 && from >= 0 && to >= 0 && from < MAX_NUMBER && to < MAX_NUMBER;
}

static void read_ring(struct reader_state *r, uint32_t channel)
{
    const char *text;
    size_t len;
    if (json_peek(r->js) != '"') {
        json_skip(r->js);
        return;
    }
    if (!json_string(r->js, &text, &len))
        return;
    for (size_t at = 0; at < len && !r->no_memory;) {
        const char *comma = memchr(text + at, ',', len - at);
        size_t end = comma ? (size_t)(comma - text) : len;
        struct ring_hop hop = {.channel = channel};
        while (at < end && text[at] == ' ')
            at++;
        if (read_hop(text + at, end - at, &hop))
            r->no_memory = array_push(&r->reference->hops, hop) < 0;
        else
            r->part->losses.n_broken++;
        r->part->n_events++;
        at = end + 1;
    }
}

int rings_read(struct json *js, struct trace_part *part, struct dpro_error *err)
{
    struct reader_state r = {.js = js, .part = part, .reference = reference_part_of(part)};
    const char *key;
    size_t len;
    r.no_memory = !r.reference || strtab_add(&part->names, "", 0) == STRTAB_FULL;
    bool open = json_open_document(js);
    while (!r.no_memory && open && json_object_next(js, &key, &len)) {
        if (!json_is(key, len, "RealRing") || json_peek(js) != '{') {
            json_skip(js);
            continue;
        }
        js->p++;
        while (!r.no_memory && json_object_next(js, &key, &len)) {
            uint64_t channel = 0;
            if (json_unsigned(key, len, &channel) == JSON_VALUE && channel < MAX_NUMBER)
                read_ring(&r, (uint32_t)channel);
            else
                json_skip(js);
        }
    }
    return r.no_memory ? dpro_error_nomem(err) : 0;
}
