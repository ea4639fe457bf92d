/* When ops of a stage timeline began and ended, as the graph has them: with their waiting, and in
 * the order in which they wait for each other. */
#pragma once

#include "ingest/stages/stage_table.h"

/* Data-parallel ranks that wait for each other before an op, in something that was not recorded. */
struct stage_meeting {
    size_t op; /* of the table */
    int64_t start_ns, end_ns;
};

struct stage_times {
    int64_t *arrived_ns; /* of each op: when its worker asked for it */
    int64_t *ended_ns;   /* of each op: when those that wait for it could go on, at the latest */
    ARRAY(struct stage_meeting) meetings; /* by op */
};

/* All but the meetings is in the arena; these are to be freed. */
void stage_times_find(const struct stage_table *table, const struct stage_plan *plan,
                      struct stage_times *times, struct arena *arena);
/* NULL: there is none. */
const struct stage_meeting *stage_meeting_before(const struct stage_times *times, size_t op);
