/* Snapshots of GPU memory as files: what torch.cuda.memory ._dump_snapshot() pickles, and the same
 * dicts as JSON. */

#include "ingest/pytorch/snapshot.h"

/* ---- pickle ---- */

struct unpickling {
    struct snapshot_part *to;
    struct snapshot_dict dict; /* whose members came last */
    uint32_t n_objects, depth; /* of JSON */
};

static void end_dict(struct unpickling *u)
{
    if (u->dict.has)
        snapshot_add(u->to, &u->dict);
    u->dict.has = 0;
}

static void set_key(struct snapshot_dict *dict, uint32_t key, struct pickle_value value)
{
    if (key == WORD_NONE || key >= N_SNAPSHOT_KEYS)
        return;
    dict->has |= UINT64_C(1) << key;
    dict->values[key] = value;
}

static void set_member(void *arg, uint32_t dict, struct pickle_value key, struct pickle_value value)
{
    struct unpickling *u = arg;
    if (u->dict.object != dict)
        end_dict(u);
    u->dict.object = dict;
    set_key(&u->dict, key.kind == PICKLE_TEXT ? key.id : WORD_NONE, value);
}

static void append_item(void *arg, struct pickle_value list, struct pickle_value item)
{
    struct unpickling *u = arg;
    end_dict(u);
    if (list.kind == PICKLE_LIST && item.kind == PICKLE_DICT)
        snapshot_place(u->to, item.id, list.id);
    if (list.kind == PICKLE_LIST && item.kind == PICKLE_LIST)
        array_add(&u->to->lists, list.id, item.id);
}

static int read_pickle(struct bytes *bytes, struct trace_part *part,
                       struct dpro_error *err __attribute__((unused)))
{
    struct unpickling u = {.to = snapshot_begin(part)};
    struct pickle_reader reader = {.bytes = bytes,
                                   .strings = &part->names,
                                   .arg = &u,
                                   .set = set_member,
                                   .append = append_item};
    struct pickle_value whole;
    u.to->whole = pickle_read(&reader, &whole);
    end_dict(&u);
    part->damage.broken = reader.fail;
    part->damage.offset = reader.fail_offset;
    part->n_events = u.to->entries.n;
    return 0;
}

/* The first keys of a snapshot stand within the first bytes; other pickles are none of ours. */
static bool recognise_pickle(const struct head *head)
{
    enum { FIRST_KEY_WITHIN = 256 };
    size_t n = head->n_bytes < FIRST_KEY_WITHIN ? head->n_bytes : FIRST_KEY_WITHIN;
    return head->piece == HEAD_BYTES && pickle_begins(head->bytes, n) &&
           text_n_holds(head->bytes, n, "segments", "device_traces", "allocator_settings");
}

/* ---- JSON ---- */

static struct pickle_value value_of(const char *scalar, size_t len)
{
    struct pickle_value value = {.kind = PICKLE_NONE};
    int64_t nano;
    if (json_is(scalar, len, "true") || json_is(scalar, len, "false")) {
        value.kind = PICKLE_BOOL;
        value.integer = *scalar == 't';
    } else if (memchr(scalar, '.', len) && json_decimal(scalar, len, 9, &nano) == JSON_VALUE) {
        value.kind = PICKLE_FLOAT;
        value.real = (double)nano / 1e9;
    } else if (json_decimal(scalar, len, 0, &value.integer) == JSON_VALUE) {
        value.kind = PICKLE_INT;
    }
    return value;
}

/* Takes the next value. Objects and lists are told of at their ends, as a pickle's are: blocks, of
 * a segment, come before what the segment itself is. */
static struct pickle_value read_value(struct unpickling *u, struct json *js, struct strtab *names)
{
    enum { DEEPEST = 8 }; /* a list of devices, of entries, an entry, its pool */
    struct pickle_value value = {.kind = PICKLE_NONE};
    const char *scalar;
    size_t n;
    int c = json_peek(js);
    if (u->depth++ == DEEPEST) {
        json_skip(js);
    } else if (c == '"') {
        value.kind = PICKLE_TEXT;
        value.id = json_text_id(js, names);
    } else if (c == '[') {
        value = (struct pickle_value){.kind = PICKLE_LIST, .id = u->n_objects++};
        JSON_EACH (js)
            append_item(u, value, read_value(u, js, names));
    } else if (c == '{') {
        struct snapshot_dict dict = {.object = u->n_objects++};
        value = (struct pickle_value){.kind = PICKLE_DICT, .id = dict.object};
        JSON_KEYS (js, json_open(js, '{'), text, len) {
            uint32_t key = strtab_find(names, text, len);
            if (key < N_SNAPSHOT_KEYS || (key >= WORD_SEGMENTS && key <= WORD_SETTINGS))
                set_key(&dict, key, read_value(u, js, names));
            else
                json_skip(js);
        }
        if (js->fail == JSON_OK)
            snapshot_add(u->to, &dict);
    } else if (json_number(js, &scalar, &n)) {
        value = value_of(scalar, n);
    }
    u->depth--;
    return value;
}

static int read_json(struct json *js, struct trace_part *part, struct dpro_error *err UNUSED)
{
    struct unpickling u = {.to = snapshot_begin(part)};
    json_skip_mark(js);
    if (json_peek(js) == '{')
        read_value(&u, js, &part->names);
    else
        json_open_document(js);
    u.to->whole = js->fail == JSON_OK;
    part->n_events = u.to->entries.n;
    return 0;
}

static bool recognise_json(const struct head *head)
{
    if (head->piece != HEAD_MEMBER)
        return false;
    return strcmp(head->key, "device_traces") == 0 ||
           (strcmp(head->key, "segments") == 0 && head_field(head, "total_size") &&
            head_field(head, "segment_type"));
}

#define ALONE                                                                                      \
    "a snapshot of PyTorch's GPU memory, which has no times of ops; 'dpro replay FOLDER' reads "   \
    "it "                                                                                          \
    "beside the profiler's trace (torch.profiler, export_chrome_trace) of the same run"

const struct reader snapshot_reader = {
    .name = "memory-snapshot",
    .word = "memory snapshot",
    .encoding = "pickle",
    .flags = READER_STRUCTURE | READER_SEPARATE,
    .missing = {.alone = ALONE},
    .recognise = recognise_pickle,
    .read_bytes = read_pickle,
    .describe = snapshot_describe,
    .join_rank = snapshot_join,
};

const struct reader snapshot_json_reader = {
    .name = "memory-snapshot",
    .word = "memory snapshot",
    .encoding = "JSON",
    .flags = READER_STRUCTURE | READER_SEPARATE,
    .missing = {.alone = ALONE},
    .recognise = recognise_json,
    .read_json = read_json,
};
