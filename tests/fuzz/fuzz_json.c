/* Fuzz target: the scanner alone, walking into, skipping or lending values as the text itself
 * tells, and telling formats apart. */
#include "fuzz.h"
#include "ingest/readers.h"

static uint64_t walk(struct json *js, int depth, uint64_t h)
{
    const char *text;
    size_t len;
    bool cut;
    int64_t value = 0;
    uint64_t id = 0;
    int c = json_peek(js);
    if (depth > 64) {
        json_skip(js);
    } else if (c == '{') {
        js->p++;
        while (json_object_next(js, &text, &len)) {
            h = fuzz_hash(h, text, len);
            if (len % 4 == 1)
                json_skip(js);
            else if (len % 4 == 2 && json_raw(js, JSON_TEXT_MAX, &text, &len, &cut))
                h = fuzz_hash(h, text, len) + cut;
            else
                h = walk(js, depth + 1, h);
        }
    } else if (c == '[') {
        js->p++;
        while (json_array_next(js))
            h = walk(js, depth + 1, h);
    } else if (json_scalar(js, &text, &len)) {
        h = fuzz_hash(h, text, len);
        h += (uint64_t)json_decimal(text, len, 3, &value) + (uint64_t)value;
        h += (uint64_t)json_unsigned(text, len, &id) + id;
    }
    return h;
}

static uint64_t scan(const uint8_t *data, size_t size, size_t chunk)
{
    struct input in;
    struct json js;
    struct dpro_error err;
    const char *other;
    uint64_t h = 0;
    input_open_memory(&in, data, size, "fuzz");
    json_init(&js, &in, chunk, &err);
    h = walk(&js, 0, 1);
    h = h * 31 + js.fail;
    json_fini(&js);
    input_close(&in);
    input_open_memory(&in, data, size, "fuzz");
    /* never in pieces: a format is told by how a file begins, so far as it has been read */
    json_init(&js, &in, 0, &err);
    h = h * 31 + (uint64_t)(uintptr_t)reader_recognise(&readers, &js, &other);
    json_fini(&js);
    input_close(&in);
    return h;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1)
        return 0;
    if (scan(data + 1, size - 1, 0) != scan(data + 1, size - 1, data[0] % 97 + 1))
        abort();
    return 0;
}
