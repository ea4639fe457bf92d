/* ps-lite's messages from ZeroMQ's frames, and who a process is among its nodes.
 *
 * MXNet's meta data are a protobuf, of which the fields wanted are 3 control, 4 request, 5 push, 8
 * timestamp and 12 pull. BytePS's are the C structs of its own ps-lite: 88 bytes, the body, the
 * types of the data (4 bytes each), the nodes (84 or 168 bytes each). A message without control and
 * with keys moves data; its second frame is them. BytePS's answers to pushes have none, and the
 * struct's own key is whatever stood there. */
#include "ingest/transport/ps.h"

#include "base/protobuf.h"
#include "ingest/trace.h"

enum { MAX_NODES = 1 << 16, ADD_NODE = 2 };

/* ---- MXNet's protobuf; what was cut off ends the reading ---- */

static void add_node(struct ps_assembler *a, const struct ps_node *node)
{
    if (node->role >= 0 && node->role <= 2 && node->id >= 0 && node->port && a->nodes.n < MAX_NODES)
        array_push(&a->nodes, *node);
}

static void read_node(struct ps_assembler *a, struct pb_view view)
{
    struct ps_node node = {.role = -1, .id = -1};
    struct pb_field field;
    while (pb_view_next(&view, &field))
        if (field.number == 1 && field.value <= 2)
            node.role = (int32_t)field.value;
        else if (field.number == 2 && field.value < INT_MAX) /* INT_MAX: it asks for one */
            node.id = (int32_t)field.value;
        else if (field.number == 3 && field.wire == PB_BYTES && field.value < sizeof node.host)
            memcpy(node.host, field.payload, field.value);
        else if (field.number == 4 && field.value <= UINT16_MAX)
            node.port = (uint32_t)field.value;
    add_node(a, &node);
}

static void read_control(struct ps_assembler *a, struct pb_view view)
{
    struct pb_field field;
    uint64_t command = 0;
    while (pb_view_next(&view, &field))
        if (field.number == 1)
            command = field.value;
        else if (field.number == 2 && field.wire == PB_BYTES && command == ADD_NODE)
            read_node(a, pb_view_of(&field));
}

static void read_meta(struct ps_assembler *a, const struct ps_frame *frame, struct ps_open *open)
{
    static const uint8_t flags[] = {[4] = PS_REQUEST, [5] = PS_PUSH, [12] = PS_PULL};
    struct pb_view view = {frame->body, frame->body + frame->n_body, false};
    struct pb_field field;
    bool control = false, timed = false;
    struct net_message *m = &open->message;
    while (pb_view_next(&view, &field)) {
        if (field.number == 3 && field.wire == PB_BYTES) {
            control = true;
            read_control(a, pb_view_of(&field));
        } else if (field.number == 8) {
            m->timestamp = (int32_t)field.value;
            timed = true;
        } else if (field.number < sizeof flags && field.value) {
            m->flags |= flags[field.number];
        }
    }
    open->is_data = timed && !control && (m->flags & (PS_PUSH | PS_PULL));
}

/* ---- BytePS's structs ---- */

/* A node's size: newer versions say an endpoint's name, too. */
enum {
    RAW_META = 88,
    RAW_NODE = 84,
    RAW_LONG_NODE = 168,
    RAW_TYPE = 4,
    RAW_HOST = 64,
    RAW_EMPTY = 0
};

static uint32_t read_u32(const uint8_t *at)
{
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

/* Nodes stand behind the struct's body and the types. */
static uint64_t raw_nodes_at(const struct ps_frame *frame)
{
    const uint8_t *at = frame->body;
    return RAW_META + (uint64_t)read_u32(at + 4) + (uint64_t)read_u32(at + 44) * RAW_TYPE;
}

/* The size of a struct's nodes; 0: the frame is no such struct. The struct's counts add up to the
 * frame's length, which no protobuf does by chance. */
static uint32_t raw_node_size(const struct ps_frame *frame)
{
    if (frame->n_body < RAW_META)
        return 0;
    uint64_t at = raw_nodes_at(frame), n_nodes = read_u32(frame->body + 12);
    if (at + n_nodes * RAW_NODE == frame->length)
        return RAW_NODE;
    return at + n_nodes * RAW_LONG_NODE == frame->length ? RAW_LONG_NODE : 0;
}

/* Role, id, host, port. */
static void read_raw_nodes(struct ps_assembler *a, const struct ps_frame *frame)
{
    uint32_t size = raw_node_size(frame);
    for (uint64_t at = raw_nodes_at(frame); at + RAW_NODE <= frame->n_body; at += size) {
        const uint8_t *from = frame->body + at;
        struct ps_node node = {.role = (int32_t)read_u32(from),
                               .id = (int32_t)read_u32(from + 4),
                               .port = read_u32(from + 8 + RAW_HOST)};
        memcpy(node.host, from + 8, sizeof node.host - 1);
        if (node.id > 0 && node.id < INT_MAX && node.port <= UINT16_MAX)
            add_node(a, &node);
    }
}

static void read_raw_meta(struct ps_assembler *a, const struct ps_frame *frame,
                          struct ps_open *open)
{
    const uint8_t *at = frame->body;
    uint32_t command = read_u32(at + 8);
    bool request = at[32], push = at[52], simple = at[53];
    if (command == ADD_NODE) {
        read_raw_nodes(a, frame);
        return;
    }
    open->message.timestamp = (int32_t)read_u32(at + 40);
    open->message.flags = (uint8_t)((request ? PS_REQUEST : 0) | PS_BYTEPS | PS_KEYLESS |
                                    (push ? PS_PUSH : PS_PULL)); /* never both */
    open->is_data = command == RAW_EMPTY && !simple;
}

static struct ps_open *open_of(struct ps_assembler *a, const struct ps_frame *frame)
{
    size_t index = (size_t)map_number(&a->sources, frame->source);
    if (index >= UINT32_MAX / 2)
        mem_fail();
    if (index == a->open.n)
        array_add(&a->open, .channel = (uint32_t)index);
    return &a->open.at[index];
}

static uint64_t frame_bytes(uint64_t length)
{
    return length + (length > UINT8_MAX ? 9 : 2);
}

static void finish_message(struct ps_assembler *a, struct ps_open *open)
{
    /* messages without data are kept where their stream is to be found by their sizes */
    bool keep = open->n_frames > 0 && (open->is_data || open->message.stream == NO_ID);
    if (!open->is_data)
        open->message.flags = 0;
    open->n_frames = 0;
    a->out->has_ps |= keep;
    if (keep)
        array_push(&a->out->messages, open->message);
}

void ps_end_message(struct ps_assembler *a, uint64_t source)
{
    uint64_t index;
    if (source && map_get(&a->sources, source, &index))
        finish_message(a, &a->open.at[index]);
}

bool ps_is_identity(const struct ps_frame *frame)
{
    enum { MOST = 12 };
    bool is = frame->length >= 3 && frame->length <= MOST && frame->n_body == frame->length &&
              memcmp(frame->body, "ps", 2) == 0;
    for (size_t i = 2; is && i < frame->n_body; i++)
        is = frame->body[i] >= '0' && frame->body[i] <= '9';
    return is;
}

void ps_add_frame(struct ps_assembler *a, const struct ps_frame *frame)
{
    struct ps_open *open = open_of(a, frame);
    uint64_t size = frame_bytes(frame->length);
    bool follows = frame->stream == NO_ID || frame->position == open->next;
    if (frame->index != NO_ID &&
        (frame->index != open->n_frames || (open->n_frames > 0 && !follows))) {
        open->n_frames = 0; /* some were not logged: what is left of the message is none */
        if (frame->index > 0)
            return;
    }
    if (frame->length > INT64_MAX - 9)
        return;
    if (open->n_frames == 0) {
        open->message = (struct net_message){NET_UNTIMED,
                                             .offset = frame->position,
                                             .sent_ns = frame->time_ns,
                                             .stream = frame->stream,
                                             .channel = open->channel,
                                             .received = frame->received,
                                             .protocol = NET_PS,
                                             .opcode = GLOO_DATA};
        open->is_data = false;
        open->names_sender = frame->more && ps_is_identity(frame);
    }
    uint32_t index = open->n_frames - open->names_sender; /* of the message proper */
    if (open->n_frames == 0 && open->names_sender) {
        ;
    } else if (index == 0) {
        (raw_node_size(frame) ? read_raw_meta : read_meta)(a, frame, open);
    } else if (index == 1 && (open->message.flags & PS_BYTEPS) && frame->n_body < 8) {
        ; /* of an answer: not kept */
    } else if (index == 1) {
        open->is_data &= frame->n_body >= 8;
        open->message.flags &= (uint8_t)~PS_KEYLESS;
        open->message.key = 0;
        for (size_t i = 0; i < 8 && i < frame->n_body; i++)
            open->message.key |= (uint64_t)frame->body[i] << (8 * i);
    } else if (index == 2) {
        open->message.length = frame->length;
    }
    open->n_frames++;
    open->next = frame->position + size;
    if (__builtin_add_overflow(open->message.size_bytes, size, &open->message.size_bytes) ||
        open->message.size_bytes > INT64_MAX / 2) {
        open->n_frames = 0;
        return;
    }
    if (!frame->more)
        finish_message(a, open);
}

/* The process is the node that listens at the local end of one of its connections. */
int ps_own_process(const struct ps_assembler *a, const struct net_transport *transport)
{
    for (size_t n = 0; n < a->nodes.n; n++) {
        const struct ps_node *node = &a->nodes.at[n];
        struct net_address address;
        char text[96];
        int len = snprintf(text, sizeof text, "%s:%u", node->host, node->port);
        if (len < 0 || (size_t)len >= sizeof text ||
            !net_address_parse(text, (size_t)len, &address))
            continue;
        for (size_t c = 0; c < transport->connections.n; c++) {
            const struct net_address *local = &transport->connections.at[c].local;
            if (local->port != address.port || memcmp(local->ip, address.ip, sizeof local->ip) != 0)
                continue;
            /* servers are 8, 10, ..., workers 9, 11, ... */
            if (node->role == 1)
                return node->id >= 9 ? (node->id - 9) / 2 : -1;
            return node->role == 0 && node->id >= 8
                       ? net_process_numbered("server", (node->id - 8) / 2)
                       : net_process_numbered("scheduler", 0);
        }
    }
    return -1;
}

void ps_assembler_fini(struct ps_assembler *a)
{
    FREE_ALL(&a->sources, &a->open, &a->nodes);
}
