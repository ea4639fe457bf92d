/* memory.json of dpro's recorder: what a rank held when its execution trace began. It is of use
 * beside the rank's profile only. */
#include "ingest/pytorch/snapshot.h"

#include <dpro/memory.h>

#include "ingest/load.h"

#define AT(member) offsetof(struct held_part, member)
const struct payload_kind held_payload = {sizeof(struct held_part),
                                          .arrays = {AT(blocks), AT(modules), AT(allocated)}};

static uint8_t category_of(const char *word)
{
    for (int c = 0; c < DPRO_N_MEMORY_CATEGORIES; c++)
        if (strcmp(dpro_memory_category_name(c), word) == 0)
            return (uint8_t)c;
    return DPRO_MEMORY_OTHER;
}

#define UNKNOWN UINT64_MAX /* no number that makes sense */

static bool read_block(struct json_reader *r, struct held_part *held)
{
    struct {
        struct held_block is;
        uint32_t category;
    } entry = {.is.size_bytes = UNKNOWN};
    const struct json_member members[] = {MEMBER(__typeof__(entry), "category", TEXT, category),
                                          MEMBER(__typeof__(entry), "name", TEXT, is.name),
                                          MEMBER(__typeof__(entry), "address", SIZE, is.address),
                                          MEMBER(__typeof__(entry), "bytes", SIZE, is.size_bytes),
                                          {NULL}};
    json_read_tuple(r, members, &entry);
    if (r->js->fail != JSON_OK || entry.is.size_bytes > TRACE_BYTES_MAX)
        return false;
    entry.is.category = category_of(strtab_get(r->strings, entry.category));
    array_push(&held->blocks, entry.is);
    return true;
}

static bool read_module(struct json_reader *r, struct held_part *held)
{
    static const struct json_member members[] = {MEMBER(struct held_module, "name", TEXT, name),
                                                 MEMBER(struct held_module, "class", TEXT, class),
                                                 {NULL}};
    struct held_module module = {0};
    if (!json_read_tuple(r, members, &module) || r->js->fail != JSON_OK)
        return false;
    array_push(&held->modules, module);
    return true;
}

struct segment_entry {
    uint64_t address, bytes, end; /* end: of its blocks so far */
    bool broken;
};

/* A block of a segment, behind the one before it. */
static bool read_allocated(struct json_reader *r, struct held_part *held, uint64_t *end)
{
    struct {
        uint64_t bytes;
        uint32_t state;
    } entry = {.bytes = UNKNOWN};
    const struct json_member members[] = {MEMBER(__typeof__(entry), "bytes", SIZE, bytes),
                                          MEMBER(__typeof__(entry), "state", TEXT, state),
                                          {NULL}};
    json_read_tuple(r, members, &entry);
    if (r->js->fail != JSON_OK || entry.bytes > TRACE_BYTES_MAX)
        return false;
    if (strcmp(strtab_get(r->strings, entry.state), "active_allocated") == 0)
        array_add(&held->allocated, *end, entry.bytes);
    *end += entry.bytes;
    return true;
}

static void read_all_allocated(struct json_reader *r, void *out, size_t offset UNUSED)
{
    struct segment_entry *segment = out;
    segment->end = segment->address;
    JSON_EACH (r->js)
        segment->broken |= !read_allocated(r, r->arg, &segment->end);
}

static void pass_over(struct json_reader *r, void *out UNUSED, size_t offset UNUSED)
{
    json_skip(r->js);
}

static bool read_segment(struct json_reader *r, struct held_part *held UNUSED)
{
    static const struct json_member members[] = {
        MEMBER(struct segment_entry, "address", SIZE, address),
        MEMBER(struct segment_entry, "bytes", SIZE, bytes),
        MEMBER_BY("stream", pass_over, 0),
        MEMBER_BY("kind", pass_over, 0),
        MEMBER_BY("expandable", pass_over, 0),
        MEMBER_BY("private", pass_over, 0),
        MEMBER_BY("blocks", read_all_allocated, 0),
        {NULL}};
    struct segment_entry entry = {.bytes = UNKNOWN};
    json_read_tuple(r, members, &entry);
    return r->js->fail == JSON_OK && !entry.broken && entry.address > 0 &&
           entry.bytes <= TRACE_BYTES_MAX && entry.end - entry.address == entry.bytes;
}

enum { MODULES, BLOCKS, SEGMENTS };

static void read_list(struct json_reader *r, void *out, size_t which)
{
    static bool (*const read_entry[])(struct json_reader *, struct held_part *) = {
        [MODULES] = read_module, [BLOCKS] = read_block, [SEGMENTS] = read_segment};
    struct held_part *held = out;
    if (which == MODULES)
        held->modules.n = 0;
    else if (which == BLOCKS)
        held->blocks.n = 0;
    else
        held->allocated.n = 0;
    JSON_EACH (r->js)
        held->n_broken += !read_entry[which](r, held) && r->js->fail == JSON_OK;
}

/* What the window's first step gave back: its second one has begun. */
static void read_freed(struct json_reader *r, void *out, size_t offset UNUSED)
{
    ((struct held_part *)out)->of_last_step = json_peek(r->js) == '[';
    json_skip(r->js);
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
        MEMBER_BY("modules", read_list, MODULES),
        MEMBER_BY("blocks", read_list, BLOCKS),
        MEMBER_BY("freed", read_freed, 0),
        MEMBER_BY("segments", read_list, SEGMENTS),
        MEMBER_BY("allocator", read_allocator, 0),
        {NULL}};
    struct held_part *held = part_make_payload(part, &held_payload);
    struct json_reader r = {.js = js, .strings = &part->names, .arg = held};
    if (json_open_document(js))
        json_read_members(&r, members, held);
    part->n_events = held->blocks.n;
    return 0;
}

/* ---- joining ---- */

static uint32_t join_blocks(struct held_memory *to, struct held_part *held, const uint32_t *names)
{
    SCRATCH struct map seen = {0};
    uint32_t n_twice = 0;
    for (size_t i = 0; i < held->blocks.n; i++) {
        struct held_block block = held->blocks.at[i];
        if (block.address && !map_insert(&seen, map_key(block.address), 1)) {
            n_twice++;
            continue;
        }
        block.name = names[block.name];
        to->blocks[to->n_blocks++] = block;
    }
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

static void held_describe(struct trace_build *build, struct rank_job *job)
{
    struct source *source = job_source(build, job, &held_payload, "second list of what", " holds");
    if (!source)
        return;
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
    EACH (struct held_module, module, held->modules) {
        RENAME(source->names, &module->name, &module->class);
        to->modules[to->n_modules++] = *module;
    }
    if (held->n_broken == 0 && !to->is_cut) { /* else a segment may be missing */
        to->n_allocated = (uint32_t)held->allocated.n;
        to->allocated =
            arena_copy(arena, held->allocated.at, held->allocated.n, sizeof *to->allocated);
    }
    uint32_t n_twice = join_blocks(to, held, source->names);
    uint64_t n_skipped = n_twice + held->n_broken;
    if (n_skipped > 0)
        rank_warn(build, job, "%s: %s blocks or modules are listed twice or make no sense, skipped",
                  source->path, COUNT_TEXT(n_skipped));
}

const struct reader held_reader = {
    .name = "held-memory",
    .word = "list of held memory",
    .encoding = "JSON",
    .flags = READER_STRUCTURE | READER_SEPARATE,
    .missing = {.alone = "what a rank holds is of no use without its profile; give the whole "
                         "folder that dpro profile wrote"},
    .schemas = {"dpro.memory/"},
    .read_json = read_document,
    .describe = held_describe,
};
