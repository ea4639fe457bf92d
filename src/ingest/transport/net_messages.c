/* The messages of a transport in order, and what they add up to. */

#include "base/memory.h"
#include "base/sort.h"
#include "ingest/trace.h"
#include "ingest/transport/transport.h"

ORDER(by_place, struct net_message,
      ASCENDING(stream) ?: ASCENDING(offset) ?: ASCENDING(size_bytes));

void net_sort_messages(struct net_transport *t)
{
    uint32_t n_streams = (uint32_t)t->connections.n * 2;
    size_t kept = 0;
    if (!t->first_message)
        t->first_message = mem_array(n_streams + (size_t)1, sizeof *t->first_message);
    array_sort(&t->messages, by_place);
    for (size_t i = 0; i < t->messages.n; i++)
        if (kept == 0 || t->messages.at[kept - 1].stream != t->messages.at[i].stream ||
            t->messages.at[kept - 1].offset != t->messages.at[i].offset)
            t->messages.at[kept++] = t->messages.at[i];
    t->messages.n = kept;
    for (uint32_t s = 0, i = 0; s <= n_streams; s++) {
        while (i < t->messages.n && t->messages.at[i].stream < s)
            i++;
        t->first_message[s] = i;
    }
}

void net_sum_collectives(struct net_transport *t)
{
    EACH (const struct net_message, message, t->messages) {
        if (message->collective == NO_ID)
            continue;
        struct net_collective *collective = &t->collectives.at[message->collective];
        if (message->start_ns == INT64_MIN)
            continue; /* not recorded at this end */
        *(message->stream % 2 ? &collective->received_bytes : &collective->sent_bytes) +=
            net_message_payload(message);
        collective->last_ns = MAX(collective->last_ns, message->end_ns);
        if (message->stream % 2 == 0)
            collective->first_send_ns = MIN(collective->first_send_ns, message->start_ns);
    }
}
