/* The timeline of an iteration, as measured and as replayed: a process a rank and a server, two
 * tracks a device and two a dimension of parallelism, the critical path as a process of its own,
 * arrows where one op makes another start, and what ranks hold. A form of it writes these. */
#pragma once

#include "base/writer.h"
#include "report/slices.h"

/* One end of an arrow between two ops' slices. */
struct drawing_arrow {
    dpro_op_id op;
    bool replayed, is_end;
    uint64_t id;      /* of both ends, from 1 on */
    int64_t at_ns;    /* in the slice, the waiting left out */
    const char *what; /* static */
};

struct drawing_slice {
    int64_t pid, tid, start_ns, dur_ns;
    const char *name, *kind;
    const struct writer_field *notes;
    size_t n_notes, n_arrows;
    const struct drawing_arrow *arrows; /* that begin or end in it */
};

/* Processes and tracks are numbered from 1 on, tracks within all processes; they come in the order
 * of their `place`. A process is told before its tracks, a track before its slices. */
struct drawing_form {
    void *arg;
    void (*process)(void *arg, int64_t pid, const char *name, int64_t place);
    void (*track)(void *arg, int64_t pid, int64_t tid, const char *name);
    void (*slice)(void *arg, const struct drawing_slice *slice);
    void (*held)(void *arg, int64_t pid, const struct dpro_rank_memory *memory, int64_t zero_ns);
};

/* What its times count from, since viewers drop negative ones: the graph's zero, or the first thing
 * that is before that. */
int64_t drawing_zero_ns(const struct slices *slices, const struct dpro_replay_view *replay);
void drawing_tell(const struct dpro_graph *graph, const struct dpro_replay_view *replay,
                  const struct slices *slices, const struct drawing_form *form);
