/* PyTorch profiler (Kineto) traces, every dialect from 2021 to 2026, and Chrome traces that look
 * like them.
 *
 * One pass: each event is read into a struct on the stack whatever the order of its keys. Most of
 * the text is arguments that nobody needs, which are skipped unread. Times stay relative here:
 * baseTimeNanoseconds may come behind the events. */
#include <string.h>

#include "base/map.h"
#include "base/memory.h"
#include "ingest/pytorch/kineto_events.h"
#include "ingest/pytorch/kineto_pieces.h"
#include "ingest/pytorch/kineto_words.h"

enum { NAME_CACHE = 4096 };

/* Keys that are wanted; others get numbers as they come. Of an argument that is kept as it is: how
 * it is read, and where it goes. */
#define KEYS(WORD, ARGUMENT)                                                                       \
    WORD(KEY_PH, "ph")                                                                             \
    WORD(KEY_TS, "ts")                                                                             \
    WORD(KEY_ID, "id")                                                                             \
    WORD(KEY_CAT, "cat")                                                                           \
    WORD(KEY_PID, "pid")                                                                           \
    WORD(KEY_TID, "tid")                                                                           \
    WORD(KEY_DUR, "dur")                                                                           \
    ARGUMENT(KEY_NAME, "name", STRING, EVENT, label)                                               \
    WORD(KEY_ARGS, "args")                                                                         \
    ARGUMENT(KEY_ADDR, "Addr", U64, MEMORY, address)                                               \
    ARGUMENT(KEY_BYTES_TAKEN, "Bytes", INT, MEMORY, bytes)                                         \
    ARGUMENT(KEY_DEVICE_ID, "Device Id", INT, MEMORY, device_id)                                   \
    ARGUMENT(KEY_DEVICE_TYPE, "Device Type", INT, MEMORY, device_type)                             \
    ARGUMENT(KEY_TOTAL_RESERVED, "Total Reserved", INT, MEMORY, reserved_bytes)                    \
    ARGUMENT(KEY_TOTAL_ALLOCATED, "Total Allocated", INT, MEMORY, allocated_bytes)                 \
    ARGUMENT(KEY_SEQ, "Seq", COUNT, DETAIL, comm_sequence)                                         \
    WORD(KEY_BYTES, "bytes")                                                                       \
    ARGUMENT(KEY_DTYPE, "dtype", STRING, DETAIL, dtype)                                            \
    ARGUMENT(KEY_SRC_RANK, "Src Rank", I32, DETAIL, peer)                                          \
    ARGUMENT(KEY_DST_RANK, "Dst Rank", I32, DETAIL, peer)                                          \
    WORD(KEY_INPUT_DIMS, "Input Dims")                                                             \
    WORD(KEY_INPUT_TYPE, "Input type")                                                             \
    ARGUMENT(KEY_GROUP_SIZE, "Group size", I32_OR_0, DETAIL, group_size)                           \
    ARGUMENT(KEY_CORRELATION, "correlation", U64, EVENT, correlation)                              \
    ARGUMENT(KEY_EXTERNAL_ID, "External id", U32, EVENT, external)                                 \
    ARGUMENT(KEY_EXTERNAL_ID_2021, "external id", U32, EVENT, external)                            \
    ARGUMENT(KEY_FWD_THREAD_ID, "Fwd thread id", U32, EVENT, fwd_thread)                           \
    ARGUMENT(KEY_IN_NELEMS, "In msg nelems", U64, DETAIL, numel)                                   \
    WORD(KEY_WAIT_ON_STREAM, "wait_on_stream")                                                     \
    WORD(KEY_SYNC_KIND, "cuda_sync_kind")                                                          \
    ARGUMENT(KEY_SEQUENCE_NUMBER, "Sequence number", I32, EVENT, sequence)                         \
    ARGUMENT(KEY_COLLECTIVE_NAME, "Collective name", STRING, DETAIL, collective)                   \
    ARGUMENT(KEY_RECORD_FUNCTION_ID, "Record function id", U32, EVENT, record_fn)                  \
    ARGUMENT(KEY_GROUP_NAME, "Process Group Name", TEXT, DETAIL, process_group)                    \
    ARGUMENT(KEY_GROUP_RANKS, "Process Group Ranks", TEXT, DETAIL, group_ranks)                    \
    ARGUMENT(KEY_GROUP_DESC, "Process Group Description", TEXT, DETAIL, group_description)         \
    WORD(KEY_WAIT_ON_CORRELATION, "wait_on_cuda_event_record_corr_id")

#define KEY_OF(key, ...)        key,
#define TEXT_OF(key, text, ...) [key] = text,
enum key {
    KEY_END, /* no key: the object ended */
    KEYS(KEY_OF, KEY_OF) N_WANTED_KEYS,
    KEY_ANY = 127, /* any other, when the numbers have run out */
    N_KEYS,
};

static const char *const wanted_keys[N_WANTED_KEYS] = {[KEY_END] = "", KEYS(TEXT_OF, TEXT_OF)};

/* Guesses are kept apart by the phase of an event and by the kind of its arguments. */
enum { N_PHASES = 8, N_CONTEXTS = N_PHASES + SPAN_OTHER + 2 };

struct guess_pair {
    struct json_guess at[2]; /* the later one first */
};

struct kineto {
    struct json *js;
    struct kineto_events to;
    bool broken; /* its pieces can't be read apart */
    uint32_t *name_cache;
    char *guess_room;
    struct guess_pair (*guesses)[N_KEYS]; /* [N_CONTEXTS]: after which key */
    struct guess_pair between;            /* from one event into the next */
    struct strtab other_keys;             /* id + N_WANTED_KEYS - 1 is the key's number */
};

/* A key's number; the slow way, when no guess was right. */
static unsigned key_number(struct kineto *k, const char *key, size_t len)
{
    for (unsigned i = 1; i < N_WANTED_KEYS; i++)
        if (text_n_is(key, len, wanted_keys[i]))
            return i;
    if (len == 0 || len > 64)
        return KEY_ANY;
    uint32_t id = strtab_find(&k->other_keys, key, len);
    if (id == STRTAB_NONE && k->other_keys.n < KEY_ANY - N_WANTED_KEYS)
        id = strtab_add(&k->other_keys, key, len);
    return id == STRTAB_NONE ? KEY_ANY : N_WANTED_KEYS + id - 1;
}

static void learn(struct kineto *k, uint64_t from, unsigned key, struct guess_pair *pair)
{
    struct json_guess fresh = {.len = 0};
    json_learn(k->js, from, (uint8_t)key, &fresh);
    if (fresh.len) {
        pair->at[1] = pair->at[0];
        pair->at[0] = fresh;
    }
}

static __attribute__((noinline)) unsigned next_key_slow(struct kineto *k, struct guess_pair *pair)
{
    const char *text;
    size_t len;
    uint64_t from = json_offset(k->js);
    unsigned key = KEY_END;
    if (json_object_next(k->js, &text, &len))
        key = key_number(k, text, len);
    learn(k, from, key, pair);
    return key;
}

/* The number of the next key of an object, KEY_END at its end and on failure. */
static inline unsigned next_key(struct kineto *k, unsigned context, unsigned previous)
{
    struct guess_pair *pair = &k->guesses[context][previous];
    if (json_guess(k->js, &pair->at[0]))
        return pair->at[0].key;
    if (json_guess(k->js, &pair->at[1]))
        return pair->at[1].key;
    return next_key_slow(k, pair);
}

static uint32_t intern(struct kineto *k, const char *text, size_t len)
{
    /* Names repeat thousands of times: a small cache keyed by length and both ends is faster than
     * hashing kernel names of a kilobyte. */
    uint64_t head = 0, tail = 0;
    if (len >= 8) {
        memcpy(&head, text, 8);
        memcpy(&tail, text + len - 8, 8);
    } else {
        memcpy(&head, text, len);
    }
    uint64_t middle = 0;
    if (len >= 24)
        memcpy(&middle, text + len / 2, 8);
    uint64_t hash =
        (head * 0x9e3779b97f4a7c15u ^ tail * 0xd6e8feb86659fd93u ^ middle * 0xc2b2ae3d27d4eb4fu) +
        len;
    uint32_t *slot = &k->name_cache[(hash ^ hash >> 29) * 0x9e3779b97f4a7c15u >> 52];
    const struct strtab_entry *entry = &k->to.part->names.entries[*slot];
    if (*slot < k->to.part->names.n && entry->len == len && memcmp(entry->text, text, len) == 0)
        return *slot;
    return *slot = strtab_add(&k->to.part->names, text, len);
}

static bool name_is_communication(struct kineto *k, uint32_t name)
{
    return kineto_name_flags(&k->to, name) & NAME_COMMUNICATION;
}

/* A pid or tid: a number, a quoted number, "stream 7", or a name, which gets a number of its own
 * far from any real one. */
static int64_t read_id(struct json *js)
{
    const char *text;
    size_t len, i = 0;
    if (!json_scalar(js, &text, &len) || len == 0)
        return 0;
    int64_t v = 0;
    while (i < len && i < 18 && text[i] >= '0' && text[i] <= '9')
        v = v * 10 + (text[i++] - '0');
    if (i == len)
        return v;
    if (json_decimal(text, len, 0, &v) != JSON_NO_VALUE)
        return v;
    for (i = 0; i < len && (text[i] < '0' || text[i] > '9'); i++)
        ;
    size_t first = i;
    while (i < len && text[i] >= '0' && text[i] <= '9')
        i++;
    if (i > first && json_decimal(text + first, i - first, 0, &v) == JSON_VALUE)
        return first > 0 && text[first - 1] == '-' ? -v : v;
    uint64_t hash = len;
    for (i = 0; i < len; i++)
        hash = map_mix(hash ^ (unsigned char)text[i] ^ 0x100);
    return INT64_MIN / 2 - (int64_t)(hash >> 3);
}

static int32_t read_i32(struct json *js, int32_t none)
{
    int64_t v;
    if (json_read_decimal(js, 0, &v) != JSON_VALUE || v < INT32_MIN || v > INT32_MAX)
        return none;
    return (int32_t)v;
}

/* A string's id; other values are skipped and give 0. */
static uint32_t read_string(struct kineto *k)
{
    const char *text;
    size_t len;
    if (json_peek(k->js) != '"')
        return json_skip(k->js), 0;
    return json_string(k->js, &text, &len) ? intern(k, text, len) : 0;
}

/* The id of a string, or of a value's raw text, "[0, 1]". */
static uint32_t read_text(struct kineto *k)
{
    const char *text;
    size_t len;
    bool cut;
    if (json_peek(k->js) == '"')
        return read_string(k);
    return json_raw(k->js, JSON_TEXT_MAX, &text, &len, &cut) ? intern(k, text, len) : 0;
}

/* "Input Dims": a list with one entry an input, [2, 3] for a tensor, [[2], [3]] for a list of
 * tensors, [] for a tensor without dimensions and for what is no tensor. Gives the elements of the
 * first tensor or list of tensors; in `blank` whether the first entry is []. */
static uint64_t read_dims(struct json *js, bool *blank)
{
    uint64_t numel = 0, product = 1;
    int depth = 0, done_at = 0; /* 1: the first tensor has been seen */
    bool numbers = false, opened = false, first = true;
    *blank = false;
    if (json_peek(js) != '[')
        return json_skip(js), 0;
    do {
        int c = json_peek(js);
        int64_t v;
        if (c == '[') {
            js->p++;
            if (++depth > 8) {
                json_stop(js, JSON_DEEP);
                return 0;
            }
            numbers = false;
            opened = true;
            product = 1;
        } else if (c == ']') {
            js->p++;
            /* in a list of tensors, [] can only be one without dimensions, which has one element */
            numbers = numbers || (opened && depth >= 3);
            *blank = *blank || (first && opened && !numbers && depth == 2);
            first = first && depth > 2;
            opened = false;
            depth--;
            if (numbers && !done_at && __builtin_add_overflow(numel, product, &numel))
                numel = UINT64_MAX;
            numbers = false;
            if (depth == 1 && numel > 0)
                done_at = 1;
        } else if (c == ',') {
            js->p++;
        } else if (c < 0 || c == '}' || c == ':') {
            json_stop(js, c < 0 ? JSON_ENDED : JSON_BAD);
        } else if (json_read_decimal(js, 0, &v) != JSON_NO_VALUE && depth >= 2) {
            numbers = true;
            opened = false;
            if (v < 0 || __builtin_mul_overflow(product, (uint64_t)v, &product))
                product = 0;
        }
    } while (depth > 0 && js->fail == JSON_OK);
    return numel;
}

/* "Input type": the first that names an element type; `first`: that is the first input's. */
static uint32_t read_types(struct kineto *k, bool *first)
{
    struct json *js = k->js;
    uint32_t type = 0, n = 0;
    *first = false;
    const char *text;
    size_t len;
    if (json_peek(js) != '[')
        return json_skip(js), 0;
    js->p++;
    for (; json_array_next(js); n++) {
        if (type || json_peek(js) != '"') {
            json_skip(js);
            continue;
        }
        if (!json_string(js, &text, &len))
            break;
        if (len > 0 && !json_is(text, len, "Scalar") && !json_is(text, len, "TensorList") &&
            !json_is(text, len, "ScalarList") && !json_is(text, len, "GenericList") &&
            !json_is(text, len, "Int") && !json_is(text, len, "String")) {
            type = intern(k, text, len);
            *first = n == 0;
        }
    }
    return type;
}

enum argument_type {
    ARGUMENT_NONE,
    ARGUMENT_U64,      /* 0: no such number */
    ARGUMENT_U32,      /* of these the lower half */
    ARGUMENT_I32,      /* -1: no such number */
    ARGUMENT_I32_OR_0, /* 0: no such number */
    ARGUMENT_COUNT,    /* int64_t; -1: no such number */
    ARGUMENT_INT,      /* int64_t; stays as it was where there is no such number */
    ARGUMENT_STRING,   /* the id of a string */
    ARGUMENT_TEXT,     /* the id of a string, or of a value's raw text */
};
enum argument_of { OF_EVENT, OF_DETAIL, OF_MEMORY };

#define EVENT  struct kineto_event
#define DETAIL struct trace_detail
#define MEMORY struct kineto_memory
#define NO_ARGUMENT(key, text)
#define ARGUMENT_AT(key, text, type, of, member)                                                   \
    [key] = {ARGUMENT_##type, OF_##of, offsetof(of, member)},
static const struct argument {
    uint8_t type, of;
    uint16_t offset;
} arguments[N_KEYS] = {KEYS(NO_ARGUMENT, ARGUMENT_AT)};

static void read_plain_arg(struct kineto *k, struct kineto_event *ev,
                           const struct argument *argument)
{
    void *const structs[] = {
        [OF_EVENT] = ev, [OF_DETAIL] = &k->to.detail, [OF_MEMORY] = &k->to.memory};
    void *at = (char *)structs[argument->of] + argument->offset;
    struct json *js = k->js;
    int64_t v;
    if (argument->of == OF_DETAIL)
        k->to.detail_used = ev->has_detail = true;
    switch ((enum argument_type)argument->type) {
    case ARGUMENT_U64:
        *(uint64_t *)at = json_u64(js);
        break;
    case ARGUMENT_U32:
        *(uint32_t *)at = (uint32_t)json_u64(js);
        break;
    case ARGUMENT_I32:
        *(int32_t *)at = read_i32(js, -1);
        break;
    case ARGUMENT_I32_OR_0:
        *(int32_t *)at = read_i32(js, 0);
        break;
    case ARGUMENT_COUNT:
        *(int64_t *)at = json_read_decimal(js, 0, &v) == JSON_VALUE && v >= 0 ? v : -1;
        break;
    case ARGUMENT_INT:
        json_read_decimal(js, 0, at);
        break;
    case ARGUMENT_STRING:
        *(uint32_t *)at = read_string(k);
        break;
    case ARGUMENT_TEXT:
        *(uint32_t *)at = read_text(k);
        break;
    case ARGUMENT_NONE:
        break;
    }
}

static void read_arg(struct kineto *k, struct kineto_event *ev, unsigned key)
{
    struct json *js = k->js;
    const char *text;
    size_t len;
    int64_t v;
    if (arguments[key].type) {
        read_plain_arg(k, ev, &arguments[key]);
        return;
    }
    switch (key) {
    case KEY_INPUT_DIMS:
        if (ev->has_name && !name_is_communication(k, ev->name))
            break;
        ev->dims_numel = read_dims(js, &ev->dims_blank);
        return;
    case KEY_INPUT_TYPE:
        if (ev->has_name && !name_is_communication(k, ev->name))
            break;
        ev->dims_type = read_types(k, &ev->type_first);
        return;
    case KEY_BYTES:
        if (ev->kind != SPAN_MEMCPY && ev->kind != SPAN_MEMSET && ev->kind != KINETO_NO_KIND)
            break;
        k->to.detail.bytes = json_u64(js);
        k->to.detail_used = ev->has_detail = true;
        return;
    case KEY_WAIT_ON_STREAM:
        k->to.detail_used = true;
        k->to.detail.wait_stream = json_read_decimal(js, 0, &v) == JSON_VALUE ? v : -1;
        return;
    case KEY_WAIT_ON_CORRELATION:
        k->to.detail_used = true;
        k->to.detail.wait_correlation = json_u64(js);
        return;
    case KEY_SYNC_KIND:
        if (json_scalar(js, &text, &len))
            k->to.detail.sync = (int32_t)kineto_sync_kind(text, len);
        k->to.detail_used = true;
        return;
    default:
        break;
    }
    json_skip(js);
}

static void read_args(struct kineto *k, struct kineto_event *ev)
{
    struct json *js = k->js;
    /* flows, other instants and counters carry nothing of use; python functions only their call
     * tree */
    bool is_memory =
        !ev->ph ||
        (ev->ph == 'i' && (!ev->has_name || kineto_name_flags(&k->to, ev->name) & NAME_MEMORY));
    if (json_peek(js) != '{' || (!is_memory && ev->ph != 'X' && ev->ph != 'M' && ev->ph != 'B') ||
        ev->kind == SPAN_PYTHON) {
        json_skip(js);
        return;
    }
    js->p++;
    if (is_memory) {
        k->to.memory = kineto_no_memory;
        ev->has_memory = true;
    }
    unsigned context =
        N_PHASES + (ev->kind <= SPAN_OTHER && ev->ph != 'i' ? ev->kind : SPAN_OTHER + 1);
    for (unsigned key = KEY_ARGS; (key = next_key(k, context, key)) != KEY_END;)
        read_arg(k, ev, key);
}

/* One event from its first key on. */
static void read_event(struct kineto *k, unsigned key)
{
    struct json *js = k->js;
    const char *text;
    size_t len;
    struct kineto_event ev;
    memset(&ev, 0, sizeof ev);
    ev.kind = KINETO_NO_KIND;
    ev.sequence = -1;
    if (k->to.detail_used) {
        k->to.detail = kineto_no_detail;
        k->to.detail_used = false;
    }
    for (; key != KEY_END; key = next_key(k, (unsigned char)ev.ph % N_PHASES, key)) {
        switch (key) {
        case KEY_PH:
            if (json_scalar(js, &text, &len))
                ev.ph = len == 1 ? text[0] : '?';
            break;
        case KEY_TS:
            ev.ts = json_read_decimal(js, 3, &ev.ts_ns);
            break;
        case KEY_DUR:
            ev.dur = json_read_decimal(js, 3, &ev.dur_ns);
            break;
        case KEY_ID:
            ev.flow_id = (uint64_t)read_id(js);
            break;
        case KEY_CAT:
            if (json_scalar(js, &text, &len))
                ev.kind = kineto_category(text, len, &ev.flow);
            break;
        case KEY_PID:
            ev.pid = (uint64_t)read_id(js);
            break;
        case KEY_TID:
            ev.tid = read_id(js);
            break;
        case KEY_NAME:
            ev.name = read_string(k);
            ev.has_name = true;
            break;
        case KEY_ARGS:
            read_args(k, &ev);
            break;
        default:
            json_skip(js);
        }
    }
    if (js->fail != JSON_OK)
        return; /* an event that is cut off is left out */
    kineto_take(&k->to, &ev);
}

/* A bare array that is left open is how some writers end: only a cut event is a loss then. Returns
 * whether it was left open. */
static bool read_events(struct kineto *k, bool may_stay_open)
{
    struct json *js = k->js;
    for (;;) {
        struct guess_pair *pair = &k->between;
        if (json_guess(js, &pair->at[0])) {
            read_event(k, pair->at[0].key);
            continue;
        }
        if (json_guess(js, &pair->at[1])) {
            read_event(k, pair->at[1].key);
            continue;
        }
        uint64_t from = json_offset(js);
        int c = json_peek(js);
        while (c == ',') {
            js->p++;
            c = json_peek(js);
        }
        if (c < 0 && may_stay_open && js->fail == JSON_OK)
            return true;
        if (!json_array_next(js))
            return false;
        if (json_peek(js) != '{') {
            k->to.part->losses.n_broken++;
            json_skip(js);
            continue;
        }
        js->p++;
        const char *text;
        size_t len;
        unsigned key = KEY_END;
        if (json_object_next(js, &text, &len)) {
            key = key_number(k, text, len);
            learn(k, from, key, pair);
        }
        read_event(k, key);
    }
}

static void *create(struct json *js)
{
    struct kineto *k = mem_array(1, sizeof *k);
    k->js = js;
    k->name_cache = mem_array(NAME_CACHE, sizeof *k->name_cache);
    k->guess_room = mem_array(N_CONTEXTS + 1, sizeof *k->guesses);
    k->guesses =
        (void *)(k->guess_room + 64 - (uintptr_t)k->guess_room % 64); /* a cache line each */
    return k;
}

static void destroy(void *reader)
{
    struct kineto *k = reader;
    mem_free(k->name_cache);
    mem_free(k->guess_room);
    strtab_fini(&k->other_keys);
    mem_free(k);
}

static bool read_piece(void *reader, struct trace_part *part, struct kineto_events *to)
{
    struct kineto *k = reader;
    strtab_add(&part->names, "", 0);
    kineto_events_begin(&k->to, part);
    bool is_whole = read_events(k, true);
    kineto_events_end(&k->to);
    *to = k->to;
    return is_whole;
}

static void read_array(struct kineto *k, bool may_stay_open)
{
    static const struct piece_reader reader = {create, read_piece, destroy};
    struct json *js = k->js;
    js->p++;
    k->broken = js->threads > 1 && json_peek(js) == '{' && !kineto_read_pieces(&reader, js, &k->to);
    if (!k->broken)
        read_events(k, may_stay_open);
    else
        json_stop(js, JSON_BAD);
}

struct distributed_info {
    int64_t rank, world_size;
    uint32_t backend;
};

static void read_groups(struct json_reader *r, void *out UNUSED, size_t offset UNUSED)
{
    JSON_EACH (r->js)
        part_read_group(r->arg, r->js, "pg_name", "pg_desc");
}

static void read_distributed_info(struct kineto *k)
{
    static const struct json_member members[] = {
        MEMBER(struct distributed_info, "rank", INT, rank),
        MEMBER(struct distributed_info, "world_size", INT, world_size),
        MEMBER(struct distributed_info, "backend", TEXT, backend),
        MEMBER_BY("pg_config", read_groups, 0),
        {NULL}};
    struct json_reader r = {.js = k->js, .strings = &k->to.part->names, .arg = k->to.part};
    struct distributed_info info = {.rank = -1, .backend = k->to.part->process.backend};
    json_read_object(&r, members, &info);
    part_set_rank(k->to.part, info.rank, info.world_size);
    k->to.part->process.backend = info.backend;
}

static void read_document(struct kineto *k)
{
    struct json *js = k->js;
    json_skip_mark(js);
    if (json_peek(js) == '[') {
        read_array(k, true);
        return;
    }
    JSON_KEYS (js, json_open_document(js), key, len) {
        int c = json_peek(js);
        if (c == '[' && json_is(key, len, "traceEvents")) {
            read_array(k, false);
        } else if (c == '{' && json_is(key, len, "distributedInfo")) {
            read_distributed_info(k);
        } else if (json_is(key, len, "baseTimeNanoseconds")) {
            int64_t base;
            if (json_read_decimal(js, 0, &base) == JSON_VALUE)
                k->to.part->base_ns = base;
        } else if (json_is(key, len, "host_name")) {
            k->to.part->process.host = read_string(k);
        } else {
            json_skip(js);
        }
    }
}

/* Pieces that can't be read apart; or something is wrong, and threads have read past it. */
static bool is_for_one_thread(const struct kineto *k)
{
    const struct json *js = k->js;
    bool is_told = js->fail == JSON_ENDED || (js->fail == JSON_OK && !js->in->damage);
    return k->broken || (js->threads > 1 && !is_told);
}

static int read_kineto(struct json *js, struct trace_part *part, struct dpro_error *err)
{
    struct kineto *k = create(js);
    strtab_add(&part->names, "", 0);
    kineto_events_begin(&k->to, part);
    read_document(k);
    kineto_events_end(&k->to);
    bool again = is_for_one_thread(k);
    destroy(k);
    if (!again)
        return 0;
    part_fini(part);
    *part = (struct trace_part){0};
    js->threads = 1;
    json_restart(js);
    return read_kineto(js, part, err);
}

/* PyTorch gives every event a category; some files have many events without one first. */
static bool recognise(const struct head *head)
{
    if (head->piece == HEAD_MEMBER)
        return text_is_one(head->key, "traceEvents", "schemaVersion", "deviceProperties");
    return head->piece == HEAD_EVENT ? head_field(head, "ph") && head_field(head, "cat")
                                     : head->piece == HEAD_END && head->only_names;
}

const struct reader kineto_reader = {
    .name = "kineto",
    .word = "profile",
    .one = "event",
    .many = "events",
    .encoding = "JSON",
    .flags = READER_VIEWED | READER_SEPARATE,
    .missing = {"PyTorch spans", "was the profiler active?", NO_SPANS},
    .recognise = recognise,
    .read_json = read_kineto,
    .reserve = kineto_reserve,
    .join_rank = kineto_join,
};
