/* Arithmetic that an op does. */
#pragma once

#include "base/base.h"

/* Of ops that do nearly all of it, and of what size numbers are. */
enum op_family { FAMILY_MATMUL, FAMILY_CONVOLUTION, FAMILY_ATTENTION, N_FAMILIES };
enum op_precision { PRECISION_64, PRECISION_32, PRECISION_16, PRECISION_8, N_PRECISIONS };
struct arithmetic {
    double flops; /* 0: none; below 0: not known, as the profile lacks its strides */
    double bytes; /* that it reads and writes at least */
    uint8_t family, precision;
};
