/* The baselines: what frameworks do by default, and what a person would try. */
#include "cost/program/buckets.h"
#include "optimize/search.h"

#define MIB                  (UINT64_C(1) << 20)
#define HOROVOD_CYCLE_NS     5000000
#define HOROVOD_FUSION_BYTES (64 * MIB)
enum { BYTEPS_PARTITION = 4096000 };

enum { EACH = 2, HOROVOD, BYTEPS };

const struct default_strategy default_strategies[N_DEFAULTS] = {
    {"ddp", "PyTorch DDP's default: 25 MiB, the first bucket 1 MiB", MIB, 25 * MIB},
    {"one-bucket", "all gradients at once", UINT64_MAX, UINT64_MAX},
    [EACH] = {"bucket-per-tensor", "each gradient by itself", 0, 0},
    [HOROVOD] = {"horovod", "Horovod's default: what got ready in 5 ms, up to 64 MiB", 0, 0},
    [BYTEPS] = {"byteps", "BytePS's default: 4 MB parts, by need", 0, 0},
    {"cap-1", "bucket_cap_mb 1", MIB, MIB},
    {"cap-2", "bucket_cap_mb 2", 2 * MIB, 2 * MIB},
    {"cap-5", "bucket_cap_mb 5", 5 * MIB, 5 * MIB},
    {"cap-10", "bucket_cap_mb 10", 10 * MIB, 10 * MIB},
    {"cap-25", "bucket_cap_mb 25", 25 * MIB, 25 * MIB},
    {"cap-50", "bucket_cap_mb 50", 50 * MIB, 50 * MIB},
    {"cap-100", "bucket_cap_mb 100", 100 * MIB, 100 * MIB},
};

/* Each cycle takes what has become ready since the one before. */
static void by_cycles(const struct dpro_model *model, const struct computation *work,
                      struct dpro_strategy *s)
{
    uint64_t bytes = 0;
    double cycle = -1, ready = 0;
    s->n_buckets = 0;
    for (uint32_t t = 0; t < model->n_tensors; t++) {
        double now = computation_ready_ns(work, t);
        ready = now > ready ? now : ready;
        double this_cycle = (double)(int64_t)(ready / HOROVOD_CYCLE_NS);
        uint64_t size = model->tensors[t].size_bytes;
        if (s->n_buckets == 0 || this_cycle > cycle || bytes + size > HOROVOD_FUSION_BYTES) {
            s->buckets[s->n_buckets++] =
                (struct strategy_bucket){.first = t, .n = 0, .partitions = 1};
            bytes = 0;
        }
        s->buckets[s->n_buckets - 1].n++;
        bytes += size;
        cycle = this_cycle;
    }
}

bool default_is_within(const struct model_capabilities *capabilities, uint32_t index)
{
    if (index == BYTEPS)
        return capabilities->stack == DPRO_STACK_BYTEPS ||
               (capabilities->parts == PARTS_FREE && capabilities->priorities);
    return capabilities->together || index == EACH;
}

void default_make(const struct dpro_model *model, const struct computation *work, uint32_t index,
                  struct dpro_strategy *strategy)
{
    const struct default_strategy *d = &default_strategies[index];
    buckets_by_cap(model, d->first_bytes, d->cap_bytes, strategy);
    strategy->cycle_ns = model->net.gate.cycle_ns;
    if (index == HOROVOD)
        by_cycles(model, work, strategy);
    if (index == HOROVOD && strategy->cycle_ns > 0) {
        strategy->fuses = true;
        strategy->cycle_ns = HOROVOD_CYCLE_NS;
        strategy->fusion_bytes = HOROVOD_FUSION_BYTES;
    }
    if (index == BYTEPS) {
        buckets_partition(model, BYTEPS_PARTITION, strategy);
        for (uint32_t b = 0; model->capabilities.priorities && b < strategy->n_buckets; b++)
            strategy->buckets[b].priority = (int32_t)b;
    }
}
