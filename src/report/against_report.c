/* What differs between two traces of a job, and why one is slower, as text and as JSON. */
#include "report/against_report.h"

#include "graph/graph.h"
#include "ingest/rank_json.h"
#include "ingest/trace.h"
#include "replay/job_time.h"
#include "report/table.h"
#include "report/words.h"

enum { TEXT_PARTS = 4 };
#define NOISE_P     0.05
#define LEAST_SHARE 0.001 /* of an iteration: a cause with less gets no row in text */

/* ---- whether there is a difference ---- */

void against_find_facts(struct against_facts *f, const struct dpro_graph *a,
                        const struct dpro_graph *b)
{
    const struct dpro_graph *graphs[] = {a, b};
    uint32_t n[2];
    *f = (struct against_facts){.p = NAN};
    f->unprofiled = a->unprofiled.n_steps > 1 && b->unprofiled.n_steps > 1;
    for (int i = 0; i < 2; i++) {
        const struct dpro_unprofiled *steps = &graphs[i]->unprofiled;
        const int64_t *measured = dpro_graph_measured_ns(graphs[i], &n[i]);
        struct mean_std of = stats_mean_std_i64(measured, n[i]);
        double recurring = job_recurring_noise(graphs[i], f->unprofiled);
        if (f->unprofiled) {
            of = (struct mean_std){(double)steps->mean_ns, (double)steps->std_ns};
            n[i] = steps->n_steps;
        }
        f->mean_ns[i] = of.mean;
        f->error_ns[i] = n[i] < 2 ? NAN : recurring < 0 ? of.std / sqrt(n[i]) : recurring * of.mean;
    }
    double before = f->mean_ns[0], after = f->mean_ns[1];
    if (before <= 0 || after <= 0)
        return;
    struct mean_std of[2];
    for (int i = 0; i < 2; i++) /* slow ones that recur are a part of the job */
        of[i] = (struct mean_std){f->mean_ns[i], f->error_ns[i] * sqrt(n[i])};
    f->less_pct = 100 * (1 - after / before);
    f->half_pct = 100 * stats_welch_half(of[0], n[0], of[1], n[1], NOISE_P) / before;
    f->p = stats_welch_p(of[0], n[0], of[1], n[1]);
}

void against_write_verdict(struct writer *w, const struct against_facts *f)
{
    const char *less = NUMBER(fabs(f->less_pct), 1), *half = NUMBER(f->half_pct, 1);
    const char *more = f->less_pct >= 0 ? "less" : "more", *p = f->p < 0.001 ? "<" : "=";
    const char *chance = TRIMMED(f->p < 0.001 ? 0.001 : f->p);
    const char *a_time = TIME((int64_t)f->mean_ns[0]), *b_time = TIME((int64_t)f->mean_ns[1]);
    if (f->mean_ns[0] <= 0 || f->mean_ns[1] <= 0)
        table_paragraph(w, "Verdict", 9, "no iteration was measured in %s",
                        f->mean_ns[0] <= 0 ? "A" : "B");
    else if (isnan(f->half_pct))
        table_paragraph(w, "Verdict", 9,
                        "B takes %s %% %s time an iteration: %s instead of %s; one iteration was "
                        "measured in %s, so this may be noise",
                        less, more, b_time, a_time, isnan(f->error_ns[0]) ? "A" : "B");
    else if (f->p > NOISE_P)
        table_paragraph(w, "Verdict", 9,
                        "no difference beyond noise (p = %s): B takes %s, A %s an iteration (%s %% "
                        "%s, +- %s points)",
                        chance, b_time, a_time, less, more, half);
    else
        table_paragraph(w, "Verdict", 9,
                        "B takes %s %% %s time an iteration (+- %s points, p %s %s): %s instead of "
                        "%s",
                        less, more, half, p, chance, b_time, a_time);
}

/* ---- what differs ---- */

static const struct recording *recording_of(const struct dpro_trace *trace)
{
    for (uint32_t r = 0; r < trace->n_ranks; r++)
        if (trace->ranks[r].recording)
            return trace->ranks[r].recording;
    return NULL;
}

ORDER_OF_INDICES(by_size, struct graph_collective, ASCENDING(kind) ?: ASCENDING(size_bytes));

/* By kind and size, in whatever order they ran: "18 x send of 2.0 MB". */
static void tell_collectives(struct lines *lines, const struct dpro_graph *g)
{
    enum { LISTED = 12 };
    struct words said = {.n = 0};
    SCRATCH uint32_t *order = sorted_indices(g->n_collectives, g->collectives, by_size);
    for (uint32_t i = 0, end, n = 0; i < g->n_collectives && n <= LISTED; i = end, n++) {
        const struct graph_collective *one = &g->collectives[order[i]];
        end = RUN_END(k, i, (uint32_t)g->n_collectives,
                      g->collectives[order[k]].kind == one->kind &&
                          g->collectives[order[k]].size_bytes == one->size_bytes);
        words_add(&said, ", ", n < LISTED ? "%u x %s of %s" : "...", end - i,
                  dpro_collective_kind_name(one->kind),
                  one->size_bytes ? BYTES_TEXT(one->size_bytes) : "unknown size");
    }
    lines_say(lines, "communication", "%s", said.text);
}

/* 0: not known. */
static void tell_number(struct lines *lines, const char *title, uint64_t number)
{
    lines_say(lines, title, number ? "%" PRIu64 : "", number);
}

/* What tells another batch or another model, where shapes are known. */
static void tell_work(struct lines *lines, const struct dpro_graph *g)
{
    double flops = 0;
    for (uint32_t r = 0; r < g->n_ranks && g->work; r++)
        for (int f = 0; f < N_FAMILIES; f++)
            for (int p = 0; p < N_PRECISIONS; p++)
                flops += g->work[r].of[f][p].flops / g->n_ranks;
    lines_say(lines, "work of a rank", flops > 0 ? "%.3g GFLOP an iteration" : "", flops / 1e9);
}

/* One line a fact, the same facts of each trace; empty where it is not known. */
static void tell_facts(struct lines *lines, const struct dpro_trace *trace,
                       const struct dpro_graph *g)
{
    const struct recording *r = recording_of(trace);
    const struct strtab *names = &trace->names;
    struct words ranks = {.n = 0};
    EACH_OF (const struct graph_rank, rank, g->ranks, g->n_ranks)
        words_add(&ranks, " ", "%d", rank->rank);
    lines_say(lines, "ranks of the job", "%u", g->world_size);
    lines_say(lines, "ranks recorded", "%s", ranks.text);
    tell_number(lines, "micro-batches", g->n_ranks ? g->ranks[0].n_micro_batches : 0);
    lines_say(lines, "16 bits", "%s", g->n_ranks && g->ranks[0].in_16_bits ? "yes" : "no");
    tell_collectives(lines, g);
    lines_say(lines, "PyTorch", "%s", r ? strtab_get(names, r->torch) : "");
    lines_say(lines, "TensorFlow", "%s", r ? strtab_get(names, r->tensorflow) : "");
    lines_say(lines, "device", "%s", r ? strtab_get(names, r->device_name) : "");
    lines_say(lines, "computing threads", "%s", !r ? "" : r->one_thread ? "one" : "several");
    lines_say(lines, "plan", "%s",
              !r              ? ""
              : r->plan.asked ? strtab_get(names, r->plan.path)
                              : "none");
    tell_number(lines, "batch of a rank", r ? r->batch_size : 0);
    tell_work(lines, g);
    tell_number(lines, "bytes of gradients", r ? r->gradient_bytes : 0);
}

struct against_differences {
    struct lines a, b;
};

static struct against_differences *find_differences(const struct dpro_against_report *r)
{
    struct against_differences *d = mem_array(1, sizeof *d);
    tell_facts(&d->a, r->a_trace, r->a);
    tell_facts(&d->b, r->b_trace, r->b);
    return d;
}

static bool line_differs(const struct against_differences *d, size_t i)
{
    const char *a = d->a.at[i].said.text, *b = d->b.at[i].said.text;
    return a[0] && b[0] && strcmp(a, b) != 0;
}

/* ---- text ---- */

static void put_time(struct table *t, const char *what, int64_t ns)
{
    table_cells(t, what);
    table_fixed(t, (double)ns / 1e6, 3, "");
}

static void put_ranks(struct table *t, const struct dpro_graph *g, const struct dpro_cause *cause)
{
    struct words ranks = {.n = 0};
    for (uint32_t i = 0; i < cause->n_ranks; i++)
        words_add(&ranks, " ", "%d", cause->ranks[i]);
    table_cells(t, cause->n_ranks == g->n_ranks ? "all" : ranks.n < 40 ? ranks.text : "many");
}

static void put_causes(struct writer *w, const struct dpro_against_report *r)
{
    const struct dpro_against_view *v = dpro_against_view(r->against);
    struct table t = {.n_cols = 4, .left = {true, false, false, true}};
    int64_t least = (int64_t)(LEAST_SHARE * (double)MAX(v->a_ns, v->b_ns)), small = 0;
    table_cells(&t, "Cause", "B - A", "+-", "ranks");
    EACH_OF (const struct dpro_cause, cause, v->causes, v->n_causes) {
        if (llabs(cause->blame_ns) < least) {
            small += cause->blame_ns;
            continue;
        }
        put_time(&t, cause->title, cause->blame_ns);
        table_cells(&t, cause->uncertainty_ns < 0 ? "?"
                                                  : NUMBER((double)cause->uncertainty_ns / 1e6, 3));
        put_ranks(&t, r->b, cause);
    }
    if (small != 0) {
        put_time(&t, "small ones", small);
        table_cells(&t, "", "");
    }
    if (v->not_matched_ns != 0) {
        put_time(&t, "what can't be matched", v->not_matched_ns);
        table_cells(&t, "", "");
    }
    put_time(&t, "all, replayed", v->b_ns - v->a_ns);
    table_cells(&t, "", "");
    table_write(w, &t);
}

void against_write_text(struct writer *w, const struct dpro_against_report *r)
{
    struct against_differences *d = find_differences(r);
    for (size_t i = 0; i < d->a.n; i++)
        if (line_differs(d, i))
            table_paragraph(w, "Differs", 9, "%s: %s in A, %s in B", d->a.at[i].title,
                            d->a.at[i].said.text, d->b.at[i].said.text);
    mem_free(d);
    if (!r->against)
        return;
    const struct dpro_against_view *v = dpro_against_view(r->against);
    if (v->n_causes == 0)
        return;
    writer_text(w, "\nWhy an iteration takes longer or shorter in B, in ms\n");
    put_causes(w, r);
    EACH_OF (const struct dpro_cause, cause, v->causes, v->n_causes) {
        struct words parts = {.n = 0};
        for (uint32_t i = 0; i < cause->n_parts && i < TEXT_PARTS; i++)
            words_add(&parts, ", ", "%s %s", cause->parts[i].what,
                      SIGNED((double)cause->parts[i].blame_ns / 1e6));
        for (uint32_t i = 0; i < cause->n_iterations; i++)
            words_add(&parts, i ? ", " : "; ", "%s%" PRId64, i ? "" : "most in iteration ",
                      cause->iterations[i]);
        if (parts.n > 0 &&
            (double)llabs(cause->blame_ns) >= LEAST_SHARE * (double)MAX(v->a_ns, v->b_ns))
            table_paragraph(w, "", 2, "%s: %s", cause->title, parts.text);
    }
    if (MIN(v->a_matched, v->b_matched) < 0.995)
        table_paragraph(
            w, "", 0, "Ops that both have take %.0f %% of what A computes, %.0f %% of what B does.",
            100 * v->a_matched, 100 * v->b_matched);
}

/* ---- JSON ---- */

void diagnosis_write_cause(struct writer *w, const struct dpro_graph *graph,
                           const struct dpro_cause *cause)
{
    writer_item(w);
    writer_fields(w, TEXT("cause", cause->cause), TEXT("title", cause->title),
                  MS("blame_ms", cause->blame_ns),
                  MS_KNOWN("uncertainty_ms", cause->uncertainty_ns));
    writer_fields(w, MS_IF("alone_ms", cause->order > 0, cause->alone_ns),
                  MS_IF("in_order_ms", cause->order > 0, cause->in_order_ns),
                  INT_IF("order", cause->order > 0, cause->order));
    WRITER_LIST_OF (w, "ranks", const int, rank, cause->ranks, cause->n_ranks)
        if (*rank >= 0) /* no server */
            writer_json_int(w, *rank);
    WRITER_LIST_OF (w, "iterations", const int64_t, number, cause->iterations, cause->n_iterations)
        writer_json_int(w, *number);
    WRITER_LIST_OF (w, "parts", const struct dpro_cause_part, part, cause->parts, cause->n_parts)
        writer_object(w, TEXT("what", part->what), MS("blame_ms", part->blame_ns));
    WRITER_LIST_OF (w, "evidence", const struct dpro_evidence, e, cause->evidence,
                    cause->n_evidence)
        writer_object(w, TEXT("op", dpro_graph_op(graph, e->op).name), INT("id", e->op),
                      INT_IF("rank", e->rank >= 0, e->rank),
                      INT_IF("iteration", e->iteration >= 0, e->iteration),
                      MS("start_ms", e->start_ns), MS("ms", e->ns));
    writer_fields(w, TEXT("next_step", cause->next_step), TEXT("command", cause->command),
                  MS_IF("command_gain_ms", cause->command, cause->command_gain_ns),
                  MS_IF("command_uncertainty_ms", cause->command && cause->command_half_ns >= 0,
                        cause->command_half_ns));
    writer_close(w, '}');
}

void against_write_json(struct writer *w, const struct dpro_against_report *r)
{
    struct against_facts f;
    against_find_facts(&f, r->a, r->b);
    struct against_differences *d = find_differences(r);
    writer_fields(w, TEXT("a", r->a_name), TEXT("b", r->b_name),
                  TEXT("basis", f.unprofiled ? "unprofiled" : "measured"),
                  MS("more_ms", llround(f.mean_ns[1] - f.mean_ns[0])), FIXED("p", f.p, 4),
                  BOOL("is_noise", f.p > NOISE_P));
    WRITER_LIST (w, "differences", i, d->a.n)
        if (line_differs(d, i))
            writer_object(w, TEXT("what", d->a.at[i].title), TEXT("a", d->a.at[i].said.text),
                          TEXT("b", d->b.at[i].said.text));
    mem_free(d);
    if (!r->against) {
        writer_fields(w, NUL("causes"));
        return;
    }
    const struct dpro_against_view *v = dpro_against_view(r->against);
    writer_fields(w, MS("a_ms", v->a_ns), MS("b_ms", v->b_ns), INT("matched_ops", v->n_matched),
                  FIXED("a_matched", v->a_matched, 4), FIXED("b_matched", v->b_matched, 4),
                  MS("not_matched_ms", v->not_matched_ns));
    WRITER_ROWS_OF (w, "causes", const struct dpro_cause, cause, v->causes, v->n_causes)
        diagnosis_write_cause(w, r->b, cause);
}
