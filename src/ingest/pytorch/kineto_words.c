/* Categories by a table in the order of how often they come; names by search, since each is looked
 * at once. */
#include "ingest/pytorch/kineto_words.h"

bool kineto_is_communication(const char *name, size_t len)
{
    return text_n_holds(
        name, len, "allreduce", "all_reduce", "alltoall", "all_to_all", "allgather", "all_gather",
        "reducescatter", "reduce_scatter", "broadcast", "barrier",
        "nccl:", "gloo:", "mpi:", "c10d::", "c10d_functional::", "record_param_comms", "send",
        "recv", "reducer::", "torch::autograd::AccumulateGrad", "rccl:", "ucc:");
}

bool kineto_module(const char *name, size_t *len)
{
    static const char mark[] = "dpro.module:";
    if (!text_n_begins(name, *len, mark))
        return false;
    *len -= sizeof mark - 1;
    return true;
}

/* A number up to the next colon or the end; `none` where there is none. */
static int64_t mark_number(const char **at, const char *end)
{
    int64_t v = 0;
    const char *start = *at;
    for (; *at < end && **at >= '0' && **at <= '9' && v < INT32_MAX / 10; ++*at)
        v = v * 10 + (**at - '0');
    bool whole = *at > start && (*at == end || **at == ':');
    *at = memchr(*at, ':', (size_t)(end - *at)) ?: end;
    *at += *at < end;
    return whole ? v : -1;
}

bool kineto_asked(const char *name, size_t len, struct kineto_asked *asked)
{
    static const char call[] = "dpro.call:", wait[] = "dpro.wait:";
    const char *at = name + sizeof call - 1, *end = name + len;
    asked->waits = text_n_begins(name, len, wait);
    if (!asked->waits && !text_n_begins(name, len, call))
        return false;
    asked->number = (uint32_t)(mark_number(&at, end) + 1);
    asked->peer = (int32_t)mark_number(&at, end);
    asked->group = at;
    return true;
}

bool kineto_posted(const char *name, size_t len)
{
    return text_n_is(name, len, "gloo:send") || text_n_is(name, len, "gloo:recv") ||
           text_n_is(name, len, "gloo:recvAnySource");
}

unsigned kineto_category(const char *cat, size_t len, uint8_t *flow)
{
    static const struct {
        const char *word;
        uint8_t kind, flow;
    } categories[] = {
        {"cpu_op", SPAN_CPU_OP, FLOW_NONE}, /* the most frequent ones first */
        {"kernel", SPAN_KERNEL, FLOW_NONE},
        {"cuda_runtime", SPAN_RUNTIME, FLOW_NONE},
        {"ac2g", SPAN_OTHER, FLOW_LAUNCH},
        {"python_function", SPAN_PYTHON, FLOW_NONE},
        {"fwdbwd", SPAN_OTHER, FLOW_FWDBWD},
        {"user_annotation", SPAN_ANNOTATION, FLOW_NONE},
        {"gpu_memcpy", SPAN_MEMCPY, FLOW_NONE},
        {"gpu_memset", SPAN_MEMSET, FLOW_NONE},
        {"gpu_user_annotation", SPAN_GPU_ANNOTATION, FLOW_NONE},
        {"cuda_sync", SPAN_SYNC, FLOW_NONE},
        {"Operator", SPAN_CPU_OP, FLOW_NONE},
        {"Runtime", SPAN_RUNTIME, FLOW_NONE},
        {"Kernel", SPAN_KERNEL, FLOW_NONE},
        {"Memcpy", SPAN_MEMCPY, FLOW_NONE},
        {"Memset", SPAN_MEMSET, FLOW_NONE},
        {"async", SPAN_OTHER, FLOW_LAUNCH},
        {"async_cpu_to_gpu", SPAN_OTHER, FLOW_LAUNCH},
        {"forward_backward", SPAN_OTHER, FLOW_FWDBWD},
        {"overhead", SPAN_OTHER, FLOW_NONE}, /* what is no work of the job */
        {"Overhead", SPAN_OTHER, FLOW_NONE},
        {"Trace", SPAN_OTHER, FLOW_NONE},
        {"cpu_instant_event", SPAN_OTHER, FLOW_NONE},
        {"external_correlation", SPAN_OTHER, FLOW_NONE},
        {"cuda_event", SPAN_OTHER, FLOW_NONE},
        {"cuda_profiler_range", SPAN_OTHER, FLOW_NONE},
        {"gpu_pm_counter", SPAN_OTHER, FLOW_NONE},
        {"mtia_counters", SPAN_OTHER, FLOW_NONE},
    };
    for (size_t i = 0; i < sizeof categories / sizeof *categories; i++)
        if (text_n_is(cat, len, categories[i].word)) {
            *flow = categories[i].flow;
            return categories[i].kind;
        }
    *flow = FLOW_NONE;
    bool calls = text_n_ends(cat, len, "_runtime") || text_n_ends(cat, len, "_driver");
    return calls ? SPAN_RUNTIME : len == 0 ? KINETO_NO_KIND : KINETO_OTHER_KIND;
}

enum sync_kind kineto_sync_kind(const char *text, size_t len)
{
    return text_n_holds(text, len, "Stream Wait Event")   ? SYNC_STREAM_WAIT_EVENT
           : text_n_holds(text, len, "Event")             ? SYNC_EVENT
           : text_n_holds(text, len, "Stream")            ? SYNC_STREAM
           : text_n_holds(text, len, "Context", "Device") ? SYNC_DEVICE
                                                          : SYNC_NONE;
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
