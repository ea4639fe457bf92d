/* Categories by a table in the order of how often they come; names by search, since each is looked
 * at once. */
#include "ingest/pytorch/kineto_words.h"

#include "ingest/part.h"

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

/* ---- values that have a form of their own ---- */

int64_t kineto_id(const char *text, size_t len)
{
    size_t i = 0;
    int64_t v = 0;
    while (i < len && i < 18 && text[i] >= '0' && text[i] <= '9')
        v = v * 10 + (text[i++] - '0');
    if (i == len)
        return v;
    if (json_decimal(text, len, 0, &v) != JSON_NO_VALUE)
        return v;
    for (i = 0; i < len && (text[i] < '0' || text[i] > '9'); i++)
        ;
    size_t first = i;
    while (i < len && text[i] >= '0' && text[i] <= '9')
        i++;
    if (i > first && json_decimal(text + first, i - first, 0, &v) == JSON_VALUE)
        return first > 0 && text[first - 1] == '-' ? -v : v;
    uint64_t hash = len;
    for (i = 0; i < len; i++)
        hash = map_mix(hash ^ (unsigned char)text[i] ^ 0x100);
    return INT64_MIN / 2 - (int64_t)(hash >> 3);
}

uint32_t kineto_element_type(struct json *js, struct strtab *names, bool *first)
{
    uint32_t type = 0, n = 0;
    const char *text;
    size_t len;
    *first = false;
    JSON_EACH (js) {
        n++;
        if (type || json_peek(js) != '"') {
            json_skip(js);
            continue;
        }
        if (!json_string(js, &text, &len))
            break;
        if (len > 0 && !json_is(text, len, "Scalar") && !json_is(text, len, "TensorList") &&
            !json_is(text, len, "ScalarList") && !json_is(text, len, "GenericList") &&
            !json_is(text, len, "Int") && !json_is(text, len, "String")) {
            type = strtab_add(names, text, len);
            *first = n == 1;
        }
    }
    return type;
}

void kineto_number(void *at, enum argument_type type, const char *text, size_t len)
{
    uint64_t id;
    int64_t v;
    switch (type) {
    case ARGUMENT_U64:
    case ARGUMENT_U32:
        id = json_unsigned(text, len, &id) == JSON_VALUE ? id : 0;
        if (type == ARGUMENT_U64)
            *(uint64_t *)at = id;
        else
            *(uint32_t *)at = (uint32_t)id;
        break;
    case ARGUMENT_I32:
    case ARGUMENT_I32_OR_0:
        if (json_decimal(text, len, 0, &v) != JSON_VALUE || v < INT32_MIN || v > INT32_MAX)
            v = type == ARGUMENT_I32 ? -1 : 0;
        *(int32_t *)at = (int32_t)v;
        break;
    case ARGUMENT_COUNT:
        *(int64_t *)at = json_decimal(text, len, 0, &v) == JSON_VALUE && v >= 0 ? v : -1;
        break;
    default:
        json_decimal(text, len, 0, at);
    }
}

struct distributed_info {
    int64_t rank, world_size;
    uint32_t backend;
};

static void read_groups(struct json_reader *r, void *out UNUSED, size_t offset UNUSED)
{
    JSON_EACH (r->js)
        part_read_group(r->arg, r->js, "pg_name", "pg_desc");
}

void kineto_job(struct json *js, struct trace_part *part)
{
    static const struct json_member members[] = {
        MEMBER(struct distributed_info, "rank", INT, rank),
        MEMBER(struct distributed_info, "world_size", INT, world_size),
        MEMBER(struct distributed_info, "backend", TEXT, backend),
        MEMBER_BY("pg_config", read_groups, 0),
        {NULL}};
    struct json_reader r = {.js = js, .strings = &part->names, .arg = part};
    struct distributed_info info = {.rank = -1, .backend = part->process.backend};
    json_read_object(&r, members, &info);
    part_set_rank(part, info.rank, info.world_size);
    part->process.backend = info.backend;
}

void kineto_devices(struct json *js, struct trace_part *part)
{
    static const struct json_member members[] = {
        MEMBER(struct part_process, "name", TEXT, device_name), {NULL}};
    struct json_reader r = {.js = js, .strings = &part->names};
    JSON_EACH (js) {
        struct part_process of = {.device_name = part->process.device_name};
        json_read_object(&r, members, part->process.device_name ? &of : &part->process);
    }
}
