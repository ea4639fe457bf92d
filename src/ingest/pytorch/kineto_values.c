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

uint64_t kineto_dims(struct json *js, bool *blank)
{
    uint64_t numel = 0, product = 1;
    int depth = 0, done_at = 0; /* 1: the first tensor has been seen */
    bool numbers = false, opened = false, first = true;
    *blank = false;
    if (json_peek(js) != '[')
        return json_skip(js), 0;
    do {
        int c = json_peek(js);
        int64_t v;
        if (c == '[') {
            js->p++;
            if (++depth > 8) {
                json_stop(js, JSON_DEEP);
                return 0;
            }
            numbers = false;
            opened = true;
            product = 1;
        } else if (c == ']') {
            js->p++;
            /* in a list of tensors, [] can only be one without dimensions, which has one element */
            numbers = numbers || (opened && depth >= 3);
            *blank = *blank || (first && opened && !numbers && depth == 2);
            first = first && depth > 2;
            opened = false;
            depth--;
            if (numbers && !done_at && __builtin_add_overflow(numel, product, &numel))
                numel = UINT64_MAX;
            numbers = false;
            if (depth == 1 && numel > 0)
                done_at = 1;
        } else if (c == ',') {
            js->p++;
        } else if (c < 0 || c == '}' || c == ':') {
            json_stop(js, c < 0 ? JSON_ENDED : JSON_BAD);
        } else if (json_read_decimal(js, 0, &v) != JSON_NO_VALUE && depth >= 2) {
            numbers = true;
            opened = false;
            if (v < 0 || __builtin_mul_overflow(product, (uint64_t)v, &product))
                product = 0;
        }
    } while (depth > 0 && js->fail == JSON_OK);
    return numel;
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
