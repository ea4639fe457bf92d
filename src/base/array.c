/* base/array.c: growth by half, with overflow checks before the allocation. */
#include "base/array.h"

#include <stdint.h>
#include <stdlib.h>

int array_grow(void **at, size_t *cap, size_t n, size_t extra, size_t size)
{
    size_t need, bytes;
    if (__builtin_add_overflow(n, extra, &need))
        return -1;
    size_t want = *cap + *cap / 2 < 16 ? 16 : *cap + *cap / 2;
    if (want < need)
        want = need;
    if (__builtin_mul_overflow(want, size, &bytes))
        return -1;
    void *grown = realloc(*at, bytes);
    if (!grown)
        return -1;
    *at = grown;
    *cap = want;
    return 0;
}
