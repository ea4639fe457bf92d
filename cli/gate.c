/* Reads thresholds, and compares values with them. */
#include "gate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "opt.h"
#include "say.h"

struct threshold {
    char name[48];
    double most;
    bool in_pct;
};

/* Takes the first threshold of *text; false: there is none that can be read. */
static bool take_threshold(const char **text, struct threshold *t)
{
    char number[32], unit[3];
    int len = 0;
    if (sscanf(*text, " %47[a-z0-9_] > %31[0-9.eE+-] %2[ms%] %n", t->name, number, unit, &len) <
            3 ||
        len == 0 || !opt_number(number, &t->most) || t->most < 0)
        return false;
    t->in_pct = strcmp(unit, "%") == 0;
    *text += len;
    if (!t->in_pct && strcmp(unit, "ms") != 0)
        return false;
    return **text == '\0' || (*(*text)++ == ',' && **text != '\0');
}

int gate_parse(const char *thresholds, const char *const *names)
{
    char all[1000] = "";
    size_t n = 0;
    for (const char *at = thresholds, *first = at; *first != '\0'; first = at) {
        struct threshold t;
        if (take_threshold(&at, &t) && opt_find_word(t.name, names) >= 0)
            continue;
        for (size_t i = 0; names[i] != NULL && n < sizeof all; i++)
            n += (size_t)snprintf(all + n, sizeof all - n, "%s%s", i > 0 ? ", " : "", names[i]);
        cmd_say("--fail-on: '%.*s' is not a threshold such as %s>5ms or %s>15%%; names: %s",
                (int)strcspn(first, ","), first, names[0], names[0], all);
        return CMD_USAGE;
    }
    return 0;
}

/* 4, or as many more as show that the value is larger. */
static int digits_above(double value, double most)
{
    int digits = 4;
    char text[32];
    for (; digits < 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) > most)
            break;
    }
    return digits;
}

int gate_check(const char *thresholds, gate_value *value, const void *of)
{
    char said[1000] = "";
    size_t n = 0;
    struct threshold t;
    while (*thresholds != '\0' && take_threshold(&thresholds, &t)) {
        double ms = 0, pct = 0, is;
        if (!value(of, t.name, &ms, &pct)) {
            cmd_say("--fail-on: this recording can't tell %s, which therefore passes", t.name);
            continue;
        }
        is = t.in_pct ? pct : ms;
        if (is > t.most && n < sizeof said)
            n += (size_t)snprintf(said + n, sizeof said - n, "%s%s is %.*g %s, more than %.15g %s",
                                  n > 0 ? "; " : "", t.name, digits_above(is, t.most), is,
                                  t.in_pct ? "%" : "ms", t.most, t.in_pct ? "%" : "ms");
    }
    if (n > 0)
        cmd_say("--fail-on: %s", said);
    return n > 0 ? CMD_CHECK_FAILED : CMD_DONE;
}
