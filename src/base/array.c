/* base/array.c: growth by half. */
#include "base/array.h"

#include <stdint.h>

#include "base/memory.h"

void array_grow(void **at, size_t *cap, size_t n, size_t extra, size_t size)
{
    size_t need;
    if (__builtin_add_overflow(n, extra, &need))
        mem_fail();
    size_t want = *cap + *cap / 2 < 16 ? 16 : *cap + *cap / 2;
    if (want < need)
        want = need;
    *at = mem_resize(*at, want, size);
    *cap = want;
}
