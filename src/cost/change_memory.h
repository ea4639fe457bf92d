/* What-ifs of memory: recomputation, micro-batches, the batch size, gradients as views of
 * buckets. */
#pragma once

#include "cost/change.h"

int change_memory(const struct dpro_changes *changes, struct dpro_model *model, struct notes *notes,
                  struct dpro_error *err);
