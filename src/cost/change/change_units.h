/* FSDP's units that free their gathered parameters after the forward pass, keep them for the
 * backward pass, or ask for them ahead, other than recorded. */
#pragma once

#include "cost/change/change.h"
#include "cost/change/program_edit.h"

struct unit_change {
    struct dpro_unit *units; /* if resharding was asked for */
    uint32_t n_units, n_resharded;
    uint32_t n_moved;  /* all-gathers of a rank that are asked for elsewhere */
    uint32_t n_in_row; /* units that come one after the other */
    struct program_edit *edits;
    uint32_t *behind; /* of a move: GATHER() of the unit that asks */
    uint32_t n_edits;
};

struct unit_time {
    uint32_t unit;
    int64_t first_ns; /* when the first rank gathers it for its forward pass; INT64_MAX: none */
};
/* All units, in the order of their forward passes. */
const struct unit_time *units_in_order(const struct dpro_graph *graph, struct arena *arena);
bool asks_for_units(const struct dpro_changes *changes);
/* What is to be done for --reshard and --prefetch. Fails with DPRO_EUSAGE when the job has no such
 * units, or nothing tells when they gather. */
void units_ask(const struct dpro_graph *graph, const struct dpro_changes *changes,
               struct arena *arena, struct unit_change *change);
/* What the changes ask for of a strategy. */
void units_note(const struct unit_change *change, uint32_t prefetch, struct arena *arena,
                struct dpro_strategy *strategy);
/* Whether a unit frees its parameters after its forward pass, with the changes. */
bool units_free(const struct unit_change *change, const struct dpro_graph *graph, uint32_t unit);
/* Of a model that was learnt of `timed`, the programs; `work`: as in program_edit(). */
void units_change_programs(const struct unit_change *change, const struct dpro_graph *timed,
                           const struct op_work *work, struct arena *arena,
                           struct dpro_model *model);
/* By op, whether it gathers what is gathered no more. */
const bool *units_gone(const struct unit_change *change, const struct dpro_graph *graph,
                       struct arena *arena);
/* Its memories, which are those of `graph` and can be written to. */
void units_change_memory(const struct unit_change *change, const struct dpro_graph *graph,
                         struct arena *arena, struct dpro_model *model);
