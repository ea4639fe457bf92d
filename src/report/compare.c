/* report/compare.c: two traces of a job side by side, as text and as JSON, schema dpro.compare/1.
 * Keys are never renamed or dropped. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <dpro/report.h>

#include "base/array.h"
#include "base/error.h"
#include "base/sort.h"
#include "base/utf8.h"
#include "graph/graph.h"
#include "ingest/trace.h"
#include "report/columns.h"
#include "report/facts.h"
#include "report/table.h"

#define HALF_OF_95_PCT 1.96 /* in standard errors */
#define DRIFT_TO_TELL  0.05 /* of the forward pass, which no plan changes */
#define TOP_OPS        12

enum { N_PHASES = 7, PHASE_IDLE = 6 };
static const char *const phase_names[N_PHASES] = {
    "forward", "backward", "update", "input", "exposed communication", "waiting for peers", "idle"};

/* Ops of one name and kind; messages of a kind are one family. */
struct family {
    const char *name;
    uint8_t kind;
    double ns[2]; /* a rank's, mean over the ranks, in A and B */
    uint32_t count[2];
};

struct side {
    struct report_facts facts;
    const char *name;
    double mean_ns, error_ns; /* of the iteration, on the common basis; its standard error */
    double phase_ns[N_PHASES], communication_ns; /* means over the ranks; -1: not known */
    const struct recorded_plan *plan;            /* NULL: none was asked for */
    const char *plan_path, *plan_reason;
};

struct comparison {
    struct side sides[2];
    bool unprofiled;               /* the basis: steps without a profiler, of both */
    double less_pct, half_pct;     /* how much less B takes than A; half of its 95 % interval, NAN
                                      where one of them was measured once */
    ARRAY(struct family) families; /* by how much they differ, most first */
};

/* ---- facts ---- */

static void sum_phases(struct side *s)
{
    const struct report_facts *f = &s->facts;
    for (uint32_t r = 0; r < f->n_ranks; r++) {
        const struct dpro_rank_time *t = &f->ranks[r].time;
        const int64_t ns[N_PHASES] = {t->forward_ns,
                                      t->backward_ns,
                                      t->update_ns,
                                      t->input_ns,
                                      t->exposed_communication_ns,
                                      t->wait_for_peers_ns,
                                      t->idle_ns};
        for (int p = 0; p < N_PHASES; p++)
            s->phase_ns[p] += (double)ns[p] / f->n_ranks;
        s->communication_ns += (double)t->communication_ns / f->n_ranks;
    }
    if (!f->any_computes)
        s->phase_ns[PHASE_IDLE] = -1;
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

static void set_basis(struct comparison *c)
{
    c->unprofiled = true;
    for (int i = 0; i < 2; i++)
        c->unprofiled &= c->sides[i].facts.unprofiled.n_steps > 1;
    for (int i = 0; i < 2; i++) {
        struct side *s = &c->sides[i];
        const struct report_facts *f = &s->facts;
        double std = c->unprofiled ? (double)f->unprofiled.std_ns : (double)f->std_ns;
        uint32_t n = c->unprofiled ? f->unprofiled.n_steps : f->n_measured;
        s->mean_ns = c->unprofiled ? (double)f->unprofiled.mean_ns : (double)f->measured_ns;
        s->error_ns = n > 1 ? std / sqrt(n) : NAN;
    }
    double a = c->sides[0].mean_ns, b = c->sides[1].mean_ns;
    if (a <= 0 || b <= 0)
        return;
    double relative = hypot(c->sides[0].error_ns / a, c->sides[1].error_ns / b);
    c->less_pct = 100 * (1 - b / a);
    c->half_pct = 100 * HALF_OF_95_PCT * relative * b / a;
}

ORDER(by_name, struct family, strcmp(x->name, y->name) ?: ASCENDING(kind));

static double difference(const struct family *f)
{
    return fabs(f->ns[1] - f->ns[0]);
}

ORDER(by_difference, struct family, COMPARE(difference(y), difference(x)) ?: by_name(x, y));

static bool is_message(uint8_t kind)
{
    return kind >= DPRO_OP_SEND && kind <= DPRO_OP_REDUCE;
}

static int add_families(struct comparison *c, int side)
{
    const struct dpro_graph *g = c->sides[side].facts.report->graph;
    for (uint32_t op = 0; op < g->n_ops; op++) {
        if (g->dur_ns[op] == 0)
            continue;
        struct family one = {.name = is_message(g->kind[op]) ? "(messages of collectives)"
                                                             : strtab_get(&g->names, g->name[op]),
                             .kind = g->kind[op]};
        one.ns[side] = (double)g->dur_ns[op] / g->n_ranks;
        one.count[side] = 1;
        if (array_push(&c->families, one) < 0)
            return -1;
    }
    return 0;
}

static int find_families(struct comparison *c)
{
    size_t n = 0;
    if (add_families(c, 0) < 0 || add_families(c, 1) < 0)
        return -1;
    struct family *all = c->families.at;
    if (c->families.n == 0)
        return 0;
    qsort(all, c->families.n, sizeof *all, by_name);
    for (size_t i = 1; i < c->families.n; i++) {
        if (by_name(&all[n], &all[i]) != 0) {
            all[++n] = all[i];
            continue;
        }
        for (int s = 0; s < 2; s++) {
            all[n].ns[s] += all[i].ns[s];
            all[n].count[s] += all[i].count[s];
        }
    }
    c->families.n = n + 1;
    qsort(all, c->families.n, sizeof *all, by_difference);
    return 0;
}

static void comparison_fini(struct comparison *c)
{
    for (int i = 0; i < 2; i++)
        facts_fini(&c->sides[i].facts);
    array_fini(&c->families);
}

static int comparison_init(struct comparison *c, const struct dpro_comparison *of,
                           struct dpro_error *err)
{
    *c = (struct comparison){.unprofiled = false};
    c->sides[0].name = of->a_name;
    c->sides[1].name = of->b_name;
    for (int i = 0; i < 2; i++) {
        int rc = facts_init(&c->sides[i].facts, i ? of->b : of->a, err);
        if (rc < 0) {
            comparison_fini(c);
            return rc;
        }
        sum_phases(&c->sides[i]);
        find_plan(&c->sides[i]);
    }
    set_basis(c);
    if (find_families(c) < 0) {
        comparison_fini(c);
        return dpro_error_nomem(err);
    }
    return 0;
}

/* What the plan of B promised. */
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
    if (isnan(c->half_pct))
        return p;
    double apart = c->less_pct - p.less_pct;
    p.verdict = fabs(apart) <= hypot(p.half_pct, c->half_pct) ? "as expected"
                : apart < 0                                   ? "less"
                                                              : "more";
    return p;
}

/* Of both traces and graphs, and what can't be compared; NULL past the last. */
static const char *warning(const struct comparison *c, size_t i, char *out, size_t size)
{
    const struct dpro_trace *traces[2];
    for (int s = 0; s < 2; s++) {
        const char *line = facts_warning(c->sides[s].facts.report, i);
        size_t n = 0;
        traces[s] = c->sides[s].facts.report->trace;
        if (line) {
            snprintf(out, size, "%s: %s", s ? "B" : "A", line);
            return out;
        }
        while (facts_warning(c->sides[s].facts.report, n))
            n++;
        i -= n;
    }
    if (dpro_trace_world_size(traces[0]) != dpro_trace_world_size(traces[1]) && i-- == 0) {
        snprintf(out, size, "A is a job of %d ranks, B of %d: they do different work",
                 dpro_trace_world_size(traces[0]), dpro_trace_world_size(traces[1]));
        return out;
    }
    const struct recorded_plan *plan = c->sides[1].plan;
    double before = c->sides[0].phase_ns[0], after = c->sides[1].phase_ns[0];
    if (plan && fabs(after - before) > DRIFT_TO_TELL * before && i-- == 0) {
        snprintf(out, size,
                 "the forward pass takes %.0f %% %s time in B, which no plan changes: the machine "
                 "was another one then; 'dpro verify' measures by turns",
                 100 * fabs(after / before - 1), after < before ? "less" : "more");
        return out;
    }
    if (plan && !plan->applied && i == 0) {
        snprintf(
            out, size, "B was asked to run with the plan %.200s, which was not applied%s%.200s",
            c->sides[1].plan_path, c->sides[1].plan_reason[0] ? ": " : "", c->sides[1].plan_reason);
        return out;
    }
    return NULL;
}

/* ---- text ---- */

static char *one_digit(char out[TIME_TEXT], double value)
{
    if (writer_format_fixed(out, TIME_TEXT, value, 1) < 0)
        strcpy(out, "?");
    return out;
}

static void write_verdict(struct writer *w, const struct comparison *c)
{
    char line[400], a[TIME_TEXT], b[TIME_TEXT], less[TIME_TEXT], half[TIME_TEXT];
    bool sure = fabs(c->less_pct) > c->half_pct, measured_once = isnan(c->half_pct);
    one_digit(less, fabs(c->less_pct));
    one_digit(half, c->half_pct);
    facts_time(a, (int64_t)c->sides[0].mean_ns);
    facts_time(b, (int64_t)c->sides[1].mean_ns);
    if (c->sides[0].mean_ns <= 0 || c->sides[1].mean_ns <= 0)
        snprintf(line, sizeof line, "no iteration was measured in %s",
                 c->sides[0].mean_ns <= 0 ? "A" : "B");
    else if (measured_once)
        snprintf(line, sizeof line,
                 "B takes %s %% %s time an iteration: %s instead of %s; one iteration was measured "
                 "in %s, so nobody knows whether that is noise",
                 less, c->less_pct >= 0 ? "less" : "more", b, a,
                 isnan(c->sides[0].error_ns) ? "A" : "B");
    else if (!sure)
        snprintf(line, sizeof line,
                 "no difference that could be told from noise: B takes %s, A %s an iteration "
                 "(%s %% %s, +- %s points)",
                 b, a, less, c->less_pct >= 0 ? "less" : "more", half);
    else
        snprintf(line, sizeof line,
                 "B takes %s %% %s time an iteration (+- %s points): %s instead "
                 "of %s",
                 less, c->less_pct >= 0 ? "less" : "more", half, b, a);
    table_wrapped(w, "Verdict", 9, line);
    struct promise p = promise_of(c);
    if (p.verdict) {
        snprintf(line, sizeof line, "expected %s %% less (+- %s points), achieved %s %%: %s",
                 one_digit(a, p.less_pct), one_digit(b, p.half_pct), one_digit(less, c->less_pct),
                 p.verdict);
        table_wrapped(w, "Plan", 9, line);
    }
}

static void cell_ms(struct table *t, double ns)
{
    double ms = ns / 1e6;
    table_fixed(t, ms, fabs(ms) >= 99.95 ? 1 : fabs(ms) >= 0.995 ? 2 : 3, "");
}

static void row(struct table *t, const char *name, double a, double b)
{
    table_cell(t, "%s", name);
    cell_ms(t, a);
    cell_ms(t, b);
    cell_ms(t, b - a);
    if (a > 0)
        table_fixed(t, 100 * (b / a - 1), 1, " %");
    else
        table_cell(t, "%s", "");
}

static void head(struct table *t, const char *what)
{
    static const char *const names[] = {"A", "B", "B - A", ""};
    *t = (struct table){.n_cols = 5, .left = {true}};
    table_cell(t, "%s", what);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        table_cell(t, "%s", names[i]);
}

static void write_phases(struct writer *w, const struct comparison *c)
{
    const struct side *a = &c->sides[0], *b = &c->sides[1];
    struct table t;
    writer_text(w, "\nAn iteration in ms, mean over the ranks\n");
    head(&t, "");
    if (a->facts.measured_ns > 0 && b->facts.measured_ns > 0)
        row(&t, "measured", (double)a->facts.measured_ns, (double)b->facts.measured_ns);
    if (a->facts.unprofiled.n_steps > 0 && b->facts.unprofiled.n_steps > 0)
        row(&t, "without the profiler", (double)a->facts.unprofiled.mean_ns,
            (double)b->facts.unprofiled.mean_ns);
    row(&t, "replayed", (double)a->facts.predicted_ns, (double)b->facts.predicted_ns);
    for (int p = 0; p < N_PHASES; p++) {
        char name[64];
        snprintf(name, sizeof name, "  %s", phase_names[p]);
        bool known = a->phase_ns[p] >= 0 && b->phase_ns[p] >= 0;
        if (known && (a->phase_ns[p] > 0 || b->phase_ns[p] > 0))
            row(&t, name, a->phase_ns[p], b->phase_ns[p]);
    }
    if (a->communication_ns > 0 || b->communication_ns > 0)
        row(&t, "all communication, hidden or not", a->communication_ns, b->communication_ns);
    table_write(w, &t);
}

static void write_side_communication(struct writer *w, const struct comparison *c, int side)
{
    const struct dpro_graph *g = c->sides[side].facts.report->graph;
    enum { LISTED = 12 };
    char line[600], mb[TIME_TEXT];
    uint32_t n = dpro_graph_n_collectives(g);
    uint64_t bytes = 0, messages = 0;
    uint32_t n_unsized = 0;
    for (uint32_t i = 0; i < n; i++) {
        struct dpro_collective one = dpro_graph_collective(g, i);
        n_unsized += !facts_is_sized(&one);
        bytes += one.size_bytes;
        messages += one.n_messages;
    }
    int len = snprintf(line, sizeof line, "%u collective%s", n, n == 1 ? "" : "s");
    if (n_unsized < n)
        len += snprintf(line + len, sizeof line - (size_t)len, ", %s MB a rank",
                        one_digit(mb, (double)bytes / 1e6));
    if (n_unsized > 0)
        len += snprintf(line + len, sizeof line - (size_t)len, ", %u of them of unknown size",
                        n_unsized);
    if (messages > 0)
        len += snprintf(line + len, sizeof line - (size_t)len, ", %llu messages",
                        (unsigned long long)messages);
    for (uint32_t i = 0; i < n && i < LISTED && n_unsized == 0; i++)
        len += snprintf(line + len, sizeof line - (size_t)len, "%s%.12s%s", i ? ", " : "; of ",
                        one_digit(mb, (double)dpro_graph_collective(g, i).size_bytes / 1e6),
                        i + 1 == n        ? " MB"
                        : i + 1 == LISTED ? ", ... MB"
                                          : "");
    table_wrapped(w, side ? "  B" : "  A", 4, line);
}

static void write_families(struct writer *w, const struct comparison *c)
{
    struct table t;
    size_t n = c->families.n < TOP_OPS ? c->families.n : TOP_OPS;
    writer_text(w, "\nOps that differ most, in ms on a rank\n");
    head(&t, "op");
    for (size_t i = 0; i < n; i++) {
        const struct family *f = &c->families.at[i];
        char name[NAME_COLUMNS * 4], text[NAME_COLUMNS * 4 + 16];
        columns_shorten(name, sizeof name, f->name, NAME_COLUMNS - 12);
        snprintf(text, sizeof text, "%s %s", dpro_op_kind_name((enum dpro_op_kind)f->kind), name);
        row(&t, text, f->ns[0], f->ns[1]);
    }
    table_write(w, &t);
}

int dpro_compare_text(const struct dpro_comparison *comparison, FILE *out, struct dpro_error *err)
{
    struct comparison c;
    struct writer w;
    char line[1024], safe[2048];
    int rc = comparison_init(&c, comparison, err);
    if (rc < 0)
        return rc;
    rc = writer_init_file(&w, out, err);
    if (rc == 0) {
        for (int i = 0; i < 2; i++) {
            utf8_escape(safe, sizeof safe, c.sides[i].name, strlen(c.sides[i].name));
            table_wrapped(&w, i ? "B" : "A", 9, safe);
        }
        write_verdict(&w, &c);
        write_phases(&w, &c);
        writer_text(&w, "\nCommunication\n");
        write_side_communication(&w, &c, 0);
        write_side_communication(&w, &c, 1);
        write_families(&w, &c);
        for (size_t i = 0; warning(&c, i, line, sizeof line); i++)
            table_warning(&w, i, line);
        rc = writer_finish(&w, err);
        writer_fini(&w);
    }
    comparison_fini(&c);
    return rc;
}

/* ---- JSON ---- */

static void key_ms(struct writer *w, const char *key, double ns)
{
    writer_key(w, key);
    if (ns < 0)
        writer_null(w);
    else
        writer_json_ms(w, (int64_t)llround(ns));
}

static void write_side(struct writer *w, const char *key, const struct side *s)
{
    const struct report_facts *f = &s->facts;
    const struct dpro_graph *g = f->report->graph;
    writer_newline(w);
    writer_key(w, key);
    writer_open(w, '{');
    writer_key_string(w, "trace", s->name);
    writer_key_int(w, "world_size", dpro_trace_world_size(f->report->trace));
    writer_key_int(w, "ranks", f->n_ranks);
    writer_key_int(w, "iterations", f->n_measured);
    key_ms(w, "measured_ms", (double)f->measured_ns);
    key_ms(w, "measured_std_ms", (double)f->std_ns);
    key_ms(w, "unprofiled_ms", f->unprofiled.n_steps > 0 ? (double)f->unprofiled.mean_ns : -1);
    key_ms(w, "replayed_ms", (double)f->predicted_ns);
    writer_newline(w);
    writer_key(w, "communication");
    writer_open(w, '{');
    key_ms(w, "ms", s->communication_ns);
    writer_key(w, "collectives");
    writer_open(w, '[');
    for (uint32_t i = 0; i < dpro_graph_n_collectives(g); i++) {
        struct dpro_collective one = dpro_graph_collective(g, i);
        writer_open(w, '{');
        writer_key_string(w, "kind", one.kind);
        writer_key(w, "size_bytes");
        if (facts_is_sized(&one))
            writer_json_int(w, (int64_t)one.size_bytes);
        else
            writer_null(w);
        writer_key_int(w, "messages", one.n_messages);
        writer_close(w, '}');
    }
    writer_close(w, ']');
    writer_close(w, '}');
    writer_close(w, '}');
}

static void write_plan(struct writer *w, const struct comparison *c)
{
    const struct side *b = &c->sides[1];
    struct promise p = promise_of(c);
    writer_newline(w);
    writer_key(w, "plan");
    if (!b->plan) {
        writer_null(w);
        return;
    }
    writer_open(w, '{');
    writer_key_string(w, "path", b->plan_path);
    writer_key(w, "applied");
    writer_bool(w, b->plan->applied);
    writer_key_string(w, "reason", b->plan_reason[0] ? b->plan_reason : NULL);
    writer_key(w, "expected_less_pct");
    if (p.verdict)
        writer_json_fixed(w, p.less_pct, 3);
    else
        writer_null(w);
    writer_key(w, "expected_half_pct");
    if (p.verdict)
        writer_json_fixed(w, p.half_pct, 3);
    else
        writer_null(w);
    writer_key_fixed(w, "achieved_less_pct", c->less_pct, 3);
    writer_key_string(w, "verdict", p.verdict);
    writer_close(w, '}');
}

static void write_rows(struct writer *w, const struct comparison *c)
{
    writer_newline(w);
    writer_key(w, "phases");
    writer_open(w, '[');
    for (int p = 0; p < N_PHASES; p++) {
        writer_newline(w);
        writer_open(w, '{');
        writer_key_string(w, "name", phase_names[p]);
        key_ms(w, "a_ms", c->sides[0].phase_ns[p]);
        key_ms(w, "b_ms", c->sides[1].phase_ns[p]);
        writer_close(w, '}');
    }
    writer_close(w, ']');
    writer_newline(w);
    writer_key(w, "ops");
    writer_open(w, '[');
    for (size_t i = 0; i < c->families.n; i++) {
        const struct family *f = &c->families.at[i];
        writer_newline(w);
        writer_open(w, '{');
        writer_key_string(w, "name", f->name);
        writer_key_string(w, "kind", dpro_op_kind_name((enum dpro_op_kind)f->kind));
        key_ms(w, "a_ms", f->ns[0]);
        key_ms(w, "b_ms", f->ns[1]);
        writer_key_int(w, "a_count", f->count[0]);
        writer_key_int(w, "b_count", f->count[1]);
        writer_close(w, '}');
    }
    writer_close(w, ']');
}

int dpro_compare_json(const struct dpro_comparison *comparison, FILE *out, struct dpro_error *err)
{
    struct comparison c;
    struct writer w;
    char line[1024];
    int rc = comparison_init(&c, comparison, err);
    if (rc < 0)
        return rc;
    rc = writer_init_file(&w, out, err);
    if (rc == 0) {
        writer_open(&w, '{');
        writer_key_string(&w, "schema", "dpro.compare/1");
        writer_key_string(&w, "version", dpro_version());
        write_side(&w, "a", &c.sides[0]);
        write_side(&w, "b", &c.sides[1]);
        writer_newline(&w);
        writer_key(&w, "difference");
        writer_open(&w, '{');
        writer_key_string(&w, "basis", c.unprofiled ? "unprofiled" : "measured");
        writer_key(&w, "less_ms");
        writer_json_ms(&w, (int64_t)(c.sides[0].mean_ns - c.sides[1].mean_ns));
        writer_key_fixed(&w, "less_pct", c.less_pct, 3);
        writer_key(&w, "less_half_pct");
        writer_json_fixed(&w, c.half_pct, 3);
        writer_close(&w, '}');
        write_plan(&w, &c);
        write_rows(&w, &c);
        writer_newline(&w);
        writer_key(&w, "warnings");
        writer_open(&w, '[');
        for (size_t i = 0; warning(&c, i, line, sizeof line); i++)
            writer_string(&w, line);
        writer_close(&w, ']');
        writer_close(&w, '}');
        writer_text(&w, "\n");
        rc = writer_finish(&w, err);
        writer_fini(&w);
    }
    comparison_fini(&c);
    return rc;
}
