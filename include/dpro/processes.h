/* Several processes, on one machine or on many, that read one trace together, as started by mpirun.
 * The first of them answers; the others read files, build their ranks and give them to it. */
#ifndef DPRO_PROCESSES_H
#define DPRO_PROCESSES_H

#include <dpro/graph.h>

#ifdef __cplusplus
extern "C" {
#endif

struct dpro_processes;

/* Whether mpirun started this process as one of several, and as which: -1: it did not. */
DPRO_API int dpro_processes_started(void);
/* Joins them by the MPI of the machine, through libdpro_mpi.so at `module`. They meet when the
 * first loads a trace, which fails if another is of another build. `failed` is called where, later
 * on, a message can't be sent or received: all processes end with the exit code that it returns. */
DPRO_API int dpro_processes_join(const char *module, int (*failed)(const char *text),
                                 struct dpro_processes **processes, struct dpro_error *err);
DPRO_API int dpro_processes_number(const struct dpro_processes *processes); /* 0: the first */
/* What a process that is not the first does in place of dpro_trace_load() and dpro_graph_build():
 * returns when the first one has its part. The options are the same in all processes. */
DPRO_API int dpro_processes_help(const char *const *paths, size_t n_paths,
                                 const struct dpro_job_options *options, struct dpro_error *err);
/* Of the first, once it has loaded a trace: why the others had nothing to do, a text of the
 * trace's; NULL: they had, or there are none. */
DPRO_API const char *dpro_processes_idle(const struct dpro_processes *processes);
/* Of the first: the threads that it may use once the others have ended, where each was given so
 * many: those of others on its machine are free then. */
DPRO_API int dpro_processes_threads(const struct dpro_processes *processes, int threads);
/* Waits for all others to come here. The first lets those go that wait for it. */
DPRO_API void dpro_processes_leave(struct dpro_processes *processes); /* NULL is fine */
/* Ends all processes at once, with that exit code. */
DPRO_API void dpro_processes_abort(struct dpro_processes *processes, int code);

#ifdef __cplusplus
}
#endif
#endif
