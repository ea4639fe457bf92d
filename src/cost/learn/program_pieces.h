/* Which ops of the graph the work of a program's ops is of. A model is learnt once; what changes
 * the job's ops changes its programs through these. */
#pragma once

#include "cost/program/cost.h"

struct program_piece {
    uint32_t at;   /* op of the program */
    uint32_t op;   /* of the graph */
    bool before;   /* of the iteration before: the program begins behind its last wait */
    double ns;     /* of the program's op's work, */
    double gap_ns; /* the part of that in which nothing runs before the op */
};

struct program_pieces {
    struct program_piece *all; /* in the order in which the program does them */
    uint32_t n;
};

/* Of a rank's program as it was learnt of `timed`, a graph of the ops that were recorded. In the
 * arena. */
struct program_pieces program_pieces_of(const struct measured_replay *recorded,
                                        const struct dpro_graph *timed,
                                        const struct dpro_model *model, uint32_t rank,
                                        struct arena *arena);
