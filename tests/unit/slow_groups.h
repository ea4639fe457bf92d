/* The obvious simulation of ranks that communicate in groups, to compare the fast one with. */
#pragma once

#include "cost/program/model.h"

/* The time between the ends of the last two of `n` iterations of the model's programs; -1: they
 * never end. Without gradients. */
double slow_groups_period(const struct dpro_model *model, uint32_t n);
