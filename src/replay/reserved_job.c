/* What is cached depends on what came before, most of all on the first iteration: until its update
 * there is no optimizer state, which is then put where activations were. So the job is run from its
 * beginning: first what lasts, then three iterations. Where the allocator's segments are known as
 * the recorded iteration found them, two iterations are run from there. A block that an iteration
 * keeps stands for one of the same size that the next iteration finds and gives back. Streams are
 * not known here: one is assumed. */
#include "replay/reserved_job.h"

#define OWN_ID ((uint64_t)1 << 63) /* beside addresses */

struct reserved_job_run {
    const struct reserved_job *job;
    struct allocator *allocator;
    uint64_t *ids; /* by number: that of the block that is there; 0: none */
    uint64_t next_id;
    struct reserved_peak peak;
};

struct sized_block {
    uint64_t bytes;
    uint32_t number;
};

typedef ARRAY(struct sized_block) sized_blocks;

ORDER(by_size, struct sized_block, ASCENDING(bytes) ?: ASCENDING(number));

static uint64_t reserved_job_take(struct reserved_job_run *r, uint64_t bytes, uint32_t request)
{
    struct allocator_request asked = {
        .what = ALLOCATOR_TAKE, .bytes = bytes, .id = OWN_ID | ++r->next_id};
    bool failed = allocator_request(r->allocator, &asked).failed;
    if (failed && r->peak.refused_bytes == 0) {
        r->peak.refused_bytes = bytes;
        r->peak.refused = request;
    }
    return asked.id;
}

static void reserved_job_give(struct reserved_job_run *r, uint64_t id)
{
    if (id > 0)
        allocator_request(r->allocator,
                          &(struct allocator_request){.what = ALLOCATOR_GIVE, .id = id});
}

static void take_held(struct reserved_job_run *r, enum reserved_held what)
{
    const struct reserved_job *job = r->job;
    for (uint32_t b = 0; b < job->n_held; b++)
        if (job->held[b].is == what)
            r->ids[b] = reserved_job_take(r, job->held[b].bytes, UINT32_MAX);
}

/* ids[] of what the next iteration gives back becomes that of what this one kept; 0: nothing was
 * kept for it. With `takes` that is what was there before the first one. */
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
        uint64_t *id = &r->ids[left.at[i].number];
        if (takes)
            *id = found ? 0 : reserved_job_take(r, left.at[i].bytes, UINT32_MAX);
        else
            *id = found ? r->ids[kept.at[k].number] : 0;
        k += found;
    }
    array_fini(&left);
    array_fini(&kept);
}

/* DDP's buckets until it makes them anew: one of all parameters. */
static uint64_t take_first_bucket(struct reserved_job_run *r)
{
    uint64_t bytes = 0;
    for (uint32_t b = 0; b < r->job->n_held; b++)
        bytes += r->job->held[b].is == RESERVED_BUCKET ? r->job->held[b].bytes : 0;
    return bytes > 0 ? reserved_job_take(r, bytes, UINT32_MAX) : 0;
}

static void run_range(struct reserved_job_run *r, struct reserved_range range, int number,
                      bool first, bool last, uint64_t first_bucket)
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
        uint64_t *id = &r->ids[request->number];
        if (request->bytes > 0) {
            *id = reserved_job_take(r, request->bytes, i);
        } else {
            reserved_job_give(r, *id);
            *id = 0;
        }
    }
}

static void run_iteration(struct reserved_job_run *r, int number, uint64_t first_bucket)
{
    const struct reserved_job *job = r->job;
    const struct reserved_range all = {0, job->n_requests};
    const struct reserved_range *ranges = job->ranges ? job->ranges : &all;
    uint32_t n = job->ranges ? job->n_ranges : 1;
    for (uint32_t i = 0; i < n; i++)
        run_range(r, ranges[i], number, i == 0, i + 1 == n, first_bucket);
    hand_over(r, false);
}

/* As recorded: all that is there then is in its segments. Returns the bytes of private pools. */
static uint64_t reserved_job_restore(struct reserved_job_run *r)
{
    const struct allocator_history *history = r->job->start;
    struct allocator_start start;
    uint64_t private_bytes = 0;
    allocator_roll_back(history, r->allocator, &start);
    allocator_restore(r->allocator, start.segments.at, (uint32_t)start.segments.n, start.blocks.at);
    allocator_start_fini(&start);
    for (uint32_t s = 0; s < history->n_segments; s++)
        private_bytes += history->segments[s].private_pool ? history->segments[s].size_bytes : 0;
    for (uint32_t b = 0; b < r->job->n_held; b++)
        r->ids[b] = r->job->held[b].address;
    return private_bytes;
}

static struct allocator *reserved_job_create(const struct reserved_job *job)
{
    struct allocator_options options = {.settings = job->settings,
                                        .capacity_bytes = job->capacity_bytes,
                                        .device_bytes = job->capacity_bytes};
    double fraction = options.settings.memory_fraction;
    if (fraction > 0 && fraction < 1) /* which the capacity is already */
        options.device_bytes = (uint64_t)((double)job->capacity_bytes / fraction);
    return allocator_create(&options);
}

struct reserved_peak reserved_job_peak(const struct reserved_job *job)
{
    struct reserved_job_run r = {.job = job,
                                 .allocator = reserved_job_create(job),
                                 .ids = mem_array((size_t)job->n_numbers + 1, sizeof *r.ids),
                                 .peak = {.refused = UINT32_MAX}};
    uint64_t first_bucket = 0, private_bytes = 0;
    int first = 0;
    if (job->start) {
        private_bytes = reserved_job_restore(&r);
        first = 2;
    } else {
        take_held(&r, RESERVED_LASTING);
        first_bucket = take_first_bucket(&r);
        hand_over(&r, true);
    }
    for (int number = first; number < first + (job->start ? 2 : 3); number++)
        run_iteration(&r, number, first_bucket);
    r.peak.bytes = allocator_figures(r.allocator).reserved_peak_bytes + private_bytes;
    mem_free(r.ids);
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
