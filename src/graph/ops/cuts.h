/* A rank's tracks while they are cut into slices: each alone, then joined. CPU tracks come first,
 * as device work belongs to the slice of the call that launched it. */
#pragma once

#include "graph/rank_build.h"

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
    struct map launch_of; /* build_correlation_key() -> index into `launches` */
    ARRAY(struct launch) launches;
    struct map stored_ns;     /* see build_find_stores */
    struct cut_track *tracks; /* of CPU tracks; without `first` where nothing was cut */
    unsigned *uses;           /* enum track_use, by track of the trace */
};

/* Finds all device work that may have been launched, before tracks are cut. */
void cuts_find_launches(struct cuts *cuts);
/* What the device did for a call, which has its correlation; NULL: nothing. */
const struct launch *cuts_find_launch(const struct cuts *cuts, const struct trace_span *span);

/* Cuts streams, once CPU tracks are joined, and chains the work of each call. */
void cuts_add_streams(struct cuts *cuts);
