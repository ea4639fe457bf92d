/* Sorting and searching. An order is one line; qsort() and qsort_r() take it. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

/* Negative, zero or positive, as the first value is less than, equal to or more than the second. */
#define COMPARE(a, b) (((a) > (b)) - ((a) < (b)))

/* The lesser and the greater of two values, which may be evaluated twice. */
#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))

/* In the keys of an order: members of the elements `x` and `y`. The first key that differs decides:
 *     ORDER(by_size, struct tensor, DESCENDING(size_bytes) ?: strcmp(x->name, y->name)); */
#define ASCENDING(member)  COMPARE(x->member, y->member)
#define DESCENDING(member) COMPARE(y->member, x->member)

/* Defines a static function that compares elements of `type`, for qsort(). */
#define ORDER(name, type, keys)                                                                    \
    static int name(const void *a, const void *b)                                                  \
    {                                                                                              \
        const type *x = a, *y = b;                                                                 \
        return keys;                                                                               \
    }                                                                                              \
    static int name(const void *, const void *)

/* The same for an array of pointers to `type`. */
#define ORDER_OF_POINTERS(name, type, keys)                                                        \
    static int name(const void *a, const void *b)                                                  \
    {                                                                                              \
        const type *x = *(const type *const *)a, *y = *(const type *const *)b;                     \
        return keys;                                                                               \
    }                                                                                              \
    static int name(const void *, const void *)

/* The same for an array of uint32_t indices of elements of `type`, for qsort_r(), whose last
 * argument is the elements. Equal elements stay in the order of their indices. */
#define ORDER_OF_INDICES(name, type, keys)                                                         \
    static int name(const void *a, const void *b, void *elements)                                  \
    {                                                                                              \
        const type *x = (const type *)elements + *(const uint32_t *)a;                             \
        const type *y = (const type *)elements + *(const uint32_t *)b;                             \
        return (keys) ?: COMPARE(x, y);                                                            \
    }                                                                                              \
    static int name(const void *, const void *, void *)

/* Sorts an ARRAY(T), which may be empty. */
#define array_sort(array, order)                                                                   \
    ((array)->n > 1 ? qsort((array)->at, (array)->n, sizeof *(array)->at, order) : (void)0)

#define array_sort_by(array, order, elements)                                                      \
    ((array)->n > 1 ? qsort_r((array)->at, (array)->n, sizeof *(array)->at, order, elements)       \
                    : (void)0)
/* The indices of n elements in an ORDER_OF_INDICES; to be freed. */
uint32_t *sorted_indices(size_t n, void *elements,
                         int (*order)(const void *, const void *, void *));

/* The end of the run that begins at i < n: the first k behind it for which `is_same` does not
 * hold; n where it holds for all. */
#define RUN_END(k, i, n, is_same)                                                                  \
    ({                                                                                             \
        __typeof__(n) k = (i) + 1;                                                                 \
        while (k < (n) && (is_same))                                                               \
            k++;                                                                                   \
        k;                                                                                         \
    })

/* The least index `i` from `first` to below `end` for which `is_before` does not hold; `end` where
 * it holds for all. It must not hold again behind the first for which it does not. With `times[i] <
 * ns` that is the first time at or after ns, with `times[i] <= ns` the first after it. */
#define LOWER_BOUND(i, first, end, is_before)                                                      \
    ({                                                                                             \
        __typeof__((first) + (end)) low_ = (first), high_ = (end);                                 \
        while (low_ < high_) {                                                                     \
            __typeof__(low_) i = low_ + (high_ - low_) / 2;                                        \
            if (is_before)                                                                         \
                low_ = i + 1;                                                                      \
            else                                                                                   \
                high_ = i;                                                                         \
        }                                                                                          \
        low_;                                                                                      \
    })

/* Comparisons of numbers, for bsearch() and qsort(). */
int compare_u32(const void *a, const void *b);
int compare_u64(const void *a, const void *b);
int compare_i64(const void *a, const void *b);
int compare_double(const void *a, const void *b);

/* Smallest first. Nothing is allocated; `values` may be NULL where n is 0. */
void sort_u32(uint32_t *values, size_t n);
void sort_u64(uint64_t *values, size_t n);
void sort_i64(int64_t *values, size_t n);
void sort_double(double *values, size_t n);

/* The value that sorting would bring to place k < n, in linear time; reorders the values. Sorted
 * ones stay sorted. */
uint32_t select_u32(uint32_t *values, size_t n, size_t k);
int64_t select_i64(int64_t *values, size_t n, size_t k);
double select_double(double *values, size_t n, size_t k);
