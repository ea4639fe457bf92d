/* report/contradiction.h: which part of the graph makes the replay contradict the measurement. */
#ifndef REPORT_CONTRADICTION_H
#define REPORT_CONTRADICTION_H

#include "report/facts.h"

/* Fills facts->contradicts, known_to_ns, parts and contradiction; what they rest on is there. */
int contradiction_find(struct report_facts *facts, struct dpro_error *err);

/* What a rank does in it, "collectives"; static. */
const char *contradiction_part(const struct part_fact *part);

#endif
