/* report/field.c: see field.h. */
#include "report/field.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

/* The value of a row that is one. */
static struct writer_field value_of(const struct field *f, const void *of)
{
    const void *at = (const char *)of + f->at;
    int64_t ns;
    switch (f->type) {
    case FIELD_TEXT:
        return TEXT(f->key, *(const char *const *)at);
    case FIELD_CHARS:
        return TEXT(f->key, *(const char *)at ? at : NULL);
    case FIELD_BOOL:
        return BOOL(f->key, *(const bool *)at);
    case FIELD_U32:
        return INT(f->key, *(const uint32_t *)at);
    case FIELD_U64:
        return INT(f->key, *(const uint64_t *)at);
    case FIELD_I64:
        return INT(f->key, *(const int64_t *)at);
    case FIELD_MS:
    case FIELD_MS_SET:
        ns = *(const int64_t *)at;
        return MS_IF(f->key, ns > 0 || (ns == 0 && f->type == FIELD_MS), ns);
    case FIELD_MIB:
        return FIXED(f->key, (double)*(const uint64_t *)at / 1048576, 6);
    case FIELD_REAL:
        return FIXED(f->key, *(const double *)at, f->digits);
    case FIELD_OBJECT:
    case FIELD_CALL:
        break;
    }
    return NUL(f->key);
}

static bool is_known(const struct field *f, const void *of)
{
    return f->known == 0 || *(const uint32_t *)((const char *)of + f->known - 1) > 0;
}

void fields_write(struct writer *w, const struct field *fields, const void *of)
{
    enum { OUTSIDE, INSIDE, NOTHING } section = OUTSIDE;
    for (const struct field *f = fields; f->key; f++) {
        if (f->type == FIELD_OBJECT) {
            if (section == INSIDE)
                writer_close(w, '}');
            section = is_known(f, of) ? INSIDE : NOTHING;
            writer_newline(w);
            if (section == INSIDE)
                writer_begin(w, f->key, '{');
            else
                writer_fields(w, NUL(f->key));
        } else if (section == NOTHING) {
            continue;
        } else if (f->type == FIELD_CALL) {
            writer_key(w, f->key);
            f->write(w, of);
        } else {
            writer_fields(w, is_known(f, of) ? value_of(f, of) : NUL(f->key));
        }
    }
    if (section == INSIDE)
        writer_close(w, '}');
}

static bool is_set(const struct writer_field *value)
{
    return value->text || value->number || value->real != 0;
}

void fields_write_set(struct writer *w, const struct field *fields, const void *of)
{
    for (const struct field *f = fields; f->key; f++) {
        struct writer_field value = value_of(f, of);
        if (is_set(&value))
            writer_fields(w, value);
    }
}

void fields_say_set(struct words *words, const struct field *fields, const void *of)
{
    for (const struct field *f = fields; f->key; f++) {
        struct writer_field value = value_of(f, of);
        const char *mark = f->text ? strstr(f->text, "%s") : NULL;
        if (!is_set(&value) || !f->text)
            continue;
        double number =
            (f->type == FIELD_REAL || f->type == FIELD_MIB ? value.real : (double)value.number) /
            (f->scale != 0 ? f->scale : 1);
        if (!mark)
            words_add(words, ", ", "%s", f->text);
        else
            words_add(words, ", ", "%.*s%s%s", (int)(mark - f->text), f->text,
                      value.text ? value.text : TRIMMED(number), mark + 2);
    }
}
