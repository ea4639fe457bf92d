/* Which connections are kept. */
#include <arpa/inet.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "../unit/case.h"
#include "peers.h"

static struct record_connection connection(const char *local, uint16_t local_port,
                                           const char *remote, uint16_t remote_port)
{
    struct record_connection c = {.origin = ORIGIN_CONNECT,
                                  .local_port = local_port,
                                  .remote_port = remote_port,
                                  .family = strchr(remote, ':') ? FAMILY_IPV6 : FAMILY_IPV4};
    int family = c.family == FAMILY_IPV6 ? AF_INET6 : AF_INET;
    assert_int_equal(inet_pton(family, local, c.local), 1);
    assert_int_equal(inet_pton(family, remote, c.remote), 1);
    return c;
}

static bool keeps(const char *local, const char *remote, uint16_t port)
{
    struct record_connection c = connection(local, 40000, remote, port);
    return peers_keep(&c);
}

static const char *const variables[] = {"DPRO_NET_PEERS",   "MASTER_ADDR",       "MASTER_PORT",
                                        "DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT", "TF_CONFIG"};

static int no_variables(void **state)
{
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++)
        unsetenv(variables[i]);
    peers_init();
    return 0;
}

#define CASE(name) TEST_BETWEEN(name, no_variables, NULL)

CASE(loopback_and_this_machines_own_address_are_peers)
{
    assert_true(keeps("127.0.0.1", "127.0.0.1", 29500));
    assert_true(keeps("127.0.0.1", "127.3.2.1", 80));
    assert_true(keeps("::1", "::1", 5000));
    assert_true(keeps("203.0.113.5", "203.0.113.5", 29500));
    assert_false(keeps("203.0.113.5", "203.0.113.6", 29500));
    assert_false(keeps("2001:db8::1", "2001:db8::2", 29500));
    assert_true(peers_keep_recognised());
    assert_false(peers_unix());
}

CASE(the_jobs_variables_name_peers)
{
    setenv("MASTER_ADDR", "203.0.113.6", 1);
    setenv("DMLC_PS_ROOT_URI", "2001:db8::7", 1);
    setenv("DMLC_PS_ROOT_PORT", "9091", 1);
    setenv("TF_CONFIG",
           "{\"cluster\": {\"worker\": [\"203.0.113.8:2222\", \"node-b.example:2300\", "
           "\"[2001:db8::9]:2400\"]}, \"task\": {\"type\": \"worker\", \"index\": 0}}",
           1);
    peers_init();
    assert_true(keeps("203.0.113.5", "203.0.113.6", 1));
    assert_true(keeps("203.0.113.5", "203.0.113.8", 1));
    assert_true(keeps("2001:db8::1", "2001:db8::7", 1));
    assert_true(keeps("2001:db8::1", "2001:db8::9", 1));
    assert_true(keeps("203.0.113.5", "203.0.113.99", 9091));
    assert_true(keeps("203.0.113.5", "203.0.113.99", 2300));
    assert_false(keeps("203.0.113.5", "203.0.113.99", 2301));
}

CASE(a_list_keeps_only_what_it_names)
{
    setenv("DPRO_NET_PEERS", "203.0.113.6,2001:db8::7", 1);
    setenv("MASTER_ADDR", "203.0.113.9", 1);
    peers_init();
    assert_true(keeps("203.0.113.5", "203.0.113.6", 80));
    assert_true(keeps("2001:db8::1", "2001:db8::7", 80));
    assert_false(keeps("203.0.113.5", "203.0.113.9", 29500));
    assert_false(keeps("127.0.0.1", "127.0.0.1", 29500));
    assert_false(peers_keep_recognised());
}

CASE(all_keeps_everything)
{
    setenv("DPRO_NET_PEERS", "all", 1);
    peers_init();
    assert_true(keeps("203.0.113.5", "198.51.100.1", 443));
    assert_true(peers_unix());
}

CASE(attached_networks_hold_peers_but_not_on_well_known_ports)
{
    if (unshare(CLONE_NEWNET) < 0 ||
        system("exec 2>/dev/null; ip link add d0 type veth peer name d1 && "
               "ip link set d0 up && ip link set d1 up && "
               "ip addr add 203.0.113.5/24 dev d0 && ip addr add 2001:db8::5/64 dev d0 nodad && "
               "ip route add default via 203.0.113.1") != 0) {
        print_message("no right to make a network namespace\n");
        skip();
    }
    assert_true(keeps("203.0.113.5", "203.0.113.77", 29500));
    assert_false(keeps("203.0.113.5", "203.0.113.77", 443));
    assert_false(keeps("203.0.113.5", "203.0.114.77", 29500));
    assert_false(keeps("203.0.113.5", "198.51.100.1", 29500)); /* the default route's */
    assert_true(keeps("2001:db8::5", "2001:db8::77", 29500));
    assert_false(keeps("2001:db8::5", "2001:db8::77", 22));
    assert_false(keeps("2001:db8::5", "2001:db8:0:1::77", 29500));
    struct record_connection c = connection("203.0.113.5", 22, "203.0.113.77", 40000);
    c.origin = ORIGIN_ACCEPT;
    assert_false(peers_keep(&c));
    c.local_port = 29500;
    assert_true(peers_keep(&c));
}
