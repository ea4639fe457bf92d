/* report/dimension_report.c: how the job is parallel: its dimensions, for a terminal and as JSON.
 */
#include "report/dimension_report.h"

#include <stdio.h>

#include <dpro/dimensions.h>

#include "report/table.h"

void dimensions_name_all(const struct dpro_graph *graph, struct words *words)
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

void dimensions_write_text(struct writer *w, const struct report_facts *f)
{
    const struct dpro_graph *g = f->report->graph;
    const char *note = dpro_graph_dimensions_note(g);
    struct words names;
    dimensions_name_all(g, &names);
    if (names.n == 0 && !*note)
        return;
    writer_printf(w, "\nParallelism: %s\n", names.n > 0 ? names.text : "not known");
    for (uint32_t i = 0; i < dpro_graph_n_dimensions(g); i++) {
        struct dpro_dimension d = dpro_graph_dimension(g, i);
        char first[16];
        snprintf(first, sizeof first, "  %s ", d.name);
        table_escaped(w, first, 7, d.evidence);
    }
    if (*note)
        table_wrapped(w, " ", 2, note);
}

void dimensions_write_json(struct writer *w, const struct report_facts *f)
{
    const struct dpro_graph *g = f->report->graph;
    const char *note = dpro_graph_dimensions_note(g);
    writer_section(w, "dimensions", '[');
    for (uint32_t i = 0; i < dpro_graph_n_dimensions(g); i++) {
        struct dpro_dimension d = dpro_graph_dimension(g, i);
        writer_item(w);
        writer_fields(w, TEXT("name", d.name), INT("size", d.size));
        writer_begin(w, "groups", '[');
        for (uint32_t k = 0; k < d.n_groups; k++) {
            writer_open(w, '[');
            const int *ranks = dpro_graph_dimension_group(g, i, k);
            for (uint32_t r = 0; r < d.size; r++)
                writer_json_int(w, ranks[r]);
            writer_close(w, ']');
        }
        writer_close(w, ']');
        writer_fields(w, TEXT("evidence", d.evidence), BOOL("lies_over", d.lies_over),
                      INT("communications", d.n_per_rank), INT("bytes", d.bytes_per_rank));
        writer_close(w, '}');
    }
    writer_close(w, ']');
    writer_fields(w, TEXT("dimensions_note", *note ? note : NULL));
}
