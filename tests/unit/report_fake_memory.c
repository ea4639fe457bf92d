/* What the made-up job holds: each forward op of a CPU keeps an activation, which the backward op
 * of the same layer gives back when it has taken a gradient. */

#include "report_fake.h"

#define MIB UINT64_C(1048576)

struct filling {
    struct dpro_graph *graph;
    struct graph_memory *memory;
};

static uint32_t add_block(struct filling *f, uint64_t bytes, uint8_t category, uint32_t call)
{
    struct graph_memory *m = f->memory;
    m->blocks[m->n_blocks] = (struct graph_block){.size_bytes = bytes,
                                                  .category = category,
                                                  .taken = MEMORY_NONE,
                                                  .given = MEMORY_NONE,
                                                  .call = call};
    return m->n_blocks++;
}

static void add_moment(struct filling *f, uint32_t block, bool gives, uint32_t op, uint16_t share)
{
    struct graph_memory *m = f->memory;
    *(gives ? &m->blocks[block].given : &m->blocks[block].taken) = m->n_moments;
    m->moments[m->n_moments++] =
        (struct graph_moment){.op = op, .share = share, .gives = gives, .block = block};
}

static uint32_t add_call(struct filling *f, uint32_t layer, bool hostile)
{
    struct graph_memory *m = f->memory;
    char name[64];
    snprintf(name, sizeof name, "layers.%u.%s", layer / 3, layer % 3 ? "norm" : "linear");
    const char *text = hostile && layer % 2 ? FAKE_HOSTILE : name;
    m->calls[m->n_calls] =
        (struct graph_call){.module = strtab_add(&f->graph->names, text, strlen(text)),
                            .parent = MEMORY_NONE,
                            .forward_first = m->n_moments,
                            .forward_last = m->n_moments + 1};
    return m->n_calls++;
}

static bool computes(const struct dpro_graph *g, uint32_t op, uint8_t kind)
{
    return g->kind[op] == kind && g->device[op] < g->n_devices &&
           g->devices[g->device[op]].kind == DPRO_DEVICE_CPU_THREAD;
}

static void fill_rank(struct filling *f, uint32_t r, const struct fake_options *options)
{
    struct dpro_graph *g = f->graph;
    struct graph_memory *m = f->memory;
    uint32_t n = (uint32_t)options->n_layers, layer = 0, *activations;
    activations = arena_array(&g->arena, n, sizeof *activations);
    m->source = r == 5 ? DPRO_MEMORY_EXECUTION_TRACE : DPRO_MEMORY_ALLOCATIONS;
    m->gpu = true;
    m->blocks = arena_array(&g->arena, 5 * (size_t)n + 1, sizeof *m->blocks);
    m->moments = arena_array(&g->arena, 8 * (size_t)n + 1, sizeof *m->moments);
    m->calls = arena_array(&g->arena, n, sizeof *m->calls);
    for (uint32_t op = 0; op < g->n_ops && layer < n; op++) {
        if (g->rank[op] != r || !computes(g, op, DPRO_OP_FW))
            continue;
        uint32_t call = add_call(f, layer, options->hostile);
        uint64_t size = (4 + 5 * (layer % 3)) * MIB + (r == 2 ? 9 * MIB : 0);
        add_block(f, 4 * MIB, DPRO_MEMORY_PARAMETER, call);
        add_block(f, 8 * MIB, DPRO_MEMORY_STATE, call);
        activations[layer] = add_block(f, size, DPRO_MEMORY_ACTIVATION, call);
        add_moment(f, activations[layer++], false, op, UINT16_MAX / 2);
    }
    for (uint32_t op = 0; op < g->n_ops && layer > 0; op++) {
        if (g->rank[op] != r || !computes(g, op, DPRO_OP_BW))
            continue;
        uint32_t call = --layer;
        uint32_t scratch = add_block(f, (layer % 7) * 3 * MIB, DPRO_MEMORY_TEMPORARY, call);
        m->calls[call].backward_first = m->n_moments;
        add_moment(f, add_block(f, 4 * MIB, DPRO_MEMORY_GRADIENT, call), false, op, 0);
        add_moment(f, scratch, false, op, UINT16_MAX / 4);
        add_moment(f, activations[layer], true, op, UINT16_MAX / 2);
        add_moment(f, scratch, true, op, UINT16_MAX);
        m->calls[call].backward_last = m->n_moments;
    }
    for (uint32_t b = 0; b < m->n_blocks; b++)
        if (m->blocks[b].category == DPRO_MEMORY_GRADIENT)
            add_moment(f, b, true, g->n_ops - 1, UINT16_MAX);
    m->capacity_bytes = options->tight ? 500 * MIB : UINT64_C(80) << 30;
    m->allocator = allocator_settings_default();
    m->allocator.known = options->tight ? DPRO_ALLOCATOR_KNOWN : DPRO_ALLOCATOR_ASSUMED;
}

void fake_memory(struct dpro_graph *graph, const struct fake_options *options)
{
    graph->memory = arena_array(&graph->arena, graph->n_ranks, sizeof *graph->memory);
    for (uint32_t r = 0; r < graph->n_ranks; r++) {
        struct filling f = {graph, &graph->memory[r]};
        f.memory->source = DPRO_MEMORY_UNKNOWN;
        if (r != 6)
            fill_rank(&f, r, options);
    }
}
