/* Memory that is freed all at once.
 *
 * Blocks that double up to a megabyte; big requests get a block of their own. */
#include "base/base.h"

enum { FIRST_BLOCK = 4096, LAST_BLOCK = 1 << 20, ALIGN = 16 };

struct arena_block {
    struct arena_block *next;
    size_t used, size;
    _Alignas(ALIGN) unsigned char data[];
};

static void *arena_take(struct arena *arena, size_t size, size_t align)
{
    if (size > SIZE_MAX / 2)
        mem_fail();
    struct arena_block *block = arena->head;
    size_t begin = block ? (block->used + align - 1) & ~(align - 1) : 0;
    if (!block || block->size < begin || block->size - begin < size) {
        size_t block_size = block ? block->size * 2 : FIRST_BLOCK;
        if (block_size > LAST_BLOCK)
            block_size = LAST_BLOCK;
        if (block_size < size)
            block_size = size;
        struct arena_block *fresh = mem_alloc(sizeof *fresh + block_size);
        fresh->used = 0;
        fresh->size = block_size;
        if (block && size > LAST_BLOCK / 2) { /* keep filling the current block */
            fresh->next = block->next;
            block->next = fresh;
        } else {
            fresh->next = block;
            arena->head = fresh;
        }
        block = fresh;
        begin = 0;
    }
    block->used = begin + size;
    return block->data + begin;
}

void *arena_alloc(struct arena *arena, size_t size)
{
    return arena_take(arena, size, ALIGN);
}

static size_t total_of(size_t count, size_t size)
{
    size_t total;
    if (__builtin_mul_overflow(count, size, &total))
        mem_fail();
    return total;
}

void *arena_array(struct arena *arena, size_t count, size_t size)
{
    size_t total = total_of(count, size);
    return memset(arena_alloc(arena, total), 0, total);
}

void *arena_copy(struct arena *arena, const void *from, size_t count, size_t size)
{
    size_t total = total_of(count, size);
    void *copy = arena_alloc(arena, total);
    return total ? memcpy(copy, from, total) : copy;
}

char *arena_copy_string(struct arena *arena, const char *text, size_t len)
{
    if (len == SIZE_MAX)
        mem_fail();
    char *copy =
        arena_take(arena, len + 1, 1); /* names are most of a trace: they lie side by side */
    if (len)
        memcpy(copy, text, len);
    copy[len] = '\0';
    return copy;
}

char *arena_format(struct arena *arena, const char *format, ...)
{
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int len = vsnprintf(NULL, 0, format, args);
    if (len < 0)
        mem_fail();
    char *text = arena_take(arena, (size_t)len + 1, 1);
    vsnprintf(text, (size_t)len + 1, format, again);
    va_end(again);
    va_end(args);
    return text;
}

void arena_fini(struct arena *arena)
{
    for (struct arena_block *block = arena->head, *next; block; block = next) {
        next = block->next;
        mem_free(block);
    }
    *arena = (struct arena){0};
}
