/* Allocations that fail when the test says so. Programs with nomem.c are linked with --wrap=malloc,
 * --wrap=calloc, --wrap=realloc and --wrap=free. */
#pragma once

#include <stdatomic.h>

/* Allocations until the one that fails; negative: none fails, or that one has failed. */
extern atomic_long nomem_n_left;

/* Blocks that were allocated here and not freed. */
extern atomic_long nomem_n_blocks;
