/* ingest/transport/process_names.c: the processes of a job that are no ranks, by name and number.
 */
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "ingest/transport/transport.h"

static const struct role {
    const char *word;
    bool single; /* a job has one, without a number */
} roles[] = {{"server", false}, {"ps", false}, {"scheduler", true}};
enum { N_ROLES = sizeof roles / sizeof *roles };

bool net_process_is(int64_t rank)
{
    return (rank >= 0 && rank < NET_MAX_PROCESSES) ||
           (rank >= INT_MIN && rank < INT_MIN + (int64_t)N_ROLES * NET_MAX_PROCESSES);
}

void net_process_format(char out[NET_PROCESS_TEXT], int rank)
{
    unsigned process = (unsigned)rank - (unsigned)INT_MIN;
    const struct role *role = rank >= -1 ? NULL : &roles[process / NET_MAX_PROCESSES];
    if (!role)
        snprintf(out, NET_PROCESS_TEXT, "rank %d", rank);
    else if (role->single)
        snprintf(out, NET_PROCESS_TEXT, "%s", role->word);
    else
        snprintf(out, NET_PROCESS_TEXT, "%s %u", role->word, process % NET_MAX_PROCESSES);
}

static bool is_between(char c, char low, char high)
{
    return c >= low && c <= high;
}

static bool is_letter(char c)
{
    return is_between(c, 'a', 'z') || is_between(c, 'A', 'Z');
}

/* The number that follows a role's word; -1: none, or another word. */
static int role_number(const struct role *role, const char *at, const char *end)
{
    int number = 0, n = 0;
    if (!role->single && at < end && (*at == '_' || *at == '-' || *at == '.' || *at == '='))
        at++;
    for (; !role->single && at < end && is_between(*at, '0', '9'); at++, n++) {
        number = number * 10 + (*at - '0');
        if (number >= NET_MAX_PROCESSES)
            return -1;
    }
    return (role->single || n > 0) && !(at < end && is_letter(*at)) ? number : -1;
}

int net_process_in(const char *name, size_t len)
{
    for (int r = 0; r < N_ROLES; r++) {
        size_t n = strlen(roles[r].word);
        for (size_t i = 0; i + n <= len; i++) {
            if (strncasecmp(name + i, roles[r].word, n) != 0 || (i > 0 && is_letter(name[i - 1])))
                continue;
            int number = role_number(&roles[r], name + i + n, name + len);
            if (number >= 0)
                return net_process_numbered(roles[r].word, number);
        }
    }
    return -1;
}

int net_process_numbered(const char *role, int64_t number)
{
    int r = 0;
    while (r < N_ROLES && strcmp(roles[r].word, role) != 0)
        r++;
    return r == N_ROLES || number < 0 || number >= NET_MAX_PROCESSES
               ? -1
               : INT_MIN + r * NET_MAX_PROCESSES + (int)number;
}
