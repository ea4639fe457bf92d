/* Replays each measured iteration with its own durations and keeps when every op ran. Where some
 * are slow, the last one leads up to the first, so that what they are slow for is in all once; else
 * a mean one does, or what was measured. Times are free of clock errors and of the profiler's cost;
 * what follows uses them. A model keeps those that it was learnt from, by which what-ifs tell what
 * a program's work is of. */

#include "cost/program/cost.h"
#include "replay/replay.h"

enum { N_SWING = 2, N_MEAN = 2, N_AFTER = 1 };

struct running {
    struct measured_replay *replay;
    const struct dpro_sink *progress;
    uint64_t n_done;
};

static void open_copy(void *arg, uint32_t copy, const int64_t **dur_ns, const int64_t **gap_ns)
{
    const struct running *running = arg;
    const struct measured_replay *r = running->replay;
    const struct dpro_graph *g = r->graph;
    bool leads = g->lead_dur_ns && copy + 1 == r->first;
    bool again = r->any_slow && copy + 1 == r->first && !leads;
    bool measured = g->n_samples > 0 && copy < r->first + r->n && (copy >= r->first || again);
    size_t at = again ? r->n - 1 : measured ? copy - r->first : 0;
    at *= g->n_ops;
    *dur_ns = measured ? g->sample_dur_ns + at : leads ? g->lead_dur_ns : g->dur_ns;
    *gap_ns = measured && g->sample_gap_ns ? g->sample_gap_ns + at
              : leads                      ? g->lead_gap_ns
                                           : g->gap_ns;
}

static void close_copy(void *arg, struct replay_copy *copy)
{
    struct running *running = arg;
    struct measured_replay *r = running->replay;
    log_progress_more(running->progress, "replay the iterations", "iterations", &running->n_done, 1,
                      r->n_copies);
    r->copies[copy->number] = *copy;
    copy->end_ns = NULL;
    copy->device_prev = NULL;
    copy->shared_dur_ns = NULL;
}

void measured_replay_run(const struct dpro_graph *graph, const struct dpro_sink *progress,
                         struct measured_replay *r)
{
    *r = (struct measured_replay){.graph = graph, .first = N_SWING};
    r->n = graph->sample_dur_ns && graph->n_samples ? graph->n_samples : N_MEAN;
    r->n_copies = N_SWING + r->n + N_AFTER;
    r->any_slow = graph->measured_ns && graph->n_samples > 0 &&
                  stats_usual_most_i64(graph->measured_ns, graph->n_samples) < INT64_MAX;
    r->copies = arena_array(&r->arena, r->n_copies, sizeof *r->copies);
    struct event_options options = {.n_copies = r->n_copies, .end_prev = r->n_copies};
    struct running running = {r, progress, 0};
    struct replay_hooks hooks = {&running, open_copy, close_copy};
    event_replay(graph, &options, &hooks);
}

void measured_replay_fini(struct measured_replay *r)
{
    for (uint32_t c = 0; c < r->n_copies; c++) {
        mem_free(r->copies[c].end_ns);
        mem_free(r->copies[c].device_prev);
        mem_free(r->copies[c].shared_dur_ns);
    }
    arena_fini(&r->arena);
}
