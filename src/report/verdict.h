/* What the lines of the verdict share. */
#pragma once

#include "report/facts.h"
#include "report/words.h"

/* Appends to the line; what does not fit is cut. */
void line_say(struct verdict_line *line, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Percent with the digits a reader needs. */
#define PCT(value) verdict_pct((char[NUMBER_TEXT]){""}, value)
const char *verdict_pct(char out[NUMBER_TEXT], double value);

/* ---- next_step.c ---- */

void verdict_next_step(const struct report_facts *facts, struct verdict_line *line);
