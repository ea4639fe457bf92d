/* The vocabulary of PyTorch, CUDA, HIP, NCCL and gloo. */

#include "graph/names/names.h"

/* A pattern is how a name begins; "=word": is it; "*word": holds it; "$word": ends so. */
struct row {
    uint32_t class;
    const char *patterns[6];
};

/* These say all. */
static const struct row marks[] = {
    {NAME_STEP, {"ProfilerStep#"}},
    {NAME_OPTIMIZER_STEP, {"Optimizer.step"}},
    {NAME_ZERO_GRAD, {"Optimizer.zero_grad"}},
    {NAME_LOADER, {"enumerate(DataLoader)"}},
    {0},
};

static const struct row names[] = {
    /* PyTorch */
    {NAME_BACKWARD, {"autograd::engine::evaluate_function", "$Backward", "$Backward0"}},
    {NAME_BACKWARD, {"$Backward1", "$Backward2"}},
    {NAME_ACCUMULATE, {"$AccumulateGrad"}},
    {NAME_COMM_RUN, {"gloo:", "mpi:", "ucc:"}},
    {NAME_COMM_CALL, {"c10d::"}},
    {NAME_COMM_PARAM, {"=record_param_comms", "nccl:", "=dpro.call"}},
    {NAME_COMM_WAIT,
     {"=dpro.wait", "_c10d_functional::wait_tensor", "c10d_functional::wait_tensor"}},
    {NAME_BUCKET_IN,
     {"torch::distributed::reducer::mul_out", "torch::distributed::reducer::copy_"}},
    {NAME_BUCKET_OUT, {"*reducer::copy_bucket_to_grad"}},
    /* device work, and TensorFlow's calls, which are named for what they do */
    {NAME_INPUT_COPY, {"Memcpy HtoD", "CopyHostToDevice", "MemcpyH2D"}},
    {NAME_COPY_CALL, {"=MemcpyH2D", "=MemcpyD2H", "=MemcpyD2D", "=MemcpyP2P"}},
    {NAME_EXECUTOR_CALL, {"=FunctionRun", "=_SOURCE"}},
    /* what Horovod's thread does; BytePS's timeline */
    {NAME_COMM_RUN | NAME_NEGOTIATE, {"NEGOTIATE_"}},
    {NAME_COMM_RUN, {"GLOO_", "NCCL_", "MPI_", "CCL_", "DDL_", "ADASUM_"}},
    {NAME_FUSION_COPY, {"MEMCPY_IN_", "MEMCPY_OUT_"}},
    {NAME_CALLBACK, {"=CALLBACKS"}},
    {NAME_PUSH, {"$.PUSH", "$.PUSH_PULL"}},
    {NAME_PULL, {"$.PULL"}},
    /* calls of MXNet's interface, and types of its ops */
    {NAME_HOST_WAIT, {"MXNDArrayWaitAll", "MXNDArrayWaitToRead", "MXNDArrayWaitToWrite"}},
    {NAME_HOST_WAIT, {"MXNDArraySyncCopyToCPU", "MXNDArraySyncCopyFromCPU"}},
    {NAME_COMM_RUN | NAME_EXCHANGE, {"KVStoreDist", "BytePSPushPull."}},
    {NAME_EXCHANGE_CALL, {"MXKVStorePush", "MXKVStorePull"}},
    {NAME_BACKWARD_NODE, {"_backward_", "[_backward_"}},
    {NAME_BACKWARD_NODE, {"gradient_tape/", "*/gradient_tape/", "gradients/", "*/gradients/"}},
    {NAME_UPDATE_NODE, {"$_update"}},
    /* a stage timeline's */
    {NAME_BACKWARD_NODE, {"=backward-compute"}},
    {NAME_UPDATE_NODE, {"=optimizer"}},
    {0},
};

/* cudaXxx, hipXxx, cuXxx (driver), aclrtXxx, ... */
static const struct row calls[] = {
    {NAME_COPY_CALL, {"Memcpy"}},
    {NAME_DEVICE_SYNC, {"DeviceSynchronize", "CtxSynchronize", "SynchronizeDevice"}},
    {NAME_STREAM_SYNC, {"StreamSynchronize", "EventSynchronize"}},
    {NAME_STREAM_SYNC, {"SynchronizeStream", "SynchronizeEvent"}},
    {NAME_STREAM_WAIT, {"StreamWaitEvent"}},
    {NAME_EVENT_RECORD, {"EventRecord", "RecordEvent"}},
    {0},
};

static uint32_t classes_of(const struct row *row, const char *name, size_t len)
{
    uint32_t classes = 0;
    for (; row->class; row++)
        for (size_t i = 0; i < 6 && row->patterns[i]; i++)
            if (name_fits(name, len, row->patterns[i]))
                classes |= row->class;
    return classes;
}

uint32_t name_classify(const char *name, size_t len)
{
    struct comm_name kernel;
    uint32_t class = classes_of(marks, name, len);
    if (class)
        return class;
    class = classes_of(names, name, len);
    const char *call = call_without_prefix(name);
    if (call)
        class |= classes_of(calls, call, len - (size_t)(call - name));
    if (comm_name_of_kernel(name, len, &kernel))
        class |= NAME_COMM_KERNEL;
    if (comm_name_is_scope(name, len))
        class |= NAME_COMM_SCOPE;
    return class;
}
