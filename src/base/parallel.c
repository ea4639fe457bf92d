/* Runs a loop on several threads.
 *
 * Threads take the next item from a shared counter. The caller works, too: where no threads can be
 * started it is only slower. */
#include "base/parallel.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <unistd.h>

enum { MAX_THREADS = 256 };

struct parallel_pool {
    atomic_size_t next;
    size_t n;
    void (*work)(void *arg, size_t item);
    void *arg;
    struct memory_scope *scope; /* of the caller */
};

static int run_items(struct parallel_pool *pool)
{
    for (;;) {
        size_t item = atomic_fetch_add_explicit(&pool->next, 1, memory_order_relaxed);
        if (item >= pool->n)
            return 0;
        pool->work(pool->arg, item);
    }
}

static void *run_thread(void *arg)
{
    struct parallel_pool *pool = arg;
    if (!pool->scope)
        run_items(pool);
    else if (WITHIN_SCOPE_OF(pool->scope, -1, run_items(pool)) < 0)
        atomic_store(&pool->next, pool->n); /* the others need not go on */
    return NULL;
}

int parallel_cores(int most)
{
    cpu_set_t own; /* fails where the machine has more than it has room for */
    long n = sched_getaffinity(0, sizeof own, &own) == 0 ? CPU_COUNT(&own)
                                                         : sysconf(_SC_NPROCESSORS_ONLN);
    return n < 1 ? 1 : n > most ? most : (int)n;
}

int parallel_share(int threads, size_t n)
{
    size_t all = (size_t)(threads > 0 ? threads : parallel_cores(MAX_THREADS));
    return n == 0 || all <= n ? 1 : (int)((all + n / 2) / n);
}

void parallel_for(size_t n, int threads, void (*work)(void *arg, size_t item), void *arg)
{
    size_t want = (size_t)(threads > 0 ? threads : parallel_cores(MAX_THREADS));
    if (want > n)
        want = n;
    if (want > MAX_THREADS)
        want = MAX_THREADS;
    struct parallel_pool pool = {.n = n, .work = work, .arg = arg, .scope = memory_scope()};
    pthread_t ids[MAX_THREADS];
    size_t n_started = 0;
    while (n_started + 1 < want && pthread_create(&ids[n_started], NULL, run_thread, &pool) == 0)
        n_started++;
    run_thread(&pool);
    for (size_t i = 0; i < n_started; i++)
        pthread_join(ids[i], NULL);
    memory_check();
}
