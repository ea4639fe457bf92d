/* Asking a loaded trace. */
#include "ingest/part.h"
#include "ingest/stages/stage_table.h"

void trace_free_spans(struct trace_rank *rank)
{
    FREE_ALL(&rank->spans, &rank->details);
}

void dpro_trace_destroy(struct dpro_trace *trace)
{
    if (!trace)
        return;
    /* ranks, and servers behind them */
    EACH_OF (struct trace_rank, rank, trace->ranks, trace->n_ranks + trace->n_servers) {
        trace_free_spans(rank);
        FREE_ALL(&rank->tracks, &rank->windows, &rank->links, &rank->et_nodes, &rank->et_tensors,
                 &rank->dfg_nodes, &rank->dfg_inputs, &rank->allocations, &rank->module_calls,
                 &rank->logged.parts);
        payload_destroy(&recording_payload, rank->recording);
        payload_destroy(&timeline_payload, rank->timeline);
    }
    for (uint32_t t = 0; t < trace->n_transports; t++)
        net_transport_fini(&trace->transports[t]);
    mem_free(trace->transports);
    for (uint32_t i = 0; i < trace->n_nccl_logs; i++)
        payload_destroy(&nccl_payload, trace->nccl_logs[i]);
    mem_free(trace->nccl_logs);
    dpro_probes_destroy(trace->probes);
    payload_destroy(&stage_payload, trace->stages);
    array_fini(&trace->warnings);
    strtab_fini(&trace->names);
    arena_fini(&trace->arena);
    mem_free(trace);
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
    return trace->framework ? trace->framework : "pytorch"; /* no other format of files says so */
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

struct dpro_fusion_info dpro_trace_fusion(const struct dpro_trace *trace)
{
    const struct fusion *f = trace->fusion;
    if (!f)
        return (struct dpro_fusion_info){0};
    return (struct dpro_fusion_info){f->n_tensors, f->n_groups, f->n_rounds, f->n_alike,
                                     f->cycle_ns};
}

struct dpro_transport_info dpro_trace_transport(const struct dpro_trace *trace)
{
    return trace->transport_info;
}

struct dpro_unprofiled dpro_trace_unprofiled(const struct dpro_trace *trace)
{
    return trace->unprofiled;
}
