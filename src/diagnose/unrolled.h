/* The replayed iterations as a list of *cells*, in an order in which each comes after all that it
 * waits for: v(S) is one pass over them.
 *
 * A cell is an op in an iteration, with the gap before it; a gap that passes before its device is
 * free, or after which an iteration begins, is a cell of its own. A cell waits for what the op
 * waited for in the replay: its predecessors, but those that a free thread of its pool made
 * needless, and what its device ran before. So the order of ops, the threads they run on and how
 * connections share a link stay as they were, and the pass with all causes is the replay.
 *
 * Causes are taken away in the iterations that count only. What led up to them is as it was, so
 * that the end of the last one tells, and no time can be negative. */
#pragma once

#include "diagnose/pieces.h"

struct taken { /* time of a cell that a cause takes away */
    uint32_t cell, part;
    int64_t ns;   /* more than any cell has: an edge that it cuts */
    int64_t path; /* the same, but of an edge: by how much it was late */
};
typedef ARRAY(struct taken) taken_array;

struct unrolled {
    uint32_t n_cells, n_fixed; /* the first n_fixed are known: their time is their end */
    uint32_t *row, *wait;      /* cell i waits for wait[row[i] .. row[i + 1]) */
    int64_t *own_ns;           /* by cell, all causes there */
    uint32_t *op;              /* by cell; DPRO_NO_OP: none */
    uint32_t *iteration;       /* by cell */
    uint32_t n_iterations, n_ends;
    uint32_t *end; /* [iteration * n_ends + i]: cells with whose ends iterations end: a rank's */
    int64_t *begin_ns; /* [n_ends]: where the first iteration begins */
    uint32_t n_causes;
    taken_array *taken; /* by cause */
    uint32_t *take_row; /* the same by cell: takes[take_row[i] .. take_row[i + 1]) */
    struct take {
        uint32_t cause, part;
        int64_t ns, path;
    } * takes;
    uint8_t *players[32]; /* by cause and part: the number of those parts that go together; below
                             32; NULL: they are not told apart */
};

/* `found`: of each row, with its pieces cut to what was left. */
void unrolled_make(struct unrolled *unrolled, const struct chain *chain, const struct diagnosed *d,
                   const struct cause_found *found, uint32_t n_found);
void unrolled_fini(struct unrolled *unrolled);

/* Causes that are there; of `partly`, only those parts whose players are. */
struct cause_set {
    uint32_t causes, partly, players;
};
#define NOT_PARTLY UINT32_MAX
#define WHOLE(of)  ((struct cause_set){(of), NOT_PARTLY, 0})

/* Passes run several at once, as each waits for memory most of the time. */
enum { N_AT_ONCE = 4 };
struct cell_times {
    double ns[N_AT_ONCE];
};

/* The times of the iterations, [set * n_iterations + iteration], with each of 1 to N_AT_ONCE sets
 * of causes there. `cells`: room for n_cells. */
void unrolled_passes(const struct unrolled *unrolled, const struct cause_set *sets, size_t n_sets,
                     struct cell_times *cells, double *iterations_ns);

/* By path integral, of each cell how much the mean iteration takes, mean over the way on which some
 * causes shrink together from their whole time to nothing, where others are gone; to be freed. */
struct cause_way {
    uint32_t shrinking, gone;
};
double *unrolled_weights(const struct unrolled *unrolled, struct cause_way way);
