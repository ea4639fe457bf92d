/* What a communication of a group takes with other links than those that it was recorded with, or
 * with other bytes. */

#include <dpro/dimensions.h>

#include "cost/program/model.h"
#include "graph/graph.h"

enum model_scheme model_scheme(const struct dpro_model *model)
{
    return model->n_communications > 0                       ? MODEL_IN_GROUPS
           : model->net.collective.algorithm == MODEL_SERVER ? MODEL_PUSH_PULL
                                                             : MODEL_ALL_REDUCE;
}

struct model_cost model_recorded_cost(const struct model_communication *c, double byte_ns,
                                      double pace)
{
    double took = pace * c->took_ns, most = took - pace * c->waits_ns;
    double wire = fmin(c->link_bytes * byte_ns, fmax(most, 0));
    return (struct model_cost){took - wire, wire};
}

struct model_cost model_group_cost(const struct dpro_model *model,
                                   const struct model_communication *c)
{
    bool within = model->groups[c->group].within;
    struct link_times now = link_times_of(&model->net.link, within);
    struct link_times learnt = link_times_of(&model->net.learnt, within);
    double message = now.message_ns - learnt.message_ns;
    struct model_cost was = model_recorded_cost(c, learnt.byte_ns, model->net.took_ratio);
    return (struct model_cost){fmax(was.latency_ns + c->n_steps * message, 0),
                               learnt.byte_ns > 0 ? was.wire_ns * now.byte_ns / learnt.byte_ns : 0};
}

bool carries_activations(const struct dpro_graph *graph, const struct model_communication *c)
{
    uint32_t dimension = graph->collectives[c->collective].dimension;
    if (dimension >= graph->n_dimensions)
        return false;
    uint8_t parallelism = graph->dimensions[dimension].parallelism;
    return parallelism != DPRO_REPLICATES && parallelism != DPRO_SHARDS;
}

void model_resize(const struct dpro_model *model, struct model_communication *c, double ratio)
{
    struct model_cost cost = model_group_cost(model, c);
    c->took_ns *= cost.latency_ns + cost.wire_ns > 0
                      ? (cost.latency_ns + ratio * cost.wire_ns) / (cost.latency_ns + cost.wire_ns)
                      : 1;
    c->link_bytes *= ratio;
    c->sent_bytes *= ratio;
    c->size_bytes = (uint64_t)llround((double)c->size_bytes * ratio);
}

double model_sent_bytes(const struct dpro_model *m, uint32_t n_ranks, bool within, double *largest)
{
    SCRATCH double *sent = mem_array(n_ranks + (size_t)1, sizeof *sent);
    double most = 0;
    EACH_OF (const struct model_communication, c, m->communications, m->n_communications) {
        const struct model_group *group = &m->groups[c->group];
        for (uint32_t i = 0; i < group->n_ranks && group->within == within; i++) {
            double *of = &sent[group->ranks[i]];
            *largest = fmax(*largest, c->sent_bytes);
            *of += i == 0 || !group->sends ? c->sent_bytes : 0;
            most = fmax(most, *of);
        }
    }
    return most;
}
