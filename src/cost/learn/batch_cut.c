/* Whether a step's batch can be computed in micro-batches, and what that changes beside rounding.
 * Both follow from the modules that a step calls, and from when it updates parameters. */

#include "cost/program/cost.h"
#include "cost/program/modules.h"

/* Of the first rank: whether it updates parameters between backward passes. */
static bool updates_between(const struct dpro_graph *g)
{
    const struct graph_rank *rank = &g->ranks[0];
    int64_t first = INT64_MAX, last = INT64_MIN;
    uint32_t n = rank->first_op + rank->n_ops - rank->n_message_ops;
    for (uint32_t op = rank->first_op; g->seen_start_ns && op < n; op++)
        if (g->kind[op] == DPRO_OP_BW && !(g->flags[op] & GRAPH_OP_GPU)) {
            first = g->seen_start_ns[op] < first ? g->seen_start_ns[op] : first;
            last = g->seen_start_ns[op] > last ? g->seen_start_ns[op] : last;
        }
    for (uint32_t op = rank->first_op; first < last && op < n; op++)
        if (g->kind[op] == DPRO_OP_UPDATE && !(g->flags[op] & GRAPH_OP_GPU) &&
            g->seen_start_ns[op] > first && g->seen_start_ns[op] < last)
            return true;
    return false;
}

/* The first two outermost modules of different models; how many models a step calls. */
static uint32_t models_called(const struct dpro_model *m, const struct model_module *some[2])
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < m->n_modules; i++) {
        size_t len = module_number_length(m->modules[i].name);
        bool met = m->modules[i].parent != MODEL_NONE || m->modules[i].n_calls == 0;
        for (uint32_t k = 0; k < i && !met; k++)
            met = m->modules[k].n_calls > 0 && module_number_length(m->modules[k].name) == len &&
                  strncmp(m->modules[k].name, m->modules[i].name, len) == 0;
        if (met)
            continue;
        if (n < 2)
            some[n] = &m->modules[i];
        n++;
    }
    return n;
}

static const char *title_of(const struct model_module *module)
{
    return module->class[0] != '\0' ? module->class : module->name;
}

static const char *why_not(const struct dpro_graph *g, struct dpro_model *m)
{
    const struct model_module *some[2];
    uint32_t n = models_called(m, some), n_cut = g->ranks[0].n_micro_batches;
    if (n_cut > 1)
        return arena_format(&m->arena,
                            "a step of the job computes %u micro-batches already: what cutting "
                            "its batch otherwise does can't be told",
                            n_cut);
    if (n > 1)
        return arena_format(&m->arena,
                            "a step of the job calls %u models (%.100s, %.100s%s): what cutting "
                            "its batch does to all of them can't be told",
                            n, title_of(some[0]), title_of(some[1]), n > 2 ? ", ..." : "");
    for (uint32_t i = 0; i < m->n_modules; i++)
        if (m->modules[i].parent == MODEL_NONE && m->modules[i].n_calls > 1)
            return arena_format(&m->arena,
                                "a step of the job calls its model %u times already, which may be "
                                "micro-batches: what cutting its batch does can't be told",
                                m->modules[i].n_calls);
    if (updates_between(g))
        return "a step of the job updates parameters between its backward passes: what cutting its "
               "batch does can't be told";
    return NULL;
}

static const char *what_changes(struct dpro_model *m)
{
    const struct model_module *first = NULL;
    char others[40] = "";
    uint32_t n = 0;
    for (uint32_t i = 0; i < m->n_modules; i++)
        if (m->modules[i].has_statistics && m->modules[i].n_calls > 0) {
            first = first ? first : &m->modules[i];
            n++;
        }
    if (n == 0)
        return NULL;
    if (n > 1)
        snprintf(others, sizeof others, " and %u more", n - 1);
    return arena_format(&m->arena,
                        "%.200s (%.100s)%s take%s statistics of each micro-batch, not of the whole "
                        "batch: the job does not train to the same numbers; check its loss",
                        first->name, first->class, others, n > 1 ? "" : "s");
}

bool has_batch_statistics(const char *class)
{
    return strstr(class, "BatchNorm") && !text_begins(class, "Frozen");
}

void learn_batch_cut(const struct dpro_graph *graph, struct dpro_model *model)
{
    model->cut = (struct dpro_batch_cut){why_not(graph, model), what_changes(model)};
}
