/* ingest/tensorflow/session.h: what a step of a TensorFlow session ran, on all its processes
 * (StepStats). */
#ifndef INGEST_TENSORFLOW_SESSION_H
#define INGEST_TENSORFLOW_SESSION_H

#include "base/protobuf.h"
#include "ingest/part.h"

/* Adds the spans of the StepStats that the field is. -1: no memory. */
int session_read_step(struct pb *pb, const struct pb_field *step, struct trace_part *part);

/* Once graphs and spans are read: names what was received after the nodes that receive, puts
 * kernels on threads, and leaves the part with one task and the others in a list behind it. -1: no
 * memory. */
int session_split(struct trace_part *part);

#endif
