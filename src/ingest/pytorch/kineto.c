/* ingest/pytorch/kineto.c: PyTorch profiler (Kineto) traces, every dialect from 2021 to 2026, and
 * Chrome traces that look like them.
 *
 * One pass: each event is read into a struct on the stack whatever the order of its keys, and kept
 * as a 64-byte span when it is an interval of work. Most of the text is arguments that nobody
 * needs; keys are told apart by their length first, and what is not wanted is skipped unread. Times
 * stay relative here: baseTimeNanoseconds may come behind the events. */
#include <string.h>

#include "base/map.h"
#include "base/memory.h"
#include "ingest/pytorch/kineto.h"
#include "ingest/pytorch/kineto_words.h"

enum { KIND_NONE = 255, NAME_CACHE = 4096, MAX_OPEN = 1 << 20 };

enum name_flag { NAME_SEEN = 1, NAME_COMMUNICATION = 2, NAME_MODULE = 4, NAME_MEMORY = 8 };

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

struct event {
    int64_t ts_ns, dur_ns;
    uint64_t pid, flow_id, correlation;
    int64_t tid;
    uint32_t name, external, record_fn, fwd_thread;
    int32_t sequence;
    uint8_t kind, flow;
    char ph;
    enum json_value ts, dur; /* JSON_NO_VALUE: none or not a number */
    bool has_name, has_detail, has_memory;
    uint32_t label; /* thread_name's or process_name's args.name */
    uint64_t dims_numel;
    uint32_t dims_type;
    bool dims_blank,
        type_first; /* the first input: its dimensions are [], it has an element type */
};

static const struct trace_detail no_detail = {DETAIL_UNKNOWN};

/* A B event that waits for its E, in a list per (pid, tid). */
struct open_span {
    struct event event;
    struct trace_detail detail;
    uint32_t below; /* index + 1 of the one that was open before it */
};

struct kineto {
    struct json *js;
    struct trace_part *part;
    struct kineto_part *more;
    uint32_t *name_cache;
    ARRAY(uint8_t) name_flags; /* by name id */
    struct map tracks;         /* hash of (pid, tid, whether of a GPU) -> index */
    uint32_t last_track[2];    /* of the CPU, of the GPU */
    struct map stacks;         /* hash of (pid, tid) -> index + 1 of the innermost open span */
    ARRAY(struct open_span) open;
    uint32_t free_open; /* list of unused slots in `open`, index + 1 */
    uint64_t n_external_is_correlation, n_external_differs;
    struct trace_detail detail; /* of the event being read; no_detail unless detail_used */
    bool detail_used;
    struct kineto_memory memory;          /* of the instant being read */
    struct guess_pair (*guesses)[N_KEYS]; /* [N_CONTEXTS]: after which key */
    struct guess_pair between;            /* from one event into the next */
    struct strtab other_keys;             /* id + N_WANTED_KEYS - 1 is the key's number */
};

/* A key's number; the slow way, when no guess was right. */
static unsigned key_number(struct kineto *k, const char *key, size_t len)
{
    for (unsigned i = 1; i < N_WANTED_KEYS; i++)
        if (strlen(wanted_keys[i]) == len && memcmp(wanted_keys[i], key, len) == 0)
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
    const struct strtab_entry *entry = &k->part->names.entries[*slot];
    if (*slot < k->part->names.n && entry->len == len && memcmp(entry->text, text, len) == 0)
        return *slot;
    return *slot = strtab_add(&k->part->names, text, len);
}

static __attribute__((noinline)) uint8_t learn_name(struct kineto *k, uint32_t name)
{
    if (name >= k->name_flags.n) {
        size_t extra = k->part->names.n - k->name_flags.n;
        array_reserve(&k->name_flags, extra);
        memset(k->name_flags.at + k->name_flags.n, 0, extra);
        k->name_flags.n += extra;
    }
    const char *text = strtab_get(&k->part->names, name);
    size_t len = strtab_len(&k->part->names, name);
    unsigned flags = kineto_module(text, &len)            ? NAME_MODULE
                     : json_is(text, len, "[memory]")     ? NAME_MEMORY
                     : kineto_is_communication(text, len) ? NAME_COMMUNICATION
                                                          : 0;
    return k->name_flags.at[name] = (uint8_t)(NAME_SEEN | flags);
}

static inline uint8_t name_flags(struct kineto *k, uint32_t name)
{
    uint8_t flags = name < k->name_flags.n ? k->name_flags.at[name] : 0;
    return flags ? flags : learn_name(k, name);
}

static bool name_is_communication(struct kineto *k, uint32_t name)
{
    return name_flags(k, name) & NAME_COMMUNICATION;
}

static bool on_gpu(unsigned kind)
{
    return kind == SPAN_KERNEL || kind == SPAN_MEMCPY || kind == SPAN_MEMSET ||
           kind == SPAN_GPU_ANNOTATION || kind == SPAN_SYNC;
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

/* "Input type": the first that names an element type; in `first` whether that is the first input's.
 */
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

#define EVENT  struct event
#define DETAIL struct trace_detail
#define MEMORY struct kineto_memory
#define NO_ARGUMENT(key, text)
#define ARGUMENT_AT(key, text, type, of, member)                                                   \
    [key] = {ARGUMENT_##type, OF_##of, offsetof(of, member)},
static const struct argument {
    uint8_t type, of;
    uint16_t offset;
} arguments[N_KEYS] = {KEYS(NO_ARGUMENT, ARGUMENT_AT)};

static void read_plain_arg(struct kineto *k, struct event *ev, const struct argument *argument)
{
    void *const structs[] = {[OF_EVENT] = ev, [OF_DETAIL] = &k->detail, [OF_MEMORY] = &k->memory};
    void *at = (char *)structs[argument->of] + argument->offset;
    struct json *js = k->js;
    int64_t v;
    if (argument->of == OF_DETAIL)
        k->detail_used = ev->has_detail = true;
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

static void read_arg(struct kineto *k, struct event *ev, unsigned key)
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
        if (ev->kind != SPAN_MEMCPY && ev->kind != SPAN_MEMSET && ev->kind != KIND_NONE)
            break;
        k->detail.bytes = json_u64(js);
        k->detail_used = ev->has_detail = true;
        return;
    case KEY_WAIT_ON_STREAM:
        k->detail_used = true;
        k->detail.wait_stream = json_read_decimal(js, 0, &v) == JSON_VALUE ? v : -1;
        return;
    case KEY_WAIT_ON_CORRELATION:
        k->detail_used = true;
        k->detail.wait_correlation = json_u64(js);
        return;
    case KEY_SYNC_KIND:
        if (json_scalar(js, &text, &len))
            k->detail.sync = (int32_t)kineto_sync_kind(text, len);
        k->detail_used = true;
        return;
    default:
        break;
    }
    json_skip(js);
}

static void read_args(struct kineto *k, struct event *ev)
{
    struct json *js = k->js;
    /* flows, other instants and counters carry nothing of use; python functions only their call
     * tree */
    bool is_memory =
        !ev->ph || (ev->ph == 'i' && (!ev->has_name || name_flags(k, ev->name) & NAME_MEMORY));
    if (json_peek(js) != '{' || (!is_memory && ev->ph != 'X' && ev->ph != 'M' && ev->ph != 'B') ||
        ev->kind == SPAN_PYTHON) {
        json_skip(js);
        return;
    }
    js->p++;
    if (is_memory) {
        k->memory = kineto_no_memory;
        ev->has_memory = true;
    }
    unsigned context =
        N_PHASES + (ev->kind <= SPAN_OTHER && ev->ph != 'i' ? ev->kind : SPAN_OTHER + 1);
    for (unsigned key = KEY_ARGS; (key = next_key(k, context, key)) != KEY_END;)
        read_arg(k, ev, key);
}

static uint32_t find_track(struct kineto *k, bool gpu, uint64_t pid, int64_t id)
{
    struct trace_part *part = k->part;
    uint32_t last = k->last_track[gpu];
    if (last < part->tracks.n && part->tracks.at[last].track.pid == pid &&
        part->tracks.at[last].track.id == id && part->tracks.at[last].track.gpu == gpu)
        return last;
    uint64_t key = map_mix(map_mix(pid * 2 + gpu) ^ (uint64_t)id) | 1;
    uint32_t index = (uint32_t)map_number(&k->tracks, key);
    if (index >= UINT32_MAX / 4)
        mem_fail();
    if (index == part->tracks.n)
        array_push(&part->tracks,
                   ((struct part_track){.track = {.gpu = gpu, .pid = pid, .id = id}}));
    return k->last_track[gpu] = index;
}

/* The recorder's marks are annotations, or ops where they were made in C++. */
static bool is_module_mark(struct kineto *k, const struct event *ev)
{
    return (ev->kind == SPAN_CPU_OP || ev->kind == SPAN_ANNOTATION ||
            ev->kind == SPAN_GPU_ANNOTATION) &&
           name_flags(k, ev->name) & NAME_MODULE;
}

static void add_span(struct kineto *k, struct event *ev)
{
    struct trace_part *part = k->part;
    if (ev->kind >= SPAN_OTHER)
        return;
    if (ev->ts != JSON_VALUE) {
        part->losses.n_no_time += ev->ts == JSON_NO_VALUE;
        part->losses.n_overflow += ev->ts == JSON_SATURATED;
        return;
    }
    int64_t end_ns;
    if (ev->dur == JSON_NO_VALUE) {
        part->losses.n_no_dur++;
        return;
    }
    if (ev->dur_ns < 0) {
        part->losses.n_negative++;
        return;
    }
    if (ev->dur == JSON_SATURATED || __builtin_add_overflow(ev->ts_ns, ev->dur_ns, &end_ns) ||
        !trace_time_fits(ev->ts_ns) || !trace_time_fits(end_ns)) {
        part->losses.n_overflow++;
        return;
    }
    bool gpu = on_gpu(ev->kind);
    if (is_module_mark(k, ev)) {
        if (!gpu) /* on a stream it is the shadow of one */
            kineto_add_call(part, find_track(k, false, ev->pid, ev->tid), ev->name, ev->ts_ns,
                            end_ns);
        return;
    }
    uint32_t track = find_track(k, gpu, ev->pid, ev->tid);
    struct trace_span *span = part_add_span(part);
    *span = (struct trace_span){
        .start_ns = ev->ts_ns,
        .dur_ns = ev->dur_ns,
        .correlation = ev->correlation,
        .name = ev->name,
        .track = track,
        .external = ev->external,
        .record_fn = ev->record_fn,
        .fwd_thread = ev->fwd_thread,
        .kind = ev->kind,
        SPAN_UNKNOWN,
    };
    span->sequence = ev->sequence;
    part_count_span(part, span);
    if ((ev->dims_numel || ev->dims_type) && name_is_communication(k, ev->name)) {
        if (!k->detail.numel)
            k->detail.numel = ev->dims_blank && ev->type_first ? 1 : ev->dims_numel;
        if (!k->detail.dtype)
            k->detail.dtype = ev->dims_type;
        k->detail_used = ev->has_detail = true;
    }
    if (ev->kind == SPAN_SYNC) {
        if (k->detail.sync == SYNC_NONE)
            k->detail.sync = (int32_t)kineto_sync_kind(strtab_get(&part->names, ev->name),
                                                       strtab_len(&part->names, ev->name));
        k->detail_used = ev->has_detail = true;
    }
    if (ev->has_detail) {
        span->detail = (uint32_t)part->details.n;
        array_push(&part->details, k->detail);
    }
    if (ev->correlation && !k->more->has_correlation) {
        k->more->has_correlation = true;
        array_fini(&k->more->launches);
    }
    if (ev->record_fn)
        part->has_record_fn = true;
    if (gpu && ev->kind != SPAN_GPU_ANNOTATION && ev->external && ev->correlation) {
        k->n_external_is_correlation += ev->external == (uint32_t)ev->correlation;
        k->n_external_differs += ev->external != (uint32_t)ev->correlation;
    }
    if (!gpu && !part->process.pid)
        part->process.pid = ev->pid;
}

static void add_flow(struct kineto *k, const struct event *ev)
{
    if (ev->ts != JSON_VALUE || ev->flow == FLOW_NONE)
        return;
    if (ev->flow == FLOW_LAUNCH && k->more->has_correlation)
        return;
    /* both ends of a launch name a thread or a stream; which, is seen when spans are known */
    struct kineto_flow flow = {.ts_ns = ev->ts_ns,
                               .id = ev->flow_id,
                               .track = find_track(k, false, ev->pid, ev->tid),
                               .start = ev->ph == 's'};
    if (ev->flow == FLOW_FWDBWD)
        array_push(&k->more->links, flow);
    else
        array_push(&k->more->launches, flow);
}

static void add_instant(struct kineto *k, const struct event *ev)
{
    if (!(name_flags(k, ev->name) & NAME_MEMORY))
        return;
    if (ev->ts == JSON_VALUE && trace_time_fits(ev->ts_ns))
        kineto_add_allocation(k->part, find_track(k, false, ev->pid, ev->tid), ev->ts_ns,
                              ev->has_memory ? &k->memory : &kineto_no_memory);
    else
        k->part->losses.n_allocations++;
}

static uint64_t stack_key(const struct event *ev)
{
    uint64_t key = map_mix(map_mix(ev->pid + 1) ^ (uint64_t)ev->tid);
    return key ? key : 1;
}

static void open_span(struct kineto *k, const struct event *ev)
{
    uint64_t below = 0, key = stack_key(ev);
    map_get(&k->stacks, key, &below);
    uint32_t slot = k->free_open;
    if (slot) {
        k->free_open = k->open.at[slot - 1].below;
    } else if (k->open.n >= MAX_OPEN) {
        k->part->losses.n_unpaired++;
        return;
    } else {
        array_add(&k->open, 0);
        slot = (uint32_t)k->open.n;
    }
    k->open.at[slot - 1] = (struct open_span){*ev, k->detail, (uint32_t)below};
    map_set(&k->stacks, key, slot);
}

static void close_span(struct kineto *k, const struct event *end)
{
    uint64_t slot = 0, key = stack_key(end);
    if (!map_get(&k->stacks, key, &slot) || slot == 0) {
        k->part->losses.n_unpaired++;
        return;
    }
    struct open_span *open = &k->open.at[slot - 1];
    struct event ev = open->event;
    k->detail = open->detail;
    k->detail_used = true;
    map_set(&k->stacks, key, open->below);
    open->below = k->free_open;
    k->free_open = (uint32_t)slot;
    ev.dur = end->ts == JSON_NO_VALUE || ev.ts == JSON_NO_VALUE ? JSON_NO_VALUE : JSON_VALUE;
    if (ev.dur == JSON_VALUE && __builtin_sub_overflow(end->ts_ns, ev.ts_ns, &ev.dur_ns))
        ev.dur = JSON_SATURATED;
    add_span(k, &ev);
}

static void add_label(struct kineto *k, const struct event *ev)
{
    const struct strtab *names = &k->part->names;
    if (!json_is(strtab_get(names, ev->name), strtab_len(names, ev->name), "thread_name"))
        return;
    array_add(&k->part->labels, ev->pid, ev->tid, ev->label);
}

/* One event from its first key on. */
static void read_event(struct kineto *k, unsigned key)
{
    struct json *js = k->js;
    const char *text;
    size_t len;
    struct event ev;
    memset(&ev, 0, sizeof ev);
    ev.kind = KIND_NONE;
    ev.sequence = -1;
    if (k->detail_used) {
        k->detail = no_detail;
        k->detail_used = false;
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
    k->part->n_events++;
    switch (ev.ph) {
    case 'X':
        add_span(k, &ev);
        break;
    case 'B':
        open_span(k, &ev);
        break;
    case 'E':
        close_span(k, &ev);
        break;
    case 's':
    case 'f':
        add_flow(k, &ev);
        break;
    case 'M':
        add_label(k, &ev);
        break;
    case 'i':
        add_instant(k, &ev);
        break;
    default:
        break;
    }
}

/* A bare array that is left open is how some writers end: only a cut event is a loss then. */
static void read_events(struct kineto *k, bool may_stay_open)
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
        if ((c < 0 && may_stay_open && js->fail == JSON_OK) || !json_array_next(js))
            return;
        if (json_peek(js) != '{') {
            k->part->losses.n_broken++;
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
    struct json_reader r = {.js = k->js, .strings = &k->part->names, .arg = k->part};
    struct distributed_info info = {.rank = -1, .backend = k->part->process.backend};
    json_read_object(&r, members, &info);
    part_set_rank(k->part, info.rank, info.world_size);
    k->part->process.backend = info.backend;
}

static void read_document(struct kineto *k)
{
    struct json *js = k->js;
    json_skip_mark(js);
    if (json_peek(js) == '[') {
        js->p++;
        read_events(k, true);
        return;
    }
    JSON_KEYS (js, json_open_document(js), key, len) {
        int c = json_peek(js);
        if (c == '[' && json_is(key, len, "traceEvents")) {
            js->p++;
            read_events(k, false);
        } else if (c == '{' && json_is(key, len, "distributedInfo")) {
            read_distributed_info(k);
        } else if (json_is(key, len, "baseTimeNanoseconds")) {
            int64_t base;
            if (json_read_decimal(js, 0, &base) == JSON_VALUE)
                k->part->base_ns = base;
        } else if (json_is(key, len, "host_name")) {
            k->part->process.host = read_string(k);
        } else {
            json_skip(js);
        }
    }
}

static int read_kineto(struct json *js, struct trace_part *part, struct dpro_error *err UNUSED)
{
    struct kineto k = {.js = js, .part = part, .last_track = {NO_ID, NO_ID}, .detail_used = true};
    k.name_cache = mem_array(NAME_CACHE, sizeof *k.name_cache);
    char *guesses = mem_array(N_CONTEXTS + 1, sizeof *k.guesses);
    k.guesses = (void *)(guesses + 64 - (uintptr_t)guesses % 64); /* a cache line each */
    k.more = part_make_payload(part, &kineto_payload);
    strtab_add(&part->names, "", 0);
    read_document(&k);
    for (size_t i = 0; i < k.stacks.n_slots; i++)
        for (uint64_t slot = k.stacks.slots[i].key ? k.stacks.slots[i].value : 0; slot;
             slot = k.open.at[slot - 1].below)
            part->losses.n_unpaired++;
    part->external_is_op = k.n_external_differs > k.n_external_is_correlation;
    mem_free(k.name_cache);
    mem_free(guesses);
    strtab_fini(&k.other_keys);
    map_fini(&k.tracks);
    map_fini(&k.stacks);
    array_fini(&k.name_flags);
    array_fini(&k.open);
    return 0;
}

/* PyTorch gives every event a category; some files have many events before the first that has one.
 */
static bool recognise(const struct head *head)
{
    if (head->piece == HEAD_MEMBER)
        return strcmp(head->key, "traceEvents") == 0 || strcmp(head->key, "schemaVersion") == 0 ||
               strcmp(head->key, "deviceProperties") == 0;
    return head->piece == HEAD_EVENT ? head_field(head, "ph") && head_field(head, "cat")
                                     : head->piece == HEAD_END && head->only_names;
}

const struct reader kineto_reader = {
    .name = "kineto",
    .word = "profile",
    .one = "event",
    .many = "events",
    .encoding = "JSON",
    .flags = READER_VIEWED,
    .missing = {"PyTorch spans", "was the profiler active?", NO_SPANS},
    .recognise = recognise,
    .read_json = read_kineto,
    .reserve = kineto_reserve,
    .join_rank = kineto_join,
};
