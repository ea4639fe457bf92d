/* Sets of modules to recompute, searched by asking what each set takes and holds. */
#pragma once

#include "cost/program/model.h"

struct module_sets {
    const struct dpro_model *model;
    bool *in;                /* by module: the set at hand */
    const uint32_t *modules; /* [n] those that may be in it */
    uint32_t n;
    uint32_t few, many; /* up to so many, each set is asked for; more are not exchanged */
    uint64_t limit_bytes;
    int64_t (*time_ns)(void *arg); /* of the set at hand */
    uint64_t (*peak_bytes)(void *arg);
    void *arg;
};

/* From none to a set that fits, in as little time as is found: of few modules it is the least.
 * Where none is found, it has what brings the peak as low as all modules do. Returns whether it
 * fits. */
bool sets_fit(const struct module_sets *sets);
/* To the set with the lowest peak; of many modules, none with one module more or less has a lower.
 */
void sets_lowest(const struct module_sets *sets);

/* Lists modules to recompute: the blocks that the model repeats, and the outermost modules beside
 * them that free memory; or, with `inner`, the modules within these. In the order of their forward
 * passes; returns how many. There is room for all modules. */
uint32_t sets_candidates(const struct dpro_model *model, bool inner, uint32_t *modules);
