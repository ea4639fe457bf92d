/* report/columns.h: text of a known width on a terminal. */
#ifndef REPORT_COLUMNS_H
#define REPORT_COLUMNS_H

#include <stddef.h>

int columns_of(const char *text); /* valid UTF-8 */
/* One printable line of at most `columns` (>= 5); what is wider loses its middle, since names of
 * kernels differ at both ends. */
void columns_shorten(char *out, size_t size, const char *text, int columns);

#endif
