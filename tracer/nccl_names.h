/* What NCCL's records refer to by number: texts and communicators.
 *
 * Each is written when a log's first record needs it, and again at the start of a segment. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "record.h"

#define N_COMMS    1024 /* at once */
#define COMM_WORDS (sizeof(struct record_nccl_comm) / 8)

/* Read by any thread while another takes it away: so its record is words, read between two looks
 * at `context`. */
struct comm {
    _Atomic uint64_t context; /* NCCL's for us: a number as an event's handle is; 0: never used */
    _Atomic bool live;        /* else its record is kept for segments that begin later */
    _Atomic uint32_t log;     /* the last one that it was written to */
    _Atomic int32_t rank;     /* -1: not known */
    _Atomic uint64_t words[COMM_WORDS]; /* struct record_nccl_comm */
    int *mask;                          /* NCCL's: which events are wanted; as the next: */
    int types;                          /* used by whoever adds and removes communicators only */
};

/* Differs from other processes' with some luck: in our contexts and handles, so that those of
 * another process are recognised. 16 bits. */
extern _Atomic uint64_t process_token;

/* The number of a text; 0 for NULL, "" and when there are too many. Any thread. */
uint32_t name_number(const char *text);

/* What comes and goes is the caller's to serialize; others are for any thread. NULL: too many. */
struct comm *comm_add(const struct record_nccl_comm *comm);
void comm_remove(struct comm *comm);
struct comm *comm_at(uint32_t i); /* the i-th of N_COMMS; NULL when there is none */
/* NULL when it is not one of ours, or is no more. */
struct comm *comm_of(const void *context);
void *comm_context(struct comm *comm);
uint32_t comm_number(struct comm *comm); /* 0 for NULL */
bool comm_read(struct comm *comm, struct record_nccl_comm *out);
/* Up to interface 3 the operations say whose they are. */
void comm_learn(const void *context, const char *name, uint64_t hash, int rank);
/* Writes its record unless this log has it. */
void comm_tell(struct comm *comm);

/* What is written from now on goes to another log. */
void names_in_new_log(void);
/* log_options.on_segment */
void names_tell_all(void);
