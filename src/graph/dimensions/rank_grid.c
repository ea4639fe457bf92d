/* Ranks as places of a grid. */
#include "graph/dimensions/rank_grid.h"

static void add_span(struct grid_box *box, int32_t from, int32_t to)
{
    if (from >= to)
        return;
    if (box->n > 0 && box->at[box->n - 1].to == from)
        box->at[box->n - 1].to = to;
    else if (box->n < GRID_MOST_SPANS)
        box->at[box->n++] = (struct grid_span){from, to};
}

/* Whether the ranks up to `n` are those up to `part` again and again, each time `stride` on. */
static bool grid_repeats(const int32_t *ranks, uint32_t part, uint32_t n, int32_t stride)
{
    for (uint32_t i = part; i < n; i++)
        if (ranks[i] - ranks[i - part] != stride)
            return false;
    return true;
}

struct grid_box grid_box_of(const int32_t *ranks, uint32_t n)
{
    static const struct grid_box none = {0};
    struct grid_box box = {0};
    for (uint32_t done = 1; done < n;) {
        int32_t stride = ranks[done] - ranks[0];
        uint32_t times = 1;
        while ((times + 1) * done <= n && ranks[times * done] - ranks[0] == (int64_t)stride * times)
            times++;
        bool is_box = times > 1 && grid_repeats(ranks, done, times * done, stride);
        bool is_behind = box.n == 0 || stride % box.at[box.n - 1].to == 0;
        bool at_edge = ranks[0] / stride % (int32_t)times == 0;
        if (!is_box || !is_behind || !at_edge || stride > INT32_MAX / (int32_t)times ||
            box.n == GRID_MOST_SPANS)
            return none;
        add_span(&box, stride, stride * (int32_t)times);
        done *= times;
        if (done < n && n % done != 0)
            return none;
    }
    return box;
}

uint32_t grid_box_size(const struct grid_box *box)
{
    uint32_t size = 1;
    for (uint32_t i = 0; i < box->n; i++)
        size *= (uint32_t)(box->at[i].to / box->at[i].from);
    return size;
}

bool grid_box_equal(const struct grid_box *a, const struct grid_box *b)
{
    return a->n == b->n && memcmp(a->at, b->at, a->n * sizeof *a->at) == 0;
}

bool grid_box_overlap(const struct grid_box *a, const struct grid_box *b)
{
    for (uint32_t i = 0; i < a->n; i++)
        for (uint32_t k = 0; k < b->n; k++)
            if (MAX(a->at[i].from, b->at[k].from) < MIN(a->at[i].to, b->at[k].to))
                return true;
    return false;
}

bool grid_box_within(const struct grid_box *inner, const struct grid_box *outer)
{
    for (uint32_t i = 0; i < inner->n; i++) {
        bool found = false;
        for (uint32_t k = 0; k < outer->n; k++)
            found |= outer->at[k].from <= inner->at[i].from && inner->at[i].to <= outer->at[k].to &&
                     inner->at[i].from % outer->at[k].from == 0 &&
                     outer->at[k].to % inner->at[i].to == 0;
        if (!found)
            return false;
    }
    return true;
}

struct grid_box grid_box_without(const struct grid_box *outer, const struct grid_box *inner)
{
    struct grid_box rest = {0};
    for (uint32_t k = 0; k < outer->n; k++) {
        int32_t from = outer->at[k].from;
        for (uint32_t i = 0; i < inner->n; i++) {
            if (inner->at[i].from < outer->at[k].from || inner->at[i].to > outer->at[k].to)
                continue;
            add_span(&rest, from, inner->at[i].from);
            from = inner->at[i].to;
        }
        add_span(&rest, from, outer->at[k].to);
    }
    return rest;
}

ORDER(by_place, struct grid_span, ASCENDING(from));

bool grid_fits(const struct grid_box *boxes, uint32_t n, int32_t n_ranks)
{
    struct grid_span spans[4 * GRID_MOST_SPANS];
    uint32_t n_spans = 0;
    int32_t before = 1;
    for (uint32_t b = 0; b < n; b++)
        for (uint32_t i = 0; i < boxes[b].n; i++) {
            if (n_spans == sizeof spans / sizeof *spans)
                return false;
            spans[n_spans++] = boxes[b].at[i];
        }
    if (n_spans > 1)
        qsort(spans, n_spans, sizeof *spans, by_place);
    for (uint32_t i = 0; i < n_spans; i++) {
        if (spans[i].from < before || spans[i].from % before != 0)
            return false;
        before = spans[i].to;
    }
    return n_ranks % before == 0;
}

int32_t grid_first_of(const struct grid_box *box, int32_t rank)
{
    for (uint32_t i = 0; i < box->n; i++)
        rank -= rank % box->at[i].to / box->at[i].from * box->at[i].from;
    return rank;
}

int32_t grid_rank_of(const struct grid_box *box, int32_t first, uint32_t i)
{
    for (uint32_t s = 0; s < box->n; s++) {
        uint32_t size = (uint32_t)(box->at[s].to / box->at[s].from);
        first += (int32_t)(i % size) * box->at[s].from;
        i /= size;
    }
    return first;
}
