/* report/folder.c: the replay's report as files. */
#include "report/facts.h"
#include "report/files.h"

struct parts {
    struct report_facts facts;
    struct slices slices;
};

static int write_timeline(struct writer *w, void *arg, struct dpro_error *err)
{
    struct parts *parts = arg;
    (void)err;
    timeline_write(w, &parts->facts, &parts->slices);
    return 0;
}

static int write_page(struct writer *w, void *arg, struct dpro_error *err)
{
    struct parts *parts = arg;
    return html_write(w, &parts->facts, &parts->slices, err);
}

static int write_facts(struct writer *w, void *arg, struct dpro_error *err)
{
    struct parts *parts = arg;
    (void)err;
    json_write_report(w, &parts->facts, true);
    writer_text(w, "\n");
    return 0;
}

int dpro_report_folder(const struct dpro_report *report, const char *folder, struct dpro_error *err)
{
    static const struct report_file files[] = {{"timeline.json.gz", true, write_timeline},
                                               {"report.html", false, write_page},
                                               {"replay.json", false, write_facts}};
    struct parts parts;
    int rc = facts_init(&parts.facts, report, err);
    if (rc < 0)
        return rc;
    rc = slices_init(&parts.slices, report->graph, report->replay, err);
    if (rc == 0) {
        rc = files_write(folder, "report", files, sizeof files / sizeof *files, &parts, err);
        slices_fini(&parts.slices);
    }
    facts_fini(&parts.facts);
    return rc;
}
