/* Edits of all ranks' programs: communications, with the work that belongs to them, are left out,
 * done once more or done elsewhere. */
#pragma once

#include "cost/change/op_work.h"
#include "cost/program/cost.h"

enum program_edit_kind { EDIT_REMOVES, EDIT_REPEATS, EDIT_MOVES };

struct program_edit {
    enum program_edit_kind kind;
    uint32_t gather;       /* GATHER() of what it is of */
    const bool *leaves;    /* by op of the graph: it stays, though it is of that; NULL: none does */
    const uint32_t *after; /* by rank, the op of the graph behind which it is repeated, or goes */
};

/* Of edits behind one op the first one's comes first. `work`: what ops take; NULL: what they do in
 * `timed`. What the programs and communications become is in `arena`. */
void program_edit(const struct measured_replay *recorded, const struct dpro_graph *timed,
                  const struct program_edit *edits, uint32_t n, const struct op_work *work,
                  struct arena *arena, struct dpro_model *model);
