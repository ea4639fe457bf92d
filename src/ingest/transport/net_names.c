/* The ends of connections, processes that are no ranks, calls and gloo's collectives by name and
 * back. */
#include <arpa/inet.h>
#include <strings.h>
#include <sys/socket.h>

#include "ingest/transport/transport.h"
#include "tracer/record.h"

static const uint8_t v4_prefix[12] = {[10] = 0xff, [11] = 0xff};

static bool is_v4(const struct net_address *address)
{
    return memcmp(address->ip, v4_prefix, sizeof v4_prefix) == 0;
}

bool net_address_is_local(const struct net_address *address)
{
    static const uint8_t loopback[16] = {[15] = 1};
    if (address->family == AF_UNIX)
        return true;
    if (is_v4(address))
        return address->ip[12] == 127 || (address->ip[12] == 169 && address->ip[13] == 254);
    return memcmp(address->ip, loopback, 16) == 0 ||
           (address->ip[0] == 0xfe && (address->ip[1] & 0xc0) == 0x80);
}

bool net_parse_number(const char *text, size_t len, unsigned base, uint64_t max, uint64_t *value)
{
    *value = 0;
    for (size_t i = 0; i < len; i++) {
        unsigned digit = text[i] >= '0' && text[i] <= '9'   ? (unsigned)(text[i] - '0')
                         : text[i] >= 'a' && text[i] <= 'f' ? (unsigned)(text[i] - 'a') + 10
                                                            : 99;
        if (digit >= base || __builtin_mul_overflow(*value, base, value) ||
            __builtin_add_overflow(*value, digit, value))
            return false;
    }
    return len > 0 && *value <= max;
}

bool net_address_parse(const char *text, size_t len, struct net_address *address)
{
    char copy[NET_ADDRESS_TEXT];
    uint64_t value;
    *address = (struct net_address){.family = AF_INET};
    if (len >= sizeof copy)
        return false;
    snprintf(copy, sizeof copy, "%.*s", (int)len, text);
    char *colon = strrchr(copy, ':'), *zone = strchr(copy, '%');
    if (!colon)
        return false;
    *colon++ = '\0';
    if (zone && !net_parse_number(zone + 1, strlen(zone + 1), 16, UINT64_MAX, &address->zone))
        return false;
    copy[strcspn(copy, "%")] = '\0';
    bool of_unix = strcmp(copy, "unix") == 0;
    if (!net_parse_number(colon, strlen(colon), 10, of_unix ? UINT64_MAX : UINT16_MAX, &value))
        return false;
    if (of_unix) {
        address->family = AF_UNIX;
        memcpy(address->ip, &value, sizeof value);
        return true;
    }
    address->port = (uint16_t)value;
    size_t n = strlen(copy);
    if (*copy == '[') {
        bool closed = copy[n - 1] == ']';
        copy[n - 1] = '\0';
        return closed && inet_pton(AF_INET6, copy + 1, address->ip) == 1;
    }
    memcpy(address->ip, v4_prefix, sizeof v4_prefix);
    return inet_pton(AF_INET, copy, address->ip + 12) == 1;
}

void net_address_format(char out[NET_ADDRESS_TEXT], const struct net_address *address)
{
    char ip[INET6_ADDRSTRLEN] = "unix", zone[20] = "";
    uint64_t number = address->port;
    bool bracket = false;
    if (address->zone)
        snprintf(zone, sizeof zone, "%%%" PRIx64, address->zone);
    if (address->family == AF_UNIX) {
        memcpy(&number, address->ip, sizeof number);
    } else {
        bracket = !is_v4(address);
        inet_ntop(bracket ? AF_INET6 : AF_INET, address->ip + (bracket ? 0 : 12), ip, sizeof ip);
    }
    snprintf(out, NET_ADDRESS_TEXT, "%s%s%s%s:%" PRIu64, bracket ? "[" : "", ip, bracket ? "]" : "",
             zone, number);
}

static const char *const call_names[] = {
    [0] = "other",
    [CALL_READ] = "read",
    [CALL_READV] = "readv",
    [CALL_RECV] = "recv",
    [CALL_RECVFROM] = "recvfrom",
    [CALL_RECVMSG] = "recvmsg",
    [CALL_RECVMMSG] = "recvmmsg",
    [CALL_WRITE] = "write",
    [CALL_WRITEV] = "writev",
    [CALL_SEND] = "send",
    [CALL_SENDTO] = "sendto",
    [CALL_SENDMSG] = "sendmsg",
    [CALL_SENDMMSG] = "sendmmsg",
    [CALL_SENDFILE] = "sendfile",
    [CALL_SPLICE] = "splice",
};
enum { N_CALLS = sizeof call_names / sizeof *call_names };

const char *net_call_name(uint8_t call)
{
    return call_names[call < N_CALLS ? call : 0];
}

uint8_t net_call_find(const char *name, size_t len)
{
    uint8_t call = N_CALLS - 1;
    while (call > 0 && !text_n_is(name, len, call_names[call]))
        call--;
    return call;
}

/* ---- processes that are no ranks ---- */

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

char *net_process_format(char out[NET_PROCESS_TEXT], int rank)
{
    unsigned process = (unsigned)rank - (unsigned)INT_MIN;
    const struct role *role = rank >= -1 ? NULL : &roles[process / NET_MAX_PROCESSES];
    if (!role)
        snprintf(out, NET_PROCESS_TEXT, "rank %d", rank);
    else if (role->single)
        snprintf(out, NET_PROCESS_TEXT, "%s", role->word);
    else
        snprintf(out, NET_PROCESS_TEXT, "%s %u", role->word, process % NET_MAX_PROCESSES);
    return out;
}

/* The number that follows a role's word; -1: none, or another word. */
static int role_number(const struct role *role, const char *at, const char *end)
{
    int number = 0, n = 0;
    if (!role->single && at < end && (*at == '_' || *at == '-' || *at == '.' || *at == '='))
        at++;
    for (; !role->single && at < end && isdigit((unsigned char)*at); at++, n++) {
        number = number * 10 + (*at - '0');
        if (number >= NET_MAX_PROCESSES)
            return -1;
    }
    return (role->single || n > 0) && !(at < end && isalpha((unsigned char)*at)) ? number : -1;
}

int net_process_in(const char *name, size_t len)
{
    for (int r = 0; r < N_ROLES; r++) {
        size_t n = strlen(roles[r].word);
        for (size_t i = 0; i + n <= len; i++) {
            if (strncasecmp(name + i, roles[r].word, n) != 0 ||
                (i > 0 && isalpha((unsigned char)name[i - 1])))
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
