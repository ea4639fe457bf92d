/* Strings interned once and carried as 32-bit ids. Id 0 is always the empty string. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"

#define STRTAB_NONE UINT32_MAX /* no id: the table has no such text */

struct strtab_entry {
    const char *text; /* NUL-terminated; may hold any bytes, also NUL */
    uint32_t len;
    uint32_t hash;
};

struct strtab {
    struct arena arena;
    struct strtab_entry *entries;
    uint64_t *slots; /* open addressing; hash << 32 | entry id + 1, 0 = free */
    uint32_t n, n_slots;
    size_t cap;
};

/* A zeroed struct strtab is an empty table. */
uint32_t strtab_add(struct strtab *table, const char *text, size_t len); /* id */
/* The same, by printf's rules; what is beyond 4 KiB is left out. */
uint32_t strtab_format(struct strtab *table, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* The same for a text of another table, which has been hashed already. */
uint32_t strtab_copy(struct strtab *table, const struct strtab *from, uint32_t id);
void strtab_reserve(struct strtab *table, uint32_t n);
/* Gives an id the text that another table has, whatever ids below it have none: those are empty. */
void strtab_place(struct strtab *table, uint32_t id, const struct strtab *from, uint32_t from_id);
uint32_t strtab_find(const struct strtab *table, const char *text,
                     size_t len); /* id, or STRTAB_NONE when absent */
void strtab_fini(struct strtab *table);

static inline const char *strtab_get(const struct strtab *table, uint32_t id)
{
    return id < table->n ? table->entries[id].text : "";
}
static inline uint32_t strtab_len(const struct strtab *table, uint32_t id)
{
    return id < table->n ? table->entries[id].len : 0;
}
