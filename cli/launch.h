/* launch.h: running the user's program in an environment that starts dpro in its Python processes.
 *
 * All return 0 or, after having said what is wrong, the exit code. */
#ifndef CLI_LAUNCH_H
#define CLI_LAUNCH_H

#include <stdbool.h>

#include "opt.h"

int launch_set_env(const char *name, const char *value); /* NULL: left as it is */
/* A path, made absolute if it is there. */
/* NAME=VALUE lines of a file in the folder of a plan, or beside plan.json; each is told. A file
 * that isn't there sets nothing. */
int launch_set_env_file(const char *plan, const char *file);
int launch_set_path(const char *name, const char *path);
/* Puts `value` and a colon before what the variable holds. */
int launch_prepend_env(const char *name, const char *value);

/* Whether the program can be there, before anything is made for it. */
int launch_check(const struct opt_list *args);

/* Runs the program with its arguments, a .py file by python3. Returns the program's exit code when
 * it was *started. `verb` is the command's, for messages. */
int launch_run(const char *verb, const struct opt_list *args, bool *started);

#endif
