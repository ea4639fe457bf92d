/* Numbers with units. */
#include "units.h"

#include <math.h>
#include <string.h>
#include <strings.h>

#include "opt.h"

/* The number that text begins with; *unit is what follows it. */
static bool leading_number(const char *text, double *value, const char **unit)
{
    size_t len = strspn(text, "0123456789.");
    char number[64];
    if (len == 0 || len >= sizeof number)
        return false;
    memcpy(number, text, len);
    number[len] = '\0';
    *unit = text + len;
    return opt_number(number, value);
}

/* Prefixes are powers of 1000; with an i, of 1024. Only b and B depend on case. */
bool units_read_rate(const char *text, void *field)
{
    double value, base = 1000, scale = 1;
    const char *unit, *prefix;
    if (!leading_number(text, &value, &unit))
        return false;
    unit += strspn(unit, " ");
    if (*unit != '\0' && (prefix = strchr("kmgtKMGT", *unit)) != NULL) {
        int power = (int)((prefix - "kmgtKMGT") % 4) + 1;
        unit++;
        if (*unit == 'i' && unit[1] != 't') {
            base = 1024;
            unit++;
        }
        scale = pow(base, power);
    }
    if (strncasecmp(unit, "bits", 4) == 0 || strncasecmp(unit, "bit", 3) == 0) {
        unit += strncasecmp(unit, "bits", 4) == 0 ? 4 : 3;
        scale /= 8;
    } else if (*unit == 'b') {
        unit++;
        scale /= 8;
    } else if (*unit == 'B') {
        unit++;
    } else {
        return false;
    }
    if (*unit != '\0' && strcmp(unit, "/s") != 0 && strcmp(unit, "ps") != 0)
        return false;
    value *= scale;
    if (!(value > 0) || !isfinite(value))
        return false;
    *(double *)field = value;
    return true;
}

bool units_read_bytes(const char *text, uint64_t *bytes)
{
    static const char prefixes[] = "KMGT";
    double value, base = 1000;
    const char *unit, *prefix;
    if (!leading_number(text, &value, &unit))
        return false;
    unit += strspn(unit, " ");
    if (*unit != '\0' && *unit != 'B') {
        prefix = strchr(prefixes, *unit == 'k' ? 'K' : *unit);
        if (prefix == NULL)
            return false;
        unit++;
        if (*unit == 'i') {
            base = 1024;
            unit++;
        }
        value *= pow(base, (double)(prefix - prefixes + 1));
        if (*unit != 'B')
            return false;
    }
    if (*unit == 'B')
        unit++;
    if (*unit != '\0' || !(value >= 1) || value > 1e18)
        return false;
    *bytes = (uint64_t)value;
    return true;
}

bool units_read_percent(const char *text, double *share)
{
    const char *unit;
    double value;
    if (!leading_number(text, &value, &unit) || strcmp(unit, "%") != 0 || !(value > 0))
        return false;
    *share = value / 100;
    return true;
}

bool units_read_ratio(const char *text, double *ratio)
{
    const char *unit;
    double value;
    if (!leading_number(text, &value, &unit) || strcmp(unit, "x") != 0)
        return false;
    *ratio = value;
    return true;
}

bool units_read_ns(const char *text, double *ns)
{
    static const struct {
        const char *unit;
        double ns;
    } units[] = {{"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}};
    const char *unit;
    double value;
    if (!leading_number(text, &value, &unit))
        return false;
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        if (strcmp(unit, units[i].unit) == 0) {
            *ns = value * units[i].ns;
            return *ns <= 3.6e12; /* more than an hour is a slip */
        }
    }
    return false;
}

bool units_read_mb(const char *text, double *bytes)
{
    const char *unit;
    double value;
    if (!leading_number(text, &value, &unit) || *unit != '\0')
        return false;
    *bytes = floor(value * 1048576);
    return *bytes >= 1 && *bytes < 1e15;
}

bool units_split(const char *text, char mark, bool last, char *out, unsigned size,
                 const char **right)
{
    const char *at = last ? strrchr(text, mark) : strchr(text, mark);
    size_t len = at != NULL ? (size_t)(at - text) : strlen(text);
    if (len >= size)
        return false;
    memcpy(out, text, len);
    out[len] = '\0';
    *right = at != NULL ? at + 1 : NULL;
    return true;
}
