/* Growth by half. */
#include "base/base.h"

void array_grow(void **at, size_t *cap, size_t n, size_t extra, size_t size)
{
    size_t need, want = MIN(MAX(*cap + *cap / 2, 16), ARRAY_MOST);
    if (__builtin_add_overflow(n, extra, &need) || need > ARRAY_MOST)
        mem_fail();
    want = MAX(want, need);
    *at = mem_resize(*at, want, size);
    *cap = want;
}
