/* Filling a struct dpro_error. */
#pragma once

#include <stdarg.h>

#include <dpro/error.h>

/* Sets code and text (printf rules) and returns code; err may be NULL. Control characters and
 * broken UTF-8 that came in through file names are escaped, so that a message is always one
 * printable line. */
int dpro_error_set(struct dpro_error *err, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
int dpro_error_vset(struct dpro_error *err, int code, const char *format, va_list args);

/* Puts "<prefix>: " before the text, keeps the code and returns it. */
int dpro_error_prefix(struct dpro_error *err, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The usual message and code for memory that could not be had. */
int dpro_error_nomem(struct dpro_error *err);
