#include "nomem.h"

#include <stdbool.h>
#include <stddef.h>

void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *at, size_t size);
void __real_free(void *at);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *at, size_t size);
void __wrap_free(void *at);

atomic_long nomem_n_left = -1;
atomic_long nomem_n_blocks;

static bool fails(void)
{
    return nomem_n_left >= 0 && atomic_fetch_sub(&nomem_n_left, 1) == 0;
}

static void *counted(void *block)
{
    nomem_n_blocks += block != NULL;
    return block;
}

void *__wrap_malloc(size_t size)
{
    return fails() ? NULL : counted(__real_malloc(size));
}

void *__wrap_calloc(size_t n, size_t size)
{
    return fails() ? NULL : counted(__real_calloc(n, size));
}

void *__wrap_realloc(void *at, size_t size)
{
    if (fails())
        return NULL;
    return at ? __real_realloc(at, size) : counted(__real_realloc(at, size));
}

void __wrap_free(void *at)
{
    nomem_n_blocks -= at != NULL;
    __real_free(at);
}
