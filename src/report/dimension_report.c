/* How the job is parallel: its dimensions, for a terminal and as JSON. */
#include "report/facts.h"

#include <dpro/dimensions.h>

#include "graph/graph.h"
#include "report/table.h"
#include "report/words.h"

/* "dp 2 x tp 4", or nothing. */
static void name_all(const struct dpro_graph *graph, struct words *words)
{
    uint32_t n = dpro_graph_n_dimensions(graph);
    words->n = 0;
    words->text[0] = '\0';
    for (int over = 0; over < 2; over++)
        for (uint32_t i = 0; i < n; i++) {
            struct dpro_dimension d = dpro_graph_dimension(graph, i);
            if (d.lies_over == over)
                words_add(words, over ? ", and over these " : " x ", "%s %u", d.name, d.size);
        }
}

const uint32_t *dimensions_of_devices(const struct dpro_graph *g, struct arena *arena)
{
    uint32_t *of = arena_array(arena, g->n_devices + (size_t)1, sizeof *of);
    bool *seen = arena_array(arena, g->n_devices + (size_t)1, sizeof *seen);
    for (uint32_t d = 0; d < g->n_devices; d++)
        of[d] = DPRO_NO_DIMENSION;
    EACH_OF (const struct graph_collective, c, g->collectives, g->n_collectives)
        for (uint32_t m = c->first_member; m < c->first_member + c->n_members; m++) {
            uint32_t device = g->device[g->members[m].transfer];
            if (device >= g->n_devices || g->n_dimensions == 0)
                continue;
            of[device] =
                seen[device] && of[device] != c->dimension ? DPRO_NO_DIMENSION : c->dimension;
            seen[device] = true;
        }
    return of;
}

const char *dimensions_name_device(const struct dpro_graph *g, dpro_device_id device,
                                   const uint32_t *of_devices, char *text, size_t size)
{
    const char *name = dpro_graph_device(g, device).name;
    uint32_t dimension = of_devices[device];
    if (dimension == DPRO_NO_DIMENSION || g->devices[device].kind == DPRO_DEVICE_CPU_THREAD)
        return name;
    snprintf(text, size, "%.200s, %s", name, dpro_graph_dimension(g, dimension).name);
    return text;
}

#define MS_TEXT(ns) NUMBER((double)(ns) / 1e6, f->predicted_ns < 100000000 ? 2 : 1)

/* Means over the ranks. */
static void write_times(struct writer *w, const struct report_facts *f)
{
    const struct parallel_facts *p = &f->parallel;
    struct table t = {.n_cols = 6, .left = {true}};
    if (p->n_dimensions == 0)
        return;
    table_cells(&t, "of a rank", "exposed ms", "waiting ms", "all comm ms", "MB", "most lost by");
    EACH_OF (const struct dimension_fact, d, p->dimensions, p->n_dimensions) {
        table_cells(&t, d->name, MS_TEXT(d->mean.exposed_communication_ns),
                    MS_TEXT(d->mean.wait_for_peers_ns), MS_TEXT(d->mean.communication_ns),
                    d->bytes > 0 ? MEGABYTES(d->bytes) : "");
        table_cell(&t, "rank %d", d->most_rank);
    }
    table_write(w, &t);
}

static void write_pipeline(struct writer *w, const struct report_facts *f)
{
    const struct pipeline *p = &f->parallel.pipeline;
    char line[200];
    if (p->dimension == DPRO_NO_DIMENSION)
        return;
    if (p->unknown)
        snprintf(line, sizeof line, "micro-batches are not known: %s", p->unknown);
    else
        snprintf(line, sizeof line, "%u micro-batch%s, schedule %s", p->n_micro_batches,
                 p->n_micro_batches == 1 ? "" : "es",
                 p->schedule ? dpro_schedule_name(p->schedule) : "unknown");
    if (!p->unknown && p->n_chunks > 1)
        snprintf(line + strlen(line), sizeof line - strlen(line), ", %u stages a rank",
                 p->n_chunks);
    table_wrapped(w, "      ", 7, line);
}

void dimensions_write_text(struct writer *w, const struct report_facts *f)
{
    const char *note = dpro_graph_dimensions_note(f->g);
    struct words names;
    name_all(f->g, &names);
    if (names.n == 0 && !*note)
        return;
    writer_printf(w, "\nParallelism: %s\n", names.n > 0 ? names.text : "not known");
    for (uint32_t i = 0; i < dpro_graph_n_dimensions(f->g); i++) {
        struct dpro_dimension d = dpro_graph_dimension(f->g, i);
        char first[16];
        snprintf(first, sizeof first, "  %s ", d.name);
        table_escaped(w, first, 7, d.evidence);
    }
    if (*note)
        table_wrapped(w, " ", 2, note);
    write_pipeline(w, f);
    write_times(w, f);
}

#define TIME_FIELDS(time)                                                                          \
    MS("exposed_communication_ms", (time)->exposed_communication_ns),                              \
        MS("wait_for_peers_ms", (time)->wait_for_peers_ns),                                        \
        MS("communication_ms", (time)->communication_ns)

/* Its pipeline, and traffic. */
static void write_parts(struct writer *w, const struct report_facts *f)
{
    const struct parallel_facts *p = &f->parallel;
    const struct pipeline *pipeline = &p->pipeline;
    const char *schedule = dpro_schedule_name(pipeline->schedule);
    bool has_pipeline = pipeline->dimension != DPRO_NO_DIMENSION;
    bool of_pipeline = has_pipeline && pipeline->n_micro_batches > 0;
    uint32_t n = of_pipeline ? pipeline->n_micro_batches : f->n_micro_batches;
    writer_fields(w, INT_IF("micro_batches", n > 0, n),
                  INT_IF("fewest_micro_batches", !of_pipeline && n > 0, f->fewest_micro_batches),
                  INT_IF("stages_a_rank", of_pipeline, pipeline->n_chunks),
                  TEXT("schedule", *schedule ? schedule : NULL),
                  TEXT("pipeline_note", has_pipeline ? pipeline->unknown : NULL));
    WRITER_ROWS_OF (w, "traffic", const struct traffic_fact, t, p->traffic, p->n_traffic) {
        bool has_one = t->dimension != DPRO_NO_DIMENSION;
        writer_row(
            w, INT("from", t->from), INT("to", t->to),
            TEXT("dimension", has_one ? dpro_graph_dimension(f->g, t->dimension).name : NULL),
            INT("bytes", MIN(t->bytes, INT64_MAX)), BOOL("assumed", t->assumed));
    }
}

void dimensions_write_json(struct writer *w, const struct report_facts *f)
{
    const char *note = dpro_graph_dimensions_note(f->g);
    WRITER_ROWS (w, "dimensions", i, dpro_graph_n_dimensions(f->g)) {
        struct dpro_dimension d = dpro_graph_dimension(f->g, i);
        writer_item(w);
        writer_fields(w, TEXT("name", d.name), INT("size", d.size));
        WRITER_LIST (w, "groups", k, d.n_groups)
            writer_json_ints(w, dpro_graph_dimension_group(f->g, i, k), d.size);
        writer_fields(w, TEXT("evidence", d.evidence), BOOL("lies_over", d.lies_over),
                      INT("communications", d.n_per_rank), INT("bytes", d.bytes_per_rank),
                      TIME_FIELDS(&f->parallel.dimensions[i].mean));
        writer_close(w, '}');
    }
    const struct parallel_facts *p = &f->parallel;
    writer_object_if(w, "between_dimensions", p->n_dimensions > dpro_graph_n_dimensions(f->g),
                     TIME_FIELDS(&p->dimensions[p->n_dimensions - 1].mean));
    write_parts(w, f);
    writer_fields(w, TEXT("dimensions_note", *note ? note : NULL));
}
