/* report_getters.c: stands in for the graph's and the trace's getters until these are merged. */
#include "graph/graph.h"
#include "ingest/trace.h"

const char *dpro_op_kind_name(enum dpro_op_kind kind)
{
    static const char *const n[] = {"FW",         "BW",     "UPDATE", "INPUT",  "SEND",
                                    "RECV",       "PUSH",   "PULL",   "REDUCE", "COPY",
                                    "COLLECTIVE", "LAUNCH", "IN",     "OUT",    "BARRIER"};
    return kind < DPRO_N_OP_KINDS ? n[kind] : NULL;
}
uint32_t dpro_graph_n_devices(const struct dpro_graph *g)
{
    return g->n_devices;
}
uint32_t dpro_graph_n_ranks(const struct dpro_graph *g)
{
    return g->n_ranks;
}
struct dpro_op dpro_graph_op(const struct dpro_graph *g, dpro_op_id i)
{
    return (struct dpro_op){i,
                            g->kind[i],
                            g->ranks[g->rank[i]].rank,
                            g->device[i],
                            strtab_get(&g->names, g->name[i]),
                            g->dur_ns[i],
                            g->gap_ns[i],
                            g->seen_start_ns[i],
                            g->seen_dur_ns[i],
                            g->size_bytes[i],
                            g->transaction[i],
                            strtab_get(&g->names, g->tensor[i])};
}
struct dpro_device dpro_graph_device(const struct dpro_graph *g, dpro_device_id d)
{
    return (struct dpro_device){g->devices[d].kind, g->devices[d].rank,
                                strtab_get(&g->names, g->devices[d].name)};
}
const dpro_op_id *dpro_graph_successors(const struct dpro_graph *g, dpro_op_id op, int next,
                                        uint32_t *n)
{
    *n = next ? 0 : g->row[op + 1] - g->row[op];
    return g->succ + g->row[op];
}
const int64_t *dpro_graph_measured_ns(const struct dpro_graph *g, uint32_t *n)
{
    *n = g->n_samples;
    return g->measured_ns;
}
const char *dpro_graph_clock_method(const struct dpro_graph *g)
{
    return g->clock_method;
}
struct dpro_clock dpro_graph_clock(const struct dpro_graph *g, uint32_t r)
{
    return g->ranks[r].clock;
}
size_t dpro_graph_n_warnings(const struct dpro_graph *g)
{
    return g->warnings.n;
}
const char *dpro_graph_warning(const struct dpro_graph *g, size_t i)
{
    return g->warnings.at[i];
}
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
