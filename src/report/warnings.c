/* Writes the warnings of a report, as text and as JSON. */
#include "report/warnings.h"

#include "report/table.h"

struct warnings_listing {
    struct writer *w;
    bool as_json, any;
};

static void warnings_say(struct warnings_listing *to, const struct warnings *s, const char *text)
{
    char line[1024];
    snprintf(line, sizeof line, "%s%s", s->prefix ? s->prefix : "", text);
    if (to->as_json) {
        writer_string(to->w, line);
        return;
    }
    writer_text(to->w, to->any ? "" : "\nWarnings\n");
    table_escaped(to->w, "  -", 4, line);
    to->any = true;
}

#define SAY_EACH(of, count, get)                                                                   \
    for (size_t i = 0; (of) && i < count(of); i++)                                                 \
        warnings_say(to, s, get(of, i));

static void say_all(struct warnings_listing *to, const struct warnings *s)
{
    SAY_EACH(s->trace, dpro_trace_n_warnings, dpro_trace_warning)
    SAY_EACH(s->graph, dpro_graph_n_warnings, dpro_graph_warning)
    SAY_EACH(s->model, dpro_model_n_warnings, dpro_model_warning)
    SAY_EACH(s->whatif, dpro_whatif_n_warnings, dpro_whatif_warning)
    for (const char *const *text = s->listed; text && *text; text++)
        warnings_say(to, s, *text);
    for (size_t k = 0; k < sizeof s->more / sizeof *s->more; k++)
        if (s->more[k] && s->more[k][0])
            warnings_say(to, s, s->more[k]);
}

void warnings_write_text(struct writer *w, const struct warnings *sets, size_t n)
{
    struct warnings_listing to = {.w = w};
    for (size_t i = 0; i < n; i++)
        say_all(&to, &sets[i]);
}

void warnings_write_json(struct writer *w, const struct warnings *sets, size_t n)
{
    struct warnings_listing to = {.w = w, .as_json = true};
    WRITER_ROWS (w, "warnings", i, n)
        say_all(&to, &sets[i]);
}
