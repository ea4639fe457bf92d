/* report/whatif_report.c: a what-if as text and as JSON, schema dpro.whatif/1. Keys are never
 * renamed or dropped. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <dpro/report.h>

#include "base/sort.h"
#include "base/utf8.h"
#include "report/model_report.h"
#include "report/table.h"
#include "report/words.h"

/* Of the trace, the graph, the model, this what-if; NULL past the last. */
static const char *warning(const void *report, size_t i)
{
    const struct dpro_whatif_report *r = report;
    const char *learnt = model_warning(r->trace, r->graph, r->model, &i);
    if (learnt)
        return learnt;
    return i < dpro_whatif_n_warnings(r->whatif) ? dpro_whatif_warning(r->whatif, i) : NULL;
}

/* ---- what is changed ---- */

/* Three decimals, less the zeros at their end. */
static const char *trimmed(char out[NUMBER_TEXT], double value)
{
    words_number(out, value, 3);
    char *end = strchr(out, '.') ? out + strlen(out) : out;
    while (end > out && end[-1] == '0')
        *--end = '\0';
    if (end > out && end[-1] == '.')
        end[-1] = '\0';
    return out;
}

#define TRIMMED(value) trimmed((char[NUMBER_TEXT]){""}, value)

/* Tells each change to JSON, or to people where `json` is NULL. */
struct teller {
    struct writer *json;
    struct words *words;
};

__attribute__((format(printf, 3, 4))) static void
tell(const struct teller *t, struct writer_field field, const char *format, ...)
{
    char text[300];
    va_list args;
    if (t->json) {
        writer_fields(t->json, field);
        return;
    }
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    words_add(t->words, ", ", "%s", text);
}

static void tell_compute(const struct teller *t, const struct dpro_changes *c)
{
    for (size_t i = 0; i < c->n_compute && !t->json; i++) {
        int first = c->compute[i].first_rank, last = c->compute[i].last_rank;
        char who[40] = "";
        if (first >= 0)
            snprintf(who, sizeof who, first == last ? "rank %d " : "ranks %d-%d ", first, last);
        words_add(t->words, ", ", "%scomputing %s times as fast", who,
                  TRIMMED(c->compute[i].speed));
    }
    if (!t->json || c->n_compute == 0)
        return;
    writer_begin(t->json, "compute", '[');
    for (size_t i = 0; i < c->n_compute; i++) {
        writer_open(t->json, '{');
        writer_fields(t->json, FIXED("speed", c->compute[i].speed, 6));
        writer_key(t->json, "ranks"); /* first and last; null: all */
        if (c->compute[i].first_rank < 0) {
            writer_null(t->json);
        } else {
            writer_open(t->json, '[');
            writer_json_int(t->json, c->compute[i].first_rank);
            writer_json_int(t->json, c->compute[i].last_rank);
            writer_close(t->json, ']');
        }
        writer_close(t->json, '}');
    }
    writer_close(t->json, ']');
}

static void tell_delays(const struct teller *t, const struct dpro_changes *c)
{
    for (size_t i = 0; i < c->n_delays && !t->json; i++)
        words_add(t->words, ", ", "%.100s", c->delays[i]);
    if (!t->json || c->n_delays == 0)
        return;
    writer_begin(t->json, "delays", '[');
    for (size_t i = 0; i < c->n_delays; i++)
        writer_string(t->json, c->delays[i]);
    writer_close(t->json, ']');
}

static double mib(uint64_t bytes)
{
    return (double)bytes / 1048576;
}

/* Those that were asked for. */
static void tell_changes(const struct teller *t, const struct dpro_changes *c)
{
    if (c->bucket_cap_bytes)
        tell(t, FIXED("bucket_cap_mb", mib(c->bucket_cap_bytes), 6),
             "buckets of %s MB by DDP's rule", TRIMMED(mib(c->bucket_cap_bytes)));
    if (c->first_bucket_bytes)
        tell(t, FIXED("first_bucket_mb", mib(c->first_bucket_bytes), 6), "the first of %s MB",
             TRIMMED(mib(c->first_bucket_bytes)));
    if (c->buckets_path)
        tell(t, TEXT("buckets", c->buckets_path), "the buckets of %.200s", c->buckets_path);
    if (c->partition_bytes)
        tell(t, FIXED("partition_mb", mib(c->partition_bytes), 6), "partitions of %s MB",
             TRIMMED(mib(c->partition_bytes)));
    if (c->compression) {
        const char *name = dpro_compression_name(*c->compression);
        bool none = *c->compression == DPRO_COMPRESSION_NONE;
        tell(t, TEXT("compress", name), none ? "no compression" : "compression to %s", name);
    }
    if (c->bandwidth_bytes_per_s != 0)
        tell(t, FIXED("bandwidth_bytes_per_s", c->bandwidth_bytes_per_s, 3), "links of %s Mbit/s",
             TRIMMED(c->bandwidth_bytes_per_s * 8 / 1e6));
    if (c->bandwidth_ratio != 0)
        tell(t, FIXED("bandwidth_ratio", c->bandwidth_ratio, 6), "links %s times as fast",
             TRIMMED(c->bandwidth_ratio));
    if (c->latency_ratio != 0)
        tell(t, FIXED("latency_ratio", c->latency_ratio, 6), "latency %s times as long",
             TRIMMED(c->latency_ratio));
    if (c->latency_add_ns != 0)
        tell(t, INT("latency_add_ns", c->latency_add_ns), "%s us %s a message",
             TRIMMED((double)llabs((long long)c->latency_add_ns) / 1e3),
             c->latency_add_ns > 0 ? "more" : "less");
    tell_compute(t, c);
    tell_delays(t, c);
    if (c->world_size)
        tell(t, INT("world_size", c->world_size), "%u ranks", c->world_size);
    if (c->n_servers)
        tell(t, INT("servers", c->n_servers), "%u parameter server%s", c->n_servers,
             PLURAL(c->n_servers));
    if (c->bigarray_bound)
        tell(t, INT("bigarray_bound", c->bigarray_bound),
             "arrays of %llu elements or more parted over all servers",
             (unsigned long long)c->bigarray_bound);
    if (c->server_bandwidth_bytes_per_s != 0)
        tell(t, FIXED("server_bandwidth_bytes_per_s", c->server_bandwidth_bytes_per_s, 3),
             "servers' links of %s Mbit/s", TRIMMED(c->server_bandwidth_bytes_per_s * 8 / 1e6));
    if (c->server_bandwidth_ratio != 0)
        tell(t, FIXED("server_bandwidth_ratio", c->server_bandwidth_ratio, 6),
             "servers' links %s times as fast", TRIMMED(c->server_bandwidth_ratio));
    if (c->cycle_ns != 0)
        tell(t, FIXED("cycle_time_ms", (double)c->cycle_ns / 1e6, 6), "Horovod's cycles of %s ms",
             TRIMMED((double)c->cycle_ns / 1e6));
    if (c->fusion_bytes)
        tell(t, FIXED("fusion_mb", mib(*c->fusion_bytes), 6),
             *c->fusion_bytes > 0 ? "up to %s MB fused" : "nothing fused",
             TRIMMED(mib(*c->fusion_bytes)));
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
    tell_changes(&(struct teller){NULL, &changes}, r->changes);
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
    warnings_write_text(w, warning, r);
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
        writer_key(w, keys[i]);
        writer_object(w, FIXED("baseline_pct", 196 * part.before, 3),
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
    writer_begin(w, "changes", '{');
    tell_changes(&(struct teller){w, NULL}, r->changes);
    writer_close(w, '}');
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
    warnings_write_json(w, warning, r);
    writer_close(w, '}');
    writer_text(w, "\n");
}

int dpro_whatif_json(const struct dpro_whatif_report *r, FILE *out, struct dpro_error *err)
{
    return writer_write_file(out, write_json, r, err);
}
