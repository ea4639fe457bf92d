/* report/model.c: what a prediction rests on. */
#include "report/model.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "report/facts.h"
#include "report/table.h"

enum { LISTED = 4 }; /* buckets whose sizes are told one by one */

static void put_mb(char *out, size_t size, uint64_t bytes)
{
    double mb = (double)bytes / 1e6;
    if (writer_format_fixed(out, size, mb, mb < 0.0995 ? 3 : mb < 0.995 ? 2 : 1) < 0)
        snprintf(out, size, "?");
}

char *model_strategy_text(char out[STRATEGY_TEXT], const struct dpro_model *model,
                          const struct dpro_strategy *strategy)
{
    uint32_t n = dpro_strategy_n_buckets(strategy), parts = 1;
    uint64_t least = UINT64_MAX, most = 0;
    char sizes[96] = "", a[TIME_TEXT], b[TIME_TEXT];
    size_t len = 0;
    for (uint32_t i = 0; i < n; i++) {
        struct dpro_bucket bucket = dpro_strategy_bucket(model, strategy, i);
        least = bucket.size_bytes < least ? bucket.size_bytes : least;
        most = bucket.size_bytes > most ? bucket.size_bytes : most;
        parts = bucket.partitions > parts ? bucket.partitions : parts;
        if (n <= LISTED) {
            put_mb(a, sizeof a, bucket.size_bytes);
            len += (size_t)snprintf(sizes + len, sizeof sizes - len, "%s%.12s", i ? ", " : "", a);
        }
    }
    if (n > LISTED) {
        put_mb(a, sizeof a, least);
        put_mb(b, sizeof b, most);
        snprintf(sizes, sizeof sizes, "%.12s to %.12s", a, b);
    }
    int used = snprintf(out, STRATEGY_TEXT, "%u bucket%s of %s MB", n, n == 1 ? "" : "s", sizes);
    if (parts > 1)
        used += snprintf(out + used, STRATEGY_TEXT - (size_t)used, ", in up to %u parts", parts);
    enum dpro_compression compression = dpro_strategy_compression(strategy);
    if (compression != DPRO_COMPRESSION_NONE)
        used += snprintf(out + used, STRATEGY_TEXT - (size_t)used, ", as %s",
                         dpro_compression_name(compression));
    struct dpro_cycles cycles = dpro_strategy_cycles(strategy);
    if (cycles.cycle_ns > 0)
        snprintf(out + used, STRATEGY_TEXT - (size_t)used, ", by cycles of %s",
                 facts_time(a, cycles.cycle_ns));
    return out;
}

const char *model_warning(const struct dpro_trace *trace, const struct dpro_graph *graph,
                          const struct dpro_model *model, size_t *index)
{
    size_t n = dpro_trace_n_warnings(trace);
    if (*index < n)
        return dpro_trace_warning(trace, *index);
    *index -= n;
    n = dpro_graph_n_warnings(graph);
    if (*index < n)
        return dpro_graph_warning(graph, *index);
    *index -= n;
    n = dpro_model_n_warnings(model);
    if (*index < n)
        return dpro_model_warning(model, *index);
    *index -= n;
    return NULL;
}

static double relative_pct(struct dpro_estimate estimate)
{
    return estimate.value > 0 ? 100 * estimate.std / estimate.value : 0;
}

void model_write_pace(struct writer *w, const struct dpro_model *model)
{
    writer_key(w, "unprofiled_ms");
    if (dpro_model_unprofiled_ns(model) > 0)
        writer_json_ms(w, dpro_model_unprofiled_ns(model));
    else
        writer_null(w);
    writer_key_fixed(w, "misfit_pct", 100 * dpro_model_misfit(model), 3);
}

void model_write_text(struct writer *w, const struct dpro_model *model)
{
    struct dpro_link link = dpro_model_link(model);
    char line[500], measured[TIME_TEXT], std[TIME_TEXT], rate[TIME_TEXT], rate_std[TIME_TEXT];
    char message[TIME_TEXT], taken[TIME_TEXT];
    if (dpro_model_measured_ns(model) > 0 && dpro_model_n_samples(model) < 2) {
        snprintf(line, sizeof line, "measured: %s, one iteration",
                 facts_time(measured, dpro_model_measured_ns(model)));
        table_wrapped(w, " ", 2, line);
    } else if (dpro_model_measured_ns(model) > 0) {
        snprintf(line, sizeof line, "measured: %s, mean of %u iterations (they spread by %s)",
                 facts_time(measured, dpro_model_measured_ns(model)), dpro_model_n_samples(model),
                 facts_time(std, dpro_model_measured_std_ns(model)));
        table_wrapped(w, " ", 2, line);
    }
    if (dpro_model_unprofiled_ns(model) > 0) {
        snprintf(line, sizeof line,
                 "unprofiled: %s, from the steps that were timed without the profiler; predictions "
                 "are for the job without it",
                 facts_time(measured, dpro_model_unprofiled_ns(model)));
        table_wrapped(w, " ", 2, line);
    }
    if (writer_format_fixed(rate, sizeof rate, link.bandwidth_bytes_per_s.value / 1e6, 1) < 0 ||
        writer_format_fixed(rate_std, sizeof rate_std, relative_pct(link.bandwidth_bytes_per_s),
                            1) < 0 ||
        writer_format_fixed(message, sizeof message, link.message_ns.value / 1e3, 1) < 0 ||
        writer_format_fixed(taken, sizeof taken, link.interference_ns.value, 2) < 0)
        return;
    char speed[120] = "a link of unknown speed";
    if (link.bandwidth_bytes_per_s.value > 0)
        snprintf(speed, sizeof speed, "%s MB/s (+- %s %%) each way on a rank's link", rate,
                 rate_std);
    snprintf(line, sizeof line,
             "learnt: %s over %u ranks, %s, %s us a message, %u collective%s at once%s; a megabyte "
             "on the link takes %s ms from the "
             "computation beside it",
             link.algorithm, dpro_model_n_ranks(model), speed, message, link.n_streams,
             link.n_streams == 1 ? "" : "s", link.in_order ? ", in order" : "", taken);
    table_wrapped(w, " ", 2, line);
}

void model_write_strategy(struct writer *w, const struct dpro_model *model,
                          const struct dpro_strategy *strategy)
{
    writer_open(w, '{');
    struct dpro_cycles cycles = dpro_strategy_cycles(strategy);
    writer_key_string(w, "compression", dpro_compression_name(dpro_strategy_compression(strategy)));
    if (cycles.cycle_ns > 0)
        writer_key_ms(w, "cycle_time_ms", cycles.cycle_ns);
    if (cycles.cycle_ns > 0 && cycles.fuses)
        writer_key_int(w, "fusion_threshold_bytes", (int64_t)cycles.fusion_bytes);
    if (dpro_model_n_servers(model) > 0)
        writer_key_int(w, "servers", dpro_model_n_servers(model));
    writer_key(w, "buckets");
    writer_open(w, '[');
    for (uint32_t i = 0; i < dpro_strategy_n_buckets(strategy); i++) {
        struct dpro_bucket bucket = dpro_strategy_bucket(model, strategy, i);
        writer_newline(w);
        writer_open(w, '{');
        writer_key_int(w, "size_bytes", (int64_t)bucket.size_bytes);
        writer_key_int(w, "partitions", bucket.partitions);
        if (bucket.server >= 0)
            writer_key_int(w, "server", bucket.server);
        writer_key_int(w, "priority", bucket.priority);
        writer_key(w, "parameters");
        writer_open(w, '[');
        for (uint32_t t = 0; t < bucket.n_tensors; t++)
            writer_string(w, dpro_model_tensor(model, bucket.tensors[t]).name);
        writer_close(w, ']');
        writer_close(w, '}');
    }
    writer_close(w, ']');
    writer_close(w, '}');
}

static void write_estimate(struct writer *w, const char *key, struct dpro_estimate estimate)
{
    writer_key(w, key);
    writer_open(w, '{');
    writer_key_fixed(w, "value", estimate.value, 6);
    writer_key_fixed(w, "std", estimate.std, 6);
    writer_close(w, '}');
}

void model_write_link(struct writer *w, const struct dpro_model *model)
{
    struct dpro_link link = dpro_model_link(model);
    if (!(link.bandwidth_bytes_per_s.value > 0)) /* null */
        link.bandwidth_bytes_per_s = (struct dpro_estimate){NAN, NAN};
    writer_open(w, '{');
    writer_key_string(w, "algorithm", link.algorithm);
    writer_key_int(w, "collectives_at_once", link.n_streams);
    writer_key(w, "in_order");
    writer_bool(w, link.in_order);
    write_estimate(w, "bandwidth_bytes_per_s", link.bandwidth_bytes_per_s);
    write_estimate(w, "message_ns", link.message_ns);
    write_estimate(w, "collective_ns", link.collective_ns);
    write_estimate(w, "launch_ns", link.launch_ns);
    write_estimate(w, "hook_ns", link.hook_ns);
    write_estimate(w, "reduce_ns_per_byte", link.reduce_ns);
    write_estimate(w, "copy_ns_per_byte", link.copy_ns);
    write_estimate(w, "cast_ns_per_byte", link.cast_ns);
    write_estimate(w, "interference_ns_per_byte", link.interference_ns);
    writer_close(w, '}');
}
