/* Writes the joined ranks into one graph. */
#pragma once

#include "graph/dimensions/find_dimensions.h"
#include "graph/servers/parameter_servers.h"

/* All that is known of a job when its graph is made. */
struct job {
    struct join join;
    struct messages messages;
    struct servers servers;
    struct dimensions dimensions;
    struct dpro_unprofiled_iterations unprofiled_iterations;
};

int assemble_graph(struct job *job, const struct dpro_trace *trace,
                   const struct dpro_job_options *options, struct dpro_graph **graph,
                   struct dpro_error *err);

/* A graph of clocks and nothing else. */
int assemble_clocks(struct join *join, const struct dpro_job_options *options,
                    struct dpro_graph **graph, struct dpro_error *err);
