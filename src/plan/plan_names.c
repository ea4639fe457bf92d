/* What stacks and precisions are called in plans and reports. */
#include <dpro/model.h>

const char *dpro_stack_name(enum dpro_stack stack)
{
    static const char *const names[] = {[DPRO_STACK_DDP] = "ddp",
                                        [DPRO_STACK_HOROVOD] = "horovod",
                                        [DPRO_STACK_TENSORFLOW_RING] = "tensorflow-ring",
                                        [DPRO_STACK_TENSORFLOW_PS] = "tensorflow-ps",
                                        [DPRO_STACK_MXNET_PS] = "mxnet-ps",
                                        [DPRO_STACK_BYTEPS] = "byteps"};
    return names[stack];
}

const char *dpro_compression_name(enum dpro_compression compression)
{
    static const char *const names[] = {"none", "fp16", "bf16"};
    return names[compression];
}
