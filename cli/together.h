/* A command that mpirun started as several processes. */
#pragma once

#include <dpro/job.h>

/* Joins the other processes, if there are any. All but the first are silent from here on. Returns
 * 0, or the exit code after having said what is wrong. */
int together_join(void);
/* What a process says that is not the first is held back until it is known whether it fails. If so
 * it is said later: mostly the first says the same, and as that ends mpirun ends all. */
void together_hold(void);
void together_release(int code);
/* NULL: there are no others. */
struct dpro_processes *together(void);
/* Of one that is not the first: does its part and ends. */
void together_help(struct dpro_job *job);
/* Ends with them; returns the exit code: `code`, of the first. */
int together_leave(int code);
