/* Values in Kineto's traces that have a form of their own. */
#include "ingest/part.h"
#include "ingest/pytorch/kineto_words.h"

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
