#include "base/json_members.h"
#include "base/text.h"

uint32_t json_read_text(struct json_reader *r)
{
    const char *text;
    size_t len;
    if (json_peek(r->js) != '"')
        return json_skip(r->js), 0;
    return json_string(r->js, &text, &len) ? strtab_add(r->strings, text, len) : 0;
}

void json_read_member(struct json_reader *r, const struct json_member *members, const char *key,
                      size_t len, void *out)
{
    const struct json_member *member = members;
    while (member->key && !text_n_is(key, len, member->key))
        member++;
    void *at = (char *)out + member->offset;
    const char *text;
    uint64_t size;
    int64_t number;
    bool cut;
    if (!member->key) {
        json_skip(r->js);
        return;
    }
    switch (member->type) {
    case JSON_TEXT:
        *(uint32_t *)at = json_read_text(r);
        break;
    case JSON_RAW:
        if (json_peek(r->js) == '"')
            *(uint32_t *)at = json_read_text(r);
        else if (json_raw(r->js, JSON_TEXT_MAX, &text, &len, &cut))
            *(uint32_t *)at = strtab_add(r->strings, text, len);
        break;
    case JSON_SIZE:
        if (json_read_unsigned(r->js, &size) == JSON_VALUE)
            *(uint64_t *)at = size;
        break;
    case JSON_INT:
        if (json_read_decimal(r->js, 0, &number) == JSON_VALUE)
            *(int64_t *)at = number;
        break;
    case JSON_TRUE:
        *(bool *)at = json_scalar(r->js, &text, &len) && json_is(text, len, "true");
        break;
    case JSON_NUMBER:
        if (json_read_decimal(r->js, 9, &number) == JSON_VALUE)
            *(double *)at = (double)number / 1e9;
        break;
    case JSON_OBJECT:
        json_read_object(r, member->members, out);
        break;
    case JSON_BY_READING:
        member->read(r, out, member->offset);
        break;
    }
}

void json_read_members(struct json_reader *r, const struct json_member *members, void *out)
{
    JSON_KEYS (r->js, true, key, len)
        json_read_member(r, members, key, len, out);
}

bool json_read_object(struct json_reader *r, const struct json_member *members, void *out)
{
    if (!json_open(r->js, '{'))
        return false;
    json_read_members(r, members, out);
    return true;
}
