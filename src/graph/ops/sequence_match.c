/* Aligns two sequences of the same work.
 *
 * Iterations of a static job run nearly the same ops in the same order. The shortest edit script
 * finds the differences in O((n + m) d) for d of them (E. W. Myers, "An O(ND) difference algorithm
 * and its variations", Algorithmica 1986). Very different sequences are aligned by counting: the
 * k-th slice of a kind with the k-th of that kind. */

#include "graph/rank_build.h"

enum { MAX_EDITS = 1500 };

/* Keeps the longest run of matches that go forward in both sequences: work does not overtake. */
static void keep_ascending(uint32_t *to, uint32_t n)
{
    SCRATCH uint32_t *tails = mem_alloc(((size_t)n * 2 + 1) * sizeof *tails);
    uint32_t *before = tails + n, length = 0;
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
}

void match_by_count(const uint64_t *a, uint32_t n_a, const uint64_t *b, uint32_t n_b, uint32_t *to)
{
    struct map count_a = {0}, place_b = {0}, count_b = {0};
    for (uint32_t i = 0; i < n_b; i++) {
        uint64_t key = map_mix(b[i]) | 1;
        map_set(&place_b, map_mix(key + map_add(&count_b, key, 1)) | 1, i);
    }
    for (uint32_t i = 0; i < n_a; i++) {
        uint64_t place, key = map_mix(a[i]) | 1;
        bool found = map_get(&place_b, map_mix(key + map_add(&count_a, key, 1)) | 1, &place);
        to[i] = found && b[place] == a[i] ? (uint32_t)place : NO_ID;
    }
    FREE_ALL(&count_a, &count_b, &place_b);
}

typedef ARRAY(int32_t) edit_rows;

/* How far of a an edit script of d edits gets on diagonal k, of x - y: row d has -d, -d + 2, ... d.
 */
static int32_t edits_reach(const edit_rows *rows, int32_t d, int32_t k)
{
    return k < -d || k > d ? -1 : rows->at[d * (d + 1) / 2 + (k + d) / 2];
}

/* Walks the script of d edits back from the far corner. */
static void read_edits(const edit_rows *rows, int32_t d, int32_t x, int32_t y, uint32_t *to)
{
    while (x > 0 && y > 0)
        if (edits_reach(rows, d - 1, x - y + 1) >= x) { /* without the last of b it has one less */
            y--;
            d--;
        } else if (edits_reach(rows, d - 1, x - y - 1) >= x - 1) {
            x--;
            d--;
        } else {
            to[--x] = (uint32_t)--y;
        }
}

/* Returns false where they are too different. */
static bool match_by_edits(const uint64_t *a, int32_t n, const uint64_t *b, int32_t m, uint32_t *to)
{
    SCRATCH edit_rows rows = {0};
    for (int32_t d = 0; d <= MAX_EDITS; d++)
        for (int32_t k = -d; k <= d; k += 2) {
            int32_t x = MAX(edits_reach(&rows, d - 1, k + 1), edits_reach(&rows, d - 1, k - 1) + 1);
            while (x < n && x - k < m && a[x] == b[x - k])
                x++;
            array_push(&rows, x);
            if (x >= n && x - k >= m) {
                read_edits(&rows, d, n, m, to);
                return true;
            }
        }
    return false;
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
