/* Structs as bytes. Both ends are the same program on the same kind of machine. */
#include "base/pack.h"

void pack_bytes(struct pack *pack, void *at, size_t size)
{
    char *to = at;
    for (size_t n; size > 0; to += n, size -= n) {
        size_t *done = pack->reading ? &pack->at : &pack->n;
        size_t end = pack->reading ? pack->n : PACK_PIECE;
        if (*done == end) {
            if (pack->reading && pack->n < PACK_PIECE) /* it was the last */
                mem_fail();
            pack->pass(pack);
            n = 0;
            continue;
        }
        n = MIN(size, end - *done);
        if (pack->reading)
            memcpy(to, pack->piece + *done, n);
        else
            memcpy(pack->piece + *done, to, n);
        *done += n;
    }
}

void pack_items(struct pack *pack, void **at, size_t n, size_t size, bool is_lent)
{
    bool is_there = *at != NULL;
    PACK(pack, is_there);
    if (pack->reading)
        *at = !is_there ? NULL
              : is_lent ? arena_array(pack->arena, n, size)
                        : mem_resize(NULL, n + 1, size);
    if (is_there)
        pack_bytes(pack, *at, n * size);
}

void pack_text(struct pack *pack, const char **text)
{
    size_t size = !pack->reading && *text ? strlen(*text) + 1 : 0;
    PACK(pack, size);
    pack_items(pack, (void **)text, size, 1, true);
}

void pack_strings(struct pack *pack, struct strtab *table)
{
    uint32_t n = table->n, len;
    SCRATCH char *text = NULL;
    PACK(pack, n);
    for (uint32_t id = 0; id < n; id++) {
        len = pack->reading ? 0 : table->entries[id].len;
        PACK(pack, len);
        if (!pack->reading) {
            pack_bytes(pack, (char *)table->entries[id].text, len);
            continue;
        }
        text = mem_resize(text, (size_t)len + 1, 1);
        pack_bytes(pack, text, len);
        strtab_add(table, text, len);
    }
}

/* Of items, where they are, and their number. */
static char **items_of(const struct packed *member, void *in, size_t *n)
{
    char *at = (char *)in + member->at;
    if (member->kind == PACKED_IS_ITEMS)
        *n = *(const uint32_t *)(const void *)((char *)in + member->n_at);
    else if (member->kind == PACKED_IS_ARRAY)
        *n = *(const size_t *)(const void *)(at + sizeof(void *));
    else
        return NULL;
    return (char **)(void *)at;
}

static void pack_member(struct pack *pack, const struct packed *member, void *in)
{
    size_t n = 0, *array_n = (size_t *)(void *)((char *)in + member->at + sizeof(void *));
    if (member->kind == PACKED_AS_IT_IS)
        pack_bytes(pack, (char *)in + member->at, member->size);
    else if (member->kind == PACKED_IS_TEXT)
        pack_text(pack, (const char **)(void *)((char *)in + member->at));
    else if (member->kind == PACKED_IS_ARRAY)
        PACK(pack, *array_n);
    char **items = items_of(member, in, &n);
    if (!items)
        return;
    if (member->kind == PACKED_IS_ARRAY)
        array_n[1] = n; /* the capacity */
    pack_items(pack, (void **)items, n, member->size, member->is_lent);
    for (size_t i = 0; *items && member->items && i < n; i++)
        pack_struct(pack, member->items, *items + i * member->size);
}

void pack_struct(struct pack *pack, const struct packed *list, void *at)
{
    for (; list->kind != PACKED_END; list++)
        pack_member(pack, list, at);
}

void packed_free(const struct packed *list, void *at)
{
    size_t n;
    for (; list->kind != PACKED_END; list++) {
        char **items = items_of(list, at, &n);
        if (items && !list->is_lent)
            mem_free(*items);
    }
}

void packed_copy(const struct packed *list, void *at, struct arena *arena)
{
    size_t n;
    for (; list->kind != PACKED_END; list++) {
        char **items = items_of(list, at, &n);
        if (!items || (!*items && n > 0))
            continue;
        void *copy = arena_array(arena, n + 1, list->size);
        if (n > 0)
            memcpy(copy, *items, n * list->size);
        *items = copy;
    }
}
