#include "slow_allocator.h"
#include "base/base.h"

struct part {
    uint64_t segment, offset, size, id;
    bool small, taken;
};

struct slow_allocator {
    struct allocator_settings settings;
    uint64_t capacity, n_segments;
    ARRAY(struct part) parts;
};

struct slow_allocator *slow_create(const struct allocator_settings *settings, uint64_t capacity)
{
    struct slow_allocator *s = mem_array(1, sizeof *s);
    s->settings = *settings;
    s->capacity = capacity;
    return s;
}

void slow_destroy(struct slow_allocator *s)
{
    array_fini(&s->parts);
    mem_free(s);
}

uint64_t slow_reserved(const struct slow_allocator *s)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < s->parts.n; i++)
        sum += s->parts.at[i].size;
    return sum;
}

static uint64_t multiple(uint64_t size, uint64_t of)
{
    while (size % of)
        size++;
    return size;
}

static uint64_t rounded(const struct slow_allocator *s, uint64_t size)
{
    uint64_t power = 512, index = 0;
    if (size < 512)
        return 512;
    while (power * 2 <= size)
        power *= 2;
    for (uint64_t mib = 2 << 20; mib <= power && index < ALLOCATOR_N_ROUNDING - 1; mib *= 2)
        index++;
    uint64_t divisions = s->settings.roundup_power2_divisions[index];
    if (divisions > 1 && size > 512 * divisions)
        return (size + power / divisions - 1) / (power / divisions) * (power / divisions);
    return multiple(size, 512);
}

static bool is_whole(const struct slow_allocator *s, size_t p)
{
    for (size_t i = 0; i < s->parts.n; i++)
        if (i != p && s->parts.at[i].segment == s->parts.at[p].segment)
            return false;
    return true;
}

static void merge_all(struct slow_allocator *s)
{
    for (size_t i = 0; i < s->parts.n; i++)
        for (size_t k = 0; k < s->parts.n; k++) {
            struct part *a = &s->parts.at[i], *b = &s->parts.at[k];
            if (i == k || a->taken || b->taken || a->segment != b->segment ||
                a->offset + a->size != b->offset)
                continue;
            a->size += b->size;
            *b = s->parts.at[--s->parts.n];
            merge_all(s);
            return;
        }
}

static void drop(struct slow_allocator *s, size_t p)
{
    s->parts.at[p] = s->parts.at[--s->parts.n];
}

static bool comes_first(const struct part *a, const struct part *b)
{
    if (a->size != b->size)
        return a->size < b->size;
    return a->segment != b->segment ? a->segment < b->segment : a->offset < b->offset;
}

/* The best free part of a pool, of at least that size; -1. */
static int64_t best(const struct slow_allocator *s, bool small, uint64_t size)
{
    int64_t found = -1;
    for (size_t i = 0; i < s->parts.n; i++) {
        const struct part *p = &s->parts.at[i];
        if (!p->taken && p->small == small && p->size >= size &&
            (found < 0 || comes_first(p, &s->parts.at[found])))
            found = (int64_t)i;
    }
    return found;
}

static int64_t from_device(struct slow_allocator *s, bool small, uint64_t size)
{
    uint64_t bytes = small             ? 2 << 20
                     : size < 10 << 20 ? s->settings.large_segment_bytes
                                       : (size + (2 << 20) - 1) / (2 << 20) * (2 << 20);
    if (slow_reserved(s) + bytes > s->capacity)
        return -1;
    struct part part = {.segment = s->n_segments++, .size = bytes, .small = small};
    array_push(&s->parts, part);
    return (int64_t)s->parts.n - 1;
}

static bool release_oversize(struct slow_allocator *s, bool small, uint64_t size)
{
    uint64_t split = s->settings.max_split_bytes, need = size > split ? size : split, sum = 0;
    if (split == ALLOCATOR_UNLIMITED)
        return false;
    int64_t one = best(s, small, need);
    if (one >= 0) {
        drop(s, (size_t)one);
        return true;
    }
    while (sum < need) {
        int64_t largest = -1;
        for (size_t i = 0; i < s->parts.n; i++) {
            const struct part *p = &s->parts.at[i];
            if (!p->taken && p->small == small && p->size >= split &&
                (largest < 0 || comes_first(&s->parts.at[largest], p)))
                largest = (int64_t)i;
        }
        if (largest < 0)
            return false;
        sum += s->parts.at[largest].size;
        drop(s, (size_t)largest);
    }
    return true;
}

void slow_empty_cache(struct slow_allocator *s)
{
    for (size_t i = 0; i < s->parts.n;)
        if (!s->parts.at[i].taken && is_whole(s, i))
            drop(s, i);
        else
            i++;
}

bool slow_take(struct slow_allocator *s, uint64_t id, uint64_t bytes)
{
    uint64_t size = rounded(s, bytes), split = s->settings.max_split_bytes;
    bool small = size <= 1 << 20;
    int64_t p = best(s, small, size);
    if (p >= 0 &&
        (size < split ? s->parts.at[p].size >= split
                      : s->parts.at[p].size - size >= s->settings.max_non_split_rounding_bytes))
        p = -1;
    if (p < 0)
        p = from_device(s, small, size);
    if (p < 0 && release_oversize(s, small, size))
        p = from_device(s, small, size);
    if (p < 0) {
        slow_empty_cache(s);
        p = from_device(s, small, size);
    }
    if (p < 0)
        return false;
    uint64_t rest = s->parts.at[p].size - size;
    if (small ? rest >= 512 : size < split && rest > 1 << 20) {
        struct part behind = s->parts.at[p];
        behind.offset += size;
        behind.size = rest;
        s->parts.at[p].size = size;
        array_push(&s->parts, behind);
    }
    s->parts.at[p].taken = true;
    s->parts.at[p].id = id;
    return true;
}

void slow_give(struct slow_allocator *s, uint64_t id)
{
    for (size_t i = 0; i < s->parts.n; i++)
        if (s->parts.at[i].taken && s->parts.at[i].id == id) {
            s->parts.at[i].taken = false;
            merge_all(s);
            return;
        }
}
