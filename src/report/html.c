/* The report as one page: embeds its data, from which report.js makes the text. */

#include "graph/graph.h"
#include "report/facts.h"
#include "report/page.h"

/* About 50 bytes an op: what a browser still opens at once. */
#define MAX_PAGE_OPS 250000u

#define MOST_DRAWN 16 /* ranks whose memory is drawn, those with the highest peaks */

/* Ops of the page: the critical ones, those of a diagnosis and the longest others, in order of
 * their ids. */
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

/* Fills page->ops and page->index; longest[op] is -1 for ops that no track shows. `sorted` has room
 * for as many. */
static void choose_ops(struct page *page, const struct report_facts *f, int64_t *longest,
                       int64_t *sorted)
{
    uint32_t n = page->graph->n_ops;
    for (uint32_t i = 0; i < f->replay->n_critical; i++)
        longest[f->replay->critical[i].op] = INT64_MAX;
    if (f->report->diagnosis) { /* what it leads to is kept, where it is drawn */
        const struct dpro_diagnosis_view *view =
            dpro_diagnosis_view(f->report->diagnosis->diagnosis);
        EACH_OF (const struct dpro_cause, cause, view->causes, view->n_causes)
            EACH_OF (const struct dpro_evidence, e, cause->evidence, cause->n_evidence)
                longest[e->op] = longest[e->op] < 0 ? -1 : INT64_MAX;
    }
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
    *page = (struct page){.graph = f->g};
    size_t n = (size_t)f->g->n_ops + 1;
    int64_t *longest = arena_array(&page->arena, n, sizeof *longest);
    int64_t *sorted = arena_array(&page->arena, n, sizeof *sorted);
    page->ops = arena_array(&page->arena, n, sizeof *page->ops);
    page->index = arena_array(&page->arena, n, sizeof *page->index);
    page->text_at = arena_array(&page->arena, f->g->names.n, sizeof *page->text_at);
    memset(longest, 0xFF, n * sizeof *longest);
    memset(page->text_at, 0xFF, f->g->names.n * sizeof *page->text_at);
    memset(page->kind_at, 0xFF, sizeof page->kind_at);
    for (uint32_t t = 0; t < slices->n_tracks; t++)
        EACH (const struct drawn_slice, s, slices->tracks[t])
            longest[s->op] = MAX(longest[s->op], s->dur_ns);
    choose_ops(page, f, longest, sorted);
}

static void write_ints(struct writer *w, size_t n, const int64_t *values)
{
    for (size_t i = 0; i < n; i++)
        writer_json_int(w, values[i]);
}

/* A list of n numbers, the one of number `i` the value of an expression. */
#define COLUMN(w, key, i, n, value)                                                                \
    WRITER_LIST (w, key, i, n)                                                                     \
    writer_json_int(w, value)

/* The same, in which most numbers are small as each is the difference to the one before. */
#define RISING(w, key, i, n, value)                                                                \
    do {                                                                                           \
        int64_t before = 0, now;                                                                   \
        WRITER_LIST (w, key, i, n) {                                                               \
            now = value;                                                                           \
            writer_json_int(w, now - before);                                                      \
            before = now;                                                                          \
        }                                                                                          \
    } while (0)

/* Writes the strings that ops use, and remembers their places. */
static void write_strings(struct writer *w, struct page *page)
{
    const struct dpro_graph *g = page->graph;
    uint32_t n = 0;
    writer_section(w, "strings", '[');
    for (uint32_t i = 0; i < page->n_ops; i++) {
        dpro_op_id op = page->ops[i];
        const uint32_t ids[] = {g->name[op], g->tensor ? g->tensor[op] : MEMORY_NONE,
                                graph_module_of(g, op)};
        EACH_OF (const uint32_t, at, ids, 3) {
            uint32_t id = *at;
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
    WRITER_ROWS (w, "devices", d, g->n_devices) {
        struct dpro_device device = dpro_graph_device(g, d);
        char name[256];
        writer_open(w, '[');
        write_ints(w, 2, (const int64_t[]){device.rank, device.kind});
        writer_string(w, dimensions_name_device(g, d, dimensions, name, sizeof name));
        writer_close(w, ']');
    }
}

/* The place of a string that may be none, from 1 on. */
static int64_t place_of(const struct page *page, uint32_t id)
{
    return id == MEMORY_NONE ? 0 : (int64_t)page->text_at[id] + 1;
}

/* Columns by op; a missing column means zeros. */
static void write_ops(struct writer *w, const struct page *page)
{
    const struct dpro_graph *g = page->graph;
    const uint32_t *ops = page->ops, n = page->n_ops;
    WRITER_ROWS (w, "kinds", k, DPRO_N_OP_KINDS)
        writer_string(w, dpro_op_kind_name(k));
    writer_section(w, "ops", '{');
    RISING(w, "id", i, n, ops[i]);
    COLUMN(w, "name", i, n, page->text_at[g->name[ops[i]]]);
    COLUMN(w, "kind", i, n, g->kind[ops[i]]);
    COLUMN(w, "device", i, n, g->device[ops[i]] < g->n_devices ? (int64_t)g->device[ops[i]] : -1);
    COLUMN(w, "gap", i, n, g->gap_ns[ops[i]]);
    if (g->size_bytes)
        COLUMN(w, "bytes", i, n, (int64_t)g->size_bytes[ops[i]]);
    if (g->tensor)
        COLUMN(w, "tensor", i, n, place_of(page, g->tensor[ops[i]] ?: MEMORY_NONE));
    if (g->memory)
        COLUMN(w, "module", i, n, place_of(page, graph_module_of(g, ops[i])));
    writer_close(w, '}');
}

/* A track's slices as columns: op (place in ops), start, duration, and which slices are waiting,
 * for which collective. */
static void write_track(struct writer *w, const struct page *page, const struct slice_track *track)
{
    size_t n = 0, n_waiting = 0, most = track->n;
    SCRATCH int64_t *columns = mem_array(5 * most + 1, sizeof *columns);
    int64_t *op = columns, *start = op + most, *dur = start + most, *waiting = dur + most;
    EACH (const struct drawn_slice, s, *track) {
        if (page->index[s->op] == UINT32_MAX)
            continue;
        if (s->waiting) {
            waiting[n_waiting++] = (int64_t)n;
            waiting[n_waiting++] = s->collective;
        }
        op[n] = page->index[s->op];
        start[n] = s->start_ns;
        dur[n++] = s->dur_ns;
    }
    if (n == 0)
        return;
    writer_item(w);
    writer_fields(w, INT("device", track->device), INT("replayed", track->replayed));
    RISING(w, "op", i, n, op[i]);
    RISING(w, "start", i, n, start[i]);
    COLUMN(w, "dur", i, n, dur[i]);
    COLUMN(w, "waiting", i, n_waiting, waiting[i]);
    writer_close(w, '}');
}

/* By collective: its kind, and the ops of the rank that arrived last when it was measured and in
 * the replay; -1: not in the page. */
static void write_collectives(struct writer *w, const struct page *page,
                              const struct dpro_replay_view *replay)
{
    static const char *const keys[] = {"measured", "replayed"};
    const struct dpro_graph *g = page->graph;
    writer_section(w, "collectives", '{');
    COLUMN(w, "kind", c, g->n_collectives, page->kind_at[g->collectives[c].kind]);
    for (int k = 0; k < 2; k++)
        WRITER_LIST (w, keys[k], c, g->n_collectives) {
            uint32_t last = slices_last_member(g, k ? replay : NULL, c);
            uint32_t at = g->collectives[c].n_members > 0 ? page->index[g->members[last].transfer]
                                                          : UINT32_MAX;
            writer_json_int(w, at == UINT32_MAX ? -1 : (int64_t)at);
        }
    writer_close(w, '}');
}

static void write_path(struct writer *w, const struct report_facts *f, const struct page *page)
{
    const struct dpro_critical_op *path = f->replay->critical;
    writer_section(w, "path", '{');
    RISING(w, "op", i, f->replay->n_critical, page->index[path[i].op]);
    RISING(w, "start", i, f->replay->n_critical, path[i].start_ns);
    COLUMN(w, "dur", i, f->replay->n_critical, path[i].dur_ns);
    COLUMN(w, "gap", i, f->replay->n_critical, path[i].gap_ns);
    writer_close(w, '}');
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

/* What each rank's single iterations consist of: for each the parts of each rank, us. */
static void write_iterations(struct writer *w, const struct report_facts *f)
{
    const struct dpro_rank_time *times = f->replay->ranks_in; /* a rank's after the other */
    bool known = times && f->n_ranks > 0 && f->replay->n_iterations == f->n_measured;
    WRITER_ROWS (w, "iterations", i, known ? f->replay->n_iterations : 0) {
        writer_open(w, '[');
        for (uint32_t r = 0; r < f->n_ranks; r++, times++)
            for (int p = 0; p < N_RANK_PARTS; p++)
                writer_json_int(w, rank_part_ns(times, p) / 1000);
        writer_close(w, ']');
    }
}

/* ---- what ranks hold over time ---- */

ORDER_OF_INDICES(by_peak, struct memory_fact, DESCENDING(memory.peak_bytes) ?: ASCENDING(index));

/* Columns of the points of one rank, each as the difference to the point before; categories that
 * never hold anything are left out. */
static void write_held(struct writer *w, const struct memory_fact *fact)
{
    uint32_t n = fact->memory.n_points;
    const struct dpro_memory_point *points = fact->memory.points;
    writer_item(w);
    writer_fields(w, INT("rank", fact->memory.rank));
    RISING(w, "at", i, n, points[i].at_ns);
    writer_begin(w, "held", '{');
    for (int c = 0; c < DPRO_N_MEMORY_CATEGORIES; c++) {
        uint64_t any = 0;
        for (uint32_t i = 0; i < n; i++)
            any |= points[i].by_category[c];
        if (any != 0)
            RISING(w, dpro_memory_category_name(c), i, n, (int64_t)points[i].by_category[c]);
    }
    writer_close(w, '}');
    writer_close(w, '}');
}

static void write_memory(struct writer *w, const struct report_facts *f)
{
    const struct memory_facts *all = &f->memory;
    SCRATCH uint32_t *order = sorted_indices(all->n_ranks, all->ranks, by_peak);
    uint32_t n = MIN(all->n_ranks, (uint32_t)MOST_DRAWN);
    sort_u32(order, n);
    WRITER_ROWS (w, "memory", i, n)
        write_held(w, &all->ranks[order[i]]);
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
    if (f->report->diagnosis) {
        writer_key(w, "diagnosis");
        diagnosis_write_json(w, f->report->diagnosis);
    }
    writer_section(w, "drawn", '[');
    write_ints(w, 3, (const int64_t[]){page.n_ops, page.n_drawn, page.shortest_ns});
    writer_close(w, ']');
    write_strings(w, &page);
    write_processes(w, &page);
    write_devices(w, &page);
    write_ops(w, &page);
    WRITER_ROWS (w, "tracks", t, slices->n_tracks)
        write_track(w, &page, &slices->tracks[t]);
    write_collectives(w, &page, f->replay);
    write_path(w, f, &page);
    write_clocks(w, page.graph);
    write_iterations(w, f);
    write_memory(w, f);
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
    const struct set_file files[] = {
        {"timeline.json.gz", true, timeline_write, &drawn},
        {"report.html", false, html_write, &drawn},
        {"replay.json", false, json_write, &drawn.facts},
        {"diagnose.json", false, report->diagnosis ? diagnosis_write : NULL, report->diagnosis}};
    facts_init(&drawn.facts, report);
    slices_init(&drawn.slices, report->graph, drawn.facts.replay);
    int rc = file_set_write(folder, "report", files, 4, &report->sink, err);
    slices_fini(&drawn.slices);
    facts_fini(&drawn.facts);
    return rc;
}

int dpro_report_folder(const struct dpro_report *report, const char *folder, struct dpro_error *err)
{
    return WITHIN_SCOPE(dpro_error_nomem(err), write_folder(report, folder, err));
}
