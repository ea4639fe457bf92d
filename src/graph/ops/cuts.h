/* A rank's tracks while they are cut into slices: each alone, then joined. CPU tracks come first,
 * as device work belongs to the slice of the call that launched it. */
#pragma once

#include "graph/rank_build.h"

/* Correlations that lie together are looked up together: calls and work come nearly in their
 * order. */
enum { ROW_BITS = 4 };
struct launch_row {
    uint64_t key;               /* of window and upper bits of a correlation */
    uint32_t at[1 << ROW_BITS]; /* index + 1 into `launches`; 0: none */
};

struct launch {
    uint32_t device; /* the first span of the work */
    uint32_t slice;  /* of the call, once CPU tracks are cut; NO_ID: none found */
    uint32_t step;   /* of the slice */
};

/* A call of a CPU track, and what it launched. */
struct call {
    uint32_t launch; /* index into `launches` */
    uint32_t slice;  /* of the track's own; NO_ID: it is in no step */
    uint32_t step;   /* of the slice */
    bool yields;     /* to a call that was found before */
};

/* A track and its slices, in room of the rank's. */
struct cut_track {
    struct track is;
    struct slice *slices;
    uint32_t n;
    ARRAY(struct call) calls;
};

/* Those of a track of the trace. */
enum { CUT_OPS, CUT_INBOX, CUTS_A_TRACK };

/* All tracks of a rank. Each is cut alone. */
struct cuts {
    struct rank_build *rank;
    bool waits_for_rounds;
    struct map row_of; /* key -> index into `rows` */
    ARRAY(struct launch_row) rows;
    ARRAY(struct launch) launches;
    struct map stored_ns;     /* see build_find_stores */
    struct cut_track *tracks; /* of CPU tracks; without `first` where nothing was cut */
    unsigned *uses;           /* enum track_use, by track of the trace */
};

/* Finds all device work that may have been launched, before tracks are cut. */
void cuts_find_launches(struct cuts *cuts);
/* What the device did for a call, which has its correlation; NULL: nothing. *row, 0 at first, is
 * where it was found, and where the next one probably is. */
const struct launch *cuts_find_launch(const struct cuts *cuts, const struct trace_span *span,
                                      size_t *row);
/* Cuts streams, once CPU tracks are joined, and chains the work of each call. */
void cuts_add_streams(struct cuts *cuts);
