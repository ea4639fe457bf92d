/* The clocks of a job as text, as JSON (dpro.align/1), and as the manifest of Perfetto's trace
 * merge (version 1). */

#include <dpro/report.h>

#include "base/utf8.h"
#include "base/writer.h"
#include "graph/graph.h"
#include "report/facts.h"
#include "report/table.h"
#include "report/words.h"

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
    struct words words = {.n = 0};
    for (uint32_t i = 0, end; i < clock->n_ranks; i = end) {
        for (end = i + 1; end < clock->n_ranks && clock->ranks[end] == clock->ranks[end - 1] + 1;)
            end++;
        words_add(&words, ", ", end > i + 1 ? "%d-%d" : "%d", clock->ranks[i],
                  clock->ranks[end - 1]);
    }
    if (words.n >= size)
        strcpy(words.text + size - 4, "...");
    strcpy(out, words.text);
}

static void clock_rows(struct table *t, const struct dpro_clock *clock)
{
    char ranks[80], host[NAME_COLUMNS * 4];
    ranks_text(ranks, sizeof ranks, clock);
    utf8_escape(host, sizeof host, clock->host, strlen(clock->host));
    for (uint32_t s = 0; s < clock->n_segments || s == 0; s++) {
        const struct dpro_clock_segment *segment = &clock->segments[s];
        table_cells(t, s ? "" : host, s ? "" : ranks, s ? "" : clock->method);
        if (clock->n_segments == 0)
            table_cells(t, "unknown", "-", "-");
        else
            table_cells(
                t, NUMBER((double)segment->offset_ns / 1e6, 3), NUMBER(segment->drift_ppm, 2),
                segment->uncertainty_ns < 0 ? "?"
                                            : NUMBER((double)segment->uncertainty_ns / 1e3, 1));
    }
}

void align_write_table(struct writer *w, const struct dpro_graph *graph, uint32_t n_clocks)
{
    struct table t = {.n_cols = 6, .left = {true, true, true}};
    table_cells(&t, "host", "ranks", "from", "offset ms", "drift ppm", "+- us");
    for (uint32_t c = 0; c < n_clocks; c++) {
        struct dpro_clock clock = dpro_graph_clock(graph, c);
        clock_rows(&t, &clock);
    }
    table_write(w, &t);
}

struct clock_report {
    const struct dpro_trace *trace;
    const struct dpro_graph *graph;
    struct dpro_alignment alignment;
    struct warnings warnings;
};

static struct clock_report clocks_of(const struct dpro_trace *trace, const struct dpro_graph *graph)
{
    return (struct clock_report){
        trace, graph, dpro_graph_alignment(graph), {.trace = trace, .graph = graph}};
}

static void write_text(struct writer *w, const void *of)
{
    const struct clock_report *clocks = of;
    const struct dpro_alignment *a = &clocks->alignment;
    align_write_table(w, clocks->graph, dpro_graph_n_clocks(clocks->graph));
    if (a->n_pairs > 0)
        writer_printf(w,
                      "\n%llu ordered pairs of events on two clocks; %llu violated as recorded, "
                      "%llu as aligned\n",
                      (unsigned long long)a->n_pairs, (unsigned long long)a->violations_before,
                      (unsigned long long)a->violations_after);
    warnings_write_text(w, &clocks->warnings, 1);
}

int dpro_align_text(const struct dpro_trace *trace, const struct dpro_graph *graph, FILE *out,
                    struct dpro_error *err)
{
    struct clock_report clocks = clocks_of(trace, graph);
    return writer_write_file(out, write_text, &clocks, err);
}

void align_write_fields(struct writer *w, const struct dpro_alignment *a)
{
    writer_fields(w, TEXT("reference", a->reference), INT("pairs", a->n_pairs),
                  INT("violations_before", a->violations_before),
                  INT("violations_after", a->violations_after));
}

void align_write_host(struct writer *w, const struct dpro_clock *clock)
{
    writer_fields(w, TEXT("host", clock->host));
    writer_key(w, "ranks");
    writer_json_ints(w, clock->ranks, clock->n_ranks);
    writer_fields(w, TEXT("method", clock->method));
}

static void write_json(struct writer *w, const void *of)
{
    const struct clock_report *clocks = of;
    writer_open(w, '{');
    writer_fields(w, TEXT("schema", "dpro.align/1"), TEXT("version", dpro_version()));
    align_write_fields(w, &clocks->alignment);
    warnings_write_json(w, &clocks->warnings, 1);
    WRITER_ROWS (w, "hosts", c, dpro_graph_n_clocks(clocks->graph)) {
        struct dpro_clock clock = dpro_graph_clock(clocks->graph, c);
        writer_item(w);
        align_write_host(w, &clock);
        WRITER_LIST_OF (w, "segments", const struct dpro_clock_segment, segment, clock.segments,
                        clock.n_segments) {
            writer_object(
                w, INT("start_ns", segment->start_ns), INT("end_ns", segment->end_ns),
                INT("offset_ns", segment->offset_ns), FIXED("drift_ppm", segment->drift_ppm, 6),
                INT_IF("uncertainty_ns", segment->uncertainty_ns >= 0, segment->uncertainty_ns));
        }
        writer_close(w, '}');
    }
    writer_close(w, '}');
    writer_text(w, "\n");
}

int dpro_align_json(const struct dpro_trace *trace, const struct dpro_graph *graph, FILE *out,
                    struct dpro_error *err)
{
    struct clock_report clocks = clocks_of(trace, graph);
    return writer_write_file(out, write_json, &clocks, err);
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
static void write_profile(struct writer *w, const char *path, const struct dpro_file_info *file,
                          const struct dpro_clock *clock)
{
    int64_t middle = file->start_ns + (file->end_ns - file->start_ns) / 2;
    writer_item(w);
    writer_fields(w, TEXT("path", path));
    writer_object_at(w, "machine", TEXT("name", clock->host));
    writer_begin(w, "clocks", '{');
    writer_fields(w, INT("ts", middle - file->base_ns));
    writer_object_at(w, "is", TEXT("clock", "REALTIME"),
                     INT("ts", dpro_clock_aligned(clock, middle)));
    writer_close(w, '}');
    writer_close(w, '}');
}

static bool is_profile(const struct dpro_file_info *file)
{
    return file->rank >= 0 && file->chrome_trace;
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

static void write_manifest(struct writer *w, const void *of)
{
    const struct clock_report *clocks = of;
    size_t folder = common_folder(clocks->trace);
    writer_open(w, '{');
    writer_begin(w, "perfetto_manifest", '{');
    writer_fields(w, INT("version", 1));
    writer_object_at(w, "trace_time", TEXT("clock", "REALTIME"));
    WRITER_LIST (w, "files", f, dpro_trace_n_files(clocks->trace)) {
        struct dpro_file_info file = dpro_trace_file(clocks->trace, f);
        struct dpro_clock clock;
        if (is_profile(&file) && find_clock(clocks->graph, file.rank, &clock))
            write_profile(w, file.path + folder, &file, &clock);
    }
    writer_close(w, '}');
    writer_close(w, '}');
    writer_text(w, "\n");
}

int dpro_align_manifest(const struct dpro_trace *trace, const struct dpro_graph *graph,
                        const char *path, struct dpro_error *err)
{
    struct clock_report clocks = clocks_of(trace, graph);
    return writer_write_path(path, false, write_manifest, &clocks, err);
}
