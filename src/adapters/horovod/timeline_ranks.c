/* Gives each communication timeline to its rank. A rank has one. A timeline that was recorded at
 * another time than the rank's profile is of another run. */

#include "ingest/rank_job.h"
#include "ingest/readers.h"
#include "ingest/transport/ps.h"

/* Further apart than this, timeline and profile are of different runs. */
static const int64_t SLACK_NS = 1000000000;

/* The time between the timeline and the nearest window of the rank. */
static int64_t distance_ns(const struct trace_rank *rank, const struct source *source)
{
    int64_t least = INT64_MAX;
    const struct timeline *timeline = source_payload(source, &timeline_payload);
    if (!timeline->on_epoch || !rank_on_epoch(rank))
        return 0;
    EACH_OF (const struct trace_window, window, rank->windows, rank->n_windows) {
        int64_t away = 0;
        if (window->start_ns > source->part.end_ns)
            away = window->start_ns - source->part.end_ns;
        else if (source->part.start_ns > window->end_ns)
            away = source->part.start_ns - window->end_ns;
        least = MIN(least, away);
    }
    return least;
}

static void rename_all(struct timeline *timeline, const uint32_t *names)
{
    EACH (struct timeline_tensor, tensor, timeline->tensors)
        RENAME(names, &tensor->name, &tensor->dtype, &tensor->backend);
    EACH (struct timeline_run, run, timeline->runs)
        RENAME(names, &run->op);
}

static void give_timeline(struct trace_build *build, struct source *source)
{
    struct trace_rank *rank = trace_rank_of(build->trace, source->rank);
    int64_t away = rank ? distance_ns(rank, source) : 0;
    if (!rank || rank->timeline) {
        build_warn(build, "%s: rank %d has %s", source->path, source->rank,
                   rank ? "another timeline; it is left out"
                        : "no profile that its timeline could go with; it is left out; add the "
                          "framework's profile of the same steps");
        return;
    }
    if (away > SLACK_NS) {
        build_warn(build,
                   "%s: recorded %" PRId64 " seconds away from rank %d's profile, so of another "
                   "run or of other steps; it is left out",
                   source->path, away / 1000000000, source->rank);
        return;
    }
    rank->timeline = part_take_payload(&source->part, &timeline_payload);
    rename_all(rank->timeline, source->names);
    if (rank->timeline->n_open > 0)
        build_warn(build,
                   "%s: %" PRIu64 " tensors were being communicated where the timeline ends; that "
                   "communication is left out",
                   source->path, rank->timeline->n_open);
}

static void timelines_join(struct trace_build *build)
{
    EACH (struct source, source, build->list)
        if (source_usable(source) && source->rank >= 0 && source_payload(source, &timeline_payload))
            give_timeline(build, source);
    byteps_join(build->trace);
    fusion_build(build->trace);
}

const struct reader timeline_reader = {
    .name = "timeline",
    .word = "communication timeline",
    .encoding = "JSON",
    .flags = READER_RANK_0,
    .recognise = timeline_recognise,
    .read_json = timeline_read,
    .stand_alone = timelines_stand_alone,
    .join = timelines_join,
};
