/* Small jobs written as profiles and logs, one of each a rank: gloo's with transport logs (CSV), or
 * NCCL's with the logs of its proxies' steps.
 *
 * Every iteration each rank computes until it arrives, takes part in up to two collectives on a
 * thread each (NCCL: in one, on its stream), and computes a little when it has left the last. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum { MOST_RANKS = 8, MOST_MESSAGES_A_JOB = 256, STEP = 2000, N = 3 };
enum { DATA = 1, SEND_READY = 2, RECV_READY = 3 };

/* Times in us from the iteration's start. */
struct sent {
    int from, to, start, end, bytes, opcode;
    int only; /* in this iteration, from 1; 0: in all */
    int collective;
    int delta;
    int channel; /* NCCL's */
};

struct job {
    int n_ranks, n_collectives;
    const char *kind; /* "all_reduce" when NULL */
    int arrive[MOST_RANKS][2], leave[MOST_RANKS][2];
    struct sent sent[MOST_MESSAGES_A_JOB];
    int n_sent;
    bool one_host;                /* all ranks behind one address */
    bool by_nccl, point_to_point; /* NCCL's log has an operation for each message */
    const char *algorithm;        /* as NCCL says it; NULL: it does not */
    const char *host[MOST_RANKS]; /* by its profile; NULL: unknown */
    bool without_log[MOST_RANKS];
    int later[N][MOST_RANKS]; /* by which all of a rank's times of an iteration move */
};

void send_one(struct job *job, int from, int to, int start, int end, int bytes);
struct sent *last_sent(struct job *job);
/* A ring in which each step takes `step` us on the link and `reduce` us before the next begins. */
struct job ring(int n_ranks, int n_steps, int step, int reduce, int bytes);

/* Into the folder; fails the test when that fails. */
void write_profile(const struct job *job, const char *folder, int rank);
void write_log(const struct job *job, const char *folder, int rank);
/* The profiles of all ranks, and the logs of those that have one. */
void write_job(const struct job *job, const char *folder);
