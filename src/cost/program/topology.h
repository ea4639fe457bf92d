/* Hosts and links that a user tells of, for what the trace does not show. */
#pragma once

#include "base/base.h"

#include <dpro/error.h>

/* Of a link's rate, what is left for payload where nothing else is told: 1448 of the 1514 bytes of
 * a frame on Ethernet. A link of 1 Gbit/s, measured with one TCP stream: 954 Mbit/s. */
#define PAYLOAD_SHARE (1448.0 / 1514.0)

struct told_link {
    double bytes_per_s; /* each way, nominal */
    double payload;     /* share of it that is left for data */
    double latency_ns;  /* of a message, beside its bytes; 0: not told */
};

struct topology {
    uint32_t ranks_per_host;
    double rails;             /* links to other hosts that a host has */
    struct told_link within;  /* of a rank, to others of its host */
    struct told_link between; /* each of a host's links to others */
};

/* `name`: of a ready-made one, or a file (doc/formats/topology.md). */
void topology_read(const char *name, struct topology *topology);

/* What is left for data, in bytes a second. */
static inline double told_rate(const struct told_link *link)
{
    return link->bytes_per_s * link->payload;
}

/* Data that a host, or with links of their own each of its ranks, sends to other hosts. */
static inline double topology_rate(const struct topology *t, bool own_links)
{
    return told_rate(&t->between) * t->rails / (own_links ? t->ranks_per_host : 1);
}

/* Of a ring of n ranks over hosts: a step's mean latency, against that of one between hosts. */
double topology_latency(const struct topology *t, double n, double n_hosts);
