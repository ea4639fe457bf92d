/* The messages of one collective in one iteration, from the logs' ends of them. */
#pragma once

#include "graph/messages/endpoints.h"
#include "graph/messages/find_messages.h"

struct found {
    struct endpoint end; /* its sender's; its receiver's where the sender has no log */
    bool sent, received; /* by a rank with a log */
    struct message_time time;
    const struct net_connection *sender, *receiver; /* NULL: NCCL's */
};
typedef ARRAY(struct found) found_array;

struct pairing {
    const struct join *join;
    struct endpoints endpoints;
    bool with_ready;
    found_array found;
    bool *unlogged;  /* by member of the collective at hand */
    uint32_t nobody; /* member that stands for all who have no log; NO_ID: there are none */
};

/* All messages of a collective in an iteration, into pairing->found, by way and number: the data
 * before the ready messages. Returns whether none lacks an end that should be there. */
bool pairing_find(struct pairing *pairing, const struct joined *joined, uint32_t sample);
/* Those of one way and number from `first` on, data and ready messages: where they end. */
size_t found_run_end(const found_array *found, size_t first, size_t *n_data);
