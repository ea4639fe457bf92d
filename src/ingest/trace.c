/* Asking a loaded trace. */
#include "ingest/part.h"

#include "base/memory.h"

void dpro_trace_destroy(struct dpro_trace *trace)
{
    if (!trace)
        return;
    for (uint32_t r = 0; r < trace->n_ranks; r++) {
        payload_destroy(&recording_payload, trace->ranks[r].recording);
        payload_destroy(&timeline_payload, trace->ranks[r].timeline);
    }
    for (uint32_t s = 0; s < trace->n_servers; s++)
        payload_destroy(&recording_payload, trace->servers[s].recording);
    for (uint32_t t = 0; t < trace->n_transports; t++)
        net_transport_fini(&trace->transports[t]);
    mem_free(trace->transports);
    for (uint32_t i = 0; i < trace->n_nccl_logs; i++)
        payload_destroy(&nccl_payload, trace->nccl_logs[i]);
    mem_free(trace->nccl_logs);
    dpro_probes_destroy(trace->probes);
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

size_t dpro_trace_n_transport_collectives(const struct dpro_trace *trace)
{
    size_t n = 0;
    for (uint32_t t = 0; t < trace->n_transports; t++)
        n += trace->transports[t].collectives.n;
    return n;
}

static const struct net_collective *find_collective(const struct dpro_trace *trace, size_t index,
                                                    const struct net_transport **transport)
{
    for (uint32_t t = 0; t < trace->n_transports; t++) {
        *transport = &trace->transports[t];
        if (index < (*transport)->collectives.n)
            return &(*transport)->collectives.at[index];
        index -= (*transport)->collectives.n;
    }
    return NULL;
}

static const struct recording *recording_of(const struct dpro_trace *trace,
                                            const struct net_transport *transport)
{
    return trace->ranks[transport->rank_index].recording;
}

struct dpro_transport_collective dpro_trace_transport_collective(const struct dpro_trace *trace,
                                                                 size_t index)
{
    const struct net_transport *transport;
    const struct net_collective *c = find_collective(trace, index, &transport);
    struct dpro_transport_collective out = {.rank = -1, .start_ns = INT64_MAX, .bucket = -1};
    if (!c)
        return out;
    out = (struct dpro_transport_collective){.rank = transport->rank < 0 ? -1 : transport->rank,
                                             .kind = gloo_collective_name(c->prefix),
                                             .tag = c->tag,
                                             .start_ns = c->first_send_ns,
                                             .sent_bytes = c->sent_bytes,
                                             .received_bytes = c->received_bytes,
                                             .size_bytes = c->size_bytes,
                                             .exact = c->exact,
                                             .tied = c->span != NO_ID,
                                             .bucket = -1};
    if (c->bucket != NO_ID) {
        const struct recording *recording = recording_of(trace, transport);
        const struct recorded_bucket *bucket = &recording->buckets.at[c->bucket];
        const struct recorded_model *model = &recording->models.at[bucket->model];
        bool unit = model->n_units > 0 && c->bucket >= model->first_unit;
        out.bucket = (int)(c->bucket - (unit ? model->first_unit : model->first_bucket));
        out.n_parameters = bucket->n;
    }
    return out;
}

const char *dpro_trace_transport_parameter(const struct dpro_trace *trace, size_t index, uint32_t k)
{
    const struct net_transport *transport;
    const struct net_collective *c = find_collective(trace, index, &transport);
    if (!c || c->bucket == NO_ID)
        return NULL;
    const struct recording *recording = recording_of(trace, transport);
    const struct recorded_bucket *bucket = &recording->buckets.at[c->bucket];
    if (k >= bucket->n)
        return NULL;
    uint32_t parameter = recording->members.at[bucket->first + k];
    return strtab_get(&trace->names, recording->parameters.at[parameter].name);
}

struct dpro_unprofiled dpro_trace_unprofiled(const struct dpro_trace *trace)
{
    return trace->unprofiled;
}
