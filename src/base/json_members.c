/* Reads JSON by tables of members. */
#include "base/json_members.h"

/* ---- what is refused ---- */

void json_refuse(struct json_reader *r, const char *format, ...)
{
    char place[256] = "", text[256];
    size_t n = 0;
    va_list args;
    if (r->js->fail != JSON_OK)
        return;
    for (unsigned i = 0; i <= MIN(r->n_places, JSON_PLACES - 1) && n < sizeof place; i++) {
        const struct json_place *at = &r->places[i];
        if (at->key)
            n += (size_t)snprintf(place + n, sizeof place - n, "%s%s", n > 0 ? "." : "", at->key);
        if (at->n > 0 && n < sizeof place)
            n += (size_t)snprintf(place + n, sizeof place - n, "[%zu]", at->n - 1);
    }
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (n > 0)
        dpro_error_set(&r->why, DPRO_EFORMAT, "'%s' %s", place, text);
    else
        dpro_error_set(&r->why, DPRO_EFORMAT, "%s", text);
    json_stop(r->js, JSON_BAD);
}

static void members_enter(struct json_reader *r, const char *key)
{
    if (++r->n_places < JSON_PLACES)
        r->places[r->n_places] = (struct json_place){key, 0};
}

static void members_leave(struct json_reader *r)
{
    r->n_places--;
}

static void refuse_key(struct json_reader *r, const char *key, const char *why)
{
    members_enter(r, key);
    json_refuse(r, "%s", why);
    members_leave(r);
}

/* The next value, unless the text ends before it. */
static void refuse_value(struct json_reader *r, const char *what)
{
    if (json_peek(r->js) < 0)
        json_stop(r->js, JSON_ENDED);
    json_refuse(r, "has to be %s", what);
}

bool json_must_open(struct json_reader *r)
{
    if (json_peek(r->js) != '[')
        return refuse_value(r, "a list"), false;
    members_enter(r, NULL);
    return json_open(r->js, '[');
}

bool json_next_item(struct json_reader *r)
{
    if (!json_array_next(r->js))
        return members_leave(r), false;
    if (r->n_places < JSON_PLACES)
        r->places[r->n_places].n++;
    return true;
}

/* ---- values ---- */

uint32_t json_text_id(struct json *js, struct strtab *strings)
{
    const char *text;
    size_t len;
    if (json_peek(js) != '"')
        return json_skip(js), 0;
    return json_string(js, &text, &len) ? strtab_add(strings, text, len) : 0;
}

void json_read_names(struct json_reader *r, void *list)
{
    ARRAY(uint32_t) *names = list;
    bool is_list = json_must_open(r);
    while (is_list && json_next_item(r)) {
        if (json_peek(r->js) != '"')
            refuse_value(r, "a name in quotes");
        else
            array_push(names, json_read_text(r));
    }
}

/* A number, not in quotes, within the member's bounds; else refused. */
static bool read_within(struct json_reader *r, const struct json_member *member, double *value)
{
    const char *text;
    size_t len;
    int64_t scaled;
    bool whole = member->type == JSON_WHOLE;
    int c = json_peek(r->js), decimals = whole                ? 3
                                         : member->most > 1e9 ? 0
                                         : member->most > 1e3 ? 3
                                                              : 9;
    if ((c == '-' || (c >= '0' && c <= '9')) && json_scalar(r->js, &text, &len) &&
        json_decimal(text, len, decimals, &scaled) == JSON_VALUE) {
        *value = (double)scaled / (decimals == 9 ? 1e9 : decimals == 3 ? 1e3 : 1);
        if (*value >= member->least && *value <= member->most && (!whole || scaled % 1000 == 0))
            return true;
    }
    char what[80];
    snprintf(what, sizeof what, "a %snumber from %.10g to %.10g", whole ? "whole " : "",
             member->least, member->most);
    refuse_value(r, what);
    return false;
}

static void read_value(struct json_reader *r, const struct json_member *member, void *out)
{
    void *at = (char *)out + member->offset;
    const char *text;
    size_t len;
    uint64_t size;
    int64_t number;
    double within;
    bool cut;
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
    case JSON_MS:
        if (json_read_decimal(r->js, 6, &number) == JSON_VALUE && number >= 0)
            *(int64_t *)at = number;
        break;
    case JSON_WHOLE:
        if (read_within(r, member, &within))
            *(uint32_t *)at = (uint32_t)(int64_t)within;
        break;
    case JSON_WITHIN:
        if (read_within(r, member, &within))
            *(double *)at = within;
        break;
    case JSON_NAMES:
        json_read_names(r, at);
        break;
    case JSON_OBJECT:
        if (member->must && json_peek(r->js) != '{')
            refuse_value(r, "an object");
        else
            json_read_object(r, member->members, at);
        break;
    case JSON_ANY:
        json_skip(r->js);
        break;
    case JSON_BY_READING:
        member->read(r, out, member->offset);
        break;
    }
}

/* ---- objects ---- */

/* The row of a key, or the one that ends the table. */
static const struct json_member *find_row(const struct json_member *members, const char *key,
                                          size_t len)
{
    while (members->key && !text_n_is(key, len, members->key))
        members++;
    return members;
}

static void read_row(struct json_reader *r, const struct json_member *row, void *out)
{
    members_enter(r, row->key);
    read_value(r, row, out);
    members_leave(r);
}

void json_read_member(struct json_reader *r, const struct json_member *members, const char *key,
                      size_t len, void *out)
{
    const struct json_member *row = find_row(members, key, len);
    if (row->key)
        read_row(r, row, out);
    else
        json_skip(r->js);
}

void json_read_members(struct json_reader *r, const struct json_member *members, void *out)
{
    uint64_t seen = 0;
    JSON_KEYS (r->js, true, key, len) {
        const struct json_member *row = find_row(members, key, len);
        uint64_t bit = UINT64_C(1) << (row - members);
        char other[100];
        if (!row->key && row->others) {
            snprintf(other, sizeof other, "%.*s", (int)MIN(len, sizeof other), key);
            refuse_key(r, other, row->others);
        } else if (!row->key) {
            json_skip(r->js);
        } else if (row->once && (seen & bit)) {
            refuse_key(r, row->key, "is there twice");
        } else {
            read_row(r, row, out);
        }
        seen |= bit;
    }
    for (const struct json_member *row = members; row->key && r->js->fail == JSON_OK; row++)
        if (row->needed && !(seen >> (row - members) & 1))
            refuse_key(r, row->key, "is missing");
}

bool json_read_object(struct json_reader *r, const struct json_member *members, void *out)
{
    if (!json_open(r->js, '{'))
        return false;
    json_read_members(r, members, out);
    return true;
}

bool json_read_tuple(struct json_reader *r, const struct json_member *members, void *out)
{
    const struct json_member *row = members;
    if (!json_open(r->js, '['))
        return false;
    while (json_array_next(r->js)) {
        if (row->key)
            read_value(r, row++, out);
        else
            json_skip(r->js);
    }
    return true;
}

/* ---- documents ---- */

int json_reader_result(const struct json_reader *r, const char *why)
{
    return r->why.code
               ? dpro_error_set(r->js->err, r->why.code, "%s: %s", r->js->in->path, r->why.text)
               : json_result(r->js, why);
}

int json_read_file(struct json_reader *r, const char *path, const struct json_member *members,
                   void *out, const char *why, struct dpro_error *err)
{
    struct json js;
    struct input in;
    int rc = input_open(&in, path, err);
    if (rc < 0)
        return rc;
    json_init(&js, &in, 0, err);
    r->js = &js;
    if (json_open_document(&js))
        json_read_members(r, members, out);
    rc = json_reader_result(r, why);
    json_fini(&js);
    input_close(&in);
    return rc;
}
