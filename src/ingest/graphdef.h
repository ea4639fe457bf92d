/* ingest/graphdef.h: reading a TensorFlow GraphDef wherever it stands in a protobuf file. */
#ifndef INGEST_GRAPHDEF_H
#define INGEST_GRAPHDEF_H

#include "base/protobuf.h"
#include "ingest/part.h"

/* The task of a device's name, "/job:worker/replica:0/task:1" of
 * "/job:worker/replica:0/task:1/device:CPU:0": its length; 0: none is named. */
size_t graphdef_task(const char *device, size_t len);

/* Adds the nodes of the GraphDef at hand, entered already, to part->dfg_nodes, with ids into the
 * part's names. Inputs that no node of this graph is are left out. 0, or -1 when memory runs out;
 * what is broken is in pb. */
int graphdef_read_nodes(struct pb *pb, struct trace_part *part);

#endif
