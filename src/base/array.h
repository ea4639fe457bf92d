/* Growing arrays. `struct { T *at; size_t n, cap; }` is an array of T; zeroed is empty. An index
 * fits 32 bits and is not UINT32_MAX: larger arrays are a lack of memory. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/memory.h"

#define ARRAY(T)                                                                                   \
    struct {                                                                                       \
        T *at;                                                                                     \
        size_t n, cap;                                                                             \
    }

#define ARRAY_MOST ((size_t)UINT32_MAX - 1)

/* Makes room for `extra` more items of `size` bytes. */
void array_grow(void **at, size_t *cap, size_t n, size_t extra, size_t size);

#define array_reserve(a, extra)                                                                    \
    do {                                                                                           \
        if ((a)->n + (size_t)(extra) > (a)->cap)                                                   \
            array_grow((void **)&(a)->at, &(a)->cap, (a)->n, (extra), sizeof *(a)->at);            \
    } while (0)
#define array_push(a, item)                                                                        \
    do {                                                                                           \
        array_reserve((a), 1);                                                                     \
        (a)->at[(a)->n++] = (item);                                                                \
    } while (0)
/* Appends an item that is initialized so; no initializer may point into the array. */
#define array_add(a, ...)                                                                          \
    do {                                                                                           \
        array_reserve((a), 1);                                                                     \
        (a)->at[(a)->n] = (__typeof__(*(a)->at)){__VA_ARGS__};                                     \
        (a)->n++;                                                                                  \
    } while (0)
/* Appends `count` items, which are not those of the array. */
#define array_append(a, items, count)                                                              \
    do {                                                                                           \
        array_reserve((a), (count));                                                               \
        if ((count) > 0)                                                                           \
            memcpy((a)->at + (a)->n, (items), (size_t)(count) * sizeof *(a)->at);                  \
        (a)->n += (size_t)(count);                                                                 \
    } while (0)
/* for (type *x: the n elements at `at`); for (type *x: those of an ARRAY(type)). No element may be
 * added or taken away meanwhile. */
#define EACH_OF(type, x, at, n)                                                                    \
    for (type *x = (at), *x##_end_ = (n) > 0 ? x + (n) : x; x < x##_end_; x++)
#define EACH(type, x, array) EACH_OF (type, x, (array).at, (array).n)
#define array_fini(a)        (mem_free((a)->at), (a)->at = NULL, (a)->n = (a)->cap = 0)
