/* Snapshots of GPU memory as files: what torch.cuda.memory ._dump_snapshot() pickles, and the same
 * dicts as JSON. */

#include "ingest/pytorch/snapshot.h"

/* ---- pickle ---- */

struct unpickling {
    struct snapshot_part *to;
    struct snapshot_dict dict; /* whose members came last */
    struct map private_pools;  /* tuples that name a pool other than the default one: (0, 1) */
};

static void end_dict(struct unpickling *u)
{
    if (u->dict.has)
        snapshot_add(u->to, &u->dict);
    u->dict.has = 0;
    u->dict.private_pool = false;
}

static void set_member(void *arg, uint32_t dict, struct pickle_value key, struct pickle_value value)
{
    struct unpickling *u = arg;
    if (u->dict.object != dict)
        end_dict(u);
    u->dict.object = dict;
    if (key.kind != PICKLE_TEXT || key.id == WORD_NONE || key.id >= N_SNAPSHOT_KEYS)
        return;
    u->dict.has |= UINT64_C(1) << key.id;
    u->dict.values[key.id] = value;
    if (key.id == WORD_POOL_ID || key.id == WORD_SEGMENT_POOL_ID)
        u->dict.private_pool =
            value.kind == PICKLE_TUPLE && map_get(&u->private_pools, map_key(value.id), NULL);
}

static void append_item(void *arg, struct pickle_value list, struct pickle_value item)
{
    struct unpickling *u = arg;
    end_dict(u);
    if (list.kind == PICKLE_TUPLE && item.kind == PICKLE_INT && item.integer != 0)
        map_set(&u->private_pools, map_key(list.id), 1);
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
    map_fini(&u.private_pools);
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

struct parsing {
    struct json *js;
    struct trace_part *part;
    struct snapshot_part *to;
    uint32_t n_objects;
};

static void read_dicts(struct parsing *p, uint32_t list, bool have_blocks);

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

/* Whether a list of numbers, "[0, 1]", has one that is not 0. */
static bool read_pool(struct json *js)
{
    bool other = false;
    int64_t v;
    JSON_EACH (js)
        other |= json_read_decimal(js, 0, &v) != JSON_NO_VALUE && v != 0;
    return other;
}

static void read_value(struct parsing *p, struct snapshot_dict *dict, uint32_t key)
{
    struct json *js = p->js;
    struct pickle_value value = {.kind = PICKLE_NONE};
    const char *text;
    size_t len;
    int c = json_peek(js);
    if (key == WORD_POOL_ID || key == WORD_SEGMENT_POOL_ID) {
        dict->private_pool = read_pool(js);
        return;
    }
    if (c == '"') {
        value.kind = PICKLE_TEXT;
        if (json_string(js, &text, &len))
            value.id = part_intern(p->part, text, len);
    } else if (c == '{' || c == '[') {
        json_skip(js);
    } else if (json_number(js, &text, &len)) {
        value = value_of(text, len);
    }
    dict->has |= UINT64_C(1) << key;
    dict->values[key] = value;
}

/* Its '{' has been taken. Blocks, of a segment, come before what the segment itself is. */
static void read_dict(struct parsing *p, uint32_t list, bool has_blocks)
{
    struct json *js = p->js;
    struct snapshot_dict dict = {.object = p->n_objects++};
    JSON_KEYS (js, true, text, len) {
        uint32_t key = strtab_find(&p->part->names, text, len);
        if (has_blocks && json_is(text, len, "blocks")) {
            if (json_open(js, '['))
                read_dicts(p, NO_ID, false);
        } else if (key != WORD_NONE && key < N_SNAPSHOT_KEYS) {
            read_value(p, &dict, key);
        } else {
            json_skip(js);
        }
    }
    if (js->fail != JSON_OK)
        return;
    snapshot_add(p->to, &dict);
    if (list != NO_ID)
        snapshot_place(p->to, dict.object, list);
}

static void read_dicts(struct parsing *p, uint32_t list, bool have_blocks)
{
    while (json_array_next(p->js))
        if (json_open(p->js, '{'))
            read_dict(p, list, have_blocks);
}

/* A list of entries a device. */
static void read_traces(struct parsing *p)
{
    struct snapshot_part *to = p->to;
    to->device_traces = p->n_objects++;
    while (json_array_next(p->js)) {
        struct snapshot_list inner = {to->device_traces, p->n_objects++};
        if (!json_open(p->js, '['))
            continue;
        array_push(&to->lists, inner);
        read_dicts(p, inner.list, false);
    }
}

static int read_json(struct json *js, struct trace_part *part,
                     struct dpro_error *err __attribute__((unused)))
{
    struct parsing p = {.js = js, .part = part, .to = snapshot_begin(part)};
    JSON_KEYS (js, json_open_document(js), key, len) {
        bool segments = json_is(key, len, "segments");
        bool traces = json_is(key, len, "device_traces");
        bool settings = json_is(key, len, "allocator_settings");
        if ((segments || traces) && json_open(js, '[')) {
            if (traces)
                read_traces(&p);
            else
                read_dicts(&p, NO_ID, true);
        } else if (settings && json_open(js, '{')) {
            read_dict(&p, NO_ID, false);
        } else if (!segments && !traces && !settings) {
            json_skip(js);
        }
    }
    p.to->whole = js->fail == JSON_OK;
    part->n_events = p.to->entries.n;
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
    ITEMS("entry", "entries"),
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
    ITEMS("entry", "entries"),
    .encoding = "JSON",
    .flags = READER_STRUCTURE | READER_SEPARATE,
    .missing = {.alone = ALONE},
    .recognise = recognise_json,
    .read_json = read_json,
};
