/* What a search did for memory: as text and as JSON. */
#include "report/optimize_memory.h"

#include "report/model_report.h"
#include "report/table.h"

static const char *place_of(char out[160], const struct dpro_memory_peak *peak)
{
    struct words words = {.n = 0};
    words_add(&words, "", "on rank %d", peak->rank);
    if (peak->in_recomputation)
        words_add(&words, "", ", while %.60s is computed again",
                  peak->module ? peak->module : "it");
    else if (peak->phase == DPRO_OP_FW || peak->phase == DPRO_OP_BW)
        words_add(&words, "", ", in the %s pass",
                  peak->phase == DPRO_OP_FW ? "forward" : "backward");
    else if (peak->phase == DPRO_OP_UPDATE)
        words_add(&words, "", ", in the update");
    snprintf(out, 160, "%.159s", words.text);
    return out;
}

#define PLACE(peak) place_of((char[160]){""}, peak)

static struct dpro_memory_choice lowest_choice(const struct dpro_optimum *optimum)
{
    struct dpro_memory_choice lowest = {.peak_bytes = UINT64_MAX};
    for (uint32_t i = 0; i < dpro_optimum_n_memory_choices(optimum); i++) {
        struct dpro_memory_choice choice = dpro_optimum_memory_choice(optimum, i);
        if (choice.peak_bytes < lowest.peak_bytes)
            lowest = choice;
    }
    return lowest;
}

void optimize_memory_text(struct writer *w, const struct dpro_optimize_report *r, const char *time)
{
    struct dpro_memory_budget b = dpro_optimum_memory_budget(r->optimum);
    struct dpro_memory_peak before = dpro_optimum_memory_peak(r->optimum, DPRO_BASELINE);
    struct dpro_memory_peak best = dpro_optimum_memory_peak(r->optimum, DPRO_BEST);
    if (before.bytes == 0)
        return;
    if (b.needed && b.fits) {
        table_paragraph(w, "Verdict", 10, "%s at the peak instead of %s, which fits the %s, %s",
                        BYTES_TEXT(best.bytes), BYTES_TEXT(before.bytes),
                        BYTES_TEXT(b.budget_bytes), time);
    } else if (b.needed) {
        struct dpro_memory_choice lowest = lowest_choice(r->optimum);
        table_paragraph(w, "Verdict", 10,
                        "nothing that was tried fits %s: the job holds %s at its peak (%s), "
                        "and at least %s (%s), which is %s too much; the smallest budget that "
                        "it fits is %s (--memory %llu)",
                        BYTES_TEXT(b.budget_bytes), BYTES_TEXT(before.bytes), PLACE(&before),
                        BYTES_TEXT(b.least_bytes), lowest.name,
                        BYTES_TEXT(b.least_bytes - b.budget_bytes), BYTES_TEXT(b.least_bytes),
                        (unsigned long long)b.least_bytes);
    } else {
        char fits[NUMBER_TEXT + 24] = "";
        if (b.budget_bytes > 0)
            snprintf(fits, sizeof fits, ", which fits %s", BYTES_TEXT(b.budget_bytes));
        table_paragraph(w, "Memory", 10, "%s at its peak by the model (%s)%s",
                        BYTES_TEXT(best.bytes), PLACE(&best), fits);
    }
}

void optimize_memory_words(struct words *words, const struct dpro_optimum *optimum,
                           enum dpro_which which)
{
    const struct dpro_model *model = dpro_optimum_model(optimum, which);
    const struct dpro_strategy *strategy = dpro_optimum_strategy(optimum, which);
    uint32_t n = 0, parts = dpro_strategy_micro_batches(strategy);
    for (uint32_t m = 0; m < dpro_model_n_modules(model); m++)
        n += dpro_strategy_module(model, strategy, m).recomputed != 0;
    if (n > 0)
        words_add(words, "", ", recomputing %u module%s", n, PLURAL(n));
    if (parts > 1)
        words_add(words, "", ", in %u micro-batches", parts);
}

void optimize_memory_table(struct writer *w, const struct dpro_optimize_report *r)
{
    struct table t = {.n_cols = 6, .left = {true, false, false, false, false, true}};
    uint32_t n = dpro_optimum_n_memory_choices(r->optimum);
    int64_t own_ns = dpro_optimum_summary(r->optimum).baseline_ns;
    if (n == 0)
        return;
    table_cells(&t, "for memory", "modules", "iteration", "change", "peak", "");
    for (uint32_t i = 0; i < n; i++) {
        struct dpro_memory_choice choice = dpro_optimum_memory_choice(r->optimum, i);
        table_cells(&t, choice.name);
        table_cell(&t, "%u", choice.n_recomputed);
        table_cells(&t, TIME(choice.iteration_ns));
        table_cell(&t, "%s %%", SIGNED(100 * ((double)choice.iteration_ns / (double)own_ns - 1)));
        table_cell(&t, "%s", BYTES_TEXT(choice.peak_bytes));
        table_cells(&t, choice.chosen ? "chosen" : choice.fits ? "fits" : "");
    }
    writer_text(w, "\n");
    table_write(w, &t);
}

/* Halves of 95 %. */
const char *optimize_memory_warning(char out[224], const struct dpro_optimize_report *r)
{
    struct dpro_memory_budget b = dpro_optimum_memory_budget(r->optimum);
    struct dpro_memory_peak best = dpro_optimum_memory_peak(r->optimum, DPRO_BEST);
    double most = (double)best.bytes + HALF_OF_95_PCT * best.std_bytes;
    out[0] = '\0';
    if (b.budget_bytes > 0 && b.fits && most > (double)b.budget_bytes)
        snprintf(
            out, 224, "the peak is unsure by +- %s and may not fit; a budget of %s is sure to",
            BYTES_TEXT(llround(HALF_OF_95_PCT * best.std_bytes)),
            BYTES_TEXT(llround(fmax(0, (double)b.budget_bytes - HALF_OF_95_PCT * best.std_bytes))));
    return out;
}

/* ---- JSON ---- */

static void write_choices(struct writer *w, const struct dpro_optimum *optimum)
{
    writer_begin(w, "choices", '[');
    for (uint32_t i = 0; i < dpro_optimum_n_memory_choices(optimum); i++) {
        struct dpro_memory_choice c = dpro_optimum_memory_choice(optimum, i);
        writer_row(w, TEXT("name", c.name), INT("computed", c.n_computed),
                   INT("recomputed", c.n_recomputed), INT("micro_batches", c.micro_batches),
                   MS("iteration_ms", c.iteration_ns), INT("peak_bytes", c.peak_bytes),
                   BOOL("fits", c.fits), BOOL("chosen", c.chosen), BOOL("exact", c.exact));
    }
    writer_close(w, ']');
}

void optimize_memory_json(struct writer *w, const struct dpro_optimize_report *r)
{
    struct dpro_memory_budget b = dpro_optimum_memory_budget(r->optimum);
    struct dpro_memory_peak before = dpro_optimum_memory_peak(r->optimum, DPRO_BASELINE);
    struct dpro_memory_peak best = dpro_optimum_memory_peak(r->optimum, DPRO_BEST);
    const struct dpro_model *model = dpro_optimum_model(r->optimum, DPRO_BEST);
    const struct dpro_strategy *strategy = dpro_optimum_strategy(r->optimum, DPRO_BEST);
    writer_newline(w);
    if (before.bytes == 0) {
        writer_fields(w, NUL("memory"));
        return;
    }
    writer_begin(w, "memory", '{');
    model_write_peaks(w, &before, &best);
    writer_fields(w, INT_IF("budget_bytes", b.budget_bytes > 0, b.budget_bytes),
                  INT_IF("capacity_bytes", b.capacity_bytes > 0, b.capacity_bytes),
                  BOOL("fits", b.fits), INT_IF("least_budget_bytes", b.needed, b.least_bytes));
    model_write_modules(w, "recompute", model, strategy, 0);
    writer_fields(w, INT("micro_batches", dpro_strategy_micro_batches(strategy)));
    model_write_categories(w, "baseline_by_category", &before);
    model_write_categories(w, "by_category", &best);
    write_choices(w, r->optimum);
    writer_close(w, '}');
}
