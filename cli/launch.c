/* Running the user's program in an environment that starts dpro in its Python processes. */
#include "launch.h"

#include <errno.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "say.h"
#include "spawn.h"

int launch_set_env(const char *name, const char *value)
{
    if (value == NULL || setenv(name, value, 1) == 0)
        return 0;
    return cmd_no_memory();
}

int launch_set_list(const char *const (*variables)[2], size_t n)
{
    int code = 0;
    for (size_t i = 0; i < n && code == 0; i++)
        code = launch_set_env(variables[i][0], variables[i][1]);
    return code;
}

/* A file that isn't there sets nothing. */
static int set_env_file(const char *plan, const char *file, bool tell)
{
    static const char whole[] = "/plan.json";
    size_t n = strlen(plan), end = sizeof whole - 1;
    char *path, line[256];
    int code = 0;
    if (n == end - 1 && strcmp(plan, whole + 1) == 0)
        plan = ".", n = 1;
    else if (n > end && strcmp(plan + n - end, whole) == 0)
        n -= end;
    if (asprintf(&path, "%.*s/%s", (int)n, plan, file) < 0) {
        return cmd_no_memory();
    }
    FILE *lines = fopen(path, "re");
    free(path);
    if (lines == NULL)
        return 0;
    while (code == 0 && fgets(line, sizeof line, lines) != NULL) {
        char *value = strchr(line, '=');
        line[strcspn(line, "\n")] = '\0';
        if (value == NULL || value == line)
            continue;
        if (tell)
            cmd_say("plan: %s", line);
        *value = '\0';
        code = launch_set_env(line, value + 1);
    }
    fclose(lines);
    return code;
}

int launch_set_plan(const char *plan, const char *stack, bool tell)
{
    static const char *const files[][2] = {
        {"horovod", "horovod.env"}, {"mxnet-ps", "mxnet.env"}, {"byteps", "byteps.env"}};
    char *absolute = plan != NULL ? realpath(plan, NULL) : NULL;
    int code = launch_set_env("DPRO_PLAN", absolute != NULL ? absolute : plan);
    free(absolute);
    for (size_t i = 0; i < sizeof files / sizeof *files && code == 0; i++)
        if (strcmp(stack, files[i][0]) == 0)
            code = set_env_file(plan, files[i][1], tell);
    return code;
}

int launch_set_recording(const struct parts *parts, const char *net, bool nccl)
{
    const char *plugin = getenv("NCCL_PROFILER_PLUGIN");
    int code = launch_set_env("DPRO", "1");
    if (code == 0)
        code = launch_prepend_env("PYTHONPATH", parts->site);
    if (code == 0 && (net == NULL || strcmp(net, "off") != 0)) {
        if (parts->tracer == NULL)
            cmd_say("libdpro_tracer.so is not beside dpro: recording without the transport");
        else if (strpbrk(parts->tracer, " :") != NULL)
            cmd_say("%s can't be preloaded from a folder with a space or colon in its name: "
                    "recording without the transport",
                    parts->tracer);
        else
            code = launch_prepend_env("LD_PRELOAD", parts->tracer);
    }
    if (code == 0 && nccl && parts->nccl != NULL && (plugin == NULL || plugin[0] == '\0'))
        code = launch_set_env("NCCL_PROFILER_PLUGIN", parts->nccl);
    return code;
}

char **launch_keep_env(void)
{
    size_t n = 0;
    char **kept;
    while (environ[n] != NULL)
        n++;
    kept = calloc(n + 1, sizeof *kept);
    for (size_t i = 0; kept != NULL && i < n; i++) {
        kept[i] = strdup(environ[i]);
        if (kept[i] == NULL) {
            launch_free_env(kept);
            kept = NULL;
        }
    }
    if (kept == NULL)
        cmd_no_memory();
    return kept;
}

int launch_restore_env(char *const *kept)
{
    int code = 0;
    clearenv();
    for (size_t i = 0; kept[i] != NULL && code == 0; i++) {
        char *value = strchr(kept[i], '=');
        if (value == NULL)
            continue;
        *value = '\0';
        code = launch_set_env(kept[i], value + 1);
        *value = '=';
    }
    return code;
}

void launch_free_env(char **kept)
{
    for (size_t i = 0; kept != NULL && kept[i] != NULL; i++)
        free(kept[i]);
    free(kept);
}

int launch_prepend_env(const char *name, const char *value)
{
    const char *old = getenv(name);
    char *both;
    int code;
    if (old == NULL || old[0] == '\0')
        return launch_set_env(name, value);
    code = asprintf(&both, "%s:%s", value, old) < 0 ? -1 : 0;
    if (code < 0) {
        return cmd_no_memory();
    }
    code = launch_set_env(name, both);
    free(both);
    return code;
}

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n > m && strcmp(text + n - m, end) == 0;
}

/* argv of the program: a Python file is run by the python3 that a shell would run. */
static char **make_argv(const struct opt_list *args)
{
    static char python[] = "python3";
    char **argv = calloc(args->n + 2, sizeof *argv);
    size_t n = 0;
    if (argv == NULL)
        return NULL;
    if (ends_with(args->items[0], ".py"))
        argv[n++] = python;
    for (size_t i = 0; i < args->n; i++)
        argv[n++] = (char *)(uintptr_t)args->items[i];
    return argv;
}

static int say_not_started(const char *verb, const char *program, int problem)
{
    bool is_path = strchr(program, '/') != NULL;
    switch (problem) {
    case ENOENT:
        if (is_path && access(program, F_OK) == 0)
            cmd_say("%s: the interpreter that its first line names is not there", program);
        else
            cmd_say("%s: %s", program,
                    is_path ? "no such program; name another"
                            : "no such program on PATH; give its path");
        return CMD_USAGE;
    case EACCES:
    case EISDIR:
    case ENOTDIR:
        cmd_say("%s: is not a program that can be run; put its interpreter before it, as in 'dpro "
                "%s -- bash job.sh'",
                program, verb);
        return CMD_USAGE;
    default:
        cmd_say("%s can't be started: %s", program, strerror(problem));
        return CMD_SYSTEM;
    }
}

int launch_check(const struct opt_list *args)
{
    if (!ends_with(args->items[0], ".py") || access(args->items[0], F_OK) == 0)
        return 0;
    cmd_say("%s: no such file", args->items[0]);
    return CMD_USAGE;
}

int launch_run(const char *verb, const struct opt_list *args, bool *started)
{
    char **argv = make_argv(args);
    int code;
    *started = false;
    if (argv == NULL) {
        return cmd_no_memory();
    }
    code = spawn_program(argv);
    if (code < 0)
        code = say_not_started(verb, argv[0], -code);
    else
        *started = true;
    free(argv);
    return code;
}

int launch_module(const char *verb, const char *module, const struct opt_list *args)
{
    static const char code_of_it[] = "import sys, importlib; sys.path[0] = sys.argv[1]; sys.exit("
                                     "importlib.import_module(sys.argv[2]).main(sys.argv[3:]))";
    char folder[PATH_MAX], python[PATH_MAX + 32];
    const char *argv[5 + args->n];
    struct opt_list all = {.items = argv};
    struct parts parts;
    bool started;
    int code = parts_find(&parts);
    if (code != 0)
        return code;
    snprintf(folder, sizeof folder, "%s/../..", parts.site);
    /* packages of an environment are those of its own interpreter */
    snprintf(python, sizeof python, "%s/../../../bin/python3", folder);
    if (!strstr(parts.site, "/site-packages/") || access(python, X_OK) < 0)
        snprintf(python, sizeof python, "python3");
    const char *const first[] = {python, "-c", code_of_it, folder, module};
    for (size_t i = 0; i < sizeof first / sizeof *first; i++)
        argv[all.n++] = first[i];
    for (size_t i = 0; i < args->n; i++)
        argv[all.n++] = args->items[i];
    code = launch_run(verb, &all, &started);
    parts_fini(&parts);
    return code;
}
