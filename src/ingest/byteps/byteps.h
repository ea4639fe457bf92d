/* ingest/byteps/byteps.h: what a patched BytePS, and dPRO's first implementation from it, wrote of
 * pushes and pulls: when each node sent, what each server did, and which keys a tensor has. */
#ifndef INGEST_BYTEPS_BYTEPS_H
#define INGEST_BYTEPS_BYTEPS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/array.h"

struct dpro_trace;
struct dpro_error;
struct loader;
struct trace_part;

/* Nodes as ps-lite numbers them: servers 8, 10, ..., workers 9, 11, ... */
static inline int32_t byteps_server_node(int32_t number)
{
    return 8 + 2 * number;
}
static inline int32_t byteps_worker_node(int32_t number)
{
    return 9 + 2 * number;
}
static inline bool byteps_is_worker(int32_t node)
{
    return node % 2 != 0;
}

enum { BYTEPS_PUSH = 1, BYTEPS_REQUEST = 2, BYTEPS_STARTS = 4 };

/* A message began or ended, by the clock of the node whose log says so. */
struct byteps_moment {
    int64_t time_ns;
    uint64_t key;
    uint32_t name;     /* string id; 0: the key is known instead */
    int32_t from, to;  /* nodes */
    int32_t logged_by; /* node */
    uint8_t flags;
};

enum byteps_op { BYTEPS_COPY_FIRST, BYTEPS_SUM, BYTEPS_COPY_MERGED, N_BYTEPS_OPS };

/* What a server's thread began or ended. */
struct byteps_work {
    int64_t time_ns;
    uint64_t key;
    uint32_t name; /* as above */
    uint32_t thread;
    int32_t server; /* number; -1: the file's */
    uint8_t op;     /* enum byteps_op */
    bool starts;
};

struct byteps_key {
    uint64_t key;
    uint32_t name; /* string id of the tensor's */
    int32_t part;  /* -1: it is whole */
};

struct byteps_part {
    ARRAY(struct byteps_moment) moments;
    ARRAY(struct byteps_work) work;
    ARRAY(struct byteps_key) keys;
    int32_t node; /* whose log it is; 0: of several, or not said */
    bool is_worker;
};

struct byteps_part *byteps_part_of(struct trace_part *part); /* NULL: no memory */
void byteps_part_destroy(struct byteps_part *byteps);        /* NULL is fine */

/* byteps.c: makes pushes and pulls of the workers' profiles, transports of the logs and profiles of
 * what servers did; before the ranks are built. */
int byteps_join(struct loader *loader, struct dpro_error *err);
/* Finds the spans that messages are of, once the ranks are built. -1: no memory. */
int byteps_tie(struct dpro_trace *trace);

#endif
