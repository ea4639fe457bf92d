/* Building one rank from its files. */
#pragma once

#include "ingest/sources.h"

/* What one rank is made of, and where it goes. */
struct rank_job {
    const struct reader_table *table;
    struct trace_rank *rank;
    struct source **sources; /* of the rank; its profiles, the windows, first, ascending in time */
    size_t n_sources, n_windows;
    const struct strtab *names;         /* the trace's */
    struct source *execution_trace;     /* NULL: none */
    struct source *snapshot;            /* of its GPUs' memory; NULL: none */
    struct source *graph;               /* the framework's; NULL: none */
    struct source *shapes;              /* what it was made from, with sizes; NULL: none */
    uint64_t n_node_spans, n_unmatched; /* spans that should be nodes of it, and are not */
    uint32_t first_unmatched;           /* string id */
    uint32_t n_bulks;                   /* ops that stand for several nodes */
    const char *bulk_advice;            /* how they are seen apart; static text */
    ARRAY(char *) warnings;             /* to be said of it, in the trace's arena */
    uint64_t n_duplicates;
    int threads; /* that build it */
};

/* Says what is wrong with a rank's files once all ranks are built, by whichever process. */
#define rank_warn(build, job, ...)                                                                 \
    array_push(&(job)->warnings, arena_format(&(build)->trace->arena, __VA_ARGS__))

/* Adds an item to one of the rank's arrays, which are blocks of their own: RANK_PUSH(rank, links,
 * link). They double when their room, a power of two, is full; not for what rank_make_room() has
 * made room for. */
#define RANK_PUSH(rank, array, ...)                                                                \
    do {                                                                                           \
        size_t n_ = (rank)->n_##array;                                                             \
        if (n_ >= NO_ID - 1)                                                                       \
            mem_fail();                                                                            \
        if ((n_ & (n_ - 1)) == 0)                                                                  \
            (rank)->array = mem_resize((rank)->array, MAX(2 * n_, 1), sizeof *(rank)->array);      \
        (rank)->array[n_] = (__VA_ARGS__);                                                         \
        (rank)->n_##array++;                                                                       \
    } while (0)

/* build_ranks.c: copies what a file knows of its rank and of process groups, where nothing is
 * known yet. */
void rank_describe(struct trace_rank *rank, const struct source *source, struct arena *arena);

/* The rank's file with a payload of that kind, the first of those with the most entries; that
 * others are skipped is said of them: "second list of what" rank 3 "holds". NULL: there is none. */
struct source *job_source(struct trace_build *build, struct rank_job *job,
                          const struct payload_kind *kind, const char *what, const char *does);

/* rank_spans.c: everything of the rank in its place, its profiles' spans sorted and nested. */
void rank_build(struct rank_job *job);

/* rank_allocations.c: what was taken and given back, with what is wrong of it dropped and said; and
 * all of it in its place. */
void rank_check_allocations(struct trace_build *build, struct rank_job *job);
void rank_join_allocations(struct rank_job *job);

/* rank_tracks.c: room for so many more; and what is added there: a CPU track, and a span at the
 * end of the last track, whose detail may be NULL. */
void rank_make_room(struct trace_rank *rank, uint64_t n_tracks, uint64_t n_spans,
                    uint64_t n_details);
void rank_add_track(struct trace_rank *rank, uint32_t name);
void rank_add_span(struct trace_rank *rank, struct trace_span span,
                   const struct trace_detail *detail);
/* The order of a rank's tracks. */
int track_compare(const void *a, const void *b);
/* The index of a track; NO_ID: the rank has none of that kind. */
uint32_t rank_find_track(const struct trace_rank *rank, bool gpu, uint64_t pid, int64_t id);
/* The first span of a track that starts at or after a time. */
uint32_t rank_first_from(const struct trace_rank *rank, const struct trace_track *track,
                         int64_t ts_ns);

/* Whether the rank's times count since the epoch; moving them; and putting a profile without a date
 * on the recorder's clock. */
bool rank_on_epoch(const struct trace_rank *rank);
void rank_shift(struct trace_rank *rank, int64_t by_ns);
void rank_put_on_epoch(struct trace_rank *rank);

/* match_nodes.c: sets span.node, where spans bear the nodes' names. */
void rank_match_graph(struct rank_job *job);
/* mxnet/match_types.c: where they bear the nodes' types only. */
void mxnet_match_types(struct rank_job *job);
