/* Puts a page's data into its shell. */
#include "report/page.h"

void page_write(struct writer *w, const struct page_shell *shell,
                void (*write)(struct writer *, const void *), const void *arg)
{
    writer_put(w, shell->head, shell->head_size);
    write(w, arg);
    writer_put(w, shell->foot, shell->foot_size);
}
