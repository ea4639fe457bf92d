/* A diagnosis as 'dpro diagnose --save' wrote it, to compare another one with. */
#pragma once

#include "base/base.h"

#include <dpro/graph.h>

struct baseline_cause {
    uint32_t cause, title; /* key; string ids */
    int64_t blame_ns, uncertainty_ns;
};

enum { MOST_SAVED_WORKS = 16, WORK_NAME_BYTES = 60 };

/* What all ranks do under one name, but communicating. */
struct job_work {
    uint64_t key;                   /* of the name */
    char name[WORK_NAME_BYTES + 1]; /* cut where it is longer */
    double times, ns;               /* of the mean rank in an iteration */
};
typedef ARRAY(struct job_work) job_works;

/* Those that take longest first. */
void job_works_find(job_works *works, const struct dpro_graph *graph);

/* The gradients of the first rank that says; 0: none does. */
uint64_t gradients_of(const struct dpro_graph *graph);

#define LEAST_COMMON 0.5 /* of what one of two jobs computes: they are the same */

struct saved_work {
    uint32_t op; /* string id */
    double times;
    int64_t ns;
};

struct dpro_saved_diagnosis {
    struct strtab strings;
    char *path;
    uint32_t schema, version, framework;
    int64_t iteration_ns, ideal_ns;
    int64_t world_size, gradient_bytes;
    ARRAY(int64_t) measured_ns; /* of each iteration */
    ARRAY(struct baseline_cause) causes;
    ARRAY(struct saved_work) works;
};

/* The cause's; NULL: it was none. */
const struct baseline_cause *baseline_cause(const struct dpro_saved_diagnosis *baseline,
                                            const char *key);
