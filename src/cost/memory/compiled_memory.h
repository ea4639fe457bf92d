/* A rank's memory with modules compiled: a compiled call keeps as much between its passes as a
 * probe measured. */
#pragma once

#include "cost/program/model_memory.h"

/* The same memory, in 16 bits already where it is to be, with blocks of other sizes; or itself. In
 * the arena. */
struct model_memory memory_compiled(const struct dpro_model *model, const struct model_memory *m,
                                    const struct dpro_strategy *strategy, struct arena *arena);
