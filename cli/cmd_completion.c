/* dpro completion: what a shell completes, from the commands' tables. */
#include <string.h>

#include "cmd.h"

#define GIST_COLUMNS 60

static void print_words(const char *const *words)
{
    for (size_t i = 0; words[i] != NULL; i++)
        printf("%s%s", i > 0 ? " " : "", words[i]);
}

static void print_commands(void)
{
    for (size_t i = 0; cmd_table[i] != NULL; i++)
        printf("%s%s", i > 0 ? " " : "", cmd_table[i]->name);
}

/* The beginning of a help text that says something by itself: all of a short one, else up to where
 * the details start. */
static size_t gist_length(const char *text)
{
    static const char *const details[] = {" (", "; ", ";\n", ": ", ":\n"};
    size_t length = strlen(text);
    for (size_t i = 0; length > GIST_COLUMNS && i < sizeof details / sizeof *details; i++) {
        const char *detail = strstr(text, details[i]);
        if (detail != NULL && (size_t)(detail - text) < length)
            length = (size_t)(detail - text);
    }
    return length;
}

/* The gist of a help text inside single quotes; each of `escaped` gets a backslash. */
static void print_gist(const char *text, const char *quote, const char *escaped)
{
    const char *end = text + gist_length(text);
    for (const char *p = text; p < end; p++) {
        if (*p == '\'')
            fputs(quote, stdout);
        else
            printf(strchr(escaped, *p) != NULL ? "\\%c" : "%c", *p == '\n' ? ' ' : *p);
    }
}

static void print_for_zsh(const char *text)
{
    print_gist(text, "'\\''", "[]:");
}

/* In bash, one of the words; NULL: a path, a folder where `folders`. */
static void bash_words(const char *const *words, bool folders, const char *end)
{
    if (words != NULL) {
        fputs("COMPREPLY=($(compgen -W '", stdout);
        print_words(words);
        printf("' -- \"$cur\"))%s", end);
    } else {
        printf("compopt -o filenames\n        COMPREPLY=($(compgen -%c -- \"$cur\"))%s",
               folders ? 'd' : 'f', end);
    }
}

static void bash_values(const struct opt *opt)
{
    printf("    --%s", opt->name);
    if (opt->letter != 0)
        printf(" | -%c", opt->letter);
    fputs(")\n        ", stdout);
    if (opt->choices != NULL || opt->complete != OPT_COMPLETE_NOTHING)
        bash_words(opt->choices, opt->complete == OPT_COMPLETE_FOLDER, "\n");
    else
        fputs("COMPREPLY=()\n", stdout);
    fputs("        return\n        ;;\n", stdout);
}

static void bash_command(const struct cmd *cmd)
{
    printf("_dpro_%s()\n{\n    case $prev in\n", cmd->name);
    for (const struct opt *opt = cmd->opts; opt->name != NULL; opt++)
        if (opt->arg != NULL)
            bash_values(opt);
    fputs("    esac\n    case $cur in\n    -*) COMPREPLY=($(compgen -W '", stdout);
    for (const struct opt *opt = cmd->opts; opt->name != NULL; opt++)
        printf("%s--%s", opt == cmd->opts ? "" : " ", opt->name);
    fputs("' -- \"$cur\")) ;;\n    *)\n        ", stdout);
    bash_words(cmd->words, false, " ;;\n");
    fputs("    esac\n}\n\n", stdout);
}

static void print_bash(void)
{
    fputs("# bash completion for dpro, written by 'dpro completion bash'\n\n", stdout);
    for (size_t i = 0; cmd_table[i] != NULL; i++)
        bash_command(cmd_table[i]);
    /* bash cuts words at "=": --turns=s arrives as three; join the value to its option */
    fputs("_dpro()\n{\n"
          "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]}\n"
          "    COMPREPLY=()\n"
          "    if [[ $cur == '=' ]]; then\n"
          "        cur=\n"
          "    elif [[ $prev == '=' && $COMP_CWORD -gt 2 ]]; then\n"
          "        prev=${COMP_WORDS[COMP_CWORD - 2]}\n"
          "    fi\n"
          "    if [[ $COMP_CWORD -eq 1 ]]; then\n"
          "        COMPREPLY=($(compgen -W '",
          stdout);
    print_commands();
    fputs(" --help --version' -- \"$cur\"))\n"
          "    elif declare -F \"_dpro_${COMP_WORDS[1]}\" >/dev/null; then\n"
          "        \"_dpro_${COMP_WORDS[1]}\"\n"
          "    fi\n}\ncomplete -F _dpro dpro\n",
          stdout);
}

static void zsh_action(const struct opt *opt)
{
    printf(":%s:", opt->arg);
    if (opt->choices != NULL) {
        putchar('(');
        print_words(opt->choices);
        putchar(')');
    } else if (opt->complete != OPT_COMPLETE_NOTHING) {
        fputs(opt->complete == OPT_COMPLETE_FOLDER ? "_files -/" : "_files", stdout);
    } else {
        putchar(' ');
    }
}

static void zsh_opt(const struct opt *opt, const char *name)
{
    /* every option may come again: the last one counts, or they add up */
    printf(" \\\n        '*%s[", name);
    print_for_zsh(opt->help);
    putchar(']');
    if (opt->arg != NULL)
        zsh_action(opt);
    putchar('\'');
}

static void zsh_opts(const struct cmd *cmd)
{
    char name[80];
    for (const struct opt *opt = cmd->opts; opt->name != NULL; opt++) {
        snprintf(name, sizeof name, "-%c", opt->letter);
        if (opt->letter != 0)
            zsh_opt(opt, name);
        snprintf(name, sizeof name, "--%s%s", opt->name, opt->arg != NULL ? "=" : "");
        zsh_opt(opt, name);
    }
}

static void print_zsh(void)
{
    fputs("#compdef dpro\n# zsh completion for dpro, written by 'dpro completion zsh'\n\n", stdout);
    for (size_t i = 0; cmd_table[i] != NULL; i++) {
        const struct cmd *cmd = cmd_table[i];
        printf("_dpro_%s()\n{\n    _arguments -s -S", cmd->name);
        zsh_opts(cmd);
        if (cmd->words != NULL) {
            fputs(" \\\n        '1:what:(", stdout);
            print_words(cmd->words);
            fputs(")'\n}\n\n", stdout);
        } else {
            fputs(" \\\n        '*:path:_files'\n}\n\n", stdout);
        }
    }
    fputs("_dpro()\n{\n    local -a commands=(\n", stdout);
    for (size_t i = 0; cmd_table[i] != NULL; i++) {
        printf("        '%s:", cmd_table[i]->name);
        print_for_zsh(cmd_table[i]->summary);
        fputs("'\n", stdout);
    }
    fputs("    )\n"
          "    if (( CURRENT == 2 )); then\n"
          "        _describe command commands\n"
          "        _arguments '--help[this text]' '--version[the version]'\n"
          "    elif (( $+functions[_dpro_$words[2]] )); then\n"
          "        local command=$words[2]\n"
          "        shift words\n"
          "        (( CURRENT-- ))\n"
          "        _dpro_$command\n"
          "    fi\n}\n"
          /* read from a file of the function path it is the function; sourced, it registers it */
          "if [[ $funcstack[1] == _dpro ]]; then _dpro \"$@\"; else compdef _dpro dpro; fi\n",
          stdout);
}

static void fish_text(const char *text)
{
    putchar('\'');
    print_gist(text, "\\'", "\\");
    putchar('\'');
}

static void fish_opt(const struct cmd *cmd, const struct opt *opt)
{
    static const char *const values[] = {
        [OPT_COMPLETE_NOTHING] = " -x",
        [OPT_COMPLETE_PATH] = " -r -F",
        [OPT_COMPLETE_FOLDER] = " -x -a '(__fish_complete_directories)'",
    };
    printf("complete -c dpro -n '__fish_seen_subcommand_from %s' -l %s", cmd->name, opt->name);
    if (opt->letter != 0)
        printf(" -s %c", opt->letter);
    if (opt->choices != NULL) {
        fputs(" -x -a '", stdout);
        print_words(opt->choices);
        putchar('\'');
    } else if (opt->arg != NULL) {
        fputs(values[opt->complete], stdout);
    }
    fputs(" -d ", stdout);
    fish_text(opt->help);
    putchar('\n');
}

static void print_fish(void)
{
    fputs("# fish completion for dpro, written by 'dpro completion fish'\n\ncomplete -c dpro -f\n"
          "complete -c dpro -n __fish_use_subcommand -l help -d 'this text'\n"
          "complete -c dpro -n __fish_use_subcommand -l version -d 'the version'\n",
          stdout);
    for (size_t i = 0; cmd_table[i] != NULL; i++) {
        const struct cmd *cmd = cmd_table[i];
        printf("\ncomplete -c dpro -n __fish_use_subcommand -a %s -d ", cmd->name);
        fish_text(cmd->summary);
        printf("\ncomplete -c dpro -n '__fish_seen_subcommand_from %s' ", cmd->name);
        if (cmd->words != NULL) {
            fputs("-a '", stdout);
            print_words(cmd->words);
            fputs("'\n", stdout);
        } else {
            fputs("-F\n", stdout);
        }
        for (const struct opt *opt = cmd->opts; opt->name != NULL; opt++)
            fish_opt(cmd, opt);
    }
}

static const char *const shells[] = {"bash", "zsh", "fish", NULL};

static int run(const void *values, const struct opt_list *args)
{
    static void (*const print[])(void) = {print_bash, print_zsh, print_fish};
    int shell = args->n == 1 ? opt_find_word(args->items[0], shells) : -1;
    (void)values;
    if (shell < 0)
        return cmd_needs(&cmd_completion);
    print[shell]();
    return CMD_DONE;
}

const struct cmd cmd_completion = {
    .name = "completion",
    .summary = "print what a shell needs to complete dpro's commands",
    .usage = "bash|zsh|fish",
    .description = "Prints a script that teaches the shell dpro's commands and options.",
    .examples = "  source <(dpro completion bash)\n"
                "  dpro completion zsh > ~/.zfunc/_dpro      a folder of $fpath\n"
                "  dpro completion fish > ~/.config/fish/completions/dpro.fish",
    .opts = cmd_help_only,
    .values_size = sizeof(struct cmd_values),
    .needs = "one of: bash, zsh, fish",
    .words = shells,
    .run = run,
};
