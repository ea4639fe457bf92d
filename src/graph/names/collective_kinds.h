/* The kind of a collective, by the name of the call, op or kernel that runs it. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Whether a type of node is a collective that its thread runs: TensorFlow's CollectiveReduceV2. */
bool name_collective_type(const char *type);

/* The name in lower case, without '_' and '-', as much as fits. Returns how long it is. */
size_t name_plain(const char *name, size_t len, char *plain, size_t size);

/* The kind of collective that a kernel, annotation or framework op stands for: "all_reduce",
 * "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "send", "recv", "barrier",
 * "gather", "scatter"; "negotiate" for Horovod's agreeing on one; static storage. "send_recv" for
 * NCCL's common point-to-point kernel, NULL when the name is none. */
const char *name_collective(const char *name);
