/* The warnings of a report, from everything that it uses. */
#pragma once

#include <dpro/whatif.h>

#include "base/writer.h"

/* In this order; NULL: none of that. */
struct warnings {
    const char *prefix; /* before each, "A: " */
    const struct dpro_trace *trace;
    const struct dpro_graph *graph;
    const struct dpro_model *model;
    const struct dpro_whatif *whatif;
    const char *const *listed; /* NULL-terminated */
    const char *more[8];       /* "": none */
};

/* Those of several sets, under a heading; as the key "warnings" of an object. */
void warnings_write_text(struct writer *writer, const struct warnings *sets, size_t n);
void warnings_write_json(struct writer *writer, const struct warnings *sets, size_t n);
