/* The names of tensors, and which tensors a communication carries. */

#include "graph/global/assembly.h"

void assembly_name_tensor(const struct assembly *a, const struct local_tensor *tensor, size_t index,
                          char text[TENSOR_NAME])
{
    if (tensor->name && tensor->output) /* as TensorFlow writes it */
        snprintf(text, TENSOR_NAME, "%.240s:%u", strtab_get(&a->trace->names, tensor->name),
                 tensor->output);
    else if (tensor->name)
        snprintf(text, TENSOR_NAME, "%s", strtab_get(&a->trace->names, tensor->name));
    else
        snprintf(text, TENSOR_NAME, tensor->output ? WHOLE_BUCKET "%zu" : "gradient %zu", index);
}

void assembly_name_carried(const struct assembly *a, const struct rank_build *rank,
                           uint32_t collective, char text[TENSOR_NAME])
{
    const struct local_collective *c = &rank->collectives.at[collective];
    const struct strtab *names = &a->trace->names;
    if (c->bucket == NO_ID && build_is_exchange(rank, c->arrival)) {
        snprintf(text, TENSOR_NAME, "%s", strtab_get(names, c->group));
        return;
    }
    if (c->bucket == NO_ID) {
        snprintf(text, TENSOR_NAME, "%s %u", dpro_collective_kind_name(c->kind), collective);
        return;
    }
    const struct recording *recording = rank->trace->recording;
    const struct recorded_bucket *bucket = &recording->buckets.at[c->bucket];
    const struct recorded_model *model = &recording->models.at[bucket->model];
    if (model->n_units > 0 && c->bucket >= model->first_unit) {
        const char *name = strtab_get(names, bucket->name);
        snprintf(text, TENSOR_NAME, "unit %s", *name ? name : strtab_get(names, model->name));
        return;
    }
    uint32_t first = recording->members.at[bucket->first]; /* one that fits is not empty */
    int len = snprintf(text, TENSOR_NAME, "bucket %u: %.200s", c->bucket - model->first_bucket,
                       strtab_get(names, recording->parameters.at[first].name));
    if (bucket->n > 1)
        snprintf(text + len, (size_t)(TENSOR_NAME - len), " and %u more", bucket->n - 1);
}
