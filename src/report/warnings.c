/* report/warnings.c: see warnings.h. */
#include "report/warnings.h"

#include <stdio.h>
#include <string.h>

#include "report/table.h"

#define WARNING_TEXT 1024

/* Takes the i-th of `count`, or counts i on. */
#define TAKE(of, count, get)                                                                       \
    if (of) {                                                                                      \
        size_t n = count(of);                                                                      \
        if (i < n)                                                                                 \
            return get(of, i);                                                                     \
        i -= n;                                                                                    \
    }

static const char *find(const struct warnings *s, size_t i)
{
    TAKE(s->trace, dpro_trace_n_warnings, dpro_trace_warning)
    TAKE(s->graph, dpro_graph_n_warnings, dpro_graph_warning)
    TAKE(s->model, dpro_model_n_warnings, dpro_model_warning)
    TAKE(s->whatif, dpro_whatif_n_warnings, dpro_whatif_warning)
    for (const char *const *text = s->listed; text && *text; text++)
        if (i-- == 0)
            return *text;
    for (size_t k = 0; k < sizeof s->more / sizeof *s->more; k++)
        if (s->more[k] && s->more[k][0] && i-- == 0)
            return s->more[k];
    return NULL;
}

/* With its prefix, in `out`; false: past the last. */
static bool put(char out[WARNING_TEXT], const struct warnings *s, size_t i)
{
    const char *text = find(s, i);
    if (text)
        snprintf(out, WARNING_TEXT, "%s%s", s->prefix ? s->prefix : "", text);
    return text;
}

void warnings_write_text(struct writer *w, const struct warnings *sets, size_t n)
{
    char text[WARNING_TEXT];
    bool any = false;
    for (size_t s = 0; s < n; s++)
        for (size_t i = 0; put(text, &sets[s], i); i++) {
            writer_text(w, any ? "" : "\nWarnings\n");
            table_escaped(w, "  -", 4, text);
            any = true;
        }
}

void warnings_write_json(struct writer *w, const struct warnings *sets, size_t n)
{
    char text[WARNING_TEXT];
    writer_section(w, "warnings", '[');
    for (size_t s = 0; s < n; s++)
        for (size_t i = 0; put(text, &sets[s], i); i++)
            writer_string(w, text);
    writer_close(w, ']');
}
