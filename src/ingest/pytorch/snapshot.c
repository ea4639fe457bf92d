/* What the allocator of a GPU's memory was asked for and what it holds, from the dicts of a
 * snapshot.
 *
 * Entries come oldest first, and the oldest may be missing: PyTorch keeps as many as it is told to.
 * Segments are as they were when the snapshot was made. */
#include "ingest/pytorch/snapshot.h"

#define AT(member) offsetof(struct snapshot_part, member)
const struct payload_kind snapshot_payload = {sizeof(struct snapshot_part),
                                              .arrays = {AT(entries), AT(segments), AT(lists)}};

/* ---- reading ---- */

struct snapshot_part *snapshot_begin(struct trace_part *part)
{
#define TEXT_OF(word, text) text,
    static const char *const words[] = {"", SNAPSHOT_WORDS(TEXT_OF)};
    struct snapshot_part *to = part_make_payload(part, &snapshot_payload);
    for (unsigned w = 0; w < N_SNAPSHOT_WORDS; w++)
        part_intern(part, words[w], strlen(words[w]));
    to->device_traces = NO_ID;
    to->max_split_bytes = INT64_MIN;
    to->collection = -1;
    to->expandable = -1;
    return to;
}

static bool snapshot_has(const struct snapshot_dict *dict, enum snapshot_word key)
{
    return dict->has >> key & 1;
}

static int64_t snapshot_number(const struct snapshot_dict *dict, enum snapshot_word key,
                               int64_t otherwise)
{
    const struct pickle_value *value = &dict->values[key];
    return snapshot_has(dict, key) && (value->kind == PICKLE_INT || value->kind == PICKLE_BOOL)
               ? value->integer
               : otherwise;
}

static uint32_t snapshot_text(const struct snapshot_dict *dict, enum snapshot_word key)
{
    return snapshot_has(dict, key) && dict->values[key].kind == PICKLE_TEXT ? dict->values[key].id
                                                                            : 0;
}

static bool is_size(int64_t bytes)
{
    return bytes >= 0 && bytes <= TRACE_BYTES_MAX;
}

/* An entry's act; false: it is none that changes anything ("snapshot"). */
static bool act_of(uint32_t word, uint8_t *what)
{
    static const struct {
        uint32_t word;
        uint8_t what;
    } acts[] = {
        {WORD_ALLOC, SNAPSHOT_TAKE},
        {WORD_FREE_REQUESTED, SNAPSHOT_GIVE},
        {WORD_SEGMENT_ALLOC, SNAPSHOT_SEGMENT_TAKEN},
        {WORD_SEGMENT_FREE, SNAPSHOT_SEGMENT_GIVEN},
        {WORD_SEGMENT_MAP, SNAPSHOT_SEGMENT_TAKEN},
        {WORD_SEGMENT_UNMAP, SNAPSHOT_SEGMENT_GIVEN},
    };
    for (size_t i = 0; i < sizeof acts / sizeof *acts; i++)
        if (acts[i].word == word) {
            *what = acts[i].what;
            return true;
        }
    return false;
}

/* 0: not said, or beyond what a time can be. */
static int64_t time_of(const struct snapshot_dict *dict)
{
    int64_t ns;
    return __builtin_mul_overflow(snapshot_number(dict, WORD_TIME_US, 0), 1000, &ns) ||
                   !trace_time_fits(ns)
               ? 0
               : ns;
}

static void add_entry(struct snapshot_part *to, const struct snapshot_dict *dict)
{
    struct snapshot_entry entry = {.ns = time_of(dict), .list = NO_ID, .object = dict->object};
    int64_t bytes = snapshot_number(dict, WORD_SIZE, -1);
    if (!act_of(snapshot_text(dict, WORD_ACTION), &entry.what))
        return;
    entry.bytes = (uint64_t)bytes;
    entry.address = (uint64_t)snapshot_number(dict, WORD_ADDR, 0);
    if (is_size(bytes) && entry.address != 0)
        array_push(&to->entries, entry);
    else
        to->n_broken++;
}

/* Before the segment that it lies in. */
static void add_block(struct snapshot_part *to, const struct snapshot_dict *dict)
{
    int64_t bytes = snapshot_number(dict, WORD_SIZE, -1);
    if (!is_size(bytes)) {
        to->n_broken++;
        return;
    }
    to->blocks.bytes += (uint64_t)bytes;
    if (snapshot_text(dict, WORD_STATE) == WORD_ACTIVE_ALLOCATED)
        to->blocks.taken_bytes += (uint64_t)bytes;
}

/* Its blocks fill it. */
static void add_segment(struct snapshot_part *to, const struct snapshot_dict *dict)
{
    struct snapshot_segment segment = to->blocks;
    int64_t bytes = snapshot_number(dict, WORD_TOTAL_SIZE, -1);
    segment.device = snapshot_number(dict, WORD_DEVICE, 0);
    to->blocks = (struct snapshot_segment){0};
    if (is_size(bytes) && segment.bytes == (uint64_t)bytes)
        array_push(&to->segments, segment);
    else
        to->n_broken++;
}

static void add_settings(struct snapshot_part *to, const struct snapshot_dict *dict)
{
    const struct pickle_value *collection = &dict->values[WORD_COLLECTION];
    to->has_settings = true;
    to->conf = snapshot_text(dict, WORD_CONF) ? snapshot_text(dict, WORD_CONF)
                                              : snapshot_text(dict, WORD_CONF_2025);
    to->max_split_bytes = snapshot_number(dict, WORD_MAX_SPLIT_SIZE, INT64_MIN);
    to->expandable = (int8_t)(snapshot_number(dict, WORD_EXPANDABLE_SEGMENTS, -1) > 0 ? 1
                              : snapshot_has(dict, WORD_EXPANDABLE_SEGMENTS)          ? 0
                                                                                      : -1);
    if (snapshot_has(dict, WORD_COLLECTION) && collection->kind == PICKLE_FLOAT &&
        collection->real >= 0 && collection->real <= 1)
        to->collection = collection->real;
}

void snapshot_add(struct snapshot_part *to, const struct snapshot_dict *dict)
{
    if (snapshot_has(dict, WORD_ACTION))
        add_entry(to, dict);
    else if (snapshot_has(dict, WORD_TOTAL_SIZE))
        add_segment(to, dict);
    else if (snapshot_has(dict, WORD_STATE) && snapshot_has(dict, WORD_SIZE))
        add_block(to, dict);
    else if (snapshot_has(dict, WORD_CONF) || snapshot_has(dict, WORD_CONF_2025) ||
             snapshot_has(dict, WORD_MAX_SPLIT_SIZE))
        add_settings(to, dict);
    if (snapshot_has(dict, WORD_DEVICE_TRACES) &&
        dict->values[WORD_DEVICE_TRACES].kind == PICKLE_LIST)
        to->device_traces = dict->values[WORD_DEVICE_TRACES].id;
}

void snapshot_place(struct snapshot_part *to, uint32_t object, uint32_t list)
{
    size_t i = LOWER_BOUND(k, (size_t)0, to->entries.n, to->entries.at[k].object < object);
    if (i < to->entries.n && to->entries.at[i].object == object)
        to->entries.at[i].list = list;
}
