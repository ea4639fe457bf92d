/* Which parameter each key of MXNet's key-value store is.
 *
 * dpro's recorder lists the parameters in the order of their keys. Else the graph has them: a
 * Module numbers them as the executor lists them, and names keys (calls ending in Ex); Gluon's
 * Trainer sorts their names. Either way those without a gradient have no pushes, so that the k-th
 * key that is pushed is the k-th parameter; and there must be as many. A graph has no sizes, but
 * those of what one layer takes go together: that of another model shows. */

#include "ingest/trace.h"
#include "ingest/transport/ps.h"

/* What is fed, and what BatchNorm keeps by itself. */
static bool is_parameter(const char *name)
{
    static const char *const others[] = {"data",         "data0",       "data1",
                                         "label",        "moving_mean", "moving_var",
                                         "running_mean", "running_var"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (text_ends(name, others[i]))
            return false;
    return true;
}

struct named {
    const char *text;
    uint32_t id;
    uint64_t size_bytes; /* 0: unknown */
};
typedef ARRAY(struct named) named_array;

ORDER(by_name, struct named, strcmp(x->text, y->text));

static bool names_keys(const struct dpro_trace *trace, const struct trace_rank *rank)
{
    for (uint32_t i = 0; i < rank->n_spans; i++) {
        const char *name = strtab_get(&trace->names, rank->spans[i].name);
        if (text_begins(name, "MXKVStorePush") && text_ends(name, "Ex"))
            return true;
    }
    return false;
}

static void list_graph(const struct dpro_trace *trace, const struct trace_rank *rank,
                       named_array *names)
{
    EACH_OF (const struct dfg_node, node, rank->dfg_nodes, rank->n_dfg_nodes) {
        const char *text = strtab_get(&trace->names, node->name);
        if (strcmp(strtab_get(&trace->names, node->type), "Variable") == 0 && is_parameter(text))
            array_add(names, text, node->name, 0);
    }
    if (!names_keys(trace, rank))
        array_sort(names, by_name);
}

static void list_recorded(const struct dpro_trace *trace, const struct recording *recording,
                          named_array *names)
{
    EACH (const struct recorded_parameter, parameter, recording->parameters)
        array_add(names, strtab_get(&trace->names, parameter->name), parameter->name,
                  parameter->size_bytes);
}

/* The bytes of a node's input whose name ends so; 0: it has none. */
static uint64_t input_bytes(const struct dpro_trace *trace, const struct trace_rank *rank,
                            const struct dfg_node *node, const char *suffix,
                            const named_array *names, const ps_keys *keys)
{
    for (uint32_t i = 0; i < node->n_inputs; i++) {
        const struct dfg_node *input =
            &rank->dfg_nodes[rank->dfg_inputs[node->first_input + i].node];
        if (!text_ends(strtab_get(&trace->names, input->name), suffix))
            continue;
        for (size_t k = 0; k < keys->n; k++)
            if (names->at[k].id == input->name)
                return keys->at[k].size_bytes;
    }
    return 0;
}

/* A weight has so many rows as its bias has elements, a scale as many elements as its shift. */
static bool sizes_agree(const struct dpro_trace *trace, const struct trace_rank *rank,
                        const named_array *names, const ps_keys *keys)
{
    EACH_OF (const struct dfg_node, node, rank->dfg_nodes, rank->n_dfg_nodes) {
        uint64_t weight = input_bytes(trace, rank, node, "weight", names, keys);
        uint64_t bias = input_bytes(trace, rank, node, "bias", names, keys);
        uint64_t gamma = input_bytes(trace, rank, node, "gamma", names, keys);
        uint64_t beta = input_bytes(trace, rank, node, "beta", names, keys);
        if ((weight && bias && weight % bias != 0) || (gamma && beta && gamma != beta))
            return false;
    }
    return true;
}

void mxnet_name_keys(struct dpro_trace *trace, const struct trace_rank *rank, ps_keys *keys)
{
    SCRATCH named_array names = {0};
    if (rank->recording)
        list_recorded(trace, rank->recording, &names);
    bool fits = names.n == keys->n;
    for (size_t k = 0; k < keys->n && fits; k++)
        fits = names.at[k].size_bytes == 0 || names.at[k].size_bytes == keys->at[k].size_bytes;
    if (!fits) {
        names.n = 0;
        list_graph(trace, rank, &names);
        fits = names.n == keys->n && sizes_agree(trace, rank, &names, keys);
    }
    for (size_t k = 0; k < keys->n && fits; k++)
        keys->at[k].name = names.at[k].id;
    if (names.n > 0 && keys->n > 0 && !fits && trace->n_misnamed++ == 0)
        trace->first_misnamed = rank->rank;
}
