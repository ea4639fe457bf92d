/* A what-if as text and as JSON (dpro.whatif/1; keys are never renamed or dropped). */

#include <dpro/report.h>

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

#define MBIT       (1e6 / 8)
#define MIB(bytes) ((double)(bytes) / 1048576)

/* Of a field that holds one value; as JSON has it. */
static struct writer_field value_of(const struct dpro_change_field *f, const struct dpro_changes *c)
{
    const void *at = (const char *)c + f->offset;
    switch (f->type) {
    case DPRO_CHANGE_SWITCH:
    case DPRO_CHANGE_COUNT:
        return INT(f->key, *(const uint32_t *)at);
    case DPRO_CHANGE_LONG_COUNT:
    case DPRO_CHANGE_ADDED_TIME:
        return INT(f->key, *(const int64_t *)at);
    case DPRO_CHANGE_BYTES:
        return FIXED(f->key, MIB(*(const uint64_t *)at), 6);
    case DPRO_CHANGE_LIMIT:
        return FIXED(f->key, MIB(**(const uint64_t *const *)at), 6);
    case DPRO_CHANGE_RATE:
        return FIXED(f->key, *(const double *)at, 3);
    case DPRO_CHANGE_RATIO:
        return FIXED(f->key, *(const double *)at, 6);
    case DPRO_CHANGE_TIME:
        return MS(f->key, *(const int64_t *)at);
    case DPRO_CHANGE_SCHEDULE:
        return TEXT(f->key, dpro_schedule_name(*(const enum dpro_schedule *)at));
    case DPRO_CHANGE_COMPRESSION:
        return TEXT(f->key, dpro_compression_name(**(const enum dpro_compression *const *)at));
    default:
        return TEXT(f->key, *(const char *const *)at);
    }
}

/* NULL: what the job has. */
static const char *processor_name(const struct dpro_compute_change *change)
{
    static const char *const names[] = {NULL, "CPU", "GPU"};
    return names[change->processor];
}

static void say_speeds(struct words *words, const struct dpro_changes *c)
{
    for (size_t i = 0; i < c->n_compute; i++) {
        int first = c->compute[i].first_rank, last = c->compute[i].last_rank;
        char who[40] = "";
        if (first >= 0)
            snprintf(who, sizeof who, first == last ? "rank %d " : "ranks %d-%d ", first, last);
        const char *on = processor_name(&c->compute[i]);
        words_add(words, ", ", "%scomputing %s times as fast%s%s", who,
                  TRIMMED(c->compute[i].speed), on ? " on the " : "", on ? on : "");
    }
}

static void say_change(struct words *words, const struct dpro_change_kind *kind,
                       const struct dpro_change_field *f, const struct dpro_changes *c)
{
    struct writer_field value = value_of(f, c);
    double unit = f->type == DPRO_CHANGE_RATE         ? MBIT
                  : f->type == DPRO_CHANGE_TIME       ? 1e6
                  : f->type == DPRO_CHANGE_ADDED_TIME ? 1e3
                                                      : 1;
    double number = value.kind == WRITER_FIXED ? value.real : (double)value.number;
    const char *text = value.text ? value.text : TRIMMED(number / unit);
    bool least = value.text ? kind->choices && strcmp(text, kind->choices[0]) == 0
                            : number <= (double)kind->least;
    const char *said = kind->said_least && least ? kind->said_least : f->said;
    const char *mark = strstr(said, "%s");
    if (mark)
        words_add(words, ", ", "%.*s%s%s", (int)(mark - said), said, text, mark + 2);
    else
        words_add(words, ", ", "%s", said);
}

static void say_changes(struct words *words, const struct dpro_changes *c)
{
    for (size_t i = 0; i < dpro_n_change_kinds(); i++) {
        const struct dpro_change_kind *kind = dpro_change_kind(i);
        for (const struct dpro_change_field *f = kind->fields; f->name; f++)
            if (!dpro_change_is_asked(c, f))
                continue;
            else if (f->type == DPRO_CHANGE_SPEEDS)
                say_speeds(words, c);
            else if (f->type == DPRO_CHANGE_TEXTS)
                for (size_t d = 0; d < c->n_delays; d++)
                    words_add(words, ", ", "%.100s", c->delays[d]);
            else
                say_change(words, kind, f, c);
    }
}

static void write_compute(struct writer *w, const struct dpro_changes *c)
{
    WRITER_LIST (w, "compute", i, c->n_compute) {
        const int ranks[] = {c->compute[i].first_rank, c->compute[i].last_rank};
        writer_open(w, '{');
        writer_fields(w, FIXED("speed", c->compute[i].speed, 6));
        writer_key(w, "ranks"); /* first and last; null: all */
        if (ranks[0] < 0)
            writer_null(w);
        else
            writer_json_ints(w, ranks, 2);
        writer_fields(w, TEXT("processor", processor_name(&c->compute[i])));
        writer_close(w, '}');
    }
}

static void write_change(struct writer *w, const struct dpro_change_field *f,
                         const struct dpro_changes *c)
{
    if (f->type == DPRO_CHANGE_SPEEDS) {
        write_compute(w, c);
    } else if (f->type == DPRO_CHANGE_TEXTS) {
        writer_key(w, f->key);
        writer_json_strings(w, c->delays, c->n_delays);
    } else {
        writer_fields(w, value_of(f, c));
    }
}

static void write_changes(struct writer *w, const struct dpro_changes *c)
{
    writer_begin(w, "changes", '{');
    for (size_t i = 0; i < dpro_n_change_kinds(); i++)
        for (const struct dpro_change_field *f = dpro_change_kind(i)->fields; f->name; f++)
            if (dpro_change_is_asked(c, f))
                write_change(w, f, c);
    writer_close(w, '}');
}

/* ---- what can be asked ---- */

/* Why a question can't be asked, or what is not predicted of it; NULL: nothing. */
static const char *why_of(const struct dpro_question *q)
{
    char itself[40];
    int n = snprintf(itself, sizeof itself, "--%s: ", q->kind->option);
    const char *why = q->why.text;
    return why[0] == '\0' ? NULL : strncmp(why, itself, (size_t)n) == 0 ? why + n : why;
}

static void write_can(struct writer *w, const struct dpro_question *q)
{
    enum { INDENT = 20 };
    char option[INDENT];
    struct words words = {.n = 0};
    if (q->recorded[0] != '\0')
        words_add(&words, "", "now %s", q->recorded);
    if (why_of(q))
        words_add(&words, "; ", "%s", why_of(q));
    snprintf(option, sizeof option, words.n > 0 ? "--%s " : "--%s", q->kind->option);
    table_escaped(w, option, words.n > 0 ? INDENT : 0, words.text);
}

/* All that can't be asked for one reason, which stands with the first of them. */
static void write_cannot(struct writer *w, const struct dpro_whatif_answer *a, size_t first)
{
    const char *why = why_of(&a->questions[first]);
    struct words words = {.n = 0};
    for (size_t i = 0; i < a->n_questions; i++) {
        const struct dpro_question *q = &a->questions[i];
        if (q->why.code == 0 || strcmp(why_of(q), why) != 0)
            continue;
        if (i < first)
            return;
        words_add(&words, ", ", "--%s", q->kind->option);
    }
    words_add(&words, ": ", "%s", why);
    char option[40];
    size_t len = strcspn(words.text, " ") + 1;
    snprintf(option, sizeof option, "%.*s", (int)len, words.text);
    table_escaped(w, option, 4, words.text + len);
}

static void write_questions_text(struct writer *w, const struct dpro_whatif_answer *a)
{
    size_t n = a->n_questions, n_cannot = 0;
    if (n > 0)
        writer_text(w, "\nWhat can be asked of the job:\n");
    for (size_t i = 0; i < n; i++)
        if (a->questions[i].why.code == 0)
            write_can(w, &a->questions[i]);
    for (size_t i = 0; i < n; i++)
        if (a->questions[i].why.code != 0) {
            writer_text(w, n_cannot++ == 0 ? "\nWhat can't, and why:\n" : "");
            write_cannot(w, a, i);
        }
}

static void write_questions(struct writer *w, const struct dpro_whatif_answer *a)
{
    if (a->n_questions == 0)
        return;
    WRITER_ROWS (w, "questions", i, a->n_questions) {
        const struct dpro_question *q = &a->questions[i];
        writer_item(w);
        writer_fields(w, TEXT("option", q->kind->option), TEXT("argument", q->kind->argument),
                      BOOL("can_be_asked", q->why.code == 0),
                      TEXT("recorded", q->recorded[0] ? q->recorded : NULL), TEXT("why", why_of(q)),
                      BOOL("changes_numbers", q->kind->changes_numbers),
                      BOOL("is_of_plans", q->kind->is_of_plans));
        writer_begin(w, "keywords", '[');
        for (const struct dpro_change_field *f = q->kind->fields; f->name; f++)
            writer_string(w, f->name);
        writer_close(w, ']');
        writer_close(w, '}');
    }
}

/* ---- text ---- */

/* `units`: what stands there of FSDP's units; NULL: nothing. */
static void whatif_row(struct table *t, const char *name, struct dpro_prediction p,
                       const struct dpro_model *model, const char *units)
{
    bool any = dpro_model_n_tensors(model) > 0;
    table_cells(t, name, TIME(p.iteration_ns), NUMBER(p.uncertainty_pct, 1), TIME(p.p50_ns),
                TIME(p.p95_ns),
                units ? units
                : any ? STRATEGY(model, dpro_model_strategy(model))
                      : "");
}

/* How many of FSDP's units are gathered twice. */
static const char *units_text(const struct dpro_whatif_answer *a, bool after, char text[48])
{
    uint32_t resharded = 0;
    EACH_OF (const struct dpro_unit, unit, a->units, a->n_units)
        resharded += (after ? unit->reshards : unit->reshards_before) != 0;
    snprintf(text, 48, "%u of %u", resharded, a->n_units);
    return text;
}

static void write_verdict(struct writer *w, const struct dpro_whatif_answer *a)
{
    struct dpro_estimate speedup = a->speedup;
    double half = 1.96 * speedup.std;
    int64_t less = a->baseline.iteration_ns - a->predicted.iteration_ns;
    bool unsure = speedup.value + half >= 1 && speedup.value - half <= 1;
    if (a->untimed)
        table_wrapped(w, "Verdict", 9, a->untimed);
    else if (less == 0)
        table_wrapped(w, "Verdict", 9, "the same iteration time");
    else
        table_paragraph(w, "Verdict", 9, "%s %s an iteration, %s times as fast (+- %s)%s",
                        TIME(less < 0 ? -less : less), less > 0 ? "less" : "more",
                        NUMBER(speedup.value, 3), NUMBER(half, 3),
                        unsure ? ": too little to be sure of" : "");
}

static const char *phase_text(const struct dpro_memory_peak *peak)
{
    return peak->in_recomputation          ? "recomputing"
           : peak->phase == DPRO_OP_FW     ? "forward pass"
           : peak->phase == DPRO_OP_BW     ? "backward pass"
           : peak->phase == DPRO_OP_UPDATE ? "update"
                                           : NULL;
}

static bool asks_for_memory(const struct dpro_changes *c)
{
    for (size_t i = 0; i < dpro_n_change_kinds(); i++)
        for (const struct dpro_change_field *f = dpro_change_kind(i)->fields; f->name; f++)
            if (dpro_change_kind(i)->changes_memory && dpro_change_is_asked(c, f))
                return true;
    return false;
}

static void write_memory_text(struct writer *w, const struct dpro_whatif_answer *a,
                              const struct dpro_changes *c)
{
    struct dpro_memory_peak before = a->memory[0];
    struct dpro_memory_peak after = a->memory[1];
    const char *phase = phase_text(&after);
    double half = after.bytes > 0 ? 196 * after.std_bytes / (double)after.bytes : 0; /* 95 % */
    struct words where = {.n = 0}, reserved = {.n = 0}, to = {.n = 0};
    if (after.bytes == 0 || (!asks_for_memory(c) && after.bytes == before.bytes))
        return;
    words_add(&where, "", "rank %d", after.rank);
    if (phase)
        words_add(&where, ", ", "%s", phase);
    if (phase && after.module)
        words_add(&where, " ", after.module[0] ? "of %.200s" : "of the model itself", after.module);
    if (after.reserved_bytes > 0)
        words_add(&reserved, "", "; the allocator reserves %s -> %s",
                  BYTES_TEXT(before.reserved_bytes), BYTES_TEXT(after.reserved_bytes));
    if (after.refused_bytes > 0)
        words_add(&reserved, "", ", and a request of %s fails", BYTES_TEXT(after.refused_bytes));
    if (half < 100)
        words_add(&to, "", "%s +- %s %%", BYTES_TEXT(after.bytes), NUMBER(half, 1));
    else
        words_add(&to, "", "not known, up to %s",
                  BYTES_TEXT((uint64_t)((double)after.bytes * (1 + half / 100))));
    table_paragraph(w, "Memory", 9, "%s -> %s at its peak (%s)%s", BYTES_TEXT(before.bytes),
                    to.text, where.text, reserved.text);
}

/* What the interval is made of. */
static void write_parts(struct writer *w, const struct dpro_whatif_answer *a)
{
    struct words words = {.n = 0};
    for (int i = 0; i < DPRO_N_UNCERTAINTY_PARTS; i++)
        if (196 * a->uncertainty[i].after >= 0.05)
            words_add(&words, ", ", "%s %s", dpro_uncertainty_name((enum dpro_uncertainty_source)i),
                      NUMBER(196 * a->uncertainty[i].after, 1));
    if (words.n > 0)
        table_paragraph(w, "  +- %", 9, "of what if: %s (95 %%; squares add up)", words.text);
}

static const char *schedule_text(enum dpro_schedule schedule)
{
    return schedule ? dpro_schedule_name(schedule) : "another order";
}

/* How micro-batches pass through the pipeline, and how long its stages idle, before and after. */
static void write_pipeline_text(struct writer *w, const struct dpro_whatif_answer *a)
{
    enum { MOST_STAGES = 16 };
    struct dpro_pipeline_run before = a->pipeline[0];
    struct dpro_pipeline_run after = a->pipeline[1];
    struct words stages = {.n = 0};
    if (after.n_micro_batches == 0)
        return;
    for (uint32_t s = 0; s < a->n_stages && s < MOST_STAGES; s++)
        words_add(&stages, ", ", "%s -> %s %%", NUMBER(100 * a->bubbles[2 * s], 1),
                  NUMBER(100 * a->bubbles[2 * s + 1], 1));
    table_paragraph(w, "Pipeline", 9, "%u -> %u micro-batches, %s -> %s; stages stand still %s",
                    before.n_micro_batches, after.n_micro_batches, schedule_text(before.schedule),
                    schedule_text(after.schedule), stages.text);
}

static void write_text(struct writer *w, const void *report)
{
    const struct dpro_whatif_report *r = report;
    const struct dpro_whatif_answer *a = dpro_whatif_answer(r->whatif);
    struct table t = {.n_cols = 6, .left = {true, false, false, false, false, true}};
    struct words changes = {.n = 0};
    say_changes(&changes, r->changes);
    table_escaped(w, "What if", 9, changes.n > 0 ? changes.text : "nothing is changed");
    write_verdict(w, a);
    write_pipeline_text(w, a);
    write_memory_text(w, a, r->changes);
    write_questions_text(w, a);
    writer_text(w, "\n");
    char before[48], after[48];
    bool units = a->n_units > 0;
    table_cells(&t, "", "iteration", "+- %", "p50", "p95",
                units                                ? "units resharded"
                : dpro_model_n_tensors(r->model) > 0 ? "gradients in"
                                                     : "");
    whatif_row(&t, "as it ran", a->baseline, r->model, units ? units_text(a, false, before) : NULL);
    if (!a->untimed)
        whatif_row(&t, "what if", a->predicted, a->model,
                   units ? units_text(a, true, after) : NULL);
    table_write(w, &t);
    writer_text(w, "\n");
    write_parts(w, a);
    model_write_text(w, r->model);
    struct warnings warnings = warnings_of(r);
    warnings_write_text(w, &warnings, 1);
}

REPORT(dpro_whatif_text, dpro_whatif_report, write_text)

/* ---- JSON ---- */

static void write_prediction(struct writer *w, const char *key, struct dpro_prediction p,
                             const struct dpro_model *model)
{
    writer_section(w, key, '{');
    bool known = p.iteration_ns > 0;
    writer_fields(w, MS_IF("iteration_ms", known, p.iteration_ns), MS_IF("p50_ms", known, p.p50_ns),
                  MS_IF("p95_ms", known, p.p95_ns),
                  FIXED_IF("uncertainty_pct", known, p.uncertainty_pct, 3));
    writer_key(w, "communication");
    model_write_strategy(w, model, dpro_model_strategy(model));
    writer_close(w, '}');
}

static void write_units(struct writer *w, const struct dpro_whatif_answer *a)
{
    if (a->n_units == 0)
        return;
    WRITER_ROWS_OF (w, "units", const struct dpro_unit, unit, a->units, a->n_units)
        writer_object(w, TEXT("name", unit->name), BOOL("reshards_before", unit->reshards_before),
                      BOOL("reshards", unit->reshards));
}

static void write_run(struct writer *w, const struct dpro_whatif_answer *a, int after)
{
    struct dpro_pipeline_run run = a->pipeline[after];
    writer_begin(w, after ? "predicted" : "baseline", '{');
    writer_fields(w, INT("micro_batches", run.n_micro_batches),
                  TEXT("schedule", run.schedule ? dpro_schedule_name(run.schedule) : NULL));
    WRITER_LIST (w, "bubble_pct", s, a->n_stages)
        writer_json_fixed(w, 100 * a->bubbles[2 * s + after], 3);
    writer_close(w, '}');
}

static void write_pipeline(struct writer *w, const struct dpro_whatif_answer *a)
{
    if (a->n_stages == 0)
        return;
    writer_section(w, "pipeline", '{');
    write_run(w, a, 0);
    write_run(w, a, 1);
    writer_close(w, '}');
}

/* Halves of 95 % intervals, as uncertainty_pct is; of the speedup, a number. */
static void write_uncertainty(struct writer *w, const struct dpro_whatif_answer *a)
{
    static const char *const keys[] = {
        [DPRO_UNCERTAIN_LEARNT] = "learnt_numbers", [DPRO_UNCERTAIN_ITERATIONS] = "iterations",
        [DPRO_UNCERTAIN_MACHINE] = "machine_drift", [DPRO_UNCERTAIN_MODEL] = "model_misfit",
        [DPRO_UNCERTAIN_CHANGE] = "extrapolation",  [DPRO_UNCERTAIN_BATCH] = "batch_size",
        [DPRO_UNCERTAIN_COMPUTING] = "computing"};
    writer_section(w, "uncertainty", '{');
    for (int i = 0; i < DPRO_N_UNCERTAINTY_PARTS; i++) {
        struct dpro_uncertainty_part part = a->uncertainty[i];
        writer_object_at(w, keys[i], FIXED("baseline_pct", 196 * part.before, 3),
                         FIXED("predicted_pct", 196 * part.after, 3),
                         FIXED("speedup", 1.96 * part.speedup, 6));
    }
    writer_close(w, '}');
}

/* Where what the modules take in their ways comes from. */
static struct words source_of(const struct dpro_model *model)
{
    static const char *const sources[] = {"probes", "composed", "assumed"};
    bool is[3] = {false};
    struct words words = {.n = 0};
    for (uint32_t m = 0; m < dpro_model_n_modules(model); m++) {
        struct dpro_module module = dpro_strategy_module(model, dpro_model_strategy(model), m);
        int from = module.computing_composed ? 1 : module.computing_assumed ? 2 : 0;
        is[from] |= module.computing != 0;
    }
    for (int i = 0; i < 3; i++)
        if (is[i])
            words_add(&words, ", ", "%s", sources[i]);
    return words;
}

static void write_computation(struct writer *w, const struct dpro_whatif_answer *a,
                              const struct dpro_changes *c)
{
    const struct dpro_model *model = a->modules;
    const struct dpro_strategy *strategy = dpro_model_strategy(model);
    if (!c->compile && !c->precision)
        return;
    writer_section(w, "computation", '{');
    model_write_modules(w, "compiled", model, strategy, DPRO_COMPILED);
    model_write_modules(w, "bf16", model, strategy, DPRO_BF16);
    struct words source = source_of(model);
    writer_fields(w, TEXT("source", a->untimed || source.n == 0 ? NULL : source.text));
    writer_close(w, '}');
}

static void write_memory(struct writer *w, const struct dpro_whatif_answer *a)
{
    struct dpro_memory_peak before = a->memory[0];
    struct dpro_memory_peak after = a->memory[1];
    const struct dpro_model *model = a->modules;
    const struct dpro_strategy *strategy = dpro_model_strategy(model);
    if (after.bytes == 0)
        return;
    writer_section(w, "memory", '{');
    model_write_peaks(w, &before, &after);
    writer_fields(w, NUL("budget_bytes"), INT("rank", after.rank),
                  TEXT("phase", phase_text(&after)), TEXT("module", after.module));
    model_write_categories(w, "by_category", &after);
    model_write_modules(w, "recomputed", model, strategy, 0);
    writer_fields(w, INT("micro_batches", dpro_strategy_micro_batches(strategy)));
    writer_close(w, '}');
}

static void write_json(struct writer *w, const void *report)
{
    const struct dpro_whatif_report *r = report;
    const struct dpro_whatif_answer *a = dpro_whatif_answer(r->whatif);
    struct dpro_estimate speedup = a->speedup;
    int64_t measured_ns = dpro_model_measured_ns(r->model);
    writer_open(w, '{');
    writer_fields(w, TEXT("schema", "dpro.whatif/1"), TEXT("version", dpro_version()));
    write_changes(w, r->changes);
    writer_newline(w);
    writer_fields(w, MS_IF("measured_ms", measured_ns > 0, measured_ns));
    model_write_pace(w, r->model);
    writer_fields(w, INT("iterations", dpro_model_n_samples(r->model)));
    write_prediction(w, "baseline", a->baseline, r->model);
    write_prediction(w, "predicted", a->predicted, a->model);
    write_computation(w, a, r->changes);
    write_memory(w, a);
    write_units(w, a);
    write_pipeline(w, a);
    write_questions(w, a);
    writer_newline(w);
    bool timed = !a->untimed;
    writer_fields(w, FIXED_IF("speedup", timed, speedup.value, 6),
                  FIXED_IF("speedup_std", timed, speedup.std, 6));
    if (!timed)
        writer_fields(w, TEXT("no_time", a->untimed));
    write_uncertainty(w, a);
    writer_newline(w);
    model_write_communications(w, r->model);
    model_write_link(w, r->model);
    struct warnings warnings = warnings_of(r);
    warnings_write_json(w, &warnings, 1);
    writer_close(w, '}');
    writer_text(w, "\n");
}

REPORT(dpro_whatif_json, dpro_whatif_report, write_json)
