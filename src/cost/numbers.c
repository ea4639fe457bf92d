/* cost/numbers.c: the table of learnt numbers. */
#include "cost/numbers.h"

const size_t model_numbers[N_MODEL_NUMBERS] = {offsetof(struct model_net, link.byte_ns),
                                               offsetof(struct model_net, link.message_ns),
                                               offsetof(struct model_net, collective.reduce_ns),
                                               offsetof(struct model_net, collective.overhead_ns),
                                               offsetof(struct model_net, compute.launch_ns),
                                               offsetof(struct model_net, compute.copy_ns),
                                               offsetof(struct model_net, compute.cast_ns),
                                               offsetof(struct model_net, link.cpu_ns),
                                               offsetof(struct model_net, servers.push_ns),
                                               offsetof(struct model_net, servers.answer_ns),
                                               offsetof(struct model_net, link.within_ns),
                                               offsetof(struct model_net, gate.step_ns),
                                               offsetof(struct model_net, link.held_share),
                                               offsetof(struct model_net, gate.negotiate_ns),
                                               offsetof(struct model_net, collective.least_ns),
                                               offsetof(struct model_net, compute.hook_ns)};
