/* Making folders, and taking back those that turned out not to be needed. */
#pragma once

#include "base/base.h"

#include <dpro/error.h>

/* Like mkdir -p; `path` is written to and comes back as it was. `*first_made` is the length of the
 * outermost folder that had to be made, 0: none; it is set on failure, too. */
int folder_make(char *path, size_t *first_made, struct dpro_error *err);

/* Takes back what folder_make made; folders that have come to hold something stay. `path` is cut
 * short on the way. */
void folder_take_back(char *path, size_t first_made);
