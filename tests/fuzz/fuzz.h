/* What the targets share. The first byte of the input picks a second, small chunk size: reading
 * must give the same however the buffer cuts the text. */
#pragma once

#include <dpro/job.h>

#include "adapters/horovod/timeline.h"
#include "base/base.h"
#include "ingest/probes.h"
#include "ingest/pytorch/kineto.h"
#include "ingest/pytorch/snapshot.h"
#include "ingest/readers.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A failure says what went wrong. */
static inline int fuzz_failed(int status, const struct dpro_error *err)
{
    if (status < 0 && (err->code >= 0 || err->text[0] == '\0'))
        abort();
    return status < 0;
}

/* Of paths with one thread; the rest as in struct dpro_job_options. */
#define fuzz_job(paths, n_paths, ...)                                                              \
    fuzz_job_with((paths), (n_paths),                                                              \
                  &(struct dpro_job_options){                                                      \
                      .size = sizeof(struct dpro_job_options), .threads = 1, __VA_ARGS__})
static inline __attribute__((unused)) struct dpro_job *
fuzz_job_with(const char *const *paths, size_t n_paths, const struct dpro_job_options *options)
{
    struct dpro_job *job;
    struct dpro_error err;
    if (dpro_job_open(paths, n_paths, options, &job, &err) < 0)
        abort();
    return job;
}

static inline uint64_t fuzz_hash(uint64_t h, const void *data, size_t size)
{
    const unsigned char *at = data;
    for (size_t i = 0; i < size; i++)
        h = (h ^ at[i]) * 0x100000001b3u;
    return h;
}

/* All that a log's part holds. */
static inline uint64_t fuzz_hash_transport(const struct net_transport *t)
{
    uint64_t h = t->connections.n ^ t->n_lost << 8 ^ t->n_frames << 16;
    for (size_t i = 0; i < t->connections.n; i++)
        h = fuzz_hash(h, &t->connections.at[i].local, 2 * sizeof t->connections.at[i].local);
    for (size_t i = 0; i < t->transfers.n; i++)
        h = fuzz_hash(h, &t->transfers.at[i], offsetof(struct net_transfer, call) + 1);
    for (size_t i = 0; i < t->messages.n; i++)
        h = fuzz_hash(h, &t->messages.at[i], offsetof(struct net_message, received) + 1);
    return h;
}

static inline uint64_t fuzz_hash_recording(const struct recording *r)
{
    uint64_t h = r->models.n ^ r->n_broken << 8 ^ (uint64_t)r->complete << 32;
    for (size_t i = 0; i < r->parameters.n; i++)
        h = fuzz_hash(h ^ r->parameters.at[i].name, &r->parameters.at[i].numel, 16);
    for (size_t i = 0; i < r->buckets.n; i++)
        h = fuzz_hash(h, &r->buckets.at[i], sizeof r->buckets.at[i]);
    h = fuzz_hash(h, r->members.at, r->members.n * sizeof r->members.at[0]);
    for (size_t i = 0; i < r->steps.n; i++)
        h = fuzz_hash(h, &r->steps.at[i], offsetof(struct recorded_step, window) + 1);
    for (size_t i = 0; i < r->buckets.n; i++)
        for (uint32_t k = 0; k < r->buckets.at[i].n; k++)
            if (r->members.at[r->buckets.at[i].first + k] >= r->parameters.n)
                abort();
    return h;
}

/* All that a part holds, as one number. */
static inline uint64_t fuzz_hash_timeline(const struct timeline *timeline)
{
    uint64_t h = timeline->writer + timeline->n_open;
    for (size_t i = 0; i < timeline->runs.n; i++) {
        const struct timeline_run *run = &timeline->runs.at[i];
        h = fuzz_hash(h ^ run->tensor ^ (uint64_t)run->op << 32, &run->whole, sizeof run->whole);
        h = fuzz_hash(h, run->stages, sizeof run->stages);
    }
    for (size_t i = 0; i < timeline->tensors.n; i++)
        h ^= timeline->tensors.at[i].numel + ((uint64_t)timeline->tensors.at[i].name << 32);
    return h ^ timeline->cycles.n;
}

static inline uint64_t fuzz_hash_kineto(const struct kineto_part *flows)
{
    uint64_t h = flows->launches.n;
    for (size_t i = 0; i < flows->links.n; i++)
        h = fuzz_hash(h, &flows->links.at[i].ts_ns, sizeof flows->links.at[i].ts_ns);
    for (size_t i = 0; i < flows->module_calls.n; i++)
        h = fuzz_hash(h, &flows->module_calls.at[i], offsetof(struct trace_module_call, window));
    return h;
}

static inline uint64_t fuzz_hash_snapshot(const struct snapshot_part *snapshot)
{
    uint64_t h = snapshot->n_broken ^ (uint64_t)snapshot->whole << 60 ^ snapshot->lists.n << 30;
    for (size_t i = 0; i < snapshot->entries.n; i++)
        h = fuzz_hash(h ^ snapshot->entries.at[i].what, &snapshot->entries.at[i],
                      offsetof(struct snapshot_entry, object));
    return fuzz_hash(h, snapshot->segments.at,
                     snapshot->segments.n * sizeof *snapshot->segments.at);
}

static inline uint64_t fuzz_hash_cost(uint64_t h, const struct probe_cost *cost)
{
    return fuzz_hash(h ^ cost->is_known, &cost->forward, 4 * sizeof(double));
}

static inline uint64_t fuzz_hash_probes(const struct dpro_probes *p)
{
    uint64_t h = p->n_broken ^ p->threads << 8;
    h = fuzz_hash(h, p->names.at, p->names.n * sizeof *p->names.at);
    for (size_t i = 0; i < p->batches.n; i++) {
        h = fuzz_hash(h, &p->batches.at[i].ratio, sizeof(double));
        h = fuzz_hash_cost(h, &p->batches.at[i].cost);
    }
    for (size_t i = 0; i < p->probes.n; i++) {
        const struct probe *probe = &p->probes.at[i];
        h = fuzz_hash(h, &probe->class, 3 * sizeof probe->class);
        for (unsigned way = 0; way < DPRO_N_COMPUTINGS; way++)
            h = fuzz_hash_cost(h, &probe->costs[way]);
        if (probe->n == 0 || probe->first + probe->n > p->names.n ||
            probe->first_batch + probe->n_batches > p->batches.n)
            abort();
    }
    return h;
}

static inline uint64_t fuzz_hash_held(const struct held_part *held)
{
    uint64_t h = held->n_broken ^ held->capacity_bytes << 8;
    h ^= (uint64_t)held->allocator << 20 ^ (uint64_t)held->backend << 40 ^
         (uint64_t)held->says_allocator << 60 ^ (uint64_t)held->is_text << 61;
    for (size_t i = 0; i < held->blocks.n; i++)
        h = fuzz_hash(h ^ held->blocks.at[i].name ^ (uint64_t)held->blocks.at[i].category << 32,
                      &held->blocks.at[i].address, 2 * sizeof(uint64_t));
    return fuzz_hash(h, held->modules.at, held->modules.n * sizeof *held->modules.at);
}

static inline uint64_t fuzz_hash_et(const struct execution_trace *et)
{
    uint64_t h = et->tensors.n;
    for (size_t i = 0; i < et->nodes.n; i++)
        h = fuzz_hash(h, &et->nodes.at[i].id, sizeof et->nodes.at[i].id);
    return h;
}

static inline uint64_t fuzz_hash_payload(const struct trace_part *part)
{
    const struct net_transport *transport = part_payload(part, &transport_payload);
    const struct recording *recording = part_payload(part, &recording_payload);
    const struct nccl_log *nccl = part_payload(part, &nccl_payload);
    const struct timeline *timeline = part_payload(part, &timeline_payload);
    const struct kineto_part *flows = part_payload(part, &kineto_payload);
    const struct execution_trace *et = part_payload(part, &et_payload);
    const struct snapshot_part *snapshot = part_payload(part, &snapshot_payload);
    const struct held_part *held = part_payload(part, &held_payload);
    const struct dpro_probes *probes = part_payload(part, &probes_payload);
    return transport   ? fuzz_hash_transport(transport)
           : recording ? fuzz_hash_recording(recording)
           : nccl      ? nccl->operations.n ^ nccl->steps.n << 16
           : timeline  ? fuzz_hash_timeline(timeline)
           : flows     ? fuzz_hash_kineto(flows)
           : et        ? fuzz_hash_et(et)
           : held      ? fuzz_hash_held(held)
           : probes    ? fuzz_hash_probes(probes)
           : snapshot  ? fuzz_hash_snapshot(snapshot)
                       : 0;
}

static inline uint64_t fuzz_hash_part(const struct trace_part *part)
{
    uint64_t h = part->n_spans;
    for (const struct span_block *block = part->first_block; block; block = block->next)
        h = fuzz_hash(h, block->at, block->n * sizeof block->at[0]);
    for (uint32_t i = 0; i < part->names.n; i++)
        h = fuzz_hash(h, strtab_get(&part->names, i), strtab_len(&part->names, i));
    for (size_t i = 0; i < part->allocations.n; i++)
        h = fuzz_hash(h, &part->allocations.at[i], offsetof(struct trace_allocation, window));
    h ^= part->details.n << 8 ^ part->tracks.n << 16 ^ part->groups.n << 24;
    for (size_t i = 0; i < part->dfg_nodes.n; i++) {
        const struct dfg_node *node = &part->dfg_nodes.at[i];
        h = fuzz_hash(h, node, sizeof *node);
        if (node->first_input + node->n_inputs > part->dfg_inputs.n)
            abort();
        for (uint32_t k = 0; k < node->n_inputs; k++)
            if (part->dfg_inputs.at[node->first_input + k].node >= part->dfg_nodes.n)
                abort();
    }
    h ^= fuzz_hash_payload(part);
    if (part->next)
        h ^= fuzz_hash_part(part->next) * 3;
    h ^= part->n_events << 3 ^ part->damage.cut;
    return h ^ fuzz_hash(h, &part->losses, sizeof part->losses);
}

static __attribute__((noinline, unused)) int fuzz_read_in_scope(const struct reader *reader,
                                                                const uint8_t *data, size_t size,
                                                                size_t chunk, uint64_t *hash)
{
    struct input in;
    struct json js;
    struct bytes bytes;
    struct dpro_error err;
    struct trace_part part = {0};
    int rc = 0;
    input_open_memory(&in, data, size, "fuzz");
    if (reader->read_json) {
        json_init(&js, &in, chunk, &err);
        rc = reader->read_json(&js, &part, &err);
        if (rc == 0)
            *hash = fuzz_hash_part(&part) + js.fail;
    } else if (reader->read_bytes) {
        bytes_init(&bytes, &in, chunk, PART_RECORD_MAX, &err);
        rc = reader->read_bytes(&bytes, &part, &err);
        if (rc == 0)
            *hash = fuzz_hash_part(&part);
    }
    return rc < 0 ? rc : DPRO_ECANCEL; /* so that all is freed */
}

static inline uint64_t fuzz_read(const struct reader *reader, const uint8_t *data, size_t size,
                                 size_t chunk)
{
    uint64_t hash = 0;
    (void)WITHIN_SCOPE(DPRO_ENOMEM, fuzz_read_in_scope(reader, data, size, chunk, &hash));
    return hash;
}

static inline void fuzz_compare(const struct reader *reader, const uint8_t *data, size_t size)
{
    if (size < 1)
        return;
    size_t chunk = data[0] % 97 + 1;
    if (fuzz_read(reader, data + 1, size - 1, 0) != fuzz_read(reader, data + 1, size - 1, chunk))
        abort();
}
