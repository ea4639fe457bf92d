/* pass.h: graph passes (paper, section 4.2), the kinds of rewrite that the optimizer chooses from.
 *
 * A pass is shown the job under the strategy now looked at (a view) and answers with data:
 * candidates, each of them a list of edits. The library makes the edits, evaluates the job, and
 * takes them back where they don't help, so that a pass can neither leave a strategy half changed
 * nor undo it wrongly. A pass must answer the same view with the same candidates: it keeps no state
 * between calls.
 *
 * A shared object with a pass for `dpro optimize --pass` holds one `struct dpro_pass` named
 * dpro_pass. It is never loaded into the caller's process but into a child with a time limit. */
#ifndef DPRO_PASS_H
#define DPRO_PASS_H

#include <stdint.h>

#include <dpro/model.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DPRO_PASS_ABI 1 /* of the structs below; a pass made for another one is refused */

#define DPRO_PASS_MAX_CANDIDATES 4096 /* from one call */
#define DPRO_PASS_MAX_EDITS      1024 /* in one candidate */

/* Times are from the start of the iteration. */
struct dpro_pass_tensor {
    const char *name;
    uint64_t size_bytes;
    int64_t ready_ns; /* p_n^e: its gradient is there on the last rank */
    int64_t done_ns;  /* q_n^e: its bucket has been communicated */
    uint32_t bucket;
};

struct dpro_pass_bucket {
    uint32_t first, n; /* its tensors: order[first], ... order[first + n - 1] */
    uint32_t partitions;
    int32_t priority; /* of those ready, the largest is sent first; all equal: as they come */
    uint64_t size_bytes;
    int64_t ready_ns, start_ns, end_ns;
    int critical; /* the critical path runs through its transfer */
};

struct dpro_pass_view {
    uint32_t n_ranks, n_tensors, n_buckets;
    const struct dpro_pass_tensor *tensors; /* numbered as they become ready on the first rank */
    const uint32_t *order;                  /* [n_tensors] tensors, bucket by bucket */
    const struct dpro_pass_bucket *buckets; /* in the order in which they are launched */
    enum dpro_compression compression;
    int64_t iteration_ns;
    /* t_sync(s, k): what communicating s bytes in k partitions takes, by partial replay. */
    int64_t (*sync_ns)(const struct dpro_pass_view *view, uint64_t size_bytes, uint32_t partitions);
};

enum dpro_edit_kind {
    DPRO_EDIT_MERGE,     /* bucket `at` takes in the one after it */
    DPRO_EDIT_SPLIT,     /* bucket `at` keeps its first `value` tensors, a new one after it gets
                            the rest */
    DPRO_EDIT_PARTITION, /* bucket `at` travels in `value` partitions */
    DPRO_EDIT_PRIORITY,  /* of bucket `at`, becomes `value` */
    DPRO_EDIT_MOVE,      /* bucket `at` moves to place `value` among the buckets */
    DPRO_EDIT_COMPRESS,  /* all buckets: `value` is an enum dpro_compression; `at` is 0 */
};

/* Edits count buckets as the edits before them in the list left them. */
struct dpro_edit {
    enum dpro_edit_kind kind;
    uint32_t at;
    int64_t value;
};

struct dpro_candidate {
    struct dpro_edit *edits; /* room for DPRO_PASS_MAX_EDITS */
    uint32_t n_edits;
};

struct dpro_pass {
    uint32_t abi;         /* DPRO_PASS_ABI */
    const char *name;     /* a short word, for reports */
    const char *summary;  /* one line */
    int changes_numerics; /* used only where the user allowed that */
    /* Fills in candidate number `index`, 0 first, best guess first: 1; 0: there are no more. */
    int (*propose)(const struct dpro_pass *pass, const struct dpro_pass_view *view, uint32_t index,
                   struct dpro_candidate *candidate);
    void *state; /* the pass's own; not touched by the library */
};

#ifdef __cplusplus
}
#endif
#endif
