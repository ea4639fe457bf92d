/* ingest/pytorch/kineto_words.c: categories by their length first, since there is one to tell an
 * event; names by search, since each is looked at once. */
#include "ingest/pytorch/kineto_words.h"

#include <string.h>

#include "base/json.h"

static bool contains(const char *text, size_t len, const char *word)
{
    return memmem(text, len, word, strlen(word)) != NULL;
}

bool kineto_is_communication(const char *name, size_t len)
{
    static const char *const words[] = {"allreduce",
                                        "all_reduce",
                                        "alltoall",
                                        "all_to_all",
                                        "allgather",
                                        "all_gather",
                                        "reducescatter",
                                        "reduce_scatter",
                                        "broadcast",
                                        "barrier",
                                        "nccl:",
                                        "gloo:",
                                        "mpi:",
                                        "c10d::",
                                        "record_param_comms",
                                        "send",
                                        "recv",
                                        "reducer::",
                                        "torch::autograd::AccumulateGrad",
                                        "rccl:",
                                        "ucc:"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (contains(name, len, words[i]))
            return true;
    return false;
}

static bool ends_with(const char *text, size_t len, const char *end)
{
    size_t n = strlen(end);
    return len >= n && memcmp(text + len - n, end, n) == 0;
}

enum span_kind kineto_category(const char *cat, size_t len, uint8_t *flow)
{
    enum span_kind kind = SPAN_OTHER;
    *flow = FLOW_NONE;
    switch (len) {
    case 4:
        if (json_is(cat, len, "ac2g"))
            *flow = FLOW_LAUNCH;
        break;
    case 5:
        if (json_is(cat, len, "async"))
            *flow = FLOW_LAUNCH;
        break;
    case 6:
        if (json_is(cat, len, "cpu_op"))
            kind = SPAN_CPU_OP;
        else if (json_is(cat, len, "kernel") || json_is(cat, len, "Kernel"))
            kind = SPAN_KERNEL;
        else if (json_is(cat, len, "Memcpy"))
            kind = SPAN_MEMCPY;
        else if (json_is(cat, len, "Memset"))
            kind = SPAN_MEMSET;
        else if (json_is(cat, len, "fwdbwd"))
            *flow = FLOW_FWDBWD;
        break;
    case 7:
        if (json_is(cat, len, "Runtime"))
            kind = SPAN_RUNTIME;
        break;
    case 8:
        if (json_is(cat, len, "Operator"))
            kind = SPAN_CPU_OP;
        break;
    case 9:
        if (json_is(cat, len, "cuda_sync"))
            kind = SPAN_SYNC;
        break;
    case 10:
        if (json_is(cat, len, "gpu_memcpy"))
            kind = SPAN_MEMCPY;
        else if (json_is(cat, len, "gpu_memset"))
            kind = SPAN_MEMSET;
        break;
    case 12:
        if (json_is(cat, len, "cuda_runtime"))
            kind = SPAN_RUNTIME;
        break;
    case 15:
        if (json_is(cat, len, "user_annotation"))
            kind = SPAN_ANNOTATION;
        else if (json_is(cat, len, "python_function"))
            kind = SPAN_PYTHON;
        break;
    case 16:
        if (json_is(cat, len, "async_cpu_to_gpu"))
            *flow = FLOW_LAUNCH;
        else if (json_is(cat, len, "forward_backward"))
            *flow = FLOW_FWDBWD;
        break;
    case 19:
        if (json_is(cat, len, "gpu_user_annotation"))
            kind = SPAN_GPU_ANNOTATION;
        break;
    default:
        break;
    }
    if (kind == SPAN_OTHER && *flow == FLOW_NONE &&
        (ends_with(cat, len, "_runtime") || ends_with(cat, len, "_driver")))
        kind = SPAN_RUNTIME;
    return kind;
}

enum sync_kind kineto_sync_kind(const char *text, size_t len)
{
    if (contains(text, len, "Stream Wait Event"))
        return SYNC_STREAM_WAIT_EVENT;
    if (contains(text, len, "Event"))
        return SYNC_EVENT;
    if (contains(text, len, "Stream"))
        return SYNC_STREAM;
    if (contains(text, len, "Context") || contains(text, len, "Device"))
        return SYNC_DEVICE;
    return SYNC_NONE;
}

uint64_t kineto_dtype_bytes(const char *name)
{
    static const struct {
        const char *word;
        uint64_t bytes;
    } table[] = {{"half", 2},    {"bfloat16", 2}, {"float16", 2}, {"double", 8},
                 {"float64", 8}, {"float8", 1},   {"float", 4},   {"long", 8},
                 {"int64", 8},   {"short", 2},    {"int16", 2},   {"int8", 1},
                 {"int", 4},     {"char", 1},     {"byte", 1},    {"bool", 1}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (strcasestr(name, table[i].word))
            return table[i].bytes;
    return 0;
}
