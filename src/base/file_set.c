/* base/file_set.c: writes several files, all or none. */
#include "base/file_set.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/folder.h"

enum { MOST_FILES = 12 };

static int write_all(const char *folder, const struct set_file *files, size_t n,
                     struct dpro_error *err)
{
    struct writer writers[MOST_FILES] = {0};
    int rc = 0;
    for (size_t i = 0; i < n && rc == 0; i++) {
        char *path;
        if (asprintf(&path, "%s/%s", folder, files[i].name) < 0) {
            rc = dpro_error_nomem(err);
            break;
        }
        rc = writer_init_path(&writers[i], path, files[i].gzip, err);
        free(path);
        if (rc < 0)
            break;
        files[i].write(&writers[i], files[i].arg);
        rc = writer_finish(&writers[i], err);
    }
    for (size_t i = 0; i < n && rc == 0; i++)
        rc = writer_commit(&writers[i], err);
    for (size_t i = 0; i < n; i++)
        writer_fini(&writers[i]);
    return rc;
}

int file_set_write(const char *folder, const char *what, const struct set_file *files, size_t n,
                   struct dpro_error *err)
{
    size_t first_made;
    if (folder[0] == '\0')
        return dpro_error_set(err, DPRO_EUSAGE, "the %s's folder has an empty name", what);
    char *path = strdup(folder);
    if (!path)
        return dpro_error_nomem(err);
    int rc = folder_make(path, &first_made, err);
    if (rc == 0)
        rc = write_all(path, files, n, err);
    if (rc < 0)
        folder_take_back(path, first_made);
    free(path);
    return rc;
}
