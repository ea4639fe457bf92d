/* report/folder.c: the report as files. All are written beside their places first and renamed when
 * all are whole. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/folder.h"
#include "report/facts.h"

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
        rc = folder_make(path, &first_made, err);
        if (rc == 0)
            rc = write_files(&facts, path, err);
        if (rc < 0)
            folder_take_back(path, first_made);
        facts_fini(&facts);
    }
    free(path);
    return rc;
}
