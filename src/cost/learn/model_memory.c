/* Makes the model's memory of each rank from the graph's. */
#include "cost/program/model_memory.h"

#include "cost/memory/lifetimes.h"
#include "cost/program/modules.h"

struct memory_learning {
    const struct measured_replay *replay;
    const struct dpro_graph *g;
    struct dpro_model *model;
    struct arena *arena; /* the model's */
    uint32_t *module_of; /* by string id of the graph; MODEL_NONE */
    ARRAY(struct model_module) modules;
};

/* ---- modules ---- */

static const char *copy_name(const struct memory_learning *l, uint32_t string)
{
    const char *text = strtab_get(&l->g->names, string);
    return arena_copy_string(l->arena, text, strlen(text));
}

static void add_modules(struct memory_learning *l, const struct graph_memory *from)
{
    for (uint32_t c = 0; c < from->n_calls; c++) {
        const struct graph_call *call = &from->calls[c];
        if (l->module_of[call->module] != MODEL_NONE)
            continue;
        struct model_module module = {.name = copy_name(l, call->module),
                                      .class = call->class ? copy_name(l, call->class) : "",
                                      .parent = MODEL_NONE};
        module.has_statistics = has_batch_statistics(module.class);
        if (call->parent < c)
            module.parent = l->module_of[from->calls[call->parent].module];
        l->module_of[call->module] = (uint32_t)l->modules.n;
        array_push(&l->modules, module);
    }
}

/* ---- calls ---- */

static void copy_calls(const struct memory_learning *l, const struct graph_memory *from,
                       struct model_memory *m)
{
    uint32_t n = from->n_moments;
    m->n_calls = from->n_calls;
    m->calls = arena_array(l->arena, from->n_calls, sizeof *m->calls);
    for (uint32_t c = 0; c < from->n_calls; c++) {
        const struct graph_call *call = &from->calls[c];
        m->calls[c] = (struct memory_call){.module = l->module_of[call->module],
                                           .parent = call->parent < c ? call->parent : MODEL_NONE,
                                           .first = MIN(call->forward_first, n),
                                           .last = MIN(call->forward_last, n),
                                           .backward_first = MIN(call->backward_first, n),
                                           .backward_last = MIN(call->backward_last, n),
                                           .again = MODEL_NONE};
    }
}

/* Whether the call, or one that it lies in, is `outer`; calls lie in those before them. */
static bool lies_in(const struct model_memory *m, uint32_t call, uint32_t outer)
{
    while (call != MODEL_NONE && call > outer)
        call = m->calls[call].parent;
    return call == outer;
}

/* The place from which on a call uses the block in its forward pass; 0: it does not. What goes into
 * an op is saved before that runs. */
static uint32_t used_forward(const struct model_memory *m, const struct graph_block *b,
                             uint32_t call)
{
    uint32_t first = 0;
    for (uint32_t i = b->first_use; i < b->first_use + b->n_uses; i++)
        if (m->uses[i].call == call && !m->uses[i].backward)
            first = MAX(first, m->uses[i].first);
    return first;
}

static bool is_made_forward(const struct model_memory *m, const struct graph_block *b)
{
    return b->call != MEMORY_NONE && b->taken != MEMORY_NONE &&
           m->calls[b->call].first <= b->taken && b->taken < m->calls[b->call].last;
}

/* A call that uses a block in both passes, or makes it and uses it in the backward pass, has it
 * saved: so has each call that this one lies in. A recomputation begins when the first such block
 * is asked for, and ends when the last one is saved. */
static void find_recomputations(struct model_memory *m)
{
    EACH_OF (const struct graph_block, b, m->blocks, m->n_blocks) {
        for (uint32_t k = b->first_use; k < b->first_use + b->n_uses; k++) {
            const struct graph_use *use = &m->uses[k];
            if (!use->backward || use->call == MEMORY_NONE)
                continue;
            uint32_t saved = used_forward(m, b, use->call);
            if (is_made_forward(m, b) && lies_in(m, use->call, b->call))
                saved = MAX(saved, b->taken + 1);
            if (saved == 0)
                continue;
            for (uint32_t c = use->call; c != MODEL_NONE; c = m->calls[c].parent) {
                struct memory_call *call = &m->calls[c];
                call->stop = MAX(call->stop, saved);
                call->again = MIN(call->again, use->first);
                call->released = MAX(call->released, use->last);
            }
        }
    }
    EACH_OF (struct memory_call, call, m->calls, m->n_calls) {
        bool known = call->again != MODEL_NONE;
        call->stop = known ? MIN(MAX(call->stop, call->first), call->last) : call->last;
        if (!known || call->again < call->backward_first)
            call->again = call->backward_first;
        if (!known)
            call->released = call->backward_last;
        if (call->backward_first == call->backward_last || (m->has_uses && !known))
            call->again = MODEL_NONE; /* it saves nothing */
    }
}

/* ---- ranks' memories ---- */

/* The next of a unit's blocks of gathered parameters, from a block on. */
static uint32_t next_gathered(const struct graph_memory *m, uint32_t gather, uint32_t block)
{
    while (block < m->n_blocks && !(m->blocks[block].gathered && m->blocks[block].gather == gather))
        block++;
    return block;
}

/* FSDP gathers a unit's parameters for its backward pass in blocks of their own. The tensors are
 * those of its forward pass. */
static void join_gathers(const struct graph_memory *from, struct graph_operand *operands,
                         struct arena *arena)
{
    uint32_t *same = arena_alloc(arena, (from->n_blocks + (size_t)1) * sizeof *same);
    for (uint32_t b = 0; b < from->n_blocks; b++)
        same[b] = b;
    for (uint32_t u = 0; u < from->n_units; u++) {
        uint32_t first = next_gathered(from, GATHER(u, false), 0),
                 again = next_gathered(from, GATHER(u, true), 0);
        while (first < from->n_blocks && again < from->n_blocks) {
            same[again] = first;
            first = next_gathered(from, GATHER(u, false), first + 1);
            again = next_gathered(from, GATHER(u, true), again + 1);
        }
    }
    for (uint32_t i = 0; i < from->n_operands; i++)
        operands[i].block = same[operands[i].block];
}

/* What each iteration adds and never gives back is no part of what a job needs. */
static void leave_out_growth(const struct memory_learning *l, struct graph_block *blocks,
                             struct model_memory *m)
{
    const double MB = 1e6;
    uint64_t sum = 0;
    for (uint32_t i = 0; i < m->n_blocks; i++)
        if (blocks[i].grows) {
            sum += blocks[i].size_bytes;
            blocks[i].size_bytes = blocks[i].asked_bytes = 0;
        }
    if (sum == 0)
        return;
    m->leaked_bytes = sum;
    m->growth_bytes = l->g->memory[m->rank].growth_bytes;
    m->measured_peak_bytes -= MIN(sum, m->measured_peak_bytes);
    m->measured_reserved_bytes -= MIN(sum, m->measured_reserved_bytes);
    if (l->model->n_memories == 1)
        array_push(&l->model->warnings,
                   arena_format(l->arena,
                                "the memory of rank %d grows by %.1f MB in each iteration, which "
                                "is not given back (a leak?): the %.1f MB that had piled up before "
                                "the recording are left out of the peaks",
                                l->g->ranks[m->rank].rank,
                                (double)l->g->memory[m->rank].growth_bytes / MB, (double)sum / MB));
}

static void copy_memory(struct memory_learning *l, uint32_t rank, struct model_memory *m)
{
    const struct graph_memory *from = &l->g->memory[rank];
#define COPY(what) arena_copy(l->arena, from->what, from->n_##what, sizeof *from->what)
    struct graph_block *blocks = COPY(blocks);
    struct graph_operand *operands = COPY(operands);
    *m = (struct model_memory){.rank = rank,
                               .gpu = from->gpu,
                               .has_uses = from->n_uses > 0,
                               .blocks = blocks,
                               .moments = COPY(moments),
                               .uses = COPY(uses),
                               .n_blocks = from->n_blocks,
                               .n_moments = from->n_moments,
                               .n_uses = from->n_uses,
                               .typed_ops = COPY(typed_ops),
                               .operands = operands,
                               .n_typed_ops = from->n_typed_ops,
                               .measured_peak_bytes = from->measured_peak_bytes,
                               .measured_reserved_bytes = from->measured_reserved_bytes,
                               .capacity_bytes = from->capacity_bytes,
                               .batch_size = from->batch_size,
                               .allocator = reserved_simulated(from)};
    m->phases = arena_array(l->arena, from->n_moments, 1);
#undef COPY
    leave_out_growth(l, blocks, m);
    if (from->n_units > 0)
        join_gathers(from, operands, l->arena);
    for (uint32_t i = 0; i < from->n_moments; i++) {
        uint32_t op = from->moments[i].op;
        m->phases[i] = op < l->g->n_ops ? l->g->phase[op] : (uint8_t)DPRO_OP_BARRIER;
    }
    copy_calls(l, from, m);
    find_recomputations(m);
}

static uint64_t hash_in(uint64_t hash, uint64_t value)
{
    return map_mix(hash ^ value) + value;
}

/* Ranks whose memory goes the same way, but for times, have one. */
static uint64_t hash_of(const struct graph_memory *m)
{
    uint64_t hash = hash_in(m->measured_peak_bytes, m->capacity_bytes);
    hash = hash_in(hash, m->measured_reserved_bytes);
    hash = hash_in(hash_in(hash, m->batch_size), m->n_calls);
    EACH_OF (const struct graph_block, b, m->blocks, m->n_blocks) {
        uint64_t kind = (uint64_t)b->category << 16 | (uint64_t)b->grows << 9 |
                        (uint64_t)b->scales << 8 | b->item_bytes;
        hash = hash_in(hash_in(hash, b->size_bytes), kind);
        hash = hash_in(hash_in(hash, (uint64_t)b->call << 32 | b->n_uses), b->taken);
    }
    for (uint32_t i = 0; i < m->n_moments; i++)
        hash = hash_in(hash, (uint64_t)m->moments[i].block << 1 | m->moments[i].gives);
    for (uint32_t i = 0; i < m->n_calls; i++)
        hash =
            hash_in(hash_in(hash, (uint64_t)m->calls[i].module << 32 | m->calls[i].forward_first),
                    m->calls[i].backward_last);
    for (uint32_t i = 0; i < m->n_uses; i++)
        hash = hash_in(hash_in(hash, (uint64_t)m->uses[i].first << 32 | m->uses[i].last),
                       (uint64_t)m->uses[i].call << 1 | m->uses[i].backward);
    return hash | 1;
}

/* ---- programs ---- */

/* Of a call's forward, what comes before all is made that its backward pass asks for. */
static int64_t recompute_ns(const struct graph_memory *from, const struct model_memory *m,
                            uint32_t call)
{
    const struct memory_call *of = &m->calls[call];
    int64_t ns = from->calls[call].forward_ns;
    for (uint32_t c = call + 1; c < m->n_calls && m->calls[c].first < of->last; c++) {
        uint32_t parent = m->calls[c].parent;
        bool counted = parent != MODEL_NONE && parent != call && m->calls[parent].first >= of->stop;
        if (m->calls[c].first >= of->stop && !counted && lies_in(m, c, call))
            ns -= from->calls[c].forward_ns;
    }
    return MAX(ns, 0);
}

/* On a GPU, the time in which its CPU launches a call's forward pass, by call; 0 elsewhere. */
static const double *launching_ns(const struct memory_learning *l, uint32_t rank)
{
    const struct dpro_graph *g = l->g;
    const struct graph_memory *from = &g->memory[rank];
    double *ns = arena_array(l->arena, from->n_calls + (size_t)1, sizeof *ns);
    for (uint32_t o = 0; o < from->n_op_calls && from->gpu; o++) {
        uint32_t op = g->ranks[rank].first_op + o;
        if (from->op_calls[o] != MEMORY_NONE && from->op_calls[o] % 2 == 0 &&
            !(g->flags[op] & GRAPH_OP_GPU))
            ns[from->op_calls[o] / 2] += (double)g->dur_ns[op] + (double)g->gap_ns[op];
    }
    for (uint32_t c = from->n_calls; c-- > 0;) /* inner ones come later */
        if (from->calls[c].parent < c)
            ns[from->calls[c].parent] += ns[c];
    return ns;
}

/* How many times as long as its ops a call takes a GPU that waits for their launches. */
static double slower_by_launches(const struct graph_call *call, double launching_ns)
{
    return call->forward_ns > 0 ? fmax(1, launching_ns / (double)call->forward_ns) : 1;
}

/* As the rank `told` has them, another one where nothing is known of the rank's own. */
static void add_program_calls(const struct memory_learning *l, uint32_t rank, uint32_t told,
                              const struct model_memory *m)
{
    const struct graph_memory *from = &l->g->memory[told];
    struct model_program *program = &l->model->programs[l->model->ranks[rank].program];
    program->n_calls = m->n_calls;
    program->calls = arena_array(l->arena, m->n_calls, sizeof *program->calls);
    const double *launching = launching_ns(l, told);
    for (uint32_t c = 0; c < m->n_calls; c++) {
        uint32_t op = from->calls[c].first_backward_op;
        struct model_call *call = &program->calls[c];
        if (op < l->g->n_ops)
            call->op = program_op_of(l->replay, program, op, true);
        call->module = m->calls[c].module;
        call->parent = m->calls[c].parent;
        if (m->calls[c].again != MODEL_NONE)
            call->recompute_ns = llround((double)recompute_ns(from, m, c) *
                                         slower_by_launches(&from->calls[c], launching[c]));
        if (m->calls[c].parent == MODEL_NONE)
            l->model->launch_share = fmax(
                l->model->launch_share, 1 - 1 / slower_by_launches(&from->calls[c], launching[c]));
    }
}

/* ---- what recomputing one module does ---- */

/* Recomputing it would gather units of FSDP's once more. */
static bool holds_units(const struct memory_learning *l, const char *module)
{
    for (uint32_t u = 0; u < l->g->n_units; u++)
        if (graph_unit_name(l->g, u)[0] && module_holds(module, graph_unit_name(l->g, u)))
            return true;
    return false;
}

/* The first memory in which it is called: a pipeline's stages have modules of their own. */
static const struct model_memory *memory_with(const struct dpro_model *model, uint32_t module)
{
    EACH_OF (const struct model_memory, m, model->memories, model->n_memories)
        for (uint32_t c = 0; c < m->n_calls; c++)
            if (m->calls[c].module == module)
                return m;
    return &model->memories[0];
}

static void measure_module(const struct memory_learning *l, uint32_t module, bool *recomputed)
{
    SCRATCH_ARENA struct arena arena = {0};
    const struct dpro_model *model = l->model;
    struct model_module *to = &model->modules[module];
    recomputed[module] = true;
    const struct model_memory *m = memory_with(model, module);
    struct recomputed_calls calls = recomputed_calls_of(m, recomputed, &arena);
    for (uint32_t c = 0; c < m->n_calls; c++) {
        const struct memory_call *call = &m->calls[c];
        to->n_calls += call->module == module;
        if (calls.root[c] != c)
            continue;
        for (uint32_t i = call->first; i < call->last; i++) {
            uint32_t block = m->moments[i].block;
            if (m->moments[i].gives)
                continue;
            struct lifetimes lives = lifetimes_of(m, &calls, block);
            if (lives.call == c && lives.second.from > 0 && lives.first.to <= call->again)
                to->kept_bytes += m->blocks[block].size_bytes;
        }
    }
    for (uint32_t r = 0; r < model->n_ranks; r++) {
        const struct model_memory *of = &model->memories[model->ranks[r].memory];
        const struct model_program *program = &model->programs[model->ranks[r].program];
        for (uint32_t c = 0; c < program->n_calls && c < of->n_calls; c++)
            if (of->calls[c].module == module)
                to->recompute_ns += program->calls[c].recompute_ns / model->n_ranks;
    }
    if (holds_units(l, to->name))
        to->kept_bytes = 0; /* not to be chosen */
    recomputed[module] = false;
}

/* By rank: the one whose memory was recorded, itself if it can be: ranks that reduce the same
 * gradients run the same program. NULL: nothing was recorded of any. */
static uint32_t *ranks_told(const struct memory_learning *l)
{
    const struct dpro_graph *g = l->g;
    uint32_t *told = arena_array(l->arena, g->n_ranks, sizeof *told);
    uint32_t n_silent = 0, known = MODEL_NONE, silent = 0;
    for (uint32_t r = g->n_ranks; g->memory && r-- > 0;)
        known = g->memory[r].n_blocks > 0 ? r : known;
    if (known == MODEL_NONE)
        return NULL;
    for (uint32_t r = g->n_ranks; r-- > 0;) {
        bool is_known = g->memory[r].n_blocks > 0;
        told[r] = is_known ? r : known;
        n_silent += !is_known;
        silent = is_known ? silent : r;
    }
    if (n_silent > 0)
        array_push(&l->model->warnings,
                   arena_format(l->arena,
                                "the memory of %u of the %u ranks, such as rank %d, was not "
                                "recorded: they are assumed to hold what rank %d does",
                                n_silent, g->n_ranks, g->ranks[silent].rank, g->ranks[known].rank));
    return told;
}

void model_memory_learn(const struct measured_replay *replay, struct dpro_model *model)
{
    const struct dpro_graph *g = replay->graph;
    struct memory_learning l = {replay, g, model, &model->arena, NULL, {0}};
    uint32_t *told = ranks_told(&l);
    model->n_memories = model->n_modules = 0;
    if (!told)
        return;
    SCRATCH_ARENA struct arena arena = {0};
    SCRATCH struct map alike = {0};
    l.module_of = arena_alloc(&arena, g->names.n * sizeof *l.module_of);
    memset(l.module_of, 0xff, g->names.n * sizeof *l.module_of);
    for (uint32_t r = 0; r < g->n_ranks; r++)
        add_modules(&l, &g->memory[r]);
    model->n_modules = (uint32_t)l.modules.n;
    model->modules = arena_copy(l.arena, l.modules.at, l.modules.n, sizeof *model->modules);
    array_fini(&l.modules);
    model->memories = arena_array(l.arena, g->n_ranks, sizeof *model->memories);
    for (uint32_t r = 0; r < g->n_ranks; r++) {
        int64_t i = map_number(&alike, hash_of(&g->memory[told[r]]));
        if (i == model->n_memories)
            copy_memory(&l, told[r], &model->memories[model->n_memories++]);
        model->ranks[r].memory = (uint32_t)i;
        add_program_calls(&l, r, told[r], &model->memories[i]);
    }
    bool *recomputed = arena_array(&arena, model->n_modules, sizeof *recomputed);
    for (uint32_t module = 0; module < model->n_modules; module++)
        measure_module(&l, module, recomputed);
}
