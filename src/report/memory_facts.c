/* What the ranks' devices hold, worked out once for every form of the report. */

#include "graph/graph.h"
#include "ingest/trace.h"
#include "report/facts.h"

#define ALIKE 0.01 /* of the highest peak */

static double share_pct(uint64_t part, uint64_t whole)
{
    return whole > 0 ? 100.0 * (double)part / (double)whole : NAN;
}

ORDER_OF_INDICES(by_size, uint64_t, COMPARE(*y, *x));

static void sort_categories(struct memory_fact *fact)
{
    uint64_t *held = fact->memory.by_category;
    SCRATCH uint32_t *order = sorted_indices(DPRO_N_MEMORY_CATEGORIES, held, by_size);
    while (fact->n_categories < DPRO_N_MEMORY_CATEGORIES && held[order[fact->n_categories]] > 0) {
        fact->categories[fact->n_categories] = (uint8_t)order[fact->n_categories];
        fact->n_categories++;
    }
}

/* dpro's recorder was there, but notes neither allocations nor tensors when it is asked to attach
 * to a job, or the job ends early. */
static bool was_not_recorded(const struct report_facts *f)
{
    const struct dpro_trace *trace = f->report->trace;
    bool recorded = false;
    EACH_OF (const struct trace_rank, rank, trace->ranks, trace->n_ranks) {
        recorded |= rank->recording != NULL;
        if (rank->n_allocations > 0 || rank->n_et_nodes > 0)
            return false;
    }
    return recorded && strcmp(f->framework, "pytorch") == 0;
}

static void count_settings(struct memory_facts *all, const struct dpro_rank_memory *memory)
{
    if (!memory->on_gpu)
        return;
    all->n_assumed += memory->allocator == DPRO_ALLOCATOR_ASSUMED;
    all->n_strange += memory->allocator == DPRO_ALLOCATOR_STRANGE;
    if (memory->refused_bytes > 0 && all->n_refused++ == 0)
        all->refused = all->n_ranks;
}

void memory_find(struct report_facts *f)
{
    struct memory_facts *all = &f->memory;
    all->ranks = arena_array(&f->arena, (size_t)f->n_ranks + 1, sizeof *all->ranks);
    for (uint32_t r = 0; r < f->n_ranks; r++) {
        struct dpro_rank_memory memory = f->replay->memory[r];
        struct memory_fact *fact = &all->ranks[all->n_ranks];
        if (memory.source >= DPRO_MEMORY_UNKNOWN) {
            all->n_unknown++;
            continue;
        }
        *fact = (struct memory_fact){.memory = memory, .index = r, .error_pct = NAN};
        bool recorded = !f->what_if && memory.measured_reserved_bytes > 0;
        uint64_t reserved_bytes =
            recorded ? memory.measured_reserved_bytes : memory.reserved_peak_bytes;
        fact->capacity_pct =
            share_pct(MAX(memory.peak_bytes, reserved_bytes), memory.capacity_bytes);
        if (!f->what_if)
            fact->error_pct = share_pct(memory.peak_bytes, memory.measured_peak_bytes) - 100;
        sort_categories(fact);
        all->n_of_source[memory.source]++;
        count_settings(all, &memory);
        all->n_bare += memory.source == DPRO_MEMORY_ALLOCATIONS
                           ? memory.measured_peak_bytes == 0
                           : memory.by_category[DPRO_MEMORY_PARAMETER] == 0;
        if (memory.peak_bytes > all->ranks[all->highest].memory.peak_bytes)
            all->highest = all->n_ranks;
        if (memory.peak_bytes < all->ranks[all->lowest].memory.peak_bytes)
            all->lowest = all->n_ranks;
        all->n_ranks++;
    }
    double most = (double)all->ranks[all->highest].memory.peak_bytes;
    double least = (double)all->ranks[all->lowest].memory.peak_bytes;
    all->alike = most - least <= ALIKE * most;
    all->can_record = all->n_ranks == 0 && was_not_recorded(f);
}

const struct memory_fact *memory_highest(const struct report_facts *f)
{
    return f->memory.n_ranks > 0 ? &f->memory.ranks[f->memory.highest] : NULL;
}

const char *memory_category_words(enum dpro_memory_category category)
{
    return category == DPRO_MEMORY_STATE ? "optimizer state" : dpro_memory_category_name(category);
}
