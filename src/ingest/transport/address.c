/* ingest/transport/address.c: the two ends of a connection as text and back, and the names of calls
 * and of gloo's collectives. */
#include <arpa/inet.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "ingest/transport/transport.h"

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

static bool parse_number(const char *text, size_t len, int base, uint64_t max, uint64_t *value)
{
    *value = 0;
    for (size_t i = 0; i < len; i++) {
        unsigned digit = text[i] >= '0' && text[i] <= '9'   ? (unsigned)(text[i] - '0')
                         : text[i] >= 'a' && text[i] <= 'f' ? (unsigned)(text[i] - 'a') + 10
                                                            : 99;
        if (digit >= (unsigned)base || *value > (max - digit) / (unsigned)base)
            return false;
        *value = *value * (unsigned)base + digit;
    }
    return len > 0;
}

bool net_address_parse(const char *text, size_t len, struct net_address *address)
{
    char ip[INET6_ADDRSTRLEN];
    uint64_t value;
    *address = (struct net_address){.family = AF_INET};
    const char *end = text + len, *colon = end;
    while (colon > text && colon[-1] != ':')
        colon--;
    if (colon == text)
        return false;
    const char *zone = memchr(text, '%', (size_t)(colon - 1 - text)),
               *stop = zone ? zone : colon - 1;
    if (zone &&
        !parse_number(zone + 1, (size_t)(colon - 1 - zone - 1), 16, UINT64_MAX, &address->zone))
        return false;
    if (stop - text == 4 && memcmp(text, "unix", 4) == 0) {
        address->family = AF_UNIX;
        if (!parse_number(colon, (size_t)(end - colon), 10, UINT64_MAX, &value))
            return false;
        memcpy(address->ip, &value, sizeof value);
        return true;
    }
    if (!parse_number(colon, (size_t)(end - colon), 10, UINT16_MAX, &value))
        return false;
    address->port = (uint16_t)value;
    bool v6 = *text == '[';
    if (v6) {
        text++;
        if (stop == text || *--stop != ']')
            return false;
    }
    if (stop < text || (size_t)(stop - text) >= sizeof ip)
        return false;
    memcpy(ip, text, (size_t)(stop - text));
    ip[stop - text] = '\0';
    if (v6)
        return inet_pton(AF_INET6, ip, address->ip) == 1;
    memcpy(address->ip, v4_prefix, sizeof v4_prefix);
    return inet_pton(AF_INET, ip, address->ip + 12) == 1;
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

static const char *const call_names[N_NET_CALLS] = {
    [NET_CALL_OTHER] = "other",       [NET_CALL_READ] = "read",
    [NET_CALL_READV] = "readv",       [NET_CALL_RECV] = "recv",
    [NET_CALL_RECVFROM] = "recvfrom", [NET_CALL_RECVMSG] = "recvmsg",
    [NET_CALL_RECVMMSG] = "recvmmsg", [NET_CALL_WRITE] = "write",
    [NET_CALL_WRITEV] = "writev",     [NET_CALL_SEND] = "send",
    [NET_CALL_SENDTO] = "sendto",     [NET_CALL_SENDMSG] = "sendmsg",
    [NET_CALL_SENDMMSG] = "sendmmsg", [NET_CALL_SENDFILE] = "sendfile",
    [NET_CALL_SPLICE] = "splice",
};

const char *net_call_name(enum net_call call)
{
    return call_names[call < N_NET_CALLS ? call : NET_CALL_OTHER];
}

enum net_call net_call_find(const char *name, size_t len)
{
    for (int i = 0; i < N_NET_CALLS; i++)
        if (strlen(call_names[i]) == len && memcmp(call_names[i], name, len) == 0)
            return (enum net_call)i;
    return NET_CALL_OTHER;
}

const char *gloo_collective_name(uint8_t prefix)
{
    static const char *const names[] = {NULL,        "gather",     "all_gather",
                                        "reduce",    "all_reduce", "scatter",
                                        "broadcast", "barrier",    "all_to_all"};
    return prefix < sizeof names / sizeof *names ? names[prefix] : NULL;
}
