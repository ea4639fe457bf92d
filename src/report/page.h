/* A page is one file that opens offline: a command's JSON in the static shell page.html, with the
 * style and the scripts that draw all else. The scripts make text of the JSON, never markup, and a
 * content security policy shuts the network out. */
#pragma once

#include "base/writer.h"

/* What stands before and behind a page's data; made by tools/embed.py, as meson.build lists. */
struct page_shell {
    const unsigned char *head;
    size_t head_size;
    const unsigned char *foot;
    size_t foot_size;
};
extern const struct page_shell page_replay, page_optimize;

/* The page whose data, a JSON value, `write` writes. */
static inline void page_write(struct writer *writer, const struct page_shell *shell,
                              void (*write)(struct writer *writer, const void *arg),
                              const void *arg)
{
    writer_put(writer, shell->head, shell->head_size);
    write(writer, arg);
    writer_put(writer, shell->foot, shell->foot_size);
}
