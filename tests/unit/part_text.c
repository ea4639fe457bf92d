#include "part_text.h"

#include "case.h"
#include "ingest/readers.h"

enum json_fail last_fail;

static void destroy(struct trace_part *part)
{
    part_fini(part);
    free(part);
}

void keep_part(const struct trace_part *part)
{
    struct trace_part *kept = malloc(sizeof *kept);
    assert_non_null(kept);
    *kept = *part;
    KEEP(kept, destroy);
}

struct trace_part part_of_text(const struct reader *reader, const char *text, size_t chunk)
{
    struct input in;
    struct json js;
    struct bytes bytes;
    struct dpro_error err;
    struct trace_part part = {0};
    text = json_text(text);
    input_open_memory(&in, text, strlen(text), "text");
    if (reader->read_json) {
        json_init(&js, &in, chunk, &err);
        assert_int_equal(reader->read_json(&js, &part, &err), 0);
        last_fail = js.fail;
        json_fini(&js);
    } else {
        bytes_init(&bytes, &in, chunk, PART_RECORD_MAX, &err);
        assert_int_equal(reader->read_bytes(&bytes, &part, &err), 0);
        bytes_fini(&bytes);
    }
    input_close(&in);
    keep_part(&part);
    return part;
}
