/* Which connections are kept: DPRO_NET_PEERS. Reads the environment once, allocates nothing, and
 * opens no connection (no names are looked up). */
#pragma once

#include <stdbool.h>

#include "record.h"

void peers_init(void);
/* UNIX sockets are looked at at all. */
bool peers_unix(void);
/* True when the connection is kept because of where it goes to. */
bool peers_keep(const struct record_connection *c);
/* True when a connection is kept once a known protocol was recognised on it. */
bool peers_keep_recognised(void);
