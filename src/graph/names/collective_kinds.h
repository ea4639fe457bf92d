/* The kind of a collective, by the name of the call, op or kernel that runs it. */
#pragma once

#include "base/base.h"

#include <dpro/graph.h>

/* Whether a type of node is a collective that its thread runs: TensorFlow's CollectiveReduceV2. */
bool name_collective_type(const char *type);

/* The name in lower case, without '_' and '-', as much as fits. Returns how long it is. */
size_t name_plain(const char *name, size_t len, char *plain, size_t size);

/* Whether a kind is one of these: collective_is_one(kind, DPRO_SEND, DPRO_RECV). */
#define collective_is_one(kind, ...)                                                               \
    collective_is_in((kind), (const uint8_t[]){__VA_ARGS__, DPRO_NO_COLLECTIVE})
static inline bool collective_is_in(uint8_t kind, const uint8_t *kinds)
{
    while (*kinds && *kinds != kind)
        kinds++;
    return *kinds != DPRO_NO_COLLECTIVE;
}

/* The kind of collective that a kernel, annotation or framework op stands for: DPRO_SEND_RECV for
 * NCCL's common point-to-point kernel, DPRO_NO_COLLECTIVE when the name is none. */
enum dpro_collective_kind name_collective(const char *name);
