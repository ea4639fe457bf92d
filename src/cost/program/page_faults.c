/* How the sizes of blocks change page faults on CPUs. glibc's malloc maps a block of 32 MiB or more
 * anew each time it is taken, and the kernel clears each page on first touch. Smaller blocks are
 * reused. So time is not in proportion to the batch: blocks that fall below that size in a
 * micro-batch are faster. */

#include "cost/program/cost.h"
#include "cost/program/model_memory.h"
#include "cost/program/program_writer.h"
#include "cost/program/strategy_work.h"
#include "ingest/probes.h"

enum { PAGE_BYTES = 4096 };
#define MAPPED_BYTES (32.0 * 1048576)

/* Of a page. A virtual machine on a server of 2023 takes 2.2 us, without virtualization half a
 * microsecond or so. */
static const struct dpro_estimate FAULT_NS = {1500, 800};

/* Of blocks that are taken in a step and grow with the batch, were each so many times as large. */
static double faults_at(const struct model_memory *m, double share)
{
    double pages = 0;
    for (uint32_t b = 0; b < m->n_blocks; b++) {
        double bytes = share * (double)m->blocks[b].size_bytes;
        if (m->blocks[b].scales && m->blocks[b].taken != MEMORY_NONE && bytes >= MAPPED_BYTES)
            pages += bytes / PAGE_BYTES;
    }
    return pages;
}

static const struct model_memory *memory_of(const struct dpro_model *model, uint32_t program)
{
    for (uint32_t r = 0; r < model->n_ranks && model->n_memories > 0; r++)
        if (model->ranks[r].program == program)
            return &model->memories[model->ranks[r].memory];
    return NULL;
}

struct dpro_estimate strategy_fault_ns(const struct dpro_model *model,
                                       const struct dpro_strategy *strategy, uint32_t program)
{
    const struct model_memory *m = memory_of(model, program);
    double ratio = model->memory.batch_ratio > 0 ? model->memory.batch_ratio : 1;
    uint32_t n = strategy->micro_batches > 1 ? strategy->micro_batches : 1;
    if (!m || m->gpu || model->n_batch_points > 0 || model->page_faults < 0 ||
        (ratio == 1 && n == 1))
        return (struct dpro_estimate){0, 0};
    double recorded = faults_at(m, 1);
    if ((double)model->page_faults < recorded / 2) /* another malloc, or other settings of it */
        return (struct dpro_estimate){0, 0};
    double more = n * faults_at(m, ratio / n) - ratio * recorded;
    return (struct dpro_estimate){more * FAULT_NS.value, (more < 0 ? -more : more) * FAULT_NS.std};
}

double model_work_ns(const struct dpro_model *model)
{
    double work = 0;
    for (uint32_t r = 0; r < model->n_ranks; r++)
        work += program_work_ns(&model->programs[model->ranks[r].program]) / model->n_ranks;
    return work;
}

double page_fault_share(const struct dpro_model *model)
{
    if (!model->probes || model->probes->fault_ns <= 0 || model->page_faults <= 0)
        return 0;
    double work = model_work_ns(model);
    double faults = (double)model->page_faults * model->probes->fault_ns;
    return work > 0 ? fmin(faults / work, 1) : 0;
}

struct dpro_estimate with_page_faults(struct dpro_estimate probed, double share, double pages)
{
    return (struct dpro_estimate){(1 - share) * probed.value + share * pages,
                                  hypot((1 - share) * probed.std, share * pages / sqrt(3))};
}
