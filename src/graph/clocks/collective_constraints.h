/* Constraints between clocks from collectives. */
#pragma once

#include "align/transport_constraints.h"
#include "graph/collectives/match_collectives.h"

/* No rank leaves a collective before the last one entered. */
void constraints_visit_collectives(const struct join *join, const clock_nodes *nodes,
                                   const struct constraint_visitor *visitor);

/* "all_reduce number 3 of iteration 7" */
void collective_constraint_describe(const struct join *join, uint64_t mark, char *out, size_t size);
