/* ingest/horovod/thread.h: between rounds.c, which finds rounds and groups, and
 * thread.c, which finds them on every rank. */
#ifndef INGEST_HOROVOD_THREAD_H
#define INGEST_HOROVOD_THREAD_H

#include "base/strtab.h"
#include "ingest/horovod/rounds.h"

/* What Horovod's thread does with a group, one after the other. */
struct fused_times {
    int64_t start_ns;       /* copies in from here on */
    int64_t transfer_ns;    /* transfers */
    int64_t transferred_ns; /* copies out */
    int64_t out_ns;         /* tells the framework of each tensor */
    int64_t end_ns;
};

/* The times of a group, at first FUSED_NOTHING: of the first of its tensors to begin
 * a stage and of the last to end it. */
#define FUSED_NOTHING ((struct fused_times){INT64_MAX, INT64_MAX, INT64_MIN, INT64_MIN, INT64_MIN})
void fused_widen(struct fused_times *times, const struct timeline_run *run);

/* A group as it was fused in one round. */
struct actual_group {
    uint32_t first, n; /* into rounds.runs */
    struct fused_times times;
};

struct actual_round {
    uint32_t first, n; /* groups */
    uint32_t n_tensors;
};

struct rounds {
    ARRAY(uint32_t) runs; /* of the timeline, those that take part, in order of start */
    ARRAY(struct actual_group) groups;
    ARRAY(struct actual_round) rounds; /* that have all tensors */
};

/* When iterations began, on the timeline's clock, as far as is known. */
typedef ARRAY(int64_t) mark_array;

/* Sorts the marks. *fusion is the caller's; NULL when there is no round. -1: no memory. */
int rounds_find(const struct timeline *timeline, const struct strtab *names, mark_array *marks,
                struct rounds *rounds, struct fusion **fusion);
void rounds_fini(struct rounds *rounds);

/* messages.c: gives each group the messages that carried it, on all ranks, and ties those
 * of the graph's groups to their spans. Needs the spans of all ranks. -1: no memory. */
int fused_find_messages(struct dpro_trace *trace, const struct rounds *rounds, int lead);

/* Bytes of a tensor's element; 4 where the timeline does not say. */
uint64_t timeline_item_bytes(const struct timeline *timeline, const struct strtab *names,
                             uint32_t tensor);

#endif
