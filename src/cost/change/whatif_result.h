/* The result of a what-if. */
#pragma once

#include <dpro/whatif.h>

#include "cost/change/change_programs.h"
#include "cost/program/model.h"

/* What the threads that launch a GPU's work would take for an iteration if nothing but them took
 * time; 0: no rank has any. */
int launching_alone(const struct dpro_graph *graph, int64_t *alone_ns, struct dpro_error *err);

struct dpro_whatif {
    struct arena arena;
    struct dpro_model model; /* changed */
    struct program_change programs;
    struct dpro_whatif_answer answer;
    struct dpro_question *questions; /* the answer's */
    struct notes notes;
};
