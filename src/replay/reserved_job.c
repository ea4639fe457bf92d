/* What the allocator has cached when the replayed iteration begins.
 *
 * What is cached depends on what came before, most of all on the first iteration: until its update
 * there is no optimizer state, which is then put where activations were. So the job is run from its
 * beginning: first what lasts, then three iterations. A block that an iteration keeps stands for
 * one of the same size that the next iteration finds and gives back. All are taken to be of one
 * stream.
 */
#include "replay/reserved_job.h"

struct reserved_job_run {
    const struct reserved_job *job;
    struct allocator *allocator;
    uint32_t *blocks; /* by number: the allocator's that is there; ALLOCATOR_NO_BLOCK: none */
    struct reserved_peak peak;
};

struct sized_block {
    uint64_t bytes;
    uint32_t number;
};

typedef ARRAY(struct sized_block) sized_blocks;

ORDER(by_size, struct sized_block, ASCENDING(bytes) ?: ASCENDING(number));

static uint32_t reserved_job_take(struct reserved_job_run *r, uint64_t bytes, uint32_t request)
{
    uint32_t block = allocator_take(r->allocator, bytes);
    if (block == ALLOCATOR_NO_BLOCK && r->peak.refused_bytes == 0) {
        r->peak.refused_bytes = bytes;
        r->peak.refused = request;
    }
    return block;
}

static void reserved_job_give(struct reserved_job_run *r, uint32_t *block)
{
    if (*block != ALLOCATOR_NO_BLOCK)
        allocator_give(r->allocator, *block);
    *block = ALLOCATOR_NO_BLOCK;
}

static void take_held(struct reserved_job_run *r, enum reserved_held what)
{
    const struct reserved_job *job = r->job;
    for (uint32_t b = 0; b < job->n_held; b++)
        if (job->held[b].is == what)
            r->blocks[b] = reserved_job_take(r, job->held[b].bytes, UINT32_MAX);
}

/* blocks[] of what the next iteration gives back becomes that of what this one kept, or none. With
 * `takes` that is what was there before the first one. */
static void hand_over(struct reserved_job_run *r, bool takes)
{
    const struct reserved_job *job = r->job;
    sized_blocks kept = {0}, left = {0};
    SCRATCH uint64_t *bytes = mem_array((size_t)job->n_numbers + 1, sizeof *bytes);
    for (uint32_t i = 0; i < job->n_requests; i++)
        bytes[job->requests[i].number] = job->requests[i].bytes;
    for (uint32_t n = job->n_held; n < job->n_numbers; n++)
        if (bytes[n] > 0)
            array_add(&kept, bytes[n], n);
    for (uint32_t b = 0; b < job->n_held; b++)
        if (job->held[b].is == RESERVED_LEFT)
            array_add(&left, job->held[b].bytes, b);
    array_sort(&kept, by_size);
    array_sort(&left, by_size);
    for (size_t i = 0, k = 0; i < left.n; i++) {
        while (k < kept.n && kept.at[k].bytes < left.at[i].bytes)
            k++;
        bool found = k < kept.n && kept.at[k].bytes == left.at[i].bytes;
        uint32_t *block = &r->blocks[left.at[i].number];
        if (takes && !found)
            *block = reserved_job_take(r, left.at[i].bytes, UINT32_MAX);
        else
            *block = found ? r->blocks[kept.at[k].number] : ALLOCATOR_NO_BLOCK;
        k += found;
    }
    array_fini(&left);
    array_fini(&kept);
}

/* DDP's buckets until it makes them anew: one of all parameters. */
static uint32_t take_first_bucket(struct reserved_job_run *r)
{
    uint64_t bytes = 0;
    for (uint32_t b = 0; b < r->job->n_held; b++)
        bytes += r->job->held[b].is == RESERVED_BUCKET ? r->job->held[b].bytes : 0;
    return bytes > 0 ? reserved_job_take(r, bytes, UINT32_MAX) : ALLOCATOR_NO_BLOCK;
}

static void run_range(struct reserved_job_run *r, struct reserved_range range, int number,
                      bool first, bool last, uint32_t *first_bucket)
{
    const struct reserved_job *job = r->job;
    for (uint32_t i = range.first; i <= range.first + range.n; i++) {
        if (number == 0 && first && i == job->forward)
            take_held(r, RESERVED_WORKSPACE);
        if (number == 1 && first && i == job->forward) {
            reserved_job_give(r, first_bucket);
            take_held(r, RESERVED_BUCKET);
        }
        if (number == 0 && last && i == job->update)
            take_held(r, RESERVED_STATE);
        if (i == range.first + range.n)
            break;
        const struct reserved_request *request = &job->requests[i];
        uint32_t *block = &r->blocks[request->number];
        if (request->bytes > 0)
            *block = reserved_job_take(r, request->bytes, i);
        else
            reserved_job_give(r, block);
    }
}

static void run_iteration(struct reserved_job_run *r, int number, uint32_t *first_bucket)
{
    const struct reserved_job *job = r->job;
    const struct reserved_range all = {0, job->n_requests};
    const struct reserved_range *ranges = job->ranges ? job->ranges : &all;
    uint32_t n = job->ranges ? job->n_ranges : 1;
    for (uint32_t i = 0; i < n; i++)
        run_range(r, ranges[i], number, i == 0, i + 1 == n, first_bucket);
    hand_over(r, false);
}

struct reserved_peak reserved_job_peak(const struct reserved_job *job)
{
    struct reserved_job_run r = {.job = job,
                                 .allocator = allocator_create(&job->settings, job->capacity_bytes),
                                 .blocks =
                                     mem_alloc(((size_t)job->n_numbers + 1) * sizeof *r.blocks),
                                 .peak = {.refused = UINT32_MAX}};
    for (uint32_t n = 0; n < job->n_numbers; n++)
        r.blocks[n] = ALLOCATOR_NO_BLOCK;
    take_held(&r, RESERVED_LASTING);
    uint32_t first_bucket = take_first_bucket(&r);
    hand_over(&r, true);
    for (int number = 0; number < 3; number++)
        run_iteration(&r, number, &first_bucket);
    r.peak.bytes = allocator_figures(r.allocator).reserved_peak_bytes;
    mem_free(r.blocks);
    allocator_destroy(r.allocator);
    return r.peak;
}

enum reserved_held reserved_held_of(const struct graph_block *block)
{
    if (block->given != MEMORY_NONE)
        return RESERVED_LEFT;
    return block->category == DPRO_MEMORY_STATE    ? RESERVED_STATE
           : block->category == DPRO_MEMORY_BUCKET ? RESERVED_BUCKET
           : block->category == DPRO_MEMORY_OTHER  ? RESERVED_WORKSPACE
                                                   : RESERVED_LASTING;
}
