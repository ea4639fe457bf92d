/* When each kernel of each task of a TensorFlow session ran in a step, and when what it took from
 * other tasks came.
 *
 * A device has a list of its kernels, with no thread, and another one of what it received
 * (RecvTensor), named by the transfer's key only. A received tensor's time begins when the sender
 * had it, by the sender's clock, or when it was asked for. */

#include "adapters/tensorflow/tf_parts.h"

struct stats {
    uint64_t start_ns, end_ns, requested_bytes;
    struct pb_field name, label;
    struct pb_view whole;
};

/* requested_bytes of an output: NodeOutput {tensor_description 3 {allocation_description 4
 * {requested_bytes 1}}}. */
static uint64_t read_output(struct pb_view at)
{
    static const uint32_t path[] = {3, 4, 1};
    struct pb_field field;
    for (unsigned depth = 0; pb_view_next(&at, &field);) {
        if (field.number != path[depth])
            continue;
        if (depth++ == 2)
            return field.value;
        at = pb_view_of(&field);
    }
    return 0;
}

/* NodeExecStats: name 1, outputs 7, label 8; times in whole microseconds (2, 5), and since 2018 in
 * nanoseconds (13, 16). */
static bool read_stats(struct pb_view view, struct stats *stats)
{
    struct pb_field fields[17], field;
    struct pb_view whole = view;
    uint64_t requested_bytes = 0;
    for (size_t i = 0; i < 17; i++)
        fields[i] = (struct pb_field){.payload = view.end};
    while (pb_view_next(&view, &field)) {
        if (field.number < 17)
            fields[field.number] = field;
        if (field.number == 7)
            requested_bytes += read_output(pb_view_of(&field));
    }
    uint64_t micros = pb_number(&fields[2]), took_micros = pb_number(&fields[5]);
    uint64_t nanos = pb_number(&fields[13]), took_nanos = pb_number(&fields[16]);
    if (view.broken || micros > TRACE_TIME_MAX / 1000 || took_micros > TRACE_TIME_MAX / 1000 ||
        nanos > TRACE_TIME_MAX || took_nanos > TRACE_TIME_MAX)
        return false;
    *stats = (struct stats){
        .name = fields[1], .label = fields[8], .requested_bytes = requested_bytes, .whole = whole};
    stats->start_ns = nanos ? nanos : micros * 1000;
    stats->end_ns = stats->start_ns + (took_nanos ? took_nanos : took_micros * 1000);
    return stats->end_ns <= TRACE_TIME_MAX;
}

/* "[2.0MB] [6.3Gb/s] edge_54_w from /job:ps/... to /job:worker/...": the transfer's key. */
static uint32_t key_of_label(struct trace_part *part, const struct stats *stats)
{
    char text[SESSION_KEY_MAX];
    size_t len = MIN(pb_length(&stats->label), sizeof text - 1);
    snprintf(text, sizeof text, "%.*s", (int)len, (const char *)stats->label.payload);
    char *tensor = text, *from = strstr(text, " from /job:"), *to = NULL;
    for (char *at = text; from && (at = strstr(at, "] ")) && at < from; at += 2)
        tensor = at + 2;
    if (from)
        to = strstr(from, " to /job:");
    if (!to)
        return 0;
    *from = *to = '\0';
    return graphdef_key(part, tensor, from + 6, to + 4);
}

/* "g/CollectiveReduce = CollectiveReduce(g, ...)": the type of a collective; 0: it is none. */
static uint32_t collective_of_label(struct trace_part *part, const struct stats *stats)
{
    static const char word[] = " = Collective";
    struct pb_view label = pb_view_of(&stats->label);
    const char *at = memmem(label.p, (size_t)(label.end - label.p), word, sizeof word - 1);
    if (!at)
        return 0;
    at += 3;
    size_t left = (size_t)((const char *)label.end - at);
    const char *end = memchr(at, '(', left);
    return part_intern(part, at, end ? (size_t)(end - at) : left);
}

/* While the file is read a track is a device: its name says which. */
static uint32_t device_track(struct trace_part *part, uint32_t device, bool gpu)
{
    struct trace_track track = {.gpu = gpu, .name = device, .id = (int64_t)part->tracks.n};
    for (uint32_t t = 0; t < part->tracks.n; t++)
        if (part->tracks.at[t].track.name == device)
            return t;
    return tf_track(part, track);
}

static void add_span(struct trace_part *part, uint32_t track, const struct stats *stats)
{
    if (pb_is(&stats->name, "RecvBuf"))
        return; /* a part of a collective, which has a span of its own */
    struct trace_detail detail = {.bytes = stats->requested_bytes, DETAIL_UNKNOWN};
    enum span_kind kind = part->tracks.at[track].track.gpu ? SPAN_KERNEL : SPAN_CPU_OP;
    struct trace_span span = span_at(kind, tf_intern(part, &stats->name), track,
                                     (int64_t)stats->start_ns, (int64_t)stats->end_ns);
    if (pb_is(&stats->name, "RecvTensor")) {
        detail.process_group = key_of_label(part, stats);
        span.kind = SPAN_TRANSFER;
    } else if ((detail.collective = collective_of_label(part, stats)) != 0) {
        span.kind = SPAN_COLLECTIVE;
    }
    if (span.kind == SPAN_TRANSFER || span.kind == SPAN_COLLECTIVE)
        span.detail = tf_detail(part, &detail);
    *part_add_span(part) = span;
}

/* ---- memory ---- */

/* "GPU_0_bfc" is 0, others ("cpu", "gpu_host_bfc") -1. */
static int32_t device_of_allocator(const struct pb_field *name)
{
    char text[32];
    int number;
    snprintf(text, sizeof text, "%.*s", (int)MIN(pb_length(name), sizeof text),
             (const char *)name->payload);
    return sscanf(text, "GPU_%6d", &number) == 1 && number >= 0 ? number : -1;
}

/* A block of a node that was not given back yet. */
struct open_block {
    uint64_t number, bytes;
};

/* AllocationRecord: alloc_micros 1, alloc_bytes 2, negative when given back. Records tell no
 * addresses: blocks of a node are told apart by their sizes, and numbered. */
static void add_record(struct trace_part *part, struct pb_view record, struct open_block *open,
                       size_t n_open, struct trace_allocation allocation)
{
    struct pb_field field;
    uint64_t micros = 0;
    while (pb_view_next(&record, &field)) {
        if (field.number == 1)
            micros = pb_number(&field);
        else if (field.number == 2)
            allocation.bytes = (int64_t)pb_number(&field);
    }
    allocation.ns = micros > TRACE_TIME_MAX / 1000 ? INT64_MAX : (int64_t)micros * 1000;
    allocation.address = part->allocations.n + 1;
    bool gives = allocation.bytes < 0 && allocation.bytes != INT64_MIN;
    uint64_t bytes = (uint64_t)(gives ? -allocation.bytes : allocation.bytes);
    size_t i = 0;
    while (i < n_open && (gives ? open[i].bytes != bytes : open[i].bytes != 0))
        i++;
    if (i < n_open && gives) {
        allocation.address = open[i].number;
        open[i].bytes = 0;
    } else if (i < n_open) {
        open[i] = (struct open_block){allocation.address, bytes};
    }
    part_add_allocation(part, &allocation);
}

/* NodeExecStats: memory 6 {allocator_name 1, allocation_records 6}, of each allocator. */
static void add_memory(struct trace_part *part, uint32_t track, struct pb_view stats)
{
    enum { MOST_OPEN = 256 };
    struct pb_field field, inner;
    while (pb_view_next(&stats, &field)) {
        if (field.number != 6 || field.wire != PB_BYTES)
            continue;
        struct open_block open[MOST_OPEN] = {{0}};
        struct trace_allocation allocation = {
            .track = track, .device = -1, .allocated_bytes = -1, .reserved_bytes = -1};
        for (struct pb_view memory = pb_view_of(&field); pb_view_next(&memory, &inner);)
            if (inner.number == 1)
                allocation.device = device_of_allocator(&inner);
            else if (inner.number == 6 && inner.wire == PB_BYTES)
                add_record(part, pb_view_of(&inner), open, MOST_OPEN, allocation);
    }
}

/* DeviceStepStats: device 1, node_stats 2. */
static void read_device(struct pb *pb, const struct pb_field *device, struct trace_part *part)
{
    uint32_t name = 0, track = NO_ID;
    bool gpu = false, repeats = false;
    PB_EACH (pb, device, field) {
        struct stats stats;
        struct pb_view view;
        if (field.number > 2 || !pb_whole(pb, &field, &view))
            continue;
        if (field.number == 1) {
            size_t len = (size_t)(view.end - view.p);
            name = part_intern(part, (const char *)view.p, len);
            gpu = memmem(view.p, len, "stream:", 7) != NULL;
            /* what the streams have one by one stands there once more */
            repeats = memmem(view.p, len, "stream:all", 10) != NULL;
            continue;
        }
        part->n_events++;
        if (repeats)
            continue;
        if (!read_stats(view, &stats)) {
            part->losses.n_broken++;
            continue;
        }
        if (track == NO_ID)
            track = device_track(part, name, gpu);
        add_span(part, track, &stats);
        add_memory(part, track, stats.whole);
    }
}

void session_read_step(struct pb *pb, const struct pb_field *step, struct trace_part *part)
{
    PB_EACH (pb, step, field) {
        if (field.number == 1)
            read_device(pb, &field, part);
    }
}
