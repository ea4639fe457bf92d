/* A made-up job to report on: ranks with CPU threads, a compute and a communication stream,
 * backward overlapping with bucketed all_reduce, and one slow rank. */
#pragma once

#include <stdbool.h>

#include <dpro/report.h>

#include "graph/graph.h"

struct fake_options {
    int n_ranks, n_layers;
    bool hostile; /* names with markup, quotes, control characters, broken UTF-8 */
    bool empty;   /* ranks and nothing else */
    bool what_if;
    bool busy;    /* GPUs that hardly idle: no input */
    bool single;  /* one measured iteration: no validation */
    bool memory;  /* what the ranks hold is known, but of rank 6 */
    bool tight;   /* devices with little memory, whose allocators' settings are known */
    bool at_once; /* collectives were measured beside each other, in half the time */
};

struct fake; /* owns what the report borrows */
struct fake *fake_create(const struct fake_options *options);
const struct dpro_report *fake_report(const struct fake *fake);
void fake_destroy(struct fake *fake);
/* Fills graph->memory of a job whose ops are there. */
void fake_memory(struct dpro_graph *graph, const struct fake_options *options);

#define FAKE_HOSTILE                                                                               \
    "</script><script>alert(1)</script><!--<img src=x onerror=alert(2)> \"q\" 'a' & \\ \n\r\t\x01" \
    "\x1b[31m \xff\xc3 \xe2\x80\xa8 \xc2\x9b end"
