/* cost/numbers.h: which numbers of a net are learnt, each with its standard error; they are
 * independent. */
#ifndef COST_NUMBERS_H
#define COST_NUMBERS_H

#include <stddef.h>

#include "cost/model.h"

enum { N_MODEL_NUMBERS = 16 };
extern const size_t model_numbers[N_MODEL_NUMBERS];

static inline struct dpro_estimate *model_number(struct model_net *net, size_t which)
{
    return (struct dpro_estimate *)(void *)((char *)net + model_numbers[which]);
}

#endif
