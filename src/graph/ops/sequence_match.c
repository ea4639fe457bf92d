/* graph/ops/sequence_match.c: aligning two sequences of the same work.
 *
 * Iterations of a static job run the same ops in the same order but for a few: the shortest edit
 * script finds them in O((n + m) d) for d differences (E. W. Myers, "An O(ND) difference algorithm
 * and its variations", Algorithmica 1986, the greedy forward variant). Sequences that differ by
 * much are aligned by counting: the k-th slice of a kind with the k-th of that kind. */
#include <stdlib.h>
#include <string.h>

#include "base/map.h"
#include "base/memory.h"
#include "base/sort.h"
#include "graph/rank_build.h"

enum { MAX_EDITS = 1500 };

/* Keeps the longest run of matches that go forward in both sequences: work does not overtake. */
static int keep_ascending(uint32_t *to, uint32_t n)
{
    uint32_t *tails = mem_alloc(((size_t)n * 2 + 1) * sizeof *tails), *before = tails + n,
             length = 0;
    if (!tails)
        return -1;
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
    return 0;
}

int match_by_count(const uint64_t *a, uint32_t n_a, const uint64_t *b, uint32_t n_b, uint32_t *to)
{
    for (uint32_t i = 0; i < n_a; i++)
        to[i] = NO_ID;
    struct map count_a = {0}, place_b = {0}, count_b = {0};
    int status = 0;
    for (uint32_t i = 0; i < n_b && status == 0; i++) {
        uint64_t seen = 0, key = map_mix(b[i]) | 1;
        map_get(&count_b, key, &seen);
        status = map_set(&count_b, key, seen + 1);
        if (status == 0)
            status = map_set(&place_b, map_mix(key + seen) | 1, i);
    }
    for (uint32_t i = 0; i < n_a && status == 0; i++) {
        uint64_t seen = 0, place, key = map_mix(a[i]) | 1;
        map_get(&count_a, key, &seen);
        status = map_set(&count_a, key, seen + 1);
        if (map_get(&place_b, map_mix(key + seen) | 1, &place) && b[place] == a[i])
            to[i] = (uint32_t)place;
    }
    map_fini(&count_a);
    map_fini(&count_b);
    map_fini(&place_b);
    return status;
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

/* 1: aligned; 0: too different; -1: no memory. */
static int match_by_edits(const uint64_t *a, int32_t n, const uint64_t *b, int32_t m, uint32_t *to)
{
    int32_t limit = n + m < MAX_EDITS ? n + m : MAX_EDITS;
    int32_t *trace = NULL;
    size_t cap = 0;
    int status = 0;
    for (int32_t d = 0; d <= limit && status == 0; d++) {
        size_t need = (size_t)(d + 1) * (size_t)(d + 2) / 2;
        if (need > cap) {
            cap = need * 2 + 64;
            int32_t *grown = mem_resize(trace, cap, sizeof *trace);
            if (!grown) {
                status = -1;
                break;
            }
            trace = grown;
        }
        int32_t *row = row_of(trace, d), *before = d ? row_of(trace, d - 1) : NULL;
        for (int32_t k = -d; k <= d; k += 2) {
            int32_t x = 0;
            if (d > 0) {
                int32_t down = furthest(before, d - 1, k + 1);
                int32_t right = furthest(before, d - 1, k - 1);
                x = k == -d || (k != d && right < down) ? down : right + 1;
            }
            int32_t y = x - k;
            while (x >= 0 && y >= 0 && x < n && y < m && a[x] == b[y]) {
                x++;
                y++;
            }
            row[(k + d) / 2] = x;
            if (x >= n && y >= m) {
                trace_back(trace, d, n, m, to);
                status = 1;
                break;
            }
        }
    }
    mem_free(trace);
    return status;
}

int match_sequences(const uint64_t *a, uint32_t n_a, const uint64_t *b, uint32_t n_b, uint32_t *to)
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
        return 0;
    if (mid_a > INT32_MAX / 2 || mid_b > INT32_MAX / 2)
        return -1;
    int status = match_by_edits(a + head, (int32_t)mid_a, b + head, (int32_t)mid_b, to + head);
    if (status == 0) {
        status = match_by_count(a + head, mid_a, b + head, mid_b, to + head);
        if (status == 0)
            status = keep_ascending(to + head, mid_a);
    }
    for (uint32_t i = head; i < n_a - tail; i++)
        if (to[i] != NO_ID)
            to[i] += head;
    return status < 0 ? -1 : 0;
}
