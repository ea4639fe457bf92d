/* Graph passes (paper, section 4.2), the kinds of rewrite that the optimizer chooses from.
 *
 * A pass is shown the job under the current strategy (a view) and answers with candidates, each a
 * list of edits. The library applies the edits, evaluates the job, and takes them back where they
 * don't help, so a pass can't leave a strategy half changed. A pass must answer the same view with
 * the same candidates: it keeps no state between calls.
 *
 * A shared object for `dpro optimize --pass` holds one `struct dpro_pass` named dpro_pass. It is
 * never loaded into the caller's process but into a child with a time limit. */
#ifndef DPRO_PASS_H
#define DPRO_PASS_H

#include <stdint.h>

#include <dpro/model.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DPRO_PASS_ABI 5 /* of the structs below; a pass made for another one is refused */

#define DPRO_PASS_MAX_CANDIDATES 4096 /* from one call */
#define DPRO_PASS_MAX_EDITS      1024 /* in one candidate */
#define DPRO_PASS_NO_TENSOR      UINT32_MAX
#define DPRO_PASS_NO_MODULE      UINT32_MAX

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
    int32_t priority; /* the largest of those ready is sent first; all equal: in order */
    uint64_t size_bytes;
    int64_t ready_ns, start_ns, end_ns;
    int critical; /* the critical path runs through its transfer */
};

/* The paper's p_n, as it ran. */
struct dpro_pass_op {
    const char *name;
    enum dpro_op_kind kind; /* DPRO_OP_FW, BW, UPDATE or INPUT */
    int waits;              /* for communication, before it begins */
    uint32_t tensor;        /* the tensor whose gradient is ready after it; DPRO_PASS_NO_TENSOR */
    int64_t work_ns;        /* without communication beside it */
};

/* What a rank computes in an iteration, one op after the other. */
struct dpro_pass_program {
    const struct dpro_pass_op *ops;
    uint32_t n_ops;
};

/* A module of the job's model (dpro_model_n_modules), the unit in which recomputation and ways to
 * compute are chosen. */
struct dpro_pass_module {
    const char *name, *class_name;
    uint32_t parent;      /* the module around it; DPRO_PASS_NO_MODULE */
    uint64_t kept_bytes;  /* bytes that recomputing it alone frees */
    int64_t recompute_ns; /* time that this takes */
    int recomputed;       /* by the strategy */
    unsigned computing;   /* enum dpro_computing; by the strategy */
    unsigned known;       /* ways whose costs are known and that the user allowed, as 1 << enum
                             dpro_computing; 0: none */
    int64_t gained_ns[DPRO_N_COMPUTINGS]; /* what each of these ways saves of an iteration's work,
                                             mean over the ranks; negative: it takes longer */
};

struct dpro_pass_view {
    uint32_t n_ranks, n_tensors, n_buckets;
    const struct dpro_pass_tensor *tensors; /* numbered as they become ready on the first rank */
    const uint32_t *order;                  /* [n_tensors] tensors, bucket by bucket */
    const struct dpro_pass_bucket *buckets; /* in the order in which they are launched */
    enum dpro_compression compression;
    int64_t iteration_ns;
    const struct dpro_pass_program *programs; /* ranks that compute alike share one */
    uint32_t n_programs;
    uint32_t critical_program;              /* of the rank that is done last */
    const struct dpro_pass_module *modules; /* outer ones come before those within them */
    uint32_t n_modules;
    uint32_t micro_batches; /* in which a step's batch is computed; 1: at once */
    uint64_t peak_bytes;    /* peak of the rank that holds most; 0: not known */
    uint64_t memory_bytes;  /* the budget of a rank, which no result exceeds; 0: none */
    /* t_sync(s, k): what communicating s bytes in k partitions takes, by partial replay. */
    int64_t (*sync_ns)(const struct dpro_pass_view *view, uint64_t size_bytes, uint32_t partitions);
};

enum dpro_edit_kind {
    DPRO_EDIT_MERGE,      /* bucket `at` takes in the one after it */
    DPRO_EDIT_SPLIT,      /* bucket `at` keeps its first `value` tensors, a new one after it gets
                             the rest */
    DPRO_EDIT_PARTITION,  /* bucket `at` travels in `value` partitions */
    DPRO_EDIT_PRIORITY,   /* bucket `at` gets priority `value` */
    DPRO_EDIT_MOVE,       /* bucket `at` moves to place `value` among the buckets */
    DPRO_EDIT_COMPRESS,   /* all buckets: `value` is an enum dpro_compression; `at` is 0 */
    DPRO_EDIT_RECOMPUTE,  /* module `at` is recomputed in the backward pass; `value` 0: it is not */
    DPRO_EDIT_ACCUMULATE, /* the step's batch is computed in `value` micro-batches; `at` is 0 */
    DPRO_EDIT_COMPUTE,    /* module `at` is computed in the way `value`: enum dpro_computing */
};

/* Edits number buckets as the edits before them in the list left them. */
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
    /* Fills in candidate number `index`, from 0, best guess first, and returns 1; 0: there are no
     * more. */
    int (*propose)(const struct dpro_pass *pass, const struct dpro_pass_view *view, uint32_t index,
                   struct dpro_candidate *candidate);
    void *state; /* the pass's own; not touched by the library */
};

#ifdef __cplusplus
}
#endif
#endif
