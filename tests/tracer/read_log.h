/* A log file as the tests look at it. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "record.h"

struct log_file {
    char *bytes;
    size_t n_bytes;
    const struct log_header *header;
    size_t at;
};

/* False when there is no such file, or it does not begin as a log does. */
bool log_file_open(struct log_file *file, const char *path);
/* The next record; NULL at the end, or where a record does not fit in what is left. */
const struct record *log_file_next(struct log_file *file);
/* True when the last record ended where the file does. */
bool log_file_whole(const struct log_file *file);
void log_file_close(struct log_file *file);
