/* ingest/tensorflow/protobuf_files.h: TensorFlow's protobuf files told apart by their first bytes.
 */
#ifndef INGEST_TENSORFLOW_PROTOBUF_FILES_H
#define INGEST_TENSORFLOW_PROTOBUF_FILES_H

#include "ingest/reader.h"

enum protobuf_file { PROTOBUF_OTHER, PROTOBUF_XPLANE, PROTOBUF_RUN_METADATA, PROTOBUF_GRAPH_DEF };

/* What a file is whose head is at hand. */
enum protobuf_file protobuf_recognise(const struct head *head);

#endif
