/* What a search did for memory: as text and as JSON. */
#include "report/optimize_facts.h"

#include "optimize/result.h"
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
    EACH (const struct dpro_memory_choice, choice, optimum->memory.choices)
        if (choice->peak_bytes < lowest.peak_bytes)
            lowest = *choice;
    return lowest;
}

/* What is left of a budget beside the peak goes to what the job never gives back. */
static void say_leak(struct lines *to, const struct dpro_memory_budget *b, uint64_t peak_bytes)
{
    uint64_t left = b->budget_bytes > peak_bytes ? b->budget_bytes - peak_bytes : 0;
    struct words words = {.n = 0};
    words_add(&words, "", "each iteration keeps %s more: with the %s", BYTES_TEXT(b->growth_bytes),
              BYTES_TEXT(b->leaked_bytes));
    words_add(&words, " ", "that had come together when it was recorded the job holds %s, which",
              BYTES_TEXT(peak_bytes + b->leaked_bytes));
    if (b->leaked_bytes > left)
        words_add(&words, " ", "does not fit %s: stop that first", BYTES_TEXT(b->budget_bytes));
    else
        words_add(&words, " ", "fits %s for %llu iterations more", BYTES_TEXT(b->budget_bytes),
                  (unsigned long long)((left - b->leaked_bytes) / MAX(b->growth_bytes, 1)));
    lines_say(to, "Leak", "%s", words.text);
}

void optimize_memory_say(struct lines *to, const struct optimize_facts *f, const char *time)
{
    const struct dpro_memory_budget b = f->budget;
    const struct dpro_memory_peak before = f->peaks[DPRO_BASELINE], best = f->peaks[DPRO_BEST];
    const struct dpro_memory_peak kept = f->peaks[f->planned];
    if (before.bytes == 0)
        return;
    if (b.needed && b.fits) {
        lines_say(to, "Verdict", "%s at the peak instead of %s, which fits the %s, %s",
                  BYTES_TEXT(best.bytes), BYTES_TEXT(before.bytes), BYTES_TEXT(b.budget_bytes),
                  time);
    } else if (b.needed) {
        struct dpro_memory_choice lowest = lowest_choice(f->report->optimum);
        lines_say(to, "Verdict",
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
        lines_say(to, "Memory", "%s at its peak by the model (%s)%s", BYTES_TEXT(kept.bytes),
                  PLACE(&kept), fits);
    }
    const struct dpro_memory_peak *then = b.needed && b.fits ? &best : &kept;
    if (b.budget_bytes > 0 && then->reserved_bytes > b.budget_bytes && (b.fits || !b.needed))
        lines_say(to, "Reserved",
                  "%s, free blocks of the allocator included, which is more than %s: give a budget "
                  "that leaves it room, or set expandable_segments",
                  BYTES_TEXT(then->reserved_bytes), BYTES_TEXT(b.budget_bytes));
    if (b.leaked_bytes > 0 && b.budget_bytes > 0 && (b.fits || !b.needed))
        say_leak(to, &b, kept.bytes);
}

uint32_t optimize_n_recomputed(const struct dpro_optimum *optimum, enum dpro_which which)
{
    const struct dpro_model *model = dpro_optimum_model(optimum, which);
    const struct dpro_strategy *strategy = dpro_optimum_strategy(optimum, which);
    uint32_t n = 0;
    for (uint32_t m = 0; m < dpro_model_n_modules(model); m++)
        n += dpro_strategy_module(model, strategy, m).recomputed != 0;
    return n;
}

void optimize_memory_words(struct words *words, const struct dpro_optimum *optimum,
                           enum dpro_which which)
{
    uint32_t n = optimize_n_recomputed(optimum, which);
    uint32_t parts = dpro_strategy_micro_batches(dpro_optimum_strategy(optimum, which));
    if (n > 0)
        words_add(words, "", ", recomputing %u module%s", n, PLURAL(n));
    if (parts > 1)
        words_add(words, "", ", in %u micro-batches", parts);
}

void optimize_memory_table(struct writer *w, const struct optimize_facts *f)
{
    const struct dpro_optimum *optimum = f->report->optimum;
    struct table t = {.n_cols = 6, .left = {true, false, false, false, false, true}};
    uint32_t n = dpro_optimum_n_memory_choices(optimum);
    double own_ns = (double)f->found.baseline_ns;
    if (n == 0)
        return;
    table_cells(&t, "for memory", "modules", f->is_likely_other ? "likely" : "iteration", "change",
                "peak", "");
    for (uint32_t i = 0; i < n; i++) {
        struct dpro_memory_choice choice = dpro_optimum_memory_choice(optimum, i);
        table_cells(&t, choice.name);
        table_cell(&t, "%u", choice.n_recomputed);
        table_cells(&t, TIME(choice.iteration_ns));
        table_cell(&t, "%s %%", SIGNED(100 * ((double)choice.iteration_ns / own_ns - 1)));
        table_cell(&t, "%s", BYTES_TEXT(choice.peak_bytes));
        table_cells(&t, choice.chosen ? "chosen" : choice.fits ? "fits" : "");
    }
    writer_text(w, "\n");
    table_write(w, &t);
}

/* Halves of 95 %. */
void optimize_memory_fill(struct optimize_facts *f)
{
    for (int which = DPRO_BASELINE; which <= DPRO_BEST; which++)
        f->peaks[which] = dpro_optimum_memory_peak(f->report->optimum, (enum dpro_which)which);
    f->budget = dpro_optimum_memory_budget(f->report->optimum);
    f->is_for_memory = f->budget.needed != 0;
    if (f->is_for_memory)
        f->helps = f->budget.fits != 0;
    f->planned = f->helps ? DPRO_BEST : DPRO_BASELINE;
    const struct dpro_memory_peak *kept = &f->peaks[f->planned];
    double half = HALF_OF_95_PCT * kept->std_bytes;
    double budget = (double)f->budget.budget_bytes;
    if (budget > 0 && f->budget.fits && (double)kept->bytes + half > budget)
        snprintf(f->unsure_peak, sizeof f->unsure_peak,
                 "the peak is unsure by +- %s and may not fit; a budget of %s is sure to",
                 BYTES_TEXT(llround(half)), BYTES_TEXT(llround(fmax(0, budget - half))));
}

/* ---- JSON ---- */

static void write_choices(struct writer *w, const struct dpro_optimum *optimum)
{
    WRITER_LIST_OF (w, "choices", const struct dpro_memory_choice, c, optimum->memory.choices.at,
                    optimum->memory.choices.n)
        writer_row(w, TEXT("name", c->name), INT("computed", c->n_computed),
                   INT("recomputed", c->n_recomputed), INT("micro_batches", c->micro_batches),
                   MS("iteration_ms", c->iteration_ns), INT("peak_bytes", c->peak_bytes),
                   BOOL("fits", c->fits), BOOL("chosen", c->chosen), BOOL("exact", c->exact));
}

void optimize_memory_json(struct writer *w, const struct optimize_facts *f)
{
    const struct dpro_optimum *optimum = f->report->optimum;
    const struct dpro_memory_budget b = f->budget;
    const struct dpro_memory_peak *before = &f->peaks[DPRO_BASELINE], *best = &f->peaks[DPRO_BEST];
    const struct dpro_model *model = dpro_optimum_model(optimum, DPRO_BEST);
    const struct dpro_strategy *strategy = dpro_optimum_strategy(optimum, DPRO_BEST);
    writer_newline(w);
    if (before->bytes == 0) {
        writer_fields(w, NUL("memory"));
        return;
    }
    writer_begin(w, "memory", '{');
    model_write_peaks(w, before, best);
    writer_fields(w, INT_IF("budget_bytes", b.budget_bytes > 0, b.budget_bytes),
                  INT_IF("capacity_bytes", b.capacity_bytes > 0, b.capacity_bytes),
                  BOOL("fits", b.fits), INT_IF("least_budget_bytes", b.needed, b.least_bytes),
                  INT_IF("leaked_bytes", b.leaked_bytes > 0, b.leaked_bytes));
    model_write_modules(w, "recompute", model, strategy, 0);
    writer_fields(w, INT("micro_batches", dpro_strategy_micro_batches(strategy)));
    model_write_categories(w, "baseline_by_category", before);
    model_write_categories(w, "by_category", best);
    write_choices(w, optimum);
    writer_close(w, '}');
}
