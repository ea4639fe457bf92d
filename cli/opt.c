/* Reading a command's arguments by its table of options. */
#include "opt.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <regex.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "say.h"

enum { FORM_SIZE = 100 };

bool opt_read_flag(const char *text, void *field)
{
    (void)text;
    *(bool *)field = true;
    return true;
}

bool opt_read_count(const char *text, void *field)
{
    (void)text;
    if (*(int *)field < 9)
        ++*(int *)field;
    return true;
}

bool opt_read_string(const char *text, void *field)
{
    *(const char **)field = text;
    return text[0] != '\0';
}

static bool list_add(struct opt_list *list, const char *text)
{
    const char **items = realloc(list->items, (list->n + 1) * sizeof *items);
    if (items == NULL)
        return false;
    items[list->n++] = text;
    list->items = items;
    return true;
}

bool opt_read_regex(const char *text, void *field)
{
    regex_t regex;
    bool good;
    if (regcomp(&regex, text, REG_EXTENDED) != 0)
        return false;
    good = regex.re_nsub >= 1;
    regfree(&regex);
    return good && opt_read_string(text, field);
}

bool opt_read_pattern(const char *text, void *field)
{
    regex_t regex;
    if (text[0] == '\0' || regcomp(&regex, text, REG_EXTENDED | REG_NOSUB) != 0)
        return false;
    regfree(&regex);
    return opt_read_string(text, field);
}

bool opt_read_list(const char *text, void *field)
{
    return text[0] != '\0' && list_add(field, text);
}

static bool read_unsigned(const char *text, uint64_t max, uint64_t *value)
{
    char *end;
    if (text[0] < '0' || text[0] > '9') /* strtoull takes signs and spaces */
        return false;
    errno = 0;
    *value = strtoull(text, &end, 10);
    return errno == 0 && *end == '\0' && *value <= max;
}

bool opt_read_u32(const char *text, void *field)
{
    uint64_t value;
    if (!read_unsigned(text, UINT32_MAX, &value))
        return false;
    *(uint32_t *)field = (uint32_t)value;
    return true;
}

bool opt_read_u64(const char *text, void *field)
{
    return read_unsigned(text, UINT64_MAX, field);
}

bool opt_read_int(const char *text, void *field)
{
    uint64_t value;
    if (!read_unsigned(text, INT32_MAX, &value))
        return false;
    *(int *)field = (int)value;
    return true;
}

bool opt_number(const char *text, double *value)
{
    char *end;
    if (strspn(text, "0123456789.eE+-") != strlen(text)) /* no hexadecimal, nan, inf, spaces */
        return false;
    *value = strtod(text, &end);
    return end != text && *end == '\0' && isfinite(*value);
}

int opt_find_word(const char *text, const char *const *words)
{
    for (int i = 0; words[i] != NULL; i++)
        if (strcmp(text, words[i]) == 0)
            return i;
    return -1;
}

/* Damerau-Levenshtein distance (neighbours swapped count one), capped for long texts. */
static size_t distance(const char *a, const char *b)
{
    enum { MAX = 48 };
    size_t n = strlen(a), m = strlen(b);
    unsigned char d[MAX + 1][MAX + 1];
    if (n > MAX || m > MAX)
        return MAX;
    for (size_t i = 0; i <= n; i++)
        d[i][0] = (unsigned char)i;
    for (size_t j = 0; j <= m; j++)
        d[0][j] = (unsigned char)j;
    for (size_t i = 1; i <= n; i++) {
        for (size_t j = 1; j <= m; j++) {
            unsigned best = d[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
            if (best > d[i - 1][j] + 1u)
                best = d[i - 1][j] + 1u;
            if (best > d[i][j - 1] + 1u)
                best = d[i][j - 1] + 1u;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
                best > d[i - 2][j - 2] + 1u)
                best = d[i - 2][j - 2] + 1u;
            d[i][j] = (unsigned char)best;
        }
    }
    return d[n][m];
}

const char *opt_nearest(const char *text, const char *(*name)(const void *names, size_t i),
                        const void *names)
{
    const char *nearest = NULL, *candidate;
    size_t best = strlen(text) / 3 + 1; /* a third of the letters may be wrong, and one */
    size_t len = strlen(text);
    for (size_t i = 0; (candidate = name(names, i)) != NULL; i++) {
        size_t d = distance(text, candidate);
        if (len >= 2 && strncmp(candidate, text, len) == 0)
            d = 1; /* the beginning of a name means that name */
        if (d <= best && (nearest == NULL || d < best)) {
            best = d;
            nearest = candidate;
        }
    }
    return nearest;
}

static const char *name_of_opt(const void *names, size_t i)
{
    return ((const struct opt *)names)[i].name;
}

static const struct opt *find_long(const struct opt *opts, const char *name, size_t len)
{
    for (const struct opt *opt = opts; opt->name != NULL; opt++)
        if (strlen(opt->name) == len && memcmp(opt->name, name, len) == 0)
            return opt;
    return NULL;
}

static const struct opt *find_short(const struct opt *opts, char letter)
{
    for (const struct opt *opt = opts; opt->name != NULL; opt++)
        if (opt->letter == letter)
            return opt;
    return NULL;
}

static void say_unknown(const char *command, const struct opt *opts, const char *shown,
                        const char *near)
{
    char see[80];
    while (opts->name != NULL)
        opts++;
    snprintf(see, sizeof see, "see 'dpro help %s'", command);
    cmd_say("unknown option '%s'%s%s%s; %s", shown, near != NULL ? ", did you mean '--" : "",
            near != NULL ? near : "", near != NULL ? "'" : "",
            opts->help != NULL ? opts->help : see);
}

/* What a value must look like. */
static const char *form_of(const struct opt *opt, char out[FORM_SIZE])
{
    size_t n = 0;
    if (opt->form != NULL)
        return opt->form;
    for (size_t i = 0; opt->choices != NULL && opt->choices[i] != NULL; i++)
        n += (size_t)snprintf(out + n, FORM_SIZE - n, "%s%s",
                              i == 0                        ? ""
                              : opt->choices[i + 1] != NULL ? ", "
                                                            : " or ",
                              opt->choices[i]);
    if (opt->choices == NULL && opt->most < UINT32_MAX)
        snprintf(out, FORM_SIZE, "a whole number from %" PRIu64 " to %" PRIu64, opt->least,
                 opt->most);
    else if (opt->choices == NULL && opt->least > 0)
        snprintf(out, FORM_SIZE, "a whole number of %" PRIu64 " or more", opt->least);
    else if (opt->choices == NULL)
        snprintf(out, FORM_SIZE, "a whole number");
    return out;
}

static bool is_allowed(const struct opt *opt, const char *text)
{
    uint64_t value;
    if (opt->choices != NULL && opt_find_word(text, opt->choices) < 0)
        return false;
    return opt->most == 0 ||
           (opt_read_u64(text, &value) && value >= opt->least && value <= opt->most);
}

struct parser {
    const char *command;
    const struct opt *opts;
    int argc, i; /* of the argument that is looked at, moved over a value */
    char **argv;
    void *values;
    const char **given; /* by option: its value */
};

static int opt_set(struct parser *p, const struct opt *opt, const char *shown, const char *text)
{
    char form[FORM_SIZE];
    void *field = (char *)p->values + opt->offset;
    const char **given = &p->given[opt - p->opts];
    if (text == NULL) {
        opt->read(text, field);
        return 0;
    }
    if (!is_allowed(opt, text) || (opt->read != NULL && !opt->read(text, field))) {
        cmd_say("%s: '%s' is not %s; see 'dpro help %s'", shown, text, form_of(opt, form),
                p->command);
        return CMD_USAGE;
    }
    if (!opt->repeats && *given != NULL && strcmp(*given, text) != 0)
        cmd_say("%s is given twice: '%s' counts, '%s' does not", shown, text, *given);
    *given = text;
    if (opt->read == NULL)
        *(int *)field = opt_find_word(text, opt->choices);
    return 0;
}

/* An option that takes a value: what is behind it in the same argument, or the next one. */
static int set_value(struct parser *p, const struct opt *opt, const char *shown, const char *value)
{
    char form[FORM_SIZE];
    if (value != NULL || p->i + 1 < p->argc)
        return opt_set(p, opt, shown, value != NULL ? value : p->argv[++p->i]);
    cmd_say("%s needs a value: %s", shown, form_of(opt, form));
    return CMD_USAGE;
}

/* --name, --name=value or --name value. */
static int parse_long(struct parser *p)
{
    const char *name = p->argv[p->i] + 2;
    size_t len = strcspn(name, "=");
    const char *value = name[len] == '=' ? name + len + 1 : NULL;
    const struct opt *opt = find_long(p->opts, name, len);
    char shown[80];

    if (opt == NULL) {
        char *wrong = strndup(p->argv[p->i], len + 2);
        say_unknown(p->command, p->opts, wrong == NULL ? p->argv[p->i] : wrong,
                    wrong == NULL ? NULL : opt_nearest(wrong + 2, name_of_opt, p->opts));
        free(wrong);
        return CMD_USAGE;
    }
    snprintf(shown, sizeof shown, "--%s", opt->name);
    if (opt->arg != NULL)
        return set_value(p, opt, shown, value);
    if (value == NULL)
        return opt_set(p, opt, shown, NULL);
    cmd_say("%s takes no value", shown);
    return CMD_USAGE;
}

/* -x, -xyz (flags), -xVALUE or -x VALUE. */
static int parse_short(struct parser *p)
{
    int status = 0;
    for (const char *c = p->argv[p->i] + 1; *c != '\0' && status == 0; c++) {
        const struct opt *opt = find_short(p->opts, *c);
        char shown[3] = {'-', *c, '\0'};
        if (opt == NULL) {
            say_unknown(p->command, p->opts, shown, NULL);
            return CMD_USAGE;
        }
        if (opt->arg != NULL)
            return set_value(p, opt, shown, c[1] != '\0' ? c + 1 : NULL);
        status = opt_set(p, opt, shown, NULL);
    }
    return status;
}

static int parse_all(struct parser *p, struct opt_list *args)
{
    bool options = true;
    int status = 0;
    for (; p->i < p->argc && status == 0; p->i++) {
        const char *arg = p->argv[p->i];
        if (!options || arg[0] != '-' || arg[1] == '\0')
            status = list_add(args, arg) ? 0 : cmd_no_memory();
        else if (strcmp(arg, "--") == 0)
            options = false;
        else
            status = arg[1] == '-' ? parse_long(p) : parse_short(p);
    }
    return status;
}

int opt_parse(const char *command, const struct opt *opts, int argc, char **argv, void *values,
              struct opt_list *args)
{
    struct parser parser = {command, opts, argc, 1, argv, values, NULL};
    size_t n = 1;
    while (opts[n - 1].name != NULL)
        n++;
    parser.given = calloc(n, sizeof *parser.given);
    int status = parser.given == NULL ? cmd_no_memory() : parse_all(&parser, args);
    free(parser.given);
    return status;
}

void opt_free(const struct opt *opts, void *values)
{
    for (const struct opt *opt = opts; opt->name != NULL; opt++)
        if (opt->repeats)
            free(((struct opt_list *)((char *)values + opt->offset))->items);
}

void opt_help(const struct opt *opts, FILE *out)
{
    enum { COLUMN = 26 };
    for (const struct opt *opt = opts; opt->name != NULL; opt++) {
        char left[80];
        int width =
            snprintf(left, sizeof left, "  %c%c%s --%s%s%s", opt->letter != 0 ? '-' : ' ',
                     opt->letter != 0 ? opt->letter : ' ', opt->letter != 0 ? "," : " ", opt->name,
                     opt->arg != NULL ? " " : "", opt->arg != NULL ? opt->arg : "");
        fputs(left, out);
        if (width > COLUMN - 2) {
            fputc('\n', out);
            width = 0;
        }
        for (const char *line = opt->help; line != NULL;) {
            size_t len = strcspn(line, "\n");
            fprintf(out, "%*s%.*s\n", COLUMN - width, "", (int)len, line);
            width = 0;
            line = line[len] == '\n' ? line + len + 1 : NULL;
        }
    }
}
