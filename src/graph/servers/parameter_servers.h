/* Parameter servers in a graph of workers.
 *
 * A server is a process without iterations: its work for a push belongs to that push's iteration.
 * Its struct rank_build follows those of the ranks, with the first rank's steps. Its ops are its
 * work for each push: copy the first of a key, add the others, update with the last. They have
 * their times in every iteration; in a replay the server's thread takes them as they come. */
#pragma once

#include "graph/messages/find_messages.h"

/* What one server does for one collective of its workers. */
struct served {
    uint32_t joined, server;          /* server: index among the servers */
    uint32_t first_push, n_pushes;    /* into struct servers.exchanged, in the order of messages */
    uint32_t first_answer, n_answers; /* that wait for what the pushes made the server do */
    uint32_t op;                      /* the server's: one for each push, in that order */
};

struct servers {
    struct join *join; /* their ranks lie behind those of the workers */
    const struct messages *messages;
    struct trace_rank *absent; /* stand for those without a profile */
    ARRAY(struct served) served;
    ARRAY(uint32_t) exchanged; /* messages */
    uint32_t n_unprofiled;     /* that have no profile */
    uint32_t n_untimed;        /* pushes of a profiled server that nothing in its profile fits */
};

/* The servers whose messages are in the logs: sets join->n_servers. There is room for them behind
 * the ranks. */
void servers_find(struct servers *servers, const struct dpro_trace *trace);
/* Gives them the steps, once those are on the common axis. */
void servers_begin(struct servers *servers);
/* Their ops, from the messages of the collectives and their profiles. */
void servers_build(struct servers *servers);
/* What an op of a server is called; returns the collective that it is for. */
const struct joined *servers_name_op(const struct servers *servers, uint32_t server, uint32_t op,
                                     struct strtab *names, uint32_t *name);
void servers_fini(struct servers *servers);
