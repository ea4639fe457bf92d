/* The modules that a user names, by words, names, patterns or a file. */
#pragma once

#include "cost/change/change.h"

/* Which of a plan's lists. */
enum module_list { MODULES_RECOMPUTED, MODULES_COMPILED, MODULES_IN_BF16 };

/* Marks the modules that `text` names, as `recompute` in struct dpro_changes does. Fails with
 * DPRO_EUSAGE when the model has no such module, or none at all. */
void modules_choose(const struct dpro_model *model, const char *text, bool *chosen,
                    enum module_list of_plan);
