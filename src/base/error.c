/* One printable line per error, whatever bytes came in. */

#include "base/utf8.h"

int dpro_error_vset(struct dpro_error *err, int code, const char *format, va_list args)
{
    char text[1024];
    if (!err)
        return code;
    vsnprintf(text, sizeof text, format, args);
    utf8_escape(err->text, sizeof err->text, text, strlen(text));
    return err->code = code;
}

int dpro_error_set(struct dpro_error *err, int code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    dpro_error_vset(err, code, format, args);
    va_end(args);
    return code;
}

int dpro_error_prefix(struct dpro_error *err, const char *format, ...)
{
    if (!err)
        return DPRO_EFORMAT;
    char prefix[512], text[1100];
    va_list args;
    va_start(args, format);
    vsnprintf(prefix, sizeof prefix, format, args);
    va_end(args);
    snprintf(text, sizeof text, "%s: %s", prefix, err->text);
    utf8_escape(err->text, sizeof err->text, text, strlen(text));
    return err->code;
}

int dpro_error_nomem(struct dpro_error *err)
{
    return dpro_error_set(err, DPRO_ENOMEM, "out of memory; try fewer files or --steps A:B");
}

const char *dpro_version(void)
{
    return DPRO_VERSION;
}
