/* Recognises a collective's algorithm by its connections. A ring is one circle of neighbours; in
 * halving-doubling the numbers of a pair differ in one bit; in a tree there is one way from each
 * rank to each other one; where all send to all, nothing is passed on. */
#include "graph/collectives/match_collectives.h"

struct pattern_shape {
    uint32_t n_ranks;
    uint64_t *pairs; /* from << 32 | to, in order, each once */
    size_t n_pairs;
    uint32_t *root;   /* of each rank's connected part */
    uint32_t *degree; /* ranks that each exchanges with, in either direction */
    size_t n_edges;   /* pairs in either direction counted once */
    bool connected;
    size_t most_messages; /* over one connection, one way, on one channel */
    uint32_t n_channels;
};

ORDER(compare_messages, struct pattern_message,
      ASCENDING(channel) ?: ASCENDING(from) ?: ASCENDING(to));

static uint32_t root_of(const struct pattern_shape *s, uint32_t rank)
{
    while (s->root[rank] != rank)
        rank = s->root[rank] = s->root[s->root[rank]];
    return rank;
}

static bool pattern_sends(const struct pattern_shape *s, uint32_t from, uint32_t to)
{
    uint64_t pair = (uint64_t)from << 32 | to;
    return bsearch(&pair, s->pairs, s->n_pairs, sizeof pair, compare_u64) != NULL;
}

static void look_at_messages(struct pattern_shape *s, const struct pattern_message *messages,
                             size_t n)
{
    for (size_t i = 0, same = 0; i < n; i++) {
        same = i > 0 && compare_messages(&messages[i - 1], &messages[i]) == 0 ? same + 1 : 1;
        s->most_messages = MAX(s->most_messages, same);
        s->n_channels += i == 0 || messages[i - 1].channel != messages[i].channel;
        if (same == 1)
            s->pairs[s->n_pairs++] = (uint64_t)messages[i].from << 32 | messages[i].to;
    }
    sort_u64(s->pairs, s->n_pairs);
    size_t n_once = 0; /* each pair, whatever its channel */
    for (size_t i = 0; i < s->n_pairs; i++)
        if (n_once == 0 || s->pairs[i] != s->pairs[n_once - 1])
            s->pairs[n_once++] = s->pairs[i];
    s->n_pairs = n_once;
}

static void look_at_pairs(struct pattern_shape *s)
{
    uint32_t n_parts = s->n_ranks;
    for (uint32_t r = 0; r < s->n_ranks; r++)
        s->root[r] = r;
    for (size_t i = 0; i < s->n_pairs; i++) {
        uint32_t from = (uint32_t)(s->pairs[i] >> 32), to = (uint32_t)s->pairs[i];
        if (from > to && pattern_sends(s, to, from))
            continue; /* counted from the other side */
        s->n_edges++;
        s->degree[from]++;
        s->degree[to]++;
        uint32_t a = root_of(s, from), b = root_of(s, to);
        n_parts -= a != b;
        s->root[a] = b;
    }
    s->connected = n_parts == 1;
}

static bool is_halving_doubling(const struct pattern_shape *s)
{
    uint32_t n = s->n_ranks, steps = 0;
    if (n < 4 || (n & (n - 1)) != 0)
        return false;
    while (1u << steps < n)
        steps++;
    for (size_t i = 0; i < s->n_pairs; i++) {
        uint32_t apart = (uint32_t)(s->pairs[i] >> 32) ^ (uint32_t)s->pairs[i];
        if ((apart & (apart - 1)) != 0)
            return false;
    }
    return s->n_pairs == (size_t)n * steps;
}

/* One circle through all ranks, run through one way or both. */
static bool is_ring(const struct pattern_shape *s)
{
    if (s->n_ranks == 2)
        return s->n_pairs == 2;
    bool two_each = s->connected && s->n_edges == s->n_ranks;
    for (uint32_t r = 0; r < s->n_ranks; r++)
        two_each &= s->degree[r] == 2;
    if (!two_each || s->n_pairs == 2 * s->n_edges)
        return two_each;
    for (size_t i = 1; i < s->n_pairs; i++) /* one way: each rank sends to one other */
        if (s->pairs[i] >> 32 == s->pairs[i - 1] >> 32)
            return false;
    return s->n_pairs == s->n_ranks;
}

static const char *name_of(const struct pattern_shape *s)
{
    if (is_halving_doubling(s))
        return "halving-doubling";
    if (s->n_ranks > 2 && s->n_pairs == (size_t)s->n_ranks * (s->n_ranks - 1))
        return "direct";
    if (is_ring(s))
        return "ring";
    if (s->n_ranks == 2)
        return "direct"; /* one way */
    if (s->connected && s->n_edges == s->n_ranks - 1)
        return "tree";
    return "mixed";
}

struct pattern pattern_find(struct pattern_message *messages, size_t n, uint32_t n_ranks,
                            const char *known, uint32_t ring_steps)
{
    SCRATCH_ARENA struct arena scratch = {0};
    struct pattern_shape s = {.n_ranks = n_ranks,
                              .pairs = arena_array(&scratch, n, sizeof *s.pairs),
                              .root = arena_array(&scratch, n_ranks, sizeof *s.root),
                              .degree = arena_array(&scratch, n_ranks, sizeof *s.degree)};
    qsort(messages, n, sizeof *messages, compare_messages);
    look_at_messages(&s, messages, n);
    look_at_pairs(&s);
    struct pattern pattern = {.name = known ? known : name_of(&s), .n_channels = s.n_channels};
    size_t steps = ring_steps > 0 && strcmp(pattern.name, "ring") == 0 ? ring_steps : 1;
    pattern.n_chunks = (uint32_t)((s.most_messages + steps - 1) / steps);
    return pattern;
}
