/* The table of formats. A new format is a file that defines a struct reader, and its row here.
 *
 * A file is of the first reader that recognises it, and hooks run in this order. Where no file
 * holds a span, the last row of which there is a file says what is missing. */
#pragma once

#include "ingest/reader.h"

#define READERS(ROW)                                                                               \
    ROW(recording_reader)     /* dpro's rank.json and job.json */                                  \
    ROW(held_reader)          /* its memory.json: what a rank held */                              \
    ROW(probes_reader)        /* its probes.json: what modules take in other ways */               \
    ROW(transport_reader)     /* dpro's transport log */                                           \
    ROW(transport_csv_reader) /* the same as CSV */                                                \
    ROW(nccl_reader)          /* dpro's log of NCCL's profiler events */                           \
    ROW(stage_reader)         /* a timeline of pipeline stages, Chrome trace JSON */               \
    ROW(stage_csv_reader)     /* the same as CSV */                                                \
    ROW(timeline_reader)      /* of Horovod or BytePS, Chrome trace JSON */                        \
    ROW(mxnet_reader)         /* MXNet's profile (mx.profiler), Chrome trace JSON */               \
    ROW(mxnet_text_reader)    /* what MXNet's executor or symbol says of itself (debug_str) */     \
    ROW(mxnet_symbol_reader)  /* MXNet's symbol, JSON */                                           \
    ROW(kineto_reader)        /* PyTorch's profiler (Kineto), Chrome trace JSON */                 \
    ROW(snapshot_reader)      /* PyTorch's snapshot of GPU memory, a pickle */                     \
    ROW(snapshot_json_reader) /* the same as JSON */                                               \
    ROW(et_reader)            /* PyTorch's execution trace, JSON */                                \
    ROW(graphdef_reader)      /* TensorFlow's GraphDef, protobuf */                                \
    ROW(runmeta_reader)       /* TensorFlow's RunMetadata, protobuf: graphs, a session's step */   \
    ROW(xplane_reader)        /* TensorFlow's profiler (XSpace), protobuf */

#define DECLARE_READER(name) extern const struct reader name;
READERS(DECLARE_READER)
#undef DECLARE_READER

extern const struct reader_table readers;
