/* What the keys of transfers between partitions say. */
#include <string.h>

#include "ingest/trace.h"

bool trace_key_leaves_task(const char *key)
{
    const char *recv = strrchr(key, ' '), *send = recv;
    if (!recv)
        return false;
    while (send > key && send[-1] != ' ')
        send--;
    size_t len = strcspn(send, " "), task = 0;
    for (size_t i = 0; i < len; i++)
        if (text_begins(send + i, "/device:"))
            task = i;
    return task > 0 && strncmp(send, recv + 1, task) != 0;
}
