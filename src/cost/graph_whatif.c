/* cost/graph_whatif.c: what-ifs of jobs without a coarse model: replays the graph as it was
 * recorded and with the changes. */
#include <math.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/sort.h"
#include "base/stats.h"
#include "cost/whatif_result.h"
#include "replay/replay.h"
#include "replay/resharded_graph.h"

enum { N_DRAWS = 200, MOST_DRAWN_OPS = 20000000 };

/* Of what changes: where a machine is shared, gathers of equal size differ by that. */
#define GATHER_ERROR 0.5
/* What the machine does to an iteration at another time, and to a ratio of two by turns. */
#define MACHINE_ERROR 0.045
#define RATIO_ERROR   0.02
/* Of a peak, of what is otherwise than recorded. */
#define MEMORY_ERROR 0.01

static bool asks_for_more(const struct dpro_changes *c)
{
    return c->bucket_cap_bytes || c->buckets_path || c->first_bucket_bytes || c->partition_bytes ||
           c->compression || c->bandwidth_bytes_per_s > 0 || c->bandwidth_ratio > 0 ||
           c->latency_ratio > 0 || c->latency_add_ns != 0 || c->world_size || c->cycle_ns ||
           c->fusion_bytes || c->n_servers || c->bigarray_bound ||
           c->server_bandwidth_bytes_per_s > 0 || c->server_bandwidth_ratio > 0 || c->recompute ||
           c->micro_batches > 1 || c->batch_size || c->batch_ratio != 0 || c->gradient_views ||
           c->compile || c->precision;
}

/* As options of delayed_graph(). */
static const char **delays_of(const struct dpro_changes *c)
{
    const char **delays = mem_array(c->n_compute + c->n_delays + 1, sizeof *delays);
    for (size_t i = 0; i < c->n_compute; i++) {
        const struct dpro_compute_change *it = &c->compute[i];
        delays[i] = it->first_rank < 0 ? mem_format("COMPUTE=%.9g", 1 / it->speed)
                                       : mem_format("COMPUTE@%d-%d=%.9g", it->first_rank,
                                                    it->last_rank, 1 / it->speed);
    }
    for (size_t i = 0; i < c->n_delays; i++)
        delays[c->n_compute + i] = mem_copy_string(c->delays[i]);
    return delays;
}

static int apply(const struct dpro_graph *graph, const struct dpro_changes *c,
                 struct dpro_whatif *w, struct dpro_graph *changed, struct dpro_error *err)
{
    struct dpro_graph delayed;
    size_t n = c->n_compute + c->n_delays;
    const char **delays = delays_of(c);
    int rc = delayed_graph(graph, delays, n, 1, &w->arena, &delayed, err);
    for (size_t i = 0; i < n; i++)
        mem_free((char *)delays[i]);
    mem_free(delays);
    if (rc < 0)
        return rc;
    if (!c->reshard) {
        *changed = delayed;
        return 0;
    }
    struct resharding resharding;
    rc = resharded_graph(&delayed, c->reshard, &w->arena, changed, &resharding, err);
    if (rc < 0)
        return rc;
    w->units = arena_array(&w->arena, (size_t)graph->n_units + 1, sizeof *w->units);
    for (uint32_t u = 0; u < graph->n_units; u++)
        w->units[w->n_units++] = (struct dpro_unit){strtab_get(&graph->names, graph->units[u].name),
                                                    resharding.before[u], resharding.after[u]};
    return 0;
}

static struct dpro_memory_peak peak_of(const struct dpro_graph *graph,
                                       const struct dpro_replay *replay)
{
    struct dpro_memory_peak peak = {.rank = -1, .phase = DPRO_OP_BARRIER};
    for (uint32_t r = 0; r < graph->n_ranks; r++) {
        struct dpro_rank_memory of = dpro_replay_memory(replay, r);
        if (of.source == DPRO_MEMORY_UNKNOWN || of.peak_bytes <= peak.bytes)
            continue;
        peak = (struct dpro_memory_peak){.bytes = of.peak_bytes,
                                         .rank = of.rank,
                                         .phase = of.peak_phase,
                                         .module = of.peak_module};
        if (of.measured_peak_bytes > 0)
            peak.std_bytes = fabs((double)of.peak_bytes - (double)of.measured_peak_bytes);
        memcpy(peak.by_category, of.by_category, sizeof peak.by_category);
    }
    return peak;
}

static int predict(const struct dpro_graph *graph, struct dpro_prediction *prediction,
                   struct dpro_memory_peak *peak, struct dpro_error *err)
{
    struct dpro_replay *replay;
    uint32_t draws = MOST_DRAWN_OPS / (graph->n_ops + 1);
    struct dpro_replay_options options = {.samples =
                                              graph->n_samples > 1 ? MIN(draws, N_DRAWS) : 0};
    int rc = dpro_replay_run(graph, &options, &replay, err);
    if (rc < 0)
        return rc;
    *prediction = (struct dpro_prediction){.iteration_ns = dpro_replay_iteration_ns(replay),
                                           .p50_ns = dpro_replay_percentile_ns(replay, 0.5),
                                           .p95_ns = dpro_replay_percentile_ns(replay, 0.95)};
    *peak = peak_of(graph, replay);
    dpro_replay_destroy(replay);
    return 0;
}

static void add_part(struct dpro_whatif *w, enum dpro_uncertainty_source source, double before,
                     double after, double speedup)
{
    w->parts[source] = (struct dpro_uncertainty_part){before, after, speedup};
    w->baseline.uncertainty_pct = hypot(w->baseline.uncertainty_pct, 196 * before);
    w->predicted.uncertainty_pct = hypot(w->predicted.uncertainty_pct, 196 * after);
    w->speedup.std = hypot(w->speedup.std, speedup);
}

static void add_uncertainty(const struct dpro_graph *graph, struct dpro_whatif *w)
{
    double before = (double)w->baseline.iteration_ns, after = (double)w->predicted.iteration_ns;
    double ratio = after > 0 ? before / after : 1, n = graph->n_samples;
    double mean = n > 0 ? (double)stats_mean_i64(graph->measured_ns, graph->n_samples) : 0;
    double noise = 0;
    for (uint32_t s = 0; s < graph->n_samples && mean > 0 && n > 1; s++)
        noise += pow((double)graph->measured_ns[s] / mean - 1, 2) / (n - 1) / n;
    noise = sqrt(noise);
    w->speedup.value = ratio;
    add_part(w, DPRO_UNCERTAIN_ITERATIONS, noise, noise, noise * (ratio - 1));
    add_part(w, DPRO_UNCERTAIN_MACHINE, MACHINE_ERROR, MACHINE_ERROR, RATIO_ERROR * ratio);
    double change = GATHER_ERROR * fabs(ratio - 1);
    add_part(w, DPRO_UNCERTAIN_CHANGE, 0, change / ratio, change);
    double moved = (double)w->memory[1].bytes - (double)w->memory[0].bytes;
    w->memory[1].std_bytes = hypot(w->memory[0].std_bytes, MEMORY_ERROR * moved);
}

int whatif_by_graph(const struct dpro_graph *graph, const struct dpro_changes *changes,
                    struct dpro_whatif *w, struct dpro_error *err)
{
    struct dpro_graph changed;
    w->by_graph = true;
    if (asks_for_more(changes))
        return dpro_error_set(err, DPRO_EUSAGE,
                              "of a job whose parameters are sharded (FSDP) dpro can tell what "
                              "--reshard, --compute and --delay do, and no more");
    int rc = apply(graph, changes, w, &changed, err);
    if (rc == 0)
        rc = predict(graph, &w->baseline, &w->memory[0], err);
    if (rc == 0)
        rc = predict(&changed, &w->predicted, &w->memory[1], err);
    if (rc < 0)
        return rc;
    add_uncertainty(graph, w);
    return 0;
}
