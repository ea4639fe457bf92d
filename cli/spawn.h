/* Running the user's program as if dpro were not there. */
#pragma once

/* Runs argv[0], found on PATH, in the foreground: same terminal, same process group, standard files
 * and environment. Waits for its end. Returns its exit code, 128 + N when signal N killed it, or
 * -errno when it could not be started.
 *
 * Signals that the terminal sends to the process group reach the program by themselves; those sent
 * to dpro alone (kill, timeout, a scheduler) are passed on. None of them ends dpro, so that what
 * the job recorded until then is told. */
int spawn_program(char *const argv[]);
