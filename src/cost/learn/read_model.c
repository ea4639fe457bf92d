/* The public functions that read a model. */

#include "cost/program/buckets.h"
#include "cost/program/cost.h"
#include "cost/program/server_placement.h"
#include "cost/program/sync.h"

void dpro_model_destroy(struct dpro_model *model)
{
    if (!model)
        return;
    array_fini(&model->warnings);
    if (model->recorded)
        measured_replay_fini(model->recorded);
    arena_fini(&model->arena);
    mem_free(model);
}

#define LOOK_AT(of, type, name, value)                                                             \
    type dpro_##of##_##name(const struct dpro_##of *of)                                            \
    {                                                                                              \
        return value;                                                                              \
    }

LOOK_AT(model, uint32_t, n_ranks, model->n_ranks)
LOOK_AT(model, uint32_t, n_servers, sync_n_servers(&model->net))
LOOK_AT(model, uint32_t, n_samples, model->n_samples)
LOOK_AT(model, uint32_t, n_tensors, model->n_tensors)
LOOK_AT(model, size_t, n_warnings, model->warnings.n)
LOOK_AT(model, int64_t, measured_ns, model->measured_ns)
LOOK_AT(model, int64_t, measured_std_ns, (int64_t)model->measured_std_ns)
LOOK_AT(model, int64_t, unprofiled_ns, model->job.source == DPRO_JOB_OWN_STEPS ? model->job.ns : 0)
LOOK_AT(model, struct dpro_job_time, job_time, model->job)
LOOK_AT(model, double, misfit, model->misfit)
LOOK_AT(model, enum dpro_stack, stack, model->capabilities.stack)
LOOK_AT(model, const char *, capabilities, model->capabilities.text)
LOOK_AT(model, const struct dpro_strategy *, strategy, &model->baseline)
LOOK_AT(strategy, enum dpro_compression, compression, strategy->compression)
LOOK_AT(strategy, uint32_t, n_buckets, strategy->n_buckets)
LOOK_AT(model, uint32_t, n_modules, model->n_modules)
LOOK_AT(strategy, uint32_t, micro_batches, MAX(strategy->micro_batches, 1))

const char *dpro_model_warning(const struct dpro_model *model, size_t index)
{
    return model->warnings.at[index];
}

struct dpro_tensor dpro_model_tensor(const struct dpro_model *model, uint32_t tensor)
{
    const struct model_tensor *t = &model->tensors[tensor];
    return (struct dpro_tensor){.name = t->name, .size_bytes = t->size_bytes};
}

struct dpro_batch_cut dpro_model_batch_cut(const struct dpro_model *model)
{
    return model->cut;
}

struct dpro_cycles dpro_strategy_cycles(const struct dpro_strategy *strategy)
{
    return (struct dpro_cycles){strategy->cycle_ns, strategy->fuses, strategy->fusion_bytes};
}

struct dpro_bucket dpro_strategy_bucket(const struct dpro_model *model,
                                        const struct dpro_strategy *strategy, uint32_t bucket)
{
    const struct strategy_bucket *b = &strategy->buckets[bucket];
    return (struct dpro_bucket){
        .tensors = strategy->order + b->first,
        .n_tensors = b->n,
        .size_bytes = bucket_size_bytes(model, strategy, bucket),
        .partitions = b->partitions,
        .priority = b->priority,
        .server = model->capabilities.places ? servers_number(model, b->server) : -1};
}

struct dpro_module dpro_strategy_module(const struct dpro_model *model,
                                        const struct dpro_strategy *strategy, uint32_t module)
{
    const struct model_module *m = &model->modules[module];
    unsigned way = strategy->computing ? strategy->computing[module] : DPRO_AS_IT_IS;
    return (struct dpro_module){.name = m->name,
                                .recomputed = strategy->recomputed && strategy->recomputed[module],
                                .computing = way,
                                .computing_assumed = m->costs[way].is_assumed,
                                .computing_composed = m->costs[way].is_composed};
}

static struct dpro_estimate rate_of(struct dpro_estimate byte_ns)
{
    double rate = byte_ns.value > 0 ? 1e9 / byte_ns.value : 0;
    return (struct dpro_estimate){rate, rate > 0 ? rate * byte_ns.std / byte_ns.value : 0};
}

struct dpro_link dpro_model_link(const struct dpro_model *model)
{
    static const char *const algorithms[] = {
        [MODEL_RING] = "ring",     [MODEL_HALVING_DOUBLING] = "halving-doubling",
        [MODEL_TREE] = "tree",     [MODEL_HIERARCHICAL] = "hierarchical",
        [MODEL_SERVER] = "server", [MODEL_DIRECT] = "direct"};
    const struct model_net *net = &model->net;
    return (struct dpro_link){.algorithm = algorithms[net->collective.algorithm],
                              .n_streams = net->gate.n_streams,
                              .in_order = net->gate.in_order,
                              .bandwidth_bytes_per_s = net->link.is_rate_unknown
                                                           ? (struct dpro_estimate){0, 0}
                                                           : rate_of(net->link.byte_ns),
                              .within_bytes_per_s = rate_of(net->link.within_ns),
                              .within_message_ns = net->link.within_message_ns,
                              .message_ns = net->link.message_ns,
                              .collective_ns = net->collective.overhead_ns,
                              .launch_ns = net->compute.launch_ns,
                              .handling_ns = net->compute.handling_ns,
                              .hook_ns = net->compute.hook_ns,
                              .copy_ns = net->compute.copy_ns,
                              .cast_ns = net->compute.cast_ns,
                              .reduce_ns = net->collective.reduce_ns,
                              .interference_ns = net->link.cpu_ns};
}

uint32_t dpro_model_n_kinds(const struct dpro_model *m)
{
    return m->n_kinds;
}

struct dpro_communications dpro_model_communications(const struct dpro_model *m, uint32_t kind)
{
    struct dpro_communications of = m->kinds[kind];
    of.took_ns = llround(m->net.took_ratio * (double)of.took_ns);
    return of;
}
