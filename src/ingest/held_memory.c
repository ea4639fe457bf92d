/* memory.json of dpro's recorder: what a rank held when its execution trace began. It is of use
 * beside the rank's profile only. */
#include "ingest/held_memory.h"

#include <stdlib.h>
#include <string.h>

#include <dpro/memory.h>

#include "base/map.h"
#include "ingest/load.h"
#include "ingest/pytorch/snapshot_join.h"
#include "ingest/rank_job.h"

static void fini(void *payload)
{
    struct held_part *held = payload;
    array_fini(&held->blocks);
    array_fini(&held->modules);
    snapshot_fini(&held->allocated);
}

const struct payload_kind held_payload = {sizeof(struct held_part), fini, NULL};

static uint8_t category_of(const char *word)
{
    for (int c = 0; c < DPRO_N_MEMORY_CATEGORIES; c++)
        if (strcmp(dpro_memory_category_name(c), word) == 0)
            return (uint8_t)c;
    return DPRO_MEMORY_OTHER;
}

/* A list that is an entry of another one; what it lacks is 0. */
struct entry {
    struct json_reader *r;
    bool open;
};

static bool next(struct entry *entry)
{
    return entry->open = entry->open && json_array_next(entry->r->js);
}

static uint32_t next_text(struct entry *entry)
{
    return next(entry) ? json_read_text(entry->r) : 0;
}

/* False: it is none. */
static bool next_number(struct entry *entry, uint64_t *value)
{
    return next(entry) && json_read_unsigned(entry->r->js, value) == JSON_VALUE;
}

static bool close(struct entry *entry)
{
    while (next(entry))
        json_skip(entry->r->js);
    return entry->r->js->fail == JSON_OK;
}

/* [category, name, address, bytes] */
static bool read_block(struct json_reader *r, struct held_part *held)
{
    struct entry entry = {r, json_open(r->js, '[')};
    uint32_t category = next_text(&entry);
    struct held_block block = {.name = next_text(&entry)};
    bool known = next_number(&entry, &block.address);
    bool sized = next_number(&entry, &block.size_bytes);
    if (!known)
        block.address = 0;
    block.category = category_of(strtab_get(r->strings, category));
    if (!close(&entry) || !sized || block.size_bytes > TRACE_BYTES_MAX)
        return false;
    array_push(&held->blocks, block);
    return true;
}

/* [name, class] */
static bool read_module(struct json_reader *r, struct held_part *held)
{
    struct entry entry = {r, json_open(r->js, '[')};
    bool known = entry.open;
    struct held_module module = {.name = next_text(&entry)};
    module.class = next_text(&entry);
    if (!close(&entry) || !known)
        return false;
    array_push(&held->modules, module);
    return true;
}

/* [bytes, state] */
static bool read_allocated(struct json_reader *r, struct snapshot_part *to)
{
    struct entry entry = {r, json_open(r->js, '[')};
    uint64_t bytes;
    bool sized = next_number(&entry, &bytes) && bytes <= TRACE_BYTES_MAX;
    const char *state = strtab_get(r->strings, next_text(&entry));
    if (!close(&entry) || !sized)
        return false;
    array_add(&to->blocks, .size_bytes = bytes,
              .state = strcmp(state, "inactive") == 0           ? ALLOCATOR_FREE
                       : strcmp(state, "active_allocated") == 0 ? ALLOCATOR_TAKEN
                                                                : ALLOCATOR_WAITING);
    return true;
}

static bool next_true(struct entry *entry)
{
    const char *text;
    size_t len;
    return next(entry) && json_scalar(entry->r->js, &text, &len) && len == 4 &&
           memcmp(text, "true", 4) == 0;
}

/* [address, bytes, stream, "small"|"large", expandable, private, blocks] */
static bool read_segment(struct json_reader *r, struct held_part *held)
{
    struct snapshot_part *to = &held->allocated;
    struct entry entry = {r, json_open(r->js, '[')};
    struct snapshot_segment segment = {0};
    uint64_t bytes, stream;
    size_t first = to->blocks.n;
    bool known = next_number(&entry, &segment.is.address);
    known = next_number(&entry, &bytes) && known && bytes <= TRACE_BYTES_MAX;
    known = next_number(&entry, &stream) && known;
    segment.is.small = strcmp(strtab_get(r->strings, next_text(&entry)), "small") == 0;
    segment.is.expandable = next_true(&entry);
    segment.is.private_pool = next_true(&entry);
    if (next(&entry))
        JSON_EACH (r->js)
            known = read_allocated(r, to) && known;
    if (!close(&entry) || !known) {
        to->blocks.n = first;
        return false;
    }
    segment.stream = (int64_t)stream;
    snapshot_push_segment(to, segment, (int64_t)bytes);
    return true;
}

static void read_list(struct json_reader *r, struct held_part *held,
                      bool (*read_entry)(struct json_reader *, struct held_part *))
{
    JSON_EACH (r->js)
        held->n_broken += !read_entry(r, held) && r->js->fail == JSON_OK;
}

static void read_blocks(struct json_reader *r, void *out, size_t offset UNUSED)
{
    struct held_part *held = out;
    held->blocks.n = 0;
    read_list(r, held, read_block);
}

/* What the window's first step gave back: its second one has begun. */
static void read_freed(struct json_reader *r, void *out, size_t offset UNUSED)
{
    ((struct held_part *)out)->of_last_step = json_peek(r->js) == '[';
    json_skip(r->js);
}

static void read_segments(struct json_reader *r, void *out, size_t offset UNUSED)
{
    struct held_part *held = out;
    held->allocated.segments.n = held->allocated.blocks.n = 0;
    read_list(r, held, read_segment);
}

static void read_modules(struct json_reader *r, void *out, size_t offset UNUSED)
{
    struct held_part *held = out;
    held->modules.n = 0;
    read_list(r, held, read_module);
}

static void read_allocator(struct json_reader *r, void *out, size_t offset UNUSED)
{
    struct held_part *held = out;
    const char *text = "";
    size_t len = 0;
    int first = json_peek(r->js);
    if (first == '"')
        json_string(r->js, &text, &len);
    else
        json_skip(r->js);
    if (r->js->fail != JSON_OK)
        return;
    held->says_allocator = first != 'n';
    held->is_text = first == '"' && len < JSON_TEXT_MAX && !memchr(text, '\0', len);
    held->allocator = strtab_add(r->strings, text, len);
}

/* "cuda:1" is 1, "cuda" 0, "cpu" -1. */
static int32_t device_of(const char *text)
{
    const char *colon = strchr(text, ':');
    long number = colon ? strtol(colon + 1, NULL, 10) : 0;
    if (*text == '\0' || text_begins(text, "cpu"))
        return -1;
    return number >= 0 && number <= INT32_MAX ? (int32_t)number : 0;
}

static int read_document(struct json *js, struct trace_part *part, struct dpro_error *err UNUSED)
{
    static const struct json_member members[] = {
        MEMBER(struct held_part, "device", TEXT, device),
        MEMBER(struct held_part, "capacity_bytes", SIZE, capacity_bytes),
        MEMBER(struct held_part, "backend", TEXT, backend),
        MEMBER_BY("modules", read_modules, 0),
        MEMBER_BY("blocks", read_blocks, 0),
        MEMBER_BY("freed", read_freed, 0),
        MEMBER_BY("segments", read_segments, 0),
        MEMBER_BY("allocator", read_allocator, 0),
        {NULL}};
    struct held_part *held = part_make_payload(part, &held_payload);
    struct json_reader r = {.js = js, .strings = &part->names};
    if (json_open_document(js))
        json_read_members(&r, members, held);
    part->n_events = held->blocks.n;
    return 0;
}

static bool recognise(const struct head *head)
{
    return head->piece == HEAD_MEMBER && strcmp(head->key, "schema") == 0 &&
           text_begins(head->text, "dpro.memory/");
}

/* ---- joining ---- */

static uint32_t join_blocks(struct held_memory *to, struct held_part *held, const uint32_t *names)
{
    struct map seen = {0};
    uint32_t n_twice = 0;
    for (size_t i = 0; i < held->blocks.n; i++) {
        struct held_block block = held->blocks.at[i];
        if (block.address && map_get(&seen, map_key(block.address), NULL)) {
            n_twice++;
            continue;
        }
        if (block.address)
            map_set(&seen, map_key(block.address), 1);
        block.name = names[block.name];
        to->blocks[to->n_blocks++] = block;
    }
    map_fini(&seen);
    return n_twice;
}

/* Of the process, whatever the device. */
static struct allocator_settings settings_of(struct trace_build *build, struct rank_job *job,
                                             const struct source *source,
                                             const struct held_part *held)
{
    struct allocator_settings settings = allocator_settings_default();
    const char *backend = strtab_get(&build->trace->names, source->names[held->backend]);
    if (held->says_allocator)
        settings = allocator_settings_read(
            build, job, source->path,
            held->is_text ? strtab_get(&build->trace->names, source->names[held->allocator]) : "?");
    if (backend[0])
        settings.other_backend = strcmp(backend, "native") != 0;
    return settings;
}

/* If a segment is missing, what the device has is not known. */
static void join_allocated(struct arena *arena, struct held_part *held, struct held_memory *to)
{
    if (held->n_broken > 0 || held->allocated.n_broken > 0 || to->is_cut)
        return;
    held->allocated.whole = true;
    to->allocated.device = to->device;
    for (size_t i = 0; i < held->allocated.segments.n; i++)
        held->allocated.segments.at[i].device = to->device;
    snapshot_fill(arena, &held->allocated, &to->allocated);
}

static void join(struct trace_build *build, struct rank_job *job, struct source *source)
{
    struct held_part *held = part_payload(&source->part, &held_payload);
    struct arena *arena = &build->trace->arena;
    struct held_memory *to = job->rank->held = arena_array(arena, 1, sizeof *to);
    to->device = device_of(strtab_get(&build->trace->names, source->names[held->device]));
    to->capacity_bytes = held->capacity_bytes <= TRACE_BYTES_MAX ? held->capacity_bytes : 0;
    to->of_last_step = held->of_last_step;
    to->is_cut = source_is_damaged(source);
    to->allocator = settings_of(build, job, source, held);
    to->blocks = arena_alloc(arena, held->blocks.n * sizeof *to->blocks);
    to->modules = arena_alloc(arena, held->modules.n * sizeof *to->modules);
    for (size_t i = 0; i < held->modules.n; i++)
        to->modules[to->n_modules++] = (struct held_module){
            source->names[held->modules.at[i].name], source->names[held->modules.at[i].class]};
    join_allocated(arena, held, to);
    uint32_t n_twice = join_blocks(to, held, source->names);
    char some[32];
    uint64_t n_skipped = n_twice + held->n_broken + held->allocated.n_broken;
    if (n_skipped > 0)
        rank_warn(build, job, "%s: %s blocks or modules are listed twice or make no sense, skipped",
                  source->path, count_text(some, n_skipped));
}

static void reserve(struct trace_build *build, struct rank_job *job, struct rank_room *room UNUSED)
{
    const char *used = NULL;
    for (size_t i = 0; i < job->n_sources; i++) {
        struct source *source = job->sources[i];
        if (!source_payload(source, &held_payload))
            continue;
        if (used)
            rank_warn(build, job, "%s: second list of what rank %d holds, skipped; %s is used",
                      source->path, source->rank, used);
        else
            join(build, job, source);
        used = used ? used : source->path;
    }
}

const struct reader held_reader = {
    .name = "held-memory",
    .word = "list of held memory",
    .one = "block",
    .many = "blocks",
    .encoding = "JSON",
    .flags = READER_STRUCTURE | READER_SEPARATE,
    .missing = {.alone = "what a rank holds is of no use without its profile; give the whole "
                         "folder that dpro profile wrote"},
    .recognise = recognise,
    .read_json = read_document,
    .reserve = reserve,
};
