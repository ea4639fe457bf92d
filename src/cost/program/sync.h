/* t_sync(s), the time that a collective of s bytes takes by itself: the replay of its messages
 * alone (the paper's partial replay, section 4.3). */
#pragma once

#include "cost/program/model.h"

/* The time of a collective is the sum of both. */
struct sync_cost {
    int64_t latency_ns;
    int64_t wire_ns; /* time in which the slowest link transfers */
};

#define SYNC_NONE UINT32_MAX

/* One message of a collective. It is sent when its sender has received (and added up) what it needs
 * and message_ns have passed, and all earlier messages of the list from this sender or to this
 * receiver are through. */
struct sync_message {
    uint32_t from, to; /* nodes: ranks, then servers */
    uint32_t needs;    /* the message that its sender waits for; SYNC_NONE: nothing */
    bool adds;         /* its receiver adds it up, one message after the other */
    bool within;       /* at the rate and latency of links within hosts */
    uint64_t bytes;
};

struct sync_messages {
    ARRAY(struct sync_message) list; /* a message comes after the one it needs */
    ARRAY(uint32_t) received;        /* for making the list */
};

/* Lists the messages of a collective of all ranks. `alike`: if all nodes do the same, one stands
 * for all of them and sends to itself. */
void sync_list(const struct model_net *net, uint64_t size_bytes, bool alike,
               struct sync_messages *messages);
void sync_messages_fini(struct sync_messages *messages);
uint32_t sync_n_nodes(const struct model_net *net);
uint32_t sync_n_servers(const struct model_net *net); /* 0: not by servers */
uint32_t sync_server_node(const struct model_net *net, uint32_t server);

/* The time of n bytes at each_ns, rounded up, so that many small messages never take less than one
 * large one. A message occupies its links for link.byte_ns a byte, and is added up in
 * collective.reduce_ns a byte. Beside that, collective.overhead_ns comes once before all messages,
 * and link.message_ns before each. */
int64_t sync_ns(struct dpro_estimate each_ns, uint64_t n);
/* Of one message on its link, and beside it. */
int64_t sync_wire_ns(const struct model_net *net, const struct sync_message *message);
int64_t sync_message_ns(const struct model_net *net, const struct sync_message *message);

struct sync_cost sync_cost(const struct model_net *net, uint64_t size_bytes);

/* A cache of sync_cost for thousands of sizes, of fixed memory. `net` is borrowed and must not
 * change. */
struct sync;
struct sync *sync_create(const struct model_net *net);
void sync_destroy(struct sync *sync); /* NULL is fine */
struct sync_cost sync_get(struct sync *sync, uint64_t size_bytes);
