/* What the words in Kineto traces mean, in the spellings of all years. */
#pragma once

#include "base/json.h"
#include "ingest/trace.h"

struct trace_part;

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

/* A pid or tid: a number, a quoted number, "stream 7", or a name, which gets a number of its own
 * far from any real one. */
int64_t kineto_id(const char *text, size_t len);
/* "Input type": the first that names an element type; `first`: that is the first input's. */
uint32_t kineto_element_type(struct json *js, struct strtab *names, bool *first);

enum argument_type {
    ARGUMENT_NONE,
    ARGUMENT_U64,      /* 0: no such number */
    ARGUMENT_U32,      /* of these the lower half */
    ARGUMENT_I32,      /* -1: no such number */
    ARGUMENT_I32_OR_0, /* 0: no such number */
    ARGUMENT_COUNT,    /* int64_t; -1: no such number */
    ARGUMENT_INT,      /* int64_t; stays as it was where there is no such number */
    ARGUMENT_STRING,   /* the id of a string */
    ARGUMENT_TEXT,     /* the id of a string, or of a value's raw text */
};
/* Sets what is at `at` to a number that an argument gives. */
void kineto_number(void *at, enum argument_type type, const char *text, size_t len);
/* What "distributedInfo" says of the job. */
void kineto_job(struct json *js, struct trace_part *part);
/* What "deviceProperties" says: the name of the first GPU. */
void kineto_devices(struct json *js, struct trace_part *part);
