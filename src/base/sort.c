/* Sorts arrays.
 *
 * Numbers are sorted by quicksort with the comparison inlined, which takes half of qsort()'s time.
 * Input that makes it quadratic goes to qsort(). */
#include "base/base.h"

enum { FEW = 16 }; /* sorted by insertion */

/* How many bad splits are too many. */
static int most_splits(size_t n)
{
    return 2 * (64 - __builtin_clzll((unsigned long long)n | 1));
}

#define DEFINE_SORT(name, T)                                                                       \
    int compare_##name(const void *a, const void *b)                                               \
    {                                                                                              \
        return COMPARE(*(const T *)a, *(const T *)b);                                              \
    }                                                                                              \
                                                                                                   \
    /* No value of the first part is more than one of the second; returns where that begins. */    \
    static size_t split_##name(T *values, size_t n)                                                \
    {                                                                                              \
        T first = values[0], middle = values[n / 2], last = values[n - 1];                         \
        T pivot = MAX(MIN(first, middle), MIN(MAX(first, middle), last));                          \
        for (size_t i = 0, j = n - 1;; i++, j--) {                                                 \
            while (values[i] < pivot)                                                              \
                i++;                                                                               \
            while (pivot < values[j])                                                              \
                j--;                                                                               \
            if (i >= j)                                                                            \
                return j + 1;                                                                      \
            T moved = values[i];                                                                   \
            values[i] = values[j];                                                                 \
            values[j] = moved;                                                                     \
        }                                                                                          \
    }                                                                                              \
                                                                                                   \
    static void sort_part_##name(T *values, size_t n, int n_splits)                                \
    {                                                                                              \
        while (n > FEW) {                                                                          \
            if (n_splits-- == 0) {                                                                 \
                qsort(values, n, sizeof *values, compare_##name);                                  \
                return;                                                                            \
            }                                                                                      \
            size_t at = split_##name(values, n);                                                   \
            sort_part_##name(values + at, n - at, n_splits);                                       \
            n = at;                                                                                \
        }                                                                                          \
        for (size_t i = 1; i < n; i++) {                                                           \
            T value = values[i];                                                                   \
            size_t at = i;                                                                         \
            for (; at > 0 && value < values[at - 1]; at--)                                         \
                values[at] = values[at - 1];                                                       \
            values[at] = value;                                                                    \
        }                                                                                          \
    }                                                                                              \
                                                                                                   \
    void sort_##name(T *values, size_t n)                                                          \
    {                                                                                              \
        sort_part_##name(values, n, most_splits(n));                                               \
    }

#define DEFINE_SELECT(name, T)                                                                     \
    T select_##name(T *values, size_t n, size_t k)                                                 \
    {                                                                                              \
        for (int n_splits = most_splits(n); n > FEW && n_splits > 0; n_splits--) {                 \
            size_t at = split_##name(values, n);                                                   \
            if (k < at) {                                                                          \
                n = at;                                                                            \
            } else {                                                                               \
                values += at;                                                                      \
                n -= at;                                                                           \
                k -= at;                                                                           \
            }                                                                                      \
        }                                                                                          \
        sort_##name(values, n);                                                                    \
        return values[k];                                                                          \
    }

DEFINE_SORT(u32, uint32_t)
DEFINE_SORT(u64, uint64_t)
DEFINE_SORT(i64, int64_t)
DEFINE_SORT(double, double)
DEFINE_SELECT(u32, uint32_t)
DEFINE_SELECT(i64, int64_t)
DEFINE_SELECT(double, double)

uint32_t *sorted_indices(size_t n, void *elements, int (*order)(const void *, const void *, void *))
{
    uint32_t *indices = mem_array(n, sizeof *indices);
    for (uint32_t i = 0; i < n; i++)
        indices[i] = i;
    if (n > 1)
        qsort_r(indices, n, sizeof *indices, order, elements);
    return indices;
}
