/* Why one trace of a job is slower than another, for all who say so. */
#pragma once

#include <dpro/report.h>

#include "base/writer.h"
#include "diagnose/measures.h"

/* Iterations of both on a common basis. */
struct against_facts {
    bool unprofiled;                /* steps without a profiler, of both */
    double mean_ns[2], error_ns[2]; /* standard error; NAN: of one iteration there is none */
    double less_pct, half_pct;      /* how much less B takes than A; half of its 95 % interval */
    double p; /* the chance of such a difference where there is none; NAN: not known */
};
void against_find_facts(struct against_facts *facts, const struct dpro_graph *a,
                        const struct dpro_graph *b);
/* The sentence on them. */
void against_write_verdict(struct writer *writer, const struct against_facts *facts);

/* What differs, and the causes; as the members of an object. */
void against_write_text(struct writer *writer, const struct dpro_against_report *report);
void against_write_json(struct writer *writer, const struct dpro_against_report *report);

/* The field's own measures of the job, and those of stragglers. */
void measures_write_text(struct writer *writer, const struct dpro_measures *measures);
/* "measures": {...}; of a stage timeline with those of stragglers. */
void measures_write_json(struct writer *writer, const struct dpro_measures *measures,
                         const struct dpro_trace *trace);

/* The measures of stragglers, of a trace that is a stage timeline; of another one nothing. As JSON
 * fields of the object "measures". */
void straggler_write_text(struct writer *writer, const struct dpro_trace *trace);
void straggler_write_json(struct writer *writer, const struct dpro_trace *trace);

/* An item of a list of JSON. `graph` is that of its evidence. */
void diagnosis_write_cause(struct writer *writer, const struct dpro_graph *graph,
                           const struct dpro_cause *cause);
