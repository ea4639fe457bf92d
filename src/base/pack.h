/* Structs as bytes for another process of the same program, and back. One function walks the fields
 * either way, so that both ends agree; what of a struct travels is a list of its members:
 *
 *     static const struct packed of_rank[] = {PACKED(struct rank, host), PACKED_ARRAY(struct rank,
 * ops), {0}}; pack_struct(pack, of_rank, rank);
 *
 * A message goes in pieces, packed and unpacked at the same time: the last one is shorter than the
 * others. */
#pragma once

#include "base/base.h"

enum { PACK_PIECE = 1 << 20 };

struct pack {
    bool reading;
    char *piece;                     /* PACK_PIECE bytes */
    size_t n, at;                    /* bytes in the piece; read of them */
    struct arena *arena;             /* reading: of texts and of items that are lent */
    void (*pass)(struct pack *pack); /* sends the piece, or receives the next */
    void *other;                     /* of pass() */
    int peer;
};

/* A member that travels. */
struct packed {
    enum packed_kind {
        PACKED_END,
        PACKED_AS_IT_IS, /* its bytes */
        PACKED_IS_TEXT,  /* a static text of the writer; NULL stays NULL */
        PACKED_IS_ITEMS, /* items at a pointer, whose number has travelled; NULL stays NULL */
        PACKED_IS_ARRAY  /* an ARRAY() */
    } kind;
    size_t at, size;            /* in the struct; of the member, or of an item */
    size_t n_at;                /* where the number of items is, a uint32_t */
    bool is_lent;               /* the items are the arena's; else memory of their own */
    const struct packed *items; /* of each item, once all have travelled as they are; NULL: none */
};
#define PACKED_LAST                                                                                \
    {                                                                                              \
        PACKED_END, 0, 0, 0, false, NULL                                                           \
    }
#define PACKED_ITEM_SIZE(type, member) sizeof(*((type *)NULL)->member)
/* The members from `first` to `last`, as they are: a pointer among them follows as text. One. */
#define PACKED_TO(type, first, last)                                                               \
    {                                                                                              \
        PACKED_AS_IT_IS, offsetof(type, first),                                                    \
            offsetof(type, last) + sizeof(((type *)NULL)->last) - offsetof(type, first), 0, false, \
            NULL                                                                                   \
    }
#define PACKED(type, member) PACKED_TO(type, member, member)
#define PACKED_TEXT(type, member)                                                                  \
    {                                                                                              \
        PACKED_IS_TEXT, offsetof(type, member), 0, 0, false, NULL                                  \
    }
#define PACKED_ITEMS_OF(type, member, n, is_lent, list)                                            \
    {                                                                                              \
        PACKED_IS_ITEMS, offsetof(type, member), PACKED_ITEM_SIZE(type, member),                   \
            offsetof(type, n), is_lent, list                                                       \
    }
#define PACKED_ITEMS(type, member, n) PACKED_ITEMS_OF(type, member, n, false, NULL)
#define PACKED_LENT(type, member, n)  PACKED_ITEMS_OF(type, member, n, true, NULL)
#define PACKED_ARRAY_OF(type, member, list)                                                        \
    {                                                                                              \
        PACKED_IS_ARRAY, offsetof(type, member), PACKED_ITEM_SIZE(type, member.at), 0, false, list \
    }
#define PACKED_ARRAY(type, member) PACKED_ARRAY_OF(type, member, NULL)

/* Ends the work of the scope where fewer bytes are left to read. */
void pack_bytes(struct pack *pack, void *at, size_t size);
void pack_struct(struct pack *pack, const struct packed *list, void *at);
/* Frees the items that a struct owns; makes all its items copies of the arena's. */
void packed_free(const struct packed *list, void *at);
void packed_copy(const struct packed *list, void *at, struct arena *arena);
/* n items: of memory of their own, or of the arena. NULL stays NULL. */
void pack_items(struct pack *pack, void **at, size_t n, size_t size, bool is_lent);
void pack_text(struct pack *pack, const char **text);
void pack_strings(struct pack *pack, struct strtab *table);

#define PACK(pack, field)       pack_bytes((pack), &(field), sizeof(field))
#define PACK_ITEMS(pack, at, n) pack_items((pack), (void **)&(at), (n), sizeof *(at), false)
