/* main.c: finds the command and runs it. What it can do any program can: it sees the public headers
 * only. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <dpro/dpro.h>

#include "cmd.h"

const struct cmd *const cmd_table[] = {&cmd_profile,  &cmd_attach,     &cmd_replay,  &cmd_whatif,
                                       &cmd_optimize, &cmd_verify,     &cmd_compare, &cmd_align,
                                       &cmd_export,   &cmd_completion, &cmd_help,    NULL};

static const char *name_of_cmd(const void *names, size_t i)
{
    const struct cmd *cmd = ((const struct cmd *const *)names)[i];
    return cmd != NULL ? cmd->name : NULL;
}

const struct cmd *cmd_find(const char *name)
{
    for (size_t i = 0; cmd_table[i] != NULL; i++)
        if (strcmp(cmd_table[i]->name, name) == 0)
            return cmd_table[i];
    const char *near = opt_nearest(name, name_of_cmd, cmd_table);
    if (near != NULL)
        cmd_say("unknown command '%s', did you mean '%s'?", name, near);
    else if (access(name, F_OK) == 0)
        cmd_say("unknown command '%s'; it is a file: did you mean 'dpro replay %s'?", name, name);
    else
        cmd_say("unknown command '%s'; see 'dpro help'", name);
    return NULL;
}

void cmd_print_help(const struct cmd *cmd, FILE *out)
{
    fprintf(out, "Usage: dpro %s %s\n\n%s\n", cmd->name, cmd->usage, cmd->description);
    fputs("\nOptions:\n", out);
    opt_help(cmd->opts, out);
    if (cmd->examples != NULL)
        fprintf(out, "\nExamples:\n%s\n", cmd->examples);
}

static void print_overview(FILE *out)
{
    fputs("Usage: dpro COMMAND [OPTIONS] ...\n\n"
          "Records and replays distributed training of neural networks: predicts the time of an\n"
          "iteration, says what it is spent on, and which ops it hangs on.\n\nCommands:\n",
          out);
    for (size_t i = 0; cmd_table[i] != NULL; i++)
        fprintf(out, "  %-12s %s\n", cmd_table[i]->name, cmd_table[i]->summary);
    fputs("\nOptions:\n"
          "  -h, --help   this text\n"
          "  --version    the version\n"
          "\n'dpro help COMMAND' tells more about a command.\n",
          out);
}

static int run_help(int argc, char **argv)
{
    bool help = false;
    struct opt_list args = {NULL, 0};
    const struct cmd *cmd = &cmd_help;
    int code = opt_parse("help", cmd_help_only, argc, argv, &help, &args);
    if (code != 0)
        goto done;
    if (args.n > 1) {
        cmd_say("help takes one command");
        code = CMD_USAGE;
    } else if (args.n == 0 && !help) {
        print_overview(stdout);
    } else {
        if (!help)
            cmd = cmd_find(args.items[0]);
        if (cmd != NULL)
            cmd_print_help(cmd, stdout);
        else
            code = CMD_USAGE;
    }
done:
    free(args.items);
    return code;
}

const struct opt cmd_help_only[] = {
    {"help", 'h', NULL, opt_read_flag, 0, NULL, "this text", NULL, OPT_COMPLETE_NOTHING},
    {.name = NULL},
};

const struct cmd cmd_help = {
    .name = "help",
    .summary = "tell more about a command",
    .usage = "[COMMAND]",
    .description = "Tells what a command does and which options it takes.",
    .opts = cmd_help_only,
    .words = (const char *const[]){"profile", "attach", "replay", "whatif", "optimize", "verify",
                                   "compare", "align", "export", "completion", "help", NULL},
    .run = run_help,
};

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

int main(int argc, char **argv)
{
    const struct cmd *cmd;
    hold_standard_files();
    signal(SIGPIPE, SIG_DFL); /* whoever reads our results may stop early: end without a word */

    if (argc < 2) {
        print_overview(stderr);
        return CMD_USAGE;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("dpro %s\n", dpro_version());
        return cmd_finish_output(CMD_DONE);
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        print_overview(stdout);
        return cmd_finish_output(CMD_DONE);
    }
    if (argv[1][0] == '-' && argv[1][1] != '\0') {
        cmd_say("unknown option '%s'; a command comes first, see 'dpro help'", argv[1]);
        return CMD_USAGE;
    }
    cmd = cmd_find(argv[1]);
    if (cmd == NULL)
        return CMD_USAGE;
    return cmd_finish_output(cmd->run(argc - 1, argv + 1));
}
