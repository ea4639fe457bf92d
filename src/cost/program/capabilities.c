/* Which changes of communication each stack can be given: a row a stack. */
#include "cost/program/model.h"

enum {
    NONE = 1u << DPRO_COMPRESSION_NONE,
    FP16 = 1u << DPRO_COMPRESSION_FP16,
    BF16 = 1u << DPRO_COMPRESSION_BF16
};

static const struct model_capabilities stacks[] = {
    [DPRO_STACK_DDP] = {.text = "PyTorch's DDP can be given any buckets, in parts, in any order; "
                                "fp16 and bf16",
                        .together = true,
                        .parts = PARTS_FREE,
                        .priorities = true,
                        .reorders = true,
                        .compressions = NONE | FP16 | BF16},
    [DPRO_STACK_HOROVOD] = {.text = "Horovod can be given any groups of gradients, each of which "
                                    "goes when it is ready, or another cycle time and threshold; "
                                    "fp16",
                            .together = true,
                            .compressions = NONE | FP16},
    [DPRO_STACK_TENSORFLOW_RING] = {.text = "TensorFlow's collectives can be given any packs of "
                                            "gradients, one after the other in any order",
                                    .together = true,
                                    .reorders = true,
                                    .compressions = NONE},
    [DPRO_STACK_TENSORFLOW_PS] = {.text = "TensorFlow's parameter servers take each gradient by "
                                          "itself; on which of them each variable is can be chosen",
                                  .places = true,
                                  .compressions = NONE},
    [DPRO_STACK_MXNET_PS] = {.text = "MXNet's key-value store takes each gradient by itself; from "
                                     "which size on one is parted over all servers can be set",
                             .parts = PARTS_OVER_SERVERS,
                             .compressions = NONE},
    [DPRO_STACK_BYTEPS] = {.text = "BytePS takes each gradient by itself, in parts of one size for "
                                   "all (BYTEPS_PARTITION_BYTES), by priorities of its own; fp16",
                           .parts = PARTS_OF_ONE_SIZE,
                           .compressions = NONE | FP16},
};

struct model_capabilities model_capabilities(enum dpro_stack stack)
{
    struct model_capabilities capabilities = stacks[stack];
    capabilities.stack = stack;
    return capabilities;
}

bool model_casts(const struct dpro_model *model)
{
    bool casts = false;
    for (uint32_t t = 0; t < model->n_tensors; t++)
        casts |= model->tensors[t].held_bytes > 0;
    return casts;
}

bool capabilities_allow(const struct model_capabilities *capabilities,
                        const struct dpro_strategy *strategy)
{
    bool allowed = (capabilities->compressions & 1u << strategy->compression) != 0;
    EACH_OF (const struct strategy_bucket, bucket, strategy->buckets, strategy->n_buckets) {
        allowed &= bucket->n == 1 || capabilities->together;
        allowed &= bucket->partitions == 1 || capabilities->parts != PARTS_NONE;
        allowed &= bucket->priority == 0 || capabilities->priorities;
    }
    return allowed;
}
