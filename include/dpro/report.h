/* Results as text, JSON, a Perfetto timeline and a self-contained HTML page. */
#ifndef DPRO_REPORT_H
#define DPRO_REPORT_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <dpro/diagnose.h>
#include <dpro/graph.h>
#include <dpro/optimize.h>
#include <dpro/replay.h>
#include <dpro/trace.h>
#include <dpro/whatif.h>

#ifdef __cplusplus
extern "C" {
#endif

struct dpro_diagnose_report;

/* What a replay report is made of; everything is borrowed. */
struct dpro_report {
    const struct dpro_trace *trace;
    const struct dpro_graph *graph;
    const struct dpro_replay *replay;
    const struct dpro_validation *validation;
    const struct dpro_daydream *daydream; /* NULL: the trace has no communication */
    uint32_t n_samples; /* drawn iterations that the percentiles are over; 0: the replayed ones */
    int64_t profiler_op_ns; /* what recording an op cost; 0: not known, or left in */
    int64_t profiler_ns;    /* its share of an iteration, which was subtracted */
    int what_if;         /* 1: delays were applied, so predicted and measured can't be compared */
    int64_t as_it_is_ns; /* of a what-if: the replay without delays; else the replay counts */
    const struct dpro_diagnose_report *diagnosis; /* for the folder; NULL: none */
    struct dpro_sink sink;                        /* progress of writing a folder */
};

/* All write the whole report or fail with DPRO_EIO; files are written beside their place and
 * renamed, so that a full disk or a broken run never leaves half a file. */
DPRO_API int dpro_report_text(const struct dpro_report *report, FILE *out, struct dpro_error *err);
DPRO_API int dpro_report_json(const struct dpro_report *report, FILE *out,
                              struct dpro_error *err); /* dpro.replay/1 */
/* Writes timeline.json.gz, report.html and replay.json into `folder`, made when missing; of a
 * diagnosis diagnose.json, too, and report.html opens on it. */
DPRO_API int dpro_report_folder(const struct dpro_report *report, const char *folder,
                                struct dpro_error *err);

/* The clocks of a graph: a table, and the warnings; dpro.align/1; the manifest with which
 * Perfetto's trace merge puts the profiles onto the common axis (paths in it are relative to the
 * folder that all are in). */
DPRO_API int dpro_align_text(const struct dpro_trace *trace, const struct dpro_graph *graph,
                             FILE *out, struct dpro_error *err);
DPRO_API int dpro_align_json(const struct dpro_trace *trace, const struct dpro_graph *graph,
                             FILE *out, struct dpro_error *err);
DPRO_API int dpro_align_manifest(const struct dpro_trace *trace, const struct dpro_graph *graph,
                                 const char *path, struct dpro_error *err);

/* The timeline, measured and replayed, with aligned clocks, arrows and memory, in Perfetto's own
 * format; gzip-compressed where the path ends in .gz. */
DPRO_API int dpro_report_perfetto(const struct dpro_report *report, const char *path,
                                  struct dpro_error *err);

/* What a what-if's report is made of; everything is borrowed. */
struct dpro_whatif_report {
    const struct dpro_trace *trace;
    const struct dpro_graph *graph;
    const struct dpro_model *model; /* as the job ran; NULL: it has none */
    const struct dpro_changes *changes;
    const struct dpro_whatif *whatif;
};
DPRO_API int dpro_whatif_text(const struct dpro_whatif_report *report, FILE *out,
                              struct dpro_error *err);
DPRO_API int dpro_whatif_json(const struct dpro_whatif_report *report, FILE *out,
                              struct dpro_error *err); /* dpro.whatif/1 */

/* Why B is slower than A; everything is borrowed. */
struct dpro_against_report {
    const struct dpro_trace *a_trace, *b_trace;
    const struct dpro_graph *a, *b;
    const char *a_name, *b_name;
    const struct dpro_against *against; /* NULL: the work of GPUs was not recorded in both */
};

/* Two traces of a job, each with its replay; everything is borrowed. */
struct dpro_comparison {
    const struct dpro_report *a, *b; /* no validation, no Daydream needed */
    const char *a_name, *b_name;
    const struct dpro_against_report *against;
};
DPRO_API int dpro_compare_text(const struct dpro_comparison *comparison, FILE *out,
                               struct dpro_error *err);
DPRO_API int dpro_compare_json(const struct dpro_comparison *comparison, FILE *out,
                               struct dpro_error *err); /* dpro.compare/1 */
/* The iteration and what a rank spends it on, by their names; NULL behind the last. Their times in
 * A and B; below 0: not known. A difference of iterations within their noise is none. */
#define DPRO_N_COMPARED 8
struct dpro_compared_time {
    double ns[2];
};
DPRO_API const char *dpro_compare_part(size_t index);
DPRO_API int dpro_compare_times(const struct dpro_comparison *comparison,
                                struct dpro_compared_time times[DPRO_N_COMPARED],
                                struct dpro_error *err);

/* What a diagnosis's report is made of; everything is borrowed. */
struct dpro_diagnose_report {
    const struct dpro_trace *trace;
    const struct dpro_graph *graph;
    const struct dpro_diagnosis *diagnosis;
    struct dpro_job_time job; /* what an iteration takes: the ideal, all blames, and what the replay
                                 does not explain */
    int64_t profiler_ns;      /* of the replay, which was subtracted */
    const struct dpro_measures *measures;        /* the field's own; NULL: none */
    const struct dpro_saved_diagnosis *baseline; /* to compare with; NULL: nothing */
    const struct dpro_against_report *against; /* why it is slower than another; NULL: not asked */
};
DPRO_API int dpro_diagnose_text(const struct dpro_diagnose_report *report, FILE *out,
                                struct dpro_error *err);
DPRO_API int dpro_diagnose_json(const struct dpro_diagnose_report *report, FILE *out,
                                struct dpro_error *err); /* dpro.diagnose/1 */
/* Writes what dpro_baseline_read() needs of it. */
DPRO_API int dpro_diagnose_save(const struct dpro_diagnose_report *report, const char *path,
                                struct dpro_error *err);

/* What a search's report is made of; everything is borrowed. */
struct dpro_optimize_report {
    const struct dpro_trace *trace;
    const struct dpro_graph *graph;
    const struct dpro_model *model;
    const struct dpro_optimum *optimum;
    const char *plan;            /* the folder, as it was named; NULL: none was asked for */
    const char *const *warnings; /* more lines, of the search; NULL-terminated, or NULL */
};
DPRO_API int dpro_optimize_text(const struct dpro_optimize_report *report, FILE *out,
                                struct dpro_error *err);
DPRO_API int dpro_optimize_json(const struct dpro_optimize_report *report, FILE *out,
                                struct dpro_error *err); /* dpro.optimize/1 */
/* Whether the gain exceeds the model's uncertainty; of FSDP's units, whether there is one. If so,
 * the plan holds the strategy that was found, else the baseline. */
DPRO_API int dpro_optimize_helps(const struct dpro_optimize_report *report);
/* Whether the job can be given what was found; if not, it is a recommendation: nothing recomputes
 * modules that FSDP has wrapped but the script. */
DPRO_API int dpro_optimize_is_for_job(const struct dpro_optimize_report *report);
/* Writes plan.json and what other stacks take (doc/formats/plan.md), optimize.json and
 * optimize.html into report->plan, which is made when missing. Of a recommendation there is no
 * plan.json. */
DPRO_API int dpro_optimize_plan(const struct dpro_optimize_report *report, struct dpro_error *err);

#ifdef __cplusplus
}
#endif
#endif
