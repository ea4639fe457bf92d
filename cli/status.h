/* How far the processes of a job came, as the recorder in each of them wrote it into a file that
 * lies in our memory (python/dpro/status.py). */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum status_flag {
    STATUS_LOADED = 1,    /* a framework was imported */
    STATUS_STEPPED = 2,   /* `step` training steps ended */
    STATUS_WINDOW = 4,    /* steps were recorded */
    STATUS_WRITTEN = 8,   /* and written */
    STATUS_FINISHED = 16, /* all that is to be recorded was; or `text` says why not */
    STATUS_FAILED = 32,   /* `text` says of what */
    STATUS_ENDED = 64,    /* the interpreter ended; else the process was killed, or left at once */
};

struct status {
    unsigned flags;
    int rank, world_size; /* world size 1: of a job of one process, or not known */
    long step;
    char text[1024];
};

/* Makes the file and sets DPRO_STATUS. Returns its descriptor; -1: there is none, and the recorders
 * write nothing. */
int status_open(void);

/* Closes it. *list is for free(). Returns how many processes wrote something. */
size_t status_read(int fd, struct status **list);

/* Why a process recorded nothing, or not all, as the end of a sentence that begins with what it is
 * about; `first` and `last`: the steps of the timing window. */
void status_reason(const struct status *status, long first, long last, char *text, size_t size);

/* Whether it says that the process, rather than its recording, came to an early end. */
bool status_was_killed(const struct status *status);
