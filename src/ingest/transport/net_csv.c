/* Transport logs as CSV, one line a socket call; see doc/formats/net-csv.md.
 *
 * Fields are found by a table from the header line, so that columns may come in any order and ones
 * that we don't know are passed over. A connection is known by its number and both addresses: their
 * text is interned as one, and its id is the connection's. */

#include "ingest/readers.h"
#include "ingest/transport/ps.h"

#define COLUMNS(COLUMN)                                                                            \
    COLUMN(NONE, "")                                                                               \
    COLUMN(START, "t_start_ns")                                                                    \
    COLUMN(END, "t_end_ns")                                                                        \
    COLUMN(RANK, "rank")                                                                           \
    COLUMN(TID, "tid")                                                                             \
    COLUMN(CONN, "conn")                                                                           \
    COLUMN(LOCAL, "local")                                                                         \
    COLUMN(REMOTE, "remote")                                                                       \
    COLUMN(DIR, "dir")                                                                             \
    COLUMN(CALL, "call")                                                                           \
    COLUMN(OFFSET, "offset")                                                                       \
    COLUMN(REQUESTED, "requested")                                                                 \
    COLUMN(RETURNED, "returned")                                                                   \
    COLUMN(NBYTES, "gloo_nbytes")                                                                  \
    COLUMN(OPCODE, "gloo_opcode")                                                                  \
    COLUMN(PREFIX, "gloo_prefix")                                                                  \
    COLUMN(TAG, "gloo_tag")                                                                        \
    COLUMN(DELTA, "gloo_delta")                                                                    \
    COLUMN(LEN, "gloo_len")

#define COLUMN_NUMBER(name, text) COLUMN_##name,
#define COLUMN_NAME(name, text)   text,
enum column { COLUMNS(COLUMN_NUMBER) COLUMN_ENDS /* "local>remote" */, N_COLUMNS };
static const char *const column_names[] = {COLUMNS(COLUMN_NAME)};

enum { MAX_ENDS = 256 };

struct csv {
    struct trace_part *part;
    struct net_transport *out;
    uint8_t columns[PART_FIELDS_MAX]; /* enum column of each field */
    size_t n_columns;
    struct strtab ends; /* "number,local,remote" -> id - 1 is the connection's index */
    uint32_t last;      /* the id found last */
    struct ps_assembler frames;
    uint64_t receiving; /* the source of the message that frames are received of; 0: none */
};

/* The header of other captures: "#
 * op,local>peer,stream_offset,bytes,t0_ns,t1_ns(CLOCK_REALTIME),tid | ...". */
static bool read_other_header(struct csv *csv, const char *line, size_t len)
{
    static const char start[] = "# op,local>peer,stream_offset,bytes,t0_ns,t1_ns";
    static const uint8_t order[] = {COLUMN_CALL,  COLUMN_ENDS, COLUMN_OFFSET, COLUMN_RETURNED,
                                    COLUMN_START, COLUMN_END,  COLUMN_TID};
    if (len < sizeof start - 1 || memcmp(line, start, sizeof start - 1) != 0)
        return false;
    memcpy(csv->columns, order, sizeof order);
    csv->n_columns = sizeof order;
    return true;
}

static bool read_header(struct csv *csv, const char *line, size_t len)
{
    struct part_field fields[PART_FIELDS_MAX];
    bool seen[N_COLUMNS] = {false};
    if (read_other_header(csv, line, len))
        return true;
    csv->n_columns = part_split_line(line, len, fields);
    for (size_t i = 0; i < csv->n_columns; i++) {
        csv->columns[i] = COLUMN_NONE;
        for (uint8_t c = 1; c < COLUMN_ENDS; c++)
            if (text_n_is(fields[i].text, fields[i].len, column_names[c]) && !seen[c]) {
                csv->columns[i] = c;
                seen[c] = true;
            }
    }
    return seen[COLUMN_START] && seen[COLUMN_END] && seen[COLUMN_LOCAL] && seen[COLUMN_REMOTE] &&
           seen[COLUMN_DIR] && seen[COLUMN_OFFSET] && seen[COLUMN_RETURNED];
}

static bool net_csv_number(struct part_field field, uint64_t max, uint64_t *value)
{
    return net_parse_number(field.text, field.len, 10, max, value);
}

/* The connection of a line; NO_ID when its ends are no addresses. */
static uint32_t find_connection(struct csv *csv, struct part_field conn, struct part_field local,
                                struct part_field remote)
{
    char key[MAX_ENDS];
    size_t len = conn.len + local.len + remote.len + 2;
    if (len > sizeof key)
        return NO_ID;
    memcpy(key, conn.text, conn.len);
    key[conn.len] = ',';
    memcpy(key + conn.len + 1, local.text, local.len);
    key[conn.len + 1 + local.len] = ',';
    memcpy(key + conn.len + local.len + 2, remote.text, remote.len);
    if (csv->last && strtab_len(&csv->ends, csv->last) == len &&
        memcmp(strtab_get(&csv->ends, csv->last), key, len) == 0)
        return csv->last - 1;
    uint32_t id = strtab_find(&csv->ends, key, len);
    if (id != STRTAB_NONE)
        return (csv->last = id) - 1;
    struct net_connection fresh = {.number = csv->ends.n - 1, .whole = true, NET_UNTIED};
    uint64_t value;
    if (net_csv_number(conn, UINT32_MAX, &value))
        fresh.number = (uint32_t)value;
    if (!net_address_parse(local.text, local.len, &fresh.local) ||
        !net_address_parse(remote.text, remote.len, &fresh.remote))
        return NO_ID;
    if (csv->ends.n >= NO_ID / 2)
        mem_fail();
    array_push(&csv->out->connections, fresh);
    return (csv->last = strtab_add(&csv->ends, key, len)) - 1;
}

/* 1: sent, 0: received, -1: neither. */
static int net_csv_direction(const struct part_field *fields)
{
    struct part_field dir = fields[COLUMN_DIR], call = fields[COLUMN_CALL];
    if (dir.len == 2)
        return memcmp(dir.text, "tx", 2) == 0 ? 1 : memcmp(dir.text, "rx", 2) == 0 ? 0 : -1;
    if (dir.len > 0 || call.len < 4 || memchr(call.text, '_', call.len)) /* zmq_msg_send */
        return -1;
    if (memcmp(call.text, "send", 4) == 0 || memcmp(call.text, "writ", 4) == 0)
        return 1;
    return memcmp(call.text, "recv", 4) == 0 || memcmp(call.text, "read", 4) == 0 ? 0 : -1;
}

static uint64_t number_or_0(struct part_field field, uint64_t max)
{
    uint64_t value;
    return net_csv_number(field, max, &value) ? value : 0;
}

/* What a line says of a gloo message that begins with it; false: no valid message. */
static bool read_message(struct csv *csv, const struct part_field at[N_COLUMNS],
                         const struct net_transfer *transfer)
{
    struct net_message message = {
        .offset = transfer->offset, .stream = transfer->stream, NET_UNTIMED};
    uint64_t opcode, prefix, tag;
    if (!net_csv_number(at[COLUMN_NBYTES], INT64_MAX, &message.size_bytes) ||
        message.size_bytes < GLOO_PREAMBLE_BYTES ||
        !net_csv_number(at[COLUMN_OPCODE], 255, &opcode) ||
        !net_csv_number(at[COLUMN_PREFIX], 255, &prefix) ||
        !net_csv_number(at[COLUMN_TAG], UINT32_MAX, &tag))
        return false;
    message.opcode = (uint8_t)opcode;
    message.length = opcode == GLOO_DATA ? message.size_bytes - GLOO_PREAMBLE_BYTES
                                         : number_or_0(at[COLUMN_LEN], INT64_MAX);
    message.prefix = (uint8_t)prefix;
    message.tag = (uint32_t)tag;
    message.delta = (uint32_t)number_or_0(at[COLUMN_DELTA], UINT32_MAX);
    array_push(&csv->out->messages, message);
    return true;
}

static bool place_fields(const struct csv *csv, const char *line, size_t len,
                         struct part_field at[N_COLUMNS])
{
    struct part_field fields[PART_FIELDS_MAX];
    if (part_split_line(line, len, fields) < csv->n_columns)
        return false;
    for (size_t c = 0; c < N_COLUMNS; c++)
        at[c] = (struct part_field){"", 0};
    for (size_t i = 0; i < csv->n_columns; i++)
        at[csv->columns[i]] = fields[i];
    struct part_field ends = at[COLUMN_ENDS];
    const char *arrow = memchr(ends.text, '>', ends.len);
    if (arrow) {
        at[COLUMN_LOCAL] = (struct part_field){ends.text, (size_t)(arrow - ends.text)};
        at[COLUMN_REMOTE] = (struct part_field){arrow + 1, ends.len - at[COLUMN_LOCAL].len - 1};
    }
    return arrow || ends.len == 0;
}

/* False: no valid line. */
static bool read_line(struct csv *csv, const char *line, size_t len)
{
    struct part_field at[N_COLUMNS];
    uint64_t start, end, offset, bytes, rank;
    if (!place_fields(csv, line, len, at))
        return false;
    int sends = net_csv_direction(at);
    if (sends < 0 || !net_csv_number(at[COLUMN_START], TRACE_TIME_MAX, &start) ||
        !net_csv_number(at[COLUMN_END], TRACE_TIME_MAX, &end) || end < start ||
        !net_csv_number(at[COLUMN_OFFSET], INT64_MAX, &offset) ||
        !net_csv_number(at[COLUMN_RETURNED], UINT32_MAX, &bytes))
        return false;
    uint32_t connection =
        find_connection(csv, at[COLUMN_CONN], at[COLUMN_LOCAL], at[COLUMN_REMOTE]);
    if (connection == NO_ID)
        return false;
    struct net_transfer transfer = {
        .start_ns = (int64_t)start,
        .end_ns = (int64_t)end,
        .offset = offset,
        .bytes = (uint32_t)bytes,
        .requested = (uint32_t)number_or_0(at[COLUMN_REQUESTED], UINT32_MAX),
        .stream = connection * 2 + !sends,
        .thread = (uint32_t)number_or_0(at[COLUMN_TID], UINT32_MAX),
        .call = net_call_find(at[COLUMN_CALL].text, at[COLUMN_CALL].len)};
    array_push(&csv->out->transfers, transfer);
    if (!csv->part->process.has_rank && net_csv_number(at[COLUMN_RANK], INT32_MAX, &rank)) {
        csv->part->process.has_rank = true;
        csv->part->process.rank = (int)rank;
    }
    return at[COLUMN_NBYTES].len == 0 || read_message(csv, at, &transfer);
}

/* ---- ZeroMQ's calls ---- */

enum { ZMQ_SENDS_MORE = 2, MAX_BODY = 256 };

/* op,socket,flags,size,start,end,thread,first bytes in hexadecimal */
enum frame_field {
    FRAME_OP,
    FRAME_SOCKET,
    FRAME_FLAGS,
    FRAME_SIZE,
    FRAME_START,
    FRAME_END,
    FRAME_THREAD,
    FRAME_BODY,
    N_FRAME_FIELDS
};

static size_t read_hex(struct part_field field, uint8_t out[MAX_BODY])
{
    size_t n = 0;
    for (uint64_t byte; n < MAX_BODY && 2 * n + 1 < field.len &&
                        net_parse_number(field.text + 2 * n, 2, 16, UINT8_MAX, &byte);
         n++)
        out[n] = (uint8_t)byte;
    return n;
}

static uint64_t hash_bytes(uint64_t hash, const void *bytes, size_t n)
{
    const unsigned char *at = bytes;
    for (size_t i = 0; i < n; i++)
        hash = map_mix(hash ^ at[i]) + i + 1;
    return hash | 1;
}

/* False: no valid line. */
static bool read_frame(struct csv *csv, const char *line, size_t len)
{
    struct part_field at[PART_FIELDS_MAX];
    uint8_t body[MAX_BODY];
    uint64_t flags, size, start, end;
    if (part_split_line(line, len, at) < N_FRAME_FIELDS ||
        !net_csv_number(at[FRAME_FLAGS], UINT32_MAX, &flags) ||
        !net_csv_number(at[FRAME_SIZE], INT64_MAX / 4, &size) ||
        !net_csv_number(at[FRAME_START], TRACE_TIME_MAX, &start) ||
        !net_csv_number(at[FRAME_END], TRACE_TIME_MAX, &end) || end < start)
        return false;
    struct ps_frame frame = {.stream = NO_ID,
                             .index = NO_ID,
                             .length = size,
                             .time_ns = (int64_t)start,
                             .body = body,
                             .n_body = read_hex(at[FRAME_BODY], body)};
    csv->out->n_frames++;
    if (text_n_is(at[FRAME_OP].text, at[FRAME_OP].len, "zmq_msg_recv")) {
        if (ps_is_identity(&frame)) {
            ps_end_message(&csv->frames, csv->receiving);
            csv->receiving = hash_bytes(hash_bytes(1, at[FRAME_SOCKET].text, at[FRAME_SOCKET].len),
                                        body, frame.n_body);
            return true;
        }
        frame.received = frame.more = true; /* how many come is seen when the next one begins */
        frame.time_ns = (int64_t)end;
        frame.source = csv->receiving;
    } else {
        frame.source = hash_bytes(2, at[FRAME_SOCKET].text, at[FRAME_SOCKET].len);
        frame.more = flags & ZMQ_SENDS_MORE;
    }
    if (frame.source)
        ps_add_frame(&csv->frames, &frame);
    return true;
}

static void finish_frames(struct csv *csv)
{
    ps_end_message(&csv->frames, csv->receiving);
    int process = ps_own_process(&csv->frames, csv->out);
    if (process != -1) { /* its name may be that of its host */
        csv->part->process.has_rank = true;
        csv->part->process.rank = process;
    }
    ps_assembler_fini(&csv->frames);
}

static int read_csv(struct bytes *bytes, struct trace_part *part, struct dpro_error *err)
{
    struct csv csv = {.part = part, .out = part_make_payload(part, &transport_payload)};
    const char *line;
    size_t len;
    (void)err;
    part->process.may_be_server = true;
    strtab_add(&csv.ends, "", 0);
    csv.frames.out = csv.out;
    part->process.pid = 0;
    part->damage.cut = !bytes_line(bytes, &line, &len) || !read_header(&csv, line, len);
    while (!part->damage.cut && part_next_line(part, bytes, &line, &len)) {
        if (*line == '#')
            continue;
        bool of_zmq = text_n_begins(line, len, "zmq_msg_"); /* no socket call */
        part->n_events++;
        part->losses.n_broken_records +=
            of_zmq ? !read_frame(&csv, line, len) : !read_line(&csv, line, len);
    }
    strtab_fini(&csv.ends);
    finish_frames(&csv);
    part->adds_spans = csv.out->has_ps;
    return 0;
}

const struct reader transport_csv_reader = {
    .name = "transport-csv",
    .word = "transport log",
    .flags = READER_TRANSPORT | READER_COPIED,
    .missing = {.alone = TRANSPORT_ALONE},
    .export_of = &transport_reader,
    .begins = {"t_start_ns,t_end_ns,", "# op,local>peer,"},
    .read_bytes = read_csv,
    .complete = transports_complete,
    .join = transports_build,
};
