/* ingest/tensorflow/tf_parts.h: tracks, details and spans of a part, and parts of their own for the
 * processes or devices that one file tells of. */
#ifndef INGEST_TENSORFLOW_TF_PARTS_H
#define INGEST_TENSORFLOW_TF_PARTS_H

#include "ingest/part.h"

/* for (const struct trace_span *span: the part's spans) */
#define FOR_EACH_SPAN(part, span)                                                                  \
    for (const struct span_block *block_ = (part)->first_block; block_; block_ = block_->next)     \
        for (const struct trace_span *span = block_->at; span < block_->at + block_->n; span++)

/* The track of that number, added where there is none yet. These set *no_memory when that runs out.
 */
uint32_t tf_track(struct trace_part *part, struct trace_track track, bool *no_memory);
uint32_t tf_detail(struct trace_part *part, const struct trace_detail *detail, bool *no_memory);

/* Tracks for spans that no file names threads for; zeroed. */
enum { TF_IDLE_TRACKS = 256 };
struct tf_idle_tracks {
    uint32_t n;
    int64_t end_ns[TF_IDLE_TRACKS];
    uint32_t tracks[TF_IDLE_TRACKS];
};

/* The place in `tracks` of the first one that is idle when a span begins; NO_ID stands there when
 * it is a new one, and the caller sets it. Spans come in order of their starts. */
uint32_t *tf_idle_track(struct tf_idle_tracks *idle, int64_t start_ns, int64_t end_ns);

/* *part becomes the first of a list of parts, which tells of the file what *part did. */
void tf_replace_part(struct trace_part *part, struct trace_part *list);
void tf_free_parts(struct trace_part *list); /* NULL is fine */

#endif
