/* Structs as bytes for another process of the same program, and back. One function walks the fields
 * either way, so that both ends agree. */
#pragma once

#include <stdbool.h>

#include "base/arena.h"
#include "base/array.h"
#include "base/strtab.h"

struct pack {
    bool reading;
    ARRAY(char) bytes;   /* written, or to be read */
    size_t at;           /* read so far */
    struct arena *arena; /* reading: of texts and of arrays that are not of their own */
    /* Where it is a stream of pieces, which fill `bytes`: sends that one, or receives the next.
     * NULL: all is in `bytes`. */
    void (*pass)(struct pack *pack);
    void *other; /* of pass() */
    int peer;
};

/* Ends the work of the scope where fewer bytes are left to read. */
void pack_bytes(struct pack *pack, void *at, size_t size);
/* A static text of the writer; NULL stays NULL. */
void pack_text(struct pack *pack, const char **text);
void pack_strings(struct pack *pack, struct strtab *table); /* not in a stream */
/* n items: of memory of their own, or of the arena. NULL stays NULL. */
void pack_items(struct pack *pack, void **at, size_t n, size_t size, bool in_arena);

#define PACK(pack, field)       pack_bytes((pack), &(field), sizeof(field))
#define PACK_ITEMS(pack, at, n) pack_items((pack), (void **)&(at), (n), sizeof *(at), false)
#define PACK_LENT(pack, at, n)  pack_items((pack), (void **)&(at), (n), sizeof *(at), true)
/* An ARRAY() with its count. */
#define PACK_ARRAY(pack, array)                                                                    \
    (PACK(pack, (array).n), PACK_ITEMS(pack, (array).at, (array).n), (array).cap = (array).n)
