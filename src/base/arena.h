/* Memory with one lifetime. Parts are freed together, never one by one. */
#pragma once

#include <stddef.h>

struct arena {
    struct arena_block *head; /* newest block */
};

/* A zeroed struct arena is an empty one. */
void *arena_alloc(struct arena *arena, size_t size); /* 16-byte aligned, not cleared */
void *arena_array(struct arena *arena, size_t count, size_t size);                  /* cleared */
void *arena_copy(struct arena *arena, const void *from, size_t count, size_t size); /* not NULL */
char *arena_copy_string(struct arena *arena, const char *text,
                        size_t len); /* NUL-terminated copy */
char *arena_format(struct arena *arena, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void arena_fini(struct arena *arena);
/* As SCRATCH, of a local struct arena. */
#define SCRATCH_ARENA __attribute__((cleanup(arena_fini)))
