/* What an op computes, by the shapes of its inputs. */
#pragma once

#include "base/json.h"
#include "ingest/trace.h"

enum { MOST_INPUTS = 12, MOST_DIMS = 6 };
/* Of "Input Dims" (a list with one entry an input: [2, 3] for a tensor, [[2], [3]] for a list of
 * tensors, [] for a tensor without dimensions and for what is no tensor), or of the numbers in
 * "Concrete Inputs", where True is 1 and False 0. */
struct op_shapes {
    uint8_t n[MOST_INPUTS];
    int64_t at[MOST_INPUTS][MOST_DIMS];
    uint64_t numel; /* of the first tensor, or list of tensors; 0: there is none */
    bool blank;     /* the first entry is [] */
};

/* Whether op_arithmetic() has a formula for ops of that name. */
bool op_is_counted(const char *name, size_t len);
/* Takes the next value; what is too much or no number is left out. False: it was too long. */
bool op_shapes_read(struct op_shapes *shapes, struct json *js);
/* `values`: the inputs that are no tensors. Leaves `work` as it is where nothing is counted. */
void op_arithmetic(const char *name, size_t len, const struct op_shapes *inputs,
                   const struct op_shapes *values, uint64_t item_bytes, struct arithmetic *work);
