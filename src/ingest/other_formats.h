/* Formats that dpro knows by sight only, and does not read. */
#pragma once

#include "ingest/reader.h"

/* What a piece of a file's head, or its name, says that the file is: "a Python pickle". Static
 * text; NULL: nothing. */
const char *other_format(const struct head *head);
const char *other_format_by_name(const char *path);
