/* What a timeline draws: per device a measured and a replayed track of slices. */
#pragma once

#include "base/base.h"

#include <dpro/graph.h>
#include <dpro/replay.h>

struct drawn_slice {
    int64_t start_ns, dur_ns; /* from the graph's zero, or the replayed iteration's start */
    dpro_op_id op;
    uint32_t collective : 31; /* of a waiting slice */
    uint32_t waiting : 1;     /* the part before a collective's last rank arrived */
};

/* Sorted by start; slices nest or are apart, never overlap in part. */
struct slice_track {
    struct drawn_slice *at;
    uint32_t n;
    dpro_device_id device;
    bool replayed; /* else measured */
};

struct slices {
    struct arena arena;
    uint32_t n_tracks;
    struct slice_track *tracks; /* of each device the measured one, then the replayed one */
};

void slices_init(struct slices *slices, const struct dpro_graph *graph,
                 const struct dpro_replay_view *replay);
void slices_fini(struct slices *slices);

/* Whether an op has a slice on its device's measured or replayed track. */
bool slices_draw(const struct dpro_graph *graph, dpro_op_id op, bool replayed);

/* Which member of a collective arrived last (index into the graph's members) in the replay; when it
 * was measured (NULL for the replay): of those that were seen, else the first one. */
uint32_t slices_last_member(const struct dpro_graph *graph, const struct dpro_replay_view *replay,
                            uint32_t collective);
