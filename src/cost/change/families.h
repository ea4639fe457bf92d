/* By which kinds of changes one strategy differs from another. */
#pragma once

#include "cost/program/model.h"

/* A set of kinds; 0: it changes nothing. */
enum {
    OF_BUCKETS = 1 << 0,
    OF_PARTS = 1 << 1,
    OF_ORDER = 1 << 2,
    OF_SERVERS = 1 << 3,
    OF_CYCLES = 1 << 4,
    OF_COMPRESSION = 1 << 5,
    OF_COMMUNICATION = (1 << 6) - 1,
    OF_COMPILED = 1 << 6,
    OF_BF16 = 1 << 7,
    OF_RECOMPUTED = 1 << 8,
    OF_MICRO_BATCHES = 1 << 9,
    OF_UNITS = 1 << 10,
    OF_PREFETCH = 1 << 11,
    N_CHANGE_KINDS = 12
};

unsigned families_of(const struct dpro_model *model, const struct dpro_strategy *before,
                     const struct dpro_strategy *strategy);
/* "buckets+compile", in the arena. */
const char *families_name(unsigned families, struct arena *arena);
/* Takes back from `strategy` all changes to `before` but those of the kinds that are kept. */
void families_keep(const struct dpro_model *model, const struct dpro_strategy *before,
                   unsigned kept, struct dpro_strategy *strategy);
