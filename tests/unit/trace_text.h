/* Tiny Kineto traces written by tests, one file a rank, and the graph made of them.
 *
 * Times are whole microseconds. A rank's main thread is 1, its autograd thread 2, streams are 7 and
 * up. */
#pragma once

#include <dpro/dpro.h>

#include "graph_ask.h"

struct trace_text; /* one rank's file, being written */

/* Begins the file of `rank`; all ranks begun before trace_text_graph belong to one trace. */
struct trace_text *trace_text_begin(int rank, int world_size);

/* Begins another file of the rank, a later window of the same process. */
struct trace_text *trace_text_window(int rank, int world_size, const char *name);

/* A file of its own, at a path, to be closed by trace_text_close; one at a time. */
struct trace_text *trace_text_file(const char *path, int rank, int world_size);
void trace_text_close(struct trace_text *text);

/* The host on which the file was written. */
void trace_text_host(struct trace_text *text, const char *host);

/* Begins the transport log of the rank, and adds a socket call: of the connection to `peer` whose
 * ports are `port` and the ranks' numbers; times in nanoseconds. */
struct trace_text *trace_text_net(int rank);
/* The log of server 0, a process that is no rank; to the other function its rank is any other
 * number. */
struct trace_text *trace_text_server(void);
void trace_text_transfer(struct trace_text *text, int rank, int peer, int port, bool sends,
                         uint64_t offset, unsigned bytes, int64_t start_ns, int64_t end_ns);

/* Begins a file with an execution trace of the rank's process; nodes are added as JSON objects,
 * each but the first with a comma before it. */
struct trace_text *trace_text_execution(const char *name);
void trace_text_node(struct trace_text *text, const char *json);

/* Begins Horovod's timeline of rank 0; events are added as JSON objects by trace_text_node. */
struct trace_text *trace_text_timeline(void);

/* A span on a CPU thread; `args` is JSON members to add, "" for none. */
void trace_text_cpu(struct trace_text *text, const char *category, const char *name, int thread,
                    int64_t start, int64_t dur, const char *args);
/* A launch call on a thread and its work on a stream. */
void trace_text_kernel(struct trace_text *text, const char *name, int thread, int64_t call,
                       int64_t call_dur, int stream, int64_t start, int64_t dur, const char *args);
/* A span on a stream. */
void trace_text_device(struct trace_text *text, const char *category, const char *name, int stream,
                       int64_t start, int64_t dur, const char *args);
/* Memory that a thread takes, or gives back where `bytes` is negative, of GPU `device`, -1: the
 * CPU; `allocated`: what that has given out then, -1: not said. */
void trace_text_memory(struct trace_text *text, int thread, int device, int64_t at,
                       uint64_t address, int64_t bytes, int64_t allocated);
/* ProfilerStep#number. */
void trace_text_step(struct trace_text *text, int number, int64_t start, int64_t dur);

/* Spans separated by ';', whose times count from `at`, by a format as printf's. Each is START+DUR
 * in us, signs, and a name: 10+100 aten::mm            an op on thread 1 10+100 @2 aten::mm on
 * thread 2 10+100 #5 aten::mm         number 5 of autograd, in its forward pass; ^5: in its
 * backward pass 10+100 ^5 ~MmBackward0     ~: what autograd's engine runs for it 10+100 !
 * Optimizer.step    an annotation 10+5 >7 20+500 gemm        a call that launches what is on stream
 * 7 from 20 on for 500 us 10+5 =3 cudaEventRecord    a call of the runtime, and its number >7
 * 20+500 =3 gemm          what the call of that number launches 10+5 aten::mm {'x': 5}     more
 * arguments Numbers go on from one call of this to the next. */
void trace_text_spans(struct trace_text *text, int64_t at, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* n steps of `us`, each with the same spans. */
void trace_text_steps(struct trace_text *text, int n, int64_t us, const char *spans);
/* The graph of a job of one rank of such steps. */
struct dpro_graph *trace_text_one(int n, int64_t us, const char *spans);

/* Writes and loads all files and builds the graph, which is kept; fails the test if that fails. */
struct dpro_graph *trace_text_graph(void);
struct dpro_graph *trace_text_graph_with(const struct dpro_job_options *options);
