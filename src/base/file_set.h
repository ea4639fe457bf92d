/* base/file_set.h: several files of one result. All are written beside their places first and
 * renamed when all are whole. */
#ifndef BASE_FILE_SET_H
#define BASE_FILE_SET_H

#include <stdbool.h>

#include "base/writer.h"

struct set_file {
    const char *name;
    bool gzip;
    void (*write)(struct writer *writer, const void *arg);
    const void *arg;
};

/* The folder is made when missing; `what` is for the message when its name is empty. */
int file_set_write(const char *folder, const char *what, const struct set_file *files, size_t n,
                   struct dpro_error *err);

#endif
