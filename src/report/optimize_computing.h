/* The modules that a search compiles or computes in 16 bits, as text and as JSON. */
#pragma once

#include <dpro/report.h>

#include "base/writer.h"
#include "report/words.h"

/* A paragraph: what is changed, what that brings and costs; or why nothing is. Nothing where
 * nothing was allowed. */
void optimize_computing_text(struct writer *writer, const struct dpro_optimize_report *report,
                             bool helps);
/* ", compiling the model, 4 modules in 16 bits"; nothing where all are as they are. */
void optimize_computing_words(struct words *words, const struct dpro_optimum *optimum,
                              enum dpro_which which);
/* Members "compile", "bf16" of an object: the names of the best strategy's modules. */
void optimize_computing_best(struct writer *writer, const struct dpro_optimum *optimum);
/* The key "computing"; null where nothing was allowed. */
void optimize_computing_json(struct writer *writer, const struct dpro_optimize_report *report);
/* Whether the best strategy computes any module otherwise than it is: with any of these bits. */
bool optimize_computing_is_changed(const struct dpro_optimum *optimum, unsigned bits);
/* A warning: what that does to numbers; "": nothing. */
const char *optimize_computing_warning(const struct dpro_optimum *optimum);
