/* The names of tensors, and which tensors a communication carries. */

#include "graph/global/assembly.h"

/* Longer names are cut. */
uint32_t assembly_name_tensor(const struct assembly *a, const struct rank_build *rank,
                              const struct local_tensor *tensor, size_t index)
{
    const char *name = strtab_get(&a->trace->names, tensor->name);
    const struct recording *recording = rank->trace->recording;
    uint32_t bucket = rank->collectives.at[tensor->collective].bucket, model = 0;
    if (recording && recording->models.n > 1 && tensor->name && bucket < recording->buckets.n)
        model = recorded_namesake(recording, recording->buckets.at[bucket].model, tensor->name);
    if (model > 0)
        return strtab_format(a->names, RECORDED_NAMESAKE, name, model);
    if (tensor->name && tensor->output) /* as TensorFlow writes it */
        return strtab_format(a->names, "%.240s:%u", name, tensor->output);
    if (tensor->name)
        return strtab_format(a->names, "%.255s", name);
    return strtab_format(a->names, tensor->output ? WHOLE_BUCKET "%zu" : "gradient %zu", index);
}

uint32_t assembly_name_carried(const struct assembly *a, const struct rank_build *rank,
                               uint32_t collective)
{
    const struct local_collective *c = &rank->collectives.at[collective];
    const struct strtab *names = &a->trace->names;
    if (c->bucket == NO_ID && build_is_exchange(rank, c->arrival))
        return strtab_format(a->names, "%.255s", strtab_get(names, c->group));
    if (c->bucket == NO_ID)
        return strtab_format(a->names, "%s %u", dpro_collective_kind_name(c->kind), collective);
    const struct recording *recording = rank->trace->recording;
    const struct recorded_bucket *bucket = &recording->buckets.at[c->bucket];
    const struct recorded_model *model = &recording->models.at[bucket->model];
    if (model->n_units > 0 && c->bucket >= model->first_unit)
        return strtab_format(a->names, "unit %.250s",
                             strtab_get(names, bucket->name ?: model->name));
    uint32_t first = recording->members.at[bucket->first]; /* one that fits is not empty */
    const char *name = strtab_get(names, recording->parameters.at[first].name);
    return strtab_format(a->names,
                         bucket->n > 1 ? "bucket %u: %.200s and %u more" : "bucket %u: %.200s",
                         c->bucket - model->first_bucket, name, bucket->n - 1);
}
