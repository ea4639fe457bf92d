/* PyTorch profiler (Kineto) traces, every dialect from 2021 to 2026, and Chrome traces that look
 * like them.
 *
 * One pass: each event is read into a struct on the stack whatever the order of its keys. Most of
 * the text is arguments that nobody needs, which are skipped unread. Times stay relative here:
 * baseTimeNanoseconds may come behind the events. */

#include "ingest/pytorch/kineto_events.h"
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
    ARGUMENT(KEY_LABELS, "labels", STRING, EVENT, label)                                           \
    WORD(KEY_STREAM, "stream")                                                                     \
    WORD(KEY_STREAM_ID, "Stream Id")                                                               \
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
    WORD(KEY_CONCRETE_INPUTS, "Concrete Inputs")                                                   \
    ARGUMENT(KEY_GROUP_SIZE, "Group size", I32_OR_0, DETAIL, group_size)                           \
    ARGUMENT(KEY_CORRELATION, "correlation", U64, EVENT, correlation)                              \
    ARGUMENT(KEY_EXTERNAL_ID, "External id", U32, EVENT, external)                                 \
    ARGUMENT(KEY_EXTERNAL_ID_2021, "external id", U32, EVENT, external)                            \
    ARGUMENT(KEY_FWD_THREAD_ID, "Fwd thread id", U32, EVENT, fwd_thread)                           \
    ARGUMENT(KEY_IN_NELEMS, "In msg nelems", U64, DETAIL, numel)                                   \
    ARGUMENT(KEY_WAIT_ON_STREAM, "wait_on_stream", COUNT, DETAIL, wait_stream)                     \
    WORD(KEY_SYNC_KIND, "cuda_sync_kind")                                                          \
    ARGUMENT(KEY_SEQUENCE_NUMBER, "Sequence number", I32, EVENT, sequence)                         \
    ARGUMENT(KEY_COLLECTIVE_NAME, "Collective name", STRING, DETAIL, collective)                   \
    ARGUMENT(KEY_RECORD_FUNCTION_ID, "Record function id", U32, EVENT, record_fn)                  \
    ARGUMENT(KEY_GROUP_NAME, "Process Group Name", TEXT, DETAIL, process_group)                    \
    ARGUMENT(KEY_GROUP_RANKS, "Process Group Ranks", TEXT, DETAIL, group_ranks)                    \
    ARGUMENT(KEY_GROUP_DESC, "Process Group Description", TEXT, DETAIL, group_description)         \
    ARGUMENT(KEY_WAIT_ON_CORRELATION, "wait_on_cuda_event_record_corr_id", U64, DETAIL,            \
             wait_correlation)

#define KEY_OF(key, ...)        key,
#define TEXT_OF(key, text, ...) [key] = text,
enum key {
    KEY_END, /* no key: the object ended */
    KEYS(KEY_OF, KEY_OF) N_WANTED_KEYS,
    KEY_ANY = 127, /* any other, when the numbers have run out */
    N_KEYS,
};

static const char *const wanted_keys[N_WANTED_KEYS] = {[KEY_END] = "", KEYS(TEXT_OF, TEXT_OF)};

/* A guess at what comes after a value: commas, a key, its colon; and its value, where that is one
 * of few. Writers repeat themselves to the byte, so that comparing with what was there before is
 * mostly right, and the processor need not wait for the ends of keys and values to be found. */
struct guess {
    char text[40];
    struct kineto_place *next; /* what may come after it, or after the value that it leads to */
    int64_t value;             /* see read_value() */
    uint8_t len;               /* NO_GUESS: nothing learnt */
    uint8_t n_taken; /* of its characters: not the one behind a value, which tells its end */
    uint8_t key;
    bool on_stream; /* a tid that says so: "stream 7" */
};
enum { NO_GUESS = 255, N_GUESSES = 4, GUESS_BYTES = 64 };
_Static_assert(sizeof(struct guess) == GUESS_BYTES, "a guess is a line of the cache");

/* A place in an event, by what sort of event it is and by the key before. */
struct kineto_place {
    struct guess at[N_GUESSES]; /* the last learnt one first */
};
enum { N_PHASES = 8, N_SORTS = N_PHASES + SPAN_OTHER };

struct kineto {
    struct json *js;
    struct kineto_events to;
    bool broken; /* its pieces can't be read apart */
    uint32_t *name_cache;
    void *place_room;
    struct kineto_place *places; /* [0]: between two events */
    uint16_t n_places;
    uint16_t place_of[N_SORTS][N_KEYS]; /* 0: none yet */
    struct guess read;                  /* what was not guessed */
    struct strtab other_keys;           /* id + N_WANTED_KEYS - 1 is the key's number */
    struct strtab categories;           /* that are not known */
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

/* Takes a value that is one of few. */
static int64_t read_value(struct kineto *k, unsigned key, bool *on_stream)
{
    struct json *js = k->js;
    const char *text;
    size_t len;
    uint8_t flow;
    *on_stream = false;
    if (!json_scalar(js, &text, &len))
        return 0;
    *on_stream = key == KEY_TID && text_n_begins(text, len, "stream");
    if (key == KEY_PID || key == KEY_TID)
        return kineto_id(text, len);
    if (key == KEY_PH)
        return len == 1 ? text[0] : '?';
    unsigned kind = kineto_category(text, len, &flow);
    int64_t category = kind == KINETO_OTHER_KIND ? strtab_add(&k->categories, text, len) + 1 : 0;
    return kind | flow << 8 | category << 16;
}

/* What a key with its value tells of the event. */
static inline void kineto_tell(struct kineto_event *ev, const struct guess *guess)
{
    switch (guess->key) {
    case KEY_PH:
        ev->ph = (char)guess->value;
        break;
    case KEY_CAT:
        ev->kind = (uint8_t)guess->value;
        ev->flow = (uint8_t)(guess->value >> 8);
        ev->category = (uint32_t)(guess->value >> 16);
        break;
    case KEY_PID:
        ev->pid = (uint64_t)guess->value;
        break;
    case KEY_TID:
        ev->tid = guess->value;
        ev->on_stream |= guess->on_stream;
        break;
    }
}

static uint16_t add_place(struct kineto *k)
{
    for (int i = 0; i < N_GUESSES; i++)
        k->places[k->n_places].at[i].len = NO_GUESS;
    return k->n_places++;
}

static struct kineto_place *place_after(struct kineto *k, const struct kineto_event *ev,
                                        unsigned key)
{
    unsigned sort = ev->kind < SPAN_OTHER ? N_PHASES + ev->kind : (unsigned char)ev->ph % N_PHASES;
    uint16_t *at = &k->place_of[sort][key];
    if (*at == 0)
        *at = add_place(k);
    return &k->places[*at];
}

/* Reads the next key, and its value if that is one of few. What was taken since `from`
 * (json_offset then) is learnt, if it is still in the buffer and fits. */
static __attribute__((noinline)) const struct guess *
read_key(struct kineto *k, const struct kineto_event *ev, struct kineto_place *place, uint64_t from)
{
    struct json *js = k->js;
    struct guess *read = &k->read;
    const char *text;
    size_t len;
    bool told = false;
    struct kineto_event then = *ev;
    read->key = KEY_END;
    if (json_object_next(js, &text, &len))
        read->key = (uint8_t)key_number(k, text, len);
    if (read->key == KEY_PH || read->key == KEY_CAT || read->key == KEY_PID ||
        read->key == KEY_TID) {
        read->value = read_value(k, read->key, &read->on_stream);
        told = true;
        kineto_tell(&then, read);
    }
    read->next = place_after(k, &then, read->key);
    uint64_t n = json_offset(js) - from;
    if (js->fail != JSON_OK || from < js->buffer_offset || js->p == js->end || n == 0 ||
        n + told > sizeof read->text)
        return read;
    read->n_taken = (uint8_t)n;
    read->len = (uint8_t)(n + told);
    memcpy(read->text, js->p - n, read->len);
    memmove(place->at + 1, place->at, sizeof place->at - sizeof place->at[0]);
    place->at[0] = *read;
    return read;
}

/* What follows goes on by a pointer of its own, which stays in a register, where each value waits
 * for the end of the one before: js->p is in memory. */

/* The guess that is right; NULL: none. */
static inline const struct guess *find_guess(const struct kineto_place *place, const char *p)
{
    for (int i = 0; i < N_GUESSES; i++)
        if (json_begins(p, place->at[i].text, place->at[i].len))
            return &place->at[i];
    return NULL;
}

/* Takes the next key of an object, with what it tells of the event; KEY_END at its end and on
 * failure. */
static inline const struct guess *next_key(struct kineto *k, const struct kineto_event *ev,
                                           struct kineto_place *place, const char **p)
{
    const struct guess *guess = find_guess(place, *p);
    if (guess) {
        *p += guess->n_taken;
        return guess;
    }
    k->js->p = *p;
    guess = read_key(k, ev, place, json_offset(k->js));
    *p = k->js->p;
    return guess;
}

/* json_scalar(), which gives "" for what is none; it also skips any value. */
static inline const char *take_scalar(struct json *js, const char *p, const char **text,
                                      size_t *len)
{
    bool quoted = *p == '"';
    int n = quoted ? json_short_string(p + 1) : *p >= '-' && *p <= '9' ? json_short_token(p) : -1;
    if (n >= 0 && p + n < js->end) {
        *text = p + quoted;
        *len = (size_t)n;
        return p + n + 2 * quoted;
    }
    js->p = p;
    if (!json_scalar(js, text, len))
        *len = 0;
    return js->p;
}

static uint32_t kineto_intern(struct kineto *k, const char *text, size_t len)
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

/* The id of a string; of another value 0, or `raw` that of its text, "[0, 1]". */
static uint32_t read_text(struct kineto *k, bool raw)
{
    const char *text;
    size_t len;
    bool cut, quoted = json_peek(k->js) == '"';
    if (!quoted && !raw)
        return json_skip(k->js), 0;
    return (quoted ? json_string(k->js, &text, &len)
                   : json_raw(k->js, JSON_TEXT_MAX, &text, &len, &cut))
               ? kineto_intern(k, text, len)
               : 0;
}

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

static void read_other_arg(struct kineto *k, struct kineto_event *ev, unsigned key)
{
    struct json *js = k->js;
    const char *text;
    size_t len;
    unsigned flags;
    switch (key) {
    case KEY_CONCRETE_INPUTS:
        if (!ev->has_name || !(kineto_name_flags(&k->to, ev->name) & (NAME_COUNTED | NAME_TO_PEER)))
            break;
        ev->has_values = op_shapes_read(&k->to.values, js);
        return;
    case KEY_INPUT_DIMS:
    case KEY_INPUT_TYPE:
        flags = ev->has_name ? kineto_name_flags(&k->to, ev->name) : NAME_COMMUNICATION;
        if (!(flags & (NAME_COUNTED | NAME_COMMUNICATION)))
            break;
        if (key == KEY_INPUT_TYPE) {
            ev->dims_type = kineto_element_type(js, &k->to.part->names, &ev->type_first);
            return;
        }
        ev->has_inputs = op_shapes_read(&k->to.inputs, js) && flags & NAME_COUNTED;
        ev->dims_numel = k->to.inputs.numel;
        ev->dims_blank = k->to.inputs.blank;
        return;
    case KEY_BYTES:
        if (ev->kind != SPAN_MEMCPY && ev->kind != SPAN_MEMSET && ev->kind != KINETO_NO_KIND)
            break;
        k->to.detail.bytes = json_u64(js);
        k->to.detail_used = ev->has_detail = true;
        return;
    case KEY_SYNC_KIND:
        if (json_scalar(js, &text, &len))
            k->to.detail.sync = (int32_t)kineto_sync_kind(text, len);
        k->to.detail_used = true;
        return;
    case KEY_PH:
    case KEY_CAT:
    case KEY_PID:
    case KEY_TID:
        return; /* read with the key */
    default:
        break;
    }
    json_skip(js);
}

static const char *read_arg(struct kineto *k, struct kineto_event *ev, unsigned key, const char *p)
{
    const struct argument *argument = &arguments[key];
    void *const structs[] = {
        [OF_EVENT] = ev, [OF_DETAIL] = &k->to.detail, [OF_MEMORY] = &k->to.memory};
    void *at = (char *)structs[argument->of] + argument->offset;
    const char *text;
    size_t len;
    ev->on_stream |= key == KEY_STREAM || key == KEY_STREAM_ID;
    if (key >= N_WANTED_KEYS || key == KEY_STREAM || key == KEY_STREAM_ID)
        return take_scalar(k->js, p, &text, &len);
    if (argument->type && argument->of == OF_DETAIL)
        k->to.detail_used = ev->has_detail = true;
    if (argument->type && argument->type < ARGUMENT_STRING) {
        p = take_scalar(k->js, p, &text, &len);
        kineto_number(at, argument->type, text, len);
        return p;
    }
    k->js->p = p;
    if (argument->type)
        *(uint32_t *)at = read_text(k, argument->type == ARGUMENT_TEXT);
    else
        read_other_arg(k, ev, key);
    return k->js->p;
}

/* Returns what came before the place behind them. */
static const struct guess *read_args(struct kineto *k, struct kineto_event *ev,
                                     const struct guess *key, const char **p)
{
    struct json *js = k->js;
    js->p = *p;
    /* flows, other instants and counters carry nothing of use; python functions only their call
     * tree */
    bool is_memory =
        !ev->ph ||
        (ev->ph == 'i' && (!ev->has_name || kineto_name_flags(&k->to, ev->name) & NAME_MEMORY));
    if (json_peek(js) != '{' || (!is_memory && ev->ph != 'X' && ev->ph != 'M' && ev->ph != 'B') ||
        ev->kind == SPAN_PYTHON) {
        json_skip(js);
        *p = js->p;
        return key;
    }
    if (is_memory) {
        k->to.memory = kineto_no_memory;
        ev->has_memory = true;
    }
    const char *at = js->p + 1;
    while ((key = next_key(k, ev, key->next, &at))->key != KEY_END)
        at = read_arg(k, ev, key->key, at);
    *p = at;
    return key;
}

static const struct kineto_event no_event = {.kind = KINETO_NO_KIND, .sequence = -1};

/* One event from its first key on. */
static void read_event(struct kineto *k, const struct guess *key)
{
    struct json *js = k->js;
    const char *text, *p = js->p;
    size_t len;
    struct kineto_event ev = no_event;
    if (k->to.detail_used) {
        k->to.detail = kineto_no_detail;
        k->to.detail_used = false;
    }
    for (; key->key != KEY_END; key = next_key(k, &ev, key->next, &p)) {
        switch (key->key) {
        case KEY_PH:
        case KEY_CAT:
        case KEY_PID:
        case KEY_TID:
            kineto_tell(&ev, key);
            break;
        case KEY_NAME:
            js->p = p;
            ev.name = read_text(k, false);
            ev.has_name = true;
            p = js->p;
            break;
        case KEY_ARGS:
            key = read_args(k, &ev, key, &p);
            break;
        default:
            p = take_scalar(js, p, &text, &len);
            if (key->key == KEY_TS)
                ev.ts = json_decimal(text, len, 3, &ev.ts_ns);
            else if (key->key == KEY_DUR)
                ev.dur = json_decimal(text, len, 3, &ev.dur_ns);
            else if (key->key == KEY_ID)
                ev.flow_id = (uint64_t)kineto_id(text, len);
        }
    }
    js->p = p;
    if (js->fail != JSON_OK)
        return; /* an event that is cut off is left out */
    if (ev.category)
        ev.category = kineto_intern(k, strtab_get(&k->categories, ev.category - 1),
                                    strtab_len(&k->categories, ev.category - 1));
    kineto_take(&k->to, &ev);
}

/* A bare array that is left open is how some writers end: only a cut event is a loss then. Returns
 * whether it was left open. */
static bool read_events(struct kineto *k, bool may_stay_open)
{
    struct json *js = k->js;
    for (;;) {
        const struct guess *key = find_guess(k->places, js->p);
        if (key) {
            js->p += key->n_taken;
            read_event(k, key);
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
        read_event(k, read_key(k, &no_event, k->places, from));
    }
}

static void *kineto_create(struct json *js)
{
    struct kineto *k = mem_array(1, sizeof *k);
    k->js = js;
    k->name_cache = mem_array(NAME_CACHE, sizeof *k->name_cache);
    size_t n_places = (size_t)N_SORTS * N_KEYS + 2;
    k->place_room = mem_array(n_places, sizeof *k->places); /* taken from the system when used */
    k->places = (void *)(((uintptr_t)k->place_room | (GUESS_BYTES - 1)) + 1);
    add_place(k);
    return k;
}

static void kineto_destroy(void *reader)
{
    struct kineto *k = reader;
    strtab_fini(&k->other_keys);
    strtab_fini(&k->categories);
    FREE_ALL(&k->name_cache, &k->place_room, &k);
}

static bool read_piece(void *reader, struct trace_part *part, struct kineto_events *to)
{
    struct kineto *k = reader;
    kineto_events_begin(&k->to, part);
    bool is_whole = read_events(k, true);
    kineto_events_end(&k->to);
    *to = k->to;
    return is_whole;
}

static void read_array(struct kineto *k, bool may_stay_open)
{
    static const struct piece_reader reader = {kineto_create, read_piece, kineto_destroy};
    struct json *js = k->js;
    js->p++;
    k->broken = js->threads > 1 && json_peek(js) == '{' && !kineto_read_pieces(&reader, js, &k->to);
    if (!k->broken)
        read_events(k, may_stay_open);
    else
        json_stop(js, JSON_BAD);
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
            kineto_job(js, k->to.part);
        } else if (c == '[' && json_is(key, len, "deviceProperties")) {
            kineto_devices(js, k->to.part);
        } else if (json_is(key, len, "baseTimeNanoseconds")) {
            int64_t base;
            if (json_read_decimal(js, 0, &base) == JSON_VALUE)
                k->to.part->base_ns = base;
        } else if (json_is(key, len, "host_name")) {
            k->to.part->process.host = read_text(k, false);
        } else {
            json_skip(js);
        }
    }
}

static int read_kineto(struct json *js, struct trace_part *part, struct dpro_error *err)
{
    struct kineto *k = kineto_create(js);
    kineto_events_begin(&k->to, part);
    read_document(k);
    /* pieces that can't be read apart; or something is wrong, and threads have read past it */
    bool again = k->broken || (js->threads > 1 && js->fail != JSON_ENDED &&
                               (js->fail != JSON_OK || js->in->damage));
    if (!again)
        kineto_settle_rows(&k->to);
    kineto_events_end(&k->to);
    kineto_destroy(k);
    if (!again)
        return 0;
    part_fini(part);
    *part = (struct trace_part){0};
    js->threads = 1;
    json_restart(js);
    return read_kineto(js, part, err);
}

/* PyTorch gives every event a category; some files have many events without one first. */
static bool kineto_recognise(const struct head *head)
{
    if (head->piece == HEAD_MEMBER)
        return text_is_one(head->key, "traceEvents", "schemaVersion", "deviceProperties");
    const char *phase = head->piece == HEAD_EVENT ? head_field(head, "ph") : NULL;
    const char *category = phase ? head_field(head, "cat") : NULL;
    return head->piece == HEAD_EVENT ? category && strcmp(category, "Op") != 0 &&
                                           !text_is_one(phase, "b", "n", "e") /* others' */
                                     : head->piece == HEAD_END && head->only_names;
}

const struct reader kineto_reader = {
    .name = "kineto",
    .word = "profile",
    .encoding = "JSON",
    .flags = READER_VIEWED | READER_SEPARATE,
    .missing = {"PyTorch spans", "was the profiler active?", NO_SPANS},
    .recognise = kineto_recognise,
    .read_json = read_kineto,
    .join_rank = kineto_join,
};
