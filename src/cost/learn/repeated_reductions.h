/* Gradients that each micro-batch of an iteration reduces. */
#pragma once

#include "cost/program/model.h"

/* Of a job that accumulates gradients without no_sync(): each micro-batch reduces all of them, and
 * no bucket can hold those of two. */
void refuse_micro_batches(const struct dpro_model *model);
