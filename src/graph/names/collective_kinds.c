/* The kind of a collective, by the name of the call, op or kernel that runs it. */
#include "graph/names/names.h"

bool name_collective_type(const char *type)
{
    return strncmp(type, "Collective", 10) == 0 && strncmp(type, "CollectiveInitialize", 20) != 0 &&
           strncmp(type, "CollectiveAssignGroup", 21) != 0;
}

const char *dpro_collective_kind_name(enum dpro_collective_kind kind)
{
    static const char *const names[] = {
        NULL,      "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast",
        "reduce",  "gather",     "scatter",    "send",           "recv",       "send_recv",
        "barrier", "negotiate",  "push_pull",  "push",           "pull",       "collective"};
    return (unsigned)kind <= DPRO_OTHER_COLLECTIVE ? names[kind] : NULL;
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

enum dpro_collective_kind name_collective(const char *name)
{
    /* Longer words first: "reduce_scatter" holds "reduce". Compared without case, '_', '-'. */
    static const struct {
        const char *word;
        enum dpro_collective_kind kind;
    } table[] = {
        {"bytepspushpull", DPRO_PUSH_PULL}, /* a tensor's name is behind it */
        {"negotiate", DPRO_NEGOTIATE},
        {"collectivereducescatter", DPRO_REDUCE_SCATTER},
        {"collectivereduce", DPRO_ALL_REDUCE}, /* TensorFlow's */
        {"collectivegather", DPRO_ALL_GATHER},
        {"collectivebcast", DPRO_BROADCAST},
        {"allreduce", DPRO_ALL_REDUCE},
        {"reducescatter", DPRO_REDUCE_SCATTER},
        {"allgather", DPRO_ALL_GATHER},
        {"alltoall", DPRO_ALL_TO_ALL},
        {"broadcast", DPRO_BROADCAST},
        {"sendrecv", DPRO_SEND_RECV},
        {"barrier", DPRO_BARRIER},
        {"gather", DPRO_GATHER},
        {"scatter", DPRO_SCATTER},
        {"reduce", DPRO_REDUCE},
        {"send", DPRO_SEND},
        {"recv", DPRO_RECV},
        {"pushpull", DPRO_PUSH_PULL},
        {"push", DPRO_PUSH},
        {"pull", DPRO_PULL},
    };
    char plain[96];
    name_plain(name, strcspn(name, "("), plain, sizeof plain);
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (strstr(plain, table[i].word))
            return table[i].kind;
    return DPRO_NO_COLLECTIVE;
}
