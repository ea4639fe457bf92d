/* ingest/trace.c: asking a loaded trace. */
#include "ingest/trace.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/utf8.h"

void trace_warn(struct dpro_trace *trace, const struct dpro_sink *sink, const char *format, ...)
{
    char raw[2048], text[2048];
    va_list args;
    va_start(args, format);
    vsnprintf(raw, sizeof raw, format, args);
    va_end(args);
    size_t len = utf8_escape(text, sizeof text, raw, strlen(raw));
    char *copy = arena_copy_string(&trace->arena, text, len);
    if (copy)
        (void)array_push(&trace->warnings, copy); /* out of memory: the sink still says it */
    log_line(sink, DPRO_LOG_WARN, "%s", text);
}

void dpro_trace_destroy(struct dpro_trace *trace)
{
    if (!trace)
        return;
    array_fini(&trace->warnings);
    strtab_fini(&trace->names);
    arena_fini(&trace->arena);
    free(trace);
}

size_t dpro_trace_n_files(const struct dpro_trace *trace)
{
    return trace->n_files;
}

struct dpro_file_info dpro_trace_file(const struct dpro_trace *trace, size_t file)
{
    return file < trace->n_files ? trace->files[file]
                                 : (struct dpro_file_info){.path = "", .rank = -1};
}

size_t dpro_trace_n_ranks(const struct dpro_trace *trace)
{
    return trace->n_ranks;
}

int dpro_trace_rank(const struct dpro_trace *trace, size_t index)
{
    return index < trace->n_ranks ? trace->ranks[index].rank : -1;
}

int dpro_trace_world_size(const struct dpro_trace *trace)
{
    return trace->world_size;
}

const char *dpro_trace_framework(const struct dpro_trace *trace)
{
    (void)trace; /* Kineto and execution traces are PyTorch's */
    return "pytorch";
}

uint64_t dpro_trace_n_spans(const struct dpro_trace *trace)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < trace->n_ranks; i++)
        n += trace->ranks[i].n_spans;
    return n;
}

size_t dpro_trace_n_warnings(const struct dpro_trace *trace)
{
    return trace->warnings.n;
}

const char *dpro_trace_warning(const struct dpro_trace *trace, size_t index)
{
    return index < trace->warnings.n ? trace->warnings.at[index] : NULL;
}
