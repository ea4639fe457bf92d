/* A diagnosis as 'dpro diagnose --save' wrote it, to compare another one with. */
#pragma once

#include "base/base.h"

struct baseline_cause {
    uint32_t cause, title; /* key; string ids */
    int64_t blame_ns, uncertainty_ns;
};

struct dpro_saved_diagnosis {
    struct strtab strings;
    char *path;
    uint32_t schema, version, framework;
    int64_t iteration_ns, ideal_ns;
    int64_t world_size;
    ARRAY(int64_t) measured_ns; /* of each iteration */
    ARRAY(struct baseline_cause) causes;
};

/* The cause's; NULL: it was none. */
const struct baseline_cause *baseline_cause(const struct dpro_saved_diagnosis *baseline,
                                            const char *key);
