/* Between rounds.c, which finds rounds and groups, and thread.c, which finds them on every rank. */
#pragma once

#include "ingest/trace.h"

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
    const struct timeline *timeline;
    const struct strtab *names; /* of the trace */
    ARRAY(uint32_t) runs;       /* of the timeline, those that take part, in order of start */
    ARRAY(struct actual_group) groups;
    ARRAY(struct actual_round) rounds; /* that have all tensors */
};

/* A round's runs are next to each other: the places of its first one, and behind its last. */
static inline uint32_t round_first(const struct rounds *rounds, const struct actual_round *round)
{
    return rounds->groups.at[round->first].first;
}
static inline uint32_t round_end(const struct rounds *rounds, const struct actual_round *round)
{
    const struct actual_group *last = &rounds->groups.at[round->first + round->n - 1];
    return last->first + last->n;
}

/* The i-th of rounds.runs, and its tensor. */
static inline const struct timeline_run *rounds_run(const struct rounds *rounds, size_t i)
{
    return &rounds->timeline->runs.at[rounds->runs.at[i]];
}
static inline uint32_t rounds_tensor(const struct rounds *rounds, size_t i)
{
    return rounds_run(rounds, i)->tensor;
}

/* When iterations began, on the timeline's clock, as far as is known. */
typedef ARRAY(int64_t) mark_array;

/* Fills *rounds, which has its timeline and names. Sorts the marks. What they have in common goes
 * into the arena; NULL: there is no round. */
struct fusion *rounds_find(struct arena *arena, mark_array *marks, struct rounds *rounds);
void rounds_fini(struct rounds *rounds);

/* Bytes of a tensor's element; 4 where the timeline does not say. */
uint64_t rounds_item_bytes(const struct rounds *rounds, uint32_t tensor);
/* Bytes of a group, and of its largest tensor; 0: not known. */
uint64_t rounds_group_bytes(const struct rounds *rounds, const struct actual_group *group,
                            uint64_t *largest);

/* A span that hands a tensor over to Horovod. */
struct span_ref {
    int64_t start_ns;
    uint32_t span;
    uint32_t place; /* of the tensor in fusion->tensors; NO_ID: its name does not tell */
};

/* One rank's groups, as they were fused; then as they are in the graph, [round * n_groups + g]. */
struct placing {
    struct dpro_trace *trace;
    const struct fusion *fusion;
    const struct rounds *rounds;
    struct trace_rank *rank;
    struct arena arena;          /* has what follows, except refs */
    struct fused_times *actual;  /* by rounds->groups */
    struct fused_times *groups;  /* [round * n_groups + group]; start_ns NEVER: not in that round */
    const uint32_t *place_of;    /* by tensor of the timeline: in fusion->tensors; NO_ID */
    const uint32_t *cells;       /* [round * n_tensors + place]: the actual group; NO_ID */
    ARRAY(struct span_ref) refs; /* by start */
};
#define NEVER INT64_MIN

/* thread_times.c: sets p->actual of another rank than the leading one, whose times it has. */
void thread_times_from_own(struct placing *p);
void thread_times_from_logs(struct placing *p, int lead);

/* hand_overs.c: lists p->refs; puts a profile whose times count from its own start on the
 * timeline's clock; sets enqueues, [round * n_tensors + place]: the span that handed the tensor
 * over. */
void hand_overs_find(struct placing *p);
void hand_overs_put_on_clock(struct placing *p);
void hand_overs_take(struct placing *p, uint32_t *enqueues);

/* thread_groups.c: sets p->groups. */
void thread_place_groups(struct placing *p);

/* ring_messages.c: gives each group the messages that carried it, on all ranks, and ties those of
 * the graph's groups to their spans. Needs the spans of all ranks. */
void fused_find_messages(struct dpro_trace *trace, const struct rounds *rounds, int lead);
