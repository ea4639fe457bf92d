/* report/whatif.c: a what-if as text and as JSON, schema dpro.whatif/1. Keys are never renamed or
 * dropped. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <dpro/report.h>

#include "base/utf8.h"
#include "report/facts.h"
#include "report/model.h"
#include "report/table.h"

/* Of the trace, the graph, the model, this what-if; NULL past the last. */
static const char *warning(const struct dpro_whatif_report *r, size_t i)
{
    const char *learnt = model_warning(r->trace, r->graph, r->model, &i);
    if (learnt)
        return learnt;
    return i < dpro_whatif_n_warnings(r->whatif) ? dpro_whatif_warning(r->whatif, i) : NULL;
}

/* ---- text ---- */

struct words {
    char text[1000];
    size_t n;
};

__attribute__((format(printf, 2, 3))) static void say(struct words *words, const char *format, ...)
{
    va_list args;
    size_t room = sizeof words->text - words->n;
    va_start(args, format);
    if (words->n > 0 && room > 2) {
        strcpy(words->text + words->n, ", ");
        words->n += 2;
        room -= 2;
    }
    int len = vsnprintf(words->text + words->n, room, format, args);
    va_end(args);
    words->n += len < 0 ? 0 : (size_t)len < room ? (size_t)len : room - 1;
}

static const char *number(char out[TIME_TEXT], double value, int digits)
{
    if (writer_format_fixed(out, TIME_TEXT, value, digits) < 0)
        strcpy(out, "?");
    char *point = strchr(out, '.');
    for (size_t n = strlen(out); point && n > 0 && (out[n - 1] == '0' || out[n - 1] == '.'); n--) {
        bool whole = out[n - 1] == '.';
        out[n - 1] = '\0';
        if (whole)
            break;
    }
    return out;
}

static void say_changes(struct words *s, const struct dpro_changes *c)
{
    char a[TIME_TEXT], b[TIME_TEXT];
    if (c->bucket_cap_bytes && c->first_bucket_bytes)
        say(s, "buckets of %s MB by DDP's rule, the first of %s MB",
            number(a, (double)c->bucket_cap_bytes / 1048576, 3),
            number(b, (double)c->first_bucket_bytes / 1048576, 3));
    else if (c->bucket_cap_bytes)
        say(s, "buckets of %s MB by DDP's rule",
            number(a, (double)c->bucket_cap_bytes / 1048576, 3));
    if (c->buckets_path)
        say(s, "the buckets of %.200s", c->buckets_path);
    if (c->partition_bytes)
        say(s, "partitions of %s MB", number(a, (double)c->partition_bytes / 1048576, 3));
    if (c->compression && *c->compression == DPRO_COMPRESSION_NONE)
        say(s, "no compression");
    else if (c->compression)
        say(s, "compression to %s", dpro_compression_name(*c->compression));
    if (c->bandwidth_bytes_per_s != 0)
        say(s, "links of %s Mbit/s", number(a, c->bandwidth_bytes_per_s * 8 / 1e6, 3));
    if (c->bandwidth_ratio != 0)
        say(s, "links %s times as fast", number(a, c->bandwidth_ratio, 3));
    if (c->latency_ratio != 0)
        say(s, "latency %s times as long", number(a, c->latency_ratio, 3));
    if (c->latency_add_ns != 0)
        say(s, "%s us %s a message",
            number(a, (double)llabs((long long)c->latency_add_ns) / 1e3, 3),
            c->latency_add_ns > 0 ? "more" : "less");
    for (size_t i = 0; i < c->n_compute; i++) {
        const struct dpro_compute_change *change = &c->compute[i];
        number(a, change->speed, 3);
        if (change->first_rank < 0)
            say(s, "computing %s times as fast", a);
        else if (change->first_rank == change->last_rank)
            say(s, "rank %d computing %s times as fast", change->first_rank, a);
        else
            say(s, "ranks %d-%d computing %s times as fast", change->first_rank, change->last_rank,
                a);
    }
    for (size_t i = 0; i < c->n_delays; i++)
        say(s, "%.100s", c->delays[i]);
    if (c->world_size)
        say(s, "%u ranks", c->world_size);
    if (c->n_servers)
        say(s, "%u parameter server%s", c->n_servers, c->n_servers > 1 ? "s" : "");
    if (c->bigarray_bound)
        say(s, "arrays of %llu elements or more parted over all servers",
            (unsigned long long)c->bigarray_bound);
    if (c->server_bandwidth_bytes_per_s != 0)
        say(s, "servers' links of %s Mbit/s",
            number(a, c->server_bandwidth_bytes_per_s * 8 / 1e6, 3));
    if (c->server_bandwidth_ratio != 0)
        say(s, "servers' links %s times as fast", number(a, c->server_bandwidth_ratio, 3));
    if (c->cycle_ns != 0)
        say(s, "Horovod's cycles of %s ms", number(a, (double)c->cycle_ns / 1e6, 3));
    if (c->fusion_bytes && *c->fusion_bytes > 0)
        say(s, "up to %s MB fused", number(a, (double)*c->fusion_bytes / 1048576, 3));
    else if (c->fusion_bytes)
        say(s, "nothing fused");
    if (s->n == 0)
        say(s, "nothing is changed");
}

static void row(struct table *t, const char *name, struct dpro_prediction p,
                const struct dpro_model *model)
{
    char time[TIME_TEXT], strategy[STRATEGY_TEXT];
    table_cell(t, "%s", name);
    table_cell(t, "%s", facts_time(time, p.iteration_ns));
    table_fixed(t, p.uncertainty_pct, 1, "");
    table_cell(t, "%s", facts_time(time, p.p50_ns));
    table_cell(t, "%s", facts_time(time, p.p95_ns));
    table_cell(t, "%s", model_strategy_text(strategy, model, dpro_model_strategy(model)));
}

static void write_verdict(struct writer *w, const struct dpro_whatif_report *r)
{
    struct dpro_prediction before = dpro_whatif_baseline(r->whatif);
    struct dpro_prediction after = dpro_whatif_predicted(r->whatif);
    struct dpro_estimate speedup = dpro_whatif_speedup(r->whatif);
    double half = 1.96 * speedup.std;
    char line[300], a[TIME_TEXT], b[TIME_TEXT], change[TIME_TEXT];
    int64_t less = before.iteration_ns - after.iteration_ns;
    if (writer_format_fixed(a, sizeof a, speedup.value, 3) < 0 ||
        writer_format_fixed(b, sizeof b, half, 3) < 0)
        return;
    facts_time(change, less < 0 ? -less : less);
    if (less == 0)
        snprintf(line, sizeof line, "the same iteration time");
    else if (speedup.value + half >= 1 && speedup.value - half <= 1)
        snprintf(line, sizeof line,
                 "%s %s an iteration, %s times as fast (+- %s): too little to be sure of", change,
                 less > 0 ? "less" : "more", a, b);
    else
        snprintf(line, sizeof line, "%s %s an iteration, %s times as fast (+- %s)", change,
                 less > 0 ? "less" : "more", a, b);
    table_wrapped(w, "Verdict", 9, line);
}

/* What the interval is made of, largest first. */
static void write_parts(struct writer *w, const struct dpro_whatif_report *r)
{
    struct words words = {.n = 0};
    bool said[DPRO_N_UNCERTAINTY_PARTS] = {false};
    char line[1100], number[TIME_TEXT];
    for (int n = 0; n < DPRO_N_UNCERTAINTY_PARTS; n++) {
        int largest = -1;
        double half = 0;
        for (int i = 0; i < DPRO_N_UNCERTAINTY_PARTS; i++) {
            double pct =
                196 * dpro_whatif_uncertainty(r->whatif, (enum dpro_uncertainty_source)i).after;
            if (!said[i] && pct >= 0.05 && pct > half) {
                largest = i;
                half = pct;
            }
        }
        if (largest < 0)
            break;
        said[largest] = true;
        if (writer_format_fixed(number, sizeof number, half, 1) >= 0)
            say(&words, "%s %s", dpro_uncertainty_name((enum dpro_uncertainty_source)largest),
                number);
    }
    if (words.n == 0)
        return;
    snprintf(line, sizeof line, "of what if: %s (95 %%; squares add up)", words.text);
    table_wrapped(w, "  +- %", 9, line);
}

int dpro_whatif_text(const struct dpro_whatif_report *r, FILE *out, struct dpro_error *err)
{
    static const char *const head[] = {"", "iteration", "+- %", "p50", "p95", "gradients in"};
    struct table t = {.n_cols = 6, .left = {true, false, false, false, false, true}};
    struct words changes = {.n = 0};
    struct writer w;
    char safe[1024];
    int rc = writer_init_file(&w, out, err);
    if (rc < 0)
        return rc;
    say_changes(&changes, r->changes);
    utf8_escape(safe, sizeof safe, changes.text, changes.n);
    table_wrapped(&w, "What if", 9, safe);
    write_verdict(&w, r);
    writer_text(&w, "\n");
    for (size_t i = 0; i < sizeof head / sizeof *head; i++)
        table_cell(&t, "%s", head[i]);
    row(&t, "as it ran", dpro_whatif_baseline(r->whatif), r->model);
    row(&t, "what if", dpro_whatif_predicted(r->whatif), dpro_whatif_model(r->whatif));
    table_write(&w, &t);
    writer_text(&w, "\n");
    write_parts(&w, r);
    model_write_text(&w, r->model);
    const char *line;
    for (size_t i = 0; (line = warning(r, i)); i++)
        table_warning(&w, i, line);
    rc = writer_finish(&w, err);
    writer_fini(&w);
    return rc;
}

/* ---- JSON ---- */

/* Those that were asked for. */
static void write_changes(struct writer *w, const struct dpro_changes *c)
{
    writer_key(w, "changes");
    writer_open(w, '{');
    if (c->bucket_cap_bytes)
        writer_key_fixed(w, "bucket_cap_mb", (double)c->bucket_cap_bytes / 1048576, 6);
    if (c->first_bucket_bytes)
        writer_key_fixed(w, "first_bucket_mb", (double)c->first_bucket_bytes / 1048576, 6);
    if (c->buckets_path)
        writer_key_string(w, "buckets", c->buckets_path);
    if (c->partition_bytes)
        writer_key_fixed(w, "partition_mb", (double)c->partition_bytes / 1048576, 6);
    if (c->compression)
        writer_key_string(w, "compress", dpro_compression_name(*c->compression));
    if (c->bandwidth_bytes_per_s != 0)
        writer_key_fixed(w, "bandwidth_bytes_per_s", c->bandwidth_bytes_per_s, 3);
    if (c->bandwidth_ratio != 0)
        writer_key_fixed(w, "bandwidth_ratio", c->bandwidth_ratio, 6);
    if (c->latency_ratio != 0)
        writer_key_fixed(w, "latency_ratio", c->latency_ratio, 6);
    if (c->latency_add_ns != 0)
        writer_key_int(w, "latency_add_ns", c->latency_add_ns);
    if (c->n_compute) {
        writer_key(w, "compute");
        writer_open(w, '[');
        for (size_t i = 0; i < c->n_compute; i++) {
            writer_open(w, '{');
            writer_key_fixed(w, "speed", c->compute[i].speed, 6);
            writer_key(w, "ranks"); /* first and last; null: all */
            if (c->compute[i].first_rank < 0) {
                writer_null(w);
            } else {
                writer_open(w, '[');
                writer_json_int(w, c->compute[i].first_rank);
                writer_json_int(w, c->compute[i].last_rank);
                writer_close(w, ']');
            }
            writer_close(w, '}');
        }
        writer_close(w, ']');
    }
    if (c->n_delays) {
        writer_key(w, "delays");
        writer_open(w, '[');
        for (size_t i = 0; i < c->n_delays; i++)
            writer_string(w, c->delays[i]);
        writer_close(w, ']');
    }
    if (c->world_size)
        writer_key_int(w, "world_size", c->world_size);
    if (c->n_servers)
        writer_key_int(w, "servers", c->n_servers);
    if (c->bigarray_bound)
        writer_key_int(w, "bigarray_bound", (int64_t)c->bigarray_bound);
    if (c->server_bandwidth_bytes_per_s != 0)
        writer_key_fixed(w, "server_bandwidth_bytes_per_s", c->server_bandwidth_bytes_per_s, 3);
    if (c->server_bandwidth_ratio != 0)
        writer_key_fixed(w, "server_bandwidth_ratio", c->server_bandwidth_ratio, 6);
    if (c->cycle_ns != 0)
        writer_key_fixed(w, "cycle_time_ms", (double)c->cycle_ns / 1e6, 6);
    if (c->fusion_bytes)
        writer_key_fixed(w, "fusion_mb", (double)*c->fusion_bytes / 1048576, 6);
    writer_close(w, '}');
}

static void write_prediction(struct writer *w, const char *key, struct dpro_prediction p,
                             const struct dpro_model *model)
{
    writer_newline(w);
    writer_key(w, key);
    writer_open(w, '{');
    writer_key(w, "iteration_ms");
    writer_json_ms(w, p.iteration_ns);
    writer_key(w, "p50_ms");
    writer_json_ms(w, p.p50_ns);
    writer_key(w, "p95_ms");
    writer_json_ms(w, p.p95_ns);
    writer_key_fixed(w, "uncertainty_pct", p.uncertainty_pct, 3);
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
    writer_key(w, "uncertainty");
    writer_open(w, '{');
    for (int i = 0; i < DPRO_N_UNCERTAINTY_PARTS; i++) {
        struct dpro_uncertainty_part part =
            dpro_whatif_uncertainty(whatif, (enum dpro_uncertainty_source)i);
        writer_key(w, keys[i]);
        writer_open(w, '{');
        writer_key_fixed(w, "baseline_pct", 196 * part.before, 3);
        writer_key_fixed(w, "predicted_pct", 196 * part.after, 3);
        writer_key_fixed(w, "speedup", 1.96 * part.speedup, 6);
        writer_close(w, '}');
    }
    writer_close(w, '}');
}

int dpro_whatif_json(const struct dpro_whatif_report *r, FILE *out, struct dpro_error *err)
{
    struct dpro_estimate speedup = dpro_whatif_speedup(r->whatif);
    struct writer w;
    int rc = writer_init_file(&w, out, err);
    if (rc < 0)
        return rc;
    writer_open(&w, '{');
    writer_key_string(&w, "schema", "dpro.whatif/1");
    writer_key_string(&w, "version", dpro_version());
    write_changes(&w, r->changes);
    writer_newline(&w);
    writer_key(&w, "measured_ms");
    if (dpro_model_measured_ns(r->model) > 0)
        writer_json_ms(&w, dpro_model_measured_ns(r->model));
    else
        writer_null(&w);
    model_write_pace(&w, r->model);
    writer_key_int(&w, "iterations", dpro_model_n_samples(r->model));
    write_prediction(&w, "baseline", dpro_whatif_baseline(r->whatif), r->model);
    write_prediction(&w, "predicted", dpro_whatif_predicted(r->whatif),
                     dpro_whatif_model(r->whatif));
    writer_newline(&w);
    writer_key_fixed(&w, "speedup", speedup.value, 6);
    writer_key_fixed(&w, "speedup_std", speedup.std, 6);
    writer_newline(&w);
    write_uncertainty(&w, r->whatif);
    writer_newline(&w);
    writer_key(&w, "link");
    model_write_link(&w, r->model);
    writer_newline(&w);
    writer_key(&w, "warnings");
    writer_open(&w, '[');
    const char *line;
    for (size_t i = 0; (line = warning(r, i)); i++)
        writer_string(&w, line);
    writer_close(&w, ']');
    writer_close(&w, '}');
    writer_text(&w, "\n");
    rc = writer_finish(&w, err);
    writer_fini(&w);
    return rc;
}
