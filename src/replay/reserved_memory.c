/* What a GPU's caching allocator reserves when blocks are taken and given back as replayed. */
#include "replay/replay.h"
#include "replay/reserved_job.h"

enum dpro_allocator_settings reserved_settings(const struct graph_memory *m)
{
    return m->allocator.other_backend ? DPRO_ALLOCATOR_STRANGE
                                      : (enum dpro_allocator_settings)m->allocator.known;
}

struct allocator_settings reserved_simulated(const struct graph_memory *m)
{
    struct allocator_settings settings = allocator_settings_default();
    settings.by_address = m->allocator.by_address;
    return reserved_settings(m) == DPRO_ALLOCATOR_ASSUMED ? settings : m->allocator;
}

/* Of a graph's memory: a request a moment, a number a block. */
struct memory_parts {
    struct reserved_block *held;
    struct reserved_request *requests;
    uint32_t *number; /* by block */
};

static void fill_held(const struct graph_memory *m, struct reserved_job *job,
                      const struct memory_parts *parts)
{
    for (uint32_t b = 0; b < m->n_blocks; b++)
        if (m->blocks[b].taken == MEMORY_NONE) {
            parts->number[b] = job->n_held;
            parts->held[job->n_held++] =
                (struct reserved_block){.bytes = graph_block_asked(&m->blocks[b]),
                                        .is = (uint8_t)reserved_held_of(&m->blocks[b])};
        }
    job->n_numbers = job->n_held;
    for (uint32_t b = 0; b < m->n_blocks; b++)
        if (m->blocks[b].taken != MEMORY_NONE)
            parts->number[b] = job->n_numbers++;
}

struct reserved_memory reserved_memory(const struct dpro_graph *graph, const struct graph_memory *m,
                                       const uint32_t *moments, uint32_t n)
{
    struct reserved_memory found = {.refused_op = DPRO_NO_OP};
    struct memory_parts parts = {mem_array((size_t)m->n_blocks + 1, sizeof *parts.held),
                                 mem_array((size_t)n + 1, sizeof *parts.requests),
                                 mem_array((size_t)m->n_blocks + 1, sizeof *parts.number)};
    struct reserved_job job = {.settings = reserved_simulated(m),
                               .capacity_bytes = m->capacity_bytes,
                               .held = parts.held,
                               .requests = parts.requests,
                               .n_requests = n,
                               .forward = m->n_calls > 0 ? n : 0,
                               .update = n};
    fill_held(m, &job, &parts);
    for (uint32_t i = 0; i < n; i++) {
        const struct graph_moment *moment = &m->moments[moments[i]];
        const struct graph_block *block = &m->blocks[moment->block];
        int phase = moment->op < graph->n_ops ? graph->phase[moment->op] : DPRO_OP_BARRIER;
        parts.requests[i] =
            (struct reserved_request){.bytes = moment->gives ? 0 : MAX(graph_block_asked(block), 1),
                                      .number = parts.number[moment->block]};
        if (phase == DPRO_OP_UPDATE && job.update == n)
            job.update = i;
        if (job.forward == n && moments[i] >= m->calls[0].forward_first)
            job.forward = i;
    }
    if (reserved_settings(m) != DPRO_ALLOCATOR_STRANGE) {
        struct reserved_peak peak = reserved_job_peak(&job);
        found.peak_bytes = peak.bytes;
        found.refused_bytes = peak.refused_bytes;
        if (peak.refused < n)
            found.refused_op = m->moments[moments[peak.refused]].op;
    }
    FREE_ALL(&parts.number, &parts.requests, &parts.held);
    return found;
}
