/* Predictions on graphs whose answer is known, where the time goes, the critical path, delays,
 * validation, the Daydream baseline. */

#include "case.h"
#include "diagnose/measures.h"
#include "graph_ask.h"
#include "graph_text.h"
#include "replay/replay.h"

#define MS INT64_C(1000000)

/* What holds of every result: a rank's parts and the critical path add up. */
static void check_sums(const struct dpro_graph *g, const struct dpro_replay *r)
{
    for (uint32_t i = 0; i < dpro_graph_n_ranks(g); i++) {
        struct dpro_rank_time t = dpro_replay_view(r)->ranks[i];
        assert_int_equal(t.iteration_ns, t.forward_ns + t.backward_ns + t.update_ns + t.input_ns +
                                             t.exposed_communication_ns + t.wait_for_peers_ns +
                                             t.idle_ns);
        assert_true(t.idle_ns >= 0 && t.communication_ns >= t.exposed_communication_ns);
    }
    const struct dpro_critical_op *path = dpro_replay_view(r)->critical;
    uint32_t n = dpro_replay_view(r)->n_critical;
    int64_t sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        assert_true(path[i].dur_ns >= 0 && path[i].gap_ns >= 0);
        sum += path[i].gap_ns;
        assert_int_equal(path[i].start_ns, sum);
        sum += path[i].dur_ns;
    }
    assert_int_equal(sum, dpro_replay_view(r)->critical_ns);
}

static int64_t predicted(const struct dpro_graph *g, const struct dpro_replay_options *options)
{
    struct dpro_replay *r = replay_of(g, options);
    int64_t ns = dpro_replay_view(r)->iteration_ns;
    check_sums(g, r);
    return ns;
}

static int64_t predicted_text(const char *text)
{
    struct dpro_graph *g = graph_of(text);
    return predicted(g, NULL);
}

/* Random graphs with what the trace reader adds: boundaries, collectives, phases, samples. */
TEST(the_parts_add_up_whatever_the_graph)
{
    for (uint64_t seed = 0; seed < 3000; seed++) {
        struct dpro_graph *g = random_graph(seed);
        struct graph_member members[4];
        struct graph_collective collective = {.n_members = 4, .barrier = pick(g->n_ops)};
        for (uint32_t i = 0; i < 4; i++)
            members[i] =
                (struct graph_member){.arrival = pick(g->n_ops), .transfer = pick(g->n_ops)};
        collective.missing_wait_ns = pick(4);
        if (pick(2)) {
            g->collectives = &collective;
            g->members = members;
            g->n_collectives = 1;
            g->n_members = 4;
        }
        for (uint32_t r = 0; r < g->n_ranks; r++)
            if (pick(3))
                g->ranks[r].boundary = g->ranks[r].first_op + pick(g->ranks[r].n_ops);
        if (pick(2)) {
            g->n_samples = pick(4) + 1;
            g->sample_dur_ns =
                arena_array(&g->arena, (size_t)g->n_samples * g->n_ops, sizeof(int64_t));
            for (uint32_t i = 0; i < g->n_samples * g->n_ops; i++)
                g->sample_dur_ns[i] = pick(15);
            g->shown_sample = pick(g->n_samples);
        }
        const char *delays[] = {"ALL=+0.00001", "ALL=1.5"};
        struct dpro_replay_options options = {
            .samples = pick(2) * 5, .delays = delays, .n_delays = pick(3)};
        int64_t ns = predicted(g, &options), again;
        struct dpro_error err;
        assert_int_equal(dpro_replay_predict(g, &options, &again, &err), 0);
        assert_int_equal(again, ns);
    }
}

/* What a rank does at one instant, looked up the slow way. */
enum slow_use { SLOW_FW, SLOW_BW, SLOW_UPDATE, SLOW_INPUT, SLOW_TRANSFER, SLOW_WAIT, SLOW_IDLE };

static enum slow_use slow_use(const struct dpro_graph *g, const struct dpro_replay *r,
                              uint32_t rank, int64_t now, bool *transfers)
{
    bool seen[SLOW_IDLE] = {false}, has_gpu = false, loads = false;
    for (uint32_t op = 0; op < g->n_ops; op++)
        has_gpu |= g->rank[op] == rank && (g->flags[op] & GRAPH_OP_GPU);
    for (uint32_t op = 0; op < g->n_ops; op++) {
        if (g->rank[op] != rank || now < dpro_replay_view(r)->start_ns[op] ||
            now >= dpro_replay_view(r)->end_ns[op])
            continue;
        uint32_t device = g->device[op];
        bool on_cpu = device != DPRO_NO_DEVICE && g->devices[device].kind == DPRO_DEVICE_CPU_THREAD;
        if (g->kind[op] > DPRO_OP_INPUT) {
            seen[SLOW_TRANSFER] = true;
            continue;
        }
        if (has_gpu ? g->flags[op] & GRAPH_OP_GPU : on_cpu)
            seen[g->kind[op]] = true;
        else if (has_gpu && on_cpu && g->kind[op] == DPRO_OP_INPUT)
            loads = true;
    }
    for (uint32_t i = 0; i < g->n_members; i++)
        seen[SLOW_WAIT] |= g->rank[g->members[i].transfer] == rank &&
                           now >= dpro_replay_view(r)->end_ns[g->members[i].arrival] &&
                           now < dpro_replay_view(r)->end_ns[g->collectives[0].barrier];
    *transfers = seen[SLOW_TRANSFER];
    for (int use = 0; use < SLOW_IDLE; use++)
        if (seen[use])
            return (enum slow_use)use;
    return loads ? SLOW_INPUT : SLOW_IDLE;
}

TEST(every_instant_of_a_random_graph_counts_as_what_was_going_on)
{
    for (uint64_t seed = 0; seed < 1500; seed++) {
        struct dpro_graph *g = random_graph(seed);
        struct graph_member members[3];
        struct graph_collective collective = {.n_members = 3, .barrier = pick(g->n_ops)};
        g->single_iteration = true;
        for (uint32_t i = 0; i < 3; i++)
            members[i] =
                (struct graph_member){.arrival = pick(g->n_ops), .transfer = pick(g->n_ops)};
        g->collectives = &collective;
        g->members = members;
        g->n_collectives = pick(2);
        g->n_members = g->n_collectives * 3;
        for (uint32_t i = 0; i < g->n_ranks; i++)
            g->ranks[i].offset_ns = pick(20);
        struct dpro_replay *r = replay_of(g, NULL);
        check_sums(g, r);
        for (uint32_t i = 0; i < g->n_ranks; i++) {
            int64_t ns[SLOW_IDLE + 1] = {0}, transfer_ns = 0;
            for (int64_t now = 0; now < dpro_replay_view(r)->iteration_ns; now++) {
                bool transfers;
                ns[slow_use(g, r, i, now, &transfers)]++;
                transfer_ns += transfers;
            }
            struct dpro_rank_time t = dpro_replay_view(r)->ranks[i];
            assert_int_equal(t.forward_ns, ns[SLOW_FW]);
            assert_int_equal(t.backward_ns, ns[SLOW_BW]);
            assert_int_equal(t.update_ns, ns[SLOW_UPDATE]);
            assert_int_equal(t.input_ns, ns[SLOW_INPUT]);
            assert_int_equal(t.exposed_communication_ns, ns[SLOW_TRANSFER]);
            assert_int_equal(t.wait_for_peers_ns, ns[SLOW_WAIT]);
            assert_int_equal(t.idle_ns, ns[SLOW_IDLE]);
            assert_int_equal(t.communication_ns, transfer_ns);
        }
        const struct dpro_critical_op *path = dpro_replay_view(r)->critical;
        uint32_t n = dpro_replay_view(r)->n_critical;
        for (uint32_t i = 0; i < n; i++) { /* no unexplained wait but before the first op */
            assert_int_equal(path[i].start_ns, dpro_replay_view(r)->start_ns[path[i].op]);
            if (i)
                assert_int_equal(path[i].gap_ns, g->gap_ns ? g->gap_ns[path[i].op] : 0);
        }
    }
}

TEST(graphs_with_known_periods)
{
    static const struct {
        const char *text;
        int64_t ns;
    } cases[] = {
        /* one after the other */
        {"a:10@d0 -> b:5@d0 -> e*  => a", 15},
        /* the update of one iteration overlaps the next one's input: the slower of both counts */
        {"in:4@d1 => in; in -> fw:10@d0 -> e* => fw", 10},
        {"in:14@d1 => in; in -> fw:10@d0 -> e* => fw", 14},
        /* a pipeline in steady state goes at the pace of its slowest stage */
        {"a:3@d0 -> b:8@d1 -> c:5@d2 -> e* => e; a => a; b => b; c => c", 8},
        /* ... unless it may not start before the last stage is through */
        {"a:3@d0 -> b:8@d1 -> c:5@d2 -> e* => a", 16},
        /* a gap before the first op belongs to the period */
        {"a:10@d0+2 -> e* => a", 12},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(predicted_text(cases[i].text), cases[i].ns);
}

/* Four ranks of a GPU job: forward, backward, all-reduce, update. */
static struct dpro_graph *four_ranks(const char *rank2_bw)
{
    char text[4096], *at = text;
    at += sprintf(at, "barrier#0!BARRIER;");
    for (int r = 0; r < 4; r++)
        at += sprintf(
            at,
            "fw%d:30000000@g%d#%d!FW -> bw%d:%s@g%d#%d!BW -> ar%d#%d!BARRIER -> barrier -> "
            "tr%d:10000000@gc%d#%d!COLLECTIVE -> up%d:5000000@g%d#%d!UPDATE -> e%d#%d* "
            "=> fw%d;",
            r, r, r, r, r == 2 ? rank2_bw : "60000000", r, r, r, r, r, r, r, r, r, r, r, r, r);
    struct dpro_graph *g = graph_of(text);
    add_collective(g, "barrier", 1 << 20, "ar0 tr0 ar1 tr1 ar2 tr2 ar3 tr3");
    return g;
}

TEST(waiting_goes_to_the_ranks_that_arrive_early)
{
    struct dpro_graph *g = four_ranks("67000000");
    struct dpro_replay *r = replay_of(g, NULL);
    assert_int_equal(dpro_replay_view(r)->iteration_ns, 112 * MS);
    check_sums(g, r);
    for (uint32_t i = 0; i < 4; i++) {
        struct dpro_rank_time t = dpro_replay_view(r)->ranks[i];
        assert_int_equal(t.rank, i);
        assert_int_equal(t.iteration_ns, 112 * MS);
        assert_int_equal(t.forward_ns, 30 * MS);
        assert_int_equal(t.backward_ns, (i == 2 ? 67 : 60) * MS);
        assert_int_equal(t.update_ns, 5 * MS);
        assert_int_equal(t.exposed_communication_ns, 10 * MS);
        assert_int_equal(t.communication_ns, 10 * MS);
        assert_int_equal(t.wait_for_peers_ns, (i == 2 ? 0 : 7) * MS);
        assert_int_equal(t.waited_most_for, i == 2 ? -1 : 2);
        assert_int_equal(t.idle_ns, 0);
        for (uint32_t peer = 0; peer < 4; peer++)
            assert_int_equal(dpro_replay_view(r)->waited_for_ns[i * 4 + peer],
                             i != 2 && peer == 2 ? 7 * MS : 0);
    }
    assert_int_equal(dpro_replay_view(r)->critical_ns, 112 * MS);
    uint32_t n, seen = 0;
    const struct dpro_critical_op *path = dpro_replay_view(r)->critical;
    n = dpro_replay_view(r)->n_critical;
    for (uint32_t i = 0; i < n; i++)
        seen += path[i].op == op_named(g, "fw2") || path[i].op == op_named(g, "bw2");
    assert_int_equal(seen, 2);
    assert_int_equal(dpro_replay_view(r)->start_ns[op_named(g, "fw0")], 0);
    assert_int_equal(dpro_replay_view(r)->end_ns[op_named(g, "bw0")], 90 * MS);
    assert_int_equal(dpro_replay_view(r)->start_ns[op_named(g, "tr0")], 97 * MS);
    assert_int_equal(dpro_replay_view(r)->end_ns[op_named(g, "e3")], 112 * MS);
}

TEST(efficiencies_multiply_to_what_computing_is_of_the_ranks_iterations)
{
    struct dpro_graph *g = four_ranks("67000000");
    struct pop pop = pop_of(g, dpro_replay_view(replay_of(g, NULL)), 1);
    assert_float_equal(pop.load_balance, (3 * 95 + 102) / 4. / 102, 1e-12);
    assert_float_equal(pop.serialisation, 1, 1e-12);
    assert_float_equal(pop.transfer, 102. / 112, 1e-12);
    assert_float_equal(pop.parallel, (3 * 95 + 102) / 4. / 112, 1e-12);
    assert_float_equal(pop.launch, 1, 1e-12);
    for (uint64_t seed = 0; seed < 200; seed++) {
        g = random_graph(seed);
        pop = pop_of(g, dpro_replay_view(replay_of(g, NULL)), 1);
        double factors[] = {pop.load_balance, pop.serialisation, pop.transfer, pop.parallel};
        for (size_t i = 0; pop.known && i < sizeof factors / sizeof *factors; i++)
            assert_true(factors[i] > 0 && factors[i] <= 1);
    }
}

TEST(ranks_missing_from_the_trace_are_waited_for_too)
{
    struct dpro_graph *g = four_ranks("60000000");
    g->collectives[0].missing_wait_ns = 4 * MS;
    struct dpro_replay *r = replay_of(g, NULL);
    struct dpro_rank_time t = dpro_replay_view(r)->ranks[1];
    check_sums(g, r);
    assert_int_equal(t.wait_for_peers_ns, 4 * MS);
    assert_int_equal(t.exposed_communication_ns, 6 * MS);
    assert_int_equal(t.communication_ns, 6 * MS);
    assert_int_equal(t.waited_most_for, -1);
}

TEST(a_single_iteration_starts_where_its_ranks_did)
{
    struct dpro_graph *g = graph_of("a:10@d0 -> m#0!BARRIER -> ta:5@l0!COLLECTIVE;"
                                    "b:10@d1#1 -> m -> tb:5@l1#1!COLLECTIVE");
    g->ranks[0].offset_ns = -3;
    g->ranks[1].offset_ns = 4;
    struct dpro_replay *r = replay_of(g, NULL);
    check_sums(g, r);
    assert_int_equal(dpro_replay_view(r)->iteration_ns, 22);
    assert_int_equal(dpro_replay_view(r)->start_ns[op_named(g, "a")], 0);
    assert_int_equal(dpro_replay_view(r)->start_ns[op_named(g, "b")], 7);
    const struct dpro_critical_op *path = dpro_replay_view(r)->critical;
    uint32_t n = dpro_replay_view(r)->n_critical;
    assert_int_equal(path[0].op, op_named(g, "b"));
    assert_int_equal(path[0].gap_ns, 7);
    assert_int_equal(dpro_replay_view(r)->critical_ns, 22);
    n = dpro_replay_view(r)->n_iterations;
    assert_int_equal(n, 1);
}

TEST(an_op_may_leave_its_latest_predecessors_out)
{
    struct dpro_graph *g = graph_of("a:10@d0 -> v; b:30@d1 -> v; c:20@d2 -> v; v -> x:5@d3");
    uint8_t spare[16] = {0};
    g->spare = spare;
    const int64_t starts[] = {30, 20, 10};
    for (uint8_t n = 0; n < 3; n++) {
        spare[op_named(g, "v")] = n;
        struct dpro_replay *r = replay_of(g, NULL);
        assert_int_equal(dpro_replay_view(r)->start_ns[op_named(g, "x")], starts[n]);
    }
    const int64_t ends[] = {7, 3, 9, 3, 8};
    const int64_t sorted[] = {9, 8, 7, 3, 3};
    for (uint32_t n = 0; n < 5; n++)
        assert_int_equal(graph_all_but_latest(ends, 5, n), sorted[n]);
    assert_int_equal(graph_all_but_latest(ends, 5, 5), 0);
}

TEST(what_waits_for_one_of_two_does_not_wait_for_the_other_to_start)
{
    struct dpro_graph *g = graph_of("a:10@d0 -> v; s:50@d1 -> b:10@d2 -> v; v -> x:5@l0; "
                                    "q:20@d3 -> y:100@l0");
    uint8_t spare[16] = {0};
    g->spare = spare;
    spare[op_named(g, "v")] = 1;
    struct dpro_replay *r = replay_of(g, NULL);
    assert_int_equal(dpro_replay_view(r)->start_ns[op_named(g, "x")],
                     10); /* before y takes the link */
    assert_int_equal(dpro_replay_view(r)->start_ns[op_named(g, "y")], 20);
}

TEST(what_waits_for_one_of_two_takes_the_one_that_ends_first_not_starts_first)
{
    struct dpro_graph *g =
        graph_of("a:90@d0 -> v; s:10@d1 -> b:20@d2 -> v; t:40@d3 -> c:10@d4 -> v; "
                 "v -> x:5@l0");
    uint8_t spare[16] = {0};
    g->spare = spare;
    const int64_t starts[] = {90, 50, 30};
    for (uint8_t n = 0; n < 3; n++) {
        spare[op_named(g, "v")] = n;
        struct dpro_replay *r = replay_of(g, NULL);
        assert_int_equal(dpro_replay_view(r)->start_ns[op_named(g, "x")], starts[n]);
        assert_int_equal(dpro_replay_view(r)->end_ns[op_named(g, "x")], starts[n] + 5);
    }
}

TEST(a_recording_that_began_idle_is_replayed_from_idle)
{
    /* the CPU waits for the GPU work of the iteration before, which the first one has not */
    struct dpro_graph *g = graph_of("a:10/10/10@d0 -> e* => a; a -> k:30/30/30@d1 => a");
    bool follows[3] = {true, true, true};
    uint32_t n;
    g->sample_follows = follows;
    for (int began = 0; began < 2; began++) {
        follows[0] = !began;
        struct dpro_replay *r = replay_of(g, NULL);
        const int64_t *ns = dpro_replay_view(r)->iterations_ns;
        n = dpro_replay_view(r)->n_iterations;
        assert_int_equal(n, 3);
        assert_int_equal(ns[0], began ? 10 : 40);
        assert_int_equal(ns[1], 40);
        assert_int_equal(ns[2], 40);
    }
    /* and so is the first one when it is left out and predicted from the others */
    struct dpro_replay_options leave_out = {.skip_sample = 1};
    assert_int_equal(predicted(g, &leave_out), 10);
    leave_out.skip_sample = 2;
    assert_int_equal(predicted(g, &leave_out), 40);
}

/* Makes two links of a graph, one behind the other, connections that share one. */
static void share_link(struct dpro_graph *g, const char *first, const char *second)
{
    uint32_t a = g->device[op_named(g, first)], b = g->device[op_named(g, second)];
    assert_int_equal(b, a + 1);
    for (uint32_t d = a; d <= b; d++) {
        g->devices[d].shared = a;
        g->devices[d].n_sharing = 2;
    }
}

TEST(connections_share_a_link_evenly)
{
    static const struct {
        const char *text;
        int64_t large_ns, small_ns;
    } cases[] = {
        /* a small message waits no longer than for its own half of the link */
        {"large:100@l0; small:10@l1; x:1@d0 -> large; y:21@d1 -> small", 111, 41},
        /* nor does a large one once the small one is over: what both sent takes 110 together */
        {"large:100@l0; small:10@l1; x:1@d0 -> large; y:1@d1 -> small", 111, 21},
        /* before it begins it takes nothing of the link */
        {"large:100@l0; small:10+200@l1; x:1@d0 -> large; y:21@d1 -> small", 101, 231},
        {"large:100@l0; small:10@l1; x:1@d0 -> large; y:101@d1 -> small", 101, 111},
        {"large:0@l0; small:10@l1; x:1@d0 -> large; y:1@d1 -> small", 1, 11},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct dpro_graph *g = graph_of(cases[i].text);
        share_link(g, "large", "small");
        g->single_iteration = true;
        struct dpro_replay *r = replay_of(g, NULL);
        check_sums(g, r);
        assert_int_equal(dpro_replay_view(r)->end_ns[op_named(g, "large")], cases[i].large_ns);
        assert_int_equal(dpro_replay_view(r)->end_ns[op_named(g, "small")], cases[i].small_ns);
    }
}

TEST(a_connection_sends_one_message_after_the_other)
{
    struct dpro_graph *g =
        graph_of("a:30@l0; c:30@l1; b:10@l0; x:1@d0 -> a; y:2@d1 -> c; z:3@d2 -> b;"
                 "b -> w:1@d3");
    share_link(g, "a", "c");
    g->single_iteration = true;
    struct dpro_replay *r = replay_of(g, NULL);
    check_sums(g, r);
    assert_int_equal(dpro_replay_view(r)->end_ns[op_named(g, "a")], 60);
    assert_int_equal(dpro_replay_view(r)->start_ns[op_named(g, "b")], 60);
    assert_int_equal(dpro_replay_view(r)->end_ns[op_named(g, "c")], 62);
    assert_int_equal(dpro_replay_view(r)->end_ns[op_named(g, "b")], 71);
    assert_int_equal(dpro_replay_view(r)->end_ns[op_named(g, "w")], 72);
}

TEST(hostile_durations_on_a_shared_link_come_to_an_end)
{
    struct dpro_graph *g = graph_of("a:9223372036854775807@l0 => a; b:9223372036854775807@l1 => b;"
                                    "a -> c:9223372036854775807@l0 => c; d:3@l1; b -> e:7@d0 => e");
    share_link(g, "a", "b");
    replay_of(g, NULL);
}

TEST(what_led_up_to_the_first_iteration_begins_when_it_did)
{
    /* rank 0 waits for what rank 1 did in the iteration before */
    struct dpro_graph *g = graph_of("a:10/10@d0#0 -> e*#0 => a; b:30/30@d1#1 -> f*#1 => b; f => a");
    int64_t lead_dur[8] = {0}, lead_gap[8] = {0}, begin[2] = {0, 0};
    lead_dur[op_named(g, "a")] = 10;
    lead_dur[op_named(g, "b")] = 30;
    g->lead_dur_ns = lead_dur;
    g->lead_gap_ns = lead_gap;
    g->lead_begin_ns = begin;
    for (int64_t late = 0; late <= 100; late += 100) {
        uint32_t n;
        begin[1] = late;
        struct dpro_replay *r = replay_of(g, NULL);
        const int64_t *ns = dpro_replay_view(r)->iterations_ns;
        n = dpro_replay_view(r)->n_iterations;
        assert_int_equal(n, 2);
        assert_int_equal(ns[0], 30 + late / 2); /* the mean of both ranks */
        assert_int_equal(ns[1], 30);
    }
}

TEST(each_measured_iteration_is_replayed)
{
    struct dpro_graph *g = graph_of("a:10/20/60@d0 -> e* => a");
    g->shown_sample = 1;
    struct dpro_replay *r = replay_of(g, NULL);
    const int64_t *ns = dpro_replay_view(r)->iterations_ns;
    uint32_t n = dpro_replay_view(r)->n_iterations;
    assert_int_equal(n, 3);
    assert_int_equal(ns[0], 10);
    assert_int_equal(ns[1], 20);
    assert_int_equal(ns[2], 60);
    assert_int_equal(dpro_replay_view(r)->iteration_ns, 30);
    assert_int_equal(dpro_replay_percentile_ns(r, 0), 10);
    assert_int_equal(dpro_replay_percentile_ns(r, 0.5), 20);
    assert_int_equal(dpro_replay_percentile_ns(r, 2), 60);
    assert_int_equal(dpro_replay_view(r)->critical_ns, 20);
}

TEST(noise_that_ranks_share_does_not_make_them_wait)
{
    const char *text = "a:10/30@d0 -> m!BARRIER -> x:5@l0!COLLECTIVE -> ea* => a;"
                       "b:%s@d1#1 -> m -> y:5@l1#1!COLLECTIVE -> eb#1* => b";
    char together[256], apart[256];
    sprintf(together, text, "10/30");
    sprintf(apart, text, "30/10");
    assert_int_equal(predicted_text(together), 25);
    assert_int_equal(predicted_text(apart), 35); /* the slowest of noisy ranks */
}

TEST(drawn_samples_give_a_distribution_that_depends_on_the_seed_only)
{
    struct dpro_graph *g = graph_of("a:10/30@d0 -> m!BARRIER -> x:5@l0!COLLECTIVE -> ea* => a;"
                                    "b:10/30@d1#1 -> m -> y:5@l1#1!COLLECTIVE -> eb#1* => b");
    struct dpro_replay_options options = {.samples = 400, .seed = 7};
    struct dpro_replay *r = replay_of(g, &options), *again = replay_of(g, &options);
    check_sums(g, r);
    assert_int_equal(dpro_replay_view(r)->iteration_ns, 25); /* the draws leave the mean alone */
    assert_int_equal(dpro_replay_percentile_ns(r, 0), 15);
    assert_int_equal(dpro_replay_percentile_ns(r, 1), 35);
    int below = 0; /* one time in two */
    for (int i = 0; i < 100; i++) {
        below += dpro_replay_percentile_ns(r, i / 100.0) < 35;
        assert_int_equal(dpro_replay_percentile_ns(r, i / 100.0),
                         dpro_replay_percentile_ns(again, i / 100.0));
    }
    assert_in_range(below, 42, 58);
    options.seed = 8;
    struct dpro_replay *other = replay_of(g, &options);
    bool differs = false;
    for (int i = 0; i < 400; i++)
        differs |=
            dpro_replay_percentile_ns(r, i / 399.0) != dpro_replay_percentile_ns(other, i / 399.0);
    assert_true(differs);
}

TEST(a_drawn_iteration_is_one_measured_iteration_of_all_ranks_and_servers)
{
    const char *text = "a:10/30@d0 -> m!BARRIER -> x:5@l0!COLLECTIVE -> ea* => a;"
                       "b:10/30@d1#1 -> s:30/10@d2#2 -> y:5@l1#1!COLLECTIVE -> eb#1* => b;"
                       "es#2* => es";
    struct dpro_graph *g = graph_of(text);
    struct dpro_replay_options options = {.samples = 50};
    g->n_ranks = 2; /* the third is a server */
    g->n_servers = 1;
    struct dpro_replay *r = replay_of(g, &options);
    assert_int_equal(dpro_replay_percentile_ns(r, 0), 30); /* mean of 15 and 45 */
    assert_int_equal(dpro_replay_percentile_ns(r, 1), 40); /* mean of 35 and 45 */
}

TEST(delays_change_what_they_name)
{
    /* rank 0: 4 + 6 + 10, rank 1: 2 + 10 ns of CPU work; a GPU rank 2: kernel 8, its CPU part 3 */
    const char *text = "a:4000000@d0!FW -> b:6000000@d0!FW -> c:10000000@d0!BW -> ea* => a;"
                       "x:2000000@d1#1!FW -> y:10000000@d1#1!UPDATE -> eb#1* => x;"
                       "k:8000000@g0#2!FW -> l:3000000@d2#2!FW -> ec#2* => k";
    static const struct {
        const char *delay;
        int64_t us[3]; /* iteration time of each rank */
    } cases[] = {
        {"FW=2", {30000, 14000, 22000}},        {"fw=0.5", {15000, 11000, 5500}},
        {"FW@0=2", {30000, 12000, 11000}},      {"FW@1-2=2", {20000, 14000, 22000}},
        {"FW=+5", {25000, 17000, 16000}},       {"ALL=2", {40000, 24000, 22000}},
        {"COMPUTE=+11", {31000, 23000, 22000}}, {"CPU=2", {40000, 24000, 14000}},
        {"GPU=2", {20000, 12000, 19000}},       {"a=+3", {23000, 12000, 11000}},
        {"[ab]=+3", {26000, 12000, 11000}},     {"y=0", {20000, 2000, 11000}},
        {"y@1=3", {20000, 32000, 11000}},       {"UPDATE=+0.5", {20000, 12500, 11000}},
    };
    struct dpro_graph *g = graph_of(text);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct dpro_replay_options options = {.delays = &cases[i].delay, .n_delays = 1};
        struct dpro_replay *r = replay_of(g, &options);
        for (uint32_t rank = 0; rank < 3; rank++) {
            int64_t ns = dpro_replay_view(r)->ranks[rank].iteration_ns;
            if (ns != cases[i].us[rank] * 1000)
                fail_msg("%s: rank %u takes %ld ns, not %ld us", cases[i].delay, rank, (long)ns,
                         (long)cases[i].us[rank]);
        }
        check_sums(g, r);
    }
}

TEST(delays_that_make_no_sense_are_refused)
{
    static const struct {
        const char *delay, *says;
    } cases[] = {
        {"", "KIND=RATIO"},           {"FW", "KIND=RATIO"},
        {"=2", "KIND=RATIO"},         {"FW=", "KIND=RATIO"},
        {"FW=x", "KIND=RATIO"},       {"FW=nan", "KIND=RATIO"},
        {"FW=inf", "KIND=RATIO"},     {"FW=2x", "KIND=RATIO"},
        {"FW=+", "KIND=RATIO"},       {"FW=+nan", "KIND=RATIO"},
        {"FW= 2", "KIND=RATIO"},      {"@1=2", "KIND=RATIO"},
        {"FW=1e7", "at most"},        {"FW=+1e7", "at most"},
        {"FW=1e999", "KIND=RATIO"},   {"BW=2", "no BW ops"},
        {"FW@9=2", "no such rank"},   {"conv=2", "'conv1', 'conv2', 'conv3'"},
        {"zzz=+1", "neither a kind"}, {NULL, "KIND=RATIO"},
        {"FW=-5", "a ratio below 1"}, {"conv1=-0.5", "a ratio below 1"},
    };
    struct dpro_graph *g =
        graph_of("conv1:1@d0 -> conv2:2@d0 -> conv3:2@d0 -> conv4:1@d0 -> e* => conv1");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct dpro_replay_options options = {.delays = &cases[i].delay, .n_delays = 1};
        struct dpro_replay *r = NULL;
        struct dpro_error err = {0};
        assert_int_equal(dpro_replay_run(g, &options, &r, &err), DPRO_EUSAGE);
        assert_null(r);
        if (!strstr(err.text, cases[i].says))
            fail_msg("'%s' says: %s", cases[i].delay, err.text);
    }
}

static struct dpro_graph *noisy_graph(void)
{
    struct dpro_graph *g = graph_of("a:10/12/11/13@d0 -> m!BARRIER -> x:5/6/5/5@l0!COLLECTIVE ->"
                                    " ea* => a; b:11/10/12/12@d1#1 -> m ->"
                                    " y:5/6/5/5@l1#1!COLLECTIVE -> eb#1* => b");
    static const int64_t measured[] = {16, 18, 17, 18};
    memcpy(g->measured_ns, measured, sizeof measured);
    return g;
}

TEST(the_iteration_left_out_is_not_learnt_from)
{
    struct dpro_graph *g = noisy_graph();
    struct dpro_error unused;
    int64_t before[4], time_before[4], ns;
    for (uint32_t s = 0; s < 4; s++) {
        struct dpro_replay_options options = {.skip_sample = s + 1};
        before[s] = predicted(g, &options);
        assert_int_equal(dpro_replay_predict(g, &options, &time_before[s], &unused), 0);
    }
    for (uint32_t s = 0; s < 4; s++) {
        int64_t kept[16];
        int64_t *sample = g->sample_dur_ns + (size_t)s * g->n_ops;
        memcpy(kept, sample, g->n_ops * sizeof *kept);
        for (uint32_t op = 0; op < g->n_ops; op++) {
            sample[op] = 1000000 + op;
            g->dur_ns[op] += 250000; /* the mean would tell */
        }
        struct dpro_replay_options options = {.skip_sample = s + 1};
        assert_int_equal(predicted(g, &options), before[s]);
        assert_int_equal(dpro_replay_predict(g, &options, &ns, &unused), 0);
        assert_int_equal(ns, time_before[s]);
        memcpy(sample, kept, g->n_ops * sizeof *kept);
        for (uint32_t op = 0; op < g->n_ops; op++)
            g->dur_ns[op] -= 250000;
    }
    struct dpro_replay_options too_far = {.skip_sample = 5};
    struct dpro_replay *r;
    struct dpro_error err;
    assert_int_equal(dpro_replay_run(g, &too_far, &r, &err), DPRO_EUSAGE);
}

TEST(validation_compares_each_iteration_with_the_others)
{
    struct dpro_error err;
    struct dpro_validation v;
    struct dpro_graph *g = noisy_graph();
    assert_int_equal(dpro_replay_validate(g, NULL, &v, &err), 0);
    assert_string_equal(v.method, "leave-one-out");
    assert_int_equal(v.n, 4);
    double sum = 0, abs_sum = 0;
    for (uint32_t s = 0; s < 4; s++) {
        struct dpro_replay_options options = {.skip_sample = s + 1};
        int64_t ns;
        assert_int_equal(dpro_replay_predict(g, &options, &ns, &err), 0);
        double error = (double)(ns - g->measured_ns[s]) / (double)g->measured_ns[s] * 100;
        sum += error / 4;
        abs_sum += fabs(error) / 4;
    }
    assert_true(fabs(v.mean_error_pct - sum) < 1e-9);
    assert_true(fabs(v.mean_abs_error_pct - abs_sum) < 1e-9);
    assert_true(v.max_abs_error_pct >= v.mean_abs_error_pct);
    assert_true(fabs(v.measured_std_pct - 0.9574271077563381 / 17.25 * 100) < 1e-9);
    g = graph_of("a:1 -> b:2");
    assert_int_equal(dpro_replay_validate(g, NULL, &v, &err), 0);
    assert_string_equal(v.method, "none");
    assert_int_equal(v.n, 0);
}

TEST(daydream_waits_for_nobody)
{
    struct dpro_error err;
    struct dpro_daydream d;
    struct dpro_graph *g = four_ranks("90000000");
    assert_int_equal(predicted(g, NULL), 135 * MS);
    assert_int_equal(dpro_replay_daydream(g, 0, &d, &err), 0);
    assert_int_equal(d.iteration_ns, 105 * MS); /* rank 0 alone */
    assert_false(d.bandwidth_was_given);
    assert_true(fabs(d.bandwidth_bytes_per_s - (1 << 20) / 0.01) < 1);
    assert_int_equal(dpro_replay_daydream(g, (1 << 20) / 0.002, &d, &err), 0);
    assert_int_equal(d.iteration_ns, 97 * MS);
    assert_true(d.bandwidth_was_given);
    assert_int_equal(dpro_replay_daydream(g, -1, &d, &err), DPRO_EUSAGE);
    assert_int_equal(dpro_replay_daydream(g, NAN, &d, &err), DPRO_EUSAGE);
}

TEST(negative_times_in_a_graph_are_an_error)
{
    struct dpro_error err;
    struct dpro_replay *r = NULL;
    struct dpro_graph *g = graph_of("a:1/2 -> b:2 => a");
    g->sample_dur_ns[2] = -1;
    assert_int_equal(dpro_replay_run(g, NULL, &r, &err), DPRO_EFORMAT);
    assert_null(r);
}

TEST(huge_durations_do_not_overflow)
{
    const char *delays[] = {"ALL=1000000"};
    struct dpro_replay_options options = {.delays = delays, .n_delays = 1};
    struct dpro_graph *g = graph_of("a:4611686018427387903@d0 -> x:4611686018427387903@l0!SEND ->"
                                    " b:4611686018427387903@d0 -> e* => a; c:5@d1#1 -> b");
    predicted(g, NULL);
    predicted(g, &options);
    delays[0] = "FW=+1000000";
    predicted(g, &options);
}
