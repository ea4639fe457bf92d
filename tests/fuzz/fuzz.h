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

/* All that a part holds, as one number. */
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

#endif
