/* cost/numbers.c: the table of learnt numbers. */
#include "cost/numbers.h"

const size_t model_numbers[N_MODEL_NUMBERS] = {
    offsetof(struct model_net, byte_ns),    offsetof(struct model_net, message_ns),
    offsetof(struct model_net, reduce_ns),  offsetof(struct model_net, collective_ns),
    offsetof(struct model_net, launch_ns),  offsetof(struct model_net, copy_ns),
    offsetof(struct model_net, cast_ns),    offsetof(struct model_net, cpu_ns),
    offsetof(struct model_net, push_ns),    offsetof(struct model_net, answer_ns),
    offsetof(struct model_net, within_ns),  offsetof(struct model_net, step_ns),
    offsetof(struct model_net, held_share), offsetof(struct model_net, negotiate_ns),
    offsetof(struct model_net, least_ns),   offsetof(struct model_net, hook_ns)};
