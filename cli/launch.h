/* Running the user's program in an environment that starts dpro in its Python processes.
 *
 * All return 0 or, after having said what is wrong, the exit code. */
#pragma once

#include <stdbool.h>

#include "opt.h"
#include "parts.h"

int launch_set_env(const char *name, const char *value); /* NULL: left as it is */
/* Several: launch_set_all({"NAME", value}, ...). */
#define launch_set_all(...)                                                                        \
    launch_set_list((const char *const[][2]){__VA_ARGS__},                                         \
                    sizeof((const char *const[][2]){__VA_ARGS__}) / sizeof(char *[2]))
int launch_set_list(const char *const (*variables)[2], size_t n);
/* The plan, its path made absolute if it is there, and what a job on `stack` (struct
 * dpro_plan_summary) takes of it before it starts: the NAME=VALUE lines of a file in its folder, or
 * beside plan.json. `tell`: each is told. */
int launch_set_plan(const char *plan, const char *stack, bool tell);
/* What has the program's Python processes record themselves. `net`: when the transport is logged,
 * as DPRO_NET says it. */
int launch_set_recording(const struct parts *parts, const char *net, bool nccl);
/* Puts `value` and a colon before what the variable holds. */
int launch_prepend_env(const char *name, const char *value);

/* The environment as it is now, to go back to. NULL, after having said so: no memory. */
char **launch_keep_env(void);
int launch_restore_env(char *const *kept);
void launch_free_env(char **kept); /* NULL is fine */

/* Whether the program can be there, before anything is made for it. */
int launch_check(const struct opt_list *args);

/* Runs the program with its arguments, a .py file by python3. Returns the program's exit code when
 * it was *started. `verb` is the command's, for messages. */
int launch_run(const char *verb, const struct opt_list *args, bool *started);

/* Runs main(args) of a module of the Python package. */
int launch_module(const char *verb, const char *module, const struct opt_list *args);
