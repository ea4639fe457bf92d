/* report/files.h: several files of one result. All are written beside their places first and
 * renamed when all are whole. */
#ifndef REPORT_FILES_H
#define REPORT_FILES_H

#include <stdbool.h>

#include "base/writer.h"

struct report_file {
    const char *name;
    bool gzip;
    int (*write)(struct writer *writer, void *arg, struct dpro_error *err);
};

/* The folder is made when missing; `what` is for the message when its name is empty. */
int files_write(const char *folder, const char *what, const struct report_file *files, int n,
                void *arg, struct dpro_error *err);

#endif
