/* What a span's name says, looked up once per distinct name. */
#pragma once

#include "base/base.h"

enum name_class {
    NAME_STEP = 1 << 0,           /* ProfilerStep#N */
    NAME_OPTIMIZER_STEP = 1 << 1, /* Optimizer.step#SGD.step */
    NAME_ZERO_GRAD = 1 << 2,      /* Optimizer.zero_grad#SGD.zero_grad */
    NAME_LOADER = 1 << 3,         /* enumerate(DataLoader)#... */
    NAME_BACKWARD = 1 << 4,       /* autograd::engine::evaluate_function: ..., ...Backward0 */
    NAME_ACCUMULATE = 1 << 5,     /* ... AccumulateGrad */
    NAME_COMM_RUN = 1 << 6, /* gloo:all_reduce: the collective itself, where a CPU thread runs it */
    NAME_COMM_CALL = 1 << 7,    /* c10d::allreduce_: the framework op that asks for one */
    NAME_COMM_PARAM = 1 << 8,   /* record_param_comms, nccl:all_reduce: carry sizes and groups */
    NAME_COMM_KERNEL = 1 << 9,  /* a kernel that communicates, see comm_names.h */
    NAME_COPY_CALL = 1 << 10,   /* cudaMemcpy, cudaMemcpyAsync, hipMemcpy..., cuMemcpy... */
    NAME_STREAM_SYNC = 1 << 11, /* cudaStreamSynchronize, cudaEventSynchronize and kin */
    NAME_DEVICE_SYNC = 1 << 12, /* cudaDeviceSynchronize and kin */
    NAME_STREAM_WAIT = 1 << 13, /* cudaStreamWaitEvent and kin */
    NAME_BUCKET_IN = 1 << 14,   /* DDP copies a gradient into its bucket */
    NAME_BUCKET_OUT = 1 << 15,  /* DDP copies a reduced gradient back */
    NAME_INPUT_COPY = 1 << 16,  /* Memcpy HtoD (device work) */
    NAME_COMM_WAIT = 1 << 17,   /* a thread waits for what it asked for to be communicated */
    NAME_EVENT_RECORD = 1 << 18,
    NAME_EXECUTOR_CALL = 1 << 19, /* FunctionRun: the job calls TensorFlow's executor */
    NAME_NEGOTIATE = 1 << 20,     /* Horovod: waits until all ranks are ready, and for its cycle */
    NAME_FUSION_COPY = 1 << 21,   /* Horovod: MEMCPY_IN_FUSION_BUFFER, ... */
    NAME_CALLBACK = 1 << 22,      /* Horovod: tells the framework that tensors are there */
    NAME_PUSH = 1 << 23,          /* "fc6_weight.PUSH", "fc6_weight.PUSH_PULL" of a timeline */
    NAME_PULL = 1 << 24,
    NAME_EXCHANGE = 1 << 25,  /* KVStoreDist...PushPull: a worker's push and pull of a key */
    NAME_HOST_WAIT = 1 << 26, /* MXNDArrayWaitAll: the program waits for what it asked for */
    NAME_BACKWARD_NODE =
        1 << 27,                /* _backward_Convolution: of a graph; of no thread of autograd's */
    NAME_UPDATE_NODE = 1 << 28, /* sgd_mom_update */
    NAME_EXCHANGE_CALL = 1 << 29, /* MXKVStorePushPullEx: the program asks for an exchange */
    NAME_COMM_SCOPE = 1 << 30,    /* an op or a range that is named for communication, see there */
};

uint32_t name_classify(const char *name, size_t len);
