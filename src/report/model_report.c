/* What a prediction rests on. */
#include "report/model_report.h"

#include "cost/program/modules.h"
#include "report/table.h"
#include "report/words.h"

enum { LISTED = 4 }; /* buckets whose sizes are told one by one */

static const char *put_mb(char out[NUMBER_TEXT], uint64_t bytes)
{
    double mb = (double)bytes / 1e6;
    return words_number(out, mb, mb < 0.00095 ? 6 : mb < 0.0995 ? 3 : mb < 0.995 ? 2 : 1);
}

#define SIZE_MB(bytes) put_mb((char[NUMBER_TEXT]){""}, bytes)

const char *model_strategy_text(char out[STRATEGY_TEXT], const struct dpro_model *model,
                                const struct dpro_strategy *strategy)
{
    uint32_t n = dpro_strategy_n_buckets(strategy), parts = 1;
    enum dpro_compression compression = dpro_strategy_compression(strategy);
    int64_t cycle_ns = dpro_strategy_cycles(strategy).cycle_ns;
    uint64_t least = UINT64_MAX, most = 0;
    struct words sizes = {.n = 0}, words = {.n = 0};
    for (uint32_t i = 0; i < n; i++) {
        struct dpro_bucket bucket = dpro_strategy_bucket(model, strategy, i);
        least = bucket.size_bytes < least ? bucket.size_bytes : least;
        most = bucket.size_bytes > most ? bucket.size_bytes : most;
        parts = bucket.partitions > parts ? bucket.partitions : parts;
        if (n <= LISTED)
            words_add(&sizes, ", ", "%.12s", SIZE_MB(bucket.size_bytes));
    }
    if (n > LISTED)
        words_add(&sizes, "", "%.12s to %.12s", SIZE_MB(least), SIZE_MB(most));
    words_add(&words, ", ", "%u bucket%s of %s MB", n, PLURAL(n), sizes.text);
    if (parts > 1)
        words_add(&words, ", ", "in up to %u parts", parts);
    if (compression != DPRO_COMPRESSION_NONE)
        words_add(&words, ", ", "as %s", dpro_compression_name(compression));
    if (cycle_ns > 0)
        words_add(&words, ", ", "by cycles of %s", TIME(cycle_ns));
    snprintf(out, STRATEGY_TEXT, "%.*s", STRATEGY_TEXT - 1, words.text);
    return out;
}

static double relative_pct(struct dpro_estimate estimate)
{
    return estimate.value > 0 ? 100 * estimate.std / estimate.value : 0;
}

void job_write_json(struct writer *w, const struct dpro_job_time *job)
{
    writer_newline(w);
    writer_object_if(w, "job", job->ns > 0, MS("iteration_ms", job->ns), MS("low_ms", job->low_ns),
                     MS("high_ms", job->high_ns), TEXT("source", dpro_job_source_name(job->source)),
                     INT("from", job->n), INT("warm_up", job->n_warm_up));
}

void job_words(struct words *words, const struct dpro_job_time *job)
{
    words_add(words, "", "%s", TIME(job->ns));
    if (job->high_ns > job->low_ns)
        words_add(words, " ", "+- %s %%",
                  NUMBER(50 * (double)(job->high_ns - job->low_ns) / (double)job->ns, 1));
    if (job->n_warm_up > 0)
        words_add(words, " ", "less %u first iteration%s that may be warming up,", job->n_warm_up,
                  PLURAL(job->n_warm_up));
    if (job->source == DPRO_JOB_OWN_STEPS)
        words_add(words, " ", "without dpro, by %u step%s without the profiler", job->n,
                  PLURAL(job->n));
    else if (job->source == DPRO_JOB_LOGS && job->n > 0)
        words_add(words, " ", "without dpro, by %u iterations outside of the profile", job->n);
    else if (job->source == DPRO_JOB_LOGS)
        words_add(words, " ", "without dpro, by the transport logs");
    else if (job->source == DPRO_JOB_REPLAY)
        words_add(words, " ", "without the profiler");
    else
        words_add(words, " ", "as recorded: the profiler's cost is in it");
}

void model_write_pace(struct writer *w, const struct dpro_model *model)
{
    int64_t unprofiled_ns = dpro_model_unprofiled_ns(model);
    struct dpro_job_time job = dpro_model_job_time(model);
    job_write_json(w, &job);
    writer_newline(w);
    writer_fields(w, MS_IF("unprofiled_ms", unprofiled_ns > 0, unprofiled_ns),
                  FIXED("misfit_pct", 100 * dpro_model_misfit(model), 3));
}

/* What is no gradient, and the links within hosts that carry some of it. */
static void write_communications(struct writer *w, const struct dpro_model *model)
{
    struct dpro_link link = dpro_model_link(model);
    struct words words = {.n = 0};
    for (uint32_t k = 0; k < dpro_model_n_kinds(model); k++) {
        struct dpro_communications all = dpro_model_communications(model, k);
        words_add(&words, ", ", "%u %s (%s MB, %s)", all.n, dpro_collective_kind_name(all.kind),
                  SIZE_MB(all.size_bytes), TIME(all.took_ns));
    }
    table_paragraph(w, " ", 2, "an iteration's communication%s, by itself: %s",
                    dpro_model_n_tensors(model) > 0 ? " beside gradients" : "", words.text);
    if (link.within_bytes_per_s.value > 0)
        table_paragraph(w, " ", 2, "learnt: %s MB/s (+- %s %%) within a host, %s us a message",
                        MEGABYTES(link.within_bytes_per_s.value),
                        NUMBER(relative_pct(link.within_bytes_per_s), 1),
                        NUMBER(link.within_message_ns.value / 1e3, 1));
}

void model_write_text(struct writer *w, const struct dpro_model *model)
{
    struct dpro_link link = dpro_model_link(model);
    int64_t measured_ns = dpro_model_measured_ns(model);
    char speed[120] = "a link of unknown speed";
    if (measured_ns > 0 && dpro_model_n_samples(model) < 2)
        table_paragraph(w, " ", 2, "measured: %s, one iteration", TIME(measured_ns));
    else if (measured_ns > 0)
        table_paragraph(w, " ", 2, "measured: %s, mean of %u iterations (they spread by %s)",
                        TIME(measured_ns), dpro_model_n_samples(model),
                        TIME(dpro_model_measured_std_ns(model)));
    struct dpro_job_time job = dpro_model_job_time(model);
    struct words words = {.n = 0};
    job_words(&words, &job);
    if (job.ns > 0)
        table_paragraph(w, " ", 2, "the job: %s; predictions start from this", words.text);
    if (dpro_model_n_tensors(model) == 0 && dpro_model_n_kinds(model) == 0)
        return;
    double rate = link.bandwidth_bytes_per_s.value;
    if (rate > 0 && link.bandwidth_bytes_per_s.std >= rate)
        snprintf(speed, sizeof speed, "%s MB/s or less each way on a rank's link", MEGABYTES(rate));
    else if (rate > 0)
        snprintf(speed, sizeof speed, "%s MB/s (+- %s %%) each way on a rank's link",
                 MEGABYTES(rate), NUMBER(relative_pct(link.bandwidth_bytes_per_s), 1));
    if (dpro_model_n_kinds(model) > 0)
        write_communications(w, model);
    if (dpro_model_n_tensors(model) == 0) {
        table_paragraph(w, " ", 2,
                        "learnt: %s, %s us a message; a megabyte on the link slows computation "
                        "down by %s ms",
                        speed, NUMBER(link.message_ns.value / 1e3, 1),
                        NUMBER(link.interference_ns.value, 2));
        return;
    }
    table_paragraph(w, " ", 2,
                    "learnt: %s over %u ranks, %s, %s us a message, %u collective%s at once%s; a "
                    "megabyte on the link slows computation down by %s ms",
                    link.algorithm, dpro_model_n_ranks(model), speed,
                    NUMBER(link.message_ns.value / 1e3, 1), link.n_streams, PLURAL(link.n_streams),
                    link.in_order ? ", in order" : "", NUMBER(link.interference_ns.value, 2));
}

void model_write_strategy(struct writer *w, const struct dpro_model *model,
                          const struct dpro_strategy *strategy)
{
    struct dpro_cycles cycles = dpro_strategy_cycles(strategy);
    writer_open(w, '{');
    writer_fields(w,
                  TEXT("compression", dpro_compression_name(dpro_strategy_compression(strategy))));
    if (cycles.cycle_ns > 0)
        writer_fields(w, MS("cycle_time_ms", cycles.cycle_ns));
    if (cycles.cycle_ns > 0 && cycles.fuses)
        writer_fields(w, INT("fusion_threshold_bytes", cycles.fusion_bytes));
    if (dpro_model_n_servers(model) > 0)
        writer_fields(w, INT("servers", dpro_model_n_servers(model)));
    WRITER_LIST (w, "buckets", i, dpro_strategy_n_buckets(strategy)) {
        struct dpro_bucket bucket = dpro_strategy_bucket(model, strategy, i);
        writer_item(w);
        writer_fields(w, INT("size_bytes", bucket.size_bytes),
                      INT("partitions", bucket.partitions));
        if (bucket.server >= 0)
            writer_fields(w, INT("server", bucket.server));
        writer_fields(w, INT("priority", bucket.priority));
        WRITER_LIST (w, "parameters", t, bucket.n_tensors)
            writer_string(w, dpro_model_tensor(model, bucket.tensors[t]).name);
        writer_close(w, '}');
    }
    writer_close(w, '}');
}

void model_write_communications(struct writer *w, const struct dpro_model *model)
{
    if (dpro_model_n_kinds(model) == 0)
        return;
    WRITER_ROWS (w, "communications", k, dpro_model_n_kinds(model)) {
        struct dpro_communications all = dpro_model_communications(model, k);
        writer_object(w, TEXT("kind", dpro_collective_kind_name(all.kind)), INT("count", all.n),
                      INT("size_bytes", all.size_bytes), MS("took_ms", all.took_ns));
    }
}

void model_write_peaks(struct writer *w, const struct dpro_memory_peak *before,
                       const struct dpro_memory_peak *after)
{
    writer_fields(
        w, INT("baseline_peak_bytes", before->bytes), INT("peak_bytes", after->bytes),
        INT("peak_std_bytes", after->std_bytes),
        INT_IF("baseline_reserved_peak_bytes", before->reserved_bytes > 0, before->reserved_bytes),
        INT_IF("reserved_peak_bytes", after->reserved_bytes > 0, after->reserved_bytes),
        INT_IF("refused_bytes", after->refused_bytes > 0, after->refused_bytes));
}

void model_write_categories(struct writer *w, const char *key, const struct dpro_memory_peak *peak)
{
    writer_begin(w, key, '{');
    for (int c = 0; c < DPRO_N_MEMORY_CATEGORIES; c++)
        writer_fields(
            w, INT(dpro_memory_category_name((enum dpro_memory_category)c), peak->by_category[c]));
    writer_close(w, '}');
}

void model_write_modules(struct writer *w, const char *key, const struct dpro_model *model,
                         const struct dpro_strategy *strategy, unsigned ways)
{
    WRITER_LIST (w, key, m, model->n_modules) {
        bool recomputed = strategy->recomputed && strategy->recomputed[m];
        if (ways ? (computing_way(model, strategy, m) & ways) != 0 : recomputed)
            writer_string(w, model->modules[m].name);
    }
}

void model_write_link(struct writer *w, const struct dpro_model *model)
{
    writer_key(w, "link");
    bool buckets = dpro_model_n_tensors(model) > 0;
    if (!buckets && dpro_model_n_kinds(model) == 0) {
        writer_null(w);
        return;
    }
    struct dpro_link link = dpro_model_link(model);
    const struct {
        const char *key;
        struct dpro_estimate estimate;
        bool known;
    } estimates[] = {
        {"bandwidth_bytes_per_s", link.bandwidth_bytes_per_s, link.bandwidth_bytes_per_s.value > 0},
        {"message_ns", link.message_ns, true},
        {"within_host_bytes_per_s", link.within_bytes_per_s, link.within_bytes_per_s.value > 0},
        {"within_host_message_ns", link.within_message_ns, link.within_bytes_per_s.value > 0},
        {"collective_ns", link.collective_ns, buckets},
        {"launch_ns", link.launch_ns, buckets},
        {"handling_ns", link.handling_ns, buckets},
        {"hook_ns", link.hook_ns, buckets},
        {"reduce_ns_per_byte", link.reduce_ns, buckets},
        {"copy_ns_per_byte", link.copy_ns, buckets},
        {"cast_ns_per_byte", link.cast_ns, buckets},
        {"interference_ns_per_byte", link.interference_ns, true}};
    writer_open(w, '{');
    writer_fields(w, TEXT("algorithm", buckets ? link.algorithm : NULL),
                  INT_IF("collectives_at_once", buckets, link.n_streams),
                  buckets ? BOOL("in_order", link.in_order) : NUL("in_order"));
    for (size_t i = 0; i < sizeof estimates / sizeof *estimates; i++) {
        bool known = estimates[i].known;
        writer_object_at(w, estimates[i].key,
                         FIXED_IF("value", known, estimates[i].estimate.value, 6),
                         FIXED_IF("std", known, estimates[i].estimate.std, 6));
    }
    writer_close(w, '}');
}
