/* What a search did for memory, as text and as JSON. */
#pragma once

#include <dpro/report.h>

#include "base/writer.h"
#include "report/words.h"

/* A paragraph. If a budget made the search change the job, or nothing fits, it is the verdict;
 * `time` is the text of what it costs. */
void optimize_memory_text(struct writer *writer, const struct dpro_optimize_report *report,
                          const char *time);
/* What was tried; nothing where nothing had to be. */
void optimize_memory_table(struct writer *writer, const struct dpro_optimize_report *report);
/* The key "memory"; null where nothing is known. */
void optimize_memory_json(struct writer *writer, const struct dpro_optimize_report *report);
/* ", recomputing 4 modules, in 2 micro-batches"; nothing where it does neither. */
void optimize_memory_words(struct words *words, const struct dpro_optimum *optimum,
                           enum dpro_which which);
/* A warning: how sure the peak is; "": there is none. */
const char *optimize_memory_warning(char out[224], const struct dpro_optimize_report *report);
