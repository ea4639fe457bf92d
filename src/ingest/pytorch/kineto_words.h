/* What the words in Kineto traces mean, in the spellings of all years. */
#pragma once

#include "ingest/trace.h"

enum category_flow { FLOW_NONE, FLOW_FWDBWD, FLOW_LAUNCH };

/* Of events without a category, or with one that is not known. */
enum { KINETO_OTHER_KIND = 254, KINETO_NO_KIND = 255 };

/* An event's category: one of these, or enum span_kind; SPAN_OTHER for flows, *flow tells which,
 * and for what is not kept. */
unsigned kineto_category(const char *cat, size_t len, uint8_t *flow);
/* Whether an annotation is the recorder's mark of a module's forward; *len becomes the length of
 * the module's name, its end: "blocks.0" of "dpro.module:blocks.0". */
bool kineto_module(const char *name, size_t *len);

/* What the recorder's mark around a call of a process group, or around a wait for it, tells. */
struct kineto_asked {
    bool waits;
    uint32_t number;   /* 1 + number of the call; 0: not known */
    int32_t peer;      /* -1: none */
    const char *group; /* to the end of the text */
};
bool kineto_asked(const char *name, size_t len, struct kineto_asked *asked);

/* gloo's sends and receives, which no thread of its own runs: the profiler draws them on the thread
 * that asked for them, up to where it has waited for them. */
bool kineto_posted(const char *name, size_t len);

/* Names whose "Input Dims" are worth reading: communication, and DDP's traffic with its buckets. */
bool kineto_is_communication(const char *name, size_t len);
/* A cuda_sync's kind, from cuda_sync_kind or the event's name. */
enum sync_kind kineto_sync_kind(const char *text, size_t len);
/* Bytes of an element type, "float", "c10::Half"; 0: unknown. */
uint64_t kineto_dtype_bytes(const char *name);
