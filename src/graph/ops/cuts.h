/* A rank's tracks while they are cut into slices: each alone, then joined. CPU tracks come first,
 * as device work belongs to the slice of the call that launched it. */
#pragma once

#include "base/array.h"
#include "base/map.h"
#include "graph/rank_build.h"

/* Correlations that lie together are looked up together: calls and work come nearly in their
 * order. */
enum { ROW_BITS = 4 };
struct launch_row {
    uint32_t at[1 << ROW_BITS]; /* index + 1 into `launches`; 0: none */
};

struct launch {
    uint32_t device; /* the first span of the work */
    uint32_t slice;  /* of the call, once CPU tracks are cut; NO_ID: none found */
};

/* A call of a CPU track, and what it launched. */
struct call {
    uint32_t launch; /* index into `launches` */
    uint32_t slice;  /* of the track's own; NO_ID: it is in no step */
    bool yields;     /* to a call that was found before */
};

/* A track and its slices. */
struct cut_track {
    struct track is;
    ARRAY(struct slice) slices;
    ARRAY(struct call) calls;
};

/* Those of a track of the trace, and the last one of all communication threads. */
enum { CUT_OPS, CUT_INBOX, CUTS_A_TRACK };

/* All tracks of a rank. Each is cut alone. */
struct cuts {
    struct rank_build *rank;
    bool waits_for_rounds;
    struct map row_of; /* window and upper bits of a correlation -> index into `rows` */
    ARRAY(struct launch_row) rows;
    ARRAY(struct launch) launches;
    struct map stored_ns;     /* see build_find_stores */
    struct cut_track *tracks; /* not of streams; without `first` where nothing was cut */
    unsigned *uses;           /* enum track_use, by track of the trace */
};

/* Finds all device work that may have been launched, before tracks are cut. */
void cuts_find_launches(struct cuts *cuts);
/* What the device did for a call, which has its correlation; NULL: nothing. */
const struct launch *cuts_find_launch(const struct cuts *cuts, const struct trace_span *span);
/* Cuts streams, once CPU tracks are joined, and chains the work of each call. */
void cuts_add_streams(struct cuts *cuts);
