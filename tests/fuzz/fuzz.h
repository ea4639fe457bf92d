/* fuzz.h: what the targets share. The first byte of the input picks a second, small chunk size:
 * reading must give the same however the buffer cuts the text. */
#ifndef FUZZ_H
#define FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "ingest/part.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

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
    uint64_t h = t->connections.n ^ t->n_lost << 8 ^ t->n_frames << 16 ^ t->n_unknown << 24;
    for (size_t i = 0; i < t->connections.n; i++)
        h = fuzz_hash(h, &t->connections.at[i].local, 2 * sizeof t->connections.at[i].local);
    for (size_t i = 0; i < t->transfers.n; i++)
        h = fuzz_hash(h, &t->transfers.at[i], offsetof(struct net_transfer, call) + 1);
    for (size_t i = 0; i < t->messages.n; i++)
        h = fuzz_hash(h, &t->messages.at[i], offsetof(struct net_message, opcode) + 1);
    for (size_t i = 0; i < t->ps.n; i++)
        h = fuzz_hash(h, &t->ps.at[i], offsetof(struct ps_message, server) + 1);
    return fuzz_hash(h, t->marks.at, t->marks.n * sizeof t->marks.at[0]);
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

static inline uint64_t fuzz_hash_part(const struct trace_part *part)
{
    uint64_t h = part->n_spans;
    for (const struct span_block *block = part->first_block; block; block = block->next)
        h = fuzz_hash(h, block->at, block->n * sizeof block->at[0]);
    for (uint32_t i = 0; i < part->names.n; i++)
        h = fuzz_hash(h, strtab_get(&part->names, i), strtab_len(&part->names, i));
    for (size_t i = 0; i < part->links.n; i++)
        h = fuzz_hash(h, &part->links.at[i].ts_ns, sizeof part->links.at[i].ts_ns);
    for (size_t i = 0; i < part->et_nodes.n; i++)
        h = fuzz_hash(h, &part->et_nodes.at[i].id, sizeof part->et_nodes.at[i].id);
    h ^= part->et_tensors.n ^ part->details.n << 8 ^ part->tracks.n << 16 ^ part->groups.n << 24;
    for (size_t i = 0; i < part->dfg_nodes.n; i++) {
        const struct dfg_node *node = &part->dfg_nodes.at[i];
        h = fuzz_hash(h, node, sizeof *node);
        if (node->first_input + node->n_inputs > part->dfg_inputs.n)
            abort();
        for (uint32_t k = 0; k < node->n_inputs; k++)
            if (part->dfg_inputs.at[node->first_input + k].node >= part->dfg_nodes.n)
                abort();
    }
    if (part->transport)
        h ^= fuzz_hash_transport(part->transport);
    if (part->recording)
        h ^= fuzz_hash_recording(part->recording);
    if (part->nccl)
        h ^= part->nccl->operations.n ^ part->nccl->steps.n << 16 ^ part->nccl->proxy_ops.n << 32;
    if (part->timeline)
        h ^= fuzz_hash_timeline(part->timeline);
    if (part->next)
        h ^= fuzz_hash_part(part->next) * 3;
    h ^= part->n_events << 3 ^ part->cut;
    return h ^ fuzz_hash(h, &part->losses, sizeof part->losses);
}

typedef int fuzz_reader(struct json *js, struct trace_part *part, struct dpro_error *err);

static inline uint64_t fuzz_read(fuzz_reader *reader, const uint8_t *data, size_t size,
                                 size_t chunk)
{
    struct input in;
    struct json js;
    struct dpro_error err;
    struct trace_part part = {0};
    uint64_t h = 0;
    if (input_open_memory(&in, data, size, "fuzz", &err) < 0)
        return 0;
    if (json_init(&js, &in, chunk, &err) == 0) {
        if (reader(&js, &part, &err) == 0)
            h = fuzz_hash_part(&part) + js.fail;
        json_fini(&js);
    }
    part_fini(&part);
    input_close(&in);
    return h;
}

static inline void fuzz_compare(fuzz_reader *reader, const uint8_t *data, size_t size)
{
    if (size < 1)
        return;
    size_t chunk = data[0] % 97 + 1;
    if (fuzz_read(reader, data + 1, size - 1, 0) != fuzz_read(reader, data + 1, size - 1, chunk))
        abort();
}

typedef int fuzz_bytes_reader(struct bytes *bytes, struct trace_part *part, struct dpro_error *err);

static inline uint64_t fuzz_read_bytes(fuzz_bytes_reader *reader, const uint8_t *data, size_t size,
                                       size_t chunk)
{
    struct input in;
    struct bytes bytes;
    struct dpro_error err;
    struct trace_part part = {0};
    uint64_t h = 0;
    if (input_open_memory(&in, data, size, "fuzz", &err) < 0)
        return 0;
    if (bytes_init(&bytes, &in, chunk, PART_RECORD_MAX, &err) == 0) {
        if (reader(&bytes, &part, &err) == 0)
            h = fuzz_hash_part(&part);
        bytes_fini(&bytes);
    }
    part_fini(&part);
    input_close(&in);
    return h;
}

static inline void fuzz_compare_bytes(fuzz_bytes_reader *reader, const uint8_t *data, size_t size)
{
    if (size < 1)
        return;
    size_t chunk = data[0] % 97 + 1;
    if (fuzz_read_bytes(reader, data + 1, size - 1, 0) !=
        fuzz_read_bytes(reader, data + 1, size - 1, chunk))
        abort();
}

#endif
