/* A model, and a strategy in it, as text and as JSON. */
#pragma once

#include <dpro/model.h>

#include "base/writer.h"
#include "report/words.h"

/* "2 buckets (19.1, 10.4 MB)", "12 buckets of 1.1 to 8.4 MB, fp16"; returns out. */
#define STRATEGY_TEXT             200
#define STRATEGY(model, strategy) model_strategy_text((char[STRATEGY_TEXT]){""}, model, strategy)
const char *model_strategy_text(char out[STRATEGY_TEXT], const struct dpro_model *model,
                                const struct dpro_strategy *strategy);
/* The job's time without dpro: the key "job", null where it is not known, and
 * "616.3 ms +- 4.2 % without dpro, by 24 steps without the profiler". */
void job_write_json(struct writer *writer, const struct dpro_job_time *job);
void job_words(struct words *words, const struct dpro_job_time *job);
/* The keys "unprofiled_ms" (null: not known) and "misfit_pct". */
void model_write_pace(struct writer *writer, const struct dpro_model *model);
/* What the prediction rests on, a paragraph. */
void model_write_text(struct writer *writer, const struct dpro_model *model);

/* JSON values. */
void model_write_strategy(struct writer *writer, const struct dpro_model *model,
                          const struct dpro_strategy *strategy);
/* The key "communications": what there is beside gradients; none if there is nothing. */
void model_write_communications(struct writer *writer, const struct dpro_model *model);
/* The keys of what an iteration holds at most, before and after a change. */
void model_write_peaks(struct writer *writer, const struct dpro_memory_peak *before,
                       const struct dpro_memory_peak *after);
void model_write_categories(struct writer *writer, const char *key,
                            const struct dpro_memory_peak *peak);
/* Names of the modules that are computed in one of these ways; 0: recomputed. */
void model_write_modules(struct writer *writer, const char *key, const struct dpro_model *model,
                         const struct dpro_strategy *strategy, unsigned ways);
/* The key "link"; null where nothing is communicated. */
void model_write_link(struct writer *writer, const struct dpro_model *model);
