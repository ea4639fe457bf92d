/* report_getters.c: stands in for the trace's getters until these are merged. */
#include "ingest/trace.h"

size_t dpro_trace_n_files(const struct dpro_trace *t)
{
    return t->n_files;
}
struct dpro_file_info dpro_trace_file(const struct dpro_trace *t, size_t i)
{
    return t->files[i];
}
size_t dpro_trace_n_ranks(const struct dpro_trace *t)
{
    return t->n_ranks;
}
int dpro_trace_rank(const struct dpro_trace *t, size_t i)
{
    return t->ranks[i].rank;
}
int dpro_trace_world_size(const struct dpro_trace *t)
{
    return t->world_size;
}
const char *dpro_trace_framework(const struct dpro_trace *t)
{
    (void)t;
    return "pytorch";
}
size_t dpro_trace_n_warnings(const struct dpro_trace *t)
{
    return t->warnings.n;
}
const char *dpro_trace_warning(const struct dpro_trace *t, size_t i)
{
    return t->warnings.at[i];
}
