/* What a trace's readers have to say. */

#include "base/utf8.h"
#include "ingest/trace.h"

void trace_warn(struct dpro_trace *trace, const struct dpro_sink *sink, const char *format, ...)
{
    char raw[2048], text[2048];
    va_list args;
    va_start(args, format);
    vsnprintf(raw, sizeof raw, format, args);
    va_end(args);
    size_t len = utf8_escape(text, sizeof text, raw, strlen(raw));
    array_push(&trace->warnings, arena_copy_string(&trace->arena, text, len));
    log_line(sink, DPRO_LOG_WARN, "%s", text);
}
