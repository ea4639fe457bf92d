/* cost/graph_whatif.c: what-ifs of jobs without a coarse model: replays the graph as it was
 * recorded and with the changes. */
#include <math.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/sort.h"
#include "base/stats.h"
#include "cost/change_computing.h"
#include "cost/change_memory.h"
#include "cost/graph_work.h"
#include "cost/model_memory.h"
#include "cost/strategy_memory.h"
#include "cost/strategy_work.h"
#include "cost/uncertainty.h"
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
           c->server_bandwidth_bytes_per_s > 0 || c->server_bandwidth_ratio > 0 ||
           c->gradient_views || c->compile;
}

static bool asks_for_modules(const struct dpro_changes *c)
{
    return c->recompute || c->micro_batches > 1 || c->batch_size || c->batch_ratio != 0 ||
           c->precision;
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

static int delay(const struct dpro_graph *graph, const struct dpro_changes *c,
                 struct dpro_whatif *w, struct dpro_graph *delayed, struct dpro_error *err)
{
    size_t n = c->n_compute + c->n_delays;
    const char **delays = delays_of(c);
    int rc = delayed_graph(graph, delays, n, 1, &w->arena, delayed, err);
    for (size_t i = 0; i < n; i++)
        mem_free((char *)delays[i]);
    mem_free(delays);
    return rc;
}

static int reshard(const struct dpro_graph *graph, const struct dpro_changes *c,
                   struct dpro_whatif *w, struct dpro_graph *changed, struct dpro_error *err)
{
    struct resharding resharding;
    *changed = *graph;
    if (!c->reshard)
        return 0;
    int rc = resharded_graph(graph, c->reshard, &w->arena, changed, &resharding, err);
    if (rc < 0)
        return rc;
    w->units = arena_array(&w->arena, (size_t)graph->n_units + 1, sizeof *w->units);
    w->n_units = 0;
    for (uint32_t u = 0; u < graph->n_units; u++)
        w->units[w->n_units++] = (struct dpro_unit){strtab_get(&graph->names, graph->units[u].name),
                                                    resharding.before[u], resharding.after[u]};
    return 0;
}

/* ---- modules and the batch ---- */

static bool lies_within(const char *name, const char *outer)
{
    size_t n = strlen(outer);
    return name[0] != '\0' && (n == 0 || (strncmp(name, outer, n) == 0 && name[n] == '.'));
}

/* A unit in a recomputed module would be gathered once more. */
static int check_units(const struct dpro_graph *graph, const struct dpro_model *model,
                       struct dpro_error *err)
{
    for (uint32_t m = 0; m < model->n_modules; m++)
        for (uint32_t u = 0; u < graph->n_units && model->baseline.recomputed[m]; u++) {
            const char *unit = strtab_get(&graph->names, graph->units[u].name);
            const char *name = model->modules[m].name;
            if (lies_within(unit, name))
                return dpro_error_set(
                    err, DPRO_EUSAGE,
                    "%.200s has FSDP's unit '%.200s' in it, which would be gathered once more to "
                    "recompute it: how that goes is not known; name units, or modules in them",
                    name[0] ? name : "the model", unit);
        }
    return 0;
}

static bool gathers(const struct dpro_graph *g)
{
    for (uint32_t op = 0; g->gather && op < g->n_ops; op++)
        if (g->gather[op] != 0)
            return true;
    return false;
}

static int change_modules(const struct dpro_graph *graph, const struct dpro_changes *c,
                          struct dpro_model *model, struct notes *notes, struct dpro_error *err)
{
    if (!asks_for_modules(c))
        return 0;
    if (!gathers(graph))
        return dpro_error_set(err, DPRO_EUSAGE,
                              "nothing shows when FSDP gathers parameters: what other modules or "
                              "batches take can be asked for of jobs with fully_shard that 'dpro "
                              "profile' recorded");
    int rc = change_computing(c, model, notes, err);
    if (rc == 0)
        rc = change_memory(c, model, notes, err);
    if (rc == 0)
        rc = check_units(graph, model, err);
    if (rc == 0 && c->micro_batches > 1)
        note(notes, "each micro-batch gathers parameters and reduces gradients, as FSDP does "
                    "unless the script calls set_requires_gradient_sync(False)");
    return rc;
}

/* Parameters gathered for a unit stay those of its passes, whatever else changes. */
static void find_peaks(const struct dpro_graph *graph, const struct dpro_graph *changed,
                       struct dpro_model *model, struct dpro_whatif *w)
{
    static const struct dpro_strategy as_it_is;
    struct dpro_model own = *model, resharded;
    own.memory = (struct memory_setting){0};
    if (!memory_is_known(model))
        return;
    w->memory[0] = memory_peak_told(&own, &as_it_is);
    if (changed->memory == graph->memory) {
        w->memory[1] = memory_peak_told(model, &model->baseline);
        return;
    }
    graph_model(changed, NULL, &resharded);
    for (uint32_t i = 0; i < resharded.n_memories; i++)
        resharded.memories[i].measured_peak_bytes = 0; /* it is another job's */
    double moved = (double)memory_peak_bytes(&resharded, &as_it_is) - (double)w->memory[0].bytes;
    resharded.memory = model->memory;
    w->memory[1] = memory_peak_told(&resharded, &model->baseline);
    if (w->memory[1].module) /* of the same modules */
        w->memory[1].module =
            arena_copy_string(&w->arena, w->memory[1].module, strlen(w->memory[1].module));
    w->memory[1].std_bytes =
        hypot(hypot(w->memory[1].std_bytes, w->memory[0].std_bytes), MEMORY_ERROR * moved);
    arena_fini(&resharded.arena);
}

static int predict(const struct dpro_graph *graph, struct dpro_prediction *prediction,
                   struct dpro_error *err)
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
    dpro_replay_destroy(replay);
    return 0;
}

/* All micro-batches but the last: what a step does once is left out of them. */
static int predict_others(const struct dpro_graph *graph, const struct dpro_changes *changes,
                          struct dpro_whatif *w, struct dpro_error *err)
{
    uint32_t n = w->model.baseline.micro_batches;
    struct dpro_graph passes, changed;
    int64_t ns;
    if (n <= 1)
        return 0;
    graph_with_work(graph, &w->model, true, &w->arena, &passes);
    int rc = reshard(&passes, changes, w, &changed, err);
    if (rc == 0)
        rc = replay_predict(&changed, &(struct dpro_replay_options){.samples = 0}, &ns, err);
    if (rc < 0)
        return rc;
    w->predicted.iteration_ns += (n - 1) * ns;
    w->predicted.p50_ns += (n - 1) * ns;
    w->predicted.p95_ns += (n - 1) * ns;
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

/* All modules that are computed otherwise; those of one class err alike. */
static double computing_error(const struct dpro_model *m, double iteration_ns)
{
    double std_ns = 0;
    for (uint32_t i = 0; m->baseline.computing && i < m->n_modules; i++)
        if (m->baseline.computing[i] != DPRO_AS_IT_IS)
            std_ns += computing_change_of(m, i, m->baseline.computing[i]).std_ns;
    return iteration_ns > 0 ? std_ns / iteration_ns : 0;
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
    struct dpro_model before_model = {.page_faults = -1};
    double batch = uncertainty_of_batch(&before_model, &w->model);
    add_part(w, DPRO_UNCERTAIN_BATCH, 0, batch, batch * ratio);
    double computing = computing_error(&w->model, after);
    add_part(w, DPRO_UNCERTAIN_COMPUTING, 0, computing, computing * ratio);
}

int whatif_by_graph(const struct dpro_graph *graph, const struct dpro_changes *changes,
                    struct dpro_whatif *w, struct dpro_error *err)
{
    struct dpro_graph delayed, worked, changed;
    w->by_graph = true;
    if (asks_for_more(changes))
        return dpro_error_set(err, DPRO_EUSAGE,
                              "of a job whose parameters are sharded (FSDP) dpro can tell what "
                              "--reshard, --recompute, --accumulate, --batch-size, --precision, "
                              "--compute and --delay do, and no more");
    graph_model(graph, NULL, &w->model);
    w->model.baseline.recomputed =
        arena_array(&w->arena, w->model.n_modules + (size_t)1, sizeof(bool));
    int rc = change_modules(graph, changes, &w->model, &w->notes, err);
    if (rc == 0)
        rc = delay(graph, changes, w, &delayed, err);
    if (rc < 0)
        return rc;
    worked = delayed;
    if (asks_for_modules(changes))
        graph_with_work(&delayed, &w->model, false, &w->arena, &worked);
    rc = reshard(&worked, changes, w, &changed, err);
    if (rc == 0)
        rc = predict(graph, &w->baseline, err);
    if (rc == 0)
        rc = predict(&changed, &w->predicted, err);
    if (rc == 0)
        rc = predict_others(&delayed, changes, w, err);
    if (rc < 0)
        return rc;
    find_peaks(graph, &changed, &w->model, w);
    add_uncertainty(graph, w);
    return 0;
}
