/* cost/compiled_memory.h: a rank's memory with modules compiled: a compiled call keeps as much
 * between its passes as a probe measured. */
#pragma once

#include "cost/model_memory.h"

/* Whether a probe measured what a module keeps that is compiled, in one of enum dpro_computing's
 * ways. */
bool compiled_keeps_known(const struct dpro_model *model, uint32_t module, uint8_t way);
/* The same memory with blocks of other sizes, or itself; in the arena. */
struct model_memory memory_compiled(const struct dpro_model *model, const struct model_memory *m,
                                    const struct dpro_strategy *strategy, struct arena *arena);
