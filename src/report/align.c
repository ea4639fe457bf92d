/* report/align.c: the clocks of a job, for people, for programs (dpro.align/1), and for Perfetto's
 * trace merge (its manifest, version 1). */
#include <string.h>

#include <dpro/report.h>

#include "base/array.h"
#include "base/utf8.h"
#include "base/writer.h"
#include "graph/graph.h"
#include "report/facts.h"
#include "report/table.h"

const char *align_method(const struct dpro_graph *graph)
{
    for (uint32_t c = 0; c < dpro_graph_n_clocks(graph); c++) {
        struct dpro_clock clock = dpro_graph_clock(graph, c);
        if (clock.n_segments > 0 && strcmp(clock.method, "reference") != 0)
            return clock.method;
    }
    return "none";
}

/* "0-7, 9" */
static void ranks_text(char *out, size_t size, const struct dpro_clock *clock)
{
    size_t len = 0;
    out[0] = '\0';
    for (uint32_t i = 0, end; i < clock->n_ranks; i = end) {
        for (end = i + 1; end < clock->n_ranks && clock->ranks[end] == clock->ranks[end - 1] + 1;)
            end++;
        int n = snprintf(out + len, size - len, end > i + 1 ? "%s%d-%d" : "%s%d", i ? ", " : "",
                         clock->ranks[i], clock->ranks[end - 1]);
        if (n < 0 || (size_t)n >= size - len) {
            if (size > 4)
                strcpy(out + size - 4, "...");
            return;
        }
        len += (size_t)n;
    }
}

static void clock_rows(struct table *t, const struct dpro_clock *clock)
{
    char ranks[80], host[NAME_COLUMNS * 4];
    ranks_text(ranks, sizeof ranks, clock);
    utf8_escape(host, sizeof host, clock->host, strlen(clock->host));
    for (uint32_t s = 0; s < clock->n_segments || s == 0; s++) {
        table_cell(t, "%s", s ? "" : host);
        table_cell(t, "%s", s ? "" : ranks);
        table_cell(t, "%s", s ? "" : clock->method);
        if (clock->n_segments == 0) {
            table_cell(t, "unknown");
            table_cell(t, "-");
            table_cell(t, "-");
            continue;
        }
        const struct dpro_clock_segment *segment = &clock->segments[s];
        table_fixed(t, (double)segment->offset_ns / 1e6, 3, "");
        table_fixed(t, segment->drift_ppm, 2, "");
        if (segment->uncertainty_ns < 0)
            table_cell(t, "?");
        else
            table_fixed(t, (double)segment->uncertainty_ns / 1e3, 1, "");
    }
}

void align_write_table(struct writer *w, const struct dpro_graph *graph, uint32_t n_clocks)
{
    struct table t = {.n_cols = 6, .left = {true, true, true}};
    static const char *const head[] = {"host", "ranks", "from", "offset ms", "drift ppm", "+- us"};
    for (size_t i = 0; i < sizeof head / sizeof *head; i++)
        table_cell(&t, "%s", head[i]);
    for (uint32_t c = 0; c < n_clocks; c++) {
        struct dpro_clock clock = dpro_graph_clock(graph, c);
        clock_rows(&t, &clock);
    }
    table_write(w, &t);
}

/* Of the trace, then of the graph; NULL past the last. */
static const char *warning(const struct dpro_trace *trace, const struct dpro_graph *graph, size_t i)
{
    size_t n = dpro_trace_n_warnings(trace);
    if (i < n)
        return dpro_trace_warning(trace, i);
    return i - n < dpro_graph_n_warnings(graph) ? dpro_graph_warning(graph, i - n) : NULL;
}

int dpro_align_text(const struct dpro_trace *trace, const struct dpro_graph *graph, FILE *out,
                    struct dpro_error *err)
{
    struct dpro_alignment alignment = dpro_graph_alignment(graph);
    struct writer w;
    int rc = writer_init_file(&w, out, err);
    if (rc < 0)
        return rc;
    align_write_table(&w, graph, dpro_graph_n_clocks(graph));
    if (alignment.n_pairs > 0)
        writer_printf(&w,
                      "\n%llu pairs of what came before what on two clocks; %llu violated as "
                      "recorded, %llu as aligned\n",
                      (unsigned long long)alignment.n_pairs,
                      (unsigned long long)alignment.violations_before,
                      (unsigned long long)alignment.violations_after);
    const char *line;
    for (size_t i = 0; (line = warning(trace, graph, i)); i++)
        table_warning(&w, i, line);
    rc = writer_finish(&w, err);
    writer_fini(&w);
    return rc;
}

static void write_clock(struct writer *w, const struct dpro_clock *clock)
{
    writer_newline(w);
    writer_open(w, '{');
    writer_key_string(w, "host", clock->host);
    writer_key(w, "ranks");
    writer_open(w, '[');
    for (uint32_t r = 0; r < clock->n_ranks; r++)
        writer_json_int(w, clock->ranks[r]);
    writer_close(w, ']');
    writer_key_string(w, "method", clock->method);
    writer_key(w, "segments");
    writer_open(w, '[');
    for (uint32_t s = 0; s < clock->n_segments; s++) {
        const struct dpro_clock_segment *segment = &clock->segments[s];
        writer_open(w, '{');
        writer_key_int(w, "start_ns", segment->start_ns);
        writer_key_int(w, "end_ns", segment->end_ns);
        writer_key_int(w, "offset_ns", segment->offset_ns);
        writer_key(w, "drift_ppm");
        writer_json_fixed(w, segment->drift_ppm, 6);
        writer_key(w, "uncertainty_ns");
        if (segment->uncertainty_ns < 0)
            writer_null(w);
        else
            writer_json_int(w, segment->uncertainty_ns);
        writer_close(w, '}');
    }
    writer_close(w, ']');
    writer_close(w, '}');
}

static void write_warnings(struct writer *w, const struct dpro_trace *trace,
                           const struct dpro_graph *graph)
{
    writer_newline(w);
    writer_key(w, "warnings");
    writer_open(w, '[');
    const char *line;
    for (size_t i = 0; (line = warning(trace, graph, i)); i++)
        writer_string(w, line);
    writer_close(w, ']');
}

int dpro_align_json(const struct dpro_trace *trace, const struct dpro_graph *graph, FILE *out,
                    struct dpro_error *err)
{
    struct dpro_alignment alignment = dpro_graph_alignment(graph);
    struct writer w;
    int rc = writer_init_file(&w, out, err);
    if (rc < 0)
        return rc;
    writer_open(&w, '{');
    writer_key_string(&w, "schema", "dpro.align/1");
    writer_key_string(&w, "version", dpro_version());
    writer_key_string(&w, "reference", alignment.reference);
    writer_key_int(&w, "pairs", (int64_t)alignment.n_pairs);
    writer_key_int(&w, "violations_before", (int64_t)alignment.violations_before);
    writer_key_int(&w, "violations_after", (int64_t)alignment.violations_after);
    write_warnings(&w, trace, graph);
    writer_newline(&w);
    writer_key(&w, "hosts");
    writer_open(&w, '[');
    for (uint32_t c = 0; c < dpro_graph_n_clocks(graph); c++) {
        struct dpro_clock clock = dpro_graph_clock(graph, c);
        write_clock(&w, &clock);
    }
    writer_close(&w, ']');
    writer_close(&w, '}');
    writer_text(&w, "\n");
    rc = writer_finish(&w, err);
    writer_fini(&w);
    return rc;
}

/* ---- Perfetto ---- */

static bool find_clock(const struct dpro_graph *graph, int rank, struct dpro_clock *clock)
{
    for (uint32_t c = 0; c < dpro_graph_n_clocks(graph); c++) {
        *clock = dpro_graph_clock(graph, c);
        for (uint32_t r = 0; r < clock->n_ranks; r++)
            if (clock->ranks[r] == rank)
                return clock->n_segments > 0;
    }
    return false;
}

/* A file has one offset there: the one at the middle of its time. */
static void write_file(struct writer *w, const char *path, const struct dpro_file_info *file,
                       const struct dpro_clock *clock)
{
    int64_t middle = file->start_ns + (file->end_ns - file->start_ns) / 2;
    writer_newline(w);
    writer_open(w, '{');
    writer_key_string(w, "path", path);
    writer_key(w, "machine");
    writer_open(w, '{');
    writer_key_string(w, "name", clock->host);
    writer_close(w, '}');
    writer_key(w, "clocks");
    writer_open(w, '{');
    writer_key_int(w, "ts", middle - file->base_ns);
    writer_key(w, "is");
    writer_open(w, '{');
    writer_key_string(w, "clock", "REALTIME");
    writer_key_int(w, "ts", dpro_clock_aligned(clock, middle));
    writer_close(w, '}');
    writer_close(w, '}');
    writer_close(w, '}');
}

static bool is_profile(const struct dpro_file_info *file)
{
    return file->rank >= 0 && (file->kind == DPRO_FILE_KINETO || file->kind == DPRO_FILE_MXNET ||
                               file->kind == DPRO_FILE_TF_CHROME);
}

/* The length of the folder, with its slash, that all profiles are in. */
static size_t common_folder(const struct dpro_trace *trace)
{
    const char *first = NULL;
    size_t len = 0;
    for (size_t f = 0; f < dpro_trace_n_files(trace); f++) {
        struct dpro_file_info file = dpro_trace_file(trace, f);
        if (!is_profile(&file))
            continue;
        size_t same = 0;
        while (first && same < len && file.path[same] == first[same])
            same++;
        len = first ? same : strlen(file.path);
        first = file.path;
        while (len > 0 && first[len - 1] != '/')
            len--;
    }
    return len;
}

int dpro_align_manifest(const struct dpro_trace *trace, const struct dpro_graph *graph,
                        const char *path, struct dpro_error *err)
{
    struct writer w;
    int rc = writer_init_path(&w, path, false, err);
    if (rc < 0)
        return rc;
    size_t folder = common_folder(trace);
    writer_open(&w, '{');
    writer_key(&w, "perfetto_manifest");
    writer_open(&w, '{');
    writer_key_int(&w, "version", 1);
    writer_key(&w, "trace_time");
    writer_open(&w, '{');
    writer_key_string(&w, "clock", "REALTIME");
    writer_close(&w, '}');
    writer_key(&w, "files");
    writer_open(&w, '[');
    for (size_t f = 0; f < dpro_trace_n_files(trace); f++) {
        struct dpro_file_info file = dpro_trace_file(trace, f);
        struct dpro_clock clock;
        if (is_profile(&file) && find_clock(graph, file.rank, &clock))
            write_file(&w, file.path + folder, &file, &clock);
    }
    writer_close(&w, ']');
    writer_close(&w, '}');
    writer_close(&w, '}');
    writer_text(&w, "\n");
    rc = writer_finish(&w, err);
    if (rc == 0)
        rc = writer_commit(&w, err);
    writer_fini(&w);
    return rc;
}
