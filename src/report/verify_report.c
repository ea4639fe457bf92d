/* What a plan was worth, as text and as JSON (dpro.verify/1). */

#include "base/writer.h"
#include "report/table.h"
#include "report/words.h"
#include "verify/verify.h"

#define TOLD_APART 1.0 /* percent */

static void gain_text(char *out, size_t size, struct gain gain)
{
    if (isnan(gain.low))
        snprintf(out, size, "%s %%", NUMBER(gain.mean, 1));
    else
        snprintf(out, size, "%s %% (95 %% sure: %s to %s)", NUMBER(gain.mean, 1),
                 NUMBER(gain.low, 1), NUMBER(gain.high, 1));
}

/* The verdicts' keys in JSON, and what is said before and behind the gain. */
static const struct {
    const char *key, *before, *behind;
} verdicts[] = {
    [VERIFY_SAME] = {"same",
                     "the plan's buckets are those that the job has by itself, so there is nothing "
                     "to compare: that its turns save ",
                     " is the machine's noise"},
    [VERIFY_NO_INTERVAL] = {"no-interval", "the plan saves ",
                            " of an iteration in one block, which is too few to exclude noise"},
    [VERIFY_NOISE] = {"noise", "no difference beyond noise: the plan saves ", ""},
    [VERIFY_SLOWER] = {"slower", "the plan is slower than what the job does by itself: it saves ",
                       ""},
    [VERIFY_FASTER] = {"faster", "the plan saves ", " of an iteration"},
    [VERIFY_AS_EXPECTED] = {"as-expected", "the plan saves ", " of an iteration, as expected"},
    [VERIFY_LESS] = {"less", "the plan saves ", " of an iteration, less than expected"},
    [VERIFY_MORE] = {"more", "the plan saves ", " of an iteration, more than expected"},
};

static void write_verdict(struct writer *w, const struct dpro_verify *v)
{
    enum verify_verdict verdict = verify_verdict(v);
    const struct configuration *own = &v->configurations[0], *plan = &v->configurations[1];
    bool saves_memory = plan->peak_bytes > 0 && plan->peak_bytes < own->peak_bytes;
    const char *before = verdict == VERIFY_SLOWER && saves_memory
                             ? "the plan takes more time, for less memory: it saves "
                             : verdicts[verdict].before;
    char gain[128], expected[80] = "";
    gain_text(gain, sizeof gain, plan->gain);
    if (!isnan(verify_expected_gain(v)) &&
        (verdict == VERIFY_NOISE || verdict >= VERIFY_AS_EXPECTED))
        snprintf(expected, sizeof expected,
                 verdict == VERIFY_NOISE ? ", expected %s +- %s %%" : " (%s +- %s %%)",
                 NUMBER(verify_expected_gain(v), 1), NUMBER(verify_expected_uncertainty(v), 1));
    table_paragraph(w, "", 0, "%s%s%s%s", before, gain, verdicts[verdict].behind, expected);
}

/* Where the medians of the table tell another gain than the halves of blocks. */
static void write_medians(struct writer *w, const struct dpro_verify *v)
{
    const struct configuration *own = &v->configurations[0], *plan = &v->configurations[1];
    double by_medians = 100 * (1 - plan->iteration_ms / own->iteration_ms);
    if (fabs(by_medians - plan->gain.mean) >= TOLD_APART)
        table_paragraph(w, "", 0,
                        "the iterations above (medians of all turns) differ by %s %%, because the "
                        "machine's speed changed meanwhile; the gain does not have that in it, as "
                        "it compares turns that follow each other",
                        NUMBER(by_medians, 1));
}

/* What the plan, and what the job by itself, held at most. */
static void write_peaks(struct writer *w, const struct dpro_verify *v)
{
    int64_t own = v->configurations[0].peak_bytes, planned = v->configurations[1].peak_bytes;
    if (own > 0 && planned > 0)
        table_paragraph(w, "", 0, "peak of memory on rank 0: %s with the plan, %s without (%s %%)",
                        BYTES_TEXT((uint64_t)planned), BYTES_TEXT((uint64_t)own),
                        SIGNED(100 * ((double)planned / (double)own - 1)));
}

static void write_turns(struct writer *w, const struct dpro_verify *v)
{
    struct words line = {.n = 0};
    words_add(&line, "", "%zu block%s of mirrored turns", v->n_blocks, v->n_blocks > 1 ? "s" : "");
    if (v->one_run)
        words_add(&line, ", ", "%lld steps a turn after %lld to settle", (long long)v->n_steps,
                  (long long)v->settle);
    else
        words_add(&line, ", ", "each a run of the job: %lld steps after %lld to warm up",
                  (long long)v->n_steps, (long long)v->warmup);
    words_add(&line, "; ", "%lld rank%s", (long long)v->world_size, v->world_size > 1 ? "s" : "");
    if (!v->complete)
        words_add(&line, "; ", "%lld were wanted, but %s", (long long)v->blocks_wanted,
                  v->problem   ? v->problem
                  : v->one_run ? "the job ended"
                               : "the others are missing");
    if (!v->complete && v->one_run)
        words_add(&line, " ", "after step %lld", (long long)v->last_step);
    table_wrapped(w, "", 0, line.text);
}

static void write_text(struct writer *w, const void *verify)
{
    const struct dpro_verify *v = verify;
    struct table t = {.n_cols = 6, .left = {true}};
    bool told = v->n_blocks >= VERIFY_LEAST_BLOCKS;
    char gain[128];
    table_cells(&t, "strategy", "iteration ms", "buckets", "saves %", "95 % low", "high");
    for (size_t c = 0; c < v->n_configurations; c++) {
        const struct configuration *config = &v->configurations[c];
        table_cells(&t, config->name, NUMBER(config->iteration_ms, 1),
                    config->n_buckets > 0 ? NUMBER((double)config->n_buckets, 0) : "-",
                    c > 0 ? NUMBER(config->gain.mean, 1) : "-",
                    c > 0 && told ? NUMBER(config->gain.low, 1) : "-",
                    c > 0 && told ? NUMBER(config->gain.high, 1) : "-");
    }
    table_write(w, &t);
    writer_text(w, "\n");
    write_verdict(w, v);
    write_medians(w, v);
    write_peaks(w, v);
    if (v->best >= 0) {
        gain_text(gain, sizeof gain, v->over_best);
        table_paragraph(w, "", 0, "the best alternative is %s: compared with it the plan saves %s",
                        v->configurations[v->best].name, gain);
    }
    write_turns(w, v);
    for (size_t i = 0; i < v->warnings.n; i++)
        table_wrapped(w, "warning: ", 9, v->warnings.at[i]);
}

REPORT(dpro_verify_text, dpro_verify, write_text)

static void key_gain(struct writer *w, const char *key, bool known, struct gain gain)
{
    writer_object_if(w, key, known, FIXED("mean", gain.mean, 3), FIXED("low", gain.low, 3),
                     FIXED("high", gain.high, 3));
}

static void write_configuration(struct writer *w, const struct dpro_verify *v, size_t c)
{
    const struct configuration *config = &v->configurations[c];
    writer_item(w);
    writer_fields(w, TEXT("name", config->name), FIXED("iteration_ms", config->iteration_ms, 6));
    if (c > 0)
        key_gain(w, "gain_pct", true, config->gain);
    writer_fields(w, INT_IF("peak_bytes", config->peak_bytes > 0, config->peak_bytes));
    WRITER_LIST (w, "per_turn_ms", h, 2 * v->n_blocks)
        writer_json_fixed(w, v->times[h * v->n_configurations + c], 6);
    WRITER_LIST (w, "per_turn_page_faults", h, 2 * v->n_blocks) {
        const struct turn *turn = verify_turn(v, h, c);
        writer_json_fixed(w, (double)turn->page_faults / (double)turn->n, 1);
    }
    WRITER_LIST (w, "bucket_bytes", i, config->n_buckets)
        writer_json_int(w, v->bucket_bytes.at[config->first_bucket + i]);
    writer_close(w, '}');
}

static void write_json(struct writer *w, const void *verify)
{
    const struct dpro_verify *v = verify;
    double expected = verify_expected_gain(v);
    writer_open(w, '{');
    writer_fields(w, TEXT("schema", "dpro.verify/1"), TEXT("version", dpro_version()),
                  TEXT("plan", v->plan_path), TEXT("framework_version", v->framework_version),
                  INT("world_size", v->world_size));
    writer_key(w, "models");
    writer_json_strings(w, v->models.at, v->models.n);
    writer_fields(w, INT("blocks", v->n_blocks), INT("steps", v->n_steps), INT("settle", v->settle),
                  INT("warmup", v->warmup), TEXT("turns", v->one_run ? "steps" : "runs"),
                  INT("runs", v->n_runs), BOOL("complete", v->complete),
                  TEXT("problem", v->problem));
    WRITER_ROWS (w, "configurations", c, v->n_configurations)
        write_configuration(w, v, c);
    writer_newline(w);
    key_gain(w, "gain_pct", true, v->configurations[1].gain);
    writer_fields(
        w, FIXED("expected_gain_pct", expected, 3),
        FIXED_IF("expected_uncertainty_pct", !isnan(expected), verify_expected_uncertainty(v), 3),
        TEXT("verdict", verdicts[verify_verdict(v)].key),
        TEXT("best_other", v->best >= 0 ? v->configurations[v->best].name : NULL));
    key_gain(w, "gain_over_best_other_pct", v->best >= 0, v->over_best);
    writer_newline(w);
    writer_key(w, "warnings");
    writer_json_strings(w, v->warnings.at, v->warnings.n);
    writer_close(w, '}');
    writer_text(w, "\n");
}

REPORT(dpro_verify_json, dpro_verify, write_json)
