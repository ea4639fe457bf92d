/* Ops of graphs that tests make, as the public interface says them. */
#pragma once

#include "graph/builder.h"

/* What time of such an op counts as. */
static inline enum dpro_op_kind phase_of_kind(enum dpro_op_kind kind)
{
    bool communicates = kind >= DPRO_OP_SEND && kind <= DPRO_OP_REDUCE;
    return kind <= DPRO_OP_INPUT                        ? kind
           : communicates || kind == DPRO_OP_COLLECTIVE ? DPRO_OP_COLLECTIVE
                                                        : DPRO_OP_BARRIER;
}

static inline dpro_op_id add_op(struct graph_builder *b, const struct dpro_op *op, uint8_t flags)
{
    struct graph_op row = {.kind = (uint8_t)op->kind,
                           .phase = (uint8_t)phase_of_kind(op->kind),
                           .flags = flags,
                           .device = op->device,
                           .name = strtab_format(graph_builder_names(b), "%s", op->name ?: ""),
                           .tensor = strtab_format(graph_builder_names(b), "%s", op->tensor ?: ""),
                           .dur_ns = op->dur_ns,
                           .gap_ns = op->gap_ns,
                           .seen_start_ns = op->seen_start_ns,
                           .seen_dur_ns = op->seen_dur_ns,
                           .size_bytes = op->size_bytes,
                           .transaction = op->transaction};
    return graph_builder_add(b, op->rank, &row);
}
