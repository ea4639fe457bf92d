/* A loop of independent items on several threads. */
#pragma once

#include "base/base.h"

/* Calls work(arg, 0) ... work(arg, n - 1), each exactly once, from up to `threads` threads (0: one
 * a core), and returns when all are done. Which thread runs which item is not defined, so an item
 * must write only what is its own; then the result is the same at any thread count. */
void parallel_for(size_t n, int threads, void (*work)(void *arg, size_t item), void *arg);

/* The threads of each of n items that run at once, of so many threads in all (0: one a core). */
int parallel_share(int threads, size_t n);

/* The number of cores that this process may run on, but at most so many: for work that takes much
 * memory a thread. */
int parallel_cores(int most);
