/* base/parallel.c: threads take the next item from a shared counter. The caller works, too: where
 * no threads can be started it is only slower. */
#include "base/parallel.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

enum { MAX_THREADS = 256 };

struct pool {
    atomic_size_t next;
    size_t n;
    void (*work)(void *arg, size_t item);
    void *arg;
};

static void *run_items(void *arg)
{
    struct pool *pool = arg;
    for (;;) {
        size_t item = atomic_fetch_add_explicit(&pool->next, 1, memory_order_relaxed);
        if (item >= pool->n)
            return NULL;
        pool->work(pool->arg, item);
    }
}

int parallel_cores(int most)
{
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n < 1 ? 1 : n > most ? most : (int)n;
}

void parallel_for(size_t n, int threads, void (*work)(void *arg, size_t item), void *arg)
{
    size_t want = (size_t)(threads > 0 ? threads : parallel_cores(MAX_THREADS));
    if (want > n)
        want = n;
    if (want > MAX_THREADS)
        want = MAX_THREADS;
    struct pool pool = {.n = n, .work = work, .arg = arg};
    pthread_t ids[MAX_THREADS];
    size_t n_started = 0;
    while (n_started + 1 < want && pthread_create(&ids[n_started], NULL, run_items, &pool) == 0)
        n_started++;
    run_items(&pool);
    for (size_t i = 0; i < n_started; i++)
        pthread_join(ids[i], NULL);
}
