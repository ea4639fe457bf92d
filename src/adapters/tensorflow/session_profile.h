/* What TensorFlow's profiler (XPlane) notes of a session's runs in one of its processes. */
#pragma once

#include "base/base.h"

struct payload_kind;
struct trace_build;
struct trace_part;

/* A run is one call of Session.run; all processes that take part know it by one number. */
enum session_moment_kind {
    MOMENT_RUN,      /* the process is told to begin */
    MOMENT_RUN_DONE, /* what it was to run is over */
    MOMENT_WORK,     /* a thread begins to run kernels for it */
    MOMENT_WAIT,     /* an asynchronous kernel was called */
    MOMENT_WAIT_DONE
};

struct session_moment {
    uint64_t run;
    int64_t ns;                    /* without the part's base_ns */
    uint32_t name;                 /* of the kernel's node, string id; 0: of the run itself */
    uint32_t track : 29, kind : 3; /* enum session_moment_kind */
};

struct session_profile {
    ARRAY(struct session_moment) moments; /* in no order */
};

extern const struct payload_kind session_payload;
/* The part's; NULL: it has none. */
struct session_profile *session_profile_of(const struct trace_part *part);

/* Once the ranks are known: cuts the profiles of a session's processes into the steps that all of
 * them have, each a window. What a task received gets its key from the task's graph, and its size
 * from the step whose RunMetadata has the graph. Where a task has no profile, the steps of the
 * RunMetadata are used. */
void session_profiles_join(struct trace_build *build);
