/* report/report_facts.c: all facts of a report together. */

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
