/* Builds a rank's memory in one iteration from its trace. */

#include "graph/memory/memory_build.h"

/* ---- which iteration, which device ---- */

static uint32_t choose_window(const struct trace_rank *trace)
{
    uint32_t best = NO_ID;
    for (uint32_t i = 0; i < trace->n_allocations; i++) {
        uint32_t window = trace->allocations[i].window;
        if (window >= trace->n_windows)
            continue;
        if (best == NO_ID || !trace->windows[best].has_execution_trace ||
            trace->windows[window].has_execution_trace)
            best = window;
    }
    return best;
}

static uint32_t choose_execution_trace(const struct trace_rank *trace)
{
    uint32_t w = 0;
    while (w < trace->n_windows && !trace->windows[w].has_execution_trace)
        w++;
    return w < trace->n_windows ? w : NO_ID;
}

/* Its last whole one, as far as is known, up to last_step if any is: a file may be damaged. */
static uint32_t choose_step(const struct rank_build *rank, uint32_t window, int64_t last_step)
{
    uint32_t best = NO_ID, end = (uint32_t)rank->steps.n;
    while (end > 0 && rank->steps.at[end - 1].window > window)
        end--;
    if (rank->trace->windows[window].is_cut && end > 0)
        end--;
    for (uint32_t s = 0; s < end; s++) {
        const struct step *step = &rank->steps.at[s];
        bool beyond = last_step != 0 && step->number > last_step && best != NO_ID &&
                      rank->steps.at[best].number <= last_step;
        if (step->window == window && !beyond &&
            (best == NO_ID || step->timed >= rank->steps.at[best].timed))
            best = s;
    }
    return best;
}

/* Where the model is; without a word about it the GPU of which most was taken, else the CPU. */
static int32_t choose_device(const struct trace_rank *trace, uint32_t window)
{
    enum { MOST_DEVICES = 64 };
    uint64_t taken[MOST_DEVICES] = {0};
    int32_t best = -1;
    EACH_OF (const struct trace_allocation, event, trace->allocations, trace->n_allocations) {
        if (event->window != window || event->device < 0 || event->device >= MOST_DEVICES)
            continue;
        taken[event->device] += event->bytes > 0 ? (uint64_t)event->bytes : 1;
        if (best < 0 || taken[event->device] > taken[best])
            best = event->device;
    }
    if (trace->held && (trace->held->device < 0 ||
                        (trace->held->device < MOST_DEVICES && taken[trace->held->device] > 0)))
        return trace->held->device;
    return best;
}

/* The same of an execution trace: a GPU where any tensor is on one. */
static int32_t choose_device_of_tensors(const struct memory_build *b)
{
    if (b->trace->held)
        return b->trace->held->device;
    for (uint32_t i = 0; i < b->trace->n_et_tensors; i++)
        if (memory_device_of(b, &b->trace->et_tensors[i]) >= 0)
            return memory_device_of(b, &b->trace->et_tensors[i]);
    return -1;
}

static bool memory_choose(struct memory_build *b, int64_t last_step)
{
    bool allocations = b->trace->n_allocations > 0;
    b->window = allocations ? choose_window(b->trace) : choose_execution_trace(b->trace);
    if (b->window == NO_ID)
        return false;
    b->step = choose_step(b->rank, b->window, last_step);
    if (b->step == NO_ID)
        return false;
    b->start_ns = b->rank->steps.at[b->step].start_ns;
    b->end_ns = b->rank->steps.at[b->step].end_ns;
    b->device = allocations ? choose_device(b->trace, b->window) : choose_device_of_tensors(b);
    bool held_there = b->trace->held && b->trace->held->device == b->device;
    b->held = held_there ? b->trace->held : NULL;
    return true;
}

/* ---- the result ---- */

/* Blocks that are there at any time of the iteration. */
static void number_blocks(struct memory_build *b)
{
    uint32_t n = 0;
    EACH (struct block_build, block, b->blocks)
        block->is = block->given_ns < b->start_ns ? NO_ID : n++;
    b->to->n_blocks = n;
}

static void write_blocks(struct memory_build *b)
{
    struct graph_memory *to = b->to;
    to->blocks = mem_alloc((to->n_blocks + (size_t)1) * sizeof *to->blocks);
    for (size_t i = 0; i < b->blocks.n; i++)
        if (b->blocks.at[i].is != NO_ID) {
            struct graph_block *block = &to->blocks[b->blocks.at[i].is];
            *block = b->blocks.at[i].to;
            block->address = b->device >= 0 ? b->blocks.at[i].address : 0;
        }
    to->n_calls = (uint32_t)b->calls.n;
    to->calls = b->calls.at;
}

static void find_blocks(struct memory_build *b)
{
    if (b->to->source == DPRO_MEMORY_ALLOCATIONS)
        memory_join_allocations(b);
    else
        memory_find_lives(b);
    memory_add_older(b);
    for (uint32_t m = 0; m < b->moments.n; m++) {
        struct graph_block *to = &b->blocks.at[b->moments.at[m].block].to;
        *(b->moments.at[m].gives ? &to->given : &to->taken) = m;
    }
}

/* A snapshot has what was in effect. All devices of a process have the same. */
static struct allocator_settings settings_of(const struct memory_build *b)
{
    const struct trace_rank *trace = b->trace;
    struct allocator_settings settings =
        trace->held ? trace->held->allocator : allocator_settings_default();
    if (trace->snapshot_settings && trace->snapshot_settings->known != DPRO_ALLOCATOR_ASSUMED)
        settings = *trace->snapshot_settings;
    if (trace->recording)
        settings.by_address =
            allocator_is_by_address(strtab_get(b->rank->names, trace->recording->torch));
    return settings;
}

static void memory_make(struct memory_build *b)
{
    struct graph_memory *to = b->to;
    to->source =
        b->trace->n_allocations > 0 ? DPRO_MEMORY_ALLOCATIONS : DPRO_MEMORY_EXECUTION_TRACE;
    to->gpu = b->device >= 0;
    to->capacity_bytes = b->held ? b->held->capacity_bytes : 0;
    to->allocator = settings_of(b);
    if (b->trace->recording)
        to->batch_size = b->trace->recording->batch_size;
    memory_find_nodes(b);
    find_blocks(b);
    memory_find_calls(b);
    memory_bind_storages(b);
    memory_categorize(b);
    to->growth_bytes = b->growth_bytes;
    to->growth_since = b->growth_since;
    to->kept_bytes = b->kept_bytes;
    memory_find_units(b);
    memory_bind_older(b);
    memory_find_scaling(b);
    memory_find_splits(b);
    memory_measure(b);
    number_blocks(b);
    write_blocks(b);
    memory_find_uses(b);
    memory_find_typed_ops(b);
    memory_place_moments(b);
}

struct graph_memory *build_memory(const struct rank_build *rank, int64_t last_step)
{
    struct memory_build b = {.rank = rank, .trace = rank->trace};
    if (!memory_choose(&b, last_step))
        return NULL;
    b.to = mem_array(1, sizeof *b.to);
    memory_make(&b);
    arena_fini(&b.scratch);
    FREE_ALL(&b.blocks, &b.moments, &b.ordered, &b.bindings, &b.storage_numbers);
    bool of_tensors = b.to->source == DPRO_MEMORY_EXECUTION_TRACE;
    if (of_tensors ? b.to->n_moments > 0 : b.to->n_blocks > 0)
        return b.to;
    rank_memory_destroy(b.to); /* tensors elsewhere, or of no op that is seen */
    return NULL;
}

void rank_memory_destroy(struct graph_memory *memory)
{
    if (!memory)
        return;
    packed_free(graph_memory_items, memory);
    mem_free(memory);
}
