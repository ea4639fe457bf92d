/* From the files that processes wrote to a trace directory. */
#pragma once

#include <sys/types.h>

#include <dpro/attach.h>

#include "attach/fabric.h"

struct attach_process {
    int32_t pids[FABRIC_PIDS_MAX]; /* as it sees itself and those above it */
    size_t n_pids;
    pid_t pid;                        /* as we see it */
    int rank, world_size, local_rank; /* from its environment; -1, 0, -1: not there */
    char host[72];                    /* the H of its folder host<H> */
    char *folder;                     /* where it writes, absolute; NULL: not told yet */
    const char *file;                 /* what it writes there */
    bool told;                        /* to record */
    bool done, lost;                  /* its trace is whole; will not come any more */
    int64_t heard_ns;                 /* last, CLOCK_MONOTONIC */
    int n_idle;                       /* times it asked for work after it should have recorded */
};

/* Fills in what the process's environment tells of its place in the job. */
void process_describe(struct attach_process *process);

/* Whether its trace is there and whole. */
bool process_is_done(const struct attach_process *process);

struct attach_window {
    int64_t start_ns, end_ns; /* CLOCK_REALTIME */
};

/* Puts the traces of all that are done in their places below `path`, packed, with a rank.json each
 * and a job.json, and removes those of processes that train nothing (launchers, data loaders).
 * Counts the ranks. */
int attach_collect(const char *path, struct attach_process *processes, size_t n,
                   const struct attach_window *window, const struct dpro_sink *sink,
                   size_t *n_ranks, struct dpro_error *err);
