/* What a command says beside its output, and how it ends. */
#pragma once

#include <stdio.h>

#include <dpro/error.h>

enum cmd_exit {
    CMD_DONE = 0,
    CMD_CHECK_FAILED = 1, /* --fail-on */
    CMD_USAGE = 2,
    CMD_INPUT = 3,  /* unreadable, or not enough */
    CMD_SYSTEM = 4, /* I/O, memory */
};

/* One line on stderr, "dpro: ...", control characters escaped. */
void cmd_say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Says the error; returns the exit code that belongs to it. */
int cmd_fail(const struct dpro_error *err);

/* Says that there is no memory; returns CMD_SYSTEM. */
int cmd_no_memory(void);

/* stdout, for a result that is printed now: the progress line is gone. */
FILE *cmd_output(void);
/* The exit code of what returned `rc`, after having said the error. */
int cmd_done(int rc, const struct dpro_error *err);

/* Ends output to stdout: what could not be written is said, and turns `code` into CMD_SYSTEM. */
int cmd_finish_output(int code);
