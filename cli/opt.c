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

static int set(const char *command, const struct opt *opt, const char *shown, const char *text,
               void *values)
{
    char form[FORM_SIZE];
    void *field = (char *)values + opt->offset;
    if (text == NULL) {
        opt->read(text, field);
        return 0;
    }
    if (!is_allowed(opt, text) || (opt->read != NULL && !opt->read(text, field))) {
        cmd_say("%s: '%s' is not %s; see 'dpro help %s'", shown, text, form_of(opt, form), command);
        return CMD_USAGE;
    }
    if (opt->read == NULL)
        *(int *)field = opt_find_word(text, opt->choices);
    return 0;
}

static int no_value(const struct opt *opt, const char *shown)
{
    char form[FORM_SIZE];
    cmd_say("%s needs a value: %s", shown, form_of(opt, form));
    return CMD_USAGE;
}

/* --name, --name=value or --name value; *i is the index of the argument, moved over a value. */
static int parse_long(const char *command, const struct opt *opts, int argc, char **argv, int *i,
                      void *values)
{
    const char *name = argv[*i] + 2;
    size_t len = strcspn(name, "=");
    const char *value = name[len] == '=' ? name + len + 1 : NULL;
    const struct opt *opt = find_long(opts, name, len);
    char shown[80];

    if (opt == NULL) {
        char *wrong = strndup(argv[*i], len + 2);
        say_unknown(command, opts, wrong == NULL ? argv[*i] : wrong,
                    wrong == NULL ? NULL : opt_nearest(wrong + 2, name_of_opt, opts));
        free(wrong);
        return CMD_USAGE;
    }
    snprintf(shown, sizeof shown, "--%s", opt->name);
    if (opt->arg == NULL) {
        if (value != NULL) {
            cmd_say("%s takes no value", shown);
            return CMD_USAGE;
        }
        return set(command, opt, shown, NULL, values);
    }
    if (value == NULL) {
        if (*i + 1 >= argc)
            return no_value(opt, shown);
        value = argv[++*i];
    }
    return set(command, opt, shown, value, values);
}

/* -x, -xyz (flags), -xVALUE or -x VALUE. */
static int parse_short(const char *command, const struct opt *opts, int argc, char **argv, int *i,
                       void *values)
{
    for (const char *p = argv[*i] + 1; *p != '\0'; p++) {
        const struct opt *opt = find_short(opts, *p);
        char shown[3] = {'-', *p, '\0'};
        int status;
        if (opt == NULL) {
            say_unknown(command, opts, shown, NULL);
            return CMD_USAGE;
        }
        if (opt->arg != NULL) {
            if (p[1] != '\0')
                return set(command, opt, shown, p + 1, values);
            if (*i + 1 >= argc)
                return no_value(opt, shown);
            return set(command, opt, shown, argv[++*i], values);
        }
        status = set(command, opt, shown, NULL, values);
        if (status != 0)
            return status;
    }
    return 0;
}

int opt_parse(const char *command, const struct opt *opts, int argc, char **argv, void *values,
              struct opt_list *args)
{
    bool options = true;
    for (int i = 1; i < argc; i++) {
        int status = 0;
        if (!options || argv[i][0] != '-' || argv[i][1] == '\0') {
            if (!list_add(args, argv[i]))
                return cmd_no_memory();
        } else if (strcmp(argv[i], "--") == 0) {
            options = false;
        } else if (argv[i][1] == '-') {
            status = parse_long(command, opts, argc, argv, &i, values);
        } else {
            status = parse_short(command, opts, argc, argv, &i, values);
        }
        if (status != 0)
            return status;
    }
    return 0;
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
