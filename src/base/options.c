/* Takes over options of callers that know an older or a newer version of their struct. */
#include "base/options.h"

int options_take(void *to, size_t size, size_t first_size, const void *given, const char *name,
                 struct dpro_error *err)
{
    size_t theirs = given ? *(const size_t *)given : 0;
    if (theirs == 0)
        theirs = first_size;
    memset(to, 0, size);
    if (theirs < sizeof theirs)
        return dpro_error_set(err, DPRO_EUSAGE,
                              "%s->size is %zu; it must be the size of its struct", name, theirs);
    for (size_t at = size; given && at < theirs; at++)
        if (((const char *)given)[at] != 0)
            return dpro_error_set(err, DPRO_EUSAGE,
                                  "%s->size is %zu bytes, and dpro %s knows %zu of them; use the "
                                  "library that the program was built for",
                                  name, theirs, dpro_version(), size);
    if (given)
        memcpy(to, given, theirs < size ? theirs : size);
    *(size_t *)to = size;
    return 0;
}
