/* The binary logs of the transport tracer and of the NCCL profiler plugin, records as
 * tracer/record.h lays them out. A record's own size says where the next one is. Records shorter
 * than we know are refused, of longer ones the known part is read, and unknown types are passed
 * over. */
#include <sys/socket.h>

#include "ingest/readers.h"
#include "ingest/transport/ps.h"
#include "tracer/record.h"

struct log_reader {
    struct trace_part *part;
    struct net_transport *net; /* NULL: an NCCL log */
    struct nccl_log *nccl;     /* NULL: a transport log */
    struct map connections;    /* number + 1 -> index */
    uint32_t last_number, last_index;
    uint64_t losses[N_LOSS_CAUSES];
    struct ps_assembler frames;
};

/* A connection may be referred to before its record comes. */
static uint32_t connection_of(struct log_reader *r, uint32_t number)
{
    if (number == r->last_number && r->net->connections.n > 0)
        return r->last_index;
    int64_t index = map_number(&r->connections, (uint64_t)number + 1);
    if (index >= NO_ID / 2 - 1)
        mem_fail();
    if ((size_t)index == r->net->connections.n)
        array_add(&r->net->connections, .number = number, NET_UNTIED);
    r->last_number = number;
    return r->last_index = (uint32_t)index;
}

static void set_address(struct net_address *out, const struct record_connection *c, bool remote)
{
    const uint8_t *bytes = remote ? c->remote : c->local;
    *out = (struct net_address){.family = AF_INET, .port = remote ? c->remote_port : c->local_port};
    if (c->family == FAMILY_IPV4) {
        out->ip[10] = out->ip[11] = 0xff;
        memcpy(out->ip + 12, bytes, 4);
    } else if (c->family == FAMILY_IPV6) {
        memcpy(out->ip, bytes, 16);
    } else { /* a UNIX socket's name says nothing of who is at the other end */
        out->family = AF_UNIX;
        out->port = 0;
        if (!remote)
            memcpy(out->ip, &c->inode, sizeof c->inode);
    }
}

static bool read_connection(struct log_reader *r, const struct record_connection *c)
{
    if (c->family != FAMILY_UNIX && c->family != FAMILY_IPV4 && c->family != FAMILY_IPV6)
        return false;
    uint32_t index = connection_of(r, c->connection);
    struct net_connection *connection = &r->net->connections.at[index];
    set_address(&connection->local, c, false);
    set_address(&connection->remote, c, true);
    connection->whole = c->flags & CONNECTION_WHOLE;
    return true;
}

static bool read_call(struct log_reader *r, const struct record_call *c)
{
    if (c->direction > DIRECTION_RECEIVE || !net_time_fits(c->start_ns) ||
        !net_time_fits(c->end_ns) || c->end_ns < c->start_ns || c->offset > INT64_MAX)
        return false;
    array_add(&r->net->transfers, .start_ns = c->start_ns, .end_ns = c->end_ns, .offset = c->offset,
              .bytes = c->returned, .requested = c->requested,
              .stream = connection_of(r, c->connection) * 2 + c->direction,
              .thread = c->head.thread, .call = c->call <= CALL_SPLICE ? c->call : 0);
    return true;
}

static bool read_gloo(struct log_reader *r, const struct record_gloo *g)
{
    if (g->direction > DIRECTION_RECEIVE || g->position > INT64_MAX ||
        g->length > INT64_MAX - GLOO_PREAMBLE_BYTES)
        return false;
    bool data = g->opcode <= GLOO_DATA;
    array_add(&r->net->messages, .offset = g->position,
              .size_bytes = GLOO_PREAMBLE_BYTES + (data ? g->length : 0), .length = g->length,
              .stream = connection_of(r, g->connection) * 2 + g->direction,
              .tag = (uint32_t)(g->slot >> 24), .delta = (uint32_t)(g->slot & 0xffffff),
              .prefix = (uint8_t)(g->slot >> 56), .opcode = data ? GLOO_DATA : g->opcode,
              NET_UNTIMED);
    return true;
}

static bool read_zmtp(struct log_reader *r, const unsigned char *at, size_t size)
{
    struct record_zmtp z;
    const size_t head = offsetof(struct record_zmtp, body);
    if (size < head)
        return false;
    memcpy(&z, at, head);
    size_t n_body = z.n_body;
    if (n_body == UINT8_MAX) /* all that there is */
        n_body = z.length < size - head ? (size_t)z.length : size - head;
    if (z.direction > DIRECTION_RECEIVE || head + n_body > size || z.position > INT64_MAX / 2)
        return false;
    r->net->n_frames++;
    if (z.flags & ZMTP_COMMAND)
        return true;
    uint32_t stream = connection_of(r, z.connection) * 2 + z.direction;
    struct ps_frame frame = {.source = stream + UINT64_C(1),
                             .stream = stream,
                             .position = z.position,
                             .length = z.length,
                             .time_ns = INT64_MIN,
                             .index = z.index,
                             .received = z.direction == DIRECTION_RECEIVE,
                             .more = z.flags & ZMTP_MORE,
                             .body = at + head,
                             .n_body = n_body};
    ps_add_frame(&r->frames, &frame);
    return true;
}

/* ---- records ---- */

/* "process rank1", "process ps0": the process, in a log that began before it was known. */
static void read_process(struct trace_part *part, const char *mark, size_t size)
{
    static const char says[] = "process ", rank[] = "rank";
    char text[64] = "", *name = text + sizeof says - 1;
    memcpy(text, mark, MIN(size, sizeof text) - 1);
    if (part->process.has_rank || !text_begins(text, says))
        return;
    long process = text_begins(name, rank) ? strtol(name + sizeof rank - 1, NULL, 10)
                                           : net_process_in(name, strlen(name));
    part->process.has_rank = net_process_is(process);
    part->process.rank = part->process.has_rank ? (int)process : 0;
}

static bool read_record(struct log_reader *r, const unsigned char *at, size_t size)
{
    union {
        struct record head;
        struct record_anchor anchor;
        struct record_loss loss;
        struct record_mark mark;
        struct record_connection connection;
        struct record_call call;
        struct record_gloo gloo;
    } u = {0};
    memcpy(&u, at, size < sizeof u ? size : sizeof u);
    switch (u.head.type) {
    case RECORD_LOSS:
        if (size < sizeof u.loss || u.loss.cause >= N_LOSS_CAUSES)
            return false;
        r->losses[u.loss.cause] = MAX(r->losses[u.loss.cause], u.loss.n_records);
        return true;
    case RECORD_ANCHOR: /* of clocks that nothing needs */
        return size >= sizeof u.anchor;
    case RECORD_MARK:
        if (size < sizeof u.mark || !net_time_fits(u.mark.time_ns))
            return false;
        if (r->net)
            read_process(r->part, u.mark.name, sizeof u.mark.name);
        return true;
    default:
        break;
    }
    if (r->nccl)
        return nccl_log_add(r->nccl, at, size);
    switch (u.head.type) {
    case RECORD_CONNECTION:
        return size >= sizeof u.connection && read_connection(r, &u.connection);
    case RECORD_CALL:
        return size >= sizeof u.call && read_call(r, &u.call);
    case RECORD_GLOO:
        return size >= sizeof u.gloo && read_gloo(r, &u.gloo);
    case RECORD_ZMTP:
        return read_zmtp(r, at, size);
    case RECORD_TOTAL: /* what the calls add up to */
        return true;
    default:
        return true; /* of a later dpro */
    }
}

/* A number for the network namespace of a machine; 0: unknown. */
static uint64_t zone_of(const struct log_header *header)
{
    if (header->net_ns == 0)
        return 0;
    uint64_t zone = map_mix(header->net_ns);
    for (size_t i = 0; i < sizeof header->boot_id && header->boot_id[i]; i++)
        zone = map_mix(zone ^ (unsigned char)header->boot_id[i]);
    return zone | 1;
}

static int begin_log(struct log_reader *r, const struct log_header *header, const char *path,
                     struct dpro_error *err)
{
    struct trace_part *part = r->part;
    if (header->version != LOG_VERSION || header->header_bytes < sizeof *header ||
        header->header_bytes > PART_RECORD_MAX || header->header_bytes % 8)
        return dpro_error_set(err, DPRO_EFORMAT,
                              "%s: a log of version %" PRIu32 ", this dpro reads version %d; use "
                              "the dpro that recorded it",
                              path, header->version, LOG_VERSION);
    part->process.pid = header->pid;
    part->process.has_rank = header->rank >= 0;
    part->process.rank = part->process.has_rank ? header->rank : 0;
    if (header->kind == LOG_NCCL) {
        r->nccl = part_make_payload(part, &nccl_payload);
        return 0;
    }
    part->process.may_be_server = true;
    r->net = part_make_payload(part, &transport_payload);
    r->frames.out = r->net;
    r->net->pid = header->pid;
    r->net->segment = header->segment;
    r->net->zone = zone_of(header);
    r->net->numbered = true;
    snprintf(r->net->host, sizeof r->net->host, "%.*s", (int)sizeof header->host, header->host);
    snprintf(r->net->boot_id, sizeof r->net->boot_id, "%.*s", (int)sizeof header->boot_id,
             header->boot_id);
    return 0;
}

static void read_records(struct log_reader *r, struct bytes *bytes)
{
    struct record head;
    while (bytes_need(bytes, sizeof head)) {
        memcpy(&head, bytes->p, sizeof head);
        if (head.size_bytes < sizeof head || head.size_bytes % 8) {
            r->part->damage.cut = true; /* nothing tells where the next one is */
            return;
        }
        if (!bytes_need(bytes, head.size_bytes))
            break;
        r->part->n_events++;
        r->part->losses.n_broken_records += !read_record(r, bytes->p, head.size_bytes);
        bytes->p += head.size_bytes;
    }
    r->part->damage.cut |= bytes->p < bytes->end;
}

static int read_log(struct bytes *bytes, struct trace_part *part, struct dpro_error *err)
{
    struct log_reader r = {.part = part};
    struct log_header header;
    if (!bytes_need(bytes, sizeof header)) {
        part->damage.cut = true;
        return 0;
    }
    memcpy(&header, bytes->p, sizeof header);
    int rc = begin_log(&r, &header, bytes->in->path, err);
    if (rc == 0 && bytes_need(bytes, header.header_bytes)) {
        bytes->p += header.header_bytes;
        read_records(&r, bytes);
        uint64_t n_lost = 0;
        for (int i = 0; i < LOSS_FRAMING; i++)
            n_lost += r.losses[i];
        if (r.net) {
            r.net->n_lost = n_lost;
        } else {
            r.nccl->n_lost = n_lost;
            nccl_log_join(r.nccl);
        }
    } else if (rc == 0) {
        part->damage.cut = true;
    }
    if (r.net && !part->process.has_rank) {
        int process = ps_own_process(&r.frames, r.net);
        part->process.has_rank = process != -1;
        part->process.rank = process;
    }
    part->adds_spans = r.net && r.net->has_ps;
    ps_assembler_fini(&r.frames);
    map_fini(&r.connections);
    return rc;
}

static bool is_log(const struct head *head, bool of_nccl)
{
    struct log_header header;
    if (head->piece != HEAD_BYTES || head->n_bytes < sizeof header)
        return false;
    memcpy(&header, head->bytes, sizeof header);
    return memcmp(header.magic, LOG_MAGIC, sizeof header.magic) == 0 &&
           (header.kind == LOG_NCCL) == of_nccl;
}

static bool recognise_transport(const struct head *head)
{
    return is_log(head, false);
}

static bool recognise_nccl(const struct head *head)
{
    return is_log(head, true);
}

const struct reader transport_reader = {
    .name = "transport-log",
    .word = "transport log",
    .flags = READER_TRANSPORT | READER_COPIED,
    .missing = {.alone = TRANSPORT_ALONE},
    .recognise = recognise_transport,
    .read_bytes = read_log,
    .complete = transports_complete,
    .join = transports_build,
};

const struct reader nccl_reader = {
    .name = "nccl-log",
    .word = "NCCL log",
    .flags = READER_COPIED,
    .recognise = recognise_nccl,
    .read_bytes = read_log,
    .join = nccl_build,
};
