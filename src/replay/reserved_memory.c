/* replay/reserved_memory.c: what a GPU's caching allocator reserves of the device when blocks are
 * taken and given back as they were replayed.
 *
 * First comes what is there before the iteration, then the iteration, twice: the second one finds
 * the memory as the first one left it. What an iteration takes and keeps stands for what the next
 * one finds and gives back, of the same size. Settings of the allocator and streams are not known
 * here: default ones, and one stream, are assumed. */
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

uint64_t reserved_memory(const struct graph_memory *m, const uint32_t *moments, uint32_t n)
{
    enum { PASSES = 2 };
    struct allocator_options options = {.settings = allocator_settings_default(),
                                        .capacity_bytes = m->capacity_bytes};
    struct allocator *allocator = allocator_create(&options);
    uint64_t *ids = mem_array((size_t)m->n_blocks + 1, sizeof *ids); /* those that are held */
    for (uint32_t b = 0; b < m->n_blocks; b++) {
        const struct graph_block *block = &m->blocks[b];
        ids[b] = b + UINT64_C(1);
        if (block->taken == MEMORY_NONE)
            allocator_request(allocator, &(struct allocator_request){.what = ALLOCATOR_TAKE,
                                                                     .bytes = block->size_bytes,
                                                                     .id = ids[b]});
    }
    for (uint64_t pass = 1; pass <= PASSES; pass++) {
        for (uint32_t i = 0; i < n; i++) {
            const struct graph_moment *moment = &m->moments[moments[i]];
            uint32_t b = moment->block;
            if (!moment->gives)
                ids[b] = 1 + pass * m->n_blocks + b;
            if (ids[b] > 0)
                allocator_request(allocator,
                                  &(struct allocator_request){
                                      .what = moment->gives ? ALLOCATOR_GIVE : ALLOCATOR_TAKE,
                                      .bytes = m->blocks[b].size_bytes,
                                      .id = ids[b]});
        }
        hand_over(m, pass, ids);
    }
    uint64_t reserved = allocator_figures(allocator).reserved_peak_bytes;
    mem_free(ids);
    allocator_destroy(allocator);
    return reserved;
}
