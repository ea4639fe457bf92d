/* Ranks as places of a grid, numbered as in a device mesh.
 *
 * A dimension of size n whose neighbours are s ranks apart covers the numbers from s to s * n;
 * those of a grid follow each other from 1 to the number of ranks. */
#pragma once

#include "base/base.h"

enum { GRID_MOST_SPANS = 16 };

/* A dimension, or several that were joined: spans ascending, apart. */
struct grid_span {
    int32_t from, to; /* stride, and stride times size */
};
struct grid_box {
    uint32_t n; /* 0: the ranks are no box */
    struct grid_span at[GRID_MOST_SPANS];
};

/* The box that a group of ranks, ascending, fills from its edge on. */
struct grid_box grid_box_of(const int32_t *ranks, uint32_t n);
uint32_t grid_box_size(const struct grid_box *box);
bool grid_box_equal(const struct grid_box *a, const struct grid_box *b);
/* Whether the two have a place in common besides the first. */
bool grid_box_overlap(const struct grid_box *a, const struct grid_box *b);
bool grid_box_within(const struct grid_box *inner, const struct grid_box *outer);
/* Takes one box out of another that it is within. */
struct grid_box grid_box_without(const struct grid_box *outer, const struct grid_box *inner);
/* Whether boxes, none over another, are dimensions of a grid of n_ranks. */
bool grid_fits(const struct grid_box *boxes, uint32_t n, int32_t n_ranks);
/* The lowest rank of the box's group that a rank is in. */
int32_t grid_first_of(const struct grid_box *box, int32_t rank);
int32_t grid_rank_of(const struct grid_box *box, int32_t first, uint32_t i);
