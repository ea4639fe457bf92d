/* report/whatif_report.c: a what-if as text and as JSON, schema dpro.whatif/1. Keys are never
 * renamed or dropped. */
#include <stdio.h>
#include <stdlib.h>

#include <dpro/report.h>

#include "base/sort.h"
#include "base/utf8.h"
#include "report/field.h"
#include "report/model_report.h"
#include "report/table.h"
#include "report/warnings.h"
#include "report/words.h"

static struct warnings warnings_of(const struct dpro_whatif_report *r)
{
    return (struct warnings){
        .trace = r->trace, .graph = r->graph, .model = r->model, .whatif = r->whatif};
}

/* ---- what is changed ---- */

#define AT(member) .at = offsetof(struct dpro_changes, member)
/* Those that were asked for; what needs more than a row follows. */
static const struct field change_fields[] = {
    {"bucket_cap_mb", FIELD_MIB, AT(bucket_cap_bytes), .text = "buckets of %s MB by DDP's rule"},
    {"first_bucket_mb", FIELD_MIB, AT(first_bucket_bytes), .text = "the first of %s MB"},
    {"buckets", FIELD_TEXT, AT(buckets_path), .text = "the buckets of %s"},
    {"partition_mb", FIELD_MIB, AT(partition_bytes), .text = "partitions of %s MB"},
    {"bandwidth_bytes_per_s", FIELD_REAL, AT(bandwidth_bytes_per_s), .digits = 3, .scale = 1e6 / 8,
     .text = "links of %s Mbit/s"},
    {"bandwidth_ratio", FIELD_REAL, AT(bandwidth_ratio), .digits = 6,
     .text = "links %s times as fast"},
    {"latency_ratio", FIELD_REAL, AT(latency_ratio), .digits = 6,
     .text = "latency %s times as long"},
    {"latency_add_ns", FIELD_I64, AT(latency_add_ns), .scale = 1e3,
     .text = "%s us added to each message"},
    {"world_size", FIELD_U32, AT(world_size), .text = "%s ranks"},
    {"servers", FIELD_U32, AT(n_servers), .text = "parameter servers: %s"},
    {"bigarray_bound", FIELD_U64, AT(bigarray_bound),
     .text = "arrays of %s elements or more parted over all servers"},
    {"server_bandwidth_bytes_per_s", FIELD_REAL, AT(server_bandwidth_bytes_per_s), .digits = 3,
     .scale = 1e6 / 8, .text = "servers' links of %s Mbit/s"},
    {"server_bandwidth_ratio", FIELD_REAL, AT(server_bandwidth_ratio), .digits = 6,
     .text = "servers' links %s times as fast"},
    {"cycle_time_ms", FIELD_MS, AT(cycle_ns), .scale = 1e6, .text = "Horovod's cycles of %s ms"},
    {.key = NULL},
};

static void say_changes(struct words *words, const struct dpro_changes *c)
{
    fields_say_set(words, change_fields, c);
    for (size_t i = 0; i < c->n_compute; i++) {
        int first = c->compute[i].first_rank, last = c->compute[i].last_rank;
        char who[40] = "";
        if (first >= 0)
            snprintf(who, sizeof who, first == last ? "rank %d " : "ranks %d-%d ", first, last);
        words_add(words, ", ", "%scomputing %s times as fast", who, TRIMMED(c->compute[i].speed));
    }
    for (size_t i = 0; i < c->n_delays; i++)
        words_add(words, ", ", "%.100s", c->delays[i]);
    if (c->compression && *c->compression == DPRO_COMPRESSION_NONE)
        words_add(words, ", ", "no compression");
    else if (c->compression)
        words_add(words, ", ", "compression to %s", dpro_compression_name(*c->compression));
    if (c->fusion_bytes && *c->fusion_bytes == 0)
        words_add(words, ", ", "nothing fused");
    else if (c->fusion_bytes)
        words_add(words, ", ", "up to %s MB fused", TRIMMED((double)*c->fusion_bytes / 1048576));
}

static void write_compute(struct writer *w, const struct dpro_changes *c)
{
    writer_begin(w, "compute", '[');
    for (size_t i = 0; i < c->n_compute; i++) {
        const int ranks[] = {c->compute[i].first_rank, c->compute[i].last_rank};
        writer_open(w, '{');
        writer_fields(w, FIXED("speed", c->compute[i].speed, 6));
        writer_key(w, "ranks"); /* first and last; null: all */
        if (ranks[0] < 0)
            writer_null(w);
        else
            writer_json_ints(w, ranks, 2);
        writer_close(w, '}');
    }
    writer_close(w, ']');
}

static void write_changes(struct writer *w, const struct dpro_changes *c)
{
    writer_begin(w, "changes", '{');
    fields_write_set(w, change_fields, c);
    if (c->n_compute > 0)
        write_compute(w, c);
    if (c->n_delays > 0) {
        writer_key(w, "delays");
        writer_json_strings(w, c->delays, c->n_delays);
    }
    if (c->compression)
        writer_fields(w, TEXT("compress", dpro_compression_name(*c->compression)));
    if (c->fusion_bytes)
        writer_fields(w, FIXED("fusion_mb", (double)*c->fusion_bytes / 1048576, 6));
    writer_close(w, '}');
}

/* ---- text ---- */

static void row(struct table *t, const char *name, struct dpro_prediction p,
                const struct dpro_model *model)
{
    table_cells(t, name, TIME(p.iteration_ns), NUMBER(p.uncertainty_pct, 1), TIME(p.p50_ns),
                TIME(p.p95_ns), STRATEGY(model, dpro_model_strategy(model)));
}

static void write_verdict(struct writer *w, const struct dpro_whatif_report *r)
{
    struct dpro_estimate speedup = dpro_whatif_speedup(r->whatif);
    double half = 1.96 * speedup.std;
    int64_t less = dpro_whatif_baseline(r->whatif).iteration_ns -
                   dpro_whatif_predicted(r->whatif).iteration_ns;
    bool unsure = speedup.value + half >= 1 && speedup.value - half <= 1;
    if (less == 0)
        table_wrapped(w, "Verdict", 9, "the same iteration time");
    else
        table_paragraph(w, "Verdict", 9, "%s %s an iteration, %s times as fast (+- %s)%s",
                        TIME(less < 0 ? -less : less), less > 0 ? "less" : "more",
                        NUMBER(speedup.value, 3), NUMBER(half, 3),
                        unsure ? ": too little to be sure of" : "");
}

struct part {
    enum dpro_uncertainty_source source;
    double pct;
};

ORDER(by_size, struct part, DESCENDING(pct) ?: ASCENDING(source));

/* What the interval is made of, largest first. */
static void write_parts(struct writer *w, const struct dpro_whatif_report *r)
{
    struct part parts[DPRO_N_UNCERTAINTY_PARTS];
    struct words words = {.n = 0};
    for (int i = 0; i < DPRO_N_UNCERTAINTY_PARTS; i++) {
        enum dpro_uncertainty_source source = (enum dpro_uncertainty_source)i;
        parts[i] = (struct part){source, 196 * dpro_whatif_uncertainty(r->whatif, source).after};
    }
    qsort(parts, DPRO_N_UNCERTAINTY_PARTS, sizeof *parts, by_size);
    for (int i = 0; i < DPRO_N_UNCERTAINTY_PARTS && parts[i].pct >= 0.05; i++)
        words_add(&words, ", ", "%s %s", dpro_uncertainty_name(parts[i].source),
                  NUMBER(parts[i].pct, 1));
    if (words.n > 0)
        table_paragraph(w, "  +- %", 9, "of what if: %s (95 %%; squares add up)", words.text);
}

static void write_text(struct writer *w, const void *report)
{
    const struct dpro_whatif_report *r = report;
    struct table t = {.n_cols = 6, .left = {true, false, false, false, false, true}};
    struct words changes = {.n = 0};
    say_changes(&changes, r->changes);
    table_escaped(w, "What if", 9, changes.n > 0 ? changes.text : "nothing is changed");
    write_verdict(w, r);
    writer_text(w, "\n");
    table_cells(&t, "", "iteration", "+- %", "p50", "p95", "gradients in");
    row(&t, "as it ran", dpro_whatif_baseline(r->whatif), r->model);
    row(&t, "what if", dpro_whatif_predicted(r->whatif), dpro_whatif_model(r->whatif));
    table_write(w, &t);
    writer_text(w, "\n");
    write_parts(w, r);
    model_write_text(w, r->model);
    struct warnings warnings = warnings_of(r);
    warnings_write_text(w, &warnings, 1);
}

int dpro_whatif_text(const struct dpro_whatif_report *r, FILE *out, struct dpro_error *err)
{
    return writer_write_file(out, write_text, r, err);
}

/* ---- JSON ---- */

static void write_prediction(struct writer *w, const char *key, struct dpro_prediction p,
                             const struct dpro_model *model)
{
    writer_section(w, key, '{');
    writer_fields(w, MS("iteration_ms", p.iteration_ns), MS("p50_ms", p.p50_ns),
                  MS("p95_ms", p.p95_ns), FIXED("uncertainty_pct", p.uncertainty_pct, 3));
    writer_key(w, "communication");
    model_write_strategy(w, model, dpro_model_strategy(model));
    writer_close(w, '}');
}

/* Halves of 95 % intervals, as uncertainty_pct is; of the speedup, a number. */
static void write_uncertainty(struct writer *w, const struct dpro_whatif *whatif)
{
    static const char *const keys[] = {[DPRO_UNCERTAIN_LEARNT] = "learnt_numbers",
                                       [DPRO_UNCERTAIN_ITERATIONS] = "iterations",
                                       [DPRO_UNCERTAIN_MACHINE] = "machine_drift",
                                       [DPRO_UNCERTAIN_MODEL] = "model_misfit",
                                       [DPRO_UNCERTAIN_CHANGE] = "extrapolation"};
    writer_section(w, "uncertainty", '{');
    for (int i = 0; i < DPRO_N_UNCERTAINTY_PARTS; i++) {
        struct dpro_uncertainty_part part =
            dpro_whatif_uncertainty(whatif, (enum dpro_uncertainty_source)i);
        writer_object_at(w, keys[i], FIXED("baseline_pct", 196 * part.before, 3),
                         FIXED("predicted_pct", 196 * part.after, 3),
                         FIXED("speedup", 1.96 * part.speedup, 6));
    }
    writer_close(w, '}');
}

static void write_json(struct writer *w, const void *report)
{
    const struct dpro_whatif_report *r = report;
    struct dpro_estimate speedup = dpro_whatif_speedup(r->whatif);
    int64_t measured_ns = dpro_model_measured_ns(r->model);
    writer_open(w, '{');
    writer_fields(w, TEXT("schema", "dpro.whatif/1"), TEXT("version", dpro_version()));
    write_changes(w, r->changes);
    writer_newline(w);
    writer_fields(w, MS_IF("measured_ms", measured_ns > 0, measured_ns));
    model_write_pace(w, r->model);
    writer_fields(w, INT("iterations", dpro_model_n_samples(r->model)));
    write_prediction(w, "baseline", dpro_whatif_baseline(r->whatif), r->model);
    write_prediction(w, "predicted", dpro_whatif_predicted(r->whatif),
                     dpro_whatif_model(r->whatif));
    writer_newline(w);
    writer_fields(w, FIXED("speedup", speedup.value, 6), FIXED("speedup_std", speedup.std, 6));
    write_uncertainty(w, r->whatif);
    writer_newline(w);
    writer_key(w, "link");
    model_write_link(w, r->model);
    struct warnings warnings = warnings_of(r);
    warnings_write_json(w, &warnings, 1);
    writer_close(w, '}');
    writer_text(w, "\n");
}

int dpro_whatif_json(const struct dpro_whatif_report *r, FILE *out, struct dpro_error *err)
{
    return writer_write_file(out, write_json, r, err);
}
