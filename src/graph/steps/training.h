/* What a rank's main thread and autograd did in a window, from which iterations are told where
 * nothing marks them. */
#pragma once

#include "graph/steps/step_list.h"

/* A forward pass with its backward pass, from the first op that autograd recorded to the end of the
 * last function of autograd. What overlaps, as a pipeline's micro-batches do, is one. */
struct pass {
    int64_t start_ns, end_ns;
    bool has_forward; /* false: no op's number tells of it, and it starts with autograd */
};

struct training {
    const struct rank_build *rank;
    uint32_t window;
    span_array ops;      /* of the main thread, without what autograd did; outermost, by start */
    span_array backward; /* the outermost functions of autograd on any thread, by start */
    ARRAY(struct pass) passes;
    i64_array lost_ns; /* when functions began whose forward op was not recorded */
    i64_array loads;   /* when the main thread asked a DataLoader for a batch, sorted */
};

/* By span: whether it is, or lies in, a function of autograd. The caller frees it. */
bool *training_find_backward(const struct rank_build *rank);

/* Finds out about a window; the rank's main track is known. */
void training_find(struct training *t, const struct rank_build *rank, uint32_t window,
                   const bool *in_backward);
void training_fini(struct training *t);

/* How many of autograd's functions began before a time. */
size_t training_backward_before(const struct training *t, int64_t ns);

/* Whether a time lies within a pass, so that no iteration can end there. */
bool training_in_pass(const struct training *t, int64_t ns);

/* Whether a span lies in an op or a call. By its parents: times overlap by rounding. */
bool training_in_work(const struct trace_rank *trace, const struct trace_span *span);

/* When the last op of the main thread and of autograd was over, but for the profiler's own wait for
 * the GPU. */
int64_t training_end_ns(const struct training *t);

/* A part of a window that may be an iteration or a piece of one. */
struct step_part {
    int64_t start_ns, end_ns;
    ARRAY(uint32_t) backward; /* names of autograd's functions in it, sorted */
    ARRAY(uint32_t) names;    /* of what else tells parts apart, each once, sorted */
    ARRAY(uint32_t) ops;      /* names of the main thread's outermost ops, sorted */
    size_t n_loads, n_passes;
    bool is_fragment; /* the recording began or ended within it */
};
typedef ARRAY(struct step_part) step_part_array;

struct step_part *step_parts_add(step_part_array *parts, const struct training *t, int64_t start_ns,
                                 int64_t end_ns);
/* Once all have their names, and their last ends. */
void step_parts_finish(step_part_array *parts, const struct training *t);
void step_parts_fini(step_part_array *parts);

/* How many parts in a row are an iteration: their shortest period, at which they repeat in nine of
 * ten places. A part repeats another one if it did the same work backward in a pass but for a tenth
 * (an epoch's last one may accumulate fewer), and has the same names; the last one may lack some.
 * Where all do, those that take turns are one: one of them loads a batch and another does not, or
 * each calls ops that the other does not, as two optimizers of one class do. A validation pass or a
 * checkpoint in some of them only adds to what they are. Leaves out a fragment at the start. 0:
 * none. */
size_t step_parts_period(const step_part_array *parts);

/* Makes one of each so many; a rest at the end is a fragment. */
void step_parts_join(step_part_array *parts, size_t period);

/* Appends the iterations that they are, without fragments. */
void step_parts_push(const step_part_array *parts, struct rank_build *rank, uint32_t window);
