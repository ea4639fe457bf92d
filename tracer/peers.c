/* Which connections the tracer records.
 *
 * The rule stands in doc/formats/log.md. */
#include "peers.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MAX_ADDRESSES 1024
#define MAX_PORTS     64
#define WELL_KNOWN    1024
#define ROUTE_REJECT  0x0200u
#define ROUTE_UP      0x0001u

struct address {
    uint8_t family; /* enum connection_family */
    uint8_t bytes[16];
};

static enum { PEERS_JOB, PEERS_ALL, PEERS_LIST } mode;
static struct address
    addresses[MAX_ADDRESSES]; /* of the list, or those that the job's variables name */
static int n_addresses;
static uint16_t ports[MAX_PORTS]; /* that the job's variables name */
static int n_ports;

/* ---- the environment ---- */

static bool parse_address(const char *text, size_t n, struct address *out)
{
    char copy[INET6_ADDRSTRLEN + 1];
    *out = (struct address){0};
    if (n >= 2 && text[0] == '[' && text[n - 1] == ']') {
        text++;
        n -= 2;
    }
    if (n == 0 || n >= sizeof copy)
        return false;
    memcpy(copy, text, n);
    copy[n] = '\0';
    out->family = FAMILY_IPV4;
    if (inet_pton(AF_INET, copy, out->bytes) == 1)
        return true;
    out->family = FAMILY_IPV6;
    return inet_pton(AF_INET6, copy, out->bytes) == 1;
}

static void add_address(const char *text, size_t n)
{
    if (n_addresses < MAX_ADDRESSES && parse_address(text, n, &addresses[n_addresses]))
        n_addresses++;
}

static void add_port(const char *text)
{
    unsigned long port = text ? strtoul(text, NULL, 10) : 0;
    if (port > 0 && port <= UINT16_MAX && n_ports < MAX_PORTS)
        ports[n_ports++] = (uint16_t)port;
}

static void add_list(const char *text)
{
    while (*text) {
        size_t n = strcspn(text, ", ");
        add_address(text, n);
        text += n + (text[n] != '\0');
    }
}

/* TF_CONFIG is JSON: every string in it that reads "HOST:PORT" is an end of the job. */
static void add_tf_config(const char *text)
{
    while ((text = strchr(text, '"'))) {
        size_t n = strcspn(++text, "\"");
        size_t colon = n;
        while (colon > 0 && text[colon - 1] != ':')
            colon--;
        if (colon > 1 && text[n] == '"' && strspn(text + colon, "0123456789") == n - colon) {
            add_address(text, colon - 1);
            add_port(text + colon);
        }
        text += n + (text[n] == '"');
    }
}

void peers_init(void)
{
    const char *peers = getenv("DPRO_NET_PEERS"), *value;
    n_addresses = n_ports = 0;
    mode = !peers || !*peers || strcmp(peers, "job") == 0 ? PEERS_JOB
           : strcmp(peers, "all") == 0                    ? PEERS_ALL
                                                          : PEERS_LIST;
    if (mode == PEERS_LIST)
        add_list(peers);
    if (mode != PEERS_JOB)
        return;
    if ((value = getenv("MASTER_ADDR")))
        add_address(value, strlen(value));
    if ((value = getenv("DMLC_PS_ROOT_URI")))
        add_address(value, strlen(value));
    if ((value = getenv("TF_CONFIG")))
        add_tf_config(value);
    add_port(getenv("MASTER_PORT"));
    add_port(getenv("DMLC_PS_ROOT_PORT"));
}

bool peers_unix(void)
{
    return mode == PEERS_ALL;
}

bool peers_keep_recognised(void)
{
    return mode != PEERS_LIST;
}

/* ---- attached networks ---- */

/* Calls `matches` for each line of a file of the kernel's. */
static bool any_line(const char *path, bool (*matches)(const char *line, const uint8_t *address),
                     const uint8_t *address)
{
    char text[4096];
    size_t n = 0;
    bool found = false;
    int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    for (ssize_t got; !found && (got = syscall(SYS_read, fd, text + n, sizeof text - 1 - n)) > 0;) {
        n += (size_t)got;
        text[n] = '\0';
        char *line = text;
        for (char *end; !found && (end = strchr(line, '\n')); line = end + 1) {
            *end = '\0';
            found = matches(line, address);
        }
        n = n - (size_t)(line - text);
        memmove(text, line, n);
        if (n == sizeof text - 1) /* not a line of this file */
            n = 0;
    }
    syscall(SYS_close, fd);
    return found;
}

/* "eth0 DESTINATION GATEWAY FLAGS REFCNT USE METRIC MASK ...": the words are the addresses' own
 * bytes, read as the machine reads them. */
static bool attached_ipv4(const char *line, const uint8_t *address)
{
    uint32_t destination, gateway, flags, mask, mine;
    if (sscanf(line, "%*s %x %x %x %*s %*s %*s %x", &destination, &gateway, &flags, &mask) != 4)
        return false;
    memcpy(&mine, address, sizeof mine);
    return gateway == 0 && mask != 0 && (flags & ROUTE_UP) && !(flags & ROUTE_REJECT) &&
           (mine & mask) == destination;
}

static bool from_hex(const char *text, uint8_t *out)
{
    for (int i = 0; i < 16; i++) {
        unsigned int byte;
        if (sscanf(text + 2 * i, "%2x", &byte) != 1)
            return false;
        out[i] = (uint8_t)byte;
    }
    return true;
}

/* "DESTINATION PREFIX SOURCE PREFIX NEXT-HOP METRIC REFCNT USE FLAGS device" */
static bool attached_ipv6(const char *line, const uint8_t *address)
{
    char destination[33], next[33];
    uint8_t network[16], hop[16];
    static const uint8_t none[16];
    unsigned int prefix, flags;
    if (sscanf(line, "%32s %x %*s %*s %32s %*s %*s %*s %x", destination, &prefix, next, &flags) !=
            4 ||
        strlen(destination) != 32 || strlen(next) != 32 || !from_hex(destination, network) ||
        !from_hex(next, hop))
        return false;
    if (prefix == 0 || prefix > 128 || memcmp(hop, none, sizeof hop) != 0 ||
        (flags & ROUTE_REJECT) || !(flags & ROUTE_UP))
        return false;
    for (unsigned int bit = 0; bit < prefix; bit++)
        if ((network[bit / 8] ^ address[bit / 8]) & (0x80 >> bit % 8))
            return false;
    return true;
}

/* ---- the rule ---- */

static size_t address_size(uint8_t family)
{
    return family == FAMILY_IPV4 ? 4 : 16;
}

static bool listed(const struct record_connection *c)
{
    for (int i = 0; i < n_addresses; i++)
        if (addresses[i].family == c->family &&
            memcmp(addresses[i].bytes, c->remote, address_size(c->family)) == 0)
            return true;
    return false;
}

static bool port_listed(const struct record_connection *c)
{
    for (int i = 0; i < n_ports; i++)
        if (ports[i] == c->local_port || ports[i] == c->remote_port)
            return true;
    return false;
}

static bool is_loopback(const struct record_connection *c)
{
    static const uint8_t one[16] = {[15] = 1};
    return c->family == FAMILY_IPV4 ? c->remote[0] == 127 : memcmp(c->remote, one, sizeof one) == 0;
}

bool peers_keep(const struct record_connection *c)
{
    if (mode == PEERS_ALL)
        return true;
    if (c->family != FAMILY_IPV4 && c->family != FAMILY_IPV6)
        return false;
    if (mode == PEERS_LIST || listed(c))
        return listed(c);
    if (is_loopback(c) || memcmp(c->local, c->remote, address_size(c->family)) == 0 ||
        port_listed(c))
        return true;
    uint16_t service = c->origin == ORIGIN_ACCEPT ? c->local_port : c->remote_port;
    if (service < WELL_KNOWN)
        return false;
    return c->family == FAMILY_IPV4 ? any_line("/proc/net/route", attached_ipv4, c->remote)
                                    : any_line("/proc/net/ipv6_route", attached_ipv6, c->remote);
}
