/* ingest/reference/reference.h: what only the files of dPRO's first implementation (MLSys 2022)
 * hold: names of numbered tensors, shapes, and the chunks that a patched NCCL sent round its rings.
 */
#ifndef INGEST_REFERENCE_REFERENCE_H
#define INGEST_REFERENCE_REFERENCE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/array.h"

struct loader;
struct dpro_error;
struct dpro_trace;

struct tensor_shape {
    uint32_t name;       /* string id; 0: of a number that is not listed */
    uint32_t item_bytes; /* of an element; 0: unknown */
    uint64_t numel;      /* 0: unknown */
};

/* One chunk on its way to the next rank of a ring, or from the one before. */
struct chunk {
    int64_t start_ns, end_ns;
    uint32_t tensors; /* string id of the numbers of those that travel together, "1+2" */
    uint32_t channel;
    uint32_t step; /* of the collective, on its channel: which slice of which chunk */
    bool sends;
};

/* A channel's ring, as the rank knows it: who comes before it and who after. */
struct ring_hop {
    uint32_t channel;
    int32_t from, to;
};

struct reference_part {
    ARRAY(struct tensor_shape) gradients; /* by number */
    ARRAY(struct tensor_shape) outputs;   /* what ops make, by name */
    ARRAY(struct chunk) chunks;
    ARRAY(struct ring_hop) hops;
};

struct trace_part;
/* The part's, made when there is none yet; NULL: no memory. */
struct reference_part *reference_part_of(struct trace_part *part);
void reference_part_destroy(struct reference_part *reference); /* NULL is fine */

struct source;

/* What there is of a rank; graph and names may be another rank's. NULL: nothing. */
struct reference_files {
    struct source *profile, *dag, *metadata, *gradients, *timeline, *chunks, *rings;
};

/* reference.c: ties what a rank's files say of tensors by number, so that its timeline, its graph
 * and its chunks speak of the same ones; before the ranks are built. */
int reference_join(struct loader *loader, struct dpro_error *err);
/* The rank's graph; NULL: none. */
struct source *reference_graph(const struct reference_files *files);
/* The node of a name, else that which communicates the tensor of a number; NO_ID: none. */
uint32_t reference_find_node(const struct source *graph, const char *name, uint32_t number);

/* What a tensor with a number in its name is called, "dense/kernel:0", else "tensor 12"; other
 * names stay. Cut to size. And its bytes, by that name; 0: unknown. */
void reference_tensor_name(const struct loader *loader, const char *raw, char *name, size_t size);
uint64_t reference_tensor_bytes(const struct loader *loader, const char *name);

/* names.c: whether a rank's files are called so; and says which files hold nothing of what
 * their names promise, where others are of the same implementation. */
bool reference_is_of_rank(const char *path);
void reference_warn_passed_over(struct loader *loader);

/* hand_over.c: adds to the profile when its ops handed tensors over, in the steps from first to
 * last. -1: no memory. */
int reference_hand_over(const struct reference_files *files, int32_t first, int32_t last);
/* Drops what the timeline has outside of these steps; and narrows
 * these bounds to the steps that a profile has. -1: no memory. */
int reference_trim_timeline(const struct reference_files *files, int32_t first, int32_t last);
int reference_common_steps(const struct source *profile, int32_t *first, int32_t *last);

/* chunk_log.c: the chunks as a log of NCCL's; -1: no memory. */
int chunk_log_build(const struct reference_files *files, int rank, int world);
/* Finds the collectives that they are of, once Horovod's thread is known. -1: no memory. */
int chunk_logs_tie(struct dpro_trace *trace);

#endif
