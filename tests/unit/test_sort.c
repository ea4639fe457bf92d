/* Orders, sorting, selecting and searching. */

#include "base/base.h"
#include "case.h"

enum { MOST = 5000 };

static uint64_t state = 1;

static uint64_t pick(uint64_t below)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % below;
}

/* ---- orders ---- */

struct thing {
    const char *name;
    int64_t size;
    uint32_t rank;
};

ORDER(by_size, struct thing, DESCENDING(size) ?: strcmp(x->name, y->name));
ORDER_OF_POINTERS(by_rank, struct thing, ASCENDING(rank));
ORDER_OF_INDICES(indices_by_size, struct thing, ASCENDING(size));

TEST(the_first_key_that_differs_decides)
{
    ARRAY(struct thing) things = {0};
    array_sort(&things, by_size);
    static const struct thing shuffled[] = {
        {"b", INT64_MIN, 0}, {"d", 7, 3}, {"c", INT64_MAX, 2}, {"a", 7, 1}};
    for (size_t i = 0; i < 4; i++)
        array_push(&things, shuffled[i]);
    array_sort(&things, by_size);
    char order[5] = "";
    for (size_t i = 0; i < 4; i++)
        order[i] = things.at[i].name[0];
    assert_string_equal(order, "cadb");
    array_fini(&things);
}

TEST(pointers_and_indices_are_ordered_by_their_elements)
{
    static const struct thing things[] = {{"a", 5, 2}, {"b", 5, 0}, {"c", 1, 1}, {"d", 5, 3}};
    const struct thing *pointers[] = {&things[0], &things[1], &things[2], &things[3]};
    uint32_t indices[] = {3, 1, 2, 0};
    qsort(pointers, 4, sizeof *pointers, by_rank);
    for (uint32_t i = 0; i < 4; i++)
        assert_int_equal(pointers[i]->rank, i);
    qsort_r(indices, 4, sizeof *indices, indices_by_size, (void *)things);
    assert_memory_equal(indices, ((const uint32_t[]){2, 0, 1, 3}), sizeof indices);
}

/* ---- numbers ---- */

/* Random, few different, equal, sorted, falling, an organ pipe, and what makes a quicksort by the
 * median of three slow. */
static int64_t value_of(int shape, size_t i, size_t n)
{
    switch (shape) {
    case 0:
        return (int64_t)(pick(1u << 31) << 33);
    case 1:
        return (int64_t)pick(7) - 3;
    case 2:
        return 42;
    case 3:
        return (int64_t)i;
    case 4:
        return -(int64_t)i;
    case 5:
        return (int64_t)(i < n / 2 ? i : n - i);
    default:
        return (int64_t)(i < n / 2 ? (i % 2 ? i : n / 2 + i) : 2 * (i - n / 2));
    }
}

TEST(numbers_are_sorted_as_by_qsort)
{
    static int64_t i64[MOST], same_i64[MOST];
    static uint64_t u64[MOST], same_u64[MOST];
    static uint32_t u32[MOST], same_u32[MOST];
    static double real[MOST], same_real[MOST];
    static const size_t counts[] = {0, 1, 2, 3, 15, 16, 17, 18, 100, 1000, MOST};
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
        for (int shape = 0; shape < 7; shape++) {
            size_t n = counts[c];
            for (size_t i = 0; i < n; i++) {
                i64[i] = same_i64[i] = value_of(shape, i, n);
                u64[i] = same_u64[i] = (uint64_t)i64[i];
                u32[i] = same_u32[i] = (uint32_t)(i64[i] >> 20);
                real[i] = same_real[i] = (double)i64[i] / 3;
            }
            sort_i64(i64, n);
            sort_u64(u64, n);
            sort_u32(u32, n);
            sort_double(real, n);
            qsort(same_i64, n, sizeof *same_i64, compare_i64);
            qsort(same_u64, n, sizeof *same_u64, compare_u64);
            qsort(same_u32, n, sizeof *same_u32, compare_u32);
            qsort(same_real, n, sizeof *same_real, compare_double);
            assert_memory_equal(i64, same_i64, n * sizeof *i64);
            assert_memory_equal(u64, same_u64, n * sizeof *u64);
            assert_memory_equal(u32, same_u32, n * sizeof *u32);
            assert_memory_equal(real, same_real, n * sizeof *real);
        }
    sort_i64(NULL, 0);
}

TEST(a_selected_value_is_where_sorting_brings_it)
{
    static int64_t i64[MOST], sorted[MOST];
    static uint32_t u32[MOST];
    static double real[MOST];
    static const size_t counts[] = {1, 2, 16, 17, 1000, MOST};
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
        for (int shape = 0; shape < 7; shape++) {
            size_t n = counts[c], k = (size_t)pick(n);
            for (size_t i = 0; i < n; i++) {
                i64[i] = sorted[i] = value_of(shape, i, n) & INT32_MAX;
                u32[i] = (uint32_t)i64[i];
                real[i] = (double)i64[i];
            }
            sort_i64(sorted, n);
            assert_int_equal(select_i64(i64, n, k), sorted[k]);
            assert_int_equal(select_u32(u32, n, k), sorted[k]);
            assert_true(select_double(real, n, k) == (double)sorted[k]);
            for (size_t i = 0; i < n; i++)
                assert_true(i < k ? i64[i] <= sorted[k] : i64[i] >= sorted[k]);
        }
}

/* ---- searching ---- */

TEST(a_lower_bound_is_the_first_that_is_not_before)
{
    static const int64_t times[] = {10, 20, 20, 20, 30};
    static const struct {
        int64_t ns;
        size_t at_or_after, after;
    } cases[] = {{5, 0, 0}, {10, 0, 1}, {20, 1, 4}, {25, 4, 4}, {30, 4, 5}, {31, 5, 5}};
    size_t n = sizeof times / sizeof *times;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        assert_int_equal(LOWER_BOUND(i, 0, n, times[i] < cases[c].ns), cases[c].at_or_after);
        assert_int_equal(LOWER_BOUND(i, 0, n, times[i] <= cases[c].ns), cases[c].after);
    }
    assert_int_equal(LOWER_BOUND(i, (uint32_t)2, (uint32_t)4, times[i] < 5), 2);
    assert_int_equal(LOWER_BOUND(i, 3, 3, times[i] < 99), 3);
    assert_true(LOWER_BOUND(i, 0, SIZE_MAX, i < SIZE_MAX - 3) == SIZE_MAX - 3);
}

TEST(a_run_ends_where_its_elements_change)
{
    static const int keys[] = {3, 3, 1, 1, 1, 2};
    size_t n = sizeof keys / sizeof *keys;
    static const size_t ends[] = {2, 2, 5, 5, 5, 6};
    for (size_t i = 0; i < n; i++)
        assert_int_equal(RUN_END(k, i, n, keys[k] == keys[i]), ends[i]);
}

ORDER_OF_INDICES(by_value, int, COMPARE(*x, *y));

TEST(indices_are_sorted_by_their_elements_and_equal_ones_keep_their_order)
{
    int values[] = {5, 1, 5, 0};
    static const uint32_t sorted[] = {3, 1, 0, 2};
    uint32_t *order = sorted_indices(4, values, by_value);
    assert_memory_equal(order, sorted, sizeof sorted);
    mem_free(order);
    mem_free(sorted_indices(0, NULL, by_value));
}

/* ---- maps and what goes out of sight ---- */

TEST(a_map_keeps_the_first_value_and_adds_up)
{
    struct map map = {0};
    assert_true(map_insert(&map, 7, 1));
    assert_false(map_insert(&map, 7, 2));
    assert_int_equal(map_first(&map, 7, 3), 1);
    assert_false(map_get(&map, 0, NULL));
    assert_true(map_insert(&map, 0, 3)); /* as of a name that is empty */
    assert_true(map_get(&map, 0, NULL));
    assert_false(map_insert(&map, 0, 3));
    assert_int_equal(map_first(&map, 8, 3), 3);
    for (uint64_t key = 100; key < 200; key++) /* the map grows meanwhile */
        assert_int_equal(map_add(&map, key, key), key);
    assert_int_equal(map_add(&map, 150, 2), 152);
    assert_int_equal(map.n, 103);
    FREE_ALL(&map);
    assert_null(map.slots);
}

static int count_and_return_early(size_t n)
{
    SCRATCH ARRAY(int) list = {0};
    SCRATCH struct map seen = {0};
    SCRATCH int *copy = NULL;
    for (size_t i = 0; i < n; i++)
        array_push(&list, (int)i);
    if (n == 0)
        return -1; /* nothing was allocated */
    map_set(&seen, n, 1);
    copy = mem_array(n, sizeof *copy);
    return copy[0] + (int)list.n;
}

TEST(a_scratch_is_freed_at_every_return) /* the address sanitizer tells of a leak */
{
    assert_int_equal(count_and_return_early(0), -1);
    assert_int_equal(count_and_return_early(5), 5);
}
