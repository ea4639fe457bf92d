/* A command that mpirun started as several processes. */
#pragma once

#include <dpro/processes.h>

/* Joins the other processes, if there are any. All but the first are silent from here on. Returns
 * 0, or the exit code after having said what is wrong. */
int together_join(void);
/* Before saying why a process fails: mostly the first says so, and mpirun ends all as it ends. */
void together_let_first_speak(void);
/* NULL: there are no others. */
struct dpro_processes *together(void);
/* Of one that is not the first: does its part and ends. */
void together_help(const char *const *paths, size_t n_paths,
                   const struct dpro_trace_options *trace_options,
                   const struct dpro_graph_options *graph_options);
/* Ends with them; returns the exit code: `code`, of the first. */
int together_leave(int code);
