/* replay/reserved_memory.c: what a GPU's caching allocator reserves when blocks are taken and given
 * back as replayed.
 *
 * First come the blocks that are there before the iteration, then the iteration, twice: the second
 * one finds the memory as the first one left it. A block that an iteration takes and keeps stands
 * for one of the same size that the next iteration finds and gives back. Streams are not known
 * here: one is assumed. */
#include "base/array.h"
#include "base/sort.h"
#include "replay/caching_allocator.h"
#include "replay/replay.h"

struct sized_block {
    uint64_t size_bytes;
    uint32_t block;
};

typedef ARRAY(struct sized_block) sized_block_array;

ORDER(by_size, struct sized_block, ASCENDING(size_bytes) ?: ASCENDING(block));

/* ids[block] of what the next iteration gives back becomes that of what this one, `pass`, kept; 0:
 * nothing was kept for it. */
static void hand_over(const struct graph_memory *m, uint64_t pass, uint64_t *ids)
{
    sized_block_array kept = {.n = 0}, given = {.n = 0};
    for (uint32_t b = 0; b < m->n_blocks; b++) {
        const struct graph_block *block = &m->blocks[b];
        struct sized_block sized = {block->size_bytes, b};
        if (block->taken != MEMORY_NONE && block->given == MEMORY_NONE)
            array_push(&kept, sized);
        else if (block->taken == MEMORY_NONE && block->given != MEMORY_NONE)
            array_push(&given, sized);
    }
    array_sort(&kept, by_size);
    array_sort(&given, by_size);
    for (size_t i = 0, k = 0; i < given.n; i++) {
        while (k < kept.n && kept.at[k].size_bytes < given.at[i].size_bytes)
            k++;
        bool found = k < kept.n && kept.at[k].size_bytes == given.at[i].size_bytes;
        ids[given.at[i].block] = found ? 1 + pass * m->n_blocks + kept.at[k++].block : 0;
    }
    array_fini(&given);
    array_fini(&kept);
}

static struct allocator *create(const struct graph_memory *m)
{
    struct allocator_settings settings = allocator_settings_default();
    settings.by_address = m->allocator.by_address;
    if (reserved_settings(m) != DPRO_ALLOCATOR_ASSUMED)
        settings = m->allocator;
    struct allocator_options options = {.settings = settings,
                                        .capacity_bytes = m->capacity_bytes,
                                        .device_bytes = m->capacity_bytes};
    double fraction = options.settings.memory_fraction;
    if (fraction > 0 && fraction < 1) /* which the capacity is already */
        options.device_bytes = (uint64_t)((double)m->capacity_bytes / fraction);
    return allocator_create(&options);
}

/* Takes a block in an op. */
static void take(struct allocator *allocator, uint64_t bytes, uint64_t id, uint32_t op,
                 struct reserved_memory *found)
{
    struct allocator_request request = {.what = ALLOCATOR_TAKE, .bytes = bytes, .id = id};
    bool failed = allocator_request(allocator, &request).failed;
    if (!failed || found->refused_bytes > 0)
        return;
    found->refused_bytes = bytes;
    found->refused_op = op;
}

enum dpro_allocator_settings reserved_settings(const struct graph_memory *m)
{
    return m->allocator.other_backend ? DPRO_ALLOCATOR_STRANGE
                                      : (enum dpro_allocator_settings)m->allocator.known;
}

struct reserved_memory reserved_memory(const struct graph_memory *m, const uint32_t *moments,
                                       uint32_t n)
{
    enum { PASSES = 2 };
    struct reserved_memory found = {.refused_op = DPRO_NO_OP};
    if (reserved_settings(m) == DPRO_ALLOCATOR_STRANGE)
        return found;
    struct allocator *allocator = create(m);
    uint64_t *ids = mem_array((size_t)m->n_blocks + 1, sizeof *ids); /* those that are held */
    for (uint32_t b = 0; b < m->n_blocks; b++) {
        const struct graph_block *block = &m->blocks[b];
        ids[b] = b + UINT64_C(1);
        if (block->taken == MEMORY_NONE)
            take(allocator, block->size_bytes, ids[b], DPRO_NO_OP, &found);
    }
    for (uint64_t pass = 1; pass <= PASSES; pass++) {
        for (uint32_t i = 0; i < n; i++) {
            const struct graph_moment *moment = &m->moments[moments[i]];
            uint32_t b = moment->block;
            if (!moment->gives)
                ids[b] = 1 + pass * m->n_blocks + b;
            if (!moment->gives)
                take(allocator, m->blocks[b].size_bytes, ids[b], moment->op, &found);
            else if (ids[b] > 0)
                allocator_request(
                    allocator, &(struct allocator_request){.what = ALLOCATOR_GIVE, .id = ids[b]});
        }
        hand_over(m, pass, ids);
    }
    found.peak_bytes = allocator_figures(allocator).reserved_peak_bytes;
    mem_free(ids);
    allocator_destroy(allocator);
    return found;
}
