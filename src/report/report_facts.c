/* Gathers all facts of a report. */
#include "report/verdict.h"

void facts_init(struct report_facts *facts, const struct dpro_report *report)
{
    facts_sum(facts, report);
    slow_find(facts);
    memory_find(facts);
    verdict_write(facts);
    verdict_next_step(facts, &facts->verdict[N_VERDICT - 1]);
}

void facts_fini(struct report_facts *facts)
{
    arena_fini(&facts->arena);
}

int facts_write(const struct dpro_report *report, FILE *out,
                void (*write)(struct writer *, const void *), struct dpro_error *err)
{
    struct report_facts facts;
    facts_init(&facts, report);
    int rc = writer_write_file(out, write, &facts, err);
    facts_fini(&facts);
    return rc;
}
