/* graph/names/span_names.c: the vocabulary of PyTorch, CUDA, HIP, NCCL and gloo in one place. */
#include "graph/names/span_names.h"

#include <ctype.h>
#include <stdbool.h>
#include <string.h>

#include "graph/names/comm_names.h"

static bool starts(const char *name, const char *prefix)
{
    return strncmp(name, prefix, strlen(prefix)) == 0;
}

static bool ends(const char *name, size_t len, const char *suffix)
{
    size_t n = strlen(suffix);
    return len >= n && memcmp(name + len - n, suffix, n) == 0;
}

/* cudaXxx, hipXxx, cuXxx (driver): returns Xxx, NULL for other names. */
static const char *gpu_call(const char *name)
{
    if (starts(name, "cuda"))
        return name + 4;
    if (starts(name, "hip"))
        return name + 3;
    if (starts(name, "cu") && isupper((unsigned char)name[2]))
        return name + 2;
    return NULL;
}

static uint32_t classify_call(const char *call)
{
    if (starts(call, "Memcpy"))
        return NAME_COPY_CALL;
    if (starts(call, "DeviceSynchronize") || starts(call, "CtxSynchronize"))
        return NAME_DEVICE_SYNC;
    if (starts(call, "StreamSynchronize") || starts(call, "EventSynchronize"))
        return NAME_STREAM_SYNC;
    if (starts(call, "StreamWaitEvent"))
        return NAME_STREAM_WAIT;
    if (starts(call, "EventRecord"))
        return NAME_EVENT_RECORD;
    return 0;
}

/* What Horovod's thread does. */
static uint32_t classify_horovod(const char *name)
{
    static const char *const backends[] = {"GLOO_", "NCCL_", "MPI_", "CCL_", "DDL_", "ADASUM_"};
    if (starts(name, "NEGOTIATE_"))
        return NAME_COMM_RUN | NAME_NEGOTIATE;
    if (starts(name, "MEMCPY_IN_") || starts(name, "MEMCPY_OUT_"))
        return NAME_FUSION_COPY;
    if (strcmp(name, "CALLBACKS") == 0)
        return NAME_CALLBACK;
    for (size_t i = 0; i < sizeof backends / sizeof *backends; i++)
        if (starts(name, backends[i]))
            return NAME_COMM_RUN;
    return 0;
}

/* Calls of MXNet's interface and types of its ops. */
static uint32_t classify_mxnet(const char *name, size_t len)
{
    static const char *const waits[] = {"MXNDArrayWaitAll", "MXNDArrayWaitToRead",
                                        "MXNDArrayWaitToWrite", "MXNDArraySyncCopyToCPU",
                                        "MXNDArraySyncCopyFromCPU"};
    for (size_t i = 0; i < sizeof waits / sizeof *waits; i++)
        if (starts(name, waits[i]))
            return NAME_HOST_WAIT;
    if (starts(name, "KVStoreDist") || starts(name, "BytePSPushPull."))
        return NAME_COMM_RUN | NAME_EXCHANGE;
    if (starts(name, "MXKVStorePush") || starts(name, "MXKVStorePull"))
        return NAME_EXCHANGE_CALL;
    if (starts(name, "_backward_") || starts(name, "[_backward_"))
        return NAME_BACKWARD_NODE;
    return ends(name, len, "_update") ? NAME_UPDATE_NODE : 0;
}

uint32_t name_classify(const char *name, size_t len)
{
    uint32_t class = 0;
    if (starts(name, "ProfilerStep#"))
        return NAME_STEP;
    if (starts(name, "Optimizer.step"))
        return NAME_OPTIMIZER_STEP;
    if (starts(name, "Optimizer.zero_grad"))
        return NAME_ZERO_GRAD;
    if (starts(name, "enumerate(DataLoader)"))
        return NAME_LOADER;
    if (starts(name, "autograd::engine::evaluate_function"))
        class |= NAME_BACKWARD;
    else if (ends(name, len, "Backward") || ends(name, len, "Backward0") ||
             ends(name, len, "Backward1") || ends(name, len, "Backward2"))
        class |= NAME_BACKWARD;
    if (ends(name, len, "AccumulateGrad"))
        class |= NAME_ACCUMULATE;
    if (starts(name, "gloo:") || starts(name, "mpi:") || starts(name, "ucc:"))
        class |= NAME_COMM_RUN;
    if (starts(name, "c10d::"))
        class |= NAME_COMM_CALL;
    if (strcmp(name, "record_param_comms") == 0 || starts(name, "nccl:"))
        class |= NAME_COMM_PARAM;
    struct comm_name kernel;
    if (comm_name_of_kernel(name, len, &kernel))
        class |= NAME_COMM_KERNEL;
    if (comm_name_is_scope(name, len))
        class |= NAME_COMM_SCOPE;
    if (starts(name, "torch::distributed::reducer::mul_out") ||
        starts(name, "torch::distributed::reducer::copy_"))
        class |= NAME_BUCKET_IN;
    if (strstr(name, "reducer::copy_bucket_to_grad"))
        class |= NAME_BUCKET_OUT;
    if (starts(name, "Memcpy HtoD") || starts(name, "CopyHostToDevice") ||
        starts(name, "MemcpyH2D"))
        class |= NAME_INPUT_COPY;
    if (strcmp(name, "MemcpyH2D") == 0 || strcmp(name, "MemcpyD2H") == 0 ||
        strcmp(name, "MemcpyD2D") == 0 || strcmp(name, "MemcpyP2P") == 0)
        class |= NAME_COPY_CALL; /* TensorFlow's calls are named for what they do */
    class |= classify_horovod(name);
    if (ends(name, len, ".PUSH") || ends(name, len, ".PUSH_PULL"))
        class |= NAME_PUSH;
    if (ends(name, len, ".PULL"))
        class |= NAME_PULL;
    if (strcmp(name, "FunctionRun") == 0 || strcmp(name, "_SOURCE") == 0)
        class |= NAME_EXECUTOR_CALL;
    class |= classify_mxnet(name, len);
    const char *call = gpu_call(name);
    if (call)
        class |= classify_call(call);
    return class;
}
