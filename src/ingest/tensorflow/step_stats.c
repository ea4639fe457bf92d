/* ingest/tensorflow/step_stats.c: when each kernel of each task of a TensorFlow session ran in a
 * step, and when what it took from other tasks came.
 *
 * A device has a list of its kernels, with no thread, and another one of what it received
 * (RecvTensor), named by the transfer's key only. A received tensor's time begins when the sender
 * had it, by the sender's clock, or when it was asked for. */
#include <stdlib.h>
#include <string.h>

#include "ingest/tensorflow/session_run_steps.h"
#include "ingest/tensorflow/tf_parts.h"

struct stats {
    uint64_t start_ns, end_ns, requested_bytes;
    const char *name, *label;
    size_t name_len, label_len;
};

/* requested_bytes of an output: NodeOutput {tensor_description 3 {allocation_description 4
 * {requested_bytes 1}}}. */
static uint64_t read_output(struct pb_view at)
{
    static const uint32_t path[] = {3, 4, 1};
    struct pb_field field;
    const unsigned char *payload;
    for (unsigned depth = 0; pb_view_next(&at, &field, &payload);) {
        if (field.number != path[depth])
            continue;
        if (depth++ == 2)
            return field.value;
        at = pb_view_of(&field, payload);
    }
    return 0;
}

/* NodeExecStats: times in whole microseconds (2, 5), and since 2018 in nanoseconds (13, 16). */
static bool read_stats(struct pb_view view, struct stats *stats)
{
    uint64_t micros = 0, took_micros = 0, nanos = 0, took_nanos = 0;
    struct pb_field field;
    const unsigned char *payload;
    *stats = (struct stats){.name = "", .label = ""};
    while (pb_view_next(&view, &field, &payload)) {
        bool text = field.wire == PB_BYTES;
        if (text && field.number == 1) {
            stats->name = (const char *)payload;
            stats->name_len = field.value;
        } else if (text && field.number == 8) {
            stats->label = (const char *)payload;
            stats->label_len = field.value;
        } else if (text && field.number == 7) {
            stats->requested_bytes += read_output(pb_view_of(&field, payload));
        } else if (!text && field.number == 2) {
            micros = field.value;
        } else if (!text && field.number == 5) {
            took_micros = field.value;
        } else if (!text && field.number == 13) {
            nanos = field.value;
        } else if (!text && field.number == 16) {
            took_nanos = field.value;
        }
    }
    if (view.broken || micros > TRACE_TIME_MAX / 1000 || took_micros > TRACE_TIME_MAX / 1000 ||
        nanos > TRACE_TIME_MAX || took_nanos > TRACE_TIME_MAX)
        return false;
    stats->start_ns = nanos ? nanos : micros * 1000;
    stats->end_ns = stats->start_ns + (took_nanos ? took_nanos : took_micros * 1000);
    return stats->end_ns <= TRACE_TIME_MAX;
}

/* "[2.0MB] [6.3Gb/s] edge_54_w from /job:ps/... to /job:worker/...": the transfer's key. */
static uint32_t key_of_label(struct trace_part *part, const struct stats *stats)
{
    char text[SESSION_KEY_MAX];
    size_t len = stats->label_len < sizeof text - 1 ? stats->label_len : sizeof text - 1;
    memcpy(text, stats->label, len);
    text[len] = '\0';
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
    const char *at = memmem(stats->label, stats->label_len, word, sizeof word - 1);
    if (!at)
        return 0;
    at += 3;
    size_t len = 0, left = (size_t)(stats->label + stats->label_len - at);
    while (len < left && at[len] != '(')
        len++;
    return part_intern(part, at, len);
}

/* While the file is read a track is a device: its name says which. */
static uint32_t device_track(struct trace_part *part, uint32_t device, bool gpu, bool *no_memory)
{
    struct trace_track track = {.gpu = gpu, .name = device, .id = (int64_t)part->tracks.n};
    for (uint32_t t = 0; t < part->tracks.n; t++)
        if (part->tracks.at[t].track.name == device)
            return t;
    return tf_track(part, track, no_memory);
}

static void add_span(struct trace_part *part, uint32_t track, const struct stats *stats,
                     bool *no_memory)
{
    if (json_is(stats->name, stats->name_len, "RecvBuf"))
        return; /* a part of a collective, which has a span of its own */
    struct trace_detail detail = {DETAIL_UNKNOWN};
    struct trace_span span = {.start_ns = (int64_t)stats->start_ns,
                              .dur_ns = (int64_t)(stats->end_ns - stats->start_ns),
                              .name = part_intern(part, stats->name, stats->name_len),
                              .track = track,
                              .kind = part->tracks.at[track].track.gpu ? SPAN_KERNEL : SPAN_CPU_OP,
                              SPAN_UNKNOWN};
    if (json_is(stats->name, stats->name_len, "RecvTensor")) {
        detail.process_group = key_of_label(part, stats);
        span.kind = SPAN_TRANSFER;
    } else if ((detail.collective = collective_of_label(part, stats)) != 0) {
        span.kind = SPAN_COLLECTIVE;
    }
    detail.bytes = stats->requested_bytes;
    if (span.kind == SPAN_TRANSFER || span.kind == SPAN_COLLECTIVE)
        span.detail = tf_detail(part, &detail, no_memory);
    struct trace_span *to = *no_memory ? NULL : part_add_span(part);
    if (to)
        *to = span;
    *no_memory |= !to;
}

/* DeviceStepStats: device 1, node_stats 2. */
static void read_device(struct pb *pb, const struct pb_field *device, struct trace_part *part,
                        bool *no_memory)
{
    struct pb_field field;
    const char *text;
    size_t len;
    uint64_t outer;
    uint32_t name = 0, track = NO_ID;
    bool gpu = false, repeats = false;
    if (!pb_enter(pb, device, &outer))
        return;
    while (!*no_memory && pb_next(pb, &field)) {
        struct stats stats;
        if (field.number > 2 || !pb_text(pb, &field, &text, &len))
            continue;
        if (field.number == 1) {
            name = part_intern(part, text, len);
            gpu = memmem(text, len, "stream:", 7) != NULL;
            /* what the streams have one by one stands there once more */
            repeats = memmem(text, len, "stream:all", 10) != NULL;
            continue;
        }
        part->n_events++;
        if (repeats)
            continue;
        if (!read_stats((struct pb_view){(const unsigned char *)text,
                                         (const unsigned char *)text + len, false},
                        &stats)) {
            part->losses.n_broken++;
            continue;
        }
        if (track == NO_ID)
            track = device_track(part, name, gpu, no_memory);
        if (!*no_memory)
            add_span(part, track, &stats, no_memory);
    }
    pb_leave(pb, outer);
}

int session_read_step(struct pb *pb, const struct pb_field *step, struct trace_part *part)
{
    struct pb_field field;
    uint64_t outer;
    bool no_memory = false;
    if (!pb_enter(pb, step, &outer))
        return 0;
    while (!no_memory && pb_next(pb, &field))
        if (field.number == 1)
            read_device(pb, &field, part, &no_memory);
    pb_leave(pb, outer);
    return no_memory ? -1 : 0;
}
