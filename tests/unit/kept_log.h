/* What dpro logged, and real traces that may be there. */
#pragma once

#include <stdbool.h>

#include <dpro/log.h>

extern char logged[4096]; /* a line each */
void keep_log(void *arg, enum dpro_log_level level, const char *text);

/* Makes the path of a folder or file of real traces; false, with a message: it is not here. */
bool capture_path(char path[512], const char *name);
