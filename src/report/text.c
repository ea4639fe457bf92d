/* report/text.c: the replay for a terminal: a verdict first, then the tables it rests on. At most
 * 100 columns; whatever bytes a trace holds, lines stay lines. */
#include <stdlib.h>
#include <string.h>

#include "base/sort.h"
#include "graph/graph.h"
#include "report/columns.h"
#include "report/contradiction.h"
#include "report/facts.h"
#include "report/table.h"

#define MANY_RANKS 16
#define TOP_OPS    12

static int ms_digits(const struct report_facts *f)
{
    return f->predicted_ns < 10000000 ? 3 : f->predicted_ns < 100000000 ? 2 : 1;
}

static void cell_ms(struct table *t, const struct report_facts *f, int64_t ns)
{
    table_fixed(t, (double)ns / 1e6, ms_digits(f), "");
}

/* ---- sections ---- */

static void write_verdict(struct writer *w, const struct report_facts *f)
{
    for (int i = 0; i < N_VERDICT; i++)
        table_wrapped(w, f->verdict[i].title, 15, f->verdict[i].text);
}

#define N_PARTS   7
#define PART_IDLE 6
static const char *const part_names[N_PARTS] = {"forward", "backward", "update", "input",
                                                "exposed", "waiting",  "idle"};

static void rank_parts(const struct dpro_rank_time *t, int64_t parts[N_PARTS])
{
    parts[0] = t->forward_ns;
    parts[1] = t->backward_ns;
    parts[2] = t->update_ns;
    parts[3] = t->input_ns;
    parts[4] = t->exposed_communication_ns;
    parts[5] = t->wait_for_peers_ns;
    parts[PART_IDLE] = t->idle_ns;
}

ORDER_OF_INDICES(by_waiting, struct rank_fact,
                 ASCENDING(time.wait_for_peers_ns) ?: ASCENDING(time.rank));

/* Of a rank without recorded computation nobody knows when it idled. */
static void cell_part(struct table *t, const struct rank_fact *rank, int part, int digits)
{
    int64_t parts[N_PARTS];
    char ms[TIME_TEXT], share[TIME_TEXT];
    rank_parts(&rank->time, parts);
    if (part == PART_IDLE && !rank->computes) {
        table_cell(t, "-");
        return;
    }
    writer_format_fixed(ms, sizeof ms, (double)parts[part] / 1e6, digits);
    writer_format_fixed(share, sizeof share, facts_pct(parts[part], rank->time.iteration_ns), 0);
    table_cell(t, "%s %2s%%", ms, share);
}

static void breakdown_rows(struct table *t, const struct report_facts *f, const uint32_t *shown,
                           uint32_t n_shown, const bool *used, bool with_all, int digits)
{
    static const char *const which[] = {"least", "median", "most"};
    bool many = f->n_ranks > MANY_RANKS;
    table_cell(t, "rank");
    table_cell(t, "iteration");
    for (int p = 0; p < N_PARTS; p++)
        if (used[p])
            table_cell(t, "%s", part_names[p]);
    if (with_all)
        table_cell(t, "all comm");
    for (uint32_t i = 0; i < n_shown; i++) {
        const struct dpro_rank_time *time = &f->ranks[shown[i]].time;
        if (many)
            table_cell(t, "%s %d", which[i], time->rank);
        else
            table_cell(t, "%d", time->rank);
        table_fixed(t, (double)time->iteration_ns / 1e6, digits, "");
        for (int p = 0; p < N_PARTS; p++)
            if (used[p])
                cell_part(t, &f->ranks[shown[i]], p, digits);
        if (with_all)
            table_fixed(t, (double)time->communication_ns / 1e6, digits, "");
    }
}

static void write_breakdown(struct writer *w, const struct report_facts *f)
{
    bool used[N_PARTS] = {[PART_IDLE] = true}, any_comm = false;
    uint32_t *shown = malloc((f->n_ranks + 1) * sizeof *shown), n_shown = f->n_ranks;
    if (!shown) {
        writer_text(w, "\n(out of memory)\n");
        return;
    }
    for (uint32_t r = 0; r < f->n_ranks; r++) {
        int64_t parts[N_PARTS];
        rank_parts(&f->ranks[r].time, parts);
        for (int p = 0; p < N_PARTS; p++)
            used[p] |= parts[p] != 0;
        any_comm |= f->ranks[r].time.communication_ns != 0;
        shown[r] = r;
    }
    writer_text(w, "\nWhere the predicted iteration goes, in ms and % of it");
    if (f->n_ranks > MANY_RANKS) {
        qsort_r(shown, f->n_ranks, sizeof *shown, by_waiting, f->ranks);
        shown[1] = shown[f->n_ranks / 2];
        shown[2] = shown[f->n_ranks - 1];
        n_shown = 3;
        writer_printf(w, " (%u ranks: least, median and most waiting)", f->n_ranks);
    }
    writer_text(w, "\n");
    /* what does not fit goes: first a column, then decimals */
    struct table t;
    for (int digits = ms_digits(f), with_all = any_comm;;) {
        int widths[TABLE_MOST];
        t = (struct table){.n_cols = 2 + with_all};
        for (int p = 0; p < N_PARTS; p++)
            t.n_cols += used[p];
        breakdown_rows(&t, f, shown, n_shown, used, with_all, digits);
        if (table_widths(&t, widths) <= TABLE_COLUMNS || (with_all == 0 && digits == 0))
            break;
        if (with_all)
            with_all = 0;
        else
            digits--;
        array_fini(&t.cells);
    }
    table_write(w, &t);
    free(shown);
    if (!f->any_computes)
        table_wrapped(w, "", 2,
                      "no computation was recorded: what it hides, and when ranks idle, is not "
                      "known");
    else if (any_comm)
        table_wrapped(w, "", 2,
                      "exposed: transferring while nothing is computed; waiting: in a collective "
                      "before its last rank is there; all comm: all transferring, hidden or not");
    if (facts_of_xla(f))
        table_wrapped(w, "", 2,
                      "XLA's programs do not tell forward, backward and update apart: all that a "
                      "device computes counts as forward");
    else if (f->has_gpu)
        table_wrapped(w, "", 2,
                      "forward, backward and update are the GPU's; while only the CPU works, the "
                      "rank idles");
}

static void write_path(struct writer *w, const struct report_facts *f)
{
    char time[TIME_TEXT];
    writer_text(w, "\nCritical path");
    if (f->shown >= 0 && f->n_measured > 1)
        writer_printf(w, " (iteration %lld, replayed)", (long long)f->shown);
    writer_printf(w, ": %s, by kind\n", facts_time(time, f->path_ns));
    struct table t = {.n_cols = 4, .left = {true, true}};
    table_cell(&t, "kind");
    table_cell(&t, "what");
    table_cell(&t, "ms");
    table_cell(&t, "share");
    for (int i = 0; i < f->n_kinds; i++) {
        int kind = f->kinds[i];
        bool gap = kind == PATH_GAP;
        table_cell(&t, "%s", gap ? "GAP" : dpro_op_kind_name(kind));
        table_cell(&t, "%s", gap ? "between ops" : facts_kind_words(kind));
        cell_ms(&t, f, f->kind_ns[kind]);
        table_fixed(&t, facts_pct(f->kind_ns[kind], f->path_ns), 1, "%");
    }
    table_write(w, &t);
    if (f->n_path == 0 || facts_pct(f->path[f->longest_gap].gap_ns, f->path_ns) < 3)
        return;
    struct dpro_op op = dpro_graph_op(f->report->graph, f->path[f->longest_gap].op);
    char name[256];
    columns_shorten(name, sizeof name, op.name, 44);
    char process[DPRO_PROCESS_NAME_MAX];
    dpro_process_name(process, op.rank);
    writer_printf(w, "  longest gap: %s on %s, before %s%s\n",
                  facts_time(time, f->path[f->longest_gap].gap_ns), process, name,
                  f->longest_gap == 0 && f->apart_ns > 0 ? "; the rank starts late" : "");
}

ORDER_OF_INDICES(by_path, struct rank_fact, DESCENDING(path_ns) ?: ASCENDING(time.rank));

static void write_path_ranks(struct writer *w, const struct report_facts *f)
{
    if (f->n_ranks < 2)
        return;
    uint32_t *order = malloc(f->n_ranks * sizeof *order);
    if (!order) {
        writer_text(w, "\n(out of memory)\n");
        return;
    }
    uint32_t n_on_path = 0;
    for (uint32_t r = 0; r < f->n_ranks; r++) {
        order[r] = r;
        n_on_path += f->ranks[r].path_ns > 0;
    }
    qsort_r(order, f->n_ranks, sizeof *order, by_path, f->ranks);
    uint32_t n_shown = n_on_path < MANY_RANKS ? n_on_path : MANY_RANKS;
    writer_printf(w, "\nCritical path by rank");
    if (n_shown < n_on_path)
        writer_printf(w, " (the first %u of %u on it)", n_shown, n_on_path);
    writer_text(w, "\n");
    struct table t = {.n_cols = 3};
    table_cell(&t, "rank");
    table_cell(&t, "ms");
    table_cell(&t, "share");
    for (uint32_t i = 0; i < n_shown; i++) {
        const struct rank_fact *rank = &f->ranks[order[i]];
        table_cell(&t, "%d", rank->time.rank);
        cell_ms(&t, f, rank->path_ns);
        table_fixed(&t, facts_pct(rank->path_ns, f->path_ns), 1, "%");
    }
    if (f->servers_path_ns > 0) {
        table_cell(&t, "servers");
        cell_ms(&t, f, f->servers_path_ns);
        table_fixed(&t, facts_pct(f->servers_path_ns, f->path_ns), 1, "%");
    }
    table_write(w, &t);
    free(order);
}

static void write_names(struct writer *w, const struct report_facts *f)
{
    if (f->n_names == 0)
        return;
    uint32_t n = f->n_names < TOP_OPS ? f->n_names : TOP_OPS;
    writer_printf(w, "\nTop critical ops");
    if (n < f->n_names)
        writer_printf(w, " (%u of %u)", n, f->n_names);
    writer_text(w, "\n");
    struct table t = {.n_cols = 6, .left = {true, true}};
    table_cell(&t, "name");
    table_cell(&t, "kind");
    table_cell(&t, "ranks");
    table_cell(&t, "count");
    table_cell(&t, "ms");
    table_cell(&t, "share");
    for (uint32_t i = 0; i < n; i++) {
        const struct name_fact *name = &f->names[i];
        char text[NAME_COLUMNS * 4];
        columns_shorten(text, sizeof text, name->name, NAME_COLUMNS);
        table_cell(&t, "%s", text);
        table_cell(&t, "%s", dpro_op_kind_name(name->kind));
        char process[DPRO_PROCESS_NAME_MAX];
        dpro_process_name(process, name->rank);
        if (name->n_ranks == 1)
            table_cell(&t, "%s", process);
        else
            table_cell(&t, "%u ranks", name->n_ranks);
        table_cell(&t, "%u", name->count);
        cell_ms(&t, f, name->dur_ns);
        table_fixed(&t, facts_pct(name->dur_ns, f->path_ns), 1, "%");
    }
    table_write(w, &t);
}

static void write_clock(struct writer *w, const struct report_facts *f)
{
    const struct dpro_graph *g = f->report->graph;
    uint32_t n = dpro_graph_n_clocks(g);
    if (n < 2 || strcmp(align_method(g), "none") == 0)
        return;
    writer_text(w, "\nClocks");
    if (n > MANY_RANKS)
        writer_printf(w, ", the first %u of %u; 'dpro align' shows all", MANY_RANKS, n);
    writer_text(w, "\n");
    align_write_table(w, g, n < MANY_RANKS ? n : MANY_RANKS);
}

static void prediction_row(struct table *t, const struct report_facts *f, const char *name,
                           int64_t ns, double error_pct)
{
    table_cell(t, "%s", name);
    cell_ms(t, f, ns);
    if (f->comparable) {
        char text[TIME_TEXT];
        if (writer_format_fixed(text, sizeof text, error_pct, 1) < 0)
            strcpy(text, "?");
        table_cell(t, "%s%s%%", error_pct >= 0.05 ? "+" : "", text);
    } else {
        table_cell(t, "-");
    }
}

static void write_checks(struct writer *w, const struct report_facts *f)
{
    const struct dpro_validation *v = f->report->validation;
    const struct dpro_daydream *d = f->daydream;
    writer_text(w, "\nPrediction against measurement\n");
    struct table t = {.n_cols = 3, .left = {true}};
    table_cell(&t, "%s", "");
    table_cell(&t, "ms");
    table_cell(&t, "error");
    if (f->measured_ns >= 0) {
        if (f->n_measured == 1)
            table_cell(&t, "measured, one iteration");
        else
            table_cell(&t, "measured, mean of %u", f->n_measured);
        cell_ms(&t, f, f->measured_ns);
        table_cell(&t, "%s", "");
    }
    if (f->report->profiler_op_ns) {
        prediction_row(&t, f, "replay, with the profiler's own work",
                       f->predicted_ns + f->report->profiler_ns, f->error_pct);
        table_cell(&t, f->report->what_if ? "replay, what if" : "replay");
        cell_ms(&t, f, f->predicted_ns);
        table_cell(&t, "%s", "");
    } else {
        prediction_row(&t, f, f->report->what_if ? "replay, what if" : "replay", f->predicted_ns,
                       f->error_pct);
    }
    if (f->n_drawn > 0) {
        char name[64];
        for (int p = 0; p < 2; p++) {
            snprintf(name, sizeof name, "%s of %u drawn iterations", p ? "p95" : "p50", f->n_drawn);
            table_cell(&t, "%s", name);
            cell_ms(&t, f, p ? f->p95_ns : f->p50_ns);
            table_cell(&t, "%s", "");
        }
    }
    if (d)
        prediction_row(&t, f, "Daydream (one rank, peers never waited for)", d->iteration_ns,
                       f->daydream_error_pct);
    table_write(w, &t);
    if (!v || v->n == 0) {
        writer_text(w, f->n_measured > 1
                           ? "  self-validation: not asked for\n"
                           : "  self-validation: none, too few iterations; record 10 or more\n");
        return;
    }
    writer_printf(w, "  self-validation (%s, %u predictions): off by ", v->method, v->n);
    writer_fixed(w, v->mean_abs_error_pct, 1);
    writer_text(w, " % on average, ");
    writer_fixed(w, v->max_abs_error_pct, 1);
    writer_text(w, " % at worst;\n  bias ");
    writer_fixed(w, v->mean_error_pct, 1);
    writer_text(w, " %; the measured iterations themselves spread by ");
    writer_fixed(w, v->measured_std_pct, 1);
    writer_text(w, " %\n");
}

/* Which part of the graph makes the replay contradict the measurement. */
static void write_contradiction(struct writer *w, const struct report_facts *f)
{
    enum { MOST_PARTS = 6 };
    char line[500], off[TIME_TEXT], known[TIME_TEXT];
    if (!f->contradicts)
        return;
    facts_time(off, llabs(f->predicted_ns + f->report->profiler_ns - f->measured_ns));
    snprintf(line, sizeof line,
             "the replay contradicts the measurement: it is %s off, the measured mean is known to "
             "+- %s%s%s",
             off, facts_time(known, f->known_to_ns), f->contradiction[0] ? "; " : "",
             f->contradiction);
    table_wrapped(w, " ", 2, line);
    struct table t = {.n_cols = 4, .left = {false, true}};
    table_cell(&t, "rank");
    table_cell(&t, "what");
    table_cell(&t, "measured ms");
    table_cell(&t, "replayed ms");
    for (uint32_t i = 0; i < f->n_parts && i < MOST_PARTS; i++) {
        const struct part_fact *part = &f->parts[i];
        table_cell(&t, "%d", part->rank);
        table_cell(&t, "%s", contradiction_part(part));
        cell_ms(&t, f, part->measured_ns);
        cell_ms(&t, f, part->replayed_ns);
    }
    table_write(w, &t);
}

static void format_pct(char out[TIME_TEXT], double value)
{
    char digits[TIME_TEXT];
    if (writer_format_fixed(digits, sizeof digits, value, 1) < 0)
        strcpy(digits, "?");
    snprintf(out, TIME_TEXT, "%s%.20s", value >= 0.05 ? "+" : "", digits);
}

static void write_unprofiled(struct writer *w, const struct report_facts *f)
{
    const struct dpro_unprofiled *u = &f->unprofiled;
    char line[400], mean[TIME_TEXT], median[TIME_TEXT], cost[TIME_TEXT], off[TIME_TEXT];
    if (u->n_steps == 0)
        return;
    format_pct(cost, f->overhead_pct);
    format_pct(off, f->unprofiled_error_pct);
    int len =
        snprintf(line, sizeof line,
                 "without the profiler: %s, mean of %u steps (median %s); with it they took "
                 "%s %%",
                 facts_time(mean, u->mean_ns), u->n_steps, facts_time(median, u->median_ns), cost);
    if (f->comparable)
        snprintf(line + len, sizeof line - (size_t)len, ", the replay is %s %% off", off);
    table_wrapped(w, " ", 2, line);
}

static void write_on_wire(struct writer *w, const struct report_facts *f)
{
    const struct dpro_on_wire *o = &f->on_wire;
    char line[500], mean[TIME_TEXT], std[TIME_TEXT], cost[TIME_TEXT], without[TIME_TEXT];
    int len = 0;
    if (o->n_iterations == 0 && o->asking_ns == 0)
        return;
    if (o->n_iterations > 0)
        len = snprintf(line, sizeof line,
                       "without the profiler, on the wire: %s, mean of %u iterations that only the "
                       "transport logs show (spread %s); ",
                       facts_time(mean, o->mean_ns), o->n_iterations, facts_time(std, o->std_ns));
    if (o->asking_ns > 0)
        len += snprintf(line + len, sizeof line - (size_t)len,
                        "asking all tasks for what they recorded took %s; ",
                        facts_time(mean, o->asking_ns));
    if (f->wire_profiler_ns > 0)
        len += snprintf(line + len, sizeof line - (size_t)len, "so the profiler cost %s",
                        facts_time(cost, f->wire_profiler_ns));
    if (f->wire_profiler_ns > 0 && f->wire_error_ns > 0)
        len += snprintf(line + len, sizeof line - (size_t)len, " (standard error %s)",
                        facts_time(std, f->wire_error_ns));
    if (f->wire_profiler_ns > 0)
        snprintf(line + len, sizeof line - (size_t)len, ", and without it %s are expected",
                 facts_time(without, f->wire_predicted_ns));
    else
        snprintf(line + len, sizeof line - (size_t)len, "no less than with it");
    table_wrapped(w, " ", 2, line);
}

static void write_transport(struct writer *w, const struct report_facts *f)
{
    const struct dpro_transport_info *t = &f->transport;
    char line[500], mb[TIME_TEXT];
    if (t->n_processes == 0)
        return;
    if (writer_format_fixed(mb, sizeof mb, (double)t->sent_bytes / 1e6, 1) < 0)
        strcpy(mb, "?");
    uint32_t n = t->n_connections + t->n_one_sided;
    int len =
        snprintf(line, sizeof line, "transport: %llu socket calls, %u connection%s, %s MB sent",
                 (unsigned long long)t->n_calls, n, n == 1 ? "" : "s", mb);
    if (t->n_connections > 0)
        len += snprintf(line + len, sizeof line - (size_t)len, ", %llu bytes seen at one end only",
                        (unsigned long long)t->unpaired_bytes);
    else if (n > 0)
        len += snprintf(line + len, sizeof line - (size_t)len, ", recorded at one end");
    if (t->n_collectives > 0)
        len += snprintf(line + len, sizeof line - (size_t)len,
                        "; %llu of %llu collectives tied to their messages",
                        (unsigned long long)t->n_tied, (unsigned long long)t->n_collectives);
    if (t->n_checked > 0)
        len += snprintf(line + len, sizeof line - (size_t)len,
                        ", the bytes of %llu of %llu as their size asks",
                        (unsigned long long)t->n_exact, (unsigned long long)t->n_checked);
    if (t->n_lost > 0)
        snprintf(line + len, sizeof line - (size_t)len, "; %llu records lost",
                 (unsigned long long)t->n_lost);
    table_wrapped(w, " ", 2, line);
}

static void write_fusion(struct writer *w, const struct report_facts *f)
{
    const struct dpro_fusion_info *h = &f->fusion;
    char line[500], cycle[TIME_TEXT], negotiate[TIME_TEXT], copy[TIME_TEXT], call[TIME_TEXT];
    if (h->n_tensors == 0)
        return;
    int len = snprintf(line, sizeof line,
                       "Horovod: %u tensors in %u group%s (%u of %u rounds were fused just so); of "
                       "an iteration its thread negotiates %s, copies %s, and calls back %s",
                       h->n_tensors, h->n_groups, h->n_groups == 1 ? "" : "s", h->n_alike,
                       h->n_rounds, facts_time(negotiate, f->negotiate_ns),
                       facts_time(copy, f->copy_ns), facts_time(call, f->callback_ns));
    if (h->cycle_ns > 0)
        snprintf(line + len, sizeof line - (size_t)len, "; its cycle takes %s",
                 facts_time(cycle, h->cycle_ns));
    table_wrapped(w, " ", 2, line);
}

static void write_collectives(struct writer *w, const struct report_facts *f)
{
    enum { MOST_KINDS = 6 };
    for (uint32_t i = 0; i < f->n_comms && i < MOST_KINDS; i++) {
        const struct comm_fact *c = &f->comms[i];
        char line[300], size[64] = "size not recorded", mb[TIME_TEXT], channels[40] = "";
        if (c->pattern[0] == '\0')
            continue;
        if (c->most_channels > 1)
            snprintf(channels, sizeof channels, " on %u channels", c->most_channels);
        if (c->sized && writer_format_fixed(mb, sizeof mb, (double)c->size_bytes / 1e6, 1) >= 0)
            snprintf(size, sizeof size, "%s MB a rank", mb);
        snprintf(line, sizeof line, "%u %s over %u ranks, %s: %s%s%s, %llu messages", c->count,
                 c->kind, c->n_ranks, size, c->pattern,
                 c->most_chunks > 1 && strcmp(c->pattern, "ring") == 0 ? " in chunks" : "",
                 channels, (unsigned long long)c->n_messages);
        table_wrapped(w, " ", 2, line);
    }
}

static void write_warnings(struct writer *w, const struct report_facts *f)
{
    const char *warning;
    for (size_t i = 0; (warning = facts_warning(f->report, i)); i++)
        table_warning(w, i, warning);
}

int dpro_report_text(const struct dpro_report *report, FILE *out, struct dpro_error *err)
{
    struct report_facts facts;
    struct writer w;
    int rc = facts_init(&facts, report, err);
    if (rc < 0)
        return rc;
    rc = writer_init_file(&w, out, err);
    if (rc == 0) {
        write_verdict(&w, &facts);
        write_breakdown(&w, &facts);
        write_path(&w, &facts);
        write_path_ranks(&w, &facts);
        write_names(&w, &facts);
        write_clock(&w, &facts);
        write_checks(&w, &facts);
        write_contradiction(&w, &facts);
        write_unprofiled(&w, &facts);
        write_on_wire(&w, &facts);
        write_transport(&w, &facts);
        write_fusion(&w, &facts);
        write_collectives(&w, &facts);
        write_warnings(&w, &facts);
        rc = writer_finish(&w, err);
        writer_fini(&w);
    }
    facts_fini(&facts);
    return rc;
}
