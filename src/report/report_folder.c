/* report/report_folder.c: the replay's report as files. */
#include "base/writer.h"
#include "report/report_facts.h"

int dpro_report_folder(const struct dpro_report *report, const char *folder, struct dpro_error *err)
{
    struct drawn_facts drawn;
    const struct set_file files[] = {{"timeline.json.gz", true, timeline_write, &drawn},
                                     {"report.html", false, html_write, &drawn},
                                     {"replay.json", false, json_write, &drawn.facts}};
    int rc = facts_init(&drawn.facts, report, err);
    if (rc < 0)
        return rc;
    rc = slices_init(&drawn.slices, report->graph, report->replay, err);
    if (rc == 0) {
        rc = file_set_write(folder, "report", files, sizeof files / sizeof *files, err);
        slices_fini(&drawn.slices);
    }
    facts_fini(&drawn.facts);
    return rc;
}
