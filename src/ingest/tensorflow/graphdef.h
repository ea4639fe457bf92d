/* ingest/tensorflow/graphdef.h: reading a TensorFlow GraphDef wherever it stands in a protobuf
 * file. */
#ifndef INGEST_TENSORFLOW_GRAPHDEF_H
#define INGEST_TENSORFLOW_GRAPHDEF_H

#include "base/protobuf.h"
#include "ingest/part.h"

/* The task of a device's name, "/job:worker/replica:0/task:1" of
 * "/job:worker/replica:0/task:1/device:CPU:0": its length; 0: none is named. */
size_t graphdef_task(const char *device, size_t len);

/* What both ends of a transfer call it, as the nodes' `key`; 0 when it is empty. */
uint32_t graphdef_key(struct trace_part *part, const char *tensor, const char *send_device,
                      const char *recv_device, bool *no_memory);

/* By string id of a name: the node of the graph at hand; NO_ID. Kept for the next graph. */
typedef ARRAY(uint32_t) graphdef_places;

/* Adds the nodes of the GraphDef at hand, entered already, to part->dfg_nodes, with ids into the
 * part's names. Inputs that no node of this graph is are left out. 0, or -1 when memory runs out;
 * what is broken is in pb. */
int graphdef_read_nodes(struct pb *pb, struct trace_part *part, graphdef_places *places);

#endif
