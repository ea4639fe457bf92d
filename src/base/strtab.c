/* Texts, each kept once and known by a number.
 *
 * Open addressing over interned strings, hashed eight bytes at a time. */
#include "base/base.h"

static uint32_t hash_text(const char *text, size_t len)
{
    uint64_t h = 0x9e3779b97f4a7c15u ^ len;
    while (len >= 8) {
        uint64_t word;
        memcpy(&word, text, 8);
        h = (h ^ word) * 0xd6e8feb86659fd93u;
        h ^= h >> 32;
        text += 8;
        len -= 8;
    }
    if (len) {
        uint64_t word = 0;
        memcpy(&word, text, len);
        h = (h ^ word) * 0xd6e8feb86659fd93u;
    }
    return (uint32_t)(map_mix(h) >> 16);
}

static uint32_t find_slot(const struct strtab *table, const char *text, size_t len, uint32_t hash)
{
    uint32_t mask = table->n_slots - 1, slot = hash & mask;
    for (; table->slots[slot]; slot = (slot + 1) & mask) {
        if (table->slots[slot] >> 32 != hash)
            continue;
        const struct strtab_entry *entry = &table->entries[(uint32_t)table->slots[slot] - 1];
        if (entry->len == len && memcmp(entry->text, text, len) == 0)
            break;
    }
    return slot;
}

void strtab_reserve(struct strtab *table, uint32_t n)
{
    uint32_t n_slots = table->n_slots ? table->n_slots : 256;
    while (n_slots && n * 2ull > n_slots)
        n_slots *= 2;
    if (n_slots == 0)
        mem_fail();
    if (n_slots == table->n_slots)
        return;
    uint64_t *slots = mem_array(n_slots, sizeof *slots);
    for (uint32_t id = 0; id < table->n; id++) {
        uint32_t slot = table->entries[id].hash & (n_slots - 1);
        while (slots[slot])
            slot = (slot + 1) & (n_slots - 1);
        slots[slot] = (uint64_t)table->entries[id].hash << 32 | (id + 1);
    }
    mem_free(table->slots);
    table->slots = slots;
    table->n_slots = n_slots;
}

static uint32_t add_hashed(struct strtab *table, const char *text, size_t len, uint32_t hash)
{
    if (len >= UINT32_MAX || table->n == STRTAB_NONE - 1)
        mem_fail();
    strtab_reserve(table, table->n + 1);
    uint32_t slot = find_slot(table, text, len, hash);
    if (table->slots[slot])
        return (uint32_t)table->slots[slot] - 1;
    if (table->n == table->cap)
        array_grow((void **)&table->entries, &table->cap, table->n, 1, sizeof *table->entries);
    char *copy = arena_copy_string(&table->arena, text, len);
    table->entries[table->n] = (struct strtab_entry){copy, (uint32_t)len, hash};
    table->slots[slot] = (uint64_t)hash << 32 | ++table->n;
    return table->n - 1;
}

uint32_t strtab_add(struct strtab *table, const char *text, size_t len)
{
    if (table->n == 0)
        add_hashed(table, "", 0, hash_text("", 0));
    return len == 0 ? 0 : add_hashed(table, text, len, hash_text(text, len));
}

uint32_t strtab_format(struct strtab *table, const char *format, ...)
{
    char text[4096 + 64];
    va_list args;
    va_start(args, format);
    size_t len = (size_t)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return strtab_add(table, text, MIN(len, sizeof text - 1));
}

uint32_t strtab_copy(struct strtab *table, const struct strtab *from, uint32_t id)
{
    uint32_t empty = strtab_add(table, "", 0);
    if (id >= from->n || from->entries[id].len == 0)
        return empty;
    const struct strtab_entry *entry = &from->entries[id];
    return add_hashed(table, entry->text, entry->len, entry->hash);
}

void strtab_place(struct strtab *table, uint32_t id, const struct strtab *from, uint32_t from_id)
{
    strtab_add(table, "", 0);
    if (id >= table->n) {
        strtab_reserve(table, id + 1);
        if (id >= table->cap)
            array_grow((void **)&table->entries, &table->cap, table->n, id + 1 - table->n,
                       sizeof *table->entries);
        while (table->n <= id)
            table->entries[table->n++] = table->entries[0];
    }
    const struct strtab_entry *entry = &from->entries[from_id];
    uint32_t slot = find_slot(table, entry->text, entry->len, entry->hash);
    if (id == 0 || table->slots[slot])
        return;
    char *copy = arena_copy_string(&table->arena, entry->text, entry->len);
    table->entries[id] = (struct strtab_entry){copy, entry->len, entry->hash};
    table->slots[slot] = (uint64_t)entry->hash << 32 | (id + 1);
}

uint32_t strtab_find(const struct strtab *table, const char *text, size_t len)
{
    if (len == 0)
        return 0;
    if (table->n_slots == 0)
        return STRTAB_NONE;
    uint32_t slot = find_slot(table, text, len, hash_text(text, len));
    return table->slots[slot] ? (uint32_t)table->slots[slot] - 1 : STRTAB_NONE;
}

void strtab_fini(struct strtab *table)
{
    arena_fini(&table->arena);
    mem_free(table->entries);
    mem_free(table->slots);
    *table = (struct strtab){0};
}
