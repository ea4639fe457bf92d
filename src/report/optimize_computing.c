/* What a search found for modules that are compiled or computed in 16 bits: as text and as JSON. */
#include "report/optimize_facts.h"

#include "optimize/computing.h"
#include "report/table.h"

static struct computed_modules computing_find(const struct optimize_facts *f, enum dpro_which which,
                                              unsigned bit)
{
    const struct dpro_model *model = dpro_optimum_model(f->report->optimum, which);
    const struct dpro_strategy *strategy = dpro_optimum_strategy(f->report->optimum, which);
    struct computed_modules found = {.first = ""};
    for (uint32_t m = 0; m < dpro_model_n_modules(model); m++) {
        if (!(computing_way(model, strategy, m) & bit))
            continue;
        found.last = dpro_strategy_module(model, strategy, m).name;
        found.first = found.n++ == 0 ? found.last : found.first;
        found.is_all |= found.last[0] == '\0';
    }
    return found;
}

void optimize_computing_fill(struct optimize_facts *f)
{
    f->computing = dpro_optimum_computing(f->report->optimum);
    for (int which = DPRO_BASELINE; which <= DPRO_BEST; which++) {
        f->compiled[which] = computing_find(f, (enum dpro_which)which, DPRO_COMPILED);
        f->bf16[which] = computing_find(f, (enum dpro_which)which, DPRO_BF16);
    }
    f->computes = f->compiled[DPRO_BEST].n > 0 || f->bf16[DPRO_BEST].n > 0;
}

void optimize_computing_words(struct words *words, const struct optimize_facts *f,
                              enum dpro_which which)
{
    const struct computed_modules *compiled = &f->compiled[which], *bf16 = &f->bf16[which];
    if (compiled->is_all)
        words_add(words, "", ", compiling the model");
    else if (compiled->n > 0 && f->report->model->modules[0].is_step)
        words_add(words, "", ", XLA compiling %.80s", compiled->first);
    else if (compiled->n > 0)
        words_add(words, "", ", compiling %u module%s", compiled->n, PLURAL(compiled->n));
    if (bf16->is_all)
        words_add(words, "", ", all in 16 bits");
    else if (bf16->n > 0)
        words_add(words, "", ", %u module%s in 16 bits", bf16->n, PLURAL(bf16->n));
}

const char *optimize_computing_warning(const struct optimize_facts *f)
{
    if (f->bf16[DPRO_BEST].n > 0)
        return "bf16 rounds what modules compute: the job does not train to the same numbers; "
               "check its loss";
    if (f->compiled[DPRO_BEST].n > 0)
        return "compiled modules may round otherwise in the last bits, and are compiled once when "
               "the job begins, which takes time";
    return "";
}

/* ---- text ---- */

static void computing_name(struct words *words, const char *what, const struct computed_modules *of)
{
    if (of->n == 0)
        return;
    words_add(words, "; ", "%s: ", what);
    if (of->is_all)
        words_add(words, "", "the whole model");
    else if (of->n == 1)
        words_add(words, "", "%.80s", of->first);
    else
        words_add(words, "", "%.80s ... %.80s (%u modules)", of->first, of->last, of->n);
}

static void say_changed(struct lines *to, const struct optimize_facts *f)
{
    const struct dpro_computing_search *s = &f->computing;
    struct words words = {.n = 0};
    computing_name(&words, "compiled", &f->compiled[DPRO_BEST]);
    computing_name(&words, "in 16 bits", &f->bf16[DPRO_BEST]);
    if (s->communication_ns > 0)
        words_add(&words, "", "; %s %% less time than with the best of communication alone",
                  NUMBER(100 * (1 - (double)f->found.best_ns / (double)s->communication_ns), 1));
    if (s->n_assumed > 0)
        words_add(&words, "", "; part of the gain of 16 bits is assumed, not measured");
    lines_say(to, "Computing", "%s", words.text);
}

/* What would have to be known for more; what is usual has rows in the table. */
static void say_unchanged(struct lines *to, const struct optimize_facts *f)
{
    const struct dpro_computing_search *s = &f->computing;
    const struct dpro_model *model = f->report->model;
    if (f->computes && s->n_assumed > 0)
        lines_say(to, "Computing",
                  "kept as they are: the gain of 16 bits is assumed, and not sure enough; 'dpro "
                  "profile --probe compile,bf16' measures it");
    else if (model->n_modules == 1 && model->modules[0].is_step)
        lines_say(to, "Computing",
                  "no plan compiles a step of this framework or computes it in 16 bits; 'dpro "
                  "whatif --compile all' and '--precision bf16' tell the gain");
    else if (s->n_modules == 0)
        lines_say(to, "Computing",
                  "the times of the job's modules compiled or in 16 bits were not measured: record "
                  "it with 'dpro profile --probe compile,bf16', or give the probes of another run "
                  "with --probes%s",
                  s->n_assumable > 0 ? "; --allow bf16,assumed uses assumed times of 16 bits" : "");
    else
        lines_say(to, "Computing",
                  "kept as they are: compiling and 16 bits win too little to be sure of");
}

void optimize_computing_say(struct lines *to, const struct optimize_facts *f)
{
    if (f->computing.allowed != 0)
        (f->helps && f->computes ? say_changed : say_unchanged)(to, f);
}

void optimize_computing_modules(struct writer *w, const char *key,
                                const struct dpro_optimum *optimum, unsigned bit)
{
    const struct dpro_model *model = dpro_optimum_model(optimum, DPRO_BEST);
    const struct dpro_strategy *strategy = dpro_optimum_strategy(optimum, DPRO_BEST);
    WRITER_LIST (w, key, m, dpro_model_n_modules(model))
        if (computing_way(model, strategy, m) & bit)
            writer_string(w, dpro_strategy_module(model, strategy, m).name);
}

void optimize_computing_json(struct writer *w, const struct optimize_facts *f)
{
    const struct dpro_computing_search *s = &f->computing;
    writer_newline(w);
    if (s->allowed == 0) {
        writer_fields(w, NUL("computing"));
        return;
    }
    writer_begin(w, "computing", '{');
    writer_begin(w, "allowed", '[');
    if (s->allowed & DPRO_COMPILED)
        writer_string(w, "compile");
    if (s->allowed & DPRO_BF16)
        writer_string(w, "bf16");
    writer_close(w, ']');
    writer_fields(w, INT("modules", s->n_modules), INT("assumed_modules", s->n_assumed),
                  MS_IF("communication_ms", s->communication_ns > 0, s->communication_ns));
    writer_close(w, '}');
}
