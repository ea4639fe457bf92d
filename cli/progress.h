/* Messages and progress on stderr. */
#pragma once

#include <stdbool.h>

#include <dpro/log.h>

/* Turns on what is wanted: log lines by `verbosity` (0 none, 1 up to info, 2 debug, 3 trace), and
 * progress unless `quiet`, only where stderr, or that of mpirun, is a terminal. Returns the sink to
 * hand to the library; it lives until the process ends. */
struct dpro_sink progress_start(int verbosity, bool quiet);

/* Shown behind the progress from now on; "": nothing. */
void progress_tell(const char *text);

/* Takes the progress line off the screen; call it before anything else is printed. */
void progress_clear(void);
