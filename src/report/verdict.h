/* What the lines of the verdict share. */
#pragma once

#include "report/facts.h"
#include "report/words.h"

/* Appends to the line; what does not fit is cut. */
void line_say(struct verdict_line *line, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Which ranks are late, where none is in most iterations: "rank 3 5x, rank 0 4x". */
void line_late_ranks(const struct report_facts *facts, struct verdict_line *line);
/* "rank 3", "ranks 3, 1 and 2 others". */
void line_stragglers(const struct report_facts *facts, struct verdict_line *line);

/* Percent with the digits a reader needs. */
#define PCT(value) verdict_pct((char[NUMBER_TEXT]){""}, value)
const char *verdict_pct(char out[NUMBER_TEXT], double value);
/* What CPU calls of the GPU's runtime are for, from `first` on, that take longest. */
int verdict_longest_calls(const struct report_facts *facts, int first);
/* Some are late, none is a straggler, they wait for each other for a share that matters, and not
 * nearly always for the same one. */
bool verdict_late_rank_changes(const struct report_facts *facts);
/* ", mostly": of the waiting, for stragglers; "". */
const char *verdict_mostly(const struct report_facts *facts);

/* ---- next_step.c ---- */

void verdict_next_step(const struct report_facts *facts, struct verdict_line *line);
