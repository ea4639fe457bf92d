/* Aligns two sequences of the same work.
 *
 * Iterations of a static job run nearly the same ops in the same order. The shortest edit script
 * finds the differences in O((n + m) d) for d of them (E. W. Myers, "An O(ND) difference algorithm
 * and its variations", Algorithmica 1986, the greedy forward variant). Very different sequences are
 * aligned by counting: the k-th slice of a kind with the k-th of that kind. */

#include "base/map.h"
#include "base/memory.h"
#include "base/sort.h"
#include "graph/rank_build.h"

enum { MAX_EDITS = 1500 };

/* Keeps the longest run of matches that go forward in both sequences: work does not overtake. */
static void keep_ascending(uint32_t *to, uint32_t n)
{
    uint32_t *tails = mem_alloc(((size_t)n * 2 + 1) * sizeof *tails), *before = tails + n,
             length = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (to[i] == NO_ID)
            continue;
        uint32_t low = LOWER_BOUND(t, 0, length, to[tails[t]] < to[i]);
        before[i] = low > 0 ? tails[low - 1] : NO_ID;
        tails[low] = i;
        if (low == length)
            length++;
    }
    uint32_t keep = length > 0 ? tails[length - 1] : NO_ID;
    for (uint32_t i = n; i-- > 0;) {
        if (i == keep)
            keep = before[i];
        else
            to[i] = NO_ID;
    }
    mem_free(tails);
}

/* How often the key has come before. */
static uint64_t next_count(struct map *counts, uint64_t key)
{
    uint64_t seen = 0;
    map_get(counts, key, &seen);
    map_set(counts, key, seen + 1);
    return seen;
}

void match_by_count(const uint64_t *a, uint32_t n_a, const uint64_t *b, uint32_t n_b, uint32_t *to)
{
    struct map count_a = {0}, place_b = {0}, count_b = {0};
    for (uint32_t i = 0; i < n_b; i++) {
        uint64_t key = map_mix(b[i]) | 1;
        map_set(&place_b, map_mix(key + next_count(&count_b, key)) | 1, i);
    }
    for (uint32_t i = 0; i < n_a; i++) {
        uint64_t place, key = map_mix(a[i]) | 1;
        bool found = map_get(&place_b, map_mix(key + next_count(&count_a, key)) | 1, &place);
        to[i] = found && b[place] == a[i] ? (uint32_t)place : NO_ID;
    }
    map_fini(&count_a);
    map_fini(&count_b);
    map_fini(&place_b);
}

/* `trace` row d holds the furthest x on diagonals -d, -d + 2, ..., d. */
static int32_t *row_of(int32_t *trace, int32_t d)
{
    return trace + (size_t)d * (size_t)(d + 1) / 2;
}

static int32_t furthest(const int32_t *row, int32_t d, int32_t k)
{
    return k < -d || k > d ? -1 : row[(k + d) / 2];
}

/* Walks the edit script back from the far corner and notes the matches on its diagonals. */
static void trace_back(int32_t *trace, int32_t d, int32_t n, int32_t m, uint32_t *to)
{
    int32_t x = n, y = m;
    for (; d > 0; d--) {
        const int32_t *before = row_of(trace, d - 1);
        int32_t k = x - y;
        int32_t down = furthest(before, d - 1, k + 1), right = furthest(before, d - 1, k - 1);
        bool is_down = k == -d || (k != d && right < down);
        int32_t from_x = is_down ? down : right, from_k = is_down ? k + 1 : k - 1;
        int32_t from_y = from_x - from_k;
        while (x > from_x && y > from_y && x > 0 && y > 0 &&
               x - 1 >= (is_down ? from_x : from_x + 1)) {
            x--;
            y--;
            to[x] = (uint32_t)y;
        }
        x = from_x;
        y = from_y;
    }
    while (x > 0 && y > 0) {
        x--;
        y--;
        to[x] = (uint32_t)y;
    }
}

/* Returns false where they are too different. */
static bool match_by_edits(const uint64_t *a, int32_t n, const uint64_t *b, int32_t m, uint32_t *to)
{
    int32_t limit = MIN(n + m, MAX_EDITS);
    ARRAY(int32_t) trace = {0};
    bool aligned = false;
    for (int32_t d = 0; d <= limit && !aligned; d++) {
        array_reserve(&trace, (size_t)d + 1);
        trace.n += (size_t)d + 1;
        int32_t *row = row_of(trace.at, d), *before = d ? row_of(trace.at, d - 1) : NULL;
        for (int32_t i = 0; i <= d && !aligned; i++) { /* diagonal 2 i - d */
            int32_t x = 0;
            if (d > 0) {
                int32_t down = i < d ? before[i] : -1, right = i > 0 ? before[i - 1] : -1;
                x = i == 0 || right < down ? down : right + 1;
            }
            int32_t y = x - 2 * i + d;
            while (x < n && y < m && a[x] == b[y]) {
                x++;
                y++;
            }
            row[i] = x;
            aligned = x >= n && y >= m;
        }
        if (aligned)
            trace_back(trace.at, d, n, m, to);
    }
    array_fini(&trace);
    return aligned;
}

void match_sequences(const uint64_t *a, uint32_t n_a, const uint64_t *b, uint32_t n_b, uint32_t *to)
{
    for (uint32_t i = 0; i < n_a; i++)
        to[i] = NO_ID;
    uint32_t head = 0, tail = 0;
    while (head < n_a && head < n_b && a[head] == b[head]) {
        to[head] = head;
        head++;
    }
    while (tail < n_a - head && tail < n_b - head && a[n_a - 1 - tail] == b[n_b - 1 - tail]) {
        tail++;
        to[n_a - tail] = n_b - tail;
    }
    uint32_t mid_a = n_a - head - tail, mid_b = n_b - head - tail;
    if (mid_a == 0 || mid_b == 0)
        return;
    if (mid_a > INT32_MAX / 2 || mid_b > INT32_MAX / 2)
        mem_fail();
    if (!match_by_edits(a + head, (int32_t)mid_a, b + head, (int32_t)mid_b, to + head)) {
        match_by_count(a + head, mid_a, b + head, mid_b, to + head);
        keep_ascending(to + head, mid_a);
    }
    for (uint32_t i = head; i < n_a - tail; i++)
        if (to[i] != NO_ID)
            to[i] += head;
}
