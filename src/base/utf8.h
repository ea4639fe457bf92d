/* Making any bytes printable. */
#pragma once

#include "base/base.h"

/* Length in bytes of the valid UTF-8 character at text[0..len), 0 when it is not one (overlong,
 * surrogate, cut). */
size_t utf8_char(const char *text, size_t len);

/* Copies text as one printable line: control characters become \xNN, bytes that are not UTF-8
 * become U+FFFD. Cuts at a character when out of room (`size` counts the NUL). Returns the length
 * written. */
size_t utf8_escape(char *out, size_t size, const char *text, size_t len);
