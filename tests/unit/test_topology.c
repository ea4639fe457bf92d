/* Told hosts and links: ready-made ones, files, and what of both is refused. */

#include "case.h"
#include "cost/program/topology.h"
#include "temp_folder.h"

static int read_told(const char *name, struct topology *t, struct dpro_error *err)
{
    return OUTCOME(err, topology_read(name, t));
}

static struct topology read_well(const char *name)
{
    struct topology t;
    struct dpro_error err;
    if (read_told(name, &t, &err) < 0)
        fail_msg("%s", err.text);
    return t;
}

TEST(ready_made_ones_are_named_by_what_joins_ranks_and_hosts)
{
    struct topology t = read_well("h100-nvlink-400g");
    assert_int_equal(t.ranks_per_host, 8);
    assert_true(fabs(t.within.bytes_per_s - 450e9) <= 1);
    assert_true(fabs(told_rate(&t.within) - 370.8e9) <= 1e6); /* 18 links */
    assert_true(fabs(told_rate(&t.between) - 48e9) <= 1);
    assert_true(fabs(topology_rate(&t, true) - 48e9) <= 1); /* a NIC for each GPU */
    t = read_well("v100-nvlink-100g");
    assert_true(fabs(told_rate(&t.within) - 120e9) <= 1);
    assert_true(fabs(topology_rate(&t, false) - 48e9) <= 1);
    t = read_well("pcie4-2x25g");
    assert_true(fabs(told_rate(&t.within) - 24e9) <= 1e6);
    assert_true(fabs(topology_rate(&t, false) - 6e9) <= 1);
}

TEST(a_ring_over_hosts_waits_for_the_network_once_a_host)
{
    struct topology t = {.within.latency_ns = 1000, .between.latency_ns = 4000};
    assert_true(fabs(topology_latency(&t, 16, 2) - (1 + 14 * 0.25) / 15) <= 1e-9);
    assert_true(fabs(topology_latency(&t, 16, 16) - 1) <= 1e-9);
    t.within.latency_ns = 0; /* not told */
    assert_true(fabs(topology_latency(&t, 16, 2) - 1) <= 1e-9);
}

#define TOP   "{'schema':'dpro.topology/1','ranks_per_host':"
#define LINKS ",'intra':{'bytes_per_s':1e9},'inter':{'bytes_per_s':1e9"

TEST_IN_FOLDER(a_file_says_what_it_lacks_and_what_is_wrong)
{
    static const struct {
        const char *text, *why;
    } wrong[] = {
        {"", "byte 0: the file ends too early"},
        {"[]", "byte 0: no JSON object"},
        {TOP "8" LINKS, "the file ends too early"},
        {"{}", "'schema' is missing"},
        {"{'schema':'dpro.plan/1'}", "'schema' is not 'dpro.topology/1'"},
        {TOP "8}", "'intra' is missing"},
        {TOP "8,'intra':{'bytes_per_s':1e9}}", "'inter' is missing"},
        {TOP "8,'intra':{}}", "'intra.bytes_per_s' is missing"},
        {TOP "-8" LINKS "}}", "'ranks_per_host' has to be a whole number from 1 to 65536"},
        {TOP "2.5" LINKS "}}", "'ranks_per_host' has to be a whole number"},
        {TOP "'8'" LINKS "}}", "'ranks_per_host' has to be a whole number"},
        {TOP "1e30" LINKS "}}", "'ranks_per_host' has to be a whole number"},
        {TOP "null" LINKS "}}", "'ranks_per_host' has to be a whole number"},
        {TOP "8" LINKS ",'rails':0}}", "'inter.rails' has to be a whole number from 1 to 256"},
        {TOP "8" LINKS ",'payload':1.5}}", "'inter.payload' has to be a number from 0.001 to 1"},
        {TOP "8" LINKS ",'latency_ns':-1}}", "'inter.latency_ns' has to be a number"},
        {TOP "8" LINKS ",'bytes_per_s':1}}", "'inter.bytes_per_s' is there twice"},
        {TOP "8" LINKS ",'latency':1}}", "'inter.latency' is no number of a topology"},
        {TOP "8,'intra':7}", "'intra' has to be an object"},
        {TOP "8" LINKS "},'\\n':1}", "is no number of a topology"},
    };
    struct topology t;
    struct dpro_error err;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        write_text("topology.json", wrong[i].text);
        assert_true(read_told(in_folder("topology.json"), &t, &err) < 0);
        if (!strstr(err.text, wrong[i].why) || strchr(err.text, '\n'))
            fail_msg("%s: %s", wrong[i].text, err.text);
    }
    write_text("topology.json", TOP "4" LINKS ",'rails':2,'note':[1]}}");
    t = read_well(in_folder("topology.json"));
    assert_int_equal(t.ranks_per_host, 4);
    assert_true(fabs(topology_rate(&t, false) - 2e9 * PAYLOAD_SHARE) <= 1);
    static const char *const names[] = {"h100-nvlink-401g",
                                        "h100-nvlink-0x400g",
                                        "h100-nvlink-",
                                        "h100-nvlink-x400g",
                                        "h100-nvlink-999x10g",
                                        "h100",
                                        "/",
                                        ""};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        assert_int_equal(read_told(names[i], &t, &err), DPRO_EUSAGE);
        assert_non_null(strstr(err.text, "no file, and no ready-made topology"));
    }
}
