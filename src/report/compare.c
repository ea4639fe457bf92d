/* Two traces of a job side by side, as text and as JSON (dpro.compare/1; keys are never renamed or
 * dropped). */

#include <dpro/report.h>

#include "graph/graph.h"
#include "ingest/trace.h"
#include "report/against_report.h"
#include "report/facts.h"
#include "report/table.h"
#include "report/words.h"

#define DRIFT_TO_TELL 0.05 /* of the forward pass, which no plan changes */

struct side {
    struct report_facts facts;
    const char *name;
    double phase_ns[N_RANK_PARTS], communication_ns; /* means over the ranks; -1: not known */
    const struct recorded_plan *plan;                /* NULL: none was asked for */
    const char *plan_path, *plan_reason;
};

struct comparison {
    struct side sides[2];
    bool lacks_gpu; /* in A or B its work was not recorded: only whole ones count */
    struct against_facts basis;
    const struct dpro_against_report *against;
    char unlike[120], drifted[240], refused[520], bare[160]; /* "": not so */
    struct warnings warnings[3];
};

/* ---- facts ---- */

static void sum_phases(struct side *s)
{
    const struct report_facts *f = &s->facts;
    for (uint32_t r = 0; r < f->n_ranks; r++) {
        const struct dpro_rank_time *t = &f->ranks[r].time;
        for (int p = 0; p < N_RANK_PARTS; p++)
            s->phase_ns[p] += (double)rank_part_ns(t, p) / f->n_ranks;
        s->communication_ns += (double)t->communication_ns / f->n_ranks;
    }
    for (int p = 0; p < N_RANK_PARTS; p++)
        if (f->g->lacks_gpu || (p == RANK_IDLE && !f->any_computes))
            s->phase_ns[p] = -1; /* a CPU's say nothing beside a GPU's */
    s->communication_ns = f->g->lacks_gpu ? -1 : s->communication_ns;
}

static void find_plan(struct side *s)
{
    const struct dpro_trace *trace = s->facts.report->trace;
    for (uint32_t r = 0; r < trace->n_ranks && !s->plan; r++) {
        const struct recording *recording = trace->ranks[r].recording;
        if (!recording || !recording->plan.asked)
            continue;
        s->plan = &recording->plan;
        s->plan_path = strtab_get(&trace->names, recording->plan.path);
        s->plan_reason = strtab_get(&trace->names, recording->plan.reason);
    }
}

struct promise {
    double less_pct, half_pct; /* half of its 95 % interval */
    const char *verdict; /* "as expected", "less", "more"; NULL: no plan was applied, or it promised
                            nothing */
};

static struct promise promise_of(const struct comparison *c)
{
    struct promise p = {.verdict = NULL};
    const struct recorded_plan *plan = c->sides[1].plan;
    if (!plan || !plan->applied || plan->baseline_ns <= 0 || plan->iteration_ns <= 0)
        return p;
    double left = (double)plan->iteration_ns / (double)plan->baseline_ns;
    p.less_pct = 100 * (1 - left);
    p.half_pct = plan->uncertainty_pct * left;
    if (isnan(c->basis.half_pct))
        return p;
    double apart = c->basis.less_pct - p.less_pct;
    p.verdict = fabs(apart) <= hypot(p.half_pct, c->basis.half_pct) ? "as expected"
                : apart < 0                                         ? "less"
                                                                    : "more";
    return p;
}

/* What can't be compared. */
static void find_warnings(struct comparison *c)
{
    const struct side *a = &c->sides[0], *b = &c->sides[1];
    double before = a->phase_ns[0], after = b->phase_ns[0];
    if (a->facts.world_size != b->facts.world_size)
        snprintf(c->unlike, sizeof c->unlike,
                 "A is a job of %u ranks, B of %u: they do different work", a->facts.world_size,
                 b->facts.world_size);
    if (b->plan && !c->lacks_gpu && fabs(after - before) > DRIFT_TO_TELL * before)
        snprintf(c->drifted, sizeof c->drifted,
                 "the forward pass takes %.0f %% %s time in B, which no plan changes: the machine "
                 "ran at another speed; 'dpro verify' alternates both and cancels that",
                 100 * fabs(after / before - 1), after < before ? "less" : "more");
    if (b->plan && !b->plan->applied)
        snprintf(c->refused, sizeof c->refused,
                 "B was asked to run with the plan %.200s, which was not applied%s%.200s",
                 b->plan_path, b->plan_reason[0] ? ": " : "", b->plan_reason);
    bool a_bare = a->facts.memory.n_bare > 0, b_bare = b->facts.memory.n_bare > 0;
    if (memory_highest(&a->facts) && memory_highest(&b->facts) && a_bare != b_bare)
        snprintf(c->bare, sizeof c->bare,
                 "only the memory of %s includes what was there before the profile began, such as "
                 "parameters: their peaks can't be compared",
                 a_bare ? "B" : "A");
    for (int i = 0; i < 2; i++) {
        c->warnings[i] = c->sides[i].facts.warnings;
        c->warnings[i].prefix = i ? "B: " : "A: ";
    }
    c->warnings[2] = (struct warnings){.more = {c->unlike, c->drifted, c->refused, c->bare}};
}

static void comparison_init(struct comparison *c, const struct dpro_comparison *of)
{
    *c = (struct comparison){.sides = {{.name = of->a_name}, {.name = of->b_name}},
                             .against = of->against};
    for (int i = 0; i < 2; i++) {
        facts_init(&c->sides[i].facts, i ? of->b : of->a);
        sum_phases(&c->sides[i]);
        find_plan(&c->sides[i]);
    }
    c->lacks_gpu = c->sides[0].facts.g->lacks_gpu || c->sides[1].facts.g->lacks_gpu;
    against_find_facts(&c->basis, of->a->graph, of->b->graph);
    find_warnings(c);
}

static void comparison_fini(struct comparison *c)
{
    for (int i = 0; i < 2; i++)
        facts_fini(&c->sides[i].facts);
}

/* ---- text ---- */

static void write_verdict(struct writer *w, const struct comparison *c)
{
    const struct side *a = &c->sides[0], *b = &c->sides[1];
    against_write_verdict(w, &c->basis);
    if (c->lacks_gpu)
        table_paragraph(w, "GPU", 9,
                        "not recorded in %s: what an iteration consists of is not compared",
                        !b->facts.g->lacks_gpu   ? "A"
                        : !a->facts.g->lacks_gpu ? "B"
                                                 : "A and B");
    struct promise p = promise_of(c);
    if (p.verdict)
        table_paragraph(w, "Plan", 9, "expected %s %% less (+- %s points), achieved %s %%: %s",
                        NUMBER(p.less_pct, 1), NUMBER(p.half_pct, 1), NUMBER(c->basis.less_pct, 1),
                        p.verdict);
}

/* Nanoseconds as milliseconds, bytes as megabytes. */
static void compare_row(struct table *t, const char *name, double a, double b)
{
    const double values[] = {a, b, b - a};
    table_cells(t, name);
    for (int i = 0; i < 3; i++) {
        double shown = values[i] / 1e6, size = fabs(shown);
        table_fixed(t, shown, size >= 99.95 ? 1 : size >= 0.995 ? 2 : 3, "");
    }
    table_cell(t, "%s%s", a > 0 ? NUMBER(100 * (b / a - 1), 1) : "", a > 0 ? " %" : "");
}

static struct table table_of(const char *what)
{
    struct table t = {.n_cols = 5, .left = {true}};
    table_cells(&t, what, "A", "B", "B - A", "");
    return t;
}

static void write_phases(struct writer *w, const struct comparison *c)
{
    const struct side *a = &c->sides[0], *b = &c->sides[1];
    struct table t = table_of("");
    writer_text(w, "\nAn iteration in ms, mean over the ranks\n");
    if (a->facts.measured_ns > 0 && b->facts.measured_ns > 0)
        compare_row(&t, "measured", (double)a->facts.measured_ns, (double)b->facts.measured_ns);
    if (a->facts.unprofiled.n_steps > 0 && b->facts.unprofiled.n_steps > 0)
        compare_row(&t, "without the profiler", (double)a->facts.unprofiled.mean_ns,
                    (double)b->facts.unprofiled.mean_ns);
    compare_row(&t, "replayed", (double)a->facts.predicted_ns, (double)b->facts.predicted_ns);
    for (int p = 0; p < N_RANK_PARTS; p++) {
        char name[64];
        snprintf(name, sizeof name, "  %s", rank_parts[p].name);
        bool known = a->phase_ns[p] >= 0 && b->phase_ns[p] >= 0;
        if (known && (a->phase_ns[p] > 0 || b->phase_ns[p] > 0))
            compare_row(&t, name, a->phase_ns[p], b->phase_ns[p]);
    }
    if (!c->lacks_gpu && (a->communication_ns > 0 || b->communication_ns > 0))
        compare_row(&t, "all communication, hidden or not", a->communication_ns,
                    b->communication_ns);
    table_write(w, &t);
}

/* The highest of all ranks. */
static void write_memory(struct writer *w, const struct comparison *c)
{
    const struct memory_fact *a = memory_highest(&c->sides[0].facts);
    const struct memory_fact *b = memory_highest(&c->sides[1].facts);
    struct table t = table_of("");
    if (!a || !b) {
        array_fini(&t.cells);
        return;
    }
    writer_text(w, "\nMemory at the highest peak of a rank, in MB\n");
    compare_row(&t, "peak", (double)a->memory.peak_bytes, (double)b->memory.peak_bytes);
    for (int k = 0; k < DPRO_N_MEMORY_CATEGORIES; k++) {
        uint64_t held[] = {a->memory.by_category[k], b->memory.by_category[k]};
        char name[32];
        snprintf(name, sizeof name, "  %s", memory_category_words(k));
        if (held[0] > 0 || held[1] > 0)
            compare_row(&t, name, (double)held[0], (double)held[1]);
    }
    table_write(w, &t);
}

static void write_text(struct writer *w, const void *of)
{
    struct comparison comparison, *c = &comparison;
    comparison_init(c, of);
    table_escaped(w, "A", 9, c->sides[0].name);
    table_escaped(w, "B", 9, c->sides[1].name);
    write_verdict(w, c);
    against_write_text(w, c->against);
    write_phases(w, c);
    write_memory(w, c);
    warnings_write_text(w, c->warnings, 3);
    comparison_fini(c);
}

/* ---- JSON ---- */

static struct writer_field compare_field(const char *key, double ns)
{
    return ns < 0 ? NUL(key) : MS(key, llround(ns));
}

static void write_side(struct writer *w, const char *key, const struct side *s)
{
    const struct report_facts *f = &s->facts;
    const struct memory_fact *memory = memory_highest(f);
    writer_section(w, key, '{');
    writer_fields(w, TEXT("trace", s->name), INT("world_size", f->world_size),
                  INT("ranks", f->n_ranks), INT("iterations", f->n_measured),
                  MS_KNOWN("measured_ms", f->measured_ns), MS_KNOWN("measured_std_ms", f->std_ns),
                  MS_IF("unprofiled_ms", f->unprofiled.n_steps > 0, f->unprofiled.mean_ns),
                  MS_KNOWN("replayed_ms", f->predicted_ns),
                  INT_IF("peak_bytes", memory != NULL, memory ? memory->memory.peak_bytes : 0));
    if (memory)
        memory_write_categories(w, "peak_by_category", memory);
    writer_section(w, "communication", '{');
    writer_fields(w, compare_field("ms", s->communication_ns));
    WRITER_LIST (w, "collectives", i, dpro_graph_n_collectives(f->g)) {
        struct dpro_collective one = dpro_graph_collective(f->g, i);
        writer_object(w, TEXT("kind", dpro_collective_kind_name(one.kind)),
                      INT_IF("size_bytes", facts_is_sized(&one), one.size_bytes),
                      INT("messages", one.n_messages));
    }
    writer_close(w, '}');
    writer_close(w, '}');
}

static void write_plan(struct writer *w, const struct comparison *c)
{
    const struct side *b = &c->sides[1];
    struct promise p = promise_of(c);
    writer_newline(w);
    writer_object_if(w, "plan", b->plan, TEXT("path", b->plan_path),
                     BOOL("applied", b->plan->applied),
                     TEXT("reason", b->plan_reason[0] ? b->plan_reason : NULL),
                     FIXED_IF("expected_less_pct", p.verdict, p.less_pct, 3),
                     FIXED_IF("expected_half_pct", p.verdict, p.half_pct, 3),
                     FIXED("achieved_less_pct", c->basis.less_pct, 3), TEXT("verdict", p.verdict));
}

static void write_json(struct writer *w, const void *of)
{
    struct comparison comparison, *c = &comparison;
    comparison_init(c, of);
    writer_open(w, '{');
    writer_fields(w, TEXT("schema", "dpro.compare/1"), TEXT("version", dpro_version()));
    write_side(w, "a", &c->sides[0]);
    write_side(w, "b", &c->sides[1]);
    writer_newline(w);
    writer_object_at(w, "difference",
                     TEXT("basis", c->basis.unprofiled ? "unprofiled" : "measured"),
                     MS("less_ms", (int64_t)(c->basis.mean_ns[0] - c->basis.mean_ns[1])),
                     FIXED("less_pct", c->basis.less_pct, 3),
                     FIXED("less_half_pct", c->basis.half_pct, 3), FIXED("p", c->basis.p, 4));
    write_plan(w, c);
    WRITER_ROWS (w, "phases", p, N_RANK_PARTS)
        writer_row(w, TEXT("name", rank_parts[p].name),
                   compare_field("a_ms", c->sides[0].phase_ns[p]),
                   compare_field("b_ms", c->sides[1].phase_ns[p]));
    writer_section(w, "against", '{');
    against_write_json(w, c->against);
    writer_close(w, '}');
    warnings_write_json(w, c->warnings, 3);
    writer_close(w, '}');
    writer_text(w, "\n");
    comparison_fini(c);
}

const char *dpro_compare_part(size_t index)
{
    return index == 0 ? "iteration" : index <= N_RANK_PARTS ? rank_parts[index - 1].column : NULL;
}

static void find_times(const struct dpro_comparison *of, struct dpro_compared_time *times)
{
    struct comparison c;
    comparison_init(&c, of);
    bool noise = fabs(c.basis.less_pct) <= c.basis.half_pct;
    for (int p = 0; p <= N_RANK_PARTS; p++)
        for (int i = 0; i < 2; i++)
            times[p].ns[i] = p > 0 ? c.sides[i].phase_ns[p - 1] : c.basis.mean_ns[noise ? 0 : i];
    comparison_fini(&c);
}

int dpro_compare_times(const struct dpro_comparison *comparison,
                       struct dpro_compared_time times[DPRO_N_COMPARED], struct dpro_error *err)
{
    _Static_assert(DPRO_N_COMPARED == N_RANK_PARTS + 1, "the iteration and its parts");
    return OUTCOME(err, find_times(comparison, times));
}

REPORT(dpro_compare_text, dpro_comparison, write_text)
REPORT(dpro_compare_json, dpro_comparison, write_json)
