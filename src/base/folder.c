/* Makes folders, and takes them back. */
#include "base/folder.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

int folder_make(char *path, size_t *first_made, struct dpro_error *err)
{
    size_t len = strlen(path);
    *first_made = 0;
    for (size_t i = 1; i <= len; i++) {
        if (path[i] != '/' && path[i] != '\0')
            continue;
        char kept = path[i];
        path[i] = '\0';
        int rc = 0, failed = mkdir(path, 0777) == 0 ? 0 : errno;
        struct stat info;
        if (!failed && *first_made == 0)
            *first_made = i;
        /* an existing folder may answer with other errors than EEXIST (read-only file system) */
        if (failed && stat(path, &info) == 0)
            failed = S_ISDIR(info.st_mode) ? 0 : ENOTDIR;
        if (failed)
            rc = dpro_error_set(err, DPRO_EIO, "%s: the folder can't be made: %s; name another one",
                                path, strerror(failed));
        path[i] = kept;
        if (rc < 0)
            return rc;
    }
    return 0;
}

void folder_take_back(char *path, size_t first_made)
{
    for (size_t i = strlen(path); first_made > 0 && i >= first_made; i--) {
        if (path[i] != '/' && path[i] != '\0')
            continue;
        path[i] = '\0';
        rmdir(path);
    }
}
