/* Aligns two sequences of the same work.
 *
 * Iterations of a static job run nearly the same ops in the same order. The longest common
 * subsequence finds the differences, 64 cells of its table at a time (H. Hyyrö, "Bit-parallel LCS-
 * length computation revisited", AWOCA 2004), near the diagonal. Very different sequences are
 * aligned by counting: the k-th slice of a kind with the k-th of that kind. */

#include "graph/rank_build.h"

enum { MAX_EDITS = 1500, WORD_BITS = 64 };

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

/* The table of the longest common subsequences of the first x of a and the first y of b, a row for
 * each x: bit y is 0 where one more of b makes it longer. Only words within `band` of the diagonal
 * are kept; what lies above them is 1. */
struct match_table {
    const uint32_t *a, *b;        /* numbers of the keys */
    uint32_t n, m, band, n_words; /* n_words: of a row */
    uint64_t *rows;
    uint64_t *places; /* by number: where in b it is, in a row's words; word w at w % n_words */
};

/* Numbers keys of b from 1, and those of a by them, 0 where b lacks one. Returns the most. */
static uint32_t number_keys(const uint64_t *a, uint32_t n, const uint64_t *b, uint32_t m,
                            uint32_t *numbers_a, uint32_t *numbers_b)
{
    uint32_t n_slots = 16, most = 0;
    while (n_slots / 2 < m)
        n_slots *= 2;
    SCRATCH uint32_t *first =
        mem_array(n_slots, sizeof *first); /* by hash: 1 + the key's first place */
    for (uint32_t i = 0; i < n + m; i++) {
        uint64_t key = i < m ? b[i] : a[i - m];
        size_t slot = map_mix(key) & (n_slots - 1);
        while (first[slot] && b[first[slot] - 1] != key)
            slot = (slot + 1) & (n_slots - 1);
        if (i >= m) {
            numbers_a[i - m] = first[slot] ? numbers_b[first[slot] - 1] : 0;
            continue;
        }
        if (!first[slot]) {
            first[slot] = i + 1;
            numbers_b[i] = ++most;
        }
        numbers_b[i] = numbers_b[first[slot] - 1];
    }
    return most;
}

static uint32_t first_word(const struct match_table *t, uint32_t x)
{
    return x > t->band ? (x - t->band - 1) / WORD_BITS : 0;
}

static uint64_t *places_in(const struct match_table *t, uint32_t number, uint32_t word)
{
    return &t->places[(size_t)number * t->n_words + word % t->n_words];
}

/* Makes a word of b the last one of a row, in place of the one that is `n_words` before it. */
static void add_places(const struct match_table *t, uint32_t word)
{
    uint32_t begin = word * WORD_BITS, back = t->n_words * WORD_BITS;
    if (word >= t->n_words)
        for (uint32_t y = begin - back; y < begin - back + WORD_BITS && y < t->m; y++)
            *places_in(t, t->b[y], word) = 0;
    for (uint32_t y = begin; y < begin + WORD_BITS && y < t->m; y++)
        *places_in(t, t->b[y], word) |= UINT64_C(1) << y % WORD_BITS;
}

/* Fills in the table; returns how long the longest common subsequence is within the band. */
static uint32_t fill_table(struct match_table *t)
{
    uint32_t length = 0;
    for (uint32_t w = 0; w < t->n_words; w++)
        add_places(t, w);
    for (uint32_t x = 1; x <= t->n; x++) {
        uint32_t first = first_word(t, x), dropped = first - first_word(t, x - 1);
        uint64_t *row = t->rows + (size_t)x * t->n_words, *before = row - t->n_words;
        uint32_t at = first % t->n_words; /* where places_in() has the row's first word */
        const uint64_t *places = places_in(t, t->a[x - 1], 0);
        bool carry = false;
        if (dropped) {
            length += (uint32_t)__builtin_popcountll(~before[0]);
            add_places(t, first + t->n_words - 1);
        }
        for (uint32_t w = 0; w < t->n_words; w++) {
            uint64_t was = w + dropped < t->n_words ? before[w + dropped] : UINT64_MAX, sum;
            uint64_t same = was & places[at];
            bool over = __builtin_add_overflow(was, same, &sum);
            carry = over | __builtin_add_overflow(sum, (uint64_t)carry, &sum);
            row[w] = sum | (was & ~same);
            at = at + 1 < t->n_words ? at + 1 : 0;
        }
    }
    for (uint32_t w = 0; w < t->n_words; w++)
        length += (uint32_t)__builtin_popcountll(~t->rows[(size_t)t->n * t->n_words + w]);
    return length;
}

static bool grows_at(const struct match_table *t, uint32_t x, uint32_t y)
{
    uint32_t w = y / WORD_BITS - first_word(t, x);
    return w < t->n_words && !(t->rows[(size_t)x * t->n_words + w] >> y % WORD_BITS & 1);
}

/* Walks back from the far corner. */
static void read_table(const struct match_table *t, uint32_t *to)
{
    for (uint32_t x = t->n, y = t->m; x > 0 && y > 0;) {
        if (!grows_at(t, x, y - 1))
            y--;
        else if (grows_at(t, x - 1, y - 1))
            x--;
        else
            to[--x] = --y;
    }
}

/* Returns whether the band was wide enough. */
static bool match_in_band(struct match_table *t, uint32_t n_numbers, uint32_t *to)
{
    t->n_words = MIN(2 * (t->band / WORD_BITS) + 3, t->m / WORD_BITS + 1);
    t->places = mem_array((n_numbers + (size_t)1) * t->n_words, sizeof *t->places);
    t->rows = mem_alloc((t->n + (size_t)1) * t->n_words * sizeof *t->rows);
    memset(t->rows, 0xFF, t->n_words * sizeof *t->rows);
    bool found = t->n + t->m - 2 * fill_table(t) <= t->band;
    if (found)
        read_table(t, to);
    FREE_ALL(&t->rows, &t->places);
    return found;
}

/* Returns false where they are too different. */
static bool match_by_edits(const uint64_t *a, uint32_t n, const uint64_t *b, uint32_t m,
                           uint32_t *to)
{
    uint32_t most = MIN(n + m, MAX_EDITS), least = n > m ? n - m : m - n;
    bool found = false;
    if (least > most)
        return false;
    SCRATCH uint32_t *numbers = mem_alloc((n + (size_t)m) * sizeof *numbers);
    uint32_t n_numbers = number_keys(a, n, b, m, numbers, numbers + n);
    struct match_table t = {.a = numbers, .b = numbers + n, .n = n, .m = m};
    for (uint32_t band = WORD_BITS; !found && t.band < most; band *= 2) {
        t.band = MIN(MAX(band, least), most);
        found = match_in_band(&t, n_numbers, to);
    }
    return found;
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
    if (!match_by_edits(a + head, mid_a, b + head, mid_b, to + head)) {
        match_by_count(a + head, mid_a, b + head, mid_b, to + head);
        keep_ascending(to + head, mid_a);
    }
    for (uint32_t i = head; i < n_a - tail; i++)
        if (to[i] != NO_ID)
            to[i] += head;
}
