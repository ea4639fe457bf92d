/* What-ifs of how modules are computed: compiled, in 16 bits. */
#pragma once

#include "cost/change.h"

int change_computing(const struct dpro_changes *changes, struct dpro_model *model,
                     struct notes *notes, struct dpro_error *err);
