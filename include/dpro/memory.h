/* What a rank's device holds during an iteration, and its peak (paper, section 4.1). */
#ifndef DPRO_MEMORY_H
#define DPRO_MEMORY_H

#include <stddef.h>
#include <stdint.h>

#include <dpro/error.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What a block of memory is for. */
enum dpro_memory_category {
    DPRO_MEMORY_PARAMETER, /* with buffers */
    DPRO_MEMORY_GRADIENT,
    DPRO_MEMORY_BUCKET,     /* of gradients that travel together, if they are no views of it */
    DPRO_MEMORY_STATE,      /* of the optimizer */
    DPRO_MEMORY_ACTIVATION, /* made by the forward pass, kept for the backward one */
    DPRO_MEMORY_TEMPORARY,  /* gone before the pass that made it ends */
    DPRO_MEMORY_COMMUNICATION,
    DPRO_MEMORY_WORKSPACE, /* of a library, within one op */
    DPRO_MEMORY_INPUT,     /* batches */
    DPRO_MEMORY_OTHER,     /* not known */
    DPRO_N_MEMORY_CATEGORIES
};
/* "parameter", "gradient", "bucket", "optimizer_state", ..., as in JSON; static. NULL: none. */
DPRO_API const char *dpro_memory_category_name(enum dpro_memory_category category);

/* How a rank's memory is known, best first. */
enum dpro_memory_source {
    DPRO_MEMORY_ALLOCATIONS,     /* the profile lists each allocation and free */
    DPRO_MEMORY_EXECUTION_TRACE, /* storages of tensors, from first to last use; memory within ops
                                    is not known */
    DPRO_MEMORY_UNKNOWN,
};
/* "allocations", "execution trace"; NULL: not known; static. */
DPRO_API const char *dpro_memory_source_name(enum dpro_memory_source source);

/* Whether the settings (PYTORCH_CUDA_ALLOC_CONF) of a GPU's caching allocator are known. */
enum dpro_allocator_settings {
    DPRO_ALLOCATOR_ASSUMED, /* not known: the defaults are assumed */
    DPRO_ALLOCATOR_KNOWN,
    DPRO_ALLOCATOR_STRANGE, /* another allocator than PyTorch's own, or settings that make no sense:
                               the reserved memory is not known */
};

#ifdef __cplusplus
}
#endif
#endif
