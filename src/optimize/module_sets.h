/* Sets of modules to recompute, searched by asking what each set takes and holds. */
#pragma once

#include "base/base.h"

struct module_sets {
    bool *in;                /* by module: the set at hand */
    const uint32_t *modules; /* [n] those that may be in it */
    uint32_t n;
    uint32_t few; /* up to so many, each set is asked for */
    uint64_t limit_bytes;
    int64_t (*time_ns)(void *arg); /* of the set at hand */
    uint64_t (*peak_bytes)(void *arg);
    void *arg;
};

/* Adds the module that brings the peak down most for its time (time_ns[n], by itself), again and
 * again, until the set fits. Returns its peak. */
uint64_t sets_add(const struct module_sets *sets, const int64_t *time_ns);
/* Takes out what a peak of most_bytes does not need, one after the other in this order (indices of
 * `modules`; NULL: from the last one to the first). */
void sets_drop_needless(const struct module_sets *sets, const uint32_t *order, uint64_t most_bytes);
/* From a set that fits to a faster one that does: of few modules to the fastest, else by exchanges
 * of one module for another. */
void sets_exchange(const struct module_sets *sets);
/* To the set with the lowest peak, of few modules. */
void sets_lowest(const struct module_sets *sets);
