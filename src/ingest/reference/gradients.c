/* ingest/reference/gradients.c: which tensor each number stands for: gradient_name_list.json, which
 * lists names; gradient_name2ID.json, {"HorovodAllreduce.<name>": number}; and MXNet's
 * metadata.json, whose names have shape and type behind them, "fc6_weight;shape=(4096,
 * 25088);dtype=float32". */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "ingest/part.h"
#include "ingest/pytorch/kineto_words.h"
#include "ingest/reference/reference.h"

enum { MAX_GRADIENTS = 1 << 22 };

struct reader_state {
    struct json *js;
    struct trace_part *part;
    struct reference_part *reference;
    bool no_memory;
};

static uint64_t product(const char *text, const char *end)
{
    uint64_t numel = 1;
    while (text < end && *text != ')') {
        uint64_t dim = 0;
        bool digits = false;
        for (; text < end && *text >= '0' && *text <= '9'; text++, digits = true)
            if (__builtin_mul_overflow(dim, 10, &dim) ||
                __builtin_add_overflow(dim, (uint64_t)(*text - '0'), &dim))
                return 0;
        if (digits && __builtin_mul_overflow(numel, dim, &numel))
            return 0;
        text += !digits;
    }
    return numel;
}

/* The value of one of the fields behind a name; NULL: there is none. */
static const char *field_of(const char *text, size_t len, const char *field, const char **end)
{
    const char *at = memmem(text, len, field, strlen(field));
    if (!at)
        return NULL;
    at += strlen(field);
    *end = memchr(at, ';', len - (size_t)(at - text));
    if (!*end)
        *end = text + len;
    return at;
}

static void put(struct reader_state *r, uint64_t number, const char *text, size_t len)
{
    static const char prefix[] = "HorovodAllreduce.";
    struct tensor_shape fresh = {.name = 0};
    const char *end, *shape = field_of(text, len, ";shape=(", &end);
    if (shape)
        fresh.numel = product(shape, end);
    const char *dtype = field_of(text, len, ";dtype=", &end);
    if (dtype) {
        char word[24] = "";
        size_t n = (size_t)(end - dtype) < sizeof word ? (size_t)(end - dtype) : sizeof word - 1;
        memcpy(word, dtype, n);
        fresh.item_bytes = (uint32_t)kineto_dtype_bytes(word);
    }
    const char *semicolon = memchr(text, ';', len);
    if (semicolon)
        len = (size_t)(semicolon - text);
    if (len >= sizeof prefix && memcmp(text, prefix, sizeof prefix - 1) == 0) {
        text += sizeof prefix - 1;
        len -= sizeof prefix - 1;
    }
    if (number >= MAX_GRADIENTS) {
        r->part->losses.n_broken++;
        return;
    }
    fresh.name = part_intern(r->part, text, len, &r->no_memory);
    struct tensor_shape none = {.name = 0};
    while (!r->no_memory && r->reference->gradients.n <= number)
        r->no_memory = array_push(&r->reference->gradients, none) < 0;
    if (!r->no_memory)
        r->reference->gradients.at[number] = fresh;
    r->part->n_events++;
}

static void read_list(struct reader_state *r)
{
    const char *text;
    size_t len;
    r->js->p++;
    for (uint64_t n = 0; !r->no_memory && json_array_next(r->js); n++) {
        if (json_peek(r->js) != '"') {
            r->part->losses.n_broken++;
            json_skip(r->js);
        } else if (json_string(r->js, &text, &len)) {
            put(r, n, text, len);
        }
    }
}

int gradients_read(struct json *js, struct trace_part *part, struct dpro_error *err)
{
    struct reader_state r = {.js = js, .part = part, .reference = reference_part_of(part)};
    const char *key;
    size_t len;
    r.no_memory = !r.reference || strtab_add(&part->names, "", 0) == STRTAB_FULL;
    bool open = json_open_document(js);
    while (!r.no_memory && open && json_object_next(js, &key, &len)) {
        char name[1024];
        uint64_t number;
        int value = json_peek(js);
        if (json_is(key, len, "gradient_name_list") && value == '[') {
            read_list(&r);
        } else if (value >= '0' && value <= '9' && len < sizeof name &&
                   !json_is(key, len, "opt_aggregate_num")) {
            memcpy(name, key, len); /* the key is gone once the value has been read */
            if (json_read_unsigned(js, &number) == JSON_VALUE)
                put(&r, number, name, len);
        } else {
            json_skip(js);
        }
    }
    return r.no_memory ? dpro_error_nomem(err) : 0;
}
