/* What a command says beside its output, and how it ends. */
#include "say.h"

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "progress.h"

void cmd_say(const char *format, ...)
{
    char *text = NULL;
    va_list args;
    va_start(args, format);
    if (vasprintf(&text, format, args) < 0)
        text = NULL;
    va_end(args);
    progress_clear();
    fputs("dpro: ", stderr);
    for (const char *p = text != NULL ? text : "out of memory"; *p != '\0'; p++) {
        unsigned char c = (unsigned char)*p;
        if (c < 0x20 || c == 0x7f)
            fprintf(stderr, "\\x%02x", c);
        else
            fputc(c, stderr);
    }
    fputc('\n', stderr);
    free(text);
}

int cmd_fail(const struct dpro_error *err)
{
    cmd_say("%s", err->text);
    switch (err->code) {
    case DPRO_EUSAGE:
        return CMD_USAGE;
    case DPRO_EFORMAT:
    case DPRO_EEMPTY:
        return CMD_INPUT;
    default:
        return CMD_SYSTEM;
    }
}

int cmd_no_memory(void)
{
    cmd_say("out of memory");
    return CMD_SYSTEM;
}

FILE *cmd_output(void)
{
    progress_clear();
    errno = 0;
    return stdout;
}

int cmd_done(int rc, const struct dpro_error *err)
{
    return rc < 0 ? cmd_fail(err) : CMD_DONE;
}

int cmd_finish_output(int code)
{
    bool failed = ferror(stdout) != 0;
    if (code == CMD_SYSTEM || (fflush(stdout) == 0 && !failed))
        return code; /* what failed before has been said */
    if (errno == EBADF)
        cmd_say("standard output is closed");
    else
        cmd_say("standard output: %s", errno != 0 ? strerror(errno) : "could not be written");
    return CMD_SYSTEM;
}
