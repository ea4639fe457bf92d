/* The replay for a terminal: a verdict first, then the tables behind it, at most 100 columns wide.
 * Whatever bytes a trace holds, lines stay lines. */

#include "graph/graph.h"
#include "report/facts.h"
#include "report/table.h"
#include "report/words.h"

#define MANY_RANKS 16
#define TOP_OPS    12

static int ms_digits(const struct report_facts *f)
{
    return f->predicted_ns < 10000000 ? 3 : f->predicted_ns < 100000000 ? 2 : 1;
}

/* As every table of the report shows it. */
#define MILLISECONDS(f, ns) NUMBER((double)(ns) / 1e6, ms_digits(f))

/* A part of the critical path, with its share. */
static void cell_share(struct table *t, const struct report_facts *f, int64_t ns)
{
    table_cells(t, MILLISECONDS(f, ns));
    table_fixed(t, facts_pct(ns, f->replay->critical_ns), 1, "%");
}

/* ---- sections ---- */

ORDER_OF_INDICES(by_waiting, struct rank_fact,
                 ASCENDING(time.wait_for_peers_ns) ?: ASCENDING(time.rank));

static void breakdown_row(struct table *t, const struct rank_fact *rank, const bool *used,
                          bool with_all, int digits)
{
    const struct dpro_rank_time *time = &rank->time;
    table_fixed(t, (double)time->iteration_ns / 1e6, digits, "");
    for (int p = 0; p < N_RANK_PARTS; p++) {
        int64_t ns = rank_part_ns(time, p);
        if (!used[p])
            continue;
        if (p == RANK_IDLE && !rank->computes) /* nobody knows when it idled */
            table_cells(t, "-");
        else
            table_cell(t, "%s %2s%%", NUMBER((double)ns / 1e6, digits),
                       NUMBER(facts_pct(ns, time->iteration_ns), 0));
    }
    if (with_all)
        table_fixed(t, (double)time->communication_ns / 1e6, digits, "");
}

/* With few ranks all of them, else those that wait least, most, and the median. */
static void breakdown_rows(struct table *t, const struct report_facts *f, const uint32_t *by_waits,
                           const bool *used, bool with_all, int digits)
{
    static const char *const which[] = {"least ", "median ", "most "};
    uint32_t n_shown = by_waits ? 3 : f->n_ranks;
    bool hidden = f->g->hides_phases;
    table_cells(t, "rank", "iteration");
    for (int p = 0; p < N_RANK_PARTS; p++)
        if (used[p])
            table_cells(t, p == 0 && hidden ? "unknown phase" : rank_parts[p].column);
    if (with_all)
        table_cells(t, "all comm");
    for (uint32_t i = 0; i < n_shown; i++) {
        uint32_t r = by_waits ? by_waits[f->n_ranks * i / 2 - (i == 2)] : i;
        table_cell(t, "%s%d", by_waits ? which[i] : "", f->ranks[r].time.rank);
        breakdown_row(t, &f->ranks[r], used, with_all, digits);
    }
}

static void write_breakdown(struct writer *w, const struct report_facts *f)
{
    bool used[N_RANK_PARTS] = {[RANK_IDLE] = true}, any_comm = false;
    SCRATCH uint32_t *by_waits = NULL;
    for (uint32_t r = 0; r < f->n_ranks; r++) {
        for (int p = 0; p < N_RANK_PARTS; p++)
            used[p] |= rank_part_ns(&f->ranks[r].time, p) != 0;
        any_comm |= f->ranks[r].time.communication_ns != 0;
    }
    writer_text(w, "\nWhere the predicted iteration goes, in ms and % of it");
    if (f->n_ranks > MANY_RANKS) {
        by_waits = sorted_indices(f->n_ranks, f->ranks, by_waiting);
        writer_printf(w, " (%u ranks: least, median and most waiting)", f->n_ranks);
    }
    writer_text(w, "\n");
    /* what does not fit goes: first a column, then decimals */
    struct table t;
    for (int digits = ms_digits(f), with_all = any_comm;;) {
        int widths[TABLE_MOST];
        t = (struct table){.n_cols = 2 + with_all};
        for (int p = 0; p < N_RANK_PARTS; p++)
            t.n_cols += used[p];
        breakdown_rows(&t, f, by_waits, used, with_all, digits);
        if (table_widths(&t, widths) <= TABLE_COLUMNS || (with_all == 0 && digits == 0))
            break;
        if (with_all)
            with_all = 0;
        else
            digits--;
        array_fini(&t.cells);
    }
    table_write(w, &t);
    if (!f->any_computes)
        table_wrapped(
            w, "", 2,
            "no computation was recorded, so hidden communication and idle time are unknown");
    else if (any_comm)
        table_wrapped(w, "", 2,
                      "exposed: transferring while nothing is computed; waiting: in a collective "
                      "before its last rank arrives; all comm: all transfers, hidden or not");
    if (f->g->is_scaled)
        table_paragraph(w, "", 2,
                        "tracing made iterations %s longer: all times are scaled to the %u steps "
                        "without it",
                        TIME(f->report->profiler_ns), f->job.n);
    char fewest[20] = "";
    if (f->fewest_micro_batches < f->n_micro_batches)
        snprintf(fewest, sizeof fewest, "%u to ", f->fewest_micro_batches);
    if (f->n_micro_batches > 1)
        table_paragraph(w, "", 2,
                        "%s%u micro-batches an iteration: as many forward and backward passes "
                        "before an update",
                        fewest, f->n_micro_batches);
    if (strcmp(f->framework, "jax") == 0 || strcmp(f->framework, "xla") == 0)
        table_wrapped(w, "", 2,
                      "XLA's programs do not distinguish forward, backward and update: all "
                      "computation counts as forward");
    else if (f->g->hides_phases)
        table_wrapped(w, "", 2,
                      "nothing recorded tells forward, backward and update apart: record the CPU's "
                      "ops, too (ProfilerActivity.CPU), and put the launches of CUDA graphs into "
                      "ranges of these names (torch.profiler.record_function); while only the CPU "
                      "works, the rank counts as idle");
    else if (f->has_gpu)
        table_wrapped(w, "", 2,
                      "forward, backward and update are times on the GPU; while only the CPU "
                      "works, the rank counts as idle");
}

static void write_path(struct writer *w, const struct report_facts *f)
{
    writer_text(w, "\nCritical path");
    if (f->shown >= 0 && f->n_measured > 1)
        writer_printf(w, " (iteration %lld, replayed)", (long long)f->shown);
    writer_printf(w, ": %s, by kind\n", TIME(f->replay->critical_ns));
    struct table t = {.n_cols = 4, .left = {true, true}};
    table_cells(&t, "kind", "what", "ms", "share");
    for (int i = 0; i < f->n_kinds; i++) {
        int kind = f->kinds[i];
        if (kind == PATH_GAP)
            table_cells(&t, "GAP", "between ops");
        else
            table_cells(&t, dpro_op_kind_name(kind), facts_kind_words(f, kind));
        cell_share(&t, f, f->kind_ns[kind]);
    }
    table_write(w, &t);
    if (f->replay->n_critical == 0 ||
        facts_pct(f->replay->critical[f->longest_gap].gap_ns, f->replay->critical_ns) < 3)
        return;
    struct dpro_op op = dpro_graph_op(f->g, f->replay->critical[f->longest_gap].op);
    char name[256], process[DPRO_PROCESS_NAME_MAX];
    columns_shorten(name, sizeof name, op.name, 44);
    dpro_process_name(process, op.rank);
    writer_printf(w, "  longest gap: %s on %s, before %s%s\n",
                  TIME(f->replay->critical[f->longest_gap].gap_ns), process, name,
                  f->longest_gap == 0 && f->apart_ns > 0 ? "; the rank starts late" : "");
}

ORDER_OF_INDICES(by_path, struct rank_fact, DESCENDING(path_ns) ?: ASCENDING(time.rank));

static void write_path_ranks(struct writer *w, const struct report_facts *f)
{
    if (f->n_ranks < 2)
        return;
    SCRATCH uint32_t *order = sorted_indices(f->n_ranks, f->ranks, by_path);
    uint32_t n_on_path = 0;
    for (uint32_t r = 0; r < f->n_ranks; r++)
        n_on_path += f->ranks[r].path_ns > 0;
    uint32_t n_shown = n_on_path < MANY_RANKS ? n_on_path : MANY_RANKS;
    writer_printf(w, "\nCritical path by rank");
    if (n_shown < n_on_path)
        writer_printf(w, " (the first %u of %u on it)", n_shown, n_on_path);
    writer_text(w, "\n");
    struct table t = {.n_cols = 3};
    table_cells(&t, "rank", "ms", "share");
    for (uint32_t i = 0; i < n_shown; i++) {
        table_cell(&t, "%d", f->ranks[order[i]].time.rank);
        cell_share(&t, f, f->ranks[order[i]].path_ns);
    }
    if (f->servers_path_ns > 0) {
        table_cells(&t, "servers");
        cell_share(&t, f, f->servers_path_ns);
    }
    table_write(w, &t);
}

static void write_names(struct writer *w, const struct report_facts *f)
{
    uint32_t n = f->n_names < TOP_OPS ? f->n_names : TOP_OPS;
    if (n == 0)
        return;
    writer_printf(w, "\nTop critical ops");
    if (n < f->n_names)
        writer_printf(w, " (%u of %u)", n, f->n_names);
    writer_text(w, "\n");
    struct table t = {.n_cols = 6, .left = {true, true}};
    table_cells(&t, "name", "kind", "ranks", "count", "ms", "share");
    EACH_OF (const struct name_fact, name, f->names, n) {
        char text[NAME_COLUMNS * 4], process[DPRO_PROCESS_NAME_MAX];
        columns_shorten(text, sizeof text, name->name, NAME_COLUMNS);
        table_cells(&t, text, dpro_op_kind_name(name->kind));
        dpro_process_name(process, name->rank);
        if (name->n_ranks == 1)
            table_cells(&t, process);
        else
            table_cell(&t, "%u ranks", name->n_ranks);
        table_cell(&t, "%u", name->count);
        cell_share(&t, f, name->dur_ns);
    }
    table_write(w, &t);
}

static void write_clock(struct writer *w, const struct report_facts *f)
{
    uint32_t n = dpro_graph_n_clocks(f->g);
    if (n < 2 || strcmp(align_method(f->g), "none") == 0)
        return;
    writer_text(w, "\nClocks");
    if (n > MANY_RANKS)
        writer_printf(w, ", the first %u of %u; 'dpro align' shows all", MANY_RANKS, n);
    writer_text(w, "\n");
    align_write_table(w, f->g, n < MANY_RANKS ? n : MANY_RANKS);
}

static void prediction_row(struct table *t, const struct report_facts *f, const char *name,
                           int64_t ns, double error_pct)
{
    table_cells(t, name, MILLISECONDS(f, ns));
    table_cell(t, "%s%s", f->comparable ? SIGNED(error_pct) : "-", f->comparable ? "%" : "");
}

static void write_checks(struct writer *w, const struct report_facts *f)
{
    const struct dpro_validation *v = &f->validation;
    const char *replay = f->report->what_if ? "replay, what if" : "replay";
    writer_text(w, "\nHow sure: the replay against what was measured\n");
    struct table t = {.n_cols = 3, .left = {true}};
    table_cells(&t, "", "ms", "error");
    if (f->measured_ns >= 0) {
        if (f->n_measured == 1)
            table_cells(&t, "recorded, one iteration");
        else
            table_cell(&t, "recorded, mean of %u", f->n_measured);
        table_cells(&t, MILLISECONDS(f, f->measured_ns), "");
    }
    if (facts_has_profiler(f)) {
        prediction_row(&t, f, "replay, with the profiler's own work",
                       f->predicted_ns + f->report->profiler_ns, f->error_pct);
        table_cells(&t, replay, MILLISECONDS(f, f->predicted_ns), "");
    } else {
        prediction_row(&t, f, replay, f->predicted_ns, f->error_pct);
    }
    for (int p = 0; p < 2 && f->n_drawn > 0; p++) {
        table_cell(&t, "replay, %s of %u drawn iterations", p ? "p95" : "p50", f->n_drawn);
        table_cells(&t, MILLISECONDS(f, p ? f->p95_ns : f->p50_ns), "");
    }
    if (f->daydream.iteration_ns >= 0)
        prediction_row(&t, f, "Daydream (one rank, no waiting for peers)", f->daydream.iteration_ns,
                       f->daydream_error_pct);
    table_write(w, &t);
    if (v->n == 0)
        writer_text(w, f->n_measured > 1
                           ? "  self-validation: not asked for\n"
                           : "  self-validation: none, too few iterations; record 10 or more\n");
    else
        writer_printf(w,
                      "  self-validation (%s, %u predictions): off by %s %% on average, %s %% at "
                      "worst;\n  bias %s %%; the measured iterations themselves spread by %s %%\n",
                      v->method, v->n, NUMBER(v->mean_abs_error_pct, 1),
                      NUMBER(v->max_abs_error_pct, 1), NUMBER(v->mean_error_pct, 1),
                      NUMBER(v->measured_std_pct, 1));
}

static void write_contradiction(struct writer *w, const struct report_facts *f)
{
    if (f->contradicts)
        table_paragraph(w, " ", 2,
                        "the replay contradicts the measurement: it is %s off, the measured mean "
                        "is known to +- %s",
                        TIME(llabs(f->predicted_ns + f->report->profiler_ns - f->measured_ns)),
                        TIME(f->known_to_ns));
}

/* What the headline's interval is made of. */
static void write_interval(struct writer *w, const struct report_facts *f)
{
    double half = (double)(f->job.high_ns - f->job.low_ns) / 2;
    if (half <= 0 || f->report->what_if)
        return;
    table_paragraph(
        w, " ", 2,
        "+- %s %% of the job's time: %s %s%s %s %%, machine drift %s %% (95 %%, squares add up; "
        "the latter is never below 5 %%, as steps of one minute tell little of the next hour)",
        NUMBER(100 * half / (double)f->job.ns, 1), NUMBER((double)f->job.n, 0),
        f->job.source == DPRO_JOB_OWN_STEPS ? "step" : "iteration", PLURAL(f->job.n),
        NUMBER(100 * HALF_OF_95_PCT * f->doubt.noise, 1),
        NUMBER(100 * HALF_OF_95_PCT * f->doubt.machine, 1));
}

static void write_unprofiled(struct writer *w, const struct report_facts *f)
{
    const struct dpro_unprofiled *u = &f->unprofiled;
    const struct slow_ones *ones = f->g->unprofiled_ones;
    struct words line = {.n = 0};
    if (u->n_steps == 0)
        return;
    words_add(&line, "", "without the profiler: %s, mean of %u step%s (median %s)",
              TIME(u->mean_ns), u->n_steps, PLURAL(u->n_steps), TIME(u->median_ns));
    if (ones && ones->every > 0)
        words_add(&line, ", ", "one step in %u takes %s longer than the others", ones->every,
                  TIME(llround(ones->slow.mean - ones->usual.mean)));
    words_add(&line, "; ", "off from that: recorded iterations %s %%", SIGNED(f->overhead_pct));
    if (f->comparable)
        words_add(&line, ", ", "replay %s %%", SIGNED(f->unprofiled_error_pct));
    table_wrapped(w, " ", 2, line.text);
}

static void write_unprofiled_iterations(struct writer *w, const struct report_facts *f)
{
    const struct dpro_unprofiled_iterations *o = &f->outside;
    struct words line = {.n = 0};
    if (o->n_iterations == 0 && o->asking_ns == 0)
        return;
    if (o->n_iterations > 0)
        words_add(&line, "",
                  "without the profiler, by the transport logs: %s, mean of %u iterations outside "
                  "of the profile (spread %s)",
                  TIME(o->mean_ns), o->n_iterations, TIME(o->std_ns));
    if (o->asking_ns > 0)
        words_add(&line, "; ", "collecting the profiles of all tasks took %s", TIME(o->asking_ns));
    if (f->wire_profiler_ns > 0) {
        words_add(&line, "; ", "so the profiler cost %s", TIME(f->wire_profiler_ns));
        if (f->wire_error_ns > 0)
            words_add(&line, " ", "(standard error %s)", TIME(f->wire_error_ns));
        words_add(&line, ", ", "and %s are expected without it", TIME(f->wire_predicted_ns));
    } else {
        words_add(&line, "; ", "no cost of the profiler shows");
    }
    table_wrapped(w, " ", 2, line.text);
}

static void write_transport(struct writer *w, const struct report_facts *f)
{
    const struct dpro_transport_info info = dpro_trace_transport(f->report->trace), *t = &info;
    uint32_t n = t->n_connections + t->n_one_sided;
    struct words line = {.n = 0};
    if (t->n_processes == 0)
        return;
    words_add(&line, "", "transport: %llu socket calls, %u connection%s, %s MB sent",
              (unsigned long long)t->n_calls, n, PLURAL(n), MEGABYTES(t->sent_bytes));
    if (t->n_connections > 0)
        words_add(&line, ", ", "%llu bytes seen at one end only",
                  (unsigned long long)t->unpaired_bytes);
    else if (n > 0)
        words_add(&line, ", ", "recorded at one end");
    if (t->n_collectives > 0)
        words_add(&line, "; ", "%llu of %llu collectives matched with their messages",
                  (unsigned long long)t->n_tied, (unsigned long long)t->n_collectives);
    if (t->n_checked > 0)
        words_add(&line, ", ", "%llu of %llu with exactly the bytes that their size implies",
                  (unsigned long long)t->n_exact, (unsigned long long)t->n_checked);
    if (t->n_lost > 0)
        words_add(&line, "; ", "%llu records lost", (unsigned long long)t->n_lost);
    table_wrapped(w, " ", 2, line.text);
}

static void write_fusion(struct writer *w, const struct report_facts *f)
{
    const struct dpro_fusion_info *h = &f->fusion;
    struct words line = {.n = 0};
    if (h->n_tensors == 0)
        return;
    words_add(&line, "",
              "Horovod: %u tensors in %u group%s (%u of %u rounds were fused in these groups); in "
              "an iteration its thread spends %s on negotiation, %s on copies and %s on callbacks",
              h->n_tensors, h->n_groups, PLURAL(h->n_groups), h->n_alike, h->n_rounds,
              TIME(f->negotiate_ns), TIME(f->copy_ns), TIME(f->callback_ns));
    if (h->cycle_ns > 0)
        words_add(&line, "; ", "its cycle takes %s", TIME(h->cycle_ns));
    table_wrapped(w, " ", 2, line.text);
}

static void write_collectives(struct writer *w, const struct report_facts *f)
{
    enum { MOST_KINDS = 6 };
    for (uint32_t i = 0; i < f->n_comms && i < MOST_KINDS; i++) {
        const struct comm_fact *c = &f->comms[i];
        char channels[40] = "";
        if (c->pattern[0] == '\0')
            continue;
        if (c->most_channels > 1)
            snprintf(channels, sizeof channels, " on %u channels", c->most_channels);
        table_paragraph(w, " ", 2, "%u %s over %u ranks, %s%s: %s%s%s, %llu messages", c->count,
                        c->kind, c->n_ranks,
                        c->sized ? MEGABYTES(c->size_bytes) : "size not recorded",
                        c->sized ? " MB a rank" : "", c->pattern,
                        c->most_chunks > 1 && strcmp(c->pattern, "ring") == 0 ? " in chunks" : "",
                        channels, (unsigned long long)c->n_messages);
    }
}

static void write_text(struct writer *w, const void *report)
{
    struct report_facts facts, *f = &facts;
    facts_init(f, report);
    for (int i = 0; i < N_VERDICT; i++)
        table_wrapped(w, f->verdict[i].title, 15, f->verdict[i].text);
    write_breakdown(w, f);
    writer_text(w, f->slow.n > 0 ? "\nSlow iterations\n" : "");
    if (f->slow.n > 0)
        table_wrapped(w, " ", 2, f->slow.text);
    dimensions_write_text(w, f);
    write_path(w, f);
    write_path_ranks(w, f);
    write_names(w, f);
    memory_write_text(w, f);
    write_clock(w, f);
    write_checks(w, f);
    write_contradiction(w, f);
    write_interval(w, f);
    write_unprofiled(w, f);
    write_unprofiled_iterations(w, f);
    write_transport(w, f);
    write_fusion(w, f);
    write_collectives(w, f);
    warnings_write_text(w, &f->warnings, 1);
    facts_fini(f);
}

REPORT(dpro_report_text, dpro_report, write_text)
