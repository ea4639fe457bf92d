/* Talking to the other processes.
 *
 * The first process and each helper speak in turns: the helper tells, the first answers. So either
 * knows at all times who is to speak, and the first can let a helper go at any point. */
#pragma once

#include <pthread.h>
#include <semaphore.h>

#include <dpro/log.h>
#include <dpro/processes.h>

#include "base/pack.h"

struct mpi_module;

struct dpro_processes {
    const struct mpi_module *mpi;
    int n, me;
    pthread_t thread; /* MPI begins and ends in it, as that is mostly sleep */
    sem_t begun, over;
    bool has_begun, has_ended; /* it was waited for; it was told */
    int rc;                    /* of beginning */
    bool has_met;              /* processes_meet() */
    int n_beside;              /* helpers on this machine */
    bool *answers;             /* of the first, by helper: it waits for an answer */
    bool is_over;              /* of the first: it goes on alone; of a helper: it may go */
    uint64_t n_received;       /* bytes */
    const char *idle;          /* dpro_processes_idle() */
    uint64_t n_heard;          /* helpers, in this turn */
    struct dpro_sink sink;
};

int processes_count(const struct dpro_processes *processes);

/* Waits until all processes are there: before the first turn. Fails, too, where one is of another
 * build. */
int processes_meet(struct dpro_processes *processes, struct dpro_error *err);

/* A helper's turn: what is packed from now on; false: it was let go. Then the answer, to be read;
 * false: it is let go. */
bool processes_tell(struct dpro_processes *processes, struct pack *pack);
bool processes_told(struct dpro_processes *processes, struct pack *pack);
/* The first's: begins what that helper tells, to be read; and the answer to it. */
void processes_hear(struct dpro_processes *processes, int helper, struct pack *pack);
void processes_answer(struct dpro_processes *processes, int helper, struct pack *pack);
/* for (...): what each helper tells, begun and ended; the answer to each. */
#define EACH_HEARD(processes, helper, pack) EACH_HELPER(processes, helper, pack, processes_hear)
#define EACH_ANSWERED(processes, helper, pack)                                                     \
    EACH_HELPER(processes, helper, pack, processes_answer)
#define EACH_HELPER(processes, helper, pack, begin)                                                \
    for (int helper = 1;                                                                           \
         helper < processes_count(processes) && (begin((processes), helper, (pack)), true);        \
         processes_end(pack), helper++)
/* Ends what was begun: sends what is left, or passes over it, and frees the pack. */
void processes_end(struct pack *pack);
/* The first goes on alone: helpers end. */
void processes_let_go(struct dpro_processes *processes);
/* And why they had nothing to do: a text of the trace's. */
void processes_go_alone(struct dpro_processes *processes, const char *why);
