/* Which elements of two sequences are the same. */
#pragma once

#include "base/base.h"

/* Aligns sequence b with sequence a: to[i] = index in b of a's element i, or UINT32_MAX. The
 * longest common subsequence where the sequences differ by little, else by key and count. */
void match_sequences(const uint64_t *a, uint32_t n_a, const uint64_t *b, uint32_t n_b,
                     uint32_t *to);

/* The k-th of each key in a with the k-th of that key in b, in whatever order they come. */
void match_by_count(const uint64_t *a, uint32_t n_a, const uint64_t *b, uint32_t n_b, uint32_t *to);
