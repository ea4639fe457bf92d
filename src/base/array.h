/* base/array.h: growing arrays. `struct { T *at; size_t n, cap; }` is an array of T; zeroed is
 * empty. */
#ifndef BASE_ARRAY_H
#define BASE_ARRAY_H

#include <stddef.h>
#include <string.h>

#define ARRAY(T)                                                                                   \
    struct {                                                                                       \
        T *at;                                                                                     \
        size_t n, cap;                                                                             \
    }

/* Makes room for `extra` more items of `size` bytes; 0, or -1 when memory runs out (the array is
 * unchanged). */
int array_grow(void **at, size_t *cap, size_t n, size_t extra, size_t size);

#define array_reserve(a, extra)                                                                    \
    ((a)->n + (size_t)(extra) <= (a)->cap                                                          \
         ? 0                                                                                       \
         : array_grow((void **)&(a)->at, &(a)->cap, (a)->n, (extra), sizeof *(a)->at))
/* Appends one item; 0 or -1. */
#define array_push(a, item) (array_reserve((a), 1) < 0 ? -1 : ((a)->at[(a)->n++] = (item), 0))
/* Appends `count` items, which are not those of the array; 0 or -1. */
#define array_append(a, items, count)                                                              \
    (array_reserve((a), (count)) < 0                                                               \
         ? -1                                                                                      \
         : ((count) > 0                                                                            \
                ? (void)memcpy((a)->at + (a)->n, (items), (size_t)(count) * sizeof *(a)->at)       \
                : (void)0,                                                                         \
            (a)->n += (size_t)(count), 0))
#define array_fini(a) (free((a)->at), (a)->at = NULL, (a)->n = (a)->cap = 0)

#endif
