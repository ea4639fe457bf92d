/* Options that callers built with another version of the library may give: the first field of such
 * a struct is its size, and later versions add fields at the end. */
#pragma once

#include "base/base.h"

#include <dpro/error.h>

/* `to`, of the struct's size here, becomes what is given, and 0 where the caller knows less. NULL:
 * all is 0. A size of 0 is that of the struct's first version. Fails with DPRO_EUSAGE where the
 * caller asks for what only a later version knows. `name`: of the struct, for the message. */
int options_take(void *to, size_t size, size_t first_size, const void *given, const char *name,
                 struct dpro_error *err);
/* Of a struct that still is what it first was. */
#define OPTIONS_TAKE(to, given, err)                                                               \
    ({                                                                                             \
        const __typeof__(*(to)) *given_ = (given);                                                 \
        options_take((to), sizeof *(to), sizeof *(to), given_, #given, (err));                     \
    })
/* The same; what is wrong with them ends the work of the innermost OUTCOME(). */
#define OPTIONS_MUST_TAKE(to, given)                                                               \
    do {                                                                                           \
        struct dpro_error why_;                                                                    \
        fail_on(OPTIONS_TAKE((to), (given), &why_), &why_);                                        \
    } while (0)
