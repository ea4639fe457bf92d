/* What a step of a TensorFlow session ran, on all its processes (StepStats). */
#pragma once

#include "adapters/tensorflow/tf_parts.h"
#include "base/protobuf.h"

/* Adds the spans of the StepStats that the field is. */
void session_read_step(struct pb *pb, const struct pb_field *step, struct trace_part *part);

/* Once graphs and spans are read: names what was received after the nodes that receive, puts
 * kernels on threads, and leaves the part with one task and the others in a list behind it. */
void session_split(struct trace_part *part);

enum { SESSION_KEY_MAX = 1024 /* bytes of a transfer's key */ };

/* A thread of the executor that is idle when a span begins; spans come in order of their starts.
 * `pid` tells these tracks from others of the part. */
uint32_t session_track(struct tf_idle_tracks *idle, struct trace_part *part, uint64_t pid,
                       const struct trace_span *span);
/* The track of what came from the task that a transfer's key names. */
uint32_t session_inbox(struct trace_part *part, uint64_t pid, const char *key);
/* Extends a step's time in its client by that in another process. Where the two do not overlap, the
 * clocks differ too much. */
void session_extend(int64_t whole_ns[2], int64_t start_ns, int64_t end_ns);
/* Sets group and number of a collective by its key, "1 104", which is equal on all tasks. */
void session_name_group(struct trace_part *part, const char *key, struct trace_detail *detail);
