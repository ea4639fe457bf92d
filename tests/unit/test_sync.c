/* What a collective costs, against the replay of its SENDs and RECVs. */

#include "case.h"
#include "cost/program/sync.h"
#include "graph_maker.h"
#include "replay/replay.h"

static uint64_t random_state;

static uint32_t pick(uint32_t n)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((random_state >> 33) % n);
}

/* The event-driven engine on the collective's own graph. */
static int64_t replayed(const struct model_net *net, uint64_t size)
{
    struct dpro_replay *replay;
    struct dpro_error err;
    struct maker m;
    maker_init(&m, net, 0);
    maker_collective(&m, DPRO_NO_OP, size);
    struct dpro_graph *graph = maker_finish(&m);
    maker_fini(&m);
    assert_int_equal(dpro_replay_run(graph, NULL, &replay, &err), 0);
    int64_t last = 0;
    for (uint32_t op = 0; op < dpro_graph_n_ops(graph); op++)
        if (dpro_replay_view(replay)->end_ns[op] > last)
            last = dpro_replay_view(replay)->end_ns[op];
    int64_t ns = last - dpro_replay_view(replay)->start_ns[0];
    dpro_replay_destroy(replay);
    dpro_graph_destroy(graph);
    return ns;
}

static struct model_net random_net(enum model_algorithm algorithm)
{
    static const double reduce[] = {0, 0.01, 0.2, 3};
    struct model_net net = {.collective.algorithm = algorithm,
                            .collective.n_ranks = 1 + pick(9),
                            .servers.n = pick(4),
                            .gate.n_streams = 1,
                            .link.chunk_bytes = pick(3) ? 1 + pick(2000) : 0};
    net.collective.ranks_per_host = 1 + pick(4);
    net.link.byte_ns.value = 0.05 + pick(30) / 10.0;
    net.link.message_ns.value = pick(2) ? pick(3000) : 0;
    net.collective.reduce_ns.value = reduce[pick(4)];
    net.collective.overhead_ns.value = pick(2) * 777;
    return net;
}

TEST(a_collective_takes_what_its_messages_replayed_take)
{
    static const enum model_algorithm algorithms[] = {MODEL_RING,   MODEL_HALVING_DOUBLING,
                                                      MODEL_TREE,   MODEL_HIERARCHICAL,
                                                      MODEL_SERVER, MODEL_DIRECT};
    for (size_t a = 0; a < sizeof algorithms / sizeof *algorithms; a++) {
        random_state = 7 + algorithms[a];
        for (int i = 0; i < 300; i++) {
            struct model_net net = random_net(algorithms[a]);
            uint64_t size = 1 + pick(20000);
            struct sync_cost cost = sync_cost(&net, size);
            assert_int_equal(cost.latency_ns + cost.wire_ns, replayed(&net, size));
            assert_true(cost.latency_ns >= sync_ns(net.collective.overhead_ns, 1));
        }
    }
}

TEST(textbook_costs)
{
    static const struct {
        enum model_algorithm algorithm;
        uint32_t n_ranks, ranks_per_host, n_servers;
        int64_t wire_ns, latency_ns; /* of 4800 bytes at 1 ns, 10 ns a message, whole steps */
    } cases[] = {
        {MODEL_RING, 1, 0, 0, 0, 0},
        {MODEL_RING, 2, 0, 0, 4800, 20},
        {MODEL_RING, 4, 0, 0, 7200, 60},                /* 2 (n - 1) steps of a quarter */
        {MODEL_HALVING_DOUBLING, 4, 0, 0, 7200, 40},    /* 2 log2 n steps */
        {MODEL_HALVING_DOUBLING, 5, 0, 0, 12000, 4860}, /* all of it to the fifth, and back */
        {MODEL_TREE, 4, 0, 0, 9600, 9640},              /* two levels up and down, two children */
        {MODEL_HIERARCHICAL, 4, 2, 0, 7200, 40},        /* 1 + 2 + 1 steps */
        {MODEL_SERVER, 4, 0, 4, 4800, 4820},            /* pushed, then pulled */
        {MODEL_SERVER, 4, 0, 1, 19200, 19220},          /* by four over one link */
        {MODEL_DIRECT, 4, 0, 0, 7200, 20},              /* 2 steps of three quarters */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct model_net net = {.collective.algorithm = cases[i].algorithm,
                                .collective.n_ranks = cases[i].n_ranks,
                                .collective.ranks_per_host = cases[i].ranks_per_host,
                                .servers.n = cases[i].n_servers,
                                .link.byte_ns = {1, 0},
                                .link.message_ns = {10, 0}};
        struct sync_cost cost = sync_cost(&net, 4800);
        assert_int_equal(cost.wire_ns, cases[i].wire_ns);
        assert_int_equal(cost.latency_ns, cases[i].latency_ns);
    }
}

TEST(rings_within_hosts_have_their_links)
{
    struct model_net net = {.collective.algorithm = MODEL_HIERARCHICAL,
                            .collective.n_ranks = 4,
                            .collective.ranks_per_host = 2,
                            .link.byte_ns = {10, 0},
                            .link.within_ns = {2, 0},
                            .link.message_ns = {100, 0},
                            .link.within_message_ns = {20, 0}};
    struct sync_cost cost = sync_cost(&net, 4800);
    assert_int_equal(cost.wire_ns, 2400 * 2 + 2 * 1200 * 10 + 2400 * 2);
    assert_int_equal(cost.latency_ns, 20 + 2 * 100 + 20);
}

TEST(chunks_hide_the_additions_behind_the_transfers)
{
    struct model_net net = {.collective.algorithm = MODEL_RING,
                            .collective.n_ranks = 4,
                            .link.byte_ns = {1, 0},
                            .collective.reduce_ns = {1, 0}};
    struct sync_cost whole, chunked;
    whole = sync_cost(&net, 40000);
    assert_int_equal(whole.latency_ns, 3 * 10000);
    net.link.chunk_bytes = 1000;
    chunked = sync_cost(&net, 40000);
    assert_int_equal(chunked.wire_ns, whole.wire_ns);
    assert_int_equal(chunked.latency_ns, 0);
}

TEST(a_remembered_cost_is_the_same)
{
    random_state = 3;
    struct model_net net = random_net(MODEL_TREE);
    struct sync *sync = sync_create(&net);
    assert_non_null(sync);
    for (int i = 0; i < 20000; i++) {
        uint64_t size = 1 + pick(12000);
        struct sync_cost got = sync_get(sync, size);
        struct sync_cost expected = sync_cost(&net, size);
        assert_int_equal(got.latency_ns, expected.latency_ns);
        assert_int_equal(got.wire_ns, expected.wire_ns);
    }
    sync_destroy(sync);
}
