/* Finds a command, reads its options and runs it; the help of all. */
#include "cmd.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <dpro/dimensions.h>

#include "together.h"

const struct cmd *const *cmd_table;

static const char *name_of_cmd(const void *names, size_t i)
{
    const struct cmd *cmd = ((const struct cmd *const *)names)[i];
    return cmd != NULL ? cmd->name : NULL;
}

const struct cmd *cmd_named(const char *name)
{
    for (size_t i = 0; cmd_table[i] != NULL; i++)
        if (strcmp(cmd_table[i]->name, name) == 0)
            return cmd_table[i];
    return NULL;
}

const struct cmd *cmd_find(const char *name)
{
    const struct cmd *cmd = cmd_named(name);
    if (cmd != NULL)
        return cmd;
    const char *near = opt_nearest(name, name_of_cmd, cmd_table);
    if (near != NULL)
        cmd_say("unknown command '%s', did you mean '%s'?", name, near);
    else if (access(name, F_OK) == 0)
        cmd_say("unknown command '%s'; it is a file: did you mean 'dpro replay %s'?", name, name);
    else
        cmd_say("unknown command '%s'; see 'dpro help'", name);
    return NULL;
}

static void print_help(const struct cmd *cmd, FILE *out)
{
    fprintf(out, "Usage: dpro %s %s\n\n%s\n", cmd->name, cmd->usage, cmd->description);
    fputs("\nOptions:\n", out);
    opt_help(cmd->opts, out);
    if (cmd->examples != NULL)
        fprintf(out, "\nExamples:\n%s\n", cmd->examples);
}

void cmd_print_overview(FILE *out)
{
    fputs("Usage: dpro COMMAND [OPTIONS] ...\n\n"
          "Records and replays distributed training of neural networks: predicts the time of an\n"
          "iteration, how it is spent, and which ops determine it.\n\nCommands:\n",
          out);
    for (size_t i = 0; cmd_table[i] != NULL; i++)
        fprintf(out, "  %-12s %s\n", cmd_table[i]->name, cmd_table[i]->summary);
    fputs("\nOptions:\n"
          "  -h, --help   this text\n"
          "  --version    the version\n"
          "\n'dpro help COMMAND' tells more about a command.\n",
          out);
}

int cmd_needs(const struct cmd *cmd)
{
    cmd_say("%s needs %s; see 'dpro help %s'", cmd->name, cmd->needs, cmd->name);
    return CMD_USAGE;
}

int cmd_run(const struct cmd *cmd, int argc, char **argv)
{
    struct opt_list args = {NULL, 0};
    int joined = cmd->processes == CMD_TOGETHER ? together_join() : 0;
    if (joined != 0)
        return joined;
    struct cmd_values *values = calloc(1, cmd->values_size);
    if (values == NULL)
        return cmd_no_memory();
    bool by_each = cmd->processes == CMD_BY_EACH;
    if (by_each)
        together_hold();
    int code = opt_parse(cmd->name, cmd->opts, argc, argv, values, &args);
    bool runs = code == 0 && !values->help;
    if (code == 0 && values->help && !(by_each && dpro_processes_started() > 0))
        print_help(cmd, stdout);
    if (runs && cmd->needs != NULL && args.n == 0)
        code = cmd_needs(cmd);
    if (by_each)
        together_release(code);
    if (runs && code == 0)
        code = cmd->run(values, &args);
    opt_free(cmd->opts, values);
    free(values);
    free(args.items);
    return code;
}

bool cmd_read_steps(const char *text, void *field)
{
    struct dpro_job_options *job = field;
    const char *colon = strchr(text, ':');
    char *end;
    job->first_step = 0;
    job->last_step = INT64_MAX;
    if (text[strspn(text, "0123456789:")] != '\0' || text[0] == '\0' || strcmp(text, ":") == 0)
        return false;
    errno = 0;
    if (text[0] != ':')
        job->first_step = strtoll(text, &end, 10);
    if (colon == NULL)
        job->last_step = job->first_step;
    else if (colon[1] != '\0') {
        job->last_step = strtoll(colon + 1, &end, 10);
        if (*end != '\0')
            return false;
    }
    if (errno != 0 || job->first_step > job->last_step)
        return false;
    if (job->last_step == 0)
        job->first_step = -1; /* 0, 0 would mean all */
    return true;
}

bool cmd_read_iteration(const char *text, void *field)
{
    struct cmd_values *values = field;
    if (text[0] == '\0' || text[strspn(text, "0123456789")] != '\0')
        return false;
    errno = 0;
    values->shown = strtoll(text, NULL, 10);
    values->job.shown = &values->shown;
    return errno == 0;
}

const char *const cmd_ranks_from[] = {"turn", "host", NULL}; /* as dpro_job_options.from_host */

bool cmd_read_dims(const char *text, void *field)
{
    enum { MOST_DIGITS = 9 };
    const char *at = text;
    do {
        size_t len = strcspn(at, "="), digits = 0;
        int p = 0;
        while (p < DPRO_N_PARALLELISMS && (strlen(dpro_parallelism_name(p)) != len ||
                                           strncmp(at, dpro_parallelism_name(p), len) != 0))
            p++;
        if (p == DPRO_N_PARALLELISMS || at[len] == '\0')
            return false;
        at += len + 1;
        while (at[digits] >= '0' && at[digits] <= '9')
            digits++;
        if (digits == 0 || digits > MOST_DIGITS || *at == '0')
            return false;
        at += digits;
    } while (*at == ',' && at++);
    *(const char **)field = text;
    return *at == '\0';
}

bool cmd_read_delay(const char *text, void *field)
{
    const char *equals = strrchr(text, '=');
    double value;
    return equals != NULL && equals != text && text[0] != '@' && equals[1] != '-' &&
           opt_number(equals + 1, &value) && opt_read_list(text, field);
}

static int run_help(const void *values, const struct opt_list *args)
{
    (void)values;
    const struct cmd *cmd = args->n == 1 ? cmd_find(args->items[0]) : NULL;
    if (args->n > 1)
        cmd_say("help takes one command");
    if (args->n == 0)
        cmd_print_overview(stdout);
    if (cmd != NULL)
        print_help(cmd, stdout);
    return args->n == 0 || cmd != NULL ? CMD_DONE : CMD_USAGE;
}

const struct opt cmd_help_only[] = {CMD_OPT_HELP, {.name = NULL}};

const struct cmd cmd_help = {
    .name = "help",
    .summary = "tell more about a command",
    .usage = "[COMMAND]",
    .description = "Tells what a command does and which options it takes.",
    .opts = cmd_help_only,
    .values_size = sizeof(struct cmd_values),
    .words =
        (const char *const[]){"profile", "attach", "replay", "diagnose", "whatif", "optimize",
                              "verify", "compare", "align", "export", "completion", "help", NULL},
    .run = run_help,
};
