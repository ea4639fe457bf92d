/* cmd.h: the table of commands. */
#ifndef CLI_CMD_H
#define CLI_CMD_H

#include <stdio.h>

#include "opt.h"
#include "say.h"

struct cmd {
    const char *name;
    const char *summary;     /* one line, for the list of commands */
    const char *usage;       /* what follows "dpro <name>" */
    const char *description; /* for --help */
    const char *examples;
    const struct opt *opts;
    const char *const *words; /* what a positional argument may be, NULL-terminated; NULL: a path */
    int (*run)(int argc, char **argv); /* argv[0] is the command's name; returns an exit code */
};

extern const struct cmd cmd_profile, cmd_attach, cmd_replay, cmd_whatif, cmd_optimize, cmd_verify,
    cmd_compare, cmd_align, cmd_export, cmd_completion, cmd_help;
extern const struct cmd *const cmd_table[]; /* NULL-terminated */
extern const struct opt cmd_help_only[];    /* a table of --help alone; its values: a bool */

const struct cmd *cmd_find(const char *name); /* says what is wrong and returns NULL */
void cmd_print_help(const struct cmd *cmd, FILE *out);

#endif
