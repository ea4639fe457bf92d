/* The kind of a collective, by the name of the call, op or kernel that runs it. */
#include "graph/names/collective_kinds.h"

#include <ctype.h>
#include <string.h>

bool name_collective_type(const char *type)
{
    return strncmp(type, "Collective", 10) == 0 && strncmp(type, "CollectiveInitialize", 20) != 0 &&
           strncmp(type, "CollectiveAssignGroup", 21) != 0;
}

size_t name_plain(const char *name, size_t len, char *plain, size_t size)
{
    size_t n = 0;
    for (size_t i = 0; i < len && n + 1 < size; i++)
        if (name[i] != '_' && name[i] != '-')
            plain[n++] = (char)tolower((unsigned char)name[i]);
    plain[n] = '\0';
    return n;
}

const char *name_collective(const char *name)
{
    /* Longer words first: "reduce_scatter" holds "reduce". Compared without case, '_', '-'. */
    static const struct {
        const char *word, *kind;
    } table[] = {
        {"bytepspushpull", "push_pull"}, /* a tensor's name is behind it */
        {"negotiate", "negotiate"},
        {"collectivereducescatter", "reduce_scatter"},
        {"collectivereduce", "all_reduce"}, /* TensorFlow's */
        {"collectivegather", "all_gather"},
        {"collectivebcast", "broadcast"},
        {"allreduce", "all_reduce"},
        {"reducescatter", "reduce_scatter"},
        {"allgather", "all_gather"},
        {"alltoall", "all_to_all"},
        {"broadcast", "broadcast"},
        {"sendrecv", "send_recv"},
        {"barrier", "barrier"},
        {"gather", "gather"},
        {"scatter", "scatter"},
        {"reduce", "reduce"},
        {"send", "send"},
        {"recv", "recv"},
        {"pushpull", "push_pull"},
        {"push", "push"},
        {"pull", "pull"},
    };
    char plain[96];
    name_plain(name, strcspn(name, "("), plain, sizeof plain);
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (strstr(plain, table[i].word))
            return table[i].kind;
    return NULL;
}
