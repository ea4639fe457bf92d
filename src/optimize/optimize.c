/* Runs one search, or one for each number of parameter servers.
 *
 * Somebody has to start and place a server, so of two numbers that are about as good the smaller
 * one is the result. A recording does not show another number of servers than the job's, so another
 * one must be better by more than the usual error of such predictions. */

#include "base/options.h"
#include "cost/learn/uncertainty.h"
#include "cost/program/cost.h"
#include "cost/program/server_placement.h"
#include "optimize/result.h"
#include "optimize/search.h"

#define WORTH_SERVERS 0.01 /* of an iteration */

static void optimize_check(const struct dpro_model *model, const struct dpro_optimize_options *o)
{
    if (sync_n_servers(&model->net) == 0)
        fail_with(DPRO_EUSAGE, "the job has no parameter servers to change, its ranks exchange "
                               "gradients among themselves; leave out --servers");
    if (o->least_servers < 1 || o->least_servers > o->most_servers ||
        o->most_servers > SERVERS_MOST)
        fail_with(DPRO_EUSAGE,
                  "%u to %u parameter servers can't be searched; 1 to %d can, the "
                  "smaller number first",
                  o->least_servers, o->most_servers, SERVERS_MOST);
}

static struct dpro_server_count count_of(const struct dpro_optimum *o, int64_t usual_ns)
{
    const struct model_net *net = &o->models[DPRO_BEST]->net;
    return (struct dpro_server_count){.n_servers = sync_n_servers(net),
                                      .n_hosts = sync_n_nodes(net) - net->collective.n_ranks,
                                      .usual_ns = usual_ns,
                                      .best_ns = o->summary.best_ns};
}

/* One after the other, until one is stopped. */
static void search_all(const struct dpro_model *model, const struct dpro_optimize_options *options,
                       struct dpro_optimum **found, uint32_t *n_found)
{
    struct dpro_optimize_options mine = *options;
    double left_s = options->budget_s;
    for (uint32_t n = options->least_servers; n <= options->most_servers; n++) {
        if (options->budget_s > 0) /* what is left of it, in equal shares */
            mine.budget_s = left_s > 0 ? left_s / (options->most_servers - n + 1) : 1e-9;
        search_one(model, n, &mine, &found[*n_found]);
        const struct dpro_optimum_summary *s = &found[(*n_found)++]->summary;
        left_s -= s->seconds;
        mine.sink.log = NULL; /* what is said of a pass is the same for all */
        if (strcmp(s->stopped_by, "stopped") == 0)
            break;
    }
}

static uint32_t optimize_choose(struct dpro_optimum *const *found, uint32_t n)
{
    double least_ns = INFINITY;
    uint32_t chosen = 0;
    for (uint32_t i = 0; i < n; i++)
        least_ns = fmin(least_ns, (double)found[i]->summary.best_ns);
    for (uint32_t i = 0; i < n; i++)
        if (found[i]->models[DPRO_BEST] == found[i]->models[DPRO_BASELINE] &&
            (double)found[i]->summary.best_ns <= least_ns * (1 + UNCERTAINTY_SERVERS))
            return i;
    while ((double)found[chosen]->summary.best_ns > least_ns * (1 + WORTH_SERVERS))
        chosen++;
    return chosen;
}

/* What the searches took together, and each number. */
static void sum_up(struct dpro_optimum *const *found, uint32_t n, struct dpro_optimum *chosen)
{
    struct dpro_optimum_summary sum = chosen->summary;
    sum.seconds = 0;
    sum.n_candidates = sum.n_rounds = 0;
    for (uint32_t i = 0; i < n; i++) {
        const struct dpro_optimum_summary *s = &found[i]->summary;
        sum.seconds += s->seconds;
        sum.n_candidates += s->n_candidates;
        sum.n_rounds += s->n_rounds;
        if (strcmp(s->stopped_by, "stopped") == 0 || strcmp(s->stopped_by, "budget") == 0)
            sum.stopped_by = s->stopped_by;
        int64_t usual_ns = evaluate_once(found[i]->models[DPRO_BEST]);
        array_push(&chosen->counts, count_of(found[i], usual_ns));
    }
    chosen->summary = sum;
}

static void search_counts(const struct dpro_model *model,
                          const struct dpro_optimize_options *options,
                          struct dpro_optimum **optimum)
{
    uint32_t n_found = 0;
    optimize_check(model, options);
    struct dpro_optimum **found =
        mem_array(options->most_servers - options->least_servers + (size_t)1, sizeof *found);
    search_all(model, options, found, &n_found);
    uint32_t chosen = optimize_choose(found, n_found);
    sum_up(found, n_found, found[chosen]);
    for (uint32_t i = 0; i < n_found; i++)
        if (i != chosen)
            dpro_optimum_destroy(found[i]);
    *optimum = found[chosen];
    mem_free(found);
}

static void report_compressions(const struct dpro_model *model,
                                const struct dpro_optimize_options *options)
{
    for (int c = DPRO_COMPRESSION_FP16; c <= DPRO_COMPRESSION_BF16; c++)
        if (options->compressions & ~model->capabilities.compressions & 1u << c)
            log_line(&options->sink, DPRO_LOG_WARN, "%s is not tried: the job's stack can't do it",
                     dpro_compression_name((enum dpro_compression)c));
}

/* Options that change nothing here. */
static void report_idle(const struct dpro_model *model, const struct dpro_optimize_options *o,
                        bool of_programs)
{
    bool chooses = o->algorithm != DPRO_ALGORITHM_DEFAULT;
    if (of_programs && (chooses || o->no_coarsen || o->no_partial || o->no_symmetry))
        log_line(&o->sink, DPRO_LOG_WARN,
                 "%s changes nothing: all choices for this job are evaluated in one way",
                 chooses         ? "--algorithm"
                 : o->no_coarsen ? "--no-coarsen"
                 : o->no_partial ? "--no-partial"
                                 : "--no-symmetry");
    else if (chooses && !of_programs && model->n_tensors > 0 && placement_is_all(model))
        log_line(&o->sink, DPRO_LOG_WARN,
                 "--algorithm changes nothing: only the places of this job's tensors can be "
                 "chosen, which needs no algorithm");
    else if (o->algorithm == DPRO_ALGORITHM_DP && !of_programs && model->n_tensors > 0 &&
             !model->capabilities.together)
        log_line(&o->sink, DPRO_LOG_WARN,
                 "--algorithm dp finds nothing: it chooses buckets, and this job sends each "
                 "gradient by itself");
}

static void add_rows(struct dpro_optimum *to, const struct dpro_optimum *from)
{
    EACH_OF (const struct dpro_baseline, row, from->baselines.at, from->baselines.n) {
        struct dpro_baseline copy = *row;
        copy.text = arena_copy_string(&to->arena, row->text, strlen(row->text));
        if (strcmp(row->name, "communication") != 0)
            array_push(&to->baselines, copy);
    }
}

/* By how much less time the best is sure to take, or by how much it is expected to. */
static bool is_better(const struct dpro_optimum *one, const struct dpro_optimum *other)
{
    const struct dpro_optimum_summary *s[] = {&one->summary, &other->summary};
    bool sure[2];
    for (int i = 0; i < 2; i++)
        sure[i] = 100 * ((double)s[i]->baseline_ns / (double)s[i]->best_ns - 1) >
                  HALF_OF_95_PCT * s[i]->uncertainty_pct;
    if (one->memory.fits != other->memory.fits)
        return one->memory.fits;
    return sure[0] != sure[1] ? sure[0] : s[0]->best_ns <= s[1]->best_ns;
}

/* Units of FSDP, and how modules are computed: the better of the two, with the rows of both. */
static void search_units_and_modules(const struct dpro_model *model,
                                     const struct dpro_optimize_options *o,
                                     struct dpro_optimum **optimum)
{
    struct dpro_optimum *units = NULL, *modules = NULL;
    struct dpro_optimize_options mine = *o;
    search_programs(model, o, true, &units);
    mine.budget_s = o->budget_s > 0 ? fmax(1e-9, o->budget_s - units->summary.seconds) : 0;
    search_one(model, sync_n_servers(&model->net), &mine, &modules);
    if (modules->computing.n_modules > 0)
        log_line(&o->sink, DPRO_LOG_WARN,
                 "FSDP's units and ways to compute modules are searched one by one: both together "
                 "may win more");
    bool takes_units = is_better(units, modules);
    *optimum = takes_units ? units : modules;
    add_rows(*optimum, takes_units ? modules : units);
    if (takes_units)
        units->computing = modules->computing;
    EACH (struct dpro_baseline, row, (*optimum)->baselines)
        if (strcmp(row->name, "communication") == 0 && units->memory.fits) {
            row->text = "the best of FSDP's units alone";
            row->iteration_ns = units->summary.best_ns;
            row->likely_ns = units->summary.likely_ns;
            row->uncertainty_pct = units->summary.uncertainty_pct;
        }
    if ((*optimum)->computing.communication_ns > 0 && units->memory.fits)
        (*optimum)->computing.communication_ns = units->summary.best_ns;
    (*optimum)->summary.seconds = units->summary.seconds + modules->summary.seconds;
    (*optimum)->summary.n_candidates += (takes_units ? modules : units)->summary.n_candidates;
    dpro_optimum_destroy(takes_units ? modules : units);
}

static void optimize_optimize(const struct dpro_model *model, const struct dpro_optimize_options *o,
                              struct dpro_optimum **optimum)
{
    if (!dpro_algorithm_name(o->algorithm))
        fail_with(DPRO_EUSAGE, "there is no search algorithm number %d", (int)o->algorithm);
    bool for_memory = o->memory_bytes > 0 || o->memory_share > 0;
    bool of_groups = o->graph && model->n_tensors == 0;
    bool is_sharded = of_groups && dpro_graph_is_sharded(o->graph);
    bool of_units = is_sharded && !o->computing;
    bool of_pipeline = of_groups && !is_sharded && model->n_communications > 0 &&
                       job_dimension(o->graph, DPRO_STAGES) != NULL;
    bool in_passes =
        of_groups && model->n_communications > 0 && for_memory && !o->computing &&
        (job_dimension(o->graph, DPRO_TENSORS) || job_dimension(o->graph, DPRO_CONTEXT) ||
         job_dimension(o->graph, DPRO_EXPERTS));
    bool of_modules = for_memory || o->computing;
    bool of_servers = o->least_servers || o->most_servers;
    bool compresses = o->compressions & ~(1u << DPRO_COMPRESSION_NONE);
    if (model->n_tensors == 0 && (is_sharded || of_pipeline || of_modules)) {
        if (of_servers)
            optimize_check(model, o);
        if (compresses || o->n_pass_files + o->n_passes > 0)
            fail_with(
                DPRO_EUSAGE,
                "%s is for gradients that travel in buckets, and the job has none; leave it out",
                compresses ? "--compress" : "--pass");
    }
    refuse_micro_batches(model);
    report_idle(model, o, of_units || of_pipeline || in_passes);
    if (model->n_tensors > 0 && o->graph && job_dimension(o->graph, DPRO_STAGES))
        log_line(&o->sink, DPRO_LOG_WARN,
                 "buckets alone are searched, not the micro-batches and schedule of the job's "
                 "pipeline: 'dpro whatif --microbatches --schedule' predicts these");
    if (of_pipeline && o->computing)
        log_line(&o->sink, DPRO_LOG_WARN,
                 "--allow changes nothing: how a pipeline's modules are computed is not searched");
    if (is_sharded && o->computing) {
        search_units_and_modules(model, o, optimum);
        return;
    }
    if (of_units) {
        search_programs(model, o, true, optimum);
        if ((*optimum)->memory.fits)
            return;
        dpro_optimum_destroy(*optimum); /* more than units can give has to go */
        *optimum = NULL;
    }
    if (of_units || of_pipeline || in_passes) {
        search_programs(model, o, false, optimum);
        return;
    }
    if (model->n_tensors == 0 && !of_modules)
        fail_with(DPRO_EEMPTY, "%s",
                  model->no_gradients ? model->no_gradients
                                      : "the job communicates no gradients: there is "
                                        "nothing to search");
    report_compressions(model, o);
    if (of_servers)
        search_counts(model, o, optimum);
    else
        search_one(model, sync_n_servers(&model->net), o, optimum);
}

/* What the launches of a GPU's work keep buckets from, and what the model leaves out of them. */
static void tell_launching(const struct dpro_optimize_options *o, const struct dpro_optimum *found)
{
    enum { LAUNCH_BOUND_PCT = 90 }; /* of the iteration, in launches alone */
    const struct dpro_model *ran = found->models[DPRO_BASELINE];
    int64_t least_ns = found->summary.likely_ns, ran_ns = found->summary.baseline_ns;
    EACH (const struct dpro_baseline, row, found->baselines)
        least_ns = row->computes ? least_ns : MIN(least_ns, row->likely_ns);
    if (ran->launching_ns == 0 || ran->n_tensors == 0)
        return;
    if (least_ns <= scaled_ns(model_job_scale(ran, ran->paced_ns), ran->launching_ns))
        log_line(
            &o->sink, DPRO_LOG_WARN,
            "the CPU alone takes %.2f ms an iteration, so no buckets are expected to take less",
            (double)ran->launching_ns / 1e6);
    if (ran->launching_ns >= ran_ns / 100 * LAUNCH_BOUND_PCT && !launches_run_ahead(o->graph))
        log_line(&o->sink, DPRO_LOG_WARN,
                 "the CPU's launches alone take %.2f of %.2f ms an iteration, and may hide "
                 "communication: buckets that are slower here may be no slower in the job",
                 (double)ran->launching_ns / 1e6, (double)ran_ns / 1e6);
}

static void optimize_run(const struct dpro_model *model,
                         const struct dpro_optimize_options *options, struct dpro_optimum **optimum)
{
    struct dpro_optimize_options mine, *o = &mine;
    OPTIONS_MUST_TAKE(&mine, options);
    if (model->turns && model->turns->problem[0])
        log_line(&o->sink, DPRO_LOG_WARN, "%s", model->turns->problem);
    optimize_optimize(model, o, optimum);
    result_end(*optimum);
    tell_launching(o, *optimum);
}

int dpro_optimize_run(const struct dpro_model *model, const struct dpro_optimize_options *options,
                      struct dpro_optimum **optimum, struct dpro_error *err)
{
    return OUTCOME(err, optimize_run(model, options, optimum));
}
