/* report/folder.c: the report as files. All are written beside their places first and renamed when
 * all are whole. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "report/facts.h"

/* Like mkdir -p. `*first_made` is the length of the outermost folder that had to be made, 0: none.
 */
static int make_folders(char *path, size_t *first_made, struct dpro_error *err)
{
    size_t len = strlen(path);
    *first_made = 0;
    for (size_t i = 1; i <= len; i++) {
        if (path[i] != '/' && path[i] != '\0')
            continue;
        char kept = path[i];
        path[i] = '\0';
        int failed = mkdir(path, 0777) == 0 ? 0 : errno;
        struct stat info;
        if (!failed && *first_made == 0)
            *first_made = i;
        /* an existing folder may answer with other errors than EEXIST (read-only file system) */
        if (failed && stat(path, &info) == 0) {
            if (S_ISDIR(info.st_mode))
                failed = 0;
            else
                failed = ENOTDIR;
        }
        if (failed)
            dpro_error_set(err, DPRO_EIO, "%s: the folder can't be made: %s", path,
                           strerror(failed));
        path[i] = kept;
        if (failed)
            return DPRO_EIO;
    }
    return 0;
}

/* Takes back what make_folders made; folders that have come to hold something stay. */
static void remove_folders(char *path, size_t first_made)
{
    for (size_t i = strlen(path); first_made > 0 && i >= first_made; i--) {
        if (path[i] != '/' && path[i] != '\0')
            continue;
        path[i] = '\0';
        rmdir(path);
    }
}

enum { TIMELINE, PAGE, FACTS, N_FILES };

static int write_files(struct report_facts *facts, const char *folder, struct dpro_error *err)
{
    static const char *const names[N_FILES] = {"timeline.json.gz", "report.html", "replay.json"};
    struct writer files[N_FILES] = {0};
    struct slices slices;
    int rc = slices_init(&slices, facts->report->graph, facts->report->replay, err);
    if (rc < 0)
        return rc;
    for (int i = 0; i < N_FILES && rc == 0; i++) {
        char *path;
        if (asprintf(&path, "%s/%s", folder, names[i]) < 0) {
            rc = dpro_error_nomem(err);
            break;
        }
        rc = writer_init_path(&files[i], path, i == TIMELINE, err);
        free(path);
        if (rc < 0)
            break;
        if (i == TIMELINE)
            timeline_write(&files[i], facts, &slices);
        else if (i == PAGE)
            rc = html_write(&files[i], facts, &slices, err);
        else
            json_write_report(&files[i], facts, true);
        if (i == FACTS)
            writer_text(&files[i], "\n");
        if (rc == 0)
            rc = writer_finish(&files[i], err);
    }
    for (int i = 0; i < N_FILES && rc == 0; i++)
        rc = writer_commit(&files[i], err);
    for (int i = 0; i < N_FILES; i++)
        writer_fini(&files[i]);
    slices_fini(&slices);
    return rc;
}

int dpro_report_folder(const struct dpro_report *report, const char *folder, struct dpro_error *err)
{
    struct report_facts facts;
    size_t first_made;
    if (folder[0] == '\0')
        return dpro_error_set(err, DPRO_EUSAGE, "the report's folder has an empty name");
    char *path = strdup(folder);
    if (!path)
        return dpro_error_nomem(err);
    int rc = facts_init(&facts, report, err);
    if (rc == 0) {
        rc = make_folders(path, &first_made, err);
        if (rc == 0)
            rc = write_files(&facts, path, err);
        if (rc < 0)
            remove_folders(path, first_made);
        facts_fini(&facts);
    }
    free(path);
    return rc;
}
