/* Structs as bytes. Both ends are the same program on the same kind of machine. */
#include "base/pack.h"

#include <string.h>

#include "base/memory.h"
#include "base/sort.h"

/* Large ones, too, which array_push() has no use for. */
static void append(struct pack *pack, const void *at, size_t size)
{
    if (pack->bytes.n + size > pack->bytes.cap) {
        pack->bytes.cap = pack->bytes.n + size + (pack->bytes.n >> 1) + 4096;
        pack->bytes.at = mem_resize(pack->bytes.at, pack->bytes.cap, 1);
    }
    memcpy(pack->bytes.at + pack->bytes.n, at, size);
    pack->bytes.n += size;
}

static void stream_bytes(struct pack *pack, char *at, size_t size)
{
    size_t *done = pack->reading ? &pack->at : &pack->bytes.n;
    const size_t *end = pack->reading ? &pack->bytes.n : &pack->bytes.cap;
    for (size_t n; size > 0; at += n, size -= n) {
        if (*done == *end)
            pack->pass(pack);
        n = MIN(size, *end - *done);
        if (n == 0)
            mem_fail();
        if (pack->reading)
            memcpy(at, pack->bytes.at + *done, n);
        else
            memcpy(pack->bytes.at + *done, at, n);
        *done += n;
    }
}

void pack_bytes(struct pack *pack, void *at, size_t size)
{
    if (size == 0)
        return;
    if (pack->pass) {
        stream_bytes(pack, at, size);
        return;
    }
    if (!pack->reading) {
        append(pack, at, size);
        return;
    }
    if (size > pack->bytes.n - pack->at)
        mem_fail();
    memcpy(at, pack->bytes.at + pack->at, size);
    pack->at += size;
}

void pack_items(struct pack *pack, void **at, size_t n, size_t size, bool in_arena)
{
    bool is_there = *at != NULL;
    PACK(pack, is_there);
    if (pack->reading) {
        if (is_there && !pack->pass && n > (pack->bytes.n - pack->at) / size)
            mem_fail();
        *at = !is_there  ? NULL
              : in_arena ? arena_alloc(pack->arena, n * size)
                         : mem_alloc(n * size + 1);
    }
    if (is_there)
        pack_bytes(pack, *at, n * size);
}

void pack_text(struct pack *pack, const char **text)
{
    size_t size = !pack->reading && *text ? strlen(*text) + 1 : 0;
    PACK(pack, size);
    PACK_LENT(pack, *(char **)text, size);
}

void pack_strings(struct pack *pack, struct strtab *table)
{
    uint32_t n = table->n, len;
    PACK(pack, n);
    for (uint32_t id = 0; id < n; id++) {
        len = pack->reading ? 0 : table->entries[id].len;
        PACK(pack, len);
        if (!pack->reading) {
            append(pack, table->entries[id].text, len);
            continue;
        }
        if (len > pack->bytes.n - pack->at)
            mem_fail();
        strtab_add(table, pack->bytes.at + pack->at, len);
        pack->at += len;
    }
}
