/* The result of a what-if. */
#pragma once

#include <dpro/whatif.h>

#include "cost/change/change_programs.h"
#include "cost/program/model.h"

struct dpro_whatif {
    struct arena arena;
    struct dpro_model model; /* changed */
    struct program_change programs;
    struct dpro_whatif_answer answer;
    struct dpro_question *questions; /* the answer's */
    struct notes notes;
};
