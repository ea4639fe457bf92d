/* Clocks of a job's ranks: what ties them, who shares one, and what the axis does to times. */

#include "align/transport_constraints.h"
#include "case.h"
#include "graph/clocks/clocks.h"
#include "ingest/part.h"
#include "trace_text.h"

#define US INT64_C(1000)
#define MS INT64_C(1000000)

enum { N_STEPS = 4, STEP_US = 100000, LATE_US = 20000 };

static const char ALL_REDUCE[] = "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*)";

/* A rank whose clock shows `shift_us` more. Each step: compute, then a collective that all leave
 * within `spread_us`; odd ranks come late to it, by another time in each step. */
static struct trace_text *profile(int rank, int world, int64_t shift_us, int64_t spread_us)
{
    struct trace_text *t = trace_text_begin(rank, world);
    for (int i = 0; i < N_STEPS; i++) {
        int64_t at = (int64_t)STEP_US * i + shift_us;
        int64_t busy = (rank + i) % 2 ? LATE_US : 1000;
        trace_text_step(t, i, at, STEP_US);
        trace_text_kernel(t, "gemm", 1, at + 1, 2, 7, at + 5, busy - 5, "");
        trace_text_kernel(t, ALL_REDUCE, 1, at + 4, 2, 20, at + busy,
                          LATE_US + 5000 - busy + (rank * 7 + i * 3) % (spread_us + 1),
                          "\"In msg nelems\": 1000, \"dtype\": \"Float\"");
    }
    return t;
}

/* Messages both ways all the time, under way for 20 us at least. */
static void talk(struct trace_text *net, int rank, int peer, int port, int64_t shift_us)
{
    int64_t shift = shift_us * US;
    for (int i = 0; i < 200; i++) {
        int64_t sent = (int64_t)i * 2 * MS, arrived = sent + 20 * US + i * 7919 % 97 * US;
        trace_text_transfer(net, rank, peer, port, true, (uint64_t)i * 100, 100, sent + shift,
                            sent + shift + US);
        trace_text_transfer(net, rank, peer, port, false, (uint64_t)i * 100, 100, sent + shift,
                            arrived + shift);
    }
}

static void net(int rank, int n, const int64_t *shifts_us, int port)
{
    struct trace_text *t = trace_text_net(rank);
    for (int peer = 0; peer < n; peer++)
        if (peer != rank)
            talk(t, rank, peer, port, shifts_us[rank]);
}

static struct dpro_clock clock_of(const struct dpro_graph *g, int rank)
{
    for (uint32_t c = 0; c < dpro_graph_n_clocks(g); c++) {
        struct dpro_clock clock = dpro_graph_clock(g, c);
        for (uint32_t r = 0; r < clock.n_ranks; r++)
            if (clock.ranks[r] == rank)
                return clock;
    }
    fail_msg("rank %d has no clock", rank);
    return (struct dpro_clock){0};
}

static bool is_near(int64_t a, int64_t b, int64_t within)
{
    return llabs(a - b) <= within;
}

/* ---- what ties clocks ---- */

TEST(transfers_tie_clocks)
{
    const int64_t shifts[] = {0, 8000, 70000};
    for (int rank = 0; rank < 3; rank++) {
        profile(rank, 3, shifts[rank], 3000);
        net(rank, 3, shifts, 4000);
    }
    struct dpro_graph *g = trace_text_graph();
    assert_int_equal(dpro_graph_n_clocks(g), 3);
    assert_string_equal(clock_of(g, 0).method, "reference");
    assert_string_equal(clock_of(g, 0).host, "rank 0");
    for (int rank = 1; rank < 3; rank++) {
        struct dpro_clock clock = clock_of(g, rank);
        assert_string_equal(clock.method, "transport");
        assert_int_equal(clock.n_segments, 1);
        assert_true(is_near(clock.segments[0].offset_ns, -shifts[rank] * US,
                            clock.segments[0].uncertainty_ns));
        assert_true(is_near(clock.segments[0].offset_ns, -shifts[rank] * US, 20 * US));
    }
    struct dpro_alignment alignment = dpro_graph_alignment(g);
    assert_string_equal(alignment.reference, "rank 0");
    assert_int_equal(alignment.n_pairs, 6 * 200);
    assert_true(alignment.violations_before >= 400);
    assert_int_equal(alignment.violations_after, 0);
    uint32_t n;
    assert_non_null(dpro_graph_clock_bounds(g, 1, &n));
    assert_true(n > 0 && n <= 200);
}

TEST(a_rank_without_a_log_is_tied_by_its_collectives)
{
    const int64_t shifts[] = {0, 8000, 70000};
    for (int rank = 0; rank < 3; rank++)
        profile(rank, 3, shifts[rank], 20);
    for (int rank = 0; rank < 2; rank++)
        net(rank, 2, shifts, 4000);
    struct dpro_graph *g = trace_text_graph();
    assert_string_equal(clock_of(g, 1).method, "transport");
    assert_string_equal(clock_of(g, 2).method, "collectives");
    assert_true(has_warning(g, "1 of 3 clocks (first: that of rank 2) are known from collectives"));
    assert_true(is_near(clock_of(g, 1).segments[0].offset_ns, -8 * MS, 20 * US));
    assert_true(is_near(clock_of(g, 2).segments[0].offset_ns, -70 * MS, 60 * US));
}

TEST(logs_tie_a_group_that_collectives_tie_to_the_reference)
{
    const int64_t shifts[] = {0, 8000, 70000};
    for (int rank = 0; rank < 3; rank++)
        profile(rank, 3, shifts[rank], 20);
    for (int rank = 1; rank < 3; rank++) {
        struct trace_text *t = trace_text_net(rank);
        talk(t, rank, 3 - rank, 4000, shifts[rank]);
    }
    struct dpro_graph *g = trace_text_graph();
    assert_string_equal(clock_of(g, 1).method, "transport+collectives");
    assert_string_equal(clock_of(g, 2).method, "transport+collectives");
    assert_true(is_near(clock_of(g, 2).segments[0].offset_ns - clock_of(g, 1).segments[0].offset_ns,
                        -62 * MS, 20 * US));
}

TEST(logs_of_another_run_tie_nothing)
{
    const int64_t shifts[] = {0, 8000};
    profile(0, 2, 0, 20);
    profile(1, 2, 8000, 20);
    net(0, 2, shifts, 4000);
    net(1, 2, shifts, 5000); /* no connection of the other end */
    struct dpro_graph *g = trace_text_graph();
    assert_true(has_warning(g, "known from collectives alone"));
    assert_string_equal(clock_of(g, 1).method, "collectives");
    assert_true(is_near(clock_of(g, 1).segments[0].offset_ns, -8 * MS, 20 * US));
}

TEST(workers_are_tied_through_their_server)
{
    enum { SERVER = 9 };
    const int64_t shifts[] = {0, 8000}, server_shift = 30000;
    struct trace_text *server = trace_text_server();
    for (int rank = 0; rank < 2; rank++) {
        struct trace_text *t = trace_text_begin(rank, 2);
        for (int i = 0; i < N_STEPS; i++) {
            int64_t at = (int64_t)STEP_US * i + shifts[rank];
            trace_text_step(t, i, at, STEP_US);
            trace_text_cpu(t, "cpu_op", "aten::mm", 1, at + 10, 100, "");
        }
        talk(trace_text_net(rank), rank, SERVER, 4000, shifts[rank]);
        talk(server, SERVER, rank, 4000, server_shift);
    }
    struct dpro_graph *g = trace_text_graph();
    assert_int_equal(dpro_graph_n_ranks(g), 2);
    assert_int_equal(dpro_graph_n_clocks(g), 3);
    for (uint32_t c = 1; c < 3; c++) {
        struct dpro_clock clock = dpro_graph_clock(g, c);
        int64_t shift = c == 1 ? shifts[1] : server_shift;
        assert_string_equal(clock.host, c == 1 ? "rank 1" : "server 0");
        assert_int_equal(clock.n_ranks, c == 1 ? 1 : 0);
        assert_string_equal(clock.method, "transport");
        assert_int_equal(clock.n_segments, 1);
        assert_true(clock.segments[0].uncertainty_ns < 100 * US);
        assert_true(
            is_near(clock.segments[0].offset_ns, -shift * US, clock.segments[0].uncertainty_ns));
    }
    assert_int_equal(dpro_graph_alignment(g).n_pairs, 4 * 200);
    assert_true(dpro_graph_alignment(g).violations_before >= 400);
    assert_int_equal(dpro_graph_alignment(g).violations_after, 0);
    assert_false(has_warning(g, "tied"));
}

/* ---- who shares one ---- */

TEST(ranks_of_one_host_share_its_clock)
{
    for (int rank = 0; rank < 4; rank++)
        trace_text_host(profile(rank, 4, rank < 2 ? 0 : 9000, 20), rank < 2 ? "north" : "south");
    struct dpro_graph *g = trace_text_graph();
    assert_int_equal(dpro_graph_n_clocks(g), 2);
    assert_string_equal(clock_of(g, 1).host, "north");
    assert_string_equal(clock_of(g, 1).method, "reference");
    struct dpro_clock south = clock_of(g, 3);
    assert_string_equal(south.host, "south");
    assert_int_equal(south.n_ranks, 2);
    assert_int_equal(south.ranks[0], 2);
    assert_int_equal(south.ranks[1], 3);
    assert_true(is_near(south.segments[0].offset_ns, -9 * MS, 30 * US));
}

TEST(clocks_of_one_host_are_told_apart_by_evidence)
{
    const int64_t shifts[] = {0, 8000, 0};
    for (int rank = 0; rank < 3; rank++) {
        trace_text_host(profile(rank, 3, shifts[rank], 20), rank < 2 ? "north" : "south");
        net(rank, 3, shifts, 4000);
    }
    struct dpro_graph *g = trace_text_graph();
    assert_int_equal(dpro_graph_n_clocks(g), 3);
    assert_string_equal(clock_of(g, 0).host, "north (rank 0)");
    assert_string_equal(clock_of(g, 1).host, "north (rank 1)");
    assert_string_equal(clock_of(g, 2).host, "south");
    assert_true(is_near(clock_of(g, 1).segments[0].offset_ns, -8 * MS, 20 * US));
    assert_true(has_warning(g, "the processes on host 'north' contradict"));
}

/* Two ranks of a host, without messages: all-reduces of `early` of the iterations end on rank 0
 * before rank 1 enters them. */
static struct dpro_graph *collectives_of_a_host(int n, int early)
{
    for (int rank = 0; rank < 2; rank++) {
        struct trace_text *t = trace_text_begin(rank, 2);
        trace_text_host(t, "north");
        for (int i = 0; i < n; i++) {
            int64_t at = (int64_t)STEP_US * i;
            trace_text_step(t, i, at, STEP_US);
            trace_text_kernel(t, "gemm", 1, at + 1, 2, 7, at + 5, rank ? 30000 : 500, "");
            trace_text_kernel(t, ALL_REDUCE, 1, at + 4, 2, 20, at + (rank ? 30010 : 1000),
                              rank        ? 5000
                              : i < early ? 20000
                                          : 34000,
                              "\"In msg nelems\": 1000, \"dtype\": \"Float\"");
        }
    }
    return trace_text_graph();
}

TEST(a_collective_that_seems_to_end_too_early_splits_no_host)
{
    struct dpro_graph *g = collectives_of_a_host(20, 2);
    assert_int_equal(dpro_graph_n_clocks(g), 1);
    assert_false(has_warning(g, "contradict"));
}

TEST(many_that_end_too_early_split_a_host)
{
    struct dpro_graph *g = collectives_of_a_host(20, 12);
    assert_int_equal(dpro_graph_n_clocks(g), 2);
    assert_true(has_warning(g, "the processes on host 'north' contradict"));
}

TEST(clocks_of_one_host_are_told_apart_by_a_third)
{
    const int64_t shifts[] = {0, 5000, 12000}; /* 1 and 2 say nothing to each other */
    for (int rank = 0; rank < 3; rank++) {
        struct trace_text *t = trace_text_begin(rank, 3);
        for (int i = 0; i < N_STEPS; i++) {
            trace_text_step(t, i, (int64_t)STEP_US * i + shifts[rank], STEP_US);
            trace_text_cpu(t, "cpu_op", "aten::mm", 1, (int64_t)STEP_US * i + shifts[rank] + 10,
                           100, "");
        }
        trace_text_host(t, rank < 1 ? "north" : "south");
        struct trace_text *log = trace_text_net(rank);
        if (rank > 0)
            talk(log, rank, 0, 4000, shifts[rank]);
        else
            for (int peer = 1; peer < 3; peer++)
                talk(log, 0, peer, 4000, 0);
    }
    struct dpro_graph *g = trace_text_graph();
    assert_int_equal(dpro_graph_n_clocks(g), 3);
    assert_true(is_near(clock_of(g, 1).segments[0].offset_ns, -5 * MS, 20 * US));
    assert_true(is_near(clock_of(g, 2).segments[0].offset_ns, -12 * MS, 20 * US));
    assert_true(has_warning(g, "the processes on host 'south' contradict"));
}

/* ---- bad logs ---- */

TEST(a_contradiction_is_warned_of)
{
    for (int rank = 0; rank < 2; rank++) {
        profile(rank, 2, 0, 20);
        struct trace_text *t = trace_text_net(rank);
        for (int i = 0; i < 50; i++) {
            int64_t sent = (int64_t)i * 8 * MS, arrived = sent + 20 * US;
            if (rank == 1 && i >= 20 && i < 30) /* read 3 ms before they were written */
                arrived = sent - 3 * MS;
            trace_text_transfer(t, rank, 1 - rank, 4000, true, (uint64_t)i * 100, 100, sent,
                                sent + US);
            trace_text_transfer(t, rank, 1 - rank, 4000, false, (uint64_t)i * 100, 100,
                                arrived - US, arrived);
        }
    }
    struct dpro_graph *g = trace_text_graph();
    assert_true(has_warning(g, "contradict each other"));
    assert_true(dpro_graph_alignment(g).violations_after > 0);
}

TEST(one_broken_time_does_no_harm)
{
    const int64_t shifts[] = {0, 8000};
    for (int rank = 0; rank < 2; rank++) {
        profile(rank, 2, shifts[rank], 20);
        struct trace_text *t = trace_text_net(rank);
        talk(t, rank, 1 - rank, 4000, shifts[rank]);
        trace_text_transfer(t, rank, 1 - rank, 4000, true, 20000, 100,
                            rank ? INT64_MIN / 2 : 500 * MS, 501 * MS);
        trace_text_transfer(t, rank, 1 - rank, 4000, false, 20000, 100, 0,
                            rank ? 900 * MS : 400 * MS);
    }
    struct dpro_graph *g = trace_text_graph();
    assert_true(is_near(clock_of(g, 1).segments[0].offset_ns, -8 * MS, 20 * US));
}

/* ---- the axis ---- */

TEST(the_axis_never_runs_back)
{
    const struct dpro_clock_segment segments[] = {
        {1000, 2000, 500, 100, 0}, {2000, 3000, 100, -100, 0}, {3000, 4000, 9000, 0, 0}};
    struct clock_map map = {segments, 3};
    int64_t last = INT64_MIN;
    for (int64_t t = 0; t < 6000; t++) {
        int64_t at = clock_aligned(&map, t);
        assert_true(at >= last);
        last = at;
    }
    assert_int_equal(clock_aligned(&map, 0), 500); /* the ends reach on */
    assert_int_equal(clock_aligned(&map, 1000), 1500);
    assert_int_equal(clock_aligned(&map, 2000), 2500); /* stands still */
    assert_int_equal(clock_aligned(&map, 2900), 3000);
    assert_int_equal(clock_aligned(&map, 5000), 14000);
    struct clock_map none = {0};
    assert_int_equal(clock_aligned(&none, 77), 77);
}

TEST(times_beyond_all_bounds_stay_where_they_are)
{
    const struct dpro_clock_segment segment = {0, 1, INT64_MAX - 5, 1e9, 0};
    struct clock_map map = {&segment, 1};
    assert_int_equal(clock_aligned(&map, INT64_MAX), INT64_MAX);
    assert_int_equal(clock_aligned(&map, INT64_MIN), INT64_MIN);
}

/* ---- NCCL ---- */

struct seen {
    int n;
    struct clock_constraint last;
};

static void see(void *arg, const struct clock_constraint *constraint)
{
    struct seen *seen = arg;
    seen->n++;
    seen->last = *constraint;
}

/* Rank `rank` of two sends step 3 of its only collective, and receives the other's. */
static struct nccl_log *nccl_log_of(int rank, uint64_t sequence, int64_t shift)
{
    struct nccl_log *log = mem_array(1, sizeof *log);
    strtab_add(&log->names, "", 0);
    uint32_t func = strtab_add(&log->names, "AllReduce", 9);
    log->rank = rank;
    struct nccl_comm comm = {.rank = rank, .hash = 0xabc};
    struct nccl_operation operation = {.sequence = sequence, .func = func};
    array_push(&log->comms, comm);
    array_push(&log->operations, operation);
    for (uint32_t sends = 0; sends < 2; sends++) {
        array_add(&log->steps, .step = 3, .peer = !rank, .channel = 1,
                  .flags = sends ? NCCL_OP_SENDS : NCCL_OP_RECEIVES, .start_ns = 100 + shift,
                  .stop_ns = 200 + shift, .sent_ns = 150 + shift, .there_ns = 180 + shift);
    }
    return log;
}

static struct seen see_nccl(struct nccl_log *first, struct nccl_log *second)
{
    struct nccl_log *logs[] = {first, second};
    struct dpro_trace trace = {.nccl_logs = logs, .n_nccl_logs = 2};
    clock_nodes nodes = {0};
    array_push(&nodes, ((struct clock_node){.rank = 0, .host = "", .boot_id = ""}));
    array_push(&nodes, ((struct clock_node){.rank = 1, .host = "", .boot_id = ""}));
    struct seen seen = {0};
    struct constraint_visitor visitor = {.before = see, .arg = &seen};
    constraints_visit_nccl(&trace, &nodes, &visitor);
    array_fini(&nodes);
    return seen;
}

TEST(nccl_steps_are_sent_before_they_are_there)
{
    struct nccl_log *a = nccl_log_of(0, 6, 0), *b = nccl_log_of(1, 6, 1000);
    struct seen seen = see_nccl(a, b);
    assert_int_equal(seen.n, 2);
    assert_int_equal(seen.last.source, CONSTRAINT_FROM_NCCL);
    assert_int_equal(seen.last.from_ns, seen.last.from ? 1150 : 150);
    assert_int_equal(seen.last.to_ns, seen.last.to ? 1180 : 180);
    assert_true(seen.last.from != seen.last.to);
    payload_destroy(&nccl_payload, a);
    payload_destroy(&nccl_payload, b);
}

TEST(nccl_steps_of_other_collectives_are_not_joined)
{
    struct nccl_log *a = nccl_log_of(0, 6, 0), *b = nccl_log_of(1, 7, 0);
    assert_int_equal(see_nccl(a, b).n, 0);
    payload_destroy(&nccl_payload, b);
    b = nccl_log_of(1, 6, 0);
    array_push(&b->steps, b->steps.at[0]); /* told twice: which one is it? */
    assert_int_equal(see_nccl(a, b).n, 1);
    payload_destroy(&nccl_payload, a);
    payload_destroy(&nccl_payload, b);
}
