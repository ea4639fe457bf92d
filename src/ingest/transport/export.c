/* Transport logs as CSV, in the form that net_csv.c reads: one line a socket call in the order of
 * their starts, a gloo message in the fields of the line that begins with it. */

#include "base/file.h"
#include "base/writer.h"
#include "ingest/trace.h"

static const char header[] =
    "t_start_ns,t_end_ns,rank,tid,conn,local,remote,dir,call,offset,requested,returned,"
    "gloo_nbytes,gloo_opcode,gloo_prefix,gloo_tag,gloo_delta,gloo_len\n";

ORDER_OF_INDICES(by_start, struct net_transfer, ASCENDING(start_ns));

static void write_line(struct writer *w, const struct net_transport *t,
                       const struct net_transfer *transfer, const char *ends, uint64_t offset,
                       uint64_t bytes, const struct net_message *message)
{
    char rank[16] = "";
    if (t->rank >= 0)
        snprintf(rank, sizeof rank, "%d", t->rank);
    writer_printf(
        w, "%" PRId64 ",%" PRId64 ",%s,%" PRIu32 ",%s,%s,%s,%" PRIu64 ",%" PRIu32 ",%" PRIu64,
        transfer->start_ns, transfer->end_ns, rank, transfer->thread, ends,
        transfer->stream % 2 ? "rx" : "tx", net_call_name(transfer->call), offset,
        transfer->requested, bytes);
    if (message)
        writer_printf(w, ",%" PRIu64 ",%d,%d,%" PRIu32 ",%" PRIu32 ",%" PRIu64 "\n",
                      message->size_bytes, message->opcode, message->prefix, message->tag,
                      message->delta, message->length);
    else
        writer_text(w, ",,,,,,\n");
}

/* A call in the middle of which a message begins becomes two lines. */
static void write_transfer(struct writer *w, const struct net_transport *t,
                           const struct net_transfer *transfer, const char *ends)
{
    uint64_t at = transfer->offset, end = at + transfer->bytes;
    do {
        const struct net_message *message = net_message_from(t, transfer->stream, at);
        if (message && message->protocol == NET_PS)
            message = NULL;
        const struct net_message *next = message;
        bool begins = message && message->offset == at && transfer->bytes > 0;
        if (begins)
            next = net_message_from(t, transfer->stream, at + 1);
        uint64_t stop = next && next->offset < end ? next->offset : end;
        write_line(w, t, transfer, ends, at, stop - at, begins ? message : NULL);
        at = stop;
    } while (at < end);
}

static void write_transport(struct writer *w, const void *arg)
{
    const struct net_transport *t = arg;
    SCRATCH uint32_t *order = sorted_indices(t->transfers.n, t->transfers.at, by_start);
    writer_text(w, header);
    for (uint32_t i = 0; i < t->transfers.n; i++) {
        const struct net_transfer *transfer = &t->transfers.at[order[i]];
        const struct net_connection *connection = &t->connections.at[transfer->stream / 2];
        char local[NET_ADDRESS_TEXT], remote[NET_ADDRESS_TEXT], ends[2 * NET_ADDRESS_TEXT + 16];
        if (connection->local.family == 0)
            continue; /* its ends were lost with the log's older part */
        net_address_format(local, &connection->local);
        net_address_format(remote, &connection->remote);
        snprintf(ends, sizeof ends, "%" PRIu32 ",%s,%s", connection->number, local, remote);
        write_transfer(w, t, transfer, ends);
    }
}

static int write_file(const struct dpro_trace *trace, uint32_t index, const char *folder,
                      struct dpro_error *err)
{
    const struct net_transport *t = &trace->transports[index];
    bool another = index > 0 && trace->transports[index - 1].rank == t->rank;
    char *path, name[NET_PROCESS_TEXT], *space, process[32] = "";
    net_process_format(name, t->rank);
    if ((space = strchr(name, ' ')) != NULL) /* "rank 3" -> "rank3" */
        memmove(space, space + 1, strlen(space));
    if (another) /* a second process of one rank */
        snprintf(process, sizeof process, "_pid%" PRIu64, t->pid);
    path = mem_format("%s/net_%s%s.csv.gz", folder, name, process);
    int rc = writer_write_path(path, true, write_transport, t, err);
    mem_free(path);
    return rc;
}

static int write_files(const struct dpro_trace *trace, const char *folder, struct dpro_error *err)
{
    int rc = 0;
    for (uint32_t t = 0; t < trace->n_transports && rc == 0; t++)
        rc = write_file(trace, t, folder, err);
    return rc;
}

static void export_all(const struct dpro_trace *trace, const char *folder)
{
    struct dpro_error why;
    size_t first_made;
    if (trace->n_transports == 0)
        fail_with(DPRO_EEMPTY, "the trace has no transport log (net.log); record one with "
                               "'dpro profile'");
    char *path = mem_copy_string(folder);
    int rc = folder_make(path, &first_made, &why);
    if (rc == 0)
        rc = WITHIN_SCOPE(DPRO_ENOMEM, write_files(trace, folder, &why));
    if (rc < 0)
        folder_take_back(path, first_made);
    memory_check();
    mem_free(path);
    fail_on(rc, &why);
}

int dpro_trace_export_net_csv(const struct dpro_trace *trace, const char *folder,
                              struct dpro_error *err)
{
    return OUTCOME(err, export_all(trace, folder));
}
