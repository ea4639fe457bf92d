/* report/report_facts.c: all facts of a report together, and the files that are made from them. */

#include "base/writer.h"
#include "report/facts.h"

int facts_init(struct report_facts *facts, const struct dpro_report *report, struct dpro_error *err)
{
    int rc = facts_sum(facts, report, err);
    if (rc == 0)
        rc = contradiction_find(facts, err);
    if (rc == 0)
        verdict_write(facts);
    else
        facts_fini(facts);
    return rc;
}

void facts_fini(struct report_facts *facts)
{
    arena_fini(&facts->arena);
}

int facts_write(const struct dpro_report *report, FILE *out,
                void (*write)(struct writer *, const void *), struct dpro_error *err)
{
    struct report_facts facts;
    int rc = facts_init(&facts, report, err);
    if (rc < 0)
        return rc;
    rc = writer_write_file(out, write, &facts, err);
    facts_fini(&facts);
    return rc;
}

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
