/* The report as one page: embeds its data, from which report.js makes the text. */

#include "graph/graph.h"
#include "report/dimension_report.h"
#include "report/facts.h"
#include "report/page.h"

/* About 50 bytes an op: what a browser still opens at once. */
#define MAX_PAGE_OPS 250000u

/* Ops of the page: the critical ones and the longest others, in order of their ids. */
struct page {
    struct arena arena;
    const struct dpro_graph *graph;
    uint32_t *ops; /* ids, ascending */
    uint32_t n_ops, n_drawn;
    uint32_t *index; /* by op id: place in ops, UINT32_MAX: left out */
    /* places among the page's strings; UINT32_MAX: unused */
    uint32_t *text_at; /* by string id */
    uint32_t kind_at[DPRO_OTHER_COLLECTIVE + 1];
    int64_t shortest_ns;
};

static void note_drawn(const struct slices *slices, int64_t *longest)
{
    for (uint32_t t = 0; t < slices->n_tracks; t++)
        EACH (const struct drawn_slice, s, slices->tracks[t])
            longest[s->op] = MAX(longest[s->op], s->dur_ns);
}

/* Fills page->ops and page->index; longest[op] is -1 for ops that no track shows. `sorted` has room
 * for as many. */
static void choose_ops(struct page *page, const struct report_facts *f, int64_t *longest,
                       int64_t *sorted)
{
    uint32_t n = page->graph->n_ops;
    for (uint32_t i = 0; i < f->n_path; i++)
        longest[f->path[i].op] = INT64_MAX;
    for (uint32_t op = 0; op < n; op++)
        page->n_drawn += longest[op] >= 0;
    if (page->n_drawn > MAX_PAGE_OPS) {
        memcpy(sorted, longest, n * sizeof *sorted);
        page->shortest_ns = select_i64(sorted, n, n - 1 - MAX_PAGE_OPS);
    }
    for (uint32_t op = 0; op < n; op++) {
        /* of equally long ones at the limit, the first */
        bool kept =
            longest[op] >= 0 && (page->n_drawn <= MAX_PAGE_OPS || longest[op] > page->shortest_ns ||
                                 longest[op] == INT64_MAX);
        page->index[op] = kept ? page->n_ops : UINT32_MAX;
        if (kept)
            page->ops[page->n_ops++] = op;
    }
}

static void page_init(struct page *page, const struct report_facts *f, const struct slices *slices)
{
    const struct dpro_graph *g = f->report->graph;
    *page = (struct page){.graph = g};
    size_t n = (size_t)g->n_ops + 1;
    int64_t *longest = arena_array(&page->arena, n, sizeof *longest);
    int64_t *sorted = arena_array(&page->arena, n, sizeof *sorted);
    page->ops = arena_array(&page->arena, n, sizeof *page->ops);
    page->index = arena_array(&page->arena, n, sizeof *page->index);
    page->text_at = arena_array(&page->arena, g->names.n, sizeof *page->text_at);
    memset(longest, 0xFF, n * sizeof *longest);
    memset(page->text_at, 0xFF, g->names.n * sizeof *page->text_at);
    memset(page->kind_at, 0xFF, sizeof page->kind_at);
    note_drawn(slices, longest);
    choose_ops(page, f, longest, sorted);
}

static void write_ints(struct writer *w, size_t n, const int64_t *values)
{
    for (size_t i = 0; i < n; i++)
        writer_json_int(w, values[i]);
}

/* Writes the strings that ops use, and remembers their places. */
static void write_strings(struct writer *w, struct page *page)
{
    const struct dpro_graph *g = page->graph;
    uint32_t n = 0;
    writer_section(w, "strings", '[');
    for (int what = 0; what < 2; what++) {
        const uint32_t *ids = what == 0 ? g->name : g->tensor;
        for (uint32_t i = 0; i < page->n_ops && ids; i++) {
            uint32_t id = ids[page->ops[i]];
            if (id >= g->names.n || page->text_at[id] != UINT32_MAX)
                continue;
            page->text_at[id] = n++;
            writer_string_n(w, strtab_get(&g->names, id), strtab_len(&g->names, id));
        }
    }
    for (uint32_t i = 0; i < g->n_collectives; i++) {
        uint8_t kind = g->collectives[i].kind;
        if (page->kind_at[kind] != UINT32_MAX)
            continue;
        page->kind_at[kind] = n++;
        writer_string(w, dpro_collective_kind_name(kind));
    }
    writer_close(w, ']');
}

/* What those are called that are no ranks, by their numbers. */
static void write_processes(struct writer *w, const struct page *page)
{
    const struct dpro_graph *g = page->graph;
    writer_section(w, "processes", '{');
    for (uint32_t s = 0; s < g->n_servers; s++) {
        char number[16], name[DPRO_PROCESS_NAME_MAX];
        snprintf(number, sizeof number, "%d", g->ranks[g->n_ranks + s].rank);
        dpro_process_name(name, g->ranks[g->n_ranks + s].rank);
        writer_fields(w, TEXT(number, name));
    }
    writer_close(w, '}');
}

static void write_devices(struct writer *w, struct page *page)
{
    const struct dpro_graph *g = page->graph;
    const uint32_t *dimensions = dimensions_of_devices(g, &page->arena);
    writer_section(w, "devices", '[');
    for (dpro_device_id d = 0; d < g->n_devices; d++) {
        struct dpro_device device = dpro_graph_device(g, d);
        char name[256];
        writer_open(w, '[');
        write_ints(w, 2, (const int64_t[]){device.rank, device.kind});
        writer_string(w, dimensions_name_device(g, d, dimensions, name, sizeof name));
        writer_close(w, ']');
    }
    writer_close(w, ']');
}

/* Columns by op; a missing column means zeros. */
static void write_ops(struct writer *w, const struct page *page)
{
    const struct dpro_graph *g = page->graph;
    writer_section(w, "kinds", '[');
    for (int k = 0; k < DPRO_N_OP_KINDS; k++)
        writer_string(w, dpro_op_kind_name(k));
    writer_close(w, ']');
    static const char *const columns[] = {"id", "name", "kind", "device", "gap", "bytes", "tensor"};
    writer_section(w, "ops", '{');
    for (size_t c = 0; c < sizeof columns / sizeof *columns; c++) {
        if ((c == 4 && !g->gap_ns) || (c == 5 && !g->size_bytes) || (c == 6 && !g->tensor))
            continue;
        writer_section(w, columns[c], '[');
        for (uint32_t i = 0, before = 0; i < page->n_ops; i++) {
            dpro_op_id op = page->ops[i];
            const int64_t value[] = {
                (int64_t)op - before,
                page->text_at[g->name[op]],
                g->kind[op],
                g->device[op] < g->n_devices ? (int64_t)g->device[op] : -1,
                c == 4 ? g->gap_ns[op] : 0,
                c == 5 ? (int64_t)g->size_bytes[op] : 0,
                c == 6 ? (g->tensor[op] ? (int64_t)page->text_at[g->tensor[op]] + 1 : 0) : 0,
            };
            before = op;
            writer_json_int(w, value[c]);
        }
        writer_close(w, ']');
    }
    writer_close(w, '}');
}

/* A track's slices as columns: op (place in ops, difference to the slice before), start
 * (difference), duration, and which slices are waiting, for which collective. */
static void write_track(struct writer *w, const struct page *page, const struct slice_track *track)
{
    static const char *const columns[] = {"op", "start", "dur", "waiting"};
    uint32_t n = 0;
    for (uint32_t i = 0; i < track->n; i++)
        n += page->index[track->at[i].op] != UINT32_MAX;
    if (n == 0)
        return;
    writer_item(w);
    writer_fields(w, INT("device", track->device), INT("replayed", track->replayed));
    for (int c = 0; c < 4; c++) {
        int64_t before = 0;
        uint32_t at = 0;
        writer_begin(w, columns[c], '[');
        EACH (const struct drawn_slice, s, *track) {
            uint32_t op = page->index[s->op];
            if (op == UINT32_MAX)
                continue;
            if (c == 3 && s->waiting) {
                writer_json_int(w, at);
                writer_json_int(w, page->kind_at[page->graph->collectives[s->collective].kind]);
            } else if (c < 3) {
                int64_t value = c == 0 ? (int64_t)op : c == 1 ? s->start_ns : s->dur_ns;
                writer_json_int(w, c == 2 ? value : value - before);
                before = value;
            }
            at++;
        }
        writer_close(w, ']');
    }
    writer_close(w, '}');
}

static void write_path(struct writer *w, const struct report_facts *f, const struct page *page)
{
    static const char *const columns[] = {"op", "start", "dur", "gap"};
    writer_section(w, "path", '{');
    for (int c = 0; c < 4; c++) {
        int64_t before = 0;
        writer_begin(w, columns[c], '[');
        EACH_OF (const struct dpro_critical_op, p, f->path, f->n_path) {
            int64_t value = c == 0   ? (int64_t)page->index[p->op]
                            : c == 1 ? p->start_ns
                            : c == 2 ? p->dur_ns
                                     : p->gap_ns;
            writer_json_int(w, c < 2 ? value - before : value);
            before = value;
        }
        writer_close(w, ']');
    }
    writer_close(w, '}');
    writer_section(w, "names", '[');
    for (uint32_t i = 0; i < f->n_names && i < 200; i++) {
        const struct name_fact *name = &f->names[i];
        writer_open(w, '[');
        writer_string(w, name->name);
        writer_string(w, dpro_op_kind_name(name->kind));
        write_ints(w, 4, (const int64_t[]){name->rank, name->n_ranks, name->count, name->dur_ns});
        writer_close(w, ']');
    }
    writer_close(w, ']');
}

/* For each clock that is not the reference: its host, and over time how far it was off as recorded
 * and what the facts leave around the correction; ns, from the first moment. */
static void write_clocks(struct writer *w, const struct dpro_graph *g)
{
    enum { MOST_CLOCKS = 32 };
    writer_section(w, "clocks", '[');
    uint32_t n_clocks = dpro_graph_n_clocks(g), n_written = 0;
    for (uint32_t c = 0; c < n_clocks && n_written < MOST_CLOCKS; c++) {
        uint32_t n;
        struct dpro_clock clock = dpro_graph_clock(g, c);
        const struct dpro_clock_bound *bounds = dpro_graph_clock_bounds(g, c, &n);
        if (n == 0 || clock.n_segments == 0 || strcmp(clock.method, "reference") == 0)
            continue;
        n_written++;
        writer_item(w);
        writer_fields(w, TEXT("host", clock.host));
        writer_begin(w, "points", '['); /* time, off before, lower, upper; null: no bound */
        for (uint32_t i = 0; i < n; i++) {
            int64_t correction =
                dpro_clock_aligned(&clock, bounds[i].local_ns) - bounds[i].local_ns;
            writer_open(w, '[');
            write_ints(w, 2,
                       (const int64_t[]){bounds[i].local_ns - bounds[0].local_ns, -correction});
            if (bounds[i].lower_ns == INT64_MIN)
                writer_null(w);
            else
                writer_json_int(w, bounds[i].lower_ns - correction);
            if (bounds[i].upper_ns == INT64_MAX)
                writer_null(w);
            else
                writer_json_int(w, bounds[i].upper_ns - correction);
            writer_close(w, ']');
        }
        writer_close(w, ']');
        writer_close(w, '}');
    }
    writer_close(w, ']');
}

/* What the replay rests on. */
static void write_assumptions(struct writer *w, const struct report_facts *f)
{
    char text[400];
    const char *clock = align_method(f->report->graph);
    writer_section(w, "assumptions", '[');
#define ASSUME(...) (snprintf(text, sizeof text, __VA_ARGS__), writer_string(w, text))
    if (f->n_measured == 0)
        ASSUME("Nothing was measured: op durations come from the trace.");
    else if (f->n_measured == 1)
        ASSUME("Durations are those of the only measured iteration.");
    else
        ASSUME("Each of the %u measured iterations is replayed with its own durations, so the "
               "prediction is near their mean when the graph is right; the left-out error is the "
               "check.",
               f->n_measured);
    ASSUME("A device (CPU thread, GPU stream, link direction) runs one op at a time, the one that "
           "became ready first.");
    ASSUME("A collective starts transferring when its last rank arrives; the time before that is "
           "waiting for peers, not communication.");
    ASSUME("Gaps between an op being ready and starting that no dependency explains are kept as "
           "they were measured.");
    if (f->world_size > f->n_ranks)
        ASSUME("%u of %u ranks are in the trace%s; the others are assumed to arrive at each "
               "collective as late as when it was measured.",
               f->n_ranks, f->world_size,
               f->report->graph->n_blind && !f->lacks_gpu ? " with their GPU's work" : "");
    else if (f->n_ranks == 1 && f->n_comms > 0)
        ASSUME("Only one rank is in the trace; its peers are assumed to arrive as late as when it "
               "was measured.");
    else
        ASSUME("Every rank of the job is in the trace (%u).", f->n_ranks);
    if (f->profiler.op_ns > 0)
        ASSUME("Recording an op cost the thread that ran it %.2f us, half before its start and "
               "half after its end; this is subtracted.",
               (double)f->profiler.op_ns / 1e3);
    else if (f->report->graph->is_scaled)
        ASSUME(
            "Tracing made iterations longer, and which ops is not recorded: all times are scaled "
            "to the steps without it.");
    else
        ASSUME("The profiler's own cost is part of the durations and gaps%s",
               f->wire_profiler_ns > 0
                   ? "; the transport logs of iterations without it show its total."
                   : ".");
    if (strcmp(clock, "none") == 0)
        ASSUME("The ranks' clocks are used as recorded.");
    else
        ASSUME("The hosts' clocks were aligned by their own communication (%s).", clock);
    if (f->fusion.n_tensors > 0)
        ASSUME("Horovod's thread is known from rank 0's timeline. Other ranks are assumed to move "
               "the same bytes, at the times of their transport logs, or at rank 0's times where "
               "they have none. %u of %u rounds were fused as in the graph; in the others the time "
               "of a group is divided among its tensors.",
               f->fusion.n_alike, f->fusion.n_rounds);
#undef ASSUME
    writer_close(w, ']');
}

/* What each rank's single iterations consist of: for each the parts of each rank, us. */
static void write_iterations(struct writer *w, const struct report_facts *f)
{
    const struct dpro_rank_time *times = f->replay->ranks_in; /* a rank's after the other */
    bool known = times && f->n_ranks > 0 && f->n_replayed == f->n_measured;
    writer_section(w, "iterations", '[');
    for (uint32_t i = 0; known && i < f->n_replayed; i++) {
        writer_open(w, '[');
        for (uint32_t r = 0; r < f->n_ranks; r++, times++)
            for (int p = 0; p < N_RANK_PARTS; p++)
                writer_json_int(w, rank_part_ns(times, p) / 1000);
        writer_close(w, ']');
    }
    writer_close(w, ']');
}

static void write_data(struct writer *w, const void *arg)
{
    const struct report_facts *f = &((const struct drawn_facts *)arg)->facts;
    const struct slices *slices = &((const struct drawn_facts *)arg)->slices;
    struct page page;
    page_init(&page, f, slices);
    writer_open(w, '{');
    writer_key(w, "report");
    json_write_report(w, f, false);
    write_assumptions(w, f);
    writer_section(w, "drawn", '[');
    write_ints(w, 3, (const int64_t[]){page.n_ops, page.n_drawn, page.shortest_ns});
    writer_close(w, ']');
    write_strings(w, &page);
    write_processes(w, &page);
    write_devices(w, &page);
    write_ops(w, &page);
    writer_section(w, "tracks", '[');
    for (uint32_t t = 0; t < slices->n_tracks; t++)
        write_track(w, &page, &slices->tracks[t]);
    writer_close(w, ']');
    write_path(w, f, &page);
    write_clocks(w, page.graph);
    write_iterations(w, f);
    memory_write_timelines(w, f);
    writer_close(w, '}');
    arena_fini(&page.arena);
}

static void html_write(struct writer *w, const void *drawn)
{
    page_write(w, &page_replay, write_data, drawn);
}

/* ---- the folder of a report ---- */

static int write_folder(const struct dpro_report *report, const char *folder,
                        struct dpro_error *err)
{
    struct drawn_facts drawn;
    const struct set_file files[] = {{"timeline.json.gz", true, timeline_write, &drawn},
                                     {"report.html", false, html_write, &drawn},
                                     {"replay.json", false, json_write, &drawn.facts}};
    facts_init(&drawn.facts, report);
    slices_init(&drawn.slices, report->graph, drawn.facts.replay);
    int rc =
        file_set_write(folder, "report", files, sizeof files / sizeof *files, &report->sink, err);
    slices_fini(&drawn.slices);
    facts_fini(&drawn.facts);
    return rc;
}

int dpro_report_folder(const struct dpro_report *report, const char *folder, struct dpro_error *err)
{
    return WITHIN_SCOPE(dpro_error_nomem(err), write_folder(report, folder, err));
}
