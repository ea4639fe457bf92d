/* The command line's entry. What it can do any program can: it sees the public headers only. */
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include <dpro/dpro.h>

#include "cmd.h"
#include "together.h"

static const struct cmd *const commands[] = {
    &cmd_tune,   &cmd_profile,    &cmd_attach, &cmd_replay,  &cmd_diagnose,
    &cmd_whatif, &cmd_optimize,   &cmd_verify, &cmd_compare, &cmd_align,
    &cmd_export, &cmd_completion, &cmd_help,   NULL};

/* A closed stdin, stdout or stderr would be taken by the next file opened, and results written into
 * it. A file that can't be written (or read) stands in for it, so that the write fails; a program
 * that is profiled finds it closed. */
static void hold_standard_files(void)
{
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) < 0 &&
            open("/dev/null", (fd == 0 ? O_WRONLY : O_RDONLY) | O_CLOEXEC) != fd)
            _exit(CMD_SYSTEM);
}

static bool is_for_first(const char *word)
{
    const struct cmd *cmd = word ? cmd_named(word) : NULL;
    return cmd == NULL || cmd->processes == CMD_BY_FIRST;
}

int main(int argc, char **argv)
{
    const struct cmd *cmd;
    hold_standard_files();
    cmd_table = commands;
    cmd_whatif_begin();
    signal(SIGPIPE, SIG_DFL); /* whoever reads our results may stop early: end without a word */

    if (dpro_processes_started() > 0 && is_for_first(argv[1]))
        return CMD_DONE;
    if (argc < 2) {
        cmd_print_overview(stderr);
        return CMD_USAGE;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("dpro %s\n%s\n", dpro_version(), BUILD_FACTS);
        return cmd_finish_output(CMD_DONE);
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        cmd_print_overview(stdout);
        return cmd_finish_output(CMD_DONE);
    }
    if (argv[1][0] == '-' && argv[1][1] != '\0') {
        cmd_say("unknown option '%s'; a command comes first, see 'dpro help'", argv[1]);
        return CMD_USAGE;
    }
    cmd = cmd_find(argv[1]);
    if (cmd == NULL)
        return CMD_USAGE;
    return together_leave(cmd_finish_output(cmd_run(cmd, argc - 1, argv + 1)));
}
