/* Learns a model from a recorded graph. */
#include "cost/program/model.h"

#include "base/options.h"
#include "cost/learn/uncertainty.h"
#include "cost/program/cost.h"
#include "cost/program/evaluate.h"
#include "cost/program/model_memory.h"
#include "cost/program/sync.h"
#include "ingest/probes.h"

/* ---- the strategy that the job ran with ---- */

struct model_placed {
    uint32_t tensor, bucket; /* collective of the graph */
    int64_t launched_ns;
};

ORDER(by_launch, struct model_placed,
      ASCENDING(launched_ns) ?: ASCENDING(bucket) ?: ASCENDING(tensor));

static void make_baseline(const struct measured_replay *r, const struct coarse *coarse,
                          struct dpro_model *model)
{
    const struct dpro_graph *g = r->graph;
    struct dpro_strategy *baseline = &model->baseline;
    struct model_placed *placed = arena_array(&model->arena, model->n_tensors, sizeof *placed);
    baseline->order = arena_array(&model->arena, model->n_tensors, sizeof *baseline->order);
    baseline->buckets = arena_array(&model->arena, model->n_tensors, sizeof *baseline->buckets);
    for (uint32_t t = 0; t < model->n_tensors; t++) {
        uint32_t op = coarse->ready[t];
        if (!coarse->exchange_of)
            op = g->members[g->collectives[coarse->bucket_of[t]].first_member].arrival;
        placed[t] = (struct model_placed){t, coarse->bucket_of[t], r->copies[r->first].end_ns[op]};
    }
    qsort(placed, model->n_tensors, sizeof *placed, by_launch);
    for (uint32_t t = 0; t < model->n_tensors; t++) {
        baseline->order[t] = placed[t].tensor;
        if (t == 0 || placed[t].bucket != placed[t - 1].bucket)
            baseline->buckets[baseline->n_buckets++] =
                (struct strategy_bucket){.first = t, .partitions = 1};
        baseline->buckets[baseline->n_buckets - 1].n++;
        if (sync_n_servers(&model->net)) {
            const struct graph_exchange *exchange =
                &g->exchanges[coarse->exchange_of[placed[t].tensor]];
            baseline->buckets[baseline->n_buckets - 1].server = exchange->server;
            baseline->buckets[baseline->n_buckets - 1].partitions = exchange->n_parts;
        }
    }
    baseline->cycle_ns = model->net.gate.cycle_ns;
    baseline->fuses = baseline->cycle_ns > 0 && g->cycles.fuses;
    baseline->fusion_bytes = g->cycles.fusion_bytes;
}

/* A graph that no trace is behind has no framework. */
static enum dpro_stack stack_of(const struct dpro_graph *g, const struct model_net *net)
{
    bool tensorflow = g->framework && strcmp(g->framework, "tensorflow") == 0;
    bool mxnet = g->framework && strcmp(g->framework, "mxnet") == 0;
    if (net->gate.negotiates)
        return DPRO_STACK_HOROVOD;
    if (net->collective.algorithm == MODEL_SERVER)
        return tensorflow ? DPRO_STACK_TENSORFLOW_PS
               : mxnet    ? DPRO_STACK_MXNET_PS
                          : DPRO_STACK_BYTEPS;
    return tensorflow ? DPRO_STACK_TENSORFLOW_RING : DPRO_STACK_DDP;
}

/* What the stack can be given, and what of the recording makes the model unsure. */
static void describe_stack(const struct dpro_graph *g, struct dpro_model *model)
{
    model->capabilities = model_capabilities(stack_of(g, &model->net));
    bool is_ring = model->capabilities.stack == DPRO_STACK_TENSORFLOW_RING;
    if (model_casts(model)) {
        model->capabilities.text = "PyTorch's DDP can be given any buckets, in parts, in any "
                                   "order; the recorded job casts its gradients already";
        model->capabilities.compressions = 1u << DPRO_COMPRESSION_NONE;
    }
    if (is_ring && g->in_session)
        model->capabilities.text =
            "dpro applies no plan to a session's collectives, which are ops of the job's own "
            "graph: the script can make any packs of gradients";
    if (is_ring && !model->net.gate.in_order)
        array_push(
            &model->warnings,
            "collectives ran at once, beside computation on the same cores: the link may be faster "
            "than the rate that is learnt; give --bandwidth as a ratio (2x), not as a rate");
    if (g->n_samples < 2)
        array_push(&model->warnings,
                   "one iteration was recorded, which does not show how much iterations vary");
}

static void model_learn(const struct measured_replay *replay, struct dpro_model *model)
{
    struct coarse coarse;
    model_coarsen(replay, model, &coarse);
    fit_net(replay, &coarse, model);
    make_programs(replay, &coarse, model);
    learn_batch_shares(replay, model);
    make_baseline(replay, &coarse, model);
    model_memory_learn(replay, model);
    learn_batch_cut(replay->graph, model);
    learn_module_costs(replay, model);
    learn_batch_curve(model);
    describe_stack(replay->graph, model);
    learn_least_times(replay->graph, &coarse, model);
    arena_fini(&coarse.arena);
}

/* When the first rank is through with an iteration: a thread may be ahead of its GPU. */
static int64_t over_ns(const struct measured_replay *r, uint32_t copy)
{
    const struct graph_rank *rank = &r->graph->ranks[0];
    const int64_t *end_ns = r->copies[copy].end_ns;
    int64_t over = end_ns[rank->boundary];
    for (uint32_t op = rank->first_op; op < rank->first_op + rank->n_ops; op++)
        if (r->graph->flags[op] & GRAPH_OP_GPU)
            over = MAX(over, end_ns[op]);
    return over;
}

static int64_t iteration_ns(const struct measured_replay *r, uint32_t sample)
{
    uint32_t copy = r->first + sample;
    return over_ns(r, copy) - over_ns(r, copy - 1);
}

/* The mean of those measured; of a job of one the makespan, which its model is of, too. */
static double mean_iteration_ns(const struct measured_replay *r)
{
    struct dpro_error why;
    int64_t makespan_ns;
    if (r->graph->single_iteration &&
        dpro_replay_predict(r->graph, NULL, &makespan_ns, &why) == 0 && makespan_ns > 0)
        return (double)makespan_ns;
    return (double)(over_ns(r, r->first + r->n - 1) - over_ns(r, r->first - 1)) / r->n;
}

/* Each measured iteration by its own durations: what holds up one is no part of what changes. */
static void pace_samples(const struct measured_replay *changed, struct arena *arena,
                         struct dpro_model *model)
{
    const struct measured_replay *r = model->recorded;
    if (!model->sample_ns || r->n != model->n_samples || changed->n != r->n)
        return;
    model->changed_ns = arena_array(arena, r->n, sizeof *model->changed_ns);
    for (uint32_t s = 0; s < r->n; s++) {
        double ratio = (double)iteration_ns(changed, s) / (double)MAX(iteration_ns(r, s), 1);
        model->changed_ns[s] = scaled_ns(ratio, model->sample_ns[s]);
    }
}

double model_change_by(const struct measured_replay *changed, struct arena *arena,
                       struct dpro_model *model)
{
    model->changed_ratio = mean_iteration_ns(changed) / mean_iteration_ns(model->recorded);
    pace_samples(changed, arena, model);
    return model->changed_ratio * (double)model->paced_ns;
}

void model_pace_by(const struct measured_replay *changed, struct arena *arena,
                   struct dpro_model *model)
{
    model->modules = arena_copy(arena, model->modules, model->n_modules, sizeof *model->modules);
    pace_changed(model, model_change_by(changed, arena, model));
    model->changed_model_ns = evaluate_once(model);
}

/* Probes of another run have to be of this job's modules. */
static void check_probes(struct dpro_model *model)
{
    const struct dpro_probes *probes = model->probes;
    if (!probes || !probes->of_another)
        return;
    if (model->n_modules == 0)
        fail_with(DPRO_EUSAGE, "the recording does not tell the job's modules, so probes can't be "
                               "used: record it with 'dpro profile'");
    if (!probes_match(model))
        fail_with(
            DPRO_EUSAGE,
            "the probes fit no module of the job by name and class: they are of another model");
    if (probes->other_threads)
        array_push(&model->warnings,
                   arena_format(&model->arena,
                                "the probes were measured with another number of threads than the "
                                "job ran with: what they say may not hold here"));
}

static void model_build(const struct dpro_graph *graph, const struct dpro_model_options *options,
                        struct dpro_model **model)
{
    struct dpro_model *m = mem_array(1, sizeof *m);
    struct dpro_error why;
    m->pace = (struct model_pace){1, 1};
    m->probes = options->probes;
    m->all_communication = options->all_communication;
    measure_iterations(graph, options, m);
    int rc = dpro_model_check(graph, &why);
    if (rc < 0 && !graph->lacks_gpu && !graph->of_stages &&
        (is_single(graph) || (m->all_communication && has_communications(graph))))
        m->no_gradients = arena_copy_string(&m->arena, why.text, strlen(why.text));
    else
        fail_on(rc, &why);
    m->recorded = arena_alloc(&m->arena, sizeof *m->recorded);
    measured_replay_run(graph, &options->sink, m->recorded);
    model_learn(m->recorded, m);
    check_probes(m);
    fit_pace(m);
    *model = m;
}

int dpro_model_build(const struct dpro_graph *graph, const struct dpro_model_options *options,
                     struct dpro_model **model, struct dpro_error *err)
{
    struct dpro_model_options mine;
    int rc = OPTIONS_TAKE(&mine, options, err);
    return rc < 0 ? rc : OUTCOME(err, model_build(graph, &mine, model));
}
