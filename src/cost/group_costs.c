/* cost/group_costs.c: what a communication of a group takes with other links than those that it was
 * recorded with. */
#include <math.h>

#include "cost/model.h"

enum model_scheme model_scheme(const struct dpro_model *model)
{
    return model->n_communications > 0                       ? MODEL_IN_GROUPS
           : model->net.collective.algorithm == MODEL_SERVER ? MODEL_PUSH_PULL
                                                             : MODEL_ALL_REDUCE;
}

struct model_cost model_group_cost(const struct dpro_model *model,
                                   const struct model_communication *c)
{
    const struct model_link *now = &model->net.link, *learnt = &model->net.learnt;
    bool within = model->groups[c->group].within;
    double byte_ns = within ? now->within_ns.value : now->byte_ns.value;
    double learnt_ns = within ? learnt->within_ns.value : learnt->byte_ns.value;
    double message = within ? now->within_message_ns.value - learnt->within_message_ns.value
                            : now->message_ns.value - learnt->message_ns.value;
    double took = model->net.took_ratio * c->took_ns;
    double most = took - model->net.took_ratio * c->waits_ns;
    double wire = fmin(c->link_bytes * learnt_ns, fmax(most, 0));
    double rest = took - wire + c->n_steps * message;
    return (struct model_cost){fmax(rest, 0), learnt_ns > 0 ? wire * byte_ns / learnt_ns : 0};
}
