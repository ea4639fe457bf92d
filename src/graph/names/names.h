/* What names of ops, kernels, calls and ranges say. */
#pragma once

#include "base/base.h"

#include <dpro/graph.h>

/* ---- span_names.c: looked up once per distinct name ---- */

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
    NAME_COMM_KERNEL = 1 << 9,  /* a kernel that communicates, see below */
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

/* ---- collective_kinds.c: the kind of a collective, by what runs it ---- */

/* Whether a type of node is a collective that its thread runs: TensorFlow's CollectiveReduceV2. */
bool name_collective_type(const char *type);

/* The name in lower case, without '_' and '-', as much as fits. Returns how long it is. */
size_t name_plain(const char *name, size_t len, char *plain, size_t size);

/* Whether a kind is one of these: collective_is_one(kind, DPRO_SEND, DPRO_RECV). */
#define collective_is_one(kind, ...)                                                               \
    collective_is_in((kind), (const uint8_t[]){__VA_ARGS__, DPRO_NO_COLLECTIVE})
static inline bool collective_is_in(uint8_t kind, const uint8_t *kinds)
{
    while (*kinds && *kinds != kind)
        kinds++;
    return *kinds != DPRO_NO_COLLECTIVE;
}

/* The kind of collective that a kernel, annotation or framework op stands for: DPRO_SEND_RECV for
 * NCCL's common point-to-point kernel, DPRO_NO_COLLECTIVE when the name is none. */
enum dpro_collective_kind name_collective(const char *name);

/* ---- comm_names.c: which kernels, calls and ranges are communication ---- */

/* Whether a name begins with the pattern; "=word": is it; "*word": holds it; "$word": ends so. */
bool name_fits(const char *name, size_t len, const char *pattern);

/* What is known of when a kernel that communicates can end. */
enum comm_end {
    COMM_ENDS_TOGETHER, /* not before every member has begun */
    COMM_ENDS_UNSURE,   /* as above if the recorded times agree */
    COMM_ENDS_ALONE,    /* one side of a transfer: the k-th on one rank need not meet the k-th on
                           another */
};

struct comm_name {
    enum dpro_collective_kind kind; /* DPRO_NO_COLLECTIVE: not in the name */
    enum comm_end end;
};

/* Looks up a kernel's name, as CUDA and HIP tools write it, demangled or not. False: the kernel is
 * not known to communicate. */
bool comm_name_of_kernel(const char *name, size_t len, struct comm_name *found);

/* Whether a CPU op or a user's range is named for a collective. A kernel launched right inside such
 * a one communicates, whatever its own name. */
bool comm_name_is_scope(const char *name, size_t len);

/* ---- gpu_calls.c ---- */

/* What a CPU call of a GPU's runtime is for. */
enum call_class {
    CALL_LAUNCH, /* also if not known */
    CALL_SYNC,
    CALL_MEMORY, /* allocates or frees */
    CALL_COPY,
    CALL_LOAD, /* of code onto the GPU, once */
    N_CALL_CLASSES,
};
/* What follows a runtime's prefix: cuda, hip, cu (CUDA's driver), aclrt, musa, ...; NULL: it has
 * none. */
const char *call_without_prefix(const char *name);
enum call_class call_classify(const char *name);
const char *call_class_words(enum call_class class); /* "waiting for the GPU"; static */

/* ---- slow_names.c: what makes some iterations slow ---- */

struct slow_kind {
    const char *parts[6];      /* of names, any of them */
    const char *without;       /* and not this one; NULL: whatever else */
    const char *whole;         /* or a whole name; NULL: none */
    int call;                  /* or the class of a GPU's runtime calls; 0: none */
    bool is_cause;             /* of lost time, also in iterations that are as long as most */
    const char *what, *advice; /* "DataLoader" */
};
#define SLOW_KERNELS "kernels that take longer"
/* What a name stands for; NULL: no known kind. */
const struct slow_kind *slow_kind_of(const char *name);
bool name_compiles(const char *name);

/* What a tensor is called that stands for all gradients of a bucket, as they were not recorded. */
#define WHOLE_BUCKET "bucket "

/* Whether it is one of PyTorch's ops that write into many tensors at once; a copy, as sharded
 * parameters are gathered by, is no update. */
static inline bool name_writes_many(const char *name)
{
    return (text_begins(name, "aten::_foreach_") || text_begins(name, "aten::_fused_")) &&
           text_ends(name, "_") && !text_ends(name, "_copy_");
}

/* Whether it is one of those of which an optimizer is written by hand, or an average of parameters,
 * into its input or into a new tensor. */
static inline bool name_updates(const char *name, bool *into_input)
{
    *into_input = text_ends(name, "_");
    return text_is_one(name, "aten::add_", "aten::sub_", "aten::mul_", "aten::div_",
                       "aten::addcmul_", "aten::addcdiv_", "aten::lerp_", "aten::add", "aten::sub",
                       "aten::mul", "aten::div", "aten::addcmul", "aten::addcdiv", "aten::lerp");
}

/* How many such ops into new tensors update what as many gradients are of; where none accumulated,
 * as a function returned them, what so many functions of autograd made. */
static inline size_t name_updates_needed(size_t n_gradients, size_t n_functions)
{
    return n_gradients > 0 ? n_gradients : MAX(4, n_functions / 8);
}
